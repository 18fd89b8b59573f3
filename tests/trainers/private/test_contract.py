"""Every kind of layer, every clipping rule: the fast sum against one example at a time by autograd."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import architectures, products  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    AutomaticClipping,
    ClippedSums,
    CrossEntropy,
    GlobalClipping,
    PerLayerClipping,
    SlowGradients,
)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
EXAMPLES, CLASSES = 7, 5
CLIPPINGS = [
    GlobalClipping(norm=0.05),
    GlobalClipping(norm=1.0),
    GlobalClipping(norm=1e6),
    AutomaticClipping(norm=0.5),
    PerLayerClipping(norm=0.8),
]


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) * 1000 + sum(shape)))


def tokens(length, vocabulary=11):
    return torch.randint(vocabulary, (EXAMPLES, length), generator=torch.Generator().manual_seed(length))


def labels():
    return torch.randint(CLASSES, (EXAMPLES,), generator=torch.Generator().manual_seed(9))


def spread(x):
    """Examples of very different size, so that some are clipped and some are not."""
    return x * torch.logspace(-2, 1, len(x)).view(-1, *[1] * (x.dim() - 1))


class Mean(nn.Module):
    """Mean over all but the first and the last dimension."""

    def forward(self, x):
        return x.flatten(1, -2).mean(1)


class Pooled(nn.Module):
    """Mean over all but the first two dimensions."""

    def forward(self, x):
        return x.flatten(2).mean(2)


class Reused(nn.Module):
    """One module called three times, on inputs of different lengths."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        y = torch.tanh(self.shared(x))
        y = self.shared(y).mean(1)
        return self.head(torch.tanh(self.shared(y)))


class ReusedConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        y = self.shared(torch.tanh(self.shared(x)))
        return self.head(self.shared(y[:, :, ::2, ::2]).mean((2, 3)))


class TiedLinears(nn.Module):
    """Two modules that share a weight, and two that share a bias with a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.second.weight = self.first.weight
        self.norm.bias = self.first.bias
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.second(torch.tanh(self.first(x)))).mean(1))


class TiedEmbedding(nn.Module):
    """A language model whose embedding is its output weight too; ``often``: looked up and multiplied with twice."""

    def __init__(self, often=False):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 8, padding_idx=0)
        self.inside = nn.Linear(8, 8)
        self.out = nn.Linear(8, CLASSES, bias=False)
        self.out.weight = self.embed.weight
        self.often = often

    def forward(self, x):
        h = torch.tanh(self.inside(self.embed(x)))
        if self.often:
            h = h + self.embed(self.out(h).argmax(-1))
            return (self.out(h) + self.out(h * h)).mean(1)
        return self.out(h).mean(1)


class Positions(nn.Module):
    """Learned positions looked up once for all examples: with a batch dimension of 1, or with none."""

    def __init__(self, lead):
        super().__init__()
        self.embed, self.places = nn.Embedding(11, 6), nn.Embedding(20, 6)
        self.head = nn.Linear(6, CLASSES)
        self.lead = lead

    def forward(self, x):
        places = torch.arange(x.shape[1])
        return self.head(torch.tanh(self.embed(x) + self.places(places[None] if self.lead else places)).mean(1))


class Repeated(nn.Module):
    """Tokens with repetitions, of which one is padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 6, padding_idx=2)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x % 4)).mean(1) ** 2)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, CLASSES), nn.Linear(3, CLASSES)

    def forward(self, a, b):
        return self.left(a) * torch.sigmoid(self.right(b))


class Unused(nn.Module):
    """A layer that no output depends on, and one that only some steps do."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x):
        with torch.no_grad():
            self.idle(x)
        self.idle(x)
        return self.used(x)


class Overwriting(nn.Module):
    """In-place activations, also on a view of a module's output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        h = self.second(self.first(x).relu_())
        h += 1
        return self.head(nn.functional.leaky_relu(h, 0.1, inplace=True)).mean(1)


def frozen(model, *kept):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(name.startswith(k) for k in kept))
    return model


