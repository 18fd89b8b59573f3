"""One gradient at a time, in compiled loops: from logits to derivatives of the loss, its length, and what it weighs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, float32, float64
from .functions import exp

Reals = NDArray[np.float32]
Precise = NDArray[np.float64]
Whole = NDArray[np.int64]

_LARGEST = float(np.finfo(np.float32).max)
_SIDE_BY_SIDE = 64  # numbers whose squares are added up each by itself
_IN_TURN = 32  # so many of them in float32, or rounding would make sums of many too small


class Rule(NamedTuple):
    """A clipping rule in numbers: min(1, C / norm), or C / (norm + stability) where not ``capped``."""

    limits: Precise  # C of each layer, or one for all
    by_layer: bool
    capped: bool
    stability: float


@compiled
def softmax_slopes(values: Reals, label: Whole, ignored: int, mean: bool) -> bool:
    """From logits ``(classes, places)`` to the derivatives of the loss, in place; whether the loss is finite."""
    classes, columns = values.shape
    counted = 0
    for t in range(len(label)):
        counted += label[t] != ignored
    share = float32(1 / max(1, counted)) if mean else float32(1)
    most, total = np.empty(columns, np.float32), np.zeros(columns, np.float32)
    most[:] = -np.inf
    for c in range(classes):
        for t in range(columns):
            most[t] = most[t] if values[c, t] <= most[t] else values[c, t]
    finite = True
    for t in range(len(label)):
        finite &= label[t] == ignored or most[t] - values[label[t], t] <= float32(_LARGEST)
    for c in range(classes):
        for t in range(columns):
            power = exp(values[c, t] - most[t])
            values[c, t] = power
            total[t] += power
    for t in range(columns):
        total[t] = share / total[t]
    for t in range(len(label)):
        total[t] = float32(0) if label[t] == ignored else total[t]
    for c in range(classes):
        for t in range(columns):
            values[c, t] *= total[t]
    for t in range(len(label)):
        if label[t] != ignored:
            values[label[t], t] -= share
    return finite


@compiled
def squared_length(values: Reals) -> float:
    """Squared norm of a vector."""
    total, part = 0.0, np.empty(_SIDE_BY_SIDE, np.float32)
    whole = len(values) // _SIDE_BY_SIDE
    for first in range(0, whole, _IN_TURN):
        part[:] = 0
        for n in range(first, min(first + _IN_TURN, whole)):
            some = values[n * _SIDE_BY_SIDE : (n + 1) * _SIDE_BY_SIDE]
            for i in range(_SIDE_BY_SIDE):
                part[i] += some[i] * some[i]
        for i in range(_SIDE_BY_SIDE):
            total += part[i]
    for value in values[whole * _SIDE_BY_SIDE :]:
        total += value * value
    return total


@compiled
def precise_length(values: Reals) -> float:
    """The same in float64, infinite beyond float32: for a factor, as what is lost of a small one may be multiplied."""
    total = 0.0
    for value in values:
        total += float64(value) * float64(value)
    return total if total <= _LARGEST else np.inf


@compiled
def weigh(squares: Precise, rule: Rule, weights: Reals) -> int:
    """What each layer of a gradient weighs, from its squared norms.

    Returns:
        -1 if a norm or a weight is no number above 0, which drops the example, 1 if a weight is below 1, else 0.
    """
    scaled = 0
    for n in range(len(squares)):
        square = squares[n] if rule.by_layer else squares.sum()
        limit, norm = rule.limits[n], math.sqrt(square)
        weights[n] = limit / max(norm, limit) if rule.capped else limit / (norm + rule.stability)
        if not (square <= _LARGEST and weights[n] > 0):
            return -1
        scaled |= weights[n] < 1
    return scaled


@compiled
def add_times(values: Reals, weight: float, out: Reals) -> None:
    """Add ``weight`` times a vector to another."""
    factor = float32(weight)
    for i in range(len(values)):
        out[i] += factor * values[i]
