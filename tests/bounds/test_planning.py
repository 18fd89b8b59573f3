"""Power, ceilings and the default list of tests, against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit import Claim, Design, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, PairCurve
from dpaudit.bounds.designs import fair_coins
from dpaudit.bounds.guessing import guess
from dpaudit.bounds.halves import expected_right
from dpaudit.bounds.ideal import error_rate, threshold_power
from dpaudit.bounds.planning import comparable, default_tests, guesses_power, refuter, strongest_guesses
from dpaudit.bounds.planning import test_power as power_of
from dpaudit.bounds.two_worlds import Confusion, p_value
from dpaudit.records import PlannedTest

DELTA, LEVEL = 1e-5, 0.05
REPETITIONS = 400
TOLERANCE = 4 * math.sqrt(0.25 / REPETITIONS)  # false alarm of one comparison: 6e-5
COINS, GUESSES = 2000, 200
pytestmark = pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")  # one fair run in 56


def ideal_counts(mu: float, repetitions: int, seed: int) -> list[int]:
    """Right guesses of the optimal attacker on the Gaussian mechanism, by drawing scores."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(repetitions):
        member = rng.random(COINS) < 0.5
        scores = np.where(member, mu / 2, -mu / 2) + rng.normal(size=COINS)
        out.append(guess(fair_coins(Observations(scores, member), "test"), GUESSES).right)
    return out


def test_error_rate_of_the_surest_guesses():
    rate = np.mean(ideal_counts(1.0, 100, seed=0)) / GUESSES
    assert 1 - error_rate(GaussianCurve(1.0), COINS, GUESSES) == pytest.approx(rate, abs=0.01)


def test_error_rate_of_randomised_response_is_its_own():
    q = 1 / (1 + math.e)
    assert error_rate(PairCurve(1.0, 0.0), 100, 20) == pytest.approx(q, abs=1e-6)
    assert error_rate(PairCurve(0.0, 0.0), 100, 100) == pytest.approx(0.5, abs=1e-9)


def test_the_median_number_of_right_guesses():
    assert expected_right(GaussianCurve(1.0), COINS, GUESSES) == pytest.approx(
        np.median(ideal_counts(1.0, 100, seed=1)), abs=2.5
    )


@pytest.mark.parametrize("claimed", [0.3, 0.45, 0.55])
def test_power_of_guesses_against_simulation(claimed):
    truth, curve = GaussianCurve(1.0), GaussianCurve(claimed)
    decided = {}
    rejected = 0
    for right in ideal_counts(1.0, REPETITIONS, seed=2):
        if right not in decided:
            decided[right] = refuter(curve, COINS, GUESSES, DELTA, LEVEL)(right)
        rejected += decided[right]
    power = guesses_power(truth, curve, COINS, GUESSES, DELTA, LEVEL)
    assert power == pytest.approx(rejected / REPETITIONS, abs=TOLERANCE)


def test_a_true_claim_is_refuted_no_more_often_than_the_level():
    for curve in (GaussianCurve(1.0), PairCurve(1.0, 0.0)):
        assert guesses_power(curve, curve, COINS, GUESSES, DELTA, LEVEL) <= LEVEL


@pytest.mark.parametrize("runs,claimed", [(100, 0.5), (200, 0.8), (60, 0.3)])
def test_power_of_a_threshold_against_simulation(runs, claimed):
    truth, curve = GaussianCurve(1.6), GaussianCurve(claimed)
    rng, best = np.random.default_rng(0), 0.0
    decided: dict[tuple[int, int], bool] = {}
    for fpr in np.geomspace(1e-3, 0.5, 12):
        fnr = float(truth.fnr(np.asarray(fpr)))
        alarms, missed = rng.binomial(runs, fpr, REPETITIONS), rng.binomial(runs, fnr, REPETITIONS)
        for a, m in zip(alarms, missed, strict=True):
            if (a, m) not in decided:
                decided[a, m] = p_value([Confusion(runs, runs, int(m), int(a))], curve)[0] < LEVEL
        best = max(best, np.mean([decided[a, m] for a, m in zip(alarms, missed, strict=True)]))
    assert threshold_power(truth, curve, runs, runs, LEVEL) == pytest.approx(best, abs=TOLERANCE)


def test_power_of_a_bonferroni_family_pays_for_its_size():
    claim, design = Claim.gaussian(noise_multiplier=1.0), Design(coins="worlds")

    def power(threshold):
        test = PlannedTest("threshold", 1.0, threshold=threshold)
        return power_of(test, design, (60, 1), 30, claim, DELTA, LEVEL)

    alone, family = power(bounds.Fixed(0.0)), power(bounds.Bonferroni(np.linspace(-3, 3, 50)))
    assert family < alone


