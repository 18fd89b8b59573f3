"""Convolutional networks by hand: the same clipped sums as one image at a time by autograd, or the way is not taken."""

from __future__ import annotations

import copy
import ctypes
import math
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.errors import InputError  # noqa: E402
from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.architectures import Images, Records  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    Adam,
    AutomaticClipping,
    ClippedSums,
    CrossEntropy,
    GlobalClipping,
    PerLayerClipping,
    PrivateEngine,
    Sgd,
    StepCounts,
    convolutional,
)
from dpaudit.trainers.private.convolutional import ConvolutionalByHand  # noqa: E402
from dpaudit.trainers.private.faster import Snapshot  # noqa: E402
from dpaudit.trainers.private.feedforward import FeedForward  # noqa: E402

CLASSES = 4
CLIPPING = GlobalClipping(norm=0.3)
CLIPPINGS = [
    CLIPPING,
    GlobalClipping(norm=5.0),
    GlobalClipping(norm=1e-12),
    GlobalClipping(norm=1e6),
    AutomaticClipping(norm=0.5),
    AutomaticClipping(norm=0.5, stability=2.0),
    PerLayerClipping(norm=2.0),
    PerLayerClipping(norms=[0.3, 0.01, 2.0]),
]

slowly = pytest.mark.filterwarnings("ignore::dpaudit.trainers.private.SlowGradients")
each_rule = pytest.mark.parametrize("clipping", [CLIPPING, AutomaticClipping(norm=0.3), PerLayerClipping(norm=0.3)],
                                    ids=str)  # fmt: skip


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def network(shape, *steps, linears=(CLASSES,), bias=True, seed=3):
    """These steps, and linear layers of so many outputs, with a ReLU before all but the first."""
    wide = nn.Sequential(*steps)(torch.zeros(1, *shape)).numel()
    layers = [nn.Flatten()]
    for before, after in zip((wide, *linears), linears, strict=False):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    model, at_random = nn.Sequential(*steps, *layers[:-1]), generator(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=at_random) / math.sqrt(p[0].numel() if p.dim() > 1 else 2))
    return model


def batch(shape=(3, 8, 8), size=7, classes=CLASSES, seed=1):
    """Images of very different contrast, so that some are clipped and some are not."""
    x = torch.randn((size, *shape), generator=generator(seed))
    x *= torch.logspace(-1, 0.5, size)[torch.randperm(size, generator=generator(seed))].view(-1, 1, 1, 1)
    return x, torch.randint(classes, (size,), generator=generator(seed + 1))


def plain(seed=3):
    """Three layers, for images as :func:`batch` gives."""
    steps = nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(5, 6, 3, stride=2), nn.ReLU()
    return network((3, 8, 8), *steps, seed=seed)


