"""Composition theorems: figures in print, closed forms, and where a rule in print is no bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import Claim
from dpaudit.accounting import composition as c
from dpaudit.accounting.curves import GaussianCurve, LaplaceCurve, PairCurve
from dpaudit.accounting.releases import LaplaceRelease, SampledGaussianRelease
from dpaudit.errors import InputError

DELTA = 1e-5


def pure(epsilon: float) -> c.OneStep:
    return PairCurve(epsilon, 0.0).epsilon


@pytest.mark.parametrize(
    "steps,in_paper,proven,exact", [(10_000, 9.353, 26.390, 16.844), (40_000, 24.245, 82.348, 50.743)]
)
def test_seed_figures(steps, in_paper, proven, exact):
    q, sigma = 0.01, 4.0
    steps_by = {
        in_paper: c.linearly_sampled(c.classic_gaussian(sigma), q),
        proven: c.sampled(c.proven_gaussian(sigma), q),
        exact: c.sampled(c.exact_gaussian(sigma), q),
    }
    for figure, step in steps_by.items():
        assert c.strong_epsilon(step, steps, DELTA) == pytest.approx(figure, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_strong_composition_of_a_pure_step_is_the_closed_form(steps):
    # With all of δ left for the tail, as a pure step needs none of it.
    e = 0.01
    closed = np.sqrt(2 * steps * np.log(1 / DELTA)) * e + steps * e * np.expm1(e)
    assert c.strong_epsilon(lambda delta: np.full_like(delta, e), steps, DELTA) == pytest.approx(closed, rel=1e-12)


def test_a_step_that_needs_more_than_its_share_of_delta_has_no_composition():
    assert c.strong_epsilon(PairCurve(0.1, 1e-6).epsilon, 10, DELTA) == np.inf
    assert c.naive_epsilon(PairCurve(0.1, 1e-6).epsilon, 11, DELTA) == np.inf
    assert c.naive_epsilon(PairCurve(0.1, 1e-6).epsilon, 10, DELTA) == pytest.approx(1.0)


def test_a_step_that_needs_some_delta_gets_it():
    found = c.strong_epsilon(PairCurve(0.1, 1e-7).epsilon, 10, DELTA)
    assert found == pytest.approx(np.sqrt(20 * np.log(1 / 9e-6)) * 0.1 + np.expm1(0.1), rel=2e-3)


def test_at_delta_zero_only_pure_steps_add_up():
    assert c.naive_epsilon(pure(0.5), 3, 0.0) == 1.5
    assert c.naive_epsilon(c.exact_gaussian(1.0), 3, 0.0) == np.inf
    assert c.strong_epsilon(pure(0.5), 3, 0.0) == np.inf


def test_one_step_is_itself():
    assert c.naive_epsilon(c.exact_gaussian(1.0), 1, DELTA) == GaussianCurve(1.0).epsilon(np.asarray(DELTA))


@given(
    noise=st.floats(-2, 3).map(np.exp),
    rate=st.floats(-10, 0).map(np.exp),
    share=st.floats(-25, -1).map(np.exp),
)
@settings(max_examples=60, deadline=None)
def test_a_sampled_step_is_its_profile_in_the_worse_direction(noise, rate, share):
    release = SampledGaussianRelease(noise_multiplier=noise, sampling_rate=rate)
    epsilon = c.sampled(c.exact_gaussian(noise), rate)(np.asarray(rate * share))
    worse = max(float(release.delta(epsilon, side)) for side in ("with", "without"))
    assert worse == pytest.approx(rate * share, rel=1e-6, abs=1e-18) or (epsilon == 0 and worse <= rate * share)


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-14])
def test_a_profile_is_inverted(delta):
    laplace = c.profiled(LaplaceRelease(noise_multiplier=0.5))(np.asarray([delta, 0.0]))
    assert laplace[0] == pytest.approx(LaplaceCurve(2.0).epsilon(np.asarray(delta)))
    release = SampledGaussianRelease(noise_multiplier=0.8, sampling_rate=0.1)
    assert c.profiled(release)(np.asarray(delta)) == pytest.approx(
        c.sampled(c.exact_gaussian(0.8), 0.1)(np.asarray(delta)), rel=1e-9
    )


def test_a_profile_beyond_floats_says_infinite():
    release = SampledGaussianRelease(noise_multiplier=0.02, sampling_rate=0.1)
    assert c.profiled(release)(np.asarray(1e-9)) == np.inf


def test_sampling_amplifies_and_the_linear_rule_says_too_much():
    at = np.geomspace(1e-14, 1e-3, 50)
    for q in (1e-4, 0.01, 0.3):
        for step in (c.exact_gaussian(2.0), c.classic_gaussian(0.4)):
            exact, linear = c.sampled(step, q)(q * at), c.linearly_sampled(step, q)(q * at)
            assert np.all(linear < exact) and np.all(exact < step(at))


def test_the_rule_in_print_is_no_bound():
    # One step that surely spends 11 nats is charged 1 by the linear rule.
    noise, rate = 0.3, 0.01
    spent = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=1).epsilon_from_below(DELTA)
    in_print = c.strong_epsilon(c.linearly_sampled(c.classic_gaussian(noise), rate), 1, DELTA)
    assert in_print < 0.2 * spent
    assert c.strong_epsilon(c.sampled(c.proven_gaussian(noise), rate), 1, DELTA) > spent


def test_the_classic_gaussian_is_proved_only_below_one():
    at, sigma = 1e-6, 0.2
    assert c.classic_gaussian(sigma)(np.asarray(at)) > 1
    low = 1e-2  # at which it is below what is true
    assert c.classic_gaussian(0.02)(np.asarray(low)) < c.exact_gaussian(0.02)(np.asarray(low))
    assert c.proven_gaussian(0.02)(np.asarray(low)) == c.exact_gaussian(0.02)(np.asarray(low))


@pytest.mark.parametrize("noise,rate,steps", [(4.0, 0.01, 10_000), (0.6, 0.001, 1000), (1.1, 256 / 60_000, 14_100)])
def test_the_limit_law_under_reports(noise, rate, steps):
    claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    limit = GaussianCurve(float(c.clt_mu(noise, rate, steps))).epsilon(np.asarray(DELTA))
    assert limit < claim.epsilon(DELTA)


def test_the_limit_law_is_below_what_is_surely_spent():
    claim = Claim.dp_sgd(noise_multiplier=0.6, sampling_rate=0.001, steps=1000)
    limit = GaussianCurve(float(c.clt_mu(0.6, 0.001, 1000))).epsilon(np.asarray(DELTA))
    assert limit < 0.8 * claim.epsilon_from_below(DELTA)


def test_the_limit_law_overflows_quietly():
    assert c.clt_mu(0.01, 0.1, [1, 100]).tolist() == [np.inf, np.inf]
    assert c.clt_mu(1e-200, 0.1, 1) == np.inf


@pytest.mark.parametrize("function", [c.naive_epsilon, c.strong_epsilon])
@pytest.mark.parametrize("steps,delta,named", [(0, DELTA, "steps"), (1.5, DELTA, "steps"), (3, 1.0, "delta")])
def test_bad_settings_are_named(function, steps, delta, named):
    with pytest.raises(InputError, match=named):
        function(pure(1.0), steps, delta)
