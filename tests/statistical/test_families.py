"""Bounds that name a family hold inside it and are wrong outside; the others hold however outputs depend on each other.

The check is that of ``test_coverage``: a bound passes if it exceeds the truth in at most ``ALPHA`` plus ``SIGMAS``
standard errors of the data sets. A bound whose true rate is exactly ``ALPHA`` fails one check in 300; seeds are fixed.
About twenty checks here are of exact tests, so new seeds would raise a false alarm in one suite of fifteen.
Effect: a rate of 14 % is caught with probability 98 % at 300 repetitions (12 % with certainty at 3,000); each broken
twin must be caught by the very same check.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from mechanisms import (
    DELTA,
    Known,
    Make,
    all_or_nothing,
    coins,
    exact_halves,
    gaussian,
    laplace,
    one_noisy_sum,
    public_levels,
    randomised_response,
    shared_offset,
    subsampled_gaussian,
    worlds,
)
from scipy.stats import binom, norm

import dpaudit
from dpaudit import Claim, Design, Observations, Verdict, bounds
from dpaudit.bounds import corner, planning, ranks, recursion, searching, steinke, two_worlds
from dpaudit.bounds.designs import fair_coins
from dpaudit.bounds.families import ClaimFamily, GaussianFamily, LaplaceFamily
from dpaudit.bounds.guessing import guess

FULL = bool(os.environ.get("DPAUDIT_FULL"))
ALPHA, SIGMAS = 0.05, 3.0
REPETITIONS = 3000 if FULL else 300
RUNS, CANARIES = 20, 10
WORLD = 150

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning"),  # one fair run in 18 has exact halves
]
Exceeds = Callable[[Observations], float]


def exceedance(bound: Exceeds, make: Make, truth: float, repetitions: int = REPETITIONS, seed: int = 0) -> float:
    """The share of data sets on which ``bound`` is above ``truth``."""
    rng = np.random.default_rng(seed)
    return sum(bound(make(rng)) > truth for _ in range(repetitions)) / repetitions


def holds(share: float, repetitions: int = REPETITIONS) -> bool:
    """The one check that every bound must pass and every broken twin must fail."""
    return share <= ALPHA + SIGMAS * math.sqrt(ALPHA * (1 - ALPHA) / repetitions)


def test_false_alarms_and_effect_are_as_stated():
    limit = max(k for k in range(REPETITIONS) if holds(k / REPETITIONS))
    assert binom.sf(limit, REPETITIONS, ALPHA) < 1 / 300
    assert binom.sf(limit, REPETITIONS, 0.14) > 0.98


# The same counts give the same bound, so that a bound is computed once for each.
COUNTED = (
    (steinke, "epsilon_lower"),
    (recursion, "largest_refuted"),
    (recursion, "expected_right"),
    (ranks, "parameter_lower"),
    (corner, "parameter_lower"),
    (GaussianFamily, "epsilon"),
)
REMEMBERED = [lru_cache(maxsize=None)(getattr(module, name)) for module, name in COUNTED]


@pytest.fixture(autouse=True)
def compute_once(monkeypatch):
    for (module, name), remembered in zip(COUNTED, REMEMBERED, strict=True):
        monkeypatch.setattr(module, name, remembered)
    monkeypatch.setattr(GaussianFamily, "tolerance", 1e-4)
    monkeypatch.setattr(LaplaceFamily, "tolerance", 1e-4)


@pytest.fixture
def only_whether_the_claim_falls(monkeypatch):
    """Of the claim's family: 1 where the claim itself is refuted, else less.

    A search begins with the claim itself; here it ends there too. ``tests/bounds/test_families.py`` shows that a
    smaller parameter never has a larger ε. In full, bounds are searched and converted as always.
    """
    if not FULL:
        monkeypatch.setattr(ClaimFamily, "tolerance", 1.0)
        monkeypatch.setattr(ClaimFamily, "epsilon", lambda _, parameter, delta: parameter)
        for (module, name), remembered in zip(COUNTED, REMEMBERED, strict=True):
            monkeypatch.setattr(module, name, lru_cache(maxsize=None)(remembered.__wrapped__))


def truth_of(known: Known) -> float:
    """What a bound is to be compared with under ``only_whether_the_claim_falls``."""
    own = any("claim" in told for told in known.families.values())
    return 1.0 - 1e-9 if own and not FULL else known.epsilon


# --- inside the family -----------------------------------------------------------------------------------------------

DP_SGD = subsampled_gaussian(0.8, 0.3, 4)
THRESHOLDS = {
    "fixed": bounds.Fixed(0.5),
    "split": bounds.Split(),
    "bonferroni": bounds.Bonferroni(np.linspace(-1, 3, 9)),
    "ranks": bounds.Ranks(),
}
GUESSES = {"tenth": 20, "all": 200, "several": (20, 60, 200), "split": bounds.Split()}
each_threshold = pytest.mark.parametrize("policy", THRESHOLDS.values(), ids=THRESHOLDS.keys())
each_number = pytest.mark.parametrize("guesses", GUESSES.values(), ids=GUESSES.keys())


@each_number
@pytest.mark.parametrize("middle", [False, True], ids=["half and half", "farthest"])
@pytest.mark.parametrize("known", [gaussian(0.5), gaussian(2.0), laplace(1.0), DP_SGD], ids=lambda k: k.name)
def test_order_statistics(known, middle, guesses, only_whether_the_claim_falls):
    told = {**known.families["order_statistics"], "threshold": bounds.Fixed(known.middle) if middle else None}
    truth = truth_of(known) if "claim" in told else known.epsilon

    def bound(obs: Observations) -> float:
        found = bounds.order_statistics(obs, guesses, delta=DELTA, significance=ALPHA, **told)
        assert not found.any_mechanism
        return found.epsilon

    assert holds(exceedance(bound, coins(known.draw, 1, RUNS * CANARIES), truth))


@each_threshold
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_gaussian(mu, policy):
    def bound(obs: Observations) -> float:
        return bounds.gaussian(obs, delta=DELTA, significance=ALPHA, threshold=policy).epsilon

    known = gaussian(mu)
    assert holds(exceedance(bound, worlds(known.draw, WORLD), known.epsilon, seed=1))


@each_threshold
@pytest.mark.parametrize("known", [gaussian(1.0), DP_SGD], ids=lambda k: k.name)
def test_claimed_family(known, policy, only_whether_the_claim_falls):
    def bound(obs: Observations) -> float:
        told = known.families["claimed_family"]
        return bounds.claimed_family(obs, **told, delta=DELTA, significance=ALPHA, threshold=policy).epsilon

    assert holds(exceedance(bound, worlds(known.draw, WORLD), truth_of(known), seed=2))


# --- any mechanism, however its outputs depend on each other ---------------------------------------------------------

DEPENDENT = [
    all_or_nothing(),
    public_levels(),
    shared_offset(randomised_response(1.0)),
    shared_offset(gaussian(1.0)),
    one_noisy_sum(1.0),
]
PAIR = Claim.pair(epsilon=1.0, delta=DELTA)
each_dependent = pytest.mark.parametrize("known", DEPENDENT, ids=lambda k: k.name)


def by_steinke(obs: Observations, guesses: int = 60) -> float:
    found = bounds.one_run(obs, guesses, delta=DELTA, significance=ALPHA)
    assert found.any_mechanism
    return found.epsilon


def by_pair_fdp(obs: Observations, guesses: int = 60) -> float:
    found = bounds.one_run_fdp(obs, guesses, PAIR, delta=DELTA, significance=ALPHA)
    assert found.any_mechanism
    return found.epsilon


each_guesser = pytest.mark.parametrize("bound", [by_steinke, by_pair_fdp])


@pytest.mark.parametrize("guesses", [20, (20, 60, 200), bounds.Split()], ids=["tenth", "several", "split"])
@each_guesser
@each_dependent
@pytest.mark.parametrize("runs", [1, RUNS], ids=["one run", "runs × canaries"])
def test_guesses_on_dependent_mechanisms(runs, known, bound, guesses):
    make = coins(known.draw, runs, RUNS * CANARIES // runs)
    assert holds(exceedance(lambda obs: bound(obs, guesses), make, known.epsilon, seed=3))


@each_threshold
@pytest.mark.parametrize("known", [DEPENDENT[0], DEPENDENT[2], DEPENDENT[4]], ids=lambda k: k.name)
def test_clopper_pearson_on_dependent_mechanisms(known, policy):
    def bound(obs: Observations) -> float:
        return bounds.clopper_pearson(obs, delta=DELTA, significance=ALPHA, threshold=policy).epsilon

    assert holds(exceedance(bound, coins(known.draw, WORLD, 4), known.epsilon, seed=4))


def one_of_each(rng, member):
    """A useless attack that knows one thing: of two canaries, one is in and one is out."""
    first = rng.random((len(member), 1)) < 0.5
    return np.hstack([first, ~first]) + 0.1 * rng.random(member.shape)


@each_number
@each_guesser
def test_members_chosen_by_an_exact_half(bound, guesses):
    known, number = randomised_response(1.0), 50 if guesses == 200 else guesses
    number = (10, 40) if isinstance(number, tuple) else number
    make = exact_halves(known.draw, RUNS, CANARIES)
    assert holds(exceedance(lambda obs: bound(obs, number), make, known.replaced, seed=5))
    make = exact_halves(one_of_each, 5 * RUNS, 2)
    assert holds(exceedance(lambda obs: bound(obs, number), make, 0.0, seed=6))


# --- outside the family ----------------------------------------------------------------------------------------------


def rejects(curve: dpaudit.accounting.Curve, guesses: int) -> Exceeds:
    """1 where order statistics refute a curve, else 0."""

    def bound(obs: Observations) -> float:
        right = bounds.order_statistics(obs, guesses, delta=DELTA).counts["correct"]
        return float(ranks.p_value(curve, obs.coins, guesses, int(right)) < ALPHA)

    return bound


def test_order_statistics_refute_an_all_or_nothing_mechanism_that_is_1_gdp_in_half_of_its_runs():
    share = exceedance(rejects(GaussianFamily().curve(1.0), 2000), coins(all_or_nothing().draw, 1, 2000), 0.5, seed=7)
    assert not holds(share)
    assert share == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("method", ["order", "fdp", "corner"])
def test_gaussian_bounds_are_always_wrong_on_laplace_scores(method):
    known, repetitions = laplace(1.0), 60

    def bound(obs: Observations) -> float:
        if method == "order":
            found = bounds.order_statistics(obs, obs.coins, delta=DELTA, threshold=bounds.Fixed(0.5))
        elif method == "fdp":
            found = bounds.one_run_fdp(obs, 400, delta=DELTA)
        else:
            found = bounds.gaussian(obs, delta=DELTA, threshold=bounds.Fixed(0.5))
        assert not found.any_mechanism
        return found.epsilon

    make = worlds(known.draw, 1000) if method == "corner" else coins(known.draw, 1, 2000)
    share = exceedance(bound, make, known.epsilon, repetitions, seed=8)
    assert share >= (0.2 if method == "fdp" else 1.0)


@pytest.fixture
def without_power(monkeypatch):
    """Power is no part of a bound or a p-value, and takes most of the time of an audit."""
    monkeypatch.setattr(planning, "test_power", lambda *_, **__: 1.0)


@pytest.mark.parametrize("layout", ["coins", "worlds"])
@pytest.mark.parametrize("known", [laplace(1.0), all_or_nothing()], ids=lambda k: k.name)
def test_what_is_wrong_outside_its_family_feeds_no_verdict(layout, known, without_power):
    """A true curve that the recipe's tests call false: the audit shows both, named, and says so in a note."""
    claim = Claim.gaussian(noise_multiplier=1.0)
    wrong, wrong_if_recipe, rng = 0, 0, np.random.default_rng(9)
    for _ in range(12):
        obs = (coins(known.draw, 1, 2000) if layout == "coins" else worlds(known.draw, 1000))(rng)
        judged = dpaudit.audit(obs, claim, delta=DELTA)
        anything = [b for b in judged.bounds if b.any_mechanism]
        recipe = [b for b in judged.bounds if not b.any_mechanism]
        assert anything and recipe
        assert all("family" in b.null and "family" in b.method for b in recipe)
        assert judged.lower == max(b.epsilon for b in anything)
        assert judged.lower_if_recipe == max(b.epsilon for b in recipe)
        for finding in judged.findings:
            assert "order statistics" not in finding.method and "family" not in finding.method
        assert judged.p_value > judged.significance and judged.verdict is not Verdict.VIOLATED
        assert (judged.lower_if_recipe > judged.upper) == any("under the recipe" in n for n in judged.notes)
        wrong += judged.lower > known.epsilon
        wrong_if_recipe += judged.lower_if_recipe > known.epsilon
    assert wrong <= 3  # more have probability 0.2 % at a rate of 5 %
    assert layout == "worlds" or wrong_if_recipe >= 3


