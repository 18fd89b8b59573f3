"""Losses that say how wrong the model is on each example, and add nothing up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import check
from ...errors import InputError

Loss = Callable[[Any, Any], Tensor]
"""``loss(outputs, targets)`` → one number per example, shape ``(examples,)``; example i's may depend on no other."""


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Cross-entropy of each example, over one class or over many positions of a sequence.

    Outputs are logits, shape ``(examples, ..., classes)``: the classes come last. Targets are class numbers, shape
    ``(examples, ...)``, or class probabilities in the shape of the logits. Over positions, an example's loss is the
    mean or the sum over *its own* positions that are not ignored, so that no example's loss depends on how many
    positions of others are; an example that has none left has a loss of 0.

    Attributes:
        reduction: ``"mean"`` or ``"sum"`` over an example's positions.
        ignore_index: class number of positions that do not count.

    Raises:
        InputError: another reduction, or (when called) shapes that do not fit.

    >>> CrossEntropy()(torch.zeros(2, 3, 4), torch.tensor([[0, 1, -100], [-100, -100, -100]]))
    tensor([1.3863, 0.0000])
    """

    reduction: str = "mean"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        check.choice("reduction", self.reduction, ("mean", "sum"))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        shapes = f"got {tuple(outputs.shape)} and {tuple(targets.shape)}"
        if targets.is_floating_point():
            if outputs.shape != targets.shape or outputs.dim() < 2:
                raise InputError(f"probabilities must have the shape (examples, ..., classes) of the logits, {shapes}")
        elif outputs.dim() < 2 or outputs.shape[:-1] != targets.shape:
            raise InputError(f"logits and targets must be (examples, ..., classes) and (examples, ...), {shapes}")
        flat = outputs.flatten(0, -2), targets.flatten(0, outputs.dim() - 2)
        losses = torch.nn.functional.cross_entropy(*flat, reduction="none", ignore_index=self.ignore_index)
        if outputs.dim() == 2:
            return losses
        totals = losses.view(len(outputs), -1).sum(1)
        if self.reduction == "sum":
            return totals
        if targets.is_floating_point():
            return totals / (losses.numel() // max(1, len(outputs)))
        counted = (targets != self.ignore_index).view(len(targets), -1).sum(1)
        return totals / counted.clamp_min(1)


def per_example(loss: Loss, outputs: Any, targets: Any, examples: int) -> Tensor:
    """``loss(outputs, targets)``, checked.

    Raises:
        InputError: it is no tensor of shape ``(examples,)``.
    """
    losses = loss(outputs, targets)
    if not isinstance(losses, Tensor) or losses.shape != (examples,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(f"loss must return one number per example, shape ({examples},), got {got}; "
                         "losses of torch need reduction='none'")  # fmt: skip
    return losses
