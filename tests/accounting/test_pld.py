"""Composition on a grid: against dp-accounting itself, exact compositions, and what all compositions keep to."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import common, pld_privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import fft
from scipy.signal import lfilter

from dpaudit.accounting import dots, grids, pld
from dpaudit.accounting.curves import GaussianCurve, GridCurve
from dpaudit.accounting.releases import (
    SIDES,
    GaussianRelease,
    LaplaceRelease,
    PairRelease,
    Release,
    SampledGaussianRelease,
)

DELTA = 1e-5
COMMON = [(1.0, 0.01, 1000), (1.1, 256 / 60000, 14063), (4.0, 0.01, 10_000), (1.2, 0.05, 300), (0.6, 0.001, 1000)]


def sampled(noise: float, rate: float, count: int = 1) -> SampledGaussianRelease:
    return SampledGaussianRelease(noise_multiplier=noise, sampling_rate=rate, count=count)


def gaussian(noise: float, count: int = 1) -> GaussianRelease:
    return GaussianRelease(noise_multiplier=noise, count=count)


def laplace(noise: float, count: int = 1) -> LaplaceRelease:
    return LaplaceRelease(noise_multiplier=noise, count=count)


def epsilon(*releases: Release, delta: float = DELTA, finest: float = 1e-4) -> float:
    return float(pld.curve(releases, finest).epsilon(np.asarray(delta)))


@dataclass(frozen=True, kw_only=True)
class Disguised(Release):
    """A release that is not known to be what it is; with ``profile_only``, of which nothing but δ is known."""

    inner: Release
    profile_only: bool = False

    def tails(self, loss, side):
        if self.profile_only:
            raise NotImplementedError
        return self.inner.tails(loss, side)

    def scaled_tails(self, loss, side):
        if self.profile_only:
            raise NotImplementedError
        return self.inner.scaled_tails(loss, side)

    def delta(self, epsilon, side):
        return self.inner.delta(epsilon, side)

    def span(self, side, log_mass):
        return self.inner.span(side, log_mass)

    @property
    def largest_exact_loss(self):
        return self.inner.largest_exact_loss


@functools.cache
def directly(noise: float, rate: float, steps: int) -> library.PrivacyLossDistribution:
    one = library.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    return one.self_compose(steps)


# --- against dp-accounting and published values


@pytest.mark.parametrize("setting", COMMON)
def test_epsilon_is_that_of_dp_accounting(setting):
    assert epsilon(sampled(*setting)) == pytest.approx(directly(*setting).get_epsilon_for_delta(DELTA), rel=1e-3)


@pytest.mark.parametrize("setting", [(1.0, 0.01, 1000), (1.2, 0.05, 300)])
def test_delta_is_that_of_dp_accounting_and_the_larger_of_both_directions(setting):
    both, e = directly(*setting), np.linspace(0.0, 6.0, 13)
    theirs = [[pmf.get_delta_for_epsilon(x) for x in e] for pmf in (both._pmf_add, both._pmf_remove)]
    ours = pld.curve((sampled(*setting),)).delta(e)
    assert ours == pytest.approx(np.max(theirs, axis=0), rel=2e-3, abs=1e-12)
    assert np.any(np.abs(np.diff(theirs, axis=0)) > 1e-9)


@pytest.mark.parametrize(
    "noise,rate,steps,known",
    [
        (1.1, 256 / 60000, 14_100, 2.385),
        (1.1, 256 / 60000, 14_000, 2.3759),
        (4.0, 0.01, 10_000, 0.947),
        (4.0, 0.01, 40_000, 2.033),
        (1.0, 0.01, 1000, 1.828),
        (0.6, 0.001, 1000, 1.43),
    ],
)
def test_known_epsilons(noise, rate, steps, known):
    digits = len(str(known).split(".")[1])
    assert epsilon(sampled(noise, rate, steps)) == pytest.approx(known, abs=0.6 * 10**-digits)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_different_releases_against_the_accountant_of_the_library(delta):
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_event.GaussianDpEvent(3.0), 5)
    accountant.compose(dp_event.LaplaceDpEvent(10.0), 20)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(0.9)), 200)
    ours = epsilon(gaussian(3.0, 5), laplace(10.0, 20), sampled(0.9, 0.02, 200), delta=delta)
    assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


# --- against exact compositions


@pytest.mark.parametrize("profile_only", [False, True], ids=["tails", "profile"])
@pytest.mark.parametrize("noise,count", [(0.2, 2), (1.0, 3), (10.0, 100), (100.0, 10_000), (300.0, 10**6)])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
def test_a_gaussian_in_disguise(noise, count, delta, profile_only):
    release = Disguised(inner=gaussian(noise), count=count, profile_only=profile_only)
    exact = float(GaussianCurve(math.sqrt(count) / noise).epsilon(np.asarray(delta)))
    curve = pld.curve((release,))
    assert exact <= float(curve.epsilon(np.asarray(delta))) <= 1.004 * exact
    assert not curve.precision(delta).limited
    if not profile_only:
        assert 0.99 * exact <= pld.epsilon_from_below((release,), delta) <= exact


def of_two(noise: float, rate: float, at: float, side: str) -> float:
    """δ of two sampled Gaussian releases, by one integral over the first of the exact profile of the second."""

    def loss(x: np.ndarray) -> np.ndarray:
        with_record = np.logaddexp(np.log1p(-rate), math.log(rate) + (x - 0.5) / noise**2)
        return with_record if side == "with" else -with_record

    def inside(x: np.ndarray) -> np.ndarray:
        plain = np.exp(-0.5 * (x / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
        density = plain * np.exp(loss(x)) if side == "with" else plain
        return density * sampled(noise, rate).delta(at - loss(x), side)

    # The profile has a corner at the least (or largest) loss, ln(1 − q) up to its sign: where is the first's the rest?
    corner = at - math.log1p(-rate) if side == "with" else at + math.log1p(-rate)
    corner = corner if side == "with" else -corner
    edges = np.linspace(-9 * noise, 1 + 9 * noise, 200)
    if math.exp(corner) > 1 - rate:
        edges = np.sort(np.append(edges, 0.5 + noise**2 * math.log((math.exp(corner) - (1 - rate)) / rate)))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    return float((half * weights * inside(edges[:-1, None] + half * (1 + nodes))).sum())


@pytest.mark.parametrize("noise,rate", [(0.3, 0.001), (0.5, 0.5), (1.0, 0.05), (10.0, 0.01)])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.5])
def test_two_sampled_releases_against_an_integral(noise, rate, share):
    release, at = sampled(noise, rate, 2), share * epsilon(sampled(noise, rate, 2))
    exact = max(of_two(noise, rate, at, side) for side in SIDES)
    curve = pld.curve((release,))
    found = float(curve.delta(np.asarray(at)))
    assert exact * (1 - 1e-9) <= found <= exact * 1.02
    assert float(curve.epsilon(np.asarray(exact))) == pytest.approx(at, rel=5e-3)
    assert float(curve.epsilon(np.asarray(exact))) >= at * (1 - 1e-9)
    assert pld.epsilon_from_below((release,), exact) <= at * (1 + 1e-9)


def pairs_composed(e: float, d: float, count: int, at: float) -> float:
    """δ of ``count`` pairs, i of them against and the others for: the binomial formula of Kairouz et al. 2015."""
    with mp.workdps(30):
        total, share = mp.mpf(0), 1 / (1 + mp.e ** mp.mpf(-e))
        for i in range(count + 1):
            loss = (count - 2 * i) * mp.mpf(e)
            mass = mp.binomial(count, i) * share ** (count - i) * (1 - share) ** i
            total += mass * max(1 - mp.e ** (at - loss), 0)
        return float(1 - (1 - mp.mpf(d)) ** count * (1 - total))


@pytest.mark.parametrize("e,d,count", [(0.3, 0.0, 7), (0.1, 1e-6, 40), (1.234, 1e-9, 3)])
def test_pairs_composed_against_the_binomial_formula(e, d, count):
    release = (PairRelease(at_epsilon=e, at_delta=d, count=count),)
    curve, ats = pld.curve(release), np.linspace(0, 0.97 * count * e, 17)
    exact = np.array([pairs_composed(e, d, count, float(at)) for at in ats])
    found = curve.delta(ats)
    assert np.all(found >= exact * (1 - 1e-12))
    assert found == pytest.approx(exact, rel=2e-2, abs=1e-13)
    for at, delta in zip(ats[1:-3:4], exact[1:-3:4], strict=True):
        assert at * (1 - 1e-3) <= float(curve.epsilon(np.asarray(delta))) <= at * (1 + 3e-3)
        assert pld.epsilon_from_below(release, float(delta)) <= at + 1e-9


def test_bounded_losses_add_up_to_a_bound():
    pure = pld.curve((laplace(2.0, 10),))
    assert float(pure.epsilon(np.asarray(0.0))) == pytest.approx(5.0)
    assert float(pure.delta(np.asarray(5.0 + 1e-9))) == 0.0
    leaky = pld.curve((PairRelease(at_epsilon=0.5, at_delta=1e-3, count=4), laplace(1.0)))
    lost = 1 - (1 - 1e-3) ** 4
    assert float(leaky.epsilon(np.asarray(lost * (1 + 1e-9)))) == pytest.approx(3.0, rel=1e-6)
    assert float(leaky.epsilon(np.asarray(lost / 2))) == np.inf
    assert leaky.precision(lost / 2).note == "infinite at this δ"


@pytest.mark.parametrize("release", [sampled(0.7, 0.1), sampled(1.0, 0.01), PairRelease(at_epsilon=1, at_delta=1e-4)])
def test_one_use_is_its_exact_profile(release):
    curve, e = pld.curve((release,)), np.linspace(0, 0.9, 9)
    exact = np.maximum(*(release.delta(e, side) for side in SIDES))
    assert curve.delta(e) == pytest.approx(exact, rel=1e-12)
    inside = (exact > 1.1e-4) & (exact < exact[0])
    assert curve.epsilon(exact[inside]) == pytest.approx(e[inside], abs=1e-9)
    assert curve.precision(DELTA).note == "exact profile of one use"
    assert float(curve.epsilon(np.asarray(exact[0]))) == 0.0


def test_an_exact_curve_stays_exact():
    assert pld.curve((gaussian(2.0, 9),)) == GaussianCurve(1.5)
    assert pld.curve((gaussian(2.0, 5), gaussian(1.0))) == GaussianCurve(1.5)
    assert GaussianCurve(1.5).precision(DELTA).note == "exact"


# --- one use on a grid


KINDS = {
    "sampled": sampled(1.0, 0.01),
    "sampled often": sampled(0.7, 0.5),
    "rarely, little noise": sampled(0.1, 1e-6),
    "skewed": sampled(0.5, 0.001),
    "laplace": laplace(2.0),
    "pair": PairRelease(at_epsilon=0.7, at_delta=1e-3),
    "gaussian": gaussian(0.7),
}


def profile(masses: dots.Masses, cell: float, at: np.ndarray) -> np.ndarray:
    losses = (masses.start + np.arange(len(masses.probs))) * cell + masses.offset
    parts = masses.probs * np.maximum(-np.expm1(np.minimum(at[:, None] - losses, 0.0)), 0.0)
    return masses.infinite + parts.sum(axis=1)


@given(kind=st.sampled_from(sorted(KINDS)), side=st.sampled_from(SIDES), cell=st.floats(2e-3, 0.5), seed=st.integers(0))
@settings(max_examples=80, deadline=None)
def test_one_use_is_rounded_to_the_side_that_is_said(kind, side, cell, seed):
    release = KINDS[kind]
    low, high = dots.ends(release, side, 1000)
    at = np.sort(np.random.default_rng(seed).uniform(low - 1, min(high, low + 200 * cell) + 1, 200))
    exact = release.delta(at, side)
    above, below = dots.above(release, cell, side, 1000), dots.below(release, cell, side, 1000)
    assert np.all(profile(above, cell, at) >= exact - 1e-14)
    assert np.all(profile(below, cell, at) <= exact + 1e-14)
    for masses in (above, below):
        assert np.all(masses.probs >= 0)
        assert masses.probs.sum() + masses.infinite == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("kind", ["sampled", "sampled often", "skewed", "gaussian"])
@pytest.mark.parametrize("rounded", [dots.above, dots.below])
def test_a_cell_costs_its_square(kind, rounded):
    release = KINDS[kind]
    fine, means = dots.above(release, 1e-5, "with", 10), []
    true = (fine.probs * (fine.start + np.arange(len(fine.probs))) * 1e-5).sum()
    for cell in (2e-3, 1e-3, 5e-4):
        masses = rounded(release, cell, "with", 10)
        means.append((masses.probs * ((masses.start + np.arange(len(masses.probs))) * cell + masses.offset)).sum())
    costs = np.abs(np.array(means) - true)
    assert costs[2] < costs[1] / 2.5 < costs[0] / 6
    assert costs[0] < 4e-6


def test_no_mass_is_made_by_rounding_in_cells_that_are_tiny():
    masses = dots.above(sampled(100.0, 1e-6), 4e-10, "with", 10**6)
    assert masses.probs.sum() + masses.infinite == pytest.approx(1.0, abs=3e-15)


# --- what rounding does to a convolution


def power(values: np.ndarray, count: int) -> np.ndarray:
    out = np.ones_like(values)
    while count:
        out, values, count = (out * values if count & 1 else out), values * values, count >> 1
    return out


def shapes(size: int) -> dict[str, np.ndarray]:
    x = np.linspace(-9, 9, size)
    bell = np.exp(-x * x / 2) / np.exp(-x * x / 2).sum()
    falling, bulk, rare = np.exp(-np.arange(size) / size * 20), np.zeros(size), np.zeros(size)
    bulk[2], rare[3], rare[4], rare[-3:] = 0.999, 0.5, 0.5 - 1e-6, 1e-6 / 3
    return {"bell": bell, "falling": falling / falling.sum(), "bulk and bell": bulk + 1e-3 * bell, "rare": rare}


@pytest.mark.parametrize("shape", list(shapes(9)))
@pytest.mark.parametrize("size,count", [(500, 3), (500, 1000), (2000, 10), (50_000, 3), (50, 10**6)])
@pytest.mark.parametrize("rate", [0.0, 1e-4, 1e-2])
def test_errors_of_convolution_are_within_what_is_allowed_for(shape, size, count, rate):
    probs, cell = shapes(size)[shape], 1.0
    start, found = common.self_convolve(probs, count, grids.WINDOW_MASS)
    found = np.asarray(found)
    length = fft.next_fast_len(max(len(found), len(probs)))
    exact = fft.irfft(power(fft.rfft(probs.astype(np.longdouble), length), count), length)
    exact = np.roll(exact, -start)[: len(found)]
    pmf = pld._Pmf(cell, 0.0, found, rate, 0.0, 2.0**-53 * (count + pld._TRANSFORM), 0.0, 0.0)
    allowed = pld._Tail(pmf, up=True).doubt
    sums = lfilter([1.0], [1.0, -math.exp(-rate)], np.maximum(exact, 0).astype(float)[::-1])[::-1]
    off = lfilter([1.0], [1.0, -math.exp(-rate)], (found - exact).astype(float)[::-1])[::-1]
    assert np.all(np.abs(off) <= pld._SHARE * pmf.rounding * sums + allowed)


# --- what any composition keeps to

noises, rates = st.floats(0.6, 8.0), st.floats(1e-3, 0.3)
counts, deltas = st.integers(2, 400), st.floats(1e-9, 1e-2)
property_based = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GRID = 3e-3  # two grids may differ by this share, and by as much in nats as a step of rounding


def at_most(a: float, b: float) -> bool:
    return a <= b * (1 + GRID) + 1e-6


@given(noise=noises, rate=rates, count=counts, delta=deltas, more=st.floats(1.0, 2.0))
@property_based
def test_monotone_in_every_setting(noise, rate, count, delta, more):
    base = epsilon(sampled(noise, rate, count), delta=delta)
    assert at_most(epsilon(sampled(noise * more, rate, count), delta=delta), base)
    assert at_most(base, epsilon(sampled(noise, min(rate * more, 1.0), count), delta=delta))
    assert at_most(base, epsilon(sampled(noise, rate, math.ceil(count * more)), delta=delta))
    assert epsilon(sampled(noise, rate, count), delta=min(delta * more, 1.0)) <= base
    assert at_most(base, float(GaussianCurve(math.sqrt(count) / noise).epsilon(np.asarray(delta))))


@given(noise=noises, rate=rates, first=counts, second=counts, delta=deltas)
@property_based
def test_steps_add_up(noise, rate, first, second, delta):
    whole = epsilon(sampled(noise, rate, first + second), delta=delta)
    parts = epsilon(sampled(noise, rate, first), sampled(noise, rate, second), delta=delta)
    assert parts == pytest.approx(whole, rel=GRID, abs=1e-6)


@given(noise=noises, rate=rates, count=counts, scale=st.floats(1.0, 30.0), delta=deltas)
@property_based
def test_order_is_irrelevant_and_no_part_is_more_than_the_whole(noise, rate, count, scale, delta):
    parts = (sampled(noise, rate, count), laplace(scale, 3), gaussian(2 * noise, 2))
    whole = epsilon(*parts, delta=delta)
    assert epsilon(*parts[::-1], delta=delta) == pytest.approx(whole, rel=1e-9)
    for part in parts:
        assert at_most(epsilon(part, delta=delta), whole)
    below = pld.epsilon_from_below(parts, delta)
    assert 0.97 * whole - 1e-6 <= below <= whole


@given(noise=noises, rate=rates, count=counts, delta=deltas)
@property_based
def test_from_below_is_below(noise, rate, count, delta):
    release = (sampled(noise, rate, count),)
    above, below = epsilon(*release, delta=delta), pld.epsilon_from_below(release, delta)
    assert 0.0 <= below <= above
    assert above - below <= 0.02 * above + 1e-5


@pytest.mark.parametrize("setting", COMMON)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_from_below_is_within_a_hundredth_where_it_matters(setting, delta):
    release = (sampled(*setting),)
    above, below = epsilon(*release, delta=delta), pld.epsilon_from_below(release, delta)
    assert 0.99 * above <= below <= above


@given(noise=noises, rate=rates, count=counts, share=st.floats(0.0, 1.5))
@property_based
def test_epsilon_and_delta_invert_each_other(noise, rate, count, share):
    curve = pld.curve((sampled(noise, rate, count),))
    at = share * float(curve.epsilon(np.asarray(1e-8)))
    delta = float(curve.delta(np.asarray(at)))
    back = float(curve.epsilon(np.asarray(delta)))
    assert back <= at * (1 + 1e-9) + 1e-12
    assert float(curve.delta(np.asarray(back))) <= delta * (1 + 1e-6)


# --- look-ups


@pytest.fixture(scope="module")
def curve() -> GridCurve:
    return pld.curve((sampled(1.0, 0.02, 500),))


def test_look_ups_take_any_shape_and_any_value(curve):
    at = np.array([[0.0, 1e-300, 1e-15], [1e-9, 0.3, 1.0]])
    found = curve.epsilon(at)
    assert found.shape == at.shape and found[0, 0] == np.inf and found[1, 2] == 0.0
    assert np.all(np.diff(found.ravel()) <= 0)
    assert [float(curve.epsilon(np.asarray(x))) for x in at.ravel()] == list(found.ravel())
    e = np.array([0.0, 1.0, 50.0, 5e4, np.inf])
    deltas = curve.delta(e)
    assert np.all(np.diff(deltas) <= 0) and np.all((deltas >= 0) & (deltas <= 1))
    assert deltas[-1] <= 1e-15


def test_deep_and_shallow_look_ups_meet(curve):
    deltas = np.geomspace(1e-14, 1e-2, 200)
    found = curve.epsilon(deltas)
    assert np.all(np.diff(found) <= 0)
    bends = np.diff(found, 2)
    assert np.abs(bends).max() < 0.05


def test_an_epsilon_beyond_the_reach_of_floats():
    curve = pld.curve((sampled(0.05, 0.5, 1000),))
    found = float(curve.epsilon(np.asarray(DELTA)))
    assert found == pytest.approx(112_925, rel=1e-3)
    assert pld.epsilon_from_below((sampled(0.05, 0.5, 1000),), DELTA) == pytest.approx(found, rel=1e-3)
    assert float(curve.delta(np.asarray(found))) == pytest.approx(DELTA, rel=1e-3)
    assert float(curve.fnr(np.asarray(0.5))) == 0.0


def test_the_surest_guesses(curve):
    guessed, wrong = curve.surest
    assert guessed[0] == 0 and np.all(np.diff(guessed) >= 0) and np.all(np.diff(wrong) >= 0)
    assert guessed[-1] == pytest.approx(1.0, abs=1e-6)
    # Guessing all, an optimal attacker is wrong in (1 − total variation) / 2 of all cases.
    assert wrong[-1] == pytest.approx((1 - float(curve.delta(np.asarray(0.0)))) / 2, abs=1e-4)


def test_the_grid_and_its_precision_are_told(curve):
    assert isinstance(curve.grid, grids.Grid) and curve.grid.cell <= curve.grid.wanted
    assert curve.precision(DELTA).grid is curve.grid
    assert curve.precision(DELTA).note.startswith("a grid of")
    assert curve.precision(1e-25).limited and curve.precision(1e-25).note.startswith("grid-limited: ")


def test_sampling_is_never_worse_than_full_batches_however_coarse_the_grid():
    releases = (sampled(0.3, 0.999, 3), gaussian(2.0))
    full = GaussianCurve(math.sqrt(3 / 0.3**2 + 0.25))
    curve = pld.curve(releases, 1e-3)
    for delta in (1e-3, 1e-9, 1e-25):
        assert float(curve.epsilon(np.asarray(delta))) <= float(full.epsilon(np.asarray(delta)))


def test_curves_are_remembered():
    release = (sampled(1.5, 0.03, 77),)
    assert pld.curve(release) is pld.curve(release)
    assert pld.curve(release) is not pld.curve(release, 1e-3)
    first = pld.curve(release)
    pld.clear_cache()
    assert pld.curve(release) is not first


def test_a_profile_alone_is_enough_from_above_and_not_from_below():
    release = Disguised(inner=sampled(1.0, 0.05), count=20, profile_only=True)
    known = epsilon(sampled(1.0, 0.05, 20))
    assert known * (1 - 1e-6) <= epsilon(release) <= known * 1.001
    assert epsilon(replace(release, count=1)) == pytest.approx(epsilon(sampled(1.0, 0.05)), rel=1e-9)
    with pytest.raises(NotImplementedError):
        pld.epsilon_from_below((release,), DELTA)
