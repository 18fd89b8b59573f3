"""The demonstration as one strict JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from ..attacks.metrics import Rate
from ..records import FloatArray
from . import words
from .classroom import CLUBS, FRESH, GENERATOR, HOBBIES, STUDENTS, UNIT_HOURS
from .experiment import SCORE
from .outcome import DemoResult, LevelResult, StudentAudit

SCHEMA = "dpaudit.demo/1"
BINS = 48
_TAIL = 0.005  # of the scores on either side, which the outermost bins take in


def document(result: DemoResult) -> dict[str, Any]:
    """All facts; an infinite ε is the text "inf", what was not computed is None, and nothing is NaN."""
    return {
        "schema": SCHEMA,
        "command": command(result),
        "headline": words.headline(result),
        "sentences": list(words.sentences(result)),
        "seed": result.seed,
        "models": result.models,
        "delta": result.delta,
        "why_delta": words.WHY_DELTA,
        "significance": result.significance,
        "bounds": result.bounds,
        "family_error": result.family_error,
        "adjacency": "add-remove",
        "threat_model": "black-box",
        "score": SCORE,
        "class": _class(result),
        "first_step": _first_step(result),
        "levels": [_level(entry) for entry in result.levels],
        "limits": list(words.LIMITS),
        "environment": {"versions": {name: version(name) for name in ("dpaudit", "numpy", "scipy", "torch", "numba")}},
    }


def command(result: DemoResult) -> str:
    """What repeats the demonstration."""
    return f"dpaudit demo --seed {result.seed} --models {result.models}"


def histogram(found: StudentAudit) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Common bins and the share of scores with and without the student in each: (edges, inside, outside)."""
    both = np.concatenate([found.inside, found.outside])
    low, high = np.quantile(both, [_TAIL, 1 - _TAIL])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    inside, outside = (
        np.histogram(np.clip(scores, low, high), edges)[0] / len(scores) for scores in (found.inside, found.outside)
    )
    return edges, inside, outside


def _class(result: DemoResult) -> dict[str, Any]:
    room = result.classroom
    return {
        "students": STUDENTS,
        "hobbies": list(HOBBIES),
        "clubs": list(CLUBS),
        "unit_hours": UNIT_HOURS,
        "generator": GENERATOR,
        "fresh_students": FRESH,
        "tested": [asdict(s) | {"number": s.row + 1} for s in room.students],
        "vectors": [[round(float(v), 4) for v in row] for row in room.data.x],
        "joined": [CLUBS[int(y)] for y in room.data.y],
    }


def _first_step(result: DemoResult) -> dict[str, Any]:
    step = result.first_step
    return {
        "clip_norm": step.clip_norm,
        "gradient_norms": [round(float(v), 6) for v in step.norms],
        "clipped_norms": [round(float(v), 6) for v in step.clipped_norms],
    }


def _level(entry: LevelResult) -> dict[str, Any]:
    level = entry.level
    return {
        "key": level.key,
        "title": level.title,
        "target_epsilon": level.target,
        "trainer": {"kind": type(level.trainer).__name__, "settings": _plain(asdict(level.trainer))},
        "claim": None if level.claim is None else level.claim.document(),
        "epsilon": _number(level.epsilon),
        "ledger": [{"steps": steps, "epsilon": _number(spent)} for steps, spent in level.ledger],
        "added_up": _number(level.added_up),
        "accuracy": asdict(entry.accuracy),
        "students": {found.student.role: _student(found) for found in entry.students},
    }


def _student(found: StudentAudit) -> dict[str, Any]:
    audit, bound = found.audit, found.bound
    edges, inside, outside = histogram(found)
    return {
        "lower": _number(audit.lower),
        "lower_together": _number(found.together),
        "upper": _number(audit.upper),
        "verdict": audit.verdict.value,
        "p_value": audit.p_value,
        "power": audit.power,
        "pairs_told_apart": _rate(found.pairs),
        "tpr": _rate(found.tpr),
        "fpr": _rate(found.fpr),
        "bound": {
            "epsilon": _number(bound.epsilon),
            "delta": bound.delta,
            "significance": bound.significance,
            "method": bound.method,
            "null": bound.null,
            "adjacency": bound.adjacency,
            "threshold": str(found.policy),
            "counts": {name: int(value) for name, value in bound.counts.items()},
            "perfect": _number(bound.perfect),
            "at_claim": _number(bound.at_claim),
        },
        "threshold_score": float(found.threshold),
        "scores": {
            "mean_in": float(found.inside.mean()),
            "mean_out": float(found.outside.mean()),
            "edges": [float(v) for v in edges],
            "share_in": [float(v) for v in inside],
            "share_out": [float(v) for v in outside],
        },
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"value": rate.value, "low": rate.low, "high": rate.high, "hits": rate.hits, "trials": rate.trials}


def _number(value: float | None) -> float | str | None:
    """A number as strict JSON can hold it."""
    return None if value is None else "inf" if math.isinf(value) else float(value)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
