"""Per-example gradients written out, for modules that no rule knows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import batches
from .clipping import Clipping
from .diagnostics import StepCounts
from .layout import Layout
from .losses import Loss, per_example
from .pieces import Piece, Written
from .summing import add_pieces

_NUMBERS = 2**24  # of per-example gradients held at once: 64 MiB of float32


class SlowGradients(UserWarning):
    """Per-example gradients of a model are written out: no shortcut is known to be exact for one of its modules."""


class PerExample:
    """Per-example gradients by ``torch.func``: exact for every module that looks at each example alone.

    Where ``torch.func`` cannot follow a model (control flow that depends on values, changes in place), its examples
    are done one after the other.

    Attributes:
        one_by_one: whether examples are done one after the other.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: Loss) -> None:
        self.one_by_one = False
        self._model, self._layout, self._loss = model, layout, loss

    def parts(self, size: int) -> int:
        """As many as make the gradients of one fit 64 MiB."""
        return -(-size // max(1, _NUMBERS // self._layout.total))

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        pieces, losses = self._pieces(x, y, size)
        return add_pieces(totals, pieces, losses, self._layout, clipping)

    def _pieces(self, x: batches.Batch, y: batches.Batch, size: int) -> tuple[list[Piece | None], Tensor]:
        """Each parameter's per-example gradients, and each example's loss."""
        if not self.one_by_one:
            try:
                return self._vectorised(x, y)
            except (RuntimeError, NotImplementedError) as error:
                self.one_by_one = True
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(f"examples of {type(self._model).__name__} are done one after the other, which is "
                              f"very slow: {reason}", SlowGradients, stacklevel=2)  # fmt: skip
        return self._loop(x, y, size)

    def _vectorised(self, x: batches.Batch, y: batches.Batch) -> tuple[list[Piece | None], Tensor]:
        trained = dict(zip(self._layout.names, self._layout.parameters, strict=True))
        fixed: dict[str, Any] = {n: p for n, p in self._model.named_parameters() if n not in trained}
        fixed.update(self._model.named_buffers())

        def one_loss(parameters: dict[str, Tensor], inputs: Any, target: Any) -> tuple[Tensor, Tensor]:
            args, keywords = batches.arguments(batches.pick(inputs, None))
            outputs = torch.func.functional_call(self._model, {**parameters, **fixed}, args, keywords)
            loss = per_example(self._loss, outputs, batches.pick(target, None), 1)[0]
            return loss, loss.detach()

        gradient = torch.func.grad(one_loss, has_aux=True)
        each: Any = torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # of attention's kernels, the one that vmap can follow
            gradients, losses = each({name: p.detach() for name, p in trained.items()}, x, y)
        return [Written(gradients[name].detach()) for name in self._layout.names], losses.detach()

    def _loop(self, x: batches.Batch, y: batches.Batch, size: int) -> tuple[list[Piece | None], Tensor]:
        vectors = [self._layout.new_vector().new_empty((size, *p.shape)) for p in self._layout.parameters]
        losses = vectors[0].new_empty(size)
        for number in range(size):
            with torch.enable_grad():
                row = slice(number, number + 1)
                outputs = batches.outputs(self._model, batches.pick(x, row))
                loss = per_example(self._loss, outputs, batches.pick(y, row), 1)[0]
            losses[number] = loss.detach()
            found: Any = [None] * len(vectors)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, self._layout.parameters, allow_unused=True)
            for vector, gradient in zip(vectors, found, strict=True):
                vector[number] = 0 if gradient is None else gradient
        return [Written(vector) for vector in vectors], losses
