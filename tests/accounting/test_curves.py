"""Privacy curves against closed forms, and what every curve must keep to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpaudit.accounting.curves import GaussianCurve, GridCurve, PairCurve, TwiceCurve

GRID_ERROR = 1e-3
ROUNDING = 1e-12
RATES = np.concatenate([np.geomspace(1e-12, 0.5, 60), 1 - np.geomspace(1e-12, 0.5, 60)])
EPSILONS = np.linspace(0, 12, 97)


def gaussian_on_a_grid(mu: float, points: int = 2000) -> GridCurve:
    grid = np.linspace(0, mu * (mu / 2 + 8), points)
    return GridCurve(grid, GaussianCurve(mu).delta(grid))


CURVES = {
    "gaussian": GaussianCurve(1.3),
    "strong gaussian": GaussianCurve(6.0),
    "pair": PairCurve(1.5, 1e-3),
    "pure": PairCurve(2.0, 0.0),
    "useless": PairCurve(0.0, 0.0),
    "grid": gaussian_on_a_grid(1.3),
    "twice": TwiceCurve(GaussianCurve(0.7)),
    "twice a pair": TwiceCurve(PairCurve(0.8, 1e-4)),
}
each_curve = pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())


def test_gaussian_reference_value():
    assert GaussianCurve(1.0).epsilon(np.asarray(1e-5)) == pytest.approx(4.377, abs=5e-4)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_gaussian_delta_is_the_closed_form(mu):
    e = np.linspace(0, 3 * mu, 20)
    naive = norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)
    assert GaussianCurve(mu).delta(e) == pytest.approx(naive, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_gaussian_epsilon_inverts_delta(mu, delta):
    curve = GaussianCurve(mu)
    epsilon = curve.epsilon(np.asarray(delta))
    assert epsilon == 0 or curve.delta(epsilon) == pytest.approx(delta, rel=1e-6)


def test_gaussian_trade_off_is_the_closed_form():
    assert GaussianCurve(1.7).fnr(RATES) == pytest.approx(norm.cdf(norm.isf(RATES) - 1.7), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.2])
def test_pair_is_the_randomised_response_that_leaks_with_probability_delta(epsilon, delta):
    # Outputs "in", "out" by randomised response, or the truth with probability delta: compare event by event.
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    inside = np.array([delta, (1 - delta) * q, (1 - delta) * (1 - q), 0])
    outside = inside[::-1]
    exact = np.maximum(inside[:, None] - np.exp(EPSILONS) * outside[:, None], 0).sum(axis=0)
    assert PairCurve(epsilon, delta).delta(EPSILONS) == pytest.approx(exact, abs=1e-12)


def test_pair_trade_off_is_two_lines():
    fpr, e, d = np.linspace(0, 1, 101), 1.2, 0.01
    lines = np.maximum(0, np.maximum(1 - d - np.exp(e) * fpr, np.exp(-e) * (1 - d - fpr)))
    assert PairCurve(e, d).fnr(fpr) == pytest.approx(lines, abs=1e-12)


@pytest.mark.parametrize("delta,epsilon", [(1e-3, 1.5), (9e-4, np.inf), (0.9, 0.0), (1.0, 0.0)])
def test_pair_epsilon(delta, epsilon):
    assert PairCurve(1.5, 1e-3).epsilon(np.asarray(delta)) == pytest.approx(epsilon)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_grid_delta_is_never_below_the_exact_one(mu):
    exact, grid = GaussianCurve(mu).delta(EPSILONS), gaussian_on_a_grid(mu, 200).delta(EPSILONS)
    assert np.all(grid >= exact - ROUNDING)
    assert grid == pytest.approx(exact, abs=GRID_ERROR)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_grid_trade_off_is_never_above_the_exact_one(mu):
    exact, grid = GaussianCurve(mu).fnr(RATES), gaussian_on_a_grid(mu).fnr(RATES)
    assert np.all(grid <= exact + ROUNDING)
    assert grid == pytest.approx(exact, abs=GRID_ERROR)


def test_grid_epsilon_is_never_below_the_exact_one():
    deltas = np.geomspace(1e-10, 0.3, 20)
    exact, grid = GaussianCurve(1.0).epsilon(deltas), gaussian_on_a_grid(1.0).epsilon(deltas)
    assert np.all(grid >= exact - 1e-9)
    assert grid == pytest.approx(exact, abs=GRID_ERROR)


def test_grid_trade_off_keeps_its_side_at_rates_where_one_minus_the_rate_rounds():
    tiny = np.geomspace(1e-30, 1e-9, 50)
    exact, grid = GaussianCurve(8.0).fnr(tiny), gaussian_on_a_grid(8.0, 4000).fnr(tiny)
    assert np.all(grid <= exact + ROUNDING)


def test_exact_trade_off_at_rates_where_one_minus_the_rate_rounds():
    assert GaussianCurve(10.0).fnr(np.asarray(1e-20)) == pytest.approx(0.2303605697, rel=1e-9)
    assert PairCurve(50.0, 0.0).fnr(np.asarray(1e-22)) == pytest.approx(1 - np.exp(50) * 1e-22, rel=1e-12)


def test_twice_gaussian_is_the_gaussian_of_twice_the_shift():
    assert TwiceCurve(GaussianCurve(0.7)).fnr(RATES) == pytest.approx(GaussianCurve(1.4).fnr(RATES), rel=1e-9)


def test_twice_delta_is_an_upper_bound():
    twice, exact = TwiceCurve(GaussianCurve(0.7)), GaussianCurve(1.4)
    assert np.all(twice.delta(EPSILONS) >= exact.delta(EPSILONS) - ROUNDING)
    assert twice.epsilon(np.asarray(1e-5)) >= exact.epsilon(np.asarray(1e-5))


def test_twice_a_pure_pair_is_pure_with_twice_epsilon_in_the_tails():
    assert TwiceCurve(PairCurve(0.8, 0.0)).fnr(np.asarray(1e-4)) == pytest.approx(1 - np.exp(1.6) * 1e-4)


@each_curve
def test_reach_is_the_trade_off_seen_from_the_other_side(curve):
    x = np.linspace(0, 1, 101)
    assert curve.reach(x) == pytest.approx(curve.fnr(1 - x), abs=1e-9)


@each_curve
def test_trade_off_is_convex_falling_and_at_most_the_diagonal(curve):
    fpr = np.linspace(0, 1, 201)
    fnr = curve.fnr(fpr)
    assert np.all(np.diff(fnr) <= ROUNDING)
    assert np.all(np.diff(fnr, 2) >= -ROUNDING)
    assert np.all((fnr >= 0) & (fnr <= 1 - fpr + ROUNDING))


@each_curve
def test_trade_off_is_its_own_inverse(curve):
    fpr = np.linspace(0.01, 0.6, 40)
    fnr = curve.fnr(fpr)
    inside = fnr > 1e-9
    assert curve.fnr(fnr[inside]) == pytest.approx(fpr[inside], abs=2e-3)


@each_curve
def test_delta_falls_and_is_convex_in_the_exponential(curve):
    e = np.log(np.linspace(1, 50, 200))
    delta = curve.delta(e)
    assert np.all(np.diff(delta) <= ROUNDING) and np.all((delta >= 0) & (delta <= 1))
    assert np.all(np.diff(delta, 2) >= -1e-9)


@each_curve
def test_every_line_of_the_curve_stays_below_its_trade_off(curve):
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        delta = float(curve.delta(np.asarray(epsilon)))
        line = PairCurve(epsilon, min(delta, 1 - 1e-9)).fnr(RATES)
        assert np.all(line <= curve.fnr(RATES) + 1e-6)


@each_curve
def test_extremes(curve):
    assert curve.reach(np.asarray(0.0)) == 0
    assert curve.fnr(np.asarray(1.0)) == pytest.approx(0, abs=ROUNDING)
    assert curve.epsilon(np.asarray(1.0)) == pytest.approx(0, abs=1e-9)
    assert curve.delta(np.asarray(np.inf)) <= 2e-3


@given(mu=st.floats(0.01, 20), a=st.floats(0, 1), b=st.floats(0, 1), t=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_gaussian_reach_is_convex_and_rising(mu, a, b, t):
    curve, low, high = GaussianCurve(mu), min(a, b), max(a, b)
    x, y = curve.reach(np.asarray(low)), curve.reach(np.asarray(high))
    assert x <= y + ROUNDING and x <= low + ROUNDING
    middle = curve.reach(np.asarray(t * low + (1 - t) * high))
    assert middle <= t * x + (1 - t) * y + 1e-9


@given(
    e=st.floats(0, 30), d=st.floats(0, 0.5), more=st.floats(0, 5), x=st.floats(0, 1), at=st.floats(0, 40)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_weaker_pair_has_a_lower_trade_off_and_a_larger_delta(e, d, more, x, at):
    strong, weak = PairCurve(e, d), PairCurve(e + more, d)
    assert weak.reach(np.asarray(x)) <= strong.reach(np.asarray(x)) + ROUNDING
    assert weak.delta(np.asarray(at)) >= strong.delta(np.asarray(at)) - ROUNDING
