"""Modules, trained one at a time: the same as a stack where both can, and what only they can."""

from __future__ import annotations

import dataclasses
import doctest
import warnings
from pathlib import Path

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.interfaces import Model
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, model_seeds, train_many
from dpaudit.trainers.images import Convolution, ConvolutionalNet, ImageNetwork
from dpaudit.trainers.models import Network

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.modules import TrainedModel, build, fit_module  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
RECORDS, SIDE, CLASSES = 40, 8, 4
MEMBER = np.arange(RECORDS) % 5 != 0
NET = ConvolutionalNet((SIDE, SIDE, 1), [Convolution(3, 3, padding=1, pool=2, pool_stride=2), Convolution(4, 3)])
SHORT = {"steps": 20, "sampling_rate": 0.25}
RATES = [("poisson", 0.25), ("fixed-size", 0.25), ("shuffled", 0.25), ("balls-and-bins", 0.25), ("full-batch", 1.0)]


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(0)
    return Data(rng.normal(size=(RECORDS, SIDE * SIDE)), rng.integers(0, CLASSES, RECORDS), CLASSES)


@pytest.fixture(scope="module")
def sequences() -> Data:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (RECORDS, 6))
    return Data(x, (x == 0).sum(1).clip(max=2), 3)


def softmax(features, classes, generator):
    return architectures.softmax(features, classes)


def perceptron(features, classes, generator, hidden=(5,)):
    return architectures.mlp(features, hidden, classes, generator)


def adapted(features, classes, generator, rank=2):
    """A network that somebody trained before, with adapters of low rank."""
    trained = architectures.mlp(features, [6], classes, torch.Generator().manual_seed(99))
    return architectures.lora(trained, rank, generator)


