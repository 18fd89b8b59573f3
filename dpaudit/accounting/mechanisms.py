"""Mechanisms: settings that a claim names, and the releases that their privacy is accounted by.

A mechanism of DP-SGD is named by its sampler, and each sampler has its own neighbouring relations:

- ``poisson``: every record joins every batch by an independent coin. Add-remove, or zero-out, which is the same.
- ``full-batch``: every record is in every batch.
- ``fixed-size``: every batch is drawn without replacement. Replace-one or zero-out.
- ``shuffled``: every epoch the records are permuted and cut into batches. Zero-out; only a bracket is known.
- ``balls-and-bins``: every epoch every record joins one batch, drawn independently. Zero-out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .. import check
from ..errors import InputError
from ..records import Adjacency
from .releases import GaussianRelease, LaplaceRelease, PairRelease, Release, SampledGaussianRelease

ANY_RELATION = tuple(Adjacency)
_MOST_PARTS = 10_000
# Wider than any use; beyond, products of settings no longer fit a float.
_NOISE, _LEAST_RATE, _MOST_STEPS = (1e-50, 1e50), 1e-50, 10**15


@dataclass(frozen=True)
class Mechanism(ABC):
    """A mechanism's settings.

    Attributes:
        kind: the name in documents.
        relations: the neighbouring relations it can be accounted for, its own first.
        restatable: whether a claim about one of these says something about the others.
    """

    kind: ClassVar[str]
    relations: ClassVar[tuple[Adjacency, ...]] = ANY_RELATION
    restatable: ClassVar[bool] = True

    @abstractmethod
    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        """Pairs of distributions that dominate this mechanism: the privacy it has at least."""

    def releases_below(self, adjacency: Adjacency) -> tuple[Release, ...]:
        """Pairs that some data set really has: the privacy it has at most."""
        return self.releases(adjacency)

    @property
    def scalable(self) -> bool:
        """Whether there is noise to scale."""
        return True

    @abstractmethod
    def with_noise_scaled(self, scale: float) -> Mechanism:
        """The same with every noise multiplier times ``scale``."""

    def repeated(self, count: int) -> Mechanism:
        """``count`` uses of this, one after the other."""
        if count > _MOST_PARTS:
            raise InputError(f"count must be at most {_MOST_PARTS:,} for ({self.words()}), got {count:,}")
        return self if count == 1 else Composed((self,) * count)

    @abstractmethod
    def words(self) -> str:
        """The settings as a reader says them."""


@dataclass(frozen=True)
class Noisy(Mechanism):
    """A mechanism with one noise multiplier."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        noise = check.number("noise_multiplier", check.positive("noise_multiplier", self.noise_multiplier), *_NOISE)
        object.__setattr__(self, "noise_multiplier", noise)

    def with_noise_scaled(self, scale: float) -> Noisy:
        return replace(self, noise_multiplier=self.noise_multiplier * scale)


@dataclass(frozen=True)
class Gaussian(Noisy):
    """Full-batch releases of sensitivity 1 with Gaussian noise: exactly μ-GDP with μ = √steps / noise multiplier.

    Replacing a record moves the sum by up to 2.
    """

    steps: int = 1

    kind = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", _steps(self.steps))

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        noise = self.noise_multiplier / sensitivity(adjacency)
        return (GaussianRelease(noise_multiplier=noise, count=self.steps),)

    def repeated(self, count: int) -> Mechanism:
        return replace(self, steps=self.steps * count)

    def words(self) -> str:
        return f"Gaussian, noise multiplier {self.noise_multiplier:g}, {plural(self.steps, 'full-batch release')}"


@dataclass(frozen=True)
class Laplace(Noisy):
    """Releases of L1 sensitivity 1 with Laplace noise of scale ``noise_multiplier``."""

    steps: int = 1

    kind = "laplace"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", _steps(self.steps))

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        noise = self.noise_multiplier / sensitivity(adjacency)
        return (LaplaceRelease(noise_multiplier=noise, count=self.steps),)

    def repeated(self, count: int) -> Mechanism:
        return replace(self, steps=self.steps * count)

    def words(self) -> str:
        return f"Laplace, scale {self.noise_multiplier:g}, {plural(self.steps, 'release')}"


