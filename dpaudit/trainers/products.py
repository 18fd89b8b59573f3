"""Matrix products, by whichever of torch's two libraries is faster.

torch multiplies matrices on a CPU with MKL. oneDNN, which it has for convolutions and for what it compiles, is twice as
fast on processors where MKL holds back (an AMD EPYC with AVX-512: 490 against 215 GFLOPS), but dearer to call, and it
spends half a millisecond on a shape that it has not seen. So it gets the large products of float32. Results differ by
rounding.

Nothing here is for autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FEWEST = 2**21  # multiplications: below, a call costs what it gains
_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def is_large(left: Tensor, columns: int, fewest: int | None = None) -> bool:
    """Whether the product of ``left`` with a matrix of so many columns is one for oneDNN.

    Args:
        left: shape ``(rows, inner)``.
        columns: of the other matrix.
        fewest: multiplications that are worth it, at least 1; by default as measured.
    """
    if _ONEDNN is None or left.numel() * columns < (_FEWEST if fewest is None else fewest):
        return False
    return left.dtype == torch.float32 and left.device.type == "cpu"


def product(left: Tensor, right: Tensor, bias: Tensor | None = None, fewest: int | None = None) -> Tensor:
    """``left @ right``, perhaps plus a row; a new tensor.

    Args:
        left: shape ``(rows, inner)``.
        right: shape ``(inner, columns)``.
        bias: shape ``(columns,)``.
        fewest: as for :func:`is_large`.
    """
    if is_large(left, right.shape[1], fewest):
        return _large(left, right, bias)
    return left @ right if bias is None else torch.addmm(bias, left, right)


def add_product(total: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
    """Add ``scale`` times ``left @ right``, both of two dimensions, to ``total``."""
    if not is_large(left, right.shape[1]):
        total.addmm_(left, right, alpha=scale)
    elif left.is_contiguous() or len(left) <= right.shape[1]:
        total.add_(_large(left, right, None), alpha=scale)
    else:  # the first matrix has to lie in rows: let it be the smaller
        total.add_(_large(right.t(), left.t(), None).t(), alpha=scale)


def _large(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """By oneDNN, which takes a matrix and its transpose, but is a hundred times slower where there are gaps."""
    if not (right.is_contiguous() or right.t().is_contiguous()):
        right = right.contiguous()
    if bias is not None:
        bias = bias.contiguous()  # its stride is not looked at
    return _ONEDNN(left, right.t(), bias, "none", [], "")
