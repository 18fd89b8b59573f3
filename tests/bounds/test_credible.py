"""Credible bounds: the published pin, reference figures, and that they say what they are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

import dpaudit
from dpaudit import Claim, Observations, bounds
from dpaudit.bounds.credible import jeffreys_lower, joint_beta_lower
from dpaudit.bounds.two_worlds import Confusion, epsilon_lower

DELTA = 1e-5


def test_the_pin_of_privacy_estimates():
    # TP 487, TN 1, FP 512, FN 0, α = 0.1 over both sides; the library's own search stops at 0.145 (tolerance 0.01).
    table = Confusion(members=487, others=513, missed=0, false_alarms=512)
    assert joint_beta_lower(table, DELTA, 0.05) == pytest.approx(0.1439, abs=1e-3)
    assert jeffreys_lower(table, DELTA, 0.05) == 0.0
    assert epsilon_lower(table, DELTA, 0.05) == 0.0


def observed(mu: float, n: int) -> Observations:
    rng = np.random.default_rng(0)
    out, inside = rng.normal(0, 1, n), rng.normal(mu, 1, n)
    return Observations.from_worlds(inside, out)


@pytest.mark.parametrize(
    "n,mu,joint,limits",
    [
        (1000, 0.5, 0.375, 0.321),
        (1000, 1, 0.765, 0.712),
        (1000, 2, 1.589, 1.535),
        (1000, 3, 2.671, 2.607),
        (10_000, 0.5, 0.362, 0.345),
        (10_000, 1, 0.767, 0.750),
        (10_000, 2, 1.659, 1.640),
        (10_000, 3, 2.662, 2.638),
    ],
)
def test_reference_figures(n, mu, joint, limits):
    at = {"delta": DELTA, "threshold": bounds.Fixed(mu / 2)}
    assert bounds.joint_beta(observed(mu, n), **at).epsilon == pytest.approx(joint, abs=1e-3)
    assert bounds.jeffreys(observed(mu, n), **at).epsilon == pytest.approx(limits, abs=6e-4)


@pytest.mark.parametrize("missed,alarms", [(0, 0), (5, 30), (30, 5), (200, 3)])
@pytest.mark.parametrize("delta", [0.0, DELTA, 0.05])
def test_the_joint_posterior_is_that_of_draws(missed, alarms, delta):
    table = Confusion(250, 250, missed, alarms)
    epsilon = joint_beta_lower(table, delta, 0.05)
    rng = np.random.default_rng(0)
    fnr = beta(missed + 0.5, 250 - missed + 0.5).rvs(400_000, random_state=rng)
    fpr = beta(alarms + 0.5, 250 - alarms + 0.5).rvs(400_000, random_state=rng)
    growth = np.exp(epsilon)
    private = (1 - delta - fnr <= growth * fpr) & (1 - delta - fpr <= growth * fnr)
    private &= (fnr - delta <= growth * (1 - fpr)) & (fpr - delta <= growth * (1 - fnr))
    assert private.mean() == pytest.approx(0.05, abs=2e-3)


def test_jeffreys_is_above_clopper_pearson():
    for missed, alarms in ((0, 0), (10, 3), (100, 120)):
        table = Confusion(300, 300, missed, alarms)
        assert epsilon_lower(table, DELTA, 0.05) <= jeffreys_lower(table, DELTA, 0.05)


@pytest.mark.parametrize("method", [bounds.joint_beta, bounds.jeffreys])
def test_they_are_marked_and_feed_no_verdict(method):
    obs = observed(1.0, 300)
    bound = method(obs, delta=DELTA)
    assert bound.kind == "credible" and not bound.any_mechanism and "not a confidence bound" in bound.null
    judged = dpaudit.audit(obs, Claim.gaussian(noise_multiplier=1.0), delta=DELTA)
    assert {b.kind for b in judged.bounds} == {"confidence"}


@pytest.mark.parametrize("method", [bounds.joint_beta, bounds.jeffreys])
def test_a_choice_is_paid_for(method):
    obs = observed(1.0, 300)
    alone = method(obs, delta=DELTA, significance=0.01, threshold=bounds.Fixed(1.0)).epsilon
    best = method(obs, delta=DELTA, significance=0.05, threshold=bounds.Bonferroni([1.0, 9.0, 9.1, 9.2, 9.3]))
    assert best.epsilon == alone


def test_no_runs_of_one_kind_left_by_a_split_show_nothing():
    assert jeffreys_lower(Confusion(0, 10, 0, 0), 0.0, 0.05) == 0.0
