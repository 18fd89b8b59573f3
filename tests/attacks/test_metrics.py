"""Measures: exact with ties, whatever the order of rows, never a number that so few records can't resolve."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact, hypergeom, mannwhitneyu

from dpaudit.attacks.chance import (
    area_p_value,
    decision_p_value,
    draws_for,
    holm,
    hypergeometric_tail,
    share_p_value,
)
from dpaudit.attacks.metrics import area_interval, auc, decide, measure, ppv, rate, roc, slices, threshold
from dpaudit.errors import InputError


def gaussians(records: int, gap: float, seed: int = 0):
    rng = np.random.default_rng(seed)
    member = rng.random(records) < 0.5
    return rng.normal(size=records) + gap * member, member


# --- rates at fixed false positive rates -------------------------------------------------------------------------


def plain_point(scores, member, fpr):
    """The best threshold with at most that rate, by trying all."""
    inside, outside = scores[member], scores[~member]
    best = 0
    for t in [np.inf, *np.unique(scores)]:
        if (outside >= t).sum() <= fpr * len(outside) * (1 + 1e-12):
            best = max(best, int((inside >= t).sum()))
    return best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=60), st.randoms())
def test_points_are_those_of_the_best_allowed_threshold_in_any_order(rows, shuffled):
    scores, member = map(np.array, zip(*rows, strict=True))
    if member.all() or not member.any():
        return
    fprs = (0.5, 0.1, 0.0)
    found = measure(scores, member, fprs=fprs, draws=9)
    for point in found.points:
        if point.tpr is not None:
            assert point.tpr.hits == plain_point(scores, member, point.fpr)
    order = list(range(len(scores)))
    shuffled.shuffle(order)
    assert measure(scores[order], member[order], fprs=fprs, draws=9) == found


@pytest.mark.parametrize(("others", "resolved"), [(999, False), (1000, True)])
def test_a_rate_below_one_over_n_is_not_resolvable(others, resolved):
    scores = np.arange(others + 10.0)
    found = measure(scores, scores >= others, draws=9)
    tenth, percent, permille, zero = found.points
    assert (permille.tpr is not None) is resolved
    assert [permille.p_value is None, permille.ppv is None] == [not resolved] * 2
    assert all(p.tpr is not None and p.tpr.value == 1.0 for p in (tenth, percent, zero))


def test_a_tenth_of_a_percent_is_not_ten_percent():
    """SACRO-ML #475: "TPR@0.1" meant 10 %."""
    scores = np.concatenate([np.linspace(0, 1, 2000), np.full(100, 0.95)])
    member = np.arange(2100) >= 2000
    at = {p.fpr: p.tpr.value for p in measure(scores, member, draws=9).points if p.tpr is not None}
    assert (at[0.1], at[0.01], at[0.001]) == (1.0, 0.0, 0.0)


def test_a_rate_of_one_calls_everybody():
    scores, member = gaussians(50, 0.0)
    point = measure(scores, member, fprs=[1.0], draws=9).points[0]
    assert point.tpr is not None and point.tpr.value == 1.0
    assert point.false_alarms == (~member).sum() and point.p_value == 1.0


def test_constant_scores_tell_nothing_whoever_comes_first():
    for member in (np.arange(100) < 50, np.arange(100) >= 50):
        found = measure(np.ones(100), member, draws=99)
        assert (found.area.value, found.best_advantage, found.area.p_value) == (0.5, 0.0, 1.0)
        assert all(p.tpr is None or (p.tpr.hits, p.p_value) == (0, 1.0) for p in found.points)
        assert all(p.tpr is None or p.ppv is None for p in found.points)  # nobody is called a member
        (decision,) = found.decisions
        assert decision.advantage.value == 0.0


@pytest.mark.parametrize("levels", [2, 10, 100])
def test_coarse_scores_keep_their_area(levels):
    """LeakPro counted one of each block of tied scores: .172 in place of .597 at two levels."""
    rng = np.random.default_rng(1)
    member = np.repeat([True, False], 2000)
    scores = np.floor((rng.normal(size=4000) + 0.5 * member) * levels / 8)
    pairs = scores[member][:, None] - scores[~member][None, :]
    assert auc(scores, member) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
    curve = roc(scores, member)
    assert (curve.fpr[-1], curve.tpr[-1]) == (1.0, 1.0)
    assert (np.diff(curve.fpr) >= 0).all() and (np.diff(curve.tpr) >= 0).all()


# --- intervals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (7, 20), (20, 20), (1, 1000)])
def test_rates_have_exact_intervals(hits, trials):
    found = rate(hits, trials)
    assert found.low <= found.value <= found.high
    if hits < trials:
        assert binom.cdf(hits, trials, found.high) == pytest.approx(0.025, rel=1e-4)
    if hits:
        assert binom.sf(hits - 1, trials, found.low) == pytest.approx(0.025, rel=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 0.97, 1.0])
