"""Samplers other than Poisson: how batches are drawn is part of what is claimed.

Charging one sampler's run as another's is a mistake that can be large: with noise multiplier 0.6, one epoch of 1,000
shuffled batches spends at least 7.99 at δ = 1e-5, which Poisson batches would spend 1.43 of (Chua et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InputError
from ..records import Adjacency
from .epochs import BinsRelease, EpochBelow
from .fixed_size import DecoyRelease, WorstOfTwo
from .mechanisms import Mechanism, SampledSteps, batches_per_epoch, plural, sensitivity
from .releases import GaussianRelease, Release, SampledGaussianRelease

_RATE_TOLERANCE = 1e-3
# Below it, terms of the sums don't fit a float any more.
_LEAST_NOISE = 0.04


@dataclass(frozen=True)
class FixedSizeGaussian(SampledSteps):
    """Batches of one size, drawn anew without replacement at every step; the sampling rate is batch size / records.

    Replacing a record or zeroing it out; adding or removing one would change what the other records' chances are. The
    worst pairs of one step are known exactly (see :mod:`.fixed_size`), as the worst of each direction, so ε is an upper
    bound for many steps; what one data set really has is the bound from below.
    """

    sampler = "fixed-size"
    relations = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        noise = self.noise_multiplier / sensitivity(adjacency)
        if self.sampling_rate == 1.0:
            return (GaussianRelease(noise_multiplier=noise, count=self.steps),)
        backward = SampledGaussianRelease(noise_multiplier=noise, sampling_rate=self.sampling_rate)
        onward = backward if adjacency is Adjacency.REPLACE_ONE else self._decoys(1)
        return (WorstOfTwo(onward=onward, backward=backward, count=self.steps),)

    def releases_below(self, adjacency: Adjacency) -> tuple[Release, ...]:
        """All other records at −1, the one at +1: against −1 if it is replaced, or 0 if it is zeroed out."""
        if self.sampling_rate == 1.0:
            return self.releases(adjacency)
        if adjacency is Adjacency.ZERO_OUT:
            return (self._decoys(self.steps),)
        noise = self.noise_multiplier / sensitivity(adjacency)
        return (SampledGaussianRelease(noise_multiplier=noise, sampling_rate=self.sampling_rate, count=self.steps),)

    def _decoys(self, count: int) -> DecoyRelease:
        return DecoyRelease(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, count=count)


@dataclass(frozen=True)
class InEpochs(SampledSteps):
    """Batches that are cut from epochs: in each epoch a record is in one batch."""

    relations = (Adjacency.ZERO_OUT,)

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        return batches_per_epoch(self.sampling_rate)

    @property
    def epochs(self) -> int:
        """Epochs begun."""
        return math.ceil(self.steps / self.batches)

    def repeated(self, count: int) -> Mechanism:
        """An epoch that was broken off is not taken up by the next run."""
        return SampledSteps.repeated(self, count) if self.steps % self.batches == 0 else Mechanism.repeated(self, count)

    def words(self) -> str:
        partial = ", the last incomplete" if self.steps % self.batches else ""
        return f"{super().words()}, {plural(self.batches, 'batch')} an epoch, {plural(self.epochs, 'epoch')}{partial}"

    def _deterministic(self) -> tuple[Release, ...]:
        """The bound for any order of the records, even one that is known: one Gaussian release an epoch."""
        return (GaussianRelease(noise_multiplier=self.noise_multiplier, count=self.epochs),)

    def _parts(self) -> tuple[tuple[int, float, int], ...]:
        """(batches seen, chance that the record is in them, such epochs): whole epochs, and one that was broken off."""
        whole, rest = divmod(self.steps, self.batches)
        parts = (self.batches, 1.0, whole), (rest, rest / self.batches, 1 if rest else 0)
        return tuple(part for part in parts if part[2])

    def _below(self, with_shift: float, without_shift: float) -> tuple[Release, ...]:
        if self.batches == 1:
            return self._deterministic()
        return tuple(
            EpochBelow(
                noise_multiplier=self.noise_multiplier,
                seen=seen,
                share=share,
                with_shift=with_shift,
                without_shift=without_shift,
                count=count,
            )
            for seen, share, count in self._parts()
        )


@dataclass(frozen=True)
class ShuffledGaussian(InEpochs):
    """Every epoch the records are permuted anew and cut into batches, none of which is dropped.

    No accountant is known; what is known is a bracket. From above, the order may as well be known: E epochs are E
    Gaussian releases. From below, the other records all at −1, the one at +1 or zeroed out (Chua et al. 2024).
    """

    sampler = "shuffled"

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return self._deterministic()

    def releases_below(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return self._below(with_shift=2.0, without_shift=1.0)


@dataclass(frozen=True)
class BallsAndBinsGaussian(InEpochs):
    """Every epoch each record joins one of 1 / sampling rate batches, drawn independently of the other records.

    The pair of an epoch is known exactly (Chua et al. 2024b) and computed from both sides (see :mod:`.epochs`).
    """

    sampler = "balls-and-bins"

    def __post_init__(self) -> None:
        super().__post_init__()
        nearest = 1.0 / self.batches
        if abs(self.sampling_rate / nearest - 1.0) > _RATE_TOLERANCE:
            raise InputError(
                f"sampling_rate must be 1 over a whole number of bins for balls-and-bins, got {self.sampling_rate!r}; "
                f"the nearest is {nearest:.6g}, for {plural(self.batches, 'bin')}"
            )

    @property
    def batches(self) -> int:
        """Bins."""
        return max(1, round(1.0 / self.sampling_rate))

    def releases(self, adjacency: Adjacency) -> tuple[Release, ...]:
        if self.batches == 1 or self.noise_multiplier < _LEAST_NOISE:
            return self._deterministic()
        return tuple(
            BinsRelease(noise_multiplier=self.noise_multiplier, seen=seen, share=share, count=count)
            for seen, share, count in self._parts()
        )

    def releases_below(self, adjacency: Adjacency) -> tuple[Release, ...]:
        return self._below(with_shift=1.0, without_shift=0.0)
