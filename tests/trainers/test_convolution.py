"""Stacked convolutional networks against torch's own layers and autograd, one example at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD
from dpaudit.trainers.images import Convolution, ConvolutionalNet, ImageNetwork

torch = pytest.importorskip("torch")

from dpaudit.trainers import convolution, engine  # noqa: E402  (needs torch)

CLASSES = 4
OPACUS = ConvolutionalNet((28, 28, 1), [Convolution(16, 8, 2, 3, pool=2), Convolution(32, 4, 2, pool=2)])
NETS = {
    "two layers": (ConvolutionalNet((9, 8, 2), [Convolution(3, 3, 2, 1, pool=2), Convolution(5, 2, padding=1)]), (6,)),
    "odd windows": (ConvolutionalNet((11, 9, 1), [Convolution(4, 3, padding=2, pool=3, pool_stride=2)]), ()),
    "strides that leave a rest": (ConvolutionalNet((10, 12, 3), [Convolution(2, 4, 3), Convolution(3, 2)]), (3,)),
    "windows apart": (ConvolutionalNet((8, 8, 1), [Convolution(3, 3, pool=1, pool_stride=2)]), (5, 4)),
    "one pixel": (ConvolutionalNet((1, 1, 5), [Convolution(3, 1)]), ()),
    "as large as the image": (ConvolutionalNet((5, 5, 2), [Convolution(6, 5), Convolution(4, 1)]), ()),
}
each_net = pytest.mark.parametrize("name", NETS)


def torch_net(net, hidden, matrices, classes=CLASSES):
    """The same network of torch's layers, for images (examples, height, width, channels), and its parameters by
    layer; float64."""
    parts, channels = [], net.shape[2]
    for layer in net.layers:
        parts += [torch.nn.Conv2d(channels, layer.channels, layer.kernel, layer.stride, layer.padding), torch.nn.ReLU(),
                  torch.nn.MaxPool2d(layer.pool, layer.pool_stride)]  # fmt: skip
        channels = layer.channels
    for inputs, outputs in itertools.pairwise([net.outputs, *hidden, classes]):
        parts += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    parts = [part.double() for part in parts[:-1]]
    for part, matrix in zip((p for p in parts if list(p.parameters())), matrices, strict=True):
        with torch.no_grad():
            weights = torch.as_tensor(matrix).double()
            part.bias.copy_(weights[-1])
            shape = part.weight.shape
            rows = weights[:-1].T
            part.weight.copy_(
                rows.reshape(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2) if len(shape) > 2 else rows
            )

    def forward(x):
        image = x.permute(0, 3, 1, 2)
        for part in parts:
            if isinstance(part, torch.nn.Linear) and image.dim() > 2:
                image = image.permute(0, 2, 3, 1).flatten(1)
            image = part(image)
        return image

    return forward, [(p.weight, p.bias) for p in parts if list(p.parameters())]


def as_matrix(weight, bias):
    """A gradient in the shape of a layer's matrix."""
    rows = weight.permute(2, 3, 1, 0).flatten(0, 2) if weight.dim() > 2 else weight.T
    return torch.cat([rows, bias[None]])


def problem(name, models=3, places=7, seed=0, dtype=torch.float64):
    """Layers and a padded batch; the last two places of every odd model are padding. Images are flat in places, as
    real ones are, so that many windows have several largest numbers."""
    net, hidden = NETS[name]
    rng = torch.Generator().manual_seed(seed)
    layers = [
        torch.randn((models, *shape), generator=rng, dtype=torch.float64) / math.sqrt(shape[0])
        for shape in net.matrices(hidden, CLASSES)
    ]
    x = torch.randn((models, places, net.features), generator=rng, dtype=torch.float64)
    x *= torch.logspace(-2, 1, places, dtype=torch.float64)[:, None]  # some gradients are clipped, some are not
    x[torch.rand(x.shape, generator=rng) < 0.4] = 0
    real = torch.ones((models, places), dtype=torch.float64)
    real[1::2, -2:] = 0
    x = torch.cat([x, torch.ones_like(x[..., :1])], -1) * real.unsqueeze(-1)
    y = torch.randint(CLASSES, (models, places, 1), generator=rng)
    batch = engine.Batch(x, y, x.square().sum(-1), real)
    parts = engine.Batch(x.to(dtype), y, batch.squares.to(dtype), real.to(dtype))
    return net, hidden, [layer.to(dtype) for layer in layers], parts


