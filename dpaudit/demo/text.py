"""The demonstration as plain text, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..attacks.metrics import Rate
from ..report import wording as w
from . import words
from .facts import command
from .outcome import DemoResult, LevelResult, StudentAudit

WIDTH = 100
_COLUMNS = (12, 9, 10, 19, 19, 8, 9, 14)


def render_text(result: DemoResult) -> str:
    """The findings as a table and a few sentences, 100 columns wide."""
    return "\n".join(line.rstrip() for line in _lines(result)) + "\n"


def _lines(result: DemoResult) -> Iterator[str]:
    yield "dpaudit demo: the unusual student"
    yield "=" * WIDTH
    yield from _wrap(words.headline(result))
    yield ""
    yield _row("setting", "student", "told apart", "TPR (95 %)", "FPR (95 %)", "ε shown", "ε claim", "  verdict")
    yield "-" * WIDTH
    for entry in result.levels:
        yield from _level(entry)
    yield "-" * WIDTH
    yield _row("accuracy", "on fresh students, mean (central 90 % of models)")
    for entry in result.levels:
        yield _row(short(entry), words.accuracy(entry))
    yield ""
    for sentence in words.sentences(result):
        yield from _wrap(sentence, "* ")
    yield ""
    yield f"Again: {command(result)}"


def short(entry: LevelResult) -> str:
    """A level's name for a narrow column."""
    return entry.level.title.replace("DP-SGD, ", "")


def _level(entry: LevelResult) -> Iterator[str]:
    for number, found in enumerate(entry.students):
        yield _row(short(entry) if number == 0 else "", *_numbers(entry, found))


def _numbers(entry: LevelResult, found: StudentAudit) -> tuple[str, ...]:
    return (
        found.student.role,
        words.share(found.pairs),
        _span(found.tpr),
        _span(found.fpr),
        w.at_least(found.audit.lower),
        w.at_most(entry.level.epsilon),
        "  " + w.VERDICTS[found.audit.verdict.value][0],
    )


def _span(rate: Rate) -> str:
    """A rate and its interval, in percent: ``71.1 (69.0–73.1)``."""
    return f"{words.share(rate).removesuffix(' %')} ({100 * rate.low:.1f}–{100 * rate.high:.1f})"


def _row(*cells: str) -> str:
    if len(cells) == 2:
        return f"{cells[0]:<{_COLUMNS[0]}}{cells[1]}"
    out = ""
    for number, (cell, width) in enumerate(zip(cells, _COLUMNS, strict=True)):
        out += f"{cell:<{width}}" if number in (0, 1, len(cells) - 1) else f"{cell:>{width}}"
    return out


def _wrap(sentence: str, start: str = "") -> Iterator[str]:
    indent = " " * len(start)
    for line in textwrap.wrap(words.tight(sentence), WIDTH, initial_indent=start, subsequent_indent=indent):
        yield line.replace("\u00a0", " ")
