"""What networks have in common that go through a batch one example after the other, in several threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..example_loops import Rule
from .clipping import AutomaticClipping, Clipping, GlobalClipping, PerLayerClipping
from .layout import Layout

_SHARE = 4  # examples: fewer are not worth a thread
Done = TypeVar("Done")


def in_lanes(work: Callable[[slice], Done], size: int) -> list[Done]:
    """What ``work`` returns for each share of the examples, each in a thread of its own, the first in this one.

    There are as many as torch has. Which examples share a thread depends on their number and that of threads alone, and
    so do the bits of their sums.
    """
    lanes = min(torch.get_num_threads(), -(-size // _SHARE))
    edges = [size * lane // lanes for lane in range(lanes + 1)]
    parts = [slice(start, end) for start, end in itertools.pairwise(edges)]
    with ThreadPoolExecutor(max(1, lanes - 1)) as pool:
        others = [pool.submit(work, part) for part in parts[1:]]
        return [work(parts[0]), *(job.result() for job in others)]


def known_rule(clipping: Clipping, layers: int) -> Rule | None:
    """A clipping rule in numbers; None for one of the caller's."""
    if type(clipping) is GlobalClipping:
        return Rule(np.full(layers, float(clipping.norm)), False, True, 0.0)
    if type(clipping) is AutomaticClipping:
        return Rule(np.full(layers, float(clipping.norm)), False, False, float(clipping.stability))
    if type(clipping) is PerLayerClipping:
        return Rule(np.array(clipping.limits(layers), np.float64), True, True, 0.0)
    return None


def is_plain(layout: Layout) -> bool:
    """Whether the parameters are still those that the loops take: float32, on a CPU."""
    return all(parameter.dtype == torch.float32 and parameter.is_cpu for parameter in layout.parameters)


def within(numbers: Tensor, end: int, ignored: int | None = None) -> bool:
    """Whether all, but for those that are ignored, are at least 0 and below ``end``."""
    found = numbers.numpy()  # by numpy: torch's threads would go on spinning, where others are about to work
    found = found if ignored is None else found[found != ignored]
    return not found.size or bool(found.min() >= 0 and found.max() < end)
