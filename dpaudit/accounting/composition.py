"""Composition theorems that know one step only by its (ε, δ): naive and strong composition; and the CLT estimate.

A step is given as a function from δ to the ε that one step has there, so that the best split of δ can be searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from .curves import LARGEST_EXPONENT, Array, GaussianCurve, bisect
from .releases import SIDES, Release

OneStep = Callable[[Array], Array]
_POINTS, _ZOOMS = 80, 3
_SPAN = 27.0
_ROUNDS = 60


def naive_epsilon(step: OneStep, steps: int, delta: float) -> float:
    """T times the ε of one step at δ/T: (ε, δ) add up (Dwork & Roth 2014, theorem 3.16).

    Args:
        step: ε of one step at each δ of an array.
        steps: T.
        delta: δ of all steps together.

    Returns:
        ε in nats, infinite where one step has none.
    """
    steps, delta = check.integer("steps", steps, 1), check.delta(delta)
    return steps * float(step(np.asarray(delta / steps)))


def strong_epsilon(step: OneStep, steps: int, delta: float) -> float:
    """√(2T ln(1/(δ − T·d)))·e + T·e·(e^e − 1), e the ε of one step at d, at the best d in [0, δ/T).

    Dwork, Rothblum & Vadhan 2010, theorem III.3.

    Args:
        step: ε of one step at each δ of an array.
        steps: T.
        delta: δ of all steps together.

    Returns:
        ε in nats, infinite where no d leaves anything or the result is more than a float holds.
    """
    steps, delta = check.integer("steps", steps, 1), check.delta(delta)
    if delta == 0:
        return math.inf
    # The share T·d/δ: none, and from e^-27 to all but e^-27 of it on the logistic scale.
    low, high, least = -_SPAN, _SPAN, float(_strong(step, steps, delta, np.zeros(1))[0])
    for _ in range(_ZOOMS):
        at = np.linspace(low, high, _POINTS)
        values = _strong(step, steps, delta, 1 / (1 + np.exp(-at)))
        best = int(np.argmin(values))
        least = min(least, float(values[best]))
        low, high = at[max(best - 1, 0)], at[min(best + 1, _POINTS - 1)]
    return least


def _strong(step: OneStep, steps: int, delta: float, share: Array) -> Array:
    e = np.asarray(step(share * delta / steps), float)
    with np.errstate(over="ignore", divide="ignore"):
        # ln(1/(δ − T·d)), never of a negative number, however T·d was rounded.
        left = -math.log(delta) - np.log1p(-share)
        return np.sqrt(2 * steps * left) * e + steps * e * np.expm1(e)


def classic_gaussian(noise_multiplier: float) -> OneStep:
    """√(2 ln(1.25/d))/σ, the ε of a Gaussian release in Dwork & Roth 2014, theorem A.1; proved where it is below 1."""

    def epsilon(delta: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.sqrt(2 * np.log(1.25 / np.minimum(delta, 1.0))) / noise_multiplier

    return epsilon


def exact_gaussian(noise_multiplier: float) -> OneStep:
    """The smallest ε of a Gaussian release (Balle & Wang 2018)."""
    return GaussianCurve(1.0 / noise_multiplier).epsilon


def proven_gaussian(noise_multiplier: float) -> OneStep:
    """The larger one of :func:`classic_gaussian` and :func:`exact_gaussian`: the classic form, wherever it holds."""
    classic, exact = classic_gaussian(noise_multiplier), exact_gaussian(noise_multiplier)
    return lambda delta: np.maximum(classic(delta), exact(delta))


def sampled(step: OneStep, sampling_rate: float) -> OneStep:
    """A Poisson-sampled step: at q·d it has ln(1 + q(e^ε − 1)), where the step itself has ε at d.

    Balle, Barthe & Gaboardi 2018, theorem 8; for the Gaussian it is exact.
    """

    def epsilon(delta: Array) -> Array:
        whole = np.asarray(step(np.minimum(np.asarray(delta, float) / sampling_rate, 1.0)), float)
        with np.errstate(divide="ignore"):
            large = np.logaddexp(np.log1p(-sampling_rate), math.log(sampling_rate) + whole)
        return np.where(whole > 1.0, np.maximum(large, 0.0), np.log1p(sampling_rate * np.expm1(np.minimum(whole, 1.0))))

    return epsilon


def linearly_sampled(step: OneStep, sampling_rate: float) -> OneStep:
    """q·ε at q·d, as in figure 2 of Abadi et al. 2016. Not a bound: q·ε is below ln(1 + q(e^ε − 1))."""
    return lambda delta: sampling_rate * step(np.minimum(np.asarray(delta, float) / sampling_rate, 1.0))


def profiled(release: Release) -> OneStep:
    """One use of a release, by its privacy profile in both directions; infinite where ε is above 700."""

    def epsilon(delta: Array) -> Array:
        delta = np.asarray(delta, float)

        def holds(at: Array) -> NDArray[np.bool_]:
            return np.maximum(*(release.delta(at, side) for side in SIDES)) <= delta

        none, top = np.zeros_like(delta), np.full_like(delta, LARGEST_EXPONENT)
        found = bisect(holds, none, top, rounds=_ROUNDS)
        return np.where(holds(none), 0.0, np.where(holds(top) & (delta > 0), found, np.inf))

    return epsilon


def clt_mu(noise_multiplier: float, sampling_rate: float, steps: ArrayLike) -> Array:
    """μ = q √(T(e^{1/σ²} − 1)) of the Gaussian that many sampled steps come near to, infinite on overflow.

    Bu, Dong, Long & Su 2020, corollary 4: a limit for T → ∞ at fixed q√T. At finite T its ε is below what is spent.
    """
    exponent = 1 / noise_multiplier**2 if noise_multiplier > 1e-3 else math.inf
    growth = math.expm1(exponent) if exponent < 700 else math.inf
    return sampling_rate * np.sqrt(np.asarray(steps, float) * growth)
