"""Claims: what a trainer promises, as mechanism settings that know their privacy curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from ..records import ADJACENCY, Adjacency
from .curves import Array, Curve, PairCurve
from .mechanisms import Composed, Gaussian, Laplace, Mechanism, Pair, SampledSteps, SubsampledGaussian
from .releases import Release
from .samplers import BallsAndBinsGaussian, FixedSizeGaussian, ShuffledGaussian

_BY_SAMPLER: dict[str, type[SampledSteps]] = {
    kind.sampler: kind for kind in (SubsampledGaussian, FixedSizeGaussian, ShuffledGaussian, BallsAndBinsGaussian)
}
SAMPLERS = ("poisson", "full-batch", *(name for name in _BY_SAMPLER if name != "poisson"))
_ROUND_DOWN = 1 - 1e-12


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
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    finest: float = 1e-4

    def __post_init__(self) -> None:
        relation = Adjacency(check.choice("adjacency", self.adjacency, ADJACENCY))
        object.__setattr__(self, "adjacency", relation)
        if relation not in self.mechanism.relations:
            raise InputError(
                f"adjacency must be one of {', '.join(self.mechanism.relations)} for this mechanism "
                f"({self.mechanism.words()}), got '{relation}'"
            )

    @classmethod
    def dp_sgd(
        cls,
        *,
        noise_multiplier: float,
        sampling_rate: float,
        steps: int,
        sampler: str = "poisson",
        adjacency: str | None = None,
    ) -> Claim:
        """DP-SGD: clipped sums over sampled batches, with Gaussian noise.

        Args:
            noise_multiplier: standard deviation of the noise on the sum in units of the clip norm, above 0.
            sampling_rate: the batch's share of the records, in (0, 1]; with ``poisson`` the probability that a record
                joins a batch. An epoch of ``shuffled`` or ``balls-and-bins`` has 1 / ``sampling_rate`` batches.
            steps: number of noisy steps.
            sampler: how batches are drawn, one of :data:`SAMPLERS`. Poisson batches of rate 1 are full batches.
            adjacency: the neighbouring relation; by default the sampler's own (see :mod:`.mechanisms`).

        Raises:
            InputError: a setting is out of range, or the sampler has no accountant for ``adjacency``.
        """
        rate = check.probability("sampling_rate", sampling_rate)
        sampler = check.choice("sampler", sampler, SAMPLERS)
        mechanism: Mechanism
        if sampler == "full-batch" and rate != 1.0:
            raise InputError(f"sampling_rate must be 1 for full batches, got {rate!r}")
        if sampler == "full-batch" or (sampler == "poisson" and rate == 1.0):
            mechanism = Gaussian(noise_multiplier, steps)
        else:
            mechanism = _BY_SAMPLER[sampler](noise_multiplier, rate, steps)
        return cls._stated(mechanism, adjacency)

    @classmethod
    def gaussian(cls, *, noise_multiplier: float, steps: int = 1, adjacency: str | None = None) -> Claim:
        """``steps`` full-batch releases of sensitivity 1 (one by default) with Gaussian noise."""
        return cls._stated(Gaussian(noise_multiplier, steps), adjacency)

    @classmethod
    def laplace(cls, *, noise_multiplier: float, steps: int = 1, adjacency: str | None = None) -> Claim:
        """``steps`` releases of L1 sensitivity 1 with Laplace noise of scale ``noise_multiplier``."""
        return cls._stated(Laplace(noise_multiplier, steps), adjacency)

    @classmethod
    def pair(cls, *, epsilon: float, delta: float, adjacency: str = "add-remove") -> Claim:
        """A bare (ε, δ)."""
        return cls._stated(Pair(epsilon, delta), adjacency)

    @classmethod
    def compose(cls, *claims: Claim) -> Claim:
        """All of these on the same records, one after the other, each free to depend on what came before.

        >>> warm_up = Claim.dp_sgd(noise_multiplier=2.0, sampling_rate=0.01, steps=100)
        >>> claim = Claim.compose(warm_up, Claim.gaussian(noise_multiplier=5.0))
        >>> round(claim.epsilon(1e-5), 2)
        0.75

        Raises:
            InputError: no claims, or claims about different neighbouring relations.
        """
        if not claims or not all(isinstance(claim, Claim) for claim in claims):
            raise InputError(f"compose takes at least one claim, and only claims, got {claims!r}")
        relations = list(dict.fromkeys(claim.adjacency for claim in claims))
        if len(relations) > 1:
            raise InputError(
                f"claims that are composed must be about the same neighbours, got {' and '.join(relations)}; "
                "state them under one relation (adjacency=...) first"
            )
        if len(claims) == 1:
            return claims[0]
        parts = tuple(part for claim in claims for part in _parts(claim.mechanism))
        return cls(Composed(parts), relations[0], min(claim.finest for claim in claims))

    def repeat(self, count: int) -> Claim:
        """``count`` times the same, on the same records, one after the other."""
        return replace(self, mechanism=self.mechanism.repeated(check.integer("count", count, 1)))

    @classmethod
    def _stated(cls, mechanism: Mechanism, adjacency: str | None) -> Claim:
        return cls(mechanism, mechanism.relations[0] if adjacency is None else adjacency)  # type: ignore[arg-type]

    @property
    def kind(self) -> str:
        """``dp-sgd``, ``gaussian``, ``laplace``, ``pair`` or ``composed``."""
        return self.mechanism.kind

    @property
    def has_recipe(self) -> bool:
        """Whether the claim names a mechanism with noise, or (in part) only a bare (ε, δ)."""
        return self.mechanism.scalable

    @property
    def settings(self) -> dict[str, Any]:
        """The mechanism's settings by name."""
        return _settings(self.mechanism)

    @property
    def curve(self) -> Curve:
        """The privacy curve, from above; computed on first use and kept."""
        if isinstance(self.mechanism, Pair):
            return PairCurve(self.mechanism.at_epsilon, self.mechanism.at_delta)
        return _curve(self.mechanism.releases(self.adjacency), self.finest)

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: ArrayLike) -> NDArray[np.float64]: ...
    def epsilon(self, delta: Any) -> Any:
        """The smallest ε promised at ``delta``, in nats, rounded up; infinite where there is none."""
        return _like(self.curve.epsilon, delta, "delta", 0.0, 1.0)

    def epsilon_from_below(self, delta: float) -> float:
        """An ε at ``delta`` that the mechanism surely spends: :meth:`epsilon` from the other side."""
        delta = check.delta(delta)
        releases = self.mechanism.releases_below(self.adjacency)
        exact = self.curve if isinstance(self.mechanism, Pair) else _exact(releases)
        if exact is not None:
            return float(exact.epsilon(np.asarray(delta))) * _ROUND_DOWN
        from . import pld

        return pld.epsilon_from_below(releases, delta)

    def bracket(self, delta: float) -> tuple[float, float]:
        """(lower, upper) between which the ε that the mechanism spends at ``delta`` lies, in nats.

        The two are nearly equal where the worst data set is known, up to what the accounting grid costs; far apart for
        shuffled batches, where it is not.

        >>> shuffled = Claim.dp_sgd(noise_multiplier=0.6, sampling_rate=0.001, steps=1000, sampler="shuffled")
        >>> tuple(round(epsilon, 1) for epsilon in shuffled.bracket(1e-5))
        (8.0, 8.0)
        """
        return self.epsilon_from_below(delta), self.epsilon(check.delta(delta))

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
        return replace(self, mechanism=self.mechanism.with_noise_scaled(scale))

    def under(self, adjacency: str) -> Claim | None:
        """The same mechanism under another neighbouring relation; None where it has no accountant for that."""
        if adjacency == self.adjacency:
            return self
        if not self.mechanism.restatable or adjacency not in self.mechanism.relations:
            return None
        return replace(self, adjacency=Adjacency(adjacency))

    def leaking(self, factor: float, delta: float) -> Claim:
        """A mechanism of the same family whose ε at ``delta`` is ``factor`` times what is claimed.

        For a recipe the noise is scaled until it is so; a bare pair becomes randomised response at ``factor`` · ε, and
        a composition that a bare pair is a part of becomes such a pair as a whole.
        """
        if isinstance(self.mechanism, Pair):
            return replace(self, mechanism=replace(self.mechanism, at_epsilon=self.mechanism.at_epsilon * factor))
        target = self.epsilon(delta) * factor
        if not self.has_recipe:
            return replace(self, mechanism=Pair(target, delta))
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
        return {"kind": self.kind, "adjacency": str(self.adjacency), "settings": self.settings}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Claim:
        """The claim that :meth:`document` wrote, or that a person wrote by hand: see :mod:`.reading`.

        Raises:
            InputError: a part that is not known here, by its place, or settings that do not fit it.
        """
        from .reading import claim_of

        return claim_of(content)

    def summary(self, delta: float) -> dict[str, Any]:
        """What a report prints of the claim: kind, ε at ``delta``, adjacency, settings."""
        epsilon = self.epsilon(delta)
        return {
            "kind": self.kind,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": str(self.adjacency),
            "settings": self.settings,
        }


def _curve(releases: tuple[Release, ...], finest: float) -> Curve:
    exact = _exact(releases)
    if exact is not None:
        return exact
    from . import pld

    return pld.curve(releases, finest)


def _exact(releases: tuple[Release, ...]) -> Curve | None:
    return releases[0].exact() if len(releases) == 1 else None


def _parts(mechanism: Mechanism) -> tuple[Mechanism, ...]:
    return mechanism.parts if isinstance(mechanism, Composed) else (mechanism,)


def _settings(mechanism: Mechanism) -> dict[str, Any]:
    if isinstance(mechanism, Composed):
        return {"parts": [{"kind": part.kind, "settings": _settings(part)} for part in mechanism.parts]}
    named = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    return named | ({"sampler": mechanism.sampler} if isinstance(mechanism, SampledSteps) else {})


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
