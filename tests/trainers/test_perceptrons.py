"""Stacks of perceptrons on a CPU against one-example-at-a-time autograd in float64, and against the engine's own body.

All is done with products of all models together and apart, by either library: small networks then show what large ones
do.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, reference, train_many
from dpaudit.trainers.noise import NoiseSource

from .test_memory import held

torch = pytest.importorskip("torch")

from dpaudit.trainers import engine, kernels, perceptrons, products  # noqa: E402  (needs torch)

FEATURES, CLASSES, RECORDS = 6, 4, 60
NETWORKS = [(), (5,), (7, 3)]
SIZES = (13, 0, 1, 30, 7)  # of the batches of a stack
RATE = 0.3
ROUNDING = 1e-5
CPU = torch.device("cpu")
# From how many numbers on a matrix is multiplied model by model, and from how many multiplications by oneDNN. With
# the third, the networks' first layers are large and the others are not.
WAYS = {"together": (2**62, 2**62), "apart": (0, 2**62), "first layer apart": (30, 2**62), "by oneDNN": (0, 1)}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    large, fewest = WAYS[request.param]
    monkeypatch.setattr(perceptrons, "_LARGE", large)
    monkeypatch.setattr(products, "_FEWEST", fewest)
    return request.param


each_network = pytest.mark.parametrize("hidden", NETWORKS, ids=str)
each_clipping = pytest.mark.parametrize("clip", [None, 1.0, 3.0, (0.01, 1.0, 0.2, 3.0, 1e30)], ids=str)


def some_data(records=RECORDS, features=FEATURES, seed=0):
    """Some gradients are below the clip norm, some above."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records, features)) * np.logspace(-2, 1, records)[:, None]
    order = rng.permutation(records)
    return Data(x[order], rng.integers(0, CLASSES, records), CLASSES)


def some_matrices(hidden, models=5, features=FEATURES):
    """Of all models, layer by layer, each ``(K, inputs + 1, outputs)``."""
    rng = np.random.default_rng(7)
    widths = [features, *hidden, CLASSES]
    return [
        (rng.normal(size=(models, i + 1, o)) / math.sqrt(i)).astype(np.float32) for i, o in itertools.pairwise(widths)
    ]


def some_batches(sizes=SIZES, records=RECORDS, seed=0):
    """Record numbers ``(K, B)`` and sizes, as the engine gives them: part of a wider array, padded with a number."""
    rng = np.random.default_rng([seed, *sizes])
    index = np.full((len(sizes), max(sizes) + 5), records)
    for row, size in zip(index, sizes, strict=True):
        row[:size] = rng.choice(records, size, replace=size > records)
    return index[:, : max(sizes)], np.array(sizes)


def clip_norms(clip):
    return torch.tensor(clip, dtype=torch.float32)[:, None] if isinstance(clip, tuple) else clip


class Stack:
    """Layers and what does steps on them."""

    def __init__(self, matrices, data, clip, kind=perceptrons.PerceptronStack):
        body = kind(data.features, [m.shape[2] for m in matrices[:-1]], CLASSES)
        self.layers = [body.stacked(list(m), CPU) for m in matrices]
        self._step = body.steps(self.layers, data, clip_norms(clip), RATE)

    def step(self, index, sizes):
        """The layers afterwards, and the counts as ``(K, 2)``."""
        with torch.inference_mode():
            found = self._step(index, sizes)
        counts = np.zeros((len(sizes), 2), int)
        if found is not None:
            counts[:, : found.shape[1]] = found
        return [layer.numpy().copy() for layer in self.layers], counts


def one_step(hidden, clip, kind=perceptrons.PerceptronStack, sizes=SIZES, data=None):
    data = some_data() if data is None else data
    return Stack(some_matrices(hidden, len(sizes), data.features), data, clip, kind).step(*some_batches(sizes))


def one_gradient(layers, x, y):
    """The gradient of one example's cross-entropy in one model, by autograd on the plain formula."""
    leaves = [layer.clone().requires_grad_() for layer in layers]
    activation = x
    for number, layer in enumerate(leaves):
        activation = (activation.relu() if number else activation) @ layer[:-1] + layer[-1]
    torch.nn.functional.cross_entropy(activation[None], y[None]).backward()
    return [leaf.grad for leaf in leaves]


