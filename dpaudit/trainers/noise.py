"""Gaussian noise for training, one independent stream per model: the dearest part of a private step.

Bits come from SFC64 (Chris Doty-Humphrey's, of PractRand, as numpy has it): 256 bits of state, 64 of which count, so
no stream repeats within 2⁶⁴ words. Each model's is seeded with 192 bits that numpy's ``SeedSequence`` hashes from the
model's seed, so two streams overlap with negligible probability. For each step a model takes as many words as it has
pairs of parameters, whatever it is stacked with. The two halves u and v of the bits of a step become normal numbers by
Box and Muller (1958): √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv, in float32 operations on whole arrays, which is three
to four times as fast as numpy's ziggurat. u has 32 bits, the last of them 1, so the largest value is 6.66, which
a normal variable exceeds once in 4·10¹⁰ draws.

Neither generator nor rounding withstand an adversary who knows of them (Mironov 2012, "On significance of the least
significant bits for differential privacy"): this is noise for audits and experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .seeds import stream

if TYPE_CHECKING:
    import torch

PIECE = 2**18  # numbers made at once; long operations let threads work side by side, however Python's lock is passed
WORDS = 2**14  # bits drawn at once for a model, if need be for several steps: at least so many words
_ODD = np.uint64(2**32 + 1)  # the last bit of both halves of a word
_UNIT, _TURN = np.float32(2.0**-32), np.float32(np.pi * 2.0**-31)


class NoiseSource:
    """Standard Gaussian noise, one row per model and step, each model from its own stream.

    Attributes:
        rows: the noise of the last step, shape ``(models, parameters)``; the next step is written over it.
    """

    def __init__(self, seeds: Sequence[int], parameters: int) -> None:
        self._generators = [stream(seed, "noise") for seed in seeds]
        self._pairs = (parameters + 1) // 2
        ahead = max(1, WORDS // self._pairs)
        self._words = np.empty((len(seeds), ahead, self._pairs), np.uint64)
        self.rows = np.empty((len(seeds), parameters), np.float32)
        scratch = min(PIECE // 2, len(seeds) * self._pairs)
        self._radius, self._angle = np.empty(scratch, np.float32), np.empty(scratch, np.float32)
        self._next = ahead

    def step(self) -> NDArray[np.float32]:
        """The next step's noise, shape ``(models, parameters)``; valid until the next call."""
        spent = self._next == self._words.shape[1]
        if spent:
            self._next = 0
        bits = self._words[:, self._next].view(np.uint32)
        for models, pairs in self._pieces():
            if spent and pairs.start == 0:
                self._draw(models)  # just before they are used, while a cache has them
            self._fill(bits[models], self.rows[models], pairs)
        self._next += 1
        return self.rows

    def _draw(self, models: slice) -> None:
        """New bits for these models."""
        for words, generator in zip(self._words[models], self._generators[models], strict=True):
            np.bitwise_or(generator.bit_generator.random_raw(words.size).reshape(words.shape), _ODD, out=words)

    def _pieces(self) -> Iterator[tuple[slice, slice]]:
        """Models and pairs that are worked on at once."""
        most = PIECE // 2
        models = max(1, most // self._pairs)
        for first in range(0, len(self.rows), models):
            for at in range(0, self._pairs, most):
                yield slice(first, first + models), slice(at, min(at + most, self._pairs))

    def _fill(self, bits: NDArray[np.uint32], rows: NDArray[np.float32], pairs: slice) -> None:
        """Fill the places of these pairs, number p in column p and in column ``pairs`` + p, from their bits."""
        shape = (len(rows), pairs.stop - pairs.start)
        size = shape[0] * shape[1]
        radius, angle = self._radius[:size].reshape(shape), self._angle[:size].reshape(shape)
        np.copyto(radius, bits[:, pairs])
        radius *= _UNIT
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        second = slice(self._pairs + pairs.start, self._pairs + pairs.stop)
        np.copyto(angle, bits[:, second].view(np.int32))
        angle *= _TURN
        for function, columns in ((np.cos, pairs), (np.sin, second)):
            part = rows[:, columns]  # one column short at the end of a row of odd length
            function(angle[:, : part.shape[1]], out=part)
            part *= radius[:, : part.shape[1]]


class DeviceNoise:
    """The same from a GPU's own generators, where drawing on the CPU would be most of the time."""

    def __init__(self, seeds: Sequence[int], parameters: int, device: torch.device) -> None:
        import torch

        self._generators = [
            torch.Generator(device).manual_seed(int(stream(seed, "noise").integers(2**63))) for seed in seeds
        ]
        self.rows = torch.empty((len(seeds), parameters), device=device)

    def step(self) -> torch.Tensor:
        """The next step's noise, float32, shape ``(models, parameters)``; valid until the next call."""
        for row, generator in zip(self.rows, self._generators, strict=True):
            row.normal_(generator=generator)
        return self.rows
