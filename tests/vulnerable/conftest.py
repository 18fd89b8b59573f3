"""One small examination for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpaudit.spec import Spec, load_spec
from dpaudit.vulnerable import Exposure, examine

SEED = 662187443
OPTIONS: dict[str, Any] = {"shortlist": 3, "models": 64, "epsilons": (1.0, 8.0)}


def small_spec(**changes: Any) -> Spec:
    """The digits spec with few records and steps."""
    spec = load_spec("digits").model_dump(mode="json")
    spec |= {"seed": SEED, "data": {"source": "digits", "records": 150, "test": 61}}
    for trainer in spec["trainers"]:
        trainer["settings"]["steps"] = 20
    return load_spec(spec | changes)


@pytest.fixture(scope="session")
def examined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exposure, Path]:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("vulnerable") / "out"
    return examine(small_spec(), out, **OPTIONS), out


@pytest.fixture
def found(examined: tuple[Exposure, Path]) -> Exposure:
    return examined[0]


@pytest.fixture
def out(examined: tuple[Exposure, Path]) -> Path:
    return examined[1]
