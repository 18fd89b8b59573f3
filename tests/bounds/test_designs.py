"""Which bound takes which design, ties, thinning, and what is counted."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from dpaudit import Claim, Design, Observations, bounds
from dpaudit.bounds.designs import fair_coins
from dpaudit.bounds.guessing import guess
from dpaudit.errors import DesignError

DELTA = 1e-5
FALSE_ALARM = 1e-4
MANY = (40, 6)
BOUNDS = {
    "clopper_pearson": lambda obs: bounds.clopper_pearson(obs, delta=DELTA, threshold=bounds.Fixed(0.5)),
    "one_run": lambda obs: bounds.one_run(obs, 4, delta=DELTA),
    "one_run_fdp": lambda obs: bounds.one_run_fdp(obs, 4, delta=DELTA),
    "one_run_fdp of a pair": lambda obs: bounds.one_run_fdp(obs, 4, Claim.pair(epsilon=1, delta=DELTA), delta=DELTA),
}
RUNS, COINS = {"clopper_pearson"}, {"one_run", "one_run_fdp", "one_run_fdp of a pair"}
ALL = RUNS | COINS
TABLE = [
    (Design(), MANY, ALL),
    (Design(calibration="set-aside"), MANY, ALL),
    (Design(calibration="cross"), MANY, set()),
    (Design(inclusion=0.3), MANY, RUNS),
    (Design(coins="fixed"), MANY, ALL),
    (Design(coins="fixed", inclusion=0.3), MANY, ALL),
    (Design(coins="fixed", calibration="cross"), MANY, set()),
    (Design(coins="unknown"), MANY, ALL),
    (Design(coins="unknown", inclusion=0.3), MANY, RUNS),
    (Design(coins="worlds"), MANY, set()),
    (Design(coins="worlds"), (240, 1), RUNS),
    (Design(coins="fair"), (240, 1), ALL),
    (Design(coins="fixed"), (240, 1), RUNS),
    (Design(coins="fair"), (1, 240), COINS),
    (Design(coins="fixed"), (1, 240), COINS),
    (Design(coins="unknown"), (1, 240), COINS),
]


def observed(design: Design, shape: tuple[int, int]) -> Observations:
    rng = np.random.default_rng(3)
    return Observations(rng.normal(size=shape), rng.random(shape) < 0.45, design=design)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("design,shape,valid", TABLE)
def test_each_bound_takes_the_designs_that_it_is_valid_for(name, design, shape, valid):
    obs = observed(design, shape)
    if name in valid:
        assert BOUNDS[name](obs).epsilon >= 0
    else:
        with pytest.raises(DesignError):
            BOUNDS[name](obs)


@pytest.mark.parametrize("name", BOUNDS)
def test_unknown_designs_give_a_conditional_bound(name):
    assert any("conditional" in note for note in BOUNDS[name](observed(Design(coins="unknown"), MANY)).notes)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(
    "coins,adjacency,tested",
    [
        ("fair", "add-remove", "add-remove"),
        ("fair", "zero-out", "zero-out"),
        ("fixed", "add-remove", "replace-one"),
        ("fixed", "replace-one", "two replace-one"),
        ("fixed", "zero-out", "two zero-out"),
    ],
)
def test_a_bound_names_the_neighbours_that_were_tested(name, coins, adjacency, tested):
    assert BOUNDS[name](observed(Design(coins=coins, adjacency=adjacency), MANY)).adjacency == tested


def test_a_fixed_single_canary_keeps_its_neighbours():
    bound = BOUNDS["clopper_pearson"](observed(Design(coins="fixed"), (240, 1)))
    assert bound.adjacency == "add-remove"


def coins(scores, member, present=None):
    return fair_coins(Observations(scores, member, present=present), "test")


def test_guesses_are_the_highest_and_the_lowest():
    got = guess(coins([5, 4, 3, 2, 1, 0], [1, 0, 1, 0, 1, 0]), 4)
    assert (got.high, got.high_right, got.low, got.low_right) == (2, 1, 2, 1)


def test_an_odd_number_of_guesses_pays_for_the_one_that_is_not_made():
    got = guess(coins([5, 4, 3, 2, 1, 0], [1, 0, 1, 0, 1, 0]), 5)
    assert (got.planned, got.made) == (5, 4)


def test_entries_tied_across_a_cut_abstain_and_are_paid_for():
    got = guess(coins([9, 5, 5, 5, 2, 2], [1, 1, 0, 1, 0, 0]), 4)
    assert (got.planned, got.high, got.low) == (4, 1, 2)
    assert got.counts() == {"coins": 6, "guesses": 4, "made": 3, "correct": 3}


def test_ties_inside_the_cut_are_all_guessed():
    got = guess(coins([9, 9, 5, 4, 2, 2], [1, 0, 0, 1, 0, 0]), 4)
    assert (got.high, got.low) == (2, 2)


def test_constant_scores_guess_nothing_and_show_nothing():
    obs = Observations(np.zeros(50), np.arange(50) < 20)
    assert guess(fair_coins(obs, "test"), 50).made == 0
    assert bounds.one_run(obs, 50).epsilon == 0
    assert bounds.one_run_fdp(obs, 50, delta=DELTA).epsilon == 0


def test_pairs_never_scored_are_counted_and_not_guessed():
    present = np.arange(10) > 1
    got = guess(coins(np.arange(10.0)[::-1], np.arange(10) < 5, present), 10)
    assert (got.coins, got.planned, got.made) == (10, 10, 8)
    assert (got.high, got.high_right) == (4, 3)


def test_fewer_scores_than_guesses():
    present = np.isin(np.arange(10), (0, 9))
    got = guess(coins(np.arange(10.0)[::-1], np.arange(10) < 5, present), 10)
    assert (got.planned, got.made, got.right) == (10, 2, 2)


def test_a_missing_score_never_raises_a_bound():
    rng = np.random.default_rng(0)
    member = rng.random(400) < 0.5
    scores = member * 4 + rng.normal(size=400)
    whole = bounds.one_run(Observations(scores, member), 100, delta=DELTA).epsilon
    for share in (0.1, 0.5, 0.9):
        present = rng.random(400) > share
        assert bounds.one_run(Observations(scores, member, present=present), 100, delta=DELTA).epsilon <= whole + 1e-9


def test_runs_are_pooled():
    rng = np.random.default_rng(0)
    member = rng.random((20, 30)) < 0.5
    scores = member + rng.normal(size=member.shape)
    pooled = bounds.one_run(Observations(scores, member), 60, delta=DELTA)
    flat = bounds.one_run(Observations(scores.ravel(), member.ravel()), 60, delta=DELTA)
    assert (pooled.epsilon, pooled.counts) == (flat.epsilon, flat.counts)


@given(seed=st.integers(0, 10_000), levels=st.integers(1, 6), guesses=st.integers(2, 24))
@settings(max_examples=40, deadline=None)
def test_row_order_never_matters(seed, levels, guesses):
    rng = np.random.default_rng(seed)
    scores, member = rng.integers(0, levels, (6, 4)).astype(float), rng.random((6, 4)) < 0.4
    member[0, :2] = True, False
    rows, columns = rng.permutation(6), rng.permutation(4)
    for design in (Design(), Design(coins="fixed")):
        first = Observations(scores, member, design=design)
        moved = Observations(scores[rows][:, columns], member[rows][:, columns], design=design)
        a, b = (guess(c, min(guesses, len(c))) for c in (fair_coins(o, "test") for o in (first, moved)) if len(c) > 1)
        assert a == b


def fixed(scores: np.ndarray, member: np.ndarray) -> Observations:
    return Observations(scores, member, design=Design(coins="fixed"))


def test_thinning_gives_fair_coins():
    # Four canaries, two of them members: 2 coins are kept, and each of 6 × 4 (pair, pattern) is as likely as another.
    repetitions, rng, seen = 6000, np.random.default_rng(0), Counter()
    for _ in range(repetitions):
        member = rng.permutation([True, True, False, False])
        scores = np.arange(4) + rng.random(4) / 2
        kept = fair_coins(fixed(scores, member), "test")
        seen[tuple(sorted(zip(np.floor(kept.scores).astype(int), kept.member, strict=True)))] += 1
    assert len(seen) == 24
    assert chisquare(list(seen.values())).pvalue > FALSE_ALARM


def test_thinning_draws_anew_for_new_scores():
    rng = np.random.default_rng(0)
    heads = {
        int(fair_coins(fixed(rng.normal(size=40), rng.permutation(np.arange(40) < 20)), "test").member.sum())
        for _ in range(30)
    }
    assert len(heads) > 4  # one seed for all would always give the same number


def test_thinning_is_the_same_every_time():
    rng = np.random.default_rng(0)
    obs = fixed(rng.normal(size=(5, 8)), rng.permuted(np.tile(np.arange(8) < 3, (5, 1)), axis=1))
    a, b = (fair_coins(obs, "test") for _ in range(2))
    assert np.array_equal(a.scores, b.scores) and np.array_equal(a.member, b.member)


def test_thinning_keeps_as_many_as_the_smaller_count_and_says_so():
    rng = np.random.default_rng(0)
    obs = fixed(rng.normal(size=(5, 8)), rng.permuted(np.tile(np.arange(8) < 3, (5, 1)), axis=1))
    kept = fair_coins(obs, "test")
    assert len(kept) == 15
    assert kept.notes == ("thinned from 40 fixed to 15 fair coins (seed 0 and the scores)",)


def test_identical_runs_are_thinned_apart():
    member = np.tile([True, False], (200, 1))
    kept = fair_coins(fixed(np.zeros((200, 2)), member), "test")
    assert abs(kept.member.mean() - 0.5) < 4 * 0.5 / math.sqrt(200)


@pytest.mark.parametrize("member", [[[1, 1], [0, 0]], [[1, 0, 0]]])
def test_fixed_counts_without_two_fair_coins(member):
    with pytest.raises(DesignError, match="fair coins"):
        fair_coins(fixed(np.arange(np.size(member), dtype=float).reshape(np.shape(member)), np.array(member)), "test")
