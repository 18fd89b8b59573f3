"""Book-keeping: one forward and one backward pass give every example's gradient, in parts.

The forward pass notes the input of every module that has trained parameters. One call of ``torch.autograd.grad`` then
comes by the derivative of each example's loss at each of their outputs, and stops at the last: the gradients that
ordinary training makes of the weights, summed over examples, are never made. Input and derivative are all that the
rules need, and they are used on the way.

Source: Bu, Wang, Zha & Karypis 2023, "Differentially private optimization on large model at small cost".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from . import batches
from .attention import Attention
from .clipping import Clipping
from .diagnostics import StepCounts
from .layout import Layout
from .linears import LinearLayers
from .losses import Loss, per_example
from .pieces import Piece, together
from .pooling import max_pools, pooling_by_channels
from .rules import Rule
from .summing import add_pieces
from .workspace import Workspace

_CONVOLUTION_EXAMPLES = 128  # with convolutions, more at once no longer fit a cache
_WORTH_SPLITTING = 32  # examples
FASTER = frozenset({"products", "pooling"}), frozenset({"products"})  # ways to try, the fastest first
_NUMBERS = 2**22  # of windows and of gradients that are written out, at once


class LayoutError(Exception):
    """A module saw inputs whose dimension 0 is not the examples."""


class Tape:
    """Notes, while it is open, what the modules with rules are given, and asks to be told of what they gave.

    Attributes:
        modules: in the order in which they were called.
        lowest: where in the graph a backward pass may end: outputs of modules below which nothing is trained.
        told: gets a module, its input and the derivative at its output as soon as a backward pass has come to it;
            None to hear nothing.
    """

    def __init__(
        self, rules: Mapping[nn.Module, Rule], shared: set[nn.Module], size: int, copies: bool, dtype: torch.dtype
    ) -> None:
        self.modules: list[nn.Module] = []
        self.lowest: list[torch.autograd.graph.GradientEdge] = []
        self.told: Callable[[nn.Module, Tensor, Tensor], None] | None = None
        self._inputs: list[Tensor | None] = []
        self._rules, self._shared, self._size, self._copies, self._dtype = rules, shared, size, copies, dtype
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
        if output.dtype != self._dtype:
            raise InputError(f"a {type(module).__name__} gave {output.dtype} where {self._dtype} is trained, as under "
                             "autocast: so rounded, a clipped gradient exceeds its limit")  # fmt: skip
        x = args[0] if args else keywords["input"]
        changed = None
        if module in self._shared:
            shape = x.shape if x.dim() == 1 else x.shape[1:]
            x, output = x.expand(self._size, *shape), output.expand(self._size, *shape, output.shape[-1])
            changed = output
        if not x.dim() or len(x) != self._size:
            raise LayoutError(f"a {type(module).__name__} got shape {tuple(x.shape)} in a batch of {self._size}")
        if not x.requires_grad:
            self.lowest.append(torch.autograd.graph.get_gradient_edge(output))
        output.register_hook(partial(self._arrive, len(self.modules)))
        self.modules.append(module)
        self._inputs.append(x.detach())
        return output.clone() if self._copies else changed

    def _arrive(self, number: int, slope: Tensor) -> None:
        x = self._inputs[number]
        if self.told is not None and x is not None:
            self._inputs[number] = None
            self.told(self.modules[number], x, slope)


class BookKeeping:
    """Per-example gradients of a model all of whose trained parameters are in modules that have a rule.

    Attributes:
        shared: embeddings that look up the same rows for every example, such as those of positions.
        copies: whether module outputs are copied, for models that overwrite them in a way that hides them.
        ways: which of :data:`FASTER` the model's layers compute in, in place of torch's own.
        settled: whether it was tried on examples, and found to agree with autograd.
    """

    def __init__(self, model: nn.Module, layout: Layout, rules: Mapping[nn.Module, Rule], loss: Loss) -> None:
        convolutions = any(isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for module in rules)
        self._convolutions = convolutions
        self._pools, self._linears, self._attends = max_pools(model), LinearLayers(model), False
        self._workspace, self._numbers = Workspace(kept=convolutions), 0
        self.shared: set[nn.Module] = set()
        self.copies = False
        self.ways: frozenset[str] = frozenset()
        self.settled = False
        self._model, self._layout, self._rules, self._loss = model, layout, rules, loss
        self._place = {id(parameter): number for number, parameter in enumerate(layout.parameters)}

    def fit_memory(self, examples: int) -> None:
        """Learn from the last backward pass, over so many examples, how much workspace one needs."""
        self._numbers = -(-self._workspace.wanted // examples)

    def parts(self, size: int) -> int:
        """In how many parts a batch is best done.

        16 MiB of workspace are enough with convolutions, which fit a cache then, and it takes the place of half of the
        activations. Without them the backward pass has let go of as much as is written out, unless that is a lot.
        """
        if not self._numbers:
            return 1
        if not self._convolutions:
            return -(-size // max(1, _NUMBERS // self._numbers))
        most = min(max(1, _NUMBERS // self._numbers), _CONVOLUTION_EXAMPLES)
        return max(-(-size // most), 2 if size >= _WORTH_SPLITTING else 1)

    def losses(self, x: batches.Batch, y: batches.Batch, size: int) -> tuple[Tape, Tensor]:
        """The forward pass: what was noted, and each example's loss.

        Raises:
            LayoutError: dimension 0 of a module's input is not the examples.
        """
        with torch.enable_grad():
            dtype = self._layout.parameters[0].dtype
            with self._fast(), Tape(self._rules, self.shared, size, self.copies, dtype) as tape:
                outputs = batches.outputs(self._model, batches.detached(x))
            return tape, per_example(self._loss, outputs, y, size)

    @contextmanager
    def _fast(self) -> Iterator[None]:
        """Let the model compute in faster ways than torch's, if it may; all of it, while that is being tried."""
        attention = Attention(faster="products" in self.ways)
        with ExitStack() as stack:
            if "pooling" in self.ways:
                stack.enter_context(pooling_by_channels(self._pools))
            if "products" in self.ways:
                stack.enter_context(self._linears.multiplied_fast(all=not self.settled))
            if self._attends or not self.settled:
                stack.enter_context(attention)
            yield
            if not self.settled:
                self._attends = attention.seen

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        try:
            pieces, losses = self._both(x, y, size)
        except Exception:  # of the model's, or because of a way that is not torch's
            if not self.ways:
                raise
            self.ways = frozenset()
            pieces, losses = self._both(x, y, size)
        return add_pieces(totals, pieces, losses, self._layout, clipping)

    def _both(self, x: batches.Batch, y: batches.Batch, size: int) -> tuple[list[Piece | None], Tensor]:
        """Per-example gradients and losses."""
        tape, losses = self.losses(x, y, size)
        return self.pieces(tape, losses), losses.detach()

    def pieces(self, tape: Tape, losses: Tensor, keep_graph: bool = False) -> list[Piece | None]:
        """The backward pass: each parameter's per-example gradients, None where all are zero.

        They are made on the way, so that what the tape noted is let go as soon as it is used. The pieces live until the
        next backward pass.
        """
        self._workspace.start(self._numbers * len(losses))
        found = Uses(self._places(tape.modules), self._workspace)

        def take(module: nn.Module, x: Tensor, slope: Tensor) -> None:
            for name, piece in self._rules[module](module, x, slope, self._workspace).items():
                place = self._place.get(id(module._parameters[name]))
                if place is not None:
                    found.add(place, piece)

        if losses.requires_grad and tape.lowest:
            tape.told = take
            ones = torch.ones_like(losses)
            with self._linears.inputs_only():
                torch.autograd.grad(losses, tape.lowest, ones, retain_graph=keep_graph, allow_unused=True)
            tape.told = None
        return found.pieces(len(self._place))

    def _places(self, modules: Sequence[nn.Module]) -> Iterator[int]:
        """The number of each parameter, as often as it was used."""
        for module in modules:
            for parameter in module._parameters.values():
                if id(parameter) in self._place:
                    yield self._place[id(parameter)]


class Uses:
    """Pieces of parameters by number; those of all uses are put together as soon as the last has come."""

    def __init__(self, expected: Iterable[int], workspace: Workspace) -> None:
        self._missing = Counter(expected)
        self._pieces: dict[int, list[Piece]] = {}
        self._done: dict[int, Piece] = {}
        self._workspace = workspace

    def add(self, number: int, piece: Piece) -> None:
        """One use of a parameter."""
        self._pieces.setdefault(number, []).append(piece)
        self._missing[number] -= 1
        if not self._missing[number]:
            self._put_together(number)

    def pieces(self, count: int) -> list[Piece | None]:
        """One piece for each of ``count`` parameters; None for those without a use that the loss knows of."""
        for number in list(self._pieces):
            self._put_together(number)
        return [self._done.get(number) for number in range(count)]

    def _put_together(self, number: int) -> None:
        self._done[number] = together(self._pieces.pop(number), self._workspace)
