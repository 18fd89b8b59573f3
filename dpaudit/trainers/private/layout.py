"""The trainable parameters of a model: their order, their layers, their places in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import InputError


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each trainable parameter of a model is.

    Attributes:
        names: of the parameters, in the order of ``model.named_parameters()``; a shared one counts once, under its
            first name.
        parameters: the parameters themselves.
        layers: names of the modules that own them, in order of first appearance.
        layer_of: for each parameter, the number of its layer.
        sizes: how many numbers each parameter has.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    layers: tuple[str, ...]
    layer_of: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model.

        Raises:
            InputError: nothing is trainable, parameters were never made (lazy modules), are not of real numbers, or
                differ in type or device.
        """
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise InputError("model must have a parameter that is trained (requires_grad), got none")
        lazy = [name for name, p in named if nn.parameter.is_lazy(p)]
        if lazy:
            raise InputError(f"parameters must have a shape, but {lazy[0]} has none yet: run the model once before")
        kinds = {(p.dtype, p.device) for _, p in named}
        if len(kinds) > 1:
            raise InputError(f"trained parameters must have one type and one device, got {sorted(map(str, kinds))}")
        if named[0][1].dtype not in (torch.float32, torch.float64):  # sums of less precise ones exceed their limit
            raise InputError(f"trained parameters must be float32 or float64, got {named[0][1].dtype}")
        owners = [name.rpartition(".")[0] for name, _ in named]
        layers = tuple(dict.fromkeys(owners))
        return cls(
            tuple(name for name, _ in named),
            tuple(p for _, p in named),
            layers,
            tuple(layers.index(owner) for owner in owners),
            tuple(p.numel() for _, p in named),
        )

    @property
    def total(self) -> int:
        """How many numbers there are in all."""
        return sum(self.sizes)

    def new_vector(self) -> Tensor:
        """A flat vector, shape ``(total,)``, of undefined numbers."""
        return torch.empty(self.total, dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector, one per parameter, in its shape."""
        return [
            part.view(p.shape) for part, p in zip(torch.split(flat, list(self.sizes)), self.parameters, strict=True)
        ]