def convolution(dimensions, *sizes, **options):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    first = kind(*sizes, **options)
    return nn.Sequential(first, nn.Tanh(), Pooled(), nn.Linear(first.out_channels, CLASSES))


def generator():
    return torch.Generator().manual_seed(3)


# name → model, inputs; all take the exact shortcuts
FAST = {
    "linear": lambda: (nn.Linear(4, CLASSES), spread(rand(EXAMPLES, 4))),
    "linear without bias": lambda: (nn.Linear(4, CLASSES, bias=False), spread(rand(EXAMPLES, 4))),
    "softmax": lambda: (architectures.softmax(4, CLASSES), spread(rand(EXAMPLES, 4))),
    "mlp": lambda: (architectures.mlp(4, [8, 7], CLASSES, generator()), spread(rand(EXAMPLES, 4))),
    "mlp of images": lambda: (architectures.mlp(12, [8], CLASSES, generator()), spread(rand(EXAMPLES, 3, 4))),
    "mlp, first layer frozen": lambda: (
        frozen(architectures.mlp(4, [8, 7], CLASSES, generator()), "3", "5"), spread(rand(EXAMPLES, 4)),
    ),
    "mlp, biases only": lambda: (
        frozen(architectures.mlp(4, [8], CLASSES, generator()), "1.bias", "3.bias"), spread(rand(EXAMPLES, 4)),
    ),
    "mlp, one weight": lambda: (
        frozen(architectures.mlp(4, [8, 7], CLASSES, generator()), "3.weight"), spread(rand(EXAMPLES, 4)),
    ),
    "mlp without ReLU": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, CLASSES, bias=False))), spread(rand(EXAMPLES, 4)),
    ),
    "mlp of tanh": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), spread(rand(EXAMPLES, 4)),
    ),
    "mlp on a sequence": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), Mean(), nn.Linear(6, CLASSES)),
        spread(rand(EXAMPLES, 3, 4)),
    ),
    "relu layers on a sequence": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)), spread(rand(EXAMPLES, 3, 4)),
    ),
    "wide linear on a short sequence": lambda: (
        nn.Sequential(nn.Linear(24, 24), nn.Tanh(), Mean(), nn.Linear(24, CLASSES)), spread(rand(EXAMPLES, 3, 24)),
    ),
    "linear on a grid": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Mean(), nn.Linear(6, CLASSES)), spread(rand(EXAMPLES, 2, 3, 4)),
    ),
    "conv1d": lambda: (convolution(1, 2, 6, 3), spread(rand(EXAMPLES, 2, 9))),
    "conv1d, same, dilated": lambda: (
        convolution(1, 2, 6, 4, padding="same", dilation=2), spread(rand(EXAMPLES, 2, 9)),
    ),
    "conv2d": lambda: (convolution(2, 2, 6, 3), spread(rand(EXAMPLES, 2, 6, 7))),
    "conv2d, valid": lambda: (convolution(2, 2, 6, 3, padding="valid"), spread(rand(EXAMPLES, 2, 6, 7))),
    "conv2d, stride and padding": lambda: (
        convolution(2, 2, 6, (3, 2), stride=(2, 3), padding=(1, 2), bias=False), spread(rand(EXAMPLES, 2, 6, 7)),
    ),
    "conv2d, reflect": lambda: (
        convolution(2, 2, 6, 3, padding=(1, 2), padding_mode="reflect"), spread(rand(EXAMPLES, 2, 6, 7)),
    ),
    "conv2d, circular, same": lambda: (
        convolution(2, 2, 6, (4, 3), padding="same", padding_mode="circular"), spread(rand(EXAMPLES, 2, 6, 7)),
    ),
    "conv2d, replicate, dilated": lambda: (
        convolution(2, 2, 6, 2, dilation=(2, 3), padding=1, padding_mode="replicate"), spread(rand(EXAMPLES, 2, 6, 7)),
    ),
    "conv2d, groups": lambda: (convolution(2, 4, 6, 3, groups=2, stride=2), spread(rand(EXAMPLES, 4, 6, 7))),
    "conv2d, one group per channel": lambda: (convolution(2, 4, 8, 3, groups=4), spread(rand(EXAMPLES, 4, 6, 7))),
    "conv2d, many channels": lambda: (convolution(2, 32, 32, 3), spread(rand(EXAMPLES, 32, 5, 5))),
    "conv2d, many channels in groups": lambda: (
        convolution(2, 64, 64, 3, groups=2), spread(rand(EXAMPLES, 64, 5, 5)),
    ),
    "conv2d, stored by channels": lambda: (
        convolution(2, 2, 6, 3), spread(rand(EXAMPLES, 2, 6, 7)).contiguous(memory_format=torch.channels_last),
    ),
    "conv3d": lambda: (convolution(3, 2, 4, 2, padding=1), spread(rand(EXAMPLES, 2, 3, 4, 5))),
    "convolutional network": lambda: (architectures.cnn(generator(), CLASSES), spread(rand(EXAMPLES, 1, 28, 28))),
    "max pooling": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d(2, 1, dilation=2),
            nn.Flatten(), nn.Linear(16, CLASSES),
        ),
        spread(rand(EXAMPLES, 1, 9, 9)),
    ),
    "embedding": lambda: (Repeated(), tokens(9)),
    "positions, batch of one": lambda: (Positions(True), tokens(9)),
    "positions, no batch": lambda: (Positions(False), tokens(9)),
    "positions, as many as examples": lambda: (Positions(False), tokens(EXAMPLES)),
    "layer norm": lambda: (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, CLASSES)), spread(rand(EXAMPLES, 4))),
    "layer norm of grids": lambda: (
        nn.Sequential(nn.LayerNorm((3, 4)), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES)), rand(EXAMPLES, 2, 3, 4),
    ),
    "layer norm without bias": lambda: (
        nn.Sequential(nn.LayerNorm(4, bias=False), nn.Tanh(), Mean(), nn.Linear(4, CLASSES)), rand(EXAMPLES, 3, 4),
    ),
    "norms, biases only": lambda: (
        frozen(nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)), "0.bias", "1.bias"),
        rand(EXAMPLES, 4),
    ),
    "layer norm without parameters": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, CLASSES)),
        rand(EXAMPLES, 4),
    ),
    "group norm": lambda: (
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.Tanh(), Pooled(), nn.Linear(6, CLASSES)),
        spread(rand(EXAMPLES, 2, 6, 7)),
    ),
    "transformer, classes": lambda: (architectures.transformer(11, 12, CLASSES, generator(), width=8), tokens(9)),
    "reused": lambda: (Reused(), rand(EXAMPLES, 4, 6)),
    "reused convolution": lambda: (ReusedConvolution(), rand(EXAMPLES, 3, 6, 6)),
    "tied linears": lambda: (TiedLinears(), rand(EXAMPLES, 4, 6)),
    "tied embedding": lambda: (TiedEmbedding(), tokens(9, CLASSES)),
    "tied embedding, often": lambda: (TiedEmbedding(often=True), tokens(4, CLASSES)),
    "two inputs": lambda: (TwoInputs(), (rand(EXAMPLES, 4), rand(EXAMPLES, 3))),
    "inputs by name": lambda: (TwoInputs(), {"a": rand(EXAMPLES, 4), "b": rand(EXAMPLES, 3)}),
    "a layer of no use": lambda: (Unused(), rand(EXAMPLES, 4)),
    "in place": lambda: (Overwriting(), rand(EXAMPLES, 3, 6)),
    "in place, flat": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.ELU(inplace=True), nn.Linear(6, 6), nn.ReLU(True), nn.Linear(6, CLASSES)),
        rand(EXAMPLES, 4),
    ),
    "low rank": lambda: (
        architectures.lora(architectures.mlp(4, [8], CLASSES, generator()), 2, generator(), alpha=3.0),
        rand(EXAMPLES, 4),
    ),
    "low rank in a transformer": lambda: (
        architectures.lora(
            architectures.transformer(11, 12, CLASSES, generator(), width=8), 2, generator(), targets=["query", "value"]
        ),
        tokens(9),
    ),
    "part of a transformer": lambda: (
        frozen(architectures.transformer(11, 12, CLASSES, generator(), width=8), "blocks.1.attention.key", "head"),
        tokens(9),
    ),
}  # fmt: skip