# ---- the same as the stacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampler", "rate"), RATES, ids=str)
@pytest.mark.parametrize("kind", [SGD, DPSGD])
def test_a_softmax_module_ends_where_the_stack_does(data, kind, sampler, rate):
    noiseless = {} if kind is SGD else {"noise_multiplier": 0, "clip_norm": 0.3}
    stacked = kind(steps=20, sampling_rate=rate, sampler=sampler, **noiseless)
    alone = dataclasses.replace(stacked, model=softmax)
    one, other = (s.train(data, MEMBER, 5) for s in (stacked, alone))
    assert isinstance(one, Network) and isinstance(other, TrainedModel)
    np.testing.assert_allclose(other.logits(data.x), one.logits(data.x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [{}, {"hidden": [5]}, {"model": NET}, {"model": NET, "hidden": [6]}], ids=str)
@pytest.mark.parametrize("kind", [SGD, DPSGD])
def test_what_stacks_ends_in_the_same_place_as_a_module(data, kind, shape):
    """A physical batch size is for modules; the weights that training starts from are the stack's."""
    noiseless = {} if kind is SGD else {"noise_multiplier": 0, "clip_norm": 0.3}
    stacked = kind(**SHORT, **shape, **noiseless)
    alone = dataclasses.replace(stacked, physical_batch_size=3)
    one, other = (s.train(data, MEMBER, 5) for s in (stacked, alone))
    assert isinstance(one, ImageNetwork if "model" in shape else Network) and isinstance(other, TrainedModel)
    np.testing.assert_allclose(other.logits(data.x), one.logits(data.x), rtol=1e-3, atol=1e-4)
    assert one.diagnostics.batch_sizes == other.diagnostics.batch_sizes


@pytest.mark.parametrize("shape", [{}, {"hidden": [5]}, {"model": NET, "hidden": [6]}], ids=str)
def test_stacks_count_what_a_module_counts(data, shape):
    """Records of norms far apart, so that rounding puts none on the other side of the clip norm; one overflows."""
    x = data.x * np.logspace(-3, 3, RECORDS)[:, None].astype(np.float32)
    x[2] = 1e30
    far = dataclasses.replace(data, x=x)
    settings = DPSGD(**SHORT, **shape, noise_multiplier=0, clip_norm=0.3, learning_rate=1e-4)
    member = np.stack([MEMBER, ~MEMBER, MEMBER & (np.arange(RECORDS) < 9)])
    stacked = train_many(settings, far, member, 5)
    alone = train_many(dataclasses.replace(settings, physical_batch_size=100), far, member, 5)
    assert isinstance(stacked[0], Network) and isinstance(alone[0], TrainedModel)
    assert [m.diagnostics for m in stacked] == [m.diagnostics for m in alone]
    counts = stacked[0].diagnostics
    assert 0 < counts.scaled_fraction < 1 and counts.dropped > 0 and stacked[1].diagnostics.dropped == 0


def test_the_batches_are_those_of_the_stack(data):
    """With one step from zero the parameters tell who was in the batch."""
    one_step = {"steps": 1, "sampling_rate": 0.25, "learning_rate": 3.0}
    stacked = [SGD(**one_step).train(data, MEMBER, seed).logits(data.x) for seed in range(8)]
    alone = [SGD(**one_step, model=softmax).train(data, MEMBER, seed).logits(data.x) for seed in range(8)]
    np.testing.assert_allclose(alone, stacked, rtol=1e-4, atol=1e-5)
    assert len({a.tobytes() for a in alone}) == 8


def test_the_example_cnn_stacks_and_does_not(data):
    rng = np.random.default_rng(1)
    images = Data(rng.normal(size=(12, 784)), rng.integers(0, 3, 12), 3)
    stacked = DPSGD(steps=3, sampling_rate=0.5, noise_multiplier=0, model="cnn")
    one, other = (
        s.train(images, np.ones(12, bool), 1) for s in (stacked, dataclasses.replace(stacked, trainable=["*"]))
    )
    assert isinstance(one, ImageNetwork) and isinstance(other, TrainedModel)
    assert one.parameters().size == other.parameters().size == 25_779  # Opacus's 26,010, for 3 classes instead of 10
    np.testing.assert_allclose(other.logits(images.x), one.logits(images.x), rtol=1e-3, atol=1e-4)


def test_noise_has_the_deviation_that_the_rule_asks_for(data):
    """Without members a step is noise alone: η · σ · sensitivity / divisor."""
    nobody = np.zeros(RECORDS, bool)
    for rule, sensitivity in (("automatic", 0.5), ({"kind": "per-layer", "norms": [0.3, 0.4]}, 0.5)):
        clip = {} if isinstance(rule, dict) else {"clip_norm": 0.5}
        settings = DPSGD(steps=1, sampling_rate=0.5, noise_multiplier=2, learning_rate=3, hidden=[400], clipping=rule,
                         expected_batch_size=4, **clip)  # fmt: skip
        model = settings.train(data, nobody, 3)
        moved = model.parameters() - model.start
        assert moved.std() == pytest.approx(3 * 2 * sensitivity / 4, rel=0.02)  # of 27,604 numbers: 0.4 % is one σ


@pytest.mark.parametrize("kind", [SGD, DPSGD])
def test_optimizers_do_what_torch_does(data, kind):
    settings = SGD(**SHORT, optimizer={"kind": "adam", "learning_rate": 0.05}, hidden=[5])
    model = settings.train(data, MEMBER, 2)
    twin = build(settings, data, 2)
    optimizer = torch.optim.Adam(twin.parameters(), 0.05)
    from dpaudit.trainers.modules import _batches

    for rows in _batches(settings, MEMBER, 2):
        x, y = torch.tensor(data.x[rows]), torch.tensor(data.y[rows])
        optimizer.zero_grad()
        (nn.functional.cross_entropy(twin(x), y, reduction="sum") / settings.divisor(data)).backward()
        optimizer.step()
    wanted = torch.cat([p.detach().ravel() for p in twin.parameters()]).numpy()
    np.testing.assert_allclose(model.parameters(), wanted, rtol=1e-3, atol=1e-4)


# ---- what only modules can ------------------------------------------------------------------------------------------


def test_a_transformer_learns_from_tokens(sequences):
    settings = SGD(steps=150, sampling_rate=0.5, model="transformer", optimizer={"kind": "adam", "learning_rate": 0.01},
                   model_settings={"vocabulary": 5, "width": 16, "heads": 2, "layers": 1})  # fmt: skip
    model = settings.train(sequences, np.ones(RECORDS, bool), 0)
    assert np.mean(model.logits(sequences.x).argmax(1) == sequences.y) > 0.9


def test_a_private_transformer_trains_by_book_keeping(sequences):
    settings = DPSGD(steps=3, sampling_rate=0.5, model="transformer",
                     model_settings={"vocabulary": 5, "width": 8, "heads": 2, "layers": 1})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SlowGradients would say that gradients are written out
        model = settings.train(sequences, np.ones(RECORDS, bool), 0)
    assert isinstance(model, Model) and np.isfinite(model.logits(sequences.x)).all()


@pytest.mark.parametrize("x", [[[0, 1, 5]], [[0, 1, -1]], [[0, 0.5, 1]]])
def test_tokens_are_whole_numbers_below_the_vocabulary(x):
    settings = SGD(model="transformer", model_settings={"vocabulary": 5})
    with pytest.raises(InputError, match="features must be tokens for a transformer, whole numbers from 0 to 4"):
        settings.train(Data(x, [0], 2), np.ones(1, bool), 0)


def test_only_what_is_trainable_moves(data):
    before = build(SGD(model=perceptron), data, 4).state_dict()
    for settings in (
        SGD(**SHORT, model=perceptron, trainable=["3.*"]),
        DPSGD(**SHORT, model=perceptron, trainable=["3.*"]),
    ):
        model = settings.train(data, MEMBER, 4)
        moved = {name for name, value in model.module.state_dict().items() if not torch.equal(value, before[name])}
        assert moved == {"3.weight", "3.bias"} == set(model.names)
        assert model.parameters().size == model.start.size == 5 * CLASSES + CLASSES


def test_adapters_alone_move(data):
    settings = DPSGD(**SHORT, model=adapted, model_settings={"rank": 3})
    before = build(settings, data, 4).state_dict()
    model = settings.train(data, MEMBER, 4)
    moved = {name for name, value in model.module.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"{layer}.{part}.weight" for layer in (1, 3) for part in ("down", "up")} == set(model.names)
    assert settings.claim() == DPSGD(**SHORT).claim()


def test_a_factory_is_found_by_name(data, tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n\n\ndef linear(features, classes, generator, bias=True):\n"
        "    model = nn.Linear(features, classes, bias=bias)\n"
        "    nn.init.uniform_(model.weight, -0.1, 0.1, generator=generator)\n    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = DPSGD(**SHORT, model="own_nets:linear", model_settings={"bias": False})
    models = train_many(settings, data, np.stack([MEMBER, ~MEMBER]), 3)
    assert [m.names for m in models] == [("weight",)] * 2
    seed = model_seeds(3, 2)[1]
    np.testing.assert_array_equal(models[1].parameters(), settings.train(data, ~MEMBER, seed).parameters())


def test_workers_and_chunks_change_no_bit(data):
    settings = DPSGD(**SHORT, model=perceptron, optimizer="momentum")
    member = np.stack([MEMBER] * 3)
    here = train_many(settings, data, member, 3)
    for options in ({"chunk": 2}, {"threads": 2}, {"backend": "processes", "workers": 2}):
        there = train_many(settings, data, member, 3, **options)
        for a, b in zip(here, there, strict=True):
            np.testing.assert_array_equal(a.parameters(), b.parameters())


def test_models_of_one_list_may_differ_in_noise_and_clipping(data):
    base = DPSGD(**SHORT, model=perceptron)
    several = [dataclasses.replace(base, noise_multiplier=n, clip_norm=c) for n, c in ((0, 0.1), (2, 1.0))]
    together = train_many(several, data, np.stack([MEMBER] * 2), [1, 2])
    for settings, seed, model in zip(several, (1, 2), together, strict=True):
        np.testing.assert_array_equal(model.parameters(), settings.train(data, MEMBER, seed).parameters())


def test_progress_is_told_after_each_model(data):
    told = []
    train_many(SGD(**SHORT, model=softmax), data, np.stack([MEMBER] * 3), 0, progress=lambda *both: told.append(both))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_iterates_are_kept_if_asked_for(data):
    (model,) = train_many(DPSGD(**SHORT, model=softmax), data, MEMBER[None], 0, keep_iterates=True)
    assert model.iterates().shape == (20, model.parameters().size)
    np.testing.assert_array_equal(model.iterates()[-1], model.parameters())
    assert DPSGD(**SHORT, model=softmax).train(data, MEMBER, 0).iterates() is None


def test_global_randomness_is_left_alone(data):
    class Noisy(nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.inner = nn.Linear(features, classes)

        def forward(self, x):
            return self.inner(nn.functional.dropout(x, 0.5, self.training))

    settings = DPSGD(**SHORT, noise_multiplier=0, model=lambda f, c, g: Noisy(f, c))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = settings.train(data, MEMBER, 5).parameters()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    np.testing.assert_array_equal(settings.train(data, MEMBER, 5).parameters(), one)


def test_a_trained_module_is_asked_in_evaluation_mode(data):
    settings = SGD(**SHORT, model=lambda f, c, g: nn.Sequential(nn.Linear(f, c), nn.Dropout(0.5)))
    model = settings.train(data, MEMBER, 5)
    np.testing.assert_array_equal(model.logits(data.x), model.logits(data.x))
    assert model.logits(data.x[:0]).shape == (0, CLASSES)
    with pytest.raises(InputError, match=r"\(records, 64\)"):
        model.logits(data.x[:, :5])


def test_secure_noise_is_not_the_seeds(data):
    settings = DPSGD(**SHORT, model=softmax, secure_noise=True)
    one, other = (settings.train(data, np.zeros(RECORDS, bool), 5).parameters() for _ in range(2))
    assert not np.array_equal(one, other)
    step = settings.learning_rate / settings.divisor(data)
    assert one.std() == pytest.approx(step * np.sqrt(settings.steps), rel=0.25)  # of 260 numbers: 4.4 % is one σ


def test_what_happened_is_counted(data):
    model = DPSGD(**SHORT, noise_multiplier=0, clip_norm=1e-3, model=softmax).train(data, MEMBER, 5)
    counts = model.diagnostics
    assert len(counts.batch_sizes) == 20 and 0 < np.mean(counts.batch_sizes) < MEMBER.sum()
    assert counts.scaled_fraction == 1.0 and counts.dropped == 0
    assert SGD(**SHORT, model=softmax).train(data, MEMBER, 5).diagnostics.batch_sizes == counts.batch_sizes


def test_what_is_not_finite_adds_nothing(data):
    settings = DPSGD(**SHORT, model=lambda f, c, g: nn.Sequential(Root(), nn.Linear(f, c)), noise_multiplier=0)
    x = np.abs(data.x)
    x[1, 0] = -1.0
    model = settings.train(dataclasses.replace(data, x=x), MEMBER, 5)
    assert model.diagnostics.dropped > 0 and np.isfinite(model.parameters()).all()


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


# ---- what is refused ------------------------------------------------------------------------------------------------

ONE = nn.Linear(SIDE * SIDE, CLASSES)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": lambda f, c, g: 3}, r"model must make a torch.nn.Module, got int"),
        ({"model": lambda f, c, g: ONE}, "model must make a new module at every call"),
        ({"model": lambda f, c, g: unlike(f, c)}, "the same module from the same generator"),
        ({"model": softmax, "trainable": ["head.*"]}, r"trainable must match parameters \(1.weight, 1.bias\)"),
        ({"model": lambda f, c, g: softmax(f, c, g).requires_grad_(False)}, "must have a parameter that is trained"),
        ({"model": ConvolutionalNet((7, 7, 1), [Convolution(3, 3)]), "trainable": ["*"]}, "records must be images"),
        ({"model": "cnn", "model_settings": {"image": [7, 7, 1]}}, "image must give"),
        (
            {"hidden": [3], "clipping": {"kind": "per-layer", "norms": [1, 2, 3]}},
            "norms must have one number per layer",
        ),
        ({"model": lambda f, c, g: nn.Sequential(nn.Linear(f, c), nn.BatchNorm1d(c))}, "BatchNorm"),
    ],
    ids=range(9),
)
def test_what_does_not_fit_is_refused(data, changes, named):
    with pytest.raises(InputError, match=named):
        DPSGD(**SHORT, **changes).train(data, MEMBER, 0)


def test_a_model_that_cannot_take_one_record_is_refused_with_the_reason(data):
    def normed(features, classes, generator):
        return nn.Sequential(nn.Linear(features, classes), nn.BatchNorm1d(classes))

    one = np.arange(len(data)) == 3
    with pytest.raises(InputError, match=r"must train on batches of any size.*more than 1 value per channel"):
        SGD(steps=20, sampling_rate=0.9, learning_rate=0.1, model=normed).train(data, one, 0)


def test_a_module_is_no_factory_and_a_class_may_be_one(data):
    with pytest.raises(InputError, match="model must be what makes a module"):
        SGD(model=ONE)
    model = SGD(**SHORT, model=Sized, model_settings={"bias": False}).train(data, MEMBER, 0)
    assert isinstance(model.module, Sized) and model.names == ("weight",)


class Sized(nn.Linear):
    def __init__(self, features, classes, generator, bias=True):
        super().__init__(features, classes, bias)


def unlike(features, classes, made=[]):  # noqa: B006 - on purpose: another module every time
    made.append(1)
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.fill_(len(made))
    return layer


@pytest.mark.parametrize("device", ["toaster", "meta"])
def test_a_device_that_is_not_there_is_refused(data, device):
    with pytest.raises(InputError, match="device"):
        train_many(SGD(**SHORT, model=softmax), data, MEMBER[None], 0, device=device)


def test_training_can_be_stopped(data):
    import threading

    stop = threading.Event()
    stop.set()
    model = fit_module(SGD(steps=10**9, model=softmax), data, MEMBER, 0, stop=stop)
    np.testing.assert_array_equal(model.parameters(), model.start)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_up_to_rounding(data):
    settings = DPSGD(**SHORT, noise_multiplier=0, model=perceptron)
    here, there = (train_many(settings, data, MEMBER[None], 0, device=d)[0] for d in ("cpu", "cuda"))
    np.testing.assert_allclose(there.parameters(), here.parameters(), rtol=1e-3, atol=1e-4)


def test_the_examples_of_the_documentation():
    done = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted > 15 and done.failed == 0