def pooled_first():
    return network((3, 8, 8), nn.MaxPool2d(2), nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def by_hand(sums, x, y):
    """Whether the way was tried, and is the one that this batch is done in."""
    way = sums._by_hand
    return isinstance(way, ConvolutionalByHand) and sums._tried and sums._prepare(x, y, len(y)) is way


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


def geometry(shape, *steps, **options):
    return lambda: (network(shape, *steps, **options), shape)


def conv(*sizes, **options):
    return nn.Conv2d(*sizes, **options)


RELU = nn.ReLU()
GEOMETRIES = {
    "grey": geometry((1, 8, 8), conv(1, 4, 3), RELU),
    "in colour": geometry((3, 8, 8), conv(3, 4, 3), RELU),
    "nothing but a convolution": geometry((2, 4, 5), conv(2, 3, 2)),
    "a single pixel": geometry((3, 1, 1), conv(3, 5, 1), RELU),
    "a row": geometry((2, 1, 9), conv(2, 3, (1, 4), stride=(1, 2)), RELU, nn.MaxPool2d((1, 2))),
    "a column": geometry((2, 9, 1), conv(2, 3, (4, 1), stride=(2, 1)), RELU, nn.MaxPool2d((2, 1))),
    "nothing square": geometry((3, 7, 10), conv(3, 5, (2, 4), stride=(3, 1), padding=(1, 2)), RELU,
                               nn.MaxPool2d((1, 3), (2, 2), (0, 1))),
    "nothing square, the other way": geometry((3, 10, 7), conv(3, 5, (4, 2), stride=(1, 3), padding=(2, 1)), RELU,
                                              nn.MaxPool2d((3, 1), (2, 2), (1, 0))),
    "padding on one side only": geometry((3, 6, 6), conv(3, 5, 3, padding=(0, 1)), RELU, conv(5, 3, 3, padding=(1, 0))),
    "padding beyond the kernel": geometry((2, 4, 4), conv(2, 3, 2, padding=3), RELU, conv(3, 4, 2, padding=3)),
    "padding beyond the image": geometry((2, 3, 2), conv(2, 3, 3, padding=5), RELU, conv(3, 4, 3, padding=12)),
    "valid": geometry((3, 8, 8), conv(3, 4, 3, padding="valid"), RELU, conv(4, 3, 2, padding="valid")),
    "strides beyond the kernel": geometry((3, 9, 11), conv(3, 4, 2, stride=3), RELU, conv(4, 3, 1, stride=2)),
    "strides that leave pixels out": geometry((3, 9, 10), conv(3, 4, 4, stride=4), RELU, conv(4, 3, 1)),
    "a kernel as large as the image": geometry((3, 5, 4), conv(3, 6, (5, 4)), RELU),
    "the same after a pool": geometry((3, 6, 8), nn.MaxPool2d(2), conv(3, 6, (3, 4)), RELU),
    "the same with a stride": geometry((3, 5, 4), conv(3, 6, (5, 4), stride=(2, 3)), RELU, conv(6, 5, 1)),
    "the same with padding": geometry((3, 5, 4), conv(3, 6, (5, 4), padding=1), RELU),
    "the same in the middle": geometry((3, 6, 6), conv(3, 5, 3), RELU, conv(5, 7, 4, bias=False), RELU, conv(7, 3, 1)),
    "one that covers one side": geometry((3, 6, 6), conv(3, 5, (6, 2)), RELU, conv(5, 4, (1, 3))),
    "a kernel of one pixel": geometry((5, 6, 6), conv(5, 17, 1), RELU, conv(17, 3, 1)),
    "no bias of a convolution": geometry((3, 8, 8), conv(3, 5, 3, bias=False), RELU, conv(5, 4, 3)),
    "no bias of a linear layer": geometry((3, 8, 8), conv(3, 5, 3), RELU, linears=(6, CLASSES), bias=False),
    "no bias at all": geometry((3, 8, 8), conv(3, 5, 3, bias=False), linears=(6, CLASSES), bias=False),
    "many linear layers": geometry((3, 8, 8), conv(3, 5, 3), RELU, linears=(33, 16, 17, 1, CLASSES)),
    "one class": geometry((3, 8, 8), conv(3, 5, 3), RELU, linears=(1,)),
    "many classes": geometry((3, 8, 8), conv(3, 5, 3), RELU, linears=(35,)),
    "one channel": geometry((1, 6, 6), conv(1, 1, 3), RELU, conv(1, 1, 2)),
    "5 and 16 channels": geometry((5, 6, 6), conv(5, 16, 3), RELU, conv(16, 5, 2)),
    "17 and 33 channels": geometry((17, 6, 6), conv(17, 33, 3), RELU, conv(33, 17, 2)),
    "32 and 16 channels": geometry((32, 5, 5), conv(32, 16, 3), RELU, conv(16, 32, 2)),
    "one place": geometry((3, 4, 4), conv(3, 5, 3, stride=2), RELU, conv(5, 6, 1)),
    "two places": geometry((3, 4, 4), conv(3, 5, 3), RELU, conv(5, 6, 1)),
    "three places": geometry((3, 5, 5), conv(3, 5, 3), RELU, conv(5, 6, 2, padding=1)),
    "three by one places": geometry((3, 5, 3), conv(3, 5, 3), RELU, conv(5, 6, (2, 1))),
    "a pool first": geometry((3, 8, 8), nn.MaxPool2d(2), conv(3, 5, 3), RELU),
    "a pool and ReLU first": geometry((3, 8, 8), nn.MaxPool2d(2), RELU, conv(3, 5, 3)),
    "two pools first": geometry((3, 8, 8), nn.MaxPool2d(2, 1), nn.MaxPool2d(3, 2), conv(3, 5, 2)),
    "a pool with padding": geometry((3, 8, 8), conv(3, 5, 3), nn.MaxPool2d(3, 2, 1), RELU, conv(5, 4, 2)),
    "a pool whose windows overlap": geometry((3, 8, 8), conv(3, 5, 3), nn.MaxPool2d(4, 1, 2), conv(5, 4, 2)),
    "a pool that leaves pixels out": geometry((3, 9, 9), conv(3, 5, 2), nn.MaxPool2d(2, 3), conv(5, 4, 2)),
    "a pool of one pixel": geometry((3, 6, 6), conv(3, 5, 3), nn.MaxPool2d(1), conv(5, 4, 2)),
    "a pool of one pixel in three": geometry((3, 8, 8), conv(3, 5, 2), nn.MaxPool2d(1, 3), conv(5, 4, 2)),
    "a pool of all": geometry((3, 8, 6), conv(3, 5, 3), nn.MaxPool2d((6, 4)), RELU),
    "a pool given as a list": geometry((3, 8, 8), conv(3, 5, 3), nn.MaxPool2d([2, 3], [1, 2], [1, 1])),
    "pools one after the other": geometry((3, 9, 9), conv(3, 5, 2), nn.MaxPool2d(2, 1), nn.MaxPool2d(3, 2, 1)),
    "a pool at the end": geometry((3, 8, 8), conv(3, 5, 3), nn.MaxPool2d(2)),
    "ReLU before a pool": geometry((3, 8, 8), conv(3, 5, 3), RELU, nn.MaxPool2d(2, 1), conv(5, 4, 2)),
    "ReLU behind a pool": geometry((3, 8, 8), conv(3, 5, 3), nn.MaxPool2d(2, 1), RELU, conv(5, 4, 2)),
    "ReLU before and behind": geometry((3, 8, 8), conv(3, 5, 3), RELU, nn.MaxPool2d(2, 1), RELU, conv(5, 4, 2)),
    "ReLU twice": geometry((3, 8, 8), conv(3, 5, 3), RELU, RELU, conv(5, 4, 2), nn.ReLU(inplace=True), nn.ReLU()),
    "ReLU behind Flatten": geometry((3, 6, 6), conv(3, 5, 3), nn.Flatten(), RELU, nn.Flatten()),
    "tanh": geometry((3, 8, 8), conv(3, 5, 3), nn.Tanh(), nn.MaxPool2d(2, 1), conv(5, 4, 2), nn.Tanh()),
    "tanh and ReLU": geometry((3, 8, 8), conv(3, 5, 3), nn.Tanh(), RELU, conv(5, 4, 2), RELU, linears=(6, CLASSES)),
    "tanh behind a pool": geometry((3, 8, 8), nn.MaxPool2d(2), nn.Tanh(), conv(3, 5, 2, padding=1), nn.MaxPool2d(2, 1),
                                   nn.Tanh()),
    "tanh behind Flatten": geometry((3, 8, 8), conv(3, 17, 6), nn.Flatten(), nn.Tanh()),
    "no ReLU": geometry((3, 8, 8), conv(3, 5, 3), conv(5, 4, 3), linears=(5, CLASSES)),
    "in parts": geometry((3, 8, 8), nn.Sequential(nn.Sequential(conv(3, 5, 3), RELU), nn.Sequential()),
                         nn.Sequential(nn.MaxPool2d(2), nn.Sequential(conv(5, 4, 2)))),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_all_geometries(name, oracle, distance):
    model, shape = GEOMETRIES[name]()
    classes = model[-1].out_features
    for clipping in (CLIPPING, GlobalClipping(norm=1e6), PerLayerClipping(norm=1.0), AutomaticClipping(norm=0.5)):
        x, y = batch(shape, 3, classes)
        sums = ClippedSums(model, clipping)
        if classes == 1:  # whose loss is always zero
            assert not sums.sum(x, y).any() and not oracle(model, x, y, clipping).any()
        else:
            assert right(model, x, y, oracle, distance, clipping, sums=sums)
            assert by_hand(sums, x, y)


sizes = st.integers(1, 3)
pairs = st.tuples(sizes, sizes)


@st.composite
def geometries(draw):
    """A shape, and steps that fit it."""
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    steps, sides, channels = [], shape[1:], shape[0]
    for number in range(draw(st.integers(1, 4))):
        kernel, stride = draw(pairs), draw(pairs)
        pool = number > 0 and draw(st.booleans())
        padding = tuple(draw(st.integers(0, size // 2 if pool else 4)) for size in kernel)
        taken = zip(sides, kernel, stride, padding, strict=True)
        places = tuple((side + 2 * edge - size) // step + 1 for side, size, step, edge in taken)
        if min(places) < 1:
            continue
        if pool:
            steps.append(nn.MaxPool2d(kernel, stride, padding))
        else:
            before, channels = channels, draw(st.sampled_from([1, 2, 5, 16, 17]))
            steps.append(nn.Conv2d(before, channels, kernel, stride, padding, bias=draw(st.booleans())))
        steps += draw(st.sampled_from([[], [nn.ReLU()], [nn.ReLU(), nn.ReLU()], [nn.Tanh()]]))
        sides = places
    if not any(isinstance(step, nn.Conv2d) for step in steps):
        steps.append(nn.Conv2d(channels, 3, 1))
    linears = draw(st.sampled_from([(CLASSES,), (5, CLASSES)]))
    return network(shape, *steps, linears=linears, seed=draw(st.integers(0, 99))), shape


@settings(max_examples=40, deadline=None, derandomize=True)
@given(drawn=geometries(), clipping=st.sampled_from([c for c in CLIPPINGS[1:] if c != CLIPPINGS[7]]))
def test_geometries_at_random(oracle, distance, drawn, clipping):
    model, shape = drawn
    x, y = batch(shape, 3)
    wanted = oracle(model, x, y, clipping)
    sums = ClippedSums(model, clipping)
    got = [sums.sum(x, y) for _ in range(2)]
    assert by_hand(sums, x, y)
    assert max(float((one.double() - wanted).norm()) for one in got) <= 1e-5 * float(wanted.norm())


@pytest.mark.parametrize("steps", [
    [nn.Tanh(), nn.Tanh()],
    [nn.Tanh(), nn.ReLU(), nn.Tanh()],
    [nn.ReLU(), nn.Tanh()],
    [nn.Tanh(), nn.Flatten(), nn.Tanh()],
], ids=str)  # fmt: skip
def test_one_activation_behind_the_other_is_right_whatever_the_first_batch_showed(steps, oracle, distance):
    """Of small numbers tanh is hardly another than what it is given: no trial with these would show a mistake."""
    model, (x, y) = network((3, 8, 8), nn.Conv2d(3, 5, 3, bias=False), *steps), batch()
    sums = ClippedSums(model, CLIPPING)
    sums.sum(1e-3 * x, y)
    assert sums._by_hand is None or sums._tried or not sums._by_hand.fits(x, y)
    assert distance(sums.sum(3 * x, y), oracle(model, 3 * x, y, CLIPPING)) < 1e-5


def records(shape, *steps, linears=(CLASSES,), end=Records):
    """A network that takes records, and images out of them."""
    channels, height, width = shape
    inside = nn.Sequential(*steps)
    wide = inside(torch.zeros(1, *shape)).numel()
    return network((height * width * channels,), Images((height, width, channels)), inside, end(), nn.Linear(wide, 9),
                   linears=linears)  # fmt: skip


@pytest.mark.parametrize("end", [Records, nn.Flatten])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 5), (17, 4, 6)])
def test_records_that_are_images(shape, end, oracle, distance):
    """A layer behind sees the channels of a pixel side by side, or all pixels of a channel."""
    model = records(shape, nn.Conv2d(shape[0], 5, 3, padding=1), nn.Tanh(), nn.MaxPool2d((2, 3), 1), end=end)
    x, y = batch(shape)
    flat = x.permute(0, 2, 3, 1).flatten(1)
    for clipping in (CLIPPING, PerLayerClipping(norm=1.0)):
        sums = ClippedSums(model, clipping)
        for taken in (flat, flat.t().contiguous().t(), flat[:1].expand(flat.shape)):
            assert right(model, taken, y, oracle, distance, clipping, sums=sums)
            assert by_hand(sums, taken, y)


@pytest.mark.parametrize("change", [
    lambda model: setattr(model[0], "shape", (5, 7, 3)),
    lambda model: setattr(model[0], "shape", [5, 7, 3]),
    lambda model: model.__setitem__(2, nn.Flatten()),
], ids=["a shape", "a list", "Flatten"])  # fmt: skip
def test_records_that_become_other_images_are_noticed(change, oracle, distance):
    model, (x, y) = records((3, 7, 5), nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()), batch((3, 7, 5))
    x = x.permute(0, 2, 3, 1).flatten(1)
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    before = sums.sum(x, y)
    change(model)
    wanted = oracle(model, x, y, CLIPPING)
    assert distance(before, wanted) > 1e-3
    assert distance(sums.sum(x, y), wanted) < 1e-5 and not by_hand(sums, x, y)


@pytest.mark.parametrize("spoil", [lambda x: x[:, 1:], lambda x: x.view(-1, 3, 7, 5), lambda x: x[0]],
                         ids=["too few features", "images", "one record"])  # fmt: skip
def test_records_that_do_not_fit_raise_what_torch_raises(spoil):
    model = records((3, 7, 5), nn.Conv2d(3, 5, 3))
    x, y = batch((3, 7, 5))
    x, one = x.permute(0, 2, 3, 1).flatten(1), engine(model)
    one.step(x, y)
    before, bad = flat(model), spoil(x)
    with pytest.raises((RuntimeError, ValueError, IndexError)) as said:
        model(bad)
    with pytest.raises(said.type):
        one.step(bad, y[: len(bad)] if len(bad) < 8 else torch.zeros(len(bad), dtype=torch.long))
    assert torch.equal(flat(model), before) and by_hand(one._sums, x, y)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_all_rules(clipping, oracle, distance):
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, clipping)
    assert right(model, x, y, oracle, distance, clipping, sums=sums)
    assert by_hand(sums, x, y) and len(sums.layout.layers) == 3


@each_rule
def test_the_network_of_opacus(clipping, oracle, distance):
    model = architectures.cnn(generator())
    x, y = batch((1, 28, 28), 5, 10)
    sums = ClippedSums(model, clipping)
    assert right(model, x, y, oracle, distance, clipping, sums=sums)
    assert by_hand(sums, x, y) and sums.shared_out


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_batches_of_all_sizes(size, threads, oracle, distance):
    """By one thread, and shared out."""
    model, (x, y) = plain(), batch(size=size)
    sums, wanted = ClippedSums(model, CLIPPING), oracle(model, x, y, CLIPPING)
    for number in (1, 3):
        threads(number)
        assert distance(sums.sum(x, y), wanted) < 1e-5
    assert by_hand(sums, x, y)


def beside_gaps(x):
    wide = torch.full((len(x), x.shape[1] + 1, *(2 * side for side in x.shape[2:])), torch.nan)
    wide[:, 1:, ::2, 1::2] = x
    return wide[:, 1:, ::2, 1::2]


ORDERS = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "images last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "beside gaps": beside_gaps,
    "the same for all": lambda x: x[:1].expand(x.shape),
    "all channels alike": lambda x: x[:, :1].expand(x.shape),
    "part of a graph": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_in_memory_does_not_matter(order, oracle, distance):
    model, (x, y) = plain(), batch()
    x, y = ORDERS[order](x), torch.stack([y, y + 100], 1)[:, 0]
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y) and x.grad is None


def test_parameters_with_gaps_in_memory(oracle, distance):
    model, (x, y) = plain().to(memory_format=torch.channels_last), batch()
    model[-1].weight = nn.Parameter(model[-1].weight.detach().t().contiguous().t())
    model[0].bias = nn.Parameter(model[0].bias.detach().repeat_interleave(3)[1::3])
    assert not any(p.is_contiguous() for p in (model[0].weight, model[-1].weight, model[0].bias))
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y)


