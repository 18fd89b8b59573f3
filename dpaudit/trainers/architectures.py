"""The models that audits are run on, each made from one generator: the same seed gives the same weights everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .. import check
from ..errors import InputError


def softmax(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression, all weights zero; its loss is convex, so where it starts does not matter.

    >>> softmax(4, 3)(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """
    check.integer("features", features, 1)
    check.integer("classes", classes, 2)
    model = nn.Sequential(nn.Flatten(), _empty(nn.Linear, features, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def mlp(features: int, hidden: Sequence[int], classes: int, generator: torch.Generator) -> nn.Module:
    """A multi-layer perceptron with ReLU between its layers.

    >>> mlp(4, [8], 3, torch.Generator().manual_seed(0))(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """
    check.integer("features", features, 1)
    check.integer("classes", classes, 2)
    if isinstance(hidden, (str, int)) or not hidden:
        raise InputError(f"hidden must be a list of layer widths such as [128], got {hidden!r}")
    widths = [features, *(check.integer("width of a hidden layer", width, 1) for width in hidden)]
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        parts += [_empty(nn.Linear, inputs, outputs), nn.ReLU()]
    return _started(nn.Sequential(*parts, _empty(nn.Linear, widths[-1], classes)), generator)


def cnn(generator: torch.Generator, classes: int = 10) -> nn.Module:
    """The small convolutional network of Opacus's MNIST example: 26,010 parameters for 10 classes.

    Input: images, shape ``(examples, 1, 28, 28)``.

    >>> cnn(torch.Generator().manual_seed(0))(torch.ones(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    model = nn.Sequential(
        _empty(nn.Conv2d, 1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        _empty(nn.Conv2d, 16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        _empty(nn.Linear, 32 * 4 * 4, 32),
        nn.ReLU(),
        _empty(nn.Linear, 32, check.integer("classes", classes, 2)),
    )
    return _started(model, generator)


def transformer(
    vocabulary: int,
    length: int,
    classes: int | None,
    generator: torch.Generator,
    *,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
) -> nn.Module:
    """A small pre-norm transformer over token sequences.

    Args:
        vocabulary: number of tokens; inputs are whole numbers below it, shape ``(examples, tokens)``.
        length: the longest sequence.
        classes: classify whole sequences, logits ``(examples, classes)``; None to predict the next token from those
            before it, logits ``(examples, tokens, vocabulary)``.
        generator: of the weights.
        width: of the representation of a token, a multiple of ``heads``.
        heads: of attention.
        layers: of the network.

    >>> transformer(50, 16, None, torch.Generator().manual_seed(0))(torch.zeros(2, 9, dtype=torch.long)).shape
    torch.Size([2, 9, 50])
    """
    for name, value in (("vocabulary", vocabulary), ("length", length), ("heads", heads), ("layers", layers)):
        check.integer(name, value, 1)
    if check.integer("width", width, 1) % heads:
        raise InputError(f"width must be a multiple of heads ({heads}), got {width}")
    return _started(Transformer(vocabulary, length, classes, width, heads, layers), generator)


class Images(nn.Module):
    """Records as images ``(examples, channels, height, width)``; a record has the channels of a pixel side by side."""

    __constants__ = ("shape",)

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(examples, features)`` in."""
        return x.unflatten(1, self.shape).permute(0, 3, 1, 2)


class Records(nn.Module):
    """The way back."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(examples, features)`` out."""
        return x.permute(0, 2, 3, 1).flatten(1)


class SelfAttention(nn.Module):
    """Multi-head self-attention made of four linear layers.

    Args:
        width: of a token's representation, a multiple of ``heads``.
        heads: how many parts the width is split into.
        causal: whether a token sees only itself and those before it.
    """

    __constants__ = ("_heads", "_causal")

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.query = _empty(nn.Linear, width, width)
        self.key = _empty(nn.Linear, width, width)
        self.value = _empty(nn.Linear, width, width)
        self.out = _empty(nn.Linear, width, width)
        self._heads, self._causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(examples, tokens, width)`` in and out."""
        q, k, v = (
            part(x).unflatten(2, (self._heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self._causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer network, each with a norm before it and a connection around it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.first_norm = _empty(nn.LayerNorm, width)
        self.attention = SelfAttention(width, heads, causal)
        self.second_norm = _empty(nn.LayerNorm, width)
        self.wide = _empty(nn.Linear, width, 4 * width)
        self.narrow = _empty(nn.Linear, 4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(examples, tokens, width)`` in and out."""
        x = x + self.attention(self.first_norm(x))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second_norm(x))))


