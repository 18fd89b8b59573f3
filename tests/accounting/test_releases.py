"""Releases: tails and profiles against high-precision arithmetic, and what every pair of distributions keeps to."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.accounting.curves import GaussianCurve, LaplaceCurve, PairCurve
from dpaudit.accounting.releases import (
    SIDES,
    GaussianRelease,
    LaplaceRelease,
    PairRelease,
    Release,
    SampledGaussianRelease,
    log_gaussian_profile,
)

RELEASES = {
    "gaussian": GaussianRelease(noise_multiplier=1.3),
    "little noise": GaussianRelease(noise_multiplier=0.02),
    "sampled": SampledGaussianRelease(noise_multiplier=1.1, sampling_rate=0.01),
    "sampled often": SampledGaussianRelease(noise_multiplier=0.7, sampling_rate=0.5),
    "all but always": SampledGaussianRelease(noise_multiplier=2.0, sampling_rate=1 - 1e-9),
    "always": SampledGaussianRelease(noise_multiplier=2.0, sampling_rate=1.0),
    "rarely": SampledGaussianRelease(noise_multiplier=100.0, sampling_rate=1e-6),
    "rarely, little noise": SampledGaussianRelease(noise_multiplier=0.05, sampling_rate=1e-6),
    "laplace": LaplaceRelease(noise_multiplier=2.0),
    "pair": PairRelease(at_epsilon=0.7, at_delta=1e-3),
    "pure": PairRelease(at_epsilon=0.7, at_delta=0.0),
}
each = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES.keys())
each_side = pytest.mark.parametrize("side", SIDES)


def losses_of(release: Release, side: str) -> np.ndarray:
    """Losses in the bulk, in both tails and beyond."""
    spans = [release.span(side, log_mass) for log_mass in (-1.0, -5.0, -30.0)]
    points = np.concatenate([np.linspace(low, high, 23) for low, high in spans])
    return np.unique(np.concatenate([points, 1.1 * points, [0.0]]))


def by_mpmath(release: SampledGaussianRelease, loss: float, side: str) -> tuple[mp.mpf, mp.mpf]:
    """(P, Q) of a loss above ``loss``, from the definition, with 60 digits."""
    with mp.workdps(60):
        s, q, l = mp.mpf(release.noise_multiplier), mp.mpf(release.sampling_rate), mp.mpf(loss)
        inside = mp.e ** (l if side == "with" else -l) - (1 - q)
        cut = mp.mpf(1) / 2 + s**2 * mp.log(inside / q) if inside > 0 else -mp.inf
        plain, shifted = (mp.ncdf((m - cut) / s) for m in (0, 1))
        if side == "without":
            plain, shifted = (mp.ncdf((cut - m) / s) for m in (0, 1))
        mixed = (1 - q) * plain + q * shifted
        return (mixed, plain) if side == "with" else (plain, mixed)


@each_side
@pytest.mark.parametrize("name", ["sampled", "sampled often", "all but always", "rarely", "rarely, little noise"])
def test_tails_of_the_sampled_gaussian_against_mpmath(name, side):
    release = RELEASES[name]
    low, high = release.span(side, -60.0)
    # Near the largest loss without the record ln(1 − q + …) has few digits left, whoever computes it.
    losses = np.linspace(low, high, 40)[1:-2]
    first, scaled = release.scaled_tails(losses, side)
    exact = [by_mpmath(release, float(l), side) for l in losses]
    assert first == pytest.approx([float(p) for p, _ in exact], rel=1e-6, abs=1e-300)
    assert scaled == pytest.approx([float(mp.e**l * q) for l, (_, q) in zip(losses, exact, strict=True)], rel=1e-6)


@each_side
@pytest.mark.parametrize("name", ["sampled", "sampled often"])
def test_the_far_tail_has_all_its_digits(name, side):
    release = RELEASES[name]
    losses = np.linspace(*release.span(side, -200.0), 30)[15:-2]
    exact = [by_mpmath(release, float(l), side)[0] for l in losses]
    assert release.tails(losses, side)[0] == pytest.approx([float(p) for p in exact], rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 5.0])
@each_side
def test_profile_is_the_integral_of_the_definition(epsilon, side):
    s, q = 0.8, 0.3

    def gap(x: mp.mpf) -> mp.mpf:
        plain = mp.npdf(x, 0, s)
        mixed = (1 - q) * plain + q * mp.npdf(x, 1, s)
        first, second = (mixed, plain) if side == "with" else (plain, mixed)
        return max(first - mp.e**epsilon * second, 0)

    release = SampledGaussianRelease(noise_multiplier=s, sampling_rate=q)
    cut = 0.5 + s**2 * math.log(max(math.exp(epsilon if side == "with" else -epsilon) - 1 + q, 1e-300) / q)
    exact = mp.quad(gap, sorted({*range(-12, 15), min(max(cut, -12.0), 14.0)}))
    assert float(release.delta(np.asarray(epsilon), side)) == pytest.approx(float(exact), rel=1e-8, abs=1e-18)


@each
@each_side
def test_tails_fall_from_one_to_nothing(release, side):
    losses = losses_of(release, side)
    first, second = release.tails(losses, side)
    for tail in (first, second):
        assert np.all(np.diff(tail) <= 1e-15) and np.all((tail >= 0) & (tail <= 1))
    low, high = release.span(side, -30.0)
    assert release.tails(np.asarray(low - 1e-9 * abs(low) - 1e-12), side)[0] >= 1 - 1e-12
    assert release.tails(np.asarray(np.inf), side)[1] == 0
    assert release.tails(np.asarray(-np.inf), side) == (1.0, pytest.approx(1.0 - getattr(release, "at_delta", 0.0)))
    assert high >= low


@each
@each_side
@pytest.mark.parametrize("log_mass", [-1.0, -10.0, -40.0, -300.0])
def test_span_leaves_no_more_than_it_says_at_either_end(release, side, log_mass):
    low, high = release.span(side, log_mass)
    infinite = release.tails(np.asarray(np.inf), side)[0]
    # Losses of all but one size can't be told apart by floats: look a hair outside.
    above = release.tails(np.asarray(high + 1e-9 * abs(high)), side)[0] - infinite
    below = 1.0 - release.tails(np.asarray(low - 1e-9 * abs(low)), side)[0]
    assert above <= math.exp(log_mass) * (1 + 1e-9)
    assert below <= math.exp(log_mass) * (1 + 1e-9) + 1e-15


@each
@each_side
def test_scaled_tails_are_the_tails_where_these_can_be_multiplied(release, side):
    losses = losses_of(release, side)
    losses = losses[np.abs(losses) < 200]
    first, second = release.tails(losses, side)
    same, scaled = release.scaled_tails(losses, side)
    some = second > 1e-200
    assert same[some] == pytest.approx(first[some], rel=1e-9)
    assert scaled[some] == pytest.approx((np.exp(losses) * second)[some], rel=1e-9)
    assert np.all(scaled <= same)


@each
def test_the_two_directions_are_one_pair_of_distributions(release):
    # sup Q(S) − e^ε P(S) = 1 − e^ε + e^ε sup P(S) − e^−ε Q(S)
    for e in (0.0, 0.1, 0.6, 1.5):
        forth, back = release.delta(np.asarray(-e), "with"), release.delta(np.asarray(e), "without")
        assert back == pytest.approx(1 - math.exp(e) + math.exp(e) * forth, abs=1e-12)


@each
@each_side
def test_profile_falls_and_is_convex_in_the_exponential(release, side):
    t = np.linspace(0.2, 4.0, 400)
    delta = release.delta(np.log(t), side)
    assert np.all(np.diff(delta) <= 1e-14) and np.all(np.diff(delta, 2) >= -1e-13)


@pytest.mark.parametrize("noise", [0.02, 0.5, 3.0, 100.0])
def test_sampling_always_is_the_gaussian_at_any_size_of_the_loss(noise):
    sampled = SampledGaussianRelease(noise_multiplier=noise, sampling_rate=1.0)
    gaussian = GaussianRelease(noise_multiplier=noise)
    losses = np.linspace(*gaussian.span("with", -40.0), 101)
    exact = np.exp(log_gaussian_profile(losses, 1 / noise))
    for side in SIDES:
        assert sampled.delta(losses, side) == pytest.approx(exact, rel=1e-6, abs=1e-25)
        assert gaussian.delta(losses, side) == pytest.approx(exact, rel=1e-6, abs=1e-25)


def test_a_profile_at_losses_that_no_float_can_be_raised_to():
    release = GaussianRelease(noise_multiplier=0.02)  # the loss is 1250 with deviations of 50
    assert release.delta(np.asarray(1250.0), "with") == pytest.approx(0.492, abs=2e-3)
    assert SampledGaussianRelease(noise_multiplier=0.02, sampling_rate=0.5).delta(np.asarray(1000.0), "with") > 0.49


@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
def test_log_profile_of_the_gaussian(mu):
    e = np.linspace(-2 * mu, mu * (mu / 2 + 5), 60)
    first = [float(mp.ncdf(mu / 2 - x / mu) - mp.e**x * mp.ncdf(-mu / 2 - x / mu)) for x in map(mp.mpf, map(float, e))]
    assert np.exp(log_gaussian_profile(e, mu)) == pytest.approx(first, rel=1e-7, abs=1e-14)
    far = float(log_gaussian_profile(np.asarray(mu * (mu / 2 + 50)), mu))
    with mp.workdps(40):
        x = mp.mpf(mu) * (mp.mpf(mu) / 2 + 50)
        assert far == pytest.approx(
            float(mp.log(mp.ncdf(mu / 2 - x / mu) - mp.e**x * mp.ncdf(-mu / 2 - x / mu))), rel=1e-9
        )


@pytest.mark.parametrize(
    "release,curve",
    [
        (GaussianRelease(noise_multiplier=2.0, count=9), GaussianCurve(1.5)),
        (LaplaceRelease(noise_multiplier=2.0), LaplaceCurve(0.5)),
    ],
)
def test_closed_forms(release, curve):
    assert release.exact() == curve
    assert LaplaceRelease(noise_multiplier=2.0, count=2).exact() is None


@each_side
def test_profiles_of_laplace_and_of_a_pair_are_their_curves(side):
    e = np.linspace(0, 2, 41)
    assert LaplaceRelease(noise_multiplier=2.0).delta(e, side) == pytest.approx(LaplaceCurve(0.5).delta(e), abs=1e-14)
    pair = PairRelease(at_epsilon=0.7, at_delta=1e-3)
    assert pair.delta(e, side) == pytest.approx(PairCurve(0.7, 1e-3).delta(e), abs=1e-14)


@given(
    noise=st.floats(0.05, 50), rate=st.floats(1e-7, 1.0), share=st.floats(-0.2, 1.2), log_mass=st.floats(-80, -0.7)
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_sampled_gaussian_has_a_profile_between_nothing_and_the_full_batch(noise, rate, share, log_mass):
    sampled = SampledGaussianRelease(noise_multiplier=noise, sampling_rate=rate)
    full = GaussianRelease(noise_multiplier=noise)
    for side in SIDES:
        low, high = sampled.span(side, log_mass)
        at = np.asarray(low + share * (high - low))
        delta = float(sampled.delta(at, side))
        assert max(-math.expm1(min(float(at), 0.0)), 0.0) - 1e-12 <= delta <= float(full.delta(at, side)) + 1e-12
        assert sampled.tails(np.asarray(high + 1e-9 * abs(high)), side)[0] <= math.exp(log_mass) * (1 + 1e-6)
