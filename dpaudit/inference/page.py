"""The inference as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..report import wording
from ..report.html import inline
from . import words
from .outcome import Inference

TEMPLATES = Path(__file__).parent / "templates"


def attack_page(found: Inference, svgs: Mapping[str, str]) -> str:
    """``report.html``.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.inference.figures.draw` names them.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: value.replace(" %", "\u00a0%") if type(value) is str else value,
    )  # fmt: skip
    figures = {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}
    return environment.get_template("attack.html.j2").render(f=found, words=words, w=wording, figures=figures)
