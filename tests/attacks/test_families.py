"""Families that are made from the data: out of distribution, along the least singular directions, inserted texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpaudit.attacks import auc, lira, logit_margin
from dpaudit.attacks.canaries import ClipBKD, FarOut, InsertedText, Mislabelled, OutOfDistribution, flip_coins, plant
from dpaudit.attacks.texts import Secrets, decode, encode
from dpaudit.data import Pool, load, unused_features
from dpaudit.errors import InputError
from dpaudit.trainers import SGD, train_many

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789:"


@pytest.fixture(scope="module")
def pool() -> Pool:
    return load("digits", records=200, test=50, seed=3)


def named(name: str, x, y, shape=None, spare: int = 0) -> Pool:
    """A pool of these records, the last ``spare`` of them nobody's."""
    n = len(x) - spare
    ids = tuple(f"{name}-{i}" for i in range(len(x)))
    x = np.asarray(x, np.float32)
    return Pool(x[:n], y[:n], x[:0], y[:0], x[n:], y[n:], int(y.max()) + 1, name, shape, ids[:n], ids[n:])


# ---- out of distribution --------------------------------------------------------------------------------------------


def test_permuted_records_are_held_out_ones_in_one_other_order(pool):
    planted = plant(pool, [OutOfDistribution(30)], seed=1)
    canaries = planted.data.x[planted.rows]
    sources = [planted.canaries[i].source for i in range(30)]
    assert len(set(sources)) == 30 and not set(sources) & set(pool.ids)
    originals = pool.x_spare[[pool.spare_ids.index(source) for source in sources]]
    assert not np.array_equal(canaries, originals)
    order = [int(np.flatnonzero((originals == column[:, None]).all(axis=0))[0]) for column in canaries.T]
    assert np.array_equal(originals[:, order], canaries)
    assert np.sort(canaries, axis=1).tolist() == np.sort(originals, axis=1).tolist()


def test_records_of_another_data_set(pool, tmp_path):
    rng = np.random.default_rng(0)
    other = tmp_path / "other.npz"
    images = rng.integers(0, 200, (40, 4, 16)).astype(np.float32)
    np.savez(other, x=images, y=rng.integers(0, 3, 40))
    planted = plant(pool, [OutOfDistribution(12, source=str(other))], seed=1)
    canaries = planted.data.x[planted.rows].reshape(12, 8, 8)
    assert all(canary.source.startswith("other") for canary in planted.canaries)
    assert canaries.max() == pytest.approx(pool.x.max())
    numbers = [int(canary.source.rpartition("-")[2]) for canary in planted.canaries]
    nearest = images[numbers][:, np.repeat(np.arange(4), 2)][:, :, ::2]  # twice as high, half as wide
    assert canaries == pytest.approx(nearest * (pool.x.max() / images[numbers].max()), rel=1e-6)
    assert set(planted.data.y[planted.rows]) > {0, 5}, "labels are this data set's, and random"


def test_another_data_set_that_does_not_fit(pool, tmp_path):
    flat = tmp_path / "flat.npz"
    np.savez(flat, x=np.ones((9, 5)), y=np.arange(9) % 3)
    with pytest.raises(InputError, match="64 features like digits, or both must be images, got 5"):
        plant(pool, [OutOfDistribution(3, source=str(flat))], seed=1)
    with pytest.raises(InputError, match="another data set than digits"):
        plant(pool, [OutOfDistribution(3, source="digits")], seed=1)
    with pytest.raises(InputError, match="there is no file"):
        plant(pool, [OutOfDistribution(3, source="nowhere.npz")], seed=1)
    with pytest.raises(InputError, match="at most the 1547 records"):
        plant(pool, [OutOfDistribution(1548)], seed=1)


