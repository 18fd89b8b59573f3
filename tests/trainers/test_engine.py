"""The engine against one-example-at-a-time autograd, and its batches, noise and divisor against what they should be.

Statistical checks use fixed seeds; each states the false-alarm rate it would have over seeds.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, train_many
from dpaudit.trainers.sampling import batch_blocks, flips
from dpaudit.trainers.seeds import stream

torch = pytest.importorskip("torch")

from dpaudit.trainers import engine  # noqa: E402  (needs torch)

FEATURES, CLASSES = 6, 4
NETWORKS = [(), (5,), (5, 3)]
Z = 5.0  # standard deviations: one false alarm in 1.7 million independent two-sided checks


def some_data(records: int = 12, nominal_size: int | None = None, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    return Data(
        rng.normal(size=(records, FEATURES)), rng.integers(0, CLASSES, records), CLASSES, nominal_size=nominal_size
    )


# ---- gradients ------------------------------------------------------------------------------------------------------


def random_problem(hidden, models=3, places=7, seed=0):
    """Layers and a padded batch of float64 tensors; the last two places of every odd model are padding."""
    rng = torch.Generator().manual_seed(seed)
    widths = [FEATURES, *hidden, CLASSES]
    layers = [
        torch.randn((models, i + 1, o), generator=rng, dtype=torch.float64) for i, o in itertools.pairwise(widths)
    ]
    x = torch.randn((models, places, FEATURES + 1), generator=rng, dtype=torch.float64)
    x *= torch.logspace(-2, 1, places, dtype=torch.float64)[:, None]  # some gradients below the clip norm, some above
    real = torch.ones((models, places), dtype=torch.float64)
    real[1::2, -2:] = 0
    x[..., -1] = 1
    x *= real.unsqueeze(-1)
    y = torch.randint(CLASSES, (models, places, 1), generator=rng)
    return layers, engine.Batch(x, y, x.square().sum(-1), real)


def engine_sums(layers, batch, clip_norm, weigh=engine.weigh):
    step = engine.backward(layers, batch)
    weigh(step, clip_norm)
    return [a.transpose(1, 2) @ g for a, g in zip(step.inputs, step.slopes, strict=True)]


def one_gradient(layers, x, y):
    """The gradient of one example's cross-entropy in one model, by autograd on the plain formula."""
    leaves = [layer.clone().requires_grad_() for layer in layers]
    activation = x[:-1]
    for number, layer in enumerate(leaves):
        activation = (activation.relu() if number else activation) @ layer[:-1] + layer[-1]
    torch.nn.functional.cross_entropy(activation[None], y).backward()
    return [leaf.grad for leaf in leaves]


def slow_sums(layers, batch, clip_norm):
    sums = [torch.zeros_like(layer) for layer in layers]
    for k, b in itertools.product(*map(range, batch.real.shape)):
        if batch.real[k, b]:
            gradient = one_gradient([layer[k] for layer in layers], batch.x[k, b], batch.y[k, b])
            norm = math.sqrt(sum(float(part.square().sum()) for part in gradient))
            factor = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
            for total, part in zip(sums, gradient, strict=True):
                total[k] += factor * part
    return sums


def distance(sums, wanted):
    flat, reference = (torch.cat([part.flatten() for part in parts]) for parts in (sums, wanted))
    return float((flat - reference).norm() / reference.norm())


@pytest.mark.parametrize("hidden", NETWORKS)
@pytest.mark.parametrize("clip_norm", [None, 0.5, 3.0])
def test_sums_equal_autograd_one_example_at_a_time(hidden, clip_norm):
    layers, batch = random_problem(hidden)
    assert distance(engine_sums(layers, batch, clip_norm), slow_sums(layers, batch, clip_norm)) < 1e-12


def clip_each_layer(step, clip_norm):
    """A broken twin: every layer clipped by itself, so that an example adds up to √layers · C."""
    for squares, slope in zip(step.input_squares, step.slopes, strict=True):
        factor = engine.clip_factors(squares * slope.square().sum(-1), clip_norm)
        slope.mul_(factor.unsqueeze(-1))


def test_the_same_check_catches_clipping_layer_by_layer():
    layers, batch = random_problem((5,))
    broken = engine_sums(layers, batch, 0.5, weigh=clip_each_layer)
    assert distance(broken, slow_sums(layers, batch, 0.5)) > 1e-2


