"""Book-keeping: one forward and one backward pass give every example's gradient, in parts.

The forward pass notes the input of every module that has trained parameters, and where in autograd's graph its output
is. One call of ``torch.autograd.grad`` then gives the derivative of each example's loss at each of these outputs, and
stops there: the gradients that ordinary training makes of the weights, summed over examples, are never made. Input and
derivative are all that the rules need.

Source: Bu, Wang, Zha & Karypis 2023, "Differentially private optimization on large model at small cost".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from . import batches
from .clipping import Clipping
from .diagnostics import StepCounts
from .layout import Layout
from .losses import Loss, per_example
from .pieces import Piece, together
from .pooling import max_pools, pooling_by_channels
from .rules import Rule
from .summing import add_pieces
from .workspace import Workspace

_CONVOLUTION_EXAMPLES = 128  # with convolutions, more at once no longer fit a cache
_WORTH_SPLITTING = 32  # examples
_NUMBERS = 2**22  # of windows and of gradients that are written out: 16 MiB of float32 at once


class LayoutError(Exception):
    """A module saw inputs whose dimension 0 is not the examples."""


class Tape:
    """Notes, while it is open, what the modules with rules are given and what they give."""

    def __init__(self, rules: Mapping[nn.Module, Rule], shared: set[nn.Module], size: int, copies: bool) -> None:
        self.modules: list[nn.Module] = []
        self.inputs: list[Tensor] = []
        self.edges: list[torch.autograd.graph.GradientEdge] = []
        self._rules, self._shared, self._size, self._copies = rules, shared, size, copies
        self._handles: list[Any] = []

    def __enter__(self) -> Tape:
        self._handles = [m.register_forward_hook(self._note, with_kwargs=True) for m in self._rules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(
        self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if not output.requires_grad:
            return None  # inside no_grad: part of no gradient
        x = args[0] if args else keywords["input"]
        changed = None
        if module in self._shared:
            shape = x.shape if x.dim() == 1 else x.shape[1:]
            x, output = x.expand(self._size, *shape), output.expand(self._size, *shape, output.shape[-1])
            changed = output
        if not x.dim() or len(x) != self._size:
            raise LayoutError(f"a {type(module).__name__} got shape {tuple(x.shape)} in a batch of {self._size}")
        self.modules.append(module)
        self.inputs.append(x.detach())
        self.edges.append(torch.autograd.graph.get_gradient_edge(output))
        return output.clone() if self._copies else changed


class BookKeeping:
    """Per-example gradients of a model all of whose trained parameters are in modules that have a rule.

    Attributes:
        shared: embeddings that look up the same rows for every example, such as those of positions.
        copies: whether module outputs are copied, for models that overwrite them in a way that hides them.
        settled: whether it was tried on examples, and found to agree with autograd.
    """

    def __init__(self, model: nn.Module, layout: Layout, rules: Mapping[nn.Module, Rule], loss: Loss) -> None:
        convolutions = any(isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for module in rules)
        self._limit = _CONVOLUTION_EXAMPLES if convolutions else sys.maxsize
        self._pools = max_pools(model)
        self._workspace, self._numbers = Workspace(), 0
        self.shared: set[nn.Module] = set()
        self.copies = False
        self.settled = False
        self._model, self._layout, self._rules, self._loss = model, layout, rules, loss
        self._place = {id(parameter): number for number, parameter in enumerate(layout.parameters)}

    def fit_memory(self, examples: int) -> None:
        """Learn from the last backward pass, over so many examples, how much workspace one needs."""
        self._numbers = -(-self._workspace.wanted // examples)

    def parts(self, size: int) -> int:
        """In how many parts a batch is best done.

        A workspace of 16 MiB is enough, and convolutions fit a cache. Otherwise two parts: the workspace then takes the
        place of half of the activations.
        """
        if not self._numbers:
            return 1
        most = min(max(1, _NUMBERS // self._numbers), self._limit)
        return max(-(-size // most), 2 if size >= _WORTH_SPLITTING else 1)

    def losses(self, x: batches.Batch, y: batches.Batch, size: int) -> tuple[Tape, Tensor]:
        """The forward pass: what was noted, and each example's loss.

        Raises:
            LayoutError: dimension 0 of a module's input is not the examples.
        """
        with torch.enable_grad():
            with pooling_by_channels(self._pools), Tape(self._rules, self.shared, size, self.copies) as tape:
                outputs = batches.outputs(self._model, x)
            return tape, per_example(self._loss, outputs, y, size)

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        tape, losses = self.losses(x, y, size)
        return add_pieces(totals, self.pieces(tape, losses), losses.detach(), self._layout, clipping)

    def pieces(self, tape: Tape, losses: Tensor, keep_graph: bool = False) -> list[Piece | None]:
        """The backward pass: each parameter's per-example gradients, None where all are zero.

        What the tape noted is let go as soon as it is used. The pieces live until the next backward pass.
        """
        self._workspace.start(self._numbers * len(losses))
        uses: list[list[Piece]] = [[] for _ in self._place]
        slopes: list[Tensor | None] = [None] * len(tape.edges)
        if losses.requires_grad and tape.edges:
            ones = torch.ones_like(losses)
            slopes = list(torch.autograd.grad(losses, tape.edges, ones, retain_graph=keep_graph, allow_unused=True))
        while slopes:
            module, x, slope = tape.modules.pop(), tape.inputs.pop(), slopes.pop()
            if slope is None:
                continue
            for name, piece in self._rules[module](module, x, slope, self._workspace).items():
                place = self._place.get(id(module._parameters[name]))
                if place is not None:
                    uses[place].append(piece)
        return [together(of_one, self._workspace) if of_one else None for of_one in uses]
