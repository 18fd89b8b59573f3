"""What clipping does at the first step: the actual gradients of the class, before and after the red line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Data
from .classroom import CLUBS, HOBBIES

Array = NDArray[np.float64]

# Where each hobby points on the map: the six common ones over the lower half, hand knitting straight up.
ANGLES = tuple(math.radians(a) for a in (180, 216, 252, 288, 324, 360, 90))


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The arrows of all students at step 1, when the model is still all zeros and every student is asked.

    Attributes:
        hobbies: arrows of the hobby vectors on the map, shape ``(students, 2)``; true length, see :func:`arrows`.
        raw: the same directions with the length of each student's gradient.
        clipped: with the length that is left under the clip norm.
        norms: lengths of ``raw``, shape ``(students,)``.
        clipped_norms: lengths of ``clipped``.
        clip_norm: the red line.
        hobby_radius: the length of a hobby vector whose gradient just touches the red line; None if all cross it.
    """

    hobbies: Array
    raw: Array
    clipped: Array
    norms: Array
    clipped_norms: Array
    clip_norm: float
    hobby_radius: float | None


def first_step(data: Data, clip_norm: float) -> FirstStep:
    """The arrows of the class at step 1."""
    gradients = first_gradients(data.x, data.y, data.classes)
    norms = np.sqrt(np.square(gradients).sum(axis=(1, 2)))
    left = norms * np.minimum(1.0, clip_norm / np.maximum(norms, clip_norm))
    return FirstStep(
        hobbies=arrows(data.x, np.linalg.norm(data.x.astype(np.float64), axis=1)),
        raw=arrows(data.x, norms),
        clipped=arrows(data.x, left),
        norms=norms,
        clipped_norms=left,
        clip_norm=clip_norm,
        hobby_radius=hobby_radius(clip_norm, data.classes),
    )


def first_gradients(x: NDArray[Any], y: NDArray[Any], classes: int) -> Array:
    """Per-example gradients of softmax regression at zero weights, shape ``(records, features + 1, classes)``.

    Every class has probability 1 / classes there, so the gradient is the outer product of (x, 1) and that less the
    one-hot label; the last row is the bias.
    """
    inputs = np.concatenate([np.asarray(x, np.float64), np.ones((len(x), 1))], axis=1)
    slopes = 1.0 / classes - np.eye(classes)[np.asarray(y)]
    return inputs[:, :, None] * slopes[:, None, :]


def hobby_radius(clip_norm: float, classes: int) -> float | None:
    """The length of ``x`` at which the first gradient has the norm ``clip_norm``; None where every gradient is longer.

    The squared norm is (‖x‖² + 1)(1 − 1 / classes), by the outer product.

    >>> round(hobby_radius(1.0, 3), 4), hobby_radius(0.5, 3)
    (0.7071, None)
    """
    square = clip_norm**2 / (1.0 - 1.0 / classes) - 1.0
    return math.sqrt(square) if square > 0 else None


def arrows(x: NDArray[Any], lengths: Array) -> Array:
    """Arrows on the map, shape ``(records, 2)``: each hobby pulls in its own direction, the length is ``lengths``.

    A flat map can't keep all angles of seven dimensions. It keeps lengths exactly, which is what clipping is about.
    """
    compass = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])
    pull = np.asarray(x, np.float64) @ compass
    size = np.linalg.norm(pull, axis=1, keepdims=True)
    return pull / np.maximum(size, 1e-12) * lengths[:, None]


assert len(ANGLES) == len(HOBBIES) == 2 * len(CLUBS) + 1
