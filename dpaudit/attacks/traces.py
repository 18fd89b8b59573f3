"""Scores from loss traces: what a record's loss did while one model was trained, with no shadow model at all."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from ..interfaces import Model
from ..records import Data
from ..trainers.models import CheckedModel, Network
from .arrays import as_array, require_some
from .signals import cross_entropy

Array = NDArray[np.float64]

STATISTICS = ("signed-iqr", "iqr", "deviation", "slope", "mean", "last")
"""Statistics of a trace; all but the last two also rank members by how exposed they are: see :func:`loss_traces`."""

_NUMBERS = 2**22  # losses that are held as float64 at once, beside what was given


def loss_traces(
    traces: ArrayLike, statistic: str = "signed-iqr", *, quantiles: tuple[float, float] = (0.25, 0.75)
) -> Array:
    """Scores from the losses of records at checkpoints of a training run; a higher score says "member".

    - ``iqr``: the distance between two quantiles of a record's losses (Pollock, Shilov, Dodd and de Montjoye 2024,
      arXiv 2411.05743: LT-IQR). A loss that was large for long and became small was learnt late, and by heart.
    - ``signed-iqr``: the same, negated where losses rose on the whole (``slope`` below 0).
    - ``deviation``: their standard deviation.
    - ``slope``: how fast they fall, per checkpoint, by least squares.
    - ``mean``: their mean, negated.
    - ``last``: the last one, negated: the loss threshold.

    Two uses, and no statistic is best for both. *Which of a training set's own records are exposed?* All but the last
    two say so; ``mean`` and ``last`` do not, as a member that is never learnt has a large loss and is hidden well.
    *Was this record a member?* ``mean`` is the strongest, and ``iqr`` and ``deviation``, which do not see a direction,
    point the wrong way where training makes the losses of others rise.

    Args:
        traces: losses in nats in the order of training, shape ``(..., checkpoints, records)``; not changed.
        statistic: see above; all but ``mean`` and ``last`` take at least 2 checkpoints.
        quantiles: of the ``iqr``: low and high, linearly interpolated.

    Returns:
        Float64, shape ``(..., records)``.

    Raises:
        InputError: another statistic or shape, too few checkpoints, quantiles out of order, or losses that are not
            finite, or none.

    >>> loss_traces([[2.0, 0.1], [1.0, 0.1], [0.0, 0.1]])
    array([1., 0.])
    """
    check.choice("statistic", statistic, STATISTICS)
    low, high = _quantiles(quantiles)
    found = as_array("traces", traces)
    least = 1 if statistic in ("mean", "last") else 2
    if found.ndim < 2 or found.dtype.kind not in "biuf" or found.shape[-2] < least:
        raise InputError(
            f"traces must be numbers of shape (..., checkpoints, records) with at least {least} checkpoints for "
            f"{statistic!r}, got {found.dtype} {found.shape}"
        )
    require_some("traces", found)
    out = np.empty(found.shape[:-2] + found.shape[-1:])
    for part in _parts(found.shape):
        out[..., part] = _statistic(_finite(found[..., part]), statistic, low, high)
    return out


def _quantiles(quantiles: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = quantiles
    except (TypeError, ValueError):
        raise InputError(f"quantiles must be two numbers, low and high, got {quantiles!r}") from None
    low, high = (check.number(name, q, 0.0, 1.0) for name, q in (("low quantile", low), ("high quantile", high)))
    if not low < high:
        raise InputError(f"quantiles must be in rising order, got {low:g} and {high:g}")
    return low, high


def _parts(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the records whose losses are looked at together."""
    length = max(1, _NUMBERS // max(1, int(np.prod(shape[:-1]))))
    for at in range(0, shape[-1], length):
        yield slice(at, at + length)


def _finite(losses: NDArray[Any]) -> Array:
    out = losses.astype(np.float64)
    bad = ~np.isfinite(out)
    if bad.any():
        raise InputError(f"traces must be finite, got NaN or infinity in {int(bad.sum())} of {bad.size} losses")
    return out


def _statistic(losses: Array, statistic: str, low: float, high: float) -> Array:
    count = losses.shape[-2]
    match statistic:
        case "iqr":
            ends: Array = np.quantile(losses, [low, high], axis=-2)
            return ends[1] - ends[0]
        case "signed-iqr":
            sign = np.where(_statistic(losses, "slope", low, high) < 0, -1.0, 1.0)
            return sign * _statistic(losses, "iqr", low, high)
        case "deviation":
            mean = _total(losses) / count
            return np.sqrt(_total(np.square(losses - mean[..., None, :])) / count)
        case "slope":
            time = np.arange(count) - (count - 1) / 2
            return -_total(losses * time[:, None]) / np.square(time).sum()
        case "mean":
            return -_total(losses) / count
        case _:
            return -losses[..., -1, :]


def _total(losses: Array) -> Array:
    """Sums over the checkpoints, one after the other: the same bits wherever a record stands, so that equals tie."""
    return functools.reduce(np.add, np.moveaxis(losses, -2, 0))


def traces_of(model: Model, data: Data, checkpoints: int = 50) -> Array:
    """The loss of every record of ``data`` at iterates of one training run, for :func:`loss_traces`.

    Args:
        model: as a built-in trainer leaves it that kept its iterates: ``train_many(…, keep_iterates=True)[k]``.
        data: the records, members and others.
        checkpoints: how many of the iterates to look at, evenly spaced, the final one included; all, if there are no
            more. The untrained model is none of them.

    Returns:
        Cross-entropies in nats, float64, shape ``(checkpoints, records)``. Beside them the logits of one iterate are
        held, and nothing else that grows with the records.

    Raises:
        InputError: the model shows no iterates, or is of a kind that cannot be put back to one of them; or losses that
            are not finite, of a run that diverged.
    """
    wanted = check.integer("checkpoints", checkpoints, 1)
    iterates = model.iterates()
    if iterates is None or len(iterates) == 0:
        raise InputError("model must show its iterates, got none: train it with keep_iterates=True, or take "
                         "cross_entropy(model.logits(x), y) yourself now and then while it is trained")  # fmt: skip
    steps = np.unique(np.linspace(len(iterates), 1, min(wanted, len(iterates))).round().astype(int)) - 1
    out = np.empty((len(steps), len(data)))
    for row, step in zip(out, steps, strict=True):
        logits = _put_back(model, iterates[step]).logits(data.x)
        if not np.isfinite(logits).all():
            raise InputError(f"logits must be finite, got NaN or infinity after step {step + 1}; "
                             "did the learning rate make the run diverge?")  # fmt: skip
        row[:] = cross_entropy(logits, data.y)
    return out


def _put_back(model: Model, parameters: NDArray[Any]) -> Model:
    """A model of the same kind with these parameters."""
    if isinstance(model, CheckedModel):
        return _put_back(model.model, parameters)
    if isinstance(model, Network):
        ends = np.cumsum([layer.size for layer in model.layers])[:-1]
        parts = np.split(np.asarray(parameters, np.float32), ends)
        layers = tuple(part.reshape(layer.shape) for part, layer in zip(parts, model.layers, strict=True))
        return replace(model, layers=layers)
    if not hasattr(model, "module"):
        raise InputError(f"model must be one that dpaudit's trainers made, got {type(model).__name__}: its iterates "
                         "cannot be put back into it")  # fmt: skip
    import torch

    module = copy.deepcopy(model.module)
    trained = [p for p in module.parameters() if p.requires_grad]
    parts = torch.from_numpy(np.array(parameters)).split([p.numel() for p in trained])
    with torch.no_grad():
        for parameter, part in zip(trained, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
    return replace(model, module=module)  # type: ignore[type-var]
