"""LiRA, the loss threshold and their signals against plain implementations."""

from __future__ import annotations

import tracemalloc

import mpmath
import numpy as np
import pytest
from scipy.stats import norm, t

from dpaudit.attacks import arrays as cutting
from dpaudit.attacks import auc, cross_entropy, lira, lira_leave_one_out, logit_margin, loss_threshold, rmia
from dpaudit.attacks.arrays import Shadows
from dpaudit.attacks.moments import both_sides, drawn_means, drawn_variances
from dpaudit.attacks.shadow import MODES, VARIANCES, _log_student_tail
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
            elif mode == "offline-two-sided":
                scores[i, j] = -norm.logpdf(x, outside.mean(), s_out)
            else:
                scores[i, j] = norm.logpdf(x, inside.mean(), s_in) - norm.logpdf(x, outside.mean(), s_out)
    return scores


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", ["per-example", "pooled"])
def test_lira_is_the_plain_formula(mode, variance):
    signal, shadows, member, _ = world()
    assert lira(signal, shadows, member, mode, variance) == pytest.approx(
        plain_lira(signal, shadows, member, mode, variance), abs=1e-9, rel=1e-9
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", VARIANCES)
def test_members_score_higher(mode, variance):
    signal, shadows, member, truth = world(gap=3.0)
    if variance.startswith("reference"):
        member[:4] = [[True], [True], [False], [False]]  # at least two each way
    floor = 0.6 if mode == "offline-two-sided" else 0.8
    assert auc(lira(signal, shadows, member, mode, variance), truth) > floor


def test_one_sided_and_two_sided_are_two_attacks():
    """A signal far below the outsiders' is no member's in the one, and a suspect in the other."""
    shadows = np.random.default_rng(0).normal(size=(200, 1))
    none = np.zeros(shadows.shape, bool)
    signal = np.array([[-6.0], [0.0], [6.0]])
    for variance in ("per-example", "pooled", "shrink"):
        low, middle, high = lira(signal, shadows, none, "offline", variance)[:, 0]
        assert low < middle < high
        low, middle, high = lira(signal, shadows, none, "offline-two-sided", variance)[:, 0]
        assert low > middle < high


@pytest.mark.parametrize("mode", MODES)
def test_shrinking_is_students_t(mode):
    """About drawn means, with drawn variances and their degrees of freedom (test_moments.py has these by hand)."""
    signal, shadows, member, _ = world()
    shadows = shadows * np.exp(np.random.default_rng(9).normal(size=RECORDS))  # variances differ: a finite prior
    sides = both_sides(Shadows.read(signal, shadows, member))
    laws = []
    for own, other in (sides, sides[::-1]):
        beside = other if mode == "online" else None
        variance, freedom = drawn_variances(own, beside)
        mean, doubt = drawn_means(own, beside, variance)
        laws.append(t(freedom, mean, np.sqrt(variance * (1 + doubt))))
        assert (freedom < 100).all()
    within, without = laws
    if mode == "online":
        wanted = within.logpdf(signal) - without.logpdf(signal)
    else:
        wanted = -without.logsf(signal) if mode == "offline" else -without.logpdf(signal)
    assert lira(signal, shadows, member, mode) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_shrinking_meets_both_ends():
    """Few records' variances differ: all are pooled. Many shadows: each record has its own."""
    rng = np.random.default_rng(1)
    member = rng.random((6, 3000)) < 0.5
    shadows = 2.0 * member + rng.normal(size=member.shape)
    variance, freedom = drawn_variances(*both_sides(Shadows.read(shadows[0], shadows, member)))
    assert (freedom > 10).all() and variance == pytest.approx(np.ones(3000), rel=0.4)
    member = rng.random((4000, RECORDS)) < 0.5
    shadows = 2.0 * member + rng.normal(0, np.linspace(0.5, 2, RECORDS), (4000, RECORDS))
    signal = rng.normal(1, 1, (3, RECORDS))
    exact = lira(signal, shadows, member, variance="per-example")
    assert lira(signal, shadows, member, variance="shrink") == pytest.approx(exact, abs=0.3)


def test_scores_do_not_depend_on_the_unit():
    signal, shadows, member, _ = world()
    for mode in ("online", "offline"):
        plain = lira(signal, shadows, member, mode)
        assert lira(signal * 1e-6, shadows * 1e-6, member, mode) == pytest.approx(plain, rel=1e-6)
        assert lira(signal * 1e6 + 7, shadows * 1e6 + 7, member, mode) == pytest.approx(plain, rel=1e-6)


def test_far_tails_are_not_tied():
    shadows = np.random.default_rng(0).normal(size=(30, 40))
    signal = np.array([[1e3], [1e9], [1e40], [1e100]]) * np.ones(40)
    for variance in ("pooled", "shrink"):
        scores = lira(signal, shadows, np.zeros(shadows.shape, bool), "offline", variance)
        assert np.isfinite(scores).all() and (np.diff(scores, axis=0) > 0).all()


@pytest.mark.parametrize("freedom", [0.7, 3.0, 40.0, 900.0])
def test_the_tail_of_students_t(freedom):
    z = np.array([-3.0, 0.0, 2.0, 30.0, 1e3, 1e5, 1e20])
    got = _log_student_tail(z, np.full(len(z), freedom))
    with mpmath.workdps(60):
        v = mpmath.mpf(freedom)
        for at, value in zip(z, got, strict=True):
            half = mpmath.betainc(v / 2, 0.5, 0, v / (v + mpmath.mpf(at) ** 2), regularized=True) / 2
            assert value == pytest.approx(float(mpmath.log(half if at >= 0 else 1 - half)), rel=1e-9)


def test_queries_are_summed():
    worlds = [world(seed) for seed in (1, 2, 3)]
    member = worlds[0][2]
    signal, shadows = np.stack([w[0] for w in worlds], -1), np.stack([w[1] for w in worlds], -1)
    for mode in MODES:
        each = [lira(signal[..., q], shadows[..., q], member, mode) for q in range(3)]
        assert lira(signal, shadows, member, mode) == pytest.approx(np.sum(each, axis=0))
        assert lira(signal[4], shadows, member, mode) == pytest.approx(np.sum(each, axis=0)[4])


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", VARIANCES)
def test_each_model_in_turn_leaves_itself_out(mode, variance):
    _, shadows, member, _ = world()
    member[:6] = [[True], [True], [True], [False], [False], [False]]  # two each way without any one
    scores = lira_leave_one_out(shadows, member, mode, variance)
    for i in range(SHADOWS):
        rest = np.arange(SHADOWS) != i
        expected = lira(shadows[i], shadows[rest], member[rest], mode, variance)
        assert scores[i] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    changed = member.copy()
    changed[9] = ~changed[9]
    other = lira_leave_one_out(shadows, changed, mode, variance)
    assert other[9] == pytest.approx(scores[9], rel=1e-9, abs=1e-9)


def test_leaving_out_the_only_shadow_on_a_side():
    _, shadows, member, _ = world()
    member[:, 0] = False
    member[3, 0] = True
    member[:, 1] = True
    member[7, 1] = False
    for mode in ("online", "offline"):
        scores = lira_leave_one_out(shadows, member, mode)
        for i in (3, 7):
            rest = np.arange(SHADOWS) != i
            assert scores[i] == pytest.approx(lira(shadows[i], shadows[rest], member[rest], mode), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", VARIANCES)
class TestContract:
    def test_order_is_free(self, mode, variance):
        signal, shadows, member, _ = world()
        member[:4] = [[True], [True], [False], [False]]
        scores = lira(signal, shadows, member, mode, variance)
        order = np.random.default_rng(0).permutation(RECORDS)
        assert lira(signal[:, order], shadows[:, order], member[:, order], mode, variance) == pytest.approx(
            scores[:, order], rel=1e-9, abs=1e-9
        )
        if not variance.startswith("reference"):  # whose cut to the first so many is a quirk
            rows = np.random.default_rng(1).permutation(SHADOWS)
            assert lira(signal, shadows[rows], member[rows], mode, variance) == pytest.approx(
                scores, rel=1e-9, abs=1e-9
            )

    def test_float32_and_whole_numbers(self, mode, variance):
        signal, shadows, member, _ = world()
        member[:4] = [[True], [True], [False], [False]]
        signal, shadows = signal.astype(np.float32), shadows.astype(np.float32)
        got = lira(signal, shadows, member.astype(np.int8), mode, variance)
        wide = lira(signal.astype(np.float64), shadows.astype(np.float64), member, mode, variance)
        assert got.dtype == np.float64 and got.tolist() == wide.tolist()

    def test_blocks_do_not_show(self, mode, variance, monkeypatch):
        signal, shadows, member, _ = world()
        member[:4] = [[True], [True], [False], [False]]
        whole = lira(signal, shadows, member, mode, variance)
        monkeypatch.setattr(cutting, "BLOCK", 7)
        assert lira(signal, shadows, member, mode, variance) == pytest.approx(whole, rel=1e-12, abs=1e-12)


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
        (lambda s, sh, m: (s[..., None], sh, m), "signal must be"),
        (lambda s, sh, m: (s.astype(str), sh, m), "signal must be numbers"),
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


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_long_arrays_are_not_copied(attack):
    """A copy of the shadows in float64 takes 51 MB."""
    rng = np.random.default_rng(0)
    shadows = -rng.standard_exponential((64, 100_000), np.float32)
    member, z = rng.random(shadows.shape, np.float32) < 0.5, -rng.standard_exponential((65, 50), np.float32)
    tracemalloc.start()
    if attack == "lira":
        lira(shadows[0], shadows, member)
    else:
        rmia(shadows[0], shadows, member, z[0], shadow_population_signals=z[1:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45e6
