"""The inference as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..report import wording
from ..report.html import environment, inlined
from . import words
from .outcome import Inference

TEMPLATES = Path(__file__).parent / "templates"


def attack_page(found: Inference, svgs: Mapping[str, str]) -> str:
    """``report.html``.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.inference.figures.draw` names them.
    """
    return (
        environment(TEMPLATES, _tight)
        .get_template("attack.html.j2")
        .render(f=found, words=words, w=wording, figures=inlined(svgs))
    )


def _tight(text: str) -> str:
    """No line may end between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")
