"""How much likelier what the steps released is with a canary than without it, for every way to draw batches.

Free of torch. Of each step, s_t is the product of what it released with the canary's direction, what the other records
did known and subtracted: N(a, σ²) if the canary joined, N(0, σ²) if not. All canaries are looked at alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ... import check
from ...errors import InputError

FloatArray = NDArray[np.float64]


def log_ratios(table: ArrayLike, noise_multiplier: float, sampling_rate: float = 1.0) -> FloatArray:
    """The exact log-likelihood ratio of (1 − q) N(0, σ²) + q N(1, σ²) to N(0, σ²), summed over the steps.

    Σ_t ln(1 − q + q exp((s_t − ½) / σ²)).

    Args:
        table: s, per-step scores in units of norm², shape ``(steps, canaries)``.
        noise_multiplier: σ.
        sampling_rate: q in (0, 1].

    Returns:
        Shape ``(canaries,)``.

    Raises:
        InputError: a setting out of range, or a table that is none.

    >>> log_ratios(np.array([[0.5, 1.5], [0.5, 1.5]]), 1.0)
    array([0., 2.])
    """
    sigma = check.positive("noise_multiplier", noise_multiplier)
    rate = check.probability("sampling_rate", sampling_rate)
    return joined_by_coins(step_ratios(_table(table), 1.0, sigma), rate)


def step_ratios(table: FloatArray, size: float | FloatArray, deviation: float | FloatArray) -> FloatArray:
    """Ln of how much likelier each step is if the canary joined it: (a s − a²/2) / σ², in the shape of ``table``.

    Args:
        table: s, shape ``(steps, canaries)``.
        size: a, what a canary adds to s in a step that it joins, above 0: one number or ``(steps, 1)``.
        deviation: σ of the noise on s, above 0: one number or ``(steps, 1)``.
    """
    return (table - size / 2) * (size / deviation**2)


def joined_by_coins(ratios: FloatArray, rate: float) -> FloatArray:
    """Σ_t ln(1 − q + q e^{r_t}): each step is joined by a coin of its own.

    Args:
        ratios: r, of :func:`step_ratios`, shape ``(steps, canaries)``.
        rate: q in (0, 1].

    Returns:
        Shape ``(canaries,)``.
    """
    out = np.zeros(ratios.shape[1])
    for row in ratios:  # one at a time, for the caches
        out += row if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + row)
    return out


def joined_once_an_epoch(ratios: FloatArray, chances: FloatArray) -> FloatArray:
    """Σ over epochs of ln Σ_t p_t e^{r_t}: each epoch one batch is joined, the t-th with chance p_t.

    Of an epoch that was broken off, the batch may be one of those not seen: ln(1 − Σ_seen p_t + Σ_seen p_t e^{r_t}).
    Source: Chua et al. 2024, "Balls-and-bins sampling for DP-SGD": their pair of one epoch, with equal chances.

    Args:
        ratios: r, of :func:`step_ratios`, shape ``(steps, canaries)``; the first step begins an epoch.
        chances: p, shape ``(batches of an epoch,)``, with the sum 1.

    Returns:
        Shape ``(canaries,)``.
    """
    out = np.zeros(ratios.shape[1])
    with np.errstate(divide="ignore"):
        logs = np.log(chances)
    for start in range(0, len(ratios), len(chances)):
        epoch = ratios[start : start + len(chances)]
        unseen = chances[len(epoch) :].sum()
        total = np.full(ratios.shape[1], np.log(unseen) if unseen > 0 else -np.inf)
        for row, log in zip(epoch, logs, strict=False):
            total = np.logaddexp(total, log + row)
        out += total
    return out


def _table(table: ArrayLike) -> FloatArray:
    found = np.asarray(table, float)
    if found.ndim != 2:
        raise InputError(f"table must have shape (steps, canaries), got {found.shape}")
    return found