def slow_sums(net, hidden, layers, batch, clip_norm, classes=CLASSES):
    totals = [torch.zeros_like(layer, dtype=torch.float64) for layer in layers]
    models, places = batch.real.shape
    limits = torch.full((models, 1), math.inf) if clip_norm is None else torch.as_tensor(clip_norm).expand(models, 1)
    for k in range(models):
        forward, parameters = torch_net(net, hidden, [layer[k] for layer in layers], classes)
        leaves = [leaf for pair in parameters for leaf in pair]
        for b in (b for b in range(places) if batch.real[k, b]):
            logits = forward(batch.x[k, b, :-1].double().view(1, *net.shape))
            loss = torch.nn.functional.cross_entropy(logits, batch.y[k, b])
            gradient = torch.autograd.grad(loss, leaves)
            norm = math.sqrt(sum(float(part.square().sum()) for part in gradient))
            factor = min(1.0, float(limits[k]) / norm) if norm else 1.0
            for total, pair in zip(totals, zip(gradient[::2], gradient[1::2], strict=True), strict=True):
                total[k] += factor * as_matrix(*pair)
    return totals


def distance(sums, wanted):
    flat, reference = (torch.cat([part.double().flatten() for part in parts]) for parts in (sums, wanted))
    return float((flat - reference).norm() / reference.norm())


def sums(name, clip_norm, **changes):
    net, hidden, layers, batch = problem(name, **changes)
    body = convolution.ImageStack(net, hidden, CLASSES)
    return body.sums(layers, batch, clip_norm)[0], slow_sums(net, hidden, layers, batch, clip_norm)


# ---- gradients ------------------------------------------------------------------------------------------------------


@each_net
@pytest.mark.parametrize("clip_norm", [None, 0.5, 3.0])
def test_sums_equal_autograd_one_example_at_a_time(name, clip_norm):
    assert distance(*sums(name, clip_norm)) < 1e-12


@each_net
def test_in_single_precision_too(name):
    assert distance(*sums(name, 0.5, dtype=torch.float32)) < 1e-5


@each_net
def test_models_may_have_clip_norms_of_their_own(name):
    assert distance(*sums(name, torch.tensor([[0.1], [0.5], [30.0]], dtype=torch.float64))) < 1e-12


@pytest.mark.parametrize("places", [1, 3, 4, 13])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_tiles_of_any_size_add_up(places, clip_norm, monkeypatch):
    net, hidden, layers, batch = problem("two layers", models=5)
    monkeypatch.setattr(convolution, "_TILE", places * convolution.ImageStack(net, hidden, CLASSES).numbers)
    body = convolution.ImageStack(net, hidden, CLASSES)
    assert body.most == places
    assert distance(body.sums(layers, batch, clip_norm)[0], slow_sums(net, hidden, layers, batch, clip_norm)) < 1e-12


def test_tiles_cover_every_record_once():
    rng = np.random.default_rng(0)
    for _ in range(100):
        sizes = rng.integers(0, 9, rng.integers(1, 7)).tolist()
        most = int(rng.integers(1, 20))
        covered = np.zeros((len(sizes), 9), int)
        for models, places in convolution.tiles(sizes, most):
            assert 0 < covered[models, places].size <= most
            covered[models, places] += 1
        assert covered.max(initial=0) <= 1
        assert all(np.all(row[:size] == 1) for row, size in zip(covered, sizes, strict=True))


def test_both_ways_to_a_norm_are_taken():
    ways = [shape.explicit for net, _ in NETS.values() for shape in convolution.shapes(net)]
    assert True in ways and False in ways
    assert all(shape.explicit for shape in convolution.shapes(OPACUS))


@each_net
@pytest.mark.parametrize("explicit", [True, False])
def test_either_way_gives_the_same(name, explicit, monkeypatch):
    monkeypatch.setattr(convolution, "_GRAM", 0 if explicit else 10**9)
    assert distance(*sums(name, 0.5)) < 1e-12


@each_net
@pytest.mark.parametrize("explicit", [True, False])
def test_a_gradient_that_is_not_finite_adds_nothing(name, explicit, monkeypatch):
    monkeypatch.setattr(convolution, "_GRAM", 0 if explicit else 10**9)
    net, hidden, layers, batch = problem(name)
    wanted = slow_sums(net, hidden, layers, batch, 0.5)
    places = [(0, 2, math.inf), (1, 0, math.nan)]
    for k, b, value in places:
        batch.x[k, b, 0] = value
    body = convolution.ImageStack(net, hidden, CLASSES)
    found = body.sums(layers, batch, 0.5)[0]
    for k, b, _ in places:
        batch.real[k, b] = 0
    batch.x.nan_to_num_(0, 0, 0)
    assert all(bool(torch.isfinite(total).all()) for total in found)
    assert distance(found, slow_sums(net, hidden, layers, batch, 0.5)) < 1e-12 < distance(found, wanted)
    again = body.sums(layers, batch, 0.5)[0]  # nothing of them stays in the tiles' memory
    assert distance(again, slow_sums(net, hidden, layers, batch, 0.5)) < 1e-12


