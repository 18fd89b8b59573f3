"""What tuning costs: published figures, dp-accounting, the theorems written out, and the truth of small cases."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr

from dpaudit import Claim
from dpaudit.accounting import renyi
from dpaudit.accounting.tuning import (
    STATUSES,
    TuningCost,
    fixed_grid,
    naive_grid,
    poisson,
    random_stopping,
    repeated,
    tuning_costs,
)
from dpaudit.errors import InputError

DELTA = 1e-5
PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
SHAPES = (1.0, 0.5, 0.0, 3.0, -0.5)


@pytest.fixture(scope="module")
def claim() -> Claim:
    """The tutorial's run: Rényi ε 2.600."""
    return Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100)


@pytest.fixture(scope="module")
def gaussian() -> Claim:
    return Claim.gaussian(noise_multiplier=2.0)


def number(cost: TuningCost) -> float:
    assert cost.epsilon is not None and cost.status == "upper bound"
    return cost.epsilon


@pytest.mark.parametrize("shape,epsilon", [(1.0, 5.06), (0.5, 4.70), (0.0, 4.30)])
def test_the_example_of_a_negative_binomial_number_of_runs(claim, shape, epsilon):
    cost = repeated(claim, DELTA, mean=10, shape=shape)
    assert number(cost) == pytest.approx(epsilon, abs=6e-3)
    assert cost.base_epsilon == pytest.approx(2.600, abs=1e-3)
    assert cost.expected_runs == 10


@pytest.mark.parametrize("mean,epsilon", [(5, 4.25), (10, 5.76), (30, 11.3)])
def test_the_example_of_a_poisson_number_of_runs(claim, mean, epsilon):
    assert number(poisson(claim, DELTA, mean=mean)) == pytest.approx(epsilon, abs=5e-2 if mean == 30 else 6e-3)


@pytest.mark.parametrize("shape", [1.0, 0.5, 0.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [2.0, 10.0, 300.0])
def test_dp_accounting_agrees(gaussian, mean, shape):
    accountant = rdp.RdpAccountant(renyi.ORDERS)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(2.0), mean, shape))
    ours = poisson(gaussian, DELTA, mean) if shape == math.inf else repeated(gaussian, DELTA, mean, shape)
    assert number(ours) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10.0])
def test_theorem_2_written_out(gaussian, mean, shape):
    gamma = stopping(mean, shape)
    orders = renyi.ORDERS
    base = [a / 8 for a in orders]
    best = math.inf
    for a, r in zip(orders, base, strict=True):
        extra = min((1 - 1 / b) * s + math.log(1 / gamma) / b for b, s in zip(orders, base, strict=True))
        whole = r + (1 + shape) * extra + math.log(mean) / (a - 1)
        best = min(best, whole + math.log(1 - 1 / a) - math.log(DELTA * a) / (a - 1))
    # The divergence of an order is also that of all smaller ones, which can only help.
    ours = number(repeated(gaussian, DELTA, mean, shape))
    assert best * (1 - 1e-3) <= ours <= best * (1 + 1e-7)