@pytest.mark.parametrize("hidden", NETWORKS)
def test_one_public_step_is_the_clipped_sum_over_the_divisor(hidden):
    data = some_data()
    settings = DPSGD(
        noise_multiplier=0, sampling_rate=1, steps=1, learning_rate=2.0, clip_norm=0.7, hidden=hidden,
        expected_batch_size=4,
    )  # fmt: skip
    member = np.arange(12) % 3 > 0
    model = settings.train(data, member, 5)
    layers = [torch.tensor(m)[None].double() for m in engine.start_layers(FEATURES, hidden, CLASSES, 5)]
    batch = engine.RecordTable(data, torch.device("cpu")).batch(torch.from_numpy(np.flatnonzero(member))[None])
    exact = engine.Batch(batch.x.double(), batch.y, batch.squares.double(), batch.real.double())
    wanted = [-2.0 / 4 * total for total in slow_sums(layers, exact, 0.7)]
    moved = [torch.tensor(m)[None].double() - layer for m, layer in zip(model.layers, layers, strict=True)]
    assert distance(moved, wanted) < 1e-5


def test_each_example_adds_at_most_the_clip_norm():
    data, norms = some_data(), []
    settings = DPSGD(noise_multiplier=0, sampling_rate=1, steps=1, learning_rate=1, clip_norm=0.3,
                     expected_batch_size=1)  # fmt: skip
    for model in train_many(settings, data, np.eye(12, dtype=bool), 0):
        norms.append(np.linalg.norm(model.parameters()))
    np.testing.assert_allclose(norms, 0.3, rtol=1e-6)  # at a start of zeros every gradient is longer than that


def test_a_zero_gradient_is_not_divided_by():
    factors = engine.clip_factors(torch.tensor([0.0, 1e-30, 4.0]), 1.0)
    assert factors.tolist() == [1.0, 1.0, 0.5]


def test_a_gradient_that_is_not_finite_adds_nothing():
    layers, batch = random_problem((5,))
    wanted = slow_sums(layers, batch, 0.5)
    places = [(0, 2, math.inf), (1, 0, math.nan)]
    for k, b, value in places:
        batch.x[k, b, 0] = value
        batch.squares[k, b] = value
    sums = engine_sums(layers, batch, 0.5)
    for k, b, _ in places:
        batch.real[k, b] = 0
    batch.x.nan_to_num_(0, 0, 0)
    assert all(bool(torch.isfinite(total).all()) for total in sums)
    assert distance(sums, slow_sums(layers, batch, 0.5)) < 1e-12 < distance(sums, wanted)


@pytest.mark.parametrize("hidden", NETWORKS)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_step_subtracts_the_sum(hidden, clip_norm):
    layers, batch = random_problem(hidden)
    moved = [layer.clone() for layer in layers]
    engine.Perceptron(FEATURES, hidden, CLASSES).gradient_step(moved, batch, clip_norm, 0.3)
    found = [(layer - after) / 0.3 for layer, after in zip(layers, moved, strict=True)]
    assert distance(found, slow_sums(layers, batch, clip_norm)) < 1e-12


def test_models_without_a_record_in_a_batch_stay_where_they_are():
    layers, batch = random_problem((5,))
    batch.real[1] = 0
    batch.x[1] = 0
    batch.squares[1] = 0
    moved = [layer.clone() for layer in layers]
    engine.Perceptron(FEATURES, (5,), CLASSES).gradient_step(moved, batch, 0.5, 0.3)
    for before, after in zip(layers, moved, strict=True):
        assert torch.equal(before[1], after[1]) and not torch.equal(before[2], after[2])


def test_padding_is_exactly_inert():
    layers, batch = random_problem((5,))
    alone = engine.Batch(*(part[:, :-2] for part in (batch.x, batch.y, batch.squares, batch.real)))
    for padded, cut in zip(engine_sums(layers, batch, 0.5), engine_sums(layers, alone, 0.5), strict=True):
        torch.testing.assert_close(padded[1], cut[1], rtol=1e-14, atol=0)


# ---- batches --------------------------------------------------------------------------------------------------------


def inclusion(rate, records, steps, seeds=(0,), member=None):
    """Bool (steps, models, records): who joined."""
    member = np.ones((len(seeds), records), bool) if member is None else member
    joined = []
    for block in batch_blocks([stream(s, "sampling") for s in seeds], member, rate, steps):
        part = np.zeros((*block.index.shape[:2], records + 1), bool)
        np.put_along_axis(part, block.index, True, axis=2)
        np.testing.assert_array_equal(part[..., :-1].sum(2), block.sizes)
        joined.append(part[..., :-1])
    return np.concatenate(joined)


