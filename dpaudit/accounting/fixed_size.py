"""Batches of a fixed size, drawn without replacement: the pairs of distributions that are worst for one step.

Of N records every step draws B, any B of them alike, and q = B / N. Sums are in units of the clip norm, the noise is
N(0, s²). Let α' = e^ε' ≥ 1 and α = 1 + (α' − 1) / q, and write H_α(P ‖ Q) for sup_S P(S) − α Q(S), and N(v) for noise
around v. A batch that holds the record is that record and B − 1 others; let one more of the others, with the gradient
z, take the record's place, and it is a batch that doesn't hold it. Given the B − 1 others (H is jointly convex, and
they are drawn alike in both worlds), and with their sum subtracted, a step is

    P = q N(g) + (1 − q) N(z)     against     Q = q N(g') + (1 − q) N(z),

|g|, |g'|, |z| ≤ 1, where g' = 0 for a record that is zeroed out. Subtracting densities gives the advanced joint
convexity of Balle, Barthe & Gaboardi 2018:

    H_α'(P ‖ Q) = q sup_S [N(g)(S) − α' N(g')(S) − (α − α') N(z)(S)].

Among all S with N(g)(S) = p none has less of N(v) than Φ(Φ⁻¹(p) − |g − v| / s) (Neyman & Pearson), so

- **replace-one** (|g − g'| ≤ 2, |g − z| ≤ 2): H_α'(P ‖ Q) ≤ q sup_p p − α Φ(Φ⁻¹(p) − 2/s), which is q times the
  profile of the Gaussian with sensitivity 2 at ln α (ibid., on sampling without replacement). It is reached by
  z = g' = −g, which is the Poisson-sampled pair with noise s / 2. The relation is symmetric: this holds in both orders.
- **zero-out**, with the record against without: ≤ q sup_p p − α' Φ(Φ⁻¹(p) − 1/s) − (α − α') Φ(Φ⁻¹(p) − 2/s), reached by
  z = −g, |g| = 1: :class:`DecoyRelease`. Without it against with it: ≤ q sup_p p − α Φ(Φ⁻¹(p) − 1/s), reached by z = g,
  which is the Poisson-sampled pair. In the first, the others point away from the record and make it more conspicuous:
  by plain joint convexity it is at most q [(1 − β) δ_{2/s}(ln α) + β δ_{1/s}(ln α)] with β = α' / α.

Below α' = 1, H_α'(P ‖ Q) = 1 − α' + α' H_{1/α'}(Q ‖ P). The profile at all α' is that of some pair, which dominates one
step, and such pairs compose (Zhu, Dong & Wang 2022): :class:`WorstOfTwo`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from .curves import Array
from .releases import Release, Side


@dataclass(frozen=True, kw_only=True)
class DecoyRelease(Release):
    """q N(2, s²) + (1 − q) N(0, s²) against q N(1, s²) + (1 − q) N(0, s²), s = ``noise_multiplier``.

    A record of gradient 1 or zeroed out among others of gradient −1, moved by 1. The ratio of the densities is not
    monotone: it is 1 far below, dips where Q has the record and P hasn't, and rises from there.
    """

    noise_multiplier: float
    sampling_rate: float

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        loss = np.asarray(loss, float)
        low, high = self._where(loss if side == "with" else -loss)
        masses = []
        for mean in (2.0, 1.0, 0.0):
            below, above = (low - mean) / self.noise_multiplier, (high - mean) / self.noise_multiplier
            # Between the two from the side where both are small, so that nothing cancels.
            between = np.where(below > 0, ndtr(-below) - ndtr(-above), ndtr(above) - ndtr(below))
            masses.append(ndtr(below) + ndtr(-above) if side == "with" else between)
        q = self.sampling_rate
        first, second = (q * masses[i] + (1 - q) * masses[2] for i in (0, 1))
        return (first, second) if side == "with" else (second, first)

    def scaled_tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        loss = np.asarray(loss, float)
        first, scaled = super().scaled_tails(loss, side)
        if side == "without":
            return first, scaled
        s, q, (_, high) = self.noise_multiplier, self.sampling_rate, self._where(loss)
        log_second = np.logaddexp(math.log(q) + log_ndtr((1.0 - high) / s), math.log1p(-q) + log_ndtr(-high / s))
        with np.errstate(over="ignore"):
            return first, np.where(loss > 0, np.minimum(np.exp(loss + log_second), first), scaled)

    def largest_loss(self, side: Side) -> float:
        return math.inf if side == "with" else -self._least()

    @property
    def largest_exact_loss(self) -> float:
        return math.inf

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        reach = -float(ndtri_exp(log_mass)) * self.noise_multiplier
        high = self._loss(reach + (2.0 if side == "with" else 1.0))
        return (self._least(), high) if side == "with" else (-high, -self._least())

    def _loss(self, x: float) -> float:
        """The logarithm of the ratio of the densities at ``x``."""
        s2, q = self.noise_multiplier**2, self.sampling_rate
        top, bottom = (np.logaddexp(math.log1p(-q), math.log(q) + (2 * m * x - m * m) / (2 * s2)) for m in (2, 1))
        return float(top - bottom)

    def _least(self) -> float:
        """The smallest loss: where the discriminant in :meth:`_where` is 0, a² / (1 − a) = 4 (1 − q) e^{−1/s²} / q."""
        q = self.sampling_rate
        log_t = math.log(4.0 * (1.0 - q) / q) - self.noise_multiplier**-2
        root = 0.5 * np.logaddexp(0.0, math.log(4.0) - log_t)
        return float(math.log(2.0) - np.logaddexp(0.0, root))

    def _where(self, loss: Array) -> tuple[Array, Array]:
        """The (low, high) outside of which the loss exceeds ``loss``; both −∞ where it does so everywhere.

        With v = e^{(x − 1/2) / s²}, k = e^{−1/s²} and a = e^loss that is where q k v² − a q v + (1 − q)(1 − a) > 0.
        """
        s2, q = self.noise_multiplier**2, self.sampling_rate
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # 4 k (1 − q) |1 − a| / (q a²), the discriminant's other term over its first.
            log_ratio = math.log(4.0 * (1.0 - q) / q) - 1.0 / s2 + np.log(-np.expm1(-np.abs(loss)))
            ratio = np.exp(np.minimum(log_ratio - np.where(loss < 0, 2.0, 1.0) * loss, 700.0))
            inside = np.where(loss >= 0, 1.0 + ratio, 1.0 - ratio)
            high = 1.0 / s2 - math.log(2.0) + loss + np.log1p(np.sqrt(np.maximum(inside, 0.0)))
            low = np.where(loss < 0, math.log((1 - q) / q) + np.log(-np.expm1(loss)) + 1.0 / s2 - high, -np.inf)
        none = inside < 0
        return np.where(none, -np.inf, 0.5 + s2 * low), np.where(none, -np.inf, 0.5 + s2 * high)


@dataclass(frozen=True, kw_only=True)
class WorstOfTwo(Release):
    """The pair with the profile of ``onward`` at ε ≥ 0 on the side ``with``, and of ``backward`` on ``without``.

    Both are taken on their own side ``with``. Below ε = 0 the profile of one side is that of the other, reversed. The
    two must be such that the whole is the profile of a pair, as it is where each is the least upper bound in its order.
    """

    onward: Release
    backward: Release

    def tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        loss = np.asarray(loss, float)
        ahead, behind = self._ordered(side)
        first, second = ahead.tails(np.maximum(loss, 0.0), "with")
        their_first, their_second = behind.tails(np.maximum(-loss, 0.0), "with")
        return np.where(loss < 0, 1.0 - their_second, first), np.where(loss < 0, 1.0 - their_first, second)

    def scaled_tails(self, loss: Array, side: Side) -> tuple[Array, Array]:
        loss = np.asarray(loss, float)
        ahead, behind = self._ordered(side)
        first, scaled = ahead.scaled_tails(np.maximum(loss, 0.0), "with")
        their_first, their_second = behind.tails(np.maximum(-loss, 0.0), "with")
        rest = np.exp(np.minimum(loss, 0.0)) * (1.0 - their_first)
        return np.where(loss < 0, 1.0 - their_second, first), np.where(loss < 0, rest, scaled)

    @property
    def largest_exact_loss(self) -> float:
        return min(self.onward.largest_exact_loss, self.backward.largest_exact_loss)

    def span(self, side: Side, log_mass: float) -> tuple[float, float]:
        ahead, behind = self._ordered(side)
        return -behind.span("with", log_mass)[1], ahead.span("with", log_mass)[1]

    def _ordered(self, side: Side) -> tuple[Release, Release]:
        return (self.onward, self.backward) if side == "with" else (self.backward, self.onward)
