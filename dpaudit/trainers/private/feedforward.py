"""Networks of linear layers and ReLU, by hand: what book-keeping does, without autograd and without pieces.

With one position per layer, an example's gradient of a weight is the outer product of the slope g at the layer's output
and the layer's input a, so over a layer's weight and bias the squared norm is ‖g‖² (‖a‖² + 1) (Goodfellow 2015).

All matrices have one column per example: products and softmax over few classes are faster that way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..products import add_product, is_large, product
from . import batches
from .clipping import Clipping
from .diagnostics import StepCounts
from .faster import Snapshot, has_hooks, in_order
from .layout import Layout
from .lengths import lost, squared_lengths
from .losses import CrossEntropy, Loss, per_example
from .rules import rule_for
from .summing import weigh


@dataclass(frozen=True, eq=False)
class _Step:
    """A linear layer, whether ReLU follows, and where in the layout its parameters are (None: not trained)."""

    layer: nn.Linear
    relu: bool
    weight: int | None
    bias: int | None

    @property
    def trained(self) -> bool:
        return self.weight is not None or self.bias is not None


class FeedForward:
    """Clipped sums of ``Linear`` layers with ``ReLU`` between them, perhaps after a ``Flatten``."""

    def __init__(self, steps: list[_Step], model: Snapshot, flatten: bool, loss: Loss) -> None:
        self._steps, self._model, self._flatten, self._loss = steps, model, flatten, loss
        self._row = [sum(before.trained for before in steps[:number]) for number in range(len(steps))]
        self._first = next(number for number, step in enumerate(steps) if step.trained)

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, loss: Loss) -> FeedForward | None:
        """The network, if the model is one: nothing else in it, nothing used twice, no hooks, no ReLU at the end."""
        place = {id(parameter): n for n, parameter in enumerate(layout.parameters)}
        modules = list(in_order(model))
        first = modules[0] if modules else None
        flatten = isinstance(first, nn.Flatten)
        if isinstance(first, nn.Flatten) and not (first.start_dim == 1 and first.end_dim == -1):
            return None
        steps: list[_Step] = []
        for module in modules[flatten:]:
            if has_hooks(module):
                return None
            if type(module) is nn.Linear and rule_for(module) is not None:
                steps.append(_Step(module, False, place.get(id(module.weight)), place.get(id(module.bias))))
            elif type(module) is nn.ReLU and steps:
                steps[-1] = replace(steps[-1], relu=True)
            else:
                return None
        used = [id(p) for step in steps for p in step.layer.parameters()]
        if not steps or steps[-1].relu or len(used) > len(set(used)):
            return None
        return cls(steps, Snapshot(model), flatten, loss)

    def fits(self, x: batches.Batch, y: batches.Batch) -> bool:
        """Whether the input has one position per example, and the model is what it was."""
        return isinstance(x, Tensor) and (self._flatten or x.dim() == 2) and self._model.holds()

    def parts(self, size: int) -> int:
        """All at once."""
        return 1

    def add_clipped(
        self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int, clipping: Clipping
    ) -> StepCounts:
        """Add each example's clipped gradient to ``totals``."""
        assert isinstance(x, Tensor)
        inputs, outputs = self._forward(x.flatten(1) if x.dim() > 2 else x)
        slope, losses = self._slope(outputs, y, size)
        slopes = self._backward(inputs, slope)
        weights, lost, counts = weigh(self._squares(inputs, slopes, clipping.by_layer), losses, clipping)
        for number in range(self._first, len(self._steps)):
            step, given, slope = self._steps[number], inputs[number], slopes[number]
            if not step.trained:
                continue
            if lost is not None:
                given, slope = given.masked_fill(lost, 0.0), slope.masked_fill(lost, 0.0)
            slope = slope.mul_(weights[self._row[number]] if clipping.by_layer else weights)
            if step.weight is not None:
                add_product(totals[step.weight], slope, given.t())
            if step.bias is not None:
                totals[step.bias].add_(slope.sum(1))
        return counts

    def _forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The input of each layer, and the output of the last."""
        values = [x.t()]
        for step in self._steps:
            value = _affine(step.layer, values[-1])
            values.append(value.relu_() if step.relu else value)
        return values, values.pop()

    def _slope(self, outputs: Tensor, y: batches.Batch, size: int) -> tuple[Tensor, Tensor | None]:
        """The derivative of each loss at the output, and the losses (None if they are finite where that is)."""
        if isinstance(y, Tensor) and self._plain(y):
            slope = torch.softmax(outputs, 0)
            return slope.scatter_add_(0, y.unsqueeze(0), slope.new_full((1, 1), -1.0).expand(1, size)), None
        leaf = outputs.t().detach().requires_grad_()
        with torch.enable_grad():
            losses = per_example(self._loss, leaf, y, size)
            (slope,) = torch.autograd.grad(losses, leaf, torch.ones_like(losses))
        return slope.t().clone(), losses.detach()  # a copy: it is scaled in place

    def _plain(self, y: Tensor) -> bool:
        """Whether the loss is cross-entropy with a class for every example."""
        loss = self._loss
        if not isinstance(loss, CrossEntropy) or type(loss) is not CrossEntropy:
            return False
        return y.dtype == torch.int64 and y.dim() == 1 and not bool((y == loss.ignore_index).any())

    def _backward(self, inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
        """The derivative of each loss at the output of each layer, before ReLU, down to the first that is trained."""
        slopes = [slope] * len(self._steps)
        for number in range(len(self._steps) - 1, self._first, -1):
            slope = _back(self._steps[number].layer.weight, slope, inputs[number])
            if self._steps[number - 1].relu:
                slope = torch.ops.aten.threshold_backward(slope, inputs[number], 0.0)
            slopes[number - 1] = slope
        return slopes

    def _squares(self, inputs: list[Tensor], slopes: list[Tensor], by_layer: bool) -> Tensor:
        """Squared norms of each example's gradient: of all in one, or of each layer that is trained."""
        rows: list[Tensor] = []
        for number, (step, given, slope) in enumerate(zip(self._steps, inputs, slopes, strict=True)):
            if not step.trained:
                continue
            square = slope.square().sum(0).add_(lost(len(slope), slope))
            if step.weight is not None:
                factor = given.square().sum(0) if number else squared_lengths(given.t())
                square.mul_(factor.add_(1.0 if step.bias is not None else lost(len(given), given)))
            rows.append(square)
        if by_layer:
            return torch.stack(rows)
        return sum(rows[1:], rows[0])


def _affine(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's output, one column per example as in ``x``."""
    weight, bias = layer.weight, layer.bias
    if is_large(x, len(weight)):
        return product(x.t(), weight.t(), bias).t()
    return weight @ x if bias is None else torch.addmm(bias.unsqueeze(1), weight, x)


def _back(weight: Tensor, slope: Tensor, like: Tensor) -> Tensor:
    """``weight.t() @ slope``, in memory in the same order as ``like``, of the same shape."""
    if like.t().is_contiguous():
        return product(slope.t(), weight).t()
    return weight.t() @ slope
