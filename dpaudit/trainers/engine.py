"""The engine: many small networks trained at once, as stacks of matrices.

A layer of K models is one tensor ``(K, inputs + 1, outputs)`` whose last row is the bias, and an activation carries a
last feature of 1. The gradient of one example with respect to a layer is then the outer product of the layer's input
``a`` and the loss's derivative ``g`` at its output, so its squared norm is ‖a‖²·‖g‖² (Goodfellow 2015, "Efficient
per-example gradient computations"), and a batch's clipped sum is one weighted matrix product per layer. Nothing of
the size examples × parameters is ever made.

Padding is a record of zeros, without even the 1 of the bias, in every layer: it adds exactly nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import check
from ..errors import InputError
from ..records import BoolArray, Data
from .models import Network
from .noise import DeviceNoise, NoiseSource
from .precision import check_precision
from .sampling import batch_blocks
from .seeds import stream
from .settings import DPSGD, GradientDescent

_LARGEST = float(np.finfo(np.float32).max)  # of what a tensor can be scaled by


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
            ``inputs[k, b] ⊗ slopes[k, b]``. In memory the last lies as ``(K, outputs, B)``: classes are few, and
            operations along B are the fast ones.
        first_squares: squared norms of the rows of the first of ``inputs``, shape ``(K, B)``.
    """

    inputs: list[Tensor]
    slopes: list[Tensor]
    first_squares: Tensor

    @property
    def input_squares(self) -> list[Tensor]:
        """Squared norms of the rows of ``inputs``, each ``(K, B)``."""
        return [self.first_squares, *(a.square().sum(-1) for a in self.inputs[1:])]

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of each example's gradient over all layers, shape ``(K, B)``."""
        tiny = torch.finfo(self.first_squares.dtype).tiny  # squares below underflow, and inputs may be large
        total = torch.zeros_like(self.first_squares)
        for inputs, slope in zip(self.input_squares, self.slopes, strict=True):
            total.addcmul_(inputs, slope.square().sum(-1).add_(tiny * slope.shape[-1]))
        return total

    def subtract_from(self, layers: Sequence[Tensor], rate: float) -> None:
        """Subtract ``rate`` times the sum of each model's gradients from the layers, in place."""
        for layer, inputs, slope in zip(layers[:-1], self.inputs, self.slopes, strict=False):
            layer.baddbmm_(inputs.transpose(1, 2), slope, alpha=-rate)
        last = torch.bmm(self.slopes[-1].transpose(1, 2), self.inputs[-1])
        layers[-1].sub_(last.transpose(1, 2), alpha=rate)


class RecordTable:
    """The records on the device, with one row of padding at the end."""

    def __init__(self, data: Data, device: torch.device) -> None:
        x = np.zeros((len(data) + 1, data.features + 1), np.float32)
        x[:-1, :-1], x[:-1, -1] = data.x, 1.0
        self.x = torch.from_numpy(x).to(device)
        self.y = torch.from_numpy(np.append(data.y, 0)).to(device)
        self.squares = self.x.square().sum(-1)

    def batch(self, index: Tensor) -> Batch:
        """The records numbered ``index``, shape ``(K, B)``."""
        x, y = torch.embedding(self.x, index), torch.take(self.y, index)
        return Batch(x, y.unsqueeze(-1), torch.take(self.squares, index), x[..., -1])


Step = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int32] | None]
"""``step(index, sizes)``: numbers of the records in each model's batch, ``(K, B)``, and how many of them there are.

With clipping it returns how many gradients of each model were scaled down and, if any were, how many dropped: shape
``(K, 1)`` or ``(K, 2)``.
"""