def started(case, dtype):
    torch.manual_seed(0)
    model, x = case()
    if any("up.weight" in name for name, _ in model.named_parameters()):  # low rank: away from its start at zero
        for name, parameter in model.named_parameters():
            if name.endswith("up.weight"):
                parameter.data.normal_(generator=generator())
    model = model.to(dtype)

    def cast(part):
        return part.to(dtype) if part.is_floating_point() else part

    if isinstance(x, tuple):
        return model, tuple(map(cast, x))
    return model, {n: cast(part) for n, part in x.items()} if isinstance(x, dict) else cast(x)


def targets(name):
    return tokens(3, CLASSES) if name == "relu layers on a sequence" else labels()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize("name", FAST)
def test_sums_equal_one_example_at_a_time(name, clipping, dtype, oracle, distance):
    model, x = started(FAST[name], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = ClippedSums(model, clipping).sum(x, targets(name))
    assert got.dtype == dtype
    assert distance(got, oracle(model, x, targets(name), clipping)) < TOLERANCE[dtype]


@pytest.mark.parametrize("clipping", [CLIPPINGS[1], CLIPPINGS[4]], ids=str)
@pytest.mark.parametrize("name", FAST)
def test_sums_are_the_same_where_all_products_are_large(name, clipping, oracle, distance, monkeypatch):
    """Models of this size would go to one library, large ones go to another."""
    monkeypatch.setattr(products, "_FEWEST", 1)
    model, x = started(FAST[name], torch.float32)
    got = ClippedSums(model, clipping).sum(x, targets(name))
    assert distance(got, oracle(model, x, targets(name), clipping)) < 1e-5


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_next_tokens_with_some_ignored(clipping, reduction, oracle, distance):
    model = architectures.transformer(11, 12, None, generator(), width=8)
    x, y = tokens(9), tokens(9).roll(-1, 1)
    for i in range(EXAMPLES):
        y[i, 9 - i :] = -100  # each example has a number of its own
    y[2] = -100  # and this one has none
    loss = CrossEntropy(reduction=reduction)
    got = ClippedSums(model, clipping, loss).sum(x, y)
    assert distance(got, oracle(model, x, y, clipping, loss)) < 1e-5


# ---- other modules --------------------------------------------------------------------------------------------------


class Raw(nn.Module):
    """Parameters that belong to no module with a rule."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.scale, self.shift = nn.Parameter(rand(4)), nn.Parameter(rand(3, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head((torch.tanh(self.inside(x)) * self.scale + self.shift).mean(1))


class Functional(nn.Module):
    """An embedding's weight used behind its back."""

    def __init__(self):
        super().__init__()
        self.embed, self.inside = nn.Embedding(CLASSES, 6), nn.Linear(6, 6)

    def forward(self, x):
        return nn.functional.linear(torch.tanh(self.inside(self.embed(x))).mean(1), self.embed.weight)


class TimeFirst(nn.Module):
    """Its modules see (time, examples, features)."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inside(x.transpose(0, 1))).mean(0))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Branching(nn.Module):
    """Control flow that depends on values: torch.func cannot follow."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(rand(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.stack([row * self.scale if float(row.sum()) > 0 else row for row in x]))


SLOW = {
    "raw parameters": lambda: (Raw(), rand(EXAMPLES, 3, 4)),
    "a weight used elsewhere": lambda: (Functional(), tokens(6, CLASSES)),
    "time first": lambda: (TimeFirst(), rand(EXAMPLES, 5, 4)),
    "time first, as long as the trial": lambda: (TimeFirst(), rand(EXAMPLES, 3, 4)),
    "time first, as long as the batch": lambda: (TimeFirst(), rand(EXAMPLES, EXAMPLES, 4)),
    "torch's attention": lambda: (Attention(), rand(EXAMPLES, 5, 8)),
    "torch's encoder": lambda: (
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), Mean(), nn.Linear(8, CLASSES)),
        rand(EXAMPLES, 5, 8),
    ),
    "batch norm in eval mode": lambda: (
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)).eval(), rand(EXAMPLES, 4),
    ),
    "recurrent": lambda: (Recurrent(), rand(EXAMPLES, 5, 4)),
    "RMS norm": lambda: (nn.Sequential(nn.RMSNorm(4), nn.Linear(4, CLASSES)), rand(EXAMPLES, 4)),
    "weight norm": lambda: (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, CLASSES)),
        rand(EXAMPLES, 4),
    ),
    "a subclass that does something else": lambda: (nn.Sequential(Doubled(4, CLASSES)), rand(EXAMPLES, 4)),
    "control flow": lambda: (Branching(), rand(EXAMPLES, 4)),
}  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.cell(x)[0].mean(1))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("clipping", CLIPPINGS[1:], ids=str)
@pytest.mark.parametrize("name", SLOW)
def test_other_modules_are_written_out_and_it_is_said(name, clipping, dtype, oracle, distance):
    model, x = started(SLOW[name], dtype)
    with pytest.warns(SlowGradients) as said:
        sums = ClippedSums(model, clipping)
        got = sums.sum(x, labels())
        sums.sum(x, labels())
    assert len(said) == (2 if name in ("control flow", "recurrent") else 1), [str(s.message) for s in said]
    assert distance(got, oracle(model, x, labels(), clipping)) < TOLERANCE[dtype]


