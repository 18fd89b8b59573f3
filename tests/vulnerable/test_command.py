"""`dpaudit attack … --vulnerable` as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpaudit.cli import main
from dpaudit.spec import bundled_text
from dpaudit.vulnerable import task

pytest.importorskip("torch")

FEW = ("--shortlist", "2", "--models", "40", "--epsilon", "1")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    text = bundled_text("digits")
    for old, new in {"records = 1000": "records = 150", "test = 400": "test = 60", "steps = 300": "steps = 15"}.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_prints_the_report_and_leaves_a_release(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, text, err = call(capsys, "attack", spec, "--vulnerable", *FEW, "--seed", "602214076", "--out", out)
    assert code == 0
    assert text == (out / "release" / "report.txt").read_text(encoding="utf-8")
    assert err.splitlines() == [  # and no progress: stderr is no terminal
        f"report: {out / 'release' / 'report.html'}",
        f"the records themselves, not for release: {out / 'retained' / 'records.html'}",
    ]
    assert (
        f"Again: dpaudit attack {spec.name} --vulnerable --shortlist 2 --models 40 --epsilon 1 with another seed"
        in text
    )
    assert "602214076" not in text


def test_json_is_one_document(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--epsilon", "8", "--records", "120", "--workers", "1")
    code, text, _ = call(capsys, "attack", spec, "--vulnerable", *FEW, *options, "--out", out, "--json")
    facts = json.loads(text)
    assert code == 0 and facts["schema"] == "dpaudit.vulnerable/1"
    assert facts == json.loads((out / "release" / "report.json").read_text(encoding="utf-8"))
    assert [level["target_epsilon"] for level in facts["levels"]] == [None, 8.0, 1.0]
    assert (facts["data"]["records"], facts["shortlist"], facts["models"]["each_level"]) == (120, 2, 40)
    assert call(capsys, "attack", spec, "--vulnerable", *FEW, *options, "--out", out, "--json")[1] == text


def test_a_false_claim_is_exit_code_1(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training whose claim says ε = 0.01, and whose noise is next to none."""
    honest = task._private

    def forgetful(*arguments: Any) -> task.Level:
        level = honest(*arguments)
        trainer = replace(level.trainer, noise_multiplier=0.01, steps=300, learning_rate=4.0)
        return replace(level, trainer=trainer)

    monkeypatch.setattr(task, "_private", forgetful)
    options = ("--shortlist", "4", "--models", "400", "--epsilon", "0.1", "--out", tmp_path / "out")
    code, text, _ = call(capsys, "attack", spec, "--vulnerable", *options)
    assert code == 1 and text.splitlines()[2].startswith("VIOLATED: the claim of ε = 0.1 is false.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--shortlist", "0"), "shortlist must be a whole number from 1 to 37, got 0"),
        (("--models", "10"), "models must be a whole number of at least 40, got 10"),
        (("--epsilon", "-1"), "epsilon must be in (0, inf)"),
        (("--epsilon", "nan"), "epsilon must be a number"),
        (("--epsilon", "1", "--epsilon", "1"), "epsilons must name each ε once"),
        (("--records", "999999"), "digits has"),
        (("--workers", "0"), "workers must be a whole number"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = call(capsys, "attack", spec, "--vulnerable", *arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and named in err
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["nosuch.toml", "nosuch.csv", "nosuch", "fashion"])
def test_no_such_source(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str) -> None:
    code, out, err = call(capsys, "attack", source, "--vulnerable", "--out", tmp_path / "out")
    assert (code, out) == (2, "") and source in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupted_by_a_signal(spec: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "dpaudit",
        "attack",
        str(spec),
        "--vulnerable",
        "--models",
        "40000",
        "--out",
        str(out),
    ]
    units = out / "retained" / "units"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (units.is_dir() and any(units.glob("non-private*.safetensors"))):
            time.sleep(0.01)
        process.send_signal(number)
        said, err = process.communicate(timeout=60)
    assert (process.returncode, said) == (3, "")
    assert "interrupted" in err.strip().splitlines()[-1]
    assert not (out / "release").exists()
