"""Stacks of small convolutional networks, trained as :mod:`dpaudit.trainers.engine` trains perceptrons.

A convolution is a matrix product of patches: each layer of K models is one tensor ``(K, kernel² · channels + 1,
outputs)`` whose last row is the bias. Images lie as (height, width, channels), so a row of a patch is one run of
memory. All work is done in tiles, some models and some of their examples at a time, whose patches stay in the cache;
within a tile the models are the batch of one ``bmm``.

The gradient of one example with respect to a convolution is the product of its patches and of the derivatives at its
positions. It takes as many operations as the example's share of a batch's gradient does, so it is made, measured,
weighed and summed: nothing is computed twice. Where kernels are large and images small, its norm comes from the Gram
matrices of patches and derivatives instead (Rochette, Manoel and Tramel 2019, "Efficient per-example gradient
computations in convolutional neural networks"), and the weighted sum is a product of its own. Fully connected layers
need neither: see the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..records import BoolArray, Data
from . import engine
from .image_stacks import ImageLoops
from .images import Convolution, ConvolutionalNet, ImageNetwork
from .models import Network
from .settings import DPSGD, GradientDescent

_TILE = 2**23  # numbers that a tile may hold, all its layers together: fewer, longer operations for two threads
_GRAM = 8  # multiplications for a Gram matrix that cost as much as one number of a gradient, written and read


def fit(
    settings: GradientDescent | Sequence[DPSGD],
    net: ConvolutionalNet,
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
        settings: as :func:`dpaudit.trainers.engine.fit_body` takes them; their hidden layers follow the convolutions.
        net: the convolutions.
        data: records whose features are the images of ``net``.
        stop: once set by another thread, training ends before its next step and the networks are unfinished.

    Raises:
        InputError: the data's records are not the images of ``net``, or torch has no such device.
    """
    if data.features != net.features:
        raise InputError(f"records must be images of {net.shape}, {net.features} features, got {data.features}")
    common = settings if isinstance(settings, GradientDescent) else settings[0]
    on_cpu = engine.find_device(device).type == "cpu"
    body: engine.Body | None = ImageLoops.of(net, common.hidden, data.classes) if on_cpu else None
    body = body or ImageStack(net, common.hidden, data.classes)
    return engine.fit_body(body, settings, data, member, seeds, device=device, keep_iterates=keep_iterates, stop=stop)


@dataclass(frozen=True)
class Shape:
    """Sizes of one convolution, from an image of ``height`` by ``width`` pixels with ``channels``."""

    layer: Convolution
    height: int
    width: int
    channels: int

    @property
    def padded(self) -> tuple[int, int]:
        return self.height + 2 * self.layer.padding, self.width + 2 * self.layer.padding

    @property
    def convolved(self) -> tuple[int, int]:
        return self.layer.convolved(self.height), self.layer.convolved(self.width)

    @property
    def pooled(self) -> tuple[int, int]:
        return self.layer.pooled(self.height), self.layer.pooled(self.width)

    @property
    def positions(self) -> int:
        return self.convolved[0] * self.convolved[1]

    @property
    def inputs(self) -> int:
        """Rows of the layer's matrix, the bias's included."""
        return self.layer.kernel**2 * self.channels + 1

    @property
    def explicit(self) -> bool:
        """Whether one example's gradient is cheaper to make than the Gram matrices that only give its norm."""
        gram = self.positions**2 * (self.inputs + self.layer.channels)
        return _GRAM * self.inputs * self.layer.channels <= gram

    @property
    def numbers(self) -> int:
        """How many a tile holds for one example."""
        rows = self.padded[0] * self.convolved[1] * self.layer.kernel * self.channels
        images = 2 * self.padded[0] * self.padded[1] * self.channels + 5 * self.positions * self.layer.channels
        norms = self.inputs * self.layer.channels if self.explicit else 2 * self.positions**2
        return rows + 2 * self.positions * self.inputs + images + norms


def shapes(net: ConvolutionalNet) -> list[Shape]:
    """Sizes of all convolutions."""
    return [Shape(layer, *sides) for layer, sides in zip(net.layers, net.maps(), strict=False)]


