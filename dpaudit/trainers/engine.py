"""The engine: many small networks trained at once, as stacks of matrices.

A layer of K models is one tensor ``(K, inputs + 1, outputs)`` whose last row is the bias, and an activation carries a
last feature of 1. The gradient of one example with respect to a layer is then the outer product of the layer's input
``a`` and the loss's derivative ``g`` at its output, so its squared norm is ‖a‖²·‖g‖² (Goodfellow 2015, "Efficient
per-example gradient computations"), and a batch's clipped sum is one weighted matrix product per layer. Nothing of
the size examples × parameters is ever made.

Padding is a record of zeros, without even the 1 of the bias, and its weight is 0: it adds exactly nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import check
from ..errors import InputError
from ..records import BoolArray, Data
from .models import Network
from .sampling import batch_blocks
from .seeds import stream
from .settings import DPSGD, GradientDescent

_LARGEST = float(np.finfo(np.float32).max)  # of what a tensor can be scaled by
_NOISE_NUMBERS = 2**22  # drawn ahead at once, over all models: 16 MiB


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's batches of K models, padded to B places.

    Attributes:
        x: float32, shape ``(K, B, features + 1)``; the last feature is 1, or 0 where the place is padding.
        y: int64, shape ``(K, B, 1)``.
        squares: squared norms of the rows of ``x``, shape ``(K, B)``.
        real: 1 where the place holds a record, 0 where it is padding, shape ``(K, B)``.
    """

    x: Tensor
    y: Tensor
    squares: Tensor
    real: Tensor


@dataclass(frozen=True, eq=False)
class Backward:
    """What one backward pass leaves, per layer: the layer's inputs ``a`` and output derivatives ``g``.

    Attributes:
        inputs: shapes ``(K, B, inputs + 1)``.
        slopes: shapes ``(K, B, outputs)``; the gradient of example b in model k is the outer product
            ``inputs[k, b] ⊗ slopes[k, b]``.
        input_squares: squared norms of the rows of ``inputs``, each ``(K, B)``.
    """

    inputs: list[Tensor]
    slopes: list[Tensor]
    input_squares: list[Tensor]

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of each example's gradient over all layers, shape ``(K, B)``."""
        parts = [a * g.square().sum(-1) for a, g in zip(self.input_squares, self.slopes, strict=True)]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


class RecordTable:
    """The records on the device, with one row of padding at the end."""

    def __init__(self, data: Data, device: torch.device) -> None:
        x = np.zeros((len(data) + 1, data.features + 1), np.float32)
        x[:-1, :-1], x[:-1, -1] = data.x, 1.0
        self.x = torch.from_numpy(x).to(device)
        self.y = torch.from_numpy(np.append(data.y, 0)).to(device)
        self.squares = self.x.square().sum(-1)
        self.real = torch.ones(len(data) + 1, device=device)
        self.real[-1] = 0.0

    def batch(self, index: Tensor) -> Batch:
        """The records numbered ``index``, shape ``(K, B)``."""
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat).view(*index.shape, -1)
        return Batch(x, self.y[index].unsqueeze(-1), self.squares[index], self.real[index])


