"""What an attacker reads off a model's outputs for one record: numbers in float64, from logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

Array = NDArray[np.float64]


def cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The loss −ln p(label), in nats, shape ``(..., records)``.

    Args:
        logits: shape ``(..., records, classes)``.
        labels: whole numbers in ``[0, classes)``, shape ``(records,)``.
    """
    own, others = _own_and_others(logits, labels)
    return np.logaddexp(0.0, others - own)  # not the difference of two large numbers, which would tie small losses


def logit_margin(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The signal of LiRA: ln p(label) − ln Σ p(other labels) (Carlini et al. 2022, section V), ``(..., records)``.

    It is computed from logits, as the label's logit less the log-sum-exp of the others, and so stays exact where p
    rounds to 0 or 1. Arguments as in :func:`cross_entropy`.
    """
    own, others = _own_and_others(logits, labels)
    return own - others


def _own_and_others(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """The label's logit, and the log-sum-exp of all other logits."""
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    if z.ndim < 2 or y.shape != (z.shape[-2],):
        raise InputError(f"logits must be (..., records, classes) and labels (records,), got {z.shape} and {y.shape}")
    if y.dtype.kind not in "iu" or (y < 0).any() or (y >= z.shape[-1]).any():
        raise InputError(f"labels must be whole numbers in [0, {z.shape[-1]})")
    mine = np.arange(z.shape[-1]) == y[:, None]
    own = np.broadcast_to(z, z.shape)[..., mine].reshape(z.shape[:-1])
    rest = np.where(mine, -np.inf, z)
    top = rest.max(axis=-1)
    return own, top + np.log(np.exp(rest - top[..., None]).sum(axis=-1))


def loss_threshold(losses: ArrayLike) -> Array:
    """The simplest attack (Yeom et al. 2018): a small loss says "member". Scores of the shape of ``losses``."""
    scores = -np.asarray(losses, np.float64)
    if np.isnan(scores).any():
        raise InputError(f"losses must be numbers, got NaN in {int(np.isnan(scores).sum())} of {scores.size} places")
    return scores


def _negative_loss(logits: ArrayLike, labels: ArrayLike) -> Array:
    return loss_threshold(cross_entropy(logits, labels))


SIGNALS: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {"loss": _negative_loss, "margin": logit_margin}
"""Signals by name; each takes (logits, labels), and a higher value says "member"."""