class _Place:
    """One convolution at work on a tile of up to ``most`` examples, in memory that is used again for each tile."""

    def __init__(self, shape: Shape, most: int, like: Tensor) -> None:
        def room(*sizes: int) -> Tensor:
            return like.new_zeros((most, *sizes))

        (tall, wide), (high, broad), (top, side) = shape.padded, shape.convolved, shape.pooled
        pieces, outputs = shape.layer.kernel * shape.channels, shape.layer.channels
        self._shape, self._count = shape, 0
        self._padded, self._rows = room(tall, wide, shape.channels), room(broad, tall, pieces)
        self._patches = room(high, broad, shape.inputs)
        self._patches[..., -1] = 1.0
        self._convolved, self._across = room(high, broad, outputs), room(high, side, outputs)
        self._pooled = room(top, side, outputs)
        self._gradients = room(shape.inputs, outputs) if shape.explicit else None
        self._slopes = self._convolved

    def forward(self, image: Tensor, matrix: Tensor) -> Tensor:
        """From ``(examples, height, width, channels)`` to the same, for a layer ``(models, inputs, outputs)``."""
        n = self._count = len(image)
        layer = self._shape.layer
        kernel, stride, edge = layer.kernel, layer.stride, layer.padding
        if edge:
            self._padded[:n, edge:-edge, edge:-edge] = image
            image = self._padded[:n]
        # First what a kernel covers of each row of the image, then, of these pieces, the columns that make a patch.
        rows, patches = self._rows[:n], self._patches[:n]
        rows.unflatten(3, (kernel, -1)).copy_(image.unfold(2, kernel, stride).permute(0, 2, 1, 4, 3))
        patches[..., :-1].unflatten(3, (kernel, -1)).copy_(rows.unfold(2, kernel, stride).permute(0, 2, 1, 4, 3))
        torch.bmm(_each(patches, matrix), matrix, out=_each(self._convolved[:n], matrix))
        _largest(self._convolved[:n], 2, layer, out=self._across[:n])
        pooled = _largest(self._across[:n], 1, layer, out=self._pooled[:n])
        return pooled.clamp_min_(0.0)

    def backward(self, slopes: Tensor) -> None:
        """Carry the loss's derivatives at what :meth:`forward` gave back to where the kernel was laid."""
        n, layer = self._count, self._shape.layer
        slopes = torch.gt(self._pooled[:n], 0.0, out=torch.empty_like(slopes)).mul_(slopes)
        slopes = _to_largest(slopes, self._across[:n], self._pooled[:n], 1, layer)
        self._slopes = _to_largest(slopes, self._convolved[:n], self._across[:n], 2, layer)

    def to_image(self, matrix: Tensor) -> Tensor:
        """The derivatives at the image that :meth:`forward` was given."""
        n, layer = self._count, self._shape.layer
        kernel, stride, edge = layer.kernel, layer.stride, layer.padding
        (high, broad), (tall, wide) = self._shape.convolved, self._shape.padded
        patches = torch.bmm(_each(self._slopes, matrix), matrix[:, :-1].transpose(1, 2))
        patches = patches.view(n, high, broad, kernel, -1).transpose(1, 2)
        rows = patches.new_zeros((n, broad, tall, patches.shape[-1]))
        for i in range(kernel):
            _strided(rows, 2, i, stride, high).add_(patches[:, :, :, i])
        pieces = rows.unflatten(3, (kernel, -1)).transpose(1, 2)
        image = patches.new_zeros((n, tall, wide, self._shape.channels))
        for j in range(kernel):
            _strided(image, 2, j, stride, broad).add_(pieces[:, :, :, j])
        return image[:, edge : tall - edge, edge : wide - edge]

    def squared_norms(self) -> Tensor:
        """Squared norm of each example's gradient, shape ``(examples,)``."""
        n = self._count
        patches, slopes = self._patches[:n].flatten(1, 2), self._slopes.flatten(1, 2)
        if self._gradients is None:
            gram = patches @ patches.transpose(1, 2)
            missing = gram.diagonal(dim1=1, dim2=2).sum(1) * (torch.finfo(gram.dtype).tiny * slopes[0].numel())
            return gram.mul_(slopes @ slopes.transpose(1, 2)).sum((1, 2)).add_(missing)
        gradients = torch.bmm(patches.transpose(1, 2), slopes, out=self._gradients[:n])
        return torch.linalg.vector_norm(gradients.flatten(1), dim=1).square()

    def add_clipped(self, weight: Tensor, lost: Tensor | None, total: Tensor) -> None:
        """Add the weighted gradients to ``total``, shape ``(models, inputs, outputs)``; after :meth:`squared_norms`.

        Args:
            weight: shape ``(models, examples)``.
            lost: bool, shape ``(models · examples,)``: gradients that are not finite, whose weight is 0; None: none.
        """
        n = self._count
        if self._gradients is None:
            if lost is not None:
                self._patches[:n, ..., :-1][lost] = 0.0
                self._slopes[lost] = 0.0
            self._slopes.mul_(weight.reshape(n, 1, 1, 1))
            self.add_to(total)
            return
        gradients = self._gradients[:n]
        if lost is not None:
            gradients[lost] = 0.0
        total.flatten(1).unsqueeze(1).baddbmm_(weight.unsqueeze(1), gradients.view(*weight.shape, -1))

    def add_to(self, total: Tensor) -> None:
        """Add all gradients as they are."""
        total.baddbmm_(_each(self._patches[: self._count], total).transpose(1, 2), _each(self._slopes, total))


