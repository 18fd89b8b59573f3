"""How well scores tell members from others: exact with ties, whatever the order of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..bounds.tails import upper_limit
from ..errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates of the test "score ≥ t" for every distinct score t, from (0, 0) to (1, 1).

    Attributes:
        fpr, tpr: shape ``(distinct scores + 1,)``, rising.
        members, others: how many scores each rate counts.
    """

    fpr: Array
    tpr: Array
    members: int
    others: int

    def interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """Pointwise Clopper–Pearson interval of ``tpr``: (low, high)."""
        level = (1 - confidence) / 2
        hits = np.round(self.tpr * self.members)
        return 1 - upper_limit(self.members - hits, self.members, level), upper_limit(hits, self.members, level)


def roc(scores: ArrayLike, member: ArrayLike) -> Roc:
    """The ROC curve; tied scores move both rates at once.

    Args:
        scores: any shape; a higher score says "member".
        member: same shape, true or false.

    Raises:
        InputError: shapes that differ, NaN scores, all members or none.
    """
    s, m = np.asarray(scores, np.float64).ravel(), np.asarray(member).ravel().astype(bool)
    if s.shape != m.shape or np.isnan(s).any():
        raise InputError(f"scores and member must be of one shape without NaN, got {s.shape} and {m.shape}")
    if m.all() or not m.any():
        raise InputError("member must hold both members and non-members")
    values = np.unique(s)[::-1]
    inside = np.searchsorted(np.sort(-s[m]), -values, side="right")
    outside = np.searchsorted(np.sort(-s[~m]), -values, side="right")
    return Roc(
        fpr=np.concatenate([[0.0], outside / (~m).sum()]),
        tpr=np.concatenate([[0.0], inside / m.sum()]),
        members=int(m.sum()),
        others=int((~m).sum()),
    )


def auc(scores: ArrayLike, member: ArrayLike) -> float:
    """The area under the ROC curve: P[member's score > other's] + ½ P[equal]."""
    curve = roc(scores, member)
    return float(np.trapezoid(curve.tpr, curve.fpr))
