"""What every trainer must keep to, the built-in ones and wrapped ones alike; and what train_many promises."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.interfaces import Model, Trainer
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, FunctionTrainer, ModelStack, model_seeds, train_many
from dpaudit.trainers.models import Network

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
RECORDS, FEATURES, CLASSES = 16, 3, 3


def function(data, member, seed):
    return SGD(steps=5, sampling_rate=0.5).train(data, member, seed)


def dropping(features, classes, generator):
    """A module whose first weights and whose dropout come from torch's global generator."""
    from torch import nn

    return nn.Sequential(nn.Linear(features, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, classes))


TINY = {"shape": [1, 3, 1], "layers": [{"channels": 2, "kernel": 1}, {"channels": 3, "kernel": 1}]}
TRAINERS = [
    SGD(steps=10, sampling_rate=0.5),
    SGD(steps=10, sampling_rate=0.5, hidden=(4,)),
    DPSGD(steps=10, sampling_rate=0.5),
    DPSGD(steps=10, sampling_rate=0.5, hidden=(4, 4)),
    DPSGD(steps=10, sampling_rate=0.5, noise_multiplier=0),
    FunctionTrainer(function),
    *(DPSGD(steps=10, sampling_rate=0.5, sampler=s) for s in ("fixed-size", "shuffled", "balls-and-bins")),
    DPSGD(steps=10, sampling_rate=1, sampler="full-batch"),
    SGD(steps=10, sampling_rate=0.5, model=dropping),
    SGD(steps=10, sampling_rate=0.5, hidden=(4,), optimizer="momentum"),
    DPSGD(steps=10, sampling_rate=0.5, model=dropping, clipping="per-layer"),
    DPSGD(steps=10, sampling_rate=0.5, sampler="shuffled", clipping="automatic", trainable=["0.bias"]),
    DPSGD(steps=10, sampling_rate=0.5, hidden=(4,), optimizer={"kind": "adam", "learning_rate": 0.01}),
    *(SGD(steps=10, sampling_rate=0.5, model=TINY, model_settings={"activation": a}) for a in ("relu", "tanh")),
    DPSGD(steps=10, sampling_rate=0.5, model=TINY, physical_batch_size=3),
]
each_trainer = pytest.mark.parametrize(
    "trainer", TRAINERS, ids=lambda t: f"{type(t).__name__}{getattr(t, 'hidden', '')}-{getattr(t, 'sampler', '')}"
)


@pytest.fixture
def data() -> Data:
    rng = np.random.default_rng(0)
    return Data(rng.normal(size=(RECORDS, FEATURES)), rng.integers(0, CLASSES, RECORDS), CLASSES)


MEMBER = np.arange(RECORDS) % 2 == 0


@each_trainer
def test_the_protocols_hold(trainer, data):
    model = trainer.train(data, MEMBER, 1)
    assert isinstance(trainer, Trainer) and isinstance(model, Model)
    logits = model.logits(data.x)
    assert logits.shape == (RECORDS, CLASSES) and logits.dtype == np.float64
    assert model.parameters().ndim == 1
    assert model.iterates() is None


