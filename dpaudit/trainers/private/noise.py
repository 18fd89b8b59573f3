"""The fast source of Gaussian noise: independent between coordinates, tensors, steps and models."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..noise import Normals

_PIECE = 2**15  # numbers made and scaled at once: they stay in a core's cache


class GaussianNoise:
    """Fills vectors with Gaussian noise, all of it from one generator.

    One generator makes every coordinate of every step, so no two share a number; on a GPU it seeds the device's own
    generator. What is drawn depends on the generator's state and the vector's length, never on threads. The numbers
    are float32 ones: against an adversary who knows how they were made, use :class:`~.secure.SecureNoise`.
    """

    def __init__(self, generator: np.random.Generator, device: torch.device) -> None:
        self._generator = generator
        self._device_generator: torch.Generator | None = None
        if device.type != "cpu":
            self._device_generator = torch.Generator(device).manual_seed(int(generator.integers(2**63)))
        self._normals = Normals(_PIECE)
        self._row = np.empty(_PIECE, np.float32)

    def fill(self, out: Tensor, deviation: float) -> None:
        """Overwrite the flat vector ``out`` with noise of this standard deviation."""
        if self._device_generator is not None:
            out.normal_(0.0, deviation, generator=self._device_generator)
            return
        whole = out.numpy()
        for at in range(0, len(whole), _PIECE):
            part = whole[at : at + _PIECE]
            row = self._row[: len(part)] if whole.dtype != np.float32 else part
            self._normals.fill(self._generator, row)
            np.multiply(row, whole.dtype.type(deviation), out=part)
