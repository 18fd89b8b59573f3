"""How well scores tell members from others: exact with ties, whatever the order of the rows.

Orientation: a higher score says "member". A rate is a count with its exact interval; a rate that so few records can't
resolve is None, never an interpolated number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from .. import check
from ..bounds.designs import digest
from ..bounds.tails import upper_limit
from ..errors import InputError
from .arrays import as_array
from .chance import DRAWS, area_p_value, decision_p_value, share_p_value

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

FPRS = (0.1, 0.01, 0.001, 0.0)
"""False positive rates that true positive rates are reported at."""

PRIOR = 0.1
_MOST_SLICES = 100
_SPLITTING = 1


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
    s, m = _pooled(scores, member)
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


def _pooled(scores: ArrayLike, member: ArrayLike) -> tuple[Array, Flags]:
    """Flat scores and flags, checked."""
    s, flags = as_array("scores", scores), as_array("member", member)
    if s.dtype.kind not in "biuf":
        raise InputError(f"scores must be numbers, got an array of {s.dtype}")
    s = s.astype(np.float64)
    if s.shape != flags.shape or np.isnan(s).any():
        raise InputError(f"scores and member must be of one shape without NaN, got {s.shape} and {flags.shape}")
    if flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise InputError(f"member must be true or false (1 or 0), got {flags.dtype} with other values")
    m = flags.ravel().astype(bool)
    if m.all() or not m.any():
        raise InputError(f"member must hold both members and non-members, got {m.sum()} of {m.size} members")
    return s.ravel(), m


@dataclass(frozen=True)
class Rate:
    """A share with its exact (Clopper–Pearson) interval.

    Attributes:
        hits, trials: the count.
        low, high: the interval.
    """

    hits: int
    trials: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """``hits`` / ``trials``."""
        return self.hits / self.trials


def rate(hits: int, trials: int, confidence: float = 0.95) -> Rate:
    """A rate with its exact interval.

    >>> rate(0, 100).low, round(rate(0, 100).high, 4)
    (0.0, 0.0362)
    """
    trials = check.integer("trials", trials, 1)
    hits = check.integer("hits", hits, 0, trials)
    tail = (1 - check.number("confidence", confidence, 0.0, 1.0, ends="()")) / 2
    return Rate(
        hits, trials, 1 - float(upper_limit(trials - hits, trials, tail)), float(upper_limit(hits, trials, tail))
    )


@dataclass(frozen=True)
class Share:
    """A number in [0, 1] that is no plain count, with an interval.

    Attributes:
        value, low, high: the interval holds at least at its stated confidence, by the union of exact ones.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Area:
    """The area under the ROC curve.

    Attributes:
        value: P[member's score > other's] + ½ P[equal], exact.
        low, high: asymptotic interval: the areas whose null deviation by Hanley & McNeil (1982) reaches ``value``
            (Newcombe 2006, method 5). It never collapses, at 0 and 1 neither.
        p_value: against "membership is exchangeable given the scores", one-sided, exact; see
            :func:`dpaudit.attacks.chance.area_p_value`.
    """

    value: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Point:
    """The true positive rate at a false positive rate that was fixed beforehand.

    Attributes:
        fpr: asked for.
        tpr: share of members above every threshold with at most that rate on these non-members; None where ``fpr`` is
            above 0 and below 1 / non-members: not resolvable. At 0 it is the share above all non-members.
        false_alarms: how many non-members that threshold calls members.
        ppv: of those called members, the share that are, at the stated prior; None if nobody is called one.
        p_value: exact, one-sided; None where not resolvable.
    """

    fpr: float
    tpr: Rate | None
    false_alarms: int | None
    ppv: Share | None
    p_value: float | None


@dataclass(frozen=True)
class Decision:
    """One threshold that did not come from the records it is measured on: "score > threshold" says member.

    Attributes:
        source: where it came from.
        threshold: the threshold.
        tpr, fpr: rates at it; each interval at the stated confidence.
        balanced_accuracy: (TPR + 1 − FPR) / 2; its interval by the union of two exact ones.
        advantage: TPR − FPR, in [−1, 1]; likewise.
        ppv: at the stated prior; None if nobody is called a member.
        p_value: Fisher's exact test, one-sided.
    """

    source: str
    threshold: float
    tpr: Rate
    fpr: Rate
    balanced_accuracy: Share
    advantage: Share
    ppv: Share | None
    p_value: float


