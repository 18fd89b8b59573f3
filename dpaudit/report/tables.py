"""The table of bounds as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "audit epsilon delta significance method null any_mechanism adjacency threshold counts perfect at_claim fpr fnr "
    "notes"
).split()


def bounds_csv(facts: Mapping[str, Any]) -> str:
    """All bounds of a :func:`~dpaudit.report.document`, one a row; what was not computed is empty, infinity is inf."""
    out = io.StringIO()
    rows = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    rows.writeheader()
    rows.writerows(_row(audit["name"], bound) for audit in facts["audits"] for bound in audit["bounds"])
    return out.getvalue()


def _row(name: str, bound: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in bound.items() if key in COLUMNS}
    counts = "; ".join(f"{key}={value:g}" for key, value in bound["counts"].items())
    return {**row, **(bound["rates"] or {}), "audit": name, "counts": counts, "notes": "; ".join(bound["notes"])}
