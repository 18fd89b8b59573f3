"""The report as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import wording
from .figures import COLOURS, file_name

TEMPLATES = Path(__file__).parent / "templates"


def html_page(facts: Mapping[str, Any], svgs: Mapping[str, str]) -> str:
    """``report.html`` of a :func:`~dpaudit.report.document`.

    Args:
        svgs: SVG text of the figures by name, as :func:`~dpaudit.report.figures.draw` names them.
    """
    figures = {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}
    names = [file_name(i, audit["name"]) for i, audit in enumerate(facts["audits"])]
    return _environment().get_template("report.html.j2").render(facts=facts, figures=figures, names=names)


def inline(svg: str, prefix: str) -> Markup:
    """An SVG file's text as an element of a page: no prolog, no style that leaks, ids made unique by ``prefix``."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    return Markup(body)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in "at_least at_most p_value percent confidence counts settings leading delta".split():
        environment.filters[name] = getattr(wording, name)
    environment.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    environment.globals.update(w=wording, colours=COLOURS)
    return environment
