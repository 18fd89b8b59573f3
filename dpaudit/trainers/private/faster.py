"""When a model may compute in faster ways than torch's own: not where torch would not see what was done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

_saved_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_transforms: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)


def is_watched() -> bool:
    """Whether somebody depends on the very operations that torch would do.

    These are hooks on what is saved for the backward pass (checkpointing does them over again, and must get the same),
    transforms of ``torch.func``, and derivatives forward.
    """
    if _saved_hooks is None or _transforms is None:
        return True  # another torch: who knows
    return _saved_hooks(True) is not None or _transforms() is not None or forward_ad._current_level >= 0


def untouched(modules: Iterable[nn.Module]) -> list[Any]:
    """Those whose ``forward`` nobody has replaced."""
    return [module for module in modules if "forward" not in vars(module)]