def slow_step(hidden, clip, sizes=SIZES, data=None):
    """The same as :func:`one_step`, one example after the other, in float64."""
    data = some_data() if data is None else data
    index, _ = some_batches(sizes)
    matrices = [torch.from_numpy(m).double() for m in some_matrices(hidden, len(sizes), data.features)]
    x, y = torch.tensor(data.x, dtype=torch.float64), torch.tensor(data.y)
    moved, counts = [m.clone() for m in matrices], np.zeros((len(sizes), 2), int)
    for k, size in enumerate(sizes):
        norm = math.inf if clip is None else clip[k] if isinstance(clip, tuple) else clip
        for i in index[k, :size]:
            gradient = one_gradient([m[k] for m in matrices], x[i], y[i])
            length = math.sqrt(sum(float(part.square().sum()) for part in gradient))
            counts[k, 0] += length > norm
            for layer, part in zip(moved, gradient, strict=True):
                layer[k] -= RATE * min(1.0, norm / length) * part
    return [m.numpy() for m in moved], counts


def misfit(found, wanted, before):
    """The largest, over models and layers, of how far an update is off, over its length; 0 by 0 is 0.

    Less what float32 cannot hold: the last bit of each parameter, in both.
    """
    worst = 0.0
    for some, right, start in zip(found, wanted, before, strict=True):
        off, length = (np.linalg.norm(a.astype(float) - b, axis=(1, 2)) for a, b in ((some, right), (right, start)))
        assert np.isfinite(off).all()
        off = np.maximum(off - 2.0**-23 * np.linalg.norm(start, axis=(1, 2)), 0)
        worst = max(worst, *np.divide(off, length, out=np.where(off > 0, np.inf, 0.0), where=length > 0))
    return worst


def bits(layers):
    return [layer.tobytes() for layer in layers]


# ---- one step -------------------------------------------------------------------------------------------------------


@each_network
@each_clipping
def test_a_step_is_that_of_autograd_one_example_at_a_time(hidden, clip, way):
    layers, counts = one_step(hidden, clip)
    wanted, scaled = slow_step(hidden, clip)
    assert misfit(layers, wanted, some_matrices(hidden)) < ROUNDING
    np.testing.assert_array_equal(counts, scaled)
    if clip is not None:
        assert counts[:, 0].any() and (counts[:, 0] < SIZES).any()


@each_network
@each_clipping
def test_a_step_is_that_of_the_body_for_other_devices(hidden, clip, way):
    layers, counts = one_step(hidden, clip)
    wanted, scaled = one_step(hidden, clip, engine.Perceptron)
    assert misfit(layers, wanted, some_matrices(hidden)) < ROUNDING
    np.testing.assert_array_equal(counts, scaled)


@pytest.mark.parametrize("hidden", [(900,), (20, 1800)], ids=str)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_of_a_large_network_is_too(hidden, clip):
    """As it is: some matrices are large, and some of these products are."""
    data, sizes = some_data(features=40), (60, 0, 50, 3)
    matrices = some_matrices(hidden, len(sizes), 40)
    assert 0 < sum(m[0].size >= perceptrons._LARGE for m in matrices) < len(matrices)
    layers, counts = one_step(hidden, clip, sizes=sizes, data=data)
    wanted, scaled = slow_step(hidden, clip, sizes, data)
    assert misfit(layers, wanted, matrices) < ROUNDING
    np.testing.assert_array_equal(counts, scaled)


@pytest.mark.parametrize("sizes", [(1,), (8,), (9, 8), (0, 0, 16), (60, 1)], ids=str)
def test_batches_of_any_size_and_stacks_of_any(sizes, way):
    layers, counts = one_step((7, 3), 0.5, sizes=sizes)
    wanted, scaled = slow_step((7, 3), 0.5, sizes)
    assert misfit(layers, wanted, some_matrices((7, 3), len(sizes))) < ROUNDING
    np.testing.assert_array_equal(counts, scaled)


def nothing(*_):
    return 0


