"""Samplers against direct integration of worst pairs, simulation, closed forms and published values."""

from __future__ import annotations

import functools
import itertools
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from dpaudit import Claim
from dpaudit.accounting import claims
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.accounting.epochs import BinsRelease, DiscreteRelease, binned_sum, spread_sum
from dpaudit.accounting.fixed_size import DecoyRelease, WorstOfTwo
from dpaudit.accounting.releases import SIDES, GaussianRelease, Release, SampledGaussianRelease, Side
from dpaudit.accounting.samplers import BallsAndBinsGaussian, FixedSizeGaussian, ShuffledGaussian
from dpaudit.errors import InputError
from dpaudit.records import Adjacency

DELTA = 1e-5
PAGE = Path(__file__).parents[2] / "docs" / "samplers.md"
EPSILONS = np.array([-4.0, -1.0, -0.2, -0.01, 0.0, 0.01, 0.2, 0.7, 1.5, 3.0, 5.0])
RELATIONS = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
LINE, CELL = np.linspace(-30.0, 30.0, 300_001, retstep=True)
BY_EPOCH = ("shuffled", "balls-and-bins")


def hockey_stick(first: np.ndarray, second: np.ndarray, cell: float, epsilons: np.ndarray = EPSILONS) -> np.ndarray:
    """δ at every ε by the midpoint rule: the oracle of this file."""
    return np.array([np.maximum(first - math.exp(e) * second, 0.0).sum() * cell for e in epsilons])


