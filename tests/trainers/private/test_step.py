"""The step around the sum: noise, divisor, optimizers, and what is left alone.

Statistical checks use fixed seeds; each states the false-alarm rate it would have over seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.errors import InputError  # noqa: E402
from dpaudit.trainers import architectures, normal  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    Adam,
    AutomaticClipping,
    Diagnostics,
    GlobalClipping,
    Momentum,
    PerLayerClipping,
    PrivateEngine,
    Sgd,
    StepCounts,
)
from dpaudit.trainers.private.noise import GaussianNoise  # noqa: E402

Z = 5.0  # standard deviations: one false alarm in 1.7 million independent two-sided checks
CLIPPINGS = [GlobalClipping(norm=0.4), AutomaticClipping(norm=0.4), PerLayerClipping(norm=0.4)]
KINDS = ["by hand", "book-keeping"]


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def small(kind="by hand"):
    """A model with ReLU that is done by hand, or one with tanh that is done by book-keeping; 53 parameters."""
    model = architectures.mlp(6, [5], 3, generator())
    return model if kind == "by hand" else nn.Sequential(*[nn.Tanh() if type(m) is nn.ReLU else m for m in model])


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
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


# ---- noise ----------------------------------------------------------------------------------------------------------


def noise_alone(model, steps, clipping=None, seed=0):
    """The engine and what it released in steps without examples, in units of what the noise should be."""
    clipping = clipping or CLIPPINGS[0]
    one = engine(model, clipping=clipping, generator=np.random.default_rng(seed))
    rows = []
    for _ in range(steps):
        one.step(*batch(0))
        rows.append(one.released.double().numpy() / (1.5 * clipping.sensitivity))
    return one, np.stack(rows)


@pytest.mark.parametrize("clipping", [*CLIPPINGS, PerLayerClipping(norms=[0.3, 0.4])], ids=str)
def test_noise_has_the_stated_variance_in_every_tensor(clipping):
    """4.3 million numbers: an error of 1 % in the variance of all would be 15 standard deviations."""
    one, rows = noise_alone(architectures.mlp(30, [40], 20, generator()), 2000, clipping)
    assert abs(np.mean(rows**2) - 1) < 0.01
    sizes = [part.numel() for part in one.split(one.released).values()]
    for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1):
        assert abs(part.mean()) * math.sqrt(part.size) < Z
        assert abs(np.mean(part**2) - 1) * math.sqrt(part.size / 2) < Z
        assert abs(np.mean(part**4) - 3) * math.sqrt(part.size / 96) < Z


@pytest.mark.parametrize("share", [1 / 8, math.sqrt(1 / 8), 1 / 2, 1.05])
def test_the_same_check_catches_noise_scaled_by_something_else(share):
    """By the batch, its root, the number of pieces; or 5 % off."""
    _, rows = noise_alone(small(), 400)
    assert abs(np.mean((share * rows) ** 2) - 1) * math.sqrt(rows.size / 2) > Z


def scores_of_pairs(rows):
    """Standard scores of the correlation of each pair of rows."""
    scores = rows @ rows.T / math.sqrt(rows.shape[1])
    return np.abs(scores[~np.eye(len(rows), dtype=bool)])


def test_noise_is_uncorrelated_between_steps_and_models():
    """11,175 pairs of 1,023 numbers: a false alarm in 150 seeds."""
    model = architectures.mlp(30, [30], 3, generator())
    first, second = (noise_alone(model, 75, seed=seed)[1] for seed in (1, 2))
    assert scores_of_pairs(np.concatenate([first, second])).max() < Z


def test_noise_is_uncorrelated_between_coordinates_and_tensors():
    """1,378 pairs of 1,500 numbers: a false alarm in 1,200 seeds."""
    _, rows = noise_alone(small(), 1500)
    assert rows.shape[1] == 53
    assert scores_of_pairs(rows.T).max() < Z


def test_the_same_checks_catch_a_seed_used_twice():
    model = architectures.mlp(30, [30], 3, generator())
    _, rows = noise_alone(model, 5)
    _, again = noise_alone(model, 5)
    assert scores_of_pairs(np.concatenate([rows, again])).max() > Z
    _, long = noise_alone(small(), 1500)
    long[:, 35:45] = long[:, :10]  # one draw for two tensors
    assert scores_of_pairs(long.T).max() > Z


@pytest.mark.parametrize("physical", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_added_once_whatever_the_batch_and_its_pieces(kind, physical):
    noises = []
    for size in (0, 1, 7):
        one = engine(small(kind), physical_batch_size=physical)
        clean = one.clipped_sum(*batch(size))
        one.step(*batch(size))
        noises.append(one.released - clean)
    torch.testing.assert_close(noises[1], noises[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(noises[2], noises[0], rtol=0, atol=1e-6)
    assert float(noises[0].std()) > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_all_randomness_is_the_generators(kind):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    wanted = float(torch.rand(1)), np.random.random()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    released = []
    for seed in (7, 7, 8):
        one = engine(small(kind), generator=np.random.default_rng(seed))
        one.step(*batch(4))
        released.append(one.released)
    assert (float(torch.rand(1)), np.random.random()) == wanted  # noqa: NPY002
    assert torch.equal(released[0], released[1]) and not torch.equal(released[0], released[2])


def test_threads_change_no_bit_of_the_noise():
    before, rows = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            rows.append(noise_alone(architectures.mlp(300, [300], 10, generator()), 2)[1])
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_a_function_of_key_step_and_place(dtype):
    """Whatever was in the vector before, and of a shorter vector the beginning of the same."""
    key = np.random.default_rng(3).integers(0, 2**32, (1, 4), np.uint32)
    source = GaussianNoise(np.random.default_rng(3), torch.device("cpu"))
    for step, length in enumerate((700, 299, 1000)):
        out = torch.full((length,), 9.0, dtype=dtype)
        source.fill(out, 1.7)
        wanted = np.zeros((1, 1000), out.numpy().dtype)
        normal.add_normals(wanted, np.full(1, 1.7, wanted.dtype), key, step, 0)
        np.testing.assert_array_equal(out.numpy(), wanted[0, :length])


def test_the_generator_is_drawn_from_once():
    """Another engine may have the same generator: it has another key."""
    shared = np.random.default_rng(3)
    device, rows = torch.device("cpu"), torch.empty(2, 1000)
    first = GaussianNoise(shared, device)
    state = shared.bit_generator.state
    first.fill(rows[0], 1.0)
    assert shared.bit_generator.state == state
    GaussianNoise(shared, device).fill(rows[1], 1.0)
    assert scores_of_pairs(rows.double().numpy()).max() < Z


# ---- steps ----------------------------------------------------------------------------------------------------------


def test_planted_gradients_join_before_the_noise():
    plain, planted = engine(small()), engine(small())
    extra = torch.arange(53, dtype=torch.float32)
    plain.step(*batch(4))
    planted.step(*batch(4), extra=extra)
    torch.testing.assert_close(planted.released - plain.released, extra, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 16])
def test_the_divisor_is_a_constant(kind, size):
    model = small(kind)
    one = engine(model, noise_multiplier=0, divisor=4, optimizer=Sgd(learning_rate=2.0))
    before, clean = flat(model), one.clipped_sum(*batch(size))
    one.step(*batch(size), rate=0.5)
    torch.testing.assert_close(before - flat(model), clean / 4 * 2 * 0.5, rtol=1e-5, atol=1e-6)


OPTIMIZERS = {
    "sgd": (Sgd(learning_rate=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (
        Momentum(learning_rate=0.3, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8),
    ),
    "nesterov": (
        Momentum(learning_rate=0.3, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True),
    ),
    "adam": (Adam(learning_rate=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam, others": (
        Adam(learning_rate=0.01, betas=(0.7, 0.9), stability=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.7, 0.9), eps=1e-3),
    ),
    "adamw": (
        Adam(learning_rate=0.01, weight_decay=0.2), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_optimizers_do_what_torchs_do_with_the_same_gradient(name, dtype):
    ours, make = OPTIMIZERS[name]
    model, twin = small("book-keeping").to(dtype), small("book-keeping").to(dtype)
    one, other = engine(model, optimizer=ours), make(twin.parameters())
    for number in range(12):
        x, y = batch(number, seed=number)
        one.step(x.to(dtype), y)
        gradient = one.split(one.released / 8)
        for name_of, parameter in twin.named_parameters():
            parameter.grad = gradient[name_of].clone()
        other.step()
        tolerance = 1e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(flat(model), flat(twin), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_share_nothing_but_the_parameters(kind):
    """Neither an earlier step's gradients nor the caller's own in ``.grad`` join a later sum."""
    model = small(kind)
    one = engine(model, noise_multiplier=0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    for number in range(4):
        clean = one.clipped_sum(*batch(5, seed=number))
        one.step(*batch(5, seed=number))
        torch.testing.assert_close(one.released, clean, rtol=1e-6, atol=1e-7)
    assert all(bool((p.grad == 7).all()) for p in model.parameters())
    one.step(*batch(0))
    assert not one.released.any()


def test_the_same_check_catches_gradients_that_pile_up():
    one = engine(small(), noise_multiplier=0)
    totals = torch.zeros(53)
    for number in range(2):
        clean = one.clipped_sum(*batch(5, seed=number))
        totals += clean
    with pytest.raises(AssertionError):
        torch.testing.assert_close(totals, clean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_trained_moves(kind):
    model = small(kind)
    model[1].weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    one = engine(model)
    one.step(*batch(4))
    assert one.names == ("1.bias", "3.weight", "3.bias") and one.layers == ("1", "3")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name == "1.weight")


def test_the_model_is_left_without_hooks_and_can_be_copied():
    import copy

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3))
    engine(model).step(torch.randn((4, 1, 4, 4), generator=generator()), torch.zeros(4, dtype=torch.long))
    assert not any(m._forward_hooks or "forward" in vars(m) for m in model.modules())
    copy.deepcopy(model)


def test_an_error_changes_no_parameter():
    model = small()
    one, before = engine(model), flat(model)
    with pytest.raises(InputError, match="as many examples"):
        one.step(batch(4)[0], batch(3)[1])
    with pytest.raises(InputError, match=r"one number per example, shape \(\d,\), got \(\)"):
        engine(model, loss=nn.CrossEntropyLoss()).step(*batch(4))
    assert torch.equal(flat(model), before) and one.diagnostics.steps == ()


def test_diagnostics_count_what_happened():
    one = engine(small(), clipping=GlobalClipping(norm=1e-3))
    one.step(*batch(5))
    one.step(*batch(0))
    x, y = batch(6)
    x[2] = math.nan
    one.step(x, y)
    assert one.diagnostics == Diagnostics((StepCounts(5, 5, 0), StepCounts(), StepCounts(6, 5, 1)))
    assert one.diagnostics.batch_sizes == (5, 0, 6)
    assert one.diagnostics.scaled_fraction == 10 / 11
    loose = engine(small(), clipping=GlobalClipping(norm=1e3))
    loose.step(*batch(5))
    assert loose.diagnostics.scaled_fraction == 0 and "never in what is released" in Diagnostics.__doc__


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_counts_are_of_examples_that_were_scaled_in_any_layer(clipping, gradients):
    model, (x, y) = small("book-keeping").double(), batch(40)
    x = x.double() * torch.logspace(-4, 2, 40)[:, None]
    one = engine(model, clipping=clipping, noise_multiplier=0)
    one.step(x * 0, y)  # moves the parameters by nothing that matters here
    rows = gradients(model, x, y)
    one.step(x, y)
    layers = torch.tensor(
        [[math.hypot(*(float(row[f"{n}.{p}"].norm()) for p in ("weight", "bias"))) for n in (1, 3)] for row in rows]
    )
    norms = layers.norm(dim=1)
    wanted = {
        GlobalClipping: norms > 0.4,
        AutomaticClipping: norms > 0.39,
        PerLayerClipping: (layers > 0.4 / math.sqrt(2)).any(1),
    }[type(clipping)]
    assert one.diagnostics.steps[1].scaled == int(wanted.sum())
    assert int(wanted.sum()) > 0


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1}, "noise_multiplier must be in"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be a number"),
        ({"divisor": 0}, "divisor must be in"),
        ({"generator": None}, "generator must be a numpy Generator, got NoneType"),
        ({"generator": 3}, "generator must be a numpy Generator, got int"),
        ({"physical_batch_size": 0}, "physical_batch_size must be a whole number"),
        ({"secure": 1}, "secure must be True or False"),
        ({"secure": True}, "generator must be None"),
        ({"secure": True, "generator": None, "noise_multiplier": 0}, "noise_multiplier must be in"),
        ({"noise_multiplier": 1e300}, "noise_multiplier times sensitivity"),
        ({"clipping": PerLayerClipping(norms=[1.0])}, r"one number per layer \(2\), got 1"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        engine(small(), **changes).step(*batch(3))


def test_settings_of_optimizers_are_checked():
    for make, message in (
        (lambda: Sgd(learning_rate=0), "learning_rate"),
        (lambda: Momentum(learning_rate=1, momentum=1), "momentum"),
        (lambda: Momentum(learning_rate=1, nesterov=1), "nesterov"),
        (lambda: Adam(learning_rate=1, betas=(0.9,)), "betas"),
        (lambda: Adam(learning_rate=1, betas=(0.9, 1.0)), "beta"),
        (lambda: Adam(learning_rate=1, stability=0), "stability"),
        (lambda: Adam(learning_rate=1, weight_decay=-1), "weight_decay"),
    ):
        with pytest.raises(InputError, match=message):
            make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_does_the_same(kind):
    x, y = batch(20)
    cpu = engine(small(kind), noise_multiplier=0)
    gpu = engine(small(kind).cuda(), noise_multiplier=0)
    torch.testing.assert_close(gpu.clipped_sum(x.cuda(), y.cuda()).cpu(), cpu.clipped_sum(x, y), rtol=1e-4, atol=1e-6)
    noisy = engine(small(kind).cuda())
    for _ in range(300):
        noisy.step(x[:0].cuda(), y[:0].cuda())
    assert abs(float(noisy.released.std()) / 0.6 - 1) < 0.6