@dataclass(frozen=True)
class Measures:
    """All numbers of one attack on one set of records.

    Attributes:
        members, others: how many records.
        prior: share of members among those that an attacker asks about, for every ``ppv``.
        confidence: of the intervals.
        area: under the ROC curve.
        points: true positive rates at the fixed false positive rates.
        best_advantage, best_balanced_accuracy: the largest over all thresholds, which were chosen on these very
            records: optimistic, no interval, no test.
        decisions: at thresholds from elsewhere: shadows, or one half of the records for the other.
    """

    members: int
    others: int
    prior: float
    confidence: float
    area: Area
    points: tuple[Point, ...]
    best_advantage: float
    best_balanced_accuracy: float
    decisions: tuple[Decision, ...]


def measure(
    scores: ArrayLike,
    member: ArrayLike,
    *,
    thresholds: Mapping[str, float] | None = None,
    fprs: Sequence[float] = FPRS,
    prior: float = PRIOR,
    confidence: float = 0.95,
    seed: int = 0,
    draws: int = DRAWS,
) -> Measures:
    """Everything that is said of one attack.

    Args:
        scores: any shape; a higher score says "member".
        member: same shape, true or false.
        thresholds: from elsewhere, by where they come from; see :func:`threshold`. Without any, one is chosen on a
            random half of the records (best balanced accuracy) and measured on the other half.
        fprs: false positive rates, fixed beforehand.
        prior: share of members among those that an attacker asks about.
        confidence: of the intervals.
        seed: for the half and the redrawn membership, together with the scores; the order of rows never matters.
        draws: redrawn memberships of the area's p-value.

    Raises:
        InputError: shapes that differ, NaN scores, all members or none, a number out of range.
    """
    s, m = _pooled(scores, member)
    prior = check.number("prior", prior, 0.0, 1.0, ends="()")
    confidence = check.number("confidence", confidence, 0.0, 1.0, ends="()")
    seed, draws = check.integer("seed", seed, 0), check.integer("draws", draws, 1)
    inside, outside = np.sort(s[m]), np.sort(s[~m])
    curve = roc(s, m)
    best = float(np.max(curve.tpr - curve.fpr))
    return Measures(
        members=len(inside),
        others=len(outside),
        prior=prior,
        confidence=confidence,
        area=_area(curve, s, m, confidence, seed, draws),
        points=tuple(_point(inside, outside, check.number("fpr", f, 0.0, 1.0), prior, confidence) for f in fprs),
        best_advantage=best,
        best_balanced_accuracy=(1 + best) / 2,
        decisions=_decisions(inside, outside, thresholds, prior, confidence, seed),
    )


def _area(curve: Roc, s: Array, m: Flags, confidence: float, seed: int, draws: int) -> Area:
    value = float(np.trapezoid(curve.tpr, curve.fpr))
    low, high = area_interval(value, curve.members, curve.others, confidence)
    return Area(value, low, high, area_p_value(s, m, seed, draws))


def area_interval(value: float, members: int, others: int, confidence: float = 0.95) -> tuple[float, float]:
    """Asymptotic interval of an area under the ROC curve (Newcombe 2006, method 5).

    Args:
        value: the area found.
        members, others: how many scores of either kind.
        confidence: asked for, reached in the limit of many scores.

    >>> [round(end, 3) for end in area_interval(0.5, 100, 100)]
    [0.421, 0.579]
    """
    z = float(ndtri((1 + confidence) / 2))
    return _area_limit(value, members, others, z, 0.0), _area_limit(value, members, others, z, 1.0)


def _area_limit(value: float, members: int, others: int, z: float, end: float) -> float:
    """The area between ``value`` and ``end`` that lies ``z`` of its own standard deviations from ``value``."""
    near, far = value, end
    for _ in range(60):
        middle = (near + far) / 2
        close = abs(middle - value) <= z * _area_deviation(middle, members, others)
        near, far = (middle, far) if close else (near, middle)
    return far


def _area_deviation(area: float, members: int, others: int) -> float:
    """Hanley & McNeil (1982) for scores of exponential law, with both sample sizes averaged (Newcombe 2006)."""
    extra = (members + others) / 2 - 1
    spread = 1 + extra * ((1 - area) / (2 - area) + area / (1 + area))
    return float(np.sqrt(area * (1 - area) * spread / (members * others)))


