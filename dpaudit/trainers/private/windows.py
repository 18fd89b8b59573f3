"""What each output position of a convolution looks at, as a matrix; a convolution is then a matrix product."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .workspace import Workspace


def windows(module: Any, x: Tensor, workspace: Workspace) -> Tensor:
    """The inputs of a convolution, one row per output position.

    Args:
        module: a ``torch.nn.Conv1d``, ``Conv2d`` or ``Conv3d``, with any stride, padding, dilation and groups.
        x: its input, shape ``(B, channels, ...)``.
        workspace: where the result is put.

    Returns:
        Shape ``(B, groups, positions, kernel · channels / groups)``. In a row the channels come last, not first as in
        the module's weight: so they are neighbours in memory, and the copy takes a fifth of the time.
    """
    padded = _padded(module, x).movedim(1, -1).contiguous()  # (B, ..., channels)
    inner = x.shape[1] // module.groups
    spatial = range(1, x.dim() - 1)
    reach = [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    out = [(padded.shape[i] - reach[i - 1]) // module.stride[i - 1] + 1 for i in spatial]
    steps = [padded.stride(i) * module.stride[i - 1] for i in spatial]
    within = [padded.stride(i) * module.dilation[i - 1] for i in spatial]
    shape = (len(x), module.groups, *out, *module.kernel_size, inner)
    copy = workspace.take(shape, x).copy_(padded.as_strided(shape, (padded.stride(0), inner, *steps, *within, 1)))
    return copy.view(len(x), module.groups, math.prod(out), module.weight[0].numel())


def _padded(module: Any, x: Tensor) -> Tensor:
    sides = _sides(module)
    if not any(sides):
        return x
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return torch.nn.functional.pad(x, sides, mode=mode)


def _sides(module: Any) -> list[int]:
    """Padding before and after each spatial dimension, the last dimension first, as ``pad`` wants it."""
    sides: list[int] = []
    for number in reversed(range(len(module.kernel_size))):
        if module.padding == "valid":
            sides += [0, 0]
        elif module.padding == "same":
            both = module.dilation[number] * (module.kernel_size[number] - 1)
            sides += [both // 2, both - both // 2]
        else:
            sides += [module.padding[number]] * 2
    return sides
