"""Claims against dp-accounting called directly, closed forms and published values."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from dpaudit import Claim
from dpaudit.accounting.curves import GaussianCurve, GridCurve
from dpaudit.accounting.pld import curve
from dpaudit.accounting.releases import SampledGaussianRelease
from dpaudit.errors import InputError

DELTA = 1e-5
SETTINGS = {"noise_multiplier": 1.5, "sampling_rate": 0.05, "steps": 40}


@pytest.fixture(scope="module")
def claim() -> Claim:
    return Claim.dp_sgd(**SETTINGS)


@functools.cache
def directly(noise: float, rate: float, steps: int) -> pld.PrivacyLossDistribution:
    one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    return one.self_compose(steps)


@pytest.mark.parametrize(
    "noise,rate,steps,epsilon", [(1.1, 256 / 60000, 14100, 2.385), (4, 0.01, 10_000, 0.947), (1.224, 0.05, 300, 4.000)]
)
def test_known_epsilons(noise, rate, steps, epsilon):
    claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    assert claim.epsilon(DELTA) == pytest.approx(epsilon, abs=6e-4)


def test_gaussian_known_epsilon():
    assert Claim.gaussian(noise_multiplier=1.0).epsilon(DELTA) == pytest.approx(4.377, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 4.0])
def test_delta_is_the_larger_of_both_directions(claim, epsilon):
    both = directly(*SETTINGS.values())
    add, remove = (p.get_delta_for_epsilon(epsilon) for p in (both._pmf_add, both._pmf_remove))
    assert claim.delta(epsilon) == pytest.approx(max(add, remove), rel=1e-4, abs=1e-12)


def test_both_directions_matter():
    both = directly(1.0, 0.2, 20)
    gaps = [both._pmf_add.get_delta_for_epsilon(e) - both._pmf_remove.get_delta_for_epsilon(e) for e in (0.01, 3.0)]
    claim = Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.2, steps=20)
    assert max(abs(g) for g in gaps) > 1e-6
    for e in (0.01, 3.0):
        assert claim.delta(e) == pytest.approx(both.get_delta_for_epsilon(e), rel=1e-3)


def test_epsilon_and_delta_invert_each_other(claim):
    assert claim.delta(claim.epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-6)


def test_trade_off_lies_below_every_line_of_one_direction(claim):
    # f(fpr) ≥ 1 − δ(ε) − e^ε fpr for all ε, and the curve is the best of these lines.
    fpr = np.geomspace(1e-6, 0.9, 30)
    e = np.linspace(0, 12, 1500)
    steep = 1 - claim.delta(e)[:, None] - np.exp(e)[:, None] * fpr
    flat = np.exp(-e)[:, None] * (1 - claim.delta(e)[:, None] - fpr)
    best = np.maximum(0, np.maximum(steep.max(axis=0), flat.max(axis=0)))
    assert claim.fnr(fpr) == pytest.approx(best, abs=1e-4)


def test_grid_of_the_accountant_is_rounded_against_the_trainer():
    # Sampling at a rate of nearly 1 is all but the exact Gaussian.
    release = SampledGaussianRelease(noise_multiplier=2.0, sampling_rate=1 - 1e-9, count=4)
    near, exact = curve((release,)), GaussianCurve(1.0)
    e, fpr = np.linspace(0, 8, 50), np.concatenate([np.geomspace(1e-9, 0.5, 40), np.linspace(0.5, 1, 20)])
    assert isinstance(near, GridCurve)
    assert np.all(near.delta(e) >= exact.delta(e) - 1e-9)
    assert near.delta(e) == pytest.approx(exact.delta(e), abs=1e-3)
    assert np.all(near.fnr(fpr) <= exact.fnr(fpr) + 1e-7)
    assert near.fnr(fpr) == pytest.approx(exact.fnr(fpr), abs=1e-3)


def test_many_tiny_losses_are_not_drowned_by_the_grid():
    claim = Claim.dp_sgd(noise_multiplier=10, sampling_rate=0.001, steps=100_000)
    assert claim.epsilon(DELTA) == pytest.approx(0.0972, rel=5e-3)  # with cells of 1e-4 it would be 0.106
    assert claim.coarse().epsilon(DELTA) == pytest.approx(0.0972, rel=5e-3)


def test_a_full_batch_is_the_exact_gaussian():
    full = Claim.dp_sgd(noise_multiplier=3.0, sampling_rate=1.0, steps=9, sampler="full-batch")
    assert full == Claim.dp_sgd(noise_multiplier=3.0, sampling_rate=1, steps=9)
    assert isinstance(full.curve, GaussianCurve)
    assert full.epsilon(DELTA) == Claim.gaussian(noise_multiplier=1.0).epsilon(DELTA)


@pytest.mark.parametrize("view,at", [("epsilon", 1e-5), ("delta", 1.0), ("fnr", 0.1)])
def test_floats_in_floats_out_arrays_in_arrays_out(claim, view, at):
    for one in (claim, Claim.gaussian(noise_multiplier=2.0), Claim.pair(epsilon=1.0, delta=1e-6)):
        look = getattr(one, view)
        assert type(look(at)) is float
        assert type(look(np.float64(at))) is float
        for many in ([at, at / 2], np.array([[at], [at / 2]])):
            out = look(many)
            assert isinstance(out, np.ndarray) and out.shape == np.shape(many)
            assert out.ravel()[0] == look(at)


def test_arrays_need_not_be_sorted(claim):
    e = [3.0, 1.0, 2.0, 1.0]
    assert list(claim.delta(e)) == [claim.delta(x) for x in e]


@pytest.mark.parametrize("view,bad", [("epsilon", -0.1), ("epsilon", 1.1), ("delta", -1.0), ("fnr", 1.5), ("fnr", -1)])
@pytest.mark.parametrize("shape", [float, lambda x: [0.5, x], lambda x: float("nan")])
def test_views_refuse_what_is_out_of_range(claim, view, bad, shape):
    with pytest.raises(InputError, match=r"must be (in|a number in) \["):
        getattr(claim, view)(shape(bad))


@pytest.mark.parametrize("what", ["x", None, [None]])
def test_views_refuse_what_is_no_number(claim, what):
    with pytest.raises(InputError, match="delta must be"):
        claim.epsilon(what)


@pytest.mark.parametrize(
    "name,value",
    [
        *[("noise_multiplier", v) for v in (0, -1, float("nan"), float("inf"), "x", None, True)],
        *[("sampling_rate", v) for v in (0, -0.1, 1.1, float("nan"), None)],
        *[("steps", v) for v in (0, -3, 1.5, "x", None, True)],
        *[("sampler", v) for v in ("shuffle", 3)],
    ],
)
def test_a_bad_setting_is_named(name, value):
    with pytest.raises(InputError, match=name):
        Claim.dp_sgd(**{**SETTINGS, name: value})


def test_a_full_batch_sampler_needs_rate_one():
    with pytest.raises(InputError, match="sampling_rate"):
        Claim.dp_sgd(**SETTINGS, sampler="full-batch")


@pytest.mark.parametrize("name,value", [("epsilon", -1), ("epsilon", float("inf")), ("delta", 1.0), ("delta", -1e-9)])
def test_a_bad_pair_is_named(name, value):
    with pytest.raises(InputError, match=name):
        Claim.pair(**{"epsilon": 1.0, "delta": 1e-5, name: value})


def test_a_bad_adjacency_is_named():
    with pytest.raises(InputError, match="adjacency"):
        Claim.pair(epsilon=1, delta=0, adjacency="swap")


def test_delta_zero_is_infinite_for_noise_and_finite_for_a_pure_pair(claim):
    assert claim.epsilon(0) == np.inf
    assert Claim.gaussian(noise_multiplier=1.0).epsilon(0.0) == np.inf
    assert Claim.pair(epsilon=2.0, delta=0.0).epsilon(0.0) == 2.0
    assert Claim.pair(epsilon=2.0, delta=1e-5).epsilon(0.0) == np.inf


@pytest.mark.parametrize(
    "one",
    [
        Claim.dp_sgd(**SETTINGS),
        Claim.gaussian(noise_multiplier=2.0, steps=3),
        Claim.pair(epsilon=1.0, delta=1e-5, adjacency="replace-one"),
    ],
    ids=lambda c: c.kind,
)
def test_documents_are_read_back(one):
    assert Claim.of(one.document()) == one


@pytest.mark.parametrize(
    "document,named",
    [
        ({"kind": "exponential", "adjacency": "add-remove", "settings": {}}, "kind"),
        ({"kind": "gaussian", "adjacency": "add-remove", "settings": {"noise": 1}}, "noise"),
        ({"kind": "gaussian", "adjacency": "add-remove", "settings": {"noise_multiplier": -1}}, "noise_multiplier"),
        ({"kind": "gaussian", "adjacency": "sideways", "settings": {"noise_multiplier": 1}}, "adjacency"),
        ({"kind": "dp-sgd", "adjacency": "add-remove", "settings": {**SETTINGS, "sampling_rate": 2}}, "sampling_rate"),
        ({"kind": "pair", "adjacency": "add-remove", "settings": {"at_epsilon": 1, "at_delta": 2}}, "delta"),
    ],
)
def test_bad_documents_are_refused(document, named):
    with pytest.raises(InputError, match=named):
        Claim.of(document)


@pytest.mark.parametrize("one", [Claim.dp_sgd(**SETTINGS), Claim.gaussian(noise_multiplier=0.7)], ids=lambda c: c.kind)
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_leaking_scales_epsilon(one, factor):
    leaky = one.leaking(factor, DELTA)
    assert leaky.kind == one.kind
    assert leaky.epsilon(DELTA) == pytest.approx(factor * one.epsilon(DELTA), rel=2e-3)
    assert leaky.epsilon(DELTA) <= factor * one.epsilon(DELTA)


def test_a_leaking_pair_is_randomised_response_at_twice_epsilon():
    assert Claim.pair(epsilon=1.0, delta=1e-5).leaking(2, 1e-5) == Claim.pair(epsilon=2.0, delta=1e-5)


def test_twice_nothing_is_nothing():
    silent = Claim.dp_sgd(noise_multiplier=50.0, sampling_rate=0.001, steps=1)
    assert silent.epsilon(DELTA) == 0
    assert silent.leaking(2, DELTA).epsilon(DELTA) == 0


def test_more_noise_means_less_epsilon():
    noise = [0.8, 1.0, 2.0, 5.0]
    epsilons = [Claim.dp_sgd(noise_multiplier=n, sampling_rate=0.05, steps=50).epsilon(DELTA) for n in noise]
    assert epsilons == sorted(epsilons, reverse=True)


def test_a_pair_has_no_noise_to_scale():
    with pytest.raises(InputError, match="recipe"):
        Claim.pair(epsilon=1, delta=0).with_noise_scaled(2.0)


def test_extreme_settings_give_numbers_not_warnings():
    for noise, rate, steps in [(0.1, 0.5, 5), (1e6, 0.01, 10), (1.0, 1e-7, 10)]:
        claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
        assert claim.epsilon(DELTA) >= 0
        assert 0 <= claim.fnr(0.1) <= 0.9
