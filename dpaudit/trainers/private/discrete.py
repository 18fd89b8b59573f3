"""The discrete Gaussian, sampled exactly, from random bits and whole numbers alone.

Source: Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy", Algorithms 1 to 3. No step
rounds: a coin of probability exp(−p/q) is made of uniform whole numbers by von Neumann's method, a discrete Laplace
variable of such coins, and a discrete Gaussian by rejection from it. Here many are made at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ... import check

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Entropy = Callable[[int], bytes]
"""``entropy(n)`` → n random bytes."""

LARGEST_DEVIATION = 2**25  # so that the square of ninety times as much, and ten times its own, fit 63 bits
_AT_ONCE = 2**15


def discrete_gaussian(deviation: int, size: int, entropy: Entropy = os.urandom) -> IntArray:
    """Draw from the discrete Gaussian: P(k) ∝ exp(−k² / (2 · deviation²)) over all whole numbers k.

    Its variance is at most ``deviation``², and from 2 upwards equals it to 15 digits. Memory access and time depend on
    what is drawn: this does not withstand somebody who can watch the computation itself.

    Args:
        deviation: σ, a whole number from 1 to 2²⁵.
        size: how many.
        entropy: where random bytes come from; by default the operating system's generator.

    Returns:
        Independent whole numbers, int64, shape ``(size,)``.

    Raises:
        InputError: an argument out of range.

    >>> discrete_gaussian(2**20, 3).shape
    (3,)
    """
    sigma = check.integer("deviation", deviation, 1, LARGEST_DEVIATION)
    out = np.empty(check.integer("size", size, 0), np.int64)
    source = _Uniform(entropy)
    done = 0
    while done < size:
        some = _accepted(source, sigma, min(_AT_ONCE, 2 * (size - done) + 16))[: size - done]
        out[done : done + len(some)] = some
        done += len(some)
    return out


class _Uniform:
    """Uniform whole numbers from random bytes."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def below(self, bound: int, size: int) -> IntArray:
        """Uniform in {0, ..., bound − 1}: as many bits as the largest has, drawn again where they are too large."""
        bits = (bound - 1).bit_length()
        kind = next(np.dtype(f"<u{width}") for width in (1, 2, 4, 8) if bits <= 8 * width)
        mask = kind.type((1 << bits) - 1)
        out = self._draw(kind, mask, size)
        if bound == 1 << bits:
            return out
        wrong = np.flatnonzero(out >= bound)
        while len(wrong):
            out[wrong] = self._draw(kind, mask, len(wrong))
            wrong = wrong[out[wrong] >= bound]
        return out

    def _draw(self, kind: np.dtype, mask: np.integer, size: int) -> IntArray:
        words = np.frombuffer(self._entropy(kind.itemsize * size), kind)
        return (words & mask).astype(np.int64)


def _coins_below_one(source: _Uniform, p: IntArray, q: int) -> BoolArray:
    """Coins of probability exp(−p/q), for 0 ≤ p ≤ q (Algorithm 1, first part).

    The first k at which a coin of probability p/(q·k) fails is odd with probability exp(−p/q).
    """
    heads = np.empty(len(p), bool)
    left = np.arange(len(p))
    k = 1
    while len(left):
        on = source.below(q * k, len(left)) < p[left]
        heads[left[~on]] = k % 2 == 1
        left = left[on]
        k += 1
    return heads


def _coins_one(source: _Uniform, size: int) -> BoolArray:
    """Coins of probability exp(−1)."""
    return _coins_below_one(source, np.ones(size, np.int64), 1)


def _coins(source: _Uniform, p: IntArray, q: int) -> BoolArray:
    """Coins of probability exp(−p/q), for p ≥ 0 (Algorithm 1): one for each whole part, and one for the rest."""
    whole, rest = np.divmod(p, q)
    heads = _coins_below_one(source, rest, q)
    left = np.flatnonzero(heads & (whole > 0))
    turn = 1
    while len(left):
        on = _coins_one(source, len(left))
        heads[left[~on]] = False
        left = left[on & (whole[left] > turn)]
        turn += 1
    return heads


def _laplace(source: _Uniform, scale: int, size: int) -> IntArray:
    """Discrete Laplace variables, P(k) ∝ exp(−|k| / scale) (Algorithm 2); those that were rejected are left out."""
    low = source.below(scale, size)
    low = low[_coins_below_one(source, low, scale)]
    high = np.zeros(len(low), np.int64)
    left = np.arange(len(low))
    while len(left):
        left = left[_coins_one(source, len(left))]
        high[left] += 1
    size_of = low + scale * high
    negative = source.below(2, len(low)) == 1
    kept = ~(negative & (size_of == 0))  # zero would count twice
    return np.where(negative, -size_of, size_of)[kept]


def _accepted(source: _Uniform, sigma: int, tries: int) -> IntArray:
    """Discrete Gaussian variables out of so many tries (Algorithm 3, with t = σ)."""
    drawn = _laplace(source, sigma, tries)
    return drawn[_coins(source, (np.abs(drawn) - sigma) ** 2, 2 * sigma**2)]
