"""Every bound as CSV, one record at one level a row; records appear by their place alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from .confirming import RecordResult
from .outcome import Exposure

COLUMNS = (
    "level", "target_epsilon", "claimed_epsilon", "group", "place", "epsilon", "delta", "significance", "perfect",
    "at_claim", "members", "others", "true_positives", "false_positives", "pairs", "pairs_told_apart",
)  # fmt: skip


def bounds_csv(found: Exposure) -> str:
    """All records of both groups at all levels; what was not computed is empty."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows(_rows(found))
    return out.getvalue()


def _rows(found: Exposure) -> Iterator[list[object]]:
    for entry in found.levels:
        for group, records in (("shortlist", entry.exposed), ("drawn-at-random", entry.ordinary)):
            for place, record in enumerate(records, 1):
                yield [entry.level.key, entry.level.target, entry.level.epsilon, group, place, *_values(record)]


def _values(found: RecordResult) -> list[object]:
    bound = found.bound
    return [
        bound.epsilon, bound.delta, bound.significance, bound.perfect, bound.at_claim, found.tpr.trials,
        found.fpr.trials, found.tpr.hits, found.fpr.hits, found.pairs.trials, found.pairs.hits,
    ]  # fmt: skip
