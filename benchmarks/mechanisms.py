"""Mechanisms whose ε is known exactly: what a bound may not exceed more often than it says.

A *draw* makes scores, shape ``(runs, canaries)``, from fair or fixed coins of that shape; a higher score says "in".
Its ε is that of one record, added or removed, at ``DELTA``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit import Claim, Design, Observations, bounds
from dpaudit.accounting.curves import GaussianCurve, LaplaceCurve, PairCurve

DELTA = 1e-5
TIES = 0.1  # noise that knows nothing and only breaks ties
Array = NDArray[Any]
Draw = Callable[[np.random.Generator, Array], Array]
Make = Callable[[np.random.Generator], Observations]


@dataclass(frozen=True)
class Known:
    """A mechanism and its ε at ``DELTA``.

    Attributes:
        families: what a method that names a family needs to be told of it, by the method's name; methods that are not
            listed do not hold on this mechanism.
        middle: the score at which "in" and "out" are equally likely.
        replaced: ε where a second record moves the other way, for coins drawn as exact halves.
    """

    name: str
    draw: Draw
    epsilon: float
    families: dict[str, dict[str, Any]]
    middle: float = 0.0
    replaced: float = math.inf


def randomised_response(epsilon: float) -> Known:
    """Says the truth with probability e^ε / (1 + e^ε)."""

    def draw(rng: np.random.Generator, member: Array) -> Array:
        right = rng.random(member.shape) < expit(epsilon)
        return (member == right) + TIES * rng.random(member.shape)

    # Of two coins that are exchanged both answers must be right: q² − e^ε (1 − q)² = δ.
    right = float(expit(epsilon))
    replaced = math.log((right**2 - DELTA) / (1 - right) ** 2)
    return Known(
        f"randomised response {epsilon:g}", draw, _at(PairCurve(epsilon, 0.0)), {}, replaced=max(replaced, 0.0)
    )


def gaussian(mu: float) -> Known:
    """One release of sensitivity 1 with noise 1 / μ on each canary."""
    claim = Claim.gaussian(noise_multiplier=1 / mu)
    return Known(
        f"Gaussian μ = {mu:g}",
        lambda rng, member: mu * member + rng.normal(size=member.shape),
        _at(GaussianCurve(mu)),
        {"gaussian": {}, "claimed_family": {"claim": claim}, "order_statistics": {}, "one_run_fdp": {}},
        middle=mu / 2,
    )


def laplace(epsilon: float) -> Known:
    """Laplace noise, exactly ε-DP; scored by the noisy value."""
    return Known(
        f"Laplace {epsilon:g}",
        lambda rng, member: epsilon * member + rng.laplace(size=member.shape),
        _at(LaplaceCurve(epsilon)),
        {"order_statistics": {"family": bounds.LaplaceFamily()}},
        middle=epsilon / 2,
    )


def subsampled_gaussian(noise_multiplier: float, sampling_rate: float, steps: int) -> Known:
    """All iterates of DP-SGD, a canary on a coordinate of its own, scored by their exact log-likelihood ratio."""
    claim = Claim.dp_sgd(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=steps)

    def draw(rng: np.random.Generator, member: Array) -> Array:
        return log_ratios(rng, member, noise_multiplier, sampling_rate, steps)

    name = f"DP-SGD σ = {noise_multiplier:.3g}, q = {sampling_rate:g}, T = {steps}"
    told = {"claim": claim}
    own = {"claimed_family": told, "order_statistics": told, "one_run_fdp": told}
    return Known(name, draw, claim.epsilon(DELTA), own)


def log_ratios(rng: np.random.Generator, member: Array, noise: float, rate: float, steps: int) -> Array:
    """Log of the density with the record over the density without it, summed over the steps.

    In single precision, which moves a sum by less than 1e-5: it only ever ranks scores. Step by step, for the caches.
    """
    total = np.zeros(member.size, np.float32)
    inside = member.ravel()
    scale, shift, jump = (np.float32(v) for v in (1 / noise, -0.5 / noise**2, noise**-2))
    for _ in range(steps):
        loss = scale * rng.standard_normal(member.size, dtype=np.float32) + shift
        if rate < 1:
            loss += jump * (inside & (rng.random(member.size, dtype=np.float32) < rate))
            loss = np.log(np.float32(1 - rate) + np.float32(rate) * np.exp(loss))
        else:
            loss += jump * inside
        total += loss
    return total.astype(float).reshape(member.shape)


ERROR = 0.25


def all_or_nothing() -> Known:
    """With probability ½ a run answers every canary with 25 % error, and else none: 1-GDP for each canary."""

    def draw(rng: np.random.Generator, member: Array) -> Array:
        speaks = rng.random((len(member), 1)) < 0.5
        right = rng.random(member.shape) < np.where(speaks, 1 - ERROR, 0.5)
        return (member == right) + TIES * rng.random(member.shape)

    # "In", "out" and "nothing" have probabilities ½ (1 − e), ½ e and ½.
    return Known("all or nothing per run", draw, math.log((1 - ERROR - 2 * DELTA) / ERROR), {})


LEVELS = {0.0: 0.5, 1.0: 0.3, 3.0: 0.2}


def public_levels() -> Known:
    """Each run draws how much it leaks, and says so: randomised response at one of ``LEVELS``."""
    levels, shares = np.array(list(LEVELS)), np.array(list(LEVELS.values()))

    def draw(rng: np.random.Generator, member: Array) -> Array:
        level = rng.choice(levels, (len(member), 1), p=shares)
        says_in = member == (rng.random(member.shape) < expit(level))
        return np.where(says_in, 1.0, -1.0) * (level + TIES * rng.random(member.shape))

    # Only the top level spends more than this ε: its share, times the δ of randomised response.
    top, share = float(levels[-1]), float(shares[-1])
    return Known("public mixture of levels", draw, top + math.log1p(-DELTA / share * (1 + math.exp(-top))), {})


def shared_offset(of: Known, size: float = 0.5) -> Known:
    """The same scores with a random offset that a run's canaries share."""

    def draw(rng: np.random.Generator, member: Array) -> Array:
        return of.draw(rng, member) + size * rng.normal(size=(len(member), 1))

    return Known(f"{of.name}, offset per run", draw, of.epsilon, {})


