"""Small transformers by hand: clipped sums of :class:`~..architectures.Transformer` without autograd, on a CPU.

Threads take a share of the batch each and go through it one example after the other (:mod:`.transformer_loops`), so no
more is held than one example needs, and the parameters a few times over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..example_loops import Rule
from . import batches
from .clipping import Clipping
from .diagnostics import StepCounts
from .faster import Snapshot
from .lanes import in_lanes, is_plain, known_rule, within
from .layout import Layout
from .losses import CrossEntropy, Loss
from .transformer_loops import add_clipped, add_rows
from .transformer_shape import Shape

_MOST = 2**21  # parameters, without the table of tokens: each thread has them twice
_LARGE, _HEAD = 2**19, 2**17  # parameters of all, of the head: where they are more than a core's cache holds
_FEWEST, _ENOUGH, _LONGEST = 8, 32, 512  # tokens: loops along fewer are too short; for a large network; for shares

Reals = NDArray[np.float32]
Whole = NDArray[np.int64]


class TransformerByHand:
    """Clipped sums of a transformer all of whose parameters are trained, in float32 on a CPU."""

    def __init__(self, model: Snapshot, layout: Layout, loss: CrossEntropy, shape: Shape) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        self._shape, self._ranges = shape, shape.ranges(layout)
        self._net = shape.views(shape.zeros())
        self._own = list(shape.named(self._net).values())

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, loss: Loss, clipping: Clipping) -> TransformerByHand | None:
        """The network, if the model is one of those, and loss and clipping rule are known ones."""
        shape = Shape.of(model, layout)
        if shape is None or shape.numbers > _MOST or type(loss) is not CrossEntropy:
            return None
        if not shape.causal and shape.classes * shape.width > _HEAD:
            return None  # the head's gradient is the product of two vectors, and better not written out
        return None if known_rule(clipping, len(layout.layers)) is None else cls(Snapshot(model), layout, loss, shape)

    def fits(self, x: batches.Batch, y: batches.Batch) -> bool:
        """Whether these are tokens and labels in their ranges, and the model is what it was."""
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not self._model.holds():
            return False
        if not all(part.dtype == torch.int64 and part.is_cpu for part in (x, y)) or not is_plain(self._layout):
            return False
        fewest = _FEWEST if self._shape.numbers <= _LARGE else _ENOUGH
        if x.dim() != 2 or not fewest <= x.shape[1] <= min(_LONGEST, self._shape.length):
            return False
        if y.shape != (x.shape if self._shape.causal else x.shape[:1]):
            return False
        words, ignored = len(self._layout.parameters[0]), self._loss.ignore_index
        return within(x, words) and within(y, self._shape.classes, ignored)

    def parts(self, size: int) -> int:
        """All at once."""
        return 1

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        token, label = (np.ascontiguousarray(part.numpy().reshape(size, -1)) for part in (x, y))
        table, *others = self._layout.parameters
        for own, parameter in zip(self._own, others, strict=True):
            own[...] = parameter.detach().numpy()
        rule, words = known_rule(clipping, len(self._layout.layers)), table.detach().contiguous().numpy()
        assert rule is not None
        rows = np.empty((*token.shape, self._shape.width), np.float32)
        done = in_lanes(lambda part: self._lane(token[part], label[part], words, rule, rows[part]), size)
        for sums, _, _ in done:
            for view, total in zip(self._shape.named(self._shape.views(sums)).values(), totals[1:], strict=True):
                whole = total.numpy()
                whole += view
        add_rows(rows, token, totals[0].numpy())
        return StepCounts(size, sum(scaled for _, scaled, _ in done), sum(dropped for _, _, dropped in done))

    def _lane(self, token: Whole, label: Whole, table: Reals, rule: Rule, rows: Reals) -> tuple[Reals, int, int]:
        """Clipped sums of some examples, how many were scaled down, and dropped."""
        shape, loss, mean = self._shape, self._loss, self._loss.reduction == "mean"
        total, grad = shape.zeros(), shape.zeros()
        counts = add_clipped(
            token, label, shape.heads, table, self._net, shape.eps, shape.causal, loss.ignore_index, mean, rule,
            self._ranges, shape.views(grad), grad, total, rows,
        )  # fmt: skip
        return total, *counts
