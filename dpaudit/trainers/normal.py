"""Normal numbers by their place: key, step and index of a number are all that it depends on, so nothing is drawn in
turn, and any part of a stream can be made without the rest.

Bits come from Philox 4×32 with ten rounds (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as
1, 2, 3"): a keyed bijection of 128-bit counters. Two of its four words become a pair of normal numbers by Box and
Muller (1958), √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv. u has 32 bits, the last of them 1, so the largest value is
6.66, which a normal variable exceeds once in 4·10¹⁰ draws.

Logarithm, sine and cosine are polynomials in float32; results are off by less than 2·10⁻⁶ for u as float32 holds it.
Compiled as plain loops they work on as many numbers at once as the processor can hold. Products and sums are rounded
one by one, never fused, so every processor gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled, float32, inlined, int32, uint32, uint64

Words = NDArray[np.uint32]

LARGEST = float(np.float32(math.sqrt(64 * math.log(2))))  # no number is further from 0
_TILE = 64  # counters of which numbers are made together, 256 of them
_MULTIPLIERS = uint64(0xD2511F53), uint64(0xCD9E8D57)
_WEYL = uint32(0x9E3779B9), uint32(0xBB67AE85)
_ROOT_HALF, _MANTISSA = uint32(0x3F3504F3), uint32(0x7FFFFF)  # the bits of √½ in float32; those after the exponent
_SWAP, _NEGATE = uint32(1 << 30), uint32(1 << 31)
_EIGHTH, _LN2 = float32(math.pi / 4 * 2.0**-31), float32(math.log(2))


# Polynomials through Chebyshev's nodes, the constant first: (ln(1 + f) − f) / f² between √½ and √2; (sin t)/t and
# cos t, of t² up to (π/4)². The numbers are float32, written out so that no library's rounding can change them.
_L0, _L1, _L2, _L3 = float32(-0.49999994), float32(0.3333366), float32(-0.2500161), float32(0.19973105)
_L4, _L5, _L6, _L7 = float32(-0.16575047), float32(0.1480646), float32(-0.14257795), float32(0.090042025)
_S0, _S1, _S2, _S3 = float32(1), float32(-0.16666651), float32(0.008332036), float32(-0.00019503963)
_C0, _C1, _C2, _C3, _C4 = float32(1), float32(-0.5), float32(0.041666616), float32(-0.0013886619), float32(2.437988e-05)


@inlined
def _philox(x0: Any, x1: Any, x2: Any, x3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Four random words from a counter of four words and a key of two."""
    for _ in range(10):
        low, high = _MULTIPLIERS[0] * uint64(x0), _MULTIPLIERS[1] * uint64(x2)
        x0, x2 = uint32(high >> uint64(32)) ^ x1 ^ k0, uint32(low >> uint64(32)) ^ x3 ^ k1
        x1, x3 = uint32(high), uint32(low)
        k0, k1 = uint32(k0 + _WEYL[0]), uint32(k1 + _WEYL[1])
    return x0, x1, x2, x3


@inlined
def _pair(u: Any, v: Any) -> tuple[Any, Any]:
    """Two normal numbers from two words. The highest bits of v choose a quarter of the circle, the others a place."""
    bits = uint32(np.float32(u | uint32(1)).view(np.uint32) - _ROOT_HALF)  # u = 2^exponent · (1 + f)
    exponent = float32((int32(bits) >> int32(23)) - int32(32))
    f = np.uint32((bits & _MANTISSA) + _ROOT_HALF).view(np.float32) - float32(1)
    p = _L0 + f * (_L1 + f * (_L2 + f * (_L3 + f * (_L4 + f * (_L5 + f * (_L6 + f * _L7))))))
    r = math.sqrt(float32(-2) * (exponent * _LN2 + (f + f * f * p)))
    r = -r if v & _NEGATE else r
    t = float32(int32(v << uint32(2))) * _EIGHTH
    z = t * t
    s = t * (_S0 + z * (_S1 + z * (_S2 + z * _S3)))
    c = _C0 + z * (_C1 + z * (_C2 + z * (_C3 + z * _C4)))
    swapped = (v & _SWAP) != 0
    return r * (s if swapped else c), r * (c if swapped else s)


@compiled
def fill_words(words: Words, key: Words, step: int, first: int) -> None:
    """Philox's words of consecutive counters, shape ``(counters, 4)``; arguments as for :func:`add_normals`."""
    for i in range(len(words)):
        a, b, c, d = _philox(uint32(first + i), uint32(step), key[0], key[1], key[2], key[3])
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = a, b, c, d


@compiled
def add_normals(
    out: NDArray[np.float32] | NDArray[np.float64],
    scale: NDArray[np.float32] | NDArray[np.float64],
    keys: Words,
    step: int,
    first: int,
) -> None:
    """Add normal numbers times ``scale`` to each row.

    The four numbers of a counter are 64 places apart, those of 64 counters together.

    Args:
        out: added to, shape ``(streams, numbers)``, contiguous.
        scale: one per stream, of the same type.
        keys: four words per stream, shape ``(streams, 4)``: the upper half of the counter, and Philox's key.
        step: the second word of the counter.
        first: the first counter, its lowest word; ``numbers / 4`` are used, rounded up to a multiple of 64.
    """
    u0, v0, u1, v1 = (np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32),
                      np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32))  # fmt: skip
    made = np.empty(4 * _TILE, np.float32)
    for stream in range(out.shape[0]):
        factor, k0, k1, k2, k3 = scale[stream], keys[stream, 0], keys[stream, 1], keys[stream, 2], keys[stream, 3]
        for at in range(0, out.shape[1], 4 * _TILE):
            start = uint32(first + at // 4)
            for i in range(_TILE):
                u0[i], v0[i], u1[i], v1[i] = _philox(uint32(start + uint32(i)), uint32(step), k0, k1, k2, k3)
            for i in range(_TILE):
                made[i], made[_TILE + i] = _pair(u0[i], v0[i])
            for i in range(_TILE):
                made[2 * _TILE + i], made[3 * _TILE + i] = _pair(u1[i], v1[i])
            for i in range(min(4 * _TILE, out.shape[1] - at)):
                out[stream, at + i] += factor * made[i]


def counters(numbers: int) -> int:
    """How many counters :func:`add_normals` uses for so many numbers.

    >>> counters(1), counters(257)
    (64, 128)
    """
    return -(-numbers // (4 * _TILE)) * _TILE
