"""Releases: what is composed. Each is a pair of distributions that dominates one use of a mechanism, and a count.

Numpy only: how losses are put on a grid and composed is the business of :mod:`.pld`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from .curves import Array, Curve, GaussianCurve, LaplaceCurve

Side = Literal["with", "without"]
SIDES: tuple[Side, Side] = ("with", "without")


@dataclass(frozen=True, kw_only=True)
class Release(ABC):
    """``count`` uses of one mechanism, each dominated by a pair of distributions, one per neighbour.

    The side ``with`` is the pair (P, Q) of the world that has the record against the one that has not; ``without`` is
    the pair (Q, P). Each side is composed apart and the larger δ is taken at the end (Lebeda et al. 2024). The privacy
    loss of a side is ln of its first density over its second, seen under its first.
    """

    count: int = 1

    def exact(self) -> Curve | None:
        """The curve of all ``count`` uses where there is a closed form, both sides in one; else None."""
        return None

    @abstractmethod
    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        """The probabilities that one use's privacy loss exceeds ``loss``: under the side's first world, and its second.

        Raises:
            NotImplementedError: only an upper bound of the profile is known, by :meth:`delta`.
        """

    @abstractmethod
    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        """Losses (lowest, highest) of one use outside of which the first world has at most e^``log_mass``, each end."""

    def scaled_tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        """:meth:`tails`, the second times e^loss: two numbers of one order, of which neither overflows."""
        loss = np.asarray(loss, float)
        first, second = self.tails(loss, side)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scaled = np.where(second > 0, np.exp(loss + np.log(second)), 0.0)
        return first, np.minimum(scaled, first)

    def delta(self, epsilon: Array, side: Side) -> Array:
        """The privacy profile of one use, sup_S P(S) − e^ε Q(S), at any real ``epsilon``; exact or an upper bound."""
        first, spent = self.scaled_tails(epsilon, side)
        return np.clip(first - spent, 0.0, 1.0)

    def outcomes(self, side: Side) -> tuple[Array, Array] | None:
        """The finite losses of one use, rising, and the first world's mass at each; None where there are too many."""
        return None

    def largest_loss(self, side: Side) -> float:
        """What no finite loss of one use exceeds; infinite where there is no such loss, or none is known."""
        return math.inf

    @property
    def largest_exact_loss(self) -> float:
        """Up to which loss :meth:`scaled_tails` have all their digits: elsewhere the second may underflow."""
        return 600.0


@dataclass(frozen=True, kw_only=True)
class GaussianRelease(Release):
    """N(1, s²) against N(0, s²), s = ``noise_multiplier`` in units of the sensitivity."""

    noise_multiplier: float

    @property
    def mu(self) -> float:
        """All uses together are exactly μ-GDP."""
        return math.sqrt(self.count) / self.noise_multiplier

    def exact(self) -> Curve:
        return GaussianCurve(self.mu)

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        s = self.noise_multiplier
        return ndtr(0.5 / s - s * np.asarray(loss, float)), ndtr(-0.5 / s - s * np.asarray(loss, float))

    def scaled_tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        s, loss = self.noise_multiplier, np.asarray(loss, float)
        with np.errstate(invalid="ignore"):
            scaled = np.exp(loss + log_ndtr(-0.5 / s - s * loss))
        first = ndtr(0.5 / s - s * loss)
        return first, np.minimum(np.where(np.isnan(scaled), 0.0, scaled), first)

    @property
    def largest_exact_loss(self) -> float:
        return math.inf

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        middle, width = 0.5 / self.noise_multiplier**2, -float(ndtri_exp(log_mass)) / self.noise_multiplier
        return middle - width, middle + width