def test_padding_is_inert():
    net, hidden, layers, batch = problem("two layers")
    cut = engine.Batch(*(part[1:2, :-2] for part in (batch.x, batch.y, batch.squares, batch.real)))
    for clip_norm in (None, 0.5):
        padded = convolution.ImageStack(net, hidden, CLASSES).sums(layers, batch, clip_norm)[0]
        alone = convolution.ImageStack(net, hidden, CLASSES).sums([layer[1:2] for layer in layers], cut, clip_norm)[0]
        for left, right in zip(padded, alone, strict=True):
            torch.testing.assert_close(left[1:2], right, rtol=1e-12, atol=1e-14)


def test_the_same_check_catches_clipping_without_the_convolutions():
    net, hidden, layers, batch = problem("two layers")
    body = convolution.ImageStack(net, hidden, CLASSES)
    broken = pytest.MonkeyPatch()
    broken.setattr(convolution._Place, "squared_norms", lambda place: place._slopes.new_zeros(place._count))
    try:
        place_sums = body.sums(layers, batch, 3.0)[0]
    finally:
        broken.undo()
    assert distance(place_sums, slow_sums(net, hidden, layers, batch, 3.0)) > 1e-2


# ---- training -------------------------------------------------------------------------------------------------------

SMALL = ConvolutionalNet((4, 4, 1), [Convolution(3, 2, pool=2)])


