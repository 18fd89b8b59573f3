"""What the search itself costs: choosing by accuracy looks at trainings on the same records, all of which spend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..accounting.tuning import LEDGERS, TuningCost, fixed_grid, repeated
from .grid import Grid, Level


@dataclass(frozen=True)
class Cost:
    """One way of counting.

    Attributes:
        key: ``known-beforehand``, ``whole-search`` or ``random-stopping``.
        trainings: how many trainings it counts, on average where their number is random.
        epsilon: what they spend together at the grid's δ, in nats, rounded up; None if it was not computed.
        source: what proves it.
        note: the conditions under which it holds, or why it was not computed.
    """

    key: str
    trainings: float
    epsilon: float | None
    source: str
    note: str


def search_costs(grid: Grid, suggested: Sequence[Level], fresh_points: int) -> tuple[Cost, ...]:
    """All ways of counting.

    Args:
        grid: what was trained.
        suggested: where the suggestions are, each level once.
        fresh_points: how many points were trained afresh.
    """
    known = [Cost("known-beforehand", 1, level.epsilon, "the claim", "") for level in suggested]
    return (*known, whole_search(grid, fresh_points), random_stopping(grid))


def whole_search(grid: Grid, fresh_points: int) -> Cost:
    """All private trainings, composed.

    Where the fresh trainings are was decided by what the grid showed, so each of them is charged as one with the
    least noise of the grid: composition is about settings that are fixed beforehand, and more noise never spends
    more.
    """
    counts = [len(grid.clip_norms) * grid.repeats] * len(grid.levels)
    counts[-1] += fresh_points * grid.repeats
    claims = [level.claim.coarse() for level, count in zip(grid.levels, counts, strict=True) for _ in range(count)]
    return _cost("whole-search", fixed_grid(claims, grid.delta))


def random_stopping(grid: Grid) -> Cost:
    """The best of a geometric number of trainings of random points, on average as many as the grid has.

    Every candidate must keep the same bound, so that the least noise of the grid tells. Of the two ways to compute
    it, both valid, the smaller.
    """
    claims, mean = [level.claim for level in grid.levels], len(grid.points) * grid.repeats
    found = [repeated(claims, grid.delta, mean=mean, shape=1.0, by=ledger) for ledger in LEDGERS]
    return _cost("random-stopping", min(found, key=lambda row: math.inf if row.epsilon is None else row.epsilon))


def _cost(key: str, row: TuningCost) -> Cost:
    return Cost(key, row.expected_runs, row.epsilon, row.source, row.note)