def test_two_families_never_share_a_source(pool):
    few = replace(pool, x_spare=pool.x_spare[:20], y_spare=pool.y_spare[:20], spare_ids=pool.spare_ids[:20])
    planted = plant(few, [Mislabelled(10), OutOfDistribution(10)], seed=1)
    sources = [canary.source for canary in planted.canaries]
    assert set(sources) == set(few.spare_ids)
    with pytest.raises(InputError, match="at most the 9 records"):
        plant(few, [Mislabelled(11), OutOfDistribution(10)], seed=1)


# ---- ClipBKD --------------------------------------------------------------------------------------------------------


def test_canaries_lie_along_the_least_singular_directions():
    """A world of known directions: deviations 5, 1 and 0.1 along three axes of a rotation."""
    rng = np.random.default_rng(2)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = rng.normal(size=(4000, 3)) * [5.0, 1.0, 0.1] @ axes.T
    pool = named("turned", x, rng.integers(0, 2, 4000))
    planted = plant(pool, [ClipBKD(3)], seed=0)
    canaries = planted.data.x[planted.rows]
    exact = np.linalg.svd(pool.x.astype(float))[2][::-1]
    assert np.abs((canaries * exact).sum(1)) == pytest.approx(np.linalg.norm(canaries, axis=1), rel=1e-3)
    assert np.linalg.norm(canaries, axis=1) == pytest.approx(np.linalg.norm(pool.x, axis=1).mean(), rel=1e-3)
    assert np.abs(canaries[0] @ axes[:, 2]) == pytest.approx(np.linalg.norm(canaries[0]), rel=1e-2)


def test_features_that_nobody_uses_come_first(pool):
    planted = plant(pool, [ClipBKD(14, scale=2.0), FarOut(2)], seed=0)
    canaries = planted.data.x[planted.rows]
    length = 2 * np.linalg.norm(pool.x, axis=1).mean()
    free = list(unused_features(pool.x))
    assert len(free) == 10
    assert canaries[:10, free] == pytest.approx(length * np.eye(10), rel=1e-4)
    assert (canaries[:10] != 0).sum() == 10
    directions = canaries[:14].astype(float) / length
    assert directions @ directions.T == pytest.approx(np.eye(14), abs=1e-3)
    assert np.linalg.norm(pool.x @ directions[10:14, :64].T, axis=0) == pytest.approx(
        np.linalg.svd(pool.x[:, np.setdiff1d(np.arange(64), free)].astype(float))[1][::-1][:4], rel=1e-2
    )
    assert planted.data.private_columns == (64, 65), "far-out canaries have features of their own all the same"


def test_the_label_is_the_one_that_fits_least():
    """Along the only direction that says something of the label: larger values are of class 1, smaller of class 0."""
    x = np.column_stack([np.repeat([-3.0, 3.0], 50), np.zeros(100), np.tile([-9.0, 9.0], 50)])
    pool = named("two", x, np.repeat([0, 1], 50))
    planted = plant(pool, [ClipBKD(2)], seed=0)
    unused, telling = planted.data.x[planted.rows]
    assert unused.tolist() == pytest.approx([0, np.hypot(3, 9), 0], rel=1e-4)
    assert telling.tolist() == pytest.approx([np.hypot(3, 9), 0, 0], rel=1e-4)
    assert planted.data.y[planted.rows].tolist() == [0, 0]


def test_the_data_decide_and_no_seed(pool, monkeypatch):
    one, other = (plant(pool, [ClipBKD(20)], seed=seed).data for seed in (0, 1))
    assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
    monkeypatch.setattr("dpaudit.attacks.families._ROWS", 7)
    parts = plant(pool, [ClipBKD(20)], seed=0).data
    assert np.array_equal(one.x, parts.x) and np.array_equal(one.y, parts.y)
    with pytest.raises(InputError, match="at most one per feature"):
        plant(pool, [ClipBKD(65)], seed=0)


# ---- secrets and inserted texts -------------------------------------------------------------------------------------


