"""The sentences of an exploration, the same in text, page and JSON."""

from __future__ import annotations

import math

from ..report import wording as w
from .costs import Cost
from .grid import Grid
from .outcome import Frontier, Measured, Point, Suggestion

FREE = (
    "Settings that were fixed before anybody looked at these records cost nothing beyond the one training.",
    "Nor do settings that were chosen by such a grid on public data, or on records that the claim is not about.",
)

_WAYS = {
    "known-beforehand": "one training whose settings did not come from these records",
    "whole-search": "everything private that was trained here, by composition",
    "random-stopping": "another search, not the one made here, in which the number of trainings is drawn at random",
}


def tight(sentence: str) -> str:
    """The sentence with spaces that don't break between a number and its sign.

    >>> tight("ε ≤ 1 at 5 %").count("\u00a0")
    3
    """
    return sentence.replace(" %", "\u00a0%").replace("ε ≤ ", "ε\u00a0≤\u00a0")


def percent(measured: Measured) -> str:
    """A mean accuracy; a dash where a model diverged."""
    return w.percent(measured.mean)


def interval(measured: Measured) -> str:
    """The interval in percent, without a sign.

    >>> interval(Measured(0.9, 0.871, 0.93, 5, 0, 200))
    '87.1–93.0'
    """
    if measured.low is None or measured.high is None:
        return f"{measured.diverged} of {measured.models} diverged"
    return f"{100 * measured.low:.1f}–{100 * measured.high:.1f}"


def number(value: float) -> str:
    """A setting of the grid, to at most four digits.

    >>> number(1.224123), number(0.1), number(12.0)
    ('1.224', '0.1', '12')
    """
    return f"{value:.4g}"


def at_delta(grid: Grid) -> str:
    """What every ε of the exploration is meant at."""
    return f"δ = {w.delta(grid.delta)}, {grid.levels[0].claim.adjacency}"


def setting(point: Point) -> str:
    """A point's settings and its ε."""
    return (
        f"noise multiplier {number(point.level.noise_multiplier)} with clip norm {number(point.clip_norm)} "
        f"(ε ≤ {w.at_most(point.level.epsilon)})"
    )


def headline(found: Frontier) -> str:
    """What to read if only one sentence is read."""
    if not found.suggestions:
        return "No suggestion: at every point of the grid a model diverged."
    first = found.suggestions[0]
    said = f"Suggested: {setting(found.points[first.point])}, accuracy {percent(first.fresh)}"
    if found.reference is not None and found.reference.reporting.mean is not None:
        said += f", against {percent(found.reference.reporting)} without privacy"
    whole = next(c for c in found.costs if c.key == "whole-search")
    if whole.epsilon is not None:
        said += f"; the search that found it spent ε ≤ {w.at_most(whole.epsilon)} if these records are private"
    return said + "."


def rules(found: Frontier) -> list[str]:
    """How the suggestions are made; fixed before anything was trained."""
    grid = found.grid
    points = f"{100 * grid.within:.3g} percentage point{'s' * (grid.within != 0.01)}"
    said = [f"Within: the smallest ε whose accuracy, with its best clip norm, is at most {points} below the best one."]
    if grid.budget is not None:
        said.append(f"Budget: the best accuracy at ε ≤ {grid.budget:g}.")
    return said


def suggestion(found: Frontier, chosen: Suggestion) -> str:
    """One suggestion with its accuracies: where it was chosen, and where it was not."""
    point = found.points[chosen.point]
    halves = point.accuracy
    return (
        f"{chosen.rule.capitalize()}: {setting(point)}. {chosen.fresh.models} fresh trainings label "
        f"{_of(chosen.fresh)} right on test records that had no part in the choice; the trainings that it was chosen "
        f"by label {_of(halves.reporting)} of the same records right, and {_of(halves.choosing)} of those it was "
        "chosen on."
    )


def _of(measured: Measured) -> str:
    if measured.mean is None:
        return f"nothing ({interval(measured)})"
    return f"{w.percent(measured.mean)} ({interval(measured)})"


def cost(found: Frontier, counted: Cost) -> str:
    """One way of counting, in a sentence."""
    grid = found.grid
    if counted.epsilon is None:
        return f"Not computed: {_WAYS[counted.key]} ({counted.note})."
    spent = f"ε ≤ {w.at_most(counted.epsilon)} at {at_delta(grid)}: {_WAYS[counted.key]}"
    many, fresh = len(grid.points) * grid.repeats, found.trainings - len(grid.points) * grid.repeats
    match counted.key:
        case "whole-search":
            return (
                f"{spent}. {len(grid.levels)} noise multipliers × {len(grid.clip_norms)} clip norms × {grid.repeats} "
                f"repeats are {many} trainings, and {fresh} more were fresh. This is what showing this page spends; a "
                "fresh model may be kept for it."
            )
        case "random-stopping":
            return (
                f"{spent}, {counted.trainings:g} on average, and every candidate counts as the one with the least "
                f"noise, ε ≤ {w.at_most(grid.levels[-1].epsilon)} ({counted.source}). Its conditions: {counted.note}."
            )
        case _:
            return f"{spent}."


def intervals(found: Frontier) -> str:
    """What the intervals are about, and the binomial error of the test records."""
    grid = found.grid
    records = grid.test_records - grid.choosing.stop
    mean = next((s.fresh.mean for s in found.suggestions if s.fresh.mean is not None), 0.5)
    luck = 196 * math.sqrt(mean * (1 - mean) / records)
    return (
        f"Intervals: Student's t at 95 % over {grid.repeats} trainings that differ in their seeds, given the data: "
        f"other training or test records would move all accuracies. They are of one point each, not of all together. "
        f"Choices were made on {grid.choosing.stop:,} test records, reports on {records:,} others; the luck of these "
        f"{records:,} alone moves an accuracy of {w.percent(mean)} by up to {luck:.1f} percentage points (95 %)."
    )


def limits(found: Frontier) -> list[str]:
    """What the numbers do not cover."""
    said = [
        "The claims cover the training records. Accuracies are computed on test records as they are: nothing here "
        "protects those.",
        "Learning rate, steps and sampling rate stayed as they are in the spec. A small clip norm also means short "
        "steps, and may do better at a larger learning rate.",
        "A best accuracy is too good on the half that it was chosen on; that of fresh trainings on the other half is "
        "not.",
    ]
    if found.reference is not None:
        said.append(
            "The reference is trained without any privacy and is in no sum: if these records are private, leave it out "
            "(--no-reference) of what is shown."
        )
    return said
