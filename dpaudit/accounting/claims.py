"""Claims: what a trainer promises, as mechanism settings that know their privacy curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from ..records import ADJACENCY
from .curves import Array, Curve, GaussianCurve, PairCurve

SAMPLERS = ("poisson", "full-batch")


@dataclass(frozen=True)
class Gaussian:
    """Full-batch releases of sensitivity 1 with Gaussian noise: exactly μ-GDP with μ = √steps / noise multiplier."""

    noise_multiplier: float
    steps: int = 1

    kind = "gaussian"

    def curve(self, finest: float) -> Curve:
        """The exact curve."""
        return GaussianCurve(math.sqrt(self.steps) / self.noise_multiplier)

    def epsilon_from_below(self, delta: float) -> float:
        """The exact ε, rounded down."""
        return float(self.curve(0.0).epsilon(np.asarray(delta))) * (1 - 1e-12)

    def with_noise(self, noise_multiplier: float) -> Gaussian:
        """The same mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class SubsampledGaussian:
    """DP-SGD: Poisson-sampled sums, clipped, with Gaussian noise, composed over steps (Abadi et al. 2016)."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampler: str = "poisson"

    kind = "dp-sgd"

    def curve(self, finest: float) -> Curve:
        """The curve by privacy loss distributions, rounded against the trainer."""
        from .pld import subsampled_gaussian

        return subsampled_gaussian(self.noise_multiplier, self.sampling_rate, self.steps, finest)

    def epsilon_from_below(self, delta: float) -> float:
        """An ε that is surely spent, by privacy loss distributions rounded for the trainer."""
        from .pld import epsilon_from_below

        return epsilon_from_below(self.noise_multiplier, self.sampling_rate, self.steps, delta)

    def with_noise(self, noise_multiplier: float) -> SubsampledGaussian:
        """The same mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class Pair:
    """A bare (ε, δ): a promise without a recipe."""

    at_epsilon: float
    at_delta: float

    kind = "pair"

    def curve(self, finest: float) -> Curve:
        """The weakest curve that keeps the promise."""
        return PairCurve(self.at_epsilon, self.at_delta)

    def epsilon_from_below(self, delta: float) -> float:
        """The curve's own ε."""
        return float(self.curve(0.0).epsilon(np.asarray(delta)))


Mechanism = Gaussian | SubsampledGaussian | Pair