def test_secrets_are_all_equally_likely():
    """300 draws of 2 of 4 x 4: a chi-square of 15 degrees below its 1e-5 quantile."""
    secrets = Secrets("x#y#", symbols="abcd")
    assert secrets.space == 16 == len(set(secrets)) and secrets.bits == 4.0
    rng = np.random.default_rng(1)
    drawn = [secrets.draw(2, rng) for _ in range(300)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = np.array([sum(text in pair for pair in drawn) for text in secrets])
    assert ((counts - 37.5) ** 2 / 37.5).sum() < 49


def test_all_that_are_left_can_be_drawn():
    secrets = Secrets("##", symbols="ab")
    rng = np.random.default_rng(0)
    assert sorted(secrets.draw(3, rng, without=["ab", "elsewhere"])) == ["aa", "ba", "bb"]
    with pytest.raises(InputError, match="at most the 3"):
        secrets.draw(4, rng, without=["ab"])


def test_few_of_very_many():
    secrets = Secrets("pin: #########")
    rng = np.random.default_rng(0)
    some = secrets.draw(500, rng)
    more = secrets.draw(500, rng, without=some)
    assert len({*some, *more}) == 1000
    digits = np.array([list(text[5:]) for text in (*some, *more)]).astype(int)
    assert digits.shape == (1000, 9) and abs(digits.mean() - 4.5) < 0.15
    with pytest.raises(InputError, match="to be listed"):
        next(iter(secrets))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Secrets("no blank"), "blank '#' in it"),
        (lambda: Secrets("#", symbols="a"), "two different"),
        (lambda: Secrets("#", symbols="aa"), "two different"),
        (lambda: Secrets("#", blank="##"), "one character"),
        (lambda: encode(["a?"], " a", 4), "'\\?' in 'a\\?'"),
        (lambda: encode(["aaaaa"], " a", 4), "at most 4 characters, got 5"),
        (lambda: encode(["a"], "aa", 4), "different characters"),
        (lambda: decode([[3]], "ab"), "from 0 to 1"),
        (lambda: InsertedText(3, "code #", ALPHABET), "must be Secrets"),
        (lambda: ClipBKD(2, scale=0.0), "scale of clipbkd"),
        (lambda: OutOfDistribution(2, source=""), "must be 'permuted' or a data set"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_inserted_texts_are_records_of_tokens():
    texts = ["the sun is out", "ann owes bob ten", "no news today"] * 4
    tokens = encode(texts, ALPHABET, 24)
    pool = named("notes", tokens, np.arange(12) % 2)
    family = InsertedText(5, Secrets("code of ann: ####"), ALPHABET)
    planted = plant(pool, [family], seed=4)
    found = decode(planted.data.x[planted.rows], ALPHABET)
    assert len(set(found)) == 5 and all(text in set(family.secrets) for text in found)
    assert decode(planted.data.x[:3], ALPHABET) == tuple(texts[:3])
    with pytest.raises(InputError, match="data of tokens"):
        plant(named("numbers", tokens + 0.5, np.arange(12) % 2), [family], seed=4)
    with pytest.raises(InputError, match="at most 24 characters"):
        plant(pool, [replace(family, secrets=Secrets("the secret code of ann is #"))], seed=4)


def test_the_new_families_are_told_from_their_absence(pool):
    """LiRA on 24 models of softmax regression, 16 of them shadows, without privacy: AUC far above a half.

    A half has a deviation of 0.026 over 8 x 60 scores. ClipBKD canaries are alone in their directions, and nearly all
    are found.
    """
    families = [OutOfDistribution(30), ClipBKD(30)]
    planted = plant(pool, families, seed=1)
    coins = flip_coins(24, 60, np.random.SeedSequence(2))
    models = train_many(SGD(steps=150), planted.data, planted.membership(coins), seed=3)
    signal = logit_margin(models.logits(planted.data.x[planted.rows]), planted.data.y[planted.rows])
    scores = lira(signal[16:], signal[:16], coins[:16])
    assert auc(scores[:, :30], coins[16:, :30]) > 0.7
    assert auc(scores[:, 30:], coins[16:, 30:]) > 0.95
