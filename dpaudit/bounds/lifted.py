"""Runs × canaries with intervals for exchangeable Bernoulli variables: asymptotic, coverage not promised."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from .. import check
from ..errors import DesignError, InputError
from ..records import BoolArray, Bound, Observations
from .choices import Bonferroni, Fixed, Split, Threshold
from .designs import digest, in_order, tested_adjacency
from .tails import Array, log_ratio
from .two_worlds import policy

METHOD = "LiDP: Wilson intervals of order {order} for exchangeable canaries (Pillutla et al. 2023)"
NULL = "(ε, δ)-DP mechanisms whose canaries are exchangeable and do not interfere; runs independent, and many"
NOTE = "asymptotic: coverage not promised"
ORDERS = (1, 2, 4)
CANDIDATES = 64


@dataclass(frozen=True, eq=False)
class Side:
    """One side of the coins, run by run: how many canaries were on it, and how many of those a threshold says "in" of.

    Runs without a canary on this side are left out.
    """

    sizes: Array
    hits: Array

    @classmethod
    def of(cls, says_in: BoolArray, side: BoolArray) -> Side:
        """From arrays (runs, canaries)."""
        sizes = side.sum(axis=1)
        seen = sizes > 0
        return cls(sizes[seen].astype(float), (says_in & side).sum(axis=1)[seen].astype(float))

    def moment(self, order: int) -> tuple[float, int]:
        """(mean, number of runs) of the unbiased estimates of P[``order`` canaries of a run are all hits].

        In a run with k canaries and s hits it is s (s − 1) … / (k (k − 1) …); runs with k < ``order`` say nothing.
        """
        rows = self.sizes >= order
        if not rows.any():
            return 0.0, 0
        falling = [(self.hits[rows] - i) / (self.sizes[rows] - i) for i in range(order)]
        return float(np.prod(falling, axis=0).mean()), int(rows.sum())


@dataclass(frozen=True, eq=False)
class Table:
    """Both sides of one threshold."""

    inside: Side
    outside: Side

    def epsilon(self, delta: float, level: float, order: int) -> tuple[float, tuple[float, float]]:
        """The bound and the (false positive, false negative) limits that it rests on; each fails at ``level`` / 2."""
        tpr = limits(self.inside, level / 2, order)[0]
        fpr = limits(self.outside, level / 2, order)[1]
        value = max(log_ratio(tpr - delta, fpr), log_ratio(1 - fpr - delta, 1 - tpr))
        return float(value), (fpr, 1 - tpr)


def lidp(
    obs: Observations,
    *,
    delta: float = 0.0,
    significance: float = 0.05,
    threshold: Threshold | None = None,
    order: int = 2,
) -> Bound:
    """The multi-canary bound of lifted differential privacy (Pillutla et al. 2023), over runs × canaries.

    A score above the threshold says "in". Over the members of a run the share of "in" estimates the true positive rate,
    over the others of the same run the false positive rate; both are averaged over runs. With p₁ at its lower and p₀ at
    its upper limit, ε ≥ ln((p₁ − δ) / p₀), and the same with the roles of "in" and "out" exchanged. The more canaries,
    the narrower the limits, as far as canaries of one run are not correlated; the correlation is measured.

    **What is assumed.** Canaries are exchangeable within a run: drawn alike, or put in and out at random, so that any
    two members of a run are like any other two. They do not interfere: what a canary's score looks like depends on its
    own coin, not on how many others are in. (The paper tests its null world on one canary that was left out; here the
    out-canaries of a run take that part.) Runs are independent, and many: the intervals are normal approximations, with
    no promise of coverage. Members and others of one run may be correlated: each limit is one-sided and takes half of
    the significance.

    Args:
        obs: scores, shape ``(runs, canaries)``; designs fair, fixed, worlds and (conditionally) unknown. Pairs never
            scored count as "out".
        delta: the δ of the bound.
        significance: the error probability that the limits aim at.
        threshold: :class:`Fixed`, :class:`Split` over runs (the default) or :class:`Bonferroni`.
        order: how many moments of a run's shares are used: 1 is Wilson over runs; 2 measures the correlation of two
            canaries, with the variance of that measurement bounded; 4 measures that variance too. One canary per run
            reduces to 1.

    Raises:
        DesignError: one run only, or scores that depend on the coins of other tested runs.

    >>> rng = np.random.default_rng(0)
    >>> member = rng.random((500, 32)) < 0.5
    >>> bound = lidp(Observations(member + rng.normal(size=member.shape), member), threshold=Fixed(1.5))
    >>> bound.kind, bound.any_mechanism
    ('asymptotic', False)
    """
    delta, significance = check.delta(delta), check.significance(significance)
    if order not in ORDERS:
        raise InputError(f"order must be one of {', '.join(map(str, ORDERS))}, got {order!r}")
    _require(obs)
    threshold = Split() if threshold is None else threshold
    tables = _tables(obs, delta, significance, threshold, order)
    level = significance / len(tables)
    bounds = [t.epsilon(delta, level, order) for t in tables]
    at = int(np.argmax([value for value, _ in bounds]))
    return Bound(
        epsilon=bounds[at][0],
        delta=delta,
        significance=significance,
        method=METHOD.format(order=order),
        null=NULL,
        any_mechanism=False,
        adjacency=tested_adjacency(obs.design, obs.shape),
        threshold=policy(threshold, 1),
        counts=_counts(tables[at], len(tables)),
        perfect=max(_perfect(t).epsilon(delta, level, order)[0] for t in tables),
        rates=bounds[at][1],
        notes=_notes(obs),
        kind="asymptotic",
    )


def _require(obs: Observations) -> None:
    if obs.design.calibration == "cross":
        raise DesignError(
            "lidp needs scores that depend on their own run alone, or on runs set aside; "
            'got Design(calibration="cross")'
        )
    if obs.shape[0] < 2:
        raise DesignError(f"lidp needs many independent runs, got {obs.shape[0]}; one_run and one_run_fdp take one")


def _notes(obs: Observations) -> tuple[str, ...]:
    together = obs.design.coins == "worlds" and obs.shape[1] > 1
    return (
        NOTE,
        *("canaries come and go together: a group, which only canaries that do not interfere make neighbours",)
        * together,
        *("conditional: holds only if membership fell by coins and runs are independent",)
        * (obs.design.coins == "unknown"),
    )


def _counts(table: Table, tests: int) -> dict[str, float]:
    inside, outside = table.inside, table.outside
    return {
        "runs": max(len(inside.sizes), len(outside.sizes)),
        "members": float(inside.sizes.sum()),
        "others": float(outside.sizes.sum()),
        "missed": float((inside.sizes - inside.hits).sum()),
        "false_alarms": float(outside.hits.sum()),
        "tests": tests,
    }


def _perfect(table: Table) -> Table:
    inside, outside = table.inside, table.outside
    return Table(Side(inside.sizes, inside.sizes), Side(outside.sizes, 0 * outside.sizes))


# --- limits ----------------------------------------------------------------------------------------------------------


def limits(side: Side, level: float, order: int) -> tuple[float, float]:
    """Lower and upper limit of the rate of hits; each fails with a probability that tends to ``level`` or less.

    A run's share of hits has variance h p + (1 − h) μ₂ − p², with h = 1 / canaries and μ₂ = P[two canaries are both
    hits]. Wilson's interval solves (p − p̂)² = z² variance / runs for p, at an upper limit of μ₂, which costs a share of
    ``level`` (Pillutla et al. 2023, algorithms 5 to 7). Canaries that differ in number enter by the mean of h.
    """
    rate, runs = side.moment(1)
    if runs == 0:
        return 0.0, 1.0
    h = float(np.mean(1.0 / side.sizes))
    if order == 1 or h == 1.0:
        return _wilson(rate, runs, level)
    share = level / order
    pairs = _second_upper(side, share) if order == 2 else _second_upper_by_four(side, share)
    return _solve(rate, runs, share, h, (1.0 - h) * pairs)


def _wilson(rate: float, runs: int, level: float) -> tuple[float, float]:
    """Wilson's interval for the mean of variables in [0, 1], whose variance is at most p − p²."""
    return (0.0, 1.0) if runs == 0 else _solve(rate, runs, level, 1.0, 0.0)


