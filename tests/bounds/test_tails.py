"""Binomial tails and limits against sums that a reader can check."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpaudit.bounds.tails import at_least, at_most, log_ratio, mass, upper_limit

ROUNDING = 1e-8


def tail(k: int, n: int, p: float) -> float:
    """P[W ≤ k], term by term."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.parametrize("p", [1e-6, 0.03, 0.5, 0.9])
def test_tails_are_the_sums(n, p):
    for k in range(-1, n + 2):
        below = tail(min(k, n), n, p) if k >= 0 else 0.0
        assert at_most(k, n, p) == pytest.approx(below, abs=1e-12)
        assert at_least(k + 1, n, p) == pytest.approx(1 - below, abs=1e-12)
    assert mass(np.arange(n + 1), n, p).sum() == pytest.approx(1)


def test_the_lower_tail_keeps_its_digits_where_one_minus_the_rate_has_none():
    n, rate = 10**9, 1e-17
    assert at_most(0, n, rate) == pytest.approx(math.exp(-n * rate), rel=1e-14)


@pytest.mark.parametrize("level", [0.4, 0.025, 1e-4])
def test_limits_solve_the_tail_exactly_for_every_small_count(level):
    for n in range(1, 13):
        for k in range(n):
            limit = float(upper_limit(k, n, level))
            assert tail(k, n, limit) == pytest.approx(level, rel=1e-3)
            assert tail(k, n, limit) <= level  # rounded up
        assert upper_limit(n, n, level) == 1.0


@pytest.mark.parametrize("level", [0.2, 0.025])
def test_limits_fail_no_more_often_than_they_say(level):
    n = 12
    limits = upper_limit(np.arange(n + 1), np.full(n + 1, n), level)
    for p in np.linspace(0.001, 0.999, 333):
        assert mass(np.arange(n + 1), n, p)[limits < p].sum() <= level + ROUNDING


@pytest.mark.parametrize("k,n,level", [(0, 100, 1e-20), (5, 1000, 1e-12), (900, 1000, 1e-6)])
def test_limits_at_tiny_levels(k, n, level):
    with mpmath.workdps(40):
        left = mpmath.betainc(k + 1, n - k, float(upper_limit(k, n, level)), 1, regularized=True)
    assert left == pytest.approx(level, rel=1e-5)
    assert left <= level


def test_nobody_counted_means_no_limit():
    assert upper_limit(0, 0, 0.05) == 1.0


def test_log_ratio_is_rounded_down_and_never_negative():
    assert log_ratio(0.9, 0.1) == pytest.approx(math.log(9), abs=1e-11)
    assert log_ratio(0.9, 0.1) < math.log(9)
    assert log_ratio(0.1, 0.9) == 0
    assert log_ratio(-0.1, 0.5) == 0 and log_ratio(0.0, 0.0) == 0
