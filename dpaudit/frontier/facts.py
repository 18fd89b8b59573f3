"""The exploration as one strict JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import words
from .outcome import Frontier, Halves, Measured, Point, Suggestion

SCHEMA = "dpaudit.frontier/1"


def document(found: Frontier) -> dict[str, Any]:
    """All facts; what was not computed is None, and nothing is NaN or infinite.

    It names no record and no seed.
    """
    grid = found.grid
    return {
        "schema": SCHEMA,
        "name": grid.spec.name,
        "command": found.command,
        "headline": words.headline(found),
        "rules": words.rules(found),
        "delta": grid.delta,
        "adjacency": str(grid.levels[0].claim.adjacency),
        "trainer": {"name": grid.trainer, "settings": _kept(grid.settings)},
        "data": {
            "name": grid.data.name,
            "records": len(grid.data),
            "choosing_records": grid.choosing.stop,
            "reporting_records": grid.test_records - grid.choosing.stop,
            "features": grid.data.features,
            "classes": grid.data.classes,
        },
        "grid": {
            "noise_multipliers": [level.noise_multiplier for level in grid.levels],
            "clip_norms": list(grid.clip_norms),
            "repeats": grid.repeats,
            "within": grid.within,
            "budget": grid.budget,
        },
        "points": [_point(point) for point in found.points],
        "reference": None if found.reference is None else _reference(found, found.reference),
        "suggestions": [_suggestion(found, s) for s in found.suggestions],
        "costs": [asdict(cost) | {"words": words.cost(found, cost)} for cost in found.costs],
        "free": list(words.FREE),
        "limits": words.limits(found),
        "environment": dict(found.environment),
    }  # fmt: skip


def _kept(settings: Any) -> dict[str, Any]:
    """The settings that the grid does not replace."""
    varied = ("noise_multiplier", "clip_norm")
    kept = {name: value for name, value in asdict(settings).items() if name not in varied}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _point(point: Point) -> dict[str, Any]:
    return {
        "noise_multiplier": point.level.noise_multiplier,
        "target_epsilon": point.level.target,
        "epsilon": point.level.epsilon,
        "clip_norm": point.clip_norm,
        **_halves(point.accuracy),
        "best_at_epsilon": point.best,
        "non_dominated": point.non_dominated,
    }


def _reference(found: Frontier, halves: Halves) -> dict[str, Any]:
    assert found.grid.reference is not None
    name, settings = found.grid.reference
    return {"name": name, "settings": _kept(settings), **_halves(halves)}


def _suggestion(found: Frontier, suggestion: Suggestion) -> dict[str, Any]:
    return {
        "rule": suggestion.rule,
        **_point(found.points[suggestion.point]),
        "fresh": _measured(suggestion.fresh),
        "words": words.suggestion(found, suggestion),
    }


def _halves(halves: Halves) -> dict[str, Any]:
    return {"choosing": _measured(halves.choosing), "reporting": _measured(halves.reporting)}


def _measured(measured: Measured) -> dict[str, Any]:
    return asdict(measured)
