"""The f-DP recursion of Mahloujifar et al. 2024: vectors of two codebases, a scalar oracle and exact small cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit import Claim, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, PairCurve
from dpaudit.bounds.recursion import GaussianFamily, PairFamily, largest_refuted, p_value, refutes
from dpaudit.errors import InputError

SIGNIFICANCE, DELTA = 0.05, 1e-5


def slow_refutes(reach, m: int, k: int, c: int, tau: float) -> bool:
    """Algorithm 1, one number at a time; ``reach`` is the inverse of f̄ = 1 − f."""
    r, h = tau * c / m, tau * (k - c) / m
    for i in range(c - 1, -1, -1):
        grown = max(h, reach(r))
        r, h = min(r + i / (k - i) * (grown - h), 1.0), grown
    return r + h > k / m


def gaussian_reach(mu: float):
    return lambda x: norm.cdf(norm.ppf(x) - mu)


def pair_reach(epsilon: float, delta: float):
    return lambda x: max(0.0, (x - delta) * math.exp(-epsilon), 1 - math.exp(epsilon) * (1 - x) - delta)


@pytest.mark.parametrize(
    "m,k,c,mu,epsilon",
    [
        (1000, 100, 95, 0.7868, 3.323),
        (1000, 1000, 700, 0.3572, 1.372),
        (1000, 200, 150, 0.3395, 1.297),
        (1000, 100, 100, 1.2255, 5.549),
        (1000, 1000, 1000, 2.3681, 12.335),
        (10_000, 500, 450, 0.6307, 2.586),
    ],
)
def test_vectors(m, k, c, mu, epsilon):
    found = largest_refuted(GaussianFamily(), m, k, c, SIGNIFICANCE)
    assert found == pytest.approx(mu, abs=6e-5)
    assert GaussianFamily().epsilon(found, DELTA) == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize("m,k", [(30, 30), (60, 20), (200, 40)])
@pytest.mark.parametrize("tau", [0.05, 0.3, 0.9])
def test_decisions_are_the_slow_ones(m, k, tau):
    for c in range(0, k + 1, 3):
        for mu in (0.1, 0.6, 1.5):
            fast = refutes(GaussianCurve(mu).reach, m, k, c, np.array([tau]))[0]
            assert fast == slow_refutes(gaussian_reach(mu), m, k, c, tau)
        for e, d in ((0.0, 0.0), (0.7, 1e-3), (2.0, 0.05)):
            fast = refutes(PairCurve(e, d).reach, m, k, c, np.array([tau]))[0]
            assert fast == slow_refutes(pair_reach(e, d), m, k, c, tau)


def test_one_guess_on_one_coin_is_exact():
    # The best guess is right with probability 1 − f(a)= 1 − a where a = f(a): nothing is lost.
    mu = 1.0
    best = norm.cdf(mu / 2)
    assert p_value(GaussianCurve(mu), 1, 1, 1) == pytest.approx(best, rel=2e-6)


def test_all_right_under_no_leak_has_the_chance_of_fair_coins():
    assert p_value(GaussianCurve(0.0), 10, 10, 10) >= 2.0**-10 * (1 - 1e-9)
    assert p_value(PairCurve(0.0, 0.0), 10, 10, 10) >= 2.0**-10 * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_p_value_covers_independent_randomised_response(epsilon):
    # Independent randomised response has a binomial count; no valid p-value may be smaller than its tail.
    m, q = 20, math.exp(epsilon) / (1 + math.exp(epsilon))
    for c in range(m + 1):
        tail = math.fsum(math.comb(m, i) * q**i * (1 - q) ** (m - i) for i in range(c, m + 1))
        assert p_value(PairCurve(epsilon, 0.0), m, m, c) >= tail * (1 - 1e-6)


@pytest.mark.parametrize("curve", [GaussianCurve(0.5), PairCurve(1.0, 1e-3)], ids=["gaussian", "pair"])
def test_decision_and_p_value_are_dual(curve):
    for c in (70, 80, 95):
        p = p_value(curve, 300, 100, c)
        assert p == 1 or refutes(curve.reach, 300, 100, c, np.array([p]))[0]
        assert p == 1 or not refutes(curve.reach, 300, 100, c, np.array([p * (1 - 1e-5)]))[0]


@pytest.mark.parametrize("family", [GaussianFamily(), PairFamily(DELTA)], ids=lambda f: f.name)
def test_the_bound_is_the_edge_of_what_is_refuted(family):
    edge = largest_refuted(family, 300, 100, 90, SIGNIFICANCE)
    for parameter, expected in ((edge, True), (edge * (1 + 1e-6), False)):
        curve = family.curve(np.array(parameter))
        assert refutes(curve.reach, 300, 100, 90, np.array([SIGNIFICANCE]))[0] == expected


def test_p_values_fall_with_every_right_guess():
    values = [p_value(GaussianCurve(0.5), 300, 60, c) for c in range(61)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0 and values[-1] < 1e-4


def test_p_values_have_a_floor():
    assert p_value(PairCurve(0.0, 0.0), 1000, 1000, 1000) == 1e-30


def test_p_values_do_not_depend_on_how_many_levels_are_tried_at_once():
    curve, levels = GaussianCurve(0.4), np.geomspace(1e-6, 1, 50)
    together = refutes(curve.reach, 500, 100, 70, levels)
    alone = [refutes(curve.reach, 500, 100, 70, np.array([level]))[0] for level in levels]
    assert list(together) == alone


def observed(right: int, guesses: int, coins: int) -> Observations:
    """A run in which exactly so many of the guesses are right."""
    member = np.zeros(coins, bool)
    half = guesses // 2
    member[:half] = True
    member[half - (guesses - right) : half] = False
    member[half : coins - half : 2] = True
    return Observations(np.arange(coins)[::-1].astype(float), member)


def test_gaussian_family_from_observations():
    bound = bounds.one_run_fdp(observed(95, 100, 1000), 100, delta=DELTA)
    assert bound.counts["correct"] == 95
    assert bound.epsilon == pytest.approx(3.323, abs=6e-4)
    assert not bound.any_mechanism


def test_pair_family_from_observations():
    claim = Claim.pair(epsilon=1.0, delta=DELTA)
    bound = bounds.one_run_fdp(observed(95, 100, 1000), 100, claim, delta=DELTA)
    assert bound.any_mechanism
    assert bound.epsilon == pytest.approx(largest_refuted(PairFamily(DELTA), 1000, 100, 95, SIGNIFICANCE))


def test_recipe_family_of_a_full_batch_is_the_gaussian_family():
    claim = Claim.gaussian(noise_multiplier=3.0)
    recipe = bounds.one_run_fdp(observed(95, 100, 1000), 100, claim, delta=DELTA)
    assert recipe.epsilon == pytest.approx(3.323, rel=5e-3)
    assert recipe.epsilon <= 3.323
    assert not recipe.any_mechanism


def test_recipe_family_of_dp_sgd_refutes_its_claim_where_the_p_value_does():
    claim = Claim.dp_sgd(noise_multiplier=1.5, sampling_rate=0.05, steps=40)
    curve, coins, guesses = claim.coarse().curve, 2000, 200
    for right in (120, 150, 180):
        obs = observed(right, guesses, coins)
        epsilon = bounds.one_run_fdp(obs, guesses, claim, delta=DELTA).epsilon
        p = p_value(curve, coins, guesses, right)
        assert (epsilon >= claim.epsilon(DELTA) * (1 - 6e-3)) >= (p <= SIGNIFICANCE)
        assert (epsilon > claim.epsilon(DELTA)) <= (p <= SIGNIFICANCE)


def test_the_gaussian_family_has_no_bound_at_delta_zero():
    with pytest.raises(InputError, match="delta must be above 0"):
        bounds.one_run_fdp(observed(95, 100, 1000), 100, delta=0.0)


def test_a_pure_pair_has_a_bound_at_delta_zero():
    bound = bounds.one_run_fdp(observed(95, 100, 1000), 100, Claim.pair(epsilon=1, delta=0.0), delta=0.0)
    assert bound.epsilon > 1.5


def test_the_trial_of_the_design():
    # Noise 1.224, rate 0.05, 300 steps is ε = 4; at r = 500 of 6,000 coins it falls from 487 right at 1 %
    # (489 on the Gaussian curve with the same ε at 1e-5).
    curve = Claim.dp_sgd(noise_multiplier=1.224, sampling_rate=0.05, steps=300).curve
    assert p_value(curve, 6000, 500, 487) < 0.01 < p_value(curve, 6000, 500, 486)
