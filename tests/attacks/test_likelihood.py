"""LiRA, the loss threshold and their signals against plain implementations."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.attacks import auc, cross_entropy, lira, lira_leave_one_out, logit_margin, loss_threshold
from dpaudit.errors import InputError

SHADOWS, RECORDS, TARGETS = 24, 30, 40


def world(seed: int = 0, gap: float = 2.0):
    """Signals of targets and shadows; members' are higher by ``gap``."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 3, RECORDS)
    member = rng.random((SHADOWS + TARGETS, RECORDS)) < 0.5
    signal = base + gap * member + rng.normal(size=member.shape)
    return signal[SHADOWS:], signal[:SHADOWS], member[:SHADOWS], member[SHADOWS:]


def plain_lira(signal, shadows, member, mode, variance):
    """One record and one target at a time."""
    scores = np.zeros(signal.shape)
    spread = {}
    for inside in (True, False):
        gaps = [s - shadows[member[:, j] == inside, j].mean() for j in range(RECORDS)
                for s in shadows[member[:, j] == inside, j]]  # fmt: skip
        spread[inside] = np.sqrt(np.square(gaps).sum() / (len(gaps) - RECORDS))
    for j in range(RECORDS):
        inside, outside = shadows[member[:, j], j], shadows[~member[:, j], j]
        s_in = inside.std(ddof=1) if variance == "per-example" else spread[True]
        s_out = outside.std(ddof=1) if variance == "per-example" else spread[False]
        for i, x in enumerate(signal[:, j]):
            if mode == "offline":
                scores[i, j] = -norm.logsf(x, outside.mean(), s_out)
            else:
                scores[i, j] = norm.logpdf(x, inside.mean(), s_in) - norm.logpdf(x, outside.mean(), s_out)
    return scores


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("variance", ["per-example", "pooled"])
def test_lira_is_the_plain_formula(mode, variance):
    signal, shadows, member, _ = world()
    assert lira(signal, shadows, member, mode, variance) == pytest.approx(
        plain_lira(signal, shadows, member, mode, variance), abs=1e-9, rel=1e-9
    )


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("variance", ["per-example", "pooled", "shrink"])
def test_members_score_higher(mode, variance):
    signal, shadows, member, truth = world(gap=3.0)
    assert auc(lira(signal, shadows, member, mode, variance), truth) > 0.85


def test_shrinking_meets_both_ends():
    signal, shadows, member, _ = world()
    few = lira(signal, shadows[:6], member[:6], variance="shrink")
    assert np.isfinite(few).all()
    many = np.random.default_rng(1)
    member = many.random((4000, RECORDS)) < 0.5
    shadows = 2.0 * member + many.normal(0, np.linspace(0.5, 2, RECORDS), (4000, RECORDS))
    exact = lira(signal[:, :], shadows, member, variance="per-example")
    assert lira(signal, shadows, member, variance="shrink") == pytest.approx(exact, rel=0.1, abs=0.5)


def test_one_target_is_a_row_of_many():
    signal, shadows, member, _ = world()
    assert lira(signal[0], shadows, member).tolist() == lira(signal, shadows, member)[0].tolist()


def test_a_record_that_no_shadow_had_borrows_the_mean_of_the_others():
    signal, shadows, member, _ = world()
    member = member.copy()
    member[:, 0] = False
    assert np.isfinite(lira(signal, shadows, member, variance="shrink")).all()
    with pytest.raises(InputError, match="train more shadows"):
        lira(signal, shadows, member, variance="per-example")


def test_each_model_in_turn_leaves_itself_out():
    _, shadows, member, _ = world()
    scores = lira_leave_one_out(shadows, member, variance="pooled")
    rest = np.arange(SHADOWS) != 5
    expected = lira(shadows[5], shadows[rest], member[rest], variance="pooled")
    assert scores[5].tolist() == expected.tolist()
    changed = member.copy()
    changed[5] = ~changed[5]
    assert lira_leave_one_out(shadows, changed, variance="pooled")[5].tolist() == scores[5].tolist()


def test_inputs_stay_as_they_were():
    arrays = world()
    before = [a.copy() for a in arrays]
    lira(*arrays[:3])
    loss_threshold(arrays[0])
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, sh, m: (s * np.nan, sh, m), "finite"),
        (lambda s, sh, m: (s[:, :3], sh, m), "signal must be"),
        (lambda s, sh, m: (s, sh, m[:3]), "signal must be"),
        (lambda s, sh, m: (s, sh, m + 1), "true or false"),
        (lambda s, sh, m: (s, sh[:1], m[:1]), "train more shadows"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        lira(*change(*world()[:3]))


def test_unknown_modes_are_refused():
    with pytest.raises(InputError, match="mode must be one of"):
        lira(*world()[:3], mode="both")


def test_a_small_loss_says_member():
    assert loss_threshold([0.1, 2.0]).tolist() == [-0.1, -2.0]
    with pytest.raises(InputError, match="NaN"):
        loss_threshold([0.1, np.nan])


def test_signals_against_exact_arithmetic():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(0, 20, (50, 7)), rng.integers(7, size=50)
    margin, loss = logit_margin(logits, labels), cross_entropy(logits, labels)
    with mpmath.workdps(60):
        for i, (z, y) in enumerate(zip(logits, labels, strict=True)):
            powers = [mpmath.e ** mpmath.mpf(float(v)) for v in z]
            others = sum(powers) - powers[y]
            assert margin[i] == pytest.approx(float(mpmath.log(powers[y] / others)), rel=1e-12)
            assert loss[i] == pytest.approx(float(mpmath.log(sum(powers) / powers[y])), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_signals_stay_finite_where_probabilities_round(size):
    logits = np.array([[size, 0.0, -size], [-size, size, 0.0]])
    labels = np.array([0, 0])
    assert np.isfinite(logit_margin(logits, labels)).all()
    assert np.isfinite(cross_entropy(logits, labels)).all()
    assert logit_margin(np.array([[1e4, 0.0]]), np.array([0]))[0] == 1e4


def test_signals_keep_leading_axes():
    logits, labels = np.random.default_rng(0).normal(size=(4, 6, 3)), np.arange(6) % 3
    assert logit_margin(logits, labels).shape == (4, 6)
    assert logit_margin(logits, labels)[2].tolist() == logit_margin(logits[2], labels).tolist()


@pytest.mark.parametrize("labels", [np.array([0, 3]), np.array([0, -1]), np.array([0.0, 1.0]), np.array([0])])
def test_labels_out_of_range(labels):
    with pytest.raises(InputError, match="labels"):
        logit_margin(np.zeros((2, 3)), labels)
