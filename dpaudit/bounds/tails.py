"""Exact binomial tails and limits, rounded to the safe side."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, betainccinv, gammaln, xlog1py, xlogy

Array = NDArray[np.float64]

# Relative slack for the accuracy of the special functions; always spent on the claim's side.
SLACK = 1e-9


def upper_limit(successes: ArrayLike, trials: ArrayLike, level: ArrayLike) -> Array:
    """The Clopper–Pearson upper limit of a binomial rate, exceeded by the truth with probability at most ``level``."""
    k, n = np.asarray(successes, float), np.asarray(trials, float)
    with np.errstate(invalid="ignore"):
        # The complement takes the level as it is: 1 − level would lose the digits of a small one.
        limit = betainccinv(k + 1.0, np.maximum(n - k, 1e-300), np.asarray(level, float))
    return np.where(k >= n, 1.0, np.minimum(limit * (1 + SLACK), 1.0))


def at_least(successes: ArrayLike, trials: ArrayLike, rate: ArrayLike) -> Array:
    """P[W ≥ ``successes``] for W ~ Bin(``trials``, ``rate``)."""
    k, n = np.asarray(successes, float), np.asarray(trials, float)
    inside = betainc(np.maximum(k, 1e-300), np.maximum(n - k + 1.0, 1e-300), rate)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, inside))


def at_most(successes: ArrayLike, trials: ArrayLike, rate: ArrayLike) -> Array:
    """P[W ≤ ``successes``] for W ~ Bin(``trials``, ``rate``); exact for tiny rates, where 1 − rate is not."""
    k, n = np.asarray(successes, float), np.asarray(trials, float)
    inside = betaincc(np.maximum(k + 1.0, 1e-300), np.maximum(n - k, 1e-300), rate)
    return np.where(k >= n, 1.0, np.where(k < 0, 0.0, inside))


def mass(successes: ArrayLike, trials: float, rate: float) -> Array:
    """P[W = ``successes``] for W ~ Bin(``trials``, ``rate``)."""
    k = np.asarray(successes, float)
    ways = gammaln(trials + 1.0) - gammaln(k + 1.0) - gammaln(trials - k + 1.0)
    return np.exp(ways + xlogy(k, rate) + xlog1py(trials - k, -rate))


def log_ratio(numerator: ArrayLike, denominator: ArrayLike) -> Array:
    """max(0, ln(``numerator`` / ``denominator``)), rounded down; 0 where the numerator is not positive."""
    top, bottom = np.asarray(numerator, float), np.asarray(denominator, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(top) - np.log(bottom)
    return np.where(top > 0, np.maximum(value * (1 - 1e-15) - 1e-12, 0.0), 0.0)
