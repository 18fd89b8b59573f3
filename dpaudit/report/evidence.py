"""From scores to what may be shown of them: shares in common bins and pooled error rates, never a single score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..accounting import Claim
from ..attacks.metrics import Roc, auc, roc
from ..bounds import planning
from ..records import Observations

Array = NDArray[np.float64]

CONFIDENCE = 0.95
SHOWN_FPR = (0.001, 0.01, 0.1)
_MOST_BINS = 40
_MOST_STEPS = 90


@dataclass(frozen=True, eq=False)
class Histogram:
    """Scores of one canary family in bins that both worlds share.

    Attributes:
        canaries: name of the family.
        edges: shape ``(bins + 1,)``, multiples of a round step, so that no edge is a score; the first and last bin
            also hold whatever lies beyond them.
        inside, outside: share of the members' and of the others' scores in each bin; each sums to 1.
        members, others: how many scores there are.
    """

    canaries: str
    edges: Array
    inside: Array
    outside: Array
    members: int
    others: int


@dataclass(frozen=True, eq=False)
class RocBand:
    """True positive rates of one canary family, pooled over runs × canaries, at up to 90 false positive rates.

    Attributes:
        fpr: rising from 0 to 1; multiples of ``1 / others``.
        tpr: the largest true positive rate of a threshold whose false positive rate is at most ``fpr``.
        low, high: pointwise Clopper–Pearson interval of ``tpr`` at 95 %.
        allowed: false positive rates and the largest true positive rates that the claim allows there, or None.
        members, others: how many scores there are.
    """

    canaries: str
    fpr: Array
    tpr: Array
    low: Array
    high: Array
    allowed: tuple[Array, Array] | None
    members: int
    others: int

    @property
    def smallest_fpr(self) -> float:
        """The smallest false positive rate above 0 that so many scores can tell from 0."""
        return 1.0 / self.others


def histogram(canaries: str, obs: Observations) -> Histogram:
    """The scores of a family in common bins."""
    scores, member = _pooled(obs)
    edges = _round_edges(scores)
    inner = np.clip(scores, (edges[0] + edges[1]) / 2, (edges[-2] + edges[-1]) / 2)
    inside, outside = (np.histogram(inner[side], edges)[0] / side.sum() for side in (member, ~member))
    return Histogram(canaries, edges, inside, outside, int(member.sum()), int((~member).sum()))


def roc_band(canaries: str, obs: Observations, claim: Claim | None = None) -> RocBand:
    """The pooled ROC of a family, with intervals and with what the claim allows."""
    scores, member = _pooled(obs)
    curve = roc(scores, member)
    steps = np.unique(np.rint(np.geomspace(1, curve.others, _MOST_STEPS)).astype(int))
    fpr = np.concatenate([[0], steps]) / curve.others
    tpr, low, high = _at(curve, fpr)
    return RocBand(canaries, fpr, tpr, low, high, _allowed(claim, obs, curve.others), curve.members, curve.others)


def rates(canaries: str, obs: Observations) -> dict[str, Any]:
    """For ``report.json``: the area under the ROC, and true positive rates at fixed false positive rates.

    A rate below ``1 / others`` can't be told from 0; there ``tpr`` is None.
    """
    scores, member = _pooled(obs)
    curve = roc(scores, member)
    at_fixed = zip(SHOWN_FPR, *_at(curve, np.array(SHOWN_FPR)), strict=True)
    points = [_point(*rate, resolved=rate[0] * curve.others >= 1) for rate in at_fixed]
    return {
        "canaries": canaries,
        "members": curve.members,
        "others": curve.others,
        "auc": auc(scores, member),
        "points": points,
    }


def _point(fpr: float, tpr: float, low: float, high: float, *, resolved: bool) -> dict[str, float | None]:
    if not resolved:
        return {"fpr": fpr, "tpr": None, "low": None, "high": None}
    return {"fpr": fpr, "tpr": tpr, "low": low, "high": high}


def _pooled(obs: Observations) -> tuple[Array, NDArray[np.bool_]]:
    return obs.scores[obs.present], obs.member[obs.present]


def _at(curve: Roc, fpr: Array) -> tuple[Array, Array, Array]:
    """The largest true positive rate at a false positive rate of at most ``fpr``, and its interval."""
    at = np.searchsorted(curve.fpr, fpr * (1 + 1e-9), side="right") - 1
    low, high = curve.interval(CONFIDENCE)
    return curve.tpr[at], low[at], high[at]


def _allowed(claim: Claim | None, obs: Observations, others: int) -> tuple[Array, Array] | None:
    if claim is None:
        return None
    curve = planning.comparable(claim, planning.tested_adjacency(obs.design, obs.shape))
    fpr = np.geomspace(0.5 / others, 1.0, _MOST_STEPS)
    return None if curve is None else (fpr, 1.0 - curve.fnr(fpr))


def _round_edges(scores: Array) -> Array:
    """Bin edges on multiples of 1, 2 or 5 times a power of ten around the central 99 % of the scores."""
    low, high = np.quantile(scores, (0.005, 0.995))
    bins = min(_MOST_BINS, max(8, math.isqrt(len(scores))))
    step = _round_up((high - low) / bins) if high > low else _round_up(max(abs(high), 1.0) / 10)
    first, last = math.floor(low / step), math.floor(high / step) + 1
    return np.arange(first, max(last, first + 2) + 1) * step


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return float(power * next(m for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9)))
