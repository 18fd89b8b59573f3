"""The one-run bound of Steinke et al. 2023: published vectors and a slow, obvious oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit import Design, Observations, bounds
from dpaudit.bounds.steinke import epsilon_lower, p_value
from dpaudit.errors import InputError

SIGNIFICANCE = 0.05


def slow_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 as it stands, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    w = [math.comb(r, i) * q**i * (1 - q) ** (r - i) for i in range(r + 1)]
    beta = math.fsum(w[v:])
    alpha = max((math.fsum(w[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, beta + 2 * m * delta * alpha)


@pytest.mark.parametrize(
    "m,r,v,delta,epsilon",
    [
        (1000, 1000, 1000, 0, 5.809),
        (1000, 1000, 1000, 1e-5, 5.782),
        (1000, 100, 100, 0, 3.493),
        (1000, 100, 100, 1e-5, 3.465),
        (1000, 100, 95, 0, 2.172),
        (1000, 100, 95, 1e-5, 2.165),
        (100_000, 1000, 990, 0, 4.063),
        (100_000, 1000, 990, 1e-5, 3.215),
        (10_000, 100, 100, 0, 3.493),
        (10_000, 100, 100, 1e-5, 3.202),
    ],
)
def test_vectors(m, r, v, delta, epsilon):
    assert epsilon_lower(m, r, v, delta, SIGNIFICANCE) == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize("m,r,v,delta,epsilon", [(1000, 100, 75, 1e-4, 0.67298), (100_000, 1510, 1439, 1e-5, 2.67585)])
def test_vectors_of_the_paper(m, r, v, delta, epsilon):
    assert epsilon_lower(m, r, v, delta, SIGNIFICANCE) == pytest.approx(epsilon, abs=6e-6)


@pytest.mark.parametrize("significance,fewest", [(0.05, 195), (0.005, 934)])
def test_perfect_guesses_that_refute_four_at_six_thousand_coins(significance, fewest):
    assert epsilon_lower(6000, fewest, fewest, 1e-5, significance) > 4
    assert epsilon_lower(6000, fewest - 1, fewest - 1, 1e-5, significance) < 4


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.5])
def test_p_value_is_the_slow_one(epsilon, delta):
    for r in (1, 2, 9, 24):
        for v in range(r + 1):
            assert p_value(40, r, v, epsilon, delta) == pytest.approx(
                slow_p_value(40, r, v, epsilon, delta), rel=2e-6, abs=1e-12
            )


def test_p_value_is_rounded_up():
    for v in range(1, 21):
        assert p_value(40, 20, v, 1.0, 1e-3) >= slow_p_value(40, 20, v, 1.0, 1e-3) * (1 - 1e-12)


def test_the_window_of_the_delta_term_loses_nothing():
    r, v = 3000, 1900
    q = 1 / (1 + math.exp(-0.5))
    logs = [math.lgamma(r + 1) - math.lgamma(k + 1) - math.lgamma(r - k + 1) for k in range(r + 1)]
    w = [math.exp(c + k * math.log(q) + (r - k) * math.log1p(-q)) for k, c in enumerate(logs)]
    alpha = max(np.cumsum(w[v - 1 :: -1]) / np.arange(1, v + 1))
    expected = math.fsum(w[v:]) + 2 * 5000 * 1e-4 * alpha
    assert p_value(5000, r, v, 0.5, 1e-4) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("m,r,v,delta", [(50, 50, 40, 0.0), (1000, 100, 90, 1e-5), (1000, 400, 390, 1e-4)])
def test_bound_and_p_value_are_dual(m, r, v, delta):
    epsilon = epsilon_lower(m, r, v, delta, SIGNIFICANCE)
    assert p_value(m, r, v, epsilon, delta) < SIGNIFICANCE <= p_value(m, r, v, epsilon * (1 + 1e-6), delta)


def test_more_right_guesses_never_lower_the_bound():
    values = [epsilon_lower(500, 100, v, 1e-4, SIGNIFICANCE) for v in range(101)]
    assert values == sorted(values) and values[0] == 0 and values[-1] > 2


def test_delta_counts_coins_that_nobody_guessed():
    few, many = (epsilon_lower(m, 100, 100, 1e-4, SIGNIFICANCE) for m in (100, 10_000))
    assert many < few


def test_a_delta_that_explains_everything_leaves_nothing():
    assert epsilon_lower(10_000, 100, 100, 0.01, SIGNIFICANCE) == 0.0


@pytest.mark.parametrize("significance", [1e-12, 0.4999])
def test_extreme_significances(significance):
    assert epsilon_lower(100, 100, 100, 0.0, significance) == pytest.approx(
        -math.log(significance ** (-1 / 100) - 1), rel=1e-6
    )


def test_huge_numbers_of_coins():
    assert epsilon_lower(10**9, 10**9, 10**9, 0.0, 0.05) == pytest.approx(math.log(10**9 / -math.log(0.05)), rel=1e-8)
    assert 0.4 < epsilon_lower(10**7, 10**7, 6 * 10**6, 1e-10, 0.05) < math.log(1.5)


def scored(member: np.ndarray, **design: object) -> Observations:
    """Scores that are right everywhere, without ties."""
    return Observations(member + np.linspace(0, 0.5, member.size).reshape(member.shape), member, **design)


def test_perfect_scores():
    member = np.random.default_rng(1).random(1000) < 0.5
    bound = bounds.one_run(scored(member), 100, delta=1e-5)
    assert bound.epsilon == pytest.approx(3.465, abs=1e-3)
    assert bound.epsilon == bound.perfect
    assert bound.counts == {"coins": 1000, "guesses": 100, "made": 100, "correct": 100}
    assert (bound.any_mechanism, bound.delta, bound.significance) == (True, 1e-5, 0.05)


def test_useless_scores_give_nothing():
    member = np.random.default_rng(1).random(1000) < 0.5
    backwards = Observations(-scored(member).scores, member)
    assert bounds.one_run(backwards, 100).epsilon == 0.0


def test_the_ceiling_of_a_claim_lies_below_perfect():
    from dpaudit import Claim

    member = np.random.default_rng(1).random(1000) < 0.5
    bound = bounds.one_run(scored(member), 100, delta=1e-5, claim=Claim.gaussian(noise_multiplier=1.0))
    assert bound.at_claim is not None and 0 < bound.at_claim < bound.perfect


@pytest.mark.parametrize("guesses", [0, 1, -5, 1001, 2.5, True, None, "10"])
def test_bad_numbers_of_guesses(guesses):
    member = np.random.default_rng(1).random(1000) < 0.5
    with pytest.raises(InputError, match="guesses"):
        bounds.one_run(scored(member), guesses)


def test_guesses_have_no_default():
    member = np.random.default_rng(1).random(100) < 0.45
    with pytest.raises(TypeError, match="guesses"):
        bounds.one_run(scored(member))


@pytest.mark.parametrize("name,bad", [("delta", -0.1), ("delta", 1.0), ("significance", 0), ("significance", 0.5)])
def test_bad_levels(name, bad):
    member = np.random.default_rng(1).random(100) < 0.45
    with pytest.raises(InputError, match=name):
        bounds.one_run(scored(member), 10, **{name: bad})


def test_lists_and_whole_numbers_are_taken():
    bound = bounds.one_run(Observations([3, 2, 1, 0], [1, 1, 0, 0], design=Design(coins="fair")), 4, significance=0.4)
    assert bound.epsilon == epsilon_lower(4, 4, 4, 0.0, 0.4)


def test_two_coins_are_the_smallest_run():
    assert bounds.one_run(Observations([1.0, 0.0], [1, 0]), 2, significance=0.3).epsilon > 0
