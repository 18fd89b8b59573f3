"""A release on a grid of privacy losses, rounded up ("connect the dots") or down. Numpy and scipy only.

Over t = e^ε the profile δ of a pair (P, Q) is convex, and a line a − b·t of it says P(loss > ε) = a, Q(loss > ε) = b.
A pair on a grid is a profile of lines that meet at grid points ("dots"). If it is nowhere below another profile it
dominates that pair, if it is nowhere above it is dominated, and either stays so under composition: with δ₁ ≤ δ₁', say,
∫ δ₁(ε − l) dP₂(l) is at most the same with δ₁', and what is composed may be exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from .curves import LARGEST_EXPONENT, Array, bisect
from .releases import Release, Side

Tails = Callable[[Array], tuple[Array, Array]]

# Mass outside of the grid, all uses together. Above, it is lost to infinity and adds to δ; below, it is moved up onto
# the grid, which multiplies δ by no more than 1 + this.
_LOG_LOST_ABOVE, _LOG_MOVED_BELOW = math.log(1e-20), math.log(1e-9)
_HEAVY, _ROUNDS, _AT_MOST = 0.3, 3, 0.5
_LARGEST_RANGE, _TINY, _NUDGE = 600.0, 1e-12, 1e-9


@dataclass(frozen=True)
class Masses:
    """One use's loss on a grid: ``probs[i]`` at ``(start + i) · cell + offset``, and ``infinite`` at infinity."""

    start: int
    probs: Array
    infinite: float = 0.0
    offset: float = 0.0


def ends(release: Release, side: Side, count: int) -> tuple[float, float]:
    """(lowest, highest) loss that the grid of one use must hold, for ``count`` uses in all."""
    low = release.span(side, _LOG_MOVED_BELOW - math.log(count))[0]
    high = release.span(side, _LOG_LOST_ABOVE - math.log(count))[1]
    return low, max(low, high)


def above(release: Release, cell: float, side: Side, count: int) -> Masses:
    """One use on a grid, rounded up: what every outcome has is shared by the two points around its loss.

    The share is such that the outcome keeps its probability in both worlds ("connect the dots" of Doroshenko et al.
    2022), so the result dominates the release, and a cell costs the square of its size. Mass is only moved between
    neighbours, never made by subtraction: what is lost to rounding does not grow with the number of cells.

    Args:
        release: what is used.
        cell: the distance of the grid's points.
        side: the direction.
        count: how often the result will be composed; what is cut off at the ends is small even then.
    """
    low, high = ends(release, side, count)
    start, stop = math.floor(low / cell), math.ceil(high / cell)
    probs, infinite = dots(release, np.arange(start, max(stop, start + 1) + 1, dtype=float) * cell, side)
    return Masses(start, probs, infinite)


def dots(release: Release, losses: Array, side: Side) -> tuple[Array, float]:
    """The masses at ``losses`` and at infinity of a pair that dominates one use; see :func:`above`."""
    try:
        first, scaled = release.scaled_tails(losses, side)
    except NotImplementedError:
        return _of_profile(release.delta(losses, side), -np.expm1(-np.diff(losses)))
    up, down = _shares(losses, first, scaled)
    probs = np.append(down, 0.0)
    probs[1:] += up
    probs[0] += 1.0 - first[0]
    return np.maximum(probs, 0.0), float(first[-1])


def _shares(losses: Array, first: Array, scaled: Array) -> tuple[Array, Array]:
    """What of the mass between neighbours in ``losses`` goes up and down, from :meth:`.Release.scaled_tails` there."""
    profile, between = first - scaled, np.maximum(first[:-1] - first[1:], 0.0)
    up = (profile[:-1] - profile[1:]) / -np.expm1(-np.diff(losses)) - scaled[1:]
    up = np.clip(up, 0.0, between)
    return up, between - up


def _of_profile(profile: Array, rise: Array) -> tuple[Array, float]:
    """The same from upper bounds of the profile: P(loss > l) is δ(l) − δ'(l), rounded up to fall as it must."""
    over = profile[1:] + (profile[:-1] - profile[1:]) / rise
    over = np.append(np.maximum.accumulate(over[::-1])[::-1], profile[-1])
    over = np.minimum(np.maximum(over, profile[-1]), 1.0)
    return np.append(1.0, over[:-1]) - over, float(profile[-1])


