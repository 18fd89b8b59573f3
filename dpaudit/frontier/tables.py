"""The grid as CSV, one point a row; what was not computed is empty."""

from __future__ import annotations

import csv
import io

from .outcome import Frontier, Measured

_MEASURES = [f"{half}_{part}" for half in ("choosing", "reporting") for part in ("mean", "low", "high")]
COLUMNS = (
    "noise_multiplier", "target_epsilon", "epsilon", "delta", "clip_norm", "models", "diverged", *_MEASURES,
    "best_at_epsilon", "non_dominated", "suggested",
)  # fmt: skip


def points_csv(found: Frontier) -> str:
    """All points in the grid's order."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for number, point in enumerate(found.points):
        halves, rules = point.accuracy, [s.rule for s in found.suggestions if s.point == number]
        rows.writerow(
            [
                point.level.noise_multiplier, point.level.target, point.level.epsilon, found.grid.delta,
                point.clip_norm, halves.choosing.models, halves.choosing.diverged, *_three(halves.choosing),
                *_three(halves.reporting), int(point.best), int(point.non_dominated), " ".join(rules),
            ]
        )  # fmt: skip
    return out.getvalue()


def _three(measured: Measured) -> tuple[float | None, float | None, float | None]:
    return measured.mean, measured.low, measured.high