def test_a_huge_bound_under_the_recipe_changes_nothing(monkeypatch, without_power):
    rng = np.random.default_rng(10)
    obs, claim = coins(gaussian(1.0).draw, 1, 400)(rng), Claim.gaussian(noise_multiplier=1.0)
    before = dpaudit.audit(obs, claim, delta=DELTA)
    real = ranks.order_statistics
    monkeypatch.setattr(ranks, "order_statistics", lambda *a, **k: replace(real(*a, **k), epsilon=99.0))
    after = dpaudit.audit(obs, claim, delta=DELTA)
    assert after.lower_if_recipe == 99.0
    assert (after.lower, after.p_value, after.verdict) == (before.lower, before.p_value, before.verdict)


# --- broken twins: each must be caught by the same check -------------------------------------------------------------


def test_caught_the_size_of_mu_without_its_sign(monkeypatch):
    def absolute(table: two_worlds.Confusion, _, level: float) -> float:
        fpr, fnr = table.limits(level)
        return float(abs(norm.isf(fpr) - norm.ppf(fnr)))

    def bound(obs: Observations) -> float:
        return bounds.gaussian(obs, delta=DELTA, significance=ALPHA, threshold=bounds.Fixed(0.0)).epsilon

    make = worlds(gaussian(1e-9).draw, WORLD)
    assert holds(exceedance(bound, make, 0.01, seed=11))
    monkeypatch.setattr(corner, "parameter_lower", absolute)
    assert not holds(exceedance(bound, make, 0.01, seed=11))


