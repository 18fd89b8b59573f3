"""Gaussian noise for training, one independent stream per model: the dearest part of a private step.

Bits come from SFC64 (Chris Doty-Humphrey's PractRand, also numpy's; 256 bits of state, of which 64 count, so that no
stream repeats within 2⁶⁴ words). Each model's is seeded with 192 bits that numpy's ``SeedSequence`` hashes from the
model's seed, so two streams overlap with negligible probability. Pairs of 32-bit words become pairs of normals by Box
and Muller (1958): √(−2 ln u)·cos θ and √(−2 ln u)·sin θ, in float32 operations on whole arrays, which is three to four
times as fast as numpy's ziggurat. u has 32 bits, so the largest value is 6.76, which a normal variable exceeds once in
10¹¹ draws.

Neither the generator nor the rounding withstands an adversary who knows of them (Mironov 2012, "On significance of the
least significant bits for differential privacy"): this is noise for audits and experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .seeds import stream

if TYPE_CHECKING:
    import torch

PIECE = 2**16  # numbers made at once: scratch and result stay in a core's cache
_ROW = 2**14  # at least so many numbers of a model at once, if need be of several steps
_UNIT, _SMALLEST = np.float32(2.0**-32), np.float32(2.0**-33)
_TURN = np.float32(np.pi * 2.0**-31)


class Normals:
    """Makes standard normal numbers out of generators' bits; the scratch of one thread."""

    def __init__(self, most: int) -> None:
        pairs = (min(most, PIECE) + 1) // 2
        self._words = np.empty(pairs, np.uint64)
        self._radius, self._angle = np.empty(pairs, np.float32), np.empty(pairs, np.float32)

    def fill(self, generators: Sequence[np.random.Generator], out: NDArray[np.float32]) -> None:
        """Fill each row of ``out`` from its generator; what it gets depends on nothing else but its length."""
        rows = max(1, PIECE // out.shape[1])
        for at in range(0, out.shape[1], PIECE):
            for first in range(0, len(out), rows):
                group = slice(first, first + rows)
                self._fill_piece(generators[group], out[group, at : at + PIECE])

    def _fill_piece(self, generators: Sequence[np.random.Generator], out: NDArray[np.float32]) -> None:
        pairs = (out.shape[1] + 1) // 2
        shape = (len(out), pairs)
        words, radius, angle = (a[: len(out) * pairs].reshape(shape) for a in (self._words, self._radius, self._angle))
        for row, generator in zip(words, generators, strict=True):
            row[:] = generator.bit_generator.random_raw(pairs)
        halves = words.view(np.uint32)
        np.copyto(radius, halves[:, :pairs])
        radius *= _UNIT
        np.maximum(radius, _SMALLEST, out=radius)  # a word of 0 stands for half a unit
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        np.copyto(angle, halves[:, pairs:].view(np.int32))
        angle *= _TURN
        for function, part in ((np.cos, out[:, :pairs]), (np.sin, out[:, pairs:])):
            function(angle[:, : part.shape[1]], out=part)
            part *= radius[:, : part.shape[1]]


class NoiseSource:
    """Standard Gaussian noise, one row per model and step, each model from its own stream.

    Small networks draw several steps at once. How many depends on the number of parameters alone, so a model's noise
    does not depend on what it is stacked with.
    """

    def __init__(self, seeds: Sequence[int], parameters: int) -> None:
        self._generators = [stream(seed, "noise") for seed in seeds]
        self._rows = np.empty((len(seeds), max(1, _ROW // parameters), parameters), np.float32)
        self._normals = Normals(self._rows.size + len(seeds))
        self._next = self._rows.shape[1]

    def step(self) -> NDArray[np.float32]:
        """The next step's noise, shape ``(models, parameters)``; valid until the next call."""
        if self._next == self._rows.shape[1]:
            self._normals.fill(self._generators, self._rows.reshape(len(self._rows), -1))
            self._next = 0
        self._next += 1
        return self._rows[:, self._next - 1]


class DeviceNoise:
    """The same from a GPU's own generators, where drawing on the CPU would be most of the time."""

    def __init__(self, seeds: Sequence[int], parameters: int, device: torch.device) -> None:
        import torch

        self._generators = [
            torch.Generator(device).manual_seed(int(stream(seed, "noise").integers(2**63))) for seed in seeds
        ]
        self._rows = torch.empty((len(seeds), parameters), device=device)

    def step(self) -> torch.Tensor:
        """The next step's noise, float32, shape ``(models, parameters)``; valid until the next call."""
        for row, generator in zip(self._rows, self._generators, strict=True):
            row.normal_(generator=generator)
        return self._rows
