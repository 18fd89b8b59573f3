"""Attacks that a plan may name: scores from shadows set aside, and of the tested models' coins nothing."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.attacks import auc, lira, lira_leave_one_out, planned, reference, rmia, rmia_leave_one_out
from dpaudit.attacks.planned import PLANNED, Signals
from dpaudit.errors import InputError

SHADOWS, RUNS, CANARIES, POPULATION = 24, 30, 20, 60


def world(gap: float = 2.0) -> Signals:
    """Logarithms of probabilities; members' are higher."""
    rng = np.random.default_rng(0)
    member = rng.random((SHADOWS + RUNS, CANARIES)) < 0.5
    raw = rng.normal(-3, 1, CANARIES) + gap * member + rng.normal(0, 0.5, member.shape)
    others = rng.normal(-3, 1, POPULATION) + rng.normal(0, 0.5, (len(member), POPULATION))
    return Signals(-np.logaddexp(0, -raw), member, -np.logaddexp(0, -others))


@pytest.mark.parametrize("attack", PLANNED)
def test_scores_are_of_the_tested_models_and_know_none_of_their_coins(attack: str) -> None:
    signals = world()
    found = planned.scores(attack, signals, SHADOWS)
    assert found.shape == (RUNS, CANARIES)
    flipped = signals.member.copy()
    flipped[SHADOWS:] ^= True
    again = planned.scores(attack, Signals(signals.canaries, flipped, signals.population), SHADOWS)
    np.testing.assert_array_equal(found, again)
    assert auc(found, signals.member[SHADOWS:]) > (0.85 if PLANNED[attack].shadows else 0.7)


@pytest.mark.parametrize("attack", PLANNED)
def test_a_model_in_turn_is_scored_by_all_others(attack: str) -> None:
    signals = world()
    whole = planned.in_turn(attack, signals)
    order = np.r_[0:7, 8 : len(signals.member), 7]  # model 7 as the only target
    last = Signals(signals.canaries[order], signals.member[order], signals.population[order])
    alone = planned.scores(attack, last, len(order) - 1)
    np.testing.assert_allclose(whole[7], alone[0], rtol=1e-9, atol=1e-9)


def test_they_are_the_attacks_of_these_names() -> None:
    signals = world()
    x, s, m = signals.canaries[SHADOWS:], signals.canaries[:SHADOWS], signals.member[:SHADOWS]
    z, own = signals.population[:SHADOWS], signals.population[SHADOWS:]
    np.testing.assert_array_equal(planned.scores("lira-offline", signals, SHADOWS), lira(x, s, m, "offline"))
    np.testing.assert_array_equal(planned.scores("reference", signals, SHADOWS), reference(x, s, m))
    wanted = rmia(x, s, m, own, shadow_population_signals=z, mode="offline")
    np.testing.assert_array_equal(planned.scores("rmia-offline", signals, SHADOWS), wanted)
    np.testing.assert_array_equal(
        planned.in_turn("lira", signals), lira_leave_one_out(signals.canaries, signals.member)
    )
    in_turn = rmia_leave_one_out(signals.canaries, signals.member, signals.population)
    np.testing.assert_array_equal(planned.in_turn("rmia", signals), in_turn)
    np.testing.assert_array_equal(planned.scores("threshold", signals, SHADOWS), x)


@pytest.mark.parametrize("attack", [name for name, a in PLANNED.items() if a.population])
def test_without_a_population_it_is_said(attack: str) -> None:
    signals = world()
    for none in (None, signals.population[:, :0]):
        with pytest.raises(InputError, match="records that nobody is trained on, got none"):
            planned.scores(attack, Signals(signals.canaries, signals.member, none), SHADOWS)
