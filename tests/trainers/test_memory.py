"""How many models to stack: by the machine's memory, decided once."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpaudit
from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.spec import load_spec
from dpaudit.trainers import DPSGD, SGD, FunctionTrainer, choose_chunk, memory, train_many
from dpaudit.trainers.external import ObjectTrainer

DATA = Data(np.zeros((500, 30)), np.arange(500) % 3, 3)
GIGABYTE = 10**9


def test_a_machine_with_memory_stacks_as_many_as_are_fast():
    assert choose_chunk(SGD(), DATA, 16 * GIGABYTE) == choose_chunk(DPSGD(hidden=[64]), DATA, 10**15) == 32
    images = Data(np.zeros((2000, 784)), np.arange(2000) % 10, 10, nominal_size=1000)
    chunks = [
        choose_chunk(SGD(sampling_rate=0.032, hidden=hidden), images, 16 * GIGABYTE)
        for hidden in ((), (128,), (256, 128), (2000, 2000))
    ]
    assert chunks == sorted(chunks, reverse=True) and chunks[0] > 8 and chunks[-1] == 4


def test_little_memory_makes_small_stacks_and_at_least_one_model():
    chunks = [choose_chunk(DPSGD(hidden=[100]), DATA, size) for size in (1, 10**7, 3 * 10**7, 10**8, 2 * 10**8, 10**9)]
    assert chunks == sorted(chunks) and chunks[0] == 1 and chunks[-1] == 32
    assert len(set(chunks)) >= 4


def test_large_networks_and_batches_take_more():
    def chunk(**settings):
        return choose_chunk(DPSGD(**settings), DATA, 10**8)

    assert chunk(hidden=[500]) < chunk(hidden=[50])
    assert chunk(hidden=[50], sampling_rate=1.0) < chunk(hidden=[50], sampling_rate=0.01)


def test_of_several_trainers_the_largest_counts_and_other_peoples_do_not():
    small, large = SGD(), DPSGD(hidden=[500, 500])
    foreign = FunctionTrainer(lambda data, member, seed: None)
    alone = choose_chunk(large, DATA, 10**8)
    assert choose_chunk([small, foreign, large], DATA, 10**8) == alone < choose_chunk(small, DATA, 10**8)
    assert choose_chunk(ObjectTrainer(large), DATA, 10**8) == alone
    assert choose_chunk(foreign, DATA, 1) == choose_chunk([], DATA, 1) == 32


@pytest.mark.parametrize("wrong", [0, -5, 1.5, float("nan"), "much"])
def test_memory_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match="memory"):
        choose_chunk(SGD(), DATA, wrong)


def held(thing, found):
    """Note the bytes of each block of memory that an object's tensors and arrays lie in, but those of the records."""
    torch = pytest.importorskip("torch")
    if isinstance(thing, torch.Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, np.ndarray):
        if thing.base is None:
            found[thing.ctypes.data] = thing.nbytes
        held(thing.base, found)
    elif isinstance(thing, (list, tuple, dict)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            held(part, found)
    elif type(thing).__module__.startswith("dpaudit."):
        held({name: part for name, part in vars(thing).items() if name != "_table"}, found)


@pytest.mark.parametrize(
    ("settings", "features"),
    [
        (DPSGD(hidden=[256], steps=20, sampling_rate=0.2), 700),
        (DPSGD(steps=20, sampling_rate=0.5), 300),
        (SGD(hidden=[400, 400], steps=3, sampling_rate=0.02), 200),
    ],
    ids=str,
)
def test_the_estimate_bounds_what_a_stack_takes(settings, features, monkeypatch):
    """What torch and numpy hold at the end of training: layers and their start, and all that steps are done in."""
    pytest.importorskip("torch")
    from dpaudit.trainers import perceptrons

    made, models, data = [], 16, Data(np.ones((600, features)), np.zeros(600), 4)
    prepare = perceptrons.PerceptronStack.steps

    def watched(self, layers, *others):
        made.append((layers, prepare(self, layers, *others)))
        return made[-1][1]

    monkeypatch.setattr(perceptrons.PerceptronStack, "steps", watched)
    trained = train_many(settings, data, np.ones((models, 600), bool), 0, chunk=models, threads=1)
    found = {}
    held([*made, [model.start for model in trained]], found)
    estimate = memory.model_bytes(settings, data)
    assert len(made) == 1 and len(made[0][0][0]) == models
    assert estimate / 5 < sum(found.values()) / models < estimate


def test_the_machine_has_memory_and_a_control_group_may_have_less(tmp_path, monkeypatch):
    whole = memory.available_memory()
    assert whole > 10**8
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "absent")))
    physical = memory.available_memory()
    assert physical >= whole
    limit.write_text("max\n")
    assert memory.available_memory() == physical
    limit.write_text("123456789\n")
    assert memory.available_memory() == 123456789
    monkeypatch.setattr(memory.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    limit.write_text("9000000000000\n")
    assert memory.available_memory() == memory._UNKNOWN


def test_train_many_stacks_as_many_as_chosen(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(memory, "available_memory", lambda: 1)
    told, member = [], np.ones((3, 500), bool)
    train_many(SGD(steps=1), DATA, member, 0, progress=lambda done, total: told.append(done))
    assert told == [1, 2, 3]
    train_many(SGD(steps=1), DATA, member, 0, chunk=2, progress=lambda done, total: told.append(done))
    assert told[3:] == [2, 3]


def small_spec():
    spec = load_spec("digits").model_dump(mode="json")
    spec |= {"runs": 12, "shadows": 4, "data": {"source": "digits", "records": 100, "test": 20}}
    spec["canaries"], spec["tests"] = [{"family": "far-out", "count": 8}], []
    spec["trainers"] = spec["trainers"][:2]
    for trainer in spec["trainers"]:
        trainer["settings"]["steps"] = 10
        trainer["expect"] = None
    return spec


def test_a_run_stores_the_chunk_and_keeps_to_it_on_a_machine_with_other_memory(tmp_path, monkeypatch):
    pytest.importorskip("torch")

    class Stopped(Exception):
        pass

    def stop(*_):
        raise Stopped

    monkeypatch.setattr(memory, "available_memory", lambda: 3 * 10**6)
    with pytest.raises(Stopped):
        dpaudit.run(small_spec(), tmp_path / "out", progress=stop)
    stored = json.loads((tmp_path / "out" / "retained" / "plan.json").read_text())
    assert 1 <= stored["chunk"] < 8 and {unit["chunk"] for unit in stored["units"]} == {stored["chunk"]}
    monkeypatch.setattr(memory, "available_memory", lambda: 10**12)
    dpaudit.run(small_spec(), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out" / "retained" / "units").iterdir()}
    assert names == {f"{unit['name']}.safetensors" for unit in stored["units"]}
    monkeypatch.setattr(memory, "available_memory", lambda: 3 * 10**6)
    dpaudit.run(small_spec(), tmp_path / "whole")
    observations = [(tmp_path / run / "retained" / "observations.safetensors").read_bytes() for run in ("out", "whole")]
    assert observations[0] == observations[1]