def _point(inside: Array, outside: Array, fpr: float, prior: float, confidence: float) -> Point:
    members, others = len(inside), len(outside)
    allowed = int(np.floor(fpr * others * (1 + 1e-9)))
    if fpr > 0 and allowed == 0:
        return Point(fpr, None, None, None, None)
    cut = outside[others - 1 - allowed] if allowed < others else -np.inf
    hits = members if allowed >= others else members - int(np.searchsorted(inside, cut, side="right"))
    alarms = others if allowed >= others else others - int(np.searchsorted(outside, cut, side="right"))
    level = (1 + confidence) / 2  # two exact intervals, each at half of the error
    wide = rate(hits, members, level)
    # The rate above the (j + 1)-th highest of n is Beta(j + 1, n − j), which has the upper limit of j false alarms; its
    # lower limit is that of j + 1, and the one of those that were counted is below it.
    low = rate(alarms, others, level).low
    high = float(upper_limit(min(allowed, others), others, (1 - level) / 2))
    return Point(
        fpr,
        rate(hits, members, confidence),
        alarms,
        _ppv_share(hits / members, alarms / others, (wide.low, wide.high), (low, high), prior),
        share_p_value(hits, allowed, members, others),
    )


def ppv(tpr: float, fpr: float, prior: float) -> float | None:
    """Of those called members, the share that are: π TPR / (π TPR + (1 − π) FPR); None if nobody is called one.

    Args:
        tpr, fpr: rates of the decision.
        prior: π, the share of members among those asked about.

    >>> ppv(0.5, 0.5, 0.1), ppv(0.2, 0.0, 0.1), ppv(0.0, 0.0, 0.1)
    (0.1, 1.0, None)
    """
    prior = check.number("prior", prior, 0.0, 1.0)
    called = prior * check.number("tpr", tpr, 0.0, 1.0) + (1 - prior) * check.number("fpr", fpr, 0.0, 1.0)
    return None if called == 0 else prior * tpr / called


def _ppv_share(
    tpr: float, fpr: float, tprs: tuple[float, float], fprs: tuple[float, float], prior: float
) -> Share | None:
    value = ppv(tpr, fpr, prior)
    if value is None:
        return None
    low, high = ppv(tprs[0], fprs[1], prior), ppv(tprs[1], fprs[0], prior)
    return Share(value, 0.0 if low is None else low, 1.0 if high is None else high)


def threshold(shadow_scores: ArrayLike, shadow_member: ArrayLike, fpr: float) -> float:
    """The threshold t with the most members above it such that "score > t" has at most ``fpr`` on the shadows.

    Args:
        shadow_scores: scores of shadow models, each attacked as if it were the target; any shape.
        shadow_member: whether they had the record, same shape. The target's own is never given.
        fpr: false positive rate on the shadows' non-members; on the target it will come out a little different.

    Returns:
        A shadow non-member's score; −∞ at an ``fpr`` of 1.

    Raises:
        InputError: shapes that differ, NaN, only members or only non-members, or ``fpr`` above 0 and below
            1 / non-members, which so few scores can't resolve.

    >>> threshold([0.1, 0.2, 0.3, 0.4, 0.9], [0, 0, 0, 0, 1], 0.25)
    0.3
    """
    s, m = _pooled(shadow_scores, shadow_member)
    fpr = check.number("fpr", fpr, 0.0, 1.0)
    outside = np.sort(s[~m])
    allowed = int(np.floor(fpr * len(outside) * (1 + 1e-9)))
    if fpr > 0 and allowed == 0:
        raise InputError(f"fpr must be 0 or at least 1 / {len(outside)}, which the shadows can resolve, got {fpr!r}")
    return float("-inf") if allowed >= len(outside) else float(outside[len(outside) - 1 - allowed])


def _decisions(
    inside: Array,
    outside: Array,
    thresholds: Mapping[str, float] | None,
    prior: float,
    confidence: float,
    seed: int,
) -> tuple[Decision, ...]:
    if thresholds:
        return tuple(decide(inside, outside, t, where, prior, confidence) for where, t in thresholds.items())
    if min(len(inside), len(outside)) < 2:
        return ()
    # Drawn from the scores as well as the seed: a seed alone would always pick the same ranks.
    rng = np.random.default_rng([seed, _SPLITTING, digest(inside, outside)])
    chosen, test_in, test_out = chosen_on_half(inside, outside, rng)
    where = "the best balanced accuracy on a random half of the records, measured on the other half"
    return (decide(test_in, test_out, chosen, where, prior, confidence),)


def chosen_on_half(inside: Array, outside: Array, rng: np.random.Generator) -> tuple[float, Array, Array]:
    """The threshold with the best balanced accuracy on a random half of either kind, and the other halves."""
    (look_in, test_in), (look_out, test_out) = (_halves(part, rng) for part in (inside, outside))
    return _best_threshold(look_in, look_out), test_in, test_out


