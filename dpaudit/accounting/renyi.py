"""Rényi accounting: divergences by order, added over steps, and their conversion to (ε, δ).

Numbers come from dp-accounting's accountant where it has them. Own code is what it lacks: Poisson-sampled Gaussians at
orders that are not whole (its series is not signed and often does not converge) or large (its sum is slow) and where
its sum has no digits left, by the log-moments of :mod:`.moments`; bare pairs; and orders far above its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..errors import InputError
from ..records import Adjacency
from .claims import Claim
from .curves import Array
from .mechanisms import Composed, Mechanism, sensitivity
from .moments import LARGEST_ORDER, End, log_inverse, log_moments
from .releases import GaussianRelease, LaplaceRelease, PairRelease, Release, SampledGaussianRelease
from .samplers import FixedSizeGaussian, InEpochs

Conversion = Literal["classic", "improved"]
# dp-accounting's default orders, with a fine start for large losses and a fine end; then, while they pay, larger ones.
ORDERS = tuple(
    sorted(
        {
            *(1 + 2.0 ** (-k / 4) for k in range(14, 81)),
            *(1 + k / 10 for k in range(1, 100)),
            *map(float, range(11, 64)),
        }
        | {float(round(64 * 2 ** (k / 4))) for k in range(17)}
    )
)
_LARGER = tuple(float(round(1024 * 2 ** (k / 4))) for k in range(1, 29))
_AT_ONCE = 4
_LARGEST_WITHOUT_REPLACEMENT = 2**14  # dp-accounting's sum takes a second at ten times that
_LARGEST_SUM, _DIGITS_LEFT = 1024, 1e-6
_MOST_NOISE = 500.0  # beyond it dp-accounting's finite differences for sampling without replacement have no digits left


@dataclass(frozen=True)
class Converted:
    """ε at a δ by the best order.

    Attributes:
        epsilon: in nats; infinite where no order says anything.
        order: the best one.
        end: ``first`` or ``last`` if that is an end of the orders tried, so that others would do better; else None.
    """

    epsilon: float
    order: float
    end: End | None


def curve(claim: Claim, orders: ArrayLike) -> Array:
    """The Rényi divergence that the claim promises at each order, an upper bound, both neighbouring directions.

    - Gaussian releases: a/2σ² (Mironov 2017, corollary 3); Laplace: ibid., proposition 6, corollary 2.
    - Poisson batches: Mironov, Talwar & Zhang 2019.
    - Fixed-size batches: Wang, Balle & Kasiviswanathan 2019, for replacing a record, which covers zeroing it out; at
      most what full batches have.
    - Shuffled and balls-and-bins: one full-batch release an epoch.
    - A pair with δ = 0: randomised response at its ε.
    - A composition: the sum.

    Args:
        claim: what is claimed.
        orders: a, each above 1 and at most 2^23.

    Returns:
        divergences in nats, in the shape of ``orders``.

    Raises:
        InputError: an order out of range, or a claim with a part that has no Rényi divergence, by name.
    """
    at = np.asarray(orders, float)
    if at.size == 0 or not (np.all(at > 1) and np.all(at <= LARGEST_ORDER)):
        raise InputError(f"orders must be above 1 and at most {LARGEST_ORDER:.0f}, got {orders!r}")
    return _of_mechanism(claim.mechanism, claim.adjacency, tuple(at.ravel().tolist())).reshape(at.shape)


def epsilon(
    claim: Claim, delta: float, conversion: Conversion = "improved", orders: Sequence[float] | None = None
) -> Converted:
    """ε at ``delta`` by the best order.

    >>> claim = Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100)
    >>> round(epsilon(claim, 1e-5).epsilon, 3)
    2.6

    Args:
        claim: what is claimed.
        delta: δ.
        conversion: ``classic``: r + ln(1/δ)/(a − 1) (Mironov 2017, proposition 3), or ``improved``: see
            :func:`converted`.
        orders: those to try; by default :data:`ORDERS`, and while the largest is the best larger ones, up to 2^17, or
            2^14 for fixed-size batches.

    Raises:
        InputError: as :func:`curve`.
    """
    delta = check.delta(delta)
    check.choice("conversion", conversion, ("classic", "improved"))
    tried = ORDERS if orders is None else tuple(np.unique(np.asarray(orders, float)).tolist())
    divergences, more = curve(claim, tried), () if orders is not None else _larger(claim.mechanism)
    while True:
        best = _best(tried, divergences, delta, conversion)
        if best.end != "last" or not more:
            return best
        extra, more = more[:_AT_ONCE], more[_AT_ONCE:]
        tried, divergences = tried + extra, np.append(divergences, curve(claim, extra))


def converted(orders: ArrayLike, divergences: ArrayLike, delta: float, conversion: Conversion = "improved") -> Array:
    """The ε ≥ 0 that each order proves on its own.

    Improved: r + ln(1 − 1/a) − ln(δ a)/(a − 1) (Canonne, Kamath & Steinke 2020, proposition 12; Balle et al. 2020,
    theorem 21), and 0 where δ² ≥ 1 − e^−r, which no total variation exceeds (Bretagnolle & Huber 1979).

    Args:
        orders: a > 1.
        divergences: r at each order; same shape.
        delta: δ.
        conversion: ``classic`` or ``improved``.
    """
    a, r, cost = np.asarray(orders, float), np.asarray(divergences, float), log_inverse(delta)
    with np.errstate(over="ignore"):
        if conversion == "classic":
            return np.maximum(r + cost / (a - 1), 0.0)
        out = np.maximum(r + np.log1p(-1 / a) + (cost - np.log(a)) / (a - 1), 0.0)
        return np.where(delta**2 + np.expm1(-r) >= 0, 0.0, out)


def _larger(mechanism: Mechanism) -> tuple[float, ...]:
    parts = mechanism.parts if isinstance(mechanism, Composed) else (mechanism,)
    slow = any(isinstance(part, FixedSizeGaussian) for part in parts)
    return tuple(a for a in _LARGER if a <= _LARGEST_WITHOUT_REPLACEMENT) if slow else _LARGER


def _best(orders: Sequence[float], divergences: Array, delta: float, conversion: Conversion) -> Converted:
    epsilons = converted(orders, divergences, delta, conversion)
    best = int(np.argmin(epsilons))
    at_end = epsilons[best] > 0
    end: End | None = None
    if at_end and best == len(orders) - 1:
        end = "last"
    elif at_end and best == 0:
        end = "first"
    return Converted(float(epsilons[best]), float(orders[best]), end)


def _of_mechanism(mechanism: Mechanism, adjacency: Adjacency, orders: tuple[float, ...]) -> Array:
    if isinstance(mechanism, Composed):
        return np.sum([_of_mechanism(part, adjacency, orders) for part in mechanism.parts], axis=0)
    if isinstance(mechanism, FixedSizeGaussian):
        noise = mechanism.noise_multiplier
        sampled = _without_replacement(noise / 2.0, mechanism.sampling_rate, orders)
        return mechanism.steps * np.fmin(sampled, np.array(orders) / 2 * (sensitivity(adjacency) / noise) ** 2)
    if isinstance(mechanism, InEpochs):
        releases: tuple[Release, ...] = (
            GaussianRelease(noise_multiplier=mechanism.noise_multiplier, count=mechanism.epochs),
        )
    else:
        releases = mechanism.releases(adjacency)
    return np.sum([release.count * _of_release(replace(release, count=1), orders) for release in releases], axis=0)


@lru_cache(maxsize=256)
def _of_release(release: Release, orders: tuple[float, ...]) -> Array:
    """The divergence of one use at each order."""
    match release:
        case GaussianRelease():
            return _library(_events().GaussianDpEvent(release.noise_multiplier), orders)
        case LaplaceRelease():
            return _library(_events().LaplaceDpEvent(release.noise_multiplier), orders)
        case SampledGaussianRelease():
            return _sampled_gaussian(release.noise_multiplier, release.sampling_rate, orders)
        case PairRelease(at_delta=0.0):
            return _randomised_response(release.at_epsilon, np.array(orders))
        case PairRelease():
            raise InputError("a pair must have δ = 0 for Rényi accounting, "
                             f"got ({release.at_epsilon:g}, {release.at_delta:g})")  # fmt: skip
    raise InputError(f"Rényi accounting has no rule for {type(release).__name__}")


def _sampled_gaussian(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    at = np.array(orders)
    out = log_moments(noise, rate, at - 1) / (at - 1)
    whole = (at % 1 == 0) & (at <= _LARGEST_SUM)
    if whole.any():
        events = _events()
        event = events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(noise))
        sums = _library(event, tuple(at[whole].tolist()))
        out[whole] = np.where(sums > _DIGITS_LEFT, sums, out[whole])
    return out


@lru_cache(maxsize=64)
def _without_replacement(noise: float, rate: float, orders: tuple[float, ...]) -> Array:
    """For replacing a record, ``noise`` in units of how far that moves a sum; infinite where the library has none."""
    from dp_accounting import privacy_accountant

    if noise > _MOST_NOISE:
        return np.full(len(orders), np.inf)
    # Of the event's two sizes only the ratio counts.
    event = _events().SampledWithoutReplacementDpEvent(1.0, rate, _events().GaussianDpEvent(noise))
    return _library(event, orders, privacy_accountant.NeighboringRelation.REPLACE_ONE)


def _randomised_response(epsilon: float, orders: Array) -> Array:
    # ln(p^a (1 − p)^(1 − a) + (1 − p)^a p^(1 − a)) at p = e^ε / (1 + e^ε); at most aε²/2 (Bun & Steinke 2016, 3.3).
    both = np.logaddexp(orders * epsilon, (1 - orders) * epsilon) - np.logaddexp(epsilon, 0.0)
    return np.minimum(np.maximum(both, 0.0) / (orders - 1), orders * epsilon**2 / 2)


def _library(event: Any, orders: tuple[float, ...], relation: Any = None) -> Array:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders) if relation is None else rdp.RdpAccountant(orders, relation)
    accountant.compose(event)
    return np.asarray(accountant.rdp, float)


def _events() -> Any:
    from dp_accounting import dp_event

    return dp_event
