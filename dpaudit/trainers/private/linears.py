"""Linear layers as torch computes them, with the faster products of :mod:`..products` where those are large."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..products import is_large, product
from .faster import is_watched, untouched


class LinearLayers:
    """The linear layers of a model, and how they compute for the time being.

    Attributes:
        fewest: multiplications of a product that is done the fast way; None for what pays.
        weights_wanted: whether a backward pass makes the gradients of weights and biases too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [m for m in model.modules() if type(m) is nn.Linear]
        self.fewest: int | None = None
        self.weights_wanted = True

    @contextmanager
    def multiplied_fast(self, all: bool = False) -> Iterator[None]:
        """Let large products, or all, be done the fast way, in here and in the backward pass."""
        self.fewest, layers = 1 if all else None, untouched(self._layers)
        try:
            for module in layers:
                vars(module)["forward"] = partial(self._forward, module)
            yield
        finally:
            for module in layers:
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
        usual = x.dim() < 2 or x.dtype != weight.dtype or torch.is_autocast_enabled("cpu") or is_watched()
        if usual or not is_large(x, len(weight), self.fewest):
            return nn.Linear.forward(module, x)
        return _Linear.apply(x, weight, module.bias, self)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layers: LinearLayers) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layers = layers
        ctx.fewest = layers.fewest
        out = product(x.flatten(0, -2), weight.t(), bias, ctx.fewest)
        return torch.ops.aten._unsafe_view(out, [*x.shape[:-1], len(weight)])  # a view must not be overwritten

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        slope = slopes[0].flatten(0, -2)
        to_input, to_weight, to_bias = (wanted for wanted in ctx.needs_input_grad[:3])
        wanted, back = ctx.layers.weights_wanted, None
        if to_input and torch.is_grad_enabled():
            back = (slope @ weight).view(x.shape)  # second derivatives need torch's own
        elif to_input:
            back = product(slope, weight, fewest=ctx.fewest).view(x.shape)
        return (
            back,
            slope.t() @ x.flatten(0, -2) if to_weight and wanted else None,
            slope.sum(0) if to_bias and wanted else None,
            None,
        )
