"""Scores that allow for how hard a record is: by other models' losses, by other records, by models without it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .arrays import Shadows, as_array, require_finite

Array = NDArray[np.float64]


def calibrated_loss(losses: ArrayLike, reference_losses: ArrayLike, reference_member: ArrayLike | None = None) -> Array:
    """Difficulty calibration (Watson et al. 2022, equation 4): the mean loss of other models less the target's.

    Args:
        losses: of the target models, shape ``(records,)`` or ``(targets, records)``.
        reference_losses: of models without the records, shape ``(references, records)``.
        reference_member: where a reference model was trained on the record after all and is left out of its mean; same
            shape. Without it all references count.

    Raises:
        InputError: shapes that do not fit, NaN or infinite losses, or a record that every reference was trained on.

    >>> calibrated_loss([0.1, 2.0], [[1.0, 2.0], [3.0, 2.5]]).tolist()
    [1.9, 0.25]
    """
    references = as_array("reference_losses", reference_losses)
    member = np.zeros(references.shape, bool) if reference_member is None else reference_member
    data = Shadows.read(losses, references, member, ("losses", "reference_losses", "reference_member"))
    means = np.empty(references.shape[1])
    for part, block, was_in in data.blocks():
        count = _some_without(was_in)
        means[part] = np.where(was_in, 0.0, block).sum(axis=0) / count
    return (means - data.signal).reshape(data.shape)


def population(signal: ArrayLike, population_signals: ArrayLike) -> Array:
    """The quantile of a signal among records that are surely outside (attack P of Ye et al. 2022), in [0, 1].

    The score is the share of the population with a smaller signal, and half of those with the same one. A record is
    called a member at false positive rate α where the score is at least 1 − α, whatever other records score.

    Args:
        signal: of the target models, higher says "member": shape ``(records,)`` or ``(targets, records)``.
        population_signals: of the same models about records that they were not trained on, ``(population,)`` or
            ``(targets, population)``.

    Raises:
        InputError: shapes that do not fit, NaN or infinite signals, no records or no population.

    >>> population([0.5, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0]).tolist()
    [0.0, 0.375, 1.0]
    """
    x, z = as_array("signal", signal), as_array("population_signals", population_signals)
    fits = x.ndim in (1, 2) and z.ndim == x.ndim and x.shape[:-1] == z.shape[:-1]
    if not fits or x.size == 0 or z.size == 0:
        raise InputError(
            "signal must be (records,) or (targets, records) and population_signals (population,) or "
            f"(targets, population), got {x.shape} and {z.shape}"
        )
    require_finite("signal", x)
    require_finite("population_signals", z)
    rows = zip(np.atleast_2d(x), np.atleast_2d(z), strict=True)
    return np.stack([_middle_rank(row, np.sort(others)) for row, others in rows]).reshape(x.shape)


def reference(signal: ArrayLike, shadow_signals: ArrayLike, shadow_member: ArrayLike) -> Array:
    """The quantile of a signal among models without the record (attack R of Ye et al. 2022), in [0, 1].

    The score is the share of the record's own out-models with a smaller signal, and half of those with the same one. It
    takes as many values as there are such models and one more, or twice that with ties.

    Args:
        signal: of the target models, higher says "member": shape ``(records,)`` or ``(targets, records)``.
        shadow_signals, shadow_member: of the shadow models, shape ``(shadows, records)``.

    Raises:
        InputError: shapes that do not fit, NaN or infinite signals, or a record that every shadow was trained on.

    >>> reference([2.0], [[1.0], [2.0], [5.0]], [[0], [0], [1]]).tolist()
    [0.75]
    """
    data = Shadows.read(signal, shadow_signals, shadow_member)
    scores = np.empty(data.signal.shape)
    for part, block, was_in in data.blocks():
        count = _some_without(was_in)
        for i, x in enumerate(data.signal[:, part]):
            below = ((block < x) & ~was_in).sum(axis=0) + ((block == x) & ~was_in).sum(axis=0) / 2
            scores[i, part] = below / count
    return scores.reshape(data.shape)


def _some_without(member: NDArray[np.bool_]) -> NDArray[np.int64]:
    count = (~member).sum(axis=0)
    if count.size and count.min() < 1:
        raise InputError(
            f"every record needs at least 1 model without it, got none for {int((count < 1).sum())} records; train "
            "more models"
        )
    return count


def _middle_rank(x: NDArray, order: NDArray) -> Array:
    low, high = np.searchsorted(order, x, side="left"), np.searchsorted(order, x, side="right")
    return (low + high) / (2 * len(order))
