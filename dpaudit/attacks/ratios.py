"""RMIA: how often a record is likelier than others, each against its own average (Zarifzadeh et al. 2024).

With p(x) the average probability of a record's label over models, LR(x, z) = [p(x | θ) / p(x)] / [p(z | θ) / p(z)], and
the score of x is the share of the population's records z with LR(x, z) ≥ γ (equations 2 and 3). Pairs are not formed:
the ratios of the population are sorted once, and each record's place among them is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from .arrays import Shadows, as_array, require_finite, spans
from .metrics import auc

Array = NDArray[np.float64]
MODES = ("online", "offline", "offline-reference")
TENTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

_TIE = 1e-10  # logarithms of ratios that differ by less are equal: sums over shadows round by order
_POSITIVE = 1e-6  # as far as logarithms of probabilities may be above 0 by rounding


def rmia(
    signal: ArrayLike,
    shadow_signals: ArrayLike,
    shadow_member: ArrayLike,
    population_signals: ArrayLike,
    *,
    shadow_population_signals: ArrayLike,
    mode: str = "online",
    gamma: float = 1.0,
    offline_a: float = 0.3,
) -> Array:
    """Scores of the relative attack, in [0, 1], shape of ``signal``; needs shadows and a population.

    Signals are ln p(label), the negated loss (``SIGNALS["loss"]``): ratios of small probabilities then stay exact.

    Args:
        signal: of the target models, shape ``(records,)`` or ``(targets, records)``.
        shadow_signals, shadow_member: of the shadow models, shape ``(shadows, records)``.
        population_signals: of the target models, about records that no target and no shadow was trained on: shape
            ``(population,)`` or ``(targets, population)``.
        shadow_population_signals: of the shadow models about them, shape ``(shadows, population)``.
        mode: ``online`` takes for p(x) and p(z) the mean over all shadows, with and without the record. ``offline``
            knows shadows without it only: p = ((1 + a) p̄ + 1 − a)/2, with p̄ their mean and a = ``offline_a``
            (section 3.3). ``offline-reference`` is the authors' tool with its quirks; see below.
        gamma: γ > 0.
        offline_a: in [0, 1]; 1 leaves p̄ as it is. Fix it beforehand or choose it by :func:`tune_offline_a`, which looks
            at shadows alone: chosen on the target it has seen the answers.

    Equal ratios count as LR ≥ γ = 1, and ratios that differ by a rounding error are equal. There are only as many
    scores as population records and one more, so that ties are common; metrics must treat them exactly.

    ``offline-reference`` is ``run_rmia`` of privacytrustlab/ml_privacy_meter: p̄(x) is the mean over the *largest* ⌊R/2⌋
    probabilities of R shadows, where those of shadows with the record count as 0, and so is p̄(z), hence larger than the
    mean of all; with R < 4, shadows with the record come in by (p + a − 1)/a; and LR = γ does not count. With R ≥ 4,
    even, and each record in half of the shadows, p̄(x) is the plain mean.

    Raises:
        InputError: shapes that do not fit, signals that are not logarithms of probabilities, or a record that no shadow
            went without, offline.

    >>> population = np.log([[0.5, 0.7, 0.9], [0.4, 0.6, 0.8], [0.5, 0.6, 0.8]])
    >>> rmia(np.log([0.9, 0.2]), np.log([[0.8, 0.3], [0.5, 0.3]]), [[1, 0], [0, 1]], population[0],
    ...      shadow_population_signals=population[1:]).tolist()
    [1.0, 0.0]
    """
    check.choice("mode", mode, MODES)
    gamma, a = check.positive("gamma", gamma), check.number("offline_a", offline_a, 0, 1)
    data = Shadows.read(signal, shadow_signals, shadow_member)
    z, shadow_z = _population(data, population_signals, shadow_population_signals)
    _require_logarithms(data.signal, data.shadows, z, shadow_z)
    if mode == "offline-reference":
        return _published(data, z, shadow_z, gamma, a).reshape(data.shape)
    offline = mode == "offline"
    a = a if offline else 1.0
    own, theirs = _averages(data.shadows, data.member if offline else None, a), _averages(shadow_z, None, a)
    scores = [_shares(x - own, np.sort(y - theirs), gamma) for x, y in zip(data.signal, z, strict=True)]
    return np.stack(scores).reshape(data.shape)


def rmia_leave_one_out(
    signals: ArrayLike,
    member: ArrayLike,
    population_signals: ArrayLike,
    *,
    mode: str = "online",
    gamma: float = 1.0,
    offline_a: float = 0.3,
) -> Array:
    """Each model in turn as the target, all others as its shadows; shape ``(models, records)``.

    For ROC figures only, as :func:`dpaudit.attacks.lira_leave_one_out`. Arguments and errors as in :func:`rmia`, where
    ``population_signals`` has shape ``(models, population)``.

    >>> rmia_leave_one_out(np.log([[0.9], [0.4], [0.5]]), [[1], [0], [0]], np.log([[0.6], [0.5], [0.6]])).tolist()
    [[1.0], [0.0], [0.0]]
    """
    check.choice("mode", mode, MODES)
    gamma, a = check.positive("gamma", gamma), check.number("offline_a", offline_a, 0, 1)
    data = Shadows.read(signals, signals, member)
    z, _ = _population(data, population_signals, population_signals)
    _require_logarithms(data.shadows, z)
    if len(z) < 2:
        raise InputError(f"signals must be of at least 2 models, each in turn the target, got {len(z)}")
    if mode == "offline-reference":
        rest = [np.arange(len(z)) != i for i in range(len(z))]
        return np.stack([_published(data.alone(i), z[[i]], z[others], gamma, a)[0] for i, others in enumerate(rest)])
    offline = mode == "offline"
    theirs = np.sort(z - _averages_of_others(z.astype(np.float64), None, a if offline else 1.0), axis=1)
    scores = np.empty(data.shadows.shape)
    for part, block, was_in in data.blocks():
        own = block - _averages_of_others(block, was_in if offline else None, a if offline else 1.0)
        for i, row in enumerate(own):
            scores[i, part] = _shares(row, theirs[i], gamma)
    return scores


def tune_offline_a(
    shadow_signals: ArrayLike,
    shadow_member: ArrayLike,
    shadow_population_signals: ArrayLike,
    candidates: Sequence[float] = TENTHS,
) -> float:
    """The ``offline_a`` with the largest mean AUC when each shadow in turn is the target of the others.

    No target model is looked at. Arguments as in :func:`rmia`; ties go to the smaller candidate.

    Raises:
        InputError: as :func:`rmia_leave_one_out`, or a shadow with all records or with none.

    >>> p, z = [[0.9, 0.3], [0.5, 0.6], [0.8, 0.2], [0.4, 0.5]], [[0.6], [0.5], [0.6], [0.7]]
    >>> tune_offline_a(np.log(p), [[1, 0], [0, 1], [1, 0], [0, 1]], np.log(z), [0.2, 0.4])
    0.4
    """
    member = as_array("shadow_member", shadow_member)
    best, found = -math.inf, 0.0
    for a in sorted(candidates):
        scores = rmia_leave_one_out(shadow_signals, member, shadow_population_signals, mode="offline", offline_a=a)
        area = float(np.mean([auc(s, m) for s, m in zip(scores, member, strict=True)]))
        if area > best + 1e-12:
            best, found = area, a
    return found


def _population(data: Shadows, population: ArrayLike, shadow_population: ArrayLike) -> tuple[NDArray, NDArray]:
    z = as_array("population_signals", population)
    shadow_z = as_array("shadow_population_signals", shadow_population)
    fits = z.ndim == len(data.shape) and z.shape[:-1] == data.shape[:-1] and z.shape[-1:] > (0,)
    if not fits or shadow_z.shape != (len(data.shadows), z.shape[-1]):
        raise InputError(
            "population_signals must be shaped like signal, with the population in place of the records, and "
            "shadow_population_signals (shadows, population), "
            f"got {z.shape} and {shadow_z.shape} for {data.shape} and {len(data.shadows)} shadows"
        )
    require_finite("population_signals", z)
    require_finite("shadow_population_signals", shadow_z)
    return np.atleast_2d(z), shadow_z


def _require_logarithms(*arrays: NDArray) -> None:
    for array in arrays:
        if array.max() > _POSITIVE:
            raise InputError(
                f"signals of rmia must be logarithms of probabilities, at most 0, got {array.max():g}; take np.log of "
                "probabilities, and minus the losses"
            )


def _shares(x: Array, order: Array, gamma: float) -> Array:
    """Share of the sorted numbers that are at most x − ln γ."""
    return np.searchsorted(order, x - math.log(gamma) + _TIE, side="right") / len(order)


def _averages(rows: NDArray, without: NDArray | None, a: float) -> Array:
    """Logarithms of average probabilities over rows, or over those without the record; then the rule with ``a``."""
    out = np.empty(rows.shape[1])
    for part in spans(rows.shape[1]):
        block = rows[:, part].astype(np.float64, order="C")
        count = np.full(block.shape[1], len(block))
        if without is not None:
            member = without[:, part].astype(bool)
            block[member] = -np.inf
            count = (~member).sum(axis=0)
            _require_some(count)
        top = block.max(axis=0)
        out[part] = top + np.log(np.exp(block - top).sum(axis=0) / count)
    return _offline(out, a)


def _averages_of_others(block: Array, member: NDArray[np.bool_] | None, a: float) -> Array:
    """As :func:`_averages`, for each row over all others; sums from both ends, so that nothing is subtracted."""
    use = np.ones(block.shape, bool) if member is None else ~member
    rows = np.where(use, block, -np.inf)
    out = np.full(block.shape, -np.inf)
    out[1:] = np.logaddexp.accumulate(rows, axis=0)[:-1]
    out[:-1] = np.logaddexp(out[:-1], np.logaddexp.accumulate(rows[::-1], axis=0)[::-1][1:])
    count = use.sum(axis=0) - use
    _require_some(count.min(axis=0))
    return _offline(out - np.log(count), a)


def _offline(log_mean: Array, a: float) -> Array:
    """The offline rule, ln(((1 + a) p̄ + 1 − a)/2), from ln p̄; p̄ itself for a = 1."""
    if a == 1:
        return log_mean
    return np.logaddexp(math.log((1 + a) / 2) + log_mean, math.log((1 - a) / 2))


def _require_some(count: NDArray[np.int64]) -> None:
    if count.size and count.min() < 1:
        raise InputError(
            f"rmia needs at least 1 shadow without every record, got none for {int((count < 1).sum())} records; train "
            "more shadows"
        )


def _published(data: Shadows, z: NDArray, shadow_z: NDArray, gamma: float, a: float) -> Array:
    """Scores of the authors' tool, shape ``(targets, records)``."""
    none = np.zeros(shadow_z.shape, bool)
    theirs = np.sort(np.exp(z.astype(np.float64)) / _published_averages(shadow_z, none, a), axis=1)
    scores = np.empty(data.signal.shape)
    for part, block, member in data.blocks():
        ratios = np.exp(data.signal[:, part].astype(np.float64)) / _published_averages(block, member, a)
        for i, row in enumerate(ratios):
            scores[i, part] = np.searchsorted(theirs[i], row / gamma, side="left") / theirs.shape[1]
    return scores


def _published_averages(logs: NDArray, member: NDArray[np.bool_], a: float) -> Array:
    p = np.exp(logs.astype(np.float64))
    out, half = p * ~member, len(p) // 2
    if half > 1:
        mean = np.sort(out, axis=0)[-half:].mean(axis=0)
    else:
        slope = a or 0.3
        mean = (out + (p + slope - 1) / slope * member).mean(axis=0)
    return (1 + a) / 2 * mean + (1 - a) / 2
