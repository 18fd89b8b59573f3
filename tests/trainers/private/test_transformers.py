"""Transformers by hand: the same clipped sums as one example at a time by autograd, or the way is not taken."""

from __future__ import annotations

import math
import tracemalloc
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.example_loops import Rule, squared_length, weigh  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    Adam,
    AutomaticClipping,
    ClippedSums,
    CrossEntropy,
    GlobalClipping,
    Momentum,
    PerLayerClipping,
    PrivateEngine,
    Sgd,
    optimizers,
    transformers,
)
from dpaudit.trainers.private.layout import Layout  # noqa: E402
from dpaudit.trainers.private.transformers import TransformerByHand  # noqa: E402

VOCABULARY, LENGTH = 11, 12
CLIPPING = GlobalClipping(norm=0.3)
LAYERS = 20  # of the model below: two tables, two blocks of eight, a norm and a head
CLIPPINGS = [
    CLIPPING,
    GlobalClipping(norm=5.0),
    GlobalClipping(norm=1e-12),
    GlobalClipping(norm=1e6),
    AutomaticClipping(norm=0.5),
    AutomaticClipping(norm=0.5, stability=2.0),
    PerLayerClipping(norm=2.0),
    PerLayerClipping(norms=[0.02 * (1 + n) for n in range(LAYERS)]),
]

each_rule = pytest.mark.parametrize("clipping", [CLIPPING, AutomaticClipping(norm=0.3), PerLayerClipping(norm=0.3)],
                                    ids=str)  # fmt: skip
each_task = pytest.mark.parametrize("classes", [5, None], ids=["classify", "next token"])


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def network(classes=5, *, vocabulary=VOCABULARY, length=LENGTH, width=8, heads=2, layers=2):
    """Away from where it starts, so that norms and biases do something."""
    model = architectures.transformer(vocabulary, length, classes, generator(), width=width, heads=heads, layers=layers)
    at_random = generator(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=at_random)
    return model


def batch(classes=5, size=7, tokens=9, vocabulary=VOCABULARY, seed=1):
    """With a label for each token where ``classes`` is None."""
    x = torch.randint(vocabulary, (size, tokens), generator=generator(seed))
    shape = (size, tokens) if classes is None else (size,)
    return x, torch.randint(classes or vocabulary, shape, generator=generator(seed + 1))


def by_hand(sums, x, y):
    """Whether the way was tried, and is the one that this batch is done in."""
    way = sums._by_hand
    return isinstance(way, TransformerByHand) and sums._tried and sums._prepare(x, y, len(y)) is way


def right(model, x, y, oracle, distance, clipping=CLIPPING, loss=None, sums=None):
    """Whether the first and the second sum of a batch are those of the oracle."""
    sums = ClippedSums(model, clipping, loss) if sums is None else sums
    wanted = oracle(model, x, y, clipping, loss)
    return max(distance(sums.sum(x, y), wanted) for _ in range(2)) < 1e-5