def _each(rows: Tensor, matrix: Tensor) -> Tensor:
    """The rows of each model, shape ``(models, rows, numbers)``, for matrices ``(models, …)``."""
    return rows.view(len(matrix), -1, rows.shape[-1])


def _strided(images: Tensor, axis: int, first: int, stride: int, count: int) -> Tensor:
    """``count`` rows or columns of the images, from number ``first`` on."""
    index = [slice(None)] * axis + [slice(first, first + stride * (count - 1) + 1, stride)]
    return images[tuple(index)]


def _largest(images: Tensor, axis: int, layer: Convolution, out: Tensor) -> Tensor:
    """The largest number in every window along one axis."""
    windows = [_strided(images, axis, j, layer.pool_stride, out.shape[axis]) for j in range(layer.pool)]
    out.copy_(windows[0])
    for window in windows[1:]:
        torch.maximum(out, window, out=out)
    return out


def _to_largest(slopes: Tensor, images: Tensor, largest: Tensor, axis: int, layer: Convolution) -> Tensor:
    """The derivatives at what :func:`_largest` was given: each goes to the first of the largest of its window."""
    count = largest.shape[axis]
    out, here = torch.zeros_like(images), torch.empty_like(largest)
    for j in range(layer.pool - 1):
        torch.ge(_strided(images, axis, j, layer.pool_stride, count), largest, out=here)
        here.mul_(slopes)
        _strided(out, axis, j, layer.pool_stride, count).add_(here)
        slopes = slopes - here
    _strided(out, axis, layer.pool - 1, layer.pool_stride, count).add_(slopes)
    return out


