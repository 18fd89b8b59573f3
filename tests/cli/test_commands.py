"""The program as a user meets it: output, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.cli import main
from dpaudit.spec import bundled_text


def small_spec(path: Path, **changes: str) -> Path:
    """The digits spec at a size that takes a second, with some lines replaced."""
    text = bundled_text("digits")
    for old, new in {
        "runs = 150": "runs = 12",
        "shadows = 50": "shadows = 6",
        "records = 1000": "records = 120",
        "test = 400": "test = 50",
        "count = 40": "count = 10",
        "count = 20": "count = 10",
        "guesses = 400": "guesses = 20",
        "guesses = 200": "guesses = 20",
        "steps = 300": "steps = 20",
        'expect = "consistent"\n': "",
        'expect = "violated"\n': "",
        "noise_multiplier = 0.0": "noise_multiplier = 1.2241",  # nothing to find
        **changes,
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def scores_csv(path: Path, leak: float, runs: int = 40, canaries: int = 50) -> Path:
    rng = np.random.default_rng(3)
    member = rng.random((runs, canaries)) < 0.5
    scores = leak * member + rng.normal(size=member.shape)
    rows = [f"{r},{c},{int(member[r, c])},{scores[r, c]!r}" for r in range(runs) for c in range(canaries)]
    path.write_text("run,canary,member,score\n" + "\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")
    return path


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert all(name in out for name in ("demo", "run", "init", "bound", "account", "report"))


def test_a_run_leaves_a_report_and_says_the_verdict_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = small_spec(tmp_path / "a.toml"), tmp_path / "out"
    code, text, _ = call(capsys, "run", spec, "--out", out)
    assert code == 0
    assert {p.name for p in (out / "release").iterdir()} >= {"report.html", "report.json", "report.txt", "figures"}
    before = (out / "release" / "report.json").stat().st_mtime_ns
    again = call(capsys, "run", spec, "--out", out)
    assert (again[0], again[1]) == (code, text)
    assert (out / "release" / "report.json").stat().st_mtime_ns == before


def test_run_json_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", tmp_path / "out", "--json")
    document = strict(text)
    assert document["schema"] == "dpaudit.report/1"
    assert document == strict((tmp_path / "out" / "release" / "report.json").read_text())


def test_require_power(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = small_spec(tmp_path / "a.toml")
    assert call(capsys, "run", spec, "--out", tmp_path / "out", "--require-power")[0] == 5
    assert call(capsys, "report", tmp_path / "out", "--require-power")[0] == 5
    assert call(capsys, "report", tmp_path / "out")[0] == 0


def test_an_unmet_expectation_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = small_spec(tmp_path / "a.toml", **{'name = "sgd"': 'name = "sgd"\nexpect = "violated"'})
    assert call(capsys, "run", spec, "--out", tmp_path / "out")[0] == 1


def test_report_draws_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", out)
    files = sorted(p for p in (out / "release").rglob("*") if p.suffix in (".json", ".txt", ".html", ".svg", ".csv"))
    before = {p: p.read_bytes() for p in files}
    (out / "release" / "report.html").unlink()
    assert call(capsys, "report", out)[0] == 0
    assert {p: p.read_bytes() for p in files} == before


def test_lower_is_recomputed_from_the_stored_observations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    _, text, _ = call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", out, "--json")
    _, again, _ = call(capsys, "bound", out / "retained" / "observations.safetensors", "--json")
    lowers = {a["name"]: (a["lower"], a["p_value"]) for a in strict(text)["audits"]}
    assert {a["name"]: (a["lower"], a["p_value"]) for a in strict(again)["audits"]} == lowers
    _, one, _ = call(capsys, "bound", out / "retained" / "observations.safetensors", "--json", "--audit", "sgd")
    assert [a["name"] for a in strict(one)["audits"]] == ["sgd"]


def test_init_writes_a_spec_that_loads_and_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dpaudit.spec import load_spec

    path = tmp_path / "mine.toml"
    assert call(capsys, "init", path)[0] == 0
    assert load_spec(path).name == "my-audit"
    content = path.read_text()
    code, _, err = call(capsys, "init", path)
    assert code == 2
    assert "must not exist" in err
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("leak", "code", "verdict"), [(8.0, 1, "violated"), (0.0, 0, "consistent")], ids=["leaky", "null"]
)
def test_bound_judges_a_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], leak: float, code: int, verdict: str
) -> None:
    path = scores_csv(tmp_path / "scores.csv", leak)
    got, out, _ = call(capsys, "bound", path, "--delta", "1e-5", "--epsilon", "1", "--json")
    document = strict(out)
    assert got == code
    assert document["verdict"] == verdict
    assert len(document["assumed"]) == 2
    audit = document["audits"][0]
    assert audit["upper"] == 1.0
    assert all({"method", "null", "perfect", "adjacency", "threshold"} <= set(b) for b in audit["bounds"])


def test_bound_prints_what_it_assumed_and_a_hypothesis_for_every_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scores_csv(tmp_path / "scores.csv", 1.0)
    _, out, _ = call(capsys, "bound", path, "--delta", "1e-5", "--guesses", "100")
    assert "assumed: each canary in or out by an independent fair coin" in out
    assert "NO_CLAIM" in out
    assert "any" in out
    _, out, _ = call(capsys, "bound", path, "--delta", "1e-5", "--coins", "fair", "--calibration", "none")
    assert "assumed" not in out


def test_bound_takes_a_recipe_as_the_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scores_csv(tmp_path / "scores.csv", 8.0)
    recipe = ("--noise-multiplier", "2", "--sampling-rate", "0.1", "--steps", "50")
    code, out, _ = call(capsys, "bound", path, "--delta", "1e-5", *recipe, "--json")
    assert code == 1
    assert strict(out)["audits"][0]["lower_if_recipe"] > strict(out)["audits"][0]["lower"]


def test_bound_on_two_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scores_csv(tmp_path / "scores.csv", 8.0, runs=400, canaries=1)
    common = ("bound", path, "--delta", "1e-5", "--epsilon", "1", "--coins", "worlds", "--json")
    code, out, _ = call(capsys, *common, "--threshold", "4")
    assert code == 1
    assert "Clopper" in strict(out)["audits"][0]["bounds"][0]["method"]
    assert call(capsys, *common, "--guesses", "20")[0] == 2


@pytest.mark.parametrize("ending", ["npz", "safetensors", "parquet"])
def test_bound_reads_every_format_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    from safetensors.numpy import save_file

    from dpaudit.data.scores import read_scores

    csv = scores_csv(tmp_path / "scores.csv", 2.0)
    obs, path = read_scores(csv), tmp_path / f"scores.{ending}"
    if ending == "npz":
        np.savez(path, scores=obs.scores, member=obs.member)
    elif ending == "safetensors":
        save_file({"scores": obs.scores, "member": obs.member}, path)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow.csv").read_csv(csv), path)
    options = ("--delta", "1e-5", "--epsilon", "1", "--json")
    expected = strict(call(capsys, "bound", csv, *options)[1])["audits"][0]["bounds"]
    assert strict(call(capsys, "bound", path, *options)[1])["audits"][0]["bounds"] == expected
    path.write_bytes(b"nothing of the kind")
    code, _, err = call(capsys, "bound", path, *options)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_a_delta_too_large_for_so_many_coins_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scores_csv(tmp_path / "scores.csv", 2.0)
    _, out, _ = call(capsys, "bound", path, "--delta", "0.01", "--guesses", "20")
    assert "is too much: not even 20 right guesses would show anything" in out


def test_account(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--noise-multiplier", "1.1", "--sampling-rate", "0.00427", "--steps", "14063", "--delta", "1e-5")
    code, out, _ = call(capsys, "account", *settings)
    assert code == 0
    assert "2.38" in out
    document = strict(call(capsys, "account", *settings, "--json")[1])
    assert document["ledgers"][0]["epsilon"] == pytest.approx(2.384, abs=2e-3)


ROWS = [f"{run},{canary},{(run * 7 + canary * 3) % 2},{run + canary}\n" for run in range(4) for canary in range(6)]
GOOD = "run,canary,member,score\n" + "".join(ROWS)
BAD_SCORES = {
    "empty file": ("", "empty"),
    "header only": ("member,score\n", "at least one row"),
    "no member": ("run,score\n0,1\n", "'member'"),
    "no score": ("run,member\n0,1\n", "'score'"),
    "text": (GOOD.replace("0,0,0,0\n", "0,0,0,abc\n"), "finite number, got 'abc'"),
    "nan": (GOOD.replace("0,0,0,0\n", "0,0,0,nan\n"), "finite number, got 'nan'"),
    "infinite": (GOOD.replace("0,0,0,0\n", "0,0,0,inf\n"), "finite number, got 'inf'"),
    "twice": (GOOD + "0,0,1,5\n", "twice in run"),
    "member 2": (GOOD.replace("0,0,0,0\n", "0,0,2,0\n"), "member must be"),
    "ragged": (GOOD + "0,9,1\n", "4 values"),
    "gap": (GOOD.replace("3,5,0,8\n", ""), "every run must have a row"),
    "all in": ("member,score\n1,1\n1,2\n1,3\n", "all members"),
    "all out": ("member,score\n0,1\n0,2\n0,3\n", "no member"),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_scores_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    content, expected = BAD_SCORES[case]
    path = tmp_path / "scores.csv"
    path.write_text(content)
    code, out, err = call(capsys, "bound", path, "--delta", "1e-5", "--guesses", "2")
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.strip().splitlines()) == 1


BAD_SPECS = {
    "unknown key": ({"delta = 1e-5": "delta = 1e-5\nepsilonn = 3"}, "unknown key epsilonn"),
    "unknown setting": ({"clip_norm = 1.0": "clipnorm = 1.0"}, "clipnorm"),
    "negative noise": ({"noise_multiplier = 0.0": "noise_multiplier = -1.0"}, "noise_multiplier must be in"),
    "rate 0": ({"2.0, sampling_rate = 0.05": "2.0, sampling_rate = 0.0"}, "sampling_rate must be in (0, 1]"),
    "rate above 1": ({"2.0, sampling_rate = 0.05": "2.0, sampling_rate = 1.5"}, "sampling_rate must be in (0, 1]"),
    "delta 1": ({"delta = 1e-5": "delta = 1.0"}, "delta"),
    "delta negative": ({"delta = 1e-5": "delta = -0.1"}, "delta"),
    "delta 0": ({"delta = 1e-5": "delta = 0.0"}, "finite"),
    "too many drawn": ({'family = "mislabelled"\ncount = 10': 'family = "mislabelled"\ncount = 1790'}, "at most the"),
    "too many records": ({"records = 120": "records = 5000"}, "5000"),
    "no such data": ({'source = "digits"': 'source = "nowhere.npz"'}, "nowhere.npz"),
    "no such trainer": ({'trainer = "sgd"': 'trainer = "adam"'}, "trainer must be"),
    "no such module": ({'trainer = "sgd"': 'trainer = "nosuchmodule:train"'}, "no module 'nosuchmodule'"),
    "not toml": ({"delta = 1e-5": "delta = = 3"}, "not a TOML file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SPECS)
def test_a_bad_spec_is_one_clear_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    changes, expected = BAD_SPECS[case]
    spec, out = small_spec(tmp_path / "bad.toml", **changes), tmp_path / "out"
    code, text, err = call(capsys, "run", spec, "--out", out)
    assert (code, text) == (2, "")
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_data_with_a_label_out_of_range_or_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 5)), rng.integers(0, 3, 300)
    for name, (features, labels, expected) in {
        "label": (x, np.where(np.arange(300) == 7, -1, y), "label"),
        "nan": (np.where(np.arange(300)[:, None] == 7, np.nan, x), y, "finite"),
    }.items():
        np.savez(tmp_path / f"{name}.npz", x=features, y=labels)
        source = {'source = "digits"': f'source = "{tmp_path / name}.npz"'}
        code, _, err = call(capsys, "run", small_spec(tmp_path / "s.toml", **source), "--out", tmp_path / "out")
        assert code == 2
        assert expected in err
        assert not (tmp_path / "out").exists()


def test_errors_are_json_documents_too(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("run", "nosuch.toml", "--json"), ("bound", "--nosuch", "--json"), ("nosuch", "--json")):
        code, out, err = call(capsys, *arguments)
        document = strict(out)
        assert (code, document["exit_code"], document["schema"]) == (2, 2, "dpaudit.error/1")
        assert document["error"] in err


def test_another_plan_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", out)
    before = (out / "release" / "report.json").read_bytes()
    other = small_spec(tmp_path / "b.toml", **{"learning_rate = 2.0": "learning_rate = 1.0"})
    code, _, err = call(capsys, "run", other, "--out", out)
    assert code == 2
    assert "was 2.0 and is 1.0" in err
    assert "--fresh" in err
    assert (out / "release" / "report.json").read_bytes() == before
    assert call(capsys, "run", other, "--out", out, "--fresh")[0] == 0


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", tmp_path, "--fresh")
    assert code == 2
    assert "others' files" in err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", tmp_path / "file" / "out")
    assert code == 2
    assert "not a directory" in err
    code, _, err = call(capsys, "run", small_spec(tmp_path / "a.toml"), "--out", tmp_path / "file")
    assert code == 2
    assert "must be a folder" in err


def test_significance_0_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scores_csv(tmp_path / "scores.csv", 1.0)
    code, _, err = call(capsys, "bound", path, "--delta", "1e-5", "--significance", "0")
    assert code == 2
    assert "significance must be in (0, 0.5)" in err


def test_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "report", tmp_path)
    assert code == 2
    assert "finished dpaudit run" in err


def test_a_raise_inside_a_command_is_exit_code_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug\nof two lines")

    monkeypatch.setattr("dpaudit.accounting.Claim.dp_sgd", broken)
    code, _, err = call(
        capsys, "account", "--noise-multiplier", "1", "--sampling-rate", "1", "--steps", "1", "--delta", "1e-5"
    )
    assert code == 4
    line = err.strip().splitlines()
    assert len(line) == 1
    assert "a bug of two lines" in line[0]
    file = Path(line[0].rsplit(" ", 1)[1])
    assert "RuntimeError" in file.read_text()
    file.unlink()


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_nothing_leaves_as_1_by_accident(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("dpaudit.accounting.Claim.dp_sgd", broken)
    code, _, _ = call(
        capsys, "account", "--noise-multiplier", "1", "--sampling-rate", "1", "--steps", "1", "--delta", "1e-5"
    )
    assert code == (4 if isinstance(raised, SystemExit) else 3)


def test_a_reader_that_goes_away_is_no_violation(tmp_path: Path) -> None:
    path = scores_csv(tmp_path / "scores.csv", 1.0)
    command = [sys.executable, "-m", "dpaudit", "bound", str(path), "--delta", "1e-5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupted_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    spec = small_spec(tmp_path / "a.toml", **{"runs = 12": "runs = 4000", "steps = 20": "steps = 200"})
    command = [sys.executable, "-m", "dpaudit", "run", str(spec), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        units = tmp_path / "out" / "retained" / "units"
        while process.poll() is None and not (units.is_dir() and any(units.glob("*.safetensors"))):
            os.sched_yield()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "interrupted" in err.strip().splitlines()[-1]
    assert not (tmp_path / "out" / "release").exists()
