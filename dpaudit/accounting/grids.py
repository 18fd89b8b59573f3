"""Grids of privacy losses: how fine one must be, and how large it will be, foreseen before it is made.

Numpy only. A composition is first looked at in outline: every release on some thousand uneven points, from which the
logarithm K(λ) of E e^{λ loss} of the whole follows (Abadi et al. 2016 call it the log moment). It tells where at each
δ the losses that matter lie, how wide the grid of the composition will be, and what a cell costs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ..errors import InputError
from .curves import Array
from .dots import dots, ends
from .releases import SIDES, GaussianRelease, Release, Side

MOST_BYTES = 2**30
# Mass outside of the window in which dp-accounting composes, by its Chernoff bound with its own 20 orders.
WINDOW_MASS = 1e-15
WINDOW_ORDERS = np.arange(1, 21)
COARSE_CELL = 1e-3
# What of ε a cell may cost, at these δ: on fine grids, on coarse ones, and where a grid is large.
_FINE, _COARSE, GOOD = 2e-4, 1e-3, 2e-3
PLANNED_FOR = 1e-5, 1e-12
FINER, _MOST_CELLS_FINER = 2, 3_000_000
_FAR_LESS = 0.8
# About at which δ the grid of a composition is tilted, where rounding would drown the tail of the plain one.
TILTED_AT = 1e-8
# Both directions, plain and tilted, what is kept of them and what the transforms keep: measured 60 to 190.
_BYTES_PER_CELL = 200
_COMFORTABLE = 4e5
_MOST_ERROR = 0.5
_SLACK = 1e-3
_ORDERS = np.geomspace(1e-10, 1e10, 61)


@dataclass(frozen=True)
class Grid:
    """A grid of losses for a composition, as foreseen.

    Attributes:
        cell: the distance of its points, in nats.
        wanted: the largest cell that costs next to nothing of ε.
        cells: how many there will be at most, in the composition of one direction.
        bytes: how much memory at most is taken at once on the way there.
        coarsened: whether ``cell`` had to be larger than ``wanted`` to stay under 1 GiB.
    """

    cell: float
    wanted: float
    cells: int
    bytes: int
    coarsened: bool


def gathered(releases: tuple[Release, ...]) -> tuple[Release, ...]:
    """The same composition with all Gaussian releases as one."""
    gaussian = [r for r in releases if isinstance(r, GaussianRelease)]
    if not gaussian or (len(gaussian) == 1 and gaussian[0].count == 1):
        return releases
    one = GaussianRelease(noise_multiplier=1.0 / math.sqrt(sum(r.mu**2 for r in gaussian)))
    return (one, *(r for r in releases if not isinstance(r, GaussianRelease)))


@dataclass(frozen=True)
class _Part:
    """One release in outline: its count, points of its loss and their logarithmic masses."""

    count: int
    losses: Array
    log_probs: Array

    def log_moments(self, orders: Array) -> Array:
        """The logarithm of E e^{λ loss} of one use, at each λ of ``orders``."""
        exponents = np.multiply.outer(orders, self.losses) + self.log_probs
        top = exponents.max(axis=-1)
        return np.asarray(top + np.log(np.exp(exponents - top[..., None]).sum(axis=-1)))

    def tilted(self, order: float) -> Array:
        """Probabilities of the losses, weighted by e^{λ loss}."""
        exponents = self.log_probs + order * self.losses
        weights = np.exp(exponents - exponents.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Outline:
    """One direction of a composition in outline."""

    parts: tuple[_Part, ...]

    def log_moments(self, orders: Array) -> Array:
        """K(λ) at each λ of ``orders``."""
        return np.sum([part.count * part.log_moments(orders) for part in self.parts], axis=0)

    @cached_property
    def _moments(self) -> Array:
        return self.log_moments(_ORDERS)

    def spent(self, delta: float, enough: float = 0.0) -> tuple[float, float]:
        """(ε, λ): the tail bound min over λ of (K(λ) + ln(1/δ)) / λ, at the least λ that all but reaches it.

        Or at the least λ at which it is ``enough``.
        """
        bounds = (self._moments - math.log(delta)) / _ORDERS
        near = int(np.argmax(bounds <= max(bounds.min() + 20 * _SLACK * abs(bounds.min()), enough)))
        orders = np.geomspace(_ORDERS[max(near - 1, 0)], _ORDERS[min(near + 2, len(_ORDERS) - 1)], 25)
        bounds = (self.log_moments(orders) - math.log(delta)) / orders
        near = int(np.argmax(bounds <= max(bounds.min() + _SLACK * abs(bounds.min()), enough)))
        return float(bounds[near]), float(orders[near])

    def saddle(self, epsilon: float) -> float:
        """The λ at which e^{K(λ) − λε}, the Chernoff bound of P(loss > ε), is least: the tilt that centres on ε."""
        near = int(np.argmin(self._moments - epsilon * _ORDERS))
        orders = np.geomspace(_ORDERS[max(near - 1, 0)], _ORDERS[min(near + 1, len(_ORDERS) - 1)], 25)
        return float(orders[np.argmin(self.log_moments(orders) - epsilon * orders)])

    def cost(self, order: float) -> Callable[[float], float]:
        """By how much a cell raises ε, about, where the tilt e^{λ loss} at λ = ``order`` brings out what matters.

        Connecting the dots adds the variance v = (loss − point below)(point above − loss) to each use's loss and v/2 to
        its mean: v ≈ cell² / 6, or cell · |loss| for losses within a cell of 0, and so ΔK(λ) / λ = Σ v (1 + λ) / 2.
        """
        sizes = np.concatenate([np.abs(part.losses) for part in self.parts])
        weights = np.concatenate([part.count * part.tilted(order) for part in self.parts]) * (1 + order) / 2
        return lambda cell: float(weights @ np.minimum(cell**2 / 6, cell * sizes))

    def width(self, order: float) -> float:
        """How wide a window dp-accounting composes in, tilted by ``order``, in nats: its own rule, foreseen."""
        total = 0.0
        for part in self.parts:
            low, reach = part.losses[0], part.losses[-1] - part.losses[0]
            if part.count == 1:
                total += reach
                continue
            steps = WINDOW_ORDERS / max(reach, padded(part.losses, part.tilted(order), part.count))
            moments = part.log_moments(order + np.concatenate([[0.0], steps, -steps])) - np.concatenate(
                [[0.0], steps * low, -steps * low]
            )
            up, down = moments[1:21] - moments[0], moments[21:] - moments[0]
            room = math.log(2 / WINDOW_MASS)
            top = min(float(((part.count * up + room) / steps).min()), part.count * reach)
            bottom = max(float((-(part.count * down + room) / steps).max()), 0.0)
            total += max(top - bottom, reach)
        return total


def padded(losses: Array, probs: Array, count: int) -> float:
    """How long dp-accounting should think the range of a loss is, for it to find a narrow window for ``count`` uses.

    It tries the Chernoff bound at the orders 1, …, 20 over that length, and the best order is about √(2 ln(2e15)) over
    the deviation of the sum.
    """
    mean = float((probs * losses).sum())
    return 0.6 * math.sqrt(count * float((probs * (losses - mean) ** 2).sum()))


@lru_cache(maxsize=256)
def outlines(releases: tuple[Release, ...]) -> dict[Side, Outline]:
    """The composition of ``releases`` in outline, by direction."""
    return {side: Outline(tuple(_part(release, side) for release in releases)) for side in SIDES}


@dataclass(frozen=True)
class Aim:
    """Where one direction must be right at some δ.

    Attributes:
        epsilon: about what both directions spend.
        order: the λ that brings out what decides this.
        leeway: which share of ε this direction may be off by, in units of what the deciding one may.
    """

    epsilon: float
    order: float
    leeway: float


def aims(releases: tuple[Release, ...], delta: float) -> dict[Side, Aim]:
    """By direction, where it must be right at ``delta``: one that spends far less need only be seen to do so."""
    outline = outlines(releases)
    spent = {side: outline[side].spent(delta) for side in SIDES}
    epsilon = max(e for e, _ in spent.values())
    decides = {side: e > _FAR_LESS * epsilon for side, (e, _) in spent.items()}
    return {
        side: Aim(epsilon, spent[side][1], 1.0)
        if decides[side]
        else Aim(epsilon, outline[side].spent(delta, _FAR_LESS * epsilon)[1], 100.0)
        for side in SIDES
    }


def _part(release: Release, side: Side) -> _Part:
    low, high = ends(release, side, release.count)
    spans = [release.span(side, log_mass) for log_mass in (-0.8, -2.0, -5.0, -10.0, -20.0)]
    pieces = [np.linspace(a, b, 60) for a, b in spans] + [np.linspace(low, high, 200)]
    far = max(abs(low), abs(high), 1e-300)
    sizes = far * np.geomspace(1e-10, 1.0, 100)
    losses = np.unique(np.concatenate([*pieces, sizes, -sizes, [low, high]]))
    losses = losses[(losses >= low) & (losses <= high)]
    losses = losses[np.append(np.diff(losses) > 1e-12 * far, True)]
    if len(losses) == 1:
        losses = np.append(losses, losses + 1e-9 * far)
    probs, _ = dots(release, losses, side)
    with np.errstate(divide="ignore"):
        return _Part(release.count, losses, np.log(probs))


@lru_cache(maxsize=1024)
def plan(releases: tuple[Release, ...], finest: float) -> Grid:
    """The grid for a composition: cells of ``finest`` or smaller, larger only where that costs little or must be.

    Args:
        releases: what is composed.
        finest: the cell, in nats, if nothing speaks for another one.

    Raises:
        InputError: a grid that fits into 1 GiB would be too coarse to say anything; names the size of one that would
            do, and how many uses can be accounted for.
    """
    grid = _planned(releases, finest)
    if not _tells(releases, grid):
        raise InputError(_refusal(releases, finest, grid))
    return grid


def _planned(releases: tuple[Release, ...], finest: float) -> Grid:
    share = _FINE if finest < COARSE_CELL else _COARSE
    fine, wanted, width = _largest_cell(releases, share), _largest_cell(releases, GOOD), _width(releases)
    cell = max(min(finest, fine), min(width / _COMFORTABLE, wanted))
    most = MOST_BYTES / _BYTES_PER_CELL
    room = math.sqrt(max(most**2 - _spread(releases) ** 2, 1.0))
    return _sized(releases, max(cell, width / room), wanted)


def _sized(releases: tuple[Release, ...], cell: float, wanted: float) -> Grid:
    cells = math.ceil(math.hypot(_width(releases) / cell, _spread(releases))) + 2 * len(releases) + 1
    return Grid(cell, wanted, cells, cells * _BYTES_PER_CELL, cell > wanted)


def _spread(releases: tuple[Release, ...]) -> float:
    """Cells over which T losses that stand between two points are spread: by deviations of at most √T / 2."""
    return 9.0 * math.sqrt(sum(release.count for release in releases))


def _tells(releases: tuple[Release, ...], grid: Grid) -> bool:
    """Whether ε on a grid is of the size that it is."""
    if grid.bytes > 1.01 * MOST_BYTES:
        return False
    return not grid.coarsened or error(releases, grid.cell, PLANNED_FOR[0]) <= _MOST_ERROR


def finer(releases: tuple[Release, ...], grid: Grid) -> Grid | None:
    """The grid with cells half as large; None if it is not worth its size."""
    cell = grid.cell / FINER
    half = _sized(releases, cell, min(grid.wanted, cell))
    return half if half.cells <= _MOST_CELLS_FINER else None


def _largest_cell(releases: tuple[Release, ...], share: float) -> float:
    """The largest cell that costs at most this share of ε."""
    cells = []
    for delta in PLANNED_FOR:
        for side, aim in aims(releases, delta).items():
            cost, most = outlines(releases)[side].cost(aim.order), share * aim.leeway * aim.epsilon
            low, high = -60.0, math.log(0.5 / aim.order)
            for _ in range(20):
                middle = (low + high) / 2
                low, high = (middle, high) if cost(math.exp(middle)) <= most else (low, middle)
            cells.append(math.exp(low))
    return min(cells)


def _width(releases: tuple[Release, ...]) -> float:
    tilts = aims(releases, TILTED_AT)
    return max(o.width(order) for side, o in outlines(releases).items() for order in (0.0, tilts[side].order))


def error(releases: tuple[Release, ...], cell: float, delta: float) -> float:
    """About which share of ε the cells of a grid add at ``delta``; infinite where cells are too large to tell."""
    shares = [0.0]
    for side, aim in aims(releases, delta).items():
        if cell > 0.5 / aim.order:
            return math.inf
        shares.append(outlines(releases)[side].cost(aim.order)(cell) / (aim.leeway * aim.epsilon))
    return max(shares)


def _refusal(releases: tuple[Release, ...], finest: float, grid: Grid) -> str:
    needed = grid.cells * grid.cell / grid.wanted * _BYTES_PER_CELL / MOST_BYTES
    uses = sum(release.count for release in releases)
    low, high = 0, uses
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        fewer = tuple(replace(r, count=max(1, r.count * middle // uses)) for r in releases)
        low, high = (middle, high) if _tells(fewer, _planned(fewer, finest)) else (low, middle)
    return (
        f"privacy losses of {uses:,} uses must fit on a grid of 1 GiB, got {needed:,.3g} GiB for cells of "
        f"{grid.wanted:.2g} nats; the nearest that can be accounted for are {low:,} uses"
    )