def pmf(gamma: float, shape: float, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    k = np.arange(1, most)
    logs = k * math.log1p(-gamma) + gammaln(k + shape) - gammaln(k + 1)
    masses = np.exp(logs - logs.max())
    return k, masses / masses.sum()


def stopping(mean: float, shape: float) -> float:
    """γ by summing the law."""

    def excess(log_gamma: float) -> float:
        k, masses = pmf(math.exp(log_gamma), shape)
        return float(k @ masses) - mean

    return math.exp(brentq(excess, math.log(2e-3), math.log(0.99)))


def weight(law: str, mean: float, shape: float) -> Callable[[np.ndarray], np.ndarray]:
    """The derivative of the law's generating function."""
    if law == "poisson":
        return lambda p: mean * np.exp(mean * (p - 1))
    gamma = stopping(mean, shape)
    return lambda p: mean * ((1 - (1 - gamma) * p) / gamma) ** (-1 - shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_generating_function_is_that_of_the_law(shape):
    k, masses = pmf(stopping(4.0, shape), shape)
    for x in (0.0, 0.3, 0.9, 1.0):
        assert weight("", 4.0, shape)(np.array(x)) == pytest.approx(np.sum(k * masses * x ** (k - 1.0)), rel=1e-5)


def true_delta(epsilon: float, law: str, mean: float, shape: float, mu: float = 0.5) -> float:
    """δ of the best of K runs that each release N(0, 1) or N(μ, 1), the largest or the smallest being the best."""
    y = np.linspace(-10, 10 + mu, 100_001)
    slope = weight(law, mean, shape)
    worst = 0.0
    for sign in (1, -1):
        with_, without = (
            np.exp(-((y - m) ** 2) / 2) / math.sqrt(2 * math.pi) * slope(ndtr(sign * (y - m))) for m in (mu, 0.0)
        )
        for first, second in ((with_, without), (without, with_)):
            worst = max(worst, float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), y)))
    return worst


@pytest.mark.parametrize("by", ["renyi", "curve"])
@pytest.mark.parametrize("mean", [3.0, 20.0])
@pytest.mark.parametrize("law,shape", [("negative binomial", 1.0), ("negative binomial", 0.0), ("poisson", math.inf)])
def test_the_best_of_gaussian_runs_is_as_private_as_is_said(gaussian, law, shape, mean, by):
    cost = poisson(gaussian, DELTA, mean, by) if law == "poisson" else repeated(gaussian, DELTA, mean, shape, by)
    assert true_delta(number(cost), law, mean, shape) <= DELTA
    # The same check catches a search that is charged as one run.
    assert true_delta(gaussian.epsilon(DELTA), law, mean, shape) > 2 * DELTA


def best_of(masses: list[float], generating) -> np.ndarray:
    """What the best of K runs releases, of outcomes that rise in score: f(P[≤ y]) − f(P[< y])."""
    at = np.concatenate([[0.0], np.cumsum(masses)])
    return np.diff(generating(at))


def test_random_stopping_triples_a_pure_epsilon_and_a_fixed_number_of_runs_does_not():
    base, mean = 1.0, 30.0
    # Two outcomes, ε-DP: the better one is rare.
    rare = 0.02
    pair = [1 - rare, rare], [1 - rare * math.e, rare * math.e]
    assert max(abs(math.log(a / b)) for a, b in zip(*pair, strict=True)) <= base
    claimed = number(random_stopping(Claim.laplace(noise_multiplier=1.0), DELTA, mean))
    assert claimed == 3 * base

    def worst(generating) -> float:
        released = [best_of(masses, generating) for masses in pair]
        return float(np.max(np.abs(np.log(released[0] / released[1]))))

    assert worst(lambda x: x / mean / (1 - (1 - 1 / mean) * x)) <= claimed
    assert worst(lambda x: x**100) > claimed


def test_random_stopping_is_for_pure_claims_only(gaussian):
    cost = random_stopping(gaussian, DELTA)
    assert cost.epsilon is None and cost.base_epsilon is None
    assert cost.status == "not valid here" and "δ = 0" in cost.note
    pure = Claim.compose(Claim.laplace(noise_multiplier=2.0, steps=3), Claim.pair(epsilon=0.5, delta=0.0))
    assert number(random_stopping(pure, 0.0)) == pytest.approx(6.0)


def test_the_curve_triples_a_pure_epsilon_too():
    cost = repeated(Claim.pair(epsilon=0.7, delta=0.0), 0.0, mean=50, by="curve")
    assert number(cost) == pytest.approx(2.1, rel=1e-9)


