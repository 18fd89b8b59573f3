"""Batches that cut an epoch: the pairs of distributions of one epoch, by sums of exponentials.

A record that is in one batch of an epoch, which one being random, is a mixture over the batches: one coordinate of many
is shifted. What tells the worlds apart is a sum over the batches t of y_t = e^{(c x_t − c²/2) / s²}, terms of mean 1
with x_t ~ N(0, s²) where nothing is shifted. Its law is computed by doubling: the sum of m terms on a grid of points
gives that of 2m by adding all pairs and putting each on the next grid. All masses are positive numbers that are only
added and multiplied, so tails are as exact as the middle; a Fourier transform would lose them.

How a value is put on the grid decides on which side the error falls:

- :func:`spread_sum` splits it between the two points around it such that its mean stays. That is larger in the convex
  order, and every convex function of the sum has a larger mean.
- :func:`binned_sum` puts all values of a cell together and remembers the mass of every world there. That is a function
  of the output, so whatever tells the binned worlds apart tells the worlds apart.

Both are exact but for rounding of floats, some 1e-12 of each mass.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from .curves import Array
from .releases import Release, Side

POINTS = 1600
LARGEST_SLOPE, LARGEST_DEVIATION = 500.0, 25.0  # of ln y, in x and for x ~ N(0, s²): still floats
_TINY = 1e-20  # mass that the ends of a grid may hold
_FINEST, _COARSER = 0.006, 1.2
_PAIRS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class _Sum:
    """The law of a sum of ``terms`` terms.

    Attributes:
        points: its values, shape ``(points,)``, rising.
        masses: shape ``(1 + shifts, points)``. Row 0: no term is shifted. Row k: one term is, by the k-th shift, summed
            over which one it is.
        lost: mass of the row "shifted by c" that is at infinity.
    """

    terms: int
    points: Array
    masses: Array
    lost: float = 0.0


_Settle = Callable[[int, Array, Array, Array], _Sum]


@lru_cache(maxsize=64)
def spread_sum(noise_multiplier: float, terms: int, points: int = POINTS) -> tuple[Array, Array, float]:
    """The sum of ``terms`` independent y_t with c = 1, rounded up in the convex order.

    Returns:
        its values and their probabilities, shape ``(points,)``, and the mass that is sent to infinity: what it takes to
        keep the mean per term.
    """
    done = _sum(noise_multiplier, 1.0, (), terms, points, _spread)
    return done.points, done.masses[0], done.lost / terms


@lru_cache(maxsize=64)
def binned_sum(
    noise_multiplier: float, terms: int, power: float, shifts: tuple[float, ...], points: int = POINTS
) -> Array:
    """The masses of the binned sum of ``terms`` independent y_t with c = ``power``, shape ``(1 + shifts, bins)``.

    Row 0 with no x_t shifted; row k with one of them, each as likely, shifted by ``shifts[k − 1]``.
    """
    done = _sum(noise_multiplier, power, shifts, terms, points, _merge)
    return done.masses / np.array([1.0, *(float(terms) for _ in shifts)])[:, None]


def _sum(noise: float, power: float, shifts: tuple[float, ...], terms: int, points: int, settle: _Settle) -> _Sum:
    spread = math.sqrt(math.expm1((power / noise) ** 2))
    one = _one_term(noise, power, shifts, _Grid(spread, points), settle)
    done = one
    for bit in bin(terms)[3:]:
        done = _added(done, done, _Grid(spread, points), settle)
        if bit == "1":
            done = _added(done, one, _Grid(spread, points), settle)
    return done


@dataclass(frozen=True)
class _Grid:
    """Points around the mean of a sum: fine within a deviation (``spread`` for one term), growing outside, 0 added."""

    spread: float
    most: int

    def over(self, terms: int, low: float, high: float) -> Array:
        mean, deviation, step = float(terms), self.spread * math.sqrt(terms), _FINEST
        while True:
            points, x = [0.0, low], low
            while x < high and len(points) <= self.most:
                x += step * min(x, max(deviation, abs(x - mean)))
                points.append(x)
            if len(points) <= self.most:
                return np.array(points)
            step *= _COARSER


def _one_term(noise: float, power: float, shifts: tuple[float, ...], grid: _Grid, settle: _Settle) -> _Sum:
    reach, slope = -float(ndtri(_TINY)) * noise, power / noise**2
    low, high = (slope * (x - power / 2) for x in (-reach, max((power, *shifts)) + reach))
    edges = grid.over(1, math.exp(max(low, -700.0)), math.exp(high))
    with np.errstate(divide="ignore"):
        x = np.append(np.log(edges) / slope + power / 2, np.inf)
    masses = np.array([_cells(x, mean, noise) for mean in (0.0, *shifts)])
    # Under the shift by c the law of y is that under none, weighted by y: its masses are the cells' first moments.
    moments = _cells(x, power, noise)
    if shifts:  # only for bins, and where in its cell a bin stands is of no consequence
        moments = masses.sum(axis=0) * np.append(np.sqrt(edges[:-1]) * np.sqrt(edges[1:]), edges[-1])
    return settle(1, edges, masses, np.maximum(moments - masses.sum(axis=0) * edges, 0.0))


def _cells(x: Array, mean: float, noise: float) -> Array:
    """The mass of N(``mean``, ``noise``²) between neighbours in ``x``, each from where both tails are small."""
    below, above = (x[:-1] - mean) / noise, (x[1:] - mean) / noise
    return np.where(below > 0, ndtr(-below) - ndtr(-above), ndtr(above) - ndtr(below))


def _added(a: _Sum, b: _Sum, grid: _Grid, settle: _Settle) -> _Sum:
    """The sum of two independent sums, on a grid of its own."""
    low = float(a.points[a.points > 0][0] + b.points[b.points > 0][0])
    terms = a.terms + b.terms
    edges = grid.over(terms, low, float(a.points[-1] + b.points[-1]))
    masses, offsets = np.zeros((len(a.masses), len(edges))), np.zeros(len(edges))
    rows = max(1, _PAIRS_AT_ONCE // len(b.points))
    for start in range(0, len(a.points), rows):
        part = slice(start, start + rows)
        sums = (a.points[part, None] + b.points).ravel()
        cell = np.searchsorted(edges, sums, side="right") - 1
        none = a.masses[0, part, None] * b.masses[0]
        whole = none.copy()
        masses[0] += np.bincount(cell, none.ravel(), len(edges))
        for k in range(1, len(a.masses)):
            shifted = a.masses[k, part, None] * b.masses[0] + a.masses[0, part, None] * b.masses[k]
            masses[k] += np.bincount(cell, shifted.ravel(), len(edges))
            whole += shifted
        offsets += np.bincount(cell, whole.ravel() * (sums - edges[cell]), len(edges))
    done = settle(terms, edges, masses, offsets)
    return replace(done, lost=done.lost + a.lost + b.lost)


def _spread(terms: int, edges: Array, masses: Array, offsets: Array) -> _Sum:
    """Cells to points: each cell's mass to its two ends, ``offsets`` = Σ mass · (value − lower end) kept.

    The last cell has no upper end: what lies above its lower end is lost to infinity. So are the ends of the grid
    where there is next to nothing: the lowest points are spread over 0 and the first one that is kept.
    """
    mass = masses[0]
    right = np.minimum(offsets[:-1] / np.diff(edges), mass[:-1])
    at = mass.copy()
    at[:-1] -= right
    at[1:] += right
    top = _last_kept(at * edges / terms)
    lost = offsets[-1] + float((at[top + 1 :] * (edges[top + 1 :] - edges[top])).sum())
    bottom = len(at) - 1 - _last_kept(at[::-1])
    bottom = max(bottom, 1)
    kept, points = at[bottom : top + 1].copy(), edges[bottom : top + 1]
    kept[-1] += at[top + 1 :].sum()
    lifted = float((at[:bottom] * edges[:bottom]).sum() / edges[bottom])
    kept[0] += lifted
    nothing = max(float(at[:bottom].sum()) - lifted, 0.0)
    return _Sum(terms, np.append(0.0, points), np.append(nothing, kept)[None], lost)


def _merge(terms: int, edges: Array, masses: Array, offsets: Array) -> _Sum:
    """Cells to their means; the cells at either end that hold next to nothing in any world become one."""
    whole = masses.sum(axis=0)
    values = edges * whole + offsets
    heaviest = masses.max(axis=0)
    top, bottom = _last_kept(heaviest), len(whole) - 1 - _last_kept(heaviest[::-1])
    if bottom >= top:
        bottom = top = 0
    starts = np.array([0, *range(bottom + 1, top + 1)])
    masses, values, whole = (np.add.reduceat(rows, starts, axis=-1) for rows in (masses, values, whole))
    some = whole > 0
    return _Sum(terms, values[some] / whole[some], masses[:, some])


def _last_kept(mass: Array) -> int:
    """The last index such that all above it together hold less than next to nothing."""
    above = np.cumsum(mass[::-1])[::-1]
    return max(int(np.searchsorted(-above, -_TINY, side="right")) - 1, 1)


@dataclass(frozen=True, kw_only=True)
class DiscreteRelease(Release):
    """A pair of distributions on finitely many outcomes."""

    @abstractmethod
    def pair(self) -> tuple[Array, Array, float]:
        """(P, Q, mass of P at infinity): masses of the outcomes with and without the record, each of shape ``(n,)``."""

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        table = _table(replace(self, count=1), side)
        above = np.searchsorted(table.losses, np.asarray(loss, float), side="right")
        return table.first[above], table.second[above]

    def outcomes(self, side: Side) -> tuple[Array, Array]:
        table = _table(replace(self, count=1), side)
        finite = np.isfinite(table.losses)
        return table.losses[finite], (table.first[:-1] - table.first[1:])[finite]

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        table, mass = _table(replace(self, count=1), side), math.exp(log_mass)
        low = int(np.searchsorted(table.below, mass, side="right"))
        high = int(np.searchsorted(-table.first, -(table.first[-1] + mass), side="left")) - 1
        finite = np.flatnonzero(np.isfinite(table.losses))
        low, high = (min(max(i, int(finite[0])), int(finite[-1])) for i in (low, high))
        return float(table.losses[low]), float(table.losses[max(low, high)])


@dataclass(frozen=True)
class _Table:
    """Losses rising, shape ``(n,)``; the masses of both worlds from each loss on and, last, at infinity, ``(n + 1,)``;
    and the first world's mass up to each loss, ``(n,)``.
    """

    losses: Array
    first: Array
    second: Array
    below: Array


@lru_cache(maxsize=64)
def _table(release: DiscreteRelease, side: Side) -> _Table:
    with_it, without, infinite = release.pair()
    some = (with_it > 0) | (without > 0)
    with_it, without = with_it[some], without[some]
    with np.errstate(divide="ignore"):
        losses = np.log(with_it) - np.log(without)
    first, second = with_it, without
    if side == "without":
        losses, first, second, infinite = -losses, without, with_it, 0.0
    order = np.argsort(losses, kind="stable")
    first, second = first[order], second[order]
    from_there = [np.append(np.cumsum(masses[::-1])[::-1], 0.0) for masses in (first, second)]
    return _Table(losses[order], from_there[0] + infinite, from_there[1], np.cumsum(first))


@dataclass(frozen=True, kw_only=True)
class BinsRelease(DiscreteRelease):
    """An epoch of balls-and-bins, from above: ``seen`` batches, of which the record is in one with chance ``share``.

    P = (1 − share) N(0, s² I) + share · mean over t of N(e_t, s² I) against Q = N(0, s² I) dominates the epoch (Chua et
    al. 2024b): from a point of either the outputs follow, step by step, by turning coordinate t into the record's
    gradient and adding what the other records give; which batches these are in does not depend on the record.

    Its ratio is ℓ = 1 − share + share · mean over t of y_t, c = 1, and H_α(P ‖ Q) = E_Q (ℓ − α)₊, H_α(Q ‖ P) =
    E_Q (1 − α ℓ)₊. Both are convex in every y_t, so spreading these gives no less.
    """

    noise_multiplier: float
    seen: int
    share: float = 1.0

    def pair(self) -> tuple[Array, Array, float]:
        values, without, lost = spread_sum(self.noise_multiplier, self.seen)
        lost *= self.share
        with_it = without * ((1.0 - self.share) + self.share * values / self.seen)
        without = without / without.sum()
        return with_it * ((1.0 - lost) / with_it.sum()), without, lost


@dataclass(frozen=True, kw_only=True)
class EpochBelow(DiscreteRelease):
    """An epoch from below: ``seen`` batches, of which the record is in one with chance ``share``, by a binned sum.

    In that batch the output is shifted by ``with_shift`` with the record, and by ``without_shift`` with it zeroed out.

    - Balls-and-bins, shifts 1 and 0: the other records say nothing. The sum with c = 1 is all there is to know.
    - Shuffled, shifts 2 and 1: the others have the gradient −1, and batches without the record are all full, so that
      one is conspicuous by the missing −1 too (Chua et al. 2024). They look at max_t x_t; a sum with c = 3 is led by
      its largest term and tells more over many epochs (c was chosen by trial). Which batch it is, and how likely each,
      is of no consequence to either.
    """

    noise_multiplier: float
    seen: int
    share: float = 1.0
    with_shift: float
    without_shift: float = 0.0

    def pair(self) -> tuple[Array, Array, float]:
        shifts = tuple(shift for shift in (self.with_shift, self.without_shift) if shift)
        noise = self.noise_multiplier
        power = min(sum(shifts), LARGEST_DEVIATION * noise, LARGEST_SLOPE * noise**2 / self.with_shift)
        masses = binned_sum(noise, self.seen, power, shifts)
        rest = (1.0 - self.share) * masses[0]
        with_it = rest + self.share * masses[1]
        without = rest + self.share * masses[2] if self.without_shift else masses[0]
        # A mass too small for a float is no certainty.
        return np.maximum(with_it, 1e-300), np.maximum(without, 1e-300), 0.0
