"""One image after the other through a small network of convolutions, there and back, in compiled loops.

All that one image needs fits a core's cache. Its gradient is made, measured, weighed and added, as many operations as
an image's share of ordinary training; of fully connected layers, whose gradient is the product of two vectors, these
are kept, and all images' products are one product of matrices.

Values lie as ``(height · width, channels)``. A convolution multiplies what its kernel covers at each place with a
matrix ``(kernel height · kernel width · channels, outputs)``; a fully connected layer is one whose kernel covers the
image, and called whole. Outputs are padded with zeros to a multiple of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, float32
from .example_loops import Rule, add_times, precise_length, softmax_slopes, squared_length, weigh
from .functions import tanh
from .small_products import multiply, multiply_at, room

Reals = NDArray[np.float32]
Whole = NDArray[np.int64]
Part = np.record

LAYER, POOL, RELU, TANH = range(4)
_KEPT, _HELD = 2**20, 32  # numbers of whole layers that are kept before they are multiplied, but of so many images
PART = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            "height",  # of what it is given
            "width",
            "channels",  # padded
            "kernel_height",
            "kernel_width",
            "stride_down",
            "stride_across",
            "padding_down",
            "padding_across",
            "high",  # of what it gives
            "broad",
            "outputs",  # padded
            "tall",  # of what it is given, within its edge
            "wide",
            "inner",  # rows of its matrix
            "given",  # where what it is given is, among all values
            "gives",
            "edged",  # where that is within its edge; -1 if there is none
            "taps",  # where those of a pool are that were largest
            "weight",  # where its matrix is among the parameters; the bias follows
            "across",  # where the matrix is that leads back; -1 if nothing below is trained
            "layer",  # of clipping
            "bias",  # whether there is one
            "whole",  # whether the kernel covers all it is given
        )
    ]
)


@compiled
def _pad(part: Part, image: Reals, out: Reals) -> None:
    """The image within an edge of zeros, which is there already."""
    run, row = part.width * part.channels, part.wide * part.channels
    for y in range(part.height):
        start = (y + part.padding_down) * row + part.padding_across * part.channels
        source, target = image[y * run : (y + 1) * run], out[start : start + run]
        for i in range(run):
            target[i] = source[i]


@compiled
def _convolve(part: Part, image: Reals, weight: Reals, bias: Reals, out: Reals) -> None:
    """Each row of places is a product of what the kernel covers there with the layer's matrix."""
    channels, outputs, start, place = part.channels, part.outputs, image.ctypes.data, out.ctypes.data
    row = part.wide * channels
    for down in range(part.high):
        multiply_at(
            start + 4 * down * part.stride_down * row, part.stride_across * channels, row, 1, weight.ctypes.data,
            outputs, place + 4 * down * part.broad * outputs, outputs, part.broad, part.kernel_height,
            part.kernel_width * channels, outputs, False,
        )  # fmt: skip
    for at in range(0, len(out), outputs):
        target = out[at : at + outputs]
        for c in range(outputs):
            target[c] += bias[c]


@compiled
def _convolve_back(part: Part, image: Reals, slope: Reals, weight: Reals, bias: Reals) -> None:
    """Gradients: each row of the kernel is a product of what it covers, at all places, with the derivatives there."""
    channels, outputs, start, place = part.channels, part.outputs, image.ctypes.data, weight.ctypes.data
    row, run = part.wide * channels, part.kernel_width * channels
    for k in range(part.kernel_height):
        multiply_at(
            start + 4 * k * row, 1, part.stride_down * row, part.stride_across * channels, slope.ctypes.data, outputs,
            place + 4 * k * run * outputs, outputs, run, part.high, part.broad, outputs, False,
        )  # fmt: skip
    bias[:] = 0
    for at in range(0, len(slope), outputs):
        source = slope[at : at + outputs]
        for c in range(outputs):
            bias[c] += source[c]


@compiled
def _add_windows(part: Part, windows: Reals, image: Reals) -> None:
    """The reverse: what lies on a pixel is added up there."""
    channels, run = part.channels, part.kernel_width * part.channels
    for down in range(part.high):
        for across in range(part.broad):
            row = windows[down * part.broad + across]
            left = across * part.stride_across - part.padding_across
            first, end = max(0, -left), min(part.kernel_width, part.width - left)
            for k in range(part.kernel_height):
                y = down * part.stride_down - part.padding_down + k
                if y < 0 or y >= part.height or end <= first:
                    continue
                start = (y * part.width + left + first) * channels
                target = image[start : start + (end - first) * channels]
                source = row[k * run + first * channels : k * run + end * channels]
                for i in range(len(target)):
                    target[i] += source[i]


