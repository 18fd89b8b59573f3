"""The one place where dp-accounting is called: privacy loss distributions, both neighbouring directions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from .curves import LARGEST_EXPONENT, Array, GridCurve

_GRID_POINTS = 2_000
_COARSE_POINTS = 500
# Mass that may be cut off the ends of one release, in logs; it is added to δ.
_LOG_TAIL = -40.0
_MOST_CELLS = 2_000_000.0
# Connecting the dots adds about cell² / 6 to the variance of each release's loss, and so cell² / (12 loss²) to ε: under
# 0.02 % and 0.1 % at these shares of the loss.
_COARSE_CELL = 1e-3
_FINE, _COARSE = 0.04, 0.1


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
def epsilon_from_below(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """An ε that the same mechanism surely spends at ``delta``: losses rounded down, tails dropped.

    Every step loses half a cell on average, so the cell shrinks with the number of steps, as far as memory allows.
    """
    cell = max(min(1e-4, 0.01 / steps), _spread(noise_multiplier, sampling_rate, steps) / _MOST_CELLS)
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
    def delta(epsilon: Array) -> Array:
        # Beyond this e^ε overflows; δ there is at most what it is here.
        flat, where = np.unique(np.minimum(np.ravel(epsilon), LARGEST_EXPONENT), return_inverse=True)
        rising = np.asarray(composed.get_delta_for_epsilon(flat))  # takes nothing else
        return np.clip(rising, 0.0, 1.0)[where].reshape(np.shape(epsilon))

    @lru_cache(maxsize=64)
    def one_epsilon(at: float) -> float:
        with np.errstate(over="ignore"):  # a ratio that overflows is above every loss, as it should be
            return max(float(composed.get_epsilon_for_delta(at)), 0.0)

    def epsilon(at: Array) -> Array:
        return np.array([one_epsilon(float(d)) for d in np.ravel(at)]).reshape(np.shape(at))

    grid = np.linspace(0.0, min(_last_epsilon(composed), LARGEST_EXPONENT), points)
    return GridCurve(grid, delta(grid), exact_delta=delta, exact_epsilon=epsilon)


def _last_epsilon(composed: pld.PrivacyLossDistribution) -> float:
    """Where the grid of ε may end: δ there is negligible, or as small as the accountant can tell."""
    for tail in (1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4):
        with np.errstate(over="ignore"):
            top = float(composed.get_epsilon_for_delta(tail))
        if math.isfinite(top):
            return max(top, 1e-3)
    return 50.0
