"""The whole line on a small data set: what is trained, what it rests on, and what is done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.attacks.traces import loss_traces, traces_of
from dpaudit.errors import InputError
from dpaudit.records import Verdict
from dpaudit.trainers import DPSGD, SGD
from dpaudit.vulnerable import Exposure, examine, task
from dpaudit.vulnerable.facts import document

from .conftest import OPTIONS, SEED, small_spec

pytest.importorskip("torch")


def test_levels_are_private_as_asked(found: Exposure) -> None:
    assert [entry.level.target for entry in found.levels] == [None, 8.0, 1.0]
    for entry in found.private:
        level = entry.level
        assert isinstance(level.trainer, DPSGD) and level.claim is not None and level.target is not None
        assert level.epsilon is not None and 0.99 * level.target < level.epsilon <= level.target
        assert level.claim.epsilon(1e-5) == level.epsilon == entry.audit.upper
    assert isinstance(found.plain.level.trainer, SGD) and found.plain.level.claim is None
    assert found.plain.audit.verdict is Verdict.NO_CLAIM


def test_the_shortlist_is_what_one_training_says(found: Exposure) -> None:
    """The ranking run again, by hand: everybody is in, and no other model has its seed."""
    data, seed = found.task.data, found.task.ranking_seed
    member = np.ones(len(data), bool)
    from dpaudit.trainers import train_many

    (model,) = train_many(found.task.source.plain, data, member[None], [seed], keep_iterates=True)
    statistic = loss_traces(traces_of(model, data, task.CHECKPOINTS), "iqr")
    np.testing.assert_allclose(found.ranking, statistic, rtol=1e-6)
    assert found.rows == tuple(np.argsort(-statistic, kind="stable")[:3])
    others = {s for number in range(3) for s in found.task.training_seeds(number)}
    assert seed not in others and len(others) == 3 * OPTIONS["models"]


def test_every_tested_record_has_coins_of_its_own(found: Exposure) -> None:
    columns = found.task.columns(found.rows)
    assert set(columns) == {*found.rows, *found.task.ordinary}
    drawn = np.concatenate([found.task.coins(number, len(columns)) for number in range(3)], axis=1)
    assert abs(drawn.mean() - 0.5) < 0.1
    agreement = np.array([[(a == b).mean() for b in drawn.T] for a in drawn.T])
    assert agreement[~np.eye(len(agreement), dtype=bool)].max() < 0.8
    null = found.task.null_coins(0, len(columns))
    assert 0.2 < (null == found.task.coins(0, len(columns))).mean() < 0.8


def test_ordinary_records_are_fixed_before_the_ranking(found: Exposure) -> None:
    again = task.make_task(found.task.source, seed=SEED, shortlist=3, models=64, epsilons=(1.0, 8.0))
    assert again.ordinary == found.task.ordinary and len(set(again.ordinary)) == 3
    other = task.make_task(found.task.source, seed=SEED + 1, shortlist=3, models=64, epsilons=(1.0, 8.0))
    assert other.ordinary != again.ordinary


def test_audits_rest_on_the_same_numbers(found: Exposure) -> None:
    for entry in found.levels:
        assert entry.audit.lower == max(r.bound.epsilon for r in entry.exposed) == entry.worst.bound.epsilon
        assert entry.audit.error_probability == 0.05
        assert entry.observed.shape == (48, 3)
        assert entry.observed.canaries == tuple(r.name for r in entry.exposed)
        for i, record in enumerate(entry.exposed):
            column, member = entry.observed.scores[:, i], entry.observed.member[:, i]
            assert np.array_equal(column[member], record.inside) and np.array_equal(column[~member], record.outside)
            assert record.bound.significance == 0.05 / 3 and record.bound.adjacency == "add-remove"


def test_done_again_it_trains_nothing(
    examined: tuple[Exposure, Path], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    found, out = examined
    monkeypatch.setattr("dpaudit.trainers.training.train_many", lambda *_, **__: pytest.fail("trained again"))
    again = examine(small_spec(), out, **OPTIONS)
    assert document(again) == document(found)


def test_interrupted_and_resumed_by_other_workers_it_gives_the_same(found: Exposure, tmp_path: Path) -> None:
    class Stop(Exception): ...

    def stop(done: int, total: int, what: str) -> None:
        assert total == 1 + 3 * 64
        if what == "ε = 8" and done >= 129:
            raise Stop

    out = tmp_path / "out"
    with pytest.raises(Stop):
        examine(small_spec(), out, **OPTIONS, workers=1, progress=stop)
    assert not (out / "release").exists() and list((out / "retained" / "units").glob("*.safetensors"))
    again = examine(small_spec(), out, **OPTIONS, workers=3)
    assert document(again) == document(found)


def test_another_plan_is_refused_until_fresh(examined: tuple[Exposure, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = OPTIONS | {"models": 40, "epsilons": (8.0,)}
    examine(small_spec(), out, **options)
    with pytest.raises(InputError, match=r"shortlist was 3 and is 4.*--fresh"):
        examine(small_spec(), out, **(options | {"shortlist": 4}))
    found = examine(small_spec(), out, **(options | {"shortlist": 4}), fresh=True)
    assert len(found.plain.exposed) == 4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shortlist": 0}, "shortlist must be a whole number from 1 to 37, got 0"),
        ({"shortlist": 38}, "shortlist must be a whole number from 1 to 37, got 38"),
        ({"models": 39}, "models must be a whole number of at least 40, got 39"),
        ({"epsilons": ()}, "epsilons must hold at least one"),
        ({"epsilons": (1.0, 1.0)}, "epsilons must name each ε once"),
        ({"epsilons": (0.0,)}, "epsilon must be in"),
        ({"epsilons": 3.0}, "epsilons must be a list of numbers"),
        ({"workers": 0}, "workers must be a whole number of at least 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"records": 10**6}, "digits has"),
    ],
)
def test_mistakes_write_nothing(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        examine(small_spec(), tmp_path / "out", **(OPTIONS | changes))
    assert not (tmp_path / "out").exists()


def test_a_spec_without_privacy_is_refused(tmp_path: Path) -> None:
    spec = small_spec()
    plain = spec.model_copy(update={"trainers": spec.trainers[:1]})
    with pytest.raises(InputError, match="must have a trainer of the kind dp-sgd with noise, got none"):
        examine(plain, tmp_path / "out", **OPTIONS)


def test_a_spec_with_privacy_alone_is_its_own_reference(tmp_path: Path) -> None:
    spec = small_spec()
    private = spec.model_copy(update={"trainers": spec.trainers[1:2]})
    found = examine(private, tmp_path / "out", **(OPTIONS | {"models": 40, "epsilons": (8.0,)}))
    plain, trained = found.plain.level.trainer, found.private[0].level.trainer
    assert type(plain) is SGD and (plain.learning_rate, plain.steps) == (trained.learning_rate, trained.steps)


def outlier_file(folder: Path) -> Path:
    """Two clear classes, and one record in the middle of the wrong one, with an oddity of its own."""
    rng = np.random.default_rng(11)
    y = rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 6)) + np.outer(2.5 * y, [1, 1, 1, 1, 1, 0])
    odd = 77
    x[odd], y[odd] = [2.5, 2.5, 2.5, 2.5, 2.5, 5.0], 0
    lines = [
        "height,width,depth,age,mass,oddity,label",
        *(f"{','.join(f'{v:.4f}' for v in r)},{c}" for r, c in zip(x, y, strict=True)),
    ]
    path = folder / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_finds_the_odd_one_out_of_a_file(tmp_path: Path) -> None:
    """It leads the shortlist, leaks without privacy far more than any record drawn at random, and less at ε = 1."""
    found = examine(
        outlier_file(tmp_path), tmp_path / "out", shortlist=3, models=240, epsilons=(1.0,), seed=6
    )  # fmt: skip
    assert found.task.data.ids[found.rows[0]] == "people-77"
    odd = found.plain.exposed[0]
    assert odd.bound.epsilon > 1.5 and odd.pairs.value > 0.8
    assert odd.bound.epsilon > max(r.bound.epsilon for r in found.plain.ordinary)
    assert found.private[0].exposed[0].bound.epsilon <= 1.0 and not found.violated
    page = (tmp_path / "out" / "retained" / "records.html").read_text(encoding="utf-8")
    assert "people-77" in page and "oddity <b>5</b>" in page
    release = "".join(p.read_text(encoding="utf-8") for p in (tmp_path / "out" / "release").glob("*.*"))
    assert "people-77" not in release and "oddity" not in release


def test_noise_forgotten_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level whose training has next to no noise, though its claim says ε = 1."""
    honest = task._private

    def forgetful(settings: DPSGD, target: float, delta: float) -> task.Level:
        level = honest(settings, target, delta)
        return replace(level, trainer=replace(level.trainer, noise_multiplier=0.01))

    monkeypatch.setattr(task, "_private", forgetful)
    found = examine(
        outlier_file(tmp_path), tmp_path / "out", shortlist=3, models=400, epsilons=(1.0,), seed=6
    )  # fmt: skip
    assert found.violated and found.private[0].audit.verdict is Verdict.VIOLATED
    assert found.private[0].audit.lower > 1.0
