"""Two worlds under a named family: closed forms, the claim's own family, and never the size of μ without its sign."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, norm

from dpaudit import Claim, Observations, bounds
from dpaudit.bounds.corner import parameter_lower
from dpaudit.bounds.families import ClaimFamily, GaussianFamily
from dpaudit.bounds.two_worlds import Confusion
from dpaudit.errors import DesignError, InputError

DELTA = 1e-5
POLICIES = [bounds.Fixed(0.5), bounds.Split(), bounds.Bonferroni([0.0, 0.5, 1.0]), bounds.Ranks()]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)


def observed(mu: float, n: int = 500, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    out = rng.normal(0, 1, n)
    return Observations.from_worlds(rng.normal(mu, 1, n), out)


@pytest.mark.parametrize("missed,alarms", [(0, 0), (30, 50), (100, 2), (249, 250)])
def test_mu_has_a_closed_form(missed, alarms):
    limits = [beta.ppf(0.975, k + 1, 500 - k) for k in (alarms, missed)]
    expected = max(-norm.ppf(limits[0]) - norm.ppf(limits[1]), 0.0)
    found = parameter_lower(Confusion(500, 500, missed, alarms), GaussianFamily(), 0.05)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert found <= expected


@each_policy
@pytest.mark.parametrize("claim", [None, Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.2, steps=5)])
def test_scores_that_say_nothing_or_the_opposite_show_nothing(policy, claim):
    # jax_privacy 2.0.0 takes |μ| and reports ε = 5.9 for the first of these.
    for mu in (0.0, -2.0):
        for seed in range(3):
            obs = observed(mu, seed=seed)
            if claim is None:
                bound = bounds.gaussian(obs, delta=DELTA, significance=1e-3, threshold=policy)
            else:
                bound = bounds.claimed_family(obs, claim, delta=DELTA, significance=1e-3, threshold=policy)
            assert bound.epsilon == 0.0


@each_policy
def test_the_family_of_a_full_batch_claim_is_the_gaussian_one(policy):
    obs = observed(1.5)
    free = bounds.gaussian(obs, delta=DELTA, threshold=policy)
    own = bounds.claimed_family(obs, Claim.gaussian(noise_multiplier=2.0), delta=DELTA, threshold=policy)
    assert free.epsilon > 3
    assert own.epsilon == pytest.approx(free.epsilon, rel=5e-3)
    assert own.epsilon <= free.epsilon
    assert own.threshold == free.threshold and own.counts == free.counts


@each_policy
def test_bounds_say_what_they_hold_for(policy):
    obs = observed(1.0)
    for bound in (
        bounds.gaussian(obs, delta=DELTA, threshold=policy),
        bounds.claimed_family(obs, Claim.gaussian(noise_multiplier=1.0), delta=DELTA, threshold=policy),
    ):
        assert not bound.any_mechanism and bound.kind == "confidence"
        assert "family" in bound.null and "family" in bound.method
        assert bound.epsilon < bound.perfect
        assert str(policy) in bound.threshold


def test_the_ceiling_at_the_claim_is_near_what_an_ideal_attack_finds():
    claim = Claim.gaussian(noise_multiplier=1.0)
    found = [
        bounds.gaussian(observed(1.0, 2000, seed), delta=DELTA, threshold=bounds.Fixed(0.5), claim=claim)
        for seed in range(20)
    ]
    assert np.median([b.epsilon for b in found]) == pytest.approx(found[0].at_claim, rel=0.05)


def test_a_perfect_attack_on_a_family_that_may_never_look_ends():
    # With probability 0.7⁴ the canary is never sampled, so no noise of this recipe explains such counts.
    claim = Claim.dp_sgd(noise_multiplier=0.8, sampling_rate=0.3, steps=4)
    family = ClaimFamily(claim)
    assert parameter_lower(Confusion(1000, 1000, 0, 0), family, 0.05) == family.most
    bound = bounds.claimed_family(observed(20.0), claim, delta=DELTA, threshold=bounds.Fixed(10.0))
    assert 50 < bound.epsilon <= bound.perfect < np.inf


def test_what_is_refused():
    obs = observed(1.0, 20)
    with pytest.raises(InputError, match="recipe"):
        bounds.claimed_family(obs, Claim.pair(epsilon=1.0, delta=DELTA), delta=DELTA)
    for delta in (0.0, -1.0):
        with pytest.raises(InputError, match="delta"):
            bounds.gaussian(obs, delta=delta)
    one_run = Observations([1.0, 2.0, 3.0], [True, False, True])
    with pytest.raises(DesignError, match="1 run"):
        bounds.gaussian(one_run, delta=DELTA)
