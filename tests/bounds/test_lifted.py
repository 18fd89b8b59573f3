"""Multi-canary intervals. How often they exceed the truth is measured in tests/statistical, and promised nowhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import norm

from dpaudit import Design, Observations, bounds
from dpaudit.bounds import lifted
from dpaudit.bounds.lifted import Side, limits
from dpaudit.errors import DesignError, InputError

CUT = bounds.Fixed(0.5)


def answers(seed: int, runs: int, canaries: int, right: float = 0.9, **design) -> Observations:
    rng = np.random.default_rng(seed)
    member = rng.random((runs, canaries)) < 0.5
    told = member == (rng.random(member.shape) < right)
    return Observations(told + 0.1 * rng.random(member.shape), member, design=Design(**design))


def wilson(rate: float, runs: int, level: float) -> tuple[float, float]:
    z = norm.isf(level)
    centre, half = rate + z**2 / (2 * runs), z * math.sqrt(rate * (1 - rate) / runs + z**2 / (4 * runs**2))
    return (centre - half) / (1 + z**2 / runs), (centre + half) / (1 + z**2 / runs)


@pytest.mark.parametrize("order", lifted.ORDERS)
def test_one_canary_reduces_to_wilson(order):
    obs = answers(0, 300, 1)
    says, member = obs.scores[:, 0] > 0.5, obs.member[:, 0]
    low = wilson(says[member].mean(), member.sum(), 0.025)[0]
    high = wilson(says[~member].mean(), (~member).sum(), 0.025)[1]
    bound = bounds.lidp(obs, threshold=CUT, delta=1e-3, order=order)
    expected = max(math.log((low - 1e-3) / high), math.log((1 - high - 1e-3) / (1 - low)))
    assert bound.epsilon == pytest.approx(expected)
    assert bound.rates == pytest.approx((high, 1 - low))


def test_the_second_order_solves_the_published_quadratic():
    """(n + z²) p² − (2 n μ̂₁ + z² / k) p + n μ̂₁² − z² (k − 1) / k μ₂ = 0, at Wilson's upper limit of μ₂ at β / 2."""
    rng, n, k, level = np.random.default_rng(1), 200, 8, 0.05
    hits = rng.binomial(k, rng.beta(2, 5, n)).astype(float)
    m1 = hits / k
    m2 = m1 * (k * m1 - 1) / (k - 1)
    second = wilson(m2.mean(), n, level / 2)[1]
    z2 = float(ndtri(level / 2)) ** 2
    equation = [n + z2, -(2 * n * m1.mean() + z2 / k), n * m1.mean() ** 2 - z2 * (k - 1) / k * second]
    assert limits(Side(np.full(n, float(k)), hits), level, 2) == pytest.approx(sorted(np.roots(equation)))


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_the_variance_of_both_moments_is_as_derived(size):
    """Exact, for a mixture of two rates: canaries are independent given the run's rate, so μ_i = E rate^i."""
    rates, weights = np.array([0.1, 0.6]), np.array([0.7, 0.3])
    mu = [float(weights @ rates**i) for i in range(5)]
    hits = np.arange(size + 1)
    ways = np.array([math.comb(size, h) for h in hits])
    chance = sum(w * ways * r**hits * (1 - r) ** (size - hits) for r, w in zip(rates, weights, strict=True))
    share, both = hits / size, hits * (hits - 1) / (size * (size - 1))
    assert chance @ share**2 == pytest.approx(mu[1] / size + (1 - 1 / size) * mu[2])
    pairs = math.comb(size, 2)
    same, common = 1 / pairs, 2 * (size - 2) / pairs
    assert chance @ both**2 == pytest.approx(same * mu[2] + common * mu[3] + (1 - same - common) * mu[4])


def test_moments_are_unbiased_counts():
    side = Side(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 3.0]))
    assert side.moment(1) == pytest.approx(((1 + 0.5 + 0.75) / 3, 3))
    assert side.moment(2) == pytest.approx(((0 + 0.5) / 2, 2))
    assert side.moment(3) == pytest.approx((0.25, 1))
    assert side.moment(5) == (0.0, 0)