def test_caught_canaries_of_one_run_taken_for_runs():
    probability = 0.15

    def tells_all(rng, member):
        """Everything with this probability and nothing else: (0, ``probability``)-DP."""
        return member * (rng.random() < probability) + 0.1 * rng.random(member.shape)

    def bound(obs: Observations) -> float:
        flat = Observations(obs.scores.reshape(-1, 1), obs.member.reshape(-1, 1))
        at = bounds.Fixed(0.5)
        return bounds.clopper_pearson(flat, delta=probability, significance=ALPHA, threshold=at).epsilon

    assert not holds(exceedance(bound, coins(tells_all, 1, 2000), 0.0, seed=12))


def test_caught_a_number_of_guesses_chosen_by_the_scores():
    known, curve = gaussian(1.0), GaussianFamily().curve(1.0)
    p_value = lru_cache(maxsize=None)(lambda k, right: float(ranks.p_value(curve, RUNS * CANARIES, k, right)))

    def bound(obs: Observations) -> float:
        flipped = fair_coins(obs, "a twin")
        return float(min(p_value(k, guess(flipped, k).right) for k in range(2, RUNS * CANARIES + 1, 2)) < ALPHA)

    assert not holds(exceedance(bound, coins(known.draw, 1, RUNS * CANARIES), 0.5, seed=13))


