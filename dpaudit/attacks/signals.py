"""What an attacker reads off a model's outputs for one record: numbers in float64, from logits; higher says "member".

Probabilities enter through :func:`log_probabilities`, since logarithms of probabilities are logits. Every signal is
computed from differences of logits, never from a probability near 1, so that confident models give no false ties.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from ..errors import InputError
from .arrays import as_array, require_some, spans

Array = NDArray[np.float64]
_ROUNDING = 1e-3  # how far probabilities of one record may be from 1 in sum
_Rows = Callable[[Array, NDArray[np.int64]], Array]


def cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The loss −ln p(label), in nats, shape ``(..., records)``. The one function here that is low for members.

    Args:
        logits: shape ``(..., records, classes)``, or logarithms of probabilities.
        labels: whole numbers in ``[0, classes)``, shape ``(records,)``.

    Raises:
        InputError: shapes that do not fit, logits that are not finite, labels that are not there.

    >>> cross_entropy([[0.0, 0.0], [3.0, 0.0]], [0, 1]).round(3).tolist()
    [0.693, 3.049]
    """
    return _labelled(lambda z, y: _softplus(-_margins_of(z, y)), logits, labels)


def logit_margin(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The signal of LiRA: ln p(label) − ln Σ p(other labels) (Carlini et al. 2022, section V), ``(..., records)``.

    It is computed from logits, as the label's logit less the log-sum-exp of the others, and so stays exact where p
    rounds to 0 or 1. Arguments as in :func:`cross_entropy`.

    >>> logit_margin([[50.0, 0.0], [60.0, 0.0]], [0, 0]).tolist()
    [50.0, 60.0]
    """
    return _labelled(_margins_of, logits, labels)


def confidence(logits: ArrayLike, labels: ArrayLike | None = None) -> Array:
    """Log-odds of the label's probability or, without labels, of the largest one (Salem et al. 2019).

    Log-odds order records as the probability does, and go on where it rounds to 1. With labels it is
    :func:`logit_margin`. Arguments as in :func:`cross_entropy`.

    >>> confidence([[-2.0, 1.0]]).tolist(), confidence([[-2.0, 1.0]], [0]).tolist()
    ([3.0], [-3.0])
    """
    if labels is not None:
        return logit_margin(logits, labels)
    return _by_blocks(lambda z, _: _margins_of(z, z.argmax(axis=1)), logits, None)


def entropy(logits: ArrayLike) -> Array:
    """The negated entropy Σ p ln p of the prediction (Salem et al. 2019), in nats: a low entropy says "member".

    Logits as in :func:`cross_entropy`; shape ``(..., records)``.

    >>> entropy([[0.0, 0.0], [9.0, 0.0]]).round(4).tolist()
    [-0.6931, -0.0012]
    """
    return _by_blocks(lambda z, _: _negative_entropy(z), logits, None)


def modified_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """The negated modified entropy (Song and Mittal 2021, equation 8): an entropy that knows the label.

    (1 − p(label)) ln p(label) + Σ over other classes of p ln(1 − p); 0 is a certain and right prediction, −∞ a certain
    and wrong one. Arguments as in :func:`cross_entropy`.

    >>> modified_entropy([[9.0, 0.0], [9.0, 0.0]], [0, 1]).round(2).tolist()
    [-0.0, -18.0]
    """
    return _labelled(_negative_modified_entropy, logits, labels)


def correctness(logits: ArrayLike, labels: ArrayLike) -> Array:
    """1 where the label's logit is above all others, else 0: the gap attack (Yeom et al. 2018).

    A shared largest logit counts as wrong, whatever the order of the classes. Arguments as in :func:`cross_entropy`.

    >>> correctness([[2.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [0, 1, 0]).tolist()
    [1.0, 0.0, 0.0]
    """
    return _labelled(lambda z, y: (_own(z, y) > _without(z, y).max(axis=1)).astype(np.float64), logits, labels)


def loss_threshold(losses: ArrayLike) -> Array:
    """The simplest attack (Yeom et al. 2018): a small loss says "member". Scores of the shape of ``losses``.

    Raises:
        InputError: NaN among the losses, no numbers, or none at all.

    >>> loss_threshold([0.1, 2.0]).tolist()
    [-0.1, -2.0]
    """
    found = as_array("losses", losses)
    if found.dtype.kind not in "biuf":
        raise InputError(f"losses must be numbers, got an array of {found.dtype}")
    require_some("losses", found)
    scores = -found.astype(np.float64)
    if np.isnan(scores).any():
        raise InputError(f"losses must be numbers, got NaN in {int(np.isnan(scores).sum())} of {scores.size} places")
    return scores


def log_probabilities(probabilities: ArrayLike) -> Array:
    """Logarithms of probabilities ``(..., records, classes)``, to be used wherever logits are asked for.

    A probability of 0 becomes the smallest normal number of its type (of float32: 1.2e-38, ln = −87.3; of float64: ln =
    −708.4): below all others, and a tie with other zeros. Where a type has rounded probabilities to 1, the rest of the
    row still tells them apart, unless it is 0 too.

    Raises:
        InputError: numbers outside [0, 1], or rows whose sum is not within 1e-3 of 1.

    >>> log_probabilities([[0.5, 0.25, 0.25]]).round(3).tolist()
    [[-0.693, -1.386, -1.386]]
    """
    p = as_array("probabilities", probabilities)
    smallest = np.finfo(p.dtype if p.dtype.kind == "f" else np.float64).tiny
    if p.ndim < 2 or p.size == 0 or p.dtype.kind not in "fiu" or not ((p >= 0) & (p <= 1 + _ROUNDING)).all():
        raise InputError(f"probabilities must be (..., records, classes) in [0, 1], got shape {p.shape}{_range(p)}")
    sums = p.sum(axis=-1, dtype=np.float64)
    if np.abs(sums - 1).max() > _ROUNDING:
        worst = sums.flat[np.abs(sums - 1).argmax()]
        raise InputError(f"probabilities of a record must sum to 1, got {worst:g}; are they logits?")
    return np.log(np.maximum(p, smallest), dtype=np.float64)


def log_softmax(logits: ArrayLike) -> Array:
    """Logarithms of the probabilities that logits stand for, in their shape; the largest one's keeps its tail."""
    z = as_array("logits", logits)
    _checked(z, None)
    flat = z.reshape(-1, z.shape[-1])
    out = np.empty(flat.shape)
    for part in spans(len(flat)):
        out[part] = _logarithms(flat[part].astype(np.float64))[0]
    return out.reshape(z.shape)


def _range(p: NDArray) -> str:
    if p.dtype.kind not in "fiu" or p.size == 0:
        return ""
    return " with NaN" if np.isnan(p).any() else f" from {p.min():g} to {p.max():g}"


def _labelled(rows: _Rows, logits: ArrayLike, labels: ArrayLike) -> Array:
    return _by_blocks(rows, logits, labels)


def _by_blocks(rows: _Rows, logits: ArrayLike, labels: ArrayLike | None) -> Array:
    """``rows`` over blocks of records, each copied to float64 by itself."""
    z = as_array("logits", logits)
    y = _checked(z, labels)
    flat = z.reshape(-1, *z.shape[-2:])
    out = np.empty(flat.shape[:2])
    for model, values in enumerate(flat):
        for part in spans(len(values)):
            block = values[part].astype(np.float64)
            if not np.isfinite(block).all():
                raise InputError("logits must be finite, got NaN or infinity; probabilities enter by log_probabilities")
            out[model, part] = rows(block, y[part])
    return out.reshape(z.shape[:-1])


def _checked(z: NDArray, labels: ArrayLike | None) -> NDArray[np.int64]:
    """Labels of the records, zeros without any, after a look at the shapes."""
    if z.dtype.kind not in "fiu":
        raise InputError(f"logits must be numbers, got an array of {z.dtype}")
    if z.ndim < 2 or z.shape[-1] < 2:
        raise InputError(f"logits must be (..., records, classes) with at least 2 classes, got {z.shape}")
    require_some("logits", z)
    if labels is None:
        return np.zeros(z.shape[-2], np.int64)
    y = as_array("labels", labels)
    if y.shape != (z.shape[-2],):
        raise InputError(f"logits must be (..., records, classes) and labels (records,), got {z.shape} and {y.shape}")
    if y.dtype.kind not in "iu" or (y < 0).any() or (y >= z.shape[-1]).any():
        got = f"{y.min()} to {y.max()}" if y.dtype.kind in "iu" else f"an array of {y.dtype}"
        raise InputError(f"labels must be whole numbers in [0, {z.shape[-1]}), got {got}")
    return y.astype(np.int64)


def _own(z: Array, y: NDArray[np.int64]) -> Array:
    return z[np.arange(len(z)), y]


def _without(z: Array, y: NDArray[np.int64]) -> Array:
    """A copy with −∞ in place of one logit of each record."""
    rest = z.copy()
    rest[np.arange(len(z)), y] = -np.inf
    return rest


def _margins_of(z: Array, y: NDArray[np.int64]) -> Array:
    rest = _without(z, y)
    top = rest.max(axis=1, keepdims=True)
    return _own(z, y) - top[:, 0] - np.log(np.exp(rest - top).sum(axis=1))


def _softplus(x: Array) -> Array:
    """ln(1 + eˣ), which keeps the tail: not the difference of two large numbers, which would tie small losses."""
    return np.logaddexp(0.0, x)


def _logarithms(z: Array) -> tuple[Array, Array, NDArray[np.int64]]:
    """Logarithms of p, the largest class's log-odds, and which class that is."""
    top = z.argmax(axis=1)
    odds = _margins_of(z, top)
    below = z - _own(z, top)[:, None]
    return below - _softplus(-odds)[:, None], odds, top


def _negative_entropy(z: Array) -> Array:
    logs, _, _ = _logarithms(z)
    return (np.exp(logs) * logs).sum(axis=1)


def _negative_modified_entropy(z: Array, y: NDArray[np.int64]) -> Array:
    logs, odds, top = _logarithms(z)
    p, rows = np.exp(logs), np.arange(len(z))
    # ln(1 − p): every class but the largest has p ≤ ½; the largest one's comes from its log-odds.
    beside = np.log1p(-np.minimum(p, 0.5))
    beside[rows, top] = -_softplus(odds)
    terms = p * beside
    margin = _margins_of(z, y)
    terms[rows, y] = expit(-margin) * -_softplus(-margin)
    return terms.sum(axis=1)


def _negative_loss(logits: ArrayLike, labels: ArrayLike) -> Array:
    return loss_threshold(cross_entropy(logits, labels))


def _largest(logits: ArrayLike, labels: ArrayLike) -> Array:
    return confidence(logits)


def _negative_entropy_of(logits: ArrayLike, labels: ArrayLike) -> Array:
    return entropy(logits)


SIGNALS: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {
    "loss": _negative_loss,
    "margin": logit_margin,
    "confidence": _largest,
    "entropy": _negative_entropy_of,
    "modified-entropy": modified_entropy,
    "correctness": correctness,
}
"""Signals by name; each takes (logits, labels), and a higher value says "member".

``loss`` is ln p(label), the signal of RMIA; ``margin`` that of LiRA; ``confidence`` and ``entropy`` ask for no label.
"""