class Transformer(nn.Module):
    """See :func:`transformer`."""

    __constants__ = ("_whole",)

    def __init__(self, vocabulary: int, length: int, classes: int | None, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = _empty(nn.Embedding, vocabulary, width)
        self.positions = _empty(nn.Embedding, length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=classes is None) for _ in range(layers))
        self.norm = _empty(nn.LayerNorm, width)
        self.head = _empty(nn.Linear, width, vocabulary if classes is None else classes)
        self._whole = classes is not None

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; see :func:`transformer` for the shapes."""
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self._whole else x)


class LowRank(nn.Module):
    """A frozen linear layer with a trained addition of low rank: x ↦ base(x) + alpha / rank · up(down(x)).

    Source: Hu et al. 2022, "LoRA: low-rank adaptation of large language models", §4.1. ``up`` starts at zero, so at
    first nothing is changed.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        kind = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.base = base
        self.down = nn.utils.skip_init(nn.Linear, base.in_features, rank, bias=False, **kind)
        self.up = nn.utils.skip_init(nn.Linear, rank, base.out_features, bias=False, **kind)
        self._scale = alpha / rank
        with torch.no_grad():
            _uniform(self.down.weight, 1 / math.sqrt(base.in_features), generator)
            self.up.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """As the base layer's."""
        return self.base(x) + self._scale * self.up(self.down(x))


def lora(
    model: nn.Module, rank: int, generator: torch.Generator, *, alpha: float = 1.0, targets: Sequence[str] | None = None
) -> nn.Module:
    """Freeze a model and give its linear layers low-rank additions, which alone are trained. Changes ``model``.

    Args:
        model: whatever has ``nn.Linear`` layers inside.
        rank: of the additions.
        generator: of their weights.
        alpha: they are multiplied by alpha / rank.
        targets: ends of the names of the layers to add to, such as ``["query", "value"]``; all by default.

    Returns:
        The same model.

    Raises:
        InputError: no layer is meant, or a setting is out of range.

    >>> model = lora(mlp(4, [8], 3, torch.Generator().manual_seed(0)), 2, torch.Generator().manual_seed(1))
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['1.down.weight', '1.up.weight', '3.down.weight', '3.up.weight']
    """
    check.integer("rank", rank, 1)
    check.positive("alpha", alpha)
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and (targets is None or name.endswith(tuple(targets)))
    ]
    if not chosen or any(not name for name, _ in chosen):
        raise InputError(f"targets must name linear layers inside the model, got {targets!r}")
    model.requires_grad_(False)
    for name, module in chosen:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LowRank(module, rank, alpha, generator))
    return model


def _empty(kind: type[nn.Module], *sizes: int, **options: int) -> nn.Module:
    """A module whose parameters are to be filled in: torch's own initialisation would use the global generator."""
    return nn.utils.skip_init(kind, *sizes, **options)


def _started(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Fill in the parameters as torch's own initialisation does, from ``generator``.

    Weights and biases of linear layers and convolutions are uniform in ±1/√(inputs), embeddings normal with a
    deviation of 0.02 (torch: 1), norms the identity.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                bound = 1 / math.sqrt(module.weight[0].numel())
                _uniform(module.weight, bound, generator)
                if module.bias is not None:
                    _uniform(module.bias, bound, generator)
            elif isinstance(module, nn.Embedding):
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 0.02)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
    return model


def _uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    parameter.copy_(torch.rand(parameter.shape, generator=generator) * (2 * bound) - bound)
