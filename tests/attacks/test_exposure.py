"""Exposure: ranks with ties, the fitted law against scipy's and mpmath's, and what is refused."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest
from scipy.stats import skewnorm

from dpaudit.attacks.exposure import (
    PoorFit,
    _log_cdf,
    exposure_extrapolated,
    exposure_interpolated,
    fit_exposure,
    log_perplexity,
)
from dpaudit.errors import InputError

REFERENCES = np.arange(1.0, 17.0)


def drawn(shape: float, count: int = 400, seed: int = 0):
    return skewnorm.rvs(shape, 30.0, 4.0, size=count, random_state=np.random.default_rng(seed))


# ---- interpolated ---------------------------------------------------------------------------------------------------


def test_ranks_of_a_ladder():
    found = exposure_interpolated([[0.0, 0.1], [20.0, 3.5]], REFERENCES)
    assert found == pytest.approx(np.array([[4.0, 4.0], [4 - np.log2(17), 2.0]]), rel=1e-12)


def test_of_those_that_tie_the_secret_comes_last():
    assert exposure_interpolated([3.0], [1.0, 3.0, 3.0, 4.0]).tolist() == [2 - np.log2(4)]
    assert exposure_interpolated([2.0], [2.0] * 8) == pytest.approx(3 - np.log2(9))


def test_a_secret_that_is_counted_has_the_definitions_exposure():
    """All 8 texts of a format: ranks 1 to 8 of 8."""
    perplexities = np.arange(8.0)
    for rank in range(8):
        others = np.delete(perplexities, rank)
        found = exposure_interpolated(perplexities[rank], others, count_secret=True)
        assert found == pytest.approx(3 - np.log2(rank + 1), abs=1e-12)


def test_any_increasing_function_says_the_same_and_no_order_matters():
    rng = np.random.default_rng(1)
    secrets, references = rng.normal(size=9).astype(np.float32), rng.normal(size=200).astype(np.float32)
    secrets.setflags(write=False)
    references.setflags(write=False)
    found = exposure_interpolated(secrets, references)
    assert found.dtype == np.float64
    assert exposure_interpolated(np.exp(secrets), np.exp(references[::-1])).tolist() == found.tolist()
    order = rng.permutation(9)
    assert exposure_interpolated(secrets[order], references).tolist() == found[order].tolist()


def test_secrets_like_the_references_have_an_exposure_of_about_one_and_a_half():
    """log2 of a uniform rank is on average log2 |R| − log2 e: exposure 1.44. 4,000 secrets: deviation 0.023."""
    rng = np.random.default_rng(2)
    found = exposure_interpolated(rng.normal(size=4000), rng.normal(size=50_000), count_secret=True)
    assert found.mean() == pytest.approx(1 / np.log(2), abs=0.12)


# ---- extrapolated ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [-50.0, -1.0, 0.0, 0.5, 5.0, 100.0])
def test_the_distribution_function_far_out(shape):
    mpmath.mp.dps = 40
    for z in (-30.0, -5.0, -1.0, -0.1, 0.0, 0.02, 0.5, 3.0):
        side = mpmath.npdf(shape * z) / mpmath.ncdf(shape * z)
        steep = max(float(shape * side - z), 1.0)
        places = [mpmath.mpf(z) - k / mpmath.mpf(steep) for k in (200, 100, 60, 40, 20, 10, 5, 2, 1, 0)]
        if steep <= 3:
            places = [-mpmath.inf, *(mpmath.mpf(q) / 8 for q in range(-40, int(8 * z)) if q < 8 * z), mpmath.mpf(z)]
        exact = mpmath.log(mpmath.quad(lambda t: 2 * mpmath.npdf(t) * mpmath.ncdf(shape * t), places))
        assert _log_cdf(np.array([z]), shape)[0] == pytest.approx(float(exact), rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("shape", [-3.0, 0.0, 2.0, 8.0])
def test_the_fit_is_the_likeliest(shape):
    references = drawn(shape, 1000)
    fit, peer = fit_exposure(references), skewnorm.fit(references)
    likelihood = skewnorm.logpdf(references, fit.shape, fit.location, fit.scale).sum()
    assert likelihood >= skewnorm.logpdf(references, *peer).sum() - 1e-3
    secrets = np.quantile(references, [0.01, 0.3, 0.8])
    assert fit.exposure(secrets) == pytest.approx(-np.log2(skewnorm.cdf(secrets, *peer)), abs=2e-3)


def test_the_fits_distance_is_that_of_kolmogorov():
    references = drawn(2.0, 300)
    fit = fit_exposure(references)
    level = skewnorm.cdf(np.sort(references), fit.shape, fit.location, fit.scale)
    steps = np.arange(301) / 300
    assert fit.distance == pytest.approx(max((steps[1:] - level).max(), (level - steps[:-1]).max()), abs=1e-9)
    assert not fit.poor and fit.references == 300


def test_perplexities_of_half_a_bell_are_fitted_to_the_edge():
    fit = fit_exposure(np.abs(np.random.default_rng(0).normal(size=500)))
    assert 20 < fit.shape <= 100 and not fit.poor


def test_extrapolation_goes_on_where_ranks_end():
    references = drawn(2.0)
    secrets = np.array([references.min() - 1, references.min() - 20, np.median(references)])
    ranks, found = exposure_interpolated(secrets, references), exposure_extrapolated(secrets, references)
    assert ranks[0] == ranks[1] == np.log2(400)
    assert np.isfinite(found).all() and found[1] > found[0] + 20 > 28
    assert found[2] == pytest.approx(1.0, abs=0.15)
    order = np.random.default_rng(0).permutation(400)
    assert exposure_extrapolated(secrets, references[order]).tolist() == found.tolist()


def test_equal_secrets_tie_wherever_they_stand():
    rng = np.random.default_rng(5)
    secrets = np.repeat(rng.normal(5, 10, 40), 3)
    secrets = secrets[rng.permutation(120)]
    found = fit_exposure(drawn(2.0)).exposure(secrets)
    assert len(np.unique(found)) == len(np.unique(secrets)) == 40
    alone = [float(fit_exposure(drawn(2.0)).exposure(secrets[i])) for i in range(3)]
    assert alone == found[:3].tolist()


def test_units_are_of_no_account():
    references = drawn(2.0)
    secrets = np.quantile(references, [0.001, 0.5])
    found = exposure_extrapolated(secrets, references)
    assert exposure_extrapolated(1e-3 * secrets + 7, 1e-3 * references + 7) == pytest.approx(found, rel=1e-4)


def test_a_law_that_does_not_fit_is_said_to():
    two_heaps = np.random.default_rng(0).normal(size=400) + 12 * (np.arange(400) % 2)
    with pytest.warns(PoorFit, match="does not fit the 400 references"):
        exposure_extrapolated([0.0], two_heaps)
    fit = fit_exposure(two_heaps)
    assert fit.poor and fit.p_value(np.random.default_rng(1), 19) == pytest.approx(1 / 20)


@pytest.mark.statistical
def test_p_values_of_the_law_itself_are_level():
    """20 sets of references; P[p ≤ 0.1] is 0.1, and more than 8 of 20 would have a probability below 1e-4.

    It catches a p-value that takes the parameters as known: its law of distances is twice as wide, and no p is small.
    """
    p = [fit_exposure(drawn(2.0, 60, seed)).p_value(np.random.default_rng(seed), 19) for seed in range(20)]
    assert sum(value <= 0.1 for value in p) <= 8
    assert min(p) < 0.3 and max(p) > 0.5


# ---- perplexities ---------------------------------------------------------------------------------------------------


def test_perplexity_is_that_of_the_tokens_counted():
    rng = np.random.default_rng(3)
    logits, tokens = rng.normal(size=(2, 5, 6, 4)), rng.integers(4, size=(5, 6))
    tokens[0, 4:] = -100
    found = log_perplexity(logits, tokens)
    assert found.shape == (2, 5)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for m in range(2):
        for s in range(5):
            bits = [-np.log2(p[m, s, t, tokens[s, t]]) for t in range(6) if tokens[s, t] >= 0]
            assert found[m, s] == pytest.approx(sum(bits), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: exposure_interpolated([np.nan], REFERENCES), "perplexities must be numbers without NaN"),
        (lambda: exposure_interpolated(["a"], REFERENCES), "perplexities must be numbers"),
        (lambda: exposure_interpolated([1.0], []), "at least 1"),
        (lambda: exposure_interpolated([1.0], [[1.0, 2.0]]), "must have shape"),
        (lambda: exposure_interpolated([1.0], [1.0, np.nan]), "reference_perplexities must be numbers without NaN"),
        (lambda: exposure_extrapolated([1.0], REFERENCES), "at least 20, got"),
        (lambda: exposure_extrapolated([1.0], np.ones(30)), "all the same"),
        (lambda: exposure_extrapolated([1.0], [np.inf, *range(30)]), "finite and differ"),
        (lambda: exposure_extrapolated([np.inf], drawn(1.0)), "finite to extrapolate"),
        (lambda: fit_exposure(drawn(1.0)).p_value(np.random.default_rng(0), 5), "replicates"),
        (lambda: log_perplexity(np.zeros((2, 3)), [0, 1]), "logits must be"),
        (lambda: log_perplexity(np.zeros((2, 3, 4)), np.full((2, 3), 4)), "tokens must be"),
        (lambda: log_perplexity(np.zeros((2, 3, 4)), np.zeros((2, 3))), "whole numbers"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        call()
