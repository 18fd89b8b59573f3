"""The facts of a run as plain JSON values: the schema ``dpaudit.report/1``. Drawing starts from these."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ..errors import InputError
from ..records import Audit, Bound, Finding, RunResult, TrainerAudit
from . import wording
from .evidence import rates

SCHEMA = "dpaudit.report/1"


def document(result: RunResult) -> dict[str, Any]:
    """The content of ``report.json``: every fact that a report shows, none that identifies a record.

    All values are JSON's own. An infinite number is the string ``"inf"``; keys always come in the same order. Settings
    that are named a seed are left out, and no score, canary id or run id enters.

    Raises:
        InputError: a number is NaN, or a value is of a kind that JSON can't hold.
    """
    facts = {
        "schema": SCHEMA,
        "name": result.name,
        "verdict": result.verdict,
        "as_expected": result.as_expected,
        "headline": "",
        "error_probability": result.error_probability,
        "audits": [_audit(entry) for entry in result.audits],
        "data": result.data,
        "canaries": [asdict(family) for family in result.canaries],
        "runs": result.runs,
        "shadows": result.shadows,
        "not_tested": result.not_tested,
        "environment": _environment(result.environment),
        "command": result.command,
    }
    out: dict[str, Any] = plain(facts)
    out["headline"] = wording.headline(out["audits"])
    return out


def plain(value: Any, where: str = "report") -> Any:
    """``value`` in JSON's own types; infinity becomes ``"inf"``, and whatever is named a seed is dropped.

    Raises:
        InputError: NaN, or a kind of value that JSON can't hold; the message says where.

    >>> plain({"epsilon": float("inf"), "counts": (np.int64(3), None), "seed": 17})
    {'epsilon': 'inf', 'counts': [3, None]}
    """
    if isinstance(value, enum.Enum):
        return plain(value.value, where)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), where)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return _finite(value, where)
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}.{k}") for k, v in value.items() if "seed" not in str(k).lower()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise InputError(f"{where} must be a number, text, list or mapping, got {type(value).__name__}")


def _finite(value: float, where: str) -> float | str:
    if math.isnan(value):
        raise InputError(f"{where} must be a number, got NaN")
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    versions = environment.get("versions", {})
    return {
        "commit": environment.get("commit"),
        "dirty": environment.get("dirty"),
        "versions": dict(sorted(versions.items())),
    }


def judged(audit: Audit) -> dict[str, Any]:
    """One judgement with everything that it rests on; what ``report.json`` says of an audit apart from its trainer."""
    return {
        "name": audit.name,
        "threat_model": audit.design.threat_model,
        "design": asdict(audit.design),
        "claim": None if audit.claim is None else audit.claim.summary(audit.delta),
        "bounds": [stated(b) for b in audit.bounds],
        "findings": [_finding(f) for f in audit.findings],
        **_judgement(audit),
        "notes": audit.notes,
    }


def _audit(entry: TrainerAudit) -> dict[str, Any]:
    return {
        "name": entry.audit.name,
        "trainer": entry.trainer,
        **judged(entry.audit),
        "rates": [rates(family, obs) for family, obs in entry.observations.items()],
        "expect": entry.expect,
        "as_expected": entry.as_expected,
        "accuracy": asdict(entry.accuracy),
    }


def _judgement(audit: Audit) -> dict[str, Any]:
    names = "delta significance error_probability lower lower_if_recipe upper p_value power verdict reason"
    return {name: getattr(audit, name) for name in names.split()}


def stated(bound: Bound) -> dict[str, Any]:
    """A bound with everything that it says of itself."""
    return {
        "epsilon": bound.epsilon,
        "delta": bound.delta,
        "significance": bound.significance,
        "method": bound.method,
        "null": bound.null,
        "kind": bound.kind,
        "any_mechanism": bound.any_mechanism,
        "adjacency": bound.adjacency,
        "threshold": bound.threshold,
        "counts": dict(bound.counts),
        "perfect": bound.perfect,
        "at_claim": bound.at_claim,
        "rates": _pair(bound.rates),
        "notes": bound.notes,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "method": finding.method,
        "canaries": finding.canaries,
        "threshold": finding.threshold,
        "weight": finding.weight,
        "p_value": finding.p_value,
        "corrected_p_value": min(finding.p_value / finding.weight, 1.0),
        "power": finding.power,
        "rates": _pair(finding.rates),
        "curve_fnr": finding.curve_fnr,
    }


def _pair(rates: tuple[float, float] | None) -> dict[str, float] | None:
    return None if rates is None else {"fpr": rates[0], "fnr": rates[1]}
