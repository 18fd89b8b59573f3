"""One example after the other through a small transformer, there and back: its gradient written out, clipped, added.

All that one example needs fits a core's cache, and its gradient takes as many operations as an example's share of
ordinary training. So nothing would be saved by not writing it out.

Shapes: an example has T tokens of width d. Values lie as ``(features, tokens)``, so that loops run along the tokens and
each head of attention is a block of rows. Rows are padded to a multiple of ``LANES`` numbers. What is beyond the last
token is never added into anything else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled, float32
from ..example_loops import Rule, add_times, softmax_slopes, squared_length, weigh
from ..functions import exp, gelu
from ..small_products import multiply, padded, room

Reals = NDArray[np.float32]
Whole = NDArray[np.int64]


class Network(NamedTuple):
    """All parameters but the table of tokens, or as many derivatives; L blocks, m hidden units.

    Norms have weights in the first and biases in the second row; query, key and value are one layer. Rows of matrices
    are padded.
    """

    positions: Reals  # (length, d)
    first: Reals  # (L, 2, d)
    qkv: Reals  # (L, 3d, d)
    qkv_bias: Reals  # (L, 3d)
    out: Reals  # (L, d, d)
    out_bias: Reals  # (L, d)
    second: Reals  # (L, 2, d)
    wide: Reals  # (L, m, d)
    wide_bias: Reals  # (L, m)
    narrow: Reals  # (L, d, m)
    narrow_bias: Reals  # (L, d)
    last: Reals  # (2, d)
    head: Reals  # (classes, d)
    head_bias: Reals  # (classes,)


class Norm(NamedTuple):
    """What a norm leaves for the way back, for each block of the network."""

    normed: Reals  # (L, d, T)
    inverse: Reals  # (L, T): one over the deviation
    out: Reals  # (L, d, T)


class Values(NamedTuple):
    """One example's values, and where its derivatives are worked out."""

    x: Reals  # (d, T)
    first: Norm
    qkv: Reals  # (L, 3d, T)
    shares: Reals  # (L, heads, T, T): of each key in each query
    mix: Reals  # (L, d, T)
    second: Norm
    hidden: Reals  # (L, m, T): after GELU
    steep: Reals  # (L, m, T): its derivative
    last: Norm
    seen: Reals  # (d, places): what the head is given
    logits: Reals  # (classes, places)
    slope: Reals  # (d, T): at x
    below: Reals  # (d, T)
    wide: Reals  # (m, T)
    parts: Reals  # (3d, T): at query, key and value
    share: Reals  # (T, T)
    turned: Reals  # (T, T)
    turned_d: Reals  # (T, d)
    turned_m: Reals  # (T, m)


@compiled
def _new_norm(blocks: int, d: int, columns: int) -> Norm:
    return Norm(room(blocks * d * columns).reshape(blocks, d, columns), room(blocks * columns).reshape(blocks, columns),
                room(blocks * d * columns).reshape(blocks, d, columns))  # fmt: skip


@compiled
def new_values(net: Network, heads: int, tokens: int, places: int) -> Values:
    """Room for one example; ``places`` are those where the head says something."""
    (blocks, m), d, classes = net.wide_bias.shape, net.last.shape[1], len(net.head)
    columns, spots = padded(tokens), padded(places)
    return Values(
        room(d * columns).reshape(d, columns),
        _new_norm(blocks, d, columns),
        room(blocks * (3 * d) * columns).reshape(blocks, 3 * d, columns),
        room(blocks * heads * tokens * columns).reshape(blocks, heads, tokens, columns),
        room(blocks * d * columns).reshape(blocks, d, columns),
        _new_norm(blocks, d, columns),
        room(blocks * m * columns).reshape(blocks, m, columns),
        room(blocks * m * columns).reshape(blocks, m, columns),
        _new_norm(1, d, columns),
        room(d * spots).reshape(d, spots),
        room(classes * spots).reshape(classes, spots),
        room(d * columns).reshape(d, columns),
        room(d * columns).reshape(d, columns),
        room(m * columns).reshape(m, columns),
        room((3 * d) * columns).reshape(3 * d, columns),
        room(tokens * columns).reshape(tokens, columns),
        room(tokens * columns).reshape(tokens, columns),
        room(tokens * net.head.shape[1]).reshape(tokens, net.head.shape[1]),
        room(tokens * net.narrow.shape[2]).reshape(tokens, net.narrow.shape[2]),
    )