def test_the_curve_is_tighter_than_renyi(claim):
    for shape in (1.0, 0.5, 0.0):
        assert number(repeated(claim, DELTA, shape=shape, by="curve")) < number(repeated(claim, DELTA, shape=shape))
    assert number(poisson(claim, DELTA, by="curve")) < number(poisson(claim, DELTA))


@pytest.mark.parametrize("by", ["renyi", "curve"])
def test_one_expected_run_of_at_least_one_is_one_run(claim, by):
    cost = repeated(claim, DELTA, mean=1, by=by)
    assert cost.epsilon == pytest.approx(cost.base_epsilon, rel=1e-9)


@pytest.mark.parametrize("by", ["renyi", "curve"])
def test_more_runs_and_a_larger_shape_cost_more(gaussian, by):
    by_mean = [number(repeated(gaussian, DELTA, mean=m, by=by)) for m in (1, 2, 10, 100, 1e6)]
    assert by_mean == sorted(by_mean) and by_mean[0] < by_mean[-1]
    by_shape = [number(repeated(gaussian, DELTA, shape=s, by=by)) for s in (0.0, 0.5, 1.0, 5.0)]
    assert by_shape == sorted(by_shape)
    by_poisson = [number(poisson(gaussian, DELTA, mean=m, by=by)) for m in (1, 3, 10, 100)]
    assert by_poisson == sorted(by_poisson)


def test_even_a_shape_near_its_end_has_a_bound(gaussian):
    assert number(repeated(gaussian, DELTA, shape=-0.99)) > gaussian.epsilon(DELTA)
    assert number(repeated(gaussian, DELTA, shape=-0.99, by="curve")) > gaussian.epsilon(DELTA)


@pytest.mark.parametrize("by", ["renyi", "curve"])
def test_candidates_are_charged_at_the_largest_of_each_order(by):
    weak, strong = Claim.gaussian(noise_multiplier=3.0), Claim.gaussian(noise_multiplier=2.0)
    assert repeated((weak, strong), DELTA, by=by).epsilon == repeated(strong, DELTA, by=by).epsilon
    # Curves that cross: more than either alone.
    sampled = Claim.dp_sgd(noise_multiplier=0.5, sampling_rate=0.02, steps=20)
    crossing = (Claim.gaussian(noise_multiplier=1.2), sampled)
    alone = [number(repeated(one, DELTA, by=by)) for one in crossing]
    both = number(repeated(crossing, DELTA, by=by))
    assert both >= max(alone)
    assert both == number(repeated(crossing[::-1], DELTA, by=by))


def test_a_bare_pair_has_a_cost_by_its_curve_alone():
    loose = Claim.pair(epsilon=1.0, delta=1e-8)
    by_renyi, by_curve = repeated(loose, DELTA), repeated(loose, DELTA, by="curve")
    assert by_renyi.epsilon is None and by_renyi.status == "not valid here" and "δ = 0" in by_renyi.note
    assert 2.9 < number(by_curve) < 3.1
    too_loose = repeated(Claim.pair(epsilon=1.0, delta=DELTA), DELTA, by="curve")
    assert too_loose.epsilon is None and too_loose.base_epsilon == 1.0 and "no finite ε" in too_loose.note


def test_a_fixed_grid_is_a_composition(gaussian):
    other = Claim.gaussian(noise_multiplier=4.0)
    assert fixed_grid([gaussian] * 10, DELTA).epsilon == gaussian.repeat(10).epsilon(DELTA)
    mixed = fixed_grid((gaussian, other, gaussian), DELTA)
    assert mixed.epsilon == pytest.approx(Claim.compose(gaussian, other, gaussian).epsilon(DELTA), rel=1e-12)
    assert mixed.runs == "exactly 3" and mixed.base_epsilon == gaussian.epsilon(DELTA)
    assert number(naive_grid((gaussian, other), DELTA)) == gaussian.epsilon(DELTA / 2) + other.epsilon(DELTA / 2)
    assert number(naive_grid([gaussian] * 10, DELTA)) == pytest.approx(10 * gaussian.epsilon(DELTA / 10))