def one_noisy_sum(mu: float) -> Known:
    """All canaries in one sum of half as many coordinates, with noise: each is μ-GDP, and all interfere."""

    def draw(rng: np.random.Generator, member: Array) -> Array:
        canaries = member.shape[1]
        directions = np.random.default_rng(canaries).normal(size=(canaries, max(canaries // 2, 1)))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        released = member @ directions + rng.normal(size=(len(member), directions.shape[1])) / mu
        return released @ directions.T

    return Known(f"one noisy sum, μ = {mu:g}", draw, _at(GaussianCurve(mu)), {})


def _at(curve: Any) -> float:
    return float(curve.epsilon(np.asarray(DELTA)))


# --- from draws to observations --------------------------------------------------------------------------------------


def coins(draw: Draw, runs: int, canaries: int) -> Make:
    """Every canary in or out of every run by a fair coin."""

    def make(rng: np.random.Generator) -> Observations:
        member = rng.random((runs, canaries)) < 0.5
        return Observations(draw(rng, member), member)

    return make


def worlds(draw: Draw, runs: int) -> Make:
    """One canary, ``runs`` runs with it and as many without."""
    member = np.repeat([True, False], runs)[:, None]
    return lambda rng: Observations(draw(rng, member), member, design=Design(coins="worlds"))


def exact_halves(draw: Draw, runs: int, canaries: int) -> Make:
    """In every run exactly half of the canaries are members, and the design says so."""
    half = np.arange(canaries) < canaries // 2

    def make(rng: np.random.Generator) -> Observations:
        member = rng.permuted(np.tile(half, (runs, 1)), axis=1)
        return Observations(draw(rng, member), member, design=Design(coins="fixed"))

    return make
