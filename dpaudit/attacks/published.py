"""LiRA as its authors published it, with what is peculiar to that code, so that published numbers can be repeated.

The code is ``research/mi_lira_2021/plot.py`` of tensorflow/privacy. Where it departs from the paper or from good use:

- Means are medians, and standard deviations divide by n; 1e-30 is added to them.
- Each record is cut to as many shadows as the record with the fewest has, the first ones in order.
- ``reference-fixed`` takes one standard deviation over all signals of all records, without taking each record's mean
  off, so that differences between records count as noise; and online it uses that of the *in* signals for *out* too.
- Several queries of a record are averaged; offline the score is two-sided.
- Its scores are low for members; here they are turned round.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from ..errors import InputError
from .arrays import as_array, require_finite, require_flags, spans

Array = NDArray[np.float64]
PUBLISHED, FIXED = "reference", "reference-fixed"
_ADDED = 1e-30


def published_lira(
    signal: NDArray, shadow_signals: NDArray, shadow_member: ArrayLike, mode: str, variance: str
) -> Array:
    """Scores by the formula of the published code, shape of ``signal`` without its last axis.

    Args:
        signal: shape ``(records, queries)`` or ``(targets, records, queries)``.
        shadow_signals: shape ``(shadows, records, queries)``.
        shadow_member: shape ``(shadows, records)``.
        mode, variance: as in :func:`dpaudit.attacks.lira`; ``offline`` is the one-sided test on the same law.

    Raises:
        InputError: as :func:`dpaudit.attacks.lira`; a record with fewer than 2 shadows on a side that is used.
    """
    member = as_array("shadow_member", shadow_member)
    if member.shape != shadow_signals.shape[:2] or signal.shape[-2:] != shadow_signals.shape[1:]:
        raise InputError(
            "signal must be (…, records, queries), shadow_signals (shadows, records, queries) and shadow_member "
            f"(shadows, records), got {signal.shape}, {shadow_signals.shape} and {member.shape}"
        )
    require_finite("signal", signal)
    require_finite("shadow_signals", shadow_signals)
    require_flags("shadow_member", member)
    member = member.astype(bool)
    outside = _cut(shadow_signals, ~member)
    inside = _cut(shadow_signals, member) if mode == "online" else None
    fixed = None
    if variance == FIXED:
        fixed = _deviation(outside if inside is None else inside)
    out = np.empty(signal.shape[:-1])
    for part in spans(shadow_signals.shape[1]):
        x = signal[..., part, :].astype(np.float64)
        score = (
            -_log_density(x, outside[:, part], fixed) if mode != "offline" else -_log_tail(x, outside[:, part], fixed)
        )
        if inside is not None:
            score += _log_density(x, inside[:, part], fixed)
        out[..., part] = score.mean(axis=-1)
    return out


def _cut(signals: NDArray, use: NDArray[np.bool_]) -> Array:
    """The first so many shadows of each record on one side, shape ``(that many, records, queries)``."""
    least = int(use.sum(axis=0).min())
    if least < 2:
        raise InputError(
            f"lira with reference variance needs at least 2 shadows with and 2 without every record, got {least} one "
            "way; train more shadows"
        )
    first = np.argsort(~use, axis=0, kind="stable")[:least]
    return np.take_along_axis(signals, first[:, :, None], axis=0).astype(np.float64)


def _deviation(kept: Array) -> float:
    """The standard deviation of all numbers; sums over records are exact, so that their order is of no account."""
    mean = math.fsum(kept.sum(axis=0).flat) / kept.size
    return math.sqrt(math.fsum(np.square(kept - mean).sum(axis=0).flat) / kept.size)


def _standard(x: Array, kept: Array, fixed: float | None) -> tuple[Array, Array]:
    scale = (kept.std(axis=0) if fixed is None else np.full(kept.shape[1:], fixed)) + _ADDED
    return (x - np.median(kept, axis=0)) / scale, scale


def _log_density(x: Array, kept: Array, fixed: float | None) -> Array:
    z, scale = _standard(x, kept, fixed)
    return -0.5 * z * z - np.log(scale) - 0.5 * math.log(2 * math.pi)


def _log_tail(x: Array, kept: Array, fixed: float | None) -> Array:
    return log_ndtr(-_standard(x, kept, fixed)[0])
