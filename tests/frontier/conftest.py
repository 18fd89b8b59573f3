"""One small exploration for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpaudit.frontier import Frontier, explore
from dpaudit.spec import load_spec

SEED = 662187443
OPTIONS: dict[str, Any] = {
    "noise": [3.0, 1.0], "clip": [1.0, 0.1, 0.3], "repeats": 2, "budget": 0.9, "within": 0.001,
}  # fmt: skip


def small_spec(**changes: Any) -> dict[str, Any]:
    """The digits spec with few records and steps."""
    spec = load_spec("digits").model_dump(mode="json")
    spec |= {"seed": SEED, "data": {"source": "digits", "records": 150, "test": 61}}
    for trainer in spec["trainers"]:
        trainer["settings"]["steps"] = 15
    return spec | changes


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Frontier, Path]:
    out = tmp_path_factory.mktemp("frontier") / "out"
    return explore(small_spec(), out, **OPTIONS), out


@pytest.fixture
def found(explored: tuple[Frontier, Path]) -> Frontier:
    return explored[0]


@pytest.fixture
def out(explored: tuple[Frontier, Path]) -> Path:
    return explored[1]
