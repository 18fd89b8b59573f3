"""The inference as plain text, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..report import wording as w
from . import words
from .outcome import AttackResult, Inference

WIDTH = 100


def render_text(found: Inference) -> str:
    """The split first, then every attack with its null beside, then what is taken for granted."""
    return "\n".join(line.rstrip() for line in _lines(found)) + "\n"


def _lines(found: Inference) -> Iterator[str]:
    yield f"dpaudit attack: {found.name}, {found.members:,} members and {found.others:,} non-members"
    yield "=" * WIDTH
    yield from _wrap(words.headline(found))
    yield ""
    yield "Without the model"
    yield from _wrap(words.baseline(found), "  ")
    if found.shadow_split is not None:
        yield from _wrap(words.shadow_split(found), "  ")
    yield ""
    yield _columns("attack", "AUC", "(null)", "TPR at 1 %", "(null)", "at 0.1 %", "beyond luck?")
    yield "-" * WIDTH
    for result in found.results:
        yield _summary(found, result)
    yield from _wrap("(null): 95 % of shuffled memberships; –: not resolvable with so few non-members.")
    yield ""
    yield from _wrap(words.rule(found))
    if words.thresholds(found):
        yield from _wrap(words.thresholds(found))
    yield ""
    for result in found.results:
        yield from _attack(found, result)
    if found.refused:
        yield "Not run"
        for name, reason in found.refused:
            yield from _wrap(f"{name}: {reason}", "  - ")
        yield ""
    yield "What is taken for granted"
    for sentence in words.assumptions(found):
        yield from _wrap(sentence, "  - ")
    yield ""
    yield from _wrap(f"Again: {found.command}")


def _summary(found: Inference, result: AttackResult) -> str:
    at = {point.fpr: point for point in result.measures.points}
    luck = {point.fpr: null for point, null in zip(result.measures.points, result.null.tprs, strict=True)}
    auc, null = result.measures.area.value, result.null.auc
    percent, permille = (words.short(at.get(fpr)) for fpr in (0.01, 0.001))
    beside = f"({words.interval(luck[0.01].low, luck[0.01].high)} %)" if 0.01 in luck and percent[0].isdigit() else ""
    found_any = "yes" if found.found(result.attack.name) else "no"
    return _columns(
        result.attack.title, f"{auc:.3f}", f"({null.low:.3f}–{null.high:.3f})", percent, beside, permille, found_any
    )


def _columns(*cells: str) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, (26, 7, 15, 12, 14, 13, 0), strict=True))


def _attack(found: Inference, result: AttackResult) -> Iterator[str]:
    measures, null = result.measures, result.null
    yield from _wrap(f"{result.attack.title}: {words.verdict(found, result)}")
    yield "-" * WIDTH
    yield _row("", "found (95 %)", "null (95 % of shuffles)")
    yield _row("AUC", words.area(measures.area), words.spread(null.auc, percent=False))
    for point, luck in zip(measures.points, null.tprs, strict=True):
        beside = words.spread(luck) if point.tpr is not None else ""
        yield _row(f"TPR at FPR {words.fpr(point.fpr)}", words.point(point), beside)
        if point.ppv is not None:
            yield _row("  PPV there", words.share(point.ppv), "")
    yield _row("best advantage", w.percent(measures.best_advantage), words.spread(null.best_advantage))
    yield from _wrap(f"best advantage: {words.optimistic(measures)}", "  ")
    for decision, luck_there in zip(measures.decisions, null.decisions, strict=True):
        yield from _wrap(words.decision(decision, luck_there), "  ")
    for part in result.slices:
        counts = f"{part.members:,} members, {part.others:,} others"
        yield _row(f"AUC, {part.column} {part.value}"[:30], words.part(part), counts)
    yield ""


def _row(name: str, value: str, null: str) -> str:
    return f"  {name:<30}{value:<34}{null}"


def _wrap(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) or [first]
