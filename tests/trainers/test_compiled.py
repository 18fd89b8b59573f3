"""Compiled code that is kept on disk: for as long as no file has changed of whose functions it is made."""

from __future__ import annotations

import dis
import importlib
import os
import pkgutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("torch")  # which some modules with loops need

import numba

import dpaudit.trainers
from dpaudit.trainers import compiled

ROOT = Path(dpaudit.trainers.__file__).parents[2]


def stamp(function):
    """What kept code is compared with: file, time and size of each."""
    return function._cache._cache_file._source_stamp


def files(function):
    return {Path(name).name for name, _, _ in stamp(function)}


def loops():
    """All compiled functions that are kept, by name."""
    found = {}
    for _, name, package in pkgutil.walk_packages(dpaudit.trainers.__path__, "dpaudit.trainers."):
        text = Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")
        if package or "@compiled" not in text:
            continue
        module = importlib.import_module(name)
        own = {f"{name}.{key}": value for key, value in vars(module).items() if hasattr(value, "py_func")}
        found.update({key: value for key, value in own.items() if value.py_func.__module__ == name})
    return {key: value for key, value in found.items() if hasattr(value._cache, "_cache_file")}


LOOPS = loops()


def reached(code, scope, seen):
    """Files of everything compiled that a function may call, now that all modules are loaded."""
    seen.setdefault(code, code.co_filename)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            reached(inner, scope, seen)
    for instruction in dis.get_instructions(code):
        called = scope.get(instruction.argval) if isinstance(instruction.argval, str) else None
        function = getattr(called, "py_func", None) or getattr(called, "_defn", None)
        if isinstance(function, types.FunctionType) and function.__code__ not in seen:
            reached(function.__code__, function.__globals__, seen)
    return set(seen.values())


def test_there_are_loops_in_many_modules():
    modules = {name.rpartition(".")[0].removeprefix("dpaudit.trainers.") for name in LOOPS}
    assert {"image_loops", "private.transformer_loops", "kernels", "small_products", "example_loops"} <= modules
    assert len(LOOPS) > 30


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_kept_knows_the_files_of_all_it_is_made_of(name):
    function = LOOPS[name]
    wanted = reached(function.py_func.__code__, function.py_func.__globals__, {}) | {compiled.__file__}
    assert {entry[0] for entry in stamp(function)} == wanted
    for path, time, size in stamp(function):
        assert (time, size) == (os.stat(path).st_mtime_ns, os.stat(path).st_size)


@pytest.mark.parametrize(("name", "wanted"), [
    ("private.transformer_loops.add_clipped",
     {"transformer_loops.py", "small_products.py", "functions.py", "example_loops.py"}),
    ("image_loops.add_clipped", {"image_loops.py", "small_products.py", "functions.py", "example_loops.py"}),
    ("image_loops._convolve", {"image_loops.py", "small_products.py"}),
    ("image_loops._pool", {"image_loops.py"}),
    ("example_loops.softmax_slopes", {"example_loops.py", "functions.py"}),
    ("example_loops.squared_length", {"example_loops.py"}),
    ("small_products.multiply", {"small_products.py"}),
])  # fmt: skip
def test_files_of_some_loops(name, wanted):
    """Whatever is called by what is called, and inlined functions too."""
    assert files(LOOPS[f"dpaudit.trainers.{name}"]) == wanted | {"compiled.py"}


def test_stamps_of_two_processes_are_the_same():
    """Or nothing would ever be found again."""
    names = [entry[0] for entry in stamp(LOOPS["dpaudit.trainers.private.transformer_loops.add_clipped"])]
    assert names == sorted(names) and len(names) == len(set(names))


@pytest.mark.parametrize("kept", [None, object(), types.SimpleNamespace(_cache=None),
                                  types.SimpleNamespace(_cache=types.SimpleNamespace())])  # fmt: skip
def test_another_numba_is_left_alone(kept):
    """Whose kept code is not to be marked."""
    compiled._mark(kept)


# ---- in a package of its own ----------------------------------------------------------------------------------------

INNER = """
from dpaudit.trainers.compiled import compiled, inlined

@compiled
def inner(x):
    return x + {inner}

@inlined
def put_in(x):
    return x * {put_in}
"""
MIDDLE = """
from dpaudit.trainers.compiled import compiled
from .inner import inner, put_in

@compiled
def middle(x):
    return inner(x) + put_in(x) + {middle}
"""
OUTER = """
from dpaudit.trainers.compiled import compiled
from .middle import middle

@compiled
def outer(x):
    return middle(x) + {outer}

@compiled
def alone(x):
    return x - 1.0

@compiled
def itself(n):
    return 0 if n < 1 else n + itself(n - 1)
"""
RUN = """
from loops.outer import alone, itself, outer
print(outer(1.0), alone(1.0), itself(3))
for function in (outer, alone, itself):
    print(sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values()))
"""
FIRST = {"inner": 10.0, "put_in": 100.0, "middle": 1000.0, "outer": 10000.0}
SOURCES = {"inner": INNER, "put_in": INNER, "middle": MIDDLE, "outer": OUTER}
FILES = {"inner": "inner", "put_in": "inner", "middle": "middle", "outer": "outer"}


