"""Steps of stacks of perceptrons that are no matrix products, each in one pass over all models.

Shapes: K models, B places in a batch, of which the first ``sizes[k]`` hold records and the others zeros. Records lie as
``(K, B, features)``, values inside the networks as ``(K, units, B)``, so that loops run along the batch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, float32
from .functions import exp

Reals = NDArray[np.float32]
Whole = NDArray[np.int64]

_BLOCK = 256  # units: squares of so many are added up by themselves, or rounding would make sums of many too small
_LARGEST, _TINY = float32(np.finfo(np.float32).max), float32(np.finfo(np.float32).tiny)


@compiled
def gather(x: Reals, y: Whole, squares: Reals, all_x: Reals, all_y: Whole, all_squares: Reals, index: Whole) -> None:
    """The records numbered ``index``: features, label, squared norm of the features.

    Places for which ``index`` has no number get the last record, which is one of zeros.
    """
    known, nothing = index.shape[1], len(all_y) - 1
    for k in range(x.shape[0]):
        for b in range(x.shape[1]):
            record = index[k, b] if b < known else nothing
            y[k, b], squares[k, b] = all_y[record], all_squares[record]
            for i in range(x.shape[2]):
                x[k, b, i] = all_x[record, i]


@compiled
def activate(z: Reals, a: Reals, squares: Reals, sizes: Whole) -> None:
    """ReLU, a last unit that is 1 where there is a record, and squared norms over units, shape ``(K, B)``."""
    units, places = z.shape[1], z.shape[2]
    part = np.empty(places, np.float32)
    for k in range(z.shape[0]):
        for b in range(places):
            a[k, units, b] = float32(1) if b < sizes[k] else float32(0)
            squares[k, b] = a[k, units, b]
        for first in range(0, units, _BLOCK):
            part[:] = float32(0)
            for i in range(first, min(first + _BLOCK, units)):
                for b in range(places):
                    value = float32(0) if z[k, i, b] < float32(0) else z[k, i, b]  # NaN stays
                    a[k, i, b] = value
                    part[b] += value * value
            for b in range(places):
                squares[k, b] += part[b]


@compiled
def softmax_slopes(values: Reals, y: Whole) -> None:
    """From logits ``(K, classes, B)`` to the derivatives of the cross-entropy, in place."""
    classes, places = values.shape[1], values.shape[2]
    most, total = np.empty(places, np.float32), np.empty(places, np.float32)
    for k in range(values.shape[0]):
        for b in range(places):
            most[b], total[b] = values[k, 0, b], float32(0)
        for c in range(1, classes):
            for b in range(places):
                most[b] = values[k, c, b] if values[k, c, b] > most[b] else most[b]
        for c in range(classes):
            for b in range(places):
                power = exp(values[k, c, b] - most[b])
                values[k, c, b] = power
                total[b] += power
        for c in range(classes):
            for b in range(places):
                values[k, c, b] /= total[b]
        for b in range(places):
            values[k, y[k, b], b] -= float32(1)


@compiled
def mask(slopes: Reals, a: Reals) -> None:
    """Zeros where ReLU gave 0: derivatives behind it, in place. ``a`` has one unit more."""
    for k in range(slopes.shape[0]):
        for i in range(slopes.shape[1]):
            for b in range(slopes.shape[2]):
                slopes[k, i, b] = float32(0) if a[k, i, b] <= float32(0) else slopes[k, i, b]


@compiled
def add_squares(total: Reals, slopes: Reals, input_squares: Reals) -> None:
    """Add the squared norms of the gradients of one layer: those of slopes times those of inputs, ``(K, B)``."""
    units, places = slopes.shape[1], total.shape[1]
    own, part = np.empty(places, np.float32), np.empty(places, np.float32)
    for k in range(total.shape[0]):
        own[:] = units * _TINY  # as much may have underflown, and the other factor be large
        for first in range(0, units, _BLOCK):
            part[:] = float32(0)
            for i in range(first, min(first + _BLOCK, units)):
                for b in range(places):
                    part[b] += slopes[k, i, b] * slopes[k, i, b]
            for b in range(places):
                own[b] += part[b]
        for b in range(places):
            total[k, b] += own[b] * input_squares[k, b]


@compiled
def weigh(total: Reals, norms: Reals, sizes: Whole, counts: NDArray[np.int32]) -> int:
    """From squared norms to what each gradient weighs in the clipped sum, in place.

    Args:
        total: shape ``(K, B)``; what is not finite becomes 0 with a negative sign, and its gradient is dropped.
        norms: the clip norm of each model.
        sizes: of the batches.
        counts: filled with how many gradients of each model were scaled down, and dropped; shape ``(K, 2)``.

    Returns:
        How many were dropped, those of padding included.
    """
    lost = 0
    for k in range(total.shape[0]):
        scaled, dropped = 0, 0
        for b in range(total.shape[1]):
            square = total[k, b]
            weight = norms[k] / math.sqrt(square)
            finite = square <= _LARGEST
            record = b < sizes[k]
            scaled += finite and record and weight < float32(1)
            dropped += record and not finite
            lost += not finite
            weight = weight if weight < float32(1) else float32(1)
            total[k, b] = weight if finite else float32(-0.0)
        counts[k, 0], counts[k, 1] = scaled, dropped
    return lost


@compiled
def scale(slopes: Reals, weights: Reals) -> None:
    """Each example's derivatives times its weight, in place."""
    for k in range(slopes.shape[0]):
        for i in range(slopes.shape[1]):
            for b in range(slopes.shape[2]):
                slopes[k, i, b] *= weights[k, b]
