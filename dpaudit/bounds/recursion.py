"""The f-DP recursion for one run, or for runs × canaries: Mahloujifar, Melis & Chaudhuri 2024, algorithm 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import check
from ..accounting.claims import Claim, Pair
from ..accounting.curves import Curve, GaussianCurve, PairCurve
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from .designs import fair_coins
from .guessing import guess
from .ideal import expected_right
from .tails import SLACK, Array

METHOD = "f-DP recursion (Mahloujifar et al. 2024, algorithm 1)"
SMALLEST_P = 1e-30
_COARSE_SLACK = 2e-3
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


class Family(ABC):
    """A totally ordered family of curves with one parameter; a larger parameter means a larger ε."""

    name: str

    @abstractmethod
    def refuted(self, parameters: Array, coins: int, guesses: int, right: int, level: float) -> BoolArray:
        """Which members are refuted, element by element; monotone: True up to a point, False beyond."""

    @abstractmethod
    def epsilon(self, parameter: float, delta: float) -> float:
        """The ε of a member, rounded down."""

    step: float = 1.0
    width: int = 34


@dataclass(frozen=True)
class GaussianFamily(Family):
    """μ-GDP; the parameter is μ."""

    name = "μ-GDP"

    def refuted(self, parameters: Array, coins: int, guesses: int, right: int, level: float) -> BoolArray:
        return refutes(GaussianCurve(parameters).reach, coins, guesses, right, np.full(len(parameters), level))

    def epsilon(self, parameter: float, delta: float) -> float:
        return float(GaussianCurve(parameter).epsilon(np.asarray(delta))) * (1 - SLACK)


@dataclass(frozen=True)
class PairFamily(Family):
    """(ε, δ)-DP at one δ; the parameter is ε. The only family whose ε says something of any mechanism at that δ."""

    delta: float
    name = "(ε, δ)"

    def refuted(self, parameters: Array, coins: int, guesses: int, right: int, level: float) -> BoolArray:
        return refutes(PairCurve(parameters, self.delta).reach, coins, guesses, right, np.full(len(parameters), level))

    def epsilon(self, parameter: float, delta: float) -> float:
        return parameter


@dataclass(frozen=True)
class ClaimFamily(Family):
    """The claim's own recipe with its noise divided by the parameter."""

    claim: Claim
    name = "the claim's recipe, noise scaled"
    width = 3

    def refuted(self, parameters: Array, coins: int, guesses: int, right: int, level: float) -> BoolArray:
        return np.array([self._refuted(p, coins, guesses, right, level) for p in parameters])

    def _refuted(self, parameter: float, coins: int, guesses: int, right: int, level: float) -> bool:
        if parameter == 0.0:
            return bool(refutes(GaussianCurve(0.0).reach, coins, guesses, right, np.array([level]))[0])
        curve = self._member(parameter).curve
        return bool(refutes(curve.reach, coins, guesses, right, np.array([level]))[0])

    def _member(self, parameter: float) -> Claim:
        return self.claim.coarse().with_noise_scaled(1.0 / parameter)

    def epsilon(self, parameter: float, delta: float) -> float:
        # The accountant rounds up, by less than this (see dpaudit.accounting.pld).
        return 0.0 if parameter == 0.0 else self._member(parameter).epsilon(delta) * (1 - _COARSE_SLACK)


def family_of(claim: Claim | None, delta: float) -> Family:
    """The family that the bound is searched in: Gaussian without a claim, else the claim's own."""
    if claim is None:
        return GaussianFamily()
    return PairFamily(delta) if isinstance(claim.mechanism, Pair) else ClaimFamily(claim)


def largest_refuted(family: Family, coins: int, guesses: int, right: int, level: float) -> float:
    """The largest refuted parameter, rounded down; 0 if none is."""

    def refuted(parameters: Array) -> BoolArray:
        return family.refuted(parameters, coins, guesses, right, level)

    low, high = 0.0, family.step
    if not refuted(np.array([0.0]))[0]:
        return 0.0
    while refuted(np.array([high]))[0] and high < 1e4:
        low, high = high, 2 * high
    tolerance = 1e-8 if family.width > 10 else 2e-3
    while high - low > tolerance * high:
        grid = np.linspace(low, high, family.width)[1:-1]
        edges = np.concatenate([[low], grid, [high]])
        first = int(np.argmin(np.append(refuted(grid), False)))
        low, high = edges[first], edges[first + 1]
    return float(low)


def one_run_fdp(
    obs: Observations,
    guesses: int,
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
        guesses: how many in all, fixed beforehand; no default.
        claim: gives the family; Gaussian if None.
        delta: the δ that the refuted curve is converted at.
        significance: probability that a true curve is refuted.
    """
    delta, significance = check.delta(delta), check.significance(significance)
    family = family_of(claim, delta)
    if delta == 0 and not isinstance(family, PairFamily):
        raise InputError(f"delta must be above 0 for {family.name}, whose ε at 0 is infinite, got 0")
    coins = fair_coins(obs, "one_run_fdp")
    got = guess(coins, guesses)

    def bound(right: int) -> float:
        return family.epsilon(largest_refuted(family, got.coins, got.planned, right, significance), delta)

    ceiling = None if claim is None else bound(expected_right(claim.curve, got.coins, got.planned))
    return Bound(
        epsilon=bound(got.right),
        delta=delta,
        significance=significance,
        method=f"{METHOD}, family: {family.name}",
        null=f"any mechanism with the curve; ε as in the family {family.name}",
        any_mechanism=isinstance(family, PairFamily),
        adjacency=coins.adjacency,
        threshold=f"{got.planned} guesses, fixed beforehand",
        counts=got.counts(),
        perfect=bound(got.planned),
        at_claim=ceiling,
        rates=got.rates,
        notes=coins.notes,
    )