def test_parameters_in_another_order(oracle, distance):
    """A bias that was put before its weight."""
    model, (x, y) = plain(), batch()
    for layer in (model[0], model[-1]):
        weight = layer.weight
        del layer.weight
        layer.weight = weight
    sums = ClippedSums(model, CLIPPINGS[7])
    assert sums.layout.names[:2] == ("0.bias", "0.weight")
    assert right(model, x, y, oracle, distance, CLIPPINGS[7], sums=sums)
    assert by_hand(sums, x, y)


def test_sizes_of_images_may_change(oracle, distance):
    """A pool of all pixels left does not: those that are too many are left out."""
    model = network((3, 8, 8), nn.Conv2d(3, 5, 3, stride=2), nn.ReLU(), nn.MaxPool2d((2, 3), 3))
    sums = ClippedSums(model, CLIPPING)
    for shape in ((3, 8, 8), (3, 9, 8), (3, 7, 8), (3, 8, 10), (3, 8, 8)):
        x, y = batch(shape)
        assert right(model, x, y, oracle, distance, sums=sums)
        assert by_hand(sums, x, y)


@pytest.mark.parametrize("ignored", [-100, 2, 99])
def test_images_without_a_label_add_nothing(ignored, oracle, distance):
    model, (x, y), loss = plain(), batch(), CrossEntropy(ignore_index=ignored)
    y[[1, 4]] = ignored
    sums, kept = ClippedSums(model, CLIPPING, loss), [0, 2, 3, 5, 6]
    assert right(model, x, y, oracle, distance, loss=loss, sums=sums)
    assert by_hand(sums, x, y)
    if ignored != 2:
        assert torch.equal(sums.sum(x, y), sums.sum(x[kept], y[kept]))
    one = engine(model, noise_multiplier=0, loss=loss)
    one.step(x, torch.full_like(y, ignored))
    assert not one.released.any() and one.diagnostics.steps[0] == StepCounts(examples=7, scaled=0, dropped=0)


def whole(model):
    """Parameters that are small whole numbers, so that sums are exact, and often the same."""
    with torch.no_grad():
        for step, p in enumerate(list(model.parameters())[:-2]):
            p.copy_(torch.randint(-1, 2, p.shape, generator=generator(step)))
    return model


TIES = {
    "a pool first": geometry((2, 8, 8), nn.MaxPool2d(3, 2, 1), conv(2, 5, 2)),
    "overlapping": geometry((2, 8, 8), conv(2, 5, 3), nn.MaxPool2d(3, 1)),
    "with padding": geometry((2, 8, 8), conv(2, 5, 3, padding=1), nn.MaxPool2d((3, 2), (2, 3), (1, 1))),
    "of all": geometry((2, 8, 8), conv(2, 5, 1), nn.MaxPool2d(8), RELU),
    "twice": geometry((2, 8, 8), conv(2, 5, 2), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, 1), conv(5, 3, 2)),
    "of zeros": geometry((2, 8, 8), conv(2, 5, 2), RELU, nn.MaxPool2d(2), conv(5, 3, 2)),
}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", TIES)
def test_of_several_that_are_largest_the_one_is_that_torch_takes(name, constant, oracle, distance):
    model, shape = TIES[name]()
    x = torch.randint(-1, 2, (7, *shape), generator=generator()).float()
    x, y = x.amax((2, 3), keepdim=True).expand(x.shape) if constant else x, batch()[1]
    sums = ClippedSums(whole(model), CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y)


