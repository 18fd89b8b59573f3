"""Calibrated loss, population and reference attacks against loops, with ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.attacks import arrays as cutting
from dpaudit.attacks import auc, calibrated_loss, population, reference
from dpaudit.errors import InputError

SHADOWS, RECORDS, TARGETS = 9, 40, 4


def world(seed: int = 0):
    """Signals on a coarse grid, so that ties are common."""
    rng = np.random.default_rng(seed)
    member = rng.random((SHADOWS + TARGETS, RECORDS)) < 0.5
    base = rng.normal(0, 2, RECORDS)
    signal = np.round(base + 1.5 * member + rng.normal(size=member.shape), 0)
    return signal[SHADOWS:], signal[:SHADOWS], member[:SHADOWS], member[SHADOWS:]


def test_calibrated_loss_is_the_plain_mean_without_the_record():
    signal, shadows, member, _ = world()
    got = calibrated_loss(-signal, -shadows, member)
    for i in range(TARGETS):
        for j in range(RECORDS):
            assert got[i, j] == pytest.approx((-shadows[~member[:, j], j]).mean() + signal[i, j], abs=1e-9)
    assert calibrated_loss(-signal, -shadows) == pytest.approx((-shadows).mean(axis=0) + signal)


def test_hard_records_lose_their_disadvantage():
    signal, shadows, member, truth = world(1)
    assert auc(calibrated_loss(-signal, -shadows, member), truth) > auc(signal, truth) + 0.1


def test_reference_is_the_share_of_out_models_below():
    signal, shadows, member, truth = world()
    got = reference(signal, shadows, member)
    for i in range(TARGETS):
        for j in range(RECORDS):
            out = shadows[~member[:, j], j]
            wanted = (out < signal[i, j]).mean() + (out == signal[i, j]).mean() / 2
            assert got[i, j] == pytest.approx(wanted, abs=1e-9)
    assert auc(got, truth) > 0.7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1), st.lists(st.integers(-3, 3), min_size=1))
def test_population_is_the_middle_rank(signal, others):
    got = population(signal, others)
    z = np.array(others)
    assert got.tolist() == [pytest.approx((z < x).mean() + (z == x).mean() / 2) for x in signal]


def test_the_false_positive_rate_is_as_promised():
    """Outsiders like the population pass 1 − α with probability α; 4 standard errors of 20,000 are allowed."""
    rng = np.random.default_rng(0)
    scores = population(rng.normal(size=20_000), rng.normal(size=20_000))
    for alpha in (0.1, 0.01):
        assert (scores >= 1 - alpha).mean() == pytest.approx(alpha, abs=4 * np.sqrt(2 * alpha / 20_000))


def test_each_target_has_its_own_population():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(3, 20)), rng.normal([[0], [5], [-5]], size=(3, 50))
    got = population(x, z)
    assert [got[i].tolist() for i in range(3)] == [population(x[i], z[i]).tolist() for i in range(3)]


@pytest.mark.parametrize("attack", [reference, calibrated_loss])
class TestContract:
    def test_inputs_stay_one_target_is_a_row_and_order_is_free(self, attack):
        signal, shadows, member, _ = arrays = world()
        kept = [a.copy() for a in arrays]
        scores = attack(signal, shadows, member)
        assert all((a == b).all() for a, b in zip(arrays, kept, strict=True))
        assert attack(signal[2], shadows, member).tolist() == scores[2].tolist()
        order, rows = np.random.default_rng(0).permutation(RECORDS), np.random.default_rng(1).permutation(SHADOWS)
        moved = attack(signal[:, order], shadows[rows][:, order], member[rows][:, order])
        assert moved == pytest.approx(scores[:, order], abs=1e-12)

    def test_blocks_do_not_show(self, attack, monkeypatch):
        arrays = world()[:3]
        whole = attack(*arrays)
        monkeypatch.setattr(cutting, "BLOCK", 7)
        assert attack(*arrays).tolist() == whole.tolist()

    def test_a_record_that_every_model_had(self, attack):
        signal, shadows, member, _ = world()
        member[:, 3] = True
        with pytest.raises(InputError, match="none for 1 records"):
            attack(signal, shadows, member)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, sh, m: calibrated_loss(s * np.nan, sh), "^losses must be finite"),
        (lambda s, sh, m: calibrated_loss(s, sh * np.inf), "^reference_losses must be finite"),
        (lambda s, sh, m: calibrated_loss(s, sh[0]), "^losses must be .*reference_losses and reference_member"),
        (lambda s, sh, m: calibrated_loss(s, sh, m + 1), "^reference_member must be true or false"),
        (lambda s, sh, m: reference(s, sh, m[:2]), "^signal must be"),
        (lambda s, sh, m: population(s, sh), "^signal must be .* and population_signals"),
        (lambda s, sh, m: population(s, s[:, :0]), "^signal must be .* and population_signals"),
        (lambda s, sh, m: population(s[0], s[1] * np.nan), "^population_signals must be finite"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message), np.errstate(invalid="ignore"):
        call(*world()[:3])
