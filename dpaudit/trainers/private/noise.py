"""The fast source of Gaussian noise: independent between coordinates, tensors, steps and models."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import normal


class GaussianNoise:
    """Fills vectors with Gaussian noise (:mod:`..normal`) under one key of 128 bits.

    What is drawn depends on key, step and place alone, never on threads; on a GPU the generator seeds the device's own.
    No number is larger than 6.66 deviations. Neither generator nor rounding withstand an adversary who knows of them:
    for that there is :class:`~.secure.SecureNoise`.

    Args:
        generator: of the key; it is drawn from once.
        device: where the vectors are.
    """

    def __init__(self, generator: np.random.Generator, device: torch.device) -> None:
        self._key = generator.integers(0, 2**32, (1, 4), np.uint32)
        self._step = 0
        self._device_generator: torch.Generator | None = None
        if device.type != "cpu":
            seed = int(self._key[0, :2].view(np.uint64)[0] >> np.uint64(1))
            self._device_generator = torch.Generator(device).manual_seed(seed)
        else:
            self._add_to(np.empty((1, 0), np.float32), 0.0)  # so that the first step need not wait for the compiler

    def fill(self, out: Tensor, deviation: float) -> None:
        """Overwrite a flat vector with the next step's noise of this standard deviation."""
        if self._device_generator is not None:
            out.normal_(0.0, deviation, generator=self._device_generator)
            return
        rows = out.numpy()[None]
        rows[:] = 0  # by numpy: torch's threads would go on spinning
        self._add_to(rows, deviation)
        self._step += 1

    def _add_to(self, rows: NDArray[np.float32] | NDArray[np.float64], deviation: float) -> None:
        normal.add_normals(rows, np.full(1, deviation, rows.dtype), self._key, self._step, 0)
