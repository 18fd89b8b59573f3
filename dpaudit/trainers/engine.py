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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from .sampling import batch_blocks
from .seeds import stream
from .settings import DPSGD, GradientDescent

_LARGE = 2**15  # numbers in a matrix
_LARGEST = float(np.finfo(np.float32).max)  # of what a tensor can be scaled by


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's batches of K models, padded to B places.

    Attributes:
        x: float32, shape ``(K, B, features + 1)``; the last feature is 1, or 0 where the place is padding.
        y: int64, shape ``(K, B, 1)``.
        squares: squared norms of the rows of ``x``, shape ``(K, B)``.
        real: 1 where the place holds a record, 0 where it is padding, shape ``(K, B)``.
        sizes: how many records each model's batch has, and they come first; empty: not known.
    """

    x: Tensor
    y: Tensor
    squares: Tensor
    real: Tensor
    sizes: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Backward:
    """What one backward pass leaves, per layer: the layer's inputs ``a`` and output derivatives ``g``.

    Attributes:
        inputs: shapes ``(K, B, inputs + 1)``.
        slopes: shapes ``(K, B, outputs)``; the gradient of example b in model k is the outer product
            ``inputs[k, b] ⊗ slopes[k, b]``. In memory the last lies as ``(K, outputs, B)``: classes are few, and
            operations along B are the fast ones.
        first_squares: squared norms of the rows of the first of ``inputs``, shape ``(K, B)``.
        sizes: as in :class:`Batch`.
    """

    inputs: list[Tensor]
    slopes: list[Tensor]
    first_squares: Tensor
    sizes: Sequence[int] = ()

    @property
    def input_squares(self) -> list[Tensor]:
        """Squared norms of the rows of ``inputs``, each ``(K, B)``."""
        return [self.first_squares, *(a.square().sum(-1) for a in self.inputs[1:])]

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of each example's gradient over all layers, shape ``(K, B)``."""
        first, *others = zip(self.input_squares, self.slopes, strict=True)
        total = first[0] * first[1].square().sum(-1)
        for inputs, slope in others:
            total.addcmul_(inputs, slope.square().sum(-1))
        return total

    def subtract_from(self, layers: Sequence[Tensor], rate: float) -> None:
        """Subtract ``rate`` times the sum of each model's gradients from the layers, in place."""
        for layer, inputs, slope in zip(layers[:-1], self.inputs, self.slopes, strict=False):
            if _taken_apart(layer, self.sizes):
                for matrix, a, g in _one_by_one(self.sizes, layer, inputs, slope):
                    matrix.addmm_(a.t(), g, alpha=-rate)
            else:
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

    def batch(self, index: Tensor, sizes: Sequence[int] = ()) -> Batch:
        """The records numbered ``index``, shape ``(K, B)``; ``sizes`` as in :class:`Batch`."""
        x, y = torch.embedding(self.x, index), torch.take(self.y, index)
        return Batch(x, y.unsqueeze(-1), torch.take(self.squares, index), x[..., -1], sizes)


