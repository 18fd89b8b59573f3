"""Calibration against dp-accounting called directly, closed forms and the accountant's own ε on both sides."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import Claim
from dpaudit.accounting import calibration
from dpaudit.accounting.calibration import TOLERANCE, Calibrated, analytic_gaussian, classic_gaussian
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.errors import InputError

DELTA = 1e-5
RATE = 256 / 60_000
FEW = 8  # evaluations of a privacy curve, coarse and fine together


def spent(**setting) -> float:
    """ε as a reader of the answer would compute it."""
    return Claim.dp_sgd(**setting).epsilon(DELTA)


def check_private_and_tight(solved: Calibrated, **setting) -> None:
    assert solved.epsilon == spent(**setting, **{solved.parameter: solved.value})
    assert (1 - TOLERANCE) * solved.target <= solved.epsilon <= solved.target
    assert solved.claim == Claim.dp_sgd(**setting, **{solved.parameter: solved.value})
    assert float(f"{solved.value:g}") == solved.value  # what is printed is the answer
    assert solved.evaluations <= FEW


@pytest.mark.parametrize(
    "rate,steps,epsilon,reference",
    [
        (0.01, 1000, 1.0, 1.41463),
        (0.01, 1000, 3.0, 0.81358),
        (0.01, 1000, 8.0, 0.58626),
        (RATE, 14_000, 1.0, 2.02140),
        (RATE, 14_000, 3.0, 0.96726),
        (RATE, 14_000, 8.0, 0.65526),
    ],
)
def test_noise_for_a_target(rate, steps, epsilon, reference):
    solved = calibration.noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps)
    check_private_and_tight(solved, sampling_rate=rate, steps=steps)
    assert solved.value == pytest.approx(reference, rel=4e-4)  # dp-accounting's calibration on a grid of 1e-4
    assert spent(noise_multiplier=solved.value * (1 - 3e-4), sampling_rate=rate, steps=steps) > epsilon


def test_dp_accounting_agrees_that_the_target_is_met_and_used_up():
    solved = calibration.noise_multiplier(epsilon=3.0, delta=DELTA, sampling_rate=0.01, steps=1000)
    one = pld.from_gaussian_mechanism(solved.value, sampling_prob=0.01, value_discretization_interval=1e-4)
    assert one.self_compose(1000).get_epsilon_for_delta(DELTA) == pytest.approx(3.0, rel=1e-3)


def test_on_a_coarse_grid_too():
    solved = calibration.noise_multiplier(epsilon=3.0, delta=DELTA, sampling_rate=0.01, steps=1000, finest=1e-3)
    assert solved.claim.finest == 1e-3
    assert solved.epsilon == solved.claim.epsilon(DELTA) <= 3.0
    assert solved.value == pytest.approx(0.81363, rel=3e-4)
    assert solved.evaluations <= 5


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 20.0, 100.0])
@pytest.mark.parametrize("rate,steps", [(0.01, 1000), (1e-3, 100_000), (0.5, 10)])
def test_targets_far_from_the_usual(rate, steps, epsilon):
    solved = calibration.noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps)
    assert (1 - TOLERANCE) * epsilon <= solved.epsilon <= epsilon
    assert spent(noise_multiplier=solved.value, sampling_rate=rate, steps=steps) == solved.epsilon
    assert solved.evaluations <= 2 * FEW


@pytest.mark.parametrize("delta", [1e-12, 1e-3, 0.1])
def test_other_deltas(delta):
    solved = calibration.noise_multiplier(epsilon=1.0, delta=delta, sampling_rate=0.01, steps=1000)
    assert (1 - TOLERANCE) <= solved.claim.epsilon(delta) <= 1.0
    assert solved.delta == delta


@given(epsilon=st.floats(1e-3, 200), log_delta=st.floats(-12, -1), steps=st.integers(1, 10**6))
@settings(max_examples=40, deadline=None)
def test_full_batches_are_solved_by_the_closed_form(epsilon, log_delta, steps):
    delta = 10**log_delta
    solved = calibration.noise_multiplier(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=steps)
    exact = analytic_gaussian(epsilon, delta) * math.sqrt(steps)
    assert exact <= solved.value * (1 + 1e-9)
    assert solved.value == pytest.approx(exact, rel=5e-4)
    assert solved.claim.epsilon(delta) == solved.epsilon <= epsilon


@pytest.mark.parametrize("sampler", ["fixed-size", "shuffled", "balls-and-bins"])
def test_every_sampler_is_solved_by_its_own_account(sampler):
    setting = {"sampling_rate": 0.01, "steps": 200, "sampler": sampler}
    solved = calibration.noise_multiplier(epsilon=3.0, delta=DELTA, **setting)
    check_private_and_tight(solved, **setting)
    if sampler == "shuffled":  # from above, two epochs are two Gaussian releases
        assert solved.value == pytest.approx(analytic_gaussian(3.0, DELTA) * math.sqrt(2), rel=3e-4)


def test_neighbours_that_replace_a_record_need_more_noise():
    setting = {"epsilon": 3.0, "delta": DELTA, "sampling_rate": 0.05, "steps": 50, "sampler": "fixed-size"}
    replaced, zeroed = (
        calibration.noise_multiplier(**setting, adjacency=adjacency) for adjacency in ("replace-one", "zero-out")
    )
    assert replaced.claim.adjacency == "replace-one" and zeroed.claim.adjacency == "zero-out"
    assert replaced.value > zeroed.value


@pytest.mark.parametrize(
    "noise,rate,epsilon", [(1.0, 0.01, 3.0), (4.0, 0.01, 3.0), (1.1, RATE, 2.385), (0.6, 0.01, 3.0)]
)
def test_one_more_step_would_exceed(noise, rate, epsilon):
    setting = {"noise_multiplier": noise, "sampling_rate": rate}
    solved = calibration.steps(epsilon=epsilon, delta=DELTA, **setting)
    assert isinstance(solved.value, int)
    assert spent(**setting, steps=solved.value) == solved.epsilon <= epsilon < spent(**setting, steps=solved.value + 1)
    assert solved.evaluations <= 2 * FEW


def test_the_most_steps_of_a_known_run():
    # 14,100 steps spend 2.385.
    solved = calibration.steps(epsilon=2.3853, delta=DELTA, noise_multiplier=1.1, sampling_rate=RATE)
    assert solved.value == pytest.approx(14_100, rel=2e-3)


@given(epsilon=st.floats(0.1, 20), noise=st.floats(5, 500))
@settings(max_examples=40, deadline=None)
def test_full_batch_steps_by_the_closed_form(epsilon, noise):
    exact = (noise / analytic_gaussian(epsilon, DELTA)) ** 2
    if exact < 1:
        with pytest.raises(InputError, match="epsilon must be at least"):
            calibration.steps(epsilon=epsilon, delta=DELTA, noise_multiplier=noise, sampling_rate=1.0)
    else:
        solved = calibration.steps(epsilon=epsilon, delta=DELTA, noise_multiplier=noise, sampling_rate=1.0)
        assert solved.value == math.floor(exact * (1 + 1e-10))


@pytest.mark.parametrize("noise", [0.6, 1.0, 4.0])
def test_the_largest_sampling_rate(noise):
    solved = calibration.sampling_rate(epsilon=3.0, delta=DELTA, noise_multiplier=noise, steps=1000)
    check_private_and_tight(solved, noise_multiplier=noise, steps=1000)
    assert spent(noise_multiplier=noise, steps=1000, sampling_rate=solved.value * 1.001) > 3.0


def test_any_sampling_rate_will_do_where_full_batches_do():
    solved = calibration.sampling_rate(epsilon=3.0, delta=DELTA, noise_multiplier=100.0, steps=10)
    assert solved.value == 1.0
    assert solved.epsilon == Claim.gaussian(noise_multiplier=100.0, steps=10).epsilon(DELTA) < 3.0


@pytest.mark.parametrize("sampler,steps", [("balls-and-bins", 200), ("shuffled", 200)])
def test_rates_of_epochs_are_one_over_whole_numbers(sampler, steps):
    setting = {"noise_multiplier": 2.5, "steps": steps, "sampler": sampler}
    solved = calibration.sampling_rate(epsilon=3.0, delta=DELTA, **setting)
    batches = round(1 / solved.value)
    assert batches > 1 and solved.value == 1 / batches
    assert spent(**setting, sampling_rate=1 / batches) == solved.epsilon <= 3.0
    assert spent(**setting, sampling_rate=1 / (batches - 1)) > 3.0


def test_the_three_questions_agree():
    noise = calibration.noise_multiplier(epsilon=2.0, delta=DELTA, sampling_rate=0.02, steps=500).value
    steps = calibration.steps(epsilon=2.0, delta=DELTA, sampling_rate=0.02, noise_multiplier=noise).value
    rate = calibration.sampling_rate(epsilon=2.0, delta=DELTA, noise_multiplier=noise, steps=500).value
    assert 500 <= steps <= 501
    assert rate == pytest.approx(0.02, rel=3e-4) and rate >= 0.02 * (1 - TOLERANCE)


@pytest.mark.parametrize(
    "solve,setting,words",
    [
        ("steps", {"noise_multiplier": 1.0, "sampling_rate": 1.0}, "at least 4.377 .* steps = 1 spends already"),
        ("steps", {"noise_multiplier": 1e5, "sampling_rate": 1.0}, "below 0.* any from 1 to 1e\\+07 would do"),
        ("noise_multiplier", {"sampling_rate": 1e-6, "steps": 1}, "below 0 .* any from 0.01 to 1e\\+09 would do"),
    ],
)
def test_a_target_out_of_reach_is_refused_with_what_is_reachable(solve, setting, words):
    with pytest.raises(InputError, match=f"epsilon must be {words}.*got 1.0"):
        getattr(calibration, solve)(epsilon=1.0, delta=DELTA, **setting)


@pytest.mark.parametrize(
    "name,value",
    [
        *[("epsilon", v) for v in (0, -1, math.inf, math.nan, "x")],
        *[("delta", v) for v in (0, 1, -1e-5, math.nan)],
        *[("sampling_rate", v) for v in (0, 1.1, None)],
        *[("steps", v) for v in (0, 1.5)],
        ("sampler", "shuffle"),
        ("adjacency", "replace-one"),
        ("finest", 0),
    ],
)
def test_a_bad_setting_is_named(name, value):
    good = {"epsilon": 1.0, "delta": DELTA, "sampling_rate": 0.01, "steps": 100}
    with pytest.raises(InputError, match=name):
        calibration.noise_multiplier(**{**good, name: value})


def test_analytic_gaussian_known_value():
    assert analytic_gaussian(1.0, 1e-5) == pytest.approx(3.7306, abs=5e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 20.0, 500.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_analytic_gaussian_against_many_digits(epsilon, delta):
    with mpmath.workdps(60):
        e, mu = mpmath.mpf(epsilon), 1 / mpmath.mpf(analytic_gaussian(epsilon, delta))

        def profile(mu):
            return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)

        assert profile(mu) <= delta * (1 + mpmath.mpf("1e-10"))
        assert profile(mu * (1 + mpmath.mpf("1e-7"))) > delta


@given(epsilon=st.floats(1e-3, 500), log_delta=st.floats(-12, -0.01))
@settings(max_examples=100, deadline=None)
def test_analytic_gaussian_is_on_the_private_side(epsilon, log_delta):
    noise = analytic_gaussian(epsilon, 10**log_delta)
    assert Claim.gaussian(noise_multiplier=noise).epsilon(10**log_delta) <= epsilon


@given(epsilon=st.floats(1e-3, 1), log_delta=st.floats(-12, -0.01))
@settings(max_examples=100, deadline=None)
def test_classic_gaussian_is_private_up_to_one_and_wastes_noise(epsilon, log_delta):
    noise = classic_gaussian(epsilon, 10**log_delta)
    assert noise == pytest.approx(math.sqrt(2 * math.log(1.25 / 10**log_delta)) / epsilon)
    assert noise >= analytic_gaussian(epsilon, 10**log_delta)


def test_classic_gaussian_is_refused_above_one_with_what_it_would_spend():
    noise = math.sqrt(2 * math.log(1.25e5)) / 20
    true = float(GaussianCurve(1 / noise).epsilon(np.asarray(DELTA)))
    assert true == pytest.approx(25.4, abs=0.05)
    with pytest.raises(InputError, match=r"epsilon must be in \(0, 1\].*got 20.*would spend 25\.4"):
        classic_gaussian(20, DELTA)
    with pytest.raises(InputError, match="epsilon"):
        classic_gaussian(np.nextafter(1.0, 2), DELTA)


@pytest.mark.parametrize("solve", [analytic_gaussian, classic_gaussian])
@pytest.mark.parametrize("epsilon,delta,name", [(0, 1e-5, "epsilon"), (0.5, 0, "delta"), (0.5, 1, "delta")])
def test_gaussians_name_what_is_wrong(solve, epsilon, delta, name):
    with pytest.raises(InputError, match=name):
        solve(epsilon, delta)