@compiled
def _span(stride: int, padding: int, tap: int, size: int, count: int) -> tuple[int, int]:
    """At which places, of ``count``, a tap of the kernel lies within the image: the first, and the end."""
    return max(0, -((tap - padding) // stride)), min(count, (size - 1 + padding - tap) // stride + 1)


@compiled
def _pool(part: Part, image: Reals, out: Reals, taps: NDArray[np.int32]) -> None:
    """The largest of each window, the first of several, NaN before all; and which of the kernel's taps that is."""
    pixels = image.reshape(part.height, part.width, part.channels)
    best, known = out.reshape(part.high, part.broad, part.channels), taps.reshape(part.high, part.broad, part.channels)
    best[:] = -np.inf
    known[:] = -1
    for k in range(part.kernel_height):
        top, bottom = _span(part.stride_down, part.padding_down, k, part.height, part.high)
        for j in range(part.kernel_width):
            left, right = _span(part.stride_across, part.padding_across, j, part.width, part.broad)
            tap = np.int32(k * part.kernel_width + j)
            for down in range(top, bottom):
                y = down * part.stride_down - part.padding_down + k
                for across in range(left, right):
                    x = across * part.stride_across - part.padding_across + j
                    for c in range(part.channels):
                        value = pixels[y, x, c]
                        more = value > best[down, across, c] or value != value or known[down, across, c] < 0
                        best[down, across, c] = value if more else best[down, across, c]
                        known[down, across, c] = tap if more else known[down, across, c]


@compiled
def _pool_back(part: Part, slope: Reals, taps: NDArray[np.int32], below: Reals) -> None:
    """Each derivative is added to that of the pixel that was largest."""
    pixels = below.reshape(part.height, part.width, part.channels)
    slopes = slope.reshape(part.high, part.broad, part.channels)
    known = taps.reshape(part.high, part.broad, part.channels)
    for k in range(part.kernel_height):
        top, bottom = _span(part.stride_down, part.padding_down, k, part.height, part.high)
        for j in range(part.kernel_width):
            left, right = _span(part.stride_across, part.padding_across, j, part.width, part.broad)
            tap = np.int32(k * part.kernel_width + j)
            for down in range(top, bottom):
                y = down * part.stride_down - part.padding_down + k
                for across in range(left, right):
                    x = across * part.stride_across - part.padding_across + j
                    for c in range(part.channels):
                        here = known[down, across, c] == tap
                        pixels[y, x, c] += slopes[down, across, c] if here else float32(0)


@compiled
def _rectify(values: Reals) -> None:
    for i in range(len(values)):
        values[i] = float32(0) if values[i] < float32(0) else values[i]  # NaN stays


@compiled
def _rectify_back(values: Reals, slopes: Reals) -> None:
    for i in range(len(values)):
        slopes[i] = float32(0) if values[i] <= float32(0) else slopes[i]


@compiled
def _squash(values: Reals) -> None:
    for i in range(len(values)):
        values[i] = tanh(values[i])


@compiled
def _squash_back(values: Reals, slopes: Reals) -> None:
    for i in range(len(values)):
        slopes[i] *= float32(1) - values[i] * values[i]


@compiled
def _seen(part: Part, values: Reals, edged: Reals) -> Reals:
    """What a layer was given, within its edge if it has one."""
    if part.edged < 0:
        return values[part.given : part.given + part.height * part.width * part.channels]
    return edged[part.edged : part.edged + part.tall * part.wide * part.channels]


@compiled
def forward(parts: NDArray[np.void], flat: Reals, values: Reals, edged: Reals, taps: NDArray[np.int32]) -> None:
    """From the pixels, which come first in ``values``, to the logits."""
    for part in parts:
        given = values[part.given : part.given + part.height * part.width * part.channels]
        gives = values[part.gives : part.gives + part.high * part.broad * part.outputs]
        if part.kind == RELU:
            _rectify(gives)
        elif part.kind == TANH:
            _squash(gives)
        elif part.kind == POOL:
            _pool(part, given, gives, taps[part.taps : part.taps + len(gives)])
        else:
            seen = _seen(part, values, edged)
            if part.edged >= 0:
                _pad(part, given, seen)
            end = part.weight + part.inner * part.outputs
            _convolve(part, seen, flat[part.weight : end], flat[end : end + part.outputs], gives)


@compiled
def backward(
    parts: NDArray[np.void],
    across: Reals,
    values: Reals,
    slopes: Reals,
    edged: Reals,
    windows: Reals,
    taps: NDArray[np.int32],
    grad: Reals,
) -> None:
    """From the derivatives at the logits, last in ``slopes``, to those at all parameters but of whole layers."""
    for n in range(len(parts) - 1, -1, -1):
        part = parts[n]
        count = part.high * part.broad
        slope = slopes[part.gives : part.gives + count * part.outputs]
        below = slopes[part.given : part.given + part.height * part.width * part.channels]
        if part.kind == RELU:
            _rectify_back(values[part.gives : part.gives + len(slope)], slope)
        elif part.kind == TANH:
            _squash_back(values[part.gives : part.gives + len(slope)], slope)
        elif part.kind == POOL:
            below[:] = 0
            _pool_back(part, slope, taps[part.taps : part.taps + len(slope)], below)
        else:
            end = part.weight + part.inner * part.outputs
            if not part.whole:
                seen = _seen(part, values, edged)
                _convolve_back(part, seen, slope, grad[part.weight : end], grad[end : end + part.outputs])
            if part.across >= 0:
                matrix = across[part.across : part.across + part.inner * part.outputs].reshape(part.outputs, part.inner)
                wide = windows[: count * part.inner].reshape(count, part.inner)
                multiply(slope.reshape(count, part.outputs), matrix, wide, False)
                below[:] = 0
                _add_windows(part, wide, below)


@compiled
def _add_squares(part: Part, values: Reals, slopes: Reals, grad: Reals, squares: NDArray[np.float64]) -> None:
    """The squared length of one layer's gradient."""
    end = part.weight + part.inner * part.outputs
    if part.whole:
        own = precise_length(slopes[part.gives : part.gives + part.outputs])
        factor = precise_length(values[part.given : part.given + part.inner])
        squares[part.layer] += own * (factor + part.bias)
    else:
        squares[part.layer] += squared_length(grad[part.weight : end])
        if part.bias:
            squares[part.layer] += squared_length(grad[end : end + part.outputs])


@compiled
def _keep(parts: NDArray[np.void], values: Reals, slopes: Reals, weights: Reals, kept: Reals) -> None:
    """What one image's gradients of whole layers are made of: their inputs, and their weighted derivatives."""
    at = 0
    for part in parts:
        if part.whole:
            kept[at : at + part.inner] = values[part.given : part.given + part.inner]
            at += part.inner
            kept[at : at + part.outputs] = slopes[part.gives : part.gives + part.outputs]
            kept[at : at + part.outputs] *= weights[part.layer]
            at += part.outputs


@compiled
def _add_kept(parts: NDArray[np.void], kept: Reals, total: Reals) -> None:
    """The sums of these gradients, of several images."""
    at = 0
    for part in parts:
        if part.whole:
            end = part.weight + part.inner * part.outputs
            given, slope = kept[:, at : at + part.inner], kept[:, at + part.inner : at + part.inner + part.outputs]
            multiply(given.T, slope, total[part.weight : end].reshape(part.inner, part.outputs), True)
            for b in range(len(kept)):
                total[end : end + part.outputs] += slope[b]
            at += part.inner + part.outputs


@compiled
def add_clipped(
    x: Reals,
    label: Whole,
    classes: int,
    ignored: int,
    parts: NDArray[np.void],
    sizes: tuple[int, int, int, int],
    flat: Reals,
    across: Reals,
    clip: bool,
    rule: Rule,
    total: Reals,
) -> tuple[int, int]:
    """Gradients of some images, clipped or as they are, added to ``total``.

    Args:
        x: shape ``(B, height · width · channels)``.
        label: classes, shape ``(B,)``.
        classes: how many of the last part's outputs are logits.
        ignored: the label of images that have no loss.
        parts: of the network, in order: records of type :data:`PART`.
        sizes: how many values there are, values within edges, numbers in the most windows of a layer, and taps.
        flat: all parameters.
        across: the matrices that lead back, as ``(outputs, inputs)``.
        clip: whether to clip; if not, what is not finite is added too.
        rule: of clipping.
        total: as ``flat``.

    Returns:
        How many were scaled down, and how many dropped.
    """
    values, slopes, edged, windows = room(sizes[0]), room(sizes[0]), room(sizes[1]), room(sizes[2])
    taps, grad = np.empty(sizes[3], np.int32), room(len(flat))
    squares, weights = np.empty(len(rule.limits)), np.ones(len(rule.limits), np.float32)
    whole = 0
    for part in parts:
        whole += part.whole * (part.inner + part.outputs)
    kept, held = np.zeros((min(len(x), max(_HELD, _KEPT // max(1, whole))), whole), np.float32), 0
    gives = parts[-1].gives
    scaled = dropped = 0
    for b in range(len(x)):
        values[: x.shape[1]] = x[b]
        forward(parts, flat, values, edged, taps)
        slopes[gives:] = values[gives:]
        finite = softmax_slopes(slopes[gives : gives + classes].reshape(classes, 1), label[b : b + 1], ignored, True)
        slopes[gives + classes :] = 0
        backward(parts, across, values, slopes, edged, windows, taps, grad)
        if clip:
            squares[:] = 0
            for part in parts:
                if part.kind == LAYER:
                    _add_squares(part, values, slopes, grad, squares)
            outcome = weigh(squares, rule, weights) if finite else -1
            if outcome < 0:
                dropped += 1
                continue
            scaled += outcome
        for part in parts:
            if part.kind == LAYER and not part.whole:
                end = part.weight + (part.inner + 1) * part.outputs
                add_times(grad[part.weight : end], weights[part.layer], total[part.weight : end])
        _keep(parts, values, slopes, weights, kept[held])
        held += 1
        if held == len(kept):
            _add_kept(parts, kept, total)
            held = 0
    _add_kept(parts, kept[:held], total)
    return scaled, dropped