def test_caught_a_split_that_bounds_from_the_coins_it_looked_at(monkeypatch):
    def bound(obs: Observations) -> float:
        return bounds.one_run(obs, bounds.Split(), significance=ALPHA).epsilon

    make = coins(randomised_response(0.0).draw, 1, 2 * RUNS * CANARIES)
    assert holds(exceedance(bound, make, 0.0, seed=14))
    monkeypatch.setattr(searching, "_part", lambda flipped, keep: flipped)
    assert not holds(exceedance(bound, make, 0.0, seed=14))


def many_tied(rng: np.random.Generator) -> tuple[np.ndarray, Callable[[float], float]]:
    """100 scores without the canary of which a quarter tie, and the probability of a score above each."""
    top, tied, n = 0.1024, 0.23, 100
    kind = rng.random(n)
    scores = np.where(kind < top, 2 + rng.random(n), np.where(kind < top + tied, 1.5, rng.random(n)))

    def above(score: float) -> float:
        if score >= 2:
            return top * (3 - score)
        return top if score >= 1 else top + tied + (1 - top - tied) * (1 - score)

    return scores, above


def test_caught_ranks_that_count_what_lies_above_under_ties():
    """The limit of the rate above the 30th highest score, at the count that the rank fixes and at the observed one."""
    repetitions, rank = 10 * REPETITIONS, 30

    def share(observed: bool) -> float:
        rng, wrong = np.random.default_rng(15), 0
        for _ in range(repetitions):
            scores, above = many_tied(rng)
            both, member = np.append(scores, 9.0), np.append(np.zeros(100, bool), True)
            value = np.sort(scores)[-rank]
            table = two_worlds._high_rank(both, member, np.sort(scores)[::-1], rank)
            table = two_worlds._count(both, member, value) if observed else table
            wrong += above(value) > table.limits(2 * ALPHA)[0]
        return wrong / repetitions

    assert holds(share(observed=False), repetitions)
    assert not holds(share(observed=True), repetitions)