def below(release: Release, cell: float, side: Side, count: int) -> Masses:
    """One use on a grid, rounded down: the dots are lowered until the lines between them are below the profile.

    Between two dots the profile is above its tangents at both, and above any mixture of these. They are below the dot
    at the other end by (1 − e^−cell) u and (e^cell − 1) d, if u and d are the shares that go up and down in
    :func:`above`. The mixture is taken that lowers both dots alike, or the right one by half; then every dot is lowered
    as far as the line on either side asks, and the greatest convex curve below all dots is the result. At either end a
    tangent takes over, the one that leads to the point (t, 1 − t) of the profile of nothing at the first dot, or to
    (t, 0) at the last: what it cuts off becomes one outcome. A cell costs twice as much as in :func:`above`.

    Args:
        release: what is used, with tails.
        cell: the distance of the grid's points.
        side: the direction.
        count: how often the result will be composed.
    """
    low, high = ends(release, side, count)
    high = min(high, release.largest_exact_loss)
    infinite = float(release.tails(np.asarray(np.inf), side)[0])
    few = release.outcomes(side)
    if few is not None:
        return _floored(*few, low, cell, infinite)

    def tails(loss: Array) -> tuple[Array, Array]:
        first, scaled = release.scaled_tails(loss, side)
        return np.maximum(first - infinite, 0.0), scaled

    offset = _heavy_loss(tails, low, high, cell)
    start, stop = math.floor((low - offset) / cell), math.ceil((high - offset) / cell)
    losses = np.arange(start, max(stop, start + 2) + 1, dtype=float) * cell + offset
    bottom, over = _lowered(tails, losses, cell, 1.0 - infinite)
    probs = np.append(1.0 - infinite, over) - np.append(over, 0.0)
    # With no lines at all, what tells nothing: the same in both worlds.
    return Masses(start + bottom, probs, infinite, offset) if len(over) else Masses(0, probs, infinite)


def _floored(losses: Array, mass: Array, low: float, cell: float, infinite: float) -> Masses:
    """Every loss moved down to the next point: δ of any composition is a mean of what rises with the losses.

    A cell costs half of itself per use; those that have few outcomes are epochs, and of these there are not many. Below
    ``low`` there is next to nothing, which is left out.
    """
    kept = losses >= low
    at = np.floor(losses[kept] / cell).astype(np.int64)
    start = int(at.min())
    return Masses(start, np.asarray(np.bincount(at - start, mass[kept]), float), infinite)


def _lowered(tails: Tails, losses: Array, cell: float, whole: float) -> tuple[int, Array]:
    """(first dot, P(loss > ε) on the lines from there on) of the profile that :func:`below` describes.

    Args:
        tails: the scaled tails of the finite losses, at any losses.
        losses: the dots.
        cell: their distance.
        whole: the probability of finite losses.
    """
    first, scaled = tails(losses)
    profile = first - scaled
    up, down = _shares(losses, first, scaled)
    rise, mixed = -math.expm1(-cell), down + up * math.exp(-cell)
    sag = rise * up * np.divide(down, mixed, out=np.zeros_like(down), where=mixed > 0)
    right = np.minimum(sag, _AT_MOST * profile[1:])
    share = np.divide(right * math.exp(-cell), rise * down, out=np.ones_like(down), where=down > 0)
    lowered = np.maximum(np.append(0.0, right), np.append(rise * up * np.maximum(1.0 - share, 0.0), 0.0))
    last = min(int(np.append(0, np.flatnonzero(first > 0))[-1]) + 1, len(losses) - 1)
    bottom = _first_tangent(tails, losses, first, scaled, whole, cell)
    while bottom is not None and last > bottom.start and losses[last] > 0:
        top = _last_tangent(tails, losses[: last + 1], first, scaled)
        if top is None or (last <= bottom.stop and bottom.at(losses[last]) < -_TINY):
            last -= 1
            continue
        under = lowered[: last + 1].copy()
        under[: bottom.stop], under[top.start + 1 :] = 0.0, 0.0
        for tangent in (bottom, top):
            part = slice(tangent.start, min(tangent.stop, last) + 1)
            under[part] = np.maximum(under[part], profile[part] - tangent.at(losses[part]))
        under[last] = profile[last]
        part = slice(bottom.start, last)
        after = under[1:][part]
        over = first[1 : last + 1][part] + up[part] - (after + (under[part] - after) / rise)
        over = _fallen(over, cell)
        if over[0] > whole + _TINY:  # the first line ends below (t, whole − t): begin where it ends
            ends_at = bottom.start + 1 + int(np.argmax(np.append(over[1:] < over[0] * (1 - _TINY), True)))
            later = _first_tangent(tails, losses[:last], first, scaled, whole, cell, ends_at)
            if later is not None:
                bottom = later
                continue
        if over[-1] >= 0:
            return bottom.start, np.minimum(over, whole)
        last = bottom.start + int(np.argmax(over < 0))
    return 0, np.empty(0)


@dataclass(frozen=True)
class _Tangent:
    """The line ``over`` − e^{loss − ``touch``} · ``scaled``, nowhere above a profile; for dots from start to stop."""

    touch: float
    over: float
    scaled: float
    start: int
    stop: int

    def at(self, losses: Array) -> Array:
        return self.over - np.exp(losses - self.touch) * self.scaled