def test_ties_matter_in_these_images(oracle, distance):
    """The twin of the test above: the last of several gives other gradients."""
    model, shape = TIES["overlapping"]()
    x, y = torch.randint(-1, 2, (7, *shape), generator=generator()).float(), batch()[1]
    mirrored = copy.deepcopy(whole(model))
    with torch.no_grad():  # upside down and back to front, where the last is the first
        mirrored[0].weight.copy_(model[0].weight.flip(2, 3))
        mirrored[-1].weight.copy_(model[-1].weight.unflatten(1, (5, 4, 4)).flip(2, 3).flatten(1))
    found = ClippedSums(mirrored, CLIPPING)
    parts = found.layout.split(found.sum(x.flip(2, 3), y))
    back = torch.cat([parts[0].flip(2, 3).flatten(), parts[1]])
    assert distance(back, oracle(model, x, y, CLIPPING)[: len(back)]) > 1e-2


@pytest.mark.parametrize("optimizer", [Sgd(learning_rate=0.5), Adam(learning_rate=0.01)], ids=str)
def test_steps_follow_the_parameters(optimizer, oracle, distance):
    model = plain()
    one = engine(model, noise_multiplier=0, optimizer=optimizer)
    for seed in range(3):
        x, y = batch(seed=seed)
        wanted, before = oracle(model, x, y, CLIPPING), flat(model)
        one.step(x, y)
        assert distance(one.released, wanted) < 1e-5
        assert not torch.equal(flat(model), before)
    assert isinstance(one._sums._by_hand, ConvolutionalByHand) and one._sums._tried


# ---- what one example may do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [c for c in CLIPPINGS if c.sensitivity < 100], ids=str)
def test_one_image_moves_the_sum_by_no_more_than_the_sensitivity(clipping):
    model, (x, y) = plain(), batch()
    with torch.no_grad():
        for p in model.parameters():
            p *= 4
    sums, limit = ClippedSums(model, clipping), clipping.sensitivity
    lengths = [float(sums.sum(x[i : i + 1], y[i : i + 1]).double().norm()) for i in range(len(x))]
    assert 0.6 * limit < max(lengths) < limit * (1 + 2e-6)
    moved = float((sums.sum(x[:3], y[:3]).double() - sums.sum(x[:2], y[:2]).double()).norm())
    assert moved < limit * (1 + 2e-6)
    assert by_hand(sums, x, y)


def test_those_above_the_limit_are_counted_as_scaled(gradients):
    model, (x, y) = plain(), batch()
    norms = [math.sqrt(sum(float(g.square().sum()) for g in row.values())) for row in gradients(model, x, y)]
    limit = (sorted(norms)[2] + sorted(norms)[3]) / 2
    one = engine(model, clipping=GlobalClipping(norm=limit), noise_multiplier=0)
    one.step(x, y)
    assert one.diagnostics.steps[0] == StepCounts(examples=7, scaled=4, dropped=0)
    assert by_hand(one._sums, x, y)


@pytest.mark.parametrize("layer", range(3))
def test_with_a_limit_per_layer_one_layer_is_enough_to_be_counted(layer):
    model, (x, y), norms = plain(), batch(), [1e6] * 3
    norms[layer] = 1e-6
    one = engine(model, clipping=PerLayerClipping(norms=norms), noise_multiplier=0)
    one.step(x, y)
    assert one.diagnostics.steps[0].scaled == 7 and one._sums._tried


