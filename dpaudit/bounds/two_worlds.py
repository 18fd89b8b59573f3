"""Many runs with and without a canary: exact confidence limits on both error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..accounting.claims import Claim
from ..accounting.curves import Curve
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from .choices import Bonferroni, Fixed, Ranks, Split, Threshold
from .designs import digest, require_runs, tested_adjacency
from .tails import Array, log_ratio, upper_limit

METHOD = "Clopper–Pearson over independent runs (Jagielski et al. 2020; Nasr et al. 2021)"
NULL = "any (ε, δ)-DP mechanism; runs independent"
_MOST_THRESHOLDS = 128


@dataclass(frozen=True)
class Confusion:
    """Counts of one threshold on one canary's runs: a score above it says "in", a run never scored says "out"."""

    members: int
    others: int
    missed: int
    false_alarms: int

    def limits(self, level: float) -> tuple[float, float]:
        """Upper limits of the (false positive, false negative) rates; each fails with probability ``level`` / 2."""
        fpr = upper_limit(self.false_alarms, self.others, level / 2)
        fnr = upper_limit(self.missed, self.members, level / 2)
        return float(fpr), float(fnr)

    @property
    def rates(self) -> tuple[float, float]:
        """(false positive, false negative) rates as counted."""
        return self.false_alarms / max(self.others, 1), self.missed / max(self.members, 1)


def clopper_pearson(
    obs: Observations,
    *,
    delta: float = 0.0,
    significance: float = 0.05,
    threshold: Threshold | None = None,
    claim: Claim | None = None,
) -> Bound:
    """Lower bound on ε from the two error rates of a threshold attack over independent runs, for any mechanism.

    Valid for designs ``worlds``, ``fair``, ``fixed`` and (conditionally) ``unknown``, with at least two runs. With
    several canaries each is bounded by itself and the significance is divided by their number.

    Args:
        obs: scores, shape ``(runs, canaries)``; a score above the threshold says "in".
        delta: the δ of the bound.
        significance: probability that the bound exceeds the true ε; half of it goes to each error rate.
        threshold: :class:`Fixed`, :class:`Split` (the default, half of the runs, seed 0), :class:`Bonferroni` over
            thresholds fixed beforehand, or :class:`Ranks` among the scores.
        claim: only for ``at_claim``.

    Raises:
        DesignError: one run only, or scores that depend on other tested runs.

    >>> import dpaudit
    >>> obs = dpaudit.Observations.from_worlds([1.0] * 500, [0.0] * 500)
    >>> round(clopper_pearson(obs, significance=0.01, threshold=Fixed(0.5)).epsilon, 2)
    4.54
    """
    delta, significance = check.delta(delta), check.significance(significance)
    threshold = Split() if threshold is None else threshold
    require_runs(obs, "clopper_pearson")
    tables = confusions(obs, delta, significance, threshold)
    level = significance / len(tables)
    values = [epsilon_lower(t, delta, level) for t in tables]
    best = tables[int(np.argmax(values))]
    notes = ("conditional: holds only if runs are independent",) * (obs.design.coins == "unknown")
    return Bound(
        epsilon=max(values),
        delta=delta,
        significance=significance,
        method=METHOD,
        null=NULL,
        any_mechanism=True,
        adjacency=tested_adjacency(obs.design, obs.shape),
        threshold=policy(threshold, obs.shape[1]),
        counts=table_counts(best, len(tables)),
        perfect=max(epsilon_lower(Confusion(t.members, t.others, 0, 0), delta, level) for t in tables),
        at_claim=None if claim is None else _ceiling(claim.curve, best, delta, level),
        rates=best.limits(level),
        notes=notes,
    )


def epsilon_lower(table: Confusion, delta: float, level: float) -> float:
    """max{ln((1 − δ − FNR) / FPR), ln((1 − δ − FPR) / FNR), 0} at the upper limits, rounded down."""
    fpr, fnr = table.limits(level)
    return float(max(log_ratio(1 - delta - fnr, fpr), log_ratio(1 - delta - fpr, fnr)))