def test_the_interval_of_an_area_holds_it_and_never_collapses(value):
    low, high = area_interval(value, 40, 60)
    assert 0.0 <= low <= value <= high <= 1.0
    assert high - low > 0.02
    assert area_interval(1 - value, 40, 60) == pytest.approx((1 - high, 1 - low), abs=1e-9)
    wide = area_interval(value, 40, 60, confidence=0.999)
    assert wide[0] <= low and high <= wide[1]


def test_the_null_deviation_of_an_area_is_that_of_mann_and_whitney():
    low, high = area_interval(0.5, 300, 300)
    assert (high - low) / 2 / 1.96 == pytest.approx(np.sqrt(601 / 12) / 300, rel=0.02)


def test_decisions_hold_their_rates_and_stay_in_range():
    found = decide(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 2.0, 0.0]), 1.5, "beforehand", prior=0.5)
    assert (found.tpr.hits, found.fpr.hits) == (2, 1)
    assert found.advantage.value == pytest.approx(2 / 3 - 1 / 4)
    assert found.balanced_accuracy.value == pytest.approx((1 + 2 / 3 - 1 / 4) / 2)
    for share in (found.advantage, found.balanced_accuracy, found.ppv):
        assert share is not None and share.low <= share.value <= share.high
    assert found.advantage.low >= -1 and found.advantage.high <= 1


# --- predictive values and thresholds ----------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [0.01, 0.1, 0.5])
def test_ppv_is_bayes(prior):
    tpr, fpr = Fraction(3, 10), Fraction(1, 100)
    share = Fraction(prior).limit_denominator(1000)
    expected = share * tpr / (share * tpr + (1 - share) * fpr)
    assert ppv(0.3, 0.01, prior) == pytest.approx(float(expected))
    assert ppv(0.3, 0.3, prior) == pytest.approx(prior)


def test_a_lower_prior_lowers_the_ppv():
    scores, member = gaussians(400, 1.5)
    values = [measure(scores, member, prior=p, draws=9).points[0].ppv for p in (0.5, 0.1, 0.01)]
    assert values[0].value > values[1].value > values[2].value
    assert all(v.low <= v.value <= v.high for v in values)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.integers(0, 10),
)
def test_a_threshold_keeps_its_rate_on_the_shadows_and_no_lower_one_does(inside, outside, tenths):
    scores = np.array([*inside, *outside], float)
    member = np.arange(len(scores)) < len(inside)
    fpr = tenths / 10
    if 0 < fpr < 1 / len(outside):
        with pytest.raises(InputError, match="which the shadows can resolve"):
            threshold(scores, member, fpr)
        return
    t = threshold(scores, member, fpr)
    assert np.mean(np.array(outside) > t) <= fpr + 1e-12
    lower = [s for s in scores if s < t]
    assert not any(np.mean(np.array(outside) > s) <= fpr + 1e-12 for s in lower)


def test_thresholds_from_elsewhere_replace_the_split():
    scores, member = gaussians(300, 2.0)
    found = measure(scores, member, thresholds={"a": 1.0, "b": 2.0}, draws=9).decisions
    assert [d.source for d in found] == ["a", "b"]
    assert [d.fpr.hits for d in found] == [int((scores[~member] > t).sum()) for t in (1.0, 2.0)]
    assert found[0].tpr.trials == member.sum()
    (split,) = measure(scores, member, draws=9).decisions
    assert split.tpr.trials == (member.sum() + 1) // 2  # the other half chose


# --- p-values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("records", "members", "drawn"), [(20, 7, 5), (1000, 400, 37), (9, 9, 4), (60, 1, 60)])
def test_the_hypergeometric_tail(records, members, drawn):
    for hits in range(drawn + 2):
        exact = hypergeom.sf(hits - 1, records, members, drawn)
        assert hypergeometric_tail(hits, records, members, drawn) == pytest.approx(exact, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("scores", [[5, 4, 3, 2, 1, 0], [3, 3, 2, 2, 1, 1], [1, 1, 1, 1, 1, 0], [2, 2, 2, 1, 1, 1]])
@pytest.mark.parametrize("fpr", [0.0, 0.34, 0.67])
def test_shares_are_tested_exactly(scores, fpr):
    """Over all memberships the p-value is at most α in a share of at most α, with ties; without any it is exact."""
    values, found = np.array(scores, float), []
    for rows in itertools.combinations(range(6), 3):
        member = np.isin(np.arange(6), rows)
        point = measure(values, member, fprs=[fpr], draws=1).points[0]
        found.append((point.p_value, point.tpr.hits))
    p = np.array([value for value, _ in found])
    for alpha in np.unique(p):
        assert np.mean(p <= alpha + 1e-12) <= alpha + 1e-6
    if len(set(scores)) == 6:
        for value, hits in found:
            assert value == pytest.approx(np.mean([h >= hits for _, h in found]), rel=1e-6)


def test_a_decision_is_tested_by_fisher():
    table = [[30, 20], [18, 32]]
    exact = fisher_exact(table, alternative="greater").pvalue
    assert decision_p_value(30, 18, 50, 50) == pytest.approx(exact, rel=1e-6)
    assert share_p_value(0, 3, 10, 10) == 1.0


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_an_area_is_tested_as_by_mann_and_whitney(gap):
    scores, member = gaussians(120, gap, seed=3)
    exact = mannwhitneyu(scores[member], scores[~member], alternative="greater", method="exact").pvalue
    found = area_p_value(scores, member, 0, draws=20_000)
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000) + 0.004)


