"""Exposure: how much better a model of text likes a secret than others that might as well have been drawn.

Source: Carlini, Liu, Erlingsson, Kos and Song 2019, "The secret sharer". The exposure of a secret is log2 of the number
of texts that it was drawn from, less log2 of its rank among these by perplexity: about 1.4 bits on average if the model
knows nothing of it, log2 of their number if it likes none of them better.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr, owens_t

from .. import check
from ..errors import InputError
from .arrays import as_array, require_some
from .signals import cross_entropy

Array = NDArray[np.float64]

LEAST_REFERENCES = 20
"""Fewer say nothing of the shape of a distribution."""

_STEEPEST = 100.0  # the largest shape that is fitted; a half-normal law has none
_WORST = 1.5  # distance times √references above which a fit is called poor
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_REACH = 40.0  # a tail is integrated until it has fallen by e^−40
_BLOCK = 2**14  # tails that are integrated at once


class PoorFit(UserWarning):
    """The references' perplexities do not look like the distribution that was fitted to them."""


def log_perplexity(logits: ArrayLike, tokens: ArrayLike, *, ignore: int = -100) -> Array:
    """The log-perplexity of sequences in bits: −log2 of their probability, Σ over tokens of −log2 p(token | before).

    Args:
        logits: of the next token at each place, shape ``(..., sequences, places, vocabulary)``.
        tokens: the tokens that come there, whole numbers, shape ``(sequences, places)``.
        ignore: a token that is not counted, such as what sequences are filled up with.

    Returns:
        Float64, shape ``(..., sequences)``.

    Raises:
        InputError: shapes that do not fit, or tokens out of range.
    """
    z, found = as_array("logits", logits), as_array("tokens", tokens)
    if z.ndim < 3 or found.shape != z.shape[-3:-1] or found.dtype.kind not in "iu":
        raise InputError(
            "logits must be (..., sequences, places, vocabulary) and tokens whole numbers (sequences, places), "
            f"got {z.shape} and {found.dtype} {found.shape}"
        )
    require_some("logits", z)
    counted = found != ignore
    kept = found[counted]
    if kept.size and not (kept.min() >= 0 and kept.max() < z.shape[-1]):
        raise InputError(f"tokens must be whole numbers in [0, {z.shape[-1]}), got {kept.min()} to {kept.max()}")
    losses = cross_entropy(z.reshape(*z.shape[:-3], -1, z.shape[-1]), np.where(counted, found, 0).ravel())
    return (losses.reshape(z.shape[:-1]) * counted).sum(axis=-1) / math.log(2)


def exposure_interpolated(
    perplexities: ArrayLike, reference_perplexities: ArrayLike, *, count_secret: bool = False
) -> Array:
    """Exposure of secrets by their rank among references: log2 |R| − log2 rank.

    The rank of a secret is 1 + the number of references whose perplexity is at most its own: of those that tie, the
    secret comes last. Exact if the references are all other texts of the format; of a sample, exposure is at most log2
    of its size, whatever the model knows.

    Args:
        perplexities: of the secrets, any shape; any increasing function of them says the same. Not changed.
        reference_perplexities: of texts that were drawn like the secrets and never trained on, shape
            ``(references,)``.
        count_secret: whether |R| counts the secret itself, beside the references, as the definition has it. The
            implementation of TensorFlow Privacy does not, nor does this by default: a secret behind all n references
            then has log2 n/(n + 1), a little below 0.

    Returns:
        Bits, float64, in the shape of ``perplexities``; higher says "member".

    Raises:
        InputError: NaN, no numbers, or no reference.

    >>> exposure_interpolated([0.5, 3.5, 9.0], [1.0, 2.0, 3.0, 4.0])
    array([ 2.        ,  0.        , -0.32192809])
    """
    secrets, references = _numbers("perplexities", perplexities), _references(reference_perplexities, 1)
    rank = 1 + np.searchsorted(references, secrets, side="right")
    return np.log2(len(references) + bool(count_secret)) - np.log2(rank)


