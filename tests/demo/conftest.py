from __future__ import annotations

from pathlib import Path

import pytest

from dpaudit.demo import DemoResult, run_demo, write

SEED, MODELS = 3, 40


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("demo") / "none", seed=SEED, models=MODELS)


@pytest.fixture(scope="session")
def written(result: DemoResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    write(result, folder)
    return folder
