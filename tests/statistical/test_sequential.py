"""Does the sequential test hold its level at whatever time one stops, and would this suite notice if it did not?

Every check of the level draws ``REPETITIONS`` sequences of runs (ten times as many with DPAUDIT_FULL=1) from a
mechanism that keeps the claim exactly, and counts how often the claim is *ever* refuted. It passes if that share is at
most ``ALPHA`` plus ``SIGMAS`` standard errors.

False alarms: a test whose true rate is exactly ``ALPHA`` fails one check with probability below 0.5 %; there are 23, so
were all seeds drawn anew, fewer than one suite in nine would raise a false alarm even if every rate were exactly
``ALPHA``. Ville's inequality is not tight: most rates are below 2 %. Seeds are fixed.
Effect: a rate of ``EFFECT`` is caught with probability 99 %; each broken twin is at least that bad and must be caught
by the very same check. Power checks state how many of their sequences must be refuted, and by when.

LiDP's limits are asymptotic: how often they exceed the truth is printed, and no bar is set.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from dpaudit import Claim, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.bounds import betting
from dpaudit.bounds.betting import Betting

FULL = bool(os.environ.get("DPAUDIT_FULL"))
ALPHA, SIGMAS = 0.05, 3.0
REPETITIONS = 3000 if FULL else 300
LONG_REPETITIONS = 750 if FULL else 75  # sequences that are five times as long
POWER_REPETITIONS = 200 if FULL else 20
EFFECT = 0.14
RUNS, LONG = 50, 300
CANARIES, ROWS = 8, 30  # several canaries per run, and how many runs of them
LEAK = 0.05
GAUSSIAN_DELTA = 0.05
TIE_FREE = 0.1

pytestmark = pytest.mark.statistical

Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]
Schedule = Callable[[np.random.Generator, int], np.ndarray]
Update = Callable[[Betting, np.ndarray, np.ndarray], Betting]


def largest_share(repetitions: int) -> float:
    """What a valid test may show: its level plus ``SIGMAS`` standard errors."""
    return ALPHA + SIGMAS * math.sqrt(ALPHA * (1 - ALPHA) / repetitions)


def holds(share: float, repetitions: int) -> bool:
    """The one check that every valid test must pass and every broken twin must fail."""
    return share <= largest_share(repetitions)


def update(state: Betting, scores: np.ndarray, member: np.ndarray) -> Betting:
    return state.update(scores, member)


def ever_refuted(
    start: Betting,
    draw: Draw,
    schedule: Schedule,
    runs: int = RUNS,
    repetitions: int = REPETITIONS,
    seed: int = 0,
    step: Update = update,
) -> float:
    """The share of sequences in which the claim is refuted at some run; ``draw`` gets all runs, one row each."""
    rng, refuted = np.random.default_rng(seed), 0
    for _ in range(repetitions):
        member = schedule(rng, runs)
        state, scores = start, draw(rng, member)
        for row, inside in zip(scores, member, strict=True):
            state = step(state, row, inside)
            if state.refuted:
                refuted += 1
                break
    return refuted / repetitions


# --- schedules and mechanisms whose ε is known -----------------------------------------------------------------------


def one_by_coins(rng, runs):
    return rng.random((runs, 1)) < 0.5


def alternating(rng, runs):
    return np.arange(runs)[:, None] % 2 == 0


def one_world_after_the_other(rng, runs):
    return np.arange(runs)[:, None] < runs // 2


def several_by_coins(rng, runs):
    return rng.random((runs, CANARIES)) < 0.5


def many_by_coins(rng, runs):
    return rng.random((runs, 4 * CANARIES)) < 0.5


def randomised_response(epsilon: float) -> Draw:
    def draw(rng, member):
        right = rng.random(member.shape) < expit(epsilon)
        return (member == right) + TIE_FREE * rng.random(member.shape)

    return draw


def gaussian(mu: float) -> Draw:
    return lambda rng, member: mu * member + rng.normal(size=member.shape)


def nothing(rng, member):
    return rng.normal(size=member.shape)


def perfect(rng, member):
    return member + TIE_FREE * rng.random(member.shape)


def all_or_none(rng, member):
    """With probability ½ every canary of the run is answered with 25 % error; else none is."""
    speaks = rng.random((len(member), 1)) < 0.5
    right = rng.random(member.shape) < np.where(speaks, 0.75, 0.5)
    return (member == right) + TIE_FREE * rng.random(member.shape)


def tells_all(rng, member):
    """With probability ``LEAK`` per run everything, else nothing: exactly (0, ``LEAK``)-DP, all canaries at once."""
    return member * (rng.random((len(member), 1)) < LEAK) + TIE_FREE * rng.random(member.shape)


def pair(epsilon: float, delta: float = 0.0) -> Betting:
    return bounds.sequential(Claim.pair(epsilon=epsilon, delta=delta), delta, ALPHA)


GAUSSIAN = bounds.sequential(Claim.gaussian(noise_multiplier=1.0), GAUSSIAN_DELTA, ALPHA)
# Of one canary alone, all_or_none tells what randomised response with 37.5 % error does.
ALL_OR_NONE = pair(math.log(0.625 / 0.375))

TRUE_CLAIMS = {
    "nothing": (pair(0.5), nothing),
    "nothing, ε = 0": (pair(0.0), nothing),
    **{f"randomised response {e}": (pair(e), randomised_response(e)) for e in (0.5, 1.0, 2.0)},
    "gaussian": (GAUSSIAN, gaussian(1.0)),
}
SCHEDULES = {"coins": one_by_coins, "alternating": alternating, "several canaries": several_by_coins}
each_truth = pytest.mark.parametrize("start,draw", TRUE_CLAIMS.values(), ids=TRUE_CLAIMS.keys())
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def test_false_alarms_and_effect_are_as_stated():
    for repetitions in (REPETITIONS, LONG_REPETITIONS):
        limit = math.floor(repetitions * largest_share(repetitions) + 1e-9)
        assert binom.sf(limit, repetitions, ALPHA) < 0.005
    limit = math.floor(REPETITIONS * largest_share(REPETITIONS) + 1e-9)
    assert binom.sf(limit, REPETITIONS, EFFECT) > 0.99


def test_the_gaussian_is_on_the_edge_of_its_claim():
    epsilon = GAUSSIAN.epsilon
    assert float(GaussianCurve(1.0).delta(np.asarray(epsilon))) == pytest.approx(GAUSSIAN_DELTA)


# --- the level -------------------------------------------------------------------------------------------------------


@each_schedule
@each_truth
def test_a_true_claim_is_seldom_ever_refuted(start, draw, schedule):
    runs = ROWS if schedule is several_by_coins else RUNS
    assert holds(ever_refuted(start, draw, schedule, runs, seed=1), REPETITIONS)


def test_also_where_all_members_come_first():
    share = ever_refuted(pair(0.5), randomised_response(0.5), one_world_after_the_other, seed=2)
    assert holds(share, REPETITIONS)


def test_also_where_all_canaries_of_a_run_are_answered_or_none():
    assert holds(ever_refuted(ALL_OR_NONE, all_or_none, several_by_coins, ROWS, seed=3), REPETITIONS)


@pytest.mark.parametrize("schedule", [one_by_coins, several_by_coins], ids=["one canary", "several canaries"])
def test_also_where_everything_leaks_with_probability_delta(schedule):
    share = ever_refuted(pair(0.0, LEAK), tells_all, schedule, LONG, LONG_REPETITIONS, seed=4)
    assert holds(share, LONG_REPETITIONS)


def test_also_where_one_stops_at_the_best_moment():
    """Stop where the wealth first exceeds 3, else at the end: its mean stays at most 1, and p ≤ ALPHA stays rare."""
    start, draw = pair(0.5), randomised_response(0.5)
    rng, wealth, small = np.random.default_rng(5), [], 0
    for _ in range(REPETITIONS):
        member = several_by_coins(rng, ROWS)
        state, scores = start, draw(rng, member)
        for row, inside in zip(scores, member, strict=True):
            state = state.update(row, inside)
            if state.e_value > 3:
                break
        wealth.append(state.e_value)
        small += state.p_value <= ALPHA
    error = float(np.std(wealth)) / math.sqrt(REPETITIONS)
    assert np.mean(wealth) <= 1 + SIGMAS * error
    assert holds(small / REPETITIONS, REPETITIONS)


# --- broken twins: each must be caught by the same check -------------------------------------------------------------


def test_caught_canaries_of_one_run_multiplied():
    def one_after_the_other(state, scores, member):
        for score, inside in zip(scores, member, strict=True):
            state = state.update(score, inside)
        return state

    start, runs = pair(0.0, LEAK), ROWS
    assert holds(ever_refuted(start, tells_all, many_by_coins, runs, LONG_REPETITIONS, seed=4), LONG_REPETITIONS)
    share = ever_refuted(start, tells_all, many_by_coins, runs, LONG_REPETITIONS, seed=4, step=one_after_the_other)
    assert not holds(share, LONG_REPETITIONS)
    assert share > EFFECT


def test_caught_a_threshold_taken_from_the_round_itself():
    def peeking(state, scores, member):
        after = state.update(scores, member)
        if after.rounds == state.rounds:
            return after
        return replace(state, thresholds=betting._learned(after.past[-1:], state._payoff)).update(scores, member)

    share = ever_refuted(pair(0.5), nothing, one_by_coins, seed=1, step=peeking)
    assert not holds(share, REPETITIONS)
    assert share > EFFECT


def test_caught_a_threshold_learned_from_the_past_and_the_round_itself():
    def peeking(state, scores, member):
        after = state.update(scores, member)
        if after.rounds == state.rounds or after.rounds > 20:
            return after
        return replace(state, thresholds=betting._learned(after.past, state._payoff)).update(scores, member)

    share = ever_refuted(pair(0.0), nothing, one_by_coins, seed=1, step=peeking)
    assert not holds(share, REPETITIONS)
    assert share > EFFECT


def test_caught_a_stake_chosen_after_the_score(monkeypatch):
    honest = betting._log_factors
    monkeypatch.setattr(betting, "_log_factors", lambda *a: np.maximum(honest(*a), 0.0))
    share = ever_refuted(pair(0.5), randomised_response(0.5), one_by_coins, LONG, LONG_REPETITIONS, seed=1)
    assert not holds(share, LONG_REPETITIONS)
    assert share > 2 * EFFECT


def test_caught_a_dropped_delta():
    dropped = replace(pair(0.0, LEAK), delta=0.0)
    share = ever_refuted(dropped, tells_all, several_by_coins, LONG, LONG_REPETITIONS, seed=4)
    assert not holds(share, LONG_REPETITIONS)
    assert share > EFFECT


def test_caught_half_of_the_claimed_epsilon():
    halved = replace(pair(2.0), epsilon=1.0)
    share = ever_refuted(halved, randomised_response(2.0), several_by_coins, LONG, LONG_REPETITIONS, seed=1)
    assert not holds(share, LONG_REPETITIONS)
    assert share > 2 * EFFECT


# --- power -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Runs until refuted, per sequence; infinite where it was not within the limit."""

    runs: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, start: Betting, draw: Draw, schedule: Schedule, limit: int, repetitions: int, seed: int) -> Times:
        rng, runs, pairs = np.random.default_rng(seed), [], []
        for _ in range(repetitions):
            member = schedule(rng, limit)
            state, scores = start, draw(rng, member)
            for row, inside in zip(scores, member, strict=True):
                state = state.update(row, inside)
                if state.refuted:
                    break
            runs.append(state.runs if state.refuted else math.inf)
            pairs.append(state.pairs if state.refuted else math.inf)
        return cls(np.array(runs), np.array(pairs))


