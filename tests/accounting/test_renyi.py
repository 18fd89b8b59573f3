"""Rényi accounting against dp-accounting called directly, closed forms, and what every divergence must keep to."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import Claim
from dpaudit.accounting import renyi
from dpaudit.errors import InputError

DELTA = 1e-5
WHOLE = np.array([2.0, 3.0, 8.0, 40.0, 256.0])
EVENTS = {
    "poisson": (
        Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100),
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(256 / 60_000, dp_event.GaussianDpEvent(1.1)), 14_100
        ),
    ),
    "gaussian": (
        Claim.gaussian(noise_multiplier=3.0, steps=10),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3.0), 10),
    ),
    "laplace": (
        Claim.laplace(noise_multiplier=2.0, steps=7),
        dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 7),
    ),
    "composed": (
        Claim.compose(
            Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.1, steps=5),
            Claim.laplace(noise_multiplier=3.0),
            Claim.gaussian(noise_multiplier=2.0, steps=2),
        ),
        dp_event.ComposedDpEvent(
            [
                dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0)), 5),
                dp_event.LaplaceDpEvent(3.0),
                dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 2),
            ]
        ),
    ),
}
each_event = pytest.mark.parametrize("claim,event", EVENTS.values(), ids=EVENTS.keys())


def directly(event, orders=None, relation=privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE):
    accountant = rdp.RdpAccountant(orders, relation)
    accountant.compose(event)
    return accountant


@each_event
def test_divergences_at_whole_orders_are_the_librarys(claim, event):
    assert renyi.curve(claim, WHOLE) == pytest.approx(directly(event, WHOLE).rdp, rel=1e-12)


@each_event
def test_epsilon_is_the_librarys_or_better_for_more_orders(claim, event):
    accountant = directly(event)
    theirs, order = accountant.get_epsilon_and_optimal_order(DELTA)
    ours = renyi.epsilon(claim, DELTA)
    assert theirs * 0.99 <= ours.epsilon <= theirs * (1 + 1e-9)
    assert renyi.epsilon(claim, DELTA, orders=[order]).epsilon == pytest.approx(theirs, rel=1e-3)


def test_the_librarys_series_at_other_orders_is_never_below_the_integral():
    claim = Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=1)
    orders = np.array([2.5, 4.1, 8.1, 10.7])
    event = dp_event.PoissonSampledDpEvent(256 / 60_000, dp_event.GaussianDpEvent(1.1))
    theirs, ours = directly(event, orders).rdp, renyi.curve(claim, orders)
    assert np.all(ours <= theirs * (1 + 1e-9)) and ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("steps", [1, 300])
def test_where_the_librarys_sum_has_no_digits_left_the_integral_has(steps):
    claim = Claim.dp_sgd(noise_multiplier=100.0, sampling_rate=1e-6, steps=steps)
    with mpmath.workdps(50):
        second = mpmath.log(1 + mpmath.mpf(1e-6) ** 2 * mpmath.expm1(mpmath.mpf(10) ** -4))
    assert renyi.curve(claim, 2.0) == pytest.approx(steps * float(second), rel=1e-9, abs=0)


def test_seed_figures():
    claim = EVENTS["poisson"][0]
    assert renyi.epsilon(claim, DELTA).epsilon == pytest.approx(2.600, abs=5e-4)
    assert renyi.epsilon(claim, DELTA, "classic").epsilon == pytest.approx(3.012, abs=5e-4)
    claim = Claim.dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=10_000)
    assert renyi.epsilon(claim, DELTA).epsilon == pytest.approx(1.035, abs=1e-3)
    assert renyi.epsilon(claim, DELTA, "classic").epsilon == pytest.approx(1.259, abs=1e-3)


FIXED_SIZE = {"noise_multiplier": 2.4, "sampling_rate": 0.02, "steps": 50, "sampler": "fixed-size"}


class TestFixedSize:
    def test_replacing_a_record_moves_a_sum_by_two_clip_norms(self):
        event = dp_event.SelfComposedDpEvent(
            dp_event.SampledWithoutReplacementDpEvent(1000, 20, dp_event.GaussianDpEvent(1.2)), 50
        )
        orders = [1.5, 2.0, 7.0, 33.0]
        theirs = directly(event, orders, privacy_accountant.NeighboringRelation.REPLACE_ONE).rdp
        claim = Claim.dp_sgd(**FIXED_SIZE, adjacency="replace-one")
        assert renyi.curve(claim, orders) == pytest.approx(theirs, rel=1e-12)

    def test_zeroing_a_record_out_costs_no_more(self):
        ours, replaced = (
            renyi.curve(Claim.dp_sgd(**FIXED_SIZE, adjacency=relation), renyi.ORDERS)
            for relation in ("zero-out", "replace-one")
        )
        assert np.all(ours <= replaced) and np.any(ours < replaced)

    @pytest.mark.parametrize("noise", [1.0, 5000.0])
    def test_it_is_at_most_what_full_batches_have(self, noise):
        claim = Claim.dp_sgd(**FIXED_SIZE | {"noise_multiplier": noise})
        full = Claim.gaussian(noise_multiplier=noise, steps=50, adjacency=claim.adjacency)
        assert np.all(renyi.curve(claim, renyi.ORDERS) <= renyi.curve(full, renyi.ORDERS) * (1 + 1e-12))


@pytest.mark.parametrize("sampler", ["shuffled", "balls-and-bins"])
def test_cut_epochs_are_one_full_batch_each(sampler):
    claim = Claim.dp_sgd(noise_multiplier=1.5, sampling_rate=0.1, steps=21, sampler=sampler)
    assert renyi.curve(claim, WHOLE) == pytest.approx(3 * WHOLE / (2 * 1.5**2), rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0])
def test_a_pure_pair_is_randomised_response(epsilon):
    with mpmath.workdps(40):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        exact = [
            float(mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1))
            for a in map(mpmath.mpf, WHOLE)
        ]
    claim = Claim.pair(epsilon=epsilon, delta=0.0)
    assert renyi.curve(claim, WHOLE) == pytest.approx(exact, rel=1e-8)
    assert renyi.curve(claim.repeat(3), WHOLE) == pytest.approx(3 * np.array(exact), rel=1e-8)


def test_a_pair_with_a_delta_has_no_divergence():
    for claim in (Claim.pair(epsilon=1.0, delta=1e-6), Claim.pair(epsilon=1.0, delta=1e-6).repeat(2)):
        with pytest.raises(InputError, match="δ = 0"):
            renyi.curve(claim, WHOLE)


@pytest.mark.parametrize("delta", [0.2, 1e-3, 1e-8, 1e-30])
def test_conversion_is_the_librarys_order_by_order(delta):
    orders = np.array([1.02, 1.7, 5.0, 64.0, 5000.0])
    for divergences in (0.01 * orders, 3.0 * orders, np.full(5, 1e-12)):
        pairs = zip(orders, divergences, strict=True)
        theirs = [rdp.rdp_privacy_accountant.compute_epsilon([a], [r], delta)[0] for a, r in pairs]
        assert renyi.converted(orders, divergences, delta) == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_classic_conversion_is_what_it_says_and_never_below_the_improved_one():
    orders = np.geomspace(1.01, 1e4, 50)
    classic = renyi.converted(orders, 0.1 * orders, DELTA, "classic")
    assert classic == pytest.approx(0.1 * orders + np.log(1e5) / (orders - 1))
    assert np.all(renyi.converted(orders, 0.1 * orders, DELTA) <= classic)


@pytest.mark.parametrize("orders,end", [([2, 4], "last"), ([40, 60], "first"), ([4, 8, 20], None)])
def test_few_orders_are_noticed(orders, end):
    found = renyi.epsilon(EVENTS["poisson"][0], DELTA, orders=orders)
    assert found.end == end
    assert found.epsilon >= renyi.epsilon(EVENTS["poisson"][0], DELTA).epsilon


def test_tiny_losses_are_given_larger_orders():
    quiet = Claim.gaussian(noise_multiplier=10_000.0)
    assert renyi.epsilon(quiet, 1e-9, orders=renyi.ORDERS).end == "last"
    found = renyi.epsilon(quiet, 1e-9)
    assert found.order > 10_000 and found.end is None
    assert found.epsilon < 0.1 * renyi.epsilon(quiet, 1e-9, orders=renyi.ORDERS).epsilon


def test_large_losses_are_given_small_orders():
    loud = Claim.gaussian(noise_multiplier=0.05, steps=10**6)
    found = renyi.epsilon(loud, DELTA)
    assert 1 < found.order < 1.01 and found.end is None
    assert loud.epsilon(DELTA) <= found.epsilon <= 1.001 * loud.epsilon(DELTA)


def test_nothing_is_said_at_delta_zero():
    assert renyi.epsilon(Claim.gaussian(noise_multiplier=1.0), 0.0).epsilon == np.inf


@given(
    noise=st.floats(-1.5, 4).map(np.exp),
    rate=st.floats(-9, 0).map(np.exp),
    steps=st.integers(1, 10_000),
    delta=st.floats(-20, -2).map(np.exp),
)
@settings(max_examples=25, deadline=None)
def test_divergences_grow_with_their_order_and_bound_what_a_gaussian_spends(noise, rate, steps, delta):
    claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    divergences = renyi.curve(claim, renyi.ORDERS)
    assert np.all(np.diff(divergences) >= -1e-9 * divergences[1:])
    full = Claim.gaussian(noise_multiplier=noise, steps=steps)
    improved, classic = (renyi.epsilon(full, delta, conversion).epsilon for conversion in ("improved", "classic"))
    assert full.epsilon(delta) <= improved <= classic


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 2.0], [np.nan], [1e9]])
def test_bad_orders_are_refused(orders):
    with pytest.raises(InputError, match="orders"):
        renyi.epsilon(Claim.gaussian(noise_multiplier=1.0), DELTA, orders=orders)


@pytest.mark.parametrize("named,arguments", [("delta", (2.0,)), ("conversion", (DELTA, "best"))])
def test_bad_settings_are_named(named, arguments):
    with pytest.raises(InputError, match=named):
        renyi.epsilon(Claim.gaussian(noise_multiplier=1.0), *arguments)
