"""Clipping and adding up: from per-example gradients, however they are kept, to one sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .batches import Batch
from .clipping import Clipping
from .diagnostics import StepCounts
from .layout import Layout
from .pieces import Piece


class Gradients(Protocol):
    """A way to get clipped sums of per-example gradients."""

    def parts(self, size: int) -> int:
        """In how many parts a batch of ``size`` examples is best done."""

    def add_clipped(self, totals: Sequence[Tensor], x: Batch, y: Batch, size: int, clipping: Clipping) -> StepCounts:
        """Add the clipped gradient of each of ``size`` examples to ``totals``, one tensor per parameter, in place."""


class ByHand(Gradients, Protocol):
    """A way for models of one kind, on batches that fit it."""

    def fits(self, x: Batch, y: Batch) -> bool:
        """Whether it can do this batch, and the model is still what it was."""


def weigh(squares: Tensor, losses: Tensor | None, clipping: Clipping) -> tuple[Tensor, Tensor | None, StepCounts]:
    """The weight of each example's gradient.

    Args:
        squares: squared norms, shape ``(B,)``, or ``(layers, B)`` for a rule by layer.
        losses: of each example, shape ``(B,)``; None where they cannot be infinite if the gradient is not.

    Returns:
        weights in the shape of ``squares``; which examples weigh 0 because their loss or squared norm, in any layer, is
        not finite (None if there are none); and the counts.
    """
    if losses is not None:
        squares = squares + 0 * losses  # NaN where a loss is not finite
    weights = clipping.weights(squares)
    known = weights.numpy(force=True)
    positive, scaled = known > 0, known < 1  # what is infinite has weight 0, what is NaN is neither
    if clipping.by_layer:
        positive, scaled = positive.all(0), scaled.any(0)
    if positive.all():
        return weights, None, StepCounts(len(positive), int(np.count_nonzero(scaled)), 0)
    kept = int(np.count_nonzero(positive))
    lost = torch.from_numpy(~positive).to(weights.device)
    counts = StepCounts(len(positive), int(np.count_nonzero(scaled & positive)), len(positive) - kept)
    return weights.masked_fill(lost, 0.0), lost, counts


def add_pieces(
    totals: Sequence[Tensor], pieces: Sequence[Piece | None], losses: Tensor, layout: Layout, clipping: Clipping
) -> StepCounts:
    """Add clipped gradients that are given in pieces, one per parameter; None stands for zeros.

    Parts of an example that is left out are set to zero, as 0 · ∞ would be NaN.
    """
    if all(piece is None for piece in pieces):
        return StepCounts(len(losses))
    weights, lost, counts = weigh(_squares(pieces, layout, clipping.by_layer), losses, clipping)
    for number, (piece, total) in enumerate(zip(pieces, totals, strict=True)):
        if piece is not None:
            kept = piece if lost is None else piece.without(lost)
            kept.add_to(total, weights[layout.layer_of[number]] if clipping.by_layer else weights)
    return counts


def _squares(pieces: Sequence[Piece | None], layout: Layout, by_layer: bool) -> Tensor:
    squares = {number: piece.squares() for number, piece in enumerate(pieces) if piece is not None}
    if not by_layer:
        return torch.stack(list(squares.values())).sum(0)
    first = next(iter(squares.values()))
    rows = first.new_zeros((len(layout.layers), len(first)))
    for number, square in squares.items():
        rows[layout.layer_of[number]] += square
    return rows
