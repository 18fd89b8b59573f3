"""Which tests an audit runs: chosen from the design alone, before any score is seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..accounting.claims import Claim
from ..accounting.curves import Curve, TwiceCurve
from ..records import Design, PlannedTest
from . import recursion, steinke
from .choices import Bonferroni, Ranks, Split
from .designs import tested_adjacency as tested_adjacency
from .halves import HalfAndHalf
from .ideal import fewest, rank_power, threshold_power

TWICE = 2.0
ENOUGH_POWER = 0.8
# Shares of the coins that may be guessed, and how many √coins are left out where nearly all are guessed: the two halves
# of the guesses only fit if there are enough members, and enough others.
_SHARES = tuple(2.0 ** (-i / 2) for i in range(1, 13))
_ROOTS_LEFT = (1.0, 2.0, 3.0, 4.0, 5.0)
_BEST_SHARE = 0.8


def comparable(claim: Claim, adjacency: str) -> Curve | None:
    """The claim's curve for the pair of data sets that a design realises; None where the claim says nothing of it."""
    if claim.adjacency == adjacency:
        return claim.curve
    if claim.adjacency == "add-remove" and adjacency == "replace-one":
        return TwiceCurve(claim.curve)
    return None


def uses_worlds(design: Design, shape: tuple[int, int]) -> bool:
    """Whether runs are to be compared with and without one canary, rather than coins to be guessed."""
    return design.coins == "worlds" or (design.coins == "fixed" and shape[1] == 1)


def default_tests(
    design: Design, shape: tuple[int, int], claim: Claim | None, delta: float, significance: float
) -> tuple[PlannedTest, ...]:
    """The list of tests for observations of ``shape`` (runs, canaries), from the design and the claim alone.

    Two worlds: one test, with thresholds at ranks among the scores. Coins: four fifths of the significance go to
    the number of guesses with the most power against twice the claim (the fewest guesses where several have enough),
    the rest in equal parts to a thirty-second, an eighth and a half of the coins. Without a claim those share all. One
    canary in many runs, by coins: both, each with half of the significance.
    """
    if uses_worlds(design, shape):
        return (PlannedTest("threshold", 1.0, threshold=_ranks(shape[0])),)
    if shape[1] == 1 and shape[0] > 1:
        half = _guessing_tests(design, shape, claim, delta, significance / 2)
        tests = [replace(t, weight=t.weight / 2) for t in half]
        return (PlannedTest("threshold", 0.5, threshold=_ranks(shape[0])), *tests)
    return _guessing_tests(design, shape, claim, delta, significance)


def _ranks(runs: int) -> Ranks:
    """Ranks in steps of four, up to a quarter of the runs."""
    return Ranks(4**i for i in range(20) if i == 0 or 4**i <= runs / 4)


def _guessing_tests(
    design: Design, shape: tuple[int, int], claim: Claim | None, delta: float, significance: float
) -> tuple[PlannedTest, ...]:
    coins = _fair_count(design, shape)
    spread = sorted({_even(coins * f) for f in (1 / 32, 1 / 8, 1 / 2)})
    if claim is None:
        return tuple(PlannedTest("guesses", 1 / len(spread), k) for k in spread)
    best = strongest_guesses(design, shape, claim, delta, _BEST_SHARE * significance)
    rest = [k for k in spread if k != best]
    weights = [1.0] if not rest else [_BEST_SHARE] + [(1 - _BEST_SHARE) / len(rest)] * len(rest)
    return tuple(PlannedTest("guesses", w, k) for w, k in zip(weights, [best, *rest], strict=True))


