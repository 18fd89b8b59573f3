"""Signals against exact arithmetic, and where probabilities round."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.attacks import (
    SIGNALS,
    auc,
    confidence,
    correctness,
    cross_entropy,
    entropy,
    log_probabilities,
    logit_margin,
    modified_entropy,
)
from dpaudit.attacks import arrays as cutting
from dpaudit.attacks.signals import log_softmax
from dpaudit.errors import InputError


def exact(z, y):
    """(ln p(label), log-odds of the label, of the largest, Σ p ln p, Song and Mittal's sum), by mpmath."""
    powers = [mpmath.e ** mpmath.mpf(float(v)) for v in z]
    p = [v / sum(powers) for v in powers]
    top = max(range(len(p)), key=lambda i: p[i])
    odds = [mpmath.log(powers[i] / (sum(powers) - powers[i])) for i in range(len(p))]
    spread = sum(q * mpmath.log(q) for q in p)
    modified = (1 - p[y]) * mpmath.log(p[y]) + sum(p[i] * mpmath.log(1 - p[i]) for i in range(len(p)) if i != y)
    return [float(v) for v in (mpmath.log(p[y]), odds[y], odds[top], spread, modified)]


@pytest.mark.parametrize("size", [0.01, 1.0, 20.0, 60.0])
def test_signals_are_the_textbook_formulas(size):
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(0, size, (40, 7)), rng.integers(7, size=40)
    names = ("loss", "margin", "confidence", "entropy", "modified-entropy")
    got = np.stack([SIGNALS[name](logits, labels) for name in names], axis=1)
    with mpmath.workdps(120):
        wanted = np.array([exact(z, y) for z, y in zip(logits, labels, strict=True)])
    assert got == pytest.approx(wanted, rel=1e-9, abs=1e-300)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.data())
def test_signals_of_any_logits(z, data):
    y = data.draw(st.integers(0, len(z) - 1))
    got = [SIGNALS[name]([z], [y])[0] for name in ("loss", "entropy", "modified-entropy")]
    with mpmath.workdps(60):
        loss, _, _, spread, modified = exact(z, y)
    assert got == pytest.approx([loss, spread, modified], rel=1e-8, abs=1e-15)


def test_certain_predictions_are_not_tied():
    """Where a softmax in float64 says 1 for both, the signals still tell 40 from 60."""
    logits = np.array([[40.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    for name in ("loss", "margin", "confidence", "entropy", "modified-entropy"):
        low, high = SIGNALS[name](logits, np.array([0, 0]))
        assert high > low, name


def test_confidence_is_the_labels_or_the_largest_ones():
    logits, labels = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 4
    assert confidence(logits, labels).tolist() == logit_margin(logits, labels).tolist()
    assert confidence(logits).tolist() == logit_margin(logits, logits.argmax(axis=1)).tolist()


def test_a_low_entropy_says_member():
    flat, peaked = np.zeros((1, 5)), np.array([[9.0, 0, 0, 0, 0]])
    assert entropy(flat)[0] == pytest.approx(-np.log(5))
    assert entropy(peaked)[0] > entropy(flat)[0]


def test_modified_entropy_knows_the_label():
    logits = np.array([[9.0, 0.0, 0.0]] * 2)
    right, wrong = modified_entropy(logits, np.array([0, 1]))
    assert right > -0.01 > -5 > wrong


def test_correctness_takes_no_part_in_ties():
    logits = np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [1.0, 1.0]])
    assert correctness(logits, np.array([0, 0, 0, 1])).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_probabilities_enter_as_logits():
    logits, labels = np.random.default_rng(1).normal(0, 3, (60, 5)), np.arange(60) % 5
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for signal in SIGNALS.values():
        assert signal(log_probabilities(p), labels) == pytest.approx(signal(logits, labels), rel=1e-9, abs=1e-12)
    assert log_softmax(logits) == pytest.approx(np.log(p))


def test_zeros_are_below_everything_and_tie():
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0 - 1e-30, 1e-30, 0.0]], np.float32)
    logs = log_probabilities(p)
    assert np.isfinite(logs).all()
    assert logs[0, 1] == logs[0, 2] == pytest.approx(np.log(1.1754944e-38))
    assert logs[2, 1] > logs[2, 2]
    assert log_probabilities(p.astype(np.float64))[0, 1] < -700
    loss = cross_entropy(logs, np.array([0, 0, 0]))
    assert loss[1] > 80 and np.isfinite(loss).all()


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([[0.5, 0.2]], "sum to 1, got 0.7"),
        ([[1.5, -0.5]], r"in \[0, 1\]"),
        ([[np.nan, 0.5]], "with NaN"),
        ([0.5, 0.5], "shape"),
        ([["a", "b"]], "probabilities must be"),
    ],
)
def test_what_is_no_probability(p, message):
    with pytest.raises(InputError, match=message):
        log_probabilities(p)


@pytest.mark.parametrize("name", SIGNALS)
class TestContract:
    def test_shapes_of_many_models(self, name):
        logits, labels = np.random.default_rng(0).normal(size=(2, 3, 6, 4)), np.arange(6) % 4
        got = SIGNALS[name](logits, labels)
        assert got.shape == (2, 3, 6) and got.dtype == np.float64
        assert got[1, 2].tolist() == SIGNALS[name](logits[1, 2], labels).tolist()

    def test_blocks_do_not_show(self, name, monkeypatch):
        logits, labels = np.random.default_rng(0).normal(size=(2, 25, 4)), np.arange(25) % 4
        whole = SIGNALS[name](logits, labels)
        monkeypatch.setattr(cutting, "BLOCK", 7)
        assert SIGNALS[name](logits, labels).tolist() == whole.tolist()

    def test_inputs_stay_and_rows_may_be_in_any_order(self, name):
        logits, labels = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 4
        kept, order = logits.copy(), np.random.default_rng(1).permutation(30)
        scores = SIGNALS[name](logits, labels)
        assert SIGNALS[name](logits[order], labels[order]).tolist() == scores[order].tolist()
        assert (logits == kept).all()

    def test_float32_is_worked_on_in_float64(self, name):
        logits, labels = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 4
        assert SIGNALS[name](logits, labels).tolist() == SIGNALS[name](logits.astype(np.float64), labels).tolist()

    def test_members_of_an_overfitted_model_score_higher(self, name):
        rng = np.random.default_rng(0)
        labels, member = rng.integers(5, size=4000), np.arange(4000) < 2000
        logits = rng.normal(size=(4000, 5))
        logits[np.arange(4000), labels] += np.where(member, 5.0, 1.0)
        assert auc(SIGNALS[name](logits, labels), member) > 0.6

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite(self, name, bad):
        logits = np.zeros((3, 2))
        logits[1, 0] = bad
        with pytest.raises(InputError, match="finite"):
            SIGNALS[name](logits, np.zeros(3, int))

    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    def test_shapes_that_are_no_logits(self, name, shape):
        with pytest.raises(InputError, match="logits must be"):
            SIGNALS[name](np.zeros(shape), np.zeros(4, int))
