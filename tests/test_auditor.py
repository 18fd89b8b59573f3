"""Judging: the four verdicts, when there is none, and what lower, upper and p-value have to do with each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpaudit
from dpaudit import Claim, Design, Observations, Verdict, auditor, bounds
from dpaudit.auditor import audit, judge
from dpaudit.bounds import recursion
from dpaudit.errors import DesignError, InputError
from dpaudit.records import PlannedTest

DELTA, SIGNIFICANCE = 1e-5, 0.05
PAIR, CURVE = Claim.pair(epsilon=1.0, delta=DELTA), Claim.gaussian(noise_multiplier=1.5)
ONE = [PlannedTest("guesses", 1.0, 100)]


def observed(strength: float, runs: int = 40, canaries: int = 50, seed: int = 0, **design: object) -> Observations:
    rng = np.random.default_rng(seed)
    member = rng.random((runs, canaries)) < 0.5
    return Observations(strength * member + rng.normal(size=member.shape), member, design=Design(**design))


def two_worlds(strength: float, runs: int = 300, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    return Observations.from_worlds(strength + rng.normal(size=runs), rng.normal(size=runs))


@pytest.mark.parametrize("obs", [observed(6.0), two_worlds(6.0)], ids=["coins", "worlds"])
@pytest.mark.parametrize("claim", [PAIR, CURVE], ids=["pair", "curve"])
def test_violated(obs, claim):
    judged = audit(obs, claim, delta=DELTA)
    assert judged.verdict is Verdict.VIOLATED
    assert judged.p_value <= judged.significance == judged.error_probability == SIGNIFICANCE
    assert "false for any mechanism" in judged.reason


@pytest.mark.parametrize("claim", [Claim.pair(epsilon=3.0, delta=0.0), CURVE], ids=["pair", "curve"])
def test_consistent(claim):
    judged = audit(observed(0.0), claim, delta=0.0 if claim.kind == "pair" else DELTA)
    assert judged.verdict is Verdict.CONSISTENT
    assert judged.power >= 0.8 and judged.p_value > SIGNIFICANCE
    assert "not proof" in judged.reason


@pytest.mark.parametrize("obs", [observed(0.0, 1, 15), two_worlds(0.0, 5)], ids=["coins", "worlds"])
def test_underpowered(obs):
    judged = audit(obs, CURVE, delta=DELTA)
    assert judged.verdict is Verdict.UNDERPOWERED
    assert judged.power < 0.8
    assert "nothing can be said" in judged.reason


@pytest.mark.parametrize("obs", [observed(6.0), two_worlds(6.0)], ids=["coins", "worlds"])
def test_no_claim(obs):
    judged = audit(obs, delta=DELTA)
    assert judged.verdict is Verdict.NO_CLAIM
    assert (judged.upper, judged.p_value, judged.power, judged.findings) == (None, None, None, ())
    assert judged.lower > 1


def test_upper_is_the_claim():
    assert audit(observed(0.0), CURVE, delta=DELTA).upper == CURVE.epsilon(DELTA)


def test_lower_comes_from_bounds_for_any_mechanism_only():
    judged = audit(observed(2.0), CURVE, delta=DELTA)
    assert judged.lower == max(b.epsilon for b in judged.bounds if b.any_mechanism)
    assert judged.lower_if_recipe == max(b.epsilon for b in judged.bounds if not b.any_mechanism)


def test_a_pair_has_no_recipe():
    judged = audit(observed(2.0), PAIR, delta=DELTA)
    assert judged.lower_if_recipe is None
    assert all(b.any_mechanism for b in judged.bounds)


def test_a_recipe_alone_never_violates():
    # Exactly ln 3-DP randomised response is refuted as a Gaussian, and keeps its claim as a curve.
    rng = np.random.default_rng(1)
    member = rng.random((40, 50)) < 0.5
    said = member == (rng.random(member.shape) < 0.75)
    obs = Observations(said + 0.1 * rng.random(member.shape), member)
    claim = Claim.gaussian(noise_multiplier=1 / 1.36)  # contains it: Φ(−0.68) < ¼
    judged = audit(obs, claim, delta=DELTA)
    assert judged.verdict is not Verdict.VIOLATED


def test_every_bound_says_its_share_and_source():
    judged = audit(observed(2.0), PAIR, delta=DELTA)
    for bound in judged.bounds:
        assert "of the significance" in bound.threshold and "all canaries, given on score" in bound.threshold
    assert sum({b.significance for b in judged.bounds}) <= SIGNIFICANCE + 1e-12


BARRED = {
    "unknown": (observed(6.0, coins="unknown"), CURVE),
    "cross": (observed(6.0, calibration="cross"), CURVE),
    "zero-out": (observed(6.0, adjacency="zero-out"), CURVE),
    "replace-one claim": (observed(6.0), Claim.pair(epsilon=1.0, delta=DELTA, adjacency="replace-one")),
    "fixed counts of replacements": (
        observed(6.0, coins="fixed", adjacency="replace-one"),
        Claim.pair(epsilon=1.0, delta=DELTA, adjacency="replace-one"),
    ),
}


@pytest.mark.parametrize("obs,claim", BARRED.values(), ids=BARRED.keys())
def test_no_verdict_where_no_test_is_valid(obs, claim):
    judged = audit(obs, claim, delta=DELTA)
    assert judged.verdict is Verdict.UNDERPOWERED
    assert (judged.p_value, judged.power, judged.findings, judged.lower) == (1.0, 0.0, (), 0.0)
    assert judged.lower_if_recipe is None
    assert judged.reason


def test_the_reason_says_what_bars_a_verdict():
    reasons = {name: audit(obs, claim, delta=DELTA).reason for name, (obs, claim) in BARRED.items()}
    assert "unknown" in reasons["unknown"] and "other tested runs" in reasons["cross"]
    assert "add-remove" in reasons["zero-out"] and "zero-out" in reasons["zero-out"]
    assert "two replace-one" in reasons["fixed counts of replacements"]


def test_unknown_designs_still_print_conditional_bounds():
    judged = audit(observed(6.0, coins="unknown"), CURVE, delta=DELTA)
    assert judged.bounds and all("conditional" in b.notes[0] for b in judged.bounds)
    assert max(b.epsilon for b in judged.bounds) > 1


def test_a_matching_adjacency_is_judged():
    claim = Claim.pair(epsilon=1.0, delta=DELTA, adjacency="zero-out")
    assert audit(observed(6.0, adjacency="zero-out"), claim, delta=DELTA).verdict is Verdict.VIOLATED


def test_fixed_counts_are_judged_as_replacing_one_record():
    judged = audit(observed(6.0, coins="fixed"), CURVE, delta=DELTA)
    assert judged.verdict is Verdict.VIOLATED
    assert judged.upper == pytest.approx(Claim.gaussian(noise_multiplier=0.75).epsilon(DELTA), rel=1e-6)
    assert "replace-one" in judged.notes[0]
    assert {b.adjacency for b in judged.bounds} == {"replace-one"}


def test_fixed_counts_have_the_power_of_the_coins_that_are_left():
    rng = np.random.default_rng(0)
    member = rng.permutation(np.arange(2000) < 10)
    obs = Observations(rng.normal(size=2000), member, design=Design(coins="fixed"))
    assert audit(obs, CURVE, delta=DELTA).verdict is Verdict.UNDERPOWERED


def test_scores_that_were_never_taken_take_power_away():
    obs = observed(0.0)
    present = np.zeros(obs.shape, bool)
    present[:, :1] = True
    thin = Observations(obs.scores, obs.member, present=present)
    assert audit(obs, CURVE, delta=DELTA).verdict is Verdict.CONSISTENT
    assert audit(thin, CURVE, delta=DELTA).verdict is Verdict.UNDERPOWERED


@given(
    seed=st.integers(0, 10_000), strength=st.floats(0, 3), epsilon=st.floats(0, 2), weight=st.floats(0.05, 1)
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_violated_means_p_at_most_significance_and_follows_from_lower_above_upper(seed, strength, epsilon, weight):
    tests = [PlannedTest("guesses", weight, 60)]
    for delta in (0.0, DELTA):
        judged = audit(
            observed(strength, 5, 60, seed), Claim.pair(epsilon=epsilon, delta=delta), delta=delta, tests=tests
        )
        assert (judged.verdict is Verdict.VIOLATED) == (judged.p_value <= judged.significance)
        assert judged.lower <= judged.upper or judged.verdict is Verdict.VIOLATED


@given(seed=st.integers(0, 10_000), strength=st.floats(0, 3), noise=st.floats(0.5, 4))
@settings(max_examples=15, deadline=None)
def test_the_same_for_curves_of_two_worlds(seed, strength, noise):
    judged = audit(two_worlds(strength, 60, seed), Claim.gaussian(noise_multiplier=noise), delta=DELTA)
    assert (judged.verdict is Verdict.VIOLATED) == (judged.p_value <= judged.significance)
    assert judged.lower <= judged.upper or judged.verdict is Verdict.VIOLATED


def test_a_claim_just_below_the_lower_bound_is_violated():
    obs = observed(2.0)
    lower = audit(obs, PAIR, delta=DELTA, tests=ONE).lower
    for gap in (1e-4, 1e-7, 1e-10):
        claim = Claim.pair(epsilon=lower * (1 - gap), delta=DELTA)
        assert audit(obs, claim, delta=DELTA, tests=ONE).verdict is Verdict.VIOLATED
    above = Claim.pair(epsilon=lower * (1 + 1e-4), delta=DELTA)
    assert audit(obs, above, delta=DELTA, tests=ONE).verdict is not Verdict.VIOLATED


def test_the_p_value_is_the_smallest_over_its_weight():
    tests = [PlannedTest("guesses", 0.7, 100), PlannedTest("guesses", 0.3, 400)]
    judged = audit(observed(1.2), PAIR, delta=DELTA, tests=tests)
    assert [f.weight for f in judged.findings] == [0.7, 0.3]
    assert judged.p_value == min(min(f.p_value / f.weight, 1.0) for f in judged.findings)


def test_more_weight_means_a_larger_lower_bound():
    lowers = [
        audit(observed(2.0), PAIR, delta=DELTA, tests=[PlannedTest("guesses", w, 100)]).lower for w in (0.01, 0.3, 1.0)
    ]
    assert lowers == sorted(lowers)


def test_the_p_value_of_a_curve_is_no_larger_than_by_the_recursion():
    judged = audit(observed(1.2), CURVE, delta=DELTA, tests=ONE)
    right = judged.bounds[0].counts["correct"]
    assert judged.p_value <= recursion.p_value(CURVE.curve, 2000, 100, right)


def test_several_observations_are_judged_together():
    weak, strong = observed(0.0), observed(6.0, seed=1)
    tests = [PlannedTest("guesses", 0.5, 100, canaries="a"), PlannedTest("guesses", 0.5, 100, canaries="b")]
    judged = judge(
        list(zip(tests, (weak, strong), strict=True)), PAIR, delta=DELTA, significance=SIGNIFICANCE, name="both"
    )
    assert judged.verdict is Verdict.VIOLATED and judged.name == "both"
    assert [f.canaries for f in judged.findings] == ["a", "b"]
    assert judged.findings[0].p_value > SIGNIFICANCE > judged.findings[1].p_value


def test_observations_of_different_neighbours_are_not_mixed():
    planned = [(PlannedTest("guesses", 0.5, 100), observed(6.0, coins=c)) for c in ("fair", "fixed")]
    judged = judge(planned, CURVE, delta=DELTA, significance=SIGNIFICANCE)
    assert judged.p_value == 1.0 and judged.lower == 0.0
    assert "replace-one" in judged.reason


@pytest.mark.parametrize("weights", [(0.6, 0.6), (1.0, 0.01)])
def test_weights_above_one_are_refused(weights):
    with pytest.raises(InputError, match="weights"):
        audit(observed(0.0), PAIR, delta=DELTA, tests=[PlannedTest("guesses", w, 100) for w in weights])


def test_an_empty_list_is_refused():
    with pytest.raises(InputError, match="at least one test"):
        audit(observed(0.0), PAIR, delta=DELTA, tests=[])


def test_the_default_list_ignores_the_scores():
    a, b = (audit(observed(s), PAIR, delta=DELTA) for s in (0.0, 6.0))
    assert [f.threshold for f in a.findings] == [f.threshold for f in b.findings]
    assert [f.power for f in a.findings] == [f.power for f in b.findings]


@pytest.mark.parametrize("policy", [None, bounds.Fixed(1.0), bounds.Split(), bounds.Bonferroni([0.5, 1.0])])
def test_threshold_policies(policy):
    judged = audit(two_worlds(6.0), PAIR, delta=DELTA, tests=[PlannedTest("threshold", 1.0, threshold=policy)])
    assert judged.verdict is Verdict.VIOLATED and judged.power > 0


def test_a_bad_policy_is_the_callers_mistake():
    with pytest.raises(InputError, match="threshold"):
        audit(two_worlds(6.0), PAIR, delta=DELTA, tests=[PlannedTest("threshold", 1.0, threshold=0.5)])


def test_tests_must_fit_the_design():
    with pytest.raises(DesignError):
        audit(two_worlds(1.0), PAIR, delta=DELTA, tests=ONE)
    with pytest.raises(DesignError):
        audit(observed(1.0, 1, 300), PAIR, delta=DELTA, tests=[PlannedTest("threshold", 1.0)])


def test_the_claim_must_be_finite_at_delta():
    for claim in (CURVE, PAIR):
        with pytest.raises(InputError, match="delta"):
            audit(observed(0.0), claim, delta=0.0)


@pytest.mark.parametrize("name,bad", [("delta", -1), ("delta", 1.0), ("significance", 0.0), ("significance", 1.1)])
def test_bad_levels_are_named(name, bad):
    with pytest.raises(InputError, match=name):
        audit(observed(0.0), PAIR, **{"delta": DELTA, name: bad})


@pytest.mark.parametrize("significance", [1e-9, 0.499])
def test_extreme_significances(significance):
    # With δ > 0 no test can reach a level below δ: a mechanism may tell all with that probability.
    judged = audit(observed(6.0), Claim.pair(epsilon=1.0, delta=0.0), delta=0.0, significance=significance)
    assert judged.verdict is Verdict.VIOLATED and judged.p_value <= significance


def test_a_claim_of_nothing_can_be_violated():
    judged = audit(observed(6.0), Claim.pair(epsilon=0.0, delta=0.0), delta=0.0)
    assert judged.verdict is Verdict.VIOLATED
    assert audit(observed(0.0), Claim.pair(epsilon=0.0, delta=0.0), delta=0.0).verdict is Verdict.UNDERPOWERED


def test_a_silent_recipe_has_no_twice_and_no_power():
    claim = Claim.dp_sgd(noise_multiplier=50.0, sampling_rate=0.001, steps=1)
    judged = audit(observed(0.0, 5, 20), claim, delta=DELTA)
    assert judged.verdict is Verdict.UNDERPOWERED and judged.upper == 0.0


def test_dp_sgd_is_judged_by_its_own_curve():
    claim = Claim.dp_sgd(noise_multiplier=1.5, sampling_rate=0.05, steps=20)
    assert audit(observed(6.0, 10, 40), claim, delta=DELTA, tests=ONE).verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    "member", [[1, 0], [1, 0, 0], [1] + [0] * 20, [0] + [1] * 20], ids=["two", "three", "one member", "one other"]
)
@pytest.mark.parametrize("claim", [None, PAIR, CURVE], ids=["none", "pair", "curve"])
def test_tiny_runs(member, claim):
    judged = audit(Observations(np.arange(len(member), dtype=float), member), claim, delta=DELTA)
    assert judged.lower == 0.0
    assert judged.verdict in (Verdict.NO_CLAIM, Verdict.UNDERPOWERED)


def test_rates_are_those_seen():
    judged = audit(two_worlds(6.0), PAIR, delta=DELTA, tests=[PlannedTest("threshold", 1.0, threshold=bounds.Fixed(3))])
    obs = two_worlds(6.0)
    above = obs.scores[:, 0] > 3
    member = obs.member[:, 0]
    assert judged.findings[0].rates == pytest.approx((above[~member].mean(), 1 - above[member].mean()))
    assert judged.findings[0].curve_fnr < PAIR.fnr(judged.findings[0].rates[0])  # at the upper limit of that rate


def test_inputs_stay_as_they_were():
    obs = observed(1.0)
    scores, member = obs.scores.copy(), obs.member.copy()
    audit(obs, CURVE, delta=DELTA)
    assert np.array_equal(scores, obs.scores) and np.array_equal(member, obs.member)


def test_the_same_observations_give_the_same_audit():
    a, b = (audit(observed(1.0), PAIR, delta=DELTA) for _ in range(2))
    assert (a.lower, a.p_value, a.power) == (b.lower, b.p_value, b.power)


def test_other_bounds_carry_no_verdict():
    for obs in (observed(1.0), two_worlds(1.0)):
        method = "threshold" if obs.design.coins == "worlds" else "guesses"
        test = PlannedTest(method, 1.0, 100 if method == "guesses" else None, threshold=bounds.Ranks())
        found = auditor.other_bounds(obs, CURVE, delta=DELTA, significance=SIGNIFICANCE, tests=[test])
        assert found and all("no verdict rests on it" in b.threshold for b in found)


def test_the_package_names_it():
    assert dpaudit.audit is audit
    assert math.isfinite(audit(observed(0.0), PAIR, delta=DELTA).upper)
