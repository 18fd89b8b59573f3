"""The whole line: what a run leaves, what it keeps back, and that it can be killed at any moment."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import dpaudit
from dpaudit.attacks.coins import read_canaries
from dpaudit.attacks.planned import PLANNED
from dpaudit.errors import InputError
from dpaudit.plan import make_plan
from dpaudit.records import Verdict
from dpaudit.runner import redraw
from dpaudit.spec import load_spec
from dpaudit.store import RunFolder

KILLS = 5


def small(**changes: Any) -> dict[str, Any]:
    """The digits spec at a size that takes a second."""
    spec = load_spec("digits").model_dump(mode="json")
    spec |= {"runs": 24, "shadows": 8, "data": {"source": "digits", "records": 150, "test": 50}}
    spec["canaries"] = [{"family": "far-out", "count": 10}, {"family": "mislabelled", "count": 10}]
    for test in spec["tests"]:
        test["guesses"] = 20
    for trainer in spec["trainers"]:
        trainer["settings"]["steps"] = 30
        trainer["expect"] = None
    return spec | changes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    dpaudit.run(small(), out)
    return out


def results(out: Path) -> dict[str, bytes]:
    """Everything that a finished run is judged by and shows, byte for byte."""
    kept = [out / "retained" / "observations.safetensors", *(out / "release").rglob("*")]
    return {str(p.relative_to(out)): p.read_bytes() for p in kept if p.is_file()}


def test_a_run_leaves_what_the_design_says(finished: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {"release", "retained"}
    released = {p.name for p in (finished / "release").iterdir()}
    assert {"report.html", "report.json", "report.txt", "figures", "bounds.csv"} == released
    kept = {p.name for p in (finished / "retained").iterdir()}
    assert {"observations.safetensors", "plan.json", "canaries.safetensors", "units"} <= kept


def test_the_plan_lists_its_units_with_seeds(finished: Path) -> None:
    plan = json.loads((finished / "retained" / "plan.json").read_text())
    assert plan["spec"]["seed"] == small()["seed"]
    assert all({"name", "seed", "first", "count", "chunk", "threads"} == set(u) - {"trainer"} for u in plan["units"])
    assert sum(u["count"] for u in plan["units"]) == 3 * 32


def test_nothing_released_identifies_a_record_or_a_coin(finished: Path) -> None:
    plan = make_plan(small())
    secrets = [*plan.planted.data.ids, *(c.source for c in plan.planted.canaries if c.source)]
    secrets += [str(plan.spec.seed), *(str(plan.training_seed(i)) for i in range(3))]
    with safe_open(finished / "retained" / "observations.safetensors", framework="numpy") as file:
        scores = np.concatenate([file.get_tensor(k).ravel() for k in file.keys() if k.endswith(":scores")])  # noqa: SIM118
    secrets += [repr(float(s)) for s in scores if not float(s).is_integer()]
    secrets += [repr(float(s))[:10] for s in scores if not float(s).is_integer()]
    rows = [row.tobytes() for row in plan.planted.data.x[plan.planted.rows]]
    for path in (p for p in (finished / "release").rglob("*") if p.is_file()):
        content = path.read_bytes()
        found = [s for s in secrets if s.encode() in content] + [r for r in rows if r in content]
        assert found == [], path.name


def test_every_planned_attack_runs_and_its_scores_are_kept(tmp_path: Path) -> None:
    tests = [
        {"canaries": "clipbkd" if i % 2 else "out-of-distribution", "attack": name, "guesses": 20, "share": 0.1}
        for i, name in enumerate(PLANNED)
    ]
    tests[-1]["signal"] = "modified-entropy"
    canaries = [{"family": "clipbkd", "count": 10, "scale": 2.0}, {"family": "out-of-distribution", "count": 10}]
    spec = small(tests=tests, canaries=canaries, shadows=16)
    spec["trainers"] = spec["trainers"][:1]
    result = dpaudit.run(spec, tmp_path)
    assert result.audits[0].audit.verdict is Verdict.NO_CLAIM
    with safe_open(tmp_path / "retained" / "observations.safetensors", framework="numpy") as file:
        names = [k for k in file.keys() if k.startswith("observed/") and k.endswith(":scores")]  # noqa: SIM118
        shapes = {file.get_tensor(k).shape for k in names}
    wanted = {f"/{t['attack']}-" for t in tests}
    kept = read_canaries(tmp_path / "retained" / "canaries.safetensors")
    assert kept.member.shape == (40, 20) and kept.settings["clipbkd"]["scale"] == 2.0
    np.testing.assert_array_equal(kept.member, make_plan(spec).coins(0))
    assert len(names) == len(PLANNED) and shapes == {(24, 10)} and all(any(w in n for n in names) for w in wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": "rmia", "signal": "margin"}, "signal must be loss for the attack rmia, got 'margin'"),
        ({"attack": "guess"}, "attack must be one of lira, .*threshold, got 'guess'"),
        ({"signal": "smell"}, "signal must be one of loss, margin, .*, got 'smell'"),
    ],
)
def test_attacks_and_signals_that_are_none_are_named(changes: dict[str, str], message: str) -> None:
    spec = small()
    spec["tests"][0] = {k: v for k, v in spec["tests"][0].items() if k != "signal"} | changes
    with pytest.raises(InputError, match=message):
        make_plan(spec)


def test_what_an_attack_lacks_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    spec = small(data={"source": "digits", "records": 150, "test": 0}, shadows=5)
    spec["tests"] = [{"canaries": "far-out", "attack": "rmia", "guesses": 20, "share": 1.0}]
    with pytest.raises(InputError, match="rmia needs records that nobody is trained on: test must be at least 1"):
        dpaudit.run(spec, tmp_path / "out")
    spec["tests"][0]["attack"] = "reference"
    with pytest.raises(InputError, match="reference needs 2 shadows without each canary, and the coins of 5 leave one"):
        dpaudit.run(spec, tmp_path / "out")
    spec["canaries"][0]["scale"] = 2.0
    with pytest.raises(InputError, match="scale is for clipbkd canaries, got it for far-out"):
        dpaudit.run(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_secrets_are_planted_in_data_of_tokens(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "texts.npz", x=rng.integers(0, 12, (200, 8)).astype(np.float32), y=rng.integers(0, 2, 200))
    data = {"source": str(tmp_path / "texts.npz"), "records": 120, "test": 40}
    canaries = [{"family": "inserted-text", "count": 6, "format": "k ####", "alphabet": " k0123456789"}]
    spec = small(data=data, canaries=canaries, tests=[])
    found = make_plan(spec).planted
    texts = found.data.x[found.rows]
    assert (texts[:, :2] == [1, 0]).all() and texts[:, 2:6].min() >= 2 and (texts[:, 6:] == 0).all()
    del canaries[0]["alphabet"]
    with pytest.raises(InputError, match="inserted-text canaries need a format"):
        make_plan(spec)


def test_what_steps_did_to_the_data_is_kept_back(tmp_path: Path) -> None:
    """Batch sizes, clipped and dropped gradients of models that count them: in units, and nowhere else."""
    spec = small(runs=8, shadows=0, tests=[])
    spec["trainers"] = spec["trainers"][1:2]
    spec["trainers"][0]["settings"]["optimizer"] = {"kind": "momentum"}
    dpaudit.run(spec, tmp_path)
    (unit,) = (tmp_path / "retained" / "units").iterdir()
    with safe_open(unit, framework="numpy") as file:
        counts = {key: file.get_tensor(key) for key in file.keys() if key.startswith("diagnostics")}  # noqa: SIM118
    assert set(counts) == {f"diagnostics:{name}" for name in ("examples", "scaled", "dropped")}
    sizes = counts["diagnostics:examples"]
    assert sizes.shape == (8, 30) and (counts["diagnostics:scaled"] <= sizes).all() and sizes.mean() > 1
    for path in (p for p in (tmp_path / "release").rglob("*") if p.is_file()):
        content = path.read_text(errors="replace")
        assert not any(word in content for word in ("diagnostics", str(int(sizes.sum())))), path.name


def test_the_search_for_secrets_would_find_one(finished: Path) -> None:
    """The names and seeds searched for are spelled as the retained files spell them."""
    kept = b"".join(p.read_bytes() for p in (finished / "retained").glob("*") if p.is_file())
    plan = make_plan(small())
    assert plan.planted.canaries[0].id.encode() in kept
    assert str(plan.spec.seed).encode() in kept


def test_a_finished_run_is_not_done_again(finished: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("trained again")

    before = results(finished)
    dpaudit.run(small(), finished, progress=refuse)
    assert results(finished) == before


def test_the_same_spec_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    dpaudit.run(small(), tmp_path / "again")
    assert results(tmp_path / "again") == results(finished)


def test_the_number_of_workers_changes_nothing(finished: Path, tmp_path: Path) -> None:
    dpaudit.run(small(), tmp_path / "two", workers=2)
    assert results(tmp_path / "two") == results(finished)


def test_a_damaged_unit_is_done_again(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "release")
    (out / "retained" / "observations.safetensors").unlink()
    unit = sorted((out / "retained" / "units").iterdir())[0]
    unit.write_bytes(unit.read_bytes()[:100])
    dpaudit.run(small(), out)
    assert results(out) == results(finished)


def test_another_seed_gives_other_coins(finished: Path, tmp_path: Path) -> None:
    dpaudit.run(small(seed=99173551), tmp_path / "other")
    assert results(tmp_path / "other") != results(finished)


def test_another_plan_is_named_and_refused(finished: Path) -> None:
    before = results(finished)
    with pytest.raises(InputError, match=r"spec\.delta was 1e-05 and is 1e-06"):
        dpaudit.run(small(delta=1e-6), finished)
    assert results(finished) == before


def test_other_code_is_another_plan(finished: Path) -> None:
    plan = make_plan(small())
    other = type(plan)(plan.spec, plan.planted, plan.trainers, plan.claims, plan.tests, {**plan.code, "dpaudit": "old"})
    with pytest.raises(InputError, match=r"code\.dpaudit was"):
        dpaudit.run(other, finished)


def test_two_processes_do_not_share_a_folder(finished: Path) -> None:
    with RunFolder(finished).locked(), pytest.raises(InputError, match="another dpaudit"):
        dpaudit.run(small(), finished)


def test_redraw_needs_only_the_stored_observations(finished: Path, tmp_path: Path) -> None:
    kept = tmp_path / "out" / "retained"
    kept.mkdir(parents=True)
    shutil.copy(finished / "retained" / "observations.safetensors", kept)
    redraw(tmp_path / "out")
    assert results(tmp_path / "out") == results(finished)


def test_trainers_have_their_own_coins_and_canaries_their_own_seeds() -> None:
    plan = make_plan(small(runs=4000, shadows=8))
    first, second = plan.coins(0), plan.coins(1)
    assert abs((first == second).mean() - 0.5) < 0.01
    correlation = np.corrcoef(first.T)
    assert np.abs(correlation - np.eye(len(correlation))).max() < 0.08
    assert abs(first.mean() - 0.5) < 0.01


def test_a_diverging_model_is_a_clear_error_and_keeps_what_is_finished(tmp_path: Path) -> None:
    spec = small()
    spec["trainers"][1]["settings"] |= {"learning_rate": 1e38, "noise_multiplier": 1e6}
    with pytest.raises(InputError, match=r"logits of .* must be finite"):
        dpaudit.run(spec, tmp_path / "out")
    units = tmp_path / "out" / "retained" / "units"
    assert [u.name for u in units.iterdir()] == ["sgd-00000.safetensors"]
    assert not (tmp_path / "out" / "release").exists()


def test_default_tests_are_planned_from_the_claim(tmp_path: Path) -> None:
    plan = make_plan(small(tests=[]))
    assert [t.canaries for t in plan.tests] == ["far-out", "mislabelled"]
    assert sum(t.weight for t in plan.tests) == pytest.approx(1.0)
    assert dpaudit.run(plan, tmp_path / "out").audits[1].audit.verdict is Verdict.UNDERPOWERED


def spec_file(path: Path) -> Path:
    """A run of some ten work units for the kills to fall into."""
    text = ['name = "killed"', "seed = 662187443", "delta = 1e-5", "runs = 290", "shadows = 10"]
    text += ["[data]", 'source = "digits"', "records = 400", "test = 50"]
    text += ["[[canaries]]", 'family = "far-out"', "count = 20"]
    text += ["[[tests]]", 'canaries = "far-out"', "guesses = 100", "share = 1.0"]
    for name, noise in (("a", 1.0), ("b", 2.0)):
        text += ["[[trainers]]", f'name = "{name}"', 'trainer = "dp-sgd"']
        text += [f"settings = {{ noise_multiplier = {noise}, sampling_rate = 0.05, steps = 600 }}"]
    path.write_text("\n".join(text))
    return path


def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    spec, out = spec_file(tmp_path / "spec.toml"), tmp_path / "killed"
    command = [sys.executable, "-m", "dpaudit", "run", str(spec), "--out", str(out)]
    moments, units = random.Random(5), out / "retained" / "units"
    reached = []
    for _ in range(KILLS):
        done = len(list(units.glob("*"))) if units.is_dir() else 0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not (units.is_dir() and len(list(units.glob("*.safetensors"))) > done):
                time.sleep(0.005)
            time.sleep(moments.uniform(0.0, 0.4))
            process.kill()
        reached.append(len(list(units.glob("*.safetensors"))))
    assert reached[0] < 12, "the first kill came after all the work"
    dpaudit.run(spec, out)
    dpaudit.run(spec, tmp_path / "whole")
    assert results(out) == results(tmp_path / "whole")
    assert not list(out.rglob("*.part")) or results(out)
