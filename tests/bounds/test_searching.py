"""How a number of guesses or a threshold may be chosen: what each policy looks at, what it pays, what it records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from dpaudit import Claim, Observations, bounds
from dpaudit.bounds import searching, two_worlds
from dpaudit.bounds.designs import Coins, fair_coins
from dpaudit.bounds.guessing import guess
from dpaudit.bounds.tails import upper_limit
from dpaudit.errors import InputError

DELTA, COINS = 1e-5, 400
PAIR = Claim.pair(epsilon=1.0, delta=DELTA)
METHODS = {
    "one_run": lambda obs, guesses, **kw: bounds.one_run(obs, guesses, delta=DELTA, **kw),
    "pair": lambda obs, guesses, **kw: bounds.one_run_fdp(obs, guesses, PAIR, delta=DELTA, **kw),
    "fdp": lambda obs, guesses, **kw: bounds.one_run_fdp(obs, guesses, delta=DELTA, **kw),
    "order": lambda obs, guesses, **kw: bounds.order_statistics(obs, guesses, delta=DELTA, **kw),
    "middle": lambda obs, guesses, **kw: bounds.order_statistics(
        obs, guesses, delta=DELTA, threshold=bounds.Fixed(1.0), **kw
    ),
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def observed(mu: float = 2.0, coins: int = COINS, seed: int = 3) -> Observations:
    rng = np.random.default_rng(seed)
    member = rng.random(coins) < 0.5
    return Observations(mu * member + rng.normal(size=coins), member)


# --- several numbers of guesses --------------------------------------------------------------------------------------


@each_method
def test_several_numbers_share_the_significance(method):
    obs, counts = observed(), (20, 60, 150)
    best = method(obs, counts)
    alone = [method(obs, k, significance=0.05 / 3) for k in counts]
    assert best.epsilon == max(b.epsilon for b in alone)
    assert best.significance == 0.05
    assert best.perfect == max(b.perfect for b in alone)
    assert "best of 3 numbers (20, 60, 150), significance divided by 3" in best.threshold


@each_method
def test_one_number_in_a_sequence_costs_nothing(method):
    assert method(observed(), [60]).epsilon == method(observed(), 60).epsilon


@each_method
@pytest.mark.parametrize("guesses,message", [([], "got none"), ([60, 401], "guesses"), ([60, 1], "guesses")])
def test_bad_sequences(method, guesses, message):
    with pytest.raises(InputError, match=message):
        method(observed(), guesses)


def test_the_ceiling_of_a_sequence_is_that_of_its_best_number():
    claim = Claim.gaussian(noise_multiplier=1.0)
    best = bounds.one_run(observed(), [20, 60], delta=DELTA, claim=claim)
    alone = [bounds.one_run(observed(), k, delta=DELTA, significance=0.025, claim=claim) for k in (20, 60)]
    assert best.at_claim == max(b.at_claim for b in alone)


# --- a split of the coins --------------------------------------------------------------------------------------------


def rest_of(obs: Observations, policy: bounds.Split) -> tuple[np.ndarray, int]:
    rest, count, _ = searching._chosen(fair_coins(obs, "a test"), policy, 0.05)
    return np.sort(rest.scores), count


@each_method
def test_a_split_is_seeded_and_recorded(method):
    obs = observed()
    first, again = (method(obs, bounds.Split(0.3, seed=5)) for _ in range(2))
    assert first == again
    assert first.counts["coins"] == COINS - 120
    assert "30% of the coins (120, seed 5), which the bound does not use" in first.threshold
    assert first.epsilon != method(obs, bounds.Split(0.3, seed=6)).epsilon


@each_method
def test_a_split_ignores_the_order_of_the_rows(method):
    obs = observed()
    scores = np.round(obs.scores[0], 1)
    at = np.random.default_rng(0).permutation(COINS)
    one = method(Observations(scores, obs.member[0]), bounds.Split())
    other = method(Observations(scores[at], obs.member[0][at]), bounds.Split())
    assert one == other


def test_which_coins_are_looked_at_depends_on_no_coin():
    obs = observed()
    expected = rest_of(obs, bounds.Split())[0]
    for seed in range(5):
        other = Observations(obs.scores, np.random.default_rng(seed).random(obs.shape) < 0.5)
        assert np.array_equal(rest_of(other, bounds.Split())[0], expected)
    moved = rest_of(Observations(obs.scores + 1.0, obs.member), bounds.Split())[0]
    assert not np.array_equal(moved, expected + 1.0)


def test_the_number_of_guesses_depends_on_no_coin_of_the_rest():
    obs = observed()
    kept, count = rest_of(obs, bounds.Split())
    inside = np.isin(obs.scores, kept)
    for seed in range(5):
        member = np.where(inside, np.random.default_rng(seed).random(obs.shape) < 0.5, obs.member)
        assert rest_of(Observations(obs.scores, member), bounds.Split())[1] == count


def test_right_guesses_from_one_sort_are_those_of_guessing_each():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(2, 40))
        scores, present = np.round(rng.normal(size=n), rng.integers(0, 3)), rng.random(n) < rng.choice([0.3, 1.0])
        flipped = Coins(scores, rng.random(n) < 0.5, present, "add-remove")
        counts = [int(k) for k in rng.integers(2, n + 1, 5)]
        assert list(searching._right(flipped, counts)) == [guess(flipped, k).right for k in counts]


def test_tied_coins_stay_together():
    obs = observed()
    kept = rest_of(Observations(np.round(obs.scores, 1), obs.member), bounds.Split())[0]
    values, counts = np.unique(np.round(obs.scores, 1), return_counts=True)
    for value in np.unique(kept):
        assert np.sum(kept == value) == counts[values == value][0]


def test_the_choice_is_sensible():
    # All is told of a tenth of the coins and nothing of the rest: so many should be guessed, and not many more.
    rng = np.random.default_rng(0)
    member = rng.random(4000) < 0.5
    told = rng.random(4000) < 0.1
    scores = np.where(told, np.where(member, 5.0, -5.0), 0.0) + rng.random(4000)
    _, count = rest_of(Observations(scores, member), bounds.Split())
    assert 100 <= count <= 300


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_too_few_coins_for_a_split(fraction):
    with pytest.raises(InputError, match="at least 4 coins on either side"):
        bounds.one_run(observed(), bounds.Split(fraction))


# --- ranks among the scores ------------------------------------------------------------------------------------------


def worlds(mu: float = 1.0, n: int = 300, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    return Observations.from_worlds(rng.normal(mu, 1, n), rng.normal(0, 1, n + 50))


def at_ranks(obs: Observations, *ranks: int) -> list[two_worlds.Confusion]:
    return two_worlds.confusions(obs, DELTA, 0.05, bounds.Ranks(ranks))


def test_a_rank_is_a_threshold_whose_false_alarms_are_known_beforehand():
    obs = worlds()
    inside, outside = np.sort(obs.scores[:300, 0]), np.sort(obs.scores[300:, 0])[::-1]
    high, low = at_ranks(obs, 7)
    assert (high.false_alarms, high.missed) == (6, int(np.sum(inside <= outside[6])))
    assert (low.missed, low.false_alarms) == (6, int(np.sum(outside >= inside[6])))
    assert (high.members, high.others) == (low.members, low.others) == (300, 350)


def test_the_level_is_divided_by_both_sides_of_every_rank():
    obs, ranks = worlds(), (1, 4, 16)
    bound = bounds.clopper_pearson(obs, delta=DELTA, threshold=bounds.Ranks(ranks))
    alone = [two_worlds.epsilon_lower(t, DELTA, 0.05 / 6) for t in at_ranks(obs, *ranks)]
    assert bound.epsilon == max(alone) > 0
    assert bound.counts["tests"] == 6
    assert "significance divided by 6" in bound.threshold


def test_ties_are_no_gift():
    # Five scores tie for the 3rd to 7th highest: the rate above is known from the rank, not from how many lie above.
    outside = np.concatenate([[9.0, 8.0], np.full(5, 7.0), np.zeros(43)])
    obs = Observations.from_worlds(np.full(50, 7.0), outside)
    for rank in (3, 5, 7):
        high = at_ranks(obs, rank)[0]
        assert (high.false_alarms, high.missed) == (rank - 1, 50)
    all_tied = Observations.from_worlds(np.ones(50), np.ones(50))
    assert all(two_worlds.epsilon_lower(t, 0.0, 0.05) == 0 for t in at_ranks(all_tied, 1, 10, 50))


def test_ranks_that_there_are_no_runs_for_show_nothing_and_are_paid_for():
    obs = worlds(mu=4.0, n=20)
    few, many = (bounds.clopper_pearson(obs, delta=DELTA, threshold=bounds.Ranks(r)) for r in ((1,), (1, 10_000)))
    assert many.counts["tests"] == 4
    assert 0 < many.epsilon < few.epsilon
    beyond = bounds.clopper_pearson(obs, delta=DELTA, threshold=bounds.Ranks([10_000]))
    assert beyond.epsilon == 0.0


def test_runs_never_scored_say_out():
    obs = worlds(mu=3.0, n=50)
    present = np.ones(obs.shape, bool)
    present[:5] = False
    high, low = at_ranks(replace(obs, present=present), 3)
    assert high.missed >= 5
    assert (low.members, low.missed, low.false_alarms) == (50, 50, 100)  # the 3rd lowest was never scored
    assert at_ranks(replace(obs, present=present), 8)[1].missed == 7


@pytest.mark.parametrize("policy", [bounds.Ranks(), bounds.Split(), bounds.Bonferroni([0.5, 1.5])])
def test_row_order_never_matters_to_two_worlds(policy):
    obs = worlds()
    rounded = np.round(obs.scores, 1)
    at = np.random.default_rng(1).permutation(len(rounded))
    one = bounds.clopper_pearson(replace(obs, scores=rounded), delta=DELTA, threshold=policy)
    other = bounds.clopper_pearson(
        replace(obs, scores=rounded[at], member=obs.member[at]), delta=DELTA, threshold=policy
    )
    assert one == other


@pytest.mark.statistical
@pytest.mark.parametrize("n,rank", [(50, 1), (50, 7), (400, 64)])
def test_the_rate_above_a_rank_is_beta(n, rank):
    """The limit is exceeded exactly as often as it says: 20,000 draws, 4 standard errors, 1 false alarm in 10,000."""
    repetitions, level = 20_000, 0.05
    rates = 1.0 - np.sort(np.random.default_rng(rank).random((repetitions, n)), axis=1)[:, -rank]
    share = np.mean(rates > float(upper_limit(rank - 1, n, level)))
    assert share == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / repetitions))
    assert np.mean(rates) == pytest.approx(beta(rank, n - rank + 1).mean(), rel=0.03)
    # To count the rank itself as a false alarm would waste the level, to count one fewer would break it.
    assert np.mean(rates > float(upper_limit(rank, n, level))) < level
    assert rank == 1 or np.mean(rates > float(upper_limit(rank - 2, n, level))) > level


def test_few_of_many_thresholds_are_tried():
    assert list(two_worlds._spread(128)) == list(range(128))
    tried = two_worlds._spread(100_000)
    assert len(tried) <= 128 and tried[0] == 0 and tried[-1] == 99_999
    assert set(range(6)) <= set(tried) and set(range(99_994, 100_000)) <= set(tried)
    gaps = np.diff(tried) / np.minimum(tried[1:], 100_000 - tried[:-1])
    assert np.max(gaps[20:-20]) < 0.25


@pytest.mark.parametrize("bad", [[], [0], [1, 1], [2.5], [True]])
def test_bad_ranks(bad):
    with pytest.raises(InputError, match="rank"):
        bounds.Ranks(bad)


# --- direction -------------------------------------------------------------------------------------------------------


def turned_worlds(seed: int, gap: float = 3.0) -> Observations:
    rng = np.random.default_rng(seed)
    return Observations.from_worlds(rng.normal(-gap, 1, 400), rng.normal(0, 1, 400))


def turned_coins(seed: int, gap: float = 3.0) -> Observations:
    rng = np.random.default_rng(seed)
    member = rng.random((40, 50)) < 0.5
    return Observations(rng.normal(size=member.shape) - gap * member, member)


@pytest.mark.parametrize("threshold", [bounds.Split(), bounds.Ranks()])
def test_a_fixed_direction_never_turns(threshold):
    assert bounds.clopper_pearson(turned_worlds(0), delta=DELTA, threshold=threshold).epsilon == 0.0


def test_a_split_may_choose_the_direction():
    found = bounds.clopper_pearson(turned_worlds(0), delta=DELTA, threshold=bounds.Split(direction=True))
    assert found.epsilon > 1.5
    assert "with the direction" in found.threshold
    assert bounds.one_run(turned_coins(0), bounds.Split(direction=True), delta=DELTA).epsilon > 1.5
    assert bounds.one_run(turned_coins(0), bounds.Split(), delta=DELTA).epsilon == 0.0


def test_either_direction_costs_half_of_the_significance():
    found = bounds.either_direction(bounds.one_run, turned_coins(0), 200, delta=DELTA, significance=0.05)
    straight = replace(turned_coins(0), scores=-turned_coins(0).scores)
    assert found.epsilon == bounds.one_run(straight, 200, delta=DELTA, significance=0.025).epsilon
    assert found.significance == 0.05
    assert "both directions" in found.threshold


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")  # one fair run in 25 has exact halves
@pytest.mark.parametrize("policy", ["split", "either"])
def test_choosing_the_direction_is_paid_for(policy):
    """400 useless attacks: at most 5 % plus 3 standard errors exceed 0; the uncorrected twin does so in about 10 %."""
    repetitions, rng = 400, np.random.default_rng(2)
    exceeded = uncorrected = 0
    for _ in range(repetitions):
        member = rng.random(400) < 0.5
        obs = Observations(rng.normal(size=400), member)
        back = replace(obs, scores=-obs.scores)
        both = [bounds.one_run(o, 100).epsilon for o in (obs, back)]
        uncorrected += max(both) > 0
        if policy == "split":
            exceeded += bounds.one_run(obs, bounds.Split(direction=True)).epsilon > 0
        else:
            exceeded += bounds.either_direction(bounds.one_run, obs, 100).epsilon > 0
    limit = 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)
    assert exceeded / repetitions <= limit
    assert uncorrected / repetitions > limit