def _halves(values: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    order = rng.permutation(len(values))
    half = len(values) // 2
    return np.sort(values[order[:half]]), np.sort(values[order[half:]])


def _best_threshold(inside: Array, outside: Array) -> float:
    """The threshold with the largest TPR − FPR of "score > threshold"; the lowest of equals."""
    values = np.unique(np.concatenate([inside, outside]))
    tpr = 1 - np.searchsorted(inside, values, side="right") / len(inside)
    fpr = 1 - np.searchsorted(outside, values, side="right") / len(outside)
    return float(values[np.argmax(tpr - fpr)])


def decide(
    inside: Array, outside: Array, cut: float, source: str, prior: float = PRIOR, confidence: float = 0.95
) -> Decision:
    """What "score > ``cut``" does, for a threshold that did not come from these scores.

    Args:
        inside, outside: scores of members and of others.
        cut: the threshold.
        source: where it came from, in words.
        prior, confidence: as in :func:`measure`.
    """
    hits, alarms = int((np.asarray(inside) > cut).sum()), int((np.asarray(outside) > cut).sum())
    tpr, fpr = rate(hits, len(inside), confidence), rate(alarms, len(outside), confidence)
    level = (1 + confidence) / 2  # two exact intervals, each at half of the error
    wide_tpr, wide_fpr = rate(hits, len(inside), level), rate(alarms, len(outside), level)
    gap = tpr.value - fpr.value, wide_tpr.low - wide_fpr.high, wide_tpr.high - wide_fpr.low
    return Decision(
        source=source,
        threshold=float(cut),
        tpr=tpr,
        fpr=fpr,
        balanced_accuracy=Share(*((1 + g) / 2 for g in gap)),
        advantage=Share(*gap),
        ppv=_ppv_share(tpr.value, fpr.value, (wide_tpr.low, wide_tpr.high), (wide_fpr.low, wide_fpr.high), prior),
        p_value=decision_p_value(hits, alarms, len(inside), len(outside)),
    )


@dataclass(frozen=True)
class Slice:
    """One attack on a part of the records.

    Attributes:
        column, value: what the part is: ``label`` and 3, say.
        members, others: how many records.
        measures: None where the part holds only members, only non-members or too few records.
        note: why there are none, or empty.
    """

    column: str
    value: str
    members: int
    others: int
    measures: Measures | None
    note: str


def slices(
    scores: ArrayLike,
    member: ArrayLike,
    column: str,
    values: ArrayLike,
    *,
    least: int = 1,
    prior: float = PRIOR,
    confidence: float = 0.95,
    seed: int = 0,
    draws: int = DRAWS,
) -> tuple[Slice, ...]:
    """The attack on every part of the records that shares a value: each class, or each group of a user's.

    Args:
        scores, member: shape ``(records,)``.
        column: what ``values`` are, for reports.
        values: one per record, numbers or text, of at most 100 kinds.
        least: parts with fewer records are counted and not measured.
        prior, confidence, seed, draws: as in :func:`measure`.

    Raises:
        InputError: shapes that differ, or more kinds than that.

    >>> found = slices([2.0, 1.0, 3.0, 0.0], [1, 0, 1, 1], "class", ["a", "a", "b", "b"])
    >>> [(s.value, s.measures is not None, s.note) for s in found]
    [('a', True, ''), ('b', False, 'only members')]
    """
    s, m = _pooled(scores, member)
    groups = as_array(f"values of {column}", values)
    if groups.shape != s.shape:
        raise InputError(f"values of {column} must be one per record ({len(s)}), got shape {groups.shape}")
    kinds, place = np.unique(groups, return_inverse=True)
    if len(kinds) > _MOST_SLICES:
        raise InputError(f"{column} must have at most {_MOST_SLICES} different values to slice by, got {len(kinds)}")
    options = {"prior": prior, "confidence": confidence, "seed": seed, "draws": draws}
    return tuple(_slice(s[place == i], m[place == i], column, kind, least, options) for i, kind in enumerate(kinds))


def _slice(s: Array, m: Flags, column: str, kind: object, least: int, options: Mapping[str, float]) -> Slice:
    members, others = int(m.sum()), int((~m).sum())
    note = (
        f"fewer than {least} records" if len(s) < least
        else "only members" if others == 0
        else "only non-members" if members == 0
        else ""
    )  # fmt: skip
    measures = None if note else measure(s, m, **options)  # type: ignore[arg-type]
    return Slice(column, str(kind), members, others, measures, note)
