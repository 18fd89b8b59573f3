"""The exploration as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..report import wording
from ..report.html import inline
from . import words
from .outcome import Frontier
from .text import notes

TEMPLATES = Path(__file__).parent / "templates"


def frontier_page(found: Frontier, svgs: Mapping[str, str]) -> str:
    """``frontier.html``.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.frontier.figures.draw` names them.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: words.tight(value) if type(value) is str else value,
    )  # fmt: skip
    figures = {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}
    return environment.get_template("frontier.html.j2").render(
        f=found,
        grid=found.grid,
        words=words,
        w=wording,
        figures=figures,
        notes=notes,
        chosen={s.point for s in found.suggestions},
    )
