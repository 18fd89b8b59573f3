"""The examination as plain text, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..report import wording as w
from . import words
from .confirming import RecordResult
from .outcome import Exposure, LevelResult, average

WIDTH = 100
_COLUMNS = (14, 10, 9, 9, 9, 9, 12, 12, 12)


def render_text(found: Exposure) -> str:
    """The table of levels, the shortlist without and with the least ε, and what it all rests on."""
    return "\n".join(line.rstrip() for line in _lines(found)) + "\n"


def _lines(found: Exposure) -> Iterator[str]:
    yield f"dpaudit attack --vulnerable: {found.task.source.name}"
    yield "=" * WIDTH
    yield from _wrap(words.headline(found))
    yield ""
    yield _row("", "accuracy", "ε shown", "mean of", "ε", "null", "pairs, most", "pairs,", "pairs,")
    yield _row("", "", "at worst", "random", "claimed", "run", "exposed", "shortlist", "random")
    yield "-" * WIDTH
    for entry in found.levels:
        yield _level(entry)
    yield "-" * WIDTH
    yield from _wrap("Lower bounds are rounded down, claims up. Pairs: how often a training with the record scores "
                     "higher than one without it; guessing gets 50 %.")  # fmt: skip
    for entry in (found.plain, found.private[-1]):
        yield ""
        yield f"The shortlist, {entry.level.title}: in the order of the ranking"
        yield _record_row("place", "ε shown", "ceiling", "TPR in percent", "FPR in percent", "pairs in percent")
        for place, record in enumerate(entry.exposed, 1):
            yield _record(place, record)
    yield ""
    for sentence in words.sentences(found):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield "What this rests on"
    for term, meaning in words.rests_on(found):
        yield from _wrap(f"{term}: {meaning}", "  - ")
    yield ""
    yield "What the numbers do not cover"
    for sentence in words.limits(found):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield f"Again: {found.command}"


def _level(entry: LevelResult) -> str:
    (_, exposed), (lower, ordinary) = average(entry.exposed), average(entry.ordinary)
    return _row(
        entry.level.title, w.percent(entry.accuracy.mean), words.shown(entry), w.at_least(lower),
        w.at_most(entry.level.epsilon), w.at_least(entry.null), words.share(entry.worst.pairs), w.percent(exposed),
        w.percent(ordinary),
    )  # fmt: skip


def _row(*cells: str) -> str:
    first, *rest = zip(cells, _COLUMNS, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in rest)


def _record(place: int, found: RecordResult) -> str:
    rates = (f"{100 * r.value:.1f} ({words.interval(r)})" for r in (found.tpr, found.fpr, found.pairs))
    return _record_row(str(place), w.at_least(found.bound.epsilon), w.at_least(found.bound.perfect), *rates)


def _record_row(*cells: str) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, (7, 10, 10, 22, 22, 22), strict=True))


def _wrap(sentence: str, start: str = "") -> list[str]:
    lines = textwrap.wrap(words.tight(sentence), WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    return [line.replace("\u00a0", " ") for line in lines]