def without_labels(values, y):
    values -= values.max(1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(1, keepdims=True)


def everywhere_one(z, a, squares, sizes):
    whole = np.full_like(sizes, z.shape[2])
    ACTIVATE(z, a, squares, whole)


def without_the_bias(z, a, squares, sizes):
    ACTIVATE(z, a, squares, sizes)
    squares -= a[:, -1]


def norms_of_another_model(total, norms, sizes, counts):
    return WEIGH(total, np.roll(norms, 1), sizes, counts)


def half_too_long(total, norms, sizes, counts):
    return WEIGH(total, norms * np.float32(1.0005), sizes, counts)


def first_place_only(slopes, weights):
    slopes[..., :1] *= weights[:, None, :1]


ACTIVATE, WEIGH = kernels.activate, kernels.weigh
BROKEN = {
    "mask": nothing,
    "scale": nothing,
    "add_squares": nothing,
    "softmax_slopes": without_labels,
    "activate": without_the_bias,
    "weigh": norms_of_another_model,
}


@pytest.mark.parametrize(
    ("name", "broken"), [*BROKEN.items(), ("weigh", half_too_long), ("scale", first_place_only)]
)  # fmt: skip
def test_the_same_check_catches_broken_loops(name, broken, monkeypatch, way):
    clip = (0.5, 1.0, 0.2, 0.7, 0.3)
    wanted, _ = slow_step((7, 3), clip)
    monkeypatch.setattr(kernels, name, broken)
    layers, _ = one_step((7, 3), clip)
    assert misfit(layers, wanted, some_matrices((7, 3))) > 10 * ROUNDING


def test_the_same_check_catches_padding_that_is_no_padding(monkeypatch):
    monkeypatch.setattr(perceptrons, "_LARGE", 2**62)
    monkeypatch.setattr(kernels, "activate", everywhere_one)
    layers, _ = one_step((7, 3), 0.5)
    assert misfit(layers, slow_step((7, 3), 0.5)[0], some_matrices((7, 3))) == np.inf  # of the model without records


@each_network
@each_clipping
def test_models_without_a_record_in_a_batch_stay_where_they_are(hidden, clip, way):
    layers, counts = one_step(hidden, clip)
    for before, after in zip(some_matrices(hidden), layers, strict=True):
        np.testing.assert_array_equal(before[1], after[1])
        assert all(not np.array_equal(before[k], after[k]) for k in (0, 2, 3, 4))
    assert not counts[1].any()


def test_a_number_and_a_clip_norm_for_each_give_the_same_bits(way):
    one, each = (one_step((7, 3), clip) for clip in (0.5, (0.5,) * 5))
    assert bits(one[0]) == bits(each[0])


# ---- what is not finite ---------------------------------------------------------------------------------------------

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "square overflows": 1e30, "norm overflows": 1e19}


@dataclass
class Unchecked:
    """As :class:`Data`, which refuses most of what is needed here."""

    x: np.ndarray
    y: np.ndarray
    features: int = FEATURES

    def __len__(self):
        return len(self.y)


def spoiled(value, records=(3, 4)):
    """The same records, some with a feature that is no good."""
    x = some_data().x.copy()
    x[list(records), 2] = value
    return Unchecked(x, some_data().y)


