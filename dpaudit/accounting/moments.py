"""The moments accountant of Abadi et al. 2016: log-moments of the sampled Gaussian, added over steps.

With μ0 = N(0, s²) and μ = (1 − q) N(0, s²) + q N(1, s²) the log-moment of a step is α(λ) = ln max(E1, E2), where
E1 = E over z ~ μ0 of (μ0/μ)^λ and E2 = E over z ~ μ of (μ/μ0)^λ (ibid., section 3.1); E2 is never the smaller one
(Mironov, Talwar & Zhang 2019, theorem 5). T steps have T·α(λ), and (ε, δ) holds where δ = exp(T·α(λ) − λ·ε) at any
real λ > 0 (Abadi et al., theorem 2). α(λ) = λ times the Rényi divergence of order λ + 1.

**Integration.** E2 = 1 + E over z ~ μ0 of (1 + x)^p − 1 − p·x, where p = λ + 1 and x = μ/μ0 − 1 = q(e^t − 1),
t = (z − ½)/s²: x has mean 0 under μ0, so nothing was added, and the integrand is positive, so that α keeps its relative
accuracy however small it is. The trapezoid rule on the whole line errs by 2e^(−2πy/h) at most, relative to the
integral of the integrand's size at heights ±y, where it is analytic up to there (Trefethen & Weideman 2014, theorem
5.1). Here 1 + x may vanish at height πs² and nowhere below; up to it |1 + x| is at most what it is on the line, and the
normal density grows by e^(y²/2s²). With h = ½ min(s, s²) that is below e^−34 for every s. The ends are where what is
cut off is below e^−45 of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from .. import check
from ..errors import InputError
from .curves import Array

End = Literal["first", "last"]
PAPER_ORDERS = 32
LARGEST_ORDER = 2.0**23
_REACH = 10.0  # in standard deviations of the noise, beyond the outermost peaks
_CELLS = 2_000_000
_LEAST_NOISE = 0.01
# λ of a search: these, then further up while it pays, then between the best one's neighbours.
_COARSE: Array = np.exp2(np.arange(-20.0, 6.0))
_ZOOMS, _ZOOM_POINTS = 4, 11


@dataclass(frozen=True)
class TailBound:
    """(``epsilon``, ``delta``), by the tail bound at the best order.

    Attributes:
        epsilon: in nats; infinite where no order says anything.
        delta: at ``epsilon``.
        order: the best λ.
        end: ``first`` or ``last`` if it is an end of the λ that were allowed, so that others would say more; else None.
    """

    epsilon: float
    delta: float
    order: float
    end: End | None


def log_moments(noise_multiplier: float, sampling_rate: float, orders: ArrayLike) -> Array:
    """α(λ) of one Poisson-sampled step at each λ of ``orders``, by numerical integration.

    >>> float(log_moments(4.0, 1.0, 2.0).round(12))  # a full batch has λ(λ + 1) / 2σ²
    0.1875

    Args:
        noise_multiplier: the noise's standard deviation in units of the clip norm, above 0.
        sampling_rate: the probability q that a record joins the batch, in (0, 1].
        orders: λ, real, above 0 and at most 2^23; any shape.

    Returns:
        α in the shape of ``orders``, to about 1e-9 relative. Below a noise multiplier of 0.01 an upper bound.

    Raises:
        InputError: a value is out of range.
    """
    noise = check.positive("noise_multiplier", noise_multiplier)
    rate = check.probability("sampling_rate", sampling_rate)
    at = np.asarray(orders, float)
    if not (np.all(at > 0) and np.all(at <= LARGEST_ORDER)):
        raise InputError(f"orders must be in (0, {LARGEST_ORDER:.0f}], got {orders!r}")
    if noise < _LEAST_NOISE:
        # u^p is convex: ((1 − q) + q w)^p ≤ (1 − q) + q w^p. It costs ln(1/q) of about 1/2σ² nats a step.
        with np.errstate(divide="ignore", over="ignore"):
            return np.logaddexp(np.log1p(-rate), math.log(rate) + at * (at + 1) / 2 / noise / noise)
    return _log_moments(noise, rate, at.ravel()).reshape(at.shape)


def moments_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, largest: int | None = PAPER_ORDERS
) -> TailBound:
    """ε = min over λ of (T·α(λ) + ln(1/δ)) / λ (Abadi et al. 2016, theorem 2).

    >>> round(moments_epsilon(4.0, 0.01, 10_000, 1e-5).epsilon, 3)
    1.259

    Args:
        noise_multiplier: as in :func:`log_moments`.
        sampling_rate: as in :func:`log_moments`.
        steps: T.
        delta: δ.
        largest: whole λ up to this, as in the paper; None for the best real λ.

    Raises:
        InputError: a value is out of range.
    """
    steps, cost = check.integer("steps", steps, 1), log_inverse(check.delta(delta))

    def epsilon(orders: Array) -> Array:
        return (steps * log_moments(noise_multiplier, sampling_rate, orders) + cost) / orders

    order, least, end = _least(epsilon, largest)
    return TailBound(least, delta, order, end)


def moments_delta(
    noise_multiplier: float, sampling_rate: float, steps: int, epsilon: float, largest: int | None = PAPER_ORDERS
) -> TailBound:
    """δ = min over λ of exp(T·α(λ) − λ·ε), at most 1; the arguments are those of :func:`moments_epsilon`."""
    steps, epsilon = check.integer("steps", steps, 1), check.not_negative("epsilon", epsilon)

    def log_delta(orders: Array) -> Array:
        return steps * log_moments(noise_multiplier, sampling_rate, orders) - epsilon * orders

    order, least, end = _least(log_delta, largest)
    return TailBound(epsilon, math.exp(min(least, 0.0)), order, end)


def closed_form_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> TailBound | str:
    """ε by α(λ) ≤ q²λ(λ + 1) / ((1 − q)σ²) + O(q³λ³/σ³) without its last term (Abadi et al. 2016, lemma 3).

    That term has no constant in the paper, so what comes out is an estimate. The lemma holds for σ ≥ 1, q < 1/(16σ) and
    whole λ ≤ σ² ln(1/(qσ)).

    Returns:
        The estimate, or in words which of these conditions fails.
    """
    noise, rate = (
        check.positive("noise_multiplier", noise_multiplier),
        check.probability("sampling_rate", sampling_rate),
    )
    steps, cost = check.integer("steps", steps, 1), log_inverse(check.delta(delta))
    if noise < 1.0:
        return f"the lemma is for σ ≥ 1, got σ = {noise:g}"
    if rate >= 1 / (16 * noise):
        return f"q = {rate:g} ≥ 1/(16σ) = {1 / (16 * noise):.4g}"
    largest = math.floor(noise**2 * -math.log(rate * noise))
    growth = steps * rate**2 / ((1 - rate) * noise**2)
    # (growth λ(λ + 1) + cost) / λ is least at λ = √(cost / growth).
    best = np.clip(math.sqrt(cost / growth), 1, largest)
    orders = np.unique(np.clip([math.floor(best), math.ceil(best)], 1, largest)).astype(float)
    epsilons = growth * (orders + 1) + cost / orders
    i = int(np.argmin(epsilons))
    return TailBound(float(epsilons[i]), delta, float(orders[i]), "last" if orders[i] == largest else None)


def log_inverse(delta: float) -> float:
    """ln(1/δ), infinite at 0."""
    return -math.log(delta) if delta > 0 else math.inf


def _log_moments(noise: float, rate: float, orders: Array) -> Array:
    power = orders + 1.0
    low, high = _window(noise, rate, power)
    cell = 0.5 * min(noise, noise**2)
    points = int(np.ceil((high - low).max() / cell)) + 1
    rows = max(1, _CELLS // points)
    parts = (
        _log_excess(noise, rate, power[i : i + rows, None], low[i : i + rows, None] + cell * np.arange(points))
        for i in range(0, len(power), rows)
    )
    return np.logaddexp(0.0, np.concatenate([logsumexp(part, axis=1) for part in parts]) + math.log(cell))


def _window(noise: float, rate: float, power: Array) -> tuple[Array, Array]:
    """Where to integrate: the normal density's mass around 0 and that of (μ/μ0)^p, which never lies beyond p.

    The lower part is left out where the upper one dwarfs it. Where μ/μ0 is below (1 − q)(p + 1) its power's mean is
    below (p + 1)^p, against at least q^p e^{p(p − 1)/2s²} in all; where it is above, its power is at most e times
    that of its second term alone, which under μ0 is normal around p.
    """
    dwarfed = (power - 1) / (2 * noise**2) >= -math.log(rate) + np.log1p(power) + 50.0 / power
    reach = _REACH * noise
    return np.where(dwarfed, np.maximum(power - reach, -reach), -reach), power + reach


def _log_excess(noise: float, rate: float, power: Array, z: Array) -> Array:
    """The logarithm of the density of μ0 times (1 + x)^p − 1 − p·x at ``z``."""
    t = (z - 0.5) / noise**2
    density = -0.5 * (z / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        x = rate * np.expm1(np.minimum(t, 700.0))
        loss = np.logaddexp(np.log1p(-rate), math.log(rate) + t)
        loss = np.where((x > -0.5) & (x < 1.0), np.log1p(x), loss)
        lift = power * loss
        # Three forms of one number: a power series, the plain difference, and with the largest term taken out.
        series, term = np.ones_like(x), np.ones_like(x)
        for k in range(3, 12):
            term = term * (power + 1 - k) * x / k
            series = series + term
        near = np.log(power * (power - 1) / 2) + 2 * np.log(np.abs(x)) + np.log(series)
        plain = np.log(np.expm1(lift) - power * x)
        far = lift + np.log1p((power - 1) * np.exp(-lift) - power * np.exp(loss - lift))
        small = np.abs(x) * power < 0.05
    return density + np.where(small, near, np.where(lift > 30.0, far, plain))


def _least(value: Callable[[Array], Array], largest: int | None) -> tuple[float, float, End | None]:
    """The order at which ``value`` is least, its value there, and at which end of those allowed it is, if at one.

    Any order gives a bound; how well the minimum is found only decides how tight it is. Values fall, then rise: α is
    convex and 0 at 0.
    """
    if largest is not None:
        whole = np.arange(1.0, check.integer("largest", largest, 1) + 1)
        values = value(whole)
        best = int(np.argmin(values))
        return float(whole[best]), float(values[best]), _end(whole[best], 1.0, whole[-1])
    orders = _COARSE
    values = value(orders)
    while np.argmin(values) == len(values) - 1 and orders[-1] < LARGEST_ORDER:
        more = orders[-1] * 2.0 ** np.arange(1, 4)
        orders, values = np.append(orders, more), np.append(values, value(more))
    best = int(np.argmin(values))
    order, least = orders[best], values[best]
    for _ in range(_ZOOMS):
        orders = np.geomspace(orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)], _ZOOM_POINTS)
        values = value(orders)
        best = int(np.argmin(values))
        if values[best] < least:
            order, least = orders[best], values[best]
    return float(order), float(least), _end(order, _COARSE[0], LARGEST_ORDER)


def _end(order: float, first: float, last: float) -> End | None:
    return "last" if order == last else "first" if order == first else None
