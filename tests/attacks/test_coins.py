"""Canaries and coins on disk, and scores joined to them by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpaudit import Design
from dpaudit.attacks import Blank, FarOut, flip_coins, plant
from dpaudit.attacks.canaries import InsertedText, Mislabelled
from dpaudit.attacks.coins import CanaryCoins, read_canaries, write_canaries
from dpaudit.attacks.texts import Secrets, encode
from dpaudit.data import Pool, load
from dpaudit.errors import InputError
from dpaudit.trainers.private import GradientCanaries

RUNS = ("a", "b", "c")


@pytest.fixture(scope="module")
def planted():
    return plant(load("digits", records=100, test=20, seed=3), [FarOut(4), Mislabelled(5)], seed=1)


@pytest.fixture
def record(planted):
    families = [FarOut(4), Mislabelled(5)]
    return CanaryCoins.of(planted, flip_coins(3, 9, np.random.SeedSequence(4)), RUNS, families)


def same(one: CanaryCoins, other: CanaryCoins) -> bool:
    return (
        one.canaries == other.canaries
        and one.runs == other.runs
        and dict(one.settings) == dict(other.settings)
        and np.array_equal(one.member, other.member)
        and all(
            (a is None and b is None) or (np.array_equal(a, b) and a.dtype == b.dtype)
            for a, b in ((one.x, other.x), (one.y, other.y))
        )
    )


def test_what_is_written_is_read_again(record, planted, tmp_path):
    path = tmp_path / "canaries.safetensors"
    write_canaries(path, record)
    again = read_canaries(path)
    assert same(record, again)
    assert again.settings["far-out"] == {"count": 4, "value": 4.0, "name": "far-out"}
    assert np.array_equal(again.x, planted.data.x[planted.rows])
    assert [canary.source for canary in again.canaries[4:]] == [c.source for c in planted.canaries[4:]]
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"
    write_canaries(path, record.family("far-out"))
    assert read_canaries(path).ids == tuple(f"far-out-{i:04d}" for i in range(4))


def test_texts_are_written_with_their_format(tmp_path):
    tokens = encode(["ab", "ba", "bb"], " ab", 4)
    ids = ("r0", "r1", "r2")
    pool = Pool(tokens.astype(np.float32), np.arange(3) % 2, tokens[:0], np.zeros(0, int), tokens[:0],
                np.zeros(0, int), 2, "notes", None, ids, ())  # fmt: skip
    family = InsertedText(2, Secrets("a##", symbols="ab"), " ab")
    record = CanaryCoins.of(plant(pool, [family], seed=0), np.array([[True, False]]), families=[family])
    write_canaries(tmp_path / "texts.safetensors", record)
    assert read_canaries(tmp_path / "texts.safetensors").settings["inserted-text"]["secrets"]["format"] == "a##"


def test_gradient_canaries_are_their_settings(tmp_path):
    torch = pytest.importorskip("torch")
    canaries = GradientCanaries(kind="dirac", count=4, norm=2.0, seed=7)
    record = CanaryCoins.of_gradients(canaries, np.array([True, False, True, True]))
    write_canaries(tmp_path / "gradients.safetensors", record)
    again = read_canaries(tmp_path / "gradients.safetensors")
    assert same(record, again) and again.x is None
    assert again.gradients() == canaries and again.ids == canaries.names
    like = torch.zeros(20)
    assert torch.equal(again.gradients().vectors(like).dense(), canaries.vectors(like).dense())


def test_scores_are_joined_by_name(record):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 9)).astype(np.float32)
    scores.setflags(write=False)
    straight = record.join(scores, record.ids, RUNS)
    assert np.array_equal(straight.scores, scores) and np.array_equal(straight.member, record.member)
    rows, columns = rng.permutation(3), rng.permutation(9)
    turned = record.join(
        scores[rows][:, columns], [record.ids[i] for i in columns], [RUNS[i] for i in rows], Design(coins="fair")
    )
    assert np.array_equal(turned.scores, straight.scores) and np.array_equal(turned.member, straight.member)
    assert turned.runs == RUNS and turned.canaries == record.ids


def test_what_nobody_scored_is_counted_with_its_coin(record):
    scores = np.arange(14.0).reshape(2, 7)
    scores[1, 3] = np.nan
    found = record.join(scores, record.ids[2:], ["c", "a"])
    assert found.coins == 27
    assert not found.present[:, :2].any() and not found.present[1].any()
    assert not found.present[0, 5] and found.present.sum() == 13
    assert found.scores[2, 2:].tolist() == scores[0].tolist()
    assert np.array_equal(found.member, record.member)


def test_one_run_needs_no_name(record):
    single = CanaryCoins(record.canaries, record.member[0])
    assert single.runs == ("0",)
    assert single.join(np.arange(9.0), record.ids).scores.tolist() == [list(range(9))]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"canaries": ("far-out-0000", "far-out-0000"), "scores": [[1, 2]] * 3}, "'far-out-0000' twice"),
        ({"canaries": ("far-out-0000", "far-out-9"), "scores": [[1, 2]] * 3}, r"got 'far-out-9' \(1 unknown\)"),
        ({"canaries": ("far-out-0000",), "scores": [[1, 2]] * 3}, r"every part of scores \(2\), got 1 names"),
        ({"runs": ("a", "b", "d")}, "runs must be among the 3 recorded, got 'd'"),
        ({"runs": ("a", "b", "b")}, "'b' twice"),
        ({"runs": None}, "as 3 runs are recorded"),
        ({"scores": [["x"] * 9] * 3}, "scores must be numbers"),
        ({"scores": np.zeros((3, 9, 1))}, "shape"),
    ],
)
def test_names_that_do_not_fit_are_refused(record, arguments, words):
    whole = {"scores": np.zeros((3, 9)), "canaries": record.ids, "runs": RUNS} | arguments
    with pytest.raises(InputError, match=words):
        record.join(**whole)


def test_records_that_do_not_fit_are_refused(record):
    with pytest.raises(InputError, match="booleans of shape"):
        CanaryCoins(record.canaries, record.member.astype(int))
    with pytest.raises(InputError, match="booleans of shape"):
        CanaryCoins(record.canaries, record.member[:, :8])
    with pytest.raises(InputError, match="one name per row"):
        CanaryCoins(record.canaries, record.member, ("a",))
    with pytest.raises(InputError, match="'a' twice"):
        CanaryCoins(record.canaries, record.member, ("a", "b", "a"))
    with pytest.raises(InputError, match="one record per canary"):
        CanaryCoins(record.canaries, record.member, RUNS, x=record.x[:3])
    with pytest.raises(InputError, match="must be gradients, got far-out, mislabelled"):
        record.gradients()
    with pytest.raises(InputError, match="family must be one of far-out, mislabelled"):
        record.family("blank")


def test_other_files_are_refused(record, tmp_path):
    from dpaudit.data.scores import tensor_bytes

    path = tmp_path / "canaries.safetensors"
    with pytest.raises(InputError, match="does not exist"):
        read_canaries(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="must be a safetensors file"):
        read_canaries(path)
    path.write_bytes(tensor_bytes({"member": record.member}, {"schema": "another/1"}))
    with pytest.raises(InputError, match=r"dpaudit\.canaries/1"):
        read_canaries(path)
    meta = {"schema": "dpaudit.canaries/1", "canaries": [{"id": "x"}], "runs": [], "settings": {}}
    path.write_bytes(tensor_bytes({"member": record.member}, json.loads(json.dumps(meta))))
    with pytest.raises(InputError, match="coins, got"):
        read_canaries(path)


def test_the_record_keeps_its_own_coins(record):
    coins = np.array([[True, False, True]])
    pool = load("digits", records=50, test=10, seed=0)
    kept = CanaryCoins.of(plant(pool, [Blank(3)], seed=0), coins)
    coins[0, 0] = False
    assert kept.member[0, 0]
    with pytest.raises(ValueError, match="read-only"):
        kept.member[0, 0] = False
