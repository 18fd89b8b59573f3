"""Composition by dp-accounting, the one place where its privacy loss distributions are used.

Every direction is composed apart: one use of each release is put on a grid of losses (:mod:`.dots`, :mod:`.grids`), and
dp-accounting convolves. What it lacks is added here:

- **The far tail.** Convolution by Fourier transforms leaves errors of about T·2^-53 of the largest mass everywhere, and
  dp-accounting cuts off 1e-15: for T = 10^6 uses there is nothing to be seen of δ = 1e-12. So for small δ the masses
  are tilted before they are composed, multiplied by e^{λ loss} and divided by their sum M(λ). The composition of tilted
  masses is the tilted composition, P(L) e^{λL} / M(λ)^T, whose largest mass stands where δ is decided; taking the tilt
  out again leaves errors that are small against δ.
- **Errors on the right side.** A bound on the error of every mass is added to it (from below, taken away), and all that
  was cut off counts as lost to infinity. What remains unaccounted for is the rounding of the masses themselves, some
  T·1e-15 of δ.
- **Look-ups** for many ε or δ at once, at any size of ε: nothing is ever multiplied by e^ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy.signal import lfilter

from . import dots, grids
from .curves import LARGEST_EXPONENT, Array, Curve, GaussianCurve, GridCurve, Lookup, Precision, bisect
from .dots import Masses
from .grids import Grid
from .releases import SIDES, GaussianRelease, Release, SampledGaussianRelease, Side

_FINEST = 1e-4
_GRID_POINTS, _COARSE_POINTS = 2_000, 500
# Errors of convolution, measured against long doubles for T from 3 to 10^6 and masses of all kinds (repeated in
# tests/accounting/test_pld.py). Every mass is off by a share of itself of at most about 1.5 T·2^-53. Beyond that the
# transform of the masses is multiplied by 1 + noise, so a sum of masses with falling weights is off by the like of
# T·2^-53 times the root mean square of all such sums: at most 3 times that where masses are smooth, and where they are
# few at most 70 T·2^-53 times the root of the sum of their squares, spread over the window as white noise is.
_UNIT, _TRANSFORM, _SHARE, _SMOOTH, _FEW = 2.0**-53, 20.0, 4.0, 5.0, 100.0
# A tail is read off the plain composition where δ is this many times what may be wrong with it.
_CLEAR = 1e3
_SMALL_GRID = 500_000
_LEAST_DELTA = 1e-15
# Shares of ε: of a cell's cost up to which it is believed to be that, and of all errors up to which a number is good.
_SURE, _CLOSE = 2.1e-3, 1e-2
_FAR_ABOVE, _BEYOND_ALL = 3.0, 1e18


def curve(releases: tuple[Release, ...], finest: float = _FINEST) -> Curve:
    """The privacy curve of the composition of ``releases``, from above; the larger δ of both directions.

    A single use of one release is its exact profile, Gaussian releases alone are the exact Gaussian curve, and all else
    is composed on a grid (see :func:`~dpaudit.accounting.grids.plan`), where it is also no worse than what is known
    without: that sampled batches tell no more than full ones, and that losses which are bounded add up to at most the
    sum of their bounds.

    Args:
        releases: at least one.
        finest: the cell of the grid, in nats; smaller where losses are so small that it would show, larger where that
            costs next to nothing or the grid would not fit into 1 GiB.

    Raises:
        InputError: no grid of 1 GiB can tell anything about this composition.
    """
    releases = grids.gathered(releases)
    if len(releases) == 1 and (exact := releases[0].exact()) is not None:
        return exact
    if len(releases) == 1 and releases[0].count == 1:
        return _profile(releases[0], finest)
    small = grids.plan(releases, finest).cells <= _SMALL_GRID
    return _small(releases, finest) if small else _large(releases, finest)


@lru_cache(maxsize=1024)
def epsilon_from_below(releases: tuple[Release, ...], delta: float) -> float:
    """An ε that the composition surely spends at ``delta``: outcomes merged until their losses are on the grid.

    Merging is post-processing, so it tells at most as much; see :func:`~dpaudit.accounting.dots.below`.

    Args:
        releases: what some data set really has, with tails.
        delta: from 0; below 1e-15 the answer is that for 1e-15.

    Raises:
        InputError: as :func:`curve`.
    """
    releases = grids.gathered(releases)
    at = max(delta, _LEAST_DELTA)
    if len(releases) == 1 and releases[0].count == 1:
        return float(_profile(releases[0], grids.COARSE_CELL).epsilon(np.asarray(at))) * (1 - 1e-9)
    cell = grids.plan(releases, _FINEST).cell
    found = _from_below(releases, cell, at)
    if found > 0.0 and not _misled(releases, at, found):
        return found
    settled = curve(releases, _FINEST)
    finer = settled.grid.cell if isinstance(settled, GridCurve) else cell
    return _from_below(releases, finer, at) if finer < cell else found


def _from_below(releases: tuple[Release, ...], cell: float, delta: float) -> float:
    return max(_side_from_below(releases, side, cell, delta) for side in SIDES)


def _profile(release: Release, finest: float) -> GridCurve:
    """The curve of one use: its exact profile, ε by bisection."""

    def delta(epsilon: Array) -> Array:
        return np.maximum(*(release.delta(np.asarray(epsilon, float), side) for side in SIDES))

    def epsilon(at: Array) -> Array:
        at = np.asarray(at, float)
        top = np.reshape([_last_loss(release, value) for value in at.ravel()], at.shape)
        bounded = np.where(np.isfinite(top), top, 0.0)
        out = bisect(lambda e: delta(e) <= at, np.zeros_like(bounded), bounded, rounds=70)
        out = np.where(np.isfinite(top) & (delta(bounded) <= at), out, np.inf)
        return np.where(delta(np.zeros_like(at)) <= at, 0.0, out)

    def surest() -> tuple[Array, Array]:
        cell = grids.plan((release,), finest).cell
        return _surest(_convolved([(dots.above(release, cell, "with", 1), 1)], cell, 0.0))

    lines = np.linspace(0.0, min(max(_last_loss(release, 1e-14), 1e-3), LARGEST_EXPONENT), _lines(finest))
    return GridCurve(
        lines,
        delta(lines),
        exact_delta=delta,
        exact_epsilon=epsilon,
        surest=surest,
        precision=lambda _: Precision(False, "exact profile of one use"),
    )


def _last_loss(release: Release, delta: float) -> float:
    """A loss at which δ has all but come down to what is infinite, next to ``delta``; infinite if there is none."""
    if delta == 0.0:
        return max(release.largest_loss(side) for side in SIDES)
    return max(release.span(side, math.log(delta) - 20.0)[1] for side in SIDES) * (1 + 1e-12)


def _lines(finest: float) -> int:
    return _GRID_POINTS if finest < grids.COARSE_CELL else _COARSE_POINTS


def _cached(size: int) -> Any:
    @lru_cache(maxsize=size)
    def cached(releases: tuple[Release, ...], finest: float) -> GridCurve:
        return _composed(releases, finest)

    return cached


_small, _large = _cached(128), _cached(4)


def clear_cache() -> None:
    """Forget every curve and every ε from below."""
    for cached in (_small, _large, epsilon_from_below, grids.plan, grids.outlines):
        cached.cache_clear()


def _composed(releases: tuple[Release, ...], finest: float) -> GridCurve:
    grid, sides = _settled(releases, finest)
    known = _known_without(releases)

    def delta(epsilon: Array) -> Array:
        epsilon = np.minimum(np.asarray(epsilon, float), _BEYOND_ALL)
        spent = np.maximum(*(side.delta(epsilon) for side in sides))
        return np.minimum.reduce([spent, *(curve.delta(epsilon) for curve in known)])

    def epsilon(at: Array) -> Array:
        at = np.asarray(at, float)
        spent = np.maximum(*(side.epsilon(at) for side in sides))
        for curve in known:
            if np.any(curve.delta(spent) <= at):
                spent = np.minimum(spent, curve.epsilon(at))
        return spent

    lines = np.linspace(0.0, min(max(side.end for side in sides), LARGEST_EXPONENT), _lines(finest))
    deltas = np.maximum(*(side.plain.delta(lines) for side in sides))
    return GridCurve(
        lines,
        np.minimum.reduce([deltas, *(curve.delta(lines) for curve in known)]),
        exact_delta=delta,
        exact_epsilon=epsilon,
        surest=sides[0].surest,
        grid=grid,
        precision=lambda at: _precision(releases, grid, sides, epsilon, at),
    )


def _settled(releases: tuple[Release, ...], finest: float) -> tuple[Grid, _Sides]:
    """The grid, and both directions on it; finer than planned where a tail bound was a poor guide to ε."""
    grid = grids.plan(releases, finest)
    sides = _on(releases, grid.cell)
    if finest >= grids.COARSE_CELL:
        return grid, sides
    # Where nothing is spent at the larger δ, look at the smaller one.
    at, found = next((d, e) for d in grids.PLANNED_FOR if (e := _spent(sides, d)) > 0 or d == grids.PLANNED_FOR[-1])
    if not _misled(releases, at, found):
        return grid, sides
    while (finer := grids.finer(releases, grid)) is not None:
        grid, sides, before = finer, _on(releases, finer.cell), found
        found = _spent(sides, at)
        # A cell's cost falls at least as the cell does.
        if before - found <= (grids.FINER - 1) * grids.GOOD * found:
            break
    return grid, sides


def _on(releases: tuple[Release, ...], cell: float) -> _Sides:
    return _Side(releases, "with", cell), _Side(releases, "without", cell)


def _spent(sides: _Sides, delta: float) -> float:
    return max(float(side.epsilon(np.asarray(delta))) for side in sides)


def _misled(releases: tuple[Release, ...], delta: float, found: float) -> bool:
    """Whether the tail bound that a grid was planned by is far above what is spent."""
    return 0.0 < found < max(aim.epsilon for aim in grids.aims(releases, delta).values()) / _FAR_ABOVE


def _known_without(releases: tuple[Release, ...]) -> tuple[Curve, ...]:
    """Curves that bound the composition without a grid."""
    known: list[Curve] = []
    if all(isinstance(r, (GaussianRelease, SampledGaussianRelease)) for r in releases):
        # Given the coins of the sampler, the record is in a full batch or in none: H is jointly convex.
        rate = sum(r.count / r.noise_multiplier**2 for r in releases)  # type: ignore[attr-defined]
        known.append(GaussianCurve(math.sqrt(rate)))
    most = [max(r.largest_loss(side) for side in SIDES) for r in releases]
    if all(math.isfinite(loss) for loss in most):
        known.append(_bounded(releases, most))
    return tuple(known)


def _bounded(releases: tuple[Release, ...], most: list[float]) -> Curve:
    """δ is 1 below the sum of the largest losses, and there and beyond the chance that any loss is infinite."""
    end = sum(release.count * loss for release, loss in zip(releases, most, strict=True)) * (1 + 1e-12)
    lost = max(-math.expm1(sum(_log_finite(release, side) for release in releases)) for side in SIDES)
    return GridCurve(
        [0.0, end],
        [1.0, lost],
        exact_delta=lambda epsilon: np.where(epsilon >= end, lost, 1.0),
        exact_epsilon=lambda at: np.where(at >= lost, np.where(at >= 1.0, 0.0, end), np.inf),
    )


class _Side:
    """One direction of a composition, from above: plain, and tilted for δ where the plain one is not clear."""

    def __init__(self, releases: tuple[Release, ...], side: Side, cell: float) -> None:
        self._releases, self._side, self._cell = releases, side, cell
        pmf, self.plain = self._composition(0.0)
        self._pmf = pmf if side == "with" else None
        self.clear = _CLEAR * self.plain.doubt
        self._clear_from = self.plain.epsilon(np.asarray(self.clear))
        self.end = self._end()

    @cached_property
    def tilted(self) -> _Tail:
        return self._composition(_tilt(self._releases, self._side, float(self._clear_from)))[1]

    def _composition(self, order: float) -> tuple[_Pmf, _Tail]:
        parts = [(dots.above(r, self._cell, self._side, r.count), r.count) for r in self._releases]
        pmf = _convolved(parts, self._cell, order)
        return pmf, _Tail(pmf, up=True)

    def delta(self, epsilon: Array) -> Array:
        value = self.plain.delta(epsilon)
        if (value >= self.clear).all():
            return value
        return np.where(value >= self.clear, value, np.minimum(self.tilted.delta(epsilon), self.clear))

    def epsilon(self, delta: Array) -> Array:
        value = self.plain.epsilon(delta)
        if (delta >= self.clear).all():
            return value
        return np.where(delta >= self.clear, value, np.maximum(self.tilted.epsilon(delta), self._clear_from))

    def doubt(self, epsilon: float) -> float:
        """How much of δ at ``epsilon`` is nothing but room for errors."""
        return min(float(tail.doubt_at(np.asarray(epsilon))) for tail in (self.plain, self.tilted))

    def _end(self) -> float:
        """Where lines of the trade-off function may end: δ is negligible there, or as small as can be told."""
        least = self.plain.infinite + max(1e-14, 3 * self.plain.doubt)
        top = float(self.plain.epsilon(np.asarray(least)))
        return max(top, 1e-3) if math.isfinite(top) else LARGEST_EXPONENT

    def surest(self) -> tuple[Array, Array]:
        """Of the direction ``with``: see :func:`_surest`."""
        assert self._pmf is not None
        return _surest(self._pmf)


_Sides = tuple[_Side, _Side]


def _tilt(releases: tuple[Release, ...], side: Side, clear_from: float) -> float:
    """The λ that centres on the ε from which the plain composition is not clear any more."""
    if 0.0 < clear_from < math.inf:
        return grids.outlines(releases)[side].saddle(clear_from)
    return grids.aims(releases, grids.TILTED_AT)[side].order


def _side_from_below(releases: tuple[Release, ...], side: Side, cell: float, delta: float) -> float:
    parts = [(dots.below(r, cell, side, r.count), r.count) for r in releases]
    plain = _Tail(_convolved(parts, cell, 0.0), up=False)
    clear = _CLEAR * plain.doubt
    if delta >= clear:
        return plain.epsilon_below(delta)
    order = _tilt(releases, side, plain.epsilon_below(min(clear, 1.0)))
    return _Tail(_convolved(parts, cell, order), up=False).epsilon_below(delta)


@dataclass(frozen=True)
class _Pmf:
    """Losses of a composition: P(``loss(i)``) is ``probs[i]`` · e^{``log_scale`` − ``order`` · loss}.

    Attributes:
        first: the loss of ``probs[0]``.
        rounding: T·2^-53 or the like: the unit of what rounding may have done to ``probs``.
        cut: how much of all ``probs`` may stand elsewhere, or nowhere.
        infinite: the probability of an infinite loss.
    """

    cell: float
    first: float
    probs: Array
    order: float
    log_scale: float
    rounding: float
    cut: float
    infinite: float

    def losses(self) -> Array:
        return _points(self.first, len(self.probs), self.cell)


def _convolved(parts: list[tuple[Masses, int]], cell: float, order: float) -> _Pmf:
    """All ``parts``, each as often as it says, tilted by e^{``order`` · loss} and convolved by dp-accounting."""
    total: DensePLDPmf | None = None
    order, narrowest = min(order, 1.0 / cell), math.inf
    log_scale = offset = log_none = 0.0
    for masses, count in sorted(parts, key=lambda part: len(part[0].probs)):
        with np.errstate(divide="ignore"):
            log_weights = np.log(masses.probs)
        losses = _points(masses.start * cell + masses.offset, len(masses.probs), cell)
        log_weights += order * losses
        weights = np.exp(log_weights - log_weights.max())
        log_scale += count * (math.log(float(weights.sum())) + float(log_weights.max()))
        weights /= weights.sum()
        offset += count * masses.offset
        log_none += count * math.log1p(-masses.infinite)
        padding = max(int(grids.padded(losses, weights, count) / cell) - len(weights), 0) if count > 1 else 0
        many = DensePLDPmf(cell, masses.start, np.append(weights, np.zeros(padding)), 0.0, True)
        if count > 1:
            with np.errstate(over="ignore"):  # a Chernoff bound that overflows is left out there
                many = _trimmed(many.self_compose(count, grids.WINDOW_MASS))
            narrowest = min(narrowest, many.size)
        total = many if total is None else _trimmed(total.compose(many))
    assert total is not None
    uses = sum(count for _, count in parts if count > 1) + _TRANSFORM * len(parts)
    return _Pmf(
        cell=cell,
        first=total._lower_loss * cell + offset,
        probs=total._probs,
        order=order,
        log_scale=log_scale,
        # The noise of a part is as that of the whole, from a transform of the size of the part.
        rounding=_UNIT * uses * math.sqrt(max(total.size / narrowest, 1.0)),
        cut=5 * len(parts) * grids.WINDOW_MASS,
        infinite=-math.expm1(log_none),
    )


def _surest(pmf: _Pmf) -> tuple[Array, Array]:
    """What an optimal guesser of fair coins gets: see :attr:`~dpaudit.accounting.curves.GridCurve.surest`."""
    losses, inside = pmf.losses(), pmf.probs
    with np.errstate(over="ignore", invalid="ignore"):
        outside = np.where(inside > 0, inside * np.exp(-losses), 0.0)
    order = np.argsort(-np.abs(losses), kind="stable")
    told = (pmf.infinite + max(1.0 - float(outside.sum()), 0.0)) / 2
    share = told + np.cumsum((inside + outside)[order]) / 2
    wrong = np.cumsum(np.minimum(inside, outside)[order]) / 2
    return np.concatenate([[0.0, told], share]), np.concatenate([[0.0, 0.0], wrong])


def _trimmed(pmf: DensePLDPmf) -> DensePLDPmf:
    """Without the ends that hold next to nothing, nor the small negative masses that a convolution leaves."""
    probs = np.maximum(pmf._probs, 0.0)
    start = int(np.searchsorted(np.cumsum(probs), grids.WINDOW_MASS))
    stop = len(probs) - int(np.searchsorted(np.cumsum(probs[::-1]), grids.WINDOW_MASS))
    return DensePLDPmf(pmf._discretization, pmf._lower_loss + start, probs[start:stop].copy(), 0.0, True)


class _Tail:
    """δ of one direction at ε ≥ 0, and ε at δ.

    With p_i the masses above ε < l_j ≤ l_i, δ(ε) = Σ p_i (1 − e^{ε − l_i}) = S_j − e^{ε − l_j} R_j, where S_j and R_j
    are sums of p_i and of p_i e^{l_j − l_i}. Both are kept relative to the tilt at l_j, so nothing over- or underflows.
    """

    def __init__(self, pmf: _Pmf, *, up: bool) -> None:
        self._sign = 1.0 if up else -1.0
        self._cell, self._order, self.infinite = pmf.cell, pmf.order, pmf.infinite
        self._log_scale = pmf.log_scale + self._sign * _SHARE * pmf.rounding
        sums, others = (
            lfilter([1.0], [1.0, -math.exp(-rate * pmf.cell)], pmf.probs[::-1])[::-1]
            for rate in (pmf.order, pmf.order + 1.0)
        )
        smooth = math.sqrt(float(np.square(sums).mean()))
        reach = min(1.0, 1.0 / max(-math.expm1(-pmf.order * pmf.cell) * len(sums), 1e-300))
        few = math.sqrt(float(np.square(pmf.probs).sum()) * reach)
        # Of all masses above a point, weighted as seen from there: what may be wrong.
        self.doubt = pmf.cut + pmf.rounding * (_SMOOTH * smooth + _FEW * few)
        skipped = min(max(math.floor(-pmf.first / pmf.cell) + 1, 0), len(pmf.probs) - 1)
        self._first = pmf.first + skipped * pmf.cell
        self._sums, self._others = np.append(sums[skipped:], 0.0), np.append(others[skipped:], 0.0)

    def doubt_at(self, epsilon: Array) -> Array:
        return self.doubt * self._scale(epsilon)

    def delta(self, epsilon: Array) -> Array:
        at = np.clip(np.floor((epsilon - self._first) / self._cell) + 1, 0, len(self._sums) - 1).astype(int)
        loss = self._first + at * self._cell
        with np.errstate(over="ignore"):
            seen = self._scale(loss) * (self._sums[at] - np.exp(np.minimum(epsilon - loss, 0.0)) * self._others[at])
        return np.clip(self.infinite + seen + self._sign * self.doubt * self._scale(epsilon), 0.0, 1.0)

    def epsilon(self, delta: Array) -> Array:
        """The ε ≥ 0 at which :meth:`delta` falls to ``delta``: the cell by bisection, then in closed form."""
        delta = np.asarray(delta, float)
        low, high = np.full(delta.shape, -1), np.full(delta.shape, len(self._sums) - 1)
        while np.any(high - low > 1):
            middle = (low + high) // 2
            private = self.delta(self._first + middle * self._cell) <= delta
            low, high = np.where(private, low, middle), np.where(private, middle, high)
        right = self._first + high * self._cell
        left = right - self._cell
        value = self._crossing(high, delta - self.infinite - self.doubt * self._scale(left))
        value = np.where(high > 0, np.maximum(value, left), value if self._order == 0 else right)
        value = np.where(self.delta(right) <= delta, value, self._beyond(delta))
        return np.where(self.delta(np.zeros(())) <= delta, 0.0, value)

    def _beyond(self, delta: Array) -> Array:
        """ε at ``delta`` above all masses, where nothing but doubt is left."""
        if self._order == 0:
            return np.full(delta.shape, np.inf)
        with np.errstate(divide="ignore"):
            return (
                self._log_scale + math.log(self.doubt) - np.log(np.maximum(delta - self.infinite, 0.0))
            ) / self._order

    def epsilon_below(self, delta: float) -> float:
        """An ε ≥ 0 at which :meth:`delta`, a bound from below, is at least ``delta``; 0 where none is larger."""
        losses = _points(self._first, len(self._sums) - 1, self._cell)
        spent = np.flatnonzero(self.delta(losses) >= delta)
        if len(spent) == 0:
            return 0.0
        left = losses[spent[-1]]
        spare = delta + self.doubt * self._scale(left)
        return max(float(self._crossing(np.asarray(spent[-1] + 1), np.asarray(spare))), float(left), 0.0)

    def _crossing(self, at: Array, spare: Array) -> Array:
        """Where masses from index ``at`` on, and no others, give δ = ``spare``; at most their first loss."""
        loss = self._first + at * self._cell
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rest = np.exp(np.log(np.maximum(spare, 0.0)) - (self._log_scale - self._order * loss))
            value = loss + np.log((self._sums[at] - rest) / self._others[at])
        return np.where(self._sums[at] > rest, np.minimum(value, loss), -np.inf)

    def _scale(self, loss: Array) -> Array:
        return np.exp(np.minimum(self._log_scale - self._order * loss, LARGEST_EXPONENT))


def _precision(releases: tuple[Release, ...], grid: Grid, sides: _Sides, epsilon: Lookup, delta: float) -> Precision:
    """Whether ε at ``delta`` is within 1 % of a finer grid's; compares with cells twice as large where that is open."""
    on, limited = (
        f"a grid of {grid.cell:.2g} nats",
        "grid-limited: ε is an upper bound that may be more than 1 % too high",
    )
    found, spent = float(epsilon(np.asarray(delta))), _spent(sides, delta)
    if found == math.inf:
        infinite = max(-math.expm1(sum(_log_finite(r, side) for r in releases)) for side in SIDES)
        if delta <= infinite:
            return Precision(False, "infinite at this δ", grid)
        return Precision(True, f"grid-limited: δ is too small for {on}", grid)
    if found == 0.0 or delta == 0.0:
        return Precision(False, on, grid)
    if spent > (1 + _CLOSE) * found:
        return Precision(True, f"{limited}, because δ is too small for {on} and a bound without a grid is used", grid)
    share = grids.error(releases, grid.cell, delta)
    if share > _SURE or _misled(releases, delta, spent):
        share = max(_spent(_on(releases, 2 * grid.cell), delta) / spent - 1.0, 0.0)
    order = min(aim.order for aim in grids.aims(releases, delta).values() if aim.leeway == 1.0)
    rounding = max(side.doubt(spent) for side in sides) / delta / (order * spent)
    if share <= _CLOSE and rounding <= _CLOSE:
        return Precision(False, on, grid)
    if rounding > share:
        return Precision(True, f"{limited}, because of errors of rounding", grid)
    if grid.coarsened:
        sizes = f"{grid.wanted:.2g} to {grid.cell:.2g} nats"
        return Precision(True, f"{limited}, because the grid was coarsened from {sizes} to stay under 1 GiB", grid)
    return Precision(True, f"{limited}, because of {on}", grid)


def _points(first: float, count: int, cell: float) -> Array:
    return first + np.arange(count, dtype=float) * cell


def _log_finite(release: Release, side: Side) -> float:
    """The logarithm of the chance that no loss of all uses is infinite, as far as that is known."""
    try:
        infinite = float(release.tails(np.asarray(np.inf), side)[0])
    except NotImplementedError:
        return 0.0
    return release.count * math.log1p(-infinite)
