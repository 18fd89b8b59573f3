"""Small convolutional networks for images: their description and the trained network, in numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from .models import Network
from .seeds import stream

_ROWS = 128  # records whose patches are held at once


@dataclass(frozen=True)
class Convolution:
    """A convolution with a square kernel, then ReLU, then a maximum over square windows.

    Attributes:
        channels: how many it makes.
        kernel: height and width of the kernel.
        stride: step between neighbouring kernels.
        padding: rows and columns of zeros around the image.
        pool: height and width of the windows of the maximum; 1 is none.
        pool_stride: step between neighbouring windows.

    Raises:
        InputError: a number out of range.
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pool: int = 1
    pool_stride: int = 1

    def __post_init__(self) -> None:
        for name in ("channels", "kernel", "stride", "pool", "pool_stride"):
            check.integer(f"{name} of a convolution", getattr(self, name), 1)
        check.integer("padding of a convolution", self.padding, 0)

    def convolved(self, side: int) -> int:
        """Height (or width) after the convolution of an image of height (or width) ``side``; below 1: does not fit."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1

    def pooled(self, side: int) -> int:
        """Height (or width) after the maximum; below 1: does not fit."""
        return (self.convolved(side) - self.pool) // self.pool_stride + 1


@dataclass(frozen=True)
class ConvolutionalNet:
    """Convolutions in front of the fully connected layers of a classifier.

    The features of a record are its image, row by row, the channels of a pixel side by side.

    Attributes:
        shape: height, width and channels of the images.
        layers: the convolutions, first to last.

    Raises:
        InputError: no layers, or a kernel or window that is larger than what it is laid on.

    >>> small = ConvolutionalNet((28, 28, 1), [Convolution(16, 8, 2, 3, pool=2), Convolution(32, 4, 2, pool=2)])
    >>> small.maps()
    ((28, 28, 1), (13, 13, 16), (4, 4, 32))
    """

    shape: tuple[int, int, int]
    layers: Sequence[Convolution]

    def __post_init__(self) -> None:
        shape = tuple(self.shape)
        if len(shape) != 3:
            raise InputError(f"shape must be height, width and channels, got {self.shape!r}")
        layers = tuple(self.layers)
        if not layers or not all(isinstance(layer, Convolution) for layer in layers):
            raise InputError(f"layers must be one Convolution or more, got {self.layers!r}")
        object.__setattr__(self, "shape", tuple(check.integer("side of an image", side, 1) for side in shape))
        object.__setattr__(self, "layers", layers)
        for layer, (height, width, _) in zip(layers, self.maps(), strict=False):
            if min(layer.convolved(side) for side in (height, width)) < 1:
                raise InputError(f"kernel must fit the padded image of {height} by {width}, got {layer.kernel}")
            if min(layer.pooled(side) for side in (height, width)) < 1:
                side = min(layer.convolved(side) for side in (height, width))
                raise InputError(f"pool must be at most {side}, what the convolution leaves, got {layer.pool}")

    def maps(self) -> tuple[tuple[int, int, int], ...]:
        """Height, width and channels of the images and of what each layer makes of them."""
        maps = [self.shape]
        for layer in self.layers:
            height, width, _ = maps[-1]
            maps.append((layer.pooled(height), layer.pooled(width), layer.channels))
        return tuple(maps)

    @property
    def features(self) -> int:
        """Numbers in a record."""
        return int(np.prod(self.shape))

    @property
    def outputs(self) -> int:
        """Numbers that the last convolution leaves of a record, for the fully connected layers."""
        return int(np.prod(self.maps()[-1]))

    def matrices(self, hidden: Sequence[int], classes: int) -> tuple[tuple[int, int], ...]:
        """Shape of each layer's matrix, bias row included, convolutions first.

        A convolution's rows are its kernel row by row, the channels of a pixel side by side.
        """
        before = [channels for _, _, channels in self.maps()[:-1]]
        kernels = [(c.kernel**2 * i + 1, c.channels) for c, i in zip(self.layers, before, strict=True)]
        widths = [self.outputs, *hidden, classes]
        return (*kernels, *((i + 1, o) for i, o in pairwise(widths)))

    def start(self, hidden: Sequence[int], classes: int, seed: int) -> list[NDArray[np.float32]]:
        """The untrained matrices: uniform in ±1/√inputs, as torch has weights and biases by default."""
        generator = stream(seed, "init")
        return [
            (generator.uniform(-1, 1, shape) / np.sqrt(shape[0] - 1)).astype(np.float32)
            for shape in self.matrices(hidden, classes)
        ]


@dataclass(frozen=True, eq=False)
class ImageNetwork(Network):
    """A trained network with convolutions; as :class:`~dpaudit.trainers.models.Network`, whose order of parameters
    it keeps.

    Attributes:
        net: the convolutions, whose matrices are the first of ``layers``.
    """

    net: ConvolutionalNet | None = None

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Unnormalised log-probabilities, float64, shape ``(records, classes)``.

        Raises:
            InputError: ``x`` is not of shape ``(records, features)``.
        """
        assert self.net is not None
        array = np.asarray(x)
        if array.ndim != 2 or array.shape[1] != self.net.features:
            raise InputError(f"features must have the shape (records, {self.net.features}), got {array.shape}")
        out = np.empty((len(array), self.layers[-1].shape[1]))
        for at in range(0, len(array), _ROWS):
            out[at : at + _ROWS] = self._forward(array[at : at + _ROWS].astype(np.float64))
        return out

    def _forward(self, activation: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self.net is not None
        image = activation.reshape(len(activation), *self.net.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged; its logits are checked
            for layer, matrix in zip(self.net.layers, self.layers, strict=False):
                image = _convolve(layer, matrix.astype(np.float64), image)
        head = Network(self.layers[len(self.net.layers) :], self.start)
        return head._forward(image.reshape(len(image), -1))


def _convolve(layer: Convolution, matrix: NDArray[np.float64], image: NDArray[np.float64]) -> NDArray[np.float64]:
    """One layer, from ``(records, height, width, channels)`` to the same."""
    edge = (layer.padding, layer.padding)
    padded = np.pad(image, ((0, 0), edge, edge, (0, 0)))
    windows = sliding_window_view(padded, (layer.kernel, layer.kernel), axis=(1, 2))[
        :, :: layer.stride, :: layer.stride
    ]
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], -1)
    out = np.maximum(patches @ matrix[:-1] + matrix[-1], 0.0)
    areas = sliding_window_view(out, (layer.pool, layer.pool), axis=(1, 2))
    return areas[:, :: layer.pool_stride, :: layer.pool_stride].max(axis=(-2, -1))
