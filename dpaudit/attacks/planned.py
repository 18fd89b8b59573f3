"""The attacks that a plan may name.

They score tested models by their signals and by shadows set aside. No coin of a tested model goes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..records import BoolArray
from .calibration import calibrated_loss, population, reference
from .ratios import rmia, rmia_leave_one_out
from .shadow import lira, lira_leave_one_out

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Signals:
    """Signals of the models of one trainer, the shadows first.

    Attributes:
        canaries: shape ``(models, canaries)``.
        member: coins of the shadows, and where :func:`in_turn` is asked for of all models; ``(…, canaries)``.
        population: the same signal of records in nobody's training set, ``(models, population)``; None without.
    """

    canaries: Array
    member: BoolArray
    population: Array | None = None

    @property
    def others(self) -> Array:
        """The population's signals.

        Raises:
            InputError: there are none.
        """
        if self.population is None or not self.population.shape[1]:
            raise InputError("this attack needs records that nobody is trained on, got none; give the data a test set")
        return self.population


@dataclass(frozen=True)
class PlannedAttack:
    """One of them.

    Attributes:
        score: scores of tested models, ``(targets, canaries)``, from the signals of the targets and of the shadows.
        signal: the signal that it is made for.
        shadows: how many shadows it needs at least.
        without: how many of the shadows must have gone without each canary.
        population: whether it needs records that nobody is trained on.
        only: whether it makes sense of no other signal.
        leave_one_out: a faster way to take each model in turn, if there is one.
    """

    score: Callable[[Signals, Signals], Array]
    signal: str = "margin"
    shadows: int = 0
    without: int = 0
    population: bool = False
    only: bool = False
    leave_one_out: Callable[[Signals], Array] | None = None


def scores(attack: str, signals: Signals, shadows: int) -> Array:
    """Scores of all models but the first ``shadows``, shape ``(runs, canaries)``; coins of these are not looked at.

    Raises:
        InputError: the attack lacks something.
    """
    return PLANNED[attack].score(_rows(signals, slice(shadows, None)), _rows(signals, slice(0, shadows)))


def in_turn(attack: str, signals: Signals) -> Array:
    """Each model in turn as the target, all others as its shadows, shape ``(models, canaries)``: for ROC figures only.

    Raises:
        InputError: the attack lacks something.
    """
    planned = PLANNED[attack]
    if not planned.shadows:
        return planned.score(signals, signals)
    if planned.leave_one_out is not None:
        return planned.leave_one_out(signals)
    rows = np.arange(len(signals.canaries))
    return np.concatenate([planned.score(_rows(signals, rows == i), _rows(signals, rows != i)) for i in rows])


def _rows(signals: Signals, rows: slice | BoolArray) -> Signals:
    z = signals.population
    return Signals(signals.canaries[rows], signals.member[rows], None if z is None else z[rows])


def _lira(mode: str) -> PlannedAttack:
    return PlannedAttack(
        lambda t, s: lira(t.canaries, s.canaries, s.member, mode),
        shadows=4,
        leave_one_out=lambda s: lira_leave_one_out(s.canaries, s.member, mode),
    )


def _rmia(mode: str, without: int) -> PlannedAttack:
    return PlannedAttack(
        lambda t, s: rmia(
            t.canaries, s.canaries, s.member, t.others, shadow_population_signals=s.others, mode=mode
        ),
        signal="loss",
        shadows=4,
        without=without,
        population=True,
        only=True,
        leave_one_out=lambda s: rmia_leave_one_out(s.canaries, s.member, s.others, mode=mode),
    )  # fmt: skip


PLANNED: dict[str, PlannedAttack] = {
    "lira": _lira("online"),
    "lira-offline": _lira("offline"),
    "lira-offline-two-sided": _lira("offline-two-sided"),
    "rmia": _rmia("online", 0),
    "rmia-offline": _rmia("offline", 2),
    "reference": PlannedAttack(
        lambda t, s: reference(t.canaries, s.canaries, s.member), signal="loss", shadows=4, without=2
    ),
    "calibrated-loss": PlannedAttack(
        lambda t, s: calibrated_loss(-t.canaries, -s.canaries, s.member), signal="loss", shadows=4, without=2, only=True
    ),
    "population": PlannedAttack(lambda t, _: population(t.canaries, t.others), signal="loss", population=True),
    "threshold": PlannedAttack(lambda t, _: t.canaries),
}
"""By the names that specs have for them."""
