"""The examination as one strict JSON document, for release: no record, id, row or seed is in it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ..attacks.metrics import Rate
from . import words
from .confirming import RecordResult
from .outcome import Exposure, LevelResult, average
from .task import CHECKPOINTS, SIGNAL, STATISTIC, settings_of

SCHEMA = "dpaudit.vulnerable/1"


def document(found: Exposure) -> dict[str, Any]:
    """All facts; an infinite ε is the text "inf", what was not computed is None, and nothing is NaN.

    Records appear by their place on the shortlist alone.
    """
    task = found.task
    return {
        "schema": SCHEMA,
        "name": task.source.name,
        "command": found.command,
        "headline": words.headline(found),
        "sentences": list(words.sentences(found)),
        "violated": found.violated,
        "delta": task.delta,
        "significance": task.significance,
        "significance_each": task.significance / task.shortlist,
        "error_probability": found.error_probability,
        "threat_model": "black-box",
        "data": {
            "name": task.data.name,
            "records": len(task.data),
            "test_records": found.plain.accuracy.test_records,
            "features": task.data.features,
            "classes": task.data.classes,
            "scaling": task.source.scaling or None,
        },
        "ranking": {
            "statistic": STATISTIC,
            "checkpoints": CHECKPOINTS,
            "runs": 1,
            "source": words.RANKED_BY,
            "trainer": settings_of(found.plain.level.trainer),
        },
        "shortlist": task.shortlist,
        "drawn_at_random": task.shortlist,
        "models": {"each_level": task.models, "set_aside": task.set_aside, "tested": task.tested},
        "attack": {"name": "lira", "signal": SIGNAL, "words": words.ATTACK},
        "levels": [_level(entry) for entry in found.levels],
        "limits": list(words.limits(found)),
        "environment": dict(found.environment),
    }


def _level(entry: LevelResult) -> dict[str, Any]:
    level, audit = entry.level, entry.audit
    shortlist, ordinary = average(entry.exposed), average(entry.ordinary)
    return {
        "key": level.key,
        "target_epsilon": level.target,
        "trainer": settings_of(level.trainer),
        "claim": None if level.claim is None else level.claim.document(),
        "adjacency": level.adjacency,
        "lower": _number(audit.lower),
        "lower_if_recipe": _number(audit.lower_if_recipe),
        "upper": _number(audit.upper),
        "p_value": audit.p_value,
        "power": audit.power,
        "verdict": audit.verdict.value,
        "reason": audit.reason,
        "null_lower": _number(entry.null),
        "accuracy": asdict(entry.accuracy),
        "mean_lower": {"shortlist": shortlist[0], "drawn_at_random": ordinary[0]},
        "mean_pairs_told_apart": {"shortlist": shortlist[1], "drawn_at_random": ordinary[1]},
        "shortlist": [_record(place, r) for place, r in enumerate(entry.exposed, 1)],
        "drawn_at_random": [_record(place, r) for place, r in enumerate(entry.ordinary, 1)],
    }


def _record(place: int, found: RecordResult) -> dict[str, Any]:
    bound = found.bound
    return {
        "place": place,
        "tpr": _rate(found.tpr),
        "fpr": _rate(found.fpr),
        "pairs_told_apart": _rate(found.pairs),
        "bound": {
            "epsilon": _number(bound.epsilon),
            "delta": bound.delta,
            "significance": bound.significance,
            "method": bound.method,
            "null": bound.null,
            "adjacency": bound.adjacency,
            "threshold": bound.threshold,
            "counts": {name: int(value) for name, value in bound.counts.items()},
            "perfect": _number(bound.perfect),
            "at_claim": _number(bound.at_claim),
        },
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"value": rate.value, "low": rate.low, "high": rate.high, "hits": rate.hits, "trials": rate.trials}


def _number(value: float | None) -> float | str | None:
    """A number as strict JSON can hold it."""
    return None if value is None else "inf" if math.isinf(value) else float(value)
