"""The one place where dp-accounting is called: privacy loss distributions, both neighbouring directions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from .curves import LARGEST_EXPONENT, Array, GridCurve, Lookup
from .releases import Release, SampledGaussianRelease

_GRID_POINTS = 2_000
_COARSE_POINTS = 500
# Mass that may be cut off the ends of one release, in logs; it is added to δ.
_LOG_TAIL = -40.0
_MOST_CELLS = 2_000_000.0
_LOST, _LOST_SHARE = 0.02, 0.005
# Connecting the dots adds about cell² / 6 to the variance of each release's loss, and so cell² / (12 loss²) to ε: under
# 0.02 % and 0.1 % at these shares of the loss.
_COARSE_CELL = 1e-3
_FINE, _COARSE = 0.04, 0.1


@lru_cache(maxsize=256)
def curve(releases: tuple[Release, ...], finest: float = 1e-4) -> GridCurve:
    """INTERIM: the curve of the composition of ``releases``."""
    (one,) = releases
    assert isinstance(one, SampledGaussianRelease)
    return subsampled_gaussian(one.noise_multiplier, one.sampling_rate, one.count, finest)


@lru_cache(maxsize=256)
def epsilon_from_below(releases: tuple[Release, ...], delta: float) -> float:
    """INTERIM."""
    (one,) = releases
    assert isinstance(one, SampledGaussianRelease)
    return _from_below(one.noise_multiplier, one.sampling_rate, one.count, delta)


@lru_cache(maxsize=256)
def subsampled_gaussian(noise_multiplier: float, sampling_rate: float, steps: int, finest: float = 1e-4) -> GridCurve:
    """The curve of ``steps`` Poisson-sampled Gaussian releases of sensitivity 1, add or remove one record.

    Both directions are composed apart and the larger δ is taken at the end (Lebeda et al. 2024).

    Args:
        noise_multiplier: standard deviation of the noise on the sum, in units of the clip norm.
        sampling_rate: probability that a record joins a batch.
        steps: number of releases.
        finest: the cell of the privacy loss grid; smaller where one release loses so little that the cell would show,
            larger where the grid would not fit.
    """
    loss = sampling_rate * math.sqrt(math.expm1(min(noise_multiplier**-2, 500.0)))
    cell = min(finest, (_FINE if finest < _COARSE_CELL else _COARSE) * loss)
    cell = max(cell, _spread(noise_multiplier, sampling_rate, steps) / _MOST_CELLS)
    one = pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=cell,
        use_connect_dots=True,
        log_mass_truncation_bound=_LOG_TAIL,
    )
    return _curve(one.self_compose(steps), _GRID_POINTS if finest < _COARSE_CELL else _COARSE_POINTS)


@lru_cache(maxsize=256)
def _from_below(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """An ε that the same mechanism surely spends at ``delta``: losses rounded down, tails dropped.

    Every step loses half a cell on average, so the cell shrinks with the number of steps, as far as memory allows:
    about 0.01 nats or 0.25 % are lost in all.
    """
    above = float(subsampled_gaussian(noise_multiplier, sampling_rate, steps, _COARSE_CELL).epsilon(np.asarray(delta)))
    cell = max(
        min(1e-3, max(_LOST, _LOST_SHARE * min(above, 1e3)) / steps),
        _spread(noise_multiplier, sampling_rate, steps) / _MOST_CELLS,
    )
    one = pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=cell,
        pessimistic_estimate=False,
        use_connect_dots=False,
        log_mass_truncation_bound=_LOG_TAIL,
    )
    return max(float(one.self_compose(steps).get_epsilon_for_delta(delta)), 0.0)


def _spread(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """About how wide the composed privacy loss is, in nats."""
    one = 0.5 / noise_multiplier**2 + 10.0 / noise_multiplier
    growth = min(math.expm1(min(noise_multiplier**-2, 500.0)) * sampling_rate**2, one)
    return min(steps * one, one + steps * growth + 12.0 * math.sqrt(steps * growth))


def _curve(composed: pld.PrivacyLossDistribution, points: int) -> GridCurve:
    sides = (_Losses(composed._pmf_remove), _Losses(composed._pmf_add))

    def delta(epsilon: Array) -> Array:
        # Beyond this e^ε overflows; δ there is at most what it is here.
        capped = np.minimum(epsilon, LARGEST_EXPONENT)
        return np.clip(np.maximum(sides[0].delta(capped), sides[1].delta(capped)), 0.0, 1.0)

    def epsilon(at: Array) -> Array:
        return np.maximum(np.maximum(sides[0].epsilon(at), sides[1].epsilon(at)), 0.0)

    grid = np.linspace(0.0, min(_last_epsilon(epsilon), LARGEST_EXPONENT), points)
    return GridCurve(grid, delta(grid), exact_delta=delta, exact_epsilon=epsilon, surest=sides[0].surest)


class _Losses:
    """One direction's privacy loss distribution, for many ε or δ at once.

    The library answers the same, by a loop in Python over every cell; that loop is most of an audit's time. This is the
    one place that reads its arrays.
    """

    def __init__(self, pmf: Any) -> None:
        dense = pmf.to_dense_pmf()
        self._losses = (np.arange(len(dense._probs)) + dense._lower_loss) * dense._discretization
        with np.errstate(over="ignore", invalid="ignore"):
            other = np.where(dense._probs > 0, dense._probs * np.exp(-self._losses), 0.0)
        self._pair = dense._probs, other
        # Masses above each loss, and above them all, under the record's world and under the other one.
        self._mass = dense._infinity_mass + np.append(np.cumsum(dense._probs[::-1])[::-1], 0.0)
        self._other = np.append(np.cumsum(other[::-1])[::-1], 0.0)
        self._rising = -np.minimum.accumulate(self.delta(self._losses))  # −δ at each loss

    def delta(self, epsilon: Array) -> Array:
        """Mass above ε less e^ε times the other world's mass there."""
        above = np.searchsorted(self._losses, epsilon, side="right")
        with np.errstate(over="ignore", invalid="ignore"):
            spent = np.where(self._other[above] > 0, np.exp(epsilon) * self._other[above], 0.0)
        return self._mass[above] - spent

    def epsilon(self, delta: Array) -> Array:
        """The ε at which :meth:`delta` falls to ``delta``: the segment by search, then in closed form."""
        delta = np.asarray(delta, float)
        first = np.searchsorted(self._rising, -delta, side="left")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.log((self._mass[first] - delta) / self._other[first])
        value = np.where(self._mass[first] <= delta, -np.inf, value)
        return np.where(delta < self._mass[-1], np.inf, value)

    def surest(self) -> tuple[Array, Array]:
        """What an optimal guesser of fair coins gets: see :attr:`~dpaudit.accounting.curves.GridCurve.surest`."""
        inside, outside = (np.maximum(side, 0.0) for side in self._pair)  # a convolution leaves masses of −1e-20
        order = np.argsort(-np.abs(self._losses), kind="stable")
        told = (self._mass[-1] + max(1.0 - float(outside.sum()), 0.0)) / 2
        share = told + np.cumsum((inside + outside)[order]) / 2
        wrong = np.cumsum(np.minimum(inside, outside)[order]) / 2
        return np.concatenate([[0.0, told], share]), np.concatenate([[0.0, 0.0], wrong])


def _last_epsilon(epsilon: Lookup) -> float:
    """Where the grid of ε may end: δ there is negligible, or as small as the accountant can tell."""
    tops = epsilon(np.array([1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4]))
    finite = tops[np.isfinite(tops)]
    return max(float(finite[0]), 1e-3) if len(finite) else 50.0