def batches_with(bad, sizes=SIZES):
    """The records ``bad`` first, in the middle and last in the batch of the last model but one, and in no other."""
    index, sizes = some_batches(sizes)
    index = index.copy()
    good = np.setdiff1d(np.arange(RECORDS), bad)
    known = index < RECORDS
    index[known] = good[index[known] % len(good)]
    places = [0, sizes[3] // 2, sizes[3] - 1]
    index[3, places] = np.resize(bad, 3)
    return index, sizes, places


@pytest.mark.filterwarnings("ignore:overflow encountered")
@each_network
@pytest.mark.parametrize("value", BAD)
def test_gradients_that_are_not_finite_are_dropped_and_nothing_else_changes(hidden, value, way):
    """For 1e19 the engine's own body is asked whether a norm is finite: it depends on the slopes."""
    data, (index, sizes, places) = spoiled(BAD[value]), batches_with([3, 4])
    matrices = some_matrices(hidden)
    layers, counts = Stack(matrices, data, 0.5).step(index, sizes)
    others, wanted = Stack(matrices, data, 0.5, engine.Perceptron).step(index, sizes)
    np.testing.assert_array_equal(counts, wanted)
    assert misfit(layers, others, matrices) < ROUNDING
    if value == "norm overflows":
        return
    assert counts[3, 1] == 3 and counts[:, 1].sum() == 3
    kept = np.full_like(index, RECORDS)
    kept[:] = index
    kept[3, : sizes[3] - 3] = np.delete(index[3, : sizes[3]], places)
    kept[3, sizes[3] - 3 :] = RECORDS
    without, fewer = Stack(matrices, data, 0.5).step(kept, sizes - 3 * (np.arange(5) == 3))
    assert misfit([m[3:4] for m in layers], [m[3:4] for m in without], [m[3:4] for m in matrices]) < ROUNDING
    assert counts[3, 0] == fewer[3, 0]
    for layer, right in zip(layers, without, strict=True):
        np.testing.assert_array_equal(np.delete(layer, 3, 0), np.delete(right, 3, 0))  # other models: not in a bit


@each_network
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_without_clipping_a_model_may_diverge_but_takes_none_with_it(hidden, value, way):
    data, (index, sizes, _) = spoiled(BAD[value]), batches_with([3, 4])
    layers, _ = Stack(some_matrices(hidden), data, None).step(index, sizes)
    good, _ = Stack(some_matrices(hidden), some_data(), None).step(index, sizes)
    assert any(np.isnan(layer[3]).any() for layer in layers)
    for layer, right in zip(layers, good, strict=True):
        np.testing.assert_array_equal(np.delete(layer, 3, 0), np.delete(right, 3, 0))


@each_network
def test_a_model_that_diverged_stays_alone_with_it(hidden, way):
    """Weights of NaN and infinity make even padding NaN: it is set to zero, and other models see nothing of it."""
    index, sizes = some_batches()
    matrices, broken = some_matrices(hidden), some_matrices(hidden)
    for layer in broken:
        layer[3, 0, 0], layer[3, 1, 1] = np.nan, np.inf
    for clip in (None, 0.5):
        good, _ = Stack(matrices, some_data(), clip).step(index, sizes)
        layers, counts = Stack(broken, some_data(), clip).step(index, sizes)
        for layer, right in zip(layers, good, strict=True):
            np.testing.assert_array_equal(np.delete(layer, 3, 0), np.delete(right, 3, 0))
        if clip is not None:
            assert counts[3].tolist() == [0, sizes[3]]
            for layer, before in zip(layers, broken, strict=True):
                np.testing.assert_array_equal(layer[3], before[3])


# ---- memory that is used again --------------------------------------------------------------------------------------

HISTORY = [(5, 1, 3), (40, 0, 60), (3, 2, 1), (0, 17, 60), (9, 9, 9), (0, 0, 1), (60, 60, 60), (1, 0, 0), (40, 0, 60)]


@each_network
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_does_not_depend_on_those_before(hidden, clip, way):
    """Wide and narrow batches by turns, some of them spoiled: what one leaves in memory, no other sees."""
    data = spoiled(np.nan, records=(3,))
    stack = Stack(some_matrices(hidden, 3), data, clip)
    for number, size in enumerate(HISTORY):
        index, sizes = some_batches(size, seed=number)
        index = index.copy()
        index[index == 3] = 5
        clean = [layer.numpy().copy() for layer in stack.layers]
        fresh, wanted = Stack(clean, data, clip).step(index, sizes)
        layers, counts = stack.step(index, sizes)
        assert bits(layers) == bits(fresh)
        np.testing.assert_array_equal(counts, wanted)
        if number % 2 and sizes[-1]:
            index[-1, : sizes[-1]] = 3  # then the memory is full of NaN, and so may be the layers
            stack.step(index, sizes)
            for layer, before in zip(stack.layers, layers, strict=True):
                layer.copy_(torch.from_numpy(before))


def test_batches_of_all_widths_share_their_memory(way):
    """As they grow they are moved to larger blocks: none may stay behind. Labels alone, of 8 bytes, are each's own."""
    data, hidden = some_data(features=50), (40, 30)
    at_once, by_and_by = (Stack(some_matrices(hidden, 3, 50), data, 0.5) for _ in range(2))
    at_once.step(*some_batches((60, 60, 60)))
    for width in (8, 16, 24, 32, 40, 48, 56, 60, 10, 20):
        by_and_by.step(*some_batches((width, width, width)))
    labels = 8 * 3 * sum(range(8, 64, 8))
    first, later = {}, {}
    held(at_once._step, first)
    held(by_and_by._step, later)
    assert sum(later.values()) <= sum(first.values()) + 2 * labels


# ---- whole trainings ------------------------------------------------------------------------------------------------

RECIPES = [
    DPSGD(steps=30, sampling_rate=0.3, hidden=(7, 3)),
    DPSGD(steps=30, sampling_rate=0.3),
    SGD(steps=30, sampling_rate=0.3, hidden=(5,)),
]
each_recipe = pytest.mark.parametrize("settings", RECIPES, ids=str)


def normal_data():
    rng = np.random.default_rng(0)
    return Data(rng.normal(size=(20, FEATURES)), rng.integers(0, CLASSES, 20), CLASSES)


def members(models):
    return np.random.default_rng(1).random((models, 20)) < 0.6


def trained(settings, models=7, seed=1, **options):
    stack = train_many(settings, normal_data(), members(models), seed, **options)
    return np.stack([m.parameters() for m in stack])


def test_on_a_cpu_stacks_of_perceptrons_are_these(monkeypatch):
    asked = []
    monkeypatch.setattr(perceptrons, "_Descent", lambda *_: asked.append(1) or (lambda index, sizes: None))
    trained(RECIPES[0], chunk=3)
    assert len(asked) == 3


@each_recipe
def test_they_are_trained_as_by_the_body_for_other_devices(settings, way):
    """Noise too, as the layers' order in memory is the same: here both bodies have the CPU's."""

    class Transposed(engine.Perceptron):
        def stacked(self, matrices, place):
            return torch.from_numpy(np.ascontiguousarray(np.stack(matrices).transpose(0, 2, 1))).transpose(1, 2)

    arguments = settings, normal_data(), members(4), [1, 2, 3, 4]
    body = Transposed(FEATURES, settings.hidden, CLASSES)
    for one, two in zip(perceptrons.fit(*arguments), engine.fit_body(body, *arguments), strict=True):
        np.testing.assert_allclose(one.parameters(), two.parameters(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(one.counts, two.counts)


@each_recipe
def test_any_number_of_threads_gives_the_same_bits(settings, way):
    one, two = (trained(settings, chunk=2, threads=threads).tobytes() for threads in (1, 2))
    assert one == two


@each_recipe
def test_another_chunk_changes_rounding_alone(settings, way):
    whole = trained(settings, chunk=7)
    for chunk in (1, 3):
        np.testing.assert_allclose(trained(settings, chunk=chunk), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [DPSGD(noise_multiplier=1.3, clip_norm=0.5), DPSGD(sampling_rate=0.01)], ids=str)
def test_softmax_regression_arrives_where_the_reference_does(settings, way):
    models = train_many(settings, normal_data(), members(3), [4, 5, 6])
    for k, model in enumerate(models):
        wanted = reference.dp_sgd(settings, normal_data(), members(3)[k], 4 + k)
        np.testing.assert_allclose(model.layers[0], wanted, rtol=2e-5, atol=2e-5)


def test_plain_softmax_regression_does_too(way):
    settings = SGD(sampling_rate=0.2, steps=100)
    wanted = reference.sgd(settings, normal_data(), members(1)[0], 3)
    found = settings.train(normal_data(), members(1)[0], 3).layers[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


# ---- order ----------------------------------------------------------------------------------------------------------


@each_network
def test_layers_lie_transposed_and_are_what_they_were(hidden):
    for matrix in some_matrices(hidden):
        stacked = perceptrons.PerceptronStack(FEATURES, hidden, CLASSES).stacked(list(matrix), CPU)
        np.testing.assert_array_equal(stacked.numpy(), matrix)
        assert stacked.transpose(1, 2).is_contiguous()


@each_network
def test_models_and_what_they_released_are_in_logical_order(hidden):
    """With everybody in every batch, a training of t steps is the beginning of a longer one."""
    settings = DPSGD(steps=4, sampling_rate=1, hidden=hidden)
    model = train_many(settings, normal_data(), members(2), [8, 9], keep_iterates=True)[1]
    starts = engine.start_layers(FEATURES, hidden, CLASSES, 9)
    np.testing.assert_array_equal(model.start, np.concatenate([m.ravel() for m in starts]))
    assert [layer.shape for layer in model.layers] == [m.shape for m in starts]
    assert all(layer.flags.c_contiguous for layer in model.layers)
    assert model.iterates().shape == (4, model.parameters().size)
    for steps in range(1, 5):
        shorter = train_many(replace(settings, steps=steps), normal_data(), members(2), [8, 9])[1]
        np.testing.assert_array_equal(model.iterates()[steps - 1], shorter.parameters())


@each_network
def test_noise_is_added_in_the_order_of_memory(hidden):
    """Of models without members, an update is noise alone: each layer's, transposed."""
    settings = DPSGD(steps=1, noise_multiplier=1.5, clip_norm=0.4, learning_rate=2.0, expected_batch_size=8,
                     hidden=hidden)  # fmt: skip
    models = train_many(settings, normal_data(), np.zeros((2, 20), bool), [8, 9])
    shapes = [m.shape for m in engine.start_layers(FEATURES, hidden, CLASSES, 0)]
    noise = [np.zeros((2, rows * columns), np.float32) for rows, columns in shapes]
    NoiseSource([8, 9]).add_to(noise, np.ones(2, np.float32))
    for k, model in enumerate(models):
        starts = engine.start_layers(FEATURES, hidden, CLASSES, 8 + k)
        for layer, start, part, (rows, columns) in zip(model.layers, starts, noise, shapes, strict=True):
            wanted = start - 2.0 / 8 * 1.5 * 0.4 * part[k].reshape(columns, rows).T
            np.testing.assert_allclose(layer, wanted, rtol=1e-5, atol=1e-6)


def test_counts_are_kept_step_by_step():
    """Of records whose gradients are all longer than the clip norm, but for one whose norm overflows."""
    x = np.sign(some_data().x) * 5
    x[3] = 1e30
    settings = DPSGD(steps=20, sampling_rate=0.3, clip_norm=1e-3, noise_multiplier=0, hidden=(5,))
    members = np.ones((3, RECORDS), bool)
    counts = train_many(settings, Data(x, some_data().y, CLASSES), members, 5)[1].counts
    assert counts.shape == (20, 3) and set(counts[:, 2]) == {0, 1}
    np.testing.assert_array_equal(counts[:, 1] + counts[:, 2], counts[:, 0])


def test_another_default_type_changes_nothing():
    rng = np.random.default_rng(0)
    data = Data(rng.normal(size=(30, 5)), rng.integers(0, 3, 30), 3)
    member = rng.random((3, 30)) < 0.5
    settings = DPSGD(steps=4, sampling_rate=0.3, hidden=[4])
    wanted = [m.parameters() for m in train_many(settings, data, member, 0).models]
    torch.set_default_dtype(torch.float64)
    try:
        got = [m.parameters() for m in train_many(settings, data, member, 0).models]
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("units", [300, 40_000])
def test_squares_of_many_units_do_not_add_up_to_too_little(units):
    """Equal numbers are the worst: added up one after the other they are 1e-4 short."""
    values = np.full((1, units, 8), 0.1, np.float32)
    total = np.zeros((1, 8), np.float32)
    kernels.add_squares(total, values, np.ones((1, 8), np.float32))
    np.testing.assert_allclose(total, units * np.float64(np.float32(0.1)) ** 2, rtol=5e-6)
    a, squares = np.zeros((1, units + 1, 8), np.float32), np.zeros((1, 8), np.float32)
    kernels.activate(values, a, squares, np.full(1, 8))
    np.testing.assert_allclose(squares, 1 + units * np.float64(np.float32(0.1)) ** 2, rtol=5e-6)