def exposure_extrapolated(perplexities: ArrayLike, reference_perplexities: ArrayLike) -> Array:
    """Exposure of secrets by a skew-normal law fitted to the references: −log2 P[a reference's ≤ the secret's].

    It can be larger than log2 of the number of references, and is right only as far as the law is: see
    :func:`fit_exposure`, which also tells how well it fits.

    Args:
        perplexities: of the secrets, any shape: log-perplexities, which are near to such a law. Not changed.
        reference_perplexities: of at least 20 texts that were drawn like the secrets and never trained on.

    Returns:
        Bits, float64, at least 0, in the shape of ``perplexities``; higher says "member".

    Raises:
        InputError: numbers that are not finite, or too few references, or all the same.

    Warns:
        PoorFit: the law is further from the references than it should be.
    """
    fit = fit_exposure(reference_perplexities)
    if fit.poor:
        warnings.warn(
            f"a skew-normal law does not fit the {fit.references} references: their distributions are "
            f"{fit.distance:.3f} apart, where {_WORST / math.sqrt(fit.references):.3f} is much",
            PoorFit,
            stacklevel=2,
        )
    return fit.exposure(perplexities)


@dataclass(frozen=True)
class ExposureFit:
    """A skew-normal law: location + scale · Z, where Z has the density 2 φ(z) Φ(shape · z).

    Attributes:
        shape, location, scale: its parameters.
        references: how many it was fitted to.
        distance: the largest difference between its distribution function and theirs (Kolmogorov and Smirnov).
    """

    shape: float
    location: float
    scale: float
    references: int
    distance: float

    @property
    def poor(self) -> bool:
        """Whether the distance is above 1.5 / √references: of fits to such a law hardly one in 200 is."""
        return self.distance * math.sqrt(self.references) > _WORST

    def exposure(self, perplexities: ArrayLike) -> Array:
        """−log2 of the law's distribution function, exact far out in the tail.

        Raises:
            InputError: numbers that are not finite.
        """
        found = _numbers("perplexities", perplexities)
        if not np.isfinite(found).all():
            raise InputError("perplexities must be finite to extrapolate, got infinity")
        z = (found - self.location) / self.scale
        return np.maximum(-_log_cdf(z.ravel(), self.shape) / math.log(2), 0.0).reshape(found.shape)

    def p_value(self, generator: np.random.Generator, replicates: int = 199) -> float:
        """How often references of this law would be as far from the law fitted to them, by simulation.

        The fits are quicker ones, from one start, so that a p-value errs upwards.

        Args:
            generator: draws them.
            replicates: how many times; the p-value is a multiple of 1 / (replicates + 1), and at least that.
        """
        count = check.integer("replicates", replicates, 19)
        slant = self.shape / math.hypot(1.0, self.shape)
        further = 0
        for _ in range(count):
            half, whole = generator.standard_normal((2, self.references))
            drawn = slant * np.abs(half) + math.sqrt(1 - slant**2) * whole
            further += _fitted(np.sort(drawn), thorough=False).distance >= self.distance
        return (1 + further) / (1 + count)


def fit_exposure(reference_perplexities: ArrayLike) -> ExposureFit:
    """The skew-normal law that makes the references likeliest, with a shape between −100 and 100.

    Args:
        reference_perplexities: log-perplexities, shape ``(references,)``, at least 20; not changed.

    Raises:
        InputError: numbers that are not finite, too few, or all the same.
    """
    return _fitted(_references(reference_perplexities, LEAST_REFERENCES), thorough=True)


def _fitted(references: Array, *, thorough: bool) -> ExposureFit:
    """The likeliest law of references in rising order; thorough is from four starts, not one."""
    centre, spread = float(references.mean()), float(references.std())
    if not np.isfinite(references).all() or not spread > 1e-12 * max(1.0, abs(centre)):
        raise InputError("reference_perplexities must be finite and differ, got infinity or all the same")
    u = (references - centre) / spread
    skewness = float(np.mean(u**3))
    starts = [_by_moments(skewness)]
    if thorough:
        starts += [_by_moments(-skewness), _one_sided(u), -_one_sided(-u) * [1, -1, 1]]
    with np.errstate(over="ignore", invalid="ignore"):  # of steps that went too far, and are taken back
        fits = [minimize(_cost, start, (u,), method="BFGS", jac=True) for start in starts]
    location, log_scale, slant = min(fits, key=lambda fit: float(fit.fun)).x
    scale, shape = math.exp(log_scale), _STEEPEST * math.tanh(slant / _STEEPEST)
    level = np.exp(_log_cdf((u - location) / scale, shape))
    steps = np.arange(len(u) + 1) / len(u)
    distance = float(max((steps[1:] - level).max(), (level - steps[:-1]).max()))
    return ExposureFit(shape, centre + spread * float(location), spread * scale, len(u), distance)