def poisson_scores(joined, rate):
    """Standard scores that are about normal for independent coins of this rate: of the mean, of the variance of
    batch sizes, of the variance of a record's count, and of the correlation of neighbours in time and in number."""
    steps, records = joined.shape
    centred = (joined - rate) / math.sqrt(rate * (1 - rate))

    def variance_score(values):
        return (np.mean(values**2) - 1) * math.sqrt(len(values) / 2)

    return {
        "mean": centred.sum() / math.sqrt(centred.size),
        "sizes": variance_score(centred.sum(1) / math.sqrt(records)),
        "counts": variance_score(centred.sum(0) / math.sqrt(steps)),
        "steps": (centred[1:] * centred[:-1]).sum() / math.sqrt(centred[1:].size),
        "records": (centred[:, 1:] * centred[:, :-1]).sum() / math.sqrt(centred[:, 1:].size),
    }


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_every_record_joins_by_a_coin_of_its_own(rate):
    scores = poisson_scores(inclusion(rate, records=400, steps=1000)[:, 0], rate)
    assert all(abs(score) < Z for score in scores.values()), scores


def test_the_same_check_catches_shuffled_batches_of_fixed_size():
    rng = np.random.default_rng(0)
    orders = [rng.permutation(400).reshape(20, 20) for _ in range(50)]
    joined = np.zeros((1000, 400), bool)
    np.put_along_axis(joined, np.concatenate(orders), True, axis=1)
    scores = poisson_scores(joined, 0.05)
    assert abs(scores["sizes"]) > Z and abs(scores["counts"]) > Z


def test_models_have_batches_of_their_own():
    first, second = np.moveaxis(inclusion(0.1, 300, 300, seeds=(1, 2)), 1, 0) - 0.1
    assert abs((first * second).sum() / (0.1 * 0.9 * math.sqrt(first.size))) < Z


def test_taking_a_record_out_changes_no_other_records_batches():
    everybody = inclusion(0.2, 50, 100)
    member = np.ones((1, 50), bool)
    member[0, 7] = False
    without = inclusion(0.2, 50, 100, member=member)
    assert not without[..., 7].any()
    np.testing.assert_array_equal(np.delete(everybody, 7, 2), np.delete(without, 7, 2))


def test_a_rate_of_one_takes_everybody_and_a_tiny_rate_nobody():
    assert inclusion(1.0, 30, 40).all()
    assert not inclusion(1e-12, 30, 40).any()
    assert flips(np.random.default_rng(0), 1e-300, 10).size == 0


def test_coins_beyond_the_first_guess_of_their_number_are_flipped_too():
    for seed in range(200):
        heads = flips(np.random.default_rng(seed), 0.5, 3)
        assert np.all(np.diff(heads) > 0) and np.all(heads < 3)
    shares = [len(flips(np.random.default_rng(s), 0.99, 10_000)) / 10_000 for s in range(20)]
    assert abs(np.mean(shares) - 0.99) < Z * math.sqrt(0.99 * 0.01 / 200_000)


# ---- noise ----------------------------------------------------------------------------------------------------------


def noise_alone(hidden=(), models=4, steps=60, **changes):
    """Updates (models, steps, parameters) of models without members, in units of what one step's noise should be."""
    options = {"noise_multiplier": 1.5, "clip_norm": 0.4, "learning_rate": 2.0, "sampling_rate": 0.25, **changes}
    settings = DPSGD(steps=steps, hidden=hidden, **options)
    data = some_data(nominal_size=40)
    stack = train_many(settings, data, np.zeros((models, 12), bool), 3, keep_iterates=True)
    paths = np.stack([np.vstack([m.start, m.iterates()]).astype(float) for m in stack])
    return np.diff(paths, axis=1) / (2.0 * 1.5 * 0.4 / (0.25 * 40))


@pytest.mark.parametrize("hidden", NETWORKS)
def test_noise_has_the_stated_deviation_in_every_layer_of_every_model(hidden):
    updates = noise_alone(hidden)
    sizes = [m.size for m in engine.start_layers(FEATURES, hidden, CLASSES, 0)]
    for part in np.split(updates, np.cumsum(sizes)[:-1], axis=2):
        for model in part:
            assert abs(model.mean()) * math.sqrt(model.size) < Z
            assert abs(np.mean(model**2) - 1) * math.sqrt(model.size / 2) < Z


def worst_correlation(updates):
    """The largest standard score of the correlation between two steps or two models, coordinate by coordinate."""
    rows = updates.reshape(-1, updates.shape[-1])
    scores = (rows @ rows.T) / math.sqrt(rows.shape[1])
    return np.abs(scores[~np.eye(len(rows), dtype=bool)]).max()


def test_noise_is_uncorrelated_between_steps_and_models():
    updates = noise_alone((40,), models=3, steps=40)  # 7,140 pairs of 444 numbers: false alarm about 0.5 %
    assert worst_correlation(updates) < Z


def test_noise_is_uncorrelated_between_layers():
    updates = noise_alone((6,), models=4, steps=200).reshape(800, -1)  # two layers, 42 and 28 numbers
    scores = updates[:, :42].T @ updates[:, 42:] / math.sqrt(800)
    assert np.abs(scores).max() < Z


