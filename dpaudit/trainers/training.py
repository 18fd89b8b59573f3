"""Training many models: the built-in trainers stacked, everybody else's one at a time."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..errors import InputError, need_extra
from ..interfaces import Model, Trainer
from ..records import BoolArray, Data
from .external import ObjectTrainer
from .memory import choose_chunk
from .models import CheckedModel, ModelStack, Network, checked
from .seeds import resolve_seeds
from .settings import DPSGD, SGD, GradientDescent
from .spreading import Placement, place, spread

if TYPE_CHECKING:
    from .modules import TrainedModel

Progress = Callable[[int, int], None]
_PER_MODEL = ("noise_multiplier", "clip_norm")  # what models of one stack may differ in


def train_many(
    trainer: Trainer | Sequence[DPSGD],
    data: Data,
    member: ArrayLike,
    seed: int | Sequence[int],
    *,
    chunk: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    backend: str | None = None,
    device: str = "cpu",
    keep_iterates: bool = False,
    progress: Progress | None = None,
) -> ModelStack:
    """Train one model per row of ``member``.

    Model k is ``trainer.train(data, member[k], seeds[k])``, of a list ``trainer[k].train(…)``: the same random draws
    whatever ``chunk`` is, and the same parameters up to the rounding of float32 sums. With the same ``chunk`` and
    machine they are the same bits, for any number of threads or workers on any backend. (On a GPU the noise comes from
    the device's own generators, so the draws differ from the CPU's. ``trainer.train`` always uses the CPU.)

    Args:
        trainer: :class:`SGD` and :class:`DPSGD` are trained many at once where a stacked engine knows the model, else
            one at a time with one torch thread (``workers`` of another ``backend`` train side by side); any other
            object with a ``train`` method is called once per row, and its models' logits are checked when they are
            asked for. A list of :class:`DPSGD`, one per row, may differ in ``noise_multiplier`` and ``clip_norm``, and
            stacks all the same.
        data: the records.
        member: bool, shape ``(models, records)``.
        seed: a root, from which :func:`model_seeds` makes one seed per model; or those seeds.
        chunk: how many models make one stack, trained by one thread; by default what :func:`choose_chunk` says, or 1
            where there are no stacks.
        threads: how many stacks are trained side by side in this process; by default as many as torch has threads.
            While this runs torch has one thread per operation, and afterwards what it had. Other trainers, which run
            one at a time here, get ``threads`` threads for torch's operations.
        workers: how many chunks are trained side by side on ``backend``; by default as many as it has places for. A
            Dask cluster always has the workers that it has.
        backend: ``"threads"`` of this process; ``"processes"`` of this machine; ``"dask"``, the cluster of the
            ``dask.distributed.Client`` in use; ``"ray"``, the cluster that ``ray.init`` was called for. By default
            what a ``joblib.parallel_config`` around the call says, or else threads. Elsewhere than in this process
            torch has one thread per worker, and other people's trainers train one model per task.
        device: where torch computes, ``"cpu"`` or ``"cuda"``; other trainers ignore it.
        keep_iterates: keep the parameters after every step: models × steps × parameters × 4 bytes of memory. Other
            trainers keep what they like.
        progress: called after each chunk, in order, with the number of models that are done and the number of all.

    Raises:
        InputError: ``member`` is not bool of shape ``(models, records)``, seeds that do not fit it, a setting out of
            range, no such device, a foreign trainer that returns no model, a list of anything but one DPSGD per
            row that agree in all else, a backend without a cluster, or a trainer or model that cannot be sent to
            another process.
        MissingExtra: torch is not installed and the trainer needs it, or the backend's package is not.
    """
    rows = _membership(member, len(data), 2)
    seeds = resolve_seeds(seed, len(rows))
    placement = place(backend, workers, threads)
    settings = _stackable(trainer, len(rows))
    if chunk is not None:
        size = check.integer("chunk", chunk, 1)
    elif settings and not _common(settings).stacks:
        size = 1
    else:
        size = choose_chunk(settings or trainer, data)
    parts = [slice(at, at + size) for at in range(0, len(rows), size)]
    finished: Generator[Sequence[Model]]
    if placement.backend != "threads":
        finished = _elsewhere(placement, trainer, settings, data, rows, seeds, parts, device, keep_iterates)
    elif settings is not None:
        finished = _stacks(settings, data, rows, seeds, parts, placement.workers, device, keep_iterates)
    else:
        assert not isinstance(trainer, Sequence)
        finished = _one_by_one(trainer, data, rows, seeds, parts, placement.workers)
    models: list[Model] = []
    with contextlib.closing(finished):
        for some in finished:
            models += some
            if progress is not None:
                progress(len(models), len(rows))
    return ModelStack(tuple(models), trainer_name(trainer))


def train_one(settings: GradientDescent, data: Data, member: ArrayLike, seed: int) -> Network | TrainedModel:
    """One model, by the same engine as a stack of them."""
    rows = _membership(member, len(data), 1)[None]
    seeds = (check.integer("seed", seed, 0),)
    (part,) = _stacks(settings, data, rows, seeds, [slice(None)], 1, "cpu", False)
    return part[0]


def trainer_name(trainer: object) -> str:
    """What to call a trainer, or a list of DPSGD, in a message."""
    if isinstance(trainer, Sequence):
        return DPSGD.__name__
    return str(getattr(trainer, "name", None) or type(trainer).__name__)


def _stackable(trainer: Trainer | Sequence[DPSGD], rows: int) -> GradientDescent | Sequence[DPSGD] | None:
    """The settings of a trainer of our own; None for anybody else's."""
    if isinstance(trainer, Sequence):
        return _agreeing(trainer, rows)
    settings = trainer.trainer if isinstance(trainer, ObjectTrainer) else trainer
    if isinstance(settings, GradientDescent) and type(settings) in (SGD, DPSGD):  # a subclass may train otherwise
        return settings
    return None


