"""Both pages as HTML files: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..report import wording
from ..report.figures import COLOURS
from ..report.html import environment, inlined
from . import words
from .outcome import Exposure, average
from .showing import Portrait

TEMPLATES = Path(__file__).parent / "templates"


def release_page(found: Exposure, svgs: Mapping[str, str]) -> str:
    """``report.html``: no record, id, row or seed is in it.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.vulnerable.figures.draw` names them.
    """
    return (
        environment(TEMPLATES, words.tight)
        .get_template("report.html.j2")
        .render(
            f=found, task=found.task, words=words, w=wording, figures=inlined(svgs), colours=COLOURS, average=average
        )
    )


def records_page(found: Exposure, portraits: Sequence[Portrait]) -> str:
    """``records.html``: the records themselves, for the eyes of whoever holds the data."""
    return (
        environment(TEMPLATES, words.tight)
        .get_template("records.html.j2")
        .render(f=found, task=found.task, words=words, w=wording, portraits=portraits)
    )
