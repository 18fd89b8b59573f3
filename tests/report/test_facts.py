"""report.json: its schema, its numbers, what it leaves out."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.records import RunResult, Verdict
from dpaudit.report import document
from dpaudit.report.facts import plain
from dpaudit.report.tables import COLUMNS, bounds_csv
from dpaudit.report.writing import json_text

NUMBER = (int, float)
NONE = type(None)
RUN = {
    "schema": str, "name": str, "verdict": str, "as_expected": bool, "headline": str, "error_probability": NUMBER,
    "audits": list, "data": dict, "canaries": list, "runs": int, "shadows": int, "not_tested": list,
    "environment": dict, "command": str,
}  # fmt: skip
AUDIT = {
    "name": str, "trainer": dict, "threat_model": str, "design": dict, "claim": (dict, NONE), "bounds": list,
    "findings": list, "delta": NUMBER, "significance": NUMBER, "error_probability": NUMBER, "lower": NUMBER,
    "lower_if_recipe": (*NUMBER, NONE), "upper": (*NUMBER, NONE), "p_value": (*NUMBER, NONE), "power": (*NUMBER, NONE),
    "verdict": str, "reason": str, "notes": list, "rates": list, "expect": (str, NONE), "as_expected": bool,
    "accuracy": dict,
}  # fmt: skip
BOUND = {
    "epsilon": NUMBER, "delta": NUMBER, "significance": NUMBER, "method": str, "null": str, "kind": str,
    "any_mechanism": bool,
    "adjacency": str, "threshold": str, "counts": dict, "perfect": NUMBER, "at_claim": (*NUMBER, NONE),
    "rates": (dict, NONE), "notes": list,
}  # fmt: skip
CLAIM = {"kind": str, "epsilon": NUMBER, "delta": NUMBER, "adjacency": str, "settings": dict}
FINDING = {
    "method": str, "canaries": str, "threshold": str, "weight": NUMBER, "p_value": NUMBER,
    "corrected_p_value": NUMBER, "power": NUMBER, "rates": dict, "curve_fnr": NUMBER,
}  # fmt: skip


def strict(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"not strict JSON: {token}")

    return json.loads(text, parse_constant=refuse)


def fits(value: dict[str, Any], shape: dict[str, Any]) -> None:
    assert list(value) == list(shape), "the keys and their order"
    for key, kind in shape.items():
        assert isinstance(value[key], kind), (key, value[key])


def test_schema(release: Path) -> None:
    facts = strict((release / "report.json").read_text(encoding="utf-8"))
    fits(facts, RUN)
    assert facts["schema"] == "dpaudit.report/1"
    assert [a["verdict"] for a in facts["audits"]] == ["no_claim", "consistent", "violated"]
    for audit in facts["audits"]:
        fits(audit, AUDIT)
        for bound in audit["bounds"]:
            fits(bound, BOUND)
        for finding in audit["findings"]:
            fits(finding, FINDING)
        if audit["claim"]:
            fits(audit["claim"], CLAIM)
    assert set(facts["environment"]) == {"commit", "dirty", "versions"}
    assert list(facts["environment"]["versions"]) == sorted(facts["environment"]["versions"])


def test_numbers_are_those_of_the_records(result: RunResult, facts: dict[str, Any]) -> None:
    assert facts["verdict"] == result.verdict.value
    for entry, audit in zip(result.audits, facts["audits"], strict=True):
        assert audit["lower"] == entry.audit.lower
        assert audit["upper"] == entry.audit.upper
        assert audit["p_value"] == entry.audit.p_value
        assert [b["epsilon"] for b in audit["bounds"]] == [b.epsilon for b in entry.audit.bounds]
        for f, finding in zip(audit["findings"], entry.audit.findings, strict=True):
            assert f["corrected_p_value"] == min(finding.p_value / finding.weight, 1)


def test_infinity_is_text_and_nan_an_error(result: RunResult) -> None:
    first = result.audits[0]
    endless = replace(first.audit, upper=math.inf, bounds=(replace(first.audit.bounds[0], perfect=math.inf),))
    facts = document(replace(result, audits=(replace(first, audit=endless),)))
    again = strict(json_text(facts))
    assert again["audits"][0]["upper"] == "inf"
    assert again["audits"][0]["bounds"][0]["perfect"] == "inf"
    with pytest.raises(InputError, match=r"report\.audits\[0\]\.lower must be a number, got NaN"):
        document(replace(result, audits=(replace(first, audit=replace(first.audit, lower=math.nan)),)))
    with pytest.raises(ValueError):
        json_text({"x": math.nan})


def test_plain_values() -> None:
    value = {"a": np.float64(1.5), "b": np.bool_(True), "c": np.arange(2), "d": Verdict.VIOLATED, "noise_Seed": 3}
    assert plain(value) == {"a": 1.5, "b": True, "c": [0, 1], "d": "violated"}
    assert plain(-math.inf) == "-inf"
    with pytest.raises(InputError, match="got object"):
        plain({"x": object()})


def test_bounds_csv(facts: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(bounds_csv(facts))))
    bounds = [(a["name"], b) for a in facts["audits"] for b in a["bounds"]]
    assert list(rows[0]) == COLUMNS
    assert len(rows) == len(bounds)
    for row, (name, bound) in zip(rows, bounds, strict=True):
        assert row["audit"] == name
        assert float(row["epsilon"]) == bound["epsilon"]
        assert row["at_claim"] == ("" if bound["at_claim"] is None else str(bound["at_claim"]))
        assert float(row["fpr"]) == bound["rates"]["fpr"]
        assert f"coins={bound['counts']['coins']}" in row["counts"]