def _second_upper(side: Side, level: float) -> float:
    return _wilson(*side.moment(2), level)[1]


def _second_upper_by_four(side: Side, level: float) -> float:
    """An upper limit of μ₂ from the variance of its own estimate, with μ₃ and μ₄ at upper limits of their own.

    The estimate averages C(k, 2) pairs of canaries. Its variance is the mean product of two such pairs less μ₂²: a
    share 1 / C(k, 2) are the same pair, with mean μ₂; 2 (k − 2) / C(k, 2) have one canary in common, with mean μ₃; the
    others have mean μ₄. (The paper's algorithm 7 with the variance as it is, not bounded further.)
    """
    rate, runs = side.moment(2)
    if runs == 0:
        return 1.0
    k = side.sizes[side.sizes >= 2]
    ways = k * (k - 1) / 2
    same, common = float(np.mean(1 / ways)), float(np.mean(2 * (k - 2) / ways))
    third, fourth = (_wilson(*side.moment(i), level)[1] for i in (3, 4))
    return _solve(rate, runs, level, same, common * third + max(1.0 - same - common, 0.0) * fourth)[1]


def _solve(rate: float, runs: int, level: float, slope: float, constant: float) -> tuple[float, float]:
    """The roots p of runs (p − ``rate``)² = z² (``slope`` p + ``constant`` − p²), within [0, 1]."""
    z2 = float(ndtri(level)) ** 2
    a, b, c = runs + z2, 2 * runs * rate + z2 * slope, runs * rate**2 - z2 * constant
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return max((b - root) / (2 * a), 0.0), min((b + root) / (2 * a), 1.0)


