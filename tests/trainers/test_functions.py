"""Functions of one number inside compiled loops, against float64, up to the ends of float32 and beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")
special = pytest.importorskip("scipy.special")

from dpaudit.trainers import functions  # noqa: E402

LARGEST = float(np.finfo(np.float32).max)
NORMAL = float(np.finfo(np.float32).tiny)
TINY = float(np.finfo(np.float32).smallest_subnormal)

# ---- powers ---------------------------------------------------------------------------------------------------------


@numba.njit(error_model="numpy")
def powers(x, out):
    """The inlined function, so that it can be given numbers."""
    for i in range(len(x)):
        out[i] = functions.exp(x[i])


def power(x):
    x = np.asarray(x, np.float32)
    out = np.empty_like(x)
    powers(x, out)
    return out


def test_powers_are_right_to_single_precision():
    """Two million numbers, and those around each half of ln 2, where the exponent changes."""
    halves = np.arange(251) * (-math.log(2) / 2)
    near = (halves[:, None] + np.linspace(-1e-4, 1e-4, 201)).ravel()
    x = np.concatenate([np.linspace(-87, 0, 2_000_001), np.maximum(near[near <= 0], -87)]).astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    error = np.abs(power(x) / wanted - 1)
    assert error.max() < 2e-7, x[error.argmax()]


def test_powers_at_the_ends():
    assert power([0.0, -0.0]).tolist() == [1, 1]
    small = power([-1e-30, -1e-8, -TINY])
    assert (small == 1).all()
    low = power([-87, -87.5, -88, -104, -1e4, -LARGEST, -np.inf])
    assert (low > 0).all() and (low <= 1.7e-38).all() and np.isfinite(low).all()
    assert np.isnan(power(np.full(37, np.nan))).all()  # in vectors and in what is left of them


def test_the_same_check_catches_a_polynomial_with_a_term_less():
    x = np.linspace(-87, 0, 10_001).astype(np.float32)
    r = x - np.round(x / math.log(2)) * math.log(2)
    cut = power(x) - np.exp2(np.round(x / math.log(2))) * float(functions._E6) * r.astype(np.float64) ** 6
    assert np.abs(cut / np.exp(x.astype(np.float64)) - 1).max() > 1e-6


# ---- GELU -----------------------------------------------------------------------------------------------------------


@numba.njit(error_model="numpy")
def gelus(x, value, slope):
    """The inlined function, so that it can be given numbers."""
    for i in range(len(x)):
        value[i], slope[i] = functions.gelu(x[i])


def gelu(x):
    x = np.asarray(x, np.float32)
    value, slope = np.empty_like(x), np.empty_like(x)
    gelus(x, value, slope)
    return value, slope


def exact(x):
    """Φ, x Φ and Φ + x φ in float64."""
    x = np.asarray(x, np.float32).astype(np.float64)
    below = special.ndtr(x)
    return below, x * below, below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def misfit(x, value, below):
    """How far Φ is off, in units of what is allowed: 5·10⁻⁷, and that x²/2 is rounded before it is an exponent."""
    x = np.asarray(x, np.float32).astype(np.float64)
    return (np.abs(value / x / below - 1) / (5e-7 + x * x / 2 * 2**-24)).max()


GRID = np.linspace(-12.8, 12.8, 1_000_000).astype(np.float32)  # without 0


def test_the_share_below_is_right_as_far_as_it_is_a_normal_number():
    below = exact(GRID)[0]
    assert below.min() > NORMAL
    assert misfit(GRID, gelu(GRID)[0], below) < 1


def test_values_and_slopes_are_right_to_single_precision():
    (value, slope), (below, wanted, steep) = gelu(GRID), exact(GRID)
    assert np.abs(value - wanted).max() < 5e-7
    assert np.abs(slope - steep).max() < 3e-7
    # The slope is a sum of two that nearly cancel at −0.75: only their sizes are known to single precision.
    sizes = below + np.abs(steep - below)
    assert (np.abs(slope - steep) / sizes).max() < 5e-6
    assert (np.abs(slope - steep) / sizes)[np.abs(GRID) < 3].max() < 1e-6


@pytest.mark.parametrize("lost", [1e-6, -1e-6])
def test_the_same_checks_catch_a_function_that_is_slightly_off(lost):
    (value, slope), (below, wanted, steep) = gelu(GRID), exact(GRID)
    assert misfit(GRID, value * (1 + lost), below) > 1
    assert np.abs(value * (1 + lost) - wanted).max() > 5e-7
    assert np.abs(slope * (1 + lost) - steep).max() > 3e-7


def test_the_usual_approximation_by_tanh_is_told_apart():
    x = GRID.astype(np.float64)
    value = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    assert np.abs(value - exact(GRID)[1]).max() > 1e-4


def test_nothing_comes_of_nothing():
    value, slope = gelu([0.0, -0.0, TINY, -TINY, 1e-30, -1e-30])
    np.testing.assert_allclose(value, [0, 0, 0, 0, 5e-31, -5e-31], rtol=1e-6, atol=TINY)
    np.testing.assert_allclose(slope, 0.5, rtol=1e-6)


def test_far_from_zero_it_is_all_or_nothing():
    x = np.array([13.0, 13.2, 14.0, 20.0, 90.0, 1e4, 1e10, 1e19, 2e19, 1e30], np.float32)
    for number in range(len(x)):  # in vectors and in what is left of them
        (up, steep), (down, flat) = gelu(np.full(19, x[number])), gelu(np.full(19, -x[number]))
        assert (up == x[number]).all() and (np.abs(down) <= 1e-37 * max(1.0, float(x[number]))).all()
        np.testing.assert_allclose(steep, 1, atol=1e-7)
        np.testing.assert_allclose(flat, 0, atol=1e-7)


@pytest.mark.parametrize("x", [1e33, 1e36, 1e38, LARGEST])
def test_the_slope_is_all_or_nothing_up_to_the_largest_number(x):
    (up, steep), (down, flat) = gelu([x]), gelu([-x])
    assert up == np.float32(x) and abs(down) < 1e-3
    np.testing.assert_allclose([steep[0], flat[0]], [1, 0], atol=1e-6)


@pytest.mark.parametrize("x", [np.inf, -np.inf, np.nan, -np.nan])
def test_what_is_not_finite_is_not_hidden(x):
    for made in gelu(np.full(37, x)):
        assert not np.isfinite(made).any()


@pytest.mark.parametrize("x", [np.inf, -np.inf, np.nan])
def test_the_slope_of_what_is_not_finite_is_no_number(x):
    assert np.isnan(gelu(np.full(37, x))[1]).all()


def test_what_is_not_finite_does_not_spread():
    x = GRID[::1000].copy()
    value, slope = gelu(x)
    x[[3, 500, 999]] = np.nan, np.inf, -np.inf
    others = np.isfinite(x)
    spoilt = gelu(x)
    np.testing.assert_array_equal(spoilt[0][others], value[others])
    np.testing.assert_array_equal(spoilt[1][others], slope[others])