def p_value(tables: Sequence[Confusion], curve: Curve) -> tuple[float, Confusion]:
    """The smallest level at which some table refutes the curve, each at its share of it; and that table."""
    values = [_p_value(table, curve) for table in tables]
    best = int(np.argmin(values))
    return min(values[best] * len(tables), 1.0), tables[best]


def _p_value(table: Confusion, curve: Curve) -> float:
    """The smallest level at which the corner of limits lies strictly below the curve."""

    def refuted(level: float) -> bool:
        fpr, fnr = table.limits(level)
        return fnr < float(curve.fnr(np.asarray(fpr)))

    if not refuted(1.0):
        return 1.0
    low, high = math.log(1e-30), 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(math.exp(middle)) else (middle, high)
    return math.exp(high)


def confusions(obs: Observations, delta: float, significance: float, threshold: Threshold) -> list[Confusion]:
    """One table for every canary and threshold of the policy; their number is what the significance is divided by."""
    assert obs.present is not None
    out = []
    for column in range(obs.shape[1]):
        scores = np.where(obs.present[:, column], obs.scores[:, column], -np.inf)
        member = obs.member[:, column]
        match threshold:
            case Fixed(value):
                out.append(_count(scores, member, value))
            case Bonferroni(thresholds=values):
                out.extend(_count(scores, member, value) for value in values)
            case Split():
                out.append(_split(scores, member, threshold, delta, significance)[1])
            case Ranks(ranks=ranks):
                out.extend(_at_ranks(scores, member, ranks))
            case _:
                raise InputError(f"threshold must be Fixed, Split, Bonferroni or Ranks, got {threshold!r}")
    return out


def _count(scores: Array, member: BoolArray, value: float) -> Confusion:
    above = scores > value
    return Confusion(
        members=int(member.sum()),
        others=int((~member).sum()),
        missed=int((member & ~above).sum()),
        false_alarms=int((above & ~member).sum()),
    )


def _at_ranks(scores: Array, member: BoolArray, ranks: tuple[int, ...]) -> list[Confusion]:
    """One table per rank and side.

    Just under the k-th highest of n scores without the canary, the upper limit of Bin(n) at k − 1 false alarms is the
    quantile of Beta(k, n − k + 1), the law of the rate above that score; so the table counts k − 1. The other side
    mirrors it. A rank that there are no scores for shows nothing.
    """
    outside, inside = np.sort(scores[~member])[::-1], np.sort(scores[member])
    high = [_high_rank(scores, member, outside, rank) for rank in ranks]
    return high + [_low_rank(scores, member, inside, rank) for rank in ranks]


def _high_rank(scores: Array, member: BoolArray, outside: Array, rank: int) -> Confusion:
    if rank > len(outside):
        return _nothing(member)
    # Not as counted: with ties fewer scores may lie above, and the rank was not chosen by that.
    return replace(_count(scores, member, outside[rank - 1]), false_alarms=rank - 1)


def _low_rank(scores: Array, member: BoolArray, inside: Array, rank: int) -> Confusion:
    if rank > len(inside) or not np.isfinite(inside[rank - 1]):
        return _nothing(member)
    return replace(_count(scores, member, np.nextafter(inside[rank - 1], -np.inf)), missed=rank - 1)


def _nothing(member: BoolArray) -> Confusion:
    inside, outside = int(member.sum()), int((~member).sum())
    return Confusion(inside, outside, inside, outside)


def chosen_threshold(obs: Observations, policy: Split, *, delta: float, significance: float) -> float:
    """Where :func:`clopper_pearson` with a :class:`Split` puts its threshold, for drawing it; one canary only.

    Raises:
        DesignError: one run only, or scores that depend on other tested runs.
    """
    require_runs(obs, "chosen_threshold")
    assert obs.present is not None
    if obs.shape[1] != 1:
        raise InputError(f"chosen_threshold takes the runs of one canary, got {obs.shape[1]}")
    scores = np.where(obs.present[:, 0], obs.scores[:, 0], -np.inf)
    return _split(scores, obs.member[:, 0], policy, check.delta(delta), check.significance(significance))[0]


