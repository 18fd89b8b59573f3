"""For each kind of module: the gradients of its parameters, from its input and the derivative at its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from .pieces import ChannelsLast, Outer, Piece, Rows, Written
from .windows import windows
from .workspace import Workspace

Rule = Callable[[Any, Tensor, Tensor, Workspace], dict[str, Piece]]
"""``rule(module, input, slope, workspace)`` → pieces by the parameter's name, of those that are trained.

Input and slope (the derivative of each example's loss at the module's output) have the examples along dimension 0.
"""


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for a module, by its exact class and the parameters that it owns; None if there is none.

    A subclass may compute something else, and a module whose parameters were replaced (by weight normalisation, say)
    does: neither has a rule.

    Raises:
        InputError: an embedding with an option that looks at other examples.
    """
    rule = _RULES.get(type(module))
    if rule is None or not set(module._parameters) <= {"weight", "bias"}:
        return None
    if type(module) is nn.Embedding:
        _check_embedding(module)
    return rule


def _check_embedding(module: nn.Embedding) -> None:
    if module.max_norm is not None:
        raise InputError("Embedding must not have max_norm: it rewrites the rows that a batch looks up, without noise")
    if module.scale_grad_by_freq:
        raise InputError("Embedding must not have scale_grad_by_freq: it counts over the batch, so examples mix")
    if module.sparse:
        raise InputError("Embedding must not be sparse: noise goes to every row, also those that no example looks up")


def _linear(module: Any, x: Tensor, slope: Tensor, workspace: Workspace) -> dict[str, Piece]:
    left, right = slope.reshape(len(slope), 1, -1, slope.shape[-1]), x.reshape(len(x), 1, -1, x.shape[-1])
    out: dict[str, Piece] = {}
    if module.weight.requires_grad:
        out["weight"] = Outer(left, right)
    if module.bias is not None and module.bias.requires_grad:
        out["bias"] = Written(left[:, 0, 0] if left.shape[2] == 1 else left.sum((1, 2)))
    return out


def _convolution(module: Any, x: Tensor, slope: Tensor, workspace: Workspace) -> dict[str, Piece]:
    out: dict[str, Piece] = {}
    if module.weight.requires_grad:
        left = slope.reshape(len(slope), module.groups, slope.shape[1] // module.groups, -1).transpose(2, 3)
        out["weight"] = ChannelsLast(Outer(left, windows(module, x, workspace)))
    if module.bias is not None and module.bias.requires_grad:
        out["bias"] = Written(slope.flatten(2).sum(2))
    return out


def _embedding(module: nn.Embedding, x: Tensor, slope: Tensor, workspace: Workspace) -> dict[str, Piece]:
    index = x.reshape(len(x), -1)
    values = slope.reshape(*index.shape, slope.shape[-1])
    if module.padding_idx is not None:
        values = values.masked_fill((index == module.padding_idx).unsqueeze(2), 0.0)
    return {"weight": Rows(index, values, module.num_embeddings)}


def _layer_norm(module: nn.LayerNorm, x: Tensor, slope: Tensor, workspace: Workspace) -> dict[str, Piece]:
    shape = tuple(module.normalized_shape)
    normed = torch.nn.functional.layer_norm(x, shape, eps=module.eps)
    return _affine(module, normed.reshape(len(x), -1, *shape), slope.reshape(len(x), -1, *shape), 1)


def _group_norm(module: nn.GroupNorm, x: Tensor, slope: Tensor, workspace: Workspace) -> dict[str, Piece]:
    normed = torch.nn.functional.group_norm(x, module.num_groups, eps=module.eps)
    return _affine(module, normed.reshape(*x.shape[:2], -1), slope.reshape(*x.shape[:2], -1), 2)


def _affine(module: Any, normed: Tensor, slope: Tensor, positions: int) -> dict[str, Piece]:
    """Of ``normed · weight + bias``, whose parameters are shared along the dimension ``positions``."""
    out: dict[str, Piece] = {}
    if module.weight.requires_grad:
        out["weight"] = Written((normed * slope).sum(positions))
    if module.bias is not None and module.bias.requires_grad:
        out["bias"] = Written(slope.sum(positions))
    return out


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
