"""What a folder of results belongs to: the evidence by its digest, and the settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sources import Source

SCHEMA = "dpaudit.attack-plan/1"


def plan(source: Source, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of an inference, as it is stored; the seed included.

    Args:
        source: what is attacked.
        settings: arguments of :func:`~dpaudit.inference.infer`.
    """
    arrays = {f.name: getattr(source.evidence, f.name) for f in fields(source.evidence)}
    steps = {f"steps.{name}": value for name, value in arrays.pop("steps").items()}
    held = {
        **arrays, **steps, "member": source.member, "x": source.x, "raw labels": source.labels, "ids": source.ids,
        **{f"slice {name}": values for name, values in source.groups.items()},
    }  # fmt: skip
    content = {
        "source": source.name,
        "evidence": {name: _digest(np.asarray(value)) for name, value in held.items() if value is not None},
        "settings": dict(settings),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return {"schema": SCHEMA, "digest": digest, **content}


def _digest(array: NDArray[Any]) -> str:
    content = hashlib.sha256(f"{array.dtype.kind}{array.shape}".encode())
    content.update(np.ascontiguousarray(array).data if array.dtype.kind in "biuf" else array.tobytes())
    return content.hexdigest()[:16]
