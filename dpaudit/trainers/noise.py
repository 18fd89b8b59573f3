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

COLUMNS = 2**17  # parameters of a model whose noise is made at once; another number is another stream
PIECE = 2**18  # numbers made at once; long operations let threads work side by side, however Python's lock is passed
WORDS = 2**14  # bits drawn at once for a model, if need be for several steps: at least so many words
_ODD = np.uint64(2**32 + 1)  # the last bit of both halves of a word
_UNIT, _TURN = np.float32(2.0**-32), np.float32(np.pi * 2.0**-31)

Piece = tuple[slice, slice, NDArray[np.float32]]
"""Some models, some of their parameters, and the noise of these, shape ``(models, parameters)``."""


class NoiseSource:
    """Standard Gaussian noise, each model's from its own stream.

    Args:
        seeds: one per model.
        parameters: how many each has.
    """

    def __init__(self, seeds: Sequence[int], parameters: int) -> None:
        self._generators = [stream(seed, "noise") for seed in seeds]
        self._parameters = parameters
        self._width = min(2 * ((parameters + 1) // 2), COLUMNS)  # columns of a piece, but for the last
        self._models = max(1, PIECE // self._width)
        shape = min(self._models, len(seeds)), self._width // 2
        self._radius, self._angle = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self._out = np.empty((shape[0], self._width), np.float32)
        self._ahead = 1 if parameters > self._width else max(1, WORDS // shape[1])
        self._words = np.empty((len(seeds) if self._ahead > 1 else shape[0], self._ahead, shape[1]), np.uint64)
        self._next = -1

    def step(self) -> NDArray[np.float32]:
        """The next step's noise as one array, shape ``(models, parameters)``."""
        whole = np.empty((len(self._generators), self._parameters), np.float32)
        for models, columns, noise in self.pieces():
            whole[models, columns] = noise
        return whole

    def pieces(self) -> Iterator[Piece]:
        """The next step's noise, in pieces that each overwrite the one before."""
        self._next = (self._next + 1) % self._ahead
        for first in range(0, len(self._generators), self._models):
            models = slice(first, min(first + self._models, len(self._generators)))
            for at in range(0, self._parameters, self._width):
                columns = slice(at, min(at + self._width, self._parameters))
                yield models, columns, self._piece(models, columns)

    def _piece(self, models: slice, columns: slice) -> NDArray[np.float32]:
        count, pairs = models.stop - models.start, (columns.stop - columns.start + 1) // 2
        radius, angle = self._radius[:count, :pairs], self._angle[:count, :pairs]
        bits = self._bits(models, pairs)
        np.copyto(radius, bits[:, :pairs])
        radius *= _UNIT
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        np.copyto(angle, bits[:, pairs:].view(np.int32))
        angle *= _TURN
        for function, place in ((np.cos, slice(0, pairs)), (np.sin, slice(pairs, 2 * pairs))):
            part = self._out[:count, place]
            function(angle, out=part)
            part *= radius
        return self._out[:count, : columns.stop - columns.start]

    def _bits(self, models: slice, pairs: int) -> NDArray[np.uint32]:
        """New bits, ``pairs`` words of each model: just before they are used, unless they are few."""
        rows = models if self._ahead > 1 else slice(0, models.stop - models.start)
        words = self._words[rows, :, :pairs]
        if self._next == 0:
            for own, generator in zip(words, self._generators[models], strict=True):
                np.bitwise_or(generator.bit_generator.random_raw(own.size).reshape(own.shape), _ODD, out=own)
        return words[:, self._next].view(np.uint32)


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

    def pieces(self) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """The same in one piece."""
        models, parameters = self._rows.shape
        yield slice(0, models), slice(0, parameters), self.step()
