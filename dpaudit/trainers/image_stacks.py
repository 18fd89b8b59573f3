"""Stacks of small convolutional networks on a CPU: one image after the other, in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..records import Data
from . import engine
from .example_loops import Rule
from .image_loops import add_clipped
from .image_parts import Builder, Program, Slot
from .images import ConvolutionalNet, ImageNetwork
from .small_products import room

_MOST = 2**20  # parameters: more of them leave the cache
_NOBODY = -1  # the label that is ignored

Reals = NDArray[np.float32]


@dataclass(frozen=True)
class ImageLoops:
    """A body for :func:`dpaudit.trainers.engine.fit_body`: convolutions, and fully connected layers behind them."""

    net: ConvolutionalNet
    hidden: Sequence[int]
    classes: int

    @classmethod
    def of(cls, net: ConvolutionalNet, hidden: Sequence[int], classes: int) -> ImageLoops | None:
        """None if it is too large for loops."""
        numbers = sum(rows * outputs for rows, outputs in net.matrices(hidden, classes))
        return cls(net, hidden, classes) if numbers <= _MOST else None

    def start(self, seed: int) -> list[Reals]:
        """The untrained matrices of one model."""
        return self.net.start(self.hidden, self.classes, seed)

    def stacked(self, matrices: Sequence[Reals], place: torch.device) -> Tensor:
        """One layer of all models; see :class:`~dpaudit.trainers.engine.Body`."""
        assert place.type == "cpu"
        return torch.from_numpy(np.stack(matrices))

    def steps(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> engine.Step:
        """What does one step; see :class:`~dpaudit.trainers.engine.Body`."""
        return _Descent(_program(self.net, self.hidden, self.classes), layers, data, clip_norm, rate)

    def network(
        self, layers: tuple[Reals, ...], start: Reals, released: Reals | None, counts: NDArray[np.int32]
    ) -> ImageNetwork:
        """One model as it leaves training."""
        return ImageNetwork(layers, start, released, self.net, counts=counts)


def _program(net: ConvolutionalNet, hidden: Sequence[int], classes: int) -> Program:
    height, width, channels = net.shape
    network = Builder(height, width, channels)
    for layer in net.layers:
        fits = network.convolve(layer.channels, (layer.kernel,) * 2, (layer.stride,) * 2, (layer.padding,) * 2, True)
        fits = fits and network.rectify()
        if layer.pool > 1 or layer.pool_stride > 1:
            fits = fits and network.pool((layer.pool,) * 2, (layer.pool_stride,) * 2, (0, 0))
        assert fits  # the net has checked it
    for units in hidden:
        network.connect(units, bias=True)
        network.rectify()
    network.connect(classes, bias=True)
    return network.built()


class _Descent:
    """Steps of gradient descent, model by model."""

    def __init__(
        self, program: Program, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float
    ) -> None:
        self._program, self._layers, self._rate = program, [layer.numpy() for layer in layers], rate
        self._x, self._y = np.ascontiguousarray(data.x, np.float32), np.asarray(data.y, np.int64)
        models, depth = len(self._layers[0]), len(layers)
        self._clip = clip_norm is not None
        norms = torch.as_tensor(1.0 if clip_norm is None else clip_norm, dtype=torch.float64).expand(models, 1).numpy()
        self._rules = [Rule(np.full(depth, norm[0]), False, True, 0.0) for norm in norms]
        self._flat, self._across = room(program.flat), room(program.across)
        self._counts = np.zeros((models, 2), np.int32)

    def __call__(self, index: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int32] | None:
        for model, (chosen, size) in enumerate(zip(index, sizes, strict=True)):
            self._counts[model] = self._step(model, chosen[:size]) if size else 0
        return self._counts if self._clip else None

    def _step(self, model: int, chosen: NDArray[np.int64]) -> tuple[int, int]:
        program, total = self._program, room(len(self._flat))
        matrices = [layer[model] for layer in self._layers]
        for slot, matrix in zip(program.slots, matrices, strict=True):
            slot.fill(self._flat, self._across, _weight(slot, matrix), matrix[-1])
        found = add_clipped(
            self._x[chosen], self._y[chosen], program.classes, _NOBODY, program.parts, program.sizes, self._flat,
            self._across, self._clip, self._rules[model], total,
        )  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverges
            for slot, matrix in zip(program.slots, matrices, strict=True):
                _weight(slot, matrix)[...] -= self._rate * slot.weight(total)
                matrix[-1] -= self._rate * slot.bias(total)
        return found


def _weight(slot: Slot, matrix: Reals) -> Reals:
    """All but the bias of a matrix ``(inputs + 1, outputs)``, as ``(height, width, channels, outputs)``."""
    return matrix[:-1].reshape(*slot.kernel, slot.channels, slot.outputs)
