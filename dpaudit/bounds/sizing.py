"""How many runs or canaries an audit needs before it can refute a claim that is some factor too low.

Everything is computed for ideal scores (the likelihood ratio of a mechanism that leaks exactly so much) and from exact
tails; real attacks are weaker, so every number here is a floor for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from scipy.special import betaincinv

from .. import check
from ..accounting.claims import Claim
from ..accounting.mechanisms import Gaussian
from ..errors import InputError
from ..records import Observations, PlannedTest
from . import ranks, recursion, steinke
from .choices import Fixed, Ranks, Split, Threshold
from .families import family_of, largest_refuted
from .halves import HalfAndHalf
from .ideal import error_rate
from .planning import candidates, refuter
from .tails import SLACK, Array, at_most, mass, upper_limit
from .two_worlds import clopper_pearson

CANARIES = 40
MOST_COINS = 100_000
MOST_WORLDS = 100_000  # runs with the canary, and as many without
ANY_MECHANISM = "any mechanism with the claim's curve"
RECIPE = "the claim's recipe, canaries independent: not the stated mechanism; never a verdict"
_NODES = (np.arange(48) + 0.5) / 48
_DEVIATIONS = 10.0


@dataclass(frozen=True)
class OutOfReach:
    """No number up to a limit has the power.

    Attributes:
        below: the largest number that was tried.
        unit: what is counted: ``coins`` or ``runs``.
        reason: why, in words.
    """

    below: int
    unit: str
    reason: str

    def __str__(self) -> str:
        return f"not reachable below {self.below:,} {self.unit}: {self.reason}"


@dataclass(frozen=True)
class Size:
    """What one design needs.

    Attributes:
        design: ``worlds-fixed``, ``worlds-ranks``, ``worlds-split``, ``sequential``, ``one-canary``, ``one-run``,
            ``pooled``, ``pooled-by-runs`` or ``order-statistics``.
        runs: training runs in all; None if out of reach.
        canaries: canaries per run.
        coins: membership bits in all, runs × canaries.
        guesses: how many to guess in all, for coins; to be fixed beforehand.
        fpr: false positive rate of the threshold to be fixed beforehand, for ``worlds-fixed``.
        floor: for coins: with fewer, no test at all refutes the claim, even if every guess is right.
        power: probability that ideal scores on the leaking mechanism refute the claim; where ``at_least``, at most so.
        perfect: the lower bound on ε if every guess is right; None where it was not computed.
        at_claim: the median lower bound of an optimal attacker on a mechanism that spends exactly the claim.
        null: which mechanisms the test speaks of.
        any_mechanism: whether the test may carry a verdict.
        test: the planned test, as :func:`dpaudit.audit` takes it; None where a threshold is still to be found, and for
            tests that never carry a verdict.
        searched: which numbers were tried, and what is known of smaller ones.
        at_least: whether ``runs`` is only a floor.
        out_of_reach: set, with its reason, where no number up to a limit has the power.
    """

    design: str
    runs: int | None
    canaries: int | None
    searched: str
    guesses: int | None = None
    fpr: float | None = None
    floor: int | None = None
    power: float | None = None
    perfect: float | None = None
    at_claim: float | None = None
    null: str = ANY_MECHANISM
    any_mechanism: bool = True
    test: PlannedTest | None = None
    at_least: bool = False
    out_of_reach: OutOfReach | None = None

    @property
    def coins(self) -> int | None:
        """Runs × canaries; None if out of reach."""
        return None if self.runs is None or self.canaries is None else self.runs * self.canaries


@dataclass(frozen=True)
class Recommendation:
    """The design to take, or None if none is within reach; and why, in one sentence."""

    size: Size | None
    why: str


@dataclass(frozen=True)
class _Question:
    """What is asked of every design."""

    claim: Claim
    truth: Claim
    delta: float
    power: float
    level: float

    @property
    def epsilon(self) -> float:
        return self.claim.epsilon(self.delta)


def size(
    claim: Claim,
    *,
    delta: float,
    factor: float = 2.0,
    power: float = 0.9,
    significance: float = 0.05,
    canaries: int = CANARIES,
    runs: int | None = None,
) -> tuple[Size, ...]:
    """The smallest audit of each design that refutes ``claim`` if the mechanism leaks ``factor`` times as much.

    Every test is the only one of its plan, at the whole ``significance``.

    Args:
        claim: a recipe, whose noise is scaled until ε(``delta``) is ``factor`` times the claimed one; or a pair, for
            which the mechanism is randomised response at ``factor`` · ε.
        delta: the δ at which ε is compared.
        power: the probability of refuting that is asked for, in (0.5, 1).
        significance: the probability that a true claim is refuted, in (0, 0.5).
        canaries: per run, for runs × canaries; how many a run can hold.
        runs: if given, also how many canaries each of so many runs needs.

    Raises:
        InputError: an argument is out of range, or the claim's ε at ``delta`` is 0 or infinite.

    >>> found = {s.design: s for s in size(Claim.pair(epsilon=4.0, delta=1e-5), delta=1e-5)}
    >>> found["worlds-fixed"].runs, found["one-canary"].runs, found["pooled"].runs
    (412, 194, 5)
    >>> recommend(tuple(found.values())).size.design
    'pooled'
    """
    question = _question(claim, delta, factor, power, significance)
    canaries = check.integer("canaries", canaries, 1)
    runs = None if runs is None else check.integer("runs", runs, 1)
    worlds, guessing = _Worlds(question), _Guessing(question, _by_audit(question), _lower_by_audit(question))
    out = [_fixed(worlds), _ranked(worlds), _split(worlds), _sequential(question)]
    out += [_one_canary(guessing), _one_run(guessing), _pooled(guessing, canaries)]
    out += [] if runs is None else [_pooled_by_runs(guessing, runs)]
    out += [_order_statistics(question)] if claim.has_recipe else []
    return tuple(out)


def recommend(sizes: Sequence[Size], *, canaries: int = CANARIES, runs: int | None = None) -> Recommendation:
    """The size within reach with the fewest training runs; of those, with the fewest coins.

    Args:
        sizes: from :func:`size`.
        canaries: how many a run can hold.
        runs: how many can be afforded; any number if None.
    """
    usable = [s for s in sizes if s.any_mechanism and not s.at_least and s.runs is not None]
    fitting = [s for s in usable if (s.canaries or 0) <= canaries and (runs is None or (s.runs or 0) <= runs)]
    if not fitting:
        return Recommendation(None, _why_none(usable, canaries, runs))
    best = min(fitting, key=lambda s: (s.runs, s.coins))
    return Recommendation(best, _why(best, {s.design: s for s in sizes}))


def _why_none(usable: Sequence[Size], canaries: int, runs: int | None) -> str:
    if not usable:
        return "no design is within reach: see the reason of each"
    limit = f"{canaries} canaries a run" + ("" if runs is None else f" and {runs:,} runs")
    pooled = [s for s in usable if s.canaries == canaries] or usable
    return f"no design fits {limit}; the nearest takes {min(s.runs or 0 for s in pooled):,} runs"


def _why(best: Size, by_design: dict[str, Size]) -> str:
    if best.guesses is None:
        return f"{best.runs:,} runs, half with and half without one canary, are the fewest"
    worlds = [s.runs for name, s in by_design.items() if name.startswith("worlds-") and s.runs and not s.at_least]
    others = f"where two worlds take {min(worlds):,} runs" if worlds else "where two worlds are out of reach"
    runs = "1 run" if best.runs == 1 else f"{best.runs:,} runs"
    why = f"{best.coins:,} coins from {runs} of {best.canaries:,} canaries have the power, {others}"
    if best.floor is None or best.coins is None or 2 * best.floor < best.coins:
        return why
    cheap = "" if best.canaries == 1 else ", and canaries are the cheap way to have them"
    return f"{why}; even an attacker who is always right needs {best.floor:,} coins{cheap}"


def _question(claim: Claim, delta: float, factor: float, power: float, significance: float) -> _Question:
    delta, significance = check.delta(delta), check.significance(significance)
    power = check.number("power", power, 0.5, 1.0, ends="()")
    factor = check.number("factor", factor, 1.0, math.inf, ends="()")
    epsilon = claim.epsilon(delta)
    if not 0.0 < epsilon < math.inf:
        raise InputError(f"the claim's ε at delta must be above 0 and finite, got {epsilon:g} at {delta:g}")
    return _Question(claim, claim.leaking(factor, delta), delta, power, significance)


# --- searching -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """What came of looking for a number that has the power; ``number`` is None if none up to ``limit`` was found."""

    number: int | None
    searched: str
    limit: int
    reason: str = ""

    def out_of_reach(self, unit: str, each: int = 1) -> OutOfReach:
        return OutOfReach(each * self.limit, unit, self.reason)


def _smallest(power: Callable[[int], float], wanted: float, first: int, most: int) -> _Search:
    """Look for a number that has the power while the next smaller one has not.

    Counts are discrete, so power may fall a little as numbers grow: smaller ones may have it too.
    """
    tried = {first: power(first)}
    high = first
    while tried[high] < wanted:
        if high == most:
            best = max(tried, key=lambda n: tried[n])
            reason = f"the largest power on the way was {tried[best]:.2g}"
            return _Search(None, f"doubled from {first:,} to {most:,}", most, reason)
        high = min(2 * high, most)
        tried[high] = power(high)
    low, searched = max((n for n in tried if n < high), default=first - 1), f"doubled from {first:,} to {high:,}"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    missed = f"{high:,} has the power and {high - 1:,} has not, smaller ones were not all tried"
    return _Search(high, f"{searched}, then halved the gap; {missed}", most)


# --- two worlds ------------------------------------------------------------------------------------------------------


class _Worlds:
    """Power of thresholds over n runs with the canary and n without, one canary per run."""

    def __init__(self, question: _Question) -> None:
        self.question = question
        self._claimed, self._truth = question.claim.curve, question.truth.curve
        self._corner = error_rate(self._truth, 1, 1)  # where both errors of the leaking mechanism are the same
        self.fixed = cache(self._fixed)

    def _fixed(self, n: int) -> tuple[float, float]:
        """The power of the best threshold that is fixed beforehand, and its false positive rate.

        :func:`dpaudit.bounds.ideal.threshold_power` for equal numbers of runs: the curves are symmetric then, so rates
        up to the corner will do, and of each binomial only ten standard deviations (the rest counts as no power).
        """
        rates = np.geomspace(min(0.01 / n, self._corner / 2), self._corner, 40)
        last = min(int(_window(self._corner, n)[1]), n)
        limits = upper_limit(np.arange(last + 1), np.full(last + 1, n), self.question.level / 2)
        missed = _most_missed(self._claimed.fnr(limits), n, self.question.level / 2)
        fnrs = self._truth.fnr(rates)
        powers = [_corner_power(a, b, missed, n) for a, b in zip(rates, fnrs, strict=True)]
        best = int(np.argmax(powers))
        return powers[best], float(rates[best])

    def ranked(self, n: int) -> float:
        """:func:`dpaudit.bounds.ideal.rank_power` of the default ranks, for equal numbers of runs."""
        ranks = np.array([k for k in Ranks().ranks if k <= n])
        level = self.question.level / (2 * len(Ranks().ranks))
        limits = upper_limit(ranks - 1, np.full(len(ranks), n), level / 2)
        missed = _most_missed(self._claimed.fnr(limits), n, level / 2)
        rates = betaincinv(ranks[:, None], n - ranks[:, None] + 1, _NODES)
        hits = at_most(missed[:, None], n, self._truth.fnr(rates))
        return float(hits.mean(axis=1).max())


def _window(rate: float, n: int) -> tuple[int, int]:
    """The counts of Bin(``n``, ``rate``) that are not negligible: the first, and one past the last."""
    spread = _DEVIATIONS * (1 + math.sqrt(n * rate))
    return max(int(n * rate - spread), 0), min(int(n * rate + spread), n) + 1


def _most_missed(allowed: Array, n: int, level: float) -> Array:
    """The largest count whose Clopper–Pearson upper limit at ``level`` is below ``allowed``; −1 if there is none.

    The limit of j is below x just where P[Bin(n, x) ≤ j] < level.
    """
    allowed = np.asarray(allowed, float) / (1 + SLACK)
    low, high = np.full(allowed.shape, -1.0), np.full(allowed.shape, float(n))
    for _ in range(n.bit_length() + 1):
        middle = np.floor((low + high) / 2)
        below = (at_most(middle, n, allowed) < level) & (middle > low)
        low, high = np.where(below, middle, low), np.where(below, high, np.maximum(middle, low + 1))
    return low


def _corner_power(fpr: float, fnr: float, most_missed: Array, n: int) -> float:
    first, end = _window(fpr, n)
    alarms = mass(np.arange(first, end), n, fpr)[: len(most_missed) - first]
    return float(min(np.sum(alarms * at_most(most_missed[first:end], n, fnr)), 1.0))


def _fixed(worlds: _Worlds) -> Size:
    found = _smallest(lambda n: worlds.fixed(n)[0], worlds.question.power, 2, MOST_WORLDS)
    if found.number is None:
        return Size("worlds-fixed", None, 1, found.searched, out_of_reach=found.out_of_reach("runs", 2))
    power, fpr = worlds.fixed(found.number)
    size = Size("worlds-fixed", 2 * found.number, 1, _pairs(found), fpr=fpr, power=power)
    return _with_world_ceilings(size, worlds, Fixed(0.5))


def _ranked(worlds: _Worlds) -> Size:
    found = _smallest(worlds.ranked, worlds.question.power, 2, MOST_WORLDS)
    if found.number is None:
        return Size("worlds-ranks", None, 1, found.searched, out_of_reach=found.out_of_reach("runs", 2))
    size = Size("worlds-ranks", 2 * found.number, 1, _pairs(found), power=worlds.ranked(found.number))
    return _with_world_ceilings(size, worlds, Ranks())


def _split(worlds: _Worlds) -> Size:
    """Twice the runs of a threshold fixed beforehand: no fewer can do, even if the split finds the best threshold."""
    found = _smallest(lambda n: worlds.fixed(n)[0], worlds.question.power, 2, MOST_WORLDS // 2)
    if found.number is None:
        return Size("worlds-split", None, 1, found.searched, out_of_reach=found.out_of_reach("runs", 4))
    searched = (
        f"{_pairs(found)}, on the half that is not looked at; a floor, which takes the best threshold for granted"
    )
    power = worlds.fixed(found.number)[0]
    size = Size("worlds-split", 4 * found.number, 1, searched, power=power, at_least=True)
    return _with_world_ceilings(size, worlds, Split())


def _pairs(found: _Search) -> str:
    return f"runs with, and as many without: {found.searched}"


def _with_world_ceilings(found: Size, worlds: _Worlds, threshold: Threshold) -> Size:
    """With the ceilings as the bound itself states them, for scores that tell the worlds apart."""
    assert found.runs is not None
    steps = np.arange(found.runs // 2) / found.runs
    question = worlds.question
    bound = clopper_pearson(
        Observations.from_worlds(1.0 + steps, steps),
        delta=question.delta,
        significance=question.level,
        threshold=threshold,
        claim=question.claim,
    )
    test = None if isinstance(threshold, Fixed) else PlannedTest("threshold", 1.0, threshold=threshold)
    return replace(found, perfect=bound.perfect, at_claim=bound.at_claim, test=test)


def _sequential(question: _Question) -> Size:
    """The floor of betting on pairs of runs, one with the canary and one without, for an attacker who is always right.

    A pair multiplies the wealth by at most 1 + e^−ε, and it must reach 1/α: ln(1/α) / ln(1 + e^−ε) pairs. Such a bet is
    on ε at one δ; tests of a recipe's whole curve may need fewer runs than this.
    """
    growth = math.log1p(math.exp(-question.epsilon))
    pairs = math.ceil(math.log(1 / question.level) / growth) if growth > 0 else MOST_WORLDS + 1
    searched = "ln(1/α) / ln(1 + e^−ε) pairs of runs: a floor of bets on ε at this δ, if the attacker is always right"
    if pairs > MOST_WORLDS:
        reason = f"a pair of runs multiplies the wealth by 1 + {growth:.2g} at most"
        return Size("sequential", None, 1, searched, out_of_reach=OutOfReach(2 * MOST_WORLDS, "runs", reason))
    return Size("sequential", 2 * pairs, 1, searched, at_least=True)


# --- coins -----------------------------------------------------------------------------------------------------------


# Of so many coins, guesses and right guesses: whether the claim is refuted; the lower bound on ε.
Refutes = Callable[[int, int, int], bool]
Lower = Callable[[int, int, int], float]


def _by_audit(question: _Question) -> Refutes:
    """As an audit does it; see :func:`dpaudit.bounds.planning.refuter`."""
    curve, delta, level = question.claim.curve, question.delta, question.level
    made = cache(lambda coins, guesses: refuter(curve, coins, guesses, delta, level))
    return lambda coins, guesses, right: made(coins, guesses)(right)


def _by_ranks(question: _Question) -> Refutes:
    """Order statistics under the claim's recipe."""
    curve, level = question.claim.curve, question.level
    return lambda coins, guesses, right: bool(np.all(ranks.p_value(curve, coins, guesses, right) < level))


