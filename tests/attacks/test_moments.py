"""Moments over shadows, and the prior that is read off them: does it find the strength that data were made with?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import polygamma

from dpaudit.attacks import arrays as cutting
from dpaudit.attacks.arrays import Shadows
from dpaudit.attacks.moments import (
    FEW_STRENGTH,
    Moments,
    _inverse_trigamma,
    both_sides,
    drawn_means,
    drawn_variances,
    other_side_worth,
    plain_means,
    variance_prior,
)


def moments(signals: np.ndarray, member: np.ndarray) -> tuple[Moments, Moments]:
    return both_sides(Shadows.read(signals[0], signals, member))


def draw(strength: float, shadows: int, records: int, seed: int = 0, between: float = 0.0):
    """Signals with variances from an inverse chi-squared law about 1; the other side's are ``between`` off in ln."""
    rng = np.random.default_rng(seed)
    member = rng.random((shadows, records)) < 0.5
    variance = np.ones(records) if math.isinf(strength) else strength / rng.chisquare(strength, records)
    other = variance * np.exp(rng.normal(0, between, records))
    scale = np.sqrt(np.where(member, variance, other))
    return rng.normal(0, 5, records) + scale * rng.normal(size=member.shape), member


def test_moments_are_numpys(monkeypatch):
    signals, member = draw(4.0, 9, 40)
    monkeypatch.setattr(cutting, "BLOCK", 7)
    for side, use in zip(moments(signals, member), (member, ~member), strict=True):
        for j in range(40):
            own = signals[use[:, j], j]
            assert side.count[j] == len(own)
            if len(own):
                assert side.mean[j] == pytest.approx(own.mean(), rel=1e-12)
                assert side.squares[j] == pytest.approx(len(own) * own.var(), abs=1e-10)


def test_taking_one_out_is_as_if_it_had_not_been():
    signals, member = draw(4.0, 9, 200)
    signals = 1e6 + signals  # far from 0, where sums of squares would cancel
    inside, _ = moments(signals, member)
    for i in range(9):
        rest = np.arange(9) != i
        wanted, _ = moments(signals[rest], member[rest])
        got = inside.without(signals[i], member[i])
        assert (got.count == wanted.count).all()
        assert got.mean == pytest.approx(wanted.mean, rel=1e-12)
        assert got.squares == pytest.approx(wanted.squares, rel=1e-6, abs=1e-8)


def prior_of(side: Moments):
    return variance_prior(side.squares, side.freedom.astype(float))


