"""Which transformers are done by hand, and where in a flat array their parameters are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..architectures import Block, SelfAttention, Transformer
from ..small_products import LANES, room
from .faster import has_hooks
from .layout import Layout
from .rules import rule_for
from .transformer_loops import Network

Reals = NDArray[np.float32]

_LEAVES = nn.Linear, nn.LayerNorm, nn.Embedding
_MODULES = Transformer, Block, SelfAttention, nn.ModuleList, *_LEAVES


@dataclass(frozen=True)
class Shape:
    """Of a :class:`~..architectures.Transformer`.

    Attributes:
        length: of the longest sequence.
        width: of a token.
        heads: of attention.
        blocks: how many there are.
        hidden: units between the two layers of a block.
        classes: that the head tells apart.
        causal: whether tokens see only those before them, and each is told the next; else the whole is classified.
        eps: of the norms.
    """

    length: int
    width: int
    heads: int
    blocks: int
    hidden: int
    classes: int
    causal: bool
    eps: float

    @classmethod
    def of(cls, model: Any, layout: Layout) -> Shape | None:
        """None if the model is anything else, of another type, elsewhere, partly frozen, or not as it was made."""
        modules: list[Any] = list(model.modules())
        if type(modules[0]) is not Transformer or not len(model.blocks):
            return None
        if any(type(module) not in _MODULES or has_hooks(module) for module in modules):
            return None
        if any(type(module) in _LEAVES and rule_for(module) is None for module in modules):
            return None
        norms = {(m.normalized_shape, m.eps) for m in modules if type(m) is nn.LayerNorm}
        attentions = {(m._heads, m._causal) for m in modules if type(m) is SelfAttention}
        padding = {m.padding_idx for m in modules if type(m) is nn.Embedding}
        if len(norms) > 1 or attentions != {(model.blocks[0].attention._heads, not model._whole)} or padding != {None}:
            return None
        d, wide, classes = model.tokens.embedding_dim, model.blocks[0].wide.out_features, model.head.out_features
        heads, length = model.blocks[0].attention._heads, model.positions.num_embeddings
        shape = cls(length, d, heads, len(model.blocks), wide, classes, not model._whole, model.norm.eps)
        return shape if shape._describes(model, layout) else None

    def _describes(self, model: Any, layout: Layout) -> bool:
        wanted = {"tokens.weight": (model.tokens.num_embeddings, self.width)}
        wanted |= {name: view.shape for name, view in self.named(self.views(self.zeros())).items()}
        found = {name: tuple(parameter.shape) for name, parameter in zip(layout.names, layout.parameters, strict=True)}
        first = layout.parameters[0]
        return list(found.items()) == list(wanted.items()) and first.dtype == torch.float32 and first.is_cpu

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        d, m, blocks = self.width, self.hidden, self.blocks
        row, long_row = (-(-numbers // LANES) * LANES for numbers in (d, m))
        return {
            "positions": (self.length, row),
            "first": (blocks, 2, d),
            "qkv": (blocks, 3 * d, row),
            "qkv_bias": (blocks, 3 * d),
            "out": (blocks, d, row),
            "out_bias": (blocks, d),
            "second": (blocks, 2, d),
            "wide": (blocks, m, row),
            "wide_bias": (blocks, m),
            "narrow": (blocks, d, long_row),
            "narrow_bias": (blocks, d),
            "last": (2, d),
            "head": (self.classes, row),
            "head_bias": (self.classes,),
        }

    @property
    def numbers(self) -> int:
        """How many a flat array has: of all parameters but the table of tokens, and padding."""
        return sum(int(np.prod(shape)) for shape in self._shapes().values())

    def zeros(self) -> Reals:
        """A flat array."""
        return room(self.numbers)

    def views(self, flat: Reals) -> Network:
        """What is where in a flat array."""
        parts, at = {}, 0
        for name, shape in self._shapes().items():
            end = at + int(np.prod(shape))
            parts[name] = flat[at:end].reshape(shape)
            at = end
        return Network(**parts)

    def named(self, net: Network) -> dict[str, Reals]:
        """The same, without padding, by the names of parameters, in the order of the model."""
        d = self.width
        out = {"positions.weight": net.positions[:, :d]}
        for n in range(self.blocks):
            block = f"blocks.{n}."
            out |= _norm(block + "first_norm", net.first[n])
            for part, name in enumerate(("query", "key", "value")):
                rows = slice(part * d, (part + 1) * d)
                out |= _linear(f"{block}attention.{name}", net.qkv[n, rows, :d], net.qkv_bias[n, rows])
            out |= _linear(block + "attention.out", net.out[n, :, :d], net.out_bias[n])
            out |= _norm(block + "second_norm", net.second[n])
            out |= _linear(block + "wide", net.wide[n, :, :d], net.wide_bias[n])
            out |= _linear(block + "narrow", net.narrow[n, :, : self.hidden], net.narrow_bias[n])
        return out | _norm("norm", net.last) | _linear("head", net.head[:, :d], net.head_bias)

    def ranges(self, layout: Layout) -> NDArray[np.int64]:
        """First number, end and layer of each parameter in a flat array, rows with their padding.

        The table of tokens, which is not in there, comes last.
        """
        flat = self.zeros()
        rows = []
        views = self.named(self.views(flat)).values()
        for view, layer in zip(views, layout.layer_of[1:], strict=True):
            first = (view.ctypes.data - flat.ctypes.data) // flat.itemsize
            rows.append((first, first + len(view) * view.strides[0] // flat.itemsize, layer))
        return np.array([*rows, (0, 0, layout.layer_of[0])], np.int64)


def _norm(name: str, rows: Reals) -> dict[str, Reals]:
    return {f"{name}.weight": rows[0], f"{name}.bias": rows[1]}


def _linear(name: str, weight: Reals, bias: Reals) -> dict[str, Reals]:
    return {f"{name}.weight": weight, f"{name}.bias": bias}