class _Guessing:
    """Power of guesses on pooled fair coins by one test, monotone in the number of right guesses."""

    def __init__(self, question: _Question, refutes: Refutes, lower: Lower | None) -> None:
        self.question = question
        self._refutes, self._lower = refutes, lower
        self._law = HalfAndHalf(question.truth.curve)
        self.power = cache(self._power)

    def _power(self, coins: int, guesses: int) -> float:
        low, high = guesses // 2, guesses + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._refutes(coins, guesses, middle) else (middle, high)
        return self._law.at_least(high, coins, guesses)

    def strongest(self, coins: int) -> tuple[float, int]:
        """The largest power over the numbers of guesses, and the fewest guesses that have it; (0, 0) without any."""
        found = [(self.power(coins, k), k) for k in candidates(coins)]
        return max(found, key=lambda pair: pair[0], default=(0.0, 0))

    def ceilings(self, coins: int, guesses: int) -> tuple[float | None, float | None]:
        """The bound if every guess is right, and at the median for an optimal attacker on the claim itself."""
        if self._lower is None:
            return None, None
        median = HalfAndHalf(self.question.claim.curve).median(coins, guesses)
        return self._lower(coins, guesses, guesses), self._lower(coins, guesses, median)

    def enough(self, coins: int) -> float:
        """The power of some number of guesses that has what is asked for, or the largest power if none has."""
        tried = [0.0]
        for guesses in reversed(candidates(coins)):
            tried.append(self.power(coins, guesses))
            if tried[-1] >= self.question.power:
                break
        return max(tried)

    @cached_property
    def fewest(self) -> _Search:
        """The fewest coins."""
        return _smallest(self.enough, self.question.power, 4, MOST_COINS)