@dataclass(frozen=True)
class SampledSteps(Noisy):
    """DP-SGD: clipped sums over sampled batches with Gaussian noise (Abadi et al. 2016). One subclass per sampler."""

    sampling_rate: float
    steps: int

    kind = "dp-sgd"
    sampler: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = check.number("sampling_rate", check.probability("sampling_rate", self.sampling_rate), _LEAST_RATE, 1.0)
        object.__setattr__(self, "sampling_rate", rate)
        object.__setattr__(self, "steps", _steps(self.steps))

    def repeated(self, count: int) -> Mechanism:
        return replace(self, steps=self.steps * count)

    def words(self) -> str:
        return (
            f"DP-SGD, {self.sampler} batches, noise multiplier {self.noise_multiplier:g}, "
            f"sampling rate {self.sampling_rate:g}, {plural(self.steps, 'step')}"
        )


@dataclass(frozen=True)
class SubsampledGaussian(SampledSteps):
    """Poisson-sampled batches. With a constant divisor, removing a record and zeroing it out are one and the same."""

    sampler = "poisson"
    relations = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return (
            SampledGaussianRelease(
                noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, count=self.steps
            ),
        )


@dataclass(frozen=True)
class Pair(Mechanism):
    """A bare (ε, δ): a promise without a recipe."""

    at_epsilon: float
    at_delta: float

    kind = "pair"
    scalable = False
    restatable = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_epsilon", check.not_negative("epsilon", self.at_epsilon))
        object.__setattr__(self, "at_delta", check.delta(self.at_delta))

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return (PairRelease(at_epsilon=self.at_epsilon, at_delta=self.at_delta),)

    def with_noise_scaled(self, scale: float) -> Mechanism:
        raise InputError("a claim given as a pair has no recipe whose noise could be scaled")

    def words(self) -> str:
        return f"({self.at_epsilon:g}, {self.at_delta:g})"


@dataclass(frozen=True)
class Composed(Mechanism):
    """Several mechanisms on the same records, each free to depend on what the earlier ones released."""

    parts: tuple[Mechanism, ...]

    kind = "composed"

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return merged(r for part in self.parts for r in part.releases(adjacency))

    def releases_below(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return merged(r for part in self.parts for r in part.releases_below(adjacency))

    @property
    def relations(self) -> tuple[Adjacency, ...]:  # type: ignore[override]
        return tuple(r for r in self.parts[0].relations if all(r in part.relations for part in self.parts))

    @property
    def restatable(self) -> bool:  # type: ignore[override]
        return all(part.restatable for part in self.parts)

    @property
    def scalable(self) -> bool:
        return all(part.scalable for part in self.parts)

    def with_noise_scaled(self, scale: float) -> Mechanism:
        return Composed(tuple(part.with_noise_scaled(scale) for part in self.parts))

    def repeated(self, count: int) -> Mechanism:
        return Composed(tuple(part.repeated(count) for part in self.parts))

    def words(self) -> str:
        return "; then ".join(part.words() for part in self.parts)


def _steps(value: Any) -> int:
    steps = check.integer("steps", value, 1)
    if steps > _MOST_STEPS:
        raise InputError(f"steps must be at most {_MOST_STEPS:.0e}, got {float(min(steps, 10**300)):.3g}")
    return steps


def merged(releases: Any) -> tuple[Release, ...]:
    """The same composition in fewer releases: equal ones add their counts, Gaussian ones their μ²."""
    gaussian, rest = 0.0, dict[Release, int]()
    for release in releases:
        if isinstance(release, GaussianRelease):
            gaussian += release.mu**2
        else:
            one = replace(release, count=1)
            rest[one] = rest.get(one, 0) + release.count
    out: Iterator[Release] = (replace(one, count=count) for one, count in rest.items())
    return (*((GaussianRelease(noise_multiplier=gaussian**-0.5),) if gaussian else ()), *out)


def sensitivity(adjacency: Adjacency) -> float:
    """How far one record moves a sum of terms of norm at most 1."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


def plural(count: int, what: str) -> str:
    """``1 step``, ``2 steps``, ``12,000 batches``."""
    more = "es" if what.endswith("tch") else "s"
    return f"{count:,} {what}" + ("" if count == 1 else more)


def batches_per_epoch(sampling_rate: float) -> int:
    """How many batches a pass over the records has: 1 over the sampling rate, rounded up for a smaller last batch."""
    return max(1, math.ceil(1.0 / sampling_rate - 1e-6))