def test_no_p_value_is_zero():
    found = measure(np.arange(200.0), np.arange(200) >= 100, draws=99)
    assert found.area.p_value == 0.01
    assert all(p.p_value is None or p.p_value > 0 for p in found.points)


def test_holm_is_the_step_down_rule():
    p = [0.001, 0.02, 0.02, 0.5]
    assert holm(p).tolist() == pytest.approx([0.004, 0.06, 0.06, 0.5])
    assert holm(p[::-1]).tolist() == pytest.approx([0.5, 0.06, 0.06, 0.004])
    assert holm([]).tolist() == []
    with pytest.raises(InputError, match="p_values"):
        holm([0.5, np.nan])


def test_enough_draws_for_the_smallest_share():
    for tests in (1, 50, 2000):
        draws = draws_for(tests, 0.05)
        assert tests / (1 + draws) < 0.05 / 2


# --- slices ------------------------------------------------------------------------------------------------------


def test_a_slice_is_the_attack_on_its_records():
    scores, member = gaussians(300, 1.0)
    labels = np.arange(300) % 3
    for part in slices(scores, member, "class", labels, draws=9):
        mine = labels == int(part.value)
        assert part.measures == measure(scores[mine], member[mine], draws=9)
        assert (part.members, part.others) == (member[mine].sum(), (~member[mine]).sum())


def test_a_slice_of_one_kind_says_so():
    scores, member = np.arange(8.0), np.array([1, 1, 0, 0, 1, 0, 1, 0])
    groups = np.array(["only in", "only in", "only out", "only out", "mixed", "mixed", "mixed", "mixed"])
    by_name = {s.value: s for s in slices(scores, member, "group", groups, draws=9)}
    assert by_name["only in"].measures is None and by_name["only in"].note == "only members"
    assert by_name["only out"].measures is None and by_name["only out"].note == "only non-members"
    assert by_name["mixed"].measures is not None and by_name["mixed"].note == ""


def test_a_small_slice_is_counted_and_not_measured():
    scores, member = gaussians(60, 1.0)
    groups = np.array(["rare"] * 4 + ["common"] * 56)
    rare = {s.value: s for s in slices(scores, member, "group", groups, least=10, draws=9)}["rare"]
    assert rare.measures is None and rare.note == "fewer than 10 records" and rare.members + rare.others == 4


def test_a_column_of_names_is_no_slice():
    scores, member = gaussians(300, 1.0)
    with pytest.raises(InputError, match="at most 100 different values to slice by, got 300"):
        slices(scores, member, "id", np.arange(300), draws=9)


# --- what is refused, what stays as it was -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "member", "message"),
    [
        ([1, np.nan], [1, 0], "without NaN"),
        ([1, 2], [1, 1], "2 of 2 members"),
        ([1, 2], [0, 0], "0 of 2 members"),
        ([1, 2, 3], [1, 0], "one shape"),
        ([1, 2], [1, 2], "true or false"),
        ([1, 2], ["a", "b"], "true or false"),
    ],
)
def test_bad_scores(scores, member, message):
    with pytest.raises(InputError, match=message):
        measure(scores, member)


@pytest.mark.parametrize(
    "options", [{"prior": 0.0}, {"prior": 1.5}, {"confidence": 1.0}, {"fprs": [-0.1]}, {"seed": -1}, {"draws": 0}]
)
def test_numbers_out_of_range(options):
    scores, member = gaussians(30, 1.0)
    with pytest.raises(InputError):
        measure(scores, member, **options)


def test_inputs_stay_as_they_were():
    scores, member = gaussians(50, 1.0)
    before = scores.copy(), member.copy()
    measure(scores, member, draws=9)
    slices(scores, member, "class", np.arange(50) % 2, draws=9)
    assert (scores == before[0]).all() and (member == before[1]).all()


def test_infinite_scores_are_the_first_and_the_last():
    scores, member = np.array([np.inf, 1.0, 0.0, -np.inf]), np.array([True, False, True, False])
    found = measure(scores, member, fprs=[0.0, 0.5], draws=9)
    assert found.area.value == 0.75
    assert [p.tpr.hits for p in found.points] == [1, 2]


def test_measures_are_the_same_with_the_same_seed():
    scores, member = gaussians(200, 0.5)
    one, two, other = (measure(scores, member, seed=s, draws=99) for s in (1, 1, 2))
    assert one == two
    assert replace(other.area, p_value=one.area.p_value) == one.area and other.points == one.points
    assert other.decisions != one.decisions
