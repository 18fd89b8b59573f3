"""Order statistics: published vectors, the closed form for all guesses, quadrature against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, binom, norm

from dpaudit import Claim, Design, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, LaplaceCurve
from dpaudit.bounds import ranks
from dpaudit.bounds.families import GaussianFamily, LaplaceFamily
from dpaudit.errors import DesignError, InputError

DELTA, SIGNIFICANCE = 1e-5, 0.05
pytestmark = pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")


@pytest.mark.parametrize(
    "coins,guesses,errors,epsilon",
    [
        (1000, 100, 26, 1.1926),
        (1000, 1000, 401, 1.4140),
        (10_000, 1000, 259, 1.7437),
        (100_000, 10_000, 2585, 1.9166),
        (1000, 100, 10, 3.1645),
        (1000, 250, 36, 3.6327),
        (10_000, 2500, 364, 4.1371),
        (100_000, 25_000, 3641, 4.3013),
        (1000, 100, 1, 5.9018),
        (1000, 250, 4, 7.9541),
        (10_000, 1000, 5, 8.7173),
        (100_000, 10_000, 51, 9.5899),
    ],
)
def test_vectors_of_the_paper_s_code(coins, guesses, errors, epsilon):
    mu = ranks.parameter_lower(GaussianFamily(), coins, guesses, guesses - errors, SIGNIFICANCE)
    assert GaussianFamily().epsilon(mu, DELTA) == pytest.approx(epsilon, abs=1.1e-4)


@pytest.mark.parametrize("coins,errors", [(50, 3), (1000, 0), (1000, 401), (100_000, 31_000)])
def test_all_coins_guessed_has_a_closed_form(coins, errors):
    mu = ranks.parameter_lower(GaussianFamily(), coins, coins, coins - errors, SIGNIFICANCE)
    limit = beta.ppf(1 - SIGNIFICANCE, errors + 1, coins - errors)
    assert mu == pytest.approx(-2 * norm.ppf(limit), rel=1e-6)
    assert mu <= -2 * norm.ppf(limit)


@pytest.mark.parametrize("coins,guesses,errors", [(30, 10, 2), (1000, 100, 10), (1000, 999, 300), (10_000, 50, 0)])
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_the_quadrature_is_that_of_scipy(coins, guesses, errors, mu):
    curve, law = GaussianCurve(mu), beta(coins - guesses, guesses + 1)

    def integrand(w: float) -> float:
        rate = float(ranks.error_rates(curve, np.array([1 - w]))[0])
        return binom.cdf(errors, guesses, rate) * law.pdf(w)

    low, high = law.ppf(1e-13), law.ppf(1 - 1e-13)
    expected = quad(integrand, low, high, epsabs=1e-13, epsrel=1e-10, limit=400)[0]
    assert float(ranks.p_value(curve, coins, guesses, guesses - errors)) == pytest.approx(expected, rel=1e-7, abs=1e-11)


def test_error_rates_of_a_gaussian():
    # Guess those beyond ±t of the middle: wrong with Φ(−μ/2 − t), right with Φ(μ/2 − t).
    mu, t = 1.3, np.array([0.0, 0.4, 2.0])
    right, wrong = norm.cdf(mu / 2 - t), norm.cdf(-mu / 2 - t)
    assert ranks.error_rates(GaussianCurve(mu), right + wrong) == pytest.approx(wrong / (right + wrong), rel=1e-9)


# --- against simulation ----------------------------------------------------------------------------------------------

STEPS = {"noise_multiplier": 0.8, "sampling_rate": 0.3, "steps": 4}
DP_SGD = Claim.dp_sgd(**STEPS)


def gaussian(rng, member):
    return member - 0.5 + rng.normal(size=member.shape)


def laplace(rng, member):
    noisy = member + rng.laplace(size=member.shape)
    # The loss is constant beyond 0 and 1: ties are broken by a coin of their own.
    return np.abs(noisy) - np.abs(noisy - 1) + 1e-9 * rng.normal(size=member.shape)


def dp_sgd(rng, member):
    noise, rate, steps = STEPS.values()
    sampled = rng.random((steps, *member.shape)) < rate
    seen = member * sampled + noise * rng.normal(size=sampled.shape)
    return np.log1p(rate * np.expm1((2 * seen - 1) / (2 * noise**2))).sum(axis=0)


@pytest.mark.statistical
@pytest.mark.parametrize("guesses", [8, 20, 40])
@pytest.mark.parametrize(
    "score,curve",
    [(gaussian, GaussianCurve(1.0)), (laplace, LaplaceCurve(1.0)), (dp_sgd, DP_SGD.curve)],
    ids=["gaussian", "laplace", "dp-sgd"],
)
def test_p_values_are_the_law_of_an_optimal_guesser(score, curve, guesses):
    """Errors among the surest of 40 coins, 20,000 times; 4 standard errors, a false alarm in 2,000 such tests."""
    repetitions, coins = 20_000, 40
    rng = np.random.default_rng(guesses)
    member = rng.random((repetitions, coins)) < 0.5
    ratio = score(rng, member)
    surest = np.argsort(-np.abs(ratio), axis=1)[:, :guesses]
    wrong = np.take_along_axis((ratio > 0) != member, surest, axis=1).sum(axis=1)
    for errors in range(guesses // 2):
        share = np.mean(wrong <= errors)
        p = float(ranks.p_value(curve, coins, guesses, guesses - errors))
        assert share == pytest.approx(p, abs=4 * np.sqrt(max(p * (1 - p), 1e-4) / repetitions))


@pytest.mark.statistical
def test_guessing_half_and_half_is_never_better():
    repetitions, coins, guesses = 20_000, 40, 10
    rng = np.random.default_rng(1)
    member = rng.random((repetitions, coins)) < 0.5
    order = np.argsort(dp_sgd(rng, member), axis=1)
    low, high = (np.take_along_axis(member, at, axis=1) for at in (order[:, :5], order[:, -5:]))
    wrong = low.sum(axis=1) + (~high).sum(axis=1)
    for errors in range(guesses // 2):
        p = float(ranks.p_value(DP_SGD.curve, coins, guesses, guesses - errors))
        assert np.mean(wrong <= errors) <= p + 4 * np.sqrt(max(p, 1e-4) / repetitions)


def test_the_pair_itself_is_harder_to_guess_than_its_symmetric_curve():
    curve, share = DP_SGD.curve, np.array([0.01, 0.1, 0.5, 1.0])
    guessed, wrong = curve.surest
    assert guessed[0] == wrong[0] == 0 and guessed[-1] == pytest.approx(1)
    assert np.all(np.diff(guessed) >= 0) and np.all(np.diff(wrong) >= 0)
    both = [float(a) for a in ranks.error_rates(curve, share)]
    assert both == sorted(both)
    alone = np.array(
        [float(np.interp(s, curve.fnr(x := np.linspace(0, 1, 100_001)) * -1 + 1 + x, x) / s) for s in share]
    )
    assert np.all(ranks.error_rates(curve, share) >= alone - 1e-6)


# --- from observations -----------------------------------------------------------------------------------------------


def observed(mu: float, n: int, seed: int = 0) -> Observations:
    """The scores of the reference figures."""
    rng = np.random.default_rng(seed)
    out, inside = rng.normal(0, 1, n), rng.normal(mu, 1, n)
    return Observations(np.concatenate([inside, out]), np.repeat([True, False], n))


@pytest.mark.parametrize(
    "n,mu,at_middle,at_tenth",
    [
        (1000, 0.5, 1.799, 1.524),
        (1000, 1, 3.958, 3.600),
        (1000, 2, 9.099, 8.082),
        (1000, 3, 16.104, 8.082),
        (10_000, 0.5, 1.771, 1.847),
        (10_000, 1, 4.096, 4.109),
        (10_000, 2, 9.836, 9.739),
        (10_000, 3, 16.686, 12.108),
    ],
)
def test_reference_figures(n, mu, at_middle, at_tenth):
    obs = observed(mu, n)
    middle = bounds.order_statistics(obs, 2 * n, delta=DELTA, threshold=bounds.Fixed(mu / 2))
    tenth = bounds.order_statistics(obs, n // 5, delta=DELTA)
    assert middle.epsilon == pytest.approx(at_middle, abs=6e-4)
    assert tenth.epsilon == pytest.approx(at_tenth, abs=6e-4)
    assert not middle.any_mechanism and "independent given the coins" in middle.null
    assert "farthest from" in middle.threshold and "farthest" not in tenth.threshold


def test_scores_that_say_nothing_or_the_opposite_show_nothing():
    obs = observed(2.0, 1000)
    for member in (np.random.default_rng(1).random(2000) < 0.5, ~obs.member[0]):
        for options in ({}, {"family": LaplaceFamily()}, {"threshold": bounds.Fixed(1.0)}):
            bound = bounds.order_statistics(Observations(obs.scores, member), 200, delta=DELTA, **options)
            assert bound.epsilon == 0.0


def test_a_full_batch_claim_s_family_is_the_gaussian_one():
    obs = observed(1.0, 1000)
    free = bounds.order_statistics(obs, 200, delta=DELTA)
    own = bounds.order_statistics(obs, 200, delta=DELTA, claim=Claim.gaussian(noise_multiplier=3.0))
    assert own.epsilon == pytest.approx(free.epsilon, rel=5e-3)
    assert own.epsilon <= free.epsilon
    assert free.at_claim is None and 0 < own.at_claim < own.perfect


def test_on_the_threshold_and_tied_across_the_cut_abstain():
    scores = np.array([3.0, 2.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0])
    obs = Observations(scores, scores > 0)
    some = bounds.order_statistics(obs, 3, delta=DELTA, threshold=bounds.Fixed(0.0), significance=0.4)
    assert (some.counts["guesses"], some.counts["made"], some.counts["correct"]) == (3, 2, 2)
    every = bounds.order_statistics(obs, 8, delta=DELTA, threshold=bounds.Fixed(0.0), significance=0.4)
    assert (every.counts["guesses"], every.counts["made"]) == (8, 7)


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_row_order_never_matters(order):
    obs = observed(1.0, 200)
    rounded = np.round(obs.scores[0], 1)
    at = np.arange(400)[::-1] if order == "reversed" else np.random.default_rng(0).permutation(400)
    for options in ({}, {"threshold": bounds.Fixed(0.5)}):
        one = bounds.order_statistics(Observations(rounded, obs.member[0]), 80, delta=DELTA, **options)
        other = bounds.order_statistics(Observations(rounded[at], obs.member[0][at]), 80, delta=DELTA, **options)
        assert one == other


def test_designs_and_arguments_that_are_refused():
    obs = observed(1.0, 100)
    with pytest.raises(InputError, match="bare pair"):
        bounds.order_statistics(obs, 20, delta=DELTA, claim=Claim.pair(epsilon=1.0, delta=DELTA))
    with pytest.raises(InputError, match="threshold must be bounds"):
        bounds.order_statistics(obs, 20, delta=DELTA, threshold=bounds.Split())
    with pytest.raises(InputError, match="guesses"):
        bounds.order_statistics(obs, 201, delta=DELTA, threshold=bounds.Fixed(0.5))
    with pytest.raises(DesignError, match="worlds"):
        worlds = Observations.from_worlds(obs.scores[0, :100], obs.scores[0, 100:])
        bounds.order_statistics(worlds, 20, delta=DELTA)
    with pytest.raises(DesignError, match="cross"):
        cross = Observations(obs.scores, obs.member, design=Design(calibration="cross"))
        bounds.order_statistics(cross, 20, delta=DELTA)