def one_step(noise: float, rate: float, g: float, other: float, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Densities of q N(g) + (1 − q) N(z) and of q N(other) + (1 − q) N(z)."""
    at_g, at_other, at_z = (norm.pdf(LINE, mean, noise) for mean in (g, other, z))
    return rate * at_g + (1 - rate) * at_z, rate * at_other + (1 - rate) * at_z


def composed_epsilon(releases: tuple[Release, ...], pessimistic: bool, cell: float, delta: float = DELTA) -> float:
    """ε of both sides composed apart by dp-accounting: dots connected from above, losses rounded down from below."""
    sides = []
    for side in SIDES:
        parts = [_pmf(release, side, cell, pessimistic).self_compose(release.count) for release in releases]
        sides.append(functools.reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(delta))
    return max(sides)


def _pmf(release: Release, side: Side, cell: float, pessimistic: bool) -> pld_pmf.PLDPmf:
    low, high = release.span(side, -40.0)
    cells = np.arange(math.floor(low / cell) - 1, math.ceil(high / cell) + 2)
    if pessimistic:
        deltas = release.delta(cells * cell, side)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(cell, int(cells[0]), int(cells[-1]), deltas)
    above, _ = release.tails(cells * cell, side)
    return pld_pmf.DensePLDPmf(cell, int(cells[0]), np.maximum(-np.diff(above), 0.0), 0.0, False)


def one_epoch_epsilon(release: Release, delta: float = DELTA) -> float:
    """ε of one use, by both sides."""

    def excess(epsilon: float) -> float:
        return max(float(release.delta(np.array([epsilon]), side)[0]) for side in SIDES) - delta

    return brentq(excess, 0.0, 2000.0, xtol=1e-9)


def one_epoch(sampler: type, noise: float, batches: int, below: bool) -> Release:
    mechanism = sampler(noise, 1 / batches, batches)
    (release,) = (mechanism.releases_below if below else mechanism.releases)(Adjacency.ZERO_OUT)
    return release


class TestFixedSize:
    @pytest.mark.parametrize("noise,rate", [(1.0, 0.1), (0.5, 0.01), (2.0, 0.5), (0.7, 0.9), (5.0, 0.3)])
    @pytest.mark.parametrize("relation", RELATIONS)
    def test_one_step_is_the_worst_of_all_pairs(self, noise, rate, relation):
        (release,) = FixedSizeGaussian(noise, rate, 1).releases(relation)
        worst = {side: np.zeros(len(EPSILONS)) for side in SIDES}
        for g in (1.0, 0.5):
            for other in (-1.0, 0.3) if relation == Adjacency.REPLACE_ONE else (0.0,):
                for z in (-1.0, -0.5, 0.0, 1.0):
                    p, q = one_step(noise, rate, g, other, z)
                    for side, pair in zip(SIDES, ((p, q), (q, p)), strict=True):
                        worst[side] = np.maximum(worst[side], hockey_stick(*pair, CELL))
        if relation == Adjacency.REPLACE_ONE:  # which of the two is "with" is a matter of names
            worst = dict.fromkeys(SIDES, np.maximum(*worst.values()))
        for side in SIDES:
            # No pair is worse, and one of them is as bad.
            assert release.delta(EPSILONS, side) == pytest.approx(worst[side], abs=2e-8)

    @pytest.mark.parametrize("angle", [0.5, 1.5, 2.5, 3.1])
    def test_others_that_point_aside_are_no_worse(self, angle):
        noise, rate = 0.8, 0.2
        (release,) = FixedSizeGaussian(noise, rate, 1).releases(Adjacency.ZERO_OUT)
        line, cell = np.linspace(-7, 8, 1501, retstep=True)
        x, y = np.meshgrid(line, line, indexing="ij")

        def density(a: float, b: float) -> np.ndarray:
            return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * noise**2)) / (2 * math.pi * noise**2)

        aside = (1 - rate) * density(math.cos(angle), math.sin(angle))
        p, q = (rate * density(1, 0) + aside, rate * density(0, 0) + aside)
        for side, pair in zip(SIDES, ((p, q), (q, p)), strict=True):
            assert np.all(hockey_stick(*pair, cell**2) <= release.delta(EPSILONS, side) + 2e-6)

    def test_plain_joint_convexity_is_looser_and_its_weights_are_not_symmetric(self):
        noise, rate, epsilon = 1.0, 0.1, np.array([0.5, 1.0, 2.0])
        (release,) = FixedSizeGaussian(noise, rate, 1).releases(Adjacency.ZERO_OUT)
        inner = np.log1p(np.expm1(epsilon) / rate)
        beta = np.exp(epsilon - inner)
        near, far = (GaussianCurve(shift / noise).delta(inner) for shift in (1.0, 2.0))
        got = release.delta(epsilon, "with")
        assert np.all(got <= rate * ((1 - beta) * far + beta * near))
        assert np.all(got > rate * ((1 - beta) * near + beta * far))  # the weights swapped: not a bound

    @pytest.mark.parametrize("noise,rate", [(1.0, 0.1), (0.3, 0.001), (3.0, 0.7)])
    def test_decoys_against_integration_at_all_losses(self, noise, rate):
        release = DecoyRelease(noise_multiplier=noise, sampling_rate=rate)
        p, q = one_step(noise, rate, 2.0, 1.0, 0.0)
        for side, pair in zip(SIDES, ((p, q), (q, p)), strict=True):
            assert release.delta(EPSILONS, side) == pytest.approx(hockey_stick(*pair, CELL), abs=5e-9)
            with np.errstate(divide="ignore", invalid="ignore"):
                losses = np.log(pair[0] / pair[1])
            for loss in EPSILONS:
                first, second = release.tails(np.array([loss]), side)
                assert first[0] == pytest.approx(pair[0][losses > loss].sum() * CELL, abs=1e-3)
                assert second[0] == pytest.approx(pair[1][losses > loss].sum() * CELL, abs=1e-3)

    @pytest.mark.parametrize("noise,rate", [(0.03, 0.2), (0.1, 1e-6), (1.0, 0.5)])
    @pytest.mark.parametrize("x", [1.6, 1.9, 2.3])
    def test_decoys_far_out_against_mpmath(self, noise, rate, x):
        with mpmath.workdps(50):
            s, q, at = mpmath.mpf(noise), mpmath.mpf(rate), mpmath.mpf(x)
            p_density, q_density = (q * mpmath.npdf(at, mean, s) + (1 - q) * mpmath.npdf(at, 0, s) for mean in (2, 1))
            loss = float(mpmath.log(p_density / q_density))
            p_above, q_above = (q * mpmath.ncdf((mean - at) / s) + (1 - q) * mpmath.ncdf(-at / s) for mean in (2, 1))
            scaled = mpmath.exp(loss) * q_above
        got = DecoyRelease(noise_multiplier=noise, sampling_rate=rate).scaled_tails(np.array([loss]), "with")
        assert got[0][0] == pytest.approx(float(p_above), rel=1e-9)
        assert got[1][0] == pytest.approx(float(scaled), rel=1e-9)

    @pytest.mark.parametrize("relation", RELATIONS)
    @pytest.mark.parametrize("noise,rate", [(0.05, 1e-6), (1.0, 0.2), (100.0, 0.99)])
    def test_profiles_are_convex_and_between_their_limits(self, noise, rate, relation):
        (release,) = FixedSizeGaussian(noise, rate, 1).releases(relation)
        for side in SIDES:
            growth = np.concatenate([np.linspace(0.01, 1, 400), np.geomspace(1, 1e4, 400)[1:]])
            delta = release.delta(np.log(growth), side)
            assert np.all(delta >= np.maximum(1 - growth, 0) - 1e-12) and np.all(delta <= 1)
            slopes = np.diff(delta) / np.diff(growth)
            assert np.all(np.diff(slopes) >= -1e-9)
            low, high = release.span(side, -30.0)
            above, _ = release.tails(np.array([low, high]), side)
            assert above[0] >= 1 - 1e-12 and above[1] <= math.exp(-30) * (1 + 1e-9)

    @pytest.mark.parametrize("noise,rate,steps", [(1.0, 0.01, 300), (2.0, 0.1, 50)])
    @pytest.mark.parametrize("relation", RELATIONS)
    def test_the_bracket_is_a_bracket_and_narrow(self, noise, rate, steps, relation):
        mechanism = FixedSizeGaussian(noise, rate, steps)
        upper = composed_epsilon(mechanism.releases(relation), True, 1e-3)
        lower = composed_epsilon(mechanism.releases_below(relation), False, 1e-4)
        assert lower < upper < 1.2 * lower

    def test_a_whole_batch_is_the_exact_gaussian(self):
        for relation, mu in ((Adjacency.REPLACE_ONE, 2 * math.sqrt(5) / 3), (Adjacency.ZERO_OUT, math.sqrt(5) / 3)):
            claim = Claim.dp_sgd(noise_multiplier=3, sampling_rate=1, steps=5, sampler="fixed-size", adjacency=relation)
            assert isinstance(claim.curve, GaussianCurve)
            assert claim.epsilon(DELTA) == pytest.approx(float(GaussianCurve(mu).epsilon(np.array(DELTA))))
            lower, upper = claim.bracket(DELTA)
            assert lower == pytest.approx(upper) and lower <= upper

    def test_a_rate_of_nearly_1_is_nearly_the_gaussian(self):
        for relation, noise in ((Adjacency.REPLACE_ONE, 0.5), (Adjacency.ZERO_OUT, 1.0)):
            (release,) = FixedSizeGaussian(1.0, 1 - 1e-9, 1).releases(relation)
            exact = GaussianRelease(noise_multiplier=noise)
            for side in SIDES:
                assert release.delta(EPSILONS, side) == pytest.approx(exact.delta(EPSILONS, side), abs=1e-7)

    def test_poisson_charges_a_tenth_of_what_fixed_sizes_spend(self):
        # Lebeda et al. 2024: ε ≈ 1 with Poisson batches is more than 10 without replacement.
        noise, rate, steps = 0.8, 0.001, 10_000
        charged = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps).epsilon(DELTA)
        spent = composed_epsilon(
            FixedSizeGaussian(noise, rate, steps).releases_below(Adjacency.REPLACE_ONE), False, 1e-4
        )
        assert charged == pytest.approx(0.783, abs=5e-3)
        assert spent > 10


class TestWorstOfTwo:
    def test_sides_are_each_other_reversed(self):
        pair = SampledGaussianRelease(noise_multiplier=1.3, sampling_rate=0.2)
        decoy = DecoyRelease(noise_multiplier=1.3, sampling_rate=0.2)
        release = WorstOfTwo(onward=decoy, backward=pair)
        # H_α(P ‖ Q) = 1 − α + α H_{1/α}(Q ‖ P)
        growth = np.exp(EPSILONS)
        mirrored = 1 - growth + growth * release.delta(-EPSILONS, "without")
        assert release.delta(EPSILONS, "with") == pytest.approx(mirrored, abs=1e-12)

    def test_of_one_pair_and_its_reverse_is_the_pair(self):
        # The Gaussian pair is symmetric, so taking it for both leaves it as it is.
        exact = GaussianRelease(noise_multiplier=0.9)
        release = WorstOfTwo(onward=exact, backward=exact)
        for side in SIDES:
            assert release.delta(EPSILONS, side) == pytest.approx(exact.delta(EPSILONS, side), abs=1e-14)
            for view in ("tails", "scaled_tails"):
                got, want = (np.array(getattr(one, view)(EPSILONS, side)) for one in (release, exact))
                assert got == pytest.approx(want, abs=1e-14)


class TestBallsAndBins:
    @pytest.mark.parametrize("noise", [0.4, 0.7, 2.0])
    def test_two_bins_against_integration_in_two_dimensions(self, noise):
        line, cell = np.linspace(-8 * noise, 1 + 8 * noise, 2501, retstep=True)
        at_0, at_1 = norm.pdf(line, 0, noise), norm.pdf(line, 1, noise)
        without = np.outer(at_0, at_0)
        with_it = (np.outer(at_1, at_0) + np.outer(at_0, at_1)) / 2
        upper, lower = (one_epoch(BallsAndBinsGaussian, noise, 2, below) for below in (False, True))
        for side, pair in zip(SIDES, ((with_it, without), (without, with_it)), strict=True):
            want = hockey_stick(*pair, cell**2)
            assert np.all(upper.delta(EPSILONS, side) >= want - 1e-9)
            assert np.all(lower.delta(EPSILONS, side) <= want + 1e-9)
            assert upper.delta(EPSILONS, side) == pytest.approx(want, rel=4e-3, abs=1e-9)
            assert lower.delta(EPSILONS, side) == pytest.approx(want, rel=4e-3, abs=1e-9)

    def test_sums_have_the_moments_of_independent_terms(self):
        noise, terms = 0.9, 37
        values, mass, lost = spread_sum(noise, terms)
        variance = terms * math.expm1(noise**-2)
        assert mass.sum() == pytest.approx(1, abs=1e-11)
        assert (mass * values).sum() + terms * lost == pytest.approx(terms, rel=1e-11)
        spread = (mass * (values - terms) ** 2).sum()
        assert variance < spread < 1.01 * variance
        binned = binned_sum(noise, terms, 1.0, (1.0,))
        assert binned.sum(axis=1) == pytest.approx(1, abs=1e-11)
        # E ratio² under the world without: 1 + variance of the mean, a little less in bins.
        assert 0.98 * variance / terms**2 < (binned[1] ** 2 / binned[0]).sum() - 1 < variance / terms**2

    @pytest.mark.parametrize("noise,bins", [(0.3, 100), (0.6, 1000), (1.0, 10), (2.0, 100), (5.0, 7)])
    def test_both_sides_of_the_number_are_close(self, noise, bins):
        upper, lower = (one_epoch_epsilon(one_epoch(BallsAndBinsGaussian, noise, bins, b)) for b in (False, True))
        assert lower < upper < lower + 0.002 * lower + 2e-4

    @pytest.mark.parametrize("noise,bins", [(0.5, 200), (1.0, 30)])
    def test_a_finer_grid_moves_it_by_a_fraction_of_a_percent_and_inwards(self, noise, bins):
        def deltas(points: int) -> tuple[np.ndarray, np.ndarray]:
            epsilon = np.array([0.1, 0.5, 1.0])[:, None]
            values, mass, lost = spread_sum(noise, bins, points)
            binned = binned_sum(noise, bins, 1.0, (1.0,), points)
            above = np.maximum(mass * (values / bins - np.exp(epsilon)), 0).sum(axis=1) + lost
            return above, np.maximum(binned[1] - np.exp(epsilon) * binned[0], 0).sum(axis=1)

        (coarse_up, coarse_down), (fine_up, fine_down) = deltas(600), deltas(1500)
        assert np.all(coarse_down < fine_down) and np.all(fine_down < fine_up) and np.all(fine_up < coarse_up)
        assert fine_up == pytest.approx(fine_down, rel=2e-2)

    @pytest.mark.statistical
    @pytest.mark.parametrize("noise,bins", [(0.4, 100), (0.6, 20), (1.0, 50)])
    def test_against_simulation(self, noise, bins):
        # 2 sides × 3 ε × 3 settings, each off by 4.5 standard errors with probability 7e-6: false alarm 1e-4 in all.
        # 200,000 draws see a factor of 1.1 in every δ above 1e-3, which are all that are looked at.
        generator = np.random.default_rng(20240712)
        epsilons, draws = np.array([0.2, 0.6, 1.2]), 200_000
        upper, lower = (one_epoch(BallsAndBinsGaussian, noise, bins, below) for below in (False, True))
        x = generator.normal(0, noise, (draws, bins)).astype(np.float32)

        def losses() -> np.ndarray:
            return np.log(np.exp((x - np.float32(0.5)) / np.float32(noise**2)).mean(axis=1, dtype=float))

        without = -losses()
        x[:, 0] += 1
        looked = 0
        for side, loss in (("with", losses()), ("without", without)):
            shares = -np.expm1(np.minimum(epsilons[:, None] - loss, 0.0))
            mean, error = shares.mean(axis=1), shares.std(axis=1) / math.sqrt(draws)
            seen = mean > 1e-3
            looked += seen.sum()
            assert np.all((mean - 4.5 * error)[seen] <= upper.delta(epsilons, side)[seen])
            assert np.all((mean + 4.5 * error)[seen] >= lower.delta(epsilons, side)[seen])
        assert looked >= 1

    @pytest.mark.parametrize("noise,bins", [(0.4, 1000), (0.6, 1000), (1.0, 100)])
    def test_between_its_largest_term_and_a_known_order(self, noise, bins):
        # Chua et al. 2024b: the event that the largest coordinate exceeds C, means 1 and 0.
        epsilon, cut = np.array([0.1, 1.0, 3.0]), np.linspace(0, 8, 4001)
        mass = [-np.expm1(log_ndtr((cut - a) / noise) + (bins - 1) * log_ndtr(cut / noise)) for a in (1.0, 0.0)]
        event = (mass[0] - np.exp(epsilon)[:, None] * mass[1]).max(axis=1)
        above, below = (one_epoch(BallsAndBinsGaussian, noise, bins, b) for b in (False, True))
        known = GaussianRelease(noise_multiplier=noise).delta(epsilon, "with")
        assert np.all(event <= below.delta(epsilon, "with") * (1 + 1e-2))
        assert np.all(above.delta(epsilon, "with") < known)

    def test_one_bin_is_the_exact_gaussian(self):
        claim = Claim.dp_sgd(noise_multiplier=2, sampling_rate=1, steps=4, sampler="balls-and-bins")
        assert claim.epsilon(DELTA) == Claim.gaussian(noise_multiplier=1).epsilon(DELTA)

    def test_a_part_of_an_epoch_mixes_in_the_rest(self):
        # 3 of 10 bins seen: with chance 0.7 the record was in none of them.
        mechanism = BallsAndBinsGaussian(0.8, 0.1, 3)
        (part,) = mechanism.releases(Adjacency.ZERO_OUT)
        assert isinstance(part, BinsRelease) and (part.seen, part.share, part.count) == (3, 0.3, 1)
        whole = one_epoch(BallsAndBinsGaussian, 0.8, 3, below=False)
        epsilon = np.array([0.05, 0.3, 0.6])
        # H of the mixture with the common part, by advanced joint convexity exact here.
        inner = np.log1p(np.expm1(epsilon) / 0.3)
        assert part.delta(epsilon, "with") == pytest.approx(0.3 * whole.delta(inner, "with"), rel=1e-9)
        assert one_epoch_epsilon(part) < one_epoch_epsilon(one_epoch(BallsAndBinsGaussian, 0.8, 10, below=False))

    @pytest.mark.parametrize("noise", [0.01, 0.03, 0.05, 0.1, 30.0, 1000.0])
    @pytest.mark.parametrize("bins", [2, 100])
    def test_extreme_noise_gives_a_bracket(self, noise, bins):
        upper, lower = (one_epoch(BallsAndBinsGaussian, noise, bins, below) for below in (False, True))
        epsilon = np.array([1e-4, 1e-2, 1.0, 100.0, 300.0, 600.0])
        for side in SIDES:
            above, below = upper.delta(epsilon, side), lower.delta(epsilon, side)
            assert np.all(below <= above + 1e-13)
            assert np.all(above <= GaussianRelease(noise_multiplier=noise).delta(epsilon, side) * 1.01 + 1e-13)
        if 0.04 <= noise <= 1:
            ends = [one_epoch_epsilon(release) for release in (lower, upper)]
            assert ends[0] < ends[1] < 1.003 * ends[0]


class TestShuffled:
    # Table of Chua et al. 2024's bound at δ = 1e-5, one epoch: (noise, batches, Poisson, at least).
    TABLE = (
        (0.4, 100, 12.2, 13.2),
        (0.4, 10_000, 4.09, 13.2),
        (0.5, 1000, 3.24, 10.0),
        (0.6, 100, 3.82, 8.00),
        (0.6, 1000, 1.43, 7.99),
        (0.8, 100, 1.51, 5.62),
        (0.8, 1000, 0.31, 5.24),
        (1.0, 100, 0.72, 4.06),
        (1.0, 1000, 0.16, 2.88),
        (1.0, 10_000, 0.09, 1.13),
    )

    @pytest.mark.parametrize("noise,batches,poisson,least", TABLE)
    def test_known_values_from_below(self, noise, batches, poisson, least):
        got = one_epoch_epsilon(one_epoch(ShuffledGaussian, noise, batches, below=True))
        assert least - 0.006 <= got <= float(GaussianCurve(1 / noise).epsilon(np.array(DELTA)))
        assert got == pytest.approx(least, rel=0.02)
        assert got > poisson  # what charging it as Poisson would have claimed

    def test_published_deltas(self):
        # σ = 0.4, 10,000 steps, ε = 4.
        lower = one_epoch(ShuffledGaussian, 0.4, 10_000, below=True)
        upper = GaussianRelease(noise_multiplier=0.4)
        assert lower.delta(np.array([4.0]), "with")[0] == pytest.approx(0.22605, abs=2e-5)
        assert upper.delta(np.array([4.0]), "with")[0] == pytest.approx(0.24382, abs=5e-6)

    @pytest.mark.parametrize("noise,batches", [(0.6, 1000), (1.0, 100), (3.0, 10), (3.0, 100)])
    @pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
    def test_at_least_the_published_event(self, noise, batches, delta):
        # The largest coordinate exceeds C: Chua et al. 2024.
        cut = np.linspace(-5 * noise, 5 + 7 * noise, 40_001)
        mass = [-np.expm1(log_ndtr((cut - a) / noise) + (batches - 1) * log_ndtr(cut / noise)) for a in (2.0, 1.0)]
        event = brentq(lambda e: (mass[0] - math.exp(e) * mass[1]).max() - delta, 0.0, 30.0)
        got = one_epoch_epsilon(one_epoch(ShuffledGaussian, noise, batches, below=True), delta)
        assert got >= event * (1 - 3e-3)

    def test_two_batches_are_below_what_their_output_tells(self):
        # All that two batches tell, by integration in two dimensions: the binned sum is a function of it.
        noise = 0.7
        line, cell = np.linspace(-6, 8.5, 2501, retstep=True)
        at = {mean: norm.pdf(line, mean, noise) for mean in (0, 1, 2)}
        with_it, without = ((np.outer(at[m], at[0]) + np.outer(at[0], at[m])) / 2 for m in (2, 1))
        lower = one_epoch(ShuffledGaussian, noise, 2, below=True)
        for side, pair in zip(SIDES, ((with_it, without), (without, with_it)), strict=True):
            want, got = hockey_stick(*pair, cell**2), lower.delta(EPSILONS, side)
            assert np.all(got <= want + 1e-8)
            assert got == pytest.approx(want, rel=0.2, abs=1e-5)

    @pytest.mark.statistical
    def test_against_simulation(self):
        # 12 comparisons, each off by 4.5 standard errors with probability 7e-6: false alarm 8e-5 in all. 100,000 draws
        # see a tenth of each of these δ.
        noise, batches, draws = 0.8, 40, 100_000
        generator = np.random.default_rng(7)
        lower = one_epoch(ShuffledGaussian, noise, batches, below=True)
        x = generator.normal(0, noise, (draws, batches))
        outputs = []
        for shift in (2.0, 1.0):
            y = x.copy()
            y[:, 0] += shift
            outputs.append(np.exp(2 * y / noise**2).sum(axis=1))
        # The best threshold on the same sum, from above: no event of it may beat the release's δ by much, nor may the
        # release beat the best by much (its ratio is monotone in the sum but for the far low end).
        cuts = np.quantile(np.concatenate(outputs), np.linspace(0.01, 0.995, 300))
        masses = [(values[:, None] > cuts).mean(axis=0) for values in outputs]
        for epsilon in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
            gains = masses[0] - math.exp(epsilon) * masses[1]
            error = 4.5 * np.sqrt((masses[0] + math.exp(2 * epsilon) * masses[1]) / draws)
            got = lower.delta(np.array([epsilon]), "with")[0]
            assert np.all(gains - error <= got)
            assert got <= (gains + error).max()

    def test_one_batch_is_exact(self):
        claim = Claim.dp_sgd(noise_multiplier=2, sampling_rate=1, steps=4, sampler="shuffled")
        lower, upper = claim.bracket(DELTA)
        assert upper == Claim.gaussian(noise_multiplier=1).epsilon(DELTA)
        assert lower == pytest.approx(upper)

    def test_from_above_every_epoch_begun_counts(self):
        for steps, epochs in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
            (release,) = ShuffledGaussian(1.5, 0.25, steps).releases(Adjacency.ZERO_OUT)
            assert release == GaussianRelease(noise_multiplier=1.5, count=epochs)


class TestOrderings:
    @pytest.mark.parametrize("sampler", [ShuffledGaussian, BallsAndBinsGaussian])
    @pytest.mark.parametrize("noise,batches,epochs", [(0.8, 20, 3), (2.0, 10, 10), (1.0, 5, 2)])
    def test_lower_upper_and_a_known_order(self, sampler, noise, batches, epochs):
        mechanism = sampler(noise, 1 / batches, batches * epochs)
        upper = composed_epsilon(mechanism.releases(Adjacency.ZERO_OUT), True, 1e-3)
        lower = composed_epsilon(mechanism.releases_below(Adjacency.ZERO_OUT), False, 1e-4)
        known = float(GaussianCurve(math.sqrt(epochs) / noise).epsilon(np.array(DELTA)))
        assert lower < upper <= known * (1 + 1e-3)
        if sampler is BallsAndBinsGaussian:
            assert upper < 1.01 * lower
        else:
            balls = BallsAndBinsGaussian(noise, 1 / batches, batches * epochs)
            assert lower > composed_epsilon(balls.releases(Adjacency.ZERO_OUT), True, 1e-3)

    @pytest.mark.parametrize("sampler", [ShuffledGaussian, BallsAndBinsGaussian, FixedSizeGaussian])
    @pytest.mark.parametrize("below", [False, True])
    def test_more_noise_is_less_and_more_steps_are_more(self, sampler, below):
        def epsilon(noise: float, steps: int) -> float:
            mechanism = sampler(noise, 0.1, steps)
            releases = (mechanism.releases_below if below else mechanism.releases)(Adjacency.ZERO_OUT)
            return composed_epsilon(releases, not below, 1e-3 if not below else 2e-4)

        by_noise = [epsilon(noise, 20) for noise in (0.7, 1.0, 2.0, 6.0)]
        by_steps = [epsilon(1.5, steps) for steps in (3, 7, 10, 14, 20, 40)]
        assert by_noise == sorted(by_noise, reverse=True) and len(set(by_noise)) == 4
        if sampler is ShuffledGaussian and not below:  # whole epochs: 1, 1, 1, 2, 2, 4
            assert by_steps == sorted(by_steps)
        else:
            assert all(a < b for a, b in itertools.pairwise(by_steps))

    @pytest.mark.parametrize("release", [
        one_epoch(BallsAndBinsGaussian, 0.7, 10, below=False),
        one_epoch(BallsAndBinsGaussian, 0.7, 10, below=True),
        one_epoch(ShuffledGaussian, 0.7, 10, below=True),
        BinsRelease(noise_multiplier=0.5, seen=3, share=0.3),
    ])  # fmt: skip
    def test_tables_are_the_pair(self, release: DiscreteRelease):
        p, q, lost = release.pair()
        assert p.sum() + lost == pytest.approx(1, abs=1e-10) and q.sum() == pytest.approx(1, abs=1e-10)
        for side, (first, second, infinite) in zip(SIDES, ((p, q, lost), (q, p, 0.0)), strict=True):
            want = [np.maximum(first - math.exp(e) * second, 0).sum() + infinite for e in EPSILONS]
            assert release.delta(EPSILONS, side) == pytest.approx(want, abs=1e-12)
            low, high = release.span(side, -30.0)
            above, _ = release.tails(np.array([np.nextafter(low, -np.inf), high]), side)
            assert above[0] >= 1 - 1e-10 and above[1] <= math.exp(-30) * 1.001 and low < high


class TestClaims:
    SETTINGS = {"noise_multiplier": 1.1, "sampling_rate": 256 / 60_000, "steps": 14_063}  # noqa: RUF012

    def test_every_sampler_has_a_mechanism(self):
        assert set(claims.SAMPLERS) == {"poisson", "full-batch", "fixed-size", *BY_EPOCH}

    @pytest.mark.parametrize(
        "sampler,adjacency",
        [("poisson", "zero-out"), ("fixed-size", "replace-one"), ("fixed-size", "zero-out"), ("shuffled", "zero-out")],
    )
    def test_documents_are_read_back(self, sampler, adjacency):
        claim = Claim.dp_sgd(**self.SETTINGS, sampler=sampler, adjacency=adjacency)
        assert Claim.of(claim.document()) == claim
        assert claim.settings == self.SETTINGS | {"sampler": sampler}
        assert Claim.dp_sgd(**claim.settings, adjacency=claim.adjacency) == claim

    def test_balls_and_bins_are_read_back(self):
        claim = Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=0.00427, steps=100, sampler="balls-and-bins")
        assert Claim.of(claim.document()) == claim

    @pytest.mark.parametrize(
        "sampler,own", [("poisson", "add-remove"), ("fixed-size", "replace-one"), *((s, "zero-out") for s in BY_EPOCH)]
    )
    def test_samplers_have_relations_of_their_own(self, sampler, own):
        settings = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "sampler": sampler}
        claim = Claim.dp_sgd(**settings)
        assert claim.adjacency == own
        for relation in Adjacency:
            allowed = claim.mechanism.relations
            if relation in allowed:
                assert Claim.dp_sgd(**settings, adjacency=relation).adjacency == relation
                assert claim.under(relation) is not None
            else:
                with pytest.raises(
                    InputError, match=f"adjacency must be one of {', '.join(allowed)}.*got '{relation}'"
                ):
                    Claim.dp_sgd(**settings, adjacency=relation)
                assert claim.under(relation) is None

    def test_words_say_how_many_batches_and_epochs(self):
        claim = Claim.dp_sgd(**self.SETTINGS, sampler="shuffled")
        assert claim.mechanism.words() == (
            "DP-SGD, shuffled batches, noise multiplier 1.1, sampling rate 0.00426667, 14,063 steps, "
            "235 batches an epoch, 60 epochs, the last incomplete"
        )
        whole = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.1, steps=10, sampler="balls-and-bins")
        assert whole.mechanism.words().endswith("10 steps, 10 batches an epoch, 1 epoch")

    @pytest.mark.parametrize("rate,bins", [(0.3, 3), (0.01005, 100), (0.7, 1), (0.9985, 1)])
    def test_bins_must_be_whole(self, rate, bins):
        with pytest.raises(InputError, match=f"sampling_rate must be 1 over a whole number.*for {bins} bin"):
            Claim.dp_sgd(noise_multiplier=1, sampling_rate=rate, steps=10, sampler="balls-and-bins")

    @pytest.mark.parametrize("rate,bins", [(0.00427, 234), (1 / 3, 3), (0.9995, 1), (1e-6, 1_000_000)])
    def test_bins_may_be_rounded(self, rate, bins):
        assert BallsAndBinsGaussian(1.0, rate, 10).batches == bins

    @pytest.mark.parametrize("sampler", ["fixed-size", *BY_EPOCH])
    def test_noise_is_scaled(self, sampler):
        claim = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.1, steps=10, sampler=sampler)
        assert claim.with_noise_scaled(3.0) == Claim.dp_sgd(
            noise_multiplier=3, sampling_rate=0.1, steps=10, sampler=sampler
        )

    def test_a_broken_off_epoch_is_not_taken_up(self):
        whole = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.1, steps=20, sampler="shuffled")
        assert whole.repeat(3).settings["steps"] == 60
        part = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.1, steps=15, sampler="shuffled")
        assert part.repeat(2).kind == "composed"
        assert part.repeat(1) == part
        # Two runs of two epochs begun each, not three epochs.
        assert part.repeat(2).epsilon(DELTA) == pytest.approx(Claim.gaussian(noise_multiplier=0.5).epsilon(DELTA))
        fixed = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.1, steps=15, sampler="fixed-size")
        assert fixed.repeat(2).settings["steps"] == 30


class TestAccounted:
    """Through :class:`Claim`, by the package's own accountant."""

    SETTINGS = (
        ("fixed-size", "zero-out", 1.0, 0.01, 300),
        ("fixed-size", "replace-one", 2.0, 0.1, 50),
        ("shuffled", "zero-out", 1.0, 0.05, 50),
        ("balls-and-bins", "zero-out", 1.0, 0.05, 50),
        ("balls-and-bins", "zero-out", 0.7, 0.01, 100),
    )

    @pytest.mark.parametrize("sampler,adjacency,noise,rate,steps", SETTINGS)
    def test_brackets_agree_with_dp_accounting(self, sampler, adjacency, noise, rate, steps):
        claim = Claim.dp_sgd(
            noise_multiplier=noise, sampling_rate=rate, steps=steps, sampler=sampler, adjacency=adjacency
        )
        lower, upper = claim.bracket(DELTA)
        assert lower <= upper
        assert upper == pytest.approx(composed_epsilon(claim.mechanism.releases(claim.adjacency), True, 2e-4), rel=5e-3)
        assert lower == pytest.approx(
            composed_epsilon(claim.mechanism.releases_below(claim.adjacency), False, 2e-5), rel=1e-2
        )
        assert claim.delta(upper) == pytest.approx(DELTA, rel=1e-6)
        assert claim.epsilon(DELTA) == upper and claim.epsilon_from_below(DELTA) == lower

    def test_charging_a_shuffled_run_as_poisson_is_a_mistake(self):
        settings = {"noise_multiplier": 0.6, "sampling_rate": 0.001, "steps": 1000}
        charged = Claim.dp_sgd(**settings, adjacency="zero-out").epsilon(DELTA)
        lower, upper = Claim.dp_sgd(**settings, sampler="shuffled").bracket(DELTA)
        assert charged == pytest.approx(1.43, abs=6e-3)
        assert 7.98 < lower < upper < 8.01

    def test_exact_claims_have_brackets_too(self):
        for claim in (Claim.gaussian(noise_multiplier=2), Claim.pair(epsilon=1, delta=1e-6)):
            lower, upper = claim.bracket(DELTA)
            assert lower == pytest.approx(upper) and lower <= upper
        lower, upper = Claim.dp_sgd(noise_multiplier=1, sampling_rate=0.05, steps=50).bracket(DELTA)
        assert 0.98 * upper < lower <= upper


def test_the_page_has_the_numbers():
    """The table of docs/samplers.md, row by row, to its last digit or 1 %."""
    rows = re.findall(r"^\| ([a-z-]+) \| ([a-z-]+) \|((?: [0-9.]+ \|){4})$", PAGE.read_text(encoding="utf-8"), re.M)
    assert [row[0] for row in rows] == ["poisson", "balls-and-bins", "fixed-size", "fixed-size", "shuffled"]
    for sampler, adjacency, numbers in rows:
        got = [
            epsilon
            for noise, batches, steps in ((0.6, 1000, 1000), (1.1, 234, 14_040))
            for epsilon in Claim.dp_sgd(
                noise_multiplier=noise, sampling_rate=1 / batches, steps=steps, sampler=sampler, adjacency=adjacency
            ).bracket(DELTA)
        ]
        assert got == pytest.approx([float(n) for n in re.findall(r"[0-9.]+", numbers)], rel=1e-2)
