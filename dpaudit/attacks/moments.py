"""Counts, means and squares of a signal over the shadows with a record, or over those without it, and priors on them.

The priors are empirical Bayes over records, after Smyth 2004 ("Linear models and empirical Bayes methods for assessing
differential expression"): a variance is inverse chi-squared about a scale, and the strength of that law in shadows is
read off how much the logarithms of sample variances differ beyond what so few shadows explain. Given the variance, a
mean is normal about what the record's other side foretells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from .arrays import Shadows

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

FEWEST_RECORDS = 10
"""Below so many records with a sample variance, the prior is not estimated: the pooled variance, worth 4 shadows."""
FEW_STRENGTH = 4.0
ENDLESS = 1000.0
"""A strength above this is taken for infinite: all records then share their law's variance, and laws are normal."""
GROUPS, GROUP_SIZE = 20, 50
"""Of records, by the mean on their other side; at most so many, of at least so many."""
_TINY = 1e-100
_LEAST_BETWEEN = 1e-3  # of the variance: how much means differ at least beyond what the other side foretells
_EQUAL = 1e-12  # squares that are less than this part of the pooled variance come from signals that are equal


@dataclass(frozen=True, eq=False)
class Moments:
    """Of each record, over the shadows of one side: how many, their mean (0 without any) and squares about it.

    All of shape ``(records,)``.
    """

    count: Counts
    mean: Array
    squares: Array

    @property
    def freedom(self) -> Counts:
        """Degrees of freedom of the squares."""
        return np.maximum(self.count - 1, 0)

    @property
    def pooled(self) -> float:
        """One variance over all records, each about its own mean; above 0."""
        return max(math.fsum(self.squares) / max(int(self.freedom.sum()), 1), _TINY)

    def without(self, signal: Array, use: NDArray[np.bool_]) -> Moments:
        """The moments had one shadow not been counted, for the records where ``use`` says that it was."""
        count = self.count - use
        off = np.where(use, signal - self.mean, 0.0)
        share = off / np.maximum(count, 1)
        mean = np.where(count > 0, self.mean - share, 0.0)
        squares = np.where(count > 1, self.squares - off * (off + share), 0.0)
        return Moments(count, mean, np.maximum(squares, 0.0))


def both_sides(data: Shadows) -> tuple[Moments, Moments]:
    """Over the shadows with each record, and over those without it."""
    sides = [_empty(data.shadows.shape[1]) for _ in range(2)]
    for part, signals, member in data.blocks():
        for side, use in zip(sides, (member, ~member), strict=True):
            count = use.sum(axis=0)
            mean = np.where(use, signals, 0.0).sum(axis=0) / np.maximum(count, 1)
            off = np.where(use, signals - mean, 0.0)
            side.count[part], side.mean[part] = count, mean
            side.squares[part] = np.einsum("sr,sr->r", off, off)
    return sides[0], sides[1]


def _empty(records: int) -> Moments:
    return Moments(np.zeros(records, np.int64), np.zeros(records), np.zeros(records))


@dataclass(frozen=True)
class Prior:
    """Of every record's variance: inverse chi-squared about ``scale``, worth ``strength`` shadows (perhaps ∞)."""

    strength: float
    scale: float


def drawn_variances(own: Moments, other: Moments | None) -> tuple[Array, Array]:
    """Variances and their degrees of freedom (∞ where one variance serves all); both of shape ``(records,)``.

    A record whose signal is unsteady between models with it is so between models without it: where the other side may
    be looked at, its squares are added, at the ratio of the pooled variances and for what they are worth here.
    """
    squares, freedom = own.squares, own.freedom.astype(np.float64)
    if other is not None:
        worth = other_side_worth(own, other)
        squares = squares + own.pooled / other.pooled * worth * other.squares / np.maximum(other.freedom, 1)
        freedom = freedom + worth
    prior = variance_prior(squares, freedom)
    if math.isinf(prior.strength):
        return np.full(len(squares), prior.scale), np.full(len(squares), math.inf)
    total = prior.strength + freedom
    return (prior.strength * prior.scale + squares) / total, total


def variance_prior(squares: Array, freedom: Array) -> Prior:
    """What all records say of the variance of each, from their squares and degrees of freedom.

    The logarithm of a sample variance is, without bias, ``ln s² − ψ(d/2) + ln(d/2)``, and has variance ψ'(d/2) about
    the true one (Smyth 2004, section 6.2). What logarithms vary beyond that is the variance of the prior's, which is
    ψ'(strength/2). The scale is between the one that the logarithms ask for and the pooled variance: logarithms of
    variances from one or two shadows are unsteady, but where variances differ greatly (a small strength), the pooled
    one is that of a few records. The pooled one has the weight 1 − 1/strength in the logarithm.
    """
    pooled = max(math.fsum(squares) / max(math.fsum(freedom), 1e-12), _TINY)
    logs = _LogVariances.of(squares, freedom)
    if logs.use.sum() < FEWEST_RECORDS:
        return Prior(FEW_STRENGTH, pooled)
    mean = logs.mean(logs.value)
    # One standard error more, so that few records are not thought to be all alike.
    left = logs.mean((logs.value - mean) ** 2) * (1 + math.sqrt(2 / logs.use.sum())) - logs.mean(logs.error)
    if left <= float(polygamma(1, ENDLESS / 2)):
        return Prior(math.inf, pooled)
    half = float(_inverse_trigamma(np.array([left]))[0])
    trust = max(1 - 1 / (2 * half), 0.0)
    logarithm = (1 - trust) * (mean + float(digamma(half)) - math.log(half)) + trust * math.log(pooled)
    return Prior(2 * half, math.exp(logarithm))