class Package:
    """Three files, of which the last calls the second, which calls the first."""

    def __init__(self, folder):
        self.folder, self._tick = folder, 15 * 10**17
        (folder / "loops").mkdir()
        (folder / "loops" / "__init__.py").touch()
        self.numbers = dict(FIRST)
        for name in FILES:
            self._write(name)

    def change(self, name, number):
        self.numbers[name] = number
        self._write(name)

    def _write(self, name):
        path = self.folder / "loops" / f"{FILES[name]}.py"
        path.write_text(SOURCES[name].format(**self.numbers), encoding="utf-8")
        self.touch(name)

    def touch(self, name):
        """Another time of change, so that nothing hangs on the clock."""
        self._tick += 10**9
        os.utime(self.folder / "loops" / f"{FILES[name]}.py", ns=(self._tick, self._tick))

    def run(self):
        """What the functions give in a new process, and of each (found, compiled)."""
        lines = run(RUN, self.folder, NUMBA_CACHE_DIR=str(self.folder / "kept")).splitlines()
        first, *counts = [tuple(map(float, line.split())) for line in lines]
        return first, [tuple(map(int, pair)) for pair in counts]

    @property
    def wanted(self):
        numbers = self.numbers
        return 1 + numbers["inner"] + numbers["put_in"] + numbers["middle"] + numbers["outer"]


def run(script, *paths, **variables):
    where = os.pathsep.join(map(str, (*paths, ROOT)))
    variables = {**os.environ, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, cwd=paths[0])
    assert not done.returncode, done.stderr
    return done.stdout


FOUND, COMPILED = (1, 0), (0, 1)


def test_kept_code_is_found_until_a_file_of_what_it_calls_has_changed(tmp_path):
    package = Package(tmp_path)
    assert package.run() == ((package.wanted, 0.0, 6.0), [COMPILED] * 3)
    assert package.run() == ((package.wanted, 0.0, 6.0), [FOUND] * 3)
    package.change("inner", 20.0)
    assert package.run() == ((package.wanted, 0.0, 6.0), [COMPILED, FOUND, FOUND])
    package.change("put_in", 200.0)
    package.change("middle", 2000.0)
    assert package.run() == ((package.wanted, 0.0, 6.0), [COMPILED, FOUND, FOUND])
    package.touch("inner")
    assert package.run() == ((package.wanted, 0.0, 6.0), [COMPILED, FOUND, FOUND])
    package.touch("outer")
    assert package.run() == ((package.wanted, 0.0, 6.0), [COMPILED] * 3)
    assert package.run() == ((package.wanted, 0.0, 6.0), [FOUND] * 3)


def test_without_the_mark_old_code_is_taken(tmp_path):
    """The twin of the test above: numba looks at one file only."""
    package = Package(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "from dpaudit.trainers import compiled\ncompiled._mark = lambda kept: None\n", encoding="utf-8"
    )
    package.run()
    before = package.wanted
    package.change("inner", 20.0)
    assert package.run()[0][0] == before != package.wanted


def test_code_from_an_archive_is_compiled(tmp_path):
    """Whose files are none of the system's."""
    package = Package(tmp_path)
    with zipfile.ZipFile(tmp_path / "loops.zip", "w") as archive:
        for path in sorted((tmp_path / "loops").iterdir()):
            if path.suffix == ".py":
                archive.write(path, f"loops/{path.name}")
                path.unlink()
    (tmp_path / "loops").rename(tmp_path / "gone")
    script = "from loops.outer import outer; print(outer(1.0))"
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert float(run(script, elsewhere, tmp_path / "loops.zip", **kept)) == package.wanted


def test_where_nothing_can_be_kept_it_is_compiled_anew(monkeypatch):
    calls = []
    njit = numba.njit

    def picky(*args, **options):
        calls.append(options.get("cache", False))
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args, **options)

    monkeypatch.setattr(compiled.numba, "njit", picky)
    half = compiled.compiled(lambda x: x / 2)
    monkeypatch.undo()
    assert half(np.float32(3)) == 1.5 and calls == [True, False]


def test_divisions_by_zero_give_infinity():
    divide = numba.njit(**compiled._OPTIONS)(lambda x, y: x / y)
    assert divide(1.0, 0.0) == np.inf and np.isnan(divide(0.0, 0.0))


def test_registers_are_those_of_a_processor(monkeypatch):
    lanes = {"avx512f": (16, 8), "avx2": (8, 4), "neon": (4, 8), "sse2": (4, 4)}
    for feature, wanted in lanes.items():
        features = ",".join(f"{'+' if name == feature else '-'}{name}" for name in lanes)
        code = types.SimpleNamespace(magic_tuple=lambda features=features: ("triple", "name", features))
        context = types.SimpleNamespace(codegen=lambda code=code: code)
        monkeypatch.setattr(compiled, "cpu_target", types.SimpleNamespace(target_context=context))
        assert compiled.vector_registers() == wanted
