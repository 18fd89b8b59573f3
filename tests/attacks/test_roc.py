"""ROC curves: exact with ties, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.attacks import auc, roc
from dpaudit.errors import InputError


def test_constant_scores_are_a_coin_flip():
    curve = roc(np.zeros(10), np.arange(10) < 3)
    assert (curve.fpr.tolist(), curve.tpr.tolist()) == ([0.0, 1.0], [0.0, 1.0])
    assert auc(np.zeros(10), np.arange(10) < 3) == 0.5


def test_ties_move_both_rates_at_once():
    curve = roc([2, 1, 1, 1, 0], [1, 1, 0, 1, 0])
    assert curve.fpr.tolist() == [0, 0, 0.5, 1]
    assert curve.tpr.tolist() == pytest.approx([0, 1 / 3, 1, 1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40), st.randoms())
def test_auc_is_the_share_of_pairs_in_order(rows, shuffled):
    scores, member = map(np.array, zip(*rows, strict=True))
    if member.all() or not member.any():
        return
    inside, outside = scores[member][:, None], scores[~member][None, :]
    expected = (inside > outside).mean() + (inside == outside).mean() / 2
    assert auc(scores, member) == pytest.approx(expected)
    order = list(range(len(scores)))
    shuffled.shuffle(order)
    assert auc(scores[order], member[order]) == auc(scores, member)


def test_reversed_scores_are_the_mirror():
    rng = np.random.default_rng(0)
    scores, member = rng.normal(size=100), rng.random(100) < 0.5
    assert auc(-scores, member) == pytest.approx(1 - auc(scores, member))


def test_intervals_hold_the_rates():
    rng = np.random.default_rng(0)
    curve = roc(rng.normal(size=200), rng.random(200) < 0.5)
    low, high = curve.interval()
    assert (low <= curve.tpr).all()
    assert (high >= curve.tpr).all()
    assert (low[0], high[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("scores", "member"), [([1, np.nan], [1, 0]), ([1, 2], [1, 1]), ([1, 2], [0, 0]), ([1, 2, 3], [1, 0])]
)
def test_bad_input(scores, member):
    with pytest.raises(InputError):
        roc(scores, member)