def test_the_module_without_a_rule_is_named():
    with pytest.warns(SlowGradients, match=r"MultiheadAttention \(attention\)"):
        ClippedSums(Attention(), CLIPPINGS[0])


# ---- the oracle itself, and twins that it must catch ----------------------------------------------------------------


def broken_sum(model, x, y, gradients, weigh):
    rows = gradients(model, x, y)
    flat = torch.stack([torch.cat([g.flatten() for g in row.values()]) for row in rows])
    return weigh(flat, [g.numel() for g in rows[0].values()])


TWINS = {
    "clipped after averaging": lambda flat, sizes: flat.sum(0) / max(1.0, float(flat.sum(0).norm())),
    "not clipped": lambda flat, sizes: flat.sum(0),
    "each tensor by itself": lambda flat, sizes: torch.cat(
        [(part / part.norm(dim=1, keepdim=True).clamp_min(1)).sum(0) for part in flat.split(sizes, 1)]
    ),
    "two examples as one": lambda flat, sizes: sum(
        pair / max(1.0, float(pair.norm())) for pair in (flat[:6].view(3, 2, -1).sum(1))
    ),
    "squared norm": lambda flat, sizes: (flat / flat.square().sum(1, keepdim=True).clamp_min(1)).sum(0),
}


@pytest.mark.parametrize("twin", TWINS)
def test_the_same_check_catches_faulty_twins(twin, oracle, distance, gradients):
    model, x = started(FAST["mlp"], torch.float64)
    y, clipping = labels(), GlobalClipping(norm=1.0)
    wanted = oracle(model, x * 20, y, clipping)
    assert distance(ClippedSums(model, clipping).sum(x * 20, y), wanted) < 1e-10
    assert distance(broken_sum(model, x * 20, y, gradients, TWINS[twin]), wanted) > 1e-2


def test_uses_of_a_shared_weight_add_up_before_their_norm(gradients):
    """A twin that takes each use's norm by itself gets another norm; ours gets autograd's."""
    model, x = started(FAST["tied embedding"], torch.float64)
    y = labels()
    norms = torch.stack([sum(g.square().sum() for g in row.values()) for row in gradients(model, x, y)]).sqrt()
    limit = float(norms.median())
    lengths = [
        float(ClippedSums(model, GlobalClipping(norm=limit)).sum(x[i : i + 1], y[i : i + 1]).norm())
        for i in range(EXAMPLES)
    ]
    torch.testing.assert_close(torch.tensor(lengths).double(), norms.clamp_max(limit), rtol=1e-6, atol=0)