@each_trainer
def test_all_randomness_is_the_seeds(trainer, data):
    first, again, other = (trainer.train(data, MEMBER, seed).parameters() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@each_trainer
def test_who_is_no_member_leaves_no_trace(trainer, data):
    changed = dataclasses.replace(data, x=np.where(MEMBER[:, None], data.x, 9), y=np.where(MEMBER, data.y, 0))
    before, after = (trainer.train(d, MEMBER, 1).parameters() for d in (data, changed))
    np.testing.assert_array_equal(before, after)


@each_trainer
def test_members_leave_one(trainer, data):
    with_it, without = (trainer.train(data, row, 1).parameters() for row in (MEMBER, MEMBER & (np.arange(RECORDS) > 0)))
    assert not np.array_equal(with_it, without)


@each_trainer
def test_an_empty_training_set_still_gives_a_model(trainer, data):
    assert np.isfinite(trainer.train(data, np.zeros(RECORDS, bool), 1).logits(data.x)).all()


@each_trainer
def test_many_are_each_of_them(trainer, data):
    member = np.stack([MEMBER, ~MEMBER, MEMBER])
    stack = train_many(trainer, data, member, 7, chunk=2)
    seeds = model_seeds(7, 3)
    assert isinstance(stack, ModelStack) and len(stack) == 3
    logits = stack.logits(data.x)
    assert logits.shape == (3, RECORDS, CLASSES) and logits.dtype == np.float64
    for k in range(3):
        alone = trainer.train(data, member[k], seeds[k])
        np.testing.assert_allclose(stack[k].parameters(), alone.parameters(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(stack[k].logits(data.x), logits[k])


@each_trainer
def test_settings_are_frozen(trainer):
    with pytest.raises(dataclasses.FrozenInstanceError):
        trainer.promise = trainer.steps = 1


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"noise_multiplier": -1}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"sampling_rate": 0}, "sampling_rate"),
        ({"sampling_rate": 1.1}, "sampling_rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"clip_norm": float("inf")}, "clip_norm"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"hidden": [0]}, "hidden"),
        ({"hidden": 128}, "hidden"),
        ({"expected_batch_size": 0}, "expected_batch_size"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes, name):
    with pytest.raises(InputError, match=name):
        DPSGD(**changes)
    if not {"noise_multiplier", "clip_norm"} & set(changes):
        with pytest.raises(InputError, match=name):
            SGD(**changes)


def test_settings_are_values():
    assert DPSGD(hidden=[3]) == DPSGD(hidden=(3,)) and hash(SGD()) == hash(SGD())


def test_only_noise_promises_anything():
    assert SGD().claim() is None
    assert DPSGD(noise_multiplier=0).claim() is None


def test_the_claim_is_that_of_the_settings():
    accounting = pytest.importorskip("dpaudit.accounting")
    claim = DPSGD(noise_multiplier=1.3, sampling_rate=0.1, steps=20).claim()
    wanted = accounting.Claim.dp_sgd(noise_multiplier=1.3, sampling_rate=0.1, steps=20)
    assert claim.epsilon(1e-5) == wanted.epsilon(1e-5)


# ---- train_many -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "seed"),
    [
        (MEMBER, 0),
        (np.ones((2, RECORDS + 1)), 0),
        (np.full((2, RECORDS), 0.5), 0),
        (np.full((2, RECORDS), "a"), 0),
        (np.ones((2, RECORDS)), [1]),
        (np.ones((2, RECORDS)), [1, -1]),
        (np.ones((2, RECORDS)), -1),
    ],
)
def test_membership_and_seeds_must_fit(data, member, seed):
    with pytest.raises(InputError, match=r"member|seed"):
        train_many(TRAINERS[0], data, member, seed)


@pytest.mark.parametrize("device", ["toaster", "meta"])
def test_a_device_that_is_not_there_is_refused(data, device):
    with pytest.raises(InputError, match="device"):
        train_many(TRAINERS[0], data, MEMBER[None], 0, device=device)


def test_iterates_end_at_the_final_parameters(data):
    model = train_many(TRAINERS[3], data, MEMBER[None], 0, keep_iterates=True)[0]
    assert model.iterates().shape == (10, model.parameters().size)
    np.testing.assert_array_equal(model.iterates()[-1], model.parameters())