def _split(
    scores: Array, member: BoolArray, policy: Split, delta: float, significance: float
) -> tuple[float, Confusion]:
    """Choose on a part of the runs, count on the rest; both parts take the same share of members and others."""
    # Sorted by score first, so that the order of the rows never matters; drawn from the scores as well as the seed,
    # since a seed alone would always pick the same ranks.
    both = [np.flatnonzero(kind)[np.argsort(scores[kind], kind="stable")] for kind in (member, ~member)]
    rng = np.random.default_rng([policy.seed, digest(*(scores[rows] for rows in both))])
    look = np.zeros(len(scores), bool)
    for rows in both:
        look[rng.permutation(rows)[: round(policy.fraction * len(rows))]] = True
    ways = [np.where(np.isfinite(scores), sign * scores, -np.inf) for sign in policy.signs]
    found = [best_threshold(way[look], member[look], delta, significance) for way in ways]
    best = max(range(len(ways)), key=lambda i: found[i][1])
    value = found[best][0]
    return value, _count(ways[best][~look], member[~look], value)


def best_threshold(scores: Array, member: BoolArray, delta: float, significance: float) -> tuple[float, float]:
    """The threshold with the largest bound on these scores, midway to the next score above; and that bound.

    What it is chosen on must be no part of what a bound is then computed on.

    Args:
        scores: of runs set aside, shape ``(runs,)``; higher says "in".
        member: which of these runs had the canary, same shape.
    """
    values = np.unique(scores[np.isfinite(scores)])
    if len(values) == 0:
        return 0.0, 0.0
    tried = _spread(len(values))
    missed = np.searchsorted(np.sort(scores[member]), values[tried], side="right")
    alarms = (~member).sum() - np.searchsorted(np.sort(scores[~member]), values[tried], side="right")
    fpr = upper_limit(alarms, (~member).sum(), significance / 2)
    fnr = upper_limit(missed, member.sum(), significance / 2)
    bound = np.maximum(log_ratio(1 - delta - fnr, fpr), log_ratio(1 - delta - fpr, fnr))
    best = int(np.argmax(bound - 1e-9 * (fpr + fnr)))
    at = int(tried[best])
    return float(values[at] if at + 1 == len(values) else (values[at] + values[at + 1]) / 2), float(bound[best])


def _spread(count: int) -> NDArray[np.intp]:
    """Which of so many thresholds to try: all, or of many those some per cent of their rank apart, from both ends."""
    if count <= _MOST_THRESHOLDS:
        return np.arange(count)
    ranks = np.unique(np.geomspace(1, count, _MOST_THRESHOLDS // 2).astype(np.intp)) - 1
    return np.union1d(ranks, count - 1 - ranks)


def table_counts(table: Confusion, tests: int) -> dict[str, float]:
    """For a :class:`~dpaudit.Bound`; ``tests`` is what the significance was divided by."""
    return {
        "members": table.members,
        "others": table.others,
        "missed": table.missed,
        "false_alarms": table.false_alarms,
        "tests": tests,
    }


def policy(threshold: Threshold, canaries: int) -> str:
    """The threshold policy in words, with what the choice of a canary cost."""
    return str(threshold) + (
        f"; best of {canaries} canaries, significance divided by {canaries}" if canaries > 1 else ""
    )


def _ceiling(curve: Curve, table: Confusion, delta: float, level: float) -> float:
    """The bound of an optimal attacker with the median counts at the best threshold."""
    fpr = np.concatenate([np.linspace(0, 1, 201), np.geomspace(1e-6, 1, 100)])
    alarms = np.round(fpr * table.others)
    missed = np.round(curve.fnr(fpr) * table.members)
    fpr = upper_limit(alarms, np.full(len(fpr), table.others), level / 2)
    fnr = upper_limit(missed, np.full(len(fpr), table.members), level / 2)
    return float(np.max(np.maximum(log_ratio(1 - delta - fnr, fpr), log_ratio(1 - delta - fpr, fnr))))