def _fair_count(design: Design, shape: tuple[int, int]) -> int:
    """How many fair coins a one-run bound will find; at most half of them are left where counts were fixed."""
    runs, canaries = shape
    return runs * canaries if design.coins != "fixed" else max(runs * (canaries // 2), 2)


def _even(count: float) -> int:
    return max(2 * int(count / 2), 2)


def strongest_guesses(design: Design, shape: tuple[int, int], claim: Claim, delta: float, level: float) -> int:
    """How many guesses have the most power at ``level`` against a mechanism that leaks exactly twice the claim."""
    coins = _fair_count(design, shape)
    tried = candidates(coins)
    curve, truth = comparable(claim, tested_adjacency(design, shape)), claim.leaking(TWICE, delta).curve
    if curve is None:
        return tried[-1]
    powers = [guesses_power(truth, curve, coins, k, delta, level) for k in tried]
    enough = [k for k, power in zip(tried, powers, strict=True) if power > 0.99]
    return enough[0] if enough else tried[int(np.argmax(powers))]


def candidates(coins: int) -> list[int]:
    """Numbers of guesses that are tried for so many coins: even, fewer than the coins where there are some, rising.

    >>> candidates(100)
    [2, 4, 6, 8, 12, 16, 24, 34, 50, 60, 70, 80, 90]
    """
    wanted = [coins * s for s in _SHARES] + [coins - t * math.sqrt(coins) for t in _ROOTS_LEFT]
    return sorted({2 * int(k / 2) for k in wanted if 2 <= k < coins}) or [2]


def refuter(curve: Curve, coins: int, guesses: int, delta: float, level: float) -> Callable[[int], bool]:
    """Whether a number of right guesses refutes ``curve``: by the f-DP recursion, or by Steinke et al. at its ε.

    Both reject for counts above a cut, so of two cuts the lower one is still a cut whose error is at most ``level``:
    taking either needs no correction.
    """
    epsilon = float(curve.epsilon(np.asarray(delta)))

    def refutes(right: int) -> bool:
        if recursion.refutes(curve.reach, coins, guesses, right, np.array([level]))[0]:
            return True
        return math.isfinite(epsilon) and steinke.p_value(coins, guesses, right, epsilon, delta) < level

    return refutes


def guesses_power(
    truth: Curve, claimed: Curve, coins: int, guesses: int, delta: float, level: float, scored: int | None = None
) -> float:
    """Probability that ideal scores on ``truth`` refute ``claimed`` at ``level``.

    Args:
        scored: how many of the ``coins`` have a score; all of them if None.
    """
    scored = coins if scored is None else scored
    made = 2 * (min(guesses, scored) // 2)
    if made < 2:
        return 0.0
    critical = fewest(refuter(claimed, coins, guesses, delta, level), made)
    return HalfAndHalf(truth).at_least(critical, scored, made)


def test_power(
    test: PlannedTest,
    design: Design,
    shape: tuple[int, int],
    members: int,
    claim: Claim,
    delta: float,
    significance: float,
    coins: int | None = None,
    scored: int | None = None,
) -> float:
    """Probability that ``test`` rejects a mechanism that leaks exactly twice the claim, with ideal scores.

    Args:
        members: for two worlds, how many of the runs had the canary; not used for coins.
        coins: how many fair coins there are; by default as many as ``design`` and ``shape`` allow.
        scored: how many of these have a score; all of them if None.
    """
    curve, truth = comparable(claim, tested_adjacency(design, shape)), claim.leaking(TWICE, delta).curve
    if curve is None:
        return 0.0
    level = test.weight * significance
    if test.method == "guesses":
        assert test.guesses is not None
        coins = _fair_count(design, shape) if coins is None else coins
        return guesses_power(truth, curve, coins, min(test.guesses, coins), delta, level, scored)
    others = shape[0] - members
    if isinstance(test.threshold, Ranks):
        ranks = test.threshold.ranks
        return rank_power(truth, curve, members, others, ranks, level / (2 * len(ranks) * shape[1]))
    share = 1.0 - test.threshold.fraction if isinstance(test.threshold, Split) else 1.0
    inside, outside = round(members * share), round(others * share)
    tables = shape[1] * (len(test.threshold.thresholds) if isinstance(test.threshold, Bonferroni) else 1)
    return threshold_power(truth, curve, inside, outside, level / tables)
