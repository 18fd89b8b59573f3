"""The f-DP recursion for one run, or for runs × canaries: Mahloujifar, Melis & Chaudhuri 2024, algorithm 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import check
from ..accounting.claims import Claim
from ..accounting.curves import Curve
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from . import families
from .designs import Coins, fair_coins
from .families import Family, GaussianFamily, PairFamily, family_of, rough_curve
from .guessing import guess
from .halves import expected_right
from .searching import GuessCount, best_over
from .tails import SLACK, Array

__all__ = ["GaussianFamily", "PairFamily", "largest_refuted", "one_run_fdp", "p_value", "refutes"]

METHOD = "f-DP recursion (Mahloujifar et al. 2024, algorithm 1)"
SMALLEST_P = 1e-30
Reach = Callable[[Array], Array]


def refutes(reach: Reach, coins: int, guesses: int, right: int, level: Array) -> BoolArray:
    """Whether ``right`` of ``guesses`` on ``coins`` refute the curve at ``level``; element by element.

    Args:
        reach: the curve's :meth:`~dpaudit.accounting.Curve.reach`, taking an array of the shape of ``level``.
        level: error probabilities; the curve may differ from element to element.
    """
    level = np.asarray(level, float)
    reached = level * right / coins
    held = level * (guesses - right) / coins
    for i in range(right - 1, -1, -1):
        grown = np.maximum(held, reach(reached) * (1 - SLACK))
        if np.all(grown == held):
            break
        reached = np.minimum(reached + i / (guesses - i) * (grown - held), 1.0)
        held = grown
        if np.all(reached + held > guesses / coins):
            break
    return np.asarray(reached + held > guesses / coins * (1 + SLACK))


def p_value(curve: Curve, coins: int, guesses: int, right: int) -> float:
    """The smallest level at which ``curve`` is refuted, rounded up; between ``SMALLEST_P`` and 1."""
    low, high = np.log(SMALLEST_P), 0.0
    if not refutes(curve.reach, coins, guesses, right, np.array([1.0]))[0]:
        return 1.0
    if refutes(curve.reach, coins, guesses, right, np.array([SMALLEST_P]))[0]:
        return SMALLEST_P
    while high - low > 1e-6:
        grid = np.linspace(low, high, 34)
        refuted = refutes(curve.reach, coins, guesses, right, np.exp(grid))
        first = max(int(np.argmax(refuted)), 1)
        low, high = grid[first - 1], grid[first]
    return float(np.exp(high))


def largest_refuted(family: Family, coins: int, guesses: int, right: int, level: float) -> float:
    """The largest parameter of ``family`` that the counts refute at ``level``, rounded down; 0 if none is."""

    def refuted(curve: Curve) -> BoolArray:
        return refutes(curve.reach, coins, guesses, right, np.array([level]))

    return families.largest_refuted(family, refuted)


def one_run_fdp(
    obs: Observations,
    guesses: GuessCount,
    claim: Claim | None = None,
    *,
    delta: float,
    significance: float = 0.05,
) -> Bound:
    """Lower bound from the f-DP recursion: the largest refuted member of a family of curves, as ε at ``delta``.

    What falls is a curve, for any mechanism, however its outputs depend on each other. For a claim given as a pair the
    family is (ε, δ)-DP itself, and ε is a bound for any mechanism. For the Gaussian family (no claim) and the claim's
    recipe, ε is that of the refuted curve: a mechanism outside the family may reach the same counts with a smaller ε at
    this ``delta``. Valid for the designs of :func:`one_run`.

    Args:
        obs: scores, shape ``(runs, canaries)``.
        guesses: how many in all, fixed beforehand; a policy as in ``one_run``; no default.
        claim: gives the family; Gaussian if None.
        delta: the δ that the refuted curve is converted at.
        significance: probability that a true curve is refuted.
    """
    delta, significance = check.delta(delta), check.significance(significance)
    family = family_of(claim, delta)
    if delta == 0 and not family.any_mechanism:
        raise InputError(f"delta must be above 0 for {family.name}, whose ε at 0 is infinite, got 0")
    coins = fair_coins(obs, "one_run_fdp")
    return best_over(coins, guesses, significance, lambda *a: _bound(a[0], a[1], a[2], family, delta, claim))


def _bound(coins: Coins, guesses: int, level: float, family: Family, delta: float, claim: Claim | None) -> Bound:
    got = guess(coins, guesses)

    def parameter(right: int) -> float:
        return largest_refuted(family, got.coins, got.planned, right, level)

    def ceiling(right: int) -> float:
        return family.ceiling(parameter(right), delta)

    return Bound(
        epsilon=family.epsilon(parameter(got.right), delta),
        delta=delta,
        significance=level,
        method=f"{METHOD}, family: {family.name}",
        null=f"any mechanism with the curve; ε as in the family {family.name}",
        any_mechanism=family.any_mechanism,
        adjacency=coins.adjacency,
        threshold=f"{got.planned} guesses, fixed beforehand",
        counts=got.counts(),
        perfect=ceiling(got.planned),
        at_claim=None if claim is None else ceiling(expected_right(rough_curve(claim), got.coins, got.planned)),
        rates=got.rates,
        notes=coins.notes,
    )