class ImageStack:
    """A body for :func:`dpaudit.trainers.engine.fit_body`: convolutions, and fully connected layers behind them."""

    def __init__(self, net: ConvolutionalNet, hidden: Sequence[int], classes: int) -> None:
        self._net, self._hidden, self._classes = net, hidden, classes
        self._shapes = shapes(net)
        self.numbers = sum(shape.numbers for shape in self._shapes)  # that a tile holds for one example
        self.most = max(1, _TILE // self.numbers)  # examples in a tile
        self._places: list[_Place] = []

    def start(self, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices of one model."""
        return self._net.start(self._hidden, self._classes, seed)

    def stacked(self, matrices: Sequence[NDArray[np.float32]], place: torch.device) -> Tensor:
        """One layer of all models; see :class:`~dpaudit.trainers.engine.Body`."""
        return torch.from_numpy(np.stack(matrices)).to(place)

    def steps(self, layers: list[Tensor], data: Data, clip_norm: float | Tensor | None, rate: float) -> engine.Step:
        """What does one step; see :class:`~dpaudit.trainers.engine.Body`."""
        return engine.steps_of(self.gradient_step, layers, data, clip_norm, rate)

    def network(
        self,
        layers: tuple[NDArray[np.float32], ...],
        start: NDArray[np.float32],
        released: NDArray[np.float32] | None,
        counts: NDArray[np.int32],
    ) -> ImageNetwork:
        """One model as it leaves training."""
        return ImageNetwork(layers, start, released, self._net, counts=counts)

    def gradient_step(
        self, layers: list[Tensor], batch: engine.Batch, clip_norm: float | Tensor | None, rate: float
    ) -> Tensor | None:
        """Subtract ``rate`` times the sum of the (clipped) gradients, and count as :func:`.engine.counted` does."""
        totals, counts = self.sums(layers, batch, clip_norm)
        for layer, total in zip(layers, totals, strict=True):
            layer.sub_(total, alpha=rate)
        return None if clip_norm is None else counts

    def sums(
        self, layers: list[Tensor], batch: engine.Batch, clip_norm: float | Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """Per layer, each model's sum of (clipped) gradients, shape ``(models, inputs + 1, outputs)``; and counts."""
        if not self._places:
            self._places = [_Place(shape, self.most, batch.x) for shape in self._shapes]
        totals = [torch.zeros_like(layer) for layer in layers]
        counts = torch.zeros((2, len(batch.real)), dtype=torch.int64, device=batch.x.device)
        for models, examples in tiles([int(size) for size in batch.real.sum(1).tolist()], self.most):
            x, y, squares, real = (t[models, examples] for t in (batch.x, batch.y, batch.squares, batch.real))
            part = engine.Batch(x, y, squares, real)
            clip = clip_norm[models] if isinstance(clip_norm, Tensor) else clip_norm
            found = self._add_tile([layer[models] for layer in layers], part, clip, [total[models] for total in totals])
            if found is not None:
                counts[: len(found), models] += found
        return totals, counts

    def _add_tile(
        self, layers: list[Tensor], batch: engine.Batch, clip_norm: float | Tensor | None, totals: list[Tensor]
    ) -> Tensor | None:
        depth, counts = len(self._places), None
        head = self._pass(layers[:depth], layers[depth:], batch, public=clip_norm is None)
        if clip_norm is None:
            for place, total in zip(self._places, totals, strict=False):
                place.add_to(total)
        else:
            squares = torch.stack([place.squared_norms() for place in self._places]).sum(0).view(batch.real.shape)
            weight, lost = engine.weights(squares + head.squared_norms(), clip_norm)
            counts = engine.counted(weight, lost, batch.real)
            weight.mul_(batch.real)
            engine.scale(head, weight, lost)
            for place, total in zip(self._places, totals, strict=False):
                place.add_clipped(weight, None if lost is None else lost.flatten(), total)
        head.subtract_from(totals[depth:], -1.0)
        return counts

    def _pass(
        self, layers: list[Tensor], head_layers: list[Tensor], batch: engine.Batch, *, public: bool
    ) -> engine.Backward:
        """Forward and backward through all layers; what it leaves of the convolutions stays in their places."""
        models, examples = batch.real.shape
        image = batch.x[..., :-1].reshape(models * examples, *self._net.shape)
        for place, layer in zip(self._places, layers, strict=True):
            image = place.forward(image, layer)
        flat = image.new_ones((models, examples, self._net.outputs + 1))
        flat[..., :-1] = image.view(models, examples, -1)
        flat.mul_(batch.real.unsqueeze(-1))  # as the engine wants its padding
        head = engine.backward(head_layers, engine.Batch(flat, batch.y, flat.square().sum(-1), batch.real))
        slopes = torch.bmm(head.slopes[0], head_layers[0][:, :-1].transpose(1, 2))
        if public:
            slopes.mul_(batch.real.unsqueeze(-1))  # padding: all that lies further back follows from this
        slopes = slopes.view(image.shape)
        for number in range(len(layers) - 1, -1, -1):
            self._places[number].backward(slopes)
            if number:
                slopes = self._places[number].to_image(layers[number])
        return head


def tiles(sizes: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """Models and places of a stack's batches, cut so that no tile has more than ``most`` places.

    Args:
        sizes: records in the batch of each model; they come first.
        most: at least 1.
    """
    models = max(1, most // max(1, *sizes))
    for first in range(0, len(sizes), models):
        group = slice(first, first + models)
        width = max(sizes[group])
        parts = -(-width // most)
        for part in range(parts):
            yield group, slice(width * part // parts, width * (part + 1) // parts)