def test_more_canaries_tighten_independent_answers_and_not_dependent_ones():
    free, tied = np.random.default_rng(2), np.random.default_rng(2)
    sizes = np.full(400, 32.0)
    independent = Side(sizes, free.binomial(32, 0.3, 400).astype(float))
    dependent = Side(sizes, 32.0 * (tied.random(400) < 0.3))
    plain = np.subtract(*limits(dependent, 0.05, 1)[::-1])
    for order in (2, 4):
        assert np.subtract(*limits(independent, 0.05, order)[::-1]) < 0.6 * plain
        assert np.subtract(*limits(dependent, 0.05, order)[::-1]) > plain


def test_what_the_bound_says_of_itself():
    bound = bounds.lidp(answers(3, 200, 16), threshold=CUT)
    assert (bound.kind, bound.any_mechanism) == ("asymptotic", False)
    assert "asymptotic: coverage not promised" in bound.notes
    assert 0 < bound.epsilon < bound.perfect
    assert bound.counts["runs"] == 200 and bound.counts["members"] + bound.counts["others"] == 3200
    assert 1.0 < bound.epsilon < math.log(9)


def test_perfect_scores_reach_the_ceiling():
    member = np.random.default_rng(4).random((100, 8)) < 0.5
    bound = bounds.lidp(Observations(member.astype(float), member), threshold=CUT)
    assert bound.epsilon == bound.perfect


@pytest.mark.parametrize("threshold", [None, CUT, bounds.Bonferroni([0.3, 0.5])])
def test_order_of_runs_and_canaries_never_matters(threshold):
    obs = answers(5, 60, 6)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(60), rng.permutation(6)
    other = Observations(obs.scores[rows][:, columns], obs.member[rows][:, columns])
    assert bounds.lidp(obs, threshold=threshold) == bounds.lidp(other, threshold=threshold)


def test_split_uses_the_other_runs_and_bonferroni_pays():
    obs = answers(6, 200, 8)
    split = bounds.lidp(obs)
    assert split.counts["runs"] == 100 and split.epsilon > 0.5
    several = bounds.lidp(obs, threshold=bounds.Bonferroni([0.5, 0.5]))
    assert several.counts["tests"] == 2
    assert several.epsilon == bounds.lidp(obs, significance=0.025, threshold=CUT).epsilon


def test_delta_lowers_the_bound():
    obs = answers(7, 200, 8)
    values = [bounds.lidp(obs, delta=d, threshold=CUT).epsilon for d in (0.0, 0.1, 0.5, 0.95)]
    assert values == sorted(values, reverse=True) and values[-1] == 0.0


def test_pairs_never_scored_say_out():
    obs = answers(8, 50, 6)
    present = np.random.default_rng(0).random(obs.shape) < 0.8
    scores = np.where(present, obs.scores, np.nan)
    filled = np.where(present, obs.scores, -1.0)
    bound = bounds.lidp(Observations(scores, obs.member, present=present), threshold=CUT)
    assert bound.epsilon == bounds.lidp(Observations(filled, obs.member), threshold=CUT).epsilon


def test_designs():
    worlds = np.repeat([[True], [False]], 50, axis=0).repeat(4, axis=1)
    rng = np.random.default_rng(9)
    scores = worlds + 0.3 * rng.normal(size=worlds.shape)
    together = bounds.lidp(Observations(scores, worlds, design=Design(coins="worlds")), threshold=CUT)
    assert together.epsilon > 1 and any("group" in note for note in together.notes)
    fixed = bounds.lidp(answers(9, 50, 4, coins="fixed"), threshold=CUT)
    assert fixed.adjacency == "replace-one"
    assert any("conditional" in n for n in bounds.lidp(answers(9, 50, 4, coins="unknown"), threshold=CUT).notes)


def test_what_is_refused():
    with pytest.raises(DesignError, match="cross"):
        bounds.lidp(answers(0, 50, 4, calibration="cross"))
    with pytest.raises(DesignError, match="got 1"):
        bounds.lidp(answers(0, 1, 50))
    with pytest.raises(InputError, match="order"):
        bounds.lidp(answers(0, 50, 4), order=3)
    with pytest.raises(InputError, match="threshold"):
        bounds.lidp(answers(0, 50, 4), threshold=0.5)  # type: ignore[arg-type]