@each_rule
def test_the_order_of_images_does_not_matter(clipping):
    model, (x, y) = plain(), batch(size=16)
    sums, order = ClippedSums(model, clipping), torch.randperm(16, generator=generator())
    torch.testing.assert_close(sums.sum(x[order], y[order]), sums.sum(x, y), rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


def test_a_batch_is_the_sum_of_its_images():
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    apart = sum(sums.sum(x[i : i + 1], y[i : i + 1]) for i in range(7))
    torch.testing.assert_close(sums.sum(x, y), apart, rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


def test_any_number_of_threads_gives_the_same_up_to_rounding(threads):
    model, (x, y) = plain(), batch(size=17)
    sums, found = ClippedSums(model, CLIPPING), []
    for number in (1, 2, 3):
        threads(number)
        found.append(sums.sum(x, y))
        assert all(torch.equal(sums.sum(x, y), found[-1]) for _ in range(3))
        assert torch.get_num_threads() == number
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)
    assert by_hand(sums, x, y)


@pytest.mark.parametrize("number", [1, 3])
def test_two_runs_with_one_seed_are_the_same_to_the_last_bit(number, threads):
    threads(number)
    found = []
    for _ in range(2):
        model = plain()
        one = engine(model, optimizer=Adam(learning_rate=0.01))
        for seed in range(3):
            one.step(*batch(size=13, seed=seed))
        assert one._sums._tried
        found.append(flat(model))
    assert torch.equal(*found)


# ---- what is not finite ---------------------------------------------------------------------------------------------

BAD = [math.nan, math.inf, -math.inf, 3e38]
MODELS = {
    "convolution first": plain,
    "pool first": pooled_first,
    "whole": lambda: network((3, 8, 8), nn.Conv2d(3, 6, 8), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.ReLU()),
    "padding": lambda: network((3, 8, 8), nn.Conv2d(3, 5, 3, padding=4), nn.MaxPool2d(3, 3, 1), nn.ReLU()),
}
each_model = pytest.mark.parametrize("name", MODELS)


@each_rule
@each_model
@pytest.mark.parametrize("value", BAD)
def test_images_that_are_not_finite_add_nothing_and_do_not_spread(value, name, clipping, threads):
    model, (x, y), rows = MODELS[name](), batch(size=12), [0, 5, 6, 11]
    bad = x.clone()
    bad[rows, 1] = value
    kept = [i for i in range(12) if i not in rows]
    one = engine(model, clipping=clipping, noise_multiplier=0)
    wanted = one.clipped_sum(x[kept], y[kept])
    for number in (1, 3):
        threads(number)
        torch.testing.assert_close(one.clipped_sum(bad, y), wanted, rtol=1e-5, atol=1e-6)
    one.step(bad, y)
    assert flat(model).isfinite().all() and float(wanted.norm()) > 0.01
    assert one.diagnostics.dropped == 4 and one.diagnostics.batch_sizes == (12,)
    assert by_hand(one._sums, bad, y)


@each_model
@pytest.mark.parametrize("value", BAD)
def test_nothing_of_them_stays_in_memory(value, name):
    """To the last bit: whichever comes before, between or after them."""
    model, (x, y) = MODELS[name](), batch(size=3)
    sums = ClippedSums(model, CLIPPING)
    alone, bad, kind = sums.sum(x, y), torch.full_like(x[:1], value), y[:1]
    for place in range(4):
        mixed = torch.cat([x[:place], bad, x[place:]]), torch.cat([y[:place], kind, y[place:]])
        assert torch.equal(sums.sum(*mixed), alone)
    assert torch.equal(sums.sum(torch.cat([bad, bad, x]), torch.cat([kind, kind, y])), alone)
    assert not sums.sum(bad, kind).any() and by_hand(sums, x, y)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_one_pixel_is_enough_wherever_it_is_in_a_window(place, value):
    """A maximum of what has a NaN is NaN, as torch has it, whatever comes after."""
    model, (x, y) = pooled_first(), batch()
    bad = x.clone()
    bad[3, 1, 4 + place[0], 2 + place[1]] = value
    kept = [0, 1, 2, 4, 5, 6]
    one = engine(model, noise_multiplier=0)
    wanted = one.clipped_sum(x[kept], y[kept])
    one.step(bad, y)
    torch.testing.assert_close(one.released, wanted, rtol=1e-5, atol=1e-6)
    assert one.diagnostics.dropped == 1 and by_hand(one._sums, x, y)


def test_a_convolution_that_overflows_to_no_number_drops_its_image():
    """One pixel in a window before a pool, of an image that is finite, and whose slopes are too."""
    model = network((1, 2, 2), nn.Conv2d(1, 1, 1, bias=False), nn.MaxPool2d(2), nn.Conv2d(1, 3, 1), linears=(2,))
    x, y = torch.tensor([[[[1.0, 2.0], [0.5, 0.25]]]]).repeat(2, 1, 1, 1), torch.tensor([0, 1])
    one = engine(model, noise_multiplier=0)
    wanted = one.clipped_sum(x[1:], y[1:])
    x[0, 0, 0, 0] = math.nan
    one.step(x, y)
    torch.testing.assert_close(one.released, wanted)
    assert one.diagnostics.dropped == 1 and by_hand(one._sums, x, y)


def test_what_is_below_all_numbers_is_no_maximum(oracle, distance):
    """Unless there is nothing else in a window: then the image is left out."""
    model, (x, y) = pooled_first(), batch()
    bad = x.clone()
    bad[3, 1, 4, 2] = bad[3, 2, 5, 6] = bad[0, :, ::2, 1::2] = -math.inf
    sums = ClippedSums(model, CLIPPING)
    wanted = oracle(model, bad, y, CLIPPING)
    assert wanted.isfinite().all() and distance(sums.sum(x, y), wanted) > 1e-3
    assert distance(sums.sum(bad, y), wanted) < 1e-5
    one, kept = engine(model, noise_multiplier=0), [0, 1, 2, 4, 5, 6]
    one.step(bad, y)
    bad[3, 1, 4:6, 2:4] = -math.inf
    torch.testing.assert_close(sums.sum(bad, y), sums.sum(bad[kept], y[kept]))
    one.step(bad, y)
    assert [step.dropped for step in one.diagnostics.steps] == [0, 1] and by_hand(sums, x, y)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tanh_lets_nothing_pass_that_is_not_finite(value):
    """Though it is 1 at infinity: the derivative there is 0, and 0 · ∞ is no number."""
    model, (x, y) = network((3, 8, 8), nn.Conv2d(3, 5, 3), nn.Tanh(), nn.MaxPool2d(2)), batch()
    bad, kept = x.clone(), [0, 1, 2, 4, 5, 6]
    bad[3, 1, 4, 2] = value
    one = engine(model, noise_multiplier=0)
    wanted = one.clipped_sum(x[kept], y[kept])
    one.step(bad, y)
    torch.testing.assert_close(one.released, wanted, rtol=1e-5, atol=1e-6)
    assert one.diagnostics.dropped == 1 and by_hand(one._sums, x, y)


def test_tanh_of_large_numbers_is_one_and_has_no_slope(oracle, distance):
    model, (x, y) = network((3, 8, 8), nn.Conv2d(3, 5, 3), nn.Tanh(), nn.MaxPool2d(2)), batch()
    x[[0, 3]] *= 1e30
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert by_hand(sums, x, y)


def test_an_infinite_loss_whose_slope_is_finite_drops_its_image():
    """The difference of two logits is more than float32 holds."""
    model, (x, _) = plain(), batch(size=6)
    with torch.no_grad():
        model[-1].bias[:] = torch.tensor([3e38, -3e38, 0.0, 1e38])
    y = torch.tensor([0, 2, 1, 3, 1, 2])
    one = engine(model, noise_multiplier=0)
    wanted = one.clipped_sum(x[y != 1], y[y != 1])
    torch.testing.assert_close(one.clipped_sum(x, y), wanted, rtol=1e-5, atol=1e-6)
    assert float(wanted.norm()) > 0.3
    one.step(x, y)
    assert one.diagnostics.dropped == 2 and by_hand(one._sums, x, y)


@pytest.mark.parametrize("rows", [[2], [2, 3], [0], [1, 4]], ids=str)
def test_the_first_batch_may_have_images_that_are_not_finite(rows, oracle, distance):
    """Whether the trial looks at them or at others."""
    model, (x, y) = plain(), batch(size=5)
    kept = [i for i in range(5) if i not in rows]
    wanted, bad = oracle(model, x[kept], y[kept], CLIPPING), x.clone()
    bad[rows, 0, 3] = math.nan
    sums = ClippedSums(model, CLIPPING)
    assert distance(sums.sum(bad, y), wanted) < 1e-5
    assert by_hand(sums, bad, y) and distance(sums.sum(bad, y), wanted) < 1e-5


# ---- the way is not taken -------------------------------------------------------------------------------------------


class OwnRule(GlobalClipping):
    """A rule of the caller's, who may have given it other weights."""


class OwnConvolution(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class OwnSequence(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Largest(nn.Module):
    """What is largest, without where it was."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(2, 1, return_indices=True)

    def forward(self, x):
        return self.pool(x)[0]


def frozen(model):
    model[3].bias.requires_grad_(False)


def shared(model):
    model[3] = nn.Conv2d(5, 5, 3, padding=1)
    model.insert(4, model[3])
    model[-1] = nn.Linear(5 * 49, CLASSES)


def same_weight(model):
    model[3] = nn.Conv2d(5, 5, 3, stride=2)
    model.insert(4, nn.Conv2d(5, 5, 3, padding=1))
    model[4].weight = model[3].weight
    model[-1] = nn.Linear(5 * 9, CLASSES)


def grouped(model):
    model[3] = nn.Conv2d(5, 10, 3, stride=2, groups=5)
    model[-1] = nn.Linear(90, CLASSES)


def dilated(model):
    model[3] = nn.Conv2d(5, 6, 2, dilation=2, stride=2)


def round_the_edge(model):
    model[0] = nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular")


def same(model):
    model[0] = nn.Conv2d(3, 5, 3, padding="same")


def ceiled(model):
    model[2] = nn.MaxPool2d(2, 2, ceil_mode=True)
    model[0] = nn.Conv2d(3, 5, 2)
    model[-1] = nn.Linear(6, CLASSES)


def dilated_pool(model):
    model[2] = nn.MaxPool2d(2, 1, dilation=2)
    model[-1] = nn.Linear(24, CLASSES)


def indexed(model):
    model[2] = Largest()


def own_convolution(model):
    model[3].__class__ = OwnConvolution


def own_sequence(model):
    model.__class__ = OwnSequence


def inside(made):
    def change(model):
        model.insert(3, made())

    return change


def average(model):
    model[2] = nn.AvgPool2d(2, 1)


def without_an_end(model):
    model.append(nn.ReLU())


def flattened_later(model):
    model[5] = nn.Flatten(2)
    model.insert(6, nn.Flatten(1))


def flattened_from_the_back(model):
    model[5] = nn.Flatten(1, 3)


def relu_first(model):
    model.insert(0, nn.ReLU())


def cut_short(model):
    del model[5:]
    model.append(nn.AdaptiveAvgPool2d(1))
    model.append(nn.Flatten())


def replaced_forward(model):
    model[1].forward = types.MethodType(lambda self, x: torch.relu(-x), model[1])


def hooked(model):
    model[3].register_forward_hook(lambda module, args, out: 2 * out)


def hooked_before(model):
    model.register_forward_pre_hook(lambda module, args: (args[0].abs(),))


def hooked_behind(model):
    model[3].register_full_backward_pre_hook(lambda module, slopes: (3 * slopes[0],))


CHANGES = [frozen, shared, same_weight, grouped, dilated, round_the_edge, same, ceiled, dilated_pool, indexed,
           own_convolution, own_sequence, average, without_an_end, flattened_later, flattened_from_the_back, cut_short,
           replaced_forward, hooked, hooked_before, hooked_behind]  # fmt: skip
INSIDE = {
    "a norm": lambda: nn.GroupNorm(1, 5),
    "Sigmoid": nn.Sigmoid,
    "Dropout": lambda: nn.Dropout(0.0),
    "Identity": nn.Identity,
    "LeakyReLU": nn.LeakyReLU,
}


@pytest.mark.parametrize("change", [*CHANGES, *map(inside, INSIDE.values())],
                         ids=[*(change.__name__ for change in CHANGES), *INSIDE])  # fmt: skip
@slowly
def test_what_is_not_quite_such_a_network_is_done_in_another_way(change, oracle, distance):
    model, (x, y) = plain(), batch()
    change(model)
    sums = ClippedSums(model, CLIPPING)
    assert not isinstance(sums._by_hand, ConvolutionalByHand)
    assert right(model, x, y, oracle, distance, sums=sums) and not by_hand(sums, x, y)


@pytest.mark.parametrize("steps", [
    [nn.ReLU(), nn.Conv2d(3, 5, 3)],
    [nn.Conv2d(3, 5, 3), nn.MaxPool2d(3), nn.Linear(2, 7), nn.ReLU()],
], ids=["ReLU first", "a linear layer of rows"])  # fmt: skip
def test_networks_that_no_program_is_built_for_are_done_in_another_way(steps, oracle, distance):
    model, (x, y) = network((3, 8, 8), *steps), batch()
    sums, given = ClippedSums(model, CLIPPING), x.clone()
    assert isinstance(sums._by_hand, ConvolutionalByHand) and not sums._by_hand.fits(x, y)
    assert right(model, x, y, oracle, distance, sums=sums) and torch.equal(x, given)


def test_indices_beside_values_raise_what_torch_raises():
    model, (x, y) = plain(), batch()
    model[2] = nn.MaxPool2d(2, 1, return_indices=True)
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    with pytest.raises(TypeError):
        sums.sum(x, y)


@pytest.mark.parametrize("steps", [[], [nn.ReLU(), nn.Linear(9, 9)]], ids=["one layer", "two"])
def test_networks_without_a_convolution_are_perceptrons(steps, oracle, distance):
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), *steps), batch(classes=9)
    sums = ClippedSums(model, CLIPPING)
    assert isinstance(sums._by_hand, FeedForward)
    assert right(model, x, y, oracle, distance, sums=sums)


def test_double_precision_is_done_in_another_way(oracle, distance):
    model, (x, y) = plain().double(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert sums._by_hand is None
    assert distance(sums.sum(x.double(), y), oracle(model, x, y, CLIPPING)) < 1e-10


def test_precision_that_is_changed_later_is_noticed(oracle, distance):
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    model.double()
    assert not sums._by_hand.fits(x.double(), y) and not sums._by_hand.fits(x, y)


def test_large_ones_are_done_in_another_way(monkeypatch, oracle, distance):
    model, (x, y) = plain(), batch()
    parameters = sum(p.numel() for p in model.parameters())
    for most in (parameters, parameters - 1):
        monkeypatch.setattr(convolutional, "_MOST", most)
        sums = ClippedSums(model, CLIPPING)
        assert (sums._by_hand is None) == (most < parameters)
        assert right(model, x, y, oracle, distance, sums=sums)


def test_a_rule_of_the_callers_is_asked(oracle, distance):
    model, (x, y), clipping = plain(), batch(), OwnRule(norm=0.3)
    sums = ClippedSums(model, clipping)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, clipping, sums=sums)


class Twice(CrossEntropy):
    def __call__(self, outputs, targets):
        return 2 * super().__call__(outputs, targets)


@pytest.mark.parametrize("loss", [Twice(), lambda outputs, targets: outputs.square().sum(1) + outputs[:, 0] * targets])
def test_a_loss_of_the_callers_is_asked(loss, oracle, distance):
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING, loss)
    assert sums._by_hand is None
    assert right(model, x, y, oracle, distance, loss=loss, sums=sums)


def soft(y):
    return torch.softmax(torch.randn((len(y), CLASSES), generator=generator()), 1)


BATCHES = {
    "probabilities": lambda x, y: (x, soft(y)),
    "arguments": lambda x, y: ((x,), y),
    "named arguments": lambda x, y: ({"input": x}, y),
}


@pytest.mark.parametrize("name", BATCHES)
def test_other_batches_are_done_in_another_way_and_these_still_by_hand(name, oracle, distance):
    model, (x, y) = plain(), batch()
    other = BATCHES[name](x, y)
    for order in ([(x, y), other], [other, (x, y)]):
        sums = ClippedSums(model, CLIPPING)
        for part in (*order, *order):
            assert right(model, *part, oracle, distance, sums=sums)
            assert by_hand(sums, *part) == (part is not other)


# ---- what is changed later ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [replaced_forward, hooked, hooked_before, hooked_behind, own_convolution,
                                    own_sequence])  # fmt: skip
@slowly
def test_what_users_put_on_a_module_later_is_done_too(change, oracle, distance):
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    before = sums.sum(x, y)
    change(model)
    wanted = oracle(model, x, y, CLIPPING)
    assert distance(before, wanted) > 1e-3
    assert distance(sums.sum(x, y), wanted) < 1e-5 and not by_hand(sums, x, y)


@slowly
def test_hooks_everywhere_are_heard_and_only_while_they_are_there(oracle, distance):
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: 2 * out if isinstance(module, nn.Conv2d) else None
    )
    try:
        assert ClippedSums(model, CLIPPING)._by_hand is None
        assert right(model, x, y, oracle, distance, sums=sums) and not by_hand(sums, x, y)
    finally:
        handle.remove()
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)


def layers_for_settings(**pool):
    """Whose settings may change without any shape that does."""
    steps = nn.Conv2d(3, 3, 3, stride=2, padding=1), nn.MaxPool2d(**{"kernel_size": 2, "stride": 2, **pool}), nn.ReLU()
    return network((3, 8, 8), *steps)


def other_places(model):
    model[0].stride, model[0].padding = (1, 1), (1, 1)
    model[1].kernel_size = model[1].stride = 4


def whole_numbers(model):
    """As torch takes them too."""
    model[0].stride, model[0].padding = 3, 2


def other_edge(model):
    model[0].padding_mode = "circular"
    model[0]._reversed_padding_repeated_twice = [1, 1, 1, 1]


def spread_out(model):
    model[0].dilation, model[0].padding = (2, 2), (2, 2)


def one_pixel(model):
    model[1].kernel_size = 1


def rounded_up(model):
    model[1].ceil_mode, model[1].kernel_size = True, 1


def another_activation(model):
    model[2] = nn.ReLU6()


def one_more(model):
    model.insert(1, nn.Sigmoid())


def one_less(model):
    del model[2]


SETTINGS = [other_places, other_edge, spread_out, one_pixel, rounded_up, another_activation, one_more,
            one_less]  # fmt: skip


@pytest.mark.parametrize("change", SETTINGS)
def test_a_network_that_is_changed_later_is_noticed(change, oracle, distance):
    model, (x, y) = layers_for_settings(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    before = sums.sum(x, y)
    change(model)
    wanted = oracle(model, x, y, CLIPPING)
    assert distance(before, wanted) > 1e-3
    assert distance(sums.sum(x, y), wanted) < 1e-5 and not by_hand(sums, x, y)


def another_list(pool):
    pool.kernel_size = [1, 1]


def changed_in_place(pool):
    pool.kernel_size[:] = [1, 1]


@pytest.mark.parametrize("change", [another_list, changed_in_place])
def test_settings_that_are_lists_are_looked_at_too(change, oracle, distance):
    """torch takes them, though it says otherwise."""
    model, (x, y) = layers_for_settings(kernel_size=[2, 2]), batch()
    sums = ClippedSums(model, CLIPPING)
    assert right(model, x, y, oracle, distance, sums=sums) and by_hand(sums, x, y)
    change(model[1])
    assert right(model, x, y, oracle, distance, sums=sums) and not by_hand(sums, x, y)


@pytest.mark.parametrize("change", [whole_numbers, other_places, one_pixel])
def test_settings_that_were_changed_before_count(change, oracle, distance):
    model, (x, y) = layers_for_settings(), batch()
    change(model)
    assert right(model, x, y, oracle, distance)


def test_a_parameter_that_is_replaced_later_is_not_trained_in_secret(oracle, distance):
    """It is no longer the one that the sums are of; the others' are what torch says."""
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, GlobalClipping(norm=1e6))
    sums.sum(x, y)
    model[3].bias = nn.Parameter(model[3].bias.detach() + 1)
    assert not by_hand(sums, x, y)
    got = dict(zip(sums.layout.names, sums.layout.split(sums.sum(x, y)), strict=True))
    wanted = sums.layout.split(oracle(model, x, y, GlobalClipping(norm=1e6)))
    for name, part in zip(sums.layout.names, wanted, strict=True):
        assert not got[name].any() if name == "3.bias" else distance(got[name], part) < 1e-5


# ---- a model as it was made -----------------------------------------------------------------------------------------


NOTICED = {
    "a hook": hooked,
    "a hook before": hooked_before,
    "a hook behind": hooked_behind,
    "another forward": replaced_forward,
    "another class": own_convolution,
    "another class of the whole": own_sequence,
    "a stride": lambda model: setattr(model[0], "stride", (2, 2)),
    "a stride as a whole number": lambda model: setattr(model[0], "stride", 1),
    "a kernel": lambda model: setattr(model[2], "kernel_size", 3),
    "padding as a word": lambda model: setattr(model[0], "padding", "same"),
    "a flag": lambda model: setattr(model[2], "ceil_mode", True),
    "where Flatten starts": lambda model: setattr(model[5], "start_dim", 2),
    "another module": lambda model: model.__setitem__(1, nn.ReLU()),
    "one more": lambda model: model.append(nn.ReLU()),
    "one less": lambda model: model.__delitem__(1),
    "two the other way round": lambda model: model._modules.update({"1": model[2], "2": model[1]}),
    "another weight": lambda model: setattr(model[3], "weight", nn.Parameter(model[3].weight.detach())),
    "no bias": lambda model: setattr(model[3], "bias", None),
    "a parameter of its own": lambda model: model[1].register_parameter("slope", nn.Parameter(torch.ones(1))),
    "a setting that is gone": lambda model: delattr(model[2], "stride"),
}
IGNORED = {
    "nothing": lambda model: None,
    "no training": lambda model: model.eval(),
    "training of one module": lambda model: model[2].eval(),
    "what is trained": lambda model: model.requires_grad_(False),
    "other numbers": lambda model: nn.init.zeros_(model[0].weight),
    "gradients": lambda model: setattr(model[0].weight, "grad", torch.ones_like(model[0].weight)),
    "the same setting again": lambda model: setattr(model[0], "stride", (1, 1)),
    "a hook that is gone": lambda model: model[1].register_forward_hook(print).remove(),
    "a name of the caller's": lambda model: setattr(model, "comment", "mine"),
}


@pytest.mark.parametrize("name", NOTICED)
def test_a_snapshot_notices(name):
    model = plain()
    snapshot = Snapshot(model)
    assert snapshot.holds()
    NOTICED[name](model)
    assert not snapshot.holds() and not snapshot.holds()


@pytest.mark.parametrize("name", IGNORED)
def test_a_snapshot_does_not_mind(name):
    model = plain()
    snapshot = Snapshot(model)
    IGNORED[name](model)
    assert snapshot.holds()


def test_a_snapshot_holds_again_once_all_is_as_it_was():
    model = plain()
    snapshot, relu = Snapshot(model), model[1]
    model[1], model[0].stride = nn.ReLU(), (2, 2)
    assert not snapshot.holds()
    model[1], model[0].stride = relu, (1, 1)
    assert snapshot.holds()


# ---- what does not fit ----------------------------------------------------------------------------------------------


def label_beyond(x, y):
    y[3] = CLASSES
    return x, y


def label_below(x, y):
    y[3] = -1
    return x, y


SPOILED = {
    "a label beyond": label_beyond,
    "a label below": label_below,
    "images too large": lambda x, y: (torch.cat([x, x], 3), y),
    "images too small": lambda x, y: (x[:, :, :2], y),
    "images of no height": lambda x, y: (x[:, :, :0], y),
    "too few channels": lambda x, y: (x[:, :2], y),
    "too many channels": lambda x, y: (torch.cat([x, x], 1), y),
    "no channels": lambda x, y: (x[:, :0], y),
    "no dimension of channels": lambda x, y: (x[:, 0], y),
    "one image": lambda x, y: (x[:3, 0], y[:3]),
    "flat images": lambda x, y: (x.flatten(1), y),
    "one dimension more": lambda x, y: (x.unsqueeze(1), y),
    "whole numbers": lambda x, y: (x.long(), y),
    "double precision": lambda x, y: (x.double(), y),
}


@pytest.mark.parametrize("first", [True, False], ids=["at first", "later"])
@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_raises_what_torch_raises_and_changes_nothing(name, first):
    model, (x, y) = plain(), batch()
    one = engine(model)
    if not first:
        one.step(x, y)
    bad, before = SPOILED[name](x.clone(), y.clone()), flat(model)
    with pytest.raises((RuntimeError, ValueError, IndexError)) as said:
        CrossEntropy()(model(bad[0]), bad[1])
    totals = [torch.ones_like(p) for p in model.parameters()]
    with torch.no_grad(), pytest.raises(said.type):
        one._sums.add_to(totals, *bad)
    with pytest.raises(said.type):
        one.step(*bad)
    assert all((total == 1).all() for total in totals) and torch.equal(flat(model), before)
    assert len(one.diagnostics.steps) == (not first)
    one.step(x, y)
    assert by_hand(one._sums, x, y)


def test_other_numbers_of_images_and_labels_raise():
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    with pytest.raises(ValueError, match="as many examples"):
        sums.sum(x, y[:-1])


# ---- the trial ------------------------------------------------------------------------------------------------------

real = convolutional.add_clipped
PARTS, RULE, TOTAL = 4, -2, -1  # arguments


def scaled_by_mistake(*args):
    counts = real(*args)
    args[TOTAL][:] *= 1.1
    return counts


def not_clipped(*args):
    rule = args[RULE]._replace(limits=args[RULE].limits * 1e6)
    return real(*args[:RULE], rule, args[TOTAL])


def one_layer_forgotten(*args):
    counts = real(*args)
    part = args[PARTS][3]
    args[TOTAL][part["weight"] : part["weight"] + part["inner"] * part["outputs"]] = 0
    return counts


def one_bias_forgotten(*args):
    counts = real(*args)
    part = args[PARTS][0]
    end = part["weight"] + part["inner"] * part["outputs"]
    args[TOTAL][end : end + part["outputs"]] = 0
    return counts


def no_number(*args):
    counts = real(*args)
    args[TOTAL][0] = np.nan
    return counts


def nothing(*args):
    return 0, 0


def fails(*args):
    raise RuntimeError("for a reason of its own")


@pytest.mark.parametrize(
    "twin", [scaled_by_mistake, not_clipped, one_layer_forgotten, one_bias_forgotten, no_number, nothing, fails]
)
def test_loops_that_are_wrong_are_found_out_on_the_first_batch(twin, monkeypatch, oracle, distance):
    monkeypatch.setattr(convolutional, "add_clipped", twin)
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert isinstance(sums._by_hand, ConvolutionalByHand)
    assert right(model, x, y, oracle, distance, sums=sums)
    assert sums._by_hand is None and not sums._tried and not sums.shared_out


def test_loops_that_are_right_are_tried_once(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(len(args[0]))
        return real(*args)

    monkeypatch.setattr(convolutional, "add_clipped", counted)
    sums, (x, y) = ClippedSums(plain(), CLIPPING), batch(size=3)
    for _ in range(3):
        sums.sum(x, y)
    assert calls == [1] * 6 + [3] * 3  # clipped and not


def test_nothing_is_known_from_a_batch_without_a_finite_gradient(monkeypatch):
    """It is done in another way, and the next one is tried."""
    model, (x, y) = plain(), batch()
    one, bad = engine(model, noise_multiplier=0), torch.full_like(x, math.nan)
    one.step(bad, y)
    assert isinstance(one._sums._by_hand, ConvolutionalByHand) and not one._sums._tried
    assert one.diagnostics.dropped == 7 and not one.released.any()
    one.step(x, y)
    assert by_hand(one._sums, x, y) and one.diagnostics.dropped == 7
    monkeypatch.setattr(convolutional, "add_clipped", not_clipped)
    other = ClippedSums(model, CLIPPING)
    other.sum(bad, y)
    assert other._by_hand is not None
    other.sum(x, y)
    assert other._by_hand is None


def test_nothing_is_known_from_a_batch_whose_gradients_are_all_zero(monkeypatch, oracle, distance):
    """As of images that have no label: wrong loops give zeros too."""
    monkeypatch.setattr(convolutional, "add_clipped", not_clipped)
    model, (x, y) = plain(), batch()
    sums = ClippedSums(model, CLIPPING)
    assert not sums.sum(x, torch.full_like(y, -100)).any()
    assert right(model, x, y, oracle, distance, sums=sums)
    assert sums._by_hand is None


# ---- what is left alone ---------------------------------------------------------------------------------------------


def test_a_step_leaves_threads_and_gradients_as_they_were(threads):
    model = plain()
    one = engine(model)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number)
    for number in (1, 3, 2):
        threads(number)
        one.step(*batch(size=16))
        assert torch.get_num_threads() == number
    assert one._sums._tried
    assert all((p.grad == number).all() for number, p in enumerate(model.parameters()))
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_what_fails_later_is_said_and_changes_nothing(monkeypatch, threads):
    model, (x, y) = plain(), batch(size=16)
    one = engine(model)
    one.step(x, y)
    threads(3)
    before, last = flat(model), x[-1].permute(1, 2, 0).flatten().numpy()

    def fails_at_the_end(*args):
        if np.array_equal(args[0][-1], last):
            raise RuntimeError("for a reason of its own")
        return real(*args)

    monkeypatch.setattr(convolutional, "add_clipped", fails_at_the_end)
    totals = [torch.ones_like(p) for p in model.parameters()]
    with torch.no_grad(), pytest.raises(RuntimeError, match="of its own"):
        one._sums.add_to(totals, x, y)
    with pytest.raises(RuntimeError, match="of its own"):
        one.step(x, y)
    assert torch.get_num_threads() == 3 and torch.equal(flat(model), before)
    assert all((total == 1).all() for total in totals) and len(one.diagnostics.steps) == 1


@each_rule
@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_a_batch_in_pieces_is_the_same_batch(pieces, clipping):
    model, (x, y) = plain(), batch(size=16)
    split = ClippedSums(model, clipping, physical_batch_size=pieces)
    torch.testing.assert_close(split.sum(x, y), ClippedSums(model, clipping).sum(x, y), rtol=1e-5, atol=1e-6)
    assert by_hand(split, x, y)


def test_an_empty_batch_is_a_step_of_noise_alone():
    model, (x, y) = plain(), batch()
    one, quiet = engine(model), engine(plain(), noise_multiplier=0)
    before = flat(model)
    one.step(x[:0], y[:0])
    quiet.step(x[:0], y[:0])
    assert not quiet.released.any() and float(one.released.std()) == pytest.approx(1.5 * 0.3, rel=0.2)
    assert not torch.equal(flat(model), before) and one.diagnostics.batch_sizes == (0,)
    one.step(x, y)
    assert by_hand(one._sums, x, y)


def test_totals_are_added_to_and_nothing_else_is_changed():
    model, (x, y) = plain(), batch()
    sums, before, given = ClippedSums(model, CLIPPING), flat(model), (x.clone(), y.clone())
    wanted = sums.sum(x, y)
    total = torch.full_like(wanted, 2.0)
    with torch.no_grad():
        counts = sums.add_to(sums.layout.split(total), x, y)
    torch.testing.assert_close(total - 2, wanted, rtol=1e-4, atol=1e-6)
    assert counts.examples == 7 and by_hand(sums, x, y)
    assert torch.equal(flat(model), before) and torch.equal(x, given[0]) and torch.equal(y, given[1])


def test_totals_may_lie_in_memory_as_parameters_do():
    model, (x, y) = plain().to(memory_format=torch.channels_last), batch()
    model[-1].weight = nn.Parameter(model[-1].weight.detach().t().contiguous().t())
    sums = ClippedSums(model, CLIPPING)
    wanted, totals = sums.sum(x, y), [torch.zeros_like(p) for p in model.parameters()]
    assert not totals[0].is_contiguous() and not totals[-2].is_contiguous()
    with torch.no_grad():
        sums.add_to(totals, x, y)
    assert torch.equal(torch.cat([total.flatten() for total in totals]), wanted) and by_hand(sums, x, y)


# ---- memory ---------------------------------------------------------------------------------------------------------


def reset_peak():
    """Of what the process has of the system's memory, whoever took it; what it keeps of freed memory goes back."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError):
        pytest.skip("the system does not say how much memory was used")


def used(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def growth(work):
    reset_peak()
    before = used("VmRSS")
    work()
    return used("VmHWM") - before


def test_per_image_gradients_are_never_all_written_out(threads):
    """26,000 parameters × 1,024 images would be 106 MB."""
    model, (x, y) = architectures.cnn(generator()), batch((1, 28, 28), 1024, 10)
    sums = ClippedSums(model, CLIPPING)
    for number in (1, 2):
        threads(number)
        sums.sum(x[:8], y[:8])
        assert min(growth(lambda: sums.sum(x, y)) for _ in range(3)) < 25e6  # others may get some meanwhile
        assert max(growth(lambda: torch.ones(26 * 10**6)) for _ in range(3)) > 80e6
    assert sums.layout.total > 26_000 and by_hand(sums, x, y)


@pytest.mark.parametrize("size", [np.int64(2), (2,), [2], (2, 2)], ids=str)
def test_sizes_of_pooling_that_torch_takes(size):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(size), nn.Flatten(), nn.Linear(27, 4))
    sums = ClippedSums(model, GlobalClipping(norm=0.5))
    assert sums.sum(torch.randn(5, 1, 8, 8), torch.arange(5) % 4).any() and sums._tried


def test_examples_that_mix_are_refused_though_the_loops_were_tried_first(monkeypatch):
    """They give other gradients than the model, so another way does the batch, and that is checked like any other."""
    forward = nn.Conv2d.forward

    def mixing(self, x):
        out = forward(self, x)
        return 1.5 * out if len(x) == 1 else out - out.mean(0, keepdim=True)

    monkeypatch.setattr(nn.Conv2d, "forward", mixing)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    sums = ClippedSums(model, GlobalClipping(norm=0.5))
    with pytest.raises(InputError, match="mixed"):
        sums.sum(torch.randn(5, 1, 8, 8), torch.arange(5) % 4)


def test_what_is_kept_of_linear_layers_is_added_now_and_then(monkeypatch, oracle, distance):
    """A thousand images, whose inputs to a linear layer are more numbers than are kept at once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 4))
    x, y = torch.randn(1500, 1, 8, 8), torch.arange(1500) % 4
    assert len(x) * 16 * 64 > 2**20
    whole = ClippedSums(model, GlobalClipping(norm=0.5))
    parts = ClippedSums(model, GlobalClipping(norm=0.5), physical_batch_size=100)
    assert distance(whole.sum(x, y), parts.sum(x, y).double()) < 1e-5 and whole._tried
