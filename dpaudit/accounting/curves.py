"""Privacy curves: ε(δ), δ(ε) and the trade-off function, three views of one object.

All curves here are symmetric: they cover both neighbouring directions. Where a curve is approximated, δ is rounded up
and the trade-off function down, so that a test of the curve errs on the claim's side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

Array = NDArray[np.float64]
Lookup = Callable[[Array], Array]
LARGEST_EXPONENT = 700.0
_GRID, _ROUNDS = np.linspace(0.0, 1.0, 33), 14  # narrows the search 16-fold each time


@dataclass(frozen=True)
class Precision:
    """How near a curve's ε at one δ is to what is promised; it is never below.

    Attributes:
        limited: whether ε may be more than 1 % above what a finer grid would give.
        note: in words.
        grid: the grid of privacy losses that the curve was computed on, if any: its cell, the cell that was wanted, its
            size (:class:`~dpaudit.accounting.grids.Grid`).
    """

    limited: bool
    note: str
    grid: Any = None


class Curve(ABC):
    """A symmetric privacy curve. All methods take and return arrays of any one shape."""

    @abstractmethod
    def delta(self, epsilon: Array) -> Array:
        """The smallest δ with (ε, δ)-differential privacy; ``epsilon`` ≥ 0 in nats."""

    @abstractmethod
    def epsilon(self, delta: Array) -> Array:
        """The smallest ε ≥ 0 at ``delta``, in nats; infinite where there is none."""

    @abstractmethod
    def reach(self, x: Array) -> Array:
        """The least probability that one neighbour gives to an event of probability ``x`` under the other.

        It is f(1 − x) for the trade-off function f, computed so that it stays exact for tiny ``x``. Mahloujifar,
        Melis & Chaudhuri 2024 write it as the inverse of f̄ = 1 − f.
        """

    def fnr(self, fpr: Array) -> Array:
        """The trade-off function: the least false negative rate at false positive rate ``fpr``."""
        return self.reach(1.0 - np.asarray(fpr, float))

    def precision(self, delta: float) -> Precision:
        """How near ε at ``delta`` is to what is promised: exact, or as good as a grid allows."""
        return Precision(False, "exact")


@dataclass(frozen=True)
class GaussianCurve(Curve):
    """N(0, 1) against N(μ, 1): μ-GDP (Dong, Roth & Su 2019, definition 2.6); exact. ``mu`` may be an array."""

    mu: Any

    def delta(self, epsilon: Array) -> Array:
        epsilon, mu = np.asarray(epsilon, float), np.asarray(self.mu, float)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # Balle & Wang 2018, theorem 5; the second term in logs, since e^ε overflows long before the product does.
            shift = epsilon / mu
            value = ndtr(mu / 2 - shift) - np.exp(epsilon + log_ndtr(-mu / 2 - shift))
        return np.where((mu > 0) & (epsilon < np.inf), np.clip(value, 0.0, 1.0), 0.0)

    def epsilon(self, delta: Array) -> Array:
        delta = np.asarray(delta, float)
        top = self._largest_epsilon(delta)
        out = bisect(lambda e: self.delta(e) <= delta, np.zeros_like(top), top)
        return np.where(self.delta(np.zeros_like(top)) <= delta, 0.0, np.where(delta > 0, out, np.inf))

    def _largest_epsilon(self, delta: Array) -> Array:
        # Φ(μ/2 − ε/μ) ≤ δ already gives δ(ε) ≤ δ.
        mu = np.asarray(self.mu, float)
        tail = -ndtri(np.clip(delta, 1e-300, 1.0 - 1e-16))
        return np.maximum(mu * (mu / 2 + tail), 0.0) + 1e-9

    def reach(self, x: Array) -> Array:
        return ndtr(ndtri(np.clip(x, 0.0, 1.0)) - self.mu)

    def fnr(self, fpr: Array) -> Array:
        return ndtr(-ndtri(np.clip(fpr, 0.0, 1.0)) - self.mu)


@dataclass(frozen=True)
class PairCurve(Curve):
    """All that a single (ε, δ) promises: the randomised response that leaks everything with probability δ.

    The trade-off function is f_{ε,δ} of Dong, Roth & Su 2019, equation 5. Both parameters may be arrays.
    """

    at_epsilon: Any
    at_delta: Any

    def delta(self, epsilon: Array) -> Array:
        epsilon = np.asarray(epsilon, float)
        # (e^E − e^ε) / (1 + e^E), written with exponents that can't overflow.
        gap = -np.expm1(np.minimum(epsilon - self.at_epsilon, 0.0)) / (1.0 + np.exp(-np.asarray(self.at_epsilon)))
        return self.at_delta + (1.0 - np.asarray(self.at_delta)) * gap

    def epsilon(self, delta: Array) -> Array:
        delta = np.asarray(delta, float)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (
                (delta - self.at_delta) / (1.0 - np.asarray(self.at_delta)) * (1 + np.exp(-np.asarray(self.at_epsilon)))
            )
            value = self.at_epsilon + np.log1p(-np.minimum(share, 1.0))
        return np.where(delta >= self.at_delta, np.maximum(value, 0.0), np.inf)

    def reach(self, x: Array) -> Array:
        x = np.asarray(x, float)
        return self._corner(x, 1.0 - x)

    def fnr(self, fpr: Array) -> Array:
        fpr = np.asarray(fpr, float)
        return self._corner(1.0 - fpr, fpr)

    def _corner(self, x: Array, rest: Array) -> Array:
        """``reach`` of ``x``, with ``rest`` = 1 − x given as exactly as it is known."""
        e, d = np.asarray(self.at_epsilon, float), np.asarray(self.at_delta, float)
        with np.errstate(over="ignore", invalid="ignore"):
            steep = np.where(rest > 0, 1.0 - d - np.exp(e) * rest, 1.0 - d)
        return np.maximum(0.0, np.maximum(np.exp(-e) * (x - d), steep))


@dataclass(frozen=True)
class TwiceCurve(Curve):
    """Group privacy for two records: what a curve for add-or-remove-one promises for replacing one record.

    The trade-off function is 1 − (1 − f)∘(1 − f) of Dong, Roth & Su 2019, theorem 2.14, so ``reach`` applies twice.
    """

    one: Curve

    def precision(self, delta: float) -> Precision:
        """That of the curve for one record, at the same δ."""
        return self.one.precision(delta)

    def reach(self, x: Array) -> Array:
        return self.one.reach(self.one.reach(x))

    def fnr(self, fpr: Array) -> Array:
        return self.one.reach(self.one.fnr(fpr))

    def delta(self, epsilon: Array) -> Array:
        # δ(ε) = sup_x x − e^ε reach(x) over the probability x of an event, concave in x; Dong et al., proposition 6.
        growth = np.exp(np.minimum(np.asarray(epsilon, float), LARGEST_EXPONENT))[..., None]
        low, high = np.zeros_like(growth), np.ones_like(growth)
        for _ in range(_ROUNDS):
            x = low + (high - low) * _GRID
            best = np.argmax(x - growth * self.reach(x), axis=-1, keepdims=True)
            low = np.take_along_axis(x, np.maximum(best - 1, 0), axis=-1)
            high = np.take_along_axis(x, np.minimum(best + 1, len(_GRID) - 1), axis=-1)
        return np.clip(high - growth * self.reach(low), 0.0, 1.0)[..., 0]

    def epsilon(self, delta: Array) -> Array:
        delta = np.asarray(delta, float)
        top = np.full_like(delta, LARGEST_EXPONENT)
        low = np.zeros_like(delta)
        out = bisect(lambda e: self.delta(e) <= delta, low, top, rounds=60)
        return np.where(self.delta(low) <= delta, 0.0, np.where(self.delta(top) <= delta, out, np.inf))


@dataclass(frozen=True)
class LaplaceCurve(Curve):
    """Lap(0, 1) against Lap(μ, 1), exactly μ-DP (Dong, Roth & Su 2019, proposition A.6). ``mu`` may be an array."""

    mu: Any

    def delta(self, epsilon: Array) -> Array:
        return np.maximum(-np.expm1((np.asarray(epsilon, float) - self.mu) / 2), 0.0)

    def epsilon(self, delta: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.maximum(self.mu + 2 * np.log1p(-np.asarray(delta, float)), 0.0)

    def reach(self, x: Array) -> Array:
        x, small = np.asarray(x, float), np.exp(-np.asarray(self.mu, float))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            middle, steep = small / (4 * (1 - x)), 1 - (1 - x) / small
        return np.where(x < 0.5, small * x, np.where(x <= 1 - small / 2, middle, steep))


class GridCurve(Curve):
    """A curve known by upper bounds of δ on a grid of ε, as a numerical accountant gives it.

    Between grid points δ is interpolated linearly in e^ε, which is from above, since δ is convex in e^ε. The trade-off
    function is the maximum of the lines that the grid points stand for (Dong, Roth & Su 2019, proposition 6): both
    directions enter through the larger δ, and the maximum of lines is convex, so it is the convexified minimum of both.

    Args:
        epsilons: shape ``(points,)``, rising, from 0.
        deltas: shape ``(points,)``, upper bounds of δ at these ε.
        exact_delta, exact_epsilon: the accountant's own look-ups, used in place of interpolation where given.
        surest: makes what :attr:`surest` holds, on first use.
        grid: the grid of privacy losses that it was computed on.
        precision: what :meth:`precision` answers; by default that the points were given.
    """

    def __init__(
        self,
        epsilons: ArrayLike,
        deltas: ArrayLike,
        *,
        exact_delta: Lookup | None = None,
        exact_epsilon: Lookup | None = None,
        surest: Callable[[], tuple[Array, Array]] | None = None,
        grid: Any = None,
        precision: Callable[[float], Precision] | None = None,
    ) -> None:
        self._surest, self._precision = surest, precision
        self.grid = grid
        self._epsilons = np.asarray(epsilons, float)
        self._deltas = np.minimum.accumulate(np.clip(np.asarray(deltas, float), 0.0, 1.0))
        self._exact_delta, self._exact_epsilon = exact_delta, exact_epsilon

    @cached_property
    def _lines(self) -> tuple[Array, Array, Array]:
        return _envelope(self._epsilons, self._deltas)

    def precision(self, delta: float) -> Precision:
        return Precision(False, "points that were given") if self._precision is None else self._precision(delta)

    @cached_property
    def surest(self) -> tuple[Array, Array] | None:
        """Of fair coins through the pair "in, out" itself: (share guessed, share guessed wrong), the surest first.

        Both cumulative, from 0. The curve covers the pair in both directions, which is less private than the pair;
        None where only the curve is known.
        """
        return None if self._surest is None else self._surest()

    def delta(self, epsilon: Array) -> Array:
        if self._exact_delta is not None:
            return self._exact_delta(np.asarray(epsilon, float))
        top = self._epsilons[-1]
        scale = np.exp(np.minimum(np.asarray(epsilon, float), top) - top)
        return np.interp(scale, np.exp(self._epsilons - top), self._deltas)

    def epsilon(self, delta: Array) -> Array:
        delta = np.asarray(delta, float)
        if self._exact_epsilon is not None:
            return self._exact_epsilon(delta)
        low = np.zeros_like(delta)
        out = bisect(lambda e: self.delta(e) <= delta, low, np.full_like(delta, self._epsilons[-1]))
        return np.where(self.delta(low) <= delta, 0.0, np.where(delta >= self._deltas[-1], out, np.inf))

    def reach(self, x: Array) -> Array:
        x = np.clip(np.asarray(x, float), 0.0, 1.0)
        return self._line(x, 1.0 - x)

    def fnr(self, fpr: Array) -> Array:
        fpr = np.clip(np.asarray(fpr, float), 0.0, 1.0)
        return self._line(1.0 - fpr, fpr)

    def _line(self, x: Array, rest: Array) -> Array:
        """The envelope at ``x``, with ``rest`` = 1 − x given as exactly as it is known.

        Any line is below the trade-off function, so a knot that is a little off only rounds down; the line itself is
        evaluated without the cancellation that slope · x + offset would suffer at steep slopes.
        """
        knots, slopes, cut = self._lines
        at = np.searchsorted(knots, x, side="right")
        slope, delta = slopes[at], cut[at]
        return np.maximum(0.0, np.where(slope > 1.0, (1.0 - delta) - slope * rest, slope * (x - delta)))


def _envelope(epsilons: Array, deltas: Array) -> tuple[Array, Array, Array]:
    """The upper envelope of the lines of both signs of ε, as (knots, slopes, their δ); slopes rise."""
    small = epsilons <= LARGEST_EXPONENT
    epsilons, deltas = epsilons[small], deltas[small]
    flat = np.concatenate([np.exp(-epsilons[::-1]), np.exp(epsilons)])
    offsets = np.concatenate([-np.exp(-epsilons[::-1]) * deltas[::-1], 1.0 - deltas - np.exp(epsilons)])
    cut = np.concatenate([deltas[::-1], deltas])
    keep: list[int] = []
    knots: list[float] = []
    for i in range(len(flat)):
        if keep and flat[i] == flat[keep[-1]] and offsets[i] <= offsets[keep[-1]]:
            continue
        while keep and (crossing := _crossing(flat, offsets, keep[-1], i)) <= (knots[-1] if knots else 0.0):
            keep.pop()
            if knots:
                knots.pop()
        if keep:
            if crossing >= 1.0:
                continue
            knots.append(crossing)
        keep.append(i)
    return np.array(knots), flat[keep], cut[keep]


def _crossing(slopes: Array, offsets: Array, a: int, b: int) -> float:
    """Where line ``b``, the steeper one, overtakes line ``a``."""
    if slopes[a] == slopes[b]:
        return -math.inf
    return float((offsets[a] - offsets[b]) / (slopes[b] - slopes[a]))


def bisect(holds: Callable[[Array], Any], low: Array, high: Array, rounds: int = 100) -> Array:
    """The upper end of the switch from False at ``low`` to True at ``high``, element by element."""
    low, high = np.array(low, float), np.array(high, float)
    for _ in range(rounds):
        middle = (low + high) / 2
        yes = holds(middle)
        low, high = np.where(yes, low, middle), np.where(yes, middle, high)
    return high