def _agreeing(trainers: Sequence[DPSGD], rows: int) -> Sequence[DPSGD]:
    """One DPSGD per row, which agree in all but noise and clipping."""
    if len(trainers) != rows or not all(type(t) is DPSGD for t in trainers):
        kinds = sorted({type(t).__name__ for t in trainers})
        raise InputError(f"a list of trainers must hold one DPSGD per row of member ({rows}), "
                         f"got {len(trainers)}{' of ' if kinds else ''}{' and '.join(kinds)}")  # fmt: skip
    for name in (f.name for f in fields(DPSGD) if f.name not in _PER_MODEL):
        if any(getattr(t, name) != getattr(trainers[0], name) for t in trainers):
            raise InputError(f"trainers of one list may differ in {' and '.join(_PER_MODEL)} alone, "
                             f"got several values of {name}")  # fmt: skip
    return trainers


def _stacks(
    trainer: GradientDescent | Sequence[DPSGD],
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    parts: Sequence[slice],
    threads: int | None,
    device: str,
    keep_iterates: bool,
) -> Generator[Sequence[Network | TrainedModel]]:
    """The models of each part, in order: stacks side by side, each in one thread of its own; modules one by one, as
    what they draw themselves comes from a generator that the process has one of.

    The matrices are too small to be worth splitting: threads that wait for each other at every operation cost more
    than they gain, far more beside other busy processes. One thread per part also gives the same bits for any number
    of threads.
    """
    stop = threading.Event()
    fit = functools.partial(_engine(trainer), data=data, device=device, keep_iterates=keep_iterates, stop=stop)
    alone = device != "cpu" or not _common(trainer).stacks
    with _torch_threads(1) as before:
        pool = ThreadPoolExecutor(1 if alone else min(threads or before, max(1, len(parts))))
        try:
            for job in [pool.submit(fit, _of(trainer, p), member=member[p], seeds=seeds[p]) for p in parts]:
                yield job.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _of(trainer: GradientDescent | Sequence[DPSGD], part: slice) -> GradientDescent | Sequence[DPSGD]:
    """The settings of one stack; a single one where all its models have the same."""
    if isinstance(trainer, GradientDescent):
        return trainer
    return trainer[part][0] if len(set(trainer[part])) == 1 else trainer[part]


def _one_by_one(
    trainer: Trainer, data: Data, member: BoolArray, seeds: Sequence[int], parts: Sequence[slice], threads: int | None
) -> Generator[list[CheckedModel]]:
    """The models of a trainer that knows nothing of stacks, its ``train`` called once per row."""
    name = trainer_name(trainer)
    with _torch_threads(threads if "torch" in sys.modules else None):
        for part in parts:
            models = [trainer.train(data, row, seed) for row, seed in zip(member[part], seeds[part], strict=True)]
            yield [checked(m, name, data.classes) for m in models]


def _elsewhere(
    placement: Placement,
    trainer: Trainer | Sequence[DPSGD],
    settings: GradientDescent | Sequence[DPSGD] | None,
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    parts: Sequence[slice],
    device: str,
    keep_iterates: bool,
) -> Generator[Sequence[Model]]:
    """The models of each part, in order, trained by other processes: a part per task, or a model of a trainer that
    knows nothing of stacks.
    """
    here = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    name = trainer_name(trainer)
    with _torch_threads(here):  # a single worker may be this very process
        if settings is not None:
            _engine(settings)  # if torch is missing, say so at once
            work = functools.partial(_train_stack, device, keep_iterates)
            units = [(_of(settings, part), member[part], seeds[part]) for part in parts]
            yield from spread(work, data, units, placement, name)
            return
        assert not isinstance(trainer, Sequence)
        one = functools.partial(_train_alone, trainer, name)
        with contextlib.closing(spread(one, data, list(zip(member, seeds, strict=True)), placement, name)) as models:
            for part in parts:
                yield list(itertools.islice(models, len(seeds[part])))


def _train_stack(
    device: str,
    keep_iterates: bool,
    data: Data,
    unit: tuple[GradientDescent | Sequence[DPSGD], BoolArray, Sequence[int]],
) -> Sequence[Network | TrainedModel]:
    import torch

    settings, member, seeds = unit
    fit = _engine(settings)
    torch.set_num_threads(1)
    return fit(settings, data, member, seeds, device=device, keep_iterates=keep_iterates)


def _train_alone(trainer: Trainer, name: str, data: Data, unit: tuple[BoolArray, int]) -> CheckedModel:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return checked(trainer.train(data, *unit), name, data.classes)


def _common(trainer: GradientDescent | Sequence[DPSGD]) -> GradientDescent:
    """Of models of one stack: what they all have."""
    return trainer if isinstance(trainer, GradientDescent) else trainer[0]


def _engine(trainer: GradientDescent | Sequence[DPSGD]) -> Callable[..., Sequence[Network | TrainedModel]]:
    """What trains models of these settings."""
    settings = _common(trainer)
    try:
        if not settings.stacks:
            from . import modules

            return modules.fit
        from . import perceptrons

        if settings.convolutional:
            return _fit_images
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise need_extra("torch") from None
    return perceptrons.fit


def _fit_images(
    trainer: GradientDescent | Sequence[DPSGD], data: Data, member: BoolArray, seeds: Sequence[int], **options: Any
) -> Sequence[Network]:
    from . import convolution

    net = _common(trainer).convolutions(data)
    assert net is not None
    return convolution.fit(trainer, net, data, member, seeds, **options)


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
