"""Functions of one float32 number, for loops that numba compiles: polynomials, so that loops work on many at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .compiled import float32, inlined, int32, uint32

_SMALLEST = float32(-87)  # of an exponent: below, a power is less than a normal number of float32
_PER_LN2 = float32(1 / math.log(2))
_LN2 = float32(0.693359375), float32(math.log(2) - 0.693359375)  # the first has few bits: its multiples are exact
# e^r between −0.36 and 0.36, through Chebyshev's nodes, the constant first
_E0, _E1, _E2, _E3 = float32(1), float32(1), float32(0.5), float32(0.16666374)
_E4, _E5, _E6 = float32(0.041666146), float32(0.008378438), float32(0.0013953305)
# tanh(x)/x by x², x up to 0.55, likewise
_NEAR, _H0, _H1, _H2 = float32(0.55), float32(1), float32(-0.3333331), float32(0.13332456)
_H3, _H4, _H5 = float32(-0.05384232), float32(0.021038216), float32(-0.0062336335)
# e^(z²/2) Φ(−z) by t = 1 / (1 + 0.4 z), z from 0 to 13.2, likewise
_T = float32(0.4)
_R0, _R1, _R2, _R3 = float32(-0.0000131143415), float32(0.1599255), float32(0.15562151), float32(0.15910533)
_R4, _R5, _R6, _R7 = float32(-0.014093485), float32(0.25357208), float32(-0.37607074), float32(0.20181888)
_R8 = float32(-0.039866004)
_FAR = float32(13.2)
_DENSITY = float32(1 / math.sqrt(2 * math.pi))


@inlined
def exp(x: Any) -> Any:
    """e^x for x of at most 0, NaN for NaN; 10⁻³⁸ where it is less than that."""
    x = _SMALLEST if x < _SMALLEST else x
    n = int32(x * _PER_LN2 - float32(0.5)) if x == x else int32(0)
    r = (x - float32(n) * _LN2[0]) - float32(n) * _LN2[1]
    power = _E0 + r * (_E1 + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
    return power * np.uint32(uint32(n + int32(127)) << uint32(23)).view(np.float32)


@inlined
def tanh(x: Any) -> Any:
    """The hyperbolic tangent, off by less than 3·10⁻⁷ of itself."""
    z = -x if x < float32(0) else x
    u = x * x
    power = exp(float32(-2) * z)
    far = (float32(1) - power) / (float32(1) + power)
    far = -far if x < float32(0) else far
    near = x * (_H0 + u * (_H1 + u * (_H2 + u * (_H3 + u * (_H4 + u * _H5)))))
    return near if z < _NEAR else far


@inlined
def gelu(x: Any) -> tuple[Any, Any]:
    """GELU, x Φ(x), and its derivative Φ(x) + x φ(x), Φ and φ those of a standard normal variable.

    The derivative is NaN for what is not finite. Φ is off by less than 5·10⁻⁷ + 2⁻²⁵ x² of itself as far as −13.2, and
    0 below.

    Source: Hendrycks & Gimpel 2016, "Gaussian error linear units".
    """
    z = -x if x < float32(0) else x
    power = float32(0) if z > _FAR else exp(float32(-0.5) * z * z)
    t = float32(1) / (float32(1) + _T * z)
    ratio = _R0 + t * (_R1 + t * (_R2 + t * (_R3 + t * (_R4 + t * (_R5 + t * (_R6 + t * (_R7 + t * _R8)))))))
    tail = power * ratio
    below = tail if x < float32(0) else float32(1) - tail
    return x * below, below + x * (_DENSITY * power)