def _one_run(guessing: _Guessing) -> Size:
    return _of_coins("one-run", guessing, lambda coins: (1, coins))


def _one_canary(guessing: _Guessing) -> Size:
    return _of_coins("one-canary", guessing, lambda coins: (coins, 1))


def _pooled(guessing: _Guessing, canaries: int) -> Size:
    return _of_coins("pooled", guessing, lambda coins: (math.ceil(coins / canaries), canaries))


def _pooled_by_runs(guessing: _Guessing, runs: int) -> Size:
    return _of_coins("pooled-by-runs", guessing, lambda coins: (runs, math.ceil(coins / runs)))


def _order_statistics(question: _Question) -> Size:
    guessing = _Guessing(question, _by_ranks(question), _lower_by_ranks(question))
    found = _of_coins("order-statistics", guessing, lambda coins: (1, coins))
    return replace(found, null=RECIPE, any_mechanism=False, test=None, floor=None)


def _of_coins(design: str, guessing: _Guessing, shape_of: Callable[[int], tuple[int, int]]) -> Size:
    """The fewest coins in the shape (runs, canaries) that is made of them."""
    found = guessing.fewest
    floor = _floor(guessing.question)
    if found.number is None:
        return Size(design, None, None, found.searched, out_of_reach=_coins_out_of_reach(found, floor))
    coins = found.number
    runs, canaries = shape_of(coins)
    while (
        guessing.enough(runs * canaries) < guessing.question.power
    ):  # more coins may just miss it: counts are discrete
        coins += 1
        runs, canaries = shape_of(coins)
    power, guesses = guessing.strongest(runs * canaries)
    perfect, at_claim = guessing.ceilings(runs * canaries, guesses)
    return Size(
        design,
        runs,
        canaries,
        f"coins: {found.searched}",
        guesses=guesses,
        floor=floor,
        power=power,
        perfect=perfect,
        at_claim=at_claim,
        test=PlannedTest("guesses", 1.0, guesses),
    )


