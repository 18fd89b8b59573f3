"""The blind baseline finds a biased split and no fair one; the null run shows what luck gives."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dpaudit.attacks.controls import blind_baseline, null_run
from dpaudit.attacks.metrics import auc, measure
from dpaudit.errors import InputError, MissingExtra


def split(records: int = 300, features: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(records, features)), rng.random(records) < 0.5, rng.integers(4, size=records)


class TestBlindBaseline:
    def test_a_fair_split_is_not_called_biased(self):
        pytest.importorskip("sklearn")
        x, member, labels = split()
        found = blind_baseline(x, member, labels, draws=999)
        assert not found.biased and found.p_value > 0.05
        assert 0.4 < found.auc < 0.6
        assert set(found.aucs) == {"share of members per label", "logistic regression", "gradient boosting"}
        assert found.records == 240  # all but the first part

    def test_a_shift_of_the_features_is_found(self):
        pytest.importorskip("sklearn")
        x, member, labels = split()
        x[member, 2] += 1.0
        found = blind_baseline(x, member, labels, draws=999)
        assert found.biased and found.auc > 0.65 and found.p_value <= 0.05

    def test_trees_find_what_no_line_does(self):
        pytest.importorskip("sklearn")
        x, member, _ = split(records=800)
        x[member, 0] *= 3.0  # wider, not higher
        found = blind_baseline(x, member, draws=999)
        assert found.biased and found.classifier == "gradient boosting"

    def test_other_labels_are_found_without_features_and_without_scikit_learn(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn", None)
        _, member, labels = split(records=500)
        assert not blind_baseline(None, member, labels, draws=999).biased
        labels[member & (labels == 1) & (np.arange(500) % 2 == 0)] = 2
        found = blind_baseline(None, member, labels, draws=999)
        assert found.biased and found.classifier == "share of members per label"

    def test_features_without_scikit_learn_name_the_extra(self, monkeypatch):
        for name in [m for m in sys.modules if m.split(".")[0] == "sklearn"]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, "sklearn", None)
        x, member, _ = split()
        with pytest.raises(MissingExtra, match=r"dpaudit\[train\]"):
            blind_baseline(x, member)

    def test_the_order_of_rows_is_irrelevant(self):
        pytest.importorskip("sklearn")
        x, member, labels = split(records=120)
        order = np.random.default_rng(1).permutation(120)
        one = blind_baseline(x, member, labels, draws=99)
        other = blind_baseline(x[order], member[order], labels[order], draws=99)
        assert one.aucs == pytest.approx(other.aucs)
        assert one == blind_baseline(x, member, labels, draws=99)

    def test_text_labels_and_images(self):
        pytest.importorskip("sklearn")
        x, member, labels = split(records=120, features=16)
        names = np.array(["ant", "bee", "cat", "dog"])[labels]
        found = blind_baseline(x.reshape(120, 4, 4), member, names, draws=99)
        assert found.seen == "labels (4 kinds) and 16 features"

    def test_a_label_that_the_first_part_lacks(self):
        pytest.importorskip("sklearn")
        x, member, _ = split(records=120)
        assert 0 <= blind_baseline(x, member, np.arange(120), draws=99).auc <= 1

    def test_inputs_stay_as_they_were(self):
        pytest.importorskip("sklearn")
        x, member, labels = split(records=120)
        before = x.copy(), member.copy(), labels.copy()
        blind_baseline(x, member, labels, draws=9)
        assert all((a == b).all() for a, b in zip((x, member, labels), before, strict=True))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda x, m, y: (None, m, None), "neither"),
            (lambda x, m, y: (x[:5], m, y), "one row per record"),
            (lambda x, m, y: (x * np.nan, m, y), "finite"),
            (lambda x, m, y: (x, np.zeros(len(m)), y), "at least 20 members"),
            (lambda x, m, y: (x, m + 1, y), "true or false"),
            (lambda x, m, y: (x.astype(str) + "a", m, y), "must be numbers"),
        ],
    )
    def test_bad_input(self, change, message):
        with pytest.raises(InputError, match=message):
            blind_baseline(*change(*split()))


class TestNullRun:
    def test_it_shows_what_luck_gives(self):
        rng = np.random.default_rng(2)
        member = rng.random(400) < 0.5
        scores = rng.normal(size=400) + 3.0 * member
        found = null_run(scores, member)
        assert found.auc.low < 0.5 < found.auc.high and abs(found.auc.mean - 0.5) < 0.01
        assert measure(scores, member, draws=9).area.value > found.auc.high
        assert found.best_advantage.low > 0  # chosen on the records: above 0 although there is nothing
        assert [round(t.mean, 1) for t in found.tprs[:2]] == [0.1, 0.0]

    def test_ties_stay_at_chance(self):
        found = null_run(np.ones(50), np.arange(50) < 20, repeats=20)
        assert (found.auc.low, found.auc.high, found.best_advantage.high) == (0.5, 0.5, 0.0)

    def test_an_attack_that_looks_at_membership_is_caught(self):
        member = np.random.default_rng(3).random(200) < 0.5
        noise = np.random.default_rng(4).normal(size=200)
        cheat = null_run(lambda m: noise + 0.5 * m, member, repeats=40)
        fair = null_run(lambda m: noise, member, repeats=40)
        assert cheat.auc.low > 0.55 and fair.auc.low < 0.5

    def test_thresholds_have_their_null_too(self):
        rng = np.random.default_rng(7)
        scores, member = rng.normal(size=600), rng.random(600) < 0.5
        one, two = null_run(scores, member, thresholds=[0.0, 2.0]).decisions
        assert one.tpr.mean == pytest.approx(np.mean(scores > 0.0), abs=0.01)
        assert two.fpr.mean == pytest.approx(np.mean(scores > 2.0), abs=0.01)
        for found in (one, two, *null_run(scores, member).decisions):
            assert found.advantage.low <= 0.0 <= found.advantage.high
            assert abs(found.advantage.mean) < 0.02
        assert len(null_run(scores, member).decisions) == 1  # half of the records chose it
        assert null_run(scores[:3], [1, 0, 1], repeats=5).decisions == ()

    def test_the_order_of_rows_is_irrelevant(self):
        rng = np.random.default_rng(6)
        scores, member, groups = rng.integers(9, size=80) / 2, rng.random(80) < 0.4, rng.integers(3, size=80)
        order = rng.permutation(80)
        for within in (None, groups):
            there = None if within is None else within[order]
            assert null_run(scores[order], member[order], within=there) == null_run(scores, member, within=within)

    def test_shuffles_stay_within_groups(self):
        groups = np.arange(100) % 2
        member = groups == 1  # all members in one group: nothing can be exchanged
        scores = np.random.default_rng(5).normal(size=100)
        found = null_run(scores, member, within=groups, repeats=10)
        assert found.auc.low == found.auc.high == auc(scores, member)

    @pytest.mark.parametrize(
        ("scores", "member", "options"),
        [
            ([1.0, 2.0], [1, 1], {}),
            ([1.0, np.nan], [1, 0], {}),
            ([1.0, 2.0], [1, 0], {"repeats": 0}),
            ([1.0, 2.0], [1, 0], {"within": [1]}),
        ],
    )
    def test_bad_input(self, scores, member, options):
        with pytest.raises(InputError):
            null_run(scores, member, **options)
