"""The release folder: complete or absent, the same bytes each time, and silent about who was in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.records import RunResult
from dpaudit.report import html, write_release

from . import conftest


def files(release: Path) -> dict[str, bytes]:
    return {str(p.relative_to(release)): p.read_bytes() for p in sorted(release.rglob("*")) if p.is_file()}


def secrets(result: RunResult) -> set[str]:
    found = {str(conftest.ROOT_SEED)}
    for entry in result.audits:
        for obs in (*entry.observations.values(), *entry.cross.values()):
            assert obs.runs is not None and obs.canaries is not None
            found |= {*obs.runs, *obs.canaries}
            found |= {form(score) for score in obs.scores.ravel().tolist() for form in (repr, "{:.10g}".format)}
    return found


def leaks(release: Path, hidden: set[str]) -> list[tuple[str, str]]:
    found = []
    for name, content in files(release).items():
        text = content.decode("utf-8", "replace")
        starts = {text[i : i + 8] for i in range(len(text))}  # a quick sieve before the real search
        found += [(name, secret) for secret in hidden if secret[:8] in starts and secret in text]
    return found


def test_release_is_complete(release: Path) -> None:
    drawn = {"epsilon"} | {
        f"{name}-{kind}"
        for name in ("1-non-private-sgd", "2-dp-sgd", "3-dp-sgd-noise-forgotten")
        for kind in ("scores", "roc")
    }
    expected = {f"figures/{name}.{kind}" for name in drawn for kind in ("svg", "png")}
    assert set(files(release)) == expected | {"report.html", "report.json", "report.txt", "bounds.csv"}
    assert all(content[:8] == b"\x89PNG\r\n\x1a\n" for name, content in files(release).items() if name[-3:] == "png")
    assert [p.name for p in release.parent.iterdir()] == ["release"]


def test_nothing_names_a_record_or_its_membership(release: Path, result: RunResult) -> None:
    hidden = secrets(result)
    assert len(hidden) > 10_000
    assert leaks(release, hidden) == []


@pytest.mark.parametrize("name", ["report.json", "report.html", "figures/epsilon.svg", "figures/epsilon.png"])
def test_the_search_itself_finds_a_leak(result: RunResult, release: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(release, tmp_path / "release"))
    obs = result.audits[0].observations["far-out"]
    with (copy / name).open("ab") as file:
        file.write(f" {float(obs.scores[3, 5])!r} ".encode())
    assert {file for file, _ in leaks(copy, secrets(result))} == {name}


def test_same_run_same_bytes(result: RunResult, release: Path, tmp_path: Path) -> None:
    assert files(write_release(result, tmp_path)) == files(release)


def test_an_old_release_is_replaced(result: RunResult, tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "stale.txt").write_text("old")
    assert "stale.txt" not in files(write_release(result, tmp_path))


def test_failure_leaves_the_old_release(
    result: RunResult, release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(result, tmp_path)

    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(html, "html_page", fail)
    for folder in (tmp_path, tmp_path / "fresh"):
        with pytest.raises(OSError, match="disk full"):
            write_release(result, folder)
    assert files(tmp_path / "release") == files(release)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fresh", "release"]
    assert list((tmp_path / "fresh").iterdir()) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_kill_between_the_renames_is_put_right(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    before = files(write_release(result, tmp_path))
    (tmp_path / "release").rename(tmp_path / ".release.old")
    (tmp_path / ".release.new").mkdir()
    if fails:
        monkeypatch.setattr(html, "html_page", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_release(result, tmp_path)
    else:
        write_release(result, tmp_path)
    assert files(tmp_path / "release") == before
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_import_is_light() -> None:
    code = "import dpaudit.report, sys; print(sorted({'matplotlib', 'jinja2', 'torch', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
