"""The demonstration as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..report import wording
from ..report.figures import COLOURS
from ..report.html import environment, inlined
from . import words
from .classroom import GENERATOR
from .facts import command
from .outcome import DemoResult

TEMPLATES = Path(__file__).parent / "templates"


def demo_page(result: DemoResult, svgs: Mapping[str, str]) -> str:
    """``demo.html``.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.demo.figures.draw` names them.
    """
    return (
        environment(TEMPLATES, words.tight)
        .get_template("demo.html.j2")
        .render(
            r=result,
            generator=GENERATOR,
            words=words,
            w=wording,
            figures=inlined(svgs),
            colours=COLOURS,
            command=command(result),
        )
    )