@compiled
def turn(x: Reals, out: Reals) -> None:
    """The transposed matrix, without what of it is beyond the rows of ``out``."""
    for t in range(out.shape[0]):
        for i in range(x.shape[0]):
            out[t, i] = x[i, t]


@compiled
def add_bias(bias: Reals, out: Reals) -> None:
    """The same number to all of a row."""
    for i in range(len(bias)):
        for t in range(out.shape[1]):
            out[i, t] += bias[i]


@compiled
def linear_back(slope: Reals, turned: Reals, weight: Reals, bias: Reals) -> None:
    """Gradients of a linear layer, from the derivative at its output and its input ``turned``, ``(T, inputs)``."""
    multiply(slope, turned, weight, False)
    for i in range(len(bias)):
        total = float32(0)
        for t in range(len(turned)):
            total += slope[i, t]
        bias[i] = total


@compiled
def normalise(x: Reals, parameters: Reals, eps: float, normed: Reals, inverse: Reals, out: Reals) -> None:
    """Layer normalisation of each token."""
    d, columns = x.shape
    mean, square = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    for i in range(d):
        for t in range(columns):
            mean[t] += x[i, t]
    for t in range(columns):
        mean[t] /= float32(d)
    for i in range(d):
        for t in range(columns):
            part = x[i, t] - mean[t]
            normed[i, t] = part
            square[t] += part * part
    for t in range(columns):
        inverse[t] = float32(1 / math.sqrt(square[t] / d + eps))
    for i in range(d):
        for t in range(columns):
            normed[i, t] *= inverse[t]
            out[i, t] = normed[i, t] * parameters[0, i] + parameters[1, i]


@compiled
def normalise_back(
    slope: Reals, tokens: int, parameters: Reals, normed: Reals, inverse: Reals, grad: Reals, out: Reals
) -> None:
    """Gradients of weight and bias; the derivative at the input is added to ``out``, ``slope`` overwritten."""
    d, columns = out.shape
    mean, along = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    for i in range(d):
        weight, bias = float32(0), float32(0)
        for t in range(tokens):
            weight += slope[i, t] * normed[i, t]
            bias += slope[i, t]
        grad[0, i], grad[1, i] = weight, bias
        for t in range(columns):
            slope[i, t] *= parameters[0, i]
            mean[t] += slope[i, t]
            along[t] += slope[i, t] * normed[i, t]
    for t in range(columns):
        mean[t] /= float32(d)
        along[t] /= float32(d)
    for i in range(d):
        for t in range(columns):
            out[i, t] += inverse[t] * (slope[i, t] - mean[t] - normed[i, t] * along[t])


@compiled
def soften(share: Reals, scale: float, causal: bool) -> None:
    """From products ``(keys, queries)`` to shares: softmax over keys, of those up to the query where ``causal``."""
    columns = share.shape[1]
    factor = float32(scale)
    most, total = np.empty(columns, np.float32), np.zeros(columns, np.float32)
    most[:] = -np.inf
    for k in range(len(share)):
        if causal:
            share[k, :k] = -np.inf
        for q in range(columns):
            value = share[k, q] * factor
            share[k, q] = value
            most[q] = most[q] if value <= most[q] else value
    for k in range(len(share)):
        for q in range(columns):
            power = exp(share[k, q] - most[q])
            share[k, q] = power
            total[q] += power
    for q in range(columns):
        total[q] = float32(1) / total[q]
    for k in range(len(share)):
        for q in range(columns):
            share[k, q] *= total[q]
        if causal:
            share[k, :k] = 0


@compiled
def soften_back(share: Reals, scale: float, slope: Reals) -> None:
    """From derivatives at shares to those at products, in place."""
    columns = share.shape[1]
    factor = float32(scale)
    total = np.zeros(columns, np.float32)
    for k in range(len(share)):
        for q in range(columns):
            total[q] += slope[k, q] * share[k, q]
    for k in range(len(share)):
        for q in range(columns):
            slope[k, q] = factor * share[k, q] * (slope[k, q] - total[q])


