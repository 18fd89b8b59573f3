"""Lengths of long vectors."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1024  # numbers: of more, added up one after the other in float32, a norm can be short by parts in a thousand
_TINY = {kind: torch.finfo(kind).tiny for kind in (torch.float32, torch.float64)}


def lost(numbers: int, like: Tensor) -> float:
    """At most so much is missing from a sum of so many squares in the type of ``like``, as each may underflow.

    It matters for a factor of a gradient: the other may be large.
    """
    return numbers * _TINY[like.dtype]


def squared_lengths(rows: Tensor) -> Tensor:
    """Squared L2 norm of each row of a matrix; rounding does not grow with its width."""
    width = rows.shape[1]
    if width <= _BLOCK:
        return torch.linalg.vector_norm(rows, dim=1).square_()
    whole = width // _BLOCK * _BLOCK
    total = squared_lengths(torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _BLOCK)), dim=2))
    if whole < width:
        total += squared_lengths(rows[:, whole:])
    return total
