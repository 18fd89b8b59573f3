"""Confirmation on arrays: what is counted, what a score may depend on, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.bounds.choices import Fixed
from dpaudit.bounds.two_worlds import clopper_pearson
from dpaudit.errors import InputError
from dpaudit.records import Observations
from dpaudit.vulnerable.confirming import RecordResult, attack, confirm

MODELS, SET_ASIDE, NAMES = 200, 50, ("a", "b", "c")
OPTIONS: dict[str, Any] = {"delta": 1e-5, "significance": 0.05, "family": 3}


@pytest.fixture
def coins() -> np.ndarray:
    return np.random.default_rng(1).random((MODELS, 3)) < 0.5


@pytest.fixture
def signal(coins: np.ndarray) -> np.ndarray:
    """One record that leaks all, one that leaks a little and one that leaks nothing."""
    return np.array([40.0, 1.0, 0.0]) * coins + np.random.default_rng(2).normal(size=coins.shape)


def confirmed(signal: np.ndarray, coins: np.ndarray, **changes: Any) -> tuple[RecordResult, ...]:
    return confirm(signal, coins, SET_ASIDE, NAMES, **(OPTIONS | changes))


def test_a_record_that_leaks_all_reaches_the_ceiling(signal: np.ndarray, coins: np.ndarray) -> None:
    all_of_it, _, nothing = confirmed(signal, coins)
    assert (all_of_it.tpr.value, all_of_it.fpr.value, all_of_it.pairs.value) == (1.0, 0.0, 1.0)
    assert all_of_it.bound.epsilon == all_of_it.bound.perfect > 2
    assert nothing.bound.epsilon == 0.0 and nothing.pairs.low < 0.5 < nothing.pairs.high


def test_bounds_are_clopper_pearson_at_the_share_of_each_record(signal: np.ndarray, coins: np.ndarray) -> None:
    scores, _ = attack(signal, coins, SET_ASIDE, delta=1e-5, level=0.05 / 3)
    for i, result in enumerate(confirmed(signal, coins)):
        obs = Observations(scores[:, i, None], coins[SET_ASIDE:, i, None])
        own = clopper_pearson(obs, delta=1e-5, significance=0.05 / 3, threshold=Fixed(0.0))
        assert (result.bound.epsilon, result.bound.significance) == (own.epsilon, 0.05 / 3)
        assert "divided by 3" in result.bound.threshold and "50 models set aside" in result.bound.threshold


def test_every_tested_model_is_counted_once(signal: np.ndarray, coins: np.ndarray) -> None:
    tested = coins[SET_ASIDE:]
    for i, result in enumerate(confirmed(signal, coins)):
        assert (result.tpr.trials, result.fpr.trials) == (tested[:, i].sum(), (~tested[:, i]).sum())
        assert result.pairs.trials == min(result.tpr.trials, result.fpr.trials)
        assert result.tpr.low <= result.tpr.value <= result.tpr.high
        assert result.tpr.hits == (result.inside > 0).sum() and result.fpr.hits == (result.outside > 0).sum()


def test_a_score_depends_on_its_own_model_and_on_models_set_aside(signal: np.ndarray, coins: np.ndarray) -> None:
    before, thresholds = attack(signal, coins, SET_ASIDE, delta=1e-5, level=0.01)
    other, flipped = signal.copy(), coins.copy()
    other[SET_ASIDE + 5], flipped[SET_ASIDE + 5] = 99.0, ~coins[SET_ASIDE + 5]
    after, same = attack(other, flipped, SET_ASIDE, delta=1e-5, level=0.01)
    assert np.array_equal(thresholds, same)
    assert np.array_equal(np.delete(before, 5, axis=0), np.delete(after, 5, axis=0))
    assert not np.array_equal(before[5], after[5])


def test_the_order_of_tested_models_is_irrelevant_to_rates_and_bounds(signal: np.ndarray, coins: np.ndarray) -> None:
    order = np.concatenate([np.arange(SET_ASIDE), np.random.default_rng(3).permutation(np.arange(SET_ASIDE, MODELS))])
    for one, other in zip(confirmed(signal, coins), confirmed(signal[order], coins[order]), strict=True):
        assert (one.tpr, one.fpr, one.bound.epsilon) == (other.tpr, other.fpr, other.bound.epsilon)


def test_arrays_stay_as_they_are(signal: np.ndarray, coins: np.ndarray) -> None:
    before = signal.copy(), coins.copy()
    confirmed(signal, coins)
    assert np.array_equal(signal, before[0]) and np.array_equal(coins, before[1])


def test_a_longer_shortlist_costs_significance(signal: np.ndarray, coins: np.ndarray) -> None:
    short, long = confirmed(signal, coins)[0], confirmed(signal, coins, family=30)[0]
    assert long.bound.epsilon < short.bound.epsilon
    assert long.bound.significance == 0.05 / 30


def test_a_claim_brings_a_ceiling(signal: np.ndarray, coins: np.ndarray) -> None:
    claim = Claim.gaussian(noise_multiplier=1.0)
    result = confirmed(signal, coins, claim=claim)[0]
    assert result.bound.at_claim is not None and 0 < result.bound.at_claim < claim.epsilon(1e-5)
    assert confirmed(signal, coins)[0].bound.at_claim is None


def test_ties_are_no_wins(coins: np.ndarray) -> None:
    result = confirmed(np.zeros(coins.shape), coins)[0]
    assert result.pairs.hits == 0 and result.bound.epsilon == 0.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": 0}, "family must be a whole number of at least 1"),
        ({"significance": 0.6}, "significance must be in"),
        ({"delta": 1.0}, "delta must be in"),
    ],
)
def test_mistakes(signal: np.ndarray, coins: np.ndarray, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        confirmed(signal, coins, **changes)


def test_mistakes_of_shape(signal: np.ndarray, coins: np.ndarray) -> None:
    with pytest.raises(InputError, match="names must be one per record"):
        confirm(signal, coins, SET_ASIDE, ("a",), **OPTIONS)
    with pytest.raises(InputError, match=r"one shape \(models, records\), got \(200, 3\) and \(199, 3\)"):
        confirm(signal, coins[1:], SET_ASIDE, NAMES, **OPTIONS)
    with pytest.raises(InputError, match="set_aside must be a whole number"):
        confirm(signal, coins, MODELS, NAMES, **OPTIONS)
    with pytest.raises(InputError, match="finite"):
        confirm(np.where(signal > 1, np.nan, signal), coins, SET_ASIDE, NAMES, **OPTIONS)


def test_a_threshold_is_an_even_chance_where_nothing_is_shown(signal: np.ndarray, coins: np.ndarray) -> None:
    _, thresholds = attack(signal, coins, SET_ASIDE, delta=1e-5, level=0.01)
    assert thresholds[2] == 0.0 and thresholds[0] != 0.0
    nothing = confirmed(signal, coins)[2]
    assert 0.05 < nothing.fpr.value < 0.95
