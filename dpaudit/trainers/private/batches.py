"""Batches: a tensor, or a tuple or dict of tensors, with the examples along dimension 0 of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...errors import InputError

Batch = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def leaves(batch: Batch, name: str) -> list[Tensor]:
    """The tensors of a batch.

    Raises:
        InputError: it is anything else, or a tensor has no dimension for the examples.
    """
    parts: Any = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else (batch,)
    found = list(parts)
    if not found or not all(isinstance(part, Tensor) and part.dim() for part in found):
        kinds = ", ".join(type(part).__name__ for part in found) or "nothing"
        raise InputError(f"{name} must be a tensor (or a tuple or dict of them) with the examples along dimension 0, "
                         f"got {kinds}")  # fmt: skip
    return found


def examples(x: Batch, y: Batch) -> int:
    """How many examples a batch has.

    Raises:
        InputError: the tensors disagree.
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() and y.shape[:1] == x.shape[:1]:
        return x.shape[0]
    counts = {len(part) for part in (*leaves(x, "x"), *leaves(y, "y"))}
    if len(counts) > 1:
        raise InputError(f"x and y must have as many examples as each other, got {sorted(counts)}")
    return counts.pop()


def pick(batch: Batch, rows: Any) -> Batch:
    """Some examples of a batch: ``rows`` is a slice or a list of numbers."""
    if isinstance(batch, Tensor):
        return batch[rows]
    if isinstance(batch, Mapping):
        return {name: part[rows] for name, part in batch.items()}
    return tuple(part[rows] for part in batch)


def detached(batch: Batch) -> Batch:
    """The same, part of no graph."""
    if isinstance(batch, Tensor):
        return batch.detach()
    if isinstance(batch, Mapping):
        return {name: part.detach() for name, part in batch.items()}
    return tuple(part.detach() for part in batch)


def arguments(x: Batch) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """How a model is called on a batch: ``model(x)``, ``model(*x)`` or ``model(**x)``."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (x if isinstance(x, tuple) else (x,)), {}


def outputs(model: nn.Module, x: Batch) -> Any:
    """What the model says about a batch."""
    args, keywords = arguments(x)
    return model(*args, **keywords)