def _by_moments(skewness: float) -> Array:
    """Location, ln scale and shape of mean 0, variance 1 and nearly this skewness."""
    power = abs(skewness) ** (2 / 3)
    slant = math.sqrt(math.pi / 2 * power / (power + ((4 - math.pi) / 2) ** (2 / 3)))
    slant = math.copysign(min(max(slant, 0.1), 0.99), skewness)
    scale = 1 / math.sqrt(1 - 2 * slant**2 / math.pi)
    return np.array([-scale * slant * math.sqrt(2 / math.pi), math.log(scale), slant / math.sqrt(1 - slant**2)])


def _one_sided(u: Array) -> Array:
    """Location, ln scale and shape of a law that begins where ``u`` does."""
    start = float(u.min()) - 1 / len(u)
    return np.array([start, 0.5 * math.log(float(np.mean((u - start) ** 2))), 20.0])


def _cost(parameters: Array, u: Array) -> tuple[float, Array]:
    """Minus the mean log-density of the references, and its derivatives.

    Parameters: location, ln scale, and a third that is nearly the shape, but whose shapes stay below the steepest.
    """
    location, log_scale, slant = parameters
    bend = np.tanh(slant / _STEEPEST)
    shape = _STEEPEST * bend
    z = (u - location) * np.exp(-log_scale)
    log_side = log_ndtr(shape * z)
    cost = log_scale + np.mean(z**2 / 2 - log_side)
    hazard = np.exp(-((shape * z) ** 2) / 2 - log_side) / math.sqrt(2 * math.pi)
    slope = z - shape * hazard  # of the cost, by z
    by_shape = -np.mean(hazard * z) * (1 - bend**2)
    return float(cost), np.array([-np.mean(slope) * np.exp(-log_scale), 1 - np.mean(slope * z), by_shape])


def _log_cdf(z: Array, shape: float) -> Array:
    """Ln of the skew-normal distribution function, to about 12 digits however small it is, shape ``(n,)``.

    Φ(z) − 2 T(z, shape), T Owen's function, is a difference of near equals in the left tail. There the density f is
    steep, and integrated as it stands: with h and −k the first and second derivative of ln f, which falls ever faster
    towards the left, f(z − u) ≤ f(z) exp(−h u − k u²/2).
    """
    side = np.exp(-((shape * z) ** 2) / 2 - log_ndtr(shape * z)) / math.sqrt(2 * math.pi)  # φ / Φ at shape · z
    steep, bent = shape * side - z, 1 + shape**2 * side * (side + shape * z)
    tail = steep > 2.0
    out = np.empty_like(z)
    out[~tail] = np.log(np.maximum(ndtr(z[~tail]) - 2 * owens_t(z[~tail], shape), 1e-300))
    for at in range(0, int(tail.sum()), _BLOCK):
        rows = np.flatnonzero(tail)[at : at + _BLOCK]
        start = z[rows, None]
        reach = 2 * _REACH / (steep[rows] + np.sqrt(steep[rows] ** 2 + 2 * _REACH * np.maximum(bent[rows], 0.0)))
        u = (_NODES + 1) / 2 * reach[:, None]
        falls = _log_density(start - u, shape) - _log_density(start, shape)
        out[rows] = _log_density(start, shape)[:, 0] + np.log((np.exp(falls) * _WEIGHTS).sum(1) * reach / 2)
    return np.minimum(out, 0.0)


def _log_density(z: Array, shape: float) -> Array:
    return math.log(2 / math.sqrt(2 * math.pi)) - z**2 / 2 + log_ndtr(shape * z)


def _numbers(name: str, values: ArrayLike) -> Array:
    found = as_array(name, values)
    if found.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers, got an array of {found.dtype}")
    require_some(name, found)
    bad = int(np.isnan(found).sum())
    if bad:
        raise InputError(f"{name} must be numbers without NaN, got NaN in {bad} of {found.size} places")
    return found.astype(np.float64)


def _references(values: ArrayLike, least: int) -> Array:
    """The references in rising order, so that theirs is of no account."""
    found = _numbers("reference_perplexities", values)
    if found.ndim != 1 or len(found) < least:
        raise InputError(f"reference_perplexities must have shape (references,), at least {least}, got {found.shape}")
    return np.sort(found)
