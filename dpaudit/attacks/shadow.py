"""LiRA: the likelihood ratio of a signal under models with and without the record (Carlini et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, gammaln, hyp2f1, log_ndtr, stdtr

from .. import check
from ..errors import InputError
from .arrays import Shadows, as_array
from .moments import Moments, both_sides, drawn_means, drawn_variances, plain_means
from .published import FIXED, PUBLISHED, published_lira

Array = NDArray[np.float64]
MODES = ("online", "offline", "offline-two-sided")
VARIANCES = ("per-example", "pooled", "shrink", PUBLISHED, FIXED)
_LEAST = 1e-18  # of the pooled variance: where all signals of a record are equal


def lira(
    signal: ArrayLike,
    shadow_signals: ArrayLike,
    shadow_member: ArrayLike,
    mode: str = "online",
    variance: str = "shrink",
) -> Array:
    """Scores of the likelihood-ratio attack, shape of ``signal``; needs shadows.

    Args:
        signal: of the target models, higher says "member": shape ``(records,)`` or ``(targets, records)``.
        shadow_signals: the same signal of the shadow models, shape ``(shadows, records)``. Where each record was asked
            about several times (augmentations), both have one axis more, ``queries``; the ratios of the queries are
            then summed, as though these were independent.
        shadow_member: was the record in the shadow's training set? Shape ``(shadows, records)``.
        mode: ``online`` is ln p(signal | in) − ln p(signal | out). ``offline`` uses shadows without the record only and
            is −ln P[out signal ≥ signal], the one-sided test of the paper (equation 4). ``offline-two-sided`` is
            −ln p(signal | out), the score of the published code: a signal that is low for an outsider counts as well.
        variance: ``per-example`` (at least 2 shadows each way per record), ``pooled`` (one variance each way over all
            records, each about its own mean), or ``shrink`` (per record, drawn towards what all records and the
            record's other side say; how much is read off the shadows. The predictive law is Student's t, under a
            normal-inverse-gamma prior). ``reference`` and ``reference-fixed`` are those of the published code
            with its quirks (:func:`dpaudit.attacks.published.published_lira`), and with several queries its mean.

    Raises:
        InputError: shapes that do not fit, NaN or infinite signals, or too few shadows for the variance asked for.

    >>> shadows = [[5.0, 1.0], [6.0, 2.0], [1.0, 6.0], [2.0, 5.0]]
    >>> member = [[1, 0], [1, 0], [0, 1], [0, 1]]
    >>> lira([5.5, 1.5], shadows, member, variance="pooled").round(6).tolist()
    [16.0, -16.0]
    """
    check.choice("mode", mode, MODES)
    check.choice("variance", variance, VARIANCES)
    x, shadows = as_array("signal", signal), as_array("shadow_signals", shadow_signals)
    if shadows.ndim == 3 and x.ndim in (2, 3) and x.shape[-1] == shadows.shape[2] > 0:
        if variance in (PUBLISHED, FIXED):
            return published_lira(x, shadows, shadow_member, mode, variance)
        queries = range(x.shape[-1])
        return np.add.reduce([lira(x[..., q], shadows[..., q], shadow_member, mode, variance) for q in queries])
    data = Shadows.read(x, shadows, shadow_member)
    if variance in (PUBLISHED, FIXED):
        return published_lira(x[..., None], shadows[..., None], shadow_member, mode, variance)
    score = _scorer(*both_sides(data), mode, variance)
    return np.stack([score(row.astype(np.float64)) for row in data.signal]).reshape(data.shape)


def lira_leave_one_out(signals: ArrayLike, member: ArrayLike, mode: str = "online", variance: str = "shrink") -> Array:
    """Each model in turn as the target, all others as its shadows; shape ``(models, records)``.

    For ROC figures only: a score here depends on the coins of the other models, which no bound allows. Where exactly
    half of the models have a record, the others tell what the target has, and scores lie below chance: flip coins.
    Arguments and errors as in :func:`lira`, where the shadows are one fewer.

    >>> lira_leave_one_out([[5.0], [6.0], [4.0], [1.0], [2.0], [0.0]], [[1], [1], [1], [0], [0], [0]]).shape
    (6, 1)
    """
    check.choice("mode", mode, MODES)
    check.choice("variance", variance, VARIANCES)
    data = Shadows.read(signals, signals, member)
    rows = range(len(data.shadows))
    if variance in (PUBLISHED, FIXED):
        return np.stack([lira(data.shadows[i], *data.others(i), mode, variance) for i in rows])
    inside, outside = both_sides(data)
    scores = np.empty(data.shadows.shape)
    for i in rows:
        x, was_in = data.shadows[i].astype(np.float64), data.member[i].astype(bool)
        scores[i] = _scorer(inside.without(x, was_in), outside.without(x, ~was_in), mode, variance)(x)
    return scores


def _scorer(inside: Moments, outside: Moments, mode: str, variance: str) -> Callable[[Array], Array]:
    if mode == "online":
        with_it, without_it = _law(inside, outside, variance), _law(outside, inside, variance)
        return lambda x: with_it.log_density(x) - without_it.log_density(x)
    law = _law(outside, None, variance)
    return law.log_tail if mode == "offline" else lambda x: -law.log_density(x)


@dataclass(frozen=True, eq=False)
class _Law:
    """A location-scale law per record: normal, or Student's t where ``freedom`` is given."""

    mean: Array
    scale: Array
    freedom: Array | None = None

    def log_density(self, x: Array) -> Array:
        z = (x - self.mean) / self.scale
        if self.freedom is None:
            return -0.5 * z * z - np.log(self.scale) - 0.5 * math.log(2 * math.pi)
        v = self.freedom
        return _log_constant(v) - np.log(self.scale) - (v + 1) / 2 * np.log1p(z * z / v)

    def log_tail(self, x: Array) -> Array:
        """−ln P[X ≥ x]."""
        z = (x - self.mean) / self.scale
        return -log_ndtr(-z) if self.freedom is None else -_log_student_tail(z, self.freedom)


