"""Trainers found by name, with each of the mistakes that a name, a module or a model can have."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, FunctionTrainer, resolve, train_many
from dpaudit.trainers.external import ObjectTrainer

MODULE = """
import numpy as np

class Constant:
    def __init__(self, shape, value=0.0):
        self.shape, self.value = shape, value
    def logits(self, x):
        rows = len(x) if self.shape is None else self.shape
        return np.full((rows, 2), self.value)

def train(data, member, seed, value=0.0):
    return Constant(None, value)

def short(data, member, seed):
    return Constant(3)

def nothing(data, member, seed):
    return None

def needy(data, member, seed):
    import surely_not_installed
    return surely_not_installed

class Own:
    def __init__(self, value=1.0):
        self.value = value
    def train(self, data, member, seed):
        return Constant(None, self.value)
    def claim(self):
        return "own claim"

class Bare:
    def train(self, data, member, seed):
        return Constant(None, 5.0)

def factory(value):
    return Own(value)

def barren():
    return 3

ready = Own(7.0)
number = 4
"""

DATA = Data(np.eye(4), [0, 1, 0, 1], 2)
MEMBER = np.ones((2, 4), bool)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)

    def write(name, text=MODULE):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    write("mine")
    yield write
    for name in set(sys.modules) - known:
        if name.startswith("mine"):
            del sys.modules[name]


def value_of(trainer):
    return train_many(trainer, DATA, MEMBER, 0).logits(DATA.x)[1, 0, 0]


def test_a_function_is_wrapped_with_its_settings(here):
    trainer = resolve("mine:train", {"value": 2.5}, claim="said")
    assert isinstance(trainer, FunctionTrainer) and trainer.claim() == "said" and trainer.name == "mine:train"
    assert value_of(trainer) == 2.5
    assert value_of(resolve("mine:train")) == 0


def test_classes_factories_and_objects_are_trainers(here):
    assert value_of(resolve("mine:Own", {"value": 3})) == 3
    assert value_of(resolve("mine:factory", {"value": 4})) == 4
    assert value_of(resolve("mine:ready")) == 7


def test_a_claim_given_overrides_the_trainers_own(here):
    assert resolve("mine:Own").claim() == "own claim"
    assert resolve("mine:Own", claim="other").claim() == "other"
    assert resolve("mine:Bare").claim() is None


def test_models_that_show_no_parameters_have_none(here):
    model = resolve("mine:train").train(DATA, MEMBER[0], 0)
    assert model.parameters() is None and model.iterates() is None


def test_the_built_in_trainers_can_be_named_and_still_train_in_stacks():
    assert resolve("dpaudit.trainers:DPSGD", {"steps": 3}) == DPSGD(steps=3)
    pytest.importorskip("torch")
    judged = resolve("dpaudit.trainers:DPSGD", {"steps": 3}, claim="other")
    assert isinstance(judged, ObjectTrainer) and judged.claim() == "other"
    stack = train_many(judged, DATA, MEMBER, 0, keep_iterates=True)
    assert stack[0].iterates() is not None


def test_the_path_is_restored(here):
    before = list(sys.path)
    resolve("mine:train")
    with pytest.raises(InputError):
        resolve("mine:absent")
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("mine", {}, r"package\.module:name"),
        ("mine:", {}, r"package\.module:name"),
        ("absent.part:train", {}, "no module 'absent.part'"),
        ("mine:absent", {}, "has no 'absent'"),
        ("mine:train", {"colour": 1}, "settings of mine:train"),
        ("mine:train", {"seed": 1}, "settings of mine:train"),
        ("mine:Own", {"colour": 1}, "settings of mine:Own"),
        ("mine:factory", {}, "settings of mine:factory"),
        ("mine:ready", {"value": 1}, "takes no settings"),
        ("mine:barren", {}, "method train"),
        ("mine:number", {}, "must be a function"),
    ],
)
def test_each_mistake_has_its_line(here, target, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve(target, settings)
    assert "\n" not in str(caught.value)


def test_a_module_that_a_trainer_needs_is_named(here):
    here("mine_needy", "import surely_not_installed.part\n")
    with pytest.raises(InputError, match="mine_needy:train needs the module 'surely_not_installed'"):
        resolve("mine_needy:train")
    here("mine_old", "from numpy import no_such_thing\n")
    with pytest.raises(InputError, match="no_such_thing"):
        resolve("mine_old:train")
    with pytest.raises(InputError, match="mine:needy needs the module 'surely_not_installed'"):
        train_many(resolve("mine:needy"), DATA, MEMBER, 0)


def test_a_module_that_is_broken_is_named(here):
    here("mine_broken", "def train(:\n")
    with pytest.raises(InputError, match=r"mine_broken.*SyntaxError"):
        resolve("mine_broken:train")


def test_what_a_foreign_model_says_is_checked(here):
    with pytest.raises(InputError, match=r"mine:nothing must return a model.*NoneType"):
        train_many(resolve("mine:nothing"), DATA, MEMBER, 0)
    with pytest.raises(InputError, match=r"mine:short.*\(4, 2\), got \(3, 2\)"):
        train_many(resolve("mine:short"), DATA, MEMBER, 0).logits(DATA.x)
    with pytest.raises(InputError, match=r"mine:train must be finite"):
        train_many(resolve("mine:train", {"value": float("nan")}), DATA, MEMBER, 0).logits(DATA.x)


def test_a_trainer_that_was_never_resolved_is_checked_too(here):
    class Loose:
        def train(self, data, member, seed):
            return None

        def claim(self):
            return None

    with pytest.raises(InputError, match="Loose must return a model"):
        train_many(Loose(), DATA, MEMBER, 0)


def test_only_what_can_train_is_wrapped():
    with pytest.raises(InputError, match="callable"):
        FunctionTrainer(3)
    with pytest.raises(InputError, match="method train"):
        ObjectTrainer(3)