# --- two runs that look at each other --------------------------------------------------------------------------------


def looking_across(epsilon: float, with_coins: bool) -> Make:
    """Two runs; which way a canary's signal points is not known, and the other run is asked.

    From the other's score alone a guess is a function of the outputs of one mechanism of twice as many coins. With the
    other's coin it is right or wrong together with the other's guess.
    """

    def make(rng: np.random.Generator) -> Observations:
        member = rng.random((2, RUNS * CANARIES)) < 0.5
        coin = np.where(member, 1.0, -1.0)
        right = rng.random(member.shape) < 1 / (1 + math.exp(-epsilon))
        signal = rng.choice([-1.0, 1.0], member.shape[1]) * coin * np.where(right, 1.0, -1.0)
        asked = (signal * coin)[::-1] if with_coins else signal[::-1]
        noise = 0.1 * rng.random(member.shape)
        return Observations(signal * asked + noise, member, design=Design(calibration="set-aside"))

    return make


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_a_guess_from_the_other_run_s_score_alone_is_allowed(epsilon):
    for bound in (by_steinke, by_pair_fdp):
        for guesses in (60, 2 * RUNS * CANARIES):
            make = looking_across(epsilon, with_coins=False)
            assert holds(exceedance(lambda obs, b=bound, k=guesses: b(obs, k), make, epsilon, seed=16))


def test_caught_a_guess_from_the_other_run_s_score_and_coin():
    repetitions = 5 * REPETITIONS
    make = looking_across(0.0, with_coins=True)
    share = exceedance(lambda obs: by_steinke(obs, 2 * RUNS * CANARIES), make, 0.0, repetitions, seed=17)
    assert not holds(share, repetitions)
