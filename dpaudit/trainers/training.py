"""Training many models: the built-in trainers stacked, everybody else's one at a time."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..errors import InputError, need_extra
from ..interfaces import Model, Trainer
from ..records import BoolArray, Data
from .external import ObjectTrainer
from .models import CheckedModel, ModelStack, Network, checked
from .seeds import resolve_seeds
from .settings import DPSGD, SGD, GradientDescent

Progress = Callable[[int, int], None]


def train_many(
    trainer: Trainer,
    data: Data,
    member: ArrayLike,
    seed: int | Sequence[int],
    *,
    chunk: int = 32,
    threads: int | None = None,
    device: str = "cpu",
    keep_iterates: bool = False,
    progress: Progress | None = None,
) -> ModelStack:
    """Train one model per row of ``member``.

    Model k is ``trainer.train(data, member[k], seeds[k])``: the same random draws whatever ``chunk`` is, and the same
    parameters up to the rounding of float32 sums. With the same ``chunk`` and machine they are the same bits, for any
    number of threads. (On a GPU the noise comes from the device's own generators, so the draws differ from the CPU's.
    ``trainer.train`` always uses the CPU.)

    Args:
        trainer: :class:`SGD` and :class:`DPSGD` are trained many at once; any other object with a ``train`` method is
            called once per row, and its models' logits are checked when they are asked for.
        data: the records.
        member: bool, shape ``(models, records)``.
        seed: a root, from which :func:`model_seeds` makes one seed per model; or those seeds.
        chunk: how many models make one stack, trained by one thread; 16 to 64 are about equally fast.
        threads: how many stacks are trained side by side; by default as many as torch has threads. While this runs
            torch has one thread per operation, and afterwards what it had. Other trainers, which run one at a time,
            get ``threads`` threads for torch's operations.
        device: where torch computes, ``"cpu"`` or ``"cuda"``; other trainers ignore it.
        keep_iterates: keep the parameters after every step: models × steps × parameters × 4 bytes of memory. Other
            trainers keep what they like.
        progress: called after each chunk, in order, with the number of models that are done and the number of all.

    Raises:
        InputError: ``member`` is not bool of shape ``(models, records)``, seeds that do not fit it, a setting out of
            range, no such device, or a foreign trainer that returns no model.
        MissingExtra: torch is not installed and the trainer needs it.
    """
    rows = _membership(member, len(data), 2)
    seeds = resolve_seeds(seed, len(rows))
    size = check.integer("chunk", chunk, 1)
    workers = None if threads is None else check.integer("threads", threads, 1)
    parts = [slice(at, at + size) for at in range(0, len(rows), size)]
    stackable = trainer.trainer if isinstance(trainer, ObjectTrainer) else trainer
    finished: Generator[Sequence[Model]]
    if isinstance(stackable, GradientDescent) and type(stackable) in (SGD, DPSGD):  # a subclass may train otherwise
        finished = _stacks(stackable, data, rows, seeds, parts, workers, device, keep_iterates)
    else:
        finished = _one_by_one(trainer, data, rows, seeds, parts, workers)
    models: list[Model] = []
    with contextlib.closing(finished):
        for some in finished:
            models += some
            if progress is not None:
                progress(len(models), len(rows))
    return ModelStack(tuple(models), trainer_name(trainer))


def train_one(settings: GradientDescent, data: Data, member: ArrayLike, seed: int) -> Network:
    """One model, by the same engine as a stack of them."""
    rows = _membership(member, len(data), 1)[None]
    seeds = (check.integer("seed", seed, 0),)
    (part,) = _stacks(settings, data, rows, seeds, [slice(None)], 1, "cpu", False)
    return part[0]


def trainer_name(trainer: object) -> str:
    """What to call a trainer in a message."""
    return str(getattr(trainer, "name", None) or type(trainer).__name__)


def _stacks(
    trainer: GradientDescent,
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    parts: Sequence[slice],
    threads: int | None,
    device: str,
    keep_iterates: bool,
) -> Generator[list[Network]]:
    """The networks of each part, in order: parts side by side, each in one thread of its own.

    The matrices are too small to be worth splitting: threads that wait for each other at every operation cost more
    than they gain, far more beside other busy processes. One thread per part also gives the same bits for any number
    of threads.
    """
    stop = threading.Event()
    fit = functools.partial(_engine(), trainer, data, device=device, keep_iterates=keep_iterates, stop=stop)
    with _torch_threads(1) as before:
        pool = ThreadPoolExecutor(1 if device != "cpu" else min(threads or before, max(1, len(parts))))
        try:
            for job in [pool.submit(fit, member[part], seeds[part]) for part in parts]:
                yield job.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _one_by_one(
    trainer: Trainer, data: Data, member: BoolArray, seeds: Sequence[int], parts: Sequence[slice], threads: int | None
) -> Generator[list[CheckedModel]]:
    """The models of a trainer that knows nothing of stacks, its ``train`` called once per row."""
    name = trainer_name(trainer)
    with _torch_threads(threads if "torch" in sys.modules else None):
        for part in parts:
            models = [trainer.train(data, row, seed) for row, seed in zip(member[part], seeds[part], strict=True)]
            yield [checked(m, name, data.classes) for m in models]


def _engine() -> Callable[..., list[Network]]:
    try:
        from .engine import fit
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise need_extra("torch") from None
    return fit


def _membership(member: ArrayLike, records: int, dimensions: int) -> BoolArray:
    array = np.asarray(member)
    wanted = "(models, records)" if dimensions == 2 else "(records,)"
    if array.ndim != dimensions or array.shape[-1] != records:
        raise InputError(f"member must have the shape {wanted} with {records} records, got {array.shape}")
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(f"member must be true or false (1 or 0), got {array.dtype} with other values")
    return array.astype(bool)


@contextlib.contextmanager
def _torch_threads(threads: int | None) -> Iterator[int]:
    """Give torch's operations ``threads`` threads, and afterwards what they had before, which is the value."""
    if threads is None:
        yield 1
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