@pytest.mark.parametrize("strength", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("shadows", [6, 16, 40])
def test_the_strength_is_found(strength, shadows):
    """Seeds of 40,000 records differ by 10 % with 6 shadows and a strength of 20, and by 3 % elsewhere."""
    side = moments(*draw(strength, shadows, 40_000))[0]
    prior = prior_of(side)
    assert prior.strength == pytest.approx(strength, rel=0.3 if shadows == 6 else 0.1)
    assert 0.9 < prior.scale < 1.01 * side.pooled


def test_equal_variances_are_pooled():
    side = moments(*draw(math.inf, 16, 40_000))[0]
    prior = prior_of(side)
    assert prior.strength > 200
    assert prior.scale == pytest.approx(side.pooled, rel=0.01) == pytest.approx(1.0, rel=0.02)


def test_variances_that_differ_greatly_are_not_ruled_by_the_largest():
    """With a strength below 1 the pooled variance, 100 times the typical one and more, has no weight."""
    side = moments(*draw(0.8, 16, 40_000))[0]
    assert side.pooled > 100
    assert prior_of(side).scale == pytest.approx(1.0, rel=0.1)


def test_the_other_side_is_worth_itself_where_variances_agree():
    inside, outside = moments(*draw(2.0, 30, 20_000))
    worth = other_side_worth(inside, outside)
    assert worth == pytest.approx(outside.freedom, rel=0.3)
    assert (worth <= outside.freedom).all()


def test_the_other_side_is_worth_little_where_they_do_not():
    """Logarithms differ by a normal law of variance 4 besides: thirteen degrees of freedom are worth about one."""
    inside, outside = moments(*draw(2.0, 30, 20_000, between=2.0))
    assert 1.0 < other_side_worth(inside, outside).max() < 1.2
    variance, _ = drawn_variances(inside, outside)
    alone, _ = drawn_variances(inside, None)
    assert np.corrcoef(np.log(variance), np.log(alone))[0, 1] > 0.98


def test_variances_are_nearer_to_the_truth():
    """Mean squared error of logarithms, alone: the prior helps; with the other side: more."""
    rng = np.random.default_rng(0)
    truth = 4 / rng.chisquare(4, 5000)
    member = rng.random((8, 5000)) < 0.5
    inside, outside = moments(np.sqrt(truth) * rng.normal(size=member.shape), member)
    use = inside.squares > 0

    def error(variance):
        return np.mean(np.log(variance[use] / truth[use]) ** 2)

    plain, alone, both = (
        inside.squares / np.maximum(inside.freedom, 1),
        *(drawn_variances(inside, other)[0] for other in (None, outside)),
    )
    assert error(both) < 0.8 * error(alone) < 0.5 * error(plain)


def test_by_hand():
    """One record's variance: prior, its own squares, and the other side's for what they are worth."""
    inside, outside = moments(*draw(3.0, 20, 500))
    worth = other_side_worth(inside, outside)
    lent = inside.pooled / outside.pooled * worth * outside.squares / outside.freedom
    prior = variance_prior(inside.squares + lent, inside.freedom + worth)
    variance, freedom = drawn_variances(inside, outside)
    for j in (0, 77, 499):
        assert freedom[j] == pytest.approx(prior.strength + inside.count[j] - 1 + worth[j])
        total = prior.strength * prior.scale + inside.squares[j] + lent[j]
        assert variance[j] == pytest.approx(total / freedom[j])


@pytest.mark.parametrize("value", [1e-3, 0.5, 1.6449340668, 40.0, 1e6])
def test_the_inverse_of_trigamma(value):
    assert polygamma(1, _inverse_trigamma(np.array([value])))[0] == pytest.approx(value, rel=1e-9)


def test_few_records_are_pooled_with_a_fixed_weight():
    inside, outside = moments(*draw(2.0, 12, 5))
    prior = prior_of(inside)
    assert (prior.strength, prior.scale) == (FEW_STRENGTH, inside.pooled)
    assert other_side_worth(inside, outside).tolist() == [0.0] * 5


def test_equal_signals_do_not_speak():
    """Records whose signals are all equal (saturated, or whole numbers) have no logarithm, and get a variance still."""
    signals, member = draw(5.0, 12, 2000)
    before = prior_of(moments(signals, member)[0]).strength
    signals[:, :500] = 3.0
    sides = moments(signals, member)
    assert prior_of(sides[0]).strength == pytest.approx(before, rel=0.3)
    variance, _ = drawn_variances(*sides)
    assert np.isfinite(variance).all() and (variance > 0).all()


def test_nothing_but_equal_signals():
    member = np.random.default_rng(0).random((8, 50)) < 0.5
    variance, _ = drawn_variances(*moments(np.ones((8, 50)), member))
    assert (variance > 0).all() and np.isfinite(variance).all()


def means_world(records: int, shadows: int = 10, between: float = 0.5, seed: int = 0):
    """Unit noise; a record's gap is 4 below a mean of −2 and falls to 1 at 2, and varies by ``between`` beside that."""
    rng = np.random.default_rng(seed)
    member = rng.random((shadows, records)) < 0.5
    base = rng.normal(0, 2, records)
    gap = 2.5 - 0.75 * np.clip(base, -2, 2) + np.sqrt(between) * rng.normal(size=records)
    return base, gap, *moments(base + gap * member + rng.normal(size=member.shape), member)


def test_means_are_drawn_to_what_the_other_side_foretells():
    base, gap, inside, outside = means_world(20_000, shadows=6)
    mean, doubt = drawn_means(inside, outside, np.ones(20_000))
    known = (inside.count > 0) & (outside.count > 0)
    before, after = ((m - base - gap)[known].std() for m in (inside.mean, mean))
    assert after < 0.9 * before
    assert (doubt[known] < 1 / inside.count[known]).all()
    # Its own account of the error is right to a tenth, also of records that no shadow had.
    assert np.mean((mean - base - gap) ** 2) == pytest.approx(doubt.mean(), rel=0.1)
    missing = inside.count == 0
    assert missing.sum() > 200
    assert np.mean((mean - base - gap)[missing] ** 2) == pytest.approx(doubt[missing].mean(), rel=0.25)


def test_an_outlier_takes_the_last_groups_difference():
    """Curves are level beyond the outermost groups: nothing is extrapolated to a record far from all others."""
    _, _, inside, outside = means_world(2000)
    for side in (inside, outside):
        side.mean[:] += np.where(np.arange(2000) == 7, 1000.0, 0.0)
    inside.mean[7] = inside.count[7] = 0
    mean, _ = drawn_means(inside, outside, np.ones(2000))
    assert 0 < mean[7] - outside.mean[7] < 3


def test_few_records_keep_their_means():
    _, _, inside, outside = means_world(8)
    inside.mean[2] = inside.count[2] = 0
    for drawn in (drawn_means, plain_means):
        mean, doubt = drawn(inside, outside, np.full(8, 2.0))
        rest = np.arange(8) != 2
        steps = (inside.mean - outside.mean)[rest]
        assert mean[rest].tolist() == inside.mean[rest].tolist()
        assert doubt[rest] == pytest.approx(1 / inside.count[rest])
        assert mean[2] == pytest.approx(outside.mean[2] + steps.mean())
        assert doubt[2] == pytest.approx(steps.var() / 2.0)


def test_offline_looks_at_one_side_only():
    _, _, _, outside = means_world(3000)
    outside.mean[5] = outside.count[5] = 0
    mean, _ = drawn_means(outside, None, np.ones(3000))
    rest = outside.count > 0
    assert mean[rest].tolist() == outside.mean[rest].tolist()
    assert mean[5] == pytest.approx(outside.mean[rest].mean())
