"""`dpaudit frontier` as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dpaudit.cli import main
from dpaudit.spec import bundled_text

pytest.importorskip("torch")

GRID = ("--noise", "3,1", "--clip", "0.1,1", "--repeats", "2")


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


def test_prints_the_table_and_leaves_a_release(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = call(capsys, "frontier", spec, *GRID, "--out", tmp_path / "out")
    release = tmp_path / "out" / "release"
    assert code == 0
    assert text == (release / "frontier.txt").read_text(encoding="utf-8")
    assert err.splitlines() == [f"page: {release / 'frontier.html'}"]  # and no progress: stderr is no terminal
    assert f"Again: dpaudit frontier {spec} --noise 3,1 --clip 0.1,1 --repeats 2" in text
    assert call(capsys, "frontier", spec, *GRID, "--out", tmp_path / "out")[1] == text


def test_json_is_one_document(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--budget", "1.5", "--delta", "1e-06", "--within", "0.02", "--trainer", "dp-sgd", "--no-reference")
    code, text, _ = call(capsys, "frontier", spec, *GRID, *options, "--out", tmp_path / "out", "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts == json.loads((tmp_path / "out" / "release" / "frontier.json").read_text(encoding="utf-8"))
    assert (facts["delta"], facts["grid"]["within"], facts["reference"]) == (1e-6, 0.02, None)
    assert [s["rule"] for s in facts["suggestions"]] == ["within", "budget"]
    assert all(option in facts["command"] for option in options)


def test_another_seed_is_used_and_not_named(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = call(capsys, "frontier", spec, *GRID, "--out", tmp_path / "a", "--json")
    _, other, _ = call(capsys, "frontier", spec, *GRID, "--out", tmp_path / "b", "--json", "--seed", "314159265")
    assert json.loads(text)["points"] != json.loads(other)["points"]
    assert "314159265" not in other and "another seed" in json.loads(other)["command"]


def test_targets_are_calibrated(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--epsilon", "1,3", "--clip", "1", "--repeats", "2")
    _, text, _ = call(capsys, "frontier", spec, *options, "--out", tmp_path / "out", "--json")
    points = json.loads(text)["points"]
    assert [p["target_epsilon"] for p in points] == [1.0, 3.0]
    assert all(0.99 * p["target_epsilon"] < p["epsilon"] <= p["target_epsilon"] for p in points)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--noise", ""), "noise must hold at least one value"),
        (("--noise", "1,much"), "noise must be numbers with commas between them, got '1,much'"),
        (("--noise", "-1"), "noise must be in (0, inf)"),
        (("--noise", "nan"), "noise must be a number"),
        (("--noise", "1,1"), "noise must name each value once"),
        (("--noise", "1", "--epsilon", "1"), "got both"),
        (("--clip", "tight"), "clip must be numbers"),
        (("--repeats", "1"), "repeats must be a whole number of at least 2"),
        (("--trainer", "nobody"), "trainer must be one of"),
        (("--budget", "0.0001", "--noise", "3"), "budget must be at least"),
    ],
)
def test_a_mistake_is_one_clear_line(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = call(capsys, "frontier", spec, *arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and named in err
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_mistakes_are_json_documents_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "frontier", "nosuch.toml", "--out", tmp_path / "out", "--json")
    assert code == 2 and json.loads(out)["exit_code"] == 2


def test_another_plan_is_refused_until_fresh(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "frontier", spec, *GRID, "--out", tmp_path / "out")
    other = ("frontier", spec, *GRID[:-1], "3", "--out", tmp_path / "out")
    code, _, err = call(capsys, *other)
    assert code == 2 and "repeats was 2 and is 3" in err and "--fresh" in err
    assert call(capsys, *other, "--fresh")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupted_by_a_signal(spec: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "dpaudit",
        "frontier",
        str(spec),
        *GRID[:-1],
        "4000",
        "--out",
        str(tmp_path / "out"),
    ]
    units = tmp_path / "out" / "retained" / "units"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (units.is_dir() and any(units.glob("*.safetensors"))):
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "interrupted" in err.strip().splitlines()[-1]
    assert not (tmp_path / "out" / "release").exists()