@dataclass(frozen=True, kw_only=True)
class SampledGaussianRelease(Release):
    """(1 − q) N(0, s²) + q N(1, s²) against N(0, s²): a Poisson-sampled sum with Gaussian noise (Abadi et al. 2016)."""

    noise_multiplier: float
    sampling_rate: float

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        s, q = self.noise_multiplier, self.sampling_rate
        sign, cut = self._cut(loss, side)
        plain, shifted = ndtr(-sign * cut / s), ndtr(sign * (1.0 - cut) / s)
        mixed = (1 - q) * plain + q * shifted
        return (mixed, plain) if side == "with" else (plain, mixed)

    def scaled_tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        s, q, loss = self.noise_multiplier, self.sampling_rate, np.asarray(loss, float)
        sign, cut = self._cut(loss, side)
        log_plain = log_ndtr(-sign * cut / s)
        if side == "with":
            first, log_second = (1 - q) * np.exp(log_plain) + q * ndtr((1.0 - cut) / s), log_plain
        else:
            first, log_shifted = np.exp(log_plain), log_ndtr(-(1.0 - cut) / s)
            log_second = np.logaddexp(_log(1 - q) + log_plain, math.log(q) + log_shifted)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = np.exp(loss + log_second)
        return first, np.minimum(np.where(np.isnan(scaled), 0.0, scaled), first)

    @property
    def largest_exact_loss(self) -> float:
        return math.inf

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        s, q = self.noise_multiplier, self.sampling_rate
        reach = -float(ndtri_exp(log_mass)) * s
        if side == "without":
            # Where exp(…) is nothing to 1 − q, all losses are the largest one, up to rounding.
            unseen = q < 1 and -reach - 0.5 < -20.0 * s**2
            return -self._loss(reach), -math.log1p(-q) * (1 + 1e-13) if unseen else -self._loss(-reach)
        # Half of the mass may lie above under the record's share, half under the rest.
        least = math.log(0.5) + log_mass
        shifted = 1.0 - float(ndtri_exp(least - math.log(q))) * s if least < math.log(q) else -math.inf
        return self._loss(-reach), self._loss(max(shifted, -float(ndtri_exp(least)) * s))

    def _cut(self, loss: Array, side: Side) -> tuple[float, Array]:
        """The x beyond which, upwards (sign 1) or downwards (−1), the side's loss exceeds ``loss``."""
        sign = 1.0 if side == "with" else -1.0
        return sign, self._where(sign * np.asarray(loss, float))

    def _loss(self, x: float) -> float:
        """The loss with the record at x, ln(1 − q + q e^{(x − 1/2) / s²}), rising; without it, the negative."""
        q, exponent = self.sampling_rate, (x - 0.5) / self.noise_multiplier**2
        if exponent < 30.0:
            change = q * math.expm1(exponent)
            if change > -0.5:
                return math.log1p(change)
        return float(np.logaddexp(_log(1 - q), math.log(q) + exponent))

    def _where(self, loss: Array) -> Array:
        """The x at which the loss with the record is ``loss``; −∞ below all losses."""
        q = self.sampling_rate
        with np.errstate(divide="ignore", invalid="ignore"):
            # ln((e^loss − (1 − q)) / q): without overflow at large losses, without cancellation at small ones.
            large = loss - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(loss, 1.0)))
            small = np.log1p(np.maximum(np.expm1(np.clip(loss, -1.0, 1.0)) / q, -1.0))
            rest = np.exp(np.minimum(math.log(1 - q) - np.minimum(loss, 0.0), 0.0)) if q < 1 else 0.0
            low = loss - math.log(q) + np.log1p(-rest)
        inside = np.where(loss > 1.0, large, np.where(loss < -1.0, low, small))
        return 0.5 + self.noise_multiplier**2 * inside


@dataclass(frozen=True, kw_only=True)
class LaplaceRelease(Release):
    """Lap(1, b) against Lap(0, b), b = ``noise_multiplier`` in units of the sensitivity: exactly (1 / b)-DP."""

    noise_multiplier: float

    def exact(self) -> Curve | None:
        return LaplaceCurve(1.0 / self.noise_multiplier) if self.count == 1 else None

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        e, loss = 1.0 / self.noise_multiplier, np.asarray(loss, float)
        inside = np.clip(loss, -e, e)
        first = 1.0 - 0.5 * np.exp((inside - e) / 2)
        second = 0.5 * np.exp(-(inside + e) / 2)
        return (
            np.where(loss < -e, 1.0, np.where(loss >= e, 0.0, first)),
            np.where(loss < -e, 1.0, np.where(loss >= e, 0.0, second)),
        )

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        return -1.0 / self.noise_multiplier, 1.0 / self.noise_multiplier

    def largest_loss(self, side: Side) -> float:
        return 1.0 / self.noise_multiplier


@dataclass(frozen=True, kw_only=True)
class PairRelease(Release):
    """All that a bare (ε, δ) allows: everything told with probability δ, else randomised response at ε."""

    at_epsilon: float
    at_delta: float

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        e, d, loss = self.at_epsilon, self.at_delta, np.asarray(loss, float)
        right = (1 - d) / (1 + math.exp(-e))
        first = np.where(loss < -e, 1.0, np.where(loss < e, d + right, d))
        second = np.where(loss < -e, 1.0 - d, np.where(loss < e, (1 - d) - right, 0.0))
        return first, second

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        return -self.at_epsilon, self.at_epsilon

    def largest_loss(self, side: Side) -> float:
        return self.at_epsilon


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def log_gaussian_profile(epsilon: Array, mu: float) -> Array:
    """The logarithm of δ(ε) of N(0, 1) against N(μ, 1) at any real ε, exact in the tail (Balle & Wang 2018, thm 8)."""
    epsilon = np.asarray(epsilon, float)
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = first + np.log(-np.expm1(np.minimum(second - first, 0.0)))
    return np.where(np.isnan(out), -np.inf, out)