def images(records=60, seed=0, side=4, classes=3):
    """Images that are bright in one of three places."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, records)
    x = 0.3 * rng.normal(size=(records, side, side))
    for i, label in enumerate(y):
        x[i, label, label] += 2
    return Data(x.reshape(records, -1), y, classes, nominal_size=records)


def parameters(settings, seeds=(1, 2, 3), **options):
    data = images()
    member = np.random.default_rng(0).random((3, len(data))) < 0.5
    return np.stack([m.parameters() for m in convolution.fit(settings, SMALL, data, member, seeds, **options)])


@pytest.mark.parametrize("clip_norm", [0.05, 0.5])
def test_a_private_step_is_the_clipped_sum_over_the_divisor(clip_norm):
    settings = DPSGD(noise_multiplier=0, sampling_rate=1, steps=1, learning_rate=2, clip_norm=clip_norm, hidden=[5],
                     expected_batch_size=4)  # fmt: skip
    data = images()
    member = np.arange(60) % 3 > 0
    (model,) = convolution.fit(settings, SMALL, data, member[None], [7])
    layers = [torch.tensor(matrix)[None].double() for matrix in SMALL.start([5], 3, 7)]
    batch = engine.RecordTable(data, torch.device("cpu")).batch(torch.from_numpy(np.flatnonzero(member))[None])
    wanted = [-2 / 4 * total for total in slow_sums(SMALL, (5,), layers, batch, clip_norm, classes=3)]
    moved = [torch.tensor(m)[None].double() - layer for m, layer in zip(model.layers, layers, strict=True)]
    assert distance(moved, wanted) < 1e-5


def test_noise_alone_has_the_stated_deviation():
    settings = DPSGD(noise_multiplier=3, clip_norm=0.5, sampling_rate=0.5, steps=50, learning_rate=0.1, hidden=[40])
    data = images()
    (model,) = convolution.fit(settings, SMALL, data, np.zeros((1, 60), bool), [1], keep_iterates=True)
    steps = np.diff(np.vstack([model.start, model.iterates()]).astype(float), axis=0) / (0.1 * 3 * 0.5 / 30)
    assert abs(np.mean(steps**2) - 1) * math.sqrt(steps.size / 2) < 5  # a false alarm in 1.7 million
    np.testing.assert_array_equal(model.iterates()[-1], model.parameters())


@pytest.mark.parametrize("settings", [SGD(steps=30, sampling_rate=0.2), DPSGD(steps=30, sampling_rate=0.2, hidden=[4])])
def test_a_model_is_the_same_in_any_stack(settings):
    data = images()
    member = np.random.default_rng(0).random((3, len(data))) < 0.5
    together = parameters(settings)
    np.testing.assert_array_equal(parameters(settings), together)
    for k in range(3):
        (alone,) = convolution.fit(settings, SMALL, data, member[k : k + 1], [k + 1])
        np.testing.assert_allclose(alone.parameters(), together[k], rtol=1e-4, atol=1e-5)


def test_models_of_a_stack_may_differ_in_noise_and_clipping():
    several = [DPSGD(steps=20, sampling_rate=0.2, noise_multiplier=s, clip_norm=c) for s, c in ((1, 1), (0, 2), (3, 1))]
    mixed = parameters(several)
    for k, settings in enumerate(several):
        np.testing.assert_allclose(mixed[k], parameters(settings)[k], rtol=1e-4, atol=1e-5)


def test_it_learns_what_there_is_to_learn():
    data = images(records=300)
    settings = SGD(steps=150, sampling_rate=0.2, learning_rate=0.3)
    (model,) = convolution.fit(settings, SMALL, data, np.ones((1, 300), bool), [0])
    assert np.mean(model.logits(data.x).argmax(1) == data.y) > 0.95


def test_other_records_are_refused():
    with pytest.raises(InputError, match=r"images of \(5, 5, 1\), 25 features, got 16"):
        net = ConvolutionalNet((5, 5, 1), [Convolution(2, 2)])
        convolution.fit(SGD(), net, images(), np.ones((1, 60), bool), [0])


# ---- the trained network and the description ------------------------------------------------------------------------


@each_net
def test_logits_are_those_of_torchs_layers(name):
    net, hidden = NETS[name]
    matrices = [m.astype(np.float32) for m in net.start(hidden, CLASSES, 3)]
    x = np.random.default_rng(0).normal(size=(300, net.features)).astype(np.float32)
    forward, _ = torch_net(net, hidden, matrices)
    wanted = forward(torch.from_numpy(x).double().view(-1, *net.shape)).detach().numpy()
    model = ImageNetwork(tuple(matrices), np.concatenate([m.ravel() for m in matrices]), None, net)
    np.testing.assert_allclose(model.logits(x), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(model.parameters(), model.start)
    with pytest.raises(InputError, match=f"records, {net.features}"):
        model.logits(x[:, :-1])


def test_the_start_is_uniform_in_one_over_root_inputs():
    net = ConvolutionalNet((9, 9, 3), [Convolution(50, 5)])
    kernel, linear = net.start((), 7, 0)
    for matrix in (kernel, linear):
        bound = 1 / math.sqrt(len(matrix) - 1)
        assert np.abs(matrix).max() <= bound and np.abs(matrix).max() > 0.98 * bound
        assert abs(matrix.std() - bound / math.sqrt(3)) < 0.05 * bound


def test_sizes_are_torchs():
    shapes = [shape for pair in OPACUS.matrices([32], 10) for shape in [pair]]
    assert shapes == [(65, 16), (257, 32), (513, 32), (33, 10)]
    assert sum(i * o for i, o in shapes) == 26010  # as Opacus's MNIST example has


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Convolution(0, 3), "channels"),
        (lambda: Convolution(1, 3, stride=0), "stride"),
        (lambda: Convolution(1, 3, padding=-1), "padding"),
        (lambda: Convolution(1, 3, pool=1.5), "pool"),
        (lambda: ConvolutionalNet((4, 4, 1), []), "layers"),
        (lambda: ConvolutionalNet((4, 4, 1), [3]), "layers"),
        (lambda: ConvolutionalNet((4, 4), [Convolution(1, 2)]), "shape"),
        (lambda: ConvolutionalNet((4, 0, 1), [Convolution(1, 2)]), "side of an image"),
        (lambda: ConvolutionalNet((4, 4, 1), [Convolution(1, 5)]), "kernel must fit"),
        (lambda: ConvolutionalNet((4, 4, 1), [Convolution(1, 3, pool=3)]), "pool must be at most 2"),
        (lambda: ConvolutionalNet((6, 6, 1), [Convolution(1, 3), Convolution(1, 5)]), "kernel must fit"),
    ],
)
def test_descriptions_out_of_range_are_refused_by_name(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_descriptions_are_values():
    net = ConvolutionalNet([4, 4, 1], [Convolution(1, 2)])
    assert net == ConvolutionalNet((4, 4, 1), (Convolution(1, 2),)) and len({net, net}) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_trains_the_same_networks():
    settings = DPSGD(steps=20, sampling_rate=0.3, noise_multiplier=0, hidden=[5])
    np.testing.assert_allclose(parameters(settings, device="cuda"), parameters(settings), rtol=1e-3, atol=1e-4)
