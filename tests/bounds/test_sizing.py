"""Sizes: the law of the guesses, the power at the number found, its neighbours, and what is out of reach."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Claim, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, PairCurve
from dpaudit.bounds import planning, sizing, steinke
from dpaudit.bounds.choices import Ranks
from dpaudit.bounds.halves import HalfAndHalf
from dpaudit.bounds.ideal import rank_power, threshold_power
from dpaudit.bounds.sizing import Size, candidates, lower_bound, recommend, size
from dpaudit.errors import InputError
from dpaudit.records import PlannedTest

DELTA, LEVEL = 1e-5, 0.05
REPETITIONS = 4000
TOLERANCE = 4 * math.sqrt(0.25 / REPETITIONS)  # false alarm of one comparison: 6e-5
PAIR, GAUSSIAN = Claim.pair(epsilon=4.0, delta=DELTA), Claim.gaussian(noise_multiplier=1.0)


def question(claim: Claim, factor: float = 2.0) -> sizing._Question:
    return sizing._question(claim, DELTA, factor, 0.9, LEVEL)


@pytest.fixture(scope="module")
def pair() -> dict[str, Size]:
    return {s.design: s for s in size(PAIR, delta=DELTA, runs=4)}


@pytest.fixture(scope="module")
def gaussian() -> dict[str, Size]:
    return {s.design: s for s in size(GAUSSIAN, delta=DELTA)}


# --- the law of right guesses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [2, 10, 30, 38])
def test_useless_scores_are_right_half_of_the_time(guesses):
    law = HalfAndHalf(PairCurve(0.0, 0.0))
    for right in (0, 1, guesses // 2, guesses):
        assert law.at_least(right, 40, guesses) == pytest.approx(binom.sf(right - 1, guesses, 0.5), abs=1e-9)


@pytest.mark.parametrize("coins,guesses", [(40, 20), (40, 30), (40, 36), (41, 38), (200, 180)])
def test_perfect_scores_are_right_where_the_coins_allow_it(coins, guesses):
    half = guesses // 2
    enough = binom.cdf(coins - half, coins, 0.5) - binom.cdf(half - 1, coins, 0.5)  # members, and others, for each half
    assert HalfAndHalf(PairCurve(60.0, 0.0)).at_least(guesses, coins, guesses) == pytest.approx(enough, abs=0.02)


def right_guesses(mu: float, coins: int, guesses: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    member = rng.random((REPETITIONS, coins)) < 0.5
    order = np.argsort(mu * member + rng.normal(size=member.shape), axis=1)
    ranked, half = np.take_along_axis(member, order, axis=1), guesses // 2
    return ranked[:, -half:].sum(axis=1) + (~ranked[:, :half]).sum(axis=1)


@pytest.mark.parametrize("mu,coins,guesses", [(1.0, 100, 20), (2.0, 40, 38), (4.0, 200, 170), (4.0, 60, 30)])
def test_the_law_against_simulation(mu, coins, guesses):
    law, right = HalfAndHalf(GaussianCurve(mu)), right_guesses(mu, coins, guesses, seed=1)
    for critical in np.quantile(right, [0.05, 0.3, 0.5]).astype(int):
        assert law.at_least(int(critical), coins, guesses) == pytest.approx(np.mean(right >= critical), abs=TOLERANCE)
    assert law.median(coins, guesses) == pytest.approx(np.median(right), abs=1)


def test_more_right_guesses_than_guesses_never_happen():
    assert HalfAndHalf(GaussianCurve(9.0)).at_least(11, 40, 10) == 0.0


@pytest.mark.parametrize("coins", [3, 4, 39, 40, 9126])
def test_numbers_of_guesses_are_even_and_leave_a_coin(coins):
    found = candidates(coins)
    assert found == sorted(set(found))
    assert all(k % 2 == 0 and 2 <= k < coins for k in found)


# --- power as planning has it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [PAIR, Claim.pair(epsilon=1.0, delta=DELTA), GAUSSIAN])
@pytest.mark.parametrize("n", [3, 30, 110, 230])
def test_power_of_thresholds_is_that_of_ideal(claim, n):
    asked, worlds = question(claim), sizing._Worlds(question(claim))
    truth, claimed = asked.truth.curve, asked.claim.curve
    plain = threshold_power(truth, claimed, n, n, LEVEL)
    assert plain - 1e-3 <= worlds.fixed(n)[0] <= plain + 0.05  # whose grid of rates misses corners
    ranks = Ranks().ranks
    assert worlds.ranked(n) == pytest.approx(
        rank_power(truth, claimed, n, n, ranks, LEVEL / (2 * len(ranks))), abs=0.01
    )


def test_the_most_that_may_be_missed():
    limits = sizing.upper_limit(np.arange(51), np.full(51, 50), 0.025)
    allowed = np.array([0.0, 0.05, 0.0711, 0.0712, 0.3, 0.99, 1.0])
    expected = np.searchsorted(limits, allowed, side="left") - 1
    assert sizing._most_missed(allowed, 50, 0.025).tolist() == expected.tolist()


@pytest.mark.parametrize("claim", [PAIR, GAUSSIAN])
def test_guesses_refute_as_they_do_in_an_audit(claim):
    refutes, curve = sizing._by_audit(question(claim)), claim.curve
    for coins, guesses in ((300, 200), (300, 20), (6000, 400)):
        for right in range(guesses * 4 // 5, guesses + 1, max(guesses // 40, 1)):
            expected = planning.refuter(curve, coins, guesses, DELTA, LEVEL)(right)
            assert refutes(coins, guesses, right) == expected


# --- ceilings and floors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coins,level,fewest", [(6000, 0.05, 195), (6000, 0.005, 934)])
def test_steinke_at_four_takes_so_many_perfect_guesses(coins, level, fewest):
    assert steinke.epsilon_lower(coins, fewest, fewest, DELTA, level) > 4.0
    assert steinke.epsilon_lower(coins, fewest - 1, fewest - 1, DELTA, level) <= 4.0
    assert lower_bound(coins, fewest, fewest, DELTA, level) > 4.0


def test_steinke_at_four_takes_more_than_three_thousand_of_thirty_thousand():
    assert steinke.epsilon_lower(30_000, 3000, 3000, DELTA, 0.005) <= 4.0


@pytest.mark.parametrize("epsilon,pairs", [(1, 10), (2, 24), (4, 166), (8, 8932)])
def test_floors_of_a_perfect_attacker(epsilon, pairs):
    asked = question(Claim.pair(epsilon=epsilon, delta=DELTA))
    assert sizing._sequential(asked).runs == 2 * pairs
    assert sizing._floor(asked) == pytest.approx(pairs, rel=0.03)


def test_ceilings_are_those_that_the_bounds_print(pair):
    found = pair["pooled"]
    member = np.random.default_rng(0).random((found.runs, found.canaries)) < 0.5
    obs = Observations(member + np.arange(member.size).reshape(member.shape) / 1e6, member)
    one = bounds.one_run(obs, found.guesses, delta=DELTA, significance=LEVEL).perfect
    fdp = bounds.one_run_fdp(obs, found.guesses, PAIR, delta=DELTA, significance=LEVEL).perfect
    assert found.perfect == pytest.approx(max(one, fdp))
    assert found.at_claim < 4.0 < found.perfect


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [PAIR, GAUSSIAN])
def test_the_number_has_the_power_and_the_next_smaller_one_has_not(claim):
    asked = question(claim)
    guessing = sizing._Guessing(asked, sizing._by_audit(asked), None)
    found = guessing.fewest.number
    assert guessing.strongest(found)[0] >= 0.9 > guessing.strongest(found - 1)[0]
    worlds = sizing._Worlds(asked)
    runs = sizing._fixed(worlds).runs
    assert worlds.fixed(runs // 2)[0] >= 0.9 > worlds.fixed(runs // 2 - 1)[0]


def test_shapes_of_the_coins(pair):
    coins = pair["one-run"].coins
    assert (pair["one-run"].runs, pair["one-canary"].runs, pair["one-canary"].canaries) == (1, coins, 1)
    assert pair["pooled"].canaries == 40 and 0 <= pair["pooled"].coins - coins < 80
    assert pair["pooled-by-runs"].runs == 4 and 0 <= pair["pooled-by-runs"].coins - coins < 8
    assert all(s.power >= 0.9 for s in pair.values() if s.power is not None)


def test_every_size_says_what_was_searched_and_carries_its_test(pair):
    for s in pair.values():
        assert s.searched
        if s.guesses is not None:
            assert s.test == PlannedTest("guesses", 1.0, s.guesses)
    assert "smaller ones were not all tried" in pair["one-run"].searched


def test_pooled_coins_beat_two_worlds_above_four(pair):
    assert pair["one-canary"].runs < pair["worlds-fixed"].runs / 2 < pair["worlds-ranks"].runs / 2


def test_a_pair_has_no_order_statistics_and_a_recipe_is_labelled(pair, gaussian):
    assert "order-statistics" not in pair
    recipe = gaussian["order-statistics"]
    assert not recipe.any_mechanism and "not the stated mechanism" in recipe.null and recipe.test is None
    assert recipe.coins < gaussian["one-run"].coins / 3
    assert recipe.at_claim < GAUSSIAN.epsilon(DELTA) < recipe.perfect


def test_only_floors_are_called_at_least(gaussian):
    assert {s.design for s in gaussian.values() if s.at_least} == {"sequential", "worlds-split"}


@pytest.mark.parametrize(
    "easier", [{"factor": 3.0}, {"power": 0.7}, {"significance": 0.2}], ids=["factor", "power", "significance"]
)
def test_asking_less_takes_less(pair, easier):
    for s in size(PAIR, delta=DELTA, **easier):
        if s.design in ("worlds-fixed", "one-run"):
            assert s.coins <= pair[s.design].coins


def test_the_same_question_has_the_same_answer(pair):
    assert size(PAIR, delta=DELTA, runs=4) == tuple(pair.values())


def test_out_of_reach_is_a_value_with_its_reason():
    sizes = size(Claim.pair(epsilon=12.0, delta=DELTA), delta=DELTA)
    assert all(s.runs is None and s.coins is None and s.out_of_reach is not None for s in sizes)
    one_run = next(s for s in sizes if s.design == "one-run")
    assert one_run.out_of_reach.below == sizing.MOST_COINS and "always right" in str(one_run.out_of_reach)
    assert recommend(sizes).size is None and "no design is within reach" in recommend(sizes).why


def test_ranks_give_up_where_they_are_all_too_extreme():
    sizes = {s.design: s for s in size(Claim.pair(epsilon=1.0, delta=DELTA), delta=DELTA, factor=1.2)}
    assert "largest power on the way" in sizes["worlds-ranks"].out_of_reach.reason
    assert sizes["worlds-fixed"].runs is not None


def test_records_are_frozen(pair):
    with pytest.raises(dataclasses.FrozenInstanceError):
        pair["pooled"].runs = 1


# --- recommending ----------------------------------------------------------------------------------------------------


def test_the_cheapest_in_runs_is_recommended(pair, gaussian):
    chosen = recommend(tuple(pair.values()))
    assert chosen.size == pair["pooled-by-runs"] or chosen.size == pair["pooled"]
    assert "always right" in chosen.why
    assert recommend(tuple(gaussian.values())).size == gaussian["pooled"]


def test_limits_on_canaries_and_runs_are_kept(pair):
    sizes = tuple(pair.values())
    assert recommend(sizes, canaries=1000).size == pair["one-run"]
    assert recommend(sizes, canaries=1).size == pair["one-canary"]
    none = recommend(sizes, canaries=1, runs=3)
    assert none.size is None and "no design fits" in none.why


def test_two_worlds_are_recommended_where_they_are_cheapest(gaussian):
    assert recommend(tuple(gaussian.values()), canaries=1).size == gaussian["worlds-fixed"]


def test_neither_floors_nor_recipes_are_recommended(gaussian):
    only = tuple(s for s in gaussian.values() if s.at_least or not s.any_mechanism)
    assert recommend(only).size is None


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"factor": 1.0}, "factor must be in"),
        ({"power": 0.5}, "power must be in"),
        ({"power": 1.0}, "power must be in"),
        ({"significance": 0.5}, "significance must be in"),
        ({"canaries": 0}, "canaries must be"),
        ({"runs": 0}, "runs must be"),
        ({"delta": 1e-7}, "above 0 and finite, got inf"),
    ],
)
def test_mistakes_are_named(changed, message):
    with pytest.raises(InputError, match=message):
        size(PAIR, **{"delta": DELTA, **changed})


def test_nothing_is_twice_zero():
    with pytest.raises(InputError, match="above 0 and finite, got 0"):
        size(Claim.pair(epsilon=0.0, delta=DELTA), delta=DELTA)
