"""Many runs, fed one by one: a bet against the claim that may be looked at, and stopped, at any time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..accounting.claims import Claim
from ..errors import InputError
from .tails import SLACK, Array

SCHEMA = "dpaudit.betting/1"
LARGEST_EPSILON = 700.0
# Shares of the largest stake, and of the first wealth that is played with each. The largest share stays below 1, so
# that no bettor is ever ruined for good and every logarithm is finite.
STAKES = np.array([0.999, 0.8, 0.5, 0.25, 0.1, 0.03])
STAKE_WEIGHTS = np.array([0.3, 0.15, 0.15, 0.15, 0.15, 0.1])
# "A high score says in", "a low score says out", and half of the stake on each.
DIRECTION_WEIGHTS = np.array([0.25, 0.25, 0.5])
LOG_WEIGHTS = np.log(np.outer(DIRECTION_WEIGHTS, STAKE_WEIGHTS))
# What thresholds are learned from: so many candidates, at most so many scores, and again when rounds grew by a quarter.
CANDIDATES = 64
MEMORY = 2**15
GROWTH = 1.25

Round = tuple[tuple[float, ...], tuple[float, ...]]
Thresholds = tuple[tuple[float | None, ...], tuple[float | None, ...]]


@dataclass(frozen=True)
class Payoff:
    """What a round pays per unit of stake, times e^−ε so that nothing overflows.

    For a test function f, (in above, out above) the shares of f: c · inside − outside − c δ with c = e^−ε; the loss is
    at most ``worst`` + c δ, where ``worst`` is 1 for a pair of runs and 2 for one run of several canaries.
    """

    epsilon: float
    delta: float
    worst: float

    def __call__(self, inside: Any, outside: Any) -> Any:
        c = math.exp(-self.epsilon)
        return c * inside - outside - c * self.delta

    @property
    def scale(self) -> float:
        """The largest stake in these units."""
        return 1.0 / (self.worst + math.exp(-self.epsilon) * self.delta)


@dataclass(frozen=True)
class Betting:
    """The state of a sequential test of "(ε, δ)-DP", to be fed with independent runs in run order.

    **What is promised.** If training is (ε, δ)-DP in each canary given the others, ``refuted`` ever turns true with
    probability at most ``significance``, however long one goes on and for whatever reason one stops. ``p_value`` holds
    at any time in the same sense.

    **A round.** With one canary per run, a round is a pair: each in-run with an out-run, in order of arrival. With
    several, every run is a round of its own. For a test function f with values in [0, 1] and a stake λ, wealth is
    multiplied by

    - pair (x in, y out): 1 + λ (f(x) − e^ε f(y) − δ), 0 ≤ λ ≤ 1 / (e^ε + δ);
    - run of N canaries with coins S: 1 + λ ((2/N) Σ_j (S_j f(x_j) − (1 − S_j) e^ε f(x_j)) − δ), 0 ≤ λ ≤ 1/(2 e^ε + δ).

    Neither is ever negative. (Betting after Waudby-Smith & Ramdas 2024; its use for differential privacy after González
    et al. 2025.)

    **Why the mean of a factor is at most 1.** Let f and λ be fixed. By the definition of (ε, δ)-DP,
    E f(x | in) ≤ e^ε E f(x | out) + δ, for indicators and so for all f in [0, 1]. A pair's mean is therefore at most 1.
    For a run, take one canary j and the coins of the others as given: S_j is fair and independent of them, so that
    E[2 S_j f(x_j)] = E[f(x_j) | S_j = 1] and E[2 (1 − S_j) f(x_j)] = E[f(x_j) | S_j = 0]; the run with S_j = 1 and the
    one with S_j = 0 are neighbours (add or remove), the score is a function of the outputs, so their difference
    E[f | 1] − e^ε E[f | 0] is at most δ. Average over the others' coins and over j: the mean is at most 1, however
    canaries depend on each other. That is why canaries of one run are averaged: a product of their factors has no such
    mean. The same holds for f' = "the score is low" with the roles of in and out exchanged, since neighbours are
    neighbours both ways.

    **Why the product is a test supermartingale.** The f and λ of round k are functions of the rounds before k alone
    (never of a score of round k, also not of the half of a pair that arrived before earlier pairs were complete).
    Pairs share no run, runs are independent and the schedule of in and out is fair coins or fixed beforehand, so round
    k is independent of the past of f and λ, and wealth times factor has a mean of at most wealth. Averages of such
    processes with fixed weights are such processes: directions and stakes are mixed by averaging wealth. By Ville's
    inequality wealth ever reaches 1 / significance with probability at most significance.

    **What it rests on.** One canary: all runs are alike given membership (the same trainer, canary and attack; no
    drift), and membership does not depend on scores. Several: independent fair coins; the attack may learn from past
    runs and their coins, never from coins of the run it scores. ``e_value`` at a stopping time is an e-value only if
    the reason to stop ignores the scores of runs that still wait for a partner; ``p_value`` and ``refuted`` don't mind.

    **How bets are chosen.** For each direction and each share of the largest stake, the threshold under which the
    rounds so far would have grown the most with that stake, or no bet while none would have grown; learned again
    whenever the rounds grew by a quarter, from the first ``MEMORY`` scores.

    Attributes:
        claim, delta, significance: what is tested and how surely.
        epsilon: the claim's ε at ``delta``.
        canaries: per run, fixed by the first run; None before it.
        runs: how many were fed.
        rounds: how many factors the wealth is a product of.
        wealth: logarithm of each bettor's wealth, all 0 at the start; direction by direction, stake by stake.
        log_best: the largest logarithm of the mixed wealth so far.
        waiting, waiting_in: scores of the runs that wait for a partner, oldest first, and which side they are on.
        past: the rounds that thresholds are learned from, each as (sorted scores in, sorted scores out).
        thresholds: now bet with, for both directions and each stake; None for no bet.
        learned: number of rounds that they were learned from.
    """

    claim: Claim
    delta: float
    significance: float
    epsilon: float
    canaries: int | None = None
    runs: int = 0
    rounds: int = 0
    wealth: tuple[float, ...] = (0.0,) * LOG_WEIGHTS.size
    log_best: float = 0.0
    waiting: tuple[float, ...] = field(default=(), repr=False)
    waiting_in: bool = False
    past: tuple[Round, ...] = field(default=(), repr=False)
    thresholds: Thresholds = ((None,) * len(STAKES),) * 2
    learned: int = 0

    def update(self, scores: ArrayLike, member: ArrayLike) -> Betting:
        """The state after one more run.

        Args:
            scores: of the run's canaries, shape ``(canaries,)`` or a number; higher says "in".
            member: whether each was in the training set, same shape. The order of canaries never matters.

        Raises:
            InputError: NaN or infinite scores, membership that is no truth value, another number of canaries.
        """
        values, inside = _run(scores, member, self.canaries)
        state = self if self.canaries else replace(self, canaries=len(values))
        if len(values) > 1:
            changes = state._settled((_sorted(values[inside]), _sorted(values[~inside])))
        else:
            changes = state._paired(float(values[0]), bool(inside[0]))
        return replace(state, runs=self.runs + 1, **changes)

    def _paired(self, score: float, inside: bool) -> dict[str, Any]:
        """What changes with one more run of one canary."""
        if not self.waiting or self.waiting_in == inside:
            return {"waiting": (*self.waiting, score), "waiting_in": inside}
        partner, *others = self.waiting
        pair = ((score,), (partner,)) if inside else ((partner,), (score,))
        return {"waiting": tuple(others), **self._settled(pair)}

    def _settled(self, played: Round) -> dict[str, Any]:
        """What changes with a round: the wealth first, then what is learned from it."""
        payoff = self._payoff
        wealth = np.add(self.wealth, _log_factors(played, self.thresholds, payoff).ravel())
        best = max(self.log_best, _log_mean(wealth))
        past = (*self.past, played) if self._has_room else self.past
        changes = {"rounds": self.rounds + 1, "wealth": tuple(wealth.tolist()), "log_best": best, "past": past}
        if len(past) <= self.learned or len(past) < GROWTH * self.learned:
            return changes
        return {**changes, "thresholds": _learned(past, payoff), "learned": len(past)}

    @property
    def _has_room(self) -> bool:
        return len(self.past) * self._scores_per_round < MEMORY

    @property
    def _scores_per_round(self) -> int:
        return max(self.canaries or 1, 2)

    @property
    def _payoff(self) -> Payoff:
        return Payoff(self.epsilon, self.delta, 2.0 if (self.canaries or 1) > 1 else 1.0)

    @property
    def log_e_value(self) -> float:
        """The logarithm of :attr:`e_value`."""
        return _log_mean(self.wealth)

    @property
    def e_value(self) -> float:
        """The wealth now: evidence against the claim, 1 at the start; capped at e^700."""
        return math.exp(min(self.log_e_value, LARGEST_EPSILON))

    @property
    def best(self) -> float:
        """The largest wealth so far; capped at e^700."""
        return math.exp(min(self.log_best, LARGEST_EPSILON))

    @property
    def p_value(self) -> float:
        """min(1, 1 / best), valid at any time; rounded up."""
        return min(1.0, math.exp(-self.log_best) * (1 + SLACK))

    @property
    def refuted(self) -> bool:
        """Whether the wealth ever reached 1 / ``significance``."""
        return self.p_value <= self.significance

    @property
    def pairs(self) -> int:
        """Pairs of runs that were played: matched ones with one canary, any two runs with several."""
        return self.rounds if (self.canaries or 1) == 1 else self.runs // 2

    @property
    def floor(self) -> int:
        """The least number of pairs after which any attacker, a perfect one too, can have refuted the claim.

        The largest factor of a pair is 1 + (1 − δ) / (e^ε + δ). Half of several canaries in, half out, earn about half
        of that in each run, so the number is much the same.
        """
        gain = (1.0 - self.delta) * math.exp(-self.epsilon) * self._pair.scale
        return math.ceil(-math.log(self.significance) / math.log1p(gain) * (1 - SLACK))

    @property
    def _pair(self) -> Payoff:
        return Payoff(self.epsilon, self.delta, 1.0)

    def expected_runs(self, truth: Claim) -> float:
        """About how many runs an optimal attacker on ``truth`` needs, with its best constant threshold and stake.

        ln(1 / significance) over the growth rate (Wald), times two for pairs; infinite where no threshold grows. A
        learner of thresholds and stakes pays on top of it. Several canaries are taken not to interfere, and their sum
        to be about normal. The number of canaries is that of the runs fed so far, one before them.
        """
        fpr = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, 3000)])
        tpr = 1.0 - truth.fnr(fpr)
        several = (self.canaries or 1) > 1
        rates = _run_growth(self._payoff, tpr, fpr, self.canaries or 1) if several else _growth(self._pair, tpr, fpr)
        growth = float(rates.max())
        return -math.log(self.significance) * (1.0 if several else 2.0) / growth if growth > 0 else math.inf

    def document(self) -> dict[str, Any]:
        """The state as strict JSON can hold it, without loss; :meth:`of` reads it back."""
        content = {name: value for name, value in asdict(self).items() if name != "claim"}
        lists = {name: _lists(value) for name, value in content.items()}
        return {"schema": SCHEMA, "claim": self.claim.document(), **lists}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Betting:
        """The state that :meth:`document` wrote.

        Raises:
            InputError: another schema, or fields that do not fit it.
        """
        content = dict(document)
        check.choice("schema of a betting state", content.pop("schema", None), (SCHEMA,))
        try:
            claim = Claim.of(content.pop("claim"))
            return cls(claim=claim, **{name: _tuples(value) for name, value in content.items()})
        except (KeyError, TypeError) as error:
            raise InputError(f"a betting state must have the fields of {SCHEMA}, got {error}") from None


def sequential(claim: Claim, delta: float, significance: float = 0.05) -> Betting:
    """A test of the claim's ε at ``delta`` that is fed run by run and may stop at any time; see :class:`Betting`.

    >>> state = sequential(Claim.pair(epsilon=1.0, delta=0.0), 0.0)
    >>> state.floor
    10
    >>> for run in range(40):
    ...     state = state.update(float(run % 2), run % 2 == 1)
    >>> state.pairs, state.refuted
    (20, True)

    Args:
        claim: what was promised.
        delta: at which δ it is tested.
        significance: probability that a true claim is ever refuted.

    Raises:
        InputError: the claim has no ε at ``delta``, or one above 700.
    """
    delta, significance = check.delta(delta), check.significance(significance)
    epsilon = claim.epsilon(delta)
    if not epsilon <= LARGEST_EPSILON:
        raise InputError(f"the claim's epsilon at delta {delta:g} must be in [0, {LARGEST_EPSILON:g}], got {epsilon!r}")
    return Betting(claim, delta, significance, epsilon)


def _run(scores: ArrayLike, member: ArrayLike, canaries: int | None) -> tuple[Array, np.ndarray]:
    """One run's scores and membership as vectors."""
    try:
        values = np.atleast_1d(np.asarray(scores, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError("scores must be numbers in a (canaries,) array") from None
    flags = np.atleast_1d(np.asarray(member))
    if values.ndim != 1 or values.size == 0 or flags.shape != values.shape:
        raise InputError(f"scores and member must be one run's, (canaries,), got {values.shape} and {flags.shape}")
    if canaries is not None and len(values) != canaries:
        raise InputError(f"scores must be of the {canaries} canaries that the first run had, got {len(values)}")
    if not np.isfinite(values).all():
        raise InputError(f"scores must be finite, got NaN or infinity in {int((~np.isfinite(values)).sum())} places")
    if flags.dtype.kind not in "biuf" or not ((flags == 0) | (flags == 1)).all():
        raise InputError(f"member must be true or false (1 or 0), got {flags.dtype} with other values")
    return values, flags.astype(bool)


def _log_mean(wealth: ArrayLike) -> float:
    """The logarithm of the bettors' wealth, mixed with their weights."""
    return float(np.logaddexp.reduce(np.add(wealth, LOG_WEIGHTS.ravel())))


def _sorted(values: Array) -> tuple[float, ...]:
    return tuple(np.sort(values).tolist())


def _log_factors(played: Round, thresholds: Thresholds, payoff: Payoff) -> Array:
    """The logarithm of each bettor's factor, shape (directions, stakes)."""
    inside, outside = (np.array(side)[:, None] for side in played)
    weight = 2.0 / (len(inside) + len(outside))
    cuts = np.array([[math.nan if t is None else t for t in row] for row in thresholds])
    high = payoff(weight * (inside > cuts[0]).sum(axis=0), weight * (outside > cuts[0]).sum(axis=0))
    low = payoff(weight * (outside <= cuts[1]).sum(axis=0), weight * (inside <= cuts[1]).sum(axis=0))
    high, low = (np.where(np.isnan(cut), 0.0, pay) for cut, pay in zip(cuts, (high, low), strict=True))
    return np.log1p(STAKES * payoff.scale * np.array([high, low, (high + low) / 2]))


def _learned(past: tuple[Round, ...], payoff: Payoff) -> Thresholds:
    """For both directions and each stake: the threshold that would have earned the most in these rounds."""
    scores = np.array([inside + outside for inside, outside in past])
    member = np.arange(scores.shape[1]) < np.array([len(inside) for inside, _ in past])[:, None]
    cuts = _candidates(np.unique(scores))
    if len(cuts) == 0:
        return ((None,) * len(STAKES),) * 2
    above = scores[:, :, None] > cuts
    weight = 2.0 / scores.shape[1]
    inside, outside = ((above & side[:, :, None]).sum(axis=1) for side in (member, ~member))
    members = member.sum(axis=1)[:, None]
    high = payoff(weight * inside, weight * outside)
    low = payoff(weight * (scores.shape[1] - members - outside), weight * (members - inside))
    return _best_cuts(high, cuts, payoff), _best_cuts(low, cuts, payoff)


def _candidates(values: Array) -> Array:
    """Midpoints between neighbours among the sorted ``values``; if too many, denser towards both ends."""
    cuts = values[:-1] / 2 + values[1:] / 2
    if len(cuts) <= CANDIDATES:
        return cuts
    ranks = np.round(np.geomspace(1, len(cuts) / 2, CANDIDATES // 2)).astype(int) - 1
    return cuts[np.unique(np.concatenate([ranks, len(cuts) - 1 - ranks]))]


def _best_cuts(pays: Array, cuts: Array, payoff: Payoff) -> tuple[float | None, ...]:
    """Per stake, the candidate that grew the most over the rounds; the middle one of several; None if none grew."""
    out: list[float | None] = []
    for stake in STAKES * payoff.scale:
        growth = np.log1p(stake * pays).sum(axis=0)
        top = np.flatnonzero(growth >= growth.max() - SLACK)
        out.append(float(cuts[top[len(top) // 2]]) if growth.max() > SLACK else None)
    return tuple(out)


def _growth(pair: Payoff, tpr: Array, fpr: Array) -> Array:
    """Mean log-growth of a pair at these rates, for stakes from nothing to all; shape (stakes, rates)."""
    stake = _stakes(pair)
    total = np.zeros((len(stake), len(fpr)))
    for inside, p in ((1.0, tpr), (0.0, 1.0 - tpr)):
        for outside, q in ((1.0, fpr), (0.0, 1.0 - fpr)):
            total += np.log1p(stake * pair(inside, outside)) * p * q
    return total


def _run_growth(payoff: Payoff, tpr: Array, fpr: Array, canaries: int) -> Array:
    """The same for a run of several canaries, whose average is taken as normal."""
    c = math.exp(-payoff.epsilon)
    mean = payoff(tpr, fpr)
    spread = np.sqrt(np.maximum(2 * (c**2 * tpr + fpr) - (c * tpr - fpr) ** 2, 0.0) / canaries)
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    lowest, highest = payoff(0.0, payoff.worst), payoff(payoff.worst, 0.0)
    stake, total = _stakes(payoff), 0.0
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        total = total + weight * np.log1p(stake * np.clip(mean + node * spread, lowest, highest))
    return np.asarray(total)


def _stakes(payoff: Payoff) -> Array:
    return (np.append(np.geomspace(1e-4, 0.9, 60), [0.95, 0.99, 0.999]) * payoff.scale)[:, None]


def _lists(value: Any) -> Any:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
