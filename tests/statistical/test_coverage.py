"""Do the bounds hold their level, and would this suite notice if they did not?

Every check draws ``REPETITIONS`` data sets (ten times as many with DPAUDIT_FULL=1) from a mechanism whose ε is known
exactly, and counts how often a bound exceeds it. A bound passes if that share is at most ``ALPHA`` plus ``SIGMAS``
standard errors.

False alarms: a bound whose true rate is exactly ``ALPHA`` fails one check with probability 0.4 % (0.2 % at 4,000
repetitions). Most rates are far lower, since bounds are conservative. Seeds are fixed, so a passing suite keeps
passing; were all seeds drawn anew and every bound tight, two suites in five would raise a false alarm.
Effect: a rate of 12 % is caught with probability 98 %. Each broken twin below is at least about that bad, and must be
caught by the very same check.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

import dpaudit
from dpaudit import Claim, Design, Observations, Verdict, bounds
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.bounds import corner, planning, ranks, steinke, two_worlds
from dpaudit.bounds.designs import fair_coins
from dpaudit.bounds.guessing import guess
from dpaudit.records import PlannedTest

FULL = bool(os.environ.get("DPAUDIT_FULL"))
ALPHA, SIGMAS = 0.05, 3.0
REPETITIONS = 4000 if FULL else 400
SLOW_REPETITIONS = 3000 if FULL else 300  # a whole audit in each
DELTA = 1e-5
TIE_FREE = 0.1
WORLD = 150  # runs with the canary, and as many without
COINS, GUESSES = 200, 60
RUNS, CANARIES = 20, 10

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning"),  # one fair run in 18 has exact halves
]

Mechanism = Callable[[np.random.Generator], Observations]
Exceeds = Callable[[Observations], float]


def exceedance(bound: Exceeds, mechanism: Mechanism, truth: float, repetitions: int, seed: int) -> float:
    """The share of data sets of ``mechanism`` on which ``bound`` is above ``truth``."""
    rng = np.random.default_rng(seed)
    return sum(bound(mechanism(rng)) > truth for _ in range(repetitions)) / repetitions


def largest_share(repetitions: int, alpha: float = ALPHA) -> float:
    """What a valid bound may show: its level plus ``SIGMAS`` standard errors."""
    return alpha + SIGMAS * math.sqrt(alpha * (1 - alpha) / repetitions)


def holds(share: float, repetitions: int) -> bool:
    """The one check that every bound must pass and every broken twin must fail."""
    return share <= largest_share(repetitions)


# --- mechanisms with known ε -----------------------------------------------------------------------------------------


def channel(draw: Callable, runs: int = 1, canaries: int = COINS, offset: float = 0.0) -> Mechanism:
    """Fair coins through ``draw(rng, member)``, with a random offset shared by all scores of a run."""

    def mechanism(rng: np.random.Generator) -> Observations:
        member = rng.random((runs, canaries)) < 0.5
        return Observations(draw(rng, member) + offset * rng.normal(size=(runs, 1)), member)

    return mechanism


def worlds(draw: Callable, runs: int = WORLD) -> Mechanism:
    """So many runs with one canary and as many without."""
    member = np.repeat([True, False], runs)[:, None]

    def mechanism(rng: np.random.Generator) -> Observations:
        return Observations(draw(rng, member), member, design=Design(coins="worlds"))

    return mechanism


def randomised_response(epsilon: float) -> Callable:
    """Says the truth with probability e^ε / (1 + e^ε), plus noise that knows nothing but breaks ties."""

    def draw(rng, member):
        right = rng.random(member.shape) < expit(epsilon)
        return (member == right) + TIE_FREE * rng.random(member.shape)

    return draw


def gaussian(mu: float) -> Callable:
    return lambda rng, member: mu * member + rng.normal(size=member.shape)


MIXTURE_ERROR = 0.25
# Of a canary the outputs "nothing", "in", "out" have probabilities ½, (1 − e) / 2, e / 2: ln 3 pure DP, but for δ.
MIXTURE_EPSILON = math.log((1 - MIXTURE_ERROR - 2 * DELTA) / MIXTURE_ERROR)
# The corner where two of the lines of its trade-off function meet gives its exact μ: 0.832, not 1.
MIXTURE_MU = float(norm.ppf(1 - MIXTURE_ERROR / 2) - norm.ppf(0.5 + MIXTURE_ERROR / 2))


def all_or_nothing(rng, member):
    """With probability ½ per run every canary is answered with 25 % error; else nothing is said."""
    speaks = rng.random((len(member), 1)) < 0.5
    right = rng.random(member.shape) < np.where(speaks, 1 - MIXTURE_ERROR, 0.5)
    return (member == right) + TIE_FREE * rng.random(member.shape)


SUBSAMPLED = {"noise_multiplier": 0.8, "sampling_rate": 0.3, "steps": 4}


def subsampled_gaussian(rng, member):
    """All iterates of a composed, Poisson-sampled Gaussian, scored by their exact log-likelihood ratio."""
    noise, rate, steps = SUBSAMPLED.values()
    sampled = rng.random((steps, *member.shape)) < rate
    seen = member * sampled + noise * rng.normal(size=sampled.shape)
    return np.log1p(rate * np.expm1((2 * seen - 1) / (2 * noise**2))).sum(axis=0)


def tells_all_with(probability: float) -> Callable:
    """Everything with this probability and nothing else: (0, ``probability``)-DP, and every guess right at once."""

    def draw(rng, member):
        return member * (rng.random() < probability) + TIE_FREE * rng.random(member.shape)

    return draw


def tells_each_with(probability: float) -> Callable:
    """Each coin with this probability, and else nothing: (0, ``probability``)-DP, and the surest guesses are right."""

    def draw(rng, member):
        told = rng.random(member.shape) < probability
        return np.where(told, np.where(member, 2.0, -2.0), 0.0) + TIE_FREE * rng.random(member.shape)

    return draw


def gaussian_epsilon(mu: float) -> float:
    return float(GaussianCurve(mu).epsilon(np.asarray(DELTA)))


CHANNELS = {
    **{f"randomised response {e}": (randomised_response(e), float(e)) for e in (0, 0.5, 1, 2, 4)},
    **{f"gaussian {mu}": (gaussian(mu), gaussian_epsilon(mu)) for mu in (0.5, 1.0, 2.0)},
    "all or nothing": (all_or_nothing, MIXTURE_EPSILON),
}
LAYOUTS = {
    "one run": {},
    "runs × canaries": {"runs": RUNS, "canaries": CANARIES},
    "offset per run": {"runs": RUNS, "canaries": CANARIES, "offset": 0.3},
}
each_channel = pytest.mark.parametrize("draw,truth", CHANNELS.values(), ids=CHANNELS.keys())
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def test_the_truth_of_the_mixture():
    inside = np.array([0.5, (1 - MIXTURE_ERROR) / 2, MIXTURE_ERROR / 2])
    outside = inside[[0, 2, 1]]
    assert np.maximum(inside - np.exp(MIXTURE_EPSILON) * outside, 0).sum() == pytest.approx(DELTA)
    fpr = np.linspace(0, 1, 1001)
    corners = np.interp(fpr, np.cumsum([0, *outside[[1, 0, 2]]]), 1 - np.cumsum([0, *inside[[1, 0, 2]]]))
    assert np.all(corners >= GaussianCurve(MIXTURE_MU).fnr(fpr) - 1e-9)
    assert np.any(corners < GaussianCurve(MIXTURE_MU - 0.01).fnr(fpr))


def test_false_alarms_and_effect_are_as_stated():
    limit = math.floor(REPETITIONS * largest_share(REPETITIONS) + 1e-9)
    assert binom.sf(limit, REPETITIONS, ALPHA) < 0.004
    assert binom.sf(limit, REPETITIONS, 0.12) > 0.98


# --- two worlds ------------------------------------------------------------------------------------------------------

POLICIES = {
    "fixed": bounds.Fixed(0.5),
    "split": bounds.Split(),
    "split, seed 189": bounds.Split(0.4, seed=189),
    "bonferroni": bounds.Bonferroni(np.linspace(-1, 3, 9)),
    "ranks": bounds.Ranks(),
}


@each_channel
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_clopper_pearson(policy, draw, truth):
    def bound(obs: Observations) -> float:
        return bounds.clopper_pearson(obs, delta=DELTA, significance=ALPHA, threshold=policy).epsilon

    assert holds(exceedance(bound, worlds(draw), truth, REPETITIONS, seed=1), REPETITIONS)


def test_clopper_pearson_over_several_canaries():
    def bound(obs: Observations) -> float:
        return bounds.clopper_pearson(obs, delta=DELTA, significance=ALPHA, threshold=bounds.Fixed(0.5)).epsilon

    mechanism = channel(randomised_response(1.0), runs=2 * WORLD, canaries=8)
    assert holds(exceedance(bound, mechanism, 1.0, REPETITIONS, seed=2), REPETITIONS)


# --- one run, and runs × canaries ------------------------------------------------------------------------------------


def remembered(bound_of: Exceeds, *guesses: int) -> Exceeds:
    """A bound from guesses depends on the numbers of right ones alone: compute it once for each."""
    known: dict[tuple[int, ...], float] = {}

    def bound(obs: Observations) -> float:
        coins = fair_coins(obs, "coverage")
        right = tuple(guess(coins, k).right for k in guesses or (GUESSES,))
        if right not in known:
            known[right] = bound_of(obs)
        return known[right]

    return bound


def by_steinke(obs: Observations, guesses: int = GUESSES) -> float:
    return bounds.one_run(obs, guesses, delta=DELTA, significance=ALPHA).epsilon


@each_layout
@each_channel
def test_one_run(layout, draw, truth):
    bound = remembered(by_steinke)
    assert holds(exceedance(bound, channel(draw, **layout), truth, REPETITIONS, seed=3), REPETITIONS)


@pytest.mark.parametrize("probability", [0.02, 0.15])
def test_one_run_pays_for_delta(probability):
    def bound(obs: Observations) -> float:
        return bounds.one_run(obs, GUESSES, delta=probability, significance=ALPHA).epsilon

    mechanism = channel(tells_all_with(probability))
    assert holds(exceedance(bound, mechanism, 0.0, REPETITIONS, seed=4), REPETITIONS)


@each_layout
@each_channel
def test_one_run_fdp_of_the_pair_family_holds_for_any_mechanism(layout, draw, truth):
    claim = Claim.pair(epsilon=1.0, delta=DELTA)
    bound = remembered(lambda obs: bounds.one_run_fdp(obs, GUESSES, claim, delta=DELTA, significance=ALPHA).epsilon)
    assert holds(exceedance(bound, channel(draw, **layout), truth, REPETITIONS, seed=5), REPETITIONS)


@each_layout
@pytest.mark.parametrize(
    "draw,mu",
    [(gaussian(0.5), 0.5), (gaussian(1.0), 1.0), (gaussian(2.0), 2.0), (all_or_nothing, MIXTURE_MU)],
    ids=["gaussian 0.5", "gaussian 1", "gaussian 2", "all or nothing"],
)
def test_one_run_fdp_of_the_gaussian_family_holds_within_it(layout, draw, mu):
    bound = remembered(lambda obs: bounds.one_run_fdp(obs, GUESSES, delta=DELTA, significance=ALPHA).epsilon)
    truth = gaussian_epsilon(mu)
    assert holds(exceedance(bound, channel(draw, **layout), truth, REPETITIONS, seed=6), REPETITIONS)


# --- whole audits ----------------------------------------------------------------------------------------------------

AUDITED = {
    "randomised response, its pair": (randomised_response(1.0), Claim.pair(epsilon=1.0, delta=0.0), 0.0),
    "randomised response, with δ": (randomised_response(2.0), Claim.pair(epsilon=2.0, delta=DELTA), DELTA),
    "nothing, its pair": (randomised_response(0.0), Claim.pair(epsilon=0.0, delta=DELTA), DELTA),
    "gaussian, its curve": (gaussian(1.0), Claim.gaussian(noise_multiplier=1.0), DELTA),
    "all or nothing, its pair": (all_or_nothing, Claim.pair(epsilon=math.log(3), delta=0.0), 0.0),
    "all or nothing, its curve": (all_or_nothing, Claim.gaussian(noise_multiplier=1 / MIXTURE_MU), DELTA),
    "subsampled, its curve": (subsampled_gaussian, Claim.dp_sgd(**SUBSAMPLED), DELTA),
}
each_audit = pytest.mark.parametrize("draw,claim,delta", AUDITED.values(), ids=AUDITED.keys())
LIST = [PlannedTest("guesses", 0.7, GUESSES), PlannedTest("guesses", 0.3, 20)]


@pytest.fixture
def verdict_only(monkeypatch):
    """Power and the bounds of the recipe take most of the time of an audit, and are no part of what is counted here."""

    def steinke_instead(obs, guesses, *, claim, **levels):
        return bounds.one_run(obs, guesses, **levels)

    def clopper_pearson_instead(obs, claim, **levels):
        return bounds.clopper_pearson(obs, **levels)

    monkeypatch.setattr(planning, "test_power", lambda *_: 1.0)
    monkeypatch.setattr(ranks, "order_statistics", steinke_instead)
    monkeypatch.setattr(corner, "claimed_family", clopper_pearson_instead)


def fails(claim: Claim, delta: float, truth: float, tests=None) -> Exceeds:
    """1 where a true claim is called violated or the lower bound exceeds the truth, else 0."""

    def bound(obs: Observations) -> float:
        judged = dpaudit.audit(obs, claim, delta=delta, significance=ALPHA, tests=tests)
        assert (judged.verdict is Verdict.VIOLATED) == (judged.p_value <= ALPHA)
        return float(judged.verdict is Verdict.VIOLATED or judged.lower > truth)

    return bound


@each_audit
def test_an_audit_of_coins(draw, claim, delta, verdict_only):
    mechanism = channel(draw, runs=RUNS, canaries=CANARIES)
    tests = LIST if claim.kind == "pair" else LIST[:1]
    bound = remembered(fails(claim, delta, claim.epsilon(delta), tests), *(t.guesses for t in tests))
    assert holds(exceedance(bound, mechanism, 0.5, SLOW_REPETITIONS, seed=7), SLOW_REPETITIONS)


@each_audit
def test_an_audit_of_two_worlds(draw, claim, delta, verdict_only):
    bound = fails(claim, delta, claim.epsilon(delta))
    assert holds(exceedance(bound, worlds(draw), 0.5, REPETITIONS, seed=8), REPETITIONS)


def exact_halves(draw: Callable, runs: int, canaries: int, coins: str) -> Mechanism:
    """In every run exactly half of the canaries are members."""

    def mechanism(rng: np.random.Generator) -> Observations:
        member = rng.permuted(np.tile(np.arange(canaries) < canaries // 2, (runs, 1)), axis=1)
        return Observations(draw(rng, member), member, design=Design(coins=coins))

    return mechanism


def one_of_each(rng, member):
    """A useless attack that knows one thing: of two canaries, one is in and one is out."""
    first = rng.random((len(member), 1)) < 0.5
    return np.hstack([first, ~first]) + TIE_FREE * rng.random(member.shape)


def test_fixed_counts_are_thinned(verdict_only):
    claim = Claim.pair(epsilon=0.0, delta=0.0)
    tests = [PlannedTest("guesses", 1.0, 2 * RUNS)]
    bound = remembered(fails(claim, 0.0, 0.0, tests), 2 * RUNS)
    mechanism = exact_halves(one_of_each, 2 * RUNS, 2, "fixed")
    assert holds(exceedance(bound, mechanism, 0.5, SLOW_REPETITIONS, seed=9), SLOW_REPETITIONS)


# --- broken twins: each must be caught by the same check -------------------------------------------------------------


def test_caught_a_scan_over_guesses_and_signals():
    numbers, coins = (10, 20, 40, 70, 120, 200, 330, 550, 1000), 1000

    def both_signals(rng: np.random.Generator) -> Observations:
        return Observations(rng.random((2, coins)), np.tile(rng.random(coins) < 0.5, (2, 1)))

    def bound(obs: Observations) -> float:
        signals = [Observations(scores, member) for scores, member in zip(obs.scores, obs.member, strict=True)]
        return max(by_steinke(signal, k) for signal in signals for k in numbers)

    share = exceedance(bound, both_signals, 0.0, REPETITIONS, seed=10)
    assert not holds(share, REPETITIONS)
    assert share > 0.25


def test_caught_a_dropped_delta_term(monkeypatch):
    probability = 0.15

    def bound(obs: Observations) -> float:
        return bounds.one_run(obs, GUESSES, delta=probability, significance=ALPHA).epsilon

    monkeypatch.setattr(steinke, "_densest", lambda *_: 0.0)
    share = exceedance(bound, channel(tells_all_with(probability)), 0.0, REPETITIONS, seed=4)
    assert not holds(share, REPETITIONS)


def test_caught_a_delta_term_that_counts_guesses_only(monkeypatch):
    coins, guesses, probability = 2000, 8, 0.01
    mechanism = channel(tells_each_with(probability), canaries=coins)

    def bound(obs: Observations) -> float:
        return bounds.one_run(obs, guesses, delta=probability, significance=ALPHA).epsilon

    assert holds(exceedance(bound, mechanism, 0.0, REPETITIONS, seed=16), REPETITIONS)
    p_value = steinke.p_value
    monkeypatch.setattr(steinke, "p_value", lambda _, guesses, *rest: p_value(guesses, guesses, *rest))
    assert not holds(exceedance(bound, mechanism, 0.0, REPETITIONS, seed=16), REPETITIONS)


def test_caught_a_tail_off_by_one(monkeypatch):
    at_most = steinke.at_most
    monkeypatch.setattr(steinke, "at_most", lambda wrong, *rest: at_most(max(wrong - 1, 0), *rest))

    def bound(obs: Observations) -> float:
        return bounds.one_run(obs, 10, significance=ALPHA).epsilon

    share = exceedance(bound, channel(randomised_response(1.0)), 1.0, REPETITIONS, seed=11)
    assert not holds(share, REPETITIONS)


def test_caught_a_threshold_chosen_on_the_same_runs():
    # As published code does: the largest of all thresholds, with each of the two rates at the whole significance.
    thresholds = np.linspace(0, 1, 100)

    def bound(obs: Observations) -> float:
        tables = (two_worlds.confusions(obs, 0.0, ALPHA, bounds.Fixed(t))[0] for t in thresholds)
        return max(two_worlds.epsilon_lower(t, 0.0, 2 * ALPHA) for t in tables)

    mechanism = worlds(lambda rng, member: rng.random(member.shape), runs=500)
    assert not holds(exceedance(bound, mechanism, 0.0, REPETITIONS, seed=12), REPETITIONS)


def cross_calibrated(rng: np.random.Generator) -> Observations:
    """Two runs without any leak; each is guessed from the other's signal and coin, as if that were a set-aside shadow.

    Which way a canary's signal points is learnt from the other run: the guesses of both runs are right together.
    """
    member = rng.random((2, COINS)) < 0.5
    signal = rng.choice([-1.0, 1.0], member.shape)
    coin = np.where(member, 1.0, -1.0)
    scores = signal * (signal * coin)[::-1] + TIE_FREE * rng.random(member.shape)
    return Observations(scores, member, design=Design(calibration="set-aside"))


def test_caught_cross_calibrated_scores_declared_as_set_aside():
    repetitions = 5 * REPETITIONS

    def bound(obs: Observations) -> float:
        return by_steinke(obs, 2 * COINS)

    share = exceedance(bound, cross_calibrated, 0.0, repetitions, seed=13)
    assert not holds(share, repetitions)


def test_caught_fixed_counts_declared_as_fair_coins():
    repetitions = 2 * REPETITIONS

    def bound(obs: Observations) -> float:
        return by_steinke(obs, 8 * RUNS)

    share = exceedance(bound, exact_halves(one_of_each, 4 * RUNS, 2, "fair"), 0.0, repetitions, seed=14)
    assert not holds(share, repetitions)


def test_caught_a_gaussian_bound_on_randomised_response():
    # Read as a bound for any mechanism, the Gaussian family is wrong outside of it: never `any_mechanism`.
    bound = remembered(lambda obs: bounds.one_run_fdp(obs, GUESSES, delta=DELTA, significance=ALPHA).epsilon)
    assert not holds(exceedance(bound, channel(randomised_response(1.0)), 1.0, REPETITIONS, seed=15), REPETITIONS)


# --- power -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim,delta",
    [
        (Claim.pair(epsilon=1.0, delta=0.0), 0.0),
        (Claim.pair(epsilon=1.0, delta=DELTA), DELTA),
        (Claim.gaussian(noise_multiplier=2.0), DELTA),
        (Claim.dp_sgd(**{**SUBSAMPLED, "noise_multiplier": 2.0}), DELTA),
    ],
    ids=["pure pair", "pair", "gaussian", "dp-sgd"],
)
@pytest.mark.parametrize("layout", [channel, worlds], ids=["coins", "worlds"])
def test_a_perfect_leak_is_always_caught(layout, claim, delta, verdict_only):
    rng = np.random.default_rng(0)
    for _ in range(3):
        judged = dpaudit.audit(layout(lambda rng, m: m + TIE_FREE * rng.random(m.shape))(rng), claim, delta=delta)
        assert judged.verdict is Verdict.VIOLATED
        assert judged.p_value < 1e-4 and judged.lower > claim.epsilon(delta)


def test_twice_the_claim_is_caught_as_often_as_the_power_says():
    repetitions = 300 if FULL else 60
    claim = Claim.gaussian(noise_multiplier=1.3)
    mu = 1 / claim.leaking(2, DELTA).mechanism.noise_multiplier
    mechanism, tests = channel(gaussian(mu), canaries=400), [PlannedTest("guesses", 1.0, 60)]
    rng, caught, power = np.random.default_rng(0), 0, 0.0
    for _ in range(repetitions):
        judged = dpaudit.audit(mechanism(rng), claim, delta=DELTA, tests=tests)
        caught, power = caught + (judged.verdict is Verdict.VIOLATED), judged.power
    assert 0.1 < power < 0.99
    assert caught / repetitions == pytest.approx(power, abs=4 * math.sqrt(0.25 / repetitions))
