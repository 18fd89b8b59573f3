"""What :mod:`.image_loops` is told of a network: its parts in order, and where in memory each has what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .image_loops import LAYER, PART, POOL, RELU, TANH
from .small_products import LANES

Reals = NDArray[np.float32]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Slot:
    """Where one layer's parameters are.

    Attributes:
        kernel: height and width.
        channels: of what the layer is given.
        outputs: channels that it gives.
    """

    kernel: Pair
    channels: int
    outputs: int
    _start: int
    _across: int
    _row: Pair  # channels and outputs, padded

    def weight(self, flat: Reals) -> Reals:
        """A view, shape ``(height, width, channels, outputs)``."""
        channels, outputs = self._row
        part = flat[self._start : self._start + self._inner * outputs]
        return part.reshape(*self.kernel, channels, outputs)[:, :, : self.channels, : self.outputs]

    def bias(self, flat: Reals) -> Reals:
        """A view, shape ``(outputs,)``."""
        start = self._start + self._inner * self._row[1]
        return flat[start : start + self.outputs]

    def fill(self, flat: Reals, across: Reals, weight: Reals, bias: Reals | None) -> None:
        """Set them, from a weight in the shape of :meth:`weight`."""
        self.weight(flat)[...] = weight
        if bias is not None:
            self.bias(flat)[...] = bias
        if self._across >= 0:
            channels, outputs = self._row
            back = across[self._across : self._across + self._inner * outputs].reshape(outputs, *self.kernel, channels)
            back[: self.outputs, :, :, : self.channels] = weight.transpose(3, 0, 1, 2)

    @property
    def _inner(self) -> int:
        return self.kernel[0] * self.kernel[1] * self._row[0]


@dataclass(frozen=True, eq=False)
class Program:
    """A network for :func:`.image_loops.add_clipped`.

    Attributes:
        parts: in order.
        sizes: of the memory that one image needs.
        slots: of the layers, in order.
        flat: how many numbers the parameters take, with padding.
        across: how many the matrices take that lead back.
        classes: logits.
    """

    parts: NDArray[Any]
    sizes: tuple[int, int, int, int]
    slots: tuple[Slot, ...]
    flat: int
    across: int
    classes: int


class Builder:
    """Puts a network together, part by part.

    Args:
        height, width, channels: of the images.

    >>> network = Builder(28, 28, 1)
    >>> network.convolve(16, (8, 8), (2, 2), (3, 3), bias=True)
    True
    >>> network.rectify(), network.pool((2, 2), (1, 1), (0, 0)), network.connect(10, bias=True)
    (True, True, True)
    >>> network.shape
    (10, 1, 1)
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        self._rows: list[dict[str, int]] = []
        self._slots: list[Slot] = []
        self._sides, self._channels, self._row = (height, width), channels, channels
        self._given, self._values = 0, -(-height * width * channels // LANES) * LANES
        self._edged = self._windows = self._taps = self._flat = self._across = 0

    def rectify(self) -> bool:
        """Add a ReLU; False, as of the others, where what there is so far does not allow it."""
        return self._in_place(RELU)

    def squash(self) -> bool:
        """Add a hyperbolic tangent."""
        here = (row for row in self._rows if row["gives"] == self._given)
        return all(row["kind"] != TANH for row in here) and self._in_place(TANH)  # what the first one gave is wanted

    def _in_place(self, kind: int) -> bool:
        if not self._rows:
            return False  # images are not to be changed
        (height, width), row = self._sides, self._row
        self._rows.append({
            "kind": kind, "height": height, "width": width, "channels": row, "high": height, "broad": width,
            "outputs": row, "given": self._given, "gives": self._given,
        })  # fmt: skip
        return True

    def pool(self, kernel: Pair, stride: Pair, padding: Pair) -> bool:
        """Add a maximum over windows."""
        high, broad = self._places(kernel, stride, padding)
        if high < 1 or broad < 1 or 2 * padding[0] > kernel[0] or 2 * padding[1] > kernel[1]:
            return False
        self._append(POOL, kernel, stride, padding, self._row, {"taps": self._taps})
        self._taps += high * broad * self._row
        return True

    def convolve(self, outputs: int, kernel: Pair, stride: Pair, padding: Pair, bias: bool) -> bool:
        """Add a convolution."""
        if min(self._places(kernel, stride, padding)) < 1:
            return False
        (height, width), edge = self._sides, any(padding)
        tall, wide = height + 2 * padding[0], width + 2 * padding[1]
        inner, padded = kernel[0] * kernel[1] * self._row, -(-outputs // LANES) * LANES
        across = self._across if self._slots else -1
        self._slots.append(Slot(kernel, self._channels, outputs, self._flat, across, (self._row, padded)))
        high, broad = self._places(kernel, stride, padding)
        self._append(LAYER, kernel, stride, padding, padded, {
            "tall": tall, "wide": wide, "inner": inner, "edged": self._edged if edge else -1, "weight": self._flat,
            "across": across, "layer": len(self._slots) - 1, "bias": int(bias),
            "whole": int(kernel == (height, width) and not edge),
        })  # fmt: skip
        self._channels = outputs
        self._edged += tall * wide * self._rows[-1]["channels"] if edge else 0
        self._windows = max(self._windows, high * broad * inner)
        self._flat += (inner + 1) * padded
        self._across += inner * padded if across >= 0 else 0
        return True

    def connect(self, outputs: int, bias: bool) -> bool:
        """Add a fully connected layer."""
        return self.convolve(outputs, self._sides, (1, 1), (0, 0), bias)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what there is so far."""
        return self._channels, *self._sides

    def built(self) -> Program:
        """The network."""
        parts = np.zeros(len(self._rows), PART)
        for part, row in zip(parts, self._rows, strict=True):
            for name, value in row.items():
                part[name] = value
        sizes = self._values, self._edged, self._windows, self._taps
        return Program(parts, sizes, tuple(self._slots), self._flat, self._across, self._channels)

    def _places(self, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
        sides = zip(self._sides, kernel, stride, padding, strict=True)
        high, broad = ((side + 2 * edge - size) // step + 1 for side, size, step, edge in sides)
        return high, broad

    def _append(self, kind: int, kernel: Pair, stride: Pair, padding: Pair, row: int, more: dict[str, int]) -> None:
        (height, width), (high, broad) = self._sides, self._places(kernel, stride, padding)
        self._rows.append({
            "kind": kind, "height": height, "width": width, "channels": self._row, "kernel_height": kernel[0],
            "kernel_width": kernel[1], "stride_down": stride[0], "stride_across": stride[1], "padding_down": padding[0],
            "padding_across": padding[1], "high": high, "broad": broad, "outputs": row, "given": self._given,
            "gives": self._values, **more,
        })  # fmt: skip
        self._sides, self._row, self._given = (high, broad), row, self._values
        self._values += high * broad * row
