"""What each package exports, and what importing it costs."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import dpaudit
from dpaudit.errors import MissingExtra

ROOT_MODULES = {"accounting", "attacks", "bounds", "data", "report", "trainers"}
ROOT_HOMES = {
    "Audit": "dpaudit.records",
    "Bound": "dpaudit.records",
    "Claim": "dpaudit.accounting",
    "Data": "dpaudit.records",
    "Design": "dpaudit.records",
    "Finding": "dpaudit.records",
    "Observations": "dpaudit.records",
    "Verdict": "dpaudit.records",
    "audit": "dpaudit.auditor",
    "run": "dpaudit.runner",
}


def loaded_after(code: str) -> set[str]:
    """Names of the modules in a fresh process after ``code``."""
    script = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def import_all() -> dict[str, ModuleType]:
    """Every module of dpaudit, imported; those of an extra that is not there are left out."""
    found = {"dpaudit": dpaudit}
    for info in pkgutil.walk_packages(dpaudit.__path__, "dpaudit."):
        if info.name.rpartition(".")[2] != "__main__":
            try:
                found[info.name] = importlib.import_module(info.name)
            except MissingExtra as error:
                assert "opacus" in str(error), error
    return found


def test_root_imports_neither_numpy_nor_torch() -> None:
    assert not loaded_after("import dpaudit") & {"numpy", "scipy", "torch", "sklearn", "typer", "pydantic"}


@pytest.mark.parametrize("name", ["bounds", "accounting", "auditor", "report", "data"])
def test_statistics_load_no_training_library(name: str) -> None:
    assert not loaded_after(f"import dpaudit.{name}") & {"torch", "sklearn", "opacus"}


def test_help_loads_neither_numpy_nor_torch() -> None:
    code = """
import sys
from dpaudit.cli import main
sys.argv = ["dpaudit", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert not loaded_after(code) & {"numpy", "scipy", "torch", "sklearn"}


def test_root_exports_what_the_design_names() -> None:
    assert set(dpaudit.__all__) == {*ROOT_MODULES, *ROOT_HOMES, "__version__"}
    assert set(dpaudit.__all__) <= set(dir(dpaudit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpaudit.nothing


def test_each_public_name_is_the_object_it_should_be() -> None:
    found = import_all()
    for name, home in ROOT_HOMES.items():
        value = getattr(dpaudit, name)
        assert value is getattr(found[home], name)
        assert not isinstance(value, ModuleType)
        assert value.__name__ == name
    for name in ROOT_MODULES:
        assert getattr(dpaudit, name) is sys.modules[f"dpaudit.{name}"]
    for module_name, module in found.items():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if module is not dpaudit:
                assert not isinstance(value, ModuleType), f"{module_name}.{name} is a module"


def test_no_module_bears_the_name_of_something_its_package_exports() -> None:
    for name, module in import_all().items():
        if hasattr(module, "__path__"):
            below = {info.name for info in pkgutil.iter_modules(module.__path__)}
            allowed = ROOT_MODULES if module is dpaudit else set()
            assert below & set(getattr(module, "__all__", ())) == allowed & below, name
