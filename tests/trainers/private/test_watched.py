"""Faster ways are taken only where they are seen to be right, and nothing hears of them."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dpaudit.errors import InputError  # noqa: E402
from dpaudit.trainers import architectures, products  # noqa: E402
from dpaudit.trainers.private import ClippedSums, GlobalClipping, PerLayerClipping, linears  # noqa: E402
from dpaudit.trainers.private.lengths import squared_lengths  # noqa: E402

CLIPPING = GlobalClipping(norm=0.3)


@pytest.fixture
def all_products_are_large(monkeypatch):
    monkeypatch.setattr(products, "_FEWEST", 1)


def seeded(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model


def batch(*shape, classes=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator), torch.randint(classes, shape[:1], generator=generator)


def right(model, x, y, oracle, distance, sums=None):
    """Whether the first and the second batch of the same are summed as by the oracle."""
    sums = ClippedSums(model, CLIPPING) if sums is None else sums
    return max(distance(sums.sum(x, y), oracle(model, x, y, CLIPPING)) for _ in range(2)) < 1e-5


class Checkpointed(nn.Module):
    """A part is computed again in the backward pass."""

    def __init__(self, part):
        super().__init__()
        self.inside, self.part, self.head = nn.Linear(6, 8), part, nn.Linear(8, 4)

    def forward(self, x):
        y = checkpoint(self.part, torch.tanh(self.inside(x)), use_reentrant=False)
        return self.head(y.flatten(1, -2).mean(1) if y.dim() > 2 else y)


@pytest.mark.usefixtures("all_products_are_large")
@pytest.mark.parametrize("shape", [(5, 6), (5, 3, 6)])
def test_what_is_checkpointed(shape, oracle, distance):
    """Its weight is square: with the wrong one of two matrices all shapes would fit."""
    model = seeded(Checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Tanh())))
    assert right(model, *batch(*shape), oracle, distance)


def test_attention_that_is_checkpointed(oracle, distance):
    model = seeded(Checkpointed(architectures.SelfAttention(8, 2, causal=True)))
    assert right(model, *batch(5, 3, 6), oracle, distance)


class Viewed(nn.Module):
    """Takes for granted how the results of pooling lie in memory."""

    def __init__(self):
        super().__init__()
        self.first, self.pool, self.head = nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Linear(27, 4)

    def forward(self, x):
        return self.head(self.pool(torch.relu(self.first(x))).view(-1, 27))


def test_views_of_what_was_pooled(oracle, distance):
    model = seeded(Viewed())
    sums = ClippedSums(model, CLIPPING)
    assert right(model, *batch(5, 1, 8, 8), oracle, distance, sums)
    assert sums._gradients.ways == {"products"}


def test_a_way_that_fails_later_is_given_up(oracle, distance):
    """It makes a view of what was pooled only from the second batch on."""
    model = seeded(Viewed())
    model.late, batches = False, []

    def forward(self, x):
        pooled = self.pool(torch.relu(self.first(x)))
        batches.append(len(x))
        return self.head(pooled.view(-1, 27) if self.late else pooled.flatten(1))

    model.forward = types.MethodType(forward, model)
    sums = ClippedSums(model, CLIPPING)
    assert right(model, *batch(5, 1, 8, 8), oracle, distance, sums)
    assert "pooling" in sums._gradients.ways
    model.late = True
    assert right(model, *batch(5, 1, 8, 8), oracle, distance, sums)
    assert not sums._gradients.ways


def test_a_models_own_error_is_raised():
    model = seeded(Viewed())
    sums = ClippedSums(model, CLIPPING)
    sums.sum(*batch(5, 1, 8, 8))
    with pytest.raises(RuntimeError, match="channels"):
        sums.sum(*batch(5, 2, 8, 8))


@pytest.mark.usefixtures("all_products_are_large")
@pytest.mark.parametrize("sequence", [False, True], ids=["by hand", "book-keeping"])
def test_a_bias_with_gaps_in_memory(sequence, oracle, distance):
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    model[0].bias = nn.Parameter(torch.randn((8, 3), generator=torch.Generator().manual_seed(2))[:, 1])
    assert not model[0].bias.is_contiguous()
    if sequence:
        model = nn.Sequential(model, nn.Tanh())
    assert right(model, *batch(5, 6), oracle, distance)


@pytest.mark.usefixtures("all_products_are_large")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("what", ["forward", "backward hook", "hook everywhere"])
def test_what_users_put_on_a_layer_is_done(what, late, oracle, distance):
    """Before the engine was made, and after: by hand it would not be heard."""
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    sums = ClippedSums(model, CLIPPING) if late else None
    handle = None
    if what == "forward":
        layer = model[0]
        layer.forward = types.MethodType(lambda self, x: -2 * nn.Linear.forward(self, x), layer)
        # The rule knows nothing of this, so it is written out.
        with pytest.warns(UserWarning, match="written out"):
            assert right(model, *batch(5, 6), oracle, distance, sums)
        assert "forward" in vars(layer)
        return
    if what == "backward hook":
        model[2].register_full_backward_pre_hook(lambda module, slopes: (3 * slopes[0],))
    else:
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, out: 2 * out if isinstance(module, nn.ReLU) else None
        )
    try:
        assert right(model, *batch(5, 6), oracle, distance, sums)
    finally:
        if handle is not None:
            handle.remove()


class Transformed(nn.Module):
    """Uses a frozen layer inside a transform of ``torch.func``."""

    def __init__(self):
        super().__init__()
        self.frozen, self.head = nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.tanh(torch.vmap(self.frozen)(x.unsqueeze(1))).squeeze(1))


@pytest.mark.usefixtures("all_products_are_large")
def test_transforms_inside_a_model(oracle, distance):
    assert right(seeded(Transformed()), *batch(5, 6), oracle, distance)


def test_a_fast_way_that_is_wrong_is_not_taken(monkeypatch, oracle, distance):
    """Tried on the first batch, whatever its size."""
    monkeypatch.setattr(linears, "product", lambda left, right, *_, **__: 1.1 * (left @ right))
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))
    sums = ClippedSums(model, CLIPPING)
    if products._ONEDNN is not None:
        assert right(model, *batch(5, 6), oracle, distance, sums)
        assert sums._gradients.settled and not sums._gradients.ways


def test_a_fast_way_that_is_right_is_taken(oracle, distance):
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))
    sums = ClippedSums(model, CLIPPING)
    assert right(model, *batch(5, 6), oracle, distance, sums)
    assert sums._gradients.settled and sums._gradients.ways == {"products", "pooling"}


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.1, None])
@pytest.mark.parametrize("width", [1, 4096, 4097, 2**20 + 3, 2**22])
def test_norms_of_long_vectors_are_not_short(width, value):
    """Equal numbers are the worst: a plain sum of their squares is 2e-3 short."""
    rows = (
        torch.full((2, width), value) if value else torch.randn((2, width), generator=torch.Generator().manual_seed(3))
    )
    exact = rows.double().square().sum(1)
    assert float((squared_lengths(rows).double() / exact - 1).abs().max()) < 2e-6


@pytest.mark.parametrize("clipping", [GlobalClipping(norm=0.1), PerLayerClipping(norm=0.1)])
def test_a_gradient_of_many_numbers_is_clipped_to_its_limit(clipping):
    model = nn.Sequential(nn.Linear(2**20, 2, bias=False))
    with torch.no_grad():
        model[0].weight.zero_()
    total = ClippedSums(model, clipping).sum(torch.full((1, 2**20), 0.1), torch.tensor([0]))
    assert float(total.double().norm()) == pytest.approx(0.1, rel=2e-6)


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_autocast_is_refused():
    sums = ClippedSums(nn.Linear(6, 4), CLIPPING)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="under autocast"):
        sums.sum(*batch(5, 6))


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(torch.tanh(self.inside(x)))


def test_autocast_inside_a_model_is_refused():
    with pytest.raises(InputError, match=r"torch\.bfloat16 where torch\.float32 is trained"):
        ClippedSums(seeded(Rounded()), CLIPPING).sum(*batch(5, 6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_half_precision_are_refused(dtype):
    with pytest.raises(InputError, match="must be float32 or float64"):
        ClippedSums(nn.Linear(6, 4).to(dtype), CLIPPING)