@dataclass(frozen=True)
class Claim:
    """A promise of differential privacy: a mechanism's settings, its privacy curve and its neighbouring relation.

    Make one with :meth:`dp_sgd`, :meth:`gaussian` or :meth:`pair`.

    >>> claim = Claim.gaussian(noise_multiplier=1.0)
    >>> round(claim.epsilon(1e-5), 3)
    4.377
    >>> round(claim.fnr(0.05), 3)
    0.74
    """

    mechanism: Mechanism
    adjacency: str = "add-remove"
    finest: float = 1e-4

    @classmethod
    def dp_sgd(cls, *, noise_multiplier: float, sampling_rate: float, steps: int, sampler: str = "poisson") -> Claim:
        """DP-SGD with Poisson sampling, or full batches where ``sampling_rate`` is 1.

        Args:
            noise_multiplier: noise on the sum in units of the clip norm, above 0.
            sampling_rate: probability that a record joins a batch, in (0, 1].
            steps: number of noisy steps.
            sampler: ``poisson``; ``full-batch`` is poisson at sampling rate 1.

        Raises:
            InputError: a setting is out of range, or the sampler has no accountant here.
        """
        noise = check.positive("noise_multiplier", noise_multiplier)
        rate = check.probability("sampling_rate", sampling_rate)
        steps = check.integer("steps", steps, 1)
        sampler = check.choice("sampler", sampler, SAMPLERS)
        if sampler == "full-batch" and rate != 1.0:
            raise InputError(f"sampling_rate must be 1 for full batches, got {rate!r}")
        if rate == 1.0:
            return cls(Gaussian(noise, steps))
        return cls(SubsampledGaussian(noise, rate, steps))

    @classmethod
    def gaussian(cls, *, noise_multiplier: float, steps: int = 1) -> Claim:
        """``steps`` full-batch releases of sensitivity 1 (one by default) with Gaussian noise."""
        return cls(Gaussian(check.positive("noise_multiplier", noise_multiplier), check.integer("steps", steps, 1)))

    @classmethod
    def pair(cls, *, epsilon: float, delta: float, adjacency: str = "add-remove") -> Claim:
        """A bare (ε, δ)."""
        check.choice("adjacency", adjacency, ADJACENCY)
        return cls(Pair(check.not_negative("epsilon", epsilon), check.delta(delta)), adjacency)

    @property
    def kind(self) -> str:
        """``dp-sgd``, ``gaussian`` or ``pair``."""
        return self.mechanism.kind

    @property
    def has_recipe(self) -> bool:
        """Whether the claim names a mechanism, or only a bare (ε, δ)."""
        return not isinstance(self.mechanism, Pair)

    @property
    def settings(self) -> dict[str, Any]:
        """The mechanism's settings by name."""
        return asdict(self.mechanism)

    @property
    def curve(self) -> Curve:
        """The privacy curve; computed on first use and kept."""
        return self.mechanism.curve(self.finest)

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: ArrayLike) -> NDArray[np.float64]: ...
    def epsilon(self, delta: Any) -> Any:
        """The smallest ε promised at ``delta``, in nats, rounded up; infinite where there is none."""
        return _like(self.curve.epsilon, delta, "delta", 0.0, 1.0)

    def epsilon_from_below(self, delta: float) -> float:
        """An ε at ``delta`` that the mechanism surely spends: :meth:`epsilon` from the other side."""
        return self.mechanism.epsilon_from_below(check.delta(delta))

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: ArrayLike) -> NDArray[np.float64]: ...
    def delta(self, epsilon: Any) -> Any:
        """The smallest δ promised at ``epsilon`` ≥ 0, rounded up."""
        return _like(self.curve.delta, epsilon, "epsilon", 0.0, math.inf)

    @overload
    def fnr(self, fpr: float) -> float: ...
    @overload
    def fnr(self, fpr: ArrayLike) -> NDArray[np.float64]: ...
    def fnr(self, fpr: Any) -> Any:
        """The trade-off function: the least false negative rate that any attack has at ``fpr``, rounded down."""
        return _like(self.curve.fnr, fpr, "fpr", 0.0, 1.0)

    def coarse(self) -> Claim:
        """The same claim on a coarser accounting grid, for searches over many noise multipliers."""
        return replace(self, finest=1e-3)

    def with_noise_scaled(self, scale: float) -> Claim:
        """The same recipe with the noise multiplied by ``scale``; a bare pair has no noise to scale."""
        if isinstance(self.mechanism, Pair):
            raise InputError("a claim given as a pair has no recipe whose noise could be scaled")
        return replace(self, mechanism=self.mechanism.with_noise(self.mechanism.noise_multiplier * scale))

    def leaking(self, factor: float, delta: float) -> Claim:
        """A mechanism of the same family whose ε at ``delta`` is ``factor`` times what is claimed.

        For a recipe the noise is scaled until it is so; a bare pair becomes randomised response at ``factor`` · ε.
        """
        if isinstance(self.mechanism, Pair):
            return replace(self, mechanism=replace(self.mechanism, at_epsilon=self.mechanism.at_epsilon * factor))
        target = self.epsilon(delta) * factor
        if target == 0.0:
            return self
        return self.coarse().with_noise_scaled(self._noise_scale(target, delta))

    def _noise_scale(self, target: float, delta: float) -> float:
        """The noise scale at which ε(``delta``) is ``target``, to 0.1 % and not above it."""
        claim = self.coarse()

        def excess(log_scale: float) -> float:
            epsilon = claim.with_noise_scaled(math.exp(log_scale)).epsilon(delta)
            return math.log(max(epsilon, 1e-12) / target)

        return math.exp(_falling_root(excess, start=0.0, step=0.3, tolerance=1e-3))

    def document(self) -> dict[str, Any]:
        """The claim as JSON can hold it; :meth:`of` reads it back."""
        return {"kind": self.kind, "adjacency": self.adjacency, "settings": self.settings}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Claim:
        """The claim that :meth:`document` wrote.

        Raises:
            InputError: a kind that is not known here, or settings that do not fit it.
        """
        makers: dict[str, Callable[..., Claim]] = {
            Gaussian.kind: cls.gaussian,
            SubsampledGaussian.kind: cls.dp_sgd,
            Pair.kind: lambda at_epsilon, at_delta: cls.pair(epsilon=at_epsilon, delta=at_delta),
        }
        kind = check.choice("kind of a claim", content.get("kind"), tuple(makers))
        try:
            adjacency = check.choice("adjacency", content["adjacency"], ADJACENCY)
            return replace(makers[kind](**content["settings"]), adjacency=adjacency)
        except (KeyError, TypeError) as error:
            raise InputError(f"settings of a {kind} claim must fit it, got {error}") from None

    def summary(self, delta: float) -> dict[str, Any]:
        """What a report prints of the claim: kind, ε at ``delta``, adjacency, settings."""
        epsilon = self.epsilon(delta)
        return {
            "kind": self.kind,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": self.adjacency,
            "settings": self.settings,
        }


def _falling_root(f: Callable[[float], float], start: float, step: float, tolerance: float) -> float:
    """A point where the falling function ``f`` is at most 0 and above −``tolerance``, by bracketed secants."""
    low = high = start
    f_low = f_high = f(start)
    while f_low < 0 and low > start - 20:
        low, high, f_high = low - step, low, f_low
        f_low = f(low)
    while f_high > 0 and high < start + 20:
        low, high, f_low = high, high + step, f_high
        f_high = f(high)
    while f_high <= -tolerance and high - low > 1e-9:
        # Aim half a tolerance below the root, and never at an end of the bracket.
        cut = (f_low + tolerance / 2) / max(f_low - f_high, 1e-300) if math.isfinite(f_low) else 0.5
        middle = low + min(max(cut, 0.05), 0.95) * (high - low)
        value = f(middle)
        if value > 0:
            low, f_low = middle, value
        else:
            high, f_high = middle, value
    return high


def _like(view: Callable[[Array], Array], value: Any, name: str, low: float, high: float) -> Any:
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be a number in [{low:g}, {high:g}], or an array of such, got {value!r}"
        ) from None
    if np.isnan(array).any() or (array < low).any() or (array > high).any():
        raise InputError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
    out = view(array)
    return float(out) if np.ndim(value) == 0 else np.asarray(out)
