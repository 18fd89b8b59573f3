"""The inference as one strict JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..attacks.controls import NullRun
from ..attacks.metrics import Decision, Measures, Point, Rate, Slice
from ..report.facts import plain
from . import words
from .outcome import AttackResult, Inference

SCHEMA = "dpaudit.attack/1"


def document(found: Inference) -> dict[str, Any]:
    """All facts: no NaN, infinity only as text, and nothing that names a record, its membership or a seed."""
    facts = {
        "schema": SCHEMA,
        "name": found.name,
        "headline": words.headline(found),
        "biased_split": True if found.biased else None if found.baseline is None else False,
        "blind_baseline": None if found.baseline is None else asdict(found.baseline),
        "blind_baseline_words": words.baseline(found),
        "shadow_split": _shadow_split(found),
        "records": {"members": found.members, "others": found.others},
        "rule": {"significance": found.significance, "tests": len(found.tests), "words": words.rule(found)},
        "findings": [asdict(test) for test in found.findings],
        "attacks": [_attack(found, result) for result in found.results],
        "not_run": [{"attack": name, "reason": reason} for name, reason in found.refused],
        "prior": found.prior,
        "confidence": found.confidence,
        "assumptions": words.assumptions(found),
        "command": found.command,
        "environment": dict(found.environment),
    }
    out: dict[str, Any] = plain(facts, "attack")
    return out


def _shadow_split(found: Inference) -> dict[str, Any] | None:
    if found.shadow_split is None:
        return None
    return {"p_value": found.shadow_split, "biased": found.biased_shadows, "words": words.shadow_split(found)}


def _attack(found: Inference, result: AttackResult) -> dict[str, Any]:
    attack = result.attack
    return {
        "name": attack.name,
        "title": attack.title,
        "needs": attack.needs,
        "source": attack.source,
        "significant": bool(found.found(attack.name)),
        **_measures(result.measures),
        "null": _null(result.null),
        "tests": [
            {"metric": test.metric, "p_value": test.p_value, "adjusted": test.adjusted}
            for test in found.tests
            if test.attack == attack.name
        ],
        "slices": [_slice(part) for part in result.slices],
    }


def _measures(measures: Measures) -> dict[str, Any]:
    return {
        "auc": asdict(measures.area) | {"interval": "asymptotic (Newcombe 2006, method 5)"},
        "tpr_at_fpr": [_point(point) for point in measures.points],
        "optimistic": {
            "advantage": measures.best_advantage,
            "balanced_accuracy": measures.best_balanced_accuracy,
            "note": "threshold chosen on these records",
        },
        "thresholds": [_decision(d) for d in measures.decisions],
    }


def _slice(part: Slice) -> dict[str, Any]:
    """Of a part, the area alone: everything else of every part would be most of the document."""
    counts = {"column": part.column, "value": part.value, "members": part.members, "others": part.others}
    return counts | {"note": part.note, "auc": None if part.measures is None else asdict(part.measures.area)}


def _decision(decision: Decision) -> dict[str, Any]:
    """Without the threshold itself, which is some record's score."""
    facts = asdict(decision) | {"tpr": _rate(decision.tpr), "fpr": _rate(decision.fpr)}
    del facts["threshold"]
    return facts


def _point(point: Point) -> dict[str, Any]:
    return {
        "fpr": point.fpr,
        "resolvable": point.tpr is not None,
        "tpr": None if point.tpr is None else _rate(point.tpr),
        "false_alarms": point.false_alarms,
        "ppv": None if point.ppv is None else asdict(point.ppv),
        "p_value": point.p_value,
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"value": rate.value, **asdict(rate)}


def _null(null: NullRun) -> dict[str, Any]:
    return asdict(null) | {"membership": "shuffled"}
