"""What was found: frozen records, from which text, page, figures and JSON are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .costs import Cost
from .grid import Grid, Level

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """Accuracy over models that differ in their seeds alone, on the same test records.

    Attributes:
        mean: share of the test records that a model labels right, on average; None if a model diverged.
        low, high: a t-interval for the expectation over seeds at :data:`CONFIDENCE`, given the data; None if a model
            diverged.
        models: how many there were.
        diverged: how many of them ended without finite outputs.
        records: how many test records there were.
    """

    mean: float | None
    low: float | None
    high: float | None
    models: int
    diverged: int
    records: int


@dataclass(frozen=True)
class Halves:
    """Accuracy of the same models on the two halves of the test records.

    Attributes:
        choosing: on the half that choices are made on: too good where a choice was made by it.
        reporting: on the other half.
    """

    choosing: Measured
    reporting: Measured


@dataclass(frozen=True)
class Point:
    """One noise multiplier with one clip norm.

    Attributes:
        level: the noise multiplier and its ε.
        clip_norm: largest L2 norm of one example's gradient.
        accuracy: of the grid's models at this point.
        best: whether no clip norm did better at this ε, on the choosing half.
        non_dominated: whether no point did as well at a smaller ε, or better at this one, on the choosing half.
    """

    level: Level
    clip_norm: float
    accuracy: Halves
    best: bool
    non_dominated: bool


@dataclass(frozen=True)
class Suggestion:
    """A point that a rule chose, stated before any model was trained, by the accuracies on the choosing half.

    Attributes:
        rule: ``within`` or ``budget``.
        point: its number among :attr:`Frontier.points`.
        fresh: accuracy on the reporting half of further models at this point, whose seeds had no part in the choice.
    """

    rule: str
    point: int
    fresh: Measured


@dataclass(frozen=True, eq=False)
class Frontier:
    """A finished exploration.

    Attributes:
        grid: what was trained.
        points: in the grid's order: ascending in ε, then in the clip norm.
        reference: accuracy without privacy; None if it was not wanted.
        suggestions: by the rule ``within``, then ``budget``; none where no point has an accuracy.
        costs: what the search costs, by each way of counting.
        command: what to print as the command that repeats it.
        environment: commit and versions.
    """

    grid: Grid
    points: tuple[Point, ...]
    reference: Halves | None
    suggestions: tuple[Suggestion, ...]
    costs: tuple[Cost, ...]
    command: str
    environment: Mapping[str, Any]

    @property
    def trainings(self) -> int:
        """Private trainings in all: the grid's and the fresh ones."""
        return self.grid.repeats * (len(self.points) + len({s.point for s in self.suggestions}))
