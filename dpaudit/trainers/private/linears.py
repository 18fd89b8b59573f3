"""Linear layers as torch computes them, with the faster products of :mod:`..products` where those are large."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..products import is_large, product


class LinearLayers:
    """The linear layers of a model, and how they compute for the time being.

    Attributes:
        weights_wanted: whether a backward pass makes the gradients of weights and biases too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m)]
        self.weights_wanted = True

    @contextmanager
    def multiplied_fast(self) -> Iterator[None]:
        """Let large products be done the fast way, in here and in the backward pass."""
        try:
            for module in self._layers:
                vars(module)["forward"] = partial(self._forward, module)
            yield
        finally:
            for module in self._layers:
                vars(module).pop("forward", None)

    @contextmanager
    def inputs_only(self) -> Iterator[None]:
        """Make no gradients of weights and biases in here."""
        self.weights_wanted = False
        try:
            yield
        finally:
            self.weights_wanted = True

    def _forward(self, module: nn.Linear, x: Tensor) -> Tensor:
        weight = module.weight
        usual = x.dim() < 2 or x.dtype != weight.dtype or torch.is_autocast_enabled("cpu")
        if usual or not is_large(x, len(weight)):
            return nn.Linear.forward(module, x)
        return _Linear.apply(x, weight, module.bias, self)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layers: LinearLayers) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layers = layers
        out = product(x.flatten(0, -2), weight.t(), bias)
        return torch.ops.aten._unsafe_view(out, [*x.shape[:-1], len(weight)])  # a view must not be overwritten

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        slope = slopes[0].flatten(0, -2)
        to_input, to_weight, to_bias = (wanted for wanted in ctx.needs_input_grad[:3])
        multiply = torch.matmul if torch.is_grad_enabled() else product  # second derivatives need torch's own
        wanted = ctx.layers.weights_wanted
        return (
            multiply(slope, weight).view(x.shape) if to_input else None,
            slope.t() @ x.flatten(0, -2) if to_weight and wanted else None,
            slope.sum(0) if to_bias and wanted else None,
            None,
        )