class Body(Protocol):
    """What networks are made of; all else of training is the same for all."""

    def start(self, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices of one model, each ``(inputs + 1, outputs)``."""

    def gradient_step(
        self, layers: list[Tensor], batch: Batch, clip_norm: float | Tensor | None, rate: float
    ) -> Tensor | None:
        """Subtract ``rate`` times the sum of the (clipped) gradients, from layers ``(K, inputs + 1, outputs)``.

        Returns:
            With clipping, how many gradients of each model were scaled down and how many dropped; see :func:`counted`.
        """

    def network(
        self,
        layers: tuple[NDArray[np.float32], ...],
        start: NDArray[np.float32],
        released: NDArray[np.float32] | None,
        counts: NDArray[np.int32],
    ) -> Network:
        """One model as it leaves training; see :class:`~dpaudit.trainers.models.Network`."""


def fit(
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
        settings: of all networks; or one of each, which differ in their noise multipliers and clip norms alone.
        stop: once set by another thread, training ends before its next step and the networks are unfinished.

    Raises:
        InputError: torch has no such device.
    """
    common = settings if isinstance(settings, GradientDescent) else settings[0]
    body = Perceptron(data.features, common.hidden, data.classes)
    return fit_body(body, settings, data, member, seeds, device=device, keep_iterates=keep_iterates, stop=stop)


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
    """As :func:`fit`, for networks of any body."""
    place = find_device(device)
    common = settings if isinstance(settings, GradientDescent) else settings[0]
    starts = [body.start(seed) for seed in seeds]
    layers = [torch.from_numpy(np.stack(matrices)).to(place) for matrices in zip(*starts, strict=True)]
    start = _flat(layers)
    released = np.empty((len(seeds), common.steps, start.shape[1]), np.float32) if keep_iterates else None
    privacy, stop = _privacy(settings, data, place), stop or threading.Event()
    with torch.inference_mode():
        counts = _descend(body, common, privacy, data, member, seeds, layers, released, stop)
    final = [layer.cpu().numpy() for layer in layers]
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

    def gradient_step(
        self, layers: list[Tensor], batch: Batch, clip_norm: float | Tensor | None, rate: float
    ) -> Tensor | None:
        """Subtract ``rate`` times the sum of the (clipped) gradients; see :class:`Body`."""
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
        inputs.append(_relu(_products(inputs[-1], layer, batch.sizes), batch.real))
    logits = torch.bmm(layers[-1].transpose(1, 2), inputs[-1].transpose(1, 2))
    slope = torch.softmax(logits, 1).transpose(1, 2)
    slope.scatter_(-1, batch.y, -1.0, reduce="add")
    slopes = [slope]
    for number in range(len(layers) - 1, 0, -1):
        back = _products(slopes[0], layers[number][:, :-1].transpose(1, 2), batch.sizes)
        slopes.insert(0, torch.ops.aten.threshold_backward(back, inputs[number][..., :-1], 0.0))
    return Backward(inputs, slopes, batch.squares, batch.sizes)


def _products(rows: Tensor, matrices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Each model's rows ``(K, B, n)`` times its matrix ``(K, n, m)``."""
    if not _taken_apart(matrices, sizes):
        return torch.bmm(rows, matrices)
    out = rows.new_zeros((*rows.shape[:2], matrices.shape[2]))
    for matrix, a, place in _one_by_one(sizes, matrices, rows, out):
        torch.mm(a, matrix, out=place)
    return out


def _taken_apart(matrices: Tensor, sizes: Sequence[int]) -> bool:
    """Whether products are taken model by model, without the padding: of matrices large enough to be worth it."""
    return len(sizes) > 0 and matrices[0].numel() >= _LARGE and matrices.device.type == "cpu"


def _one_by_one(sizes: Sequence[int], matrices: Tensor, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Each model's matrix and the rows of its records."""
    for size, matrix, *parts in zip(sizes, matrices, *rows, strict=True):
        yield matrix, *(part[:size] for part in parts)


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
    place = layers[0].device
    table = RecordTable(data, place)
    rate = settings.learning_rate / settings.divisor(data)
    noise = None if privacy.deviation is None else _noise(seeds, layers)
    flat = [layer.view(len(layer), -1) for layer in layers]
    counts, done = np.zeros((len(seeds), settings.steps, 3), np.int32), 0
    generators = [stream(s, "sampling") for s in seeds]
    for block in batch_blocks(generators, member, settings.sampling_rate, settings.steps, settings.sampler):
        index = torch.from_numpy(block.index).to(place)
        counts[:, done : done + len(index), 0] = block.sizes.T
        for chosen, sizes in zip(index, block.sizes.tolist(), strict=True):
            if stop.is_set():
                return counts
            if any(sizes):
                batch = table.batch(chosen[:, : max(sizes)], sizes)
                found = body.gradient_step(layers, batch, privacy.clip_norm, rate)
                if found is not None:
                    counts[:, done, 1 : 1 + len(found)] = found.t().cpu().numpy()
            if noise is not None and privacy.deviation is not None:
                _subtract_noise(flat, noise, privacy.deviation)
            if released is not None:
                released[:, done] = _flat(layers)
            done += 1
    return counts


def _noise(seeds: Sequence[int], layers: list[Tensor]) -> NoiseSource | DeviceNoise:
    parameters = sum(layer[0].numel() for layer in layers)
    if layers[0].device.type == "cpu":
        return NoiseSource(seeds, parameters)
    return DeviceNoise(seeds, parameters, layers[0].device)


def _subtract_noise(layers: list[Tensor], noise: NoiseSource | DeviceNoise, deviation: float | Tensor) -> None:
    """Subtract ``deviation`` times the next step's noise from the layers, each ``(K, parameters of the layer)``."""
    for models, columns, piece in noise.pieces():
        rows, start = torch.as_tensor(piece), 0
        for layer in layers:
            low, high = (min(max(end - start, 0), layer.shape[1]) for end in (columns.start, columns.stop))
            if low < high:
                part = rows[:, low + start - columns.start : high + start - columns.start]
                if isinstance(deviation, Tensor):
                    layer[models, low:high].addcmul_(part, deviation[models], value=-1.0)
                else:
                    layer[models, low:high].sub_(part, alpha=deviation)
            start += layer.shape[1]


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
