"""Families: which side a member is rounded to, and the search for the largest that is refuted."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.bounds.families import (
    ClaimFamily,
    GaussianFamily,
    LaplaceFamily,
    PairFamily,
    family_of,
    largest_refuted,
)

DELTA = 1e-5
CLAIMS = [
    Claim.dp_sgd(noise_multiplier=0.8, sampling_rate=0.3, steps=4),
    Claim.dp_sgd(noise_multiplier=1.2, sampling_rate=0.02, steps=500),
    Claim.dp_sgd(noise_multiplier=1.5, sampling_rate=0.1, steps=100),
    Claim.gaussian(noise_multiplier=1.0, steps=3),
]
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.kind} {c.settings['steps']}")
FPR = np.array([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.7])


@each_claim
def test_a_member_is_tested_pessimistically_and_converted_optimistically(claim):
    family, before = ClaimFamily(claim), 0.0
    for parameter in (0.7, 1.0, 1.4):
        member = claim.with_noise_scaled(1 / parameter)
        finest = member.epsilon(DELTA)
        below, tested = family.epsilon(parameter, DELTA), float(family.curve(parameter).epsilon(np.asarray(DELTA)))
        assert below <= finest <= tested * (1 + 1e-6)
        assert below == pytest.approx(finest, rel=0.01)
        assert tested == pytest.approx(finest, rel=2e-3)
        assert np.all(family.curve(parameter).fnr(FPR) <= member.curve.fnr(FPR) + 1e-6)
        assert below > before
        before = below


@each_claim
def test_the_claim_s_epsilon_from_below_is_below_it_at_any_delta(claim):
    values = [(claim.epsilon_from_below(d), claim.epsilon(d)) for d in (1e-9, 1e-7, 1e-5, 1e-3)]
    assert all(below <= above for below, above in values)
    assert [below for below, _ in values] == sorted((below for below, _ in values), reverse=True)


@pytest.mark.parametrize("family", [GaussianFamily(), LaplaceFamily(), PairFamily(DELTA)], ids=lambda f: f.name)
def test_epsilon_rises_with_the_parameter_and_is_rounded_down(family):
    values = [family.epsilon(p, DELTA) for p in (0.0, 0.5, 1.0, 3.0)]
    assert values[0] == 0.0 and values == sorted(values)
    for parameter, epsilon in zip((0.5, 1.0, 3.0), values[1:], strict=True):
        assert epsilon <= float(family.curve(np.asarray(parameter)).epsilon(np.asarray(DELTA)))


@each_claim
@pytest.mark.parametrize("edge", [0.31, 1.0, 1.93])
def test_the_search_stops_just_under_the_edge(claim, edge):
    family = ClaimFamily(claim)
    limit = family.curve(edge).fnr(np.array([0.1]))[0]
    found = largest_refuted(family, lambda curve: curve.fnr(np.array([0.1])) > limit)
    assert edge * (1 - 2 * family.tolerance) <= found < edge


@pytest.mark.parametrize("edge", [1e-4, 0.31, 1.0, 57.0, 9000.0])
def test_a_vector_search_stops_just_under_the_edge(edge):
    found = largest_refuted(GaussianFamily(), lambda curve: np.asarray(curve.mu) < edge)
    assert edge * (1 - 1e-7) <= found < edge


def test_nothing_refuted_and_all_refuted():
    for family in (GaussianFamily(), ClaimFamily(CLAIMS[0])):
        assert largest_refuted(family, lambda curve: np.zeros(1, bool)) == 0.0
    assert largest_refuted(GaussianFamily(), lambda curve: np.ones_like(np.asarray(curve.mu), bool)) == 1e4
    own = ClaimFamily(CLAIMS[0])
    assert largest_refuted(own, lambda curve: np.ones(1, bool)) == own.most == pytest.approx(8.0)


def test_which_family_a_claim_names():
    assert family_of(None, DELTA) == GaussianFamily()
    assert family_of(Claim.pair(epsilon=1.0, delta=DELTA), DELTA) == PairFamily(DELTA)
    assert family_of(CLAIMS[0], DELTA) == ClaimFamily(CLAIMS[0])
    assert [f.any_mechanism for f in (GaussianFamily(), PairFamily(DELTA), ClaimFamily(CLAIMS[0]))] == [
        False,
        True,
        False,
    ]


def test_no_parameter_is_no_leak():
    assert isinstance(ClaimFamily(CLAIMS[0]).curve(0.0), GaussianCurve)
    assert ClaimFamily(CLAIMS[0]).epsilon(0.0, DELTA) == ClaimFamily(CLAIMS[0]).ceiling(0.0, DELTA) == 0.0
