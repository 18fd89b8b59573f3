"""The exploration as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..report import wording
from ..report.html import environment, inlined
from . import words
from .outcome import Frontier
from .text import notes

TEMPLATES = Path(__file__).parent / "templates"


def frontier_page(found: Frontier, svgs: Mapping[str, str]) -> str:
    """``frontier.html``.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.frontier.figures.draw` names them.
    """
    return (
        environment(TEMPLATES, words.tight)
        .get_template("frontier.html.j2")
        .render(
            f=found,
            grid=found.grid,
            words=words,
            w=wording,
            figures=inlined(svgs),
            notes=notes,
            chosen={s.point for s in found.suggestions},
        )
    )
