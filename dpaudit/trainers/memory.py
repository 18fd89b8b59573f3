"""How many models to stack: as many as are fast, if the machine's memory holds them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from .. import check
from ..interfaces import Trainer
from ..records import Data
from .external import ObjectTrainer
from .settings import GradientDescent

_FEWEST, _MOST = 4, 32  # models of a stack: fewer spend their time between operations, more gain nothing
_CACHE = 3 * 2**20  # bytes of weights and batches of a stack: with more, each operation waits for the memory
_TILED = 6 * 2**20  # the same with convolutions, which are done in tiles
_SHARE = 1 / 32  # of the memory, for one stack
_UNKNOWN = 4 * 2**30  # bytes, on machines that do not say
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def choose_chunk(trainer: Trainer | Sequence[Trainer], data: Data, memory: int | None = None) -> int:
    """How many models to train in one stack: 4 to 32, as fits a processor's cache, or fewer where that would take over
    1/32 of the memory.

    Another chunk changes results by float rounding, so choose it once and keep it with what depends on it.

    Args:
        trainer: whose models they are, or all trainers that are to have the same chunk; those that train one model at
            a time do not count.
        data: the records to train on.
        memory: bytes; by default :func:`available_memory`.

    Raises:
        InputError: ``memory`` is no whole number of at least 1.

    >>> import numpy as np
    >>> from dpaudit.trainers import SGD
    >>> data = Data(np.zeros((2000, 784)), np.zeros(2000), 10)
    >>> [choose_chunk(SGD(hidden=[128]), data, gigabytes * 2**30) for gigabytes in (16, 0.25)]
    [4, 3]
    """
    budget = _SHARE * (available_memory() if memory is None else check.integer("memory", memory, 1))
    trainers = trainer if isinstance(trainer, Sequence) else [trainer]
    settings = [t.trainer if isinstance(t, ObjectTrainer) else t for t in trainers]
    stacked = [s for s in settings if isinstance(s, GradientDescent) and s.stacks]
    fast = [max(_FEWEST, (_TILED if s.convolutional else _CACHE) // cache_bytes(s, data)) for s in stacked]
    held = [max(1, int(budget / model_bytes(s, data))) for s in stacked]
    return min([_MOST, *fast, *held])


def cache_bytes(settings: GradientDescent, data: Data) -> int:
    """About how many bytes each operation on a stack goes through per model: weights, and a batch layer by layer."""
    widths = _widths(settings, data)
    return 4 * (_parameters(settings, data) + _places(settings, data) * sum(widths))


def model_bytes(settings: GradientDescent, data: Data) -> int:
    """About how many bytes one more model adds to a stack in training, beside the iterates that may be kept."""
    widths, parameters = _widths(settings, data), _parameters(settings, data)
    # Weights, their start, and a copy at the end; a batch and, per layer, what goes in, comes out and its derivative.
    batch = _places(settings, data) * (2 * widths[0] + 4 * sum(widths[1:]))
    return 4 * (3 * parameters + batch)


def _widths(settings: GradientDescent, data: Data) -> list[int]:
    return [data.features, *settings.hidden, data.classes]


def _parameters(settings: GradientDescent, data: Data) -> int:
    net = settings.convolutions(data)
    if net is not None:
        return sum(i * o for i, o in net.matrices(settings.hidden, data.classes))
    return sum((i + 1) * o for i, o in pairwise(_widths(settings, data)))


def _places(settings: GradientDescent, data: Data) -> int:
    """The largest of many batches, if about ``nominal_size`` records are members."""
    assert data.nominal_size is not None
    expected = settings.sampling_rate * data.nominal_size
    return math.ceil(min(len(data), expected + 5 * math.sqrt(expected)))


def available_memory() -> int:
    """Bytes of memory: the machine's, or less where a control group limits this process."""
    found = [int(text) for text in map(_text, _LIMITS) if text.isdigit()]
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        found.append(_UNKNOWN)
    return min(found)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
