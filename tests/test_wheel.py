"""The built wheel: one top-level name, and useful without any extra.

Needs the package registry once: the base dependencies go into a fresh environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SKIP = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all xdist workers share (xdist 3.8 with pytest 9.2 ignores ``xdist_group``)."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def once(folder: Path, name: str) -> Iterator[bool]:
    """Yields True to the first caller of all workers; the others wait until that one is done and get False."""
    done = folder / f"{name}.done"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="module")
def wheel(shared: Path) -> Path:
    """Built from a copy of the checkout, so that nothing is written into it."""
    with once(shared, "built") as first:
        if first:
            source = shared / "source"
            source.mkdir()
            for name in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(ROOT / name, source)
            for name in ("dpaudit", "tests", "benchmarks", "examples"):
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / name, ignore=SKIP)
            for name in ("attacks", "trainers"):
                (source / name).symlink_to(Path("dpaudit") / name)
            command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(shared), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
    return next(shared.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(shared: Path, wheel: Path) -> Path:
    """The ``bin`` of a fresh environment with the wheel and its base dependencies."""
    home = shared / "bare"
    with once(shared, "installed") as first:
        if first:
            venv.create(home, with_pip=True, symlinks=True)
            command = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            command += ["-c", str(ROOT / "constraints.txt"), str(wheel)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
    return home / "bin"


def dpaudit(bare: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [str(bare / "dpaudit"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a small run left, made here where torch is installed."""
    from dpaudit.runner import run
    from dpaudit.spec import load_spec

    spec = load_spec("digits").model_dump(mode="json")
    spec |= {"runs": 12, "shadows": 6, "data": {"source": "digits", "records": 120, "test": 50}}
    spec["canaries"] = [{"family": "far-out", "count": 10}]
    spec["tests"] = [{"canaries": "far-out", "guesses": 20, "share": 1.0}]
    spec["trainers"] = spec["trainers"][:1]
    out = tmp_path_factory.mktemp("run") / "out"
    run(spec, out)
    return out


def test_one_top_level_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dpaudit"}


def test_carries_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"dpaudit/py.typed"}
    templates = [f"{part}/templates/*" for part in ("report", "demo", "frontier", "inference", "vulnerable")]
    for pattern in ("specs/*.toml", *templates):
        wanted |= {str(p.relative_to(ROOT)) for p in (ROOT / "dpaudit").glob(pattern) if p.is_file()}
    assert wanted <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_no_extra_came_along(bare: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'sklearn', 'joblib', 'opacus') if u.find_spec(n)])"
    done = subprocess.run([bare / "python", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_help(bare: Path, tmp_path: Path) -> None:
    done = dpaudit(bare, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("run", "bound", "account", "report"))


def test_account(bare: Path, tmp_path: Path) -> None:
    settings = "--noise-multiplier 1.1 --sampling-rate 0.00427 --steps 14063 --delta 1e-5".split()
    done = dpaudit(bare, tmp_path, "account", *settings, "--json")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    plain = dpaudit(bare, tmp_path, "account", *settings)
    assert plain.returncode == 0 and plain.stdout.strip(), plain.stderr


def test_bound(bare: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    member = rng.random(1000) < 0.5
    scores = rng.normal(size=1000) + 2 * member
    rows = [f"0,c{i},{int(m)},{s:.6f}" for i, (m, s) in enumerate(zip(member, scores, strict=True))]
    (tmp_path / "scores.csv").write_text("\n".join(["run,canary,member,score", *rows]) + "\n")
    done = dpaudit(bare, tmp_path, *"bound scores.csv --delta 1e-5 --epsilon 1 --guesses 100".split())
    assert done.returncode in (0, 1), done.stderr  # 1: this attacker is strong enough to refute ε = 1
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


def test_report(bare: Path, tmp_path: Path, finished_run: Path) -> None:
    done = dpaudit(bare, tmp_path, "report", str(finished_run))
    assert done.returncode == 0, done.stderr


def test_run_names_the_missing_extra(bare: Path, tmp_path: Path) -> None:
    done = dpaudit(bare, tmp_path, "run", "digits", "--out", "out")
    assert done.returncode == 2
    assert 'pip install "dpaudit[train]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
