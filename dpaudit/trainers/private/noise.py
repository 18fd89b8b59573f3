"""The fast source of Gaussian noise: independent between coordinates, tensors, steps and models."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PIECE = 2**17  # numbers made at once: they and their scratch stay in a cache, and few calls make them
_UNIT, _SMALLEST = np.float32(2.0**-32), np.float32(2.0**-33)
_TURN = np.float32(np.pi * 2.0**-31)


class GaussianNoise:
    """Fills vectors of one length with Gaussian noise, all of it from one generator.

    Pairs of 32-bit words become pairs of normal numbers by Box and Muller (1958), √(−2 ln u)·cos 2πv and
    √(−2 ln u)·sin 2πv, in float32 operations on whole arrays: three to four times as fast as numpy's ziggurat. u has
    32 bits, so no number is larger than 6.76 deviations, which a normal variable exceeds once in 7·10¹⁰ draws.

    One generator makes every coordinate of every step, so no two share a word; on a GPU it seeds the device's own
    generator. What is drawn depends on the generator's state and the vector's length, never on threads. Neither
    generator nor rounding withstand an adversary who knows of them: for that there is :class:`~.secure.SecureNoise`.

    Args:
        generator: of the random words; nobody else may draw from it.
        length: of the vectors. Short ones are drawn several at once.
        device: where they are.
    """

    def __init__(self, generator: np.random.Generator, length: int, device: torch.device) -> None:
        self._generator = generator
        self._device_generator: torch.Generator | None = None
        if device.type != "cpu":
            self._device_generator = torch.Generator(device).manual_seed(int(generator.integers(2**63)))
        width = -(-length // -(-length // _PIECE))  # equal pieces
        self._rows = np.empty((max(1, _PIECE // width), width), np.float32)
        pairs = (self._rows.size + 1) // 2
        self._radius, self._angle = np.empty(pairs, np.float32), np.empty(pairs, np.float32)
        self._next = len(self._rows)

    def fill(self, out: Tensor, deviation: float) -> None:
        """Overwrite a flat vector with noise of this standard deviation."""
        if self._device_generator is not None:
            out.normal_(0.0, deviation, generator=self._device_generator)
            return
        whole = out.numpy()
        scale, width = whole.dtype.type(deviation), self._rows.shape[1]
        for at in range(0, len(whole), width):
            part = whole[at : at + width]
            np.multiply(self._row()[: len(part)], scale, out=part)

    def _row(self) -> NDArray[np.float32]:
        """The next numbers of deviation 1, as many as a short vector or a piece of a long one has."""
        if self._next == len(self._rows):
            self._draw(self._rows.reshape(-1))
            self._next = 0
        self._next += 1
        return self._rows[self._next - 1]

    def _draw(self, out: NDArray[np.float32]) -> None:
        radius, angle = self._radius, self._angle
        pairs = len(radius)
        words = self._generator.integers(0, 2**64, pairs, np.uint64).view(np.uint32)
        np.copyto(radius, words[:pairs])
        radius *= _UNIT
        np.maximum(radius, _SMALLEST, out=radius)  # a word of 0 stands for half a unit
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        np.copyto(angle, words[pairs:].view(np.int32))
        angle *= _TURN
        for function, half in ((np.cos, out[:pairs]), (np.sin, out[pairs:])):
            function(angle[: len(half)], out=half)
            half *= radius[: len(half)]
