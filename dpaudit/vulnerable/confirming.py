"""Confirmation: what fresh models, in which every tested record had a coin of its own, show of each record.

Only arrays come in here, so that the error rate of the whole can be simulated on mechanisms whose ε is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..accounting.claims import Claim
from ..attacks.metrics import Rate, rate
from ..attacks.shadow import lira, lira_leave_one_out
from ..bounds.choices import Fixed
from ..bounds.two_worlds import best_threshold, clopper_pearson
from ..errors import InputError
from ..records import Adjacency, BoolArray, Bound, Design, Observations

Array = NDArray[np.float64]

INTERVAL = 0.95  # of a rate by itself
MODE, VARIANCE = "online", "shrink"


@dataclass(frozen=True, eq=False)
class RecordResult:
    """What the models that were not set aside show of one record.

    Attributes:
        name: the record's id: never released.
        bound: lower bound on ε, at its share of the significance.
        tpr, fpr: shares of the models with and without the record that the attack calls "in".
        pairs: how often, of disjoint pairs of a model with and one without the record, the one with it scores higher;
            a tie counts as wrong. Guessing gets one half.
        threshold: the score above which the attack says "in"; from the models set aside.
        inside, outside: scores of the models with and without the record, less the threshold.
    """

    name: str
    bound: Bound
    tpr: Rate
    fpr: Rate
    pairs: Rate
    threshold: float
    inside: Array
    outside: Array


def confirm(
    signal: Array,
    coins: BoolArray,
    set_aside: int,
    names: Sequence[str],
    *,
    delta: float,
    significance: float,
    family: int,
    claim: Claim | None = None,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> tuple[RecordResult, ...]:
    """One result per record. Of any ``family`` records that were fixed beforehand all bounds hold together.

    A record's attack is LiRA with a shrunken variance, whose references and threshold come from the first
    ``set_aside`` models; rates and bound come from the others. Given the models set aside, each of the others is an
    independent run of the record's own two worlds, in which the coins of all other records are part of the mechanism.

    Args:
        signal: shape ``(models, records)``; higher says "in". Row k depends on model k alone.
        coins: was the record in the model's training set? Same shape, independent fair coins.
        set_aside: how many models, from the first, the attack may look at.
        names: one per record.
        delta: of the bounds.
        significance: the probability that any bound of a family exceeds its record's ε.
        family: how many records were fixed together before any of these models was looked at; each bound has the
            significance divided by it.
        claim: for ceilings only.

    Raises:
        InputError: fewer models than both parts need, shapes that do not fit, or signals that are not finite.
    """
    if np.ndim(signal) != 2 or np.shape(signal) != np.shape(coins):
        raise InputError(
            f"signal and coins must be of one shape (models, records), got {np.shape(signal)} and {np.shape(coins)}"
        )
    models, records = np.shape(signal)
    family = check.integer("family", family, 1)
    set_aside = check.integer("set_aside", set_aside, 4, models - 2)
    if len(names) != records:
        raise InputError(f"names must be one per record ({records}), got {len(names)}")
    level = check.significance(significance) / family
    scores, thresholds = attack(signal, coins, set_aside, delta=delta, level=level)
    tested = coins[set_aside:]
    design = Design(calibration="set-aside", adjacency=adjacency)
    out = []
    for i, name in enumerate(names):
        inside, outside = scores[tested[:, i], i], scores[~tested[:, i], i]
        obs = Observations(scores[:, i, None], tested[:, i, None], canaries=(name,), design=design)
        bound = clopper_pearson(obs, delta=delta, significance=level, threshold=Fixed(0.0), claim=claim)
        out.append(
            RecordResult(
                name=name,
                bound=replace(bound, threshold=policy(set_aside, family)),
                tpr=_rate(inside > 0),
                fpr=_rate(outside > 0),
                pairs=_pairs(inside, outside),
                threshold=float(thresholds[i]),
                inside=inside,
                outside=outside,
            )
        )
    return tuple(out)


def observed(results: Sequence[RecordResult], coins: BoolArray, adjacency: str) -> Observations:
    """The scores of some records again as one matrix: that of the models that were not set aside, by their ``coins``.

    Args:
        coins: of these models and records, shape ``(tested models, records)``.
    """
    scores = np.empty(coins.shape)
    for column, member, result in zip(scores.T, coins.T, results, strict=True):
        column[member], column[~member] = result.inside, result.outside
    design = Design(calibration="set-aside", adjacency=adjacency)
    return Observations(scores, coins, canaries=tuple(result.name for result in results), design=design)


def attack(signal: Array, coins: BoolArray, set_aside: int, *, delta: float, level: float) -> tuple[Array, Array]:
    """Scores of the models that are not set aside, less each record's threshold; and the thresholds.

    A threshold is the one with the largest bound on the models set aside, each scored with the others as its shadows;
    where no threshold shows anything on these, it is 0, where the record's presence is as likely as its absence.

    Returns:
        Shapes ``(models − set_aside, records)`` and ``(records,)``; a score above 0 says "in".
    """
    shadows, inside = signal[:set_aside], coins[:set_aside]
    own = lira_leave_one_out(shadows, inside, MODE, VARIANCE)
    best = [best_threshold(column, member, delta, level) for column, member in zip(own.T, inside.T, strict=True)]
    thresholds = np.array([value if bound > 0 else 0.0 for value, bound in best])
    return lira(signal[set_aside:], shadows, inside, MODE, VARIANCE) - thresholds, thresholds


def policy(set_aside: int, family: int) -> str:
    """How thresholds were chosen and how the choice of a record is paid for, in words."""
    return (
        f"per record, the best on {set_aside} models set aside, which no rate or bound uses (a likelihood ratio of 1 "
        f"where none shows anything there); significance divided by {family}, the number of records, fixed beforehand"
    )


def _rate(hits: NDArray[np.bool_]) -> Rate:
    return rate(int(hits.sum()), len(hits), INTERVAL)


def _pairs(inside: Array, outside: Array) -> Rate:
    """Model by model, the first with the record against the first without it, and so on."""
    count = min(len(inside), len(outside))
    return _rate(inside[:count] > outside[:count])