def other_side_worth(own: Moments, other: Moments) -> Array:
    """How many degrees of freedom the other side's squares are worth on this one, shape ``(records,)``.

    The logarithms of a record's two sample variances differ by their errors, and by what the true ones differ. With
    that added to its error ψ'(d/2), the other side's is as good as one with fewer degrees of freedom.
    """
    mine, theirs = (_LogVariances.of(side.squares, side.freedom.astype(np.float64)) for side in (own, other))
    both, errors = mine.use & theirs.use, mine.error + theirs.error
    if both.sum() < FEWEST_RECORDS:
        return np.zeros(len(both))
    weights = both / errors
    difference = mine.value - theirs.value
    difference = difference - _mean(difference, weights)
    spread = _mean(difference**2, weights) * (1 + math.sqrt(2 / both.sum()))
    beyond = max(spread - _mean(errors, weights), 0.0)
    values, where = np.unique(other.freedom, return_inverse=True)
    worth = 2 * _inverse_trigamma(polygamma(1, np.maximum(values, 1) / 2) + beyond)
    return np.where(values > 0, worth, 0.0)[where]


@dataclass(frozen=True, eq=False)
class _LogVariances:
    """Logarithms of sample variances, without bias, where there is one; all of shape ``(records,)``.

    Attributes:
        use: has the record a sample variance, and are its signals not all equal?
        value: the logarithm; 0 elsewhere.
        error: its variance ψ'(d/2), whose inverse is its weight.
    """

    use: NDArray[np.bool_]
    value: Array
    error: Array

    @classmethod
    def of(cls, squares: Array, freedom: Array) -> _LogVariances:
        pooled = math.fsum(squares) / max(math.fsum(freedom), 1e-12)
        use = (freedom > 0) & (squares > _EQUAL * pooled)
        values, where = np.unique(np.where(use, freedom, 1.0), return_inverse=True)  # few, as these functions are slow
        bias, error = np.log(values / 2) - digamma(values / 2), polygamma(1, values / 2)
        logs = np.log(np.where(use, squares, 1.0) / values[where]) + bias[where]
        return cls(use, np.where(use, logs, 0.0), error[where])

    def mean(self, values: Array) -> float:
        """The weighted mean of numbers about the records that are used."""
        return _mean(values, self.use / self.error)


def plain_means(own: Moments, other: Moments | None, variance: Array) -> tuple[Array, Array]:
    """Means as they are, and their variance in units of ``variance``; both of shape ``(records,)``.

    A record without a shadow on this side takes its mean on the other side plus the average difference between sides
    or, where the other side may not be looked at, the average mean.
    """
    here = own.count > 0
    known = here if other is None else here & (other.count > 0)
    base = np.zeros(len(here))
    if other is not None and known.any():
        base = other.mean
    else:
        known = here
    steps = own.mean[known] - base[known]
    step = _mean(steps)
    return (
        np.where(here, own.mean, base + step),
        np.where(here, 1 / np.maximum(own.count, 1), _mean((steps - step) ** 2) / variance),
    )


def drawn_means(own: Moments, other: Moments | None, variance: Array) -> tuple[Array, Array]:
    """As :func:`plain_means`, but drawn towards what the other side foretells.

    The difference between a record's two means, and how much it varies beyond the sampling error, are curves over the
    mean on the other side, by groups of records: hard records gain more from being trained on, and not all alike. Where
    the other side may not be looked at, and with few records, means are as they are.
    """
    known = np.zeros(0, bool) if other is None else (own.count > 0) & (other.count > 0)
    if other is None or known.sum() < FEWEST_RECORDS:
        return plain_means(own, other, variance)
    groups = _groups(other.mean[known])
    expected = other.mean + _curve(other.mean, known, own.mean - other.mean, groups)
    # One standard error more, as above.
    surplus = 1 + math.sqrt(2 * len(groups) / known.sum())
    excess = surplus * (own.mean - expected) ** 2 / variance - 1 / np.maximum(own.count, 1)
    between = np.maximum(_curve(other.mean, known, excess, groups), _LEAST_BETWEEN)
    weight = np.where(other.count > 0, 1 / between, 0.0)
    total = weight + own.count
    return (weight * expected + own.count * own.mean) / total, 1 / total


def _groups(values: Array) -> list[Counts]:
    """Places of values in order, in at most ``GROUPS`` groups of at least ``GROUP_SIZE``; equals share a group."""
    order = np.argsort(values, kind="stable")
    parts = np.array_split(order, min(max(len(values) // GROUP_SIZE, 1), GROUPS))
    cuts: list[int] = []
    for first in np.searchsorted(values[order], [values[part[0]] for part in parts[1:]]):
        if first - (cuts[-1] if cuts else 0) >= GROUP_SIZE:
            cuts.append(int(first))
    return np.split(order, cuts)


def _curve(x: Array, known: NDArray[np.bool_], y: Array, groups: list[Counts]) -> Array:
    """Means of y by groups of x among the known records, joined by straight lines and level beyond."""
    xs, ys = x[known], y[known]
    return np.interp(x, [_mean(xs[group]) for group in groups], [_mean(ys[group]) for group in groups])


def _mean(values: Array, weights: Array | None = None) -> float:
    """The mean over records, of exact sums: the same bits whatever order the records came in."""
    if weights is None:
        return math.fsum(values) / len(values)
    return math.fsum(values * weights) / math.fsum(weights)


def _inverse_trigamma(values: Array) -> Array:
    """The x > 0 with ψ'(x) = value, by Newton's method on 1/ψ' from below (Smyth 2004, appendix)."""
    x = 0.5 + 1 / values
    for _ in range(30):
        slope = polygamma(1, x)
        x = x + slope * (1 - slope / values) / polygamma(2, x)
    return np.asarray(x, np.float64)