def engine(model, **changes):
    options = {
        "clipping": CLIPPING,
        "noise_multiplier": 1.5,
        "divisor": 8,
        "optimizer": Sgd(learning_rate=0.5),
        "generator": np.random.default_rng(0),
        **changes,
    }
    return PrivateEngine(model, **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


@pytest.fixture(autouse=True)
def threads():
    """Sets how many threads torch has: one, but for tests that ask for more. Operations as small as these need none."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


# ---- right ----------------------------------------------------------------------------------------------------------


@each_task
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_sums_equal_one_example_at_a_time(clipping, classes, oracle, distance):
    model, (x, y) = network(classes), batch(classes)
    sums = ClippedSums(model, clipping)
    assert right(model, x, y, oracle, distance, clipping, sums=sums)
    assert by_hand(sums, x, y) and len(sums.layout.layers) == LAYERS


@pytest.mark.parametrize("tokens", [8, 9, 16, 17, 33])
@pytest.mark.parametrize(
    ("width", "heads", "layers", "classes"),
    [(1, 1, 1, 2), (8, 1, 1, None), (20, 5, 3, 5), (33, 3, 1, 20), (64, 4, 2, None), (16, 16, 2, 2)],
)
def test_all_sizes(width, heads, layers, classes, tokens, oracle, distance):
    """Sequences are shorter than they may be, and as long."""
    model = network(classes, width=width, heads=heads, layers=layers, length=33)
    x, y = batch(classes, 3, tokens)
    sums = ClippedSums(model, CLIPPING)
    assert distance(sums.sum(x, y), oracle(model, x, y, CLIPPING)) < 1e-5
    assert by_hand(sums, x, y)


@each_task
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_batches_of_all_sizes(size, classes, threads, oracle, distance):
    """By one thread, and shared out."""
    model, (x, y) = network(classes, layers=1), batch(classes, size)
    sums, wanted = ClippedSums(model, CLIPPING), oracle(model, x, y, CLIPPING)
    for number in (1, 3):
        threads(number)
        assert distance(sums.sum(x, y), wanted) < 1e-5
    assert by_hand(sums, x, y)


def some_ignored(y, ignored=-100):
    """Each example keeps a number of its own, and one none."""
    y = y.clone()
    for i in range(len(y)):
        y[i, y.shape[1] - i :] = ignored
    y[2] = ignored
    return y


@pytest.mark.parametrize("ignored", [-100, 3, 99])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clipping", [CLIPPINGS[1], CLIPPINGS[4], CLIPPINGS[6]], ids=str)
def test_next_tokens_with_some_ignored(clipping, reduction, ignored, oracle, distance):
    model, (x, y) = network(None), batch(None)
    y, loss = some_ignored(y, ignored), CrossEntropy(reduction=reduction, ignore_index=ignored)
    sums = ClippedSums(model, clipping, loss)
    assert right(model, x, y, oracle, distance, clipping, loss, sums)
    assert by_hand(sums, x, y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_classes_with_some_ignored(reduction, oracle, distance):
    model, (x, y) = network(), batch()
    y[[1, 4]] = 2
    loss = CrossEntropy(reduction=reduction, ignore_index=2)
    sums = ClippedSums(model, CLIPPING, loss)
    assert right(model, x, y, oracle, distance, loss=loss, sums=sums)
    assert by_hand(sums, x, y)


@each_task
def test_examples_that_are_all_ignored_add_nothing(classes):
    model, (x, y) = network(classes), batch(classes)
    one = engine(model, noise_multiplier=0)
    one.step(x, y)
    before = flat(model)
    one.step(x, torch.full_like(y, -100))
    assert torch.equal(flat(model), before) and not one.released.any()
    assert one._sums._tried and one.diagnostics.dropped == 0 and one.diagnostics.steps[1].scaled == 0


@each_task
def test_a_token_that_comes_again_adds_up_before_its_norm(classes, oracle, distance, gradients):
    """A norm of each row by itself is another; then a limit between them would show it."""
    model = network(classes)
    x, y = batch(classes, 3)
    x[0], x[1] = 4, x[1] % 2
    rows = gradients(model, x, y)
    whole, apart = (float(rows[0][name + ".weight"].norm()) for name in ("tokens", "positions"))
    assert abs(whole / apart - 1) > 0.1
    sums = ClippedSums(model, PerLayerClipping(norm=0.3))
    assert right(model, x, y, oracle, distance, PerLayerClipping(norm=0.3), sums=sums)
    assert by_hand(sums, x, y)


@pytest.mark.parametrize("eps", [0.3, 0.0])
def test_other_widths_inside_blocks_and_another_eps(eps, oracle, distance):
    """All the same, so that the loops know them; without eps, what is beyond the last token is no number."""
    model, (x, y) = network(), batch()
    for block in model.blocks:
        block.wide, block.narrow = nn.Linear(8, 19), nn.Linear(19, 8)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y)


def test_parameters_and_batches_with_gaps_in_memory(oracle, distance):
    model = network()
    for layer in (model.head, model.blocks[1].wide):
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
        layer.bias = nn.Parameter(layer.bias.detach().repeat_interleave(3)[1::3])
        assert not layer.weight.is_contiguous() and not layer.bias.is_contiguous()
    x, y = batch()
    x, y = x.t().contiguous().t(), torch.stack([y, y + 100], 1)[:, 0]
    assert not x.is_contiguous() and not y.is_contiguous()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y)


@each_task
@pytest.mark.parametrize("optimizer", [Sgd(learning_rate=0.5), Adam(learning_rate=0.01)], ids=str)
def test_steps_follow_the_parameters(optimizer, classes, oracle, distance):
    model = network(classes, layers=1)
    one = engine(model, noise_multiplier=0, optimizer=optimizer)
    for seed in range(3):
        x, y = batch(classes, 3, 8 + seed, seed=seed)
        wanted, before = oracle(model, x, y, CLIPPING), flat(model)
        one.step(x, y)
        assert distance(one.released, wanted) < 1e-5
        assert not torch.equal(flat(model), before)
    assert isinstance(one._sums._by_hand, TransformerByHand) and one._sums._tried


# ---- what one example may do ----------------------------------------------------------------------------------------


@each_task
@pytest.mark.parametrize("clipping", [c for c in CLIPPINGS if c.sensitivity < 100], ids=str)
def test_one_example_moves_the_sum_by_no_more_than_the_sensitivity(clipping, classes):
    """Whether it is in short or long, and by itself or with others."""
    model, loss = network(classes), CrossEntropy(reduction="sum")
    with torch.no_grad():
        model.head.weight *= 30
    sums, (x, y) = ClippedSums(model, clipping, loss), batch(classes)
    lengths = [float(sums.sum(x[i : i + 1], y[i : i + 1]).double().norm()) for i in range(len(x))]
    limit = clipping.sensitivity
    assert 0.6 * limit < max(lengths) < limit * (1 + 2e-6)
    moved = float((sums.sum(x[:3], y[:3]).double() - sums.sum(x[:2], y[:2]).double()).norm())
    assert moved < limit * (1 + 2e-6)
    assert by_hand(sums, x, y)


@each_task
def test_those_above_the_limit_are_counted_as_scaled(classes, gradients):
    model, (x, y) = network(classes), batch(classes)
    norms = [math.sqrt(sum(float(g.square().sum()) for g in row.values())) for row in gradients(model, x, y)]
    limit = (sorted(norms)[2] + sorted(norms)[3]) / 2
    one = engine(model, clipping=GlobalClipping(norm=limit), noise_multiplier=0)
    one.step(x, y)
    assert one.diagnostics.steps[0] == transformers.StepCounts(examples=7, scaled=4, dropped=0)
    assert one._sums._tried


def test_with_a_limit_per_layer_one_layer_is_enough_to_be_counted():
    model, (x, y) = network(), batch()
    norms = [1e6] * LAYERS
    norms[3] = 1e-6
    one = engine(model, clipping=PerLayerClipping(norms=norms), noise_multiplier=0)
    one.step(x, y)
    assert one.diagnostics.steps[0].scaled == 7 and one._sums._tried


@pytest.mark.parametrize("value", [0.1, 1e-15, None])
@pytest.mark.parametrize("numbers", [0, 1, 63, 64, 65, 2047, 2048, 2049, 100_003, 2**20 + 3])
def test_norms_of_long_vectors_are_not_short(numbers, value):
    """Equal numbers are the worst: a plain sum of their squares is short."""
    values = np.full(numbers, value, np.float32)
    if value is None:
        values = np.random.default_rng(numbers).normal(size=numbers).astype(np.float32)
    assert squared_length(values) == pytest.approx((values.astype(np.float64) ** 2).sum(), rel=2e-6)


def test_a_plain_sum_of_squares_is_short():
    values = np.full(2**20, 0.1, np.float32)
    total = np.cumsum(values * values, dtype=np.float32)[-1]
    assert abs(float(total) / (values.astype(np.float64) ** 2).sum() - 1) > 2e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("place", [0, 63, 64, 4096, 4999])
def test_norms_of_what_is_not_finite_are_not(place, bad):
    values = np.ones(5000, np.float32)
    values[place] = bad
    assert not squared_length(values) <= np.finfo(np.float32).max


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_is_not_finite_in_any_layer_drops_the_example(by_layer):
    rule, weights = Rule(np.ones(4), by_layer, True, 0.0), np.empty(4, np.float32)
    assert weigh(np.array([0.1, 0.2, 0.0, 0.3]), rule, weights) == 0 and (weights == 1).all()
    assert weigh(np.array([0.1, 9.0, 0.0, 0.3]), rule, weights) == 1
    np.testing.assert_allclose(weights, [1, 1 / 3, 1, 1] if by_layer else [1 / math.sqrt(9.4)] * 4, rtol=1e-6)
    for bad in (np.nan, np.inf, 1e39):
        for layer in range(4):
            squares = np.ones(4)
            squares[layer] = bad
            assert weigh(squares, rule, weights) == -1


# ---- examples keep to themselves ------------------------------------------------------------------------------------


def test_what_comes_later_does_not_matter_before(oracle, distance):
    """Where labels from some place on are ignored, so are the tokens there."""
    model, (x, y) = network(None), batch(None)
    y[:, 5:] = -100
    other = x.clone()
    other[:, 5:] = (x[:, 5:] + 1) % VOCABULARY
    sums = ClippedSums(model, CLIPPING)
    first, second = sums.sum(x, y), sums.sum(other, y)
    assert distance(first, oracle(model, x, y, CLIPPING)) < 1e-5
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-8)
    other[:, 4] = (x[:, 4] + 1) % VOCABULARY
    assert distance(sums.sum(other, y), first.double()) > 1e-2
    places = sums.layout.split(first)[1]
    assert places[:5].any(1).all() and not places[5:].any()
    assert by_hand(sums, x, y)


@each_rule
@each_task
def test_the_order_of_examples_does_not_matter(classes, clipping):
    model, (x, y) = network(classes), batch(classes, 16)
    sums, order = ClippedSums(model, clipping), torch.randperm(16, generator=generator())
    torch.testing.assert_close(sums.sum(x[order], y[order]), sums.sum(x, y), rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


@each_task
def test_a_batch_is_the_sum_of_its_examples(classes):
    model, (x, y) = network(classes), batch(classes, 6)
    sums = ClippedSums(model, CLIPPING)
    apart = sum(sums.sum(x[i : i + 1], y[i : i + 1]) for i in range(6))
    torch.testing.assert_close(sums.sum(x, y), apart, rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


@each_task
def test_any_number_of_threads_gives_the_same_up_to_rounding(classes, threads):
    model, (x, y) = network(classes), batch(classes, 17)
    sums, found = ClippedSums(model, CLIPPING), []
    for number in (1, 2, 3):
        threads(number)
        found.append(sums.sum(x, y))
        assert all(torch.equal(sums.sum(x, y), found[-1]) for _ in range(3))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


@each_task
@pytest.mark.parametrize("number", [1, 3])
def test_two_runs_with_one_seed_are_the_same_to_the_last_bit(number, classes, threads):
    threads(number)
    found = []
    for _ in range(2):
        model = network(classes, layers=1)
        one = engine(model, optimizer=Adam(learning_rate=0.01))
        for seed in range(3):
            one.step(*batch(classes, 13, seed=seed))
        assert one._sums._tried
        found.append(flat(model))
    assert torch.equal(*found)


# ---- what is not finite ---------------------------------------------------------------------------------------------


def poisoned(model, value, token=VOCABULARY - 1):
    """One token is poison."""
    with torch.no_grad():
        model.tokens.weight[token] = value
    return model


@each_rule
@each_task
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_finite_adds_nothing_and_does_not_spread(value, classes, clipping, threads):
    model = poisoned(network(classes), value)
    x, y = batch(classes, 12, vocabulary=VOCABULARY - 1)
    for row, place in ((0, 0), (5, 8), (6, 3), (11, 4)):
        x[row, place] = VOCABULARY - 1
    kept = [1, 2, 3, 4, 7, 8, 9, 10]
    one = engine(model, clipping=clipping, noise_multiplier=0)
    wanted = one.clipped_sum(x[kept], y[kept])
    for number in (1, 3):
        threads(number)
        torch.testing.assert_close(one.clipped_sum(x, y), wanted, rtol=1e-5, atol=1e-6)
    sound = flat(model).isfinite()
    one.step(x, y)
    assert torch.equal(flat(model).isfinite(), sound)
    assert one.diagnostics.dropped == 4 and one.diagnostics.batch_sizes == (12,)
    assert by_hand(one._sums, x, y)


@each_task
@pytest.mark.parametrize("rows", [[2], [2, 3], [0], [1, 4]], ids=str)
def test_the_first_batch_may_have_examples_that_are_not_finite(rows, classes, oracle, distance):
    """Whether the trial looks at them or at others."""
    model = network(classes)
    x, y = batch(classes, 5, vocabulary=VOCABULARY - 1)
    kept = [i for i in range(5) if i not in rows]
    wanted = oracle(model, x[kept], y[kept], CLIPPING)
    poisoned(model, math.nan)
    bad = x.clone()
    bad[rows, 3] = VOCABULARY - 1
    sums = ClippedSums(model, CLIPPING)
    assert distance(sums.sum(bad, y), wanted) < 1e-5
    assert sums._tried or not {0, 1, 4}.isdisjoint(rows)
    sums.sum(x, y)
    assert by_hand(sums, bad, y) and distance(sums.sum(bad, y), wanted) < 1e-5


def test_an_infinite_loss_whose_slope_is_finite_drops_its_example():
    """The difference of two logits is more than float32 holds."""
    model, (x, _) = network(), batch(size=6)
    with torch.no_grad():
        model.head.bias[:] = torch.tensor([3e38, -3e38, 0.0, 1e38, 0.0])
    y = torch.tensor([0, 2, 1, 3, 1, 2])
    one = engine(model, noise_multiplier=0)
    wanted = one.clipped_sum(x[y != 1], y[y != 1])
    torch.testing.assert_close(one.clipped_sum(x, y), wanted, rtol=1e-5, atol=1e-6)
    assert float(wanted.norm()) > 0.3
    one.step(x, y)
    assert one.diagnostics.dropped == 2 and by_hand(one._sums, x, y)


def test_an_infinite_loss_at_one_place_drops_its_example_unless_it_is_ignored():
    model, (x, y) = network(None), batch(None, 6)
    with torch.no_grad():
        model.head.bias[1], model.head.bias[2] = -3.3e38, 3e37
    y = y.clamp(min=2)
    y[2, 4] = y[5, 8] = 1
    kept, hidden = [0, 1, 3, 4], y.clone()
    one = engine(model, noise_multiplier=0)
    torch.testing.assert_close(one.clipped_sum(x, y), one.clipped_sum(x[kept], y[kept]), rtol=1e-5, atol=1e-6)
    one.step(x, y)
    hidden[y == 1] = -100
    one.step(x, hidden)
    assert [step.dropped for step in one.diagnostics.steps] == [2, 0] and by_hand(one._sums, x, y)


# ---- the way is not taken -------------------------------------------------------------------------------------------


class OwnRule(GlobalClipping):
    """A rule of the caller's, who may have given it other weights."""


class OwnTransformer(architectures.Transformer):
    def forward(self, tokens):
        return 2 * super().forward(tokens)


class Wrapped(nn.Module):
    """Computed again in the backward pass."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return checkpoint(self.model, tokens, use_reentrant=False)


def frozen(model):
    model.blocks[0].wide.bias.requires_grad_(False)


def tied(model):
    model.head.weight = model.tokens.weight


def padding(model):
    model.tokens.padding_idx = 4


def without_bias(model):
    model.head.bias = None


def norm_without_bias(model):
    model.norm = nn.LayerNorm(8, bias=False)


def another_eps(model):
    model.blocks[1].second_norm.eps = 0.5


def other_heads(model):
    model.blocks[1].attention._heads = 4


def other_sight(model):
    model.blocks[1].attention._causal = True


def a_wider_block(model):
    model.blocks[1].wide, model.blocks[1].narrow = nn.Linear(8, 10), nn.Linear(10, 8)


def one_block_twice(model):
    model.blocks[1] = model.blocks[0]


def appended(model):
    model.blocks.append(nn.Tanh())


def unused(model):
    model.extra = nn.Linear(2, 2)


def own_class(model):
    model.__class__ = OwnTransformer


def replaced_forward(model):
    block = model.blocks[0]
    block.forward = types.MethodType(lambda self, x: -architectures.Block.forward(self, x), block)


def hooked(model):
    model.blocks[0].register_forward_hook(lambda module, args, out: 2 * out)


def hooked_before(model):
    model.norm.register_forward_pre_hook(lambda module, args: (args[0].abs(),))


def hooked_behind(model):
    model.blocks[1].narrow.register_full_backward_pre_hook(lambda module, slopes: (3 * slopes[0],))


def low_rank(model):
    architectures.lora(model, 2, generator())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("up.weight"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator()))


CHANGES = [frozen, tied, padding, without_bias, norm_without_bias, another_eps, other_heads, other_sight, a_wider_block,
           one_block_twice, appended, unused, own_class, replaced_forward, hooked, hooked_before, hooked_behind,
           low_rank]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_not_quite_one_of_those_is_done_in_another_way(change, oracle, distance):
    model = network(VOCABULARY if change is tied else 5)
    x, y = batch()
    before = ClippedSums(model, CLIPPING).sum(x, y)
    change(model)
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    wanted = oracle(model, x, y, CLIPPING)
    assert distance(sums.sum(x, y), wanted) < 1e-5
    if change not in (frozen, unused):  # the twin: what the loops would have made of it
        assert len(wanted) != len(before) or distance(before, wanted) > 1e-3


def test_double_precision_is_done_in_another_way(oracle, distance):
    model, (x, y) = network().double(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    assert distance(sums.sum(x, y), oracle(model, x, y, CLIPPING)) < 1e-10


def test_a_transformer_inside_of_something_is_done_in_another_way(oracle, distance):
    model, (x, y) = Wrapped(network()), batch()
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, sums=sums)


def test_large_ones_are_done_in_another_way(monkeypatch, oracle, distance):
    model, (x, y) = network(), batch()
    monkeypatch.setattr(transformers, "_MOST", 1000)
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, sums=sums)


def test_a_rule_of_the_callers_is_asked(oracle, distance):
    model, (x, y), clipping = network(), batch(), OwnRule(norm=0.3)
    sums = ClippedSums(model, clipping)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, clipping, sums=sums)


class Twice(CrossEntropy):
    def __call__(self, outputs, targets):
        return 2 * super().__call__(outputs, targets)


@pytest.mark.parametrize("loss", [Twice(), lambda outputs, targets: outputs.square().sum(1) + outputs[:, 0] * targets])
def test_a_loss_of_the_callers_is_asked(loss, oracle, distance):
    model, (x, y) = network(), batch()
    sums = ClippedSums(model, CLIPPING, loss)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, loss=loss, sums=sums)


def soft(y):
    return torch.softmax(torch.randn((len(y), 5), generator=generator()), 1)


BATCHES = {
    "few tokens": lambda x, y: (x[:, :7], y),
    "whole numbers of another type": lambda x, y: (x.int(), y),
    "probabilities": lambda x, y: (x, soft(y)),
    "arguments": lambda x, y: ((x,), y),
    "named arguments": lambda x, y: ({"tokens": x}, y),
}


@pytest.mark.parametrize("name", BATCHES)
def test_other_batches_are_done_in_another_way_and_these_still_by_hand(name, oracle, distance):
    model, (x, y) = network(), batch()
    other = BATCHES[name](x, y)
    for order in ([(x, y), other], [other, (x, y)]):
        sums = ClippedSums(model, CLIPPING)
        for part in (*order, *order):
            assert right(model, *part, oracle, distance, sums=sums)
            assert by_hand(sums, *part) == (part is not other)


@pytest.mark.parametrize("change", [replaced_forward, hooked, hooked_before, hooked_behind])
def test_what_users_put_on_a_module_later_is_done_too(change, oracle, distance):
    model, (x, y) = network(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    change(model)
    assert right(model, x, y, oracle, distance, sums=sums) and not by_hand(sums, x, y)


def test_hooks_everywhere_are_heard_and_only_while_they_are_there(oracle, distance):
    model, (x, y) = network(), batch()
    sums = ClippedSums(model, CLIPPING)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: 2 * out if isinstance(module, architectures.Block) else None
    )
    try:
        assert ClippedSums(model, CLIPPING)._by_hand is None
        assert right(model, x, y, oracle, distance, sums=sums) and not by_hand(sums, x, y)
    finally:
        handle.remove()
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)


def all_norms_with_another_eps(model):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5


def all_with_other_heads(model):
    for block in model.blocks:
        block.attention._heads = 4


def blocks_the_other_way_round(model):
    model.blocks = nn.ModuleList(reversed(model.blocks))


@pytest.mark.parametrize(
    "change",
    [all_norms_with_another_eps, all_with_other_heads, other_sight, blocks_the_other_way_round, appended, own_class],
)
def test_a_model_that_is_changed_later_is_noticed(change, oracle, distance):
    """Its parameters are those it had."""
    model, (x, y) = network(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    parameters = {id(p) for p in model.parameters()}
    change(model)
    assert {id(p) for p in model.parameters()} == parameters
    got = dict(zip(sums.layout.names, sums.layout.split(sums.sum(x, y)), strict=True))
    names = {id(p): name for name, p in zip(sums.layout.names, sums.layout.parameters, strict=True)}
    in_order = torch.cat([got[names[id(p)]].flatten() for p in model.parameters()])
    assert distance(in_order, oracle(model, x, y, CLIPPING)) < 1e-5


# ---- what is out of range -------------------------------------------------------------------------------------------


def token_beyond(x, y):
    x[3, 2] = VOCABULARY


def token_below(x, y):
    x[3, 2] = -1


def label_beyond(x, y):
    y[3] = VOCABULARY


def label_below(x, y):
    y[3] = -1


@each_task
@pytest.mark.parametrize("first", [True, False], ids=["at first", "later"])
@pytest.mark.parametrize("spoil", [token_beyond, token_below, label_beyond, label_below])
def test_what_is_out_of_range_raises_what_torch_raises(spoil, first, classes):
    model, (x, y) = network(classes), batch(classes)
    one = engine(model)
    if not first:
        one.step(x, y)
    bad = x.clone(), y.clone()
    spoil(*bad)
    before = flat(model)
    totals = [torch.ones_like(p) for p in model.parameters()]
    with torch.no_grad(), pytest.raises(IndexError):
        one._sums.add_to(totals, *bad)
    with pytest.raises(IndexError):
        one.step(*bad)
    assert all((total == 1).all() for total in totals) and torch.equal(flat(model), before)
    assert len(one.diagnostics.steps) == (not first)
    one.step(x, y)
    assert by_hand(one._sums, x, y)


@each_task
def test_sequences_that_are_too_long_raise_what_torch_raises(classes):
    model = network(classes)
    one, long = engine(model), batch(classes, tokens=LENGTH + 1)
    before = flat(model)
    for _ in range(2):
        with pytest.raises(IndexError):
            one.step(*long)
        assert torch.equal(flat(model), before)
        assert one.clipped_sum(*batch(classes, tokens=LENGTH)).any()
    assert by_hand(one._sums, *batch(classes))


def test_labels_of_another_shape_raise():
    model, (x, y) = network(None), batch(None)
    sums = ClippedSums(model, CLIPPING)
    for bad in (y[:, :-1], y[:, 0]):
        with pytest.raises(ValueError, match="targets must be"):
            sums.sum(x, bad)


# ---- the trial ------------------------------------------------------------------------------------------------------

real = transformers.add_clipped


def scaled_by_mistake(*args):
    counts = real(*args)
    args[13][:] *= 1.1
    return counts


def rows_scaled_by_mistake(*args):
    counts = real(*args)
    args[14][:] *= 1.1
    return counts


def not_clipped(*args):
    rule = args[9]._replace(limits=args[9].limits * 1e6)
    return real(*args[:9], rule, *args[10:])


def one_layer_forgotten(*args):
    counts = real(*args)
    first, end, _ = args[10][7]
    args[13][first:end] = 0
    return counts


def no_number(*args):
    counts = real(*args)
    args[13][5] = np.nan
    return counts


def fails(*args):
    raise RuntimeError("for a reason of its own")


@each_task
@pytest.mark.parametrize(
    "twin", [scaled_by_mistake, rows_scaled_by_mistake, not_clipped, one_layer_forgotten, no_number, fails]
)
def test_loops_that_are_wrong_are_found_out_on_the_first_batch(twin, classes, monkeypatch, oracle, distance):
    monkeypatch.setattr(transformers, "add_clipped", twin)
    model, (x, y) = network(classes, layers=1), batch(classes)
    sums = ClippedSums(model, CLIPPING)
    assert isinstance(sums._by_hand, TransformerByHand)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert sums._by_hand is None and not sums._tried and not sums.shared_out


def test_loops_that_are_right_are_tried_once(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(len(args[0]))
        return real(*args)

    monkeypatch.setattr(transformers, "add_clipped", counted)
    sums, (x, y) = ClippedSums(network(), CLIPPING), batch(size=3)
    for _ in range(3):
        sums.sum(x, y)
    assert calls == [1] * 6 + [3] * 3  # clipped and not


@each_task
def test_nothing_is_known_from_a_batch_without_a_finite_gradient(classes, monkeypatch):
    """It is done in another way, and the next one is tried."""
    model = poisoned(network(classes), math.nan)
    x, y = batch(classes, vocabulary=VOCABULARY - 1)
    bad = x.clone()
    bad[:, 1] = VOCABULARY - 1
    one = engine(model, noise_multiplier=0)
    one.step(bad, y)
    assert isinstance(one._sums._by_hand, TransformerByHand) and not one._sums._tried
    assert one.diagnostics.dropped == 7 and not one.released.any()
    one.step(x, y)
    assert by_hand(one._sums, x, y) and one.diagnostics.dropped == 7
    monkeypatch.setattr(transformers, "add_clipped", not_clipped)
    other = ClippedSums(model, CLIPPING)
    other.sum(bad, y)
    assert other._by_hand is not None
    other.sum(x, y)
    assert other._by_hand is None


def perceptron():
    x = torch.randn((7, 6), generator=generator(1))
    return architectures.mlp(6, [5], 3, generator()), x, torch.arange(7) % 3


# ---- what is left alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [Sgd(learning_rate=0.1), Momentum(learning_rate=0.1, nesterov=True),
                                       Adam(learning_rate=0.1, weight_decay=0.01)], ids=str)  # fmt: skip
def test_steps_in_pieces_are_the_same_steps(optimizer, monkeypatch):
    """Pieces that torch does not split over its threads, for an engine whose own threads work meanwhile."""
    monkeypatch.setattr(optimizers, "_PIECE", 50)
    alone, together = network(), network()
    x, y = batch()
    for model in (alone, together):
        one = engine(model, optimizer=optimizer)
        for _ in range(3):
            one.step(x, y)
            assert one._stepper.alone
            if model is together:
                monkeypatch.setattr(ClippedSums, "shared_out", False)
                one.step(x, y)
                monkeypatch.undo()
                monkeypatch.setattr(optimizers, "_PIECE", 50)
            else:
                one.step(x, y)
    for one, other in zip(alone.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@each_task
def test_a_step_leaves_threads_and_gradients_as_they_were(classes, threads):
    model = network(classes)
    one = engine(model)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number)
    for number in (1, 3, 2):
        threads(number)
        one.step(*batch(classes, 16))
        assert torch.get_num_threads() == number
    assert one._sums._tried
    assert all((p.grad == number).all() for number, p in enumerate(model.parameters()))
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


@each_task
def test_what_fails_later_is_said_and_changes_nothing(classes, monkeypatch, threads):
    model, (x, y) = network(classes), batch(classes, 16)
    one = engine(model)
    one.step(x, y)
    threads(3)
    before = flat(model)

    def fails_at_the_end(*args):
        if np.array_equal(args[0][-1], x[-1].numpy()):
            raise RuntimeError("for a reason of its own")
        return real(*args)

    monkeypatch.setattr(transformers, "add_clipped", fails_at_the_end)
    totals = [torch.ones_like(p) for p in model.parameters()]
    with torch.no_grad(), pytest.raises(RuntimeError, match="of its own"):
        one._sums.add_to(totals, x, y)
    with pytest.raises(RuntimeError, match="of its own"):
        one.step(x, y)
    assert torch.get_num_threads() == 3 and torch.equal(flat(model), before)
    assert all((total == 1).all() for total in totals) and len(one.diagnostics.steps) == 1


@each_rule
@each_task
@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_a_batch_in_pieces_is_the_same_batch(pieces, classes, clipping):
    model, (x, y) = network(classes), batch(classes, 16)
    split = ClippedSums(model, clipping, physical_batch_size=pieces)
    torch.testing.assert_close(split.sum(x, y), ClippedSums(model, clipping).sum(x, y), rtol=1e-5, atol=1e-6)
    assert by_hand(split, x, y)


def test_no_piece_is_larger_than_asked(monkeypatch):
    sums, (x, y), seen = ClippedSums(network(), CLIPPING, physical_batch_size=3), batch(size=8), []
    sums.sum(x, y)

    def counted(*args):
        seen.append(len(args[0]))
        return real(*args)

    monkeypatch.setattr(transformers, "add_clipped", counted)
    sums.sum(x, y)
    assert seen == [3, 3, 2]


@each_task
def test_an_empty_batch_is_a_step_of_noise_alone(classes):
    model, (x, y) = network(classes), batch(classes)
    one, quiet = engine(model), engine(network(classes), noise_multiplier=0)
    before = flat(model)
    one.step(x[:0], y[:0])
    quiet.step(x[:0], y[:0])
    assert not quiet.released.any() and float(one.released.std()) == pytest.approx(1.5 * 0.3, rel=0.2)
    assert not torch.equal(flat(model), before) and one.diagnostics.batch_sizes == (0,)
    one.step(x, y)
    assert by_hand(one._sums, x, y)


def test_totals_are_added_to():
    model, (x, y) = network(), batch()
    sums = ClippedSums(model, CLIPPING)
    wanted = sums.sum(x, y)
    total = torch.full_like(wanted, 2.0)
    with torch.no_grad():
        counts = sums.add_to(sums.layout.split(total), x, y)
    torch.testing.assert_close(total - 2, wanted, rtol=1e-4, atol=1e-6)
    assert counts.examples == 7 and by_hand(sums, x, y)


def test_what_it_computes_on_is_not_changed():
    model, (x, y) = network(), batch()
    sums, before = ClippedSums(model, CLIPPING), flat(model)
    given = x.clone(), y.clone()
    sums.sum(x, y)
    sums.sum(x, y)
    assert torch.equal(flat(model), before) and torch.equal(x, given[0]) and torch.equal(y, given[1])


# ---- memory ---------------------------------------------------------------------------------------------------------


def peak(work):
    """Of what numpy allocates."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_peak_sees_numpys_arrays():
    assert peak(lambda: np.ones(10**6, np.float32)) > 4e6


def test_per_example_gradients_are_never_all_written_out(threads):
    """14,000 parameters × 64 examples would be 3.6 MB."""
    model, (x, y) = network(width=24), batch(size=64)
    parameters = sum(p.numel() for p in model.parameters())
    sums = ClippedSums(model, CLIPPING)
    sums.sum(x, y)
    threads(2)
    assert peak(lambda: sums.sum(x, y)) < 10 * parameters * 4
    with torch.profiler.profile(profile_memory=True) as profile:
        sums.sum(x, y)
    assert max(event.cpu_memory_usage for event in profile.key_averages()) < 10 * parameters * 4
    assert parameters > 12_000 and by_hand(sums, x, y)


# ---- what the loops would be slow at --------------------------------------------------------------------------------


def test_long_sequences_and_large_heads_are_left_to_others():
    assert transformers.TransformerByHand.of(
        *about(network(classes=2**17 // 8)), CLIPPING
    ) and not transformers.TransformerByHand.of(*about(network(classes=2**17 // 8 + 1)), CLIPPING)
    sums = ClippedSums(network(None, length=600), CLIPPING)
    x = torch.zeros((1, 600), dtype=torch.long)
    assert sums._by_hand.fits(x[:, :512], x[:, :512]) and not sums._by_hand.fits(x[:, :513], x[:, :513])


def about(model):
    return model, Layout.of(model), CrossEntropy()


def test_a_table_that_was_made_wider_is_noticed():
    """By its loops memory would be read that is not there."""
    model, (x, y) = network(), batch()
    one = engine(model)
    one.step(x, y)
    model.tokens.weight.data = torch.randn(VOCABULARY, 4096)
    with pytest.raises(RuntimeError):
        one.step(x, y)


def test_a_note_on_a_module_changes_nothing():
    model, (x, y) = network(), batch()
    model.epoch = 0
    sums = ClippedSums(model, CLIPPING)
    model.epoch, model.blocks[0].name = 1, "first"
    sums.sum(x, y)
    assert sums._tried
