"""The exploration as plain text, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..report import wording as w
from . import words
from .outcome import Frontier, Halves, Point

WIDTH = 100
_COLUMNS = (9, 9, 9, 22, 22)


def render_text(found: Frontier) -> str:
    """The table of the grid, the suggestion and what it costs."""
    return "\n".join(line.rstrip() for line in _lines(found)) + "\n"


def notes(found: Frontier, number: int) -> str:
    """What there is to say of a point beside its numbers; what is suggested is on the frontier."""
    point = found.points[number]
    said = ["suggested" if s.rule == "within" else "for the budget" for s in found.suggestions if s.point == number]
    if point.best and not said:
        said.append("frontier" if point.non_dominated else "best at this ε")
    return ", ".join(said)


def _lines(found: Frontier) -> Iterator[str]:
    grid = found.grid
    yield f"dpaudit frontier: {grid.spec.name}, {grid.trainer}"
    yield "=" * WIDTH
    yield from _wrap(words.headline(found))
    yield ""
    yield f"Test accuracy in percent over {grid.repeats} repeats (95 %); ε at {words.at_delta(grid)}"
    yield _row("ε", "noise", "clip", "choosing half", "reporting half", "")
    yield "-" * WIDTH
    for number, point in enumerate(found.points):
        if number % len(grid.clip_norms) == 0 and number:
            yield ""
        yield _row(*_cells(point), notes(found, number))
    if found.reference is not None and grid.reference is not None:
        yield "-" * WIDTH
        yield _row("∞", "none", "none", *_accuracies(found.reference), f"{grid.reference[0]}: no privacy")
    yield "-" * WIDTH
    yield from _wrap(words.intervals(found))
    yield ""
    yield "The suggestion, by rules that were fixed before training"
    for sentence in (*words.rules(found), *(words.suggestion(found, s) for s in found.suggestions)):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield "What choosing costs"
    for sentence in (*(words.cost(found, c) for c in found.costs), *words.FREE):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield "What the numbers do not cover"
    for sentence in words.limits(found):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield f"Again: {found.command}"


def _cells(point: Point) -> tuple[str, ...]:
    noise, clip = words.number(point.level.noise_multiplier), words.number(point.clip_norm)
    return w.at_most(point.level.epsilon), noise, clip, *_accuracies(point.accuracy)


def _accuracies(halves: Halves) -> tuple[str, str]:
    choosing, reporting = (
        f"{words.percent(m).removesuffix(' %')} ({words.interval(m)})" for m in (halves.choosing, halves.reporting)
    )
    return choosing, reporting


def _row(*cells: str) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells[:-1], _COLUMNS, strict=True)) + f"  {cells[-1]}"


def _wrap(sentence: str, start: str = "") -> list[str]:
    lines = textwrap.wrap(words.tight(sentence), WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    return [line.replace("\u00a0", " ") for line in lines]