def test_the_same_check_catches_noise_drawn_once_for_two_models():
    updates = noise_alone((40,), models=3, steps=40)
    updates[1] = updates[0]
    assert worst_correlation(updates) > Z


def test_noise_is_added_to_the_sum_and_does_not_depend_on_the_members():
    data = some_data(nominal_size=40)
    common = {"steps": 1, "sampling_rate": 1, "learning_rate": 1, "clip_norm": 0.5, "expected_batch_size": 8}
    members = np.stack([np.zeros(12, bool), np.arange(12) < 5, np.ones(12, bool)])
    noisy = train_many(DPSGD(noise_multiplier=2, **common), data, members, [9, 9, 9])
    quiet = train_many(DPSGD(noise_multiplier=0, **common), data, members, [9, 9, 9])
    noise = [a.parameters() - b.parameters() for a, b in zip(noisy, quiet, strict=True)]
    np.testing.assert_allclose(noise[1], noise[0], atol=1e-6)
    np.testing.assert_allclose(noise[2], noise[0], atol=1e-6)


def test_no_two_steps_of_a_long_run_repeat():
    updates = noise_alone(models=2, steps=500)
    first = updates[..., 0].ravel()
    assert len(np.unique(first)) > 0.99 * first.size  # float32 rounding of the path makes a few equal


# ---- divisor --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", [SGD, DPSGD])
def test_the_divisor_is_a_public_constant(trainer):
    """From zeros, with a rate of 1, updates of disjoint training sets add up: nothing was divided by their sizes."""
    noiseless = {"noise_multiplier": 0} if trainer is DPSGD else {}
    settings = trainer(steps=1, sampling_rate=1, learning_rate=1, **noiseless)
    data = some_data(nominal_size=100)
    left = np.arange(12) < 2
    a, b, both = (m.parameters() for m in train_many(settings, data, np.stack([left, ~left, left | ~left]), 0))
    np.testing.assert_allclose(a + b, both, atol=1e-7)
    halved = trainer(steps=1, sampling_rate=1, learning_rate=1, expected_batch_size=50, **noiseless)
    np.testing.assert_allclose(2 * both, halved.train(data, np.ones(12, bool), 0).parameters(), atol=1e-7)


def test_the_divisor_follows_the_nominal_size_and_the_rate():
    assert DPSGD(sampling_rate=0.1).divisor(some_data(nominal_size=50)) == pytest.approx(5)
    assert DPSGD(sampling_rate=0.1, expected_batch_size=7).divisor(some_data()) == 7


# ---- one engine, any stacking ---------------------------------------------------------------------------------------

RECIPES = [
    DPSGD(steps=40, sampling_rate=0.3),
    DPSGD(steps=40, sampling_rate=0.3, hidden=[5, 4]),
    SGD(steps=40, sampling_rate=0.3),
    SGD(steps=40, sampling_rate=0.3, hidden=[5]),
]


@pytest.mark.parametrize("settings", RECIPES, ids=str)
def test_a_model_is_the_same_in_any_stack(settings):
    data = some_data(20)
    member = np.random.default_rng(0).random((7, 20)) < 0.5
    seeds = list(range(7))
    alone = np.stack([settings.train(data, row, s).parameters() for row, s in zip(member, seeds, strict=True)])
    for chunk in (1, 3, 64):
        stacked = np.stack([m.parameters() for m in train_many(settings, data, member, seeds, chunk=chunk)])
        np.testing.assert_allclose(stacked, alone, rtol=1e-4, atol=1e-5)


def test_any_number_of_threads_gives_the_same_bits_and_is_undone():
    data = some_data(20)
    member = np.random.default_rng(0).random((7, 20)) < 0.5
    before = torch.get_num_threads()
    one, two = (
        [m.parameters().tobytes() for m in train_many(RECIPES[1], data, member, 1, chunk=2, threads=threads)]
        for threads in (1, 2)
    )
    assert one == two
    assert torch.get_num_threads() == before


def test_training_touches_no_global_generator():
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    wanted = np.random.random(), float(torch.rand(1))  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    RECIPES[1].train(some_data(), np.ones(12, bool), 0)
    assert (np.random.random(), float(torch.rand(1))) == wanted  # noqa: NPY002


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("settings", RECIPES[2:], ids=str)
def test_a_gpu_trains_the_same_networks(settings):
    data, member = some_data(20), np.ones((3, 20), bool)
    cpu, gpu = (train_many(settings, data, member, 1, device=d)[1].parameters() for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu, cpu, rtol=1e-3, atol=1e-4)
    noisy = train_many(DPSGD(steps=5, sampling_rate=0.3), data, member, 1, device="cuda")
    assert np.isfinite(noisy.logits(data.x)).all()
