"""The fast source of Gaussian noise: independent between coordinates, tensors, steps and models."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PIECE = 2**15  # numbers made at once: they and their scratch stay in a core's cache
_UNIT, _SMALLEST = np.float32(2.0**-32), np.float32(2.0**-33)
_TURN = np.float32(np.pi * 2.0**-31)


class GaussianNoise:
    """Fills vectors with Gaussian noise, all of it from one generator.

    Pairs of 32-bit words become pairs of normal numbers by Box and Muller (1958), √(−2 ln u)·cos 2πv and
    √(−2 ln u)·sin 2πv, in float32 operations on whole arrays: three to four times as fast as numpy's ziggurat. u has
    32 bits, so no number is larger than 6.76 deviations, which a normal variable exceeds once in 7·10¹⁰ draws.

    One generator makes every coordinate of every step, so no two share a word; on a GPU it seeds the device's own
    generator. What is drawn depends on the generator's state and the vector's length, never on threads. Neither
    generator nor rounding withstand an adversary who knows of them: for that there is :class:`~.secure.SecureNoise`.
    """

    def __init__(self, generator: np.random.Generator, device: torch.device) -> None:
        self._generator = generator
        self._device_generator: torch.Generator | None = None
        if device.type != "cpu":
            self._device_generator = torch.Generator(device).manual_seed(int(generator.integers(2**63)))
        self._radius, self._angle, self._part = (np.empty(_PIECE // 2, np.float32) for _ in range(3))

    def fill(self, out: Tensor, deviation: float) -> None:
        """Overwrite the flat vector ``out`` with noise of this standard deviation."""
        if self._device_generator is not None:
            out.normal_(0.0, deviation, generator=self._device_generator)
            return
        whole = out.numpy()
        for at in range(0, len(whole), _PIECE):
            self._fill_piece(whole[at : at + _PIECE], deviation)

    def _fill_piece(self, out: NDArray, deviation: float) -> None:
        pairs = (len(out) + 1) // 2
        words = self._generator.integers(0, 2**64, pairs, np.uint64).view(np.uint32)
        radius, angle = self._radius[:pairs], self._angle[:pairs]
        np.copyto(radius, words[:pairs])
        radius *= _UNIT
        np.maximum(radius, _SMALLEST, out=radius)  # a word of 0 stands for half a unit
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        radius *= np.float32(deviation)
        np.copyto(angle, words[pairs:].view(np.int32))
        angle *= _TURN
        for function, half in ((np.cos, out[:pairs]), (np.sin, out[pairs:])):
            part = self._part[: len(half)]
            function(angle[: len(half)], out=part)
            np.multiply(part, radius[: len(half)], out=half)
