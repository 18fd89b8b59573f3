"""The sequential test: its arithmetic, its state, and what it refuses. Error rates are in tests/statistical."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from dpaudit import Claim, bounds
from dpaudit.bounds import betting
from dpaudit.bounds.betting import Betting, Payoff
from dpaudit.errors import InputError

PURE = Claim.pair(epsilon=1.0, delta=0.0)
LOOSE = Claim.pair(epsilon=1.0, delta=1e-2)
PERFECT = Claim.pair(epsilon=60.0, delta=0.0)


def fed(state: Betting, scores, member) -> Betting:
    for score, inside in zip(scores, member, strict=True):
        state = state.update(score, inside)
    return state


def coins(seed: int, runs: int, canaries: int | None = None):
    rng = np.random.default_rng(seed)
    member = rng.random(runs if canaries is None else (runs, canaries)) < 0.5
    return member + 0.7 * rng.normal(size=member.shape), member


# --- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon,floor", [(1.0, 10), (2.0, 24), (4.0, 166), (8.0, 8932)])
def test_the_floor_is_the_first_pair_that_suffices(epsilon, floor):
    state = bounds.sequential(Claim.pair(epsilon=epsilon, delta=0.0), 0.0)
    assert state.floor == floor
    gain = 1 + math.exp(-epsilon)
    assert gain**floor >= 20 > gain ** (floor - 1)
    assert state.expected_runs(PERFECT) == pytest.approx(2 * math.log(20) / math.log(gain), rel=0.002)


def test_delta_raises_the_floor():
    loose = bounds.sequential(Claim.pair(epsilon=1.0, delta=0.3), 0.3)
    assert loose.epsilon == 1.0
    assert loose.floor > bounds.sequential(PURE, 0.0).floor


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("canaries", [1, 2])
def test_nothing_refutes_below_the_floor(epsilon, canaries):
    state = bounds.sequential(Claim.pair(epsilon=epsilon, delta=0.0), 0.0)
    while not state.refuted:
        inside = np.array([state.runs % 2 == 0]) if canaries == 1 else np.array([True, False])
        state = state.update(inside.astype(float), inside)
        assert state.runs < 5 * state.floor
    assert state.pairs >= 0.8 * state.floor if canaries > 1 else state.pairs >= state.floor


# --- factors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon,delta", [(0.0, 0.0), (1.0, 0.1), (3.0, 0.9)])
def test_a_factor_is_the_formula_and_never_negative(epsilon, delta):
    for worst, top in ((1.0, 1.0), (2.0, 2.0)):
        payoff = Payoff(epsilon, delta, worst)
        largest = 1 / (worst * math.exp(epsilon) + delta)
        for inside, outside in itertools.product((0.0, top / 2, top), repeat=2):
            if inside + outside <= 2:
                factor = 1 + largest * (inside - math.exp(epsilon) * outside - delta)
                assert 1 + payoff.scale * payoff(inside, outside) == pytest.approx(factor, abs=1e-12)
                assert factor >= -1e-12


@pytest.mark.parametrize("epsilon,delta", [(0.0, 0.0), (1.0, 0.0), (1.0, 0.05), (3.0, 0.2)])
def test_the_mean_of_a_pair_is_at_most_one_on_the_edge_of_the_claim(epsilon, delta):
    curve = Claim.pair(epsilon=epsilon, delta=delta).curve
    pair = Payoff(epsilon, delta, 1.0)
    for fpr in np.linspace(0, 1, 21):
        means = pair(1 - curve.fnr(fpr), fpr)
        assert means <= 1e-12


def test_the_mean_of_a_run_is_at_most_one_however_canaries_depend_on_each_other():
    # Exact, over all coins: three canaries, the output is "the parity of all coins", told truly with probability p.
    # Flipping one coin flips the parity, so this is ln(p / (1 − p))-DP, and all scores of the run are the same bit.
    epsilon, canaries = 1.0, 3
    right = 1 / (1 + math.exp(-epsilon))
    payoff, mean = Payoff(epsilon, 0.0, 2.0), 0.0
    for member in itertools.product((0, 1), repeat=canaries):
        for bit in (0, 1):
            chance = right if bit == sum(member) % 2 else 1 - right
            inside = 2 / canaries * bit * sum(member)
            outside = 2 / canaries * bit * (canaries - sum(member))
            mean += payoff(inside, outside) * chance / 2**canaries
    assert mean <= 1e-12


def test_weights_sum_to_one():
    assert math.fsum(np.exp(betting.LOG_WEIGHTS).ravel()) == pytest.approx(1.0, abs=1e-12)
    assert bounds.sequential(PURE, 0.0).e_value == pytest.approx(1.0, abs=1e-12)


def test_wealth_is_the_product_of_the_formula():
    """A slow twin: recompute every factor from the thresholds that each state shows before the round."""
    scores, member = coins(1, 200)
    state = bounds.sequential(LOOSE, 0.01)
    logs = np.zeros((3, len(betting.STAKES)))
    waiting: list[tuple[float, bool]] = []
    for score, inside in zip(scores, member, strict=True):
        if waiting and waiting[0][1] != inside:
            other = waiting.pop(0)[0]
            x, y = (score, other) if inside else (other, score)
            for i, stake in enumerate(betting.STAKES / (math.e + 0.01)):
                high, low = state.thresholds[0][i], state.thresholds[1][i]
                pay = [0.0 if high is None else (x > high) - math.e * (y > high) - 0.01]
                pay.append(0.0 if low is None else (y <= low) - math.e * (x <= low) - 0.01)
                logs[:, i] += np.log1p(stake * np.array([*pay, sum(pay) / 2]))
        else:
            waiting.append((score, inside))
        state = state.update(score, inside)
    assert np.allclose(state.wealth, logs.ravel(), atol=1e-9)
    weights = np.outer(betting.DIRECTION_WEIGHTS, betting.STAKE_WEIGHTS)
    assert state.e_value == pytest.approx(float((weights * np.exp(logs)).sum()))


# --- predictability --------------------------------------------------------------------------------------------------


def test_what_is_bet_does_not_depend_on_the_round_itself():
    scores, member = coins(2, 60, 5)
    state = fed(bounds.sequential(PURE, 0.0), scores, member)
    for shift in (0.0, 5.0):
        after = state.update(scores[0] + shift, member[0])
        played = (tuple(np.sort(scores[0][member[0]] + shift)), tuple(np.sort(scores[0][~member[0]] + shift)))
        factors = betting._log_factors(played, state.thresholds, state._payoff)
        assert np.allclose(np.subtract(after.wealth, state.wealth), factors.ravel())


def test_half_a_pair_changes_nothing_that_is_bet():
    scores, member = coins(3, 41)
    state = fed(bounds.sequential(PURE, 0.0), scores, member)
    side = state.waiting_in if state.waiting else True
    for score in (-9.0, 0.3, 9.0):
        half = state.update(score, side)
        assert (half.thresholds, half.wealth, half.past) == (state.thresholds, state.wealth, state.past)


def test_pairs_are_matched_in_order_of_arrival():
    state = fed(bounds.sequential(PURE, 0.0), [1.0, 2.0, 3.0, -1.0, -2.0], [True, True, True, False, False])
    assert state.past == (((1.0,), (-1.0,)), ((2.0,), (-2.0,)))
    assert (state.waiting, state.waiting_in, state.pairs, state.runs) == ((3.0,), True, 2, 5)


def test_the_schedule_of_worlds_does_not_matter_to_a_perfect_attacker():
    member = np.arange(60) < 30
    first_all_in = fed(bounds.sequential(PURE, 0.0), member.astype(float), member)
    alternating = fed(bounds.sequential(PURE, 0.0), np.arange(60) % 2 * 1.0, np.arange(60) % 2)
    assert first_all_in.refuted and first_all_in.wealth == alternating.wealth


def test_low_scores_of_members_show_nothing():
    member = np.arange(400) % 2 == 0
    state = fed(bounds.sequential(PURE, 0.0), -1.0 * member, member)
    assert state.e_value == pytest.approx(1.0) and not state.refuted


def test_constant_scores_show_nothing():
    state = fed(bounds.sequential(PURE, 0.0), np.ones((50, 4)), np.arange(200).reshape(50, 4) % 2 == 0)
    assert state.log_e_value == pytest.approx(0.0, abs=1e-12)


# --- order, resume, size ---------------------------------------------------------------------------------------------


def test_the_order_of_canaries_never_matters():
    scores, member = coins(4, 80, 7)
    scores = np.round(scores, 1)
    rng, shuffled = np.random.default_rng(0), bounds.sequential(LOOSE, 1e-2)
    for row, inside in zip(scores, member, strict=True):
        order = rng.permutation(7)
        shuffled = shuffled.update(row[order], inside[order])
    assert shuffled == fed(bounds.sequential(LOOSE, 1e-2), scores, member)


@pytest.mark.parametrize("canaries", [None, 6])
@pytest.mark.parametrize("stop", [0, 1, 2, 37, 100])
def test_resume_gives_the_identical_state(stop, canaries):
    scores, member = coins(5, 100, canaries)
    start = bounds.sequential(Claim.gaussian(noise_multiplier=1.0), 1e-5)
    middle = fed(start, scores[:stop], member[:stop])
    text = json.dumps(middle.document(), allow_nan=False)
    back = Betting.of(json.loads(text))
    assert back == middle
    end = fed(back, scores[stop:], member[stop:])
    assert end == fed(start, scores, member)
    assert json.dumps(end.document()) == json.dumps(fed(start, scores, member).document())


def test_states_are_frozen_and_updates_leave_them_alone():
    state = bounds.sequential(PURE, 0.0)
    after = state.update([0.5, 0.2], [True, False])
    assert (state.runs, after.runs) == (0, 1)
    with pytest.raises(FrozenInstanceError):
        after.runs = 3  # type: ignore[misc]


def test_the_best_is_kept_and_the_p_value_never_rises():
    scores, member = coins(6, 300)
    state, values = bounds.sequential(Claim.pair(epsilon=0.2, delta=0.0), 0.0), []
    for score, inside in zip(scores, member, strict=True):
        state = state.update(score, inside)
        values.append((state.e_value, state.best, state.p_value))
    e, best, p = np.array(values).T
    assert np.allclose(best, np.maximum(np.maximum.accumulate(e), 1.0))
    assert np.all(np.diff(p) <= 0) and np.allclose(p, np.minimum(1, 1 / best))
    assert state.refuted == (best[-1] >= 20)


def test_numbers_stay_finite():
    strong = replace(bounds.sequential(PURE, 0.0), wealth=(1e6,) * betting.LOG_WEIGHTS.size, log_best=1e6)
    assert math.isfinite(strong.e_value) and math.isfinite(strong.best) and strong.p_value == 0.0
    state = bounds.sequential(Claim.pair(epsilon=690.0, delta=0.0), 0.0)
    state = fed(state, [1e308, -1e308] * 20, [True, False] * 20)
    assert np.isfinite(state.wealth).all() and state.floor > 1e299
    state = fed(state, [-1e308, 1e308] * 20, [True, False] * 20)
    json.dumps(state.document(), allow_nan=False)


def test_ten_thousand_runs_take_seconds_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(betting, "MEMORY", 2000)
    scores, member = coins(7, 10_000)
    start = time.process_time()
    state = fed(bounds.sequential(Claim.pair(epsilon=8.0, delta=0.0), 0.0), scores, member)
    assert time.process_time() - start < 10
    assert len(state.past) == 1000 and state.pairs > 4700


# --- expected runs ---------------------------------------------------------------------------------------------------


def test_a_true_claim_is_never_expected_to_fall():
    for claim, delta in ((PURE, 0.0), (LOOSE, 1e-2), (Claim.gaussian(noise_multiplier=1.0), 1e-5)):
        state = bounds.sequential(claim, delta)
        assert math.isinf(state.expected_runs(claim))
        assert math.isinf(state.update([1.0, 0.0], [True, False]).expected_runs(claim))


def test_expected_runs_against_an_exhaustive_search():
    """Randomised response at 2: one threshold matters, and the stake is found on a fine grid."""
    right = 1 / (1 + math.exp(-2.0))
    stake = np.linspace(0, 1, 100_001)[:-1] / math.e
    both, one, lost = right**2, right * (1 - right), (1 - right) ** 2
    growth = both * np.log1p(stake) + one * np.log1p(stake * (1 - math.e)) + lost * np.log1p(-stake * math.e)
    state = bounds.sequential(PURE, 0.0)
    assert state.expected_runs(Claim.pair(epsilon=2.0, delta=0.0)) == pytest.approx(
        2 * math.log(20) / growth.max(), rel=0.02
    )


def test_more_canaries_and_more_leak_are_faster():
    one = bounds.sequential(PURE, 0.0)
    many = one.update(np.arange(32.0), np.arange(32) % 2 == 0)
    truth = Claim.pair(epsilon=2.0, delta=0.0)
    assert many.expected_runs(truth) < one.expected_runs(truth)
    assert one.expected_runs(Claim.pair(epsilon=3.0, delta=0.0)) < one.expected_runs(truth)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores,member,message",
    [
        (math.nan, True, "finite"),
        ([1.0, math.inf], [True, False], "finite"),
        ("high", True, "numbers"),
        ([1.0, 2.0], [True], "one run's"),
        ([[1.0, 2.0]], [[True, False]], "one run's"),
        ([], [], "one run's"),
        (1.0, 2, "true or false"),
        (1.0, 0.5, "true or false"),
        (1.0, "in", "true or false"),
    ],
)
def test_bad_runs_are_refused(scores, member, message):
    with pytest.raises(InputError, match=message):
        bounds.sequential(PURE, 0.0).update(scores, member)


def test_the_first_run_fixes_the_number_of_canaries():
    state = bounds.sequential(PURE, 0.0).update([1.0, 2.0], [1, 0])
    with pytest.raises(InputError, match="2 canaries"):
        state.update(1.0, True)


def test_bad_claims_and_levels_are_refused():
    with pytest.raises(InputError, match="epsilon at delta 0"):
        bounds.sequential(Claim.gaussian(noise_multiplier=1.0), 0.0)
    with pytest.raises(InputError, match="delta"):
        bounds.sequential(PURE, 1.0)
    with pytest.raises(InputError, match="significance"):
        bounds.sequential(PURE, 0.0, 0.0)


def test_foreign_documents_are_refused():
    document = bounds.sequential(PURE, 0.0).document()
    for broken in ({}, {**document, "schema": "dpaudit.betting/0"}, {**document, "more": 1}):
        with pytest.raises(InputError):
            Betting.of(broken)
    del document["claim"]
    with pytest.raises(InputError):
        Betting.of(document)
