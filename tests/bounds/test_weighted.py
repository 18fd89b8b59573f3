"""Guesses on all coins, the surer half counted twice: exact under its family, and never a bound for any mechanism."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from dpaudit import Claim, Design, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, LaplaceCurve
from dpaudit.bounds.weighted import p_value
from dpaudit.errors import DesignError, InputError

DELTA, ALPHA = 1e-5, 0.05
COINS = 120
DRAWS = 40_000
REPETITIONS = 3000 if os.environ.get("DPAUDIT_FULL") else 400


def gaussian(rng, member, mu):
    return mu * (member - 0.5) + rng.normal(size=member.shape)


def laplace(rng, member, mu):
    x = rng.laplace(size=member.shape) + mu * member
    return np.clip(x, 0, mu) - mu / 2 + 1e-6 * rng.normal(size=member.shape)  # its log-likelihood ratio, ties broken


def statistic(scores, member):
    right = (scores > 0) == member
    sure = np.argsort(-np.abs(scores), axis=-1)[..., : scores.shape[-1] // 2]
    return right.sum(axis=-1) + np.take_along_axis(right, sure, axis=-1).sum(axis=-1)


@pytest.mark.parametrize(
    ("draw", "mu", "curve"),
    [(gaussian, 0.3, GaussianCurve(0.3)), (gaussian, 1.5, GaussianCurve(1.5)), (laplace, 1.0, LaplaceCurve(1.0))],
    ids=["gaussian 0.3", "gaussian 1.5", "laplace"],
)
def test_p_values_are_those_of_the_optimal_guesser(draw, mu, curve):
    """Against 40,000 draws, 4 standard errors; the (h + 1)-th guess is taken to be right, which costs a little."""
    rng = np.random.default_rng(1)
    member = rng.random((DRAWS, COINS)) < 0.5
    found = statistic(draw(rng, member, mu), member)
    for level in (0.5, 0.1, 0.02):
        s = int(np.quantile(found, 1 - level))
        share, p = np.mean(found >= s), p_value(curve, COINS, COINS // 2, s)
        slack = 4 * math.sqrt(share * (1 - share) / DRAWS)
        assert share - slack <= p <= 1.35 * share + slack


def test_p_values_fall_and_rise_as_they_should():
    values = [p_value(GaussianCurve(1.0), 100, 50, s) for s in range(151)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(1.0)
    by_mu = [p_value(GaussianCurve(mu), 100, 50, 110) for mu in np.linspace(0, 4, 9)]
    assert by_mu == sorted(by_mu)


def test_nearer_to_the_truth_than_a_plain_count():
    pairs = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        member = rng.random(1999) < 0.5
        obs, at = Observations(gaussian(rng, member, 1.0), member), bounds.Fixed(0.0)
        plain = bounds.order_statistics(obs, 1999, delta=DELTA, threshold=at).epsilon
        pairs.append((bounds.weighted_order_statistics(obs, threshold=at, delta=DELTA).epsilon, plain))
    weighted, plain = np.median(pairs, axis=0)
    assert weighted > plain


def test_what_it_says_of_itself():
    rng = np.random.default_rng(0)
    member = rng.random((20, 30)) < 0.5
    claim = Claim.gaussian(noise_multiplier=1.0)
    obs = Observations(gaussian(rng, member, 1.0), member)
    bound = bounds.weighted_order_statistics(obs, threshold=bounds.Fixed(0.0), delta=DELTA, claim=claim)
    assert not bound.any_mechanism
    assert "independent given the coins" in bound.null
    assert "counts twice" in bound.threshold
    assert bound.counts["coins"] == 600
    assert bound.epsilon < bound.perfect
    assert bound.at_claim == pytest.approx(bound.epsilon, rel=0.5)


def test_null_and_reversed_scores_show_nothing():
    rng = np.random.default_rng(0)
    member = rng.random(500) < 0.5
    for scores in (-5.0 * member, np.where(member, -1.0, 1.0), np.zeros(500)):
        bound = bounds.weighted_order_statistics(Observations(scores, member), threshold=bounds.Fixed(0.0), delta=DELTA)
        assert bound.epsilon == 0.0


@pytest.mark.parametrize(
    "claim",
    [Claim.gaussian(noise_multiplier=1.0), Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.2, steps=20)],
    ids=["gaussian", "dp-sgd"],
)
def test_the_claims_own_family(claim):
    rng = np.random.default_rng(2)
    member = rng.random(2000) < 0.5
    obs = Observations(gaussian(rng, member, 0.5), member)
    bound = bounds.weighted_order_statistics(obs, threshold=bounds.Fixed(0.0), delta=DELTA, claim=claim)
    assert 0 < bound.epsilon < claim.epsilon(DELTA) * 2


@pytest.mark.parametrize("design", [Design(coins="worlds"), Design(calibration="cross"), Design(inclusion=0.3)])
def test_designs_that_it_is_not_valid_for(design):
    obs = Observations(np.arange(8.0)[:, None], (np.arange(8) % 2)[:, None], design=design)
    with pytest.raises(DesignError):
        bounds.weighted_order_statistics(obs, threshold=bounds.Fixed(0.0), delta=DELTA)


def test_bad_input():
    obs = Observations(np.arange(9.0), np.arange(9) % 3 == 0)
    with pytest.raises(InputError, match="bare pair"):
        bounds.weighted_order_statistics(
            obs, threshold=bounds.Fixed(0.0), delta=DELTA, claim=Claim.pair(epsilon=1.0, delta=DELTA)
        )
    with pytest.raises(InputError, match="Fixed"):
        bounds.weighted_order_statistics(obs, threshold=0.0, delta=DELTA)  # type: ignore[arg-type]


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")
@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_it_exceeds_the_truth_no_more_often_than_it_says(mu):
    """At most 5 % plus 3 standard errors of 400 runs (a tight bound fails with 0.4 %)."""
    truth = float(GaussianCurve(mu).epsilon(np.asarray(DELTA)))
    rng, exceeded = np.random.default_rng(3), 0
    for _ in range(REPETITIONS):
        member = rng.random(COINS) < 0.5
        obs = Observations(gaussian(rng, member, mu), member)
        exceeded += bounds.weighted_order_statistics(obs, threshold=bounds.Fixed(0.0), delta=DELTA).epsilon > truth
    assert exceeded / REPETITIONS <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / REPETITIONS)


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")
def test_caught_outside_of_its_family():
    """Canaries that are all answered or none: the same check catches it, and so it never carries a verdict."""
    mu, rng, exceeded = 0.832, np.random.default_rng(4), 0
    truth = float(GaussianCurve(mu).epsilon(np.asarray(DELTA)))
    for _ in range(REPETITIONS):
        member = rng.random(COINS) < 0.5
        right = rng.random(COINS) < (0.75 if rng.random() < 0.5 else 0.5)
        scores = np.where(member == right, 1.0, -1.0) * (1 + rng.random(COINS))
        obs = Observations(scores, member)
        exceeded += bounds.weighted_order_statistics(obs, threshold=bounds.Fixed(0.0), delta=DELTA).epsilon > truth
    assert exceeded / REPETITIONS > ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / REPETITIONS)
