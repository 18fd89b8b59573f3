"""What was found: frozen records, from which page, text, figures and JSON are made without computing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Accuracy, Audit, Observations, Verdict
from .confirming import RecordResult
from .task import Level, Task


@dataclass(frozen=True, eq=False)
class LevelResult:
    """One training: what it shows of each record.

    Attributes:
        level: the training and its claim.
        exposed: the shortlist, in the order of the ranking.
        ordinary: records drawn from all with equal chances.
        observed: scores of the tested models on the shortlist, less their thresholds, as the audit saw them.
        audit: the claim judged on the shortlist; without a claim, bounds alone.
        null: the largest bound on the shortlist when the very same is done with coins that no model saw.
        accuracy: on test records.
    """

    level: Level
    exposed: tuple[RecordResult, ...]
    ordinary: tuple[RecordResult, ...]
    observed: Observations
    audit: Audit
    null: float
    accuracy: Accuracy

    @property
    def worst(self) -> RecordResult:
        """The record of the shortlist with the largest bound; of equal ones the one with more pairs told apart."""
        return max(self.exposed, key=lambda r: (r.bound.epsilon, r.pairs.value))


@dataclass(frozen=True, eq=False)
class Exposure:
    """A finished examination.

    Attributes:
        task: what was done.
        ranking: the statistic of every record's loss trace, in the order of the data; higher is more exposed.
        rows: the shortlist, as rows of the data.
        levels: without privacy first, then by falling ε.
        command: what to print as the command that repeats it.
        environment: commit and versions.
    """

    task: Task
    ranking: NDArray[np.float64]
    rows: tuple[int, ...]
    levels: tuple[LevelResult, ...]
    command: str
    environment: Mapping[str, Any]

    @property
    def plain(self) -> LevelResult:
        """The level without privacy."""
        return self.levels[0]

    @property
    def private(self) -> tuple[LevelResult, ...]:
        """The levels with a promise, by falling ε."""
        return self.levels[1:]

    @property
    def violated(self) -> bool:
        """Whether any claim was found to be false."""
        return any(entry.audit.verdict is Verdict.VIOLATED for entry in self.levels)

    @property
    def error_probability(self) -> float:
        """At most the probability that any true claim is called violated."""
        return min(1.0, len(self.private) * self.task.significance)


def average(records: tuple[RecordResult, ...]) -> tuple[float, float]:
    """Means over records: of the lower bounds on ε, and of the pairs told apart."""
    return float(np.mean([r.bound.epsilon for r in records])), float(np.mean([r.pairs.value for r in records]))
