"""Totally ordered families of curves, for bounds that look for the largest member that a test refutes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..accounting.claims import Claim
from ..accounting.curves import Curve, GaussianCurve, LaplaceCurve, PairCurve
from ..records import BoolArray
from .tails import Array

# With less noise than this one step spends about a hundred nats; a search that gets there has refuted all it can.
_LEAST_NOISE = 0.1
# Of the accountant's grid in a search: ε is within 0.1 % of that on a tenth of it, in a fifth of the time.
_CELL = 1e-2


class Family(ABC):
    """Curves with one parameter; a larger parameter means a larger ε, and 0 is perfect privacy.

    Attributes:
        name: what a bound calls it.
        any_mechanism: whether the ε of a refuted member is a bound for every mechanism, or only inside the family.
        vector: whether :meth:`curve` takes an array of parameters and gives one curve for all of them.
        tolerance: how closely the parameter is searched, relative to its size.
        most: beyond this parameter a search gives up, and reports what it has refuted so far.
    """

    name: str
    any_mechanism = False
    vector = True
    tolerance = 1e-8

    @property
    def most(self) -> float:
        return 1e4

    @abstractmethod
    def curve(self, parameter: Array) -> Curve:
        """The member, on the claim's side: δ not below the truth."""

    @abstractmethod
    def epsilon(self, parameter: float, delta: float) -> float:
        """The ε of a member at ``delta``, not above the truth."""

    def ceiling(self, parameter: float, delta: float) -> float:
        """The ε of a member for ceilings, which bound nothing: as near as is quick."""
        return self.epsilon(parameter, delta)


@dataclass(frozen=True)
class GaussianFamily(Family):
    """μ-GDP; the parameter is μ."""

    name = "μ-GDP"

    def curve(self, parameter: Array) -> Curve:
        return GaussianCurve(parameter)

    def epsilon(self, parameter: float, delta: float) -> float:
        return max(float(GaussianCurve(parameter).epsilon(np.asarray(delta))) * (1 - 1e-12), 0.0)


@dataclass(frozen=True)
class LaplaceFamily(Family):
    """The Laplace mechanism; the parameter is sensitivity over scale, its ε at δ = 0."""

    name = "Laplace"

    def curve(self, parameter: Array) -> Curve:
        return LaplaceCurve(parameter)

    def epsilon(self, parameter: float, delta: float) -> float:
        return max(float(LaplaceCurve(parameter).epsilon(np.asarray(delta))) * (1 - 1e-12), 0.0)


@dataclass(frozen=True)
class PairFamily(Family):
    """(ε, δ)-DP at one δ; the parameter is ε. The only family whose ε says something of any mechanism."""

    delta: float
    name = "(ε, δ)"
    any_mechanism = True

    def curve(self, parameter: Array) -> Curve:
        return PairCurve(parameter, self.delta)

    def epsilon(self, parameter: float, delta: float) -> float:
        return parameter


@dataclass(frozen=True)
class ClaimFamily(Family):
    """The claim's own recipe with its noise divided by the parameter: both directions, composed, then the larger δ."""

    claim: Claim
    name = "the claim's recipe, noise scaled"
    vector = False
    tolerance = 2e-3

    @property
    def most(self) -> float:
        return max(getattr(self.claim.mechanism, "noise_multiplier", 1.0) / _LEAST_NOISE, 2.0)

    def _member(self, parameter: float) -> Claim:
        # Losses grow with the parameter, and so may the cells.
        return replace(self.claim, finest=_CELL * max(parameter, 1.0)).with_noise_scaled(1.0 / parameter)

    def curve(self, parameter: Array) -> Curve:
        value = float(np.asarray(parameter))
        return GaussianCurve(0.0) if value == 0.0 else self._member(value).curve

    def epsilon(self, parameter: float, delta: float) -> float:
        # Tested against the pessimistic curve, converted by the optimistic one: both errors fall on the claim's side.
        return 0.0 if parameter == 0.0 else self._member(parameter).epsilon_from_below(delta)

    def ceiling(self, parameter: float, delta: float) -> float:
        return 0.0 if parameter == 0.0 else self._member(parameter).epsilon(delta)


def rough_curve(claim: Claim) -> Curve:
    """The claim's curve as near as is quick, for ceilings."""
    return replace(claim, finest=_CELL).curve


def family_of(claim: Claim | None, delta: float) -> Family:
    """The family that a bound is searched in: Gaussian without a claim, else the claim's own."""
    if claim is None:
        return GaussianFamily()
    return ClaimFamily(claim) if claim.has_recipe else PairFamily(delta)


def largest_refuted(family: Family, refutes: Callable[[Curve], BoolArray]) -> float:
    """The largest refuted parameter, rounded down; 0 if none is.

    Args:
        refutes: whether a curve is refuted; for a curve of many parameters, which come as a column, one answer for each
            row. Must be monotone: a curve that is refuted stays so when the parameter falls.
    """

    def refuted(parameters: Array) -> BoolArray:
        if family.vector:
            return np.asarray(refutes(family.curve(parameters[:, None]))).reshape(-1)
        return np.array([bool(np.all(refutes(family.curve(p)))) for p in parameters])

    if not refuted(np.array([0.0]))[0]:
        return 0.0
    low, high = _bracket(refuted, family.most)
    width = 34 if family.vector else 3
    while high - low > family.tolerance * high:
        grid = np.linspace(low, high, width)[1:-1]
        edges = np.concatenate([[low], grid, [high]])
        first = int(np.argmin(np.append(refuted(grid), False)))
        low, high = edges[first], edges[first + 1]
    return float(low)


def _bracket(refuted: Callable[[Array], BoolArray], most: float) -> tuple[float, float]:
    low, high = 0.0, min(1.0, most)
    while refuted(np.array([high]))[0]:
        if high >= most:
            return high, high
        low, high = high, min(2 * high, most)
    return low, high
