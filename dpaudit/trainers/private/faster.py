"""When a model may compute in faster ways than torch's own: not where torch would not see what was done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


class Snapshot:
    """A model as it was made: its modules, what is in each, and their settings, those that torch calls constants.

    Args:
        model: of modules that are known to be described by that.
    """

    def __init__(self, model: nn.Module) -> None:
        modules: list[Any] = list(model.modules())
        names = [tuple(getattr(module, "__constants__", ())) for module in modules]
        self._looks = [(module, name, _look(module, name)) for module, name in zip(modules, names, strict=True)]

    def holds(self) -> bool:
        """Whether nothing was replaced or set otherwise since, and nobody hears of what the modules do."""
        if _hooks_everywhere():
            return False
        return all(not _own_hooks(module) and _look(module, names) == look for module, names, look in self._looks)


def _look(module: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    own = module.__dict__
    settings = [own.get(name) for name in names]
    shapes = [
        None if parameter is None else (id(parameter), parameter.shape) for parameter in own["_parameters"].values()
    ]
    settings = [list(value) if value.__class__ is list else value for value in settings]
    return module.__class__, [*map(id, own["_modules"].values())], shapes, settings


_hooks_everywhere = torch.nn.modules.module._has_any_global_hook


def _own_hooks(module: Any) -> bool:
    own = module.__dict__
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether anything is called beside, or in place of, the ``forward`` of the module's class."""
    return _own_hooks(module) or _hooks_everywhere()


def in_order(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested sequences, in the order in which they are called."""
    if type(model) is nn.Sequential and not has_hooks(model):
        for child in model:
            yield from in_order(child)
    else:
        yield model