@pytest.mark.parametrize("schedule", [alternating, one_by_coins, several_by_coins])
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_a_perfect_attacker_is_always_caught_close_to_the_floor(epsilon, schedule):
    start = pair(epsilon)
    times = Times.of(start, perfect, schedule, 5 * start.floor, POWER_REPETITIONS // 4, seed=0)
    assert np.all(times.pairs <= 1.8 * start.floor)
    assert schedule is several_by_coins or np.all(times.pairs >= start.floor)


@pytest.mark.parametrize("schedule", [one_by_coins, several_by_coins], ids=["one canary", "several canaries"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_twice_the_claim_is_caught(epsilon, schedule):
    """Three sequences of four within 4 times the runs that the best constant bet needs, half within 2.6 times."""
    start, truth = pair(epsilon), Claim.pair(epsilon=2 * epsilon, delta=0.0)
    width = schedule(np.random.default_rng(0), 1).shape[1]
    expected = replace(start, canaries=width).expected_runs(truth)
    draw = randomised_response(2 * epsilon)
    times = Times.of(start, draw, schedule, math.ceil(4 * expected), POWER_REPETITIONS, seed=6)
    assert np.mean(np.isfinite(times.runs)) >= 0.75
    assert np.median(times.runs) <= 2.6 * expected


def test_expected_runs_are_what_the_best_constant_bet_needs():
    """The best stake and threshold, known beforehand and never changed: the mean time is as computed, within 15 %."""
    start, truth = pair(1.0), Claim.pair(epsilon=2.0, delta=0.0)
    stake, cut = 0.83, 0.5  # of the largest stake; both from the closed form for randomised response
    rng, times = np.random.default_rng(7), []
    for _ in range(10 * POWER_REPETITIONS):
        x, y = (randomised_response(2.0)(rng, np.full(2000, side)) > cut for side in (True, False))
        wealth = np.cumsum(np.log1p(stake * start._pair.scale * start._pair(x, y)))
        times.append(2 * (1 + np.argmax(wealth >= math.log(1 / ALPHA))))
    assert np.mean(times) == pytest.approx(start.expected_runs(truth), rel=0.15)


# --- resume ----------------------------------------------------------------------------------------------------------


def test_stopping_and_resuming_at_every_run_changes_nothing():
    rng = np.random.default_rng(8)
    member = several_by_coins(rng, ROWS)
    scores, through, stored = gaussian(1.0)(rng, member), GAUSSIAN, GAUSSIAN
    for row, inside in zip(scores, member, strict=True):
        order = rng.permutation(CANARIES)
        through = through.update(row, inside)
        stored = Betting.of(json.loads(json.dumps(stored.update(row[order], inside[order]).document())))
        assert stored == through


# --- LiDP: measured, not promised ------------------------------------------------------------------------------------


def test_how_often_lidp_exceeds_is_printed(capsys):
    rows = {
        "randomised response 0": (randomised_response(0.0), 0.0),
        "randomised response 2": (randomised_response(2.0), 2.0),
    }
    rows["all or none"] = (all_or_none, ALL_OR_NONE.epsilon)
    for name, (draw, truth) in rows.items():
        rng, repetitions = np.random.default_rng(9), REPETITIONS // 2
        values = []
        for _ in range(repetitions):
            member = rng.random((100, CANARIES)) < 0.5
            values.append(bounds.lidp(Observations(draw(rng, member), member), threshold=bounds.Fixed(0.5)).epsilon)
        with capsys.disabled():
            share = float(np.mean(np.array(values) > truth))
            print(
                f"\nlidp, {name}: exceeds {truth:.2f} in {share:.1%} of {repetitions}, median {np.median(values):.2f}"
            )
