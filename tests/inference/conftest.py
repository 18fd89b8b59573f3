"""One world of a target, shadows and a population, as arrays and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

RECORDS, SHADOWS, CLASSES, OTHERS = 240, 8, 3, 80
Arrays = dict[str, Any]


def make_world(gap: float = 2.0, seed: int = 0) -> Arrays:
    """Models that are surer of their members by ``gap``."""
    rng = np.random.default_rng(seed)
    labels, member = rng.integers(CLASSES, size=RECORDS), rng.random((SHADOWS + 1, RECORDS)) < 0.5
    logits = rng.normal(size=(RECORDS, CLASSES)) + 0.5 * rng.normal(size=(SHADOWS + 1, RECORDS, CLASSES))
    logits[:, np.arange(RECORDS), labels] += 0.5 + gap * member
    others = rng.integers(CLASSES, size=OTHERS)
    outside = rng.normal(size=(SHADOWS + 1, OTHERS, CLASSES))
    return {
        "member": member[0],
        "logits": logits[0],
        "labels": labels,
        "ids": np.array([f"patient-{i:04d}-{v:08x}" for i, v in enumerate(rng.integers(2**32, size=RECORDS))]),
        "x": rng.normal(size=(RECORDS, 5)),
        "site": np.where(rng.random(RECORDS) < 0.4, "north", "south"),
        "shadow_logits": logits[1:],
        "shadow_member": member[1:],
        "population_logits": outside[0],
        "population_labels": others,
        "shadow_population_logits": outside[1:],
    }


@pytest.fixture(scope="session")
def arrays() -> Arrays:
    return make_world()


@pytest.fixture(scope="session")
def whole(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything in one NPZ."""
    path = tmp_path_factory.mktemp("world") / "whole.npz"
    np.savez(path, **arrays)
    return path


def rows_of(arrays: Arrays, order: np.ndarray | None = None) -> list[str]:
    """Lines of a CSV of the target's logits."""
    lines = ["id,member,label,site,logit_0,logit_1,logit_2,x_0,x_1,x_2,x_3,x_4"]
    for i in range(RECORDS) if order is None else order:
        numbers = [*arrays["logits"][i].tolist(), *arrays["x"][i].tolist()]
        start = [arrays["ids"][i], int(arrays["member"][i]), arrays["labels"][i], arrays["site"][i]]
        lines.append(",".join([*map(str, start), *map(repr, numbers)]))
    return lines


@pytest.fixture(scope="session")
def plain_csv(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "target.csv"
    path.write_text("\n".join(rows_of(arrays)) + "\n")
    return path