class Body(Protocol):
    """What networks are made of; all else of training is the same for all."""

    def start(self, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices of one model, each ``(inputs + 1, outputs)``."""

    def stacked(self, matrices: Sequence[NDArray[np.float32]], place: torch.device) -> Tensor:
        """One layer of all models, ``(K, inputs + 1, outputs)``, contiguous as it is or with its last two exchanged."""

    def steps(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> Step:
        """What subtracts ``rate`` times the sum of a batch's (clipped) gradients from the layers, in place."""

    def network(
        self,
        layers: tuple[NDArray[np.float32], ...],
        start: NDArray[np.float32],
        released: NDArray[np.float32] | None,
        counts: NDArray[np.int32],
    ) -> Network:
        """One model as it leaves training; see :class:`~dpaudit.trainers.models.Network`."""


def fit_body(
    body: Body,
    settings: GradientDescent | Sequence[DPSGD],
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
        body: what the networks are made of.
        settings: of all networks; or one of each, which differ in their noise multipliers and clip norms alone.
        stop: once set by another thread, training ends before its next step and the networks are unfinished.

    Raises:
        InputError: torch has no such device.
    """
    place = find_device(device)
    common = settings if isinstance(settings, GradientDescent) else settings[0]
    starts = [body.start(seed) for seed in seeds]
    layers = [body.stacked(matrices, place) for matrices in zip(*starts, strict=True)]
    del starts
    start = _flat(layers)
    released = np.empty((len(seeds), common.steps, start.shape[1]), np.float32) if keep_iterates else None
    if isinstance(common, DPSGD):
        check_precision(place)
    privacy, stop = _privacy(settings, data, place), stop or threading.Event()
    with torch.inference_mode():
        counts = _descend(body, common, privacy, data, member, seeds, layers, released, stop)
    final = [np.ascontiguousarray(layer.cpu().numpy()) for layer in layers]
    return [
        body.network(tuple(layer[k] for layer in final), start[k], None if released is None else released[k], counts[k])
        for k in range(len(seeds))
    ]


@dataclass(frozen=True)
class Perceptron:
    """The body of softmax regression and of networks with ReLU layers."""

    features: int
    hidden: Sequence[int]
    classes: int

    def start(self, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices of one model."""
        return start_layers(self.features, self.hidden, self.classes, seed)

    def stacked(self, matrices: Sequence[NDArray[np.float32]], place: torch.device) -> Tensor:
        """One layer of all models; see :class:`Body`."""
        return torch.from_numpy(np.stack(matrices)).to(place)

    def steps(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> Step:
        """What does one step; see :class:`Body`."""
        return steps_of(self.gradient_step, layers, data, clip_norm, rate)

    def gradient_step(
        self, layers: list[Tensor], batch: Batch, clip_norm: float | Tensor | None, rate: float
    ) -> Tensor | None:
        """Subtract ``rate`` times the sum of the (clipped) gradients, and count as :func:`counted` does."""
        step = backward(layers, batch)
        counts = weigh(step, clip_norm)
        step.subtract_from(layers, rate)
        return counts

    def network(
        self,
        layers: tuple[NDArray[np.float32], ...],
        start: NDArray[np.float32],
        released: NDArray[np.float32] | None,
        counts: NDArray[np.int32],
    ) -> Network:
        """One model as it leaves training."""
        return Network(layers, start, released, counts=counts)


GradientStep = Callable[[list[Tensor], Batch, float | Tensor | None, float], Tensor | None]


def steps_of(
    gradient_step: GradientStep, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float
) -> Step:
    """Steps on batches of records that are gathered on the layers' device."""
    place = layers[0].device
    table = RecordTable(data, place)

    def step(index: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int32] | None:
        batch = table.batch(torch.from_numpy(index).to(place))
        counts = gradient_step(layers, batch, clip_norm, rate)
        return None if counts is None else counts.t().to("cpu", torch.int32).numpy()

    return step


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
    inputs = [batch.x]
    for layer in layers[:-1]:
        inputs.append(_relu(torch.bmm(inputs[-1], layer), batch.real))
    logits = torch.bmm(layers[-1].transpose(1, 2), inputs[-1].transpose(1, 2))
    slope = torch.softmax(logits, 1).transpose(1, 2)
    slope.scatter_(-1, batch.y, -1.0, reduce="add")
    slopes = [slope]
    for number in range(len(layers) - 1, 0, -1):
        back = torch.bmm(slopes[0], layers[number][:, :-1].transpose(1, 2))
        slopes.insert(0, torch.ops.aten.threshold_backward(back, inputs[number][..., :-1], 0.0))
    return Backward(inputs, slopes, batch.squares)


def _relu(z: Tensor, real: Tensor) -> Tensor:
    """The positive part of ``z``, and a last feature: 1, or 0 of padding."""
    out = z.new_empty((*z.shape[:-1], z.shape[-1] + 1))
    torch.clamp_min(z, 0.0, out=out[..., :-1])
    out[..., -1] = real
    return out


def clip_factors(squared_norms: Tensor, clip_norm: float | Tensor) -> Tensor:
    """What to scale each gradient by so that its norm is at most ``clip_norm``: min(1, C / ‖g‖), and 1 at ‖g‖ = 0.

    A number and a tensor of it, shape ``(K, 1)``, give the same bits.
    """
    return squared_norms.rsqrt().mul_(clip_norm).clamp_max_(1.0)


def weigh(step: Backward, clip_norm: float | Tensor | None) -> Tensor | None:
    """Scale each example's gradient in place by its weight in the sum, and count as :func:`counted` does.

    Without clipping a gradient that is not finite is left alone: plain SGD may diverge.
    """
    if clip_norm is None:
        return None
    weight, lost = weights(step.squared_norms(), clip_norm)
    # Padding has a gradient of 0 and a weight of 1, unless the model has diverged.
    counts = counted(weight, lost, None if lost is None else step.inputs[0][..., -1])
    scale(step, weight, lost)
    return counts


def counted(weight: Tensor, lost: Tensor | None, real: Tensor | None) -> Tensor:
    """How many gradients of each model were scaled down and, if there are any, how many dropped.

    Args:
        weight, lost: see :func:`weights`.
        real: 0 where there is padding, which is not counted; same shape. None where padding has a weight of 1.

    Returns:
        int64, shape ``(1, K)``, or ``(2, K)`` with ``lost``.
    """
    if real is None:
        return (weight < 1).sum(1).unsqueeze(0)
    records = real > 0
    scaled = ((weight < 1) & records).sum(1)
    if lost is None:
        return scaled.unsqueeze(0)
    dropped = (lost & records).sum(1)
    return torch.stack([scaled - dropped, dropped])


def weights(squared_norms: Tensor, clip_norm: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """What each example's gradient weighs in the clipped sum, shape ``(K, B)``.

    A gradient whose squared norm is not finite in float32 weighs 0; it must be set to zero all the same, as 0 · ∞
    would be NaN: these are True in the second result, shape ``(K, B)``, which is None where there are none.
    """
    weight = clip_factors(squared_norms, clip_norm)
    if math.isfinite(float(squared_norms.sum())):
        return weight, None
    lost = ~torch.isfinite(squared_norms)
    return weight.masked_fill_(lost, 0.0), lost


def scale(step: Backward, weight: Tensor, lost: Tensor | None) -> None:
    """Scale each example's gradient in place; set to zero those that are lost."""
    if lost is not None:
        for part in (*step.inputs, *step.slopes):
            part.masked_fill_(lost.unsqueeze(-1), 0.0)
    for slope in step.slopes:
        slope.mul_(weight.unsqueeze(-1))


@dataclass(frozen=True, eq=False)
class _Privacy:
    """Clipping and noise of a stack of K models.

    Attributes:
        clip_norm: a number for all or one for each, shape ``(K, 1)``; None without clipping.
        deviation: of the noise on the parameters in one step: a number for all or one for each, shape ``(K, 1)``;
            None without noise.
    """

    clip_norm: float | Tensor | None = None
    deviation: float | Tensor | None = None


def _privacy(settings: GradientDescent | Sequence[DPSGD], data: Data, place: torch.device) -> _Privacy:
    if isinstance(settings, DPSGD):
        return _Privacy(settings.clip_norm, _deviation(settings, data) or None)
    if isinstance(settings, GradientDescent):
        return _Privacy()
    columns = torch.tensor([[s.clip_norm, _deviation(s, data)] for s in settings], dtype=torch.float32, device=place)
    return _Privacy(columns[:, :1], columns[:, 1:] if bool(columns[:, 1].any()) else None)


def _deviation(settings: DPSGD, data: Data) -> float:
    rate = settings.learning_rate / settings.divisor(data)
    return min(rate * settings.noise_multiplier * settings.clip_norm, _LARGEST)


def _descend(
    body: Body,
    settings: GradientDescent,
    privacy: _Privacy,
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    layers: list[Tensor],
    released: NDArray[np.float32] | None,
    stop: threading.Event,
) -> NDArray[np.int32]:
    """All steps, in place on ``layers``; the counts of each model's steps, ``(K, steps, 3)`` as in :class:`Network`."""
    rate = settings.learning_rate / settings.divisor(data)
    step = body.steps(layers, data, privacy.clip_norm, rate)
    noise = None if privacy.deviation is None else _noise(seeds, layers, privacy.deviation)
    counts, done = np.zeros((len(seeds), settings.steps, 3), np.int32), 0
    generators = [stream(s, "sampling") for s in seeds]
    for block in batch_blocks(generators, member, settings.sampling_rate, settings.steps, settings.sampler):
        counts[:, done : done + len(block.index), 0] = block.sizes.T
        for chosen, sizes in zip(block.index, block.sizes, strict=True):
            if stop.is_set():
                return counts
            if sizes.any():
                found = step(chosen[:, : sizes.max()], sizes)
                if found is not None:
                    counts[:, done, 1 : 1 + found.shape[1]] = found
            if noise is not None:
                noise()
            if released is not None:
                released[:, done] = _flat(layers)
            done += 1
    return counts


def _noise(seeds: Sequence[int], layers: list[Tensor], deviation: float | Tensor) -> Callable[[], None]:
    """What subtracts ``deviation`` times the next step's noise from the layers, in their order in memory."""
    flat = [(layer if layer.is_contiguous() else layer.transpose(1, 2)).view(len(layer), -1) for layer in layers]
    place = flat[0].device
    scale = flat[0].new_empty((len(seeds), 1)).copy_(torch.as_tensor(deviation)).neg_().view(-1)
    if place.type == "cpu":
        return partial(NoiseSource(seeds).add_to, [layer.numpy() for layer in flat], scale.numpy())
    return partial(DeviceNoise(seeds, place).add_to, flat, scale)


def _flat(layers: Sequence[Tensor]) -> NDArray[np.float32]:
    """All parameters, shape ``(K, parameters)``, in the order of :attr:`Network.layers`."""
    return np.concatenate([layer.reshape(len(layer), -1).cpu().numpy() for layer in layers], axis=1)


def find_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        InputError: torch can't use it, or it is neither a CPU nor a CUDA device.
    """
    try:
        place = torch.device(name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device must be one that torch can use, got {name!r}: {str(error).splitlines()[0]}") from None
    check.choice("device", place.type, ("cpu", "cuda"))
    return place