def test_the_table_has_every_method_once(claim):
    table = tuning_costs(claim, DELTA, runs=10)
    names = [(row.method, row.runs) for row in table]
    assert len(set(names)) == len(names) == 12
    assert names[0] == ("one run", "nothing chosen") and names[-1] == ("naive composition", "exactly 10")
    by_name = dict(zip(names, table, strict=True))
    assert by_name["Rényi", "geometric, 10 expected"] == repeated(claim, DELTA)
    assert by_name["privacy curve", "Poisson, 10 expected"] == poisson(claim, DELTA, by="curve")
    assert by_name["composition", "exactly 10"] == fixed_grid([claim] * 10, DELTA)
    for row in table:
        assert row.status in STATUSES and row.delta == DELTA and row.source and row.note
        assert (row.epsilon is None) == (row.status == "not valid here")
        assert row.epsilon is None or row.epsilon >= claim.epsilon(DELTA)


def test_the_table_of_several_candidates_runs_each_once(gaussian):
    other = Claim.gaussian(noise_multiplier=4.0)
    table = tuning_costs((gaussian, other), DELTA, runs=7.5)
    assert table[-2] == fixed_grid((gaussian, other), DELTA)
    assert table[1].expected_runs == 7.5
    assert tuning_costs(gaussian, DELTA, runs=7.5)[-2].runs == "exactly 8"


def test_notes_state_the_conditions(gaussian):
    drawn, fixed = repeated(gaussian, DELTA).note, fixed_grid(gaussian, DELTA).note
    for words in ("only the best run is released", "number of runs stays secret", "fixed grid is not covered"):
        assert words in drawn
    assert "stop with probability 0.1" in drawn
    assert "all runs are charged as if all were released" in fixed
    assert all("score that chooses is itself within the claim" in note for note in (drawn, fixed))


@pytest.mark.parametrize("call", [repeated, poisson, random_stopping])
@pytest.mark.parametrize("mean", [0, 0.5, -1, math.nan, math.inf, 1e7, "x"])
def test_a_bad_number_of_runs_is_named(gaussian, call, mean):
    with pytest.raises(InputError, match=r"expected runs must be .*\[1, 1e\+06\]"):
        call(gaussian, DELTA, mean=mean)


@pytest.mark.parametrize(
    "name,words,call",
    [
        ("shape", "shape must be in", lambda c: repeated(c, DELTA, shape=-1)),
        ("shape", "shape must be in", lambda c: repeated(c, DELTA, shape=math.inf)),
        ("delta", "delta must be in", lambda c: repeated(c, 1.0)),
        ("delta", "delta must be in", lambda c: poisson(c, -1e-9)),
        ("delta", "delta must be in", lambda c: fixed_grid(c, 2.0)),
        ("by", "by must be one of renyi, curve", lambda c: repeated(c, DELTA, by="pld")),
        ("claims", "claims must be", lambda c: repeated([], DELTA)),
        ("claims", "claims must be", lambda c: fixed_grid([c, 1.0], DELTA)),
        ("claims", "claims must be", lambda c: tuning_costs(3.0, DELTA)),
        ("neighbours", "same neighbours", lambda c: repeated((c, replace(c, adjacency="zero-out")), DELTA)),
        ("runs", "expected runs must be", lambda c: tuning_costs(c, DELTA, runs=0)),
    ],
)
def test_a_bad_argument_is_named(gaussian, name, words, call):
    with pytest.raises(InputError, match=words):
        call(gaussian)


def test_the_page_shows_what_is_computed(claim):
    rows = {(row.method, row.runs): row for row in tuning_costs(claim, DELTA, runs=10)}
    shown = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d+\.\d\d|–) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(shown) == len(rows)
    for method, runs, epsilon in shown:
        value = rows[method, runs].epsilon
        assert epsilon == ("–" if value is None else f"{value:.2f}")