class NoiseSource:
    """Standard Gaussian noise, one row per model and step, each model from its own generator.

    How far ahead it draws depends on the number of models; what it draws does not.
    """

    def __init__(self, seeds: Sequence[int], parameters: int, steps: int) -> None:
        self._generators = [stream(seed, "noise") for seed in seeds]
        ahead = max(1, min(steps, _NOISE_NUMBERS // (len(seeds) * parameters)))
        self._rows = np.empty((len(seeds), ahead, parameters), np.float32)
        self._next = ahead

    def step(self) -> Tensor:
        """The next step's noise, float32, shape ``(models, parameters)``; valid until the next call."""
        if self._next == self._rows.shape[1]:
            for generator, rows in zip(self._generators, self._rows, strict=True):
                generator.standard_normal(dtype=np.float32, out=rows)
            self._next = 0
        self._next += 1
        return torch.from_numpy(self._rows)[:, self._next - 1]


class DeviceNoise:
    """The same from a GPU's own generators, where drawing on the CPU would be most of the time."""

    def __init__(self, seeds: Sequence[int], parameters: int, device: torch.device) -> None:
        self._generators = [
            torch.Generator(device).manual_seed(int(stream(seed, "noise").integers(2**63))) for seed in seeds
        ]
        self._rows = torch.empty((len(seeds), parameters), device=device)

    def step(self) -> Tensor:
        """The next step's noise, float32, shape ``(models, parameters)``; valid until the next call."""
        for row, generator in zip(self._rows, self._generators, strict=True):
            row.normal_(generator=generator)
        return self._rows


def fit(
    settings: GradientDescent,
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    keep_iterates: bool = False,
    stop: threading.Event | None = None,
) -> list[Network]:
    """Train one network per row of ``member``, shape ``(models, records)``, all at once, in the calling thread.

    Args:
        stop: once set by another thread, training ends before its next step and the networks are unfinished.

    Raises:
        InputError: torch has no such device.
    """
    place = _device(device)
    starts = [start_layers(data.features, settings.hidden, data.classes, seed) for seed in seeds]
    layers = [torch.from_numpy(np.stack(matrices)).to(place) for matrices in zip(*starts, strict=True)]
    start = _flat(layers)
    released = np.empty((len(seeds), settings.steps, start.shape[1]), np.float32) if keep_iterates else None
    with torch.inference_mode():
        _descend(settings, data, member, seeds, layers, released, stop or threading.Event())
    final = [layer.cpu().numpy() for layer in layers]
    return [
        Network(tuple(layer[k] for layer in final), start[k], None if released is None else released[k])
        for k in range(len(seeds))
    ]


def start_layers(features: int, hidden: Sequence[int], classes: int, seed: int) -> list[NDArray[np.float32]]:
    """The untrained matrices of one model, each ``(inputs + 1, outputs)``.

    Softmax regression is convex and starts at zero. With hidden layers, weights and biases are uniform in
    ±1/√inputs, as torch.nn.Linear has them by default.
    """
    widths = [features, *hidden, classes]
    if not hidden:
        return [np.zeros((features + 1, classes), np.float32)]
    generator = stream(seed, "init")
    return [(generator.uniform(-1, 1, (i + 1, o)) / np.sqrt(i)).astype(np.float32) for i, o in pairwise(widths)]


def backward(layers: Sequence[Tensor], batch: Batch) -> Backward:
    """Forward and backward pass of the cross-entropy of each example, not averaged over anything."""
    inputs, input_squares = [batch.x], [batch.squares]
    for layer in layers[:-1]:
        activation = _relu_with_one(torch.bmm(inputs[-1], layer))
        inputs.append(activation)
        input_squares.append(activation.square().sum(-1))
    slope = torch.softmax(torch.bmm(inputs[-1], layers[-1]), -1)
    slope.scatter_add_(-1, batch.y, slope.new_full((1, 1, 1), -1.0).expand_as(batch.y))
    slopes = [slope]
    for number in range(len(layers) - 1, 0, -1):
        back = torch.bmm(slopes[0], layers[number][:, :-1].transpose(1, 2))
        slopes.insert(0, back.mul_(inputs[number][..., :-1] > 0))
    return Backward(inputs, slopes, input_squares)


def _relu_with_one(z: Tensor) -> Tensor:
    out = z.new_ones((*z.shape[:-1], z.shape[-1] + 1))
    torch.clamp_min(z, 0.0, out=out[..., :-1])
    return out


def clip_factors(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """What to scale each gradient by so that its norm is at most ``clip_norm``: min(1, C / ‖g‖), and 1 at ‖g‖ = 0."""
    return clip_norm / squared_norms.sqrt().clamp_min(clip_norm)


def weigh(step: Backward, batch: Batch, clip_norm: float | None) -> None:
    """Scale each example's gradient in place by its weight in the sum: clipped if asked, 0 for padding.

    A gradient whose squared norm is not finite in float32 weighs 0 under clipping, and its parts are set to zero, as
    0 · ∞ would be NaN. Without clipping it is left alone: plain SGD may diverge.
    """
    weight = batch.real
    if clip_norm is not None:
        squares = step.squared_norms()
        weight = weight * clip_factors(squares, clip_norm)
        finite = torch.isfinite(squares)
        if not bool(finite.all()):
            weight = torch.where(finite, weight, 0.0)
            _drop(step, ~finite.unsqueeze(-1))
    for slope in step.slopes:
        slope.mul_(weight.unsqueeze(-1))


def _drop(step: Backward, lost: Tensor) -> None:
    for part in (*step.inputs, *step.slopes):
        part.masked_fill_(lost, 0.0)


def _descend(
    settings: GradientDescent,
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    layers: list[Tensor],
    released: NDArray[np.float32] | None,
    stop: threading.Event,
) -> None:
    """All steps, in place on ``layers``."""
    place = layers[0].device
    table = RecordTable(data, place)
    clip = settings.clip_norm if isinstance(settings, DPSGD) else None
    rate = settings.learning_rate / settings.divisor(data)
    noise = _noise(settings, seeds, layers)
    done = 0
    for block in batch_blocks([stream(s, "sampling") for s in seeds], member, settings.sampling_rate, settings.steps):
        index = torch.from_numpy(block.index).to(place)
        for chosen, width in zip(index, block.sizes.max(axis=1).tolist(), strict=True):
            if stop.is_set():
                return
            if width:
                _gradient_step(layers, table.batch(chosen[:, :width]), clip, rate)
            if noise is not None:
                assert isinstance(settings, DPSGD)
                _noise_step(layers, noise.step(), rate * settings.noise_multiplier * settings.clip_norm)
            if released is not None:
                released[:, done] = _flat(layers)
            done += 1


def _noise(settings: GradientDescent, seeds: Sequence[int], layers: list[Tensor]) -> NoiseSource | DeviceNoise | None:
    if not isinstance(settings, DPSGD) or settings.noise_multiplier == 0:
        return None
    parameters = sum(layer[0].numel() for layer in layers)
    if layers[0].device.type == "cpu":
        return NoiseSource(seeds, parameters, settings.steps)
    return DeviceNoise(seeds, parameters, layers[0].device)


def _gradient_step(layers: list[Tensor], batch: Batch, clip_norm: float | None, rate: float) -> None:
    """Subtract ``rate`` times the sum of the (clipped) gradients."""
    step = backward(layers, batch)
    weigh(step, batch, clip_norm)
    for layer, inputs, slope in zip(layers, step.inputs, step.slopes, strict=True):
        layer.baddbmm_(inputs.transpose(1, 2), slope, alpha=-rate)


def _noise_step(layers: list[Tensor], noise: Tensor, deviation: float) -> None:
    """Subtract ``deviation`` times standard noise, shape ``(K, parameters)``, cut into the layers' shapes."""
    sizes = [layer[0].numel() for layer in layers]
    for layer, part in zip(layers, torch.split(noise, sizes, 1), strict=True):
        layer.sub_(part.view(layer.shape), alpha=min(deviation, _LARGEST))


def _flat(layers: Sequence[Tensor]) -> NDArray[np.float32]:
    """All parameters, shape ``(K, parameters)``, in the order of :attr:`Network.layers`."""
    return np.concatenate([layer.reshape(len(layer), -1).cpu().numpy() for layer in layers], axis=1)


def _device(name: str) -> torch.device:
    try:
        place = torch.device(name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device must be one that torch can use, got {name!r}: {str(error).splitlines()[0]}") from None
    check.choice("device", place.type, ("cpu", "cuda"))
    return place
