"""Canaries: extra records whose sources nobody is trained on, drawn by coins that nobody else's depend on."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.attacks import Blank, FarOut, Mislabelled, RandomNoise, flip_coins, plant
from dpaudit.attacks.canaries import _refuse_identical
from dpaudit.data import Pool, load
from dpaudit.errors import InputError

EVERY_FAMILY = (FarOut(5), Mislabelled(6), Blank(7), RandomNoise(8))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return load("digits", records=200, test=50, seed=3)


def test_canaries_are_extra_records_at_the_end(pool):
    planted = plant(pool, EVERY_FAMILY, seed=1)
    assert len(planted.data) == 200 + 26
    assert planted.rows.tolist() == list(range(200, 226))
    assert np.array_equal(planted.data.x[:200, :64], pool.x)
    assert planted.data.nominal_size == 213
    assert planted.data.ids[200:] == planted.names("all")
    assert len(planted.names("blank")) == 7


def test_far_out_canaries_take_unused_features_first_and_then_new_ones(pool):
    planted = plant(pool, [FarOut(6, value=4.0)], seed=1)
    columns = planted.data.private_columns
    assert columns == (0, 32, 39, 64, 65, 66)  # the digits never use pixels 0, 32 and 39
    canaries = planted.data.x[planted.rows]
    assert np.array_equal(canaries[:, list(columns)], 4.0 * np.eye(6))
    assert (canaries != 0).sum() == 6
    assert not planted.data.x[:200, list(columns)].any()
    assert not planted.data.x_test[:, list(columns)].any()


def test_a_used_feature_of_another_canary_is_not_private(pool):
    planted = plant(pool, [RandomNoise(3), FarOut(4)], seed=1)
    others = np.delete(planted.data.x, planted.rows[3:], axis=0)
    assert not others[:, list(planted.data.private_columns)].any()


def test_mislabelled_canaries_come_from_records_that_nobody_is_trained_on(pool):
    planted = plant(pool, [Mislabelled(30)], seed=2)
    sources = [c.source for c in planted.canaries]
    assert len(set(sources)) == 30
    assert set(sources) <= set(pool.spare_ids)
    assert not set(sources) & set(pool.ids)
    for canary in planted.canaries:
        at = pool.spare_ids.index(canary.source)
        assert np.array_equal(planted.data.x[canary.row], pool.x_spare[at])
        assert planted.data.y[canary.row] != pool.y_spare[at]


def test_blank_canaries_have_a_label_each(pool):
    planted = plant(pool, [Blank(10)], seed=2)
    assert not planted.data.x[planted.rows].any()
    assert sorted(planted.data.y[planted.rows]) == list(range(10))


def test_the_same_seed_plants_the_same(pool):
    one, two, other = (plant(pool, EVERY_FAMILY, seed=s) for s in (4, 4, 5))
    assert np.array_equal(one.data.x, two.data.x) and np.array_equal(one.data.y, two.data.y)
    assert not np.array_equal(one.data.y, other.data.y)


@pytest.mark.parametrize(
    ("families", "message"),
    [
        ([Mislabelled(2000)], "at most the 1547 records"),
        ([Blank(11)], "at most one per label"),
        ([FarOut(2), FarOut(3)], "each once"),
        ([], "at least one family"),
    ],
)
def test_more_than_there_is(pool, families, message):
    with pytest.raises(InputError, match=message):
        plant(pool, families, seed=0)


def test_identical_canaries_are_refused_by_name(pool):
    planted = plant(pool, [Blank(2)], seed=0)
    same = np.where(np.arange(len(planted.data)) >= 200, 3, planted.data.y)
    with pytest.raises(InputError, match="blank-0000 and blank-0001"):
        _refuse_identical(planted.data.x, same, planted.canaries)


def test_identical_sources_are_refused_by_name():
    x = np.ones((60, 4), np.float32)
    pool = Pool(x[:20], np.zeros(20, int), x[:0], np.zeros(0, int), x, np.zeros(60, int), 2, "same", None,
                tuple(f"r{i}" for i in range(20)), tuple(f"s{i}" for i in range(60)))  # fmt: skip
    with pytest.raises(InputError, match="canaries must all differ, got mislabelled-0000 and mislabelled-0001"):
        plant(pool, [Mislabelled(5)], seed=0)


@pytest.mark.parametrize("bad", [lambda: FarOut(0), lambda: FarOut(3, value=-1.0), lambda: Blank(-1)])
def test_settings_out_of_range(bad):
    with pytest.raises(InputError):
        bad()


def test_coins_are_fair_and_each_canarys_own():
    coins = flip_coins(4000, 12, np.random.SeedSequence(1))
    assert coins.shape == (4000, 12)
    assert np.abs(coins.mean(axis=0) - 0.5).max() < 0.04
    assert np.abs(np.corrcoef(coins.T) - np.eye(12)).max() < 0.08
    fewer = flip_coins(4000, 5, np.random.SeedSequence(1))
    assert np.array_equal(fewer, coins[:, :5])  # one canary more changes nobody else's coins


def test_ordinary_records_are_always_in(pool):
    planted = plant(pool, EVERY_FAMILY, seed=1)
    coins = flip_coins(6, 26, np.random.SeedSequence(2))
    member = planted.membership(coins)
    assert member[:, :200].all()
    assert np.array_equal(member[:, 200:], coins)
