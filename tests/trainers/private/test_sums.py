"""Clipped sums: in pieces, of few examples or none, under any loss, and with examples that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    AutomaticClipping,
    ClippedSums,
    CrossEntropy,
    GlobalClipping,
    PerLayerClipping,
    PrivateEngine,
    Sgd,
)

CLIPPINGS = [GlobalClipping(norm=0.4), AutomaticClipping(norm=0.4), PerLayerClipping(norm=0.4)]


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def small(kind="by hand"):
    """A model with ReLU that is done by hand, or one with tanh that is done by book-keeping."""
    if kind == "by hand":
        return architectures.mlp(6, [5], 3, generator())
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(size, seed=1):
    x = torch.randn((size, 6), generator=generator(seed))
    return x, torch.randint(3, (size,), generator=generator(seed + 1))


def engine(model, **changes):
    options = {
        "clipping": GlobalClipping(norm=0.4),
        "noise_multiplier": 1.5,
        "divisor": 8,
        "optimizer": Sgd(learning_rate=0.5),
        "generator": np.random.default_rng(0),
        **changes,
    }
    return PrivateEngine(model, **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad]).clone()


KINDS = ["by hand", "book-keeping"]

# ---- sums -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize("pieces", [1, 3, 5, 16, 100])
def test_a_batch_in_pieces_is_the_same_batch(kind, clipping, pieces):
    model, (x, y) = small(kind).double(), batch(16)
    whole = ClippedSums(model, clipping).sum(x.double(), y)
    split = ClippedSums(model, clipping, physical_batch_size=pieces).sum(x.double(), y)
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_no_piece_is_larger_than_asked(kind):
    seen = []

    class Watched(CrossEntropy):
        def __call__(self, outputs, targets):
            seen.append(len(targets))
            return super().__call__(outputs, targets)

    sums = ClippedSums(small(kind), CLIPPINGS[0], Watched(), physical_batch_size=4)
    sums.sum(*batch(11))
    assert max(seen) <= 4 and sum(seen[-3:]) == 11


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_one_example_and_none(kind, clipping, oracle, distance):
    model, (x, y) = small(kind), batch(1)
    sums = ClippedSums(model, clipping)
    assert not sums.sum(x[:0], y[:0]).any()
    assert distance(sums.sum(x, y), oracle(model, x, y, clipping)) < 1e-5
    assert float(sums.sum(x, y).norm()) <= clipping.sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_examples_does_not_matter(kind):
    model, (x, y) = small(kind).double(), batch(16)
    order = torch.randperm(16, generator=generator())
    sums = ClippedSums(model, CLIPPINGS[0])
    torch.testing.assert_close(sums.sum(x.double()[order], y[order]), sums.sum(x.double(), y), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_want_a_gradient_get_none_and_change_nothing(kind):
    model, (x, y) = small(kind), batch(16)
    plain = ClippedSums(model, CLIPPINGS[0]).sum(x, y)
    wanting = x.clone().requires_grad_()
    torch.testing.assert_close(ClippedSums(model, CLIPPINGS[0]).sum(wanting, y), plain)
    assert wanting.grad is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(kind, clipping):
    model, (x, y) = small(kind).double(), batch(16)
    x = x.double() * torch.logspace(-3, 3, 16)[:, None]
    sums = ClippedSums(model, clipping)
    whole = sums.sum(x, y)
    others = [[j for j in range(16) if j != i] for i in range(16)]
    moved = [float((whole - sums.sum(x[kept], y[kept])).norm()) for kept in others]
    assert max(moved) <= clipping.sensitivity * (1 + 1e-9)
    assert max(moved) > 0.9 * clipping.sensitivity


def test_dropout_is_the_same_for_norm_and_sum():
    """In one graph: the loss of each example, differentiated by itself, with the masks that it was drawn."""
    model = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Tanh(), nn.Linear(30, 3)).double()
    (x, y), clipping = batch(9), GlobalClipping(norm=0.7)
    sums = ClippedSums(model, clipping)
    sums.sum(x.double(), y)
    torch.manual_seed(5)
    got = sums.sum(x.double(), y)
    torch.manual_seed(5)
    wanted = torch.zeros_like(got)
    for loss in CrossEntropy()(model(x.double()), y):
        parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        gradient = torch.cat([part.flatten() for part in parts])
        wanted += gradient * min(1.0, 0.7 / float(gradient.norm()))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_train_and_eval_mode_are_kept(training, oracle, distance):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0 if training else 0.9), nn.Tanh(), nn.Linear(8, 3))
    model.train(training)
    x, y = batch(9)
    assert distance(ClippedSums(model, CLIPPINGS[0]).sum(x, y), oracle(model, x, y, CLIPPINGS[0])) < 1e-5
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_any_loss_of_one_number_per_example(kind, oracle, distance):
    model, (x, _) = small(kind), batch(9)
    y = torch.randn((9, 3), generator=generator())

    def squared(outputs, targets):
        return (outputs - targets).square().sum(1)

    def total(outputs, targets):
        return outputs.sum(1) * targets[:, 0].exp()

    for loss in (squared, total):
        got = ClippedSums(model, CLIPPINGS[0], loss).sum(x, y)
        assert distance(got, oracle(model, x, y, CLIPPINGS[0], loss)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_and_ignored_classes(kind, oracle, distance):
    model, (x, y) = small(kind), batch(9)
    soft = torch.softmax(torch.randn((9, 3), generator=generator()), 1)
    assert distance(ClippedSums(model, CLIPPINGS[0]).sum(x, soft), oracle(model, x, soft, CLIPPINGS[0])) < 1e-5
    y[:4] = -100
    got = ClippedSums(model, CLIPPINGS[0]).sum(x, y)
    assert distance(got, oracle(model, x[4:], y[4:], CLIPPINGS[0])) < 1e-5


def test_per_example_gradients_are_never_all_written_out():
    """100,000 parameters × 512 examples would be 205 MB."""
    model = architectures.mlp(300, [300], 10, generator())
    x, y = torch.randn((512, 300), generator=generator()), torch.zeros(512, dtype=torch.long)
    for kind in (model, nn.Sequential(*[nn.Tanh() if type(m) is nn.ReLU else m for m in model])):
        sums = ClippedSums(kind, CLIPPINGS[0])
        sums.sum(x, y)
        with torch.profiler.profile(profile_memory=True) as profile:
            sums.sum(x, y)
        assert largest_allocation(profile) < 2e6


def largest_allocation(profile):
    return max(event.cpu_memory_usage for event in profile.key_averages())


# ---- what is not finite ---------------------------------------------------------------------------------------------


def poisoned(x, places):
    out = x.clone()
    for row, value in places:
        out[row] = value
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_what_is_not_finite_adds_nothing_and_does_not_spread(kind, clipping):
    model, (x, y) = small(kind), batch(8)
    bad = poisoned(x, [(2, math.nan), (5, math.inf), (7, 3e38)])
    kept = [0, 1, 3, 4, 6]
    one = engine(model, clipping=clipping, noise_multiplier=0)
    torch.testing.assert_close(one.clipped_sum(bad, y), one.clipped_sum(x[kept], y[kept]), rtol=1e-5, atol=1e-7)
    before = flat(model)
    one.step(bad, y)
    assert torch.isfinite(flat(model)).all() and not torch.equal(flat(model), before)
    assert one.diagnostics.dropped == 3 and one.diagnostics.batch_sizes == (8,)


class OneLayerBreaks(nn.Module):
    """Its second layer's input is infinite for examples whose first feature is large; the first layer's is not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.first(x) + self.second(torch.where(x[:, :1] > 100, math.inf, x)).nan_to_num(0.0, 0.0, 0.0)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_an_example_with_one_broken_layer_is_left_out_of_all(clipping):
    model, (x, y) = OneLayerBreaks(), batch(8)
    bad = x.clone()
    bad[3, 0] = 1000.0
    kept = [i for i in range(8) if i != 3]
    one = engine(model, clipping=clipping, noise_multiplier=0)
    torch.testing.assert_close(one.clipped_sum(bad, y), one.clipped_sum(x[kept], y[kept]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_an_infinite_loss_leaves_its_example_out(kind):
    model, (x, y) = small(kind), batch(8)

    def loss(outputs, targets):
        return CrossEntropy()(outputs, targets) + torch.where(targets == 1, math.inf, 0.0)

    kept = y != 1
    assert 0 < int(kept.sum()) < 8
    one = engine(model, loss=loss, noise_multiplier=0)
    plain = engine(model, noise_multiplier=0)
    torch.testing.assert_close(one.clipped_sum(x, y), plain.clipped_sum(x[kept], y[kept]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("model", ["conv", "tokens"])
def test_nothing_spreads_through_convolutions_and_embeddings(model):
    if model == "conv":
        net, x = architectures.cnn(generator()), torch.randn((6, 1, 28, 28), generator=generator())
        bad = poisoned(x, [(1, math.nan), (4, math.inf)])
        y, kept, loss = torch.arange(6), [0, 2, 3, 5], None
    else:
        net = architectures.transformer(11, 9, 10, generator(), width=8)
        x = bad = torch.randint(11, (6, 9), generator=generator())
        y, kept = torch.arange(6), [0, 2, 3, 5]

        def loss(outputs, targets):
            factor = torch.where((targets == 1) | (targets == 4), math.nan, 1.0)
            return CrossEntropy()(outputs, targets) * factor

    one = engine(net, noise_multiplier=0, loss=loss)
    torch.testing.assert_close(one.clipped_sum(bad, y), one.clipped_sum(x[kept], y[kept]), rtol=1e-4, atol=1e-6)


def test_a_sum_without_the_zeros_would_spread():
    """The twin: weight 0 alone leaves NaN, as 0 · ∞ is NaN."""
    assert math.isnan(0.0 * math.inf)
    left, right = torch.ones(2, 3), torch.tensor([[1.0, math.inf], [1.0, 1.0]])
    assert not torch.isfinite((left * torch.tensor([[0.0], [1.0]])).t() @ right).all()


# ---- factors far apart ----------------------------------------------------------------------------------------------


def gapped(kind, gap):
    """A network whose second class is ahead by ``gap``, so that its example's derivatives are about e^-gap."""
    head = nn.Linear(9, 2)
    if kind == "sequence":
        model = nn.Sequential(nn.Linear(9, 9, bias=False), nn.Unflatten(1, (3, 3)), nn.Linear(3, 3), nn.Flatten(), head)
    elif kind == "convolutional":
        model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), head)
    else:
        model = nn.Sequential(head) if kind == "by hand" else nn.Sequential(nn.Identity(), head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        head.bias.copy_(torch.tensor([0.0, gap]))
        if kind == "sequence":
            model[0].weight.copy_(torch.eye(9))
            head.weight.fill_(1e-3)
            head.weight[1] *= -1
        if kind == "convolutional":
            model[0].weight.fill_(1.0)
    return model


@pytest.mark.parametrize("flushed", [False, True], ids=["", "flushed"])
@pytest.mark.parametrize("kind", ["by hand", "book-keeping", "convolutional", "sequence"])
def test_a_gradient_of_tiny_and_huge_factors_is_clipped(kind, flushed):
    """Squares of the one underflow, and times those of the other they would be nothing."""
    shape = (1, 1, 3, 3) if kind == "convolutional" else (1, 9)
    longest = 0.0
    torch.set_flush_denormal(flushed)
    try:
        for gap in (30.0, 40.0, 45.0, 48.0, 52.0, 60.0, 80.0):
            for size in (1e10, 1e15, 3e18):
                for norm in (1e-5, 1e-2, 1.0):
                    sums = ClippedSums(gapped(kind, gap), GlobalClipping(norm=norm))
                    sums.sum(torch.randn((4, *shape[1:]), generator=generator()), torch.zeros(4, dtype=torch.long))
                    total = sums.sum(torch.full(shape, size), torch.tensor([1]))
                    longest = max(longest, float(total.double().norm()) / norm)
    finally:
        torch.set_flush_denormal(False)
    assert 0.5 < longest <= 1 + 1e-6