@compiled
def attend(qkv: Reals, causal: bool, shares: Reals, mix: Reals) -> None:
    """Scaled products of queries and keys, softmax, and the mix of values, head by head."""
    d = len(mix)
    width = d // len(shares)
    for at in range(0, d, width):
        share = shares[at // width]
        multiply(qkv[d + at : d + at + width].T, qkv[at : at + width], share, False)
        soften(share, 1 / math.sqrt(width), causal)
        multiply(qkv[2 * d + at : 2 * d + at + width], share, mix[at : at + width], False)


@compiled
def attend_back(mix: Reals, qkv: Reals, shares: Reals, work: Reals, turned: Reals, out: Reals) -> None:
    """From the derivative at the mix to those at query, key and value."""
    d = len(mix)
    width = d // len(shares)
    for at in range(0, d, width):
        share, key, value = shares[at // width], d + at, 2 * d + at
        turn(share, turned)
        multiply(mix[at : at + width], turned, out[value : value + width], False)
        multiply(qkv[value : value + width].T, mix[at : at + width], work, False)
        soften_back(share, 1 / math.sqrt(width), work)
        multiply(qkv[key : key + width], work, out[at : at + width], False)
        turn(work, turned)
        multiply(qkv[at : at + width], turned, out[key : key + width], False)


@compiled
def activate(x: Reals, bias: Reals, slope: Reals) -> None:
    """GELU after the bias, in place, and its derivative in ``slope``."""
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            x[i, t], slope[i, t] = gelu(x[i, t] + bias[i])


@compiled
def forward(net: Network, values: Values, eps: float, causal: bool) -> None:
    """From tokens' vectors to logits."""
    x, d = values.x, len(values.x)
    for l in range(len(net.first)):
        normed, inverse, out = values.first.normed[l], values.first.inverse[l], values.first.out[l]
        normalise(x, net.first[l], eps, normed, inverse, out)
        multiply(net.qkv[l], out, values.qkv[l], False)
        add_bias(net.qkv_bias[l], values.qkv[l])
        attend(values.qkv[l], causal, values.shares[l], values.mix[l])
        multiply(net.out[l], values.mix[l], x, True)
        add_bias(net.out_bias[l], x)
        normed, inverse, out = values.second.normed[l], values.second.inverse[l], values.second.out[l]
        normalise(x, net.second[l], eps, normed, inverse, out)
        multiply(net.wide[l], out, values.hidden[l], False)
        activate(values.hidden[l], net.wide_bias[l], values.steep[l])
        multiply(net.narrow[l], values.hidden[l], x, True)
        add_bias(net.narrow_bias[l], x)
    normalise(x, net.last, eps, values.last.normed[0], values.last.inverse[0], values.last.out[0])
    tokens = len(values.share)
    if causal:
        values.seen[:] = values.last.out[0]
    else:
        for i in range(d):
            total = float32(0)
            for t in range(tokens):
                total += values.last.out[0, i, t]
            values.seen[i, 0] = total / float32(tokens)
    multiply(net.head, values.seen, values.logits, False)
    add_bias(net.head_bias, values.logits)


@compiled
def backward(net: Network, values: Values, causal: bool, places: int, grad: Network) -> None:
    """From derivatives at the logits to those at all parameters; that at the tokens' vectors is in ``values.slope``."""
    d, tokens = len(values.x), len(values.share)
    slope, below, wide = values.slope, values.below, values.wide
    turn(values.seen, values.turned_d[:places])
    linear_back(values.logits, values.turned_d[:places], grad.head, grad.head_bias)
    if causal:
        multiply(net.head.T, values.logits, below, False)
    else:
        multiply(net.head.T, values.logits, values.seen, False)
        for i in range(d):
            below[i, :] = values.seen[i, 0] / float32(tokens)
    slope[:] = 0
    normalise_back(below, tokens, net.last, values.last.normed[0], values.last.inverse[0], grad.last, slope)
    for l in range(len(net.first) - 1, -1, -1):
        turn(values.hidden[l], values.turned_m)
        linear_back(slope, values.turned_m, grad.narrow[l], grad.narrow_bias[l])
        multiply(net.narrow[l].T, slope, wide, False)
        wide *= values.steep[l]
        turn(values.second.out[l], values.turned_d)
        linear_back(wide, values.turned_d, grad.wide[l], grad.wide_bias[l])
        multiply(net.wide[l].T, wide, below, False)
        normed, inverse = values.second.normed[l], values.second.inverse[l]
        normalise_back(below, tokens, net.second[l], normed, inverse, grad.second[l], slope)
        turn(values.mix[l], values.turned_d)
        linear_back(slope, values.turned_d, grad.out[l], grad.out_bias[l])
        multiply(net.out[l].T, slope, below, False)
        attend_back(below, values.qkv[l], values.shares[l], values.share, values.turned, values.parts)
        turn(values.first.out[l], values.turned_d)
        linear_back(values.parts, values.turned_d, grad.qkv[l], grad.qkv_bias[l])
        multiply(net.qkv[l].T, values.parts, below, False)
        normed, inverse = values.first.normed[l], values.first.inverse[l]
        normalise_back(below, tokens, net.first[l], normed, inverse, grad.first[l], slope)
    turn(slope, grad.positions[:tokens])


@compiled
def add_rows_up(rows: Reals, token: Whole) -> None:
    """Where a token comes again, its row is added to that of the first, and becomes zeros."""
    for t in range(1, len(token)):
        for s in range(t):
            if token[s] == token[t]:
                rows[s] += rows[t]
                rows[t] = 0
                break


@compiled
def add_clipped(
    token: Whole,
    label: Whole,
    heads: int,
    table: Reals,
    net: Network,
    eps: float,
    causal: bool,
    ignored: int,
    mean: bool,
    rule: Rule,
    ranges: Whole,
    grad: Network,
    flat: Reals,
    total: Reals,
    rows: Reals,
) -> tuple[int, int]:
    """Clipped gradients of some examples: their sum, and their rows of the table, each by itself.

    Args:
        token: rows of the table, shape ``(B, T)``.
        label: classes, shape ``(B, places)``.
        heads: of attention.
        table: one row per token, shape ``(vocabulary, d)``.
        net: all other parameters.
        eps: of the norms.
        causal: whether a token sees only those before it, and each is told; or the mean of all is.
        ignored: the label of places that do not count.
        mean: whether the loss is a mean over places, or a sum.
        rule: of clipping.
        ranges: first number, end and layer of each parameter in ``flat``, shape ``(parameters + 1, 3)``; those of the
            table come last.
        grad: room for a gradient.
        flat: the same room.
        total: added to, shape of ``flat``.
        rows: overwritten, shape ``(B, T, d)``.

    Returns:
        How many were scaled down, and how many dropped.
    """
    tokens, places, d = token.shape[1], label.shape[1], table.shape[1]
    values = new_values(net, heads, tokens, places)
    squares, weights = np.empty(len(rule.limits)), np.empty(len(rule.limits), np.float32)
    scaled = dropped = 0
    for b in range(len(token)):
        for t in range(tokens):
            for i in range(d):
                values.x[i, t] = table[token[b, t], i] + net.positions[t, i]
        values.x[:, tokens:] = 0
        forward(net, values, eps, causal)
        finite = softmax_slopes(values.logits, label[b], ignored, mean)
        backward(net, values, causal, places, grad)
        rows[b] = grad.positions[:tokens, :d]
        add_rows_up(rows[b], token[b])
        squares[:] = 0
        for first, end, layer in ranges[:-1]:
            squares[layer] += squared_length(flat[first:end])
        squares[ranges[-1, 2]] += squared_length(rows[b].reshape(-1))
        outcome = weigh(squares, rule, weights) if finite else -1
        if outcome < 0:
            dropped += 1
            rows[b] = 0
            continue
        scaled += outcome
        rows[b] *= weights[ranges[-1, 2]]
        for first, end, layer in ranges[:-1]:
            add_times(flat[first:end], weights[layer], total[first:end])
    return scaled, dropped


@compiled
def add_rows(rows: Reals, token: Whole, table: Reals) -> None:
    """Add each token's row, ``(B, T, d)``, to that of the table."""
    for b in range(token.shape[0]):
        for t in range(token.shape[1]):
            row, source = table[token[b, t]], rows[b, t]
            for i in range(len(source)):
                row[i] += source[i]
