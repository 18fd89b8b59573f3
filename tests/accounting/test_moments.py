"""Log-moments against mpmath's integrals and sums, the seed figures, and what every log-moment must keep to."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.accounting.moments import (
    LARGEST_ORDER,
    closed_form_epsilon,
    log_moments,
    moments_delta,
    moments_epsilon,
)
from dpaudit.errors import InputError

DELTA = 1e-5


def integral(noise: float, rate: float, power: float) -> float:
    """ln of the mean of (μ/μ0)^``power`` under μ0, by mpmath, piece by piece."""
    with mpmath.workdps(30):
        s, q, p = (mpmath.mpf(v) for v in (noise, rate, power))

        def density(z):
            ratio = (1 - q) + q * mpmath.exp((z - mpmath.mpf("0.5")) / s**2)
            return mpmath.exp(-z * z / (2 * s * s)) / (s * mpmath.sqrt(2 * mpmath.pi)) * ratio**p

        middle = mpmath.mpf("0.5") + (s * s * mpmath.log((1 - q) / q) if rate < 1 else 0)
        peaks = [mpmath.mpf(0), p, middle, mpmath.mpf(1)]
        ends = sorted({peak + k * width for peak in peaks for k in (-20, -8, 0, 8, 20) for width in (s, s * s)})
        return float(mpmath.log(mpmath.quad(density, ends)))


def binomial_sum(noise: float, rate: float, order: int) -> float:
    """α at a whole order: ln of the sum over k of C(p, k) (1 − q)^(p−k) q^k e^{k(k−1)/2s²}, p = order + 1."""
    with mpmath.workdps(80):
        s, q, p = mpmath.mpf(noise), mpmath.mpf(rate), order + 1
        terms = (
            mpmath.binomial(p, k) * (1 - q) ** (p - k) * q**k * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * s * s))
            for k in range(p + 1)
        )
        return float(mpmath.log(mpmath.fsum(terms)))


@pytest.mark.parametrize(
    "noise,rate,order",
    [
        (4.0, 0.01, 19.3),
        (1.1, 256 / 60_000, 7.8),
        (1.0, 0.5, 0.37),
        (0.6, 0.001, 2.5),
        (0.05, 0.3, 0.02),
        (0.05, 1e-6, 3.3),
        (0.1, 0.9, 32.5),
        (100.0, 0.01, 700.5),
        (100.0, 0.999999, 0.001),
        (7.0, 1.0, 12.25),
        (2.0, 1e-6, 90.0),
    ],
)
def test_log_moments_are_the_larger_one_of_two_integrals(noise, rate, order):
    larger, smaller = integral(noise, rate, order + 1), integral(noise, rate, -order)
    assert smaller <= larger * (1 + 1e-9) + 1e-25
    assert log_moments(noise, rate, order) == pytest.approx(larger, rel=1e-9, abs=0)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.7, 3.0, 20.0, 100.0])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.2, 0.99])
def test_at_whole_orders_it_is_the_binomial_sum_however_small(noise, rate):
    orders = np.array([1, 2, 5, 32, 200])
    exact = [binomial_sum(noise, rate, int(order)) for order in orders]
    assert log_moments(noise, rate, orders) == pytest.approx(exact, rel=1e-9, abs=0)


@pytest.mark.parametrize("noise", [0.02, 0.5, 30.0])
def test_a_full_batch_has_the_closed_form(noise):
    orders = np.array([[1e-5, 0.5], [30.0, LARGEST_ORDER]])
    assert log_moments(noise, 1.0, orders) == pytest.approx(orders * (orders + 1) / (2 * noise**2), rel=1e-9, abs=0)


def test_with_next_to_no_noise_it_is_an_upper_bound():
    for order in (1, 3):
        exact = binomial_sum(0.005, 0.01, order)
        assert exact <= log_moments(0.005, 0.01, order) <= exact + order * np.log(100) + 1e-6


@given(
    noise=st.floats(-3, 4.6).map(np.exp),
    rate=st.floats(-14, 0).map(np.exp),
    order=st.floats(-6, 7).map(np.exp),
    more=st.floats(1.01, 3),
)
@settings(max_examples=60, deadline=None)
def test_it_grows_in_order_and_rate_and_stays_below_the_full_batch(noise, rate, order, more):
    low, high = log_moments(noise, rate, [order, order * more])
    full = order * (order + 1) / (2 * noise**2)
    assert 0 < low <= full * (1 + 1e-9)
    assert high / (order * more) >= low / order * (1 - 1e-9)  # a Rényi divergence grows with its order
    assert log_moments(noise, min(rate * more, 1.0), order) >= low * (1 - 1e-9)
    assert log_moments(noise * more, rate, order) <= low * (1 + 1e-9)


@pytest.mark.parametrize("steps,paper,free", [(10_000, 1.2586, 1.2584), (40_000, 2.5759, 2.5737)])
def test_seed_figures(steps, paper, free):
    assert moments_epsilon(4.0, 0.01, steps, DELTA).epsilon == pytest.approx(paper, abs=1e-4)
    assert moments_epsilon(4.0, 0.01, steps, DELTA, None).epsilon == pytest.approx(free, abs=1e-4)


@pytest.mark.parametrize("noise,rate,steps", [(4.0, 0.01, 10_000), (0.3, 0.2, 3), (50.0, 1e-4, 100), (0.1, 1.0, 10**6)])
def test_any_order_is_the_best_of_a_fine_grid(noise, rate, steps):
    orders = np.geomspace(1e-5, 1e5, 2000)
    grid = np.min((steps * log_moments(noise, rate, orders) + np.log(1 / DELTA)) / orders)
    found = moments_epsilon(noise, rate, steps, DELTA, None)
    assert grid * 0.99 <= found.epsilon <= grid * (1 + 1e-6)
    assert found.epsilon <= moments_epsilon(noise, rate, steps, DELTA, 32).epsilon
    assert found.end is None


@pytest.mark.parametrize("largest", [32, None])
@pytest.mark.parametrize("noise,rate,steps", [(4.0, 0.01, 10_000), (0.7, 0.05, 50)])
def test_delta_and_epsilon_invert_each_other(noise, rate, steps, largest):
    epsilon = moments_epsilon(noise, rate, steps, DELTA, largest).epsilon
    assert moments_delta(noise, rate, steps, epsilon, largest).delta == pytest.approx(DELTA, rel=1e-2)
    assert moments_delta(noise, rate, steps, epsilon, largest).delta <= DELTA * (1 + 1e-9)


def test_delta_is_at_most_one():
    assert moments_delta(0.1, 1.0, 1000, 0.0).delta == 1.0


def test_few_orders_are_noticed():
    quiet = {"noise_multiplier": 50.0, "sampling_rate": 0.001, "steps": 10, "delta": DELTA}
    assert moments_epsilon(**quiet).end == "last" and moments_epsilon(**quiet).order == 32
    assert moments_epsilon(**quiet, largest=None).end is None
    assert moments_epsilon(**quiet, largest=None).epsilon < 0.1 * moments_epsilon(**quiet).epsilon

    loud = moments_epsilon(0.1, 1.0, 10, DELTA)
    assert loud.end == "first" and loud.order == 1


def test_at_delta_zero_there_is_no_epsilon():
    assert moments_epsilon(1.0, 0.1, 1, 0.0).epsilon == np.inf


class TestClosedForm:
    def test_is_the_lemma_at_its_best_whole_order(self):
        found = closed_form_epsilon(4.0, 0.01, 10_000, DELTA)
        orders = np.arange(1, 200)
        growth = 10_000 * 0.01**2 / (0.99 * 16)
        allowed = orders <= 16 * np.log(1 / 0.04)
        values = np.where(allowed, growth * (orders + 1) + np.log(1 / DELTA) / orders, np.inf)
        assert found.epsilon == pytest.approx(values.min()) and found.order == orders[values.argmin()]

    def test_orders_stop_where_the_lemma_does(self):
        found = closed_form_epsilon(1.1, 0.004, 10, DELTA)
        assert found.end == "last" and found.order == np.floor(1.1**2 * np.log(1 / 0.0044))

    @pytest.mark.parametrize(
        "noise,rate,words",
        [(4.0, 0.2, "q = 0.2 ≥ 1/(16σ) = 0.01562"), (4.0, 1 / 64, "≥ 1/(16σ)"), (0.9, 0.001, "σ ≥ 1")],
    )
    def test_says_which_condition_fails(self, noise, rate, words):
        assert words in closed_form_epsilon(noise, rate, 100, DELTA)


@pytest.mark.parametrize(
    "named,change",
    [
        ("noise_multiplier", {"noise_multiplier": 0.0}),
        ("sampling_rate", {"sampling_rate": 1.5}),
        ("steps", {"steps": 0}),
        ("delta", {"delta": 1.0}),
        ("largest", {"largest": 0}),
    ],
)
def test_bad_settings_are_named(named, change):
    with pytest.raises(InputError, match=named):
        moments_epsilon(**{"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 3, "delta": DELTA} | change)


@pytest.mark.parametrize("orders", [0.0, [1.0, -2.0], np.nan, 2 * LARGEST_ORDER])
def test_orders_out_of_range_are_refused(orders):
    with pytest.raises(InputError, match="orders"):
        log_moments(1.0, 0.1, orders)