def _log_constant(v: Array) -> Array:
    """The logarithm of the density of Student's t at 0; ``v`` takes few values."""
    values, where = np.unique(v, return_inverse=True)
    return (gammaln((values + 1) / 2) - gammaln(values / 2) - 0.5 * np.log(values * math.pi))[where]


def _log_student_tail(z: Array, v: Array) -> Array:
    """Logarithms of P[T ≥ z] = ½ I_w(v/2, ½), with w = v/(v + z²), also where the probability itself underflows."""
    tail = stdtr(v, -z)
    far = tail < 1e-200
    out = np.log(np.where(far, 1.0, tail))
    if far.any():
        a, w = v[far] / 2, v[far] / (v[far] + z[far] ** 2)
        series = np.log(hyp2f1(a, 0.5, a + 1, w))
        out[far] = a * np.log(w) - np.log(2 * a) - betaln(a, 0.5) + series
    return out


def _law(own: Moments, other: Moments | None, variance: str) -> _Law:
    """The law of the signal over the shadows of one side; ``other`` is the other side, where it may be looked at."""
    least = 2 if variance == "per-example" else 0
    if own.count.max() < 2 or own.count.min() < least:
        raise InputError(
            f"lira with {variance} variance needs at least 2 shadows with and 2 without "
            f"{'every' if least else 'some'} record, got {int(own.count.min())} one way; train more shadows"
        )
    if variance == "per-example":
        return _Law(own.mean, np.sqrt(np.maximum(own.squares / (own.count - 1), _LEAST * own.pooled)))
    if variance == "pooled":
        spread = np.full(len(own.mean), own.pooled)
        mean, doubt = plain_means(own, other, spread)
        return _Law(mean, np.sqrt(spread * np.where(own.count > 0, 1.0, 1.0 + doubt)))
    # Squares are about the record's own mean: one far from what is expected of it is no noisier for that.
    spread, freedom = drawn_variances(own, other)
    mean, doubt = drawn_means(own, other, spread)
    return _Law(mean, np.sqrt(spread * (1 + doubt)), None if math.isinf(freedom[0]) else freedom)
