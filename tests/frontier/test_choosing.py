"""The rules, on tables made by hand: no model is trained here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpaudit.frontier.choosing import budget_rule, judged, measure, measure_halves, non_dominated, within_rule
from dpaudit.frontier.grid import Grid, make_grid
from dpaudit.frontier.outcome import Halves, Measured, Point
from dpaudit.spec import load_spec

from .conftest import small_spec

NOISE, CLIP = (4.0, 2.0, 1.0), (0.1, 1.0)


@pytest.fixture(scope="module")
def grid() -> Grid:
    return make_grid(load_spec(small_spec()), noise=NOISE, clip=CLIP, repeats=2)


def table(grid: Grid, means: Sequence[float | None]) -> tuple[Point, ...]:
    """Points with these accuracies on the choosing half, and the opposite on the other, which no rule may look at."""

    def measured(mean: float | None) -> Measured:
        return Measured(mean, mean, mean, 2, int(mean is None), 30)

    return judged(grid, [Halves(measured(m), measured(None if m is None else 1 - m)) for m in means])


class TestMeasure:
    def test_is_students_interval(self) -> None:
        shares = np.array([0.7, 0.75, 0.72, 0.78, 0.71])
        found = measure(shares, 200)
        low, high = stats.t.interval(0.95, 4, shares.mean(), stats.sem(shares))
        assert (found.mean, found.low, found.high) == pytest.approx((shares.mean(), low, high))
        assert (found.models, found.diverged, found.records) == (5, 0, 200)

    def test_stays_a_share(self) -> None:
        found = measure(np.array([0.9, 1.0]), 10)
        assert found.high == 1.0 and found.low is not None and found.low >= 0.0

    def test_equal_shares_have_no_width(self) -> None:
        assert measure(np.array([0.9, 0.9]), 10).low == measure(np.array([0.9, 0.9]), 10).high == 0.9

    def test_a_diverged_model_leaves_no_number(self) -> None:
        found = measure(np.array([0.9, np.nan, 0.8]), 10)
        assert (found.mean, found.low, found.high, found.diverged) == (None, None, None, 1)

    def test_halves_are_the_columns(self, grid: Grid) -> None:
        halves = measure_halves(grid, np.array([[0.5, 0.9], [0.7, 0.8]]))
        assert (halves.choosing.mean, halves.reporting.mean) == pytest.approx((0.6, 0.85))
        assert (halves.choosing.records, halves.reporting.records) == (30, 31)


class TestRules:
    #                      ε:   smallest      middle        largest
    @pytest.mark.parametrize(
        ("means", "within", "wanted"),
        [
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 0.00, 5),
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 0.09, 5),
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 0.10, 2),
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 0.29, 2),
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 0.30, 0),
            ([0.60, 0.50, 0.80, 0.70, 0.85, 0.90], 1.00, 0),
            ([0.90, 0.90, 0.90, 0.90, 0.90, 0.90], 0.00, 0),
            ([0.10, 0.95, 0.80, 0.70, 0.85, 0.90], 0.00, 1),
            ([None, None, 0.80, 0.70, 0.85, 0.90], 1.00, 2),
            ([None, 0.75, None, 0.70, None, 0.70], 0.00, 1),
        ],
    )  # fmt: skip
    def test_within(self, grid: Grid, means: list[float | None], within: float, wanted: int) -> None:
        assert within_rule(table(grid, means), within) == wanted

    def test_budget(self, grid: Grid) -> None:
        points = table(grid, [0.60, 0.50, 0.80, 0.81, 0.85, 0.90])
        epsilons = [level.epsilon for level in grid.levels]
        assert epsilons == sorted(epsilons)
        assert budget_rule(points, epsilons[0]) == 0
        assert budget_rule(points, math.nextafter(epsilons[1], 0)) == 0
        assert budget_rule(points, epsilons[1]) == 3
        assert budget_rule(points, 1e9) == 5
        assert budget_rule(points, epsilons[0] / 2) is None

    def test_budget_takes_the_smaller_epsilon_of_equals(self, grid: Grid) -> None:
        assert budget_rule(table(grid, [0.9, 0.1, 0.9, 0.2, 0.8, 0.9]), 1e9) == 0

    def test_nothing_is_suggested_where_all_diverged(self, grid: Grid) -> None:
        points = table(grid, [None] * 6)
        assert within_rule(points, 0.5) is None and budget_rule(points, 1e9) is None
        assert not any(point.best or point.non_dominated for point in points)

    def test_best_and_frontier(self, grid: Grid) -> None:
        points = table(grid, [0.60, 0.50, 0.55, 0.58, 0.85, 0.90])
        assert [p.best for p in points] == [True, False, False, True, False, True]
        assert [p.non_dominated for p in points] == [True, False, False, False, False, True]

    def test_the_smaller_clip_norm_of_equals(self, grid: Grid) -> None:
        assert [p.best for p in table(grid, [0.6, 0.6, 0.7, 0.7, 0.8, 0.8])] == [True, False] * 3


accuracies = st.lists(st.one_of(st.none(), st.sampled_from([0.5, 0.6, 0.7, 0.8])), min_size=6, max_size=6)


@settings(max_examples=200, deadline=None)
@given(means=accuracies, within=st.sampled_from([0.0, 0.1, 0.2, 0.3]))
def test_rules_are_what_they_say(means: list[float | None], within: float) -> None:
    grid = make_grid_once()
    points = table(grid, means)
    known = [(p.level.epsilon, m, i) for i, (p, m) in enumerate(zip(points, means, strict=True)) if m is not None]
    allowed = [k for k in known if k[1] >= max(m for _, m, _ in known) - within - 1e-12]
    chosen = within_rule(points, within)
    if not known:
        assert chosen is None
        return
    assert chosen is not None
    least = min(epsilon for epsilon, _, _ in allowed)
    assert points[chosen].level.epsilon == least
    assert means[chosen] == max(m for epsilon, m, _ in allowed if epsilon == least)
    for epsilon, mean, i in known:
        beaten = any((e <= epsilon and m > mean) or (e < epsilon and m >= mean) for e, m, _ in known)
        assert points[i].non_dominated == (not beaten and points[i].best)


_GRIDS: list[Grid] = []


def make_grid_once() -> Grid:
    if not _GRIDS:
        _GRIDS.append(make_grid(load_spec(small_spec()), noise=NOISE, clip=CLIP, repeats=2))
    return _GRIDS[0]


def test_non_dominated_rises() -> None:
    rng = np.random.default_rng(0)
    means = list(rng.random(50))
    front = non_dominated(list(range(50)), means)
    assert [means[i] for i in front] == sorted(means[i] for i in front)
    assert front[0] == 0 and means[front[-1]] == max(means)
