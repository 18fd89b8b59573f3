"""Stacks of perceptrons on a CPU: as :class:`~dpaudit.trainers.engine.Perceptron`, in a tenth of the calls.

Small networks spend their time between operations: two threads that train a stack each wait for Python's lock whenever
they call torch. So products are all that torch is asked for, into memory that is used again, and the rest is done by
loops that numba compiles (:mod:`.kernels`). Layers lie transposed, ``(K, outputs, inputs + 1)``, which makes all rows
of a product rows in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..records import BoolArray, Data
from . import engine, kernels
from .models import Network
from .products import add_product, product
from .settings import DPSGD, GradientDescent

_LARGE = 2**15  # numbers in a matrix: products are then taken model by model, without most of the padding
_STEP = 8  # places: widths of batches are multiples, so that there are few


def fit(
    settings: GradientDescent | Sequence[DPSGD],
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    **options: Any,
) -> list[Network]:
    """Train one perceptron per row of ``member``; all as for :func:`dpaudit.trainers.engine.fit_body`."""
    common = settings if isinstance(settings, GradientDescent) else settings[0]
    kind = PerceptronStack if engine.find_device(device).type == "cpu" else engine.Perceptron
    body: engine.Body = kind(data.features, common.hidden, data.classes)
    return engine.fit_body(body, settings, data, member, seeds, device=device, **options)


@dataclass(frozen=True)
class PerceptronStack:
    """A body for :func:`dpaudit.trainers.engine.fit_body`, for float32 on a CPU."""

    features: int
    hidden: Sequence[int]
    classes: int

    def start(self, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices of one model."""
        return engine.start_layers(self.features, self.hidden, self.classes, seed)

    def stacked(self, matrices: Sequence[NDArray[np.float32]], place: torch.device) -> Tensor:
        """One layer of all models, ``(K, inputs + 1, outputs)``, transposed in memory."""
        assert place.type == "cpu"
        return torch.from_numpy(np.ascontiguousarray(np.stack(matrices).transpose(0, 2, 1))).transpose(1, 2)

    def steps(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> engine.Step:
        """What does one step of descent on the layers, in place."""
        return _Descent(layers, data, clip_norm, rate)

    def network(
        self,
        layers: tuple[NDArray[np.float32], ...],
        start: NDArray[np.float32],
        released: NDArray[np.float32] | None,
        counts: NDArray[np.int32],
    ) -> Network:
        """One model as it leaves training."""
        return Network(layers, start, released, counts=counts)


class _Descent:
    """Steps of gradient descent."""

    def __init__(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> None:
        self._layers = [layer.transpose(1, 2) for layer in layers]  # contiguous
        table = engine.RecordTable(data, layers[0].device)
        self._table = table.x.numpy(), table.y.numpy(), table.squares.numpy()
        self._norms = None
        if clip_norm is not None:
            self._norms = torch.as_tensor(clip_norm, dtype=torch.float32).expand(len(layers[0]), 1).flatten().numpy()
        self._rate = rate
        self._memory = _Memory()
        self._batches: dict[int, _Batch] = {}

    def __call__(self, index: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int32] | None:
        width = -(-int(sizes.max()) // _STEP) * _STEP
        batch = self._batches.get(width)
        if width > max(self._batches, default=0):
            self._batches, self._memory = {}, _Memory()  # narrower batches would keep the memory that they look at
        if batch is None:
            batch = self._batches[width] = _Batch(self._layers, width, self._memory)
        kernels.gather(batch.x, batch.y, batch.squares[0], *self._table, np.ascontiguousarray(index))
        batch.forward(sizes)
        batch.backward(sizes)
        counts = None if self._norms is None else batch.clip(self._norms, sizes)
        batch.descend(self._rate, sizes)
        return counts


class _Memory:
    """Blocks that tensors of all widths share, by name."""

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor; of those with this name only the one last written to holds anything.

        The first to be asked for is the largest.
        """
        size = math.prod(shape)
        if name not in self._blocks:
            self._blocks[name] = torch.zeros(size, dtype=torch.float32, device="cpu")
        return self._blocks[name][:size].view(shape)


class _Batch:
    """The batches of a step, of one width, and what comes of them layer by layer.

    Attributes:
        x, y: records ``(K, B, features + 1)`` and labels ``(K, B)``.
        squares: squared norms of the inputs of each layer, ``(K, B)``.
    """

    def __init__(self, layers: list[Tensor], width: int, memory: _Memory) -> None:
        models, _, features = layers[0].shape
        self._layers = layers
        self._back = [layer[:, :, :-1].transpose(1, 2) for layer in layers]
        x = memory.take("x", models, width, features)
        self._inputs, self._values, norms = [x.transpose(1, 2)], [], [memory.take("squares 0", models, width)]
        for number, layer in enumerate(layers, 1):
            units = layer.shape[1]
            self._values.append(memory.take(f"values {number}", models, units, width))
            if number < len(layers):
                self._inputs.append(memory.take(f"inputs {number}", models, units + 1, width))
                norms.append(memory.take(f"squares {number}", models, width))
        self._rows = [values.transpose(1, 2) for values in self._inputs]
        self._weights = memory.take("weights", models, width)
        self._counts = np.zeros((models, 2), np.int32)
        self.x, self.y, self.squares = x.numpy(), np.zeros((models, width), np.int64), [n.numpy() for n in norms]
        self._arrays = [values.numpy() for values in self._values]

    def forward(self, sizes: NDArray[np.int64]) -> None:
        """All layers, up to the logits."""
        for number, (layer, inputs, values) in enumerate(zip(self._layers, self._inputs, self._values, strict=True)):
            _multiply(layer, inputs, values, sizes)
            if number + 1 < len(self._layers):
                following = self._inputs[number + 1].numpy()
                kernels.activate(self._arrays[number], following, self.squares[number + 1], sizes)

    def backward(self, sizes: NDArray[np.int64]) -> None:
        """The derivatives of each loss at the outputs of all layers, in place of these outputs."""
        kernels.softmax_slopes(self._arrays[-1], self.y)
        for number in range(len(self._layers) - 1, 0, -1):
            _multiply(self._back[number], self._values[number], self._values[number - 1], sizes)
            kernels.mask(self._arrays[number - 1], self._inputs[number].numpy())

    def clip(self, norms: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.int32]:
        """Scale each example's gradient to at most its model's clip norm, and count; see :func:`kernels.weigh`."""
        weights = self._weights.numpy()
        weights[:] = 0
        for slopes, squares in zip(self._arrays, self.squares, strict=True):
            kernels.add_squares(weights, slopes, squares)
        if kernels.weigh(weights, norms, sizes, self._counts):
            self._drop(np.signbit(weights))
        for slopes in self._arrays:
            kernels.scale(slopes, weights)
        return self._counts

    def _drop(self, lost: NDArray[np.bool_]) -> None:
        """Set all of these examples to zero, as 0 · ∞ would be NaN."""
        for values in (*self._inputs, *self._values):
            values.transpose(1, 2)[torch.from_numpy(lost)] = 0.0

    def descend(self, rate: float, sizes: NDArray[np.int64]) -> None:
        """Subtract ``rate`` times each model's sum of gradients from the layers."""
        for layer, slopes, rows in zip(self._layers, self._values, self._rows, strict=True):
            if _is_large(layer):
                for matrix, slope, row, size in zip(layer, slopes, rows, _rounded(sizes, slopes), strict=True):
                    add_product(matrix, slope[:, :size], row[:size], -rate)
            else:
                layer.baddbmm_(slopes, rows, alpha=-rate)


def _multiply(matrices: Tensor, inputs: Tensor, out: Tensor, sizes: NDArray[np.int64]) -> None:
    """Each model's matrix times its columns ``(K, inputs, B)``, into ``out``."""
    if not _is_large(matrices):
        torch.bmm(matrices, inputs, out=out)
        return
    for matrix, columns, place, size in zip(matrices, inputs, out, _rounded(sizes, out), strict=True):
        place[:, :size] = product(matrix, columns[:, :size])
        place[:, size:] = 0.0


def _is_large(matrices: Tensor) -> bool:
    return matrices[0].numel() >= _LARGE


def _rounded(sizes: NDArray[np.int64], values: Tensor) -> list[int]:
    """Places that are worked on: few different numbers, as each is another shape to the library that multiplies."""
    return np.minimum(-(-sizes // _STEP) * _STEP, values.shape[2]).tolist()
