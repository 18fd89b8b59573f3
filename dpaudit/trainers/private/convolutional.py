"""Small convolutional networks by hand, on a CPU: convolutions, pooling, ReLU or tanh, linear layers, in a sequence.

Threads take a share of the batch each and go through it one image after the other (:mod:`..image_loops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..architectures import Images, Records
from ..image_loops import add_clipped
from ..image_parts import Builder, Program, Slot
from ..small_products import room
from . import batches
from .clipping import Clipping
from .diagnostics import StepCounts
from .faster import Snapshot, has_hooks, in_order
from .lanes import in_lanes, is_plain, known_rule, within
from .layout import Layout
from .losses import CrossEntropy, Loss
from .rules import rule_for

_MOST = 2**20  # parameters: more of them leave the cache

Reals = NDArray[np.float32]


class ConvolutionalByHand:
    """Clipped sums of a sequence of convolutions and what goes with them, all trained, in float32 on a CPU."""

    def __init__(self, model: Snapshot, steps: list[Any], layout: Layout, loss: CrossEntropy) -> None:
        self._model, self._steps, self._layout, self._loss = model, steps, layout, loss
        self._layers = [step for step in steps if isinstance(step, (nn.Conv2d, nn.Linear))]
        self._place = {id(parameter): number for number, parameter in enumerate(layout.parameters)}
        self._flattened = next((type(step) for step in steps if isinstance(step, (nn.Flatten, Records))), None)
        self._programs: dict[tuple[int, ...], Program | None] = {}

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, loss: Loss, clipping: Clipping) -> ConvolutionalByHand | None:
        """The network, if the model is one: nothing else in it, nothing used twice, no hooks."""
        steps = list(in_order(model))
        if type(loss) is not CrossEntropy or not is_plain(layout) or not all(map(_is_known, steps)):
            return None
        layers = [step for step in steps if isinstance(step, (nn.Conv2d, nn.Linear))]
        if not any(isinstance(layer, nn.Conv2d) for layer in layers) or not isinstance(steps[-1], nn.Linear):
            return None
        own = [id(parameter) for layer in layers for parameter in layer.parameters()]
        if own != [id(parameter) for parameter in layout.parameters] or layout.total > _MOST:
            return None
        return None if known_rule(clipping, len(layers)) is None else cls(Snapshot(model), steps, layout, loss)

    def fits(self, x: batches.Batch, y: batches.Batch) -> bool:
        """Whether these are images of a size that the network takes, with labels, and the model is what it was."""
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not self._model.holds():
            return False
        if x.dim() != (2 if isinstance(self._steps[0], Images) else 4) or y.shape != x.shape[:1]:
            return False
        if (x.dtype, y.dtype) != (torch.float32, torch.int64) or not (x.is_cpu and y.is_cpu and is_plain(self._layout)):
            return False
        program = self._program(x)
        return program is not None and within(y, program.classes, self._loss.ignore_index)

    def parts(self, size: int) -> int:
        """All at once."""
        return 1

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        program = self._program(x)
        rule = known_rule(clipping, len(self._layers))
        assert program is not None and rule is not None
        flat, across = room(program.flat), room(program.across)
        for slot, layer in zip(program.slots, self._layers, strict=True):
            weight = self._turned(layer.weight.detach().numpy(), slot, layer)
            slot.fill(flat, across, weight, None if layer.bias is None else layer.bias.detach().numpy())
        pixels = x.detach().numpy() if x.dim() == 2 else x.detach().numpy().transpose(0, 2, 3, 1)
        images, labels = np.ascontiguousarray(pixels.reshape(size, -1)), np.ascontiguousarray(y.numpy())

        def work(part: slice) -> tuple[Reals, int, int]:
            total = room(program.flat)
            counts = add_clipped(
                images[part], labels[part], program.classes, self._loss.ignore_index, program.parts, program.sizes,
                flat, across, True, rule, total,
            )  # fmt: skip
            return total, *counts

        done = in_lanes(work, size)
        for sums, _, _ in done:
            self._add(program, sums, totals)
        return StepCounts(size, sum(scaled for _, scaled, _ in done), sum(dropped for _, _, dropped in done))

    def _add(self, program: Program, sums: Reals, totals: Sequence[Tensor]) -> None:
        for slot, layer in zip(program.slots, self._layers, strict=True):
            total = totals[self._place[id(layer.weight)]].numpy()
            self._turned(total, slot, layer)[...] += slot.weight(sums)
            if layer.bias is not None:
                bias = totals[self._place[id(layer.bias)]].numpy()
                bias += slot.bias(sums)

    def _turned(self, weight: Reals, slot: Slot, layer: Any) -> Reals:
        """A weight as the loops have it, ``(height, width, channels, outputs)``: a view, if it is contiguous."""
        if isinstance(layer, nn.Linear) and self._flattened is Records:
            return weight.reshape(slot.outputs, *slot.kernel, slot.channels).transpose(1, 2, 3, 0)
        return weight.reshape(slot.outputs, slot.channels, *slot.kernel).transpose(2, 3, 1, 0)

    def _program(self, x: Tensor) -> Program | None:
        """For images of this size; None if the network does not take them."""
        shape = tuple(x.shape[1:])
        if shape not in self._programs:
            self._programs[shape] = self._built(shape)
        return self._programs[shape]

    def _built(self, shape: tuple[int, ...]) -> Program | None:
        steps = self._steps
        if isinstance(steps[0], Images):
            height, width, channels = steps[0].shape
            if shape != (height * width * channels,):
                return None
            steps = steps[1:]
        else:
            channels, height, width = shape
        if not channels or not height or not width:
            return None
        network, flat = Builder(height, width, channels), False
        for step in steps:
            flat = flat or isinstance(step, (nn.Flatten, Records))
            if not _add_to(network, step, flat):
                return None
        return network.built()


def _add_to(network: Builder, step: Any, flat: bool) -> bool:
    """One more step; False where it does not fit."""
    if isinstance(step, (nn.Flatten, Records)):
        return True
    if isinstance(step, nn.ReLU):
        return network.rectify()
    if isinstance(step, nn.Tanh):
        return network.squash()
    if isinstance(step, nn.Linear):
        fits = flat and step.in_features == int(np.prod(network.shape))
        return fits and network.connect(step.out_features, step.bias is not None)
    if isinstance(step, nn.MaxPool2d):
        return not flat and network.pool(*(_pair(size) for size in (step.kernel_size, step.stride, step.padding)))
    if not isinstance(step, nn.Conv2d) or flat or step.in_channels != network.shape[0]:
        return False
    padding = (0, 0) if step.padding == "valid" else _pair(step.padding)
    return network.convolve(
        step.out_channels, _pair(step.kernel_size), _pair(step.stride), padding, step.bias is not None
    )


def _pair(size: Any) -> tuple[int, int]:
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    return int(sizes[0]), int(sizes[-1])


def _is_known(step: Any) -> bool:
    """Whether a module is one that is done by hand, set as usual."""
    if has_hooks(step):
        return False
    if type(step) is nn.Conv2d:
        usual = step.groups == 1 and step.dilation == (1, 1) and step.padding_mode == "zeros" and step.padding != "same"
        return usual and rule_for(step) is not None
    if type(step) is nn.MaxPool2d:
        return _pair(step.dilation) == (1, 1) and not step.ceil_mode and not step.return_indices
    if type(step) is nn.Flatten:
        return step.start_dim == 1 and step.end_dim == -1
    return type(step) in (nn.ReLU, nn.Tanh, Images, Records) or (type(step) is nn.Linear and rule_for(step) is not None)
