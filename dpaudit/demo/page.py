"""The demonstration as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..report import wording
from ..report.figures import COLOURS
from ..report.html import inline
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
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: words.tight(value) if type(value) is str else value,
    )  # fmt: skip
    figures = {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}
    return environment.get_template("demo.html.j2").render(
        r=result, generator=GENERATOR, words=words, w=wording, figures=figures, colours=COLOURS, command=command(result)
    )