def _first_tangent(
    tails: Tails, losses: Array, first: Array, scaled: Array, whole: float, cell: float, least: int = 0
) -> _Tangent | None:
    """The tangent that leads to (t, whole − t) at the first dot, from ``least`` on, with anything below it.

    None if there is none.
    """
    first, scaled = first[: len(losses)], scaled[: len(losses)]
    start, nudge = max(least, int(np.append(np.flatnonzero(first < whole), len(losses) - 1)[0])), 0.0
    if start > least and tails(losses[start - 1] + _NUDGE * cell)[0] < whole:
        start, nudge = start - 1, _NUDGE * cell  # a mass that is on the dot, but for rounding
    if start >= len(losses) - 1:
        return None
    dot = losses[start]

    def room(loss: Array, over: Array, scaled: Array) -> Array:
        # whole − t at the dot less the tangent there.
        return (whole - over) - np.exp(dot) + np.exp(dot - loss) * scaled

    spare = room(losses[start:], first[start:], scaled[start:])
    beyond = np.flatnonzero(spare >= -_TINY * (whole - first[start:]))
    if dot >= math.log(whole) or len(beyond) == 0:
        return None
    stop, touch = start + int(beyond[0]), dot + nudge
    if stop > start:
        touch = bisect(lambda loss: room(loss, *tails(loss)) >= 0, losses[stop - 1], losses[stop], rounds=60)
    return _touching(tails, float(touch), float(dot), whole - math.exp(dot), start, max(stop, start + 1))


def _last_tangent(tails: Tails, losses: Array, first: Array, scaled: Array) -> _Tangent | None:
    """The tangent that leads to (t, 0) at the last of ``losses``; None if there is none."""
    stop = len(losses) - 1
    dot = losses[stop]

    def height(loss: Array, over: Array, scaled: Array) -> Array:
        apart = dot - loss
        return np.where(apart > LARGEST_EXPONENT, -np.inf, over - np.exp(np.minimum(apart, LARGEST_EXPONENT)) * scaled)

    before = np.flatnonzero(height(losses[:stop], first[:stop], scaled[:stop]) < 0)
    if len(before) == 0:
        return None
    start = int(before[-1])
    touch = -bisect(lambda down: height(-down, *tails(-down)) < 0, -losses[start + 1], -losses[start], rounds=60)
    tangent = _touching(tails, float(touch), float(dot), 0.0, start, stop)
    return tangent if tangent.at(dot) >= -_TINY * tangent.over else None


def _touching(tails: Tails, touch: float, dot: float, height: float, start: int, stop: int) -> _Tangent:
    """The line from the profile at ``touch`` to ``height`` at ``dot``, as far as it is a tangent.

    Where a mass stands alone the profile has a corner, and many tangents: P(loss > touch) is anything between what it
    is there and just before.
    """
    least, scaled = map(float, tails(np.asarray(touch)))
    most, there = float(tails(np.asarray(touch - _TINY * abs(touch)))[0]), least - scaled
    over = there + (height - there) / -math.expm1(dot - touch) if dot != touch else least
    over = min(max(over, least), max(least, most))
    return _Tangent(touch, over, over - there, start, stop)


def _heavy_loss(tails: Tails, low: float, high: float, cell: float) -> float:
    """A shift of the grid that puts a point where much of the mass has all but one loss; 0 if it has many."""
    edges = np.arange(math.floor(low / cell) - 1, math.ceil(high / cell) + 2, dtype=float) * cell
    loss = 0.0
    for _ in range(_ROUNDS):
        first, scaled = tails(edges)
        mass = first[:-1] - first[1:]
        heavy = int(np.argmax(mass))
        # e^{left edge} times the second world's mass.
        other = scaled[heavy] - math.exp(-(edges[heavy + 1] - edges[heavy])) * scaled[heavy + 1]
        if mass[heavy] <= _HEAVY or other <= 0:
            return 0.0
        loss = float(edges[heavy]) + math.log(mass[heavy] / other)
        edges = loss + np.array([-0.5, 0.5]) * cell
    return loss


def _fallen(over: Array, cell: float) -> Array:
    """P(loss > l) between points, from that of any curve through the dots to that of the convex one below.

    Where it rises the curve is concave. Over e^−ε, δ·e^−ε has the slope P(loss > l), so the convex curve has the
    nearest one that falls, by least squares weighted with the lengths there.
    """
    most = max(int(_LARGEST_RANGE / cell), 2)
    while True:
        for start in (0, most // 2):
            for i in range(start, len(over), most):
                part = over[i : i + most]
                if np.any(np.diff(part) > 0):
                    weights = np.exp(-cell * np.arange(len(part)))
                    over[i : i + most] = isotonic_regression(part, weights=weights, increasing=False).x
        if not np.any(np.diff(over) > _TINY * np.abs(over[:-1])):
            return np.minimum.accumulate(over)
