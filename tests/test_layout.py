"""The house: which arrows its imports may follow, its links, its version, its file sizes."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dpaudit

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dpaudit"

# Lowest first. A module imports from its own layer and from lower ones, at the top or inside a function alike.
LAYERS = (
    ("errors", "check", "records", "interfaces"),
    ("accounting",),
    ("bounds",),
    ("data",),
    ("trainers",),
    ("attacks",),
    ("auditor", "plan", "spec", "store", "archive"),
    ("probe",),
    ("report",),
    ("runner", "demo", "frontier", "inference", "vulnerable"),
    ("cli", "pytest_plugin", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
TORCH_FREE = ("records", "accounting", "bounds", "auditor", "report")
MAX_LINES = 600


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Dotted name → file, of every module on disk."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _statements(node: ast.AST, lazy: bool = True) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import that can run, at the top or (if ``lazy``) in a function; not those for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if not lazy and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif _is_type_checking(child):
            for other in child.orelse:  # type: ignore[attr-defined]
                yield from _statements(ast.Module([other], []), lazy)
        else:
            yield from _statements(child, lazy)


def imports(name: str, source: str, known: set[str], is_package: bool, lazy: bool = True) -> set[str]:
    """Dotted names of what a module imports; ``from .x import y`` is ``x.y`` where that is a module, else ``x``."""
    found: set[str] = set()
    for node in _statements(ast.parse(source), lazy):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            continue
        parts = name.split(".")
        up = parts[: len(parts) - node.level + is_package] if node.level else []
        base = ".".join([*up, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if full != "dpaudit.__version__":
                found.add(full if full in known else base)
    return found


@functools.cache
def graph(lazy: bool = True) -> dict[str, set[str]]:
    files = modules()
    return {
        name: imports(name, path.read_text(encoding="utf-8"), set(files), path.name == "__init__.py", lazy)
        for name, path in files.items()
    }


def top(name: str) -> str | None:
    """``dpaudit.bounds.one_run`` → ``bounds``; None for the root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else None


def wrong_arrows(edges: dict[str, set[str]]) -> list[str]:
    wrong = []
    for name, targets in edges.items():
        for target in sorted(t for t in targets if t.split(".")[0] == "dpaudit"):
            here, there = top(name), top(target)
            if here is None:
                wrong.append(f"{name} imports {target}: the root loads lazily, through its table")
            elif there is None:
                wrong.append(f"{name} imports from the root, which hides an arrow: name the module")
            elif LEVEL[there] > LEVEL[here]:
                wrong.append(f"{name} imports {target}, which is above it")
    return wrong


def cycle(edges: dict[str, set[str]]) -> list[str]:
    inside = {name: {t for t in targets if t in edges and t != name} for name, targets in edges.items()}
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_top_level_module_has_a_layer() -> None:
    unknown = {top(name) for name in modules()} - {None} - set(LEVEL)
    assert not unknown, f"give these a place in LAYERS: {sorted(map(str, unknown))}"


def test_imports_point_one_way() -> None:
    assert wrong_arrows(graph()) == []


def test_no_cycles() -> None:
    """Among imports at the top; settings may call, inside a function, the engine that is written against them."""
    assert " <- ".join(cycle(graph(lazy=False))) == "", "each is imported by the next"


def test_two_files_speak_to_dp_accounting() -> None:
    """One for its privacy loss distributions, one for its Rényi accountant."""
    users = {name for name, targets in graph().items() if any(t.split(".")[0] == "dp_accounting" for t in targets)}
    assert users == {"dpaudit.accounting.pld", "dpaudit.accounting.renyi"}


def test_statistics_are_free_of_torch() -> None:
    users = [
        name
        for name, targets in graph().items()
        if top(name) in TORCH_FREE and any(t.split(".")[0] in ("torch", "opacus", "sklearn") for t in targets)
    ]
    assert users == []


def test_the_walk_itself_finds_faults() -> None:
    source = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ..report import Page
else:
    import json
def late():
    from .. import trainers
    from ..attacks.lira import score
    import torch.nn
    from .. import Claim, __version__
"""
    known = {"dpaudit.bounds.x", "dpaudit.trainers", "dpaudit.attacks.lira", "dpaudit.report"}
    found = imports("dpaudit.bounds.x", source, known, is_package=False)
    assert found == {"__future__", "typing", "json", "dpaudit.trainers", "dpaudit.attacks.lira", "torch.nn", "dpaudit"}
    assert len(wrong_arrows({"dpaudit.bounds.x": found})) == 3
    assert imports("dpaudit.bounds", "from . import x", known, is_package=True) == {"dpaudit.bounds.x"}
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("name", ["attacks", "trainers"])
class TestLinks:
    def test_is_a_relative_link(self, name: str) -> None:
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).readlink() == Path("dpaudit") / name

    def test_short_name_is_refused(self, name: str) -> None:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("ImportError") and f"dpaudit.{name}" in last

    def test_ruff_bans_it(self, name: str) -> None:
        command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", "tests/x.py", "-"]
        for line in (f"import {name}", f"from {name} import x", f"from {name}.x import y"):
            done = subprocess.run(command, cwd=ROOT, input=line, capture_output=True, text=True)
            assert done.returncode == 1 and "TID251" in done.stdout, done.stdout + done.stderr


def test_version_has_one_value() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert dpaudit.__version__ == project["version"]
    assert f"[{dpaudit.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_files_stay_readable() -> None:
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


def test_constraints_pin_what_is_installed_by_hand() -> None:
    pinned = {m[1].lower() for m in re.finditer(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.M)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    wanted = {re.split(r"[<>=\[]", line)[0].lower() for line in named} - {"dpaudit"}
    assert wanted <= pinned
