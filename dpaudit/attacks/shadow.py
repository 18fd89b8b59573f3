"""LiRA: the likelihood ratio of a signal under models with and without the record (Carlini et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, log_ndtr, stdtr

from .. import check
from ..errors import InputError
from ..records import BoolArray

Array = NDArray[np.float64]
MODES = ("online", "offline")
VARIANCES = ("per-example", "pooled", "shrink")

# Weight of the pooled variance in ``shrink``, in shadows; and of the other canaries' mean where a canary has none.
PRIOR_SHADOWS = 4.0
_SMALLEST_VARIANCE = 1e-12


def lira(
    signal: ArrayLike,
    shadow_signals: ArrayLike,
    shadow_member: ArrayLike,
    mode: str = "online",
    variance: str = "shrink",
) -> Array:
    """Scores of the likelihood-ratio attack, shape of ``signal``.

    Args:
        signal: of the target models, higher says "member": shape ``(records,)`` or ``(targets, records)``.
        shadow_signals: the same signal of the shadow models, shape ``(shadows, records)``.
        shadow_member: was the record in the shadow's training set? Same shape.
        mode: ``online`` is ln p(signal | in) − ln p(signal | out). ``offline`` uses shadows without the record only and
            is −ln P[out signal ≥ signal], the one-sided test of the paper.
        variance: ``per-example`` (at least 2 shadows each way per record), ``pooled`` (one variance each way over all
            records, each about its own mean; the choice below about 64 shadows), or ``shrink`` (per record, drawn
            towards the pooled one; the predictive law is Student's t, as under a normal-inverse-gamma prior).

    Raises:
        InputError: shapes that do not fit, NaN or infinite signals, or too few shadows for the variance asked for.
    """
    check.choice("mode", mode, MODES)
    check.choice("variance", variance, VARIANCES)
    x, shadows, member = _checked(signal, shadow_signals, shadow_member)
    out = _fit(shadows, ~member, variance)
    if mode == "offline":
        return out.log_tail(x)
    return _fit(shadows, member, variance).log_density(x) - out.log_density(x)


def lira_leave_one_out(signals: ArrayLike, member: ArrayLike, mode: str = "online", variance: str = "shrink") -> Array:
    """Each model in turn as the target, all others as its shadows; shape ``(models, records)``.

    For ROC figures only: a score here depends on the coins of the other models, which no bound allows.
    """
    signals, member = np.asarray(signals, np.float64), np.asarray(member, bool)
    rows = np.arange(len(signals))
    return np.stack([lira(signals[i], signals[rows != i], member[rows != i], mode, variance) for i in rows])


def _checked(signal: ArrayLike, shadow_signals: ArrayLike, shadow_member: ArrayLike) -> tuple[Array, Array, BoolArray]:
    x, shadows = np.asarray(signal, np.float64), np.asarray(shadow_signals, np.float64)
    member = np.asarray(shadow_member)
    if (
        shadows.ndim != 2
        or shadows.size == 0
        or member.shape != shadows.shape
        or x.ndim not in (1, 2)
        or x.shape[-1] != shadows.shape[1]
    ):
        raise InputError(
            "signal must be (records,) or (targets, records), shadow_signals and shadow_member (shadows, records), "
            f"got {x.shape}, {shadows.shape} and {member.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(shadows).all()):
        raise InputError("signals must be finite, got NaN or infinity")
    if not np.isin(member, (0, 1)).all():
        raise InputError("shadow_member must be true or false (1 or 0)")
    return x, shadows, member.astype(bool)


@dataclass(frozen=True, eq=False)
class _Law:
    """A location-scale law per record: normal, or Student's t where ``freedom`` is finite."""

    mean: Array
    scale: Array
    freedom: Array | None

    def log_density(self, x: Array) -> Array:
        z = (x - self.mean) / self.scale
        if self.freedom is None:
            return -0.5 * z * z - np.log(self.scale) - 0.5 * np.log(2 * np.pi)
        v = self.freedom
        constant = gammaln((v + 1) / 2) - gammaln(v / 2) - 0.5 * np.log(v * np.pi)
        return constant - np.log(self.scale) - (v + 1) / 2 * np.log1p(z * z / v)

    def log_tail(self, x: Array) -> Array:
        """−ln P[X ≥ x]."""
        z = (x - self.mean) / self.scale
        if self.freedom is None:
            return -log_ndtr(-z)
        return -np.log(np.maximum(stdtr(self.freedom, -z), 1e-300))


def _fit(shadows: Array, use: BoolArray, variance: str) -> _Law:
    """The law of the signal over those shadows of each record that ``use`` marks."""
    count = use.sum(axis=0)
    least = 2 if variance == "per-example" else 0
    if count.max() < 2 or count.min() < least:
        raise InputError(
            f"lira with {variance} variance needs at least 2 shadows with and 2 without "
            f"{'every' if least else 'some'} record, got {int(count.min())} one way; train more shadows"
        )
    mean = np.where(use, shadows, 0.0).sum(axis=0) / np.maximum(count, 1)
    # A record that no shadow tells anything about borrows the mean of the others.
    mean = np.where(count > 0, mean, mean[count > 0].mean())
    squares = (np.where(use, shadows - mean, 0.0) ** 2).sum(axis=0)
    pooled = max(squares.sum() / max((count - 1)[count > 0].sum(), 1), _SMALLEST_VARIANCE)
    spread = 1.0 + 1.0 / np.maximum(count, 1)
    if variance == "per-example":
        return _Law(mean, np.sqrt(np.maximum(squares / (count - 1), _SMALLEST_VARIANCE)), None)
    if variance == "pooled":
        return _Law(mean, np.sqrt(np.full(len(mean), pooled)), None)
    freedom = PRIOR_SHADOWS + np.maximum(count - 1, 0)
    shrunk = (PRIOR_SHADOWS * pooled + squares) / freedom
    return _Law(mean, np.sqrt(shrunk * spread), freedom)