def _coins_out_of_reach(found: _Search, floor: int) -> OutOfReach:
    if floor <= found.limit:
        return found.out_of_reach("coins")
    return OutOfReach(found.limit, "coins", f"even an attacker who is always right needs {floor:,}")


def _floor(question: _Question) -> int:
    """The fewest independent coins on which all guesses being right has a probability of at most α under the claim.

    A mechanism that treats every coin as the claim's curve allows answers each rightly with probability 1 − e, e the
    error where both error rates are the same; for a pair that is ln(1/α) / ln(1 + e^−ε) coins, but for δ.
    """
    return math.ceil(math.log(1 / question.level) / -math.log1p(-error_rate(question.claim.curve, 1, 1)))


def lower_bound(coins: int, guesses: int, right: int, delta: float, significance: float) -> float:
    """The larger of the two lower bounds on ε for any mechanism, by Steinke et al. and by the f-DP recursion.

    >>> lower_bound(6000, 196, 196, 1e-5, 0.05) > 4.0
    True
    """
    by_recursion = recursion.largest_refuted(recursion.PairFamily(delta), coins, guesses, right, significance)
    return max(by_recursion, steinke.epsilon_lower(coins, guesses, right, delta, significance))


def _lower_by_audit(question: _Question) -> Lower:
    return lambda coins, guesses, right: lower_bound(coins, guesses, right, question.delta, question.level)


def _lower_by_ranks(question: _Question) -> Lower | None:
    """The bound under the claim's recipe; None where every member of the family would take seconds to compute."""
    if not isinstance(question.claim.mechanism, Gaussian):
        return None
    family = family_of(question.claim, question.delta)

    def lower(coins: int, guesses: int, right: int) -> float:
        found = largest_refuted(family, lambda c: ranks.p_value(c, coins, guesses, right) < question.level)
        return family.epsilon(found, question.delta)

    return lower
