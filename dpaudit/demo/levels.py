"""The four settings that are compared: no privacy, and DP-SGD at three promises of the accountant."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from .. import check
from ..accounting.claims import Claim
from ..errors import InputError
from ..trainers.settings import DPSGD, SGD

TARGETS = (8.0, 3.0, 1.0)
DELTA = 1e-5
SAMPLING_RATE = 0.1
STEPS = 60
LEARNING_RATE = 1.0
CLIP_NORM = 1.0

_TOLERANCE = 1e-4  # relative, of the noise multiplier
_LEAST, _MOST = 0.05, 1000.0


@dataclass(frozen=True)
class Level:
    """One setting.

    Attributes:
        key: ``non-private``, ``epsilon-8`` and so on.
        title: what tables call it.
        target: the ε that the noise was searched for; None without privacy.
        trainer: the settings of training.
        claim: what the accountant promises; None without privacy.
        epsilon: the accountant's ε at :data:`DELTA`, at most ``target``; None without privacy.
        ledger: (steps, ε spent by then), as long as training lasts; empty without privacy.
        added_up: what the same steps would cost by simple composition, each at δ / steps; None without privacy.
    """

    key: str
    title: str
    target: float | None
    trainer: SGD | DPSGD
    claim: Claim | None = None
    epsilon: float | None = None
    ledger: tuple[tuple[int, float], ...] = ()
    added_up: float | None = None


def make_levels() -> tuple[Level, ...]:
    """All four, the noise found by search on the accountant."""
    plain = SGD(learning_rate=LEARNING_RATE, steps=STEPS, sampling_rate=SAMPLING_RATE)
    return (Level("non-private", "non-private", None, plain), *(_private(target) for target in TARGETS))


def find_noise(target: float, *, sampling_rate: float, steps: int, delta: float) -> float:
    """About the least noise multiplier, with four digits after the point, whose ε at ``delta`` is at most ``target``.

    Args:
        target: ε in nats, above 0; add or remove one record.
        sampling_rate: probability that a record joins a batch.
        steps: number of noisy steps.
        delta: the δ at which ε is meant, above 0.

    Raises:
        InputError: a setting is out of range.

    >>> find_noise(1.0, sampling_rate=1.0, steps=1, delta=1e-5)
    3.7311
    """
    goal = math.log(check.positive("target", target))

    def excess(noise: float) -> float:
        return math.log(max(_claim(noise, sampling_rate, steps).coarse().epsilon(delta), 1e-12)) - goal

    low, high = _bracket(excess)
    root = brentq(lambda at: excess(math.exp(at)), math.log(low), math.log(high), xtol=_TOLERANCE)
    noise = math.ceil(math.exp(root + _TOLERANCE) * 1e4) / 1e4
    while _claim(noise, sampling_rate, steps).epsilon(delta) > target:  # the fine grid has the last word
        noise = round(noise + 1e-4, 4)
    return noise


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Two noise multipliers, one the double of the other, of which the larger keeps the target and the smaller not.

    It starts in the middle, since the accountant takes long where there is little noise.
    """
    high = 1.0
    while excess(high) > 0:
        high *= 2.0
        if high > _MOST:
            raise InputError(f"target must be an ε that noise multipliers up to {_MOST:g} can keep, got a smaller one")
    low = high / 2.0
    while high <= 1.0 and low > _LEAST and excess(low) <= 0:
        low, high = low / 2.0, low
    return low, high


def _claim(noise: float, sampling_rate: float, steps: int) -> Claim:
    return Claim.dp_sgd(noise_multiplier=noise, sampling_rate=sampling_rate, steps=steps)


def _private(target: float) -> Level:
    noise = find_noise(target, sampling_rate=SAMPLING_RATE, steps=STEPS, delta=DELTA)
    trainer = DPSGD(
        learning_rate=LEARNING_RATE, steps=STEPS, sampling_rate=SAMPLING_RATE, noise_multiplier=noise,
        clip_norm=CLIP_NORM,
    )  # fmt: skip
    claim = _claim(noise, SAMPLING_RATE, STEPS)
    return Level(
        key=f"epsilon-{target:g}",
        title=f"DP-SGD, ε = {target:g}",
        target=target,
        trainer=trainer,
        claim=claim,
        epsilon=claim.epsilon(DELTA),
        ledger=_ledger(noise),
        added_up=STEPS * _claim(noise, SAMPLING_RATE, 1).epsilon(DELTA / STEPS),
    )


def _ledger(noise: float) -> tuple[tuple[int, float], ...]:
    at = (1, 2, 5, *range(10, STEPS + 1, 10))
    spent = [_claim(noise, SAMPLING_RATE, steps).coarse().epsilon(DELTA) for steps in at[:-1]]
    return (*zip(at[:-1], spent, strict=True), (STEPS, _claim(noise, SAMPLING_RATE, STEPS).epsilon(DELTA)))