# --- thresholds ------------------------------------------------------------------------------------------------------


def _tables(obs: Observations, delta: float, significance: float, threshold: Threshold, order: int) -> list[Table]:
    scores, member, present = in_order(obs)
    scores = np.where(present, scores, -np.inf)
    match threshold:
        case Fixed(value):
            return [_table(scores, member, value)]
        case Bonferroni(thresholds=values):
            return [_table(scores, member, value) for value in values]
        case Split():
            rng = np.random.default_rng([threshold.seed, digest(scores, member)])
            look = np.zeros(len(scores), bool)
            look[rng.permutation(len(scores))[: round(threshold.fraction * len(scores))]] = True
            value = _best_cut(scores[look], member[look], delta, significance, order)
            return [_table(scores[~look], member[~look], value)]
        case _:
            raise InputError(f"threshold must be Fixed, Split or Bonferroni, got {threshold!r}")


def _table(scores: Array, member: BoolArray, value: float) -> Table:
    above = scores > value
    return Table(Side.of(above, member), Side.of(above, ~member))


def _best_cut(scores: Array, member: BoolArray, delta: float, significance: float, order: int) -> float:
    """The threshold with the largest bound on these runs, among quantiles; midway to the next score above."""
    values = np.unique(scores[np.isfinite(scores)])
    if len(values) < 2:
        return float(values[0]) if len(values) else 0.0
    cuts = values[:-1] / 2 + values[1:] / 2
    cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, CANDIDATES).round().astype(int))]
    bounds = [_table(scores, member, float(cut)).epsilon(delta, significance, order)[0] for cut in cuts]
    top = np.flatnonzero(np.array(bounds) >= max(bounds))
    return float(cuts[top[len(top) // 2]])
