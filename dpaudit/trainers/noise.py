"""Gaussian noise for training, one independent stream per model.

Each model has a key of 128 bits that numpy's ``SeedSequence`` hashes from the model's seed. The noise of a step is a
function of key, step and place (:mod:`.normal`), whatever the model is stacked with. Two of a million models share a
key with a probability of 10⁻²⁷.

Neither generator nor rounding withstand an adversary who knows of them (Mironov 2012, "On significance of the least
significant bits for differential privacy"): this is noise for audits and experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import normal
from .seeds import stream

if TYPE_CHECKING:
    import torch


class NoiseSource:
    """Standard Gaussian noise, each model's from its own stream.

    Args:
        seeds: one per model.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._keys = np.stack([stream(seed, "noise").integers(0, 2**32, 4, np.uint32) for seed in seeds])
        self._step = 0

    def add_to(self, layers: Sequence[NDArray[np.float32]], scale: NDArray[np.float32]) -> None:
        """Add the next step's noise times ``scale``.

        Args:
            layers: contiguous, each of shape ``(models, parameters of the layer)``.
            scale: one per model, shape ``(models,)``.
        """
        first = 0
        for layer in layers:
            normal.add_normals(layer, scale, self._keys, self._step, first)
            first += normal.counters(layer.shape[1])
        self._step += 1

    def step(self, parameters: int) -> NDArray[np.float32]:
        """The next step's noise of models with one layer, shape ``(models, parameters)``."""
        models = len(self._keys)
        layer = np.zeros((models, parameters), np.float32)
        self.add_to([layer], np.ones(models, np.float32))
        return layer


class DeviceNoise:
    """The same from a GPU's own generators, where drawing on the CPU would be most of the time."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        import torch

        self._generators = [
            torch.Generator(device).manual_seed(int(stream(seed, "noise").integers(2**63))) for seed in seeds
        ]

    def add_to(self, layers: Sequence[torch.Tensor], scale: torch.Tensor) -> None:
        """Add the next step's noise times ``scale``; arguments as for :meth:`NoiseSource.add_to`."""
        for layer in layers:
            noise = layer.new_empty(layer.shape)
            for row, generator in zip(noise, self._generators, strict=True):
                row.normal_(generator=generator)
            layer.addcmul_(noise, scale.unsqueeze(1))