def test_power_falls_with_every_score_that_is_missing():
    claim, test = Claim.gaussian(noise_multiplier=1.0), PlannedTest("guesses", 1.0, 200)
    powers = [
        power_of(test, Design(), (1, 2000), 0, claim, DELTA, LEVEL, coins=2000, scored=s) for s in (2000, 500, 100, 0)
    ]
    assert powers == sorted(powers, reverse=True)
    assert powers[0] > 0.9 and powers[-1] == 0


def test_the_strongest_number_of_guesses_is_even_and_within_the_coins():
    claim = Claim.gaussian(noise_multiplier=1.0)
    k = strongest_guesses(Design(), (1, 2000), claim, DELTA, LEVEL)
    assert k % 2 == 0 and 2 <= k <= 2000


def test_the_strongest_number_of_guesses_beats_a_poor_one():
    claim = Claim.gaussian(noise_multiplier=1.0)
    k = strongest_guesses(Design(), (1, 500), claim, DELTA, LEVEL)
    truth = claim.leaking(2, DELTA).curve
    best, poor = (guesses_power(truth, claim.curve, 500, n, DELTA, LEVEL) for n in (k, 8))
    assert best > poor


@pytest.mark.parametrize("claim", [None, Claim.gaussian(noise_multiplier=1.0), Claim.pair(epsilon=1.0, delta=DELTA)])
@pytest.mark.parametrize("design,shape", [(Design(), (1, 400)), (Design(), (30, 7)), (Design(coins="fixed"), (1, 60))])
def test_weights_of_the_default_list_sum_to_one(claim, design, shape):
    tests = default_tests(design, shape, claim, DELTA, LEVEL)
    assert sum(t.weight for t in tests) == pytest.approx(1)
    assert len({t.guesses for t in tests}) == len(tests)
    assert all(t.method == "guesses" and t.guesses <= max(shape[0] * shape[1], 2) for t in tests)


def test_worlds_get_one_test_of_thresholds():
    for design in (Design(coins="worlds"), Design(coins="fixed")):
        (test,) = default_tests(design, (100, 1), None, DELTA, LEVEL)
        assert (test.method, test.weight, test.threshold) == ("threshold", 1.0, bounds.Ranks((1, 4, 16)))


def test_one_canary_in_many_runs_gets_thresholds_and_guesses():
    tests = default_tests(Design(), (100, 1), None, DELTA, LEVEL)
    assert (tests[0].method, tests[0].weight) == ("threshold", 0.5)
    assert {t.method for t in tests[1:]} == {"guesses"}
    assert sum(t.weight for t in tests) == pytest.approx(1.0)


@pytest.mark.parametrize("epsilon,coins", [(1.0, 100), (2.0, 100), (4.0, 200)])
def test_power_where_nearly_all_coins_must_be_guessed(epsilon, coins):
    claim = Claim.pair(epsilon=epsilon, delta=DELTA)
    test = default_tests(Design(), (1, coins), claim, DELTA, 0.05)[0]
    level, q = test.weight * 0.05, 1 / (1 + math.exp(-2 * epsilon))
    rng, refuted = np.random.default_rng(5), 0
    refutes = refuter(claim.curve, coins, test.guesses, DELTA, level)
    for _ in range(REPETITIONS):
        member = rng.random(coins) < 0.5
        scores = (member == (rng.random(coins) < q)) + 0.1 * rng.random(coins)
        refuted += refutes(guess(fair_coins(Observations(scores, member), "test"), test.guesses).right)
    power = guesses_power(claim.leaking(2, DELTA).curve, claim.curve, coins, test.guesses, DELTA, level)
    assert power == pytest.approx(refuted / REPETITIONS, abs=TOLERANCE)


def test_the_default_list_needs_no_scores():
    a, b = (default_tests(Design(), (1, 400), Claim.gaussian(noise_multiplier=1.0), DELTA, LEVEL) for _ in range(2))
    assert a == b


@pytest.mark.parametrize(
    "claimed,tested,works",
    [
        ("add-remove", "add-remove", True),
        ("add-remove", "replace-one", True),
        ("add-remove", "zero-out", False),
        ("replace-one", "add-remove", False),
        ("replace-one", "replace-one", True),
        ("replace-one", "two replace-one", False),
        ("zero-out", "zero-out", True),
    ],
)
def test_which_claims_speak_of_which_neighbours(claimed, tested, works):
    curve = comparable(Claim.pair(epsilon=1, delta=0, adjacency=claimed), tested)
    assert (curve is not None) == works


def test_replacing_one_record_is_two_steps_of_the_claim():
    curve = comparable(Claim.gaussian(noise_multiplier=2.0), "replace-one")
    assert curve.fnr(np.asarray(0.1)) == pytest.approx(float(GaussianCurve(1.0).fnr(np.asarray(0.1))), rel=1e-9)
