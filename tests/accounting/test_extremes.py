"""Extreme settings: a number that holds, within 1 % or marked, or a clear error; and no more memory than foreseen."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.accounting import grids, pld, renyi
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.accounting.releases import LaplaceRelease, PairRelease, SampledGaussianRelease

NOISES, RATES, STEPS, DELTAS = (0.05, 0.1, 1.0, 100.0), (1e-6, 1e-3, 0.5, 1.0), (1, 1000, 10**6), (1e-5, 1e-12)
SETTINGS = list(itertools.product(NOISES, RATES, STEPS, DELTAS))
FEW = SETTINGS[::7]


def holds(noise: float, rate: float, steps: int, delta: float) -> None:
    claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    epsilon, below = claim.epsilon(delta), claim.epsilon_from_below(delta)
    assert 0 <= below <= epsilon < math.inf
    # Known without a grid: full batches are no more private, and RDP's bound holds too. The grid may cost 1 %.
    assert epsilon <= Claim.gaussian(noise_multiplier=noise, steps=steps).epsilon(delta) * (1 + 1e-9)
    assert epsilon <= renyi.epsilon(claim, delta).epsilon * 1.01 + 1e-12 or claim.curve.precision(delta).limited
    assert claim.delta(epsilon) <= delta * (1 + 1e-6)


@pytest.mark.parametrize("setting", FEW, ids=str)
def test_extreme_settings_hold(setting):
    holds(*setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [s for s in SETTINGS if s not in FEW], ids=str)
def test_all_extreme_settings_hold(setting):
    holds(*setting)


@pytest.mark.parametrize(
    "noise,rate,steps",
    [(0.1, 0.5, 10**6), (1.0, 1e-6, 1000), (100.0, 1e-6, 10**6), (1.0, 0.01, 1000), (0.05, 0.5, 1000)],
)
def test_memory_is_foreseen_and_stays_under_a_gibibyte(noise, rate, steps):
    releases = (SampledGaussianRelease(noise_multiplier=noise, sampling_rate=rate, count=steps),)
    foreseen = grids.plan(releases, 1e-4)
    assert foreseen.bytes <= grids.MOST_BYTES
    pld.clear_cache()
    tracemalloc.start()
    try:
        pld.curve(releases, 1e-4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.1 * foreseen.bytes + 2**23


def test_an_unmarked_number_is_within_one_percent_of_a_finer_grid():
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(12):
        noise, rate = float(np.exp(rng.uniform(-1, 2))), float(np.exp(rng.uniform(-7, -0.5)))
        claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=int(np.exp(rng.uniform(1, 7))))
        coarse, fine = claim.coarse(), replace(claim, finest=2e-5)
        if not coarse.curve.precision(1e-5).limited:
            compared += 1
            assert fine.epsilon(1e-5) * (1 - 1e-6) <= coarse.epsilon(1e-5) <= fine.epsilon(1e-5) * 1.01 + 1e-12
    assert compared >= 8


def test_a_grid_that_is_too_coarse_is_marked():
    claim = replace(Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=1e-6, steps=1000), finest=1e-3)
    found = claim.curve.precision(1e-5)
    finer = replace(claim, finest=1e-4)
    assert claim.epsilon(1e-5) > 1.01 * finer.epsilon(1e-5)
    assert found.limited and "grid-limited" in found.note and not finer.curve.precision(1e-5).limited


def test_losses_beyond_what_a_float_can_raise_e_to():
    # Underflow used to make this infinite.
    claim = Claim.dp_sgd(noise_multiplier=0.05, sampling_rate=0.5, steps=1000)
    low, high = claim.bracket(1e-5)
    assert 1e5 < low <= high < 1.01 * low


def test_tiny_deltas_are_not_drowned_by_rounding():
    # Nearly full batches are all but the exact Gaussian, which has every digit of the tail.
    for steps in (100, 10**6):
        noise = math.sqrt(steps)
        near = pld.curve((SampledGaussianRelease(noise_multiplier=noise, sampling_rate=1 - 1e-12, count=steps),))
        exact = GaussianCurve(1.0)
        for delta in (1e-9, 1e-12, 1e-14):
            at = np.asarray(delta)
            assert exact.epsilon(at) * (1 - 1e-9) <= near.epsilon(at) <= exact.epsilon(at) * 1.01


def test_pure_mechanisms_keep_their_ceiling():
    releases = (LaplaceRelease(noise_multiplier=2.0, count=6), PairRelease(at_epsilon=0.5, at_delta=0.0, count=2))
    curve = pld.curve(releases)
    assert float(curve.epsilon(np.asarray(0.0))) == pytest.approx(4.0, rel=1e-9)
    assert float(curve.epsilon(np.asarray(1e-3))) < 4.0


@pytest.mark.parametrize("sampler", ["fixed-size", "shuffled", "balls-and-bins"])
@pytest.mark.parametrize("noise", [0.05, 0.3, 20.0])
def test_brackets_are_in_order_at_the_ends_of_the_scale(sampler, noise):
    for steps in (1, 250):
        claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=0.01, steps=steps, sampler=sampler)
        low, high = claim.bracket(1e-6)
        assert 0 <= low <= high * (1 + 1e-9)
        assert math.isfinite(high)