def test_progress_is_told_after_each_chunk(data):
    told = []
    train_many(TRAINERS[0], data, np.stack([MEMBER] * 5), 0, chunk=2, progress=lambda *both: told.append(both))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_an_interrupt_drops_what_has_not_begun_and_gives_the_threads_back(data, monkeypatch):
    import torch

    from dpaudit.trainers import perceptrons

    begun, fit, before = [], perceptrons.fit, torch.get_num_threads()

    def counted(*args, **kwargs):
        begun.append(1)
        return fit(*args, **kwargs)

    def interrupt(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(perceptrons, "fit", counted)
    with pytest.raises(KeyboardInterrupt):
        train_many(TRAINERS[0], data, np.stack([MEMBER] * 1000), 0, chunk=1, progress=interrupt)
    assert len(begun) < 1000
    assert torch.get_num_threads() == before


def test_a_stack_in_training_can_be_stopped(data):
    from dpaudit.trainers.perceptrons import fit

    stop = threading.Event()
    stop.set()
    endless = DPSGD(steps=10**9, sampling_rate=0.5)
    (model,) = fit(endless, data, MEMBER[None], [1], stop=stop)
    np.testing.assert_array_equal(model.parameters(), model.start)


def test_a_subclass_that_trains_otherwise_is_not_passed_over(data):
    class Backwards(SGD):
        def train(self, data, member, seed):
            return super().train(data, ~member, seed)

    trainer = Backwards(steps=3, sampling_rate=1)
    wanted = SGD(steps=3, sampling_rate=1).train(data, ~MEMBER, 5).parameters()
    np.testing.assert_array_equal(train_many(trainer, data, MEMBER[None], [5])[0].parameters(), wanted)


def test_no_models_at_all_is_an_empty_stack(data):
    stack = train_many(TRAINERS[0], data, np.zeros((0, RECORDS), bool), 0)
    assert len(stack) == 0
    with pytest.raises(InputError, match="at least one model"):
        stack.logits(data.x)


def test_a_model_that_diverged_is_named(data):
    nan = Network((np.full((FEATURES + 1, CLASSES), np.nan, np.float32),), np.zeros(12, np.float32))
    with pytest.raises(InputError, match=r"SGD.*model 0"):
        ModelStack((nan,), "SGD").logits(data.x)


def test_logits_want_the_features_that_were_trained_on(data):
    with pytest.raises(InputError, match=r"\(records, 3\)"):
        TRAINERS[0].train(data, MEMBER, 1).logits(np.zeros((2, 5)))


def test_logits_are_the_formula():
    layers = (np.array([[1, -1], [0.5, 0.25]], np.float32), np.array([[2, 0], [0, 3], [1, -1]], np.float32))
    np.testing.assert_allclose(Network(layers, np.zeros(10, np.float32)).logits([[2.0]]), [[6.0, -1.0]])


def test_sgd_learns_what_there_is_to_learn():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    data = Data(np.eye(3)[y] + 0.2 * rng.normal(size=(300, 3)), y, 3)
    for hidden in ((), (8,)):
        model = SGD(hidden=hidden, steps=200, sampling_rate=0.1).train(data, np.ones(300, bool), 0)
        assert np.mean(model.logits(data.x).argmax(1) == y) > 0.95


# ---- imports --------------------------------------------------------------------------------------------------------


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_importing_needs_no_training_library():
    done = python(
        "import sys, dpaudit.trainers, dpaudit.data\n"
        "print([m for m in ('torch', 'sklearn', 'numba') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("missing", ["torch", "numba"])
def test_without_torch_or_numba_the_pip_line_is_said(missing):
    done = python(
        f"import sys; sys.modules['{missing}'] = None\n"
        "import numpy as np\n"
        "from dpaudit.records import Data\n"
        "from dpaudit.trainers import SGD\n"
        "SGD().train(Data(np.eye(2), [0, 1], 2), [True, True], 0)"
    )
    assert f'MissingExtra: this needs {missing}; install it with: pip install "dpaudit[train]"' in done.stderr


@pytest.mark.skipif(not (ROOT / "trainers").exists(), reason="the link is made by the repository")
def test_the_short_name_is_refused():
    assert "ImportError: import this package as dpaudit.trainers" in python("import trainers").stderr


def test_no_submodule_has_the_name_of_an_export():
    import dpaudit.data
    import dpaudit.trainers

    for package in (dpaudit.data, dpaudit.trainers):
        modules = {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        assert not modules & set(package.__all__)
