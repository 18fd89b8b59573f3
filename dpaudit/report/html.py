"""The report as one HTML file: inline style, inline figures, no script, nothing from outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
    figures = inlined(svgs)
    names = [file_name(i, audit["name"]) for i, audit in enumerate(facts["audits"])]
    return _environment().get_template("report.html.j2").render(facts=facts, figures=figures, names=names)


def environment(templates: Path, shown: Callable[[str], str] = str) -> Environment:
    """Jinja2 as all pages use it: everything escaped, a name that is missing is an error.

    Args:
        templates: the folder of the templates.
        shown: what to do with every text before it is put into the page.
    """
    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )


def inlined(svgs: Mapping[str, str]) -> dict[str, Markup]:
    """Figures as elements of one page, by name."""
    return {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}


def inline(svg: str, prefix: str) -> Markup:
    """An SVG file's text as an element of a page: no prolog, no style that leaks, ids made unique by ``prefix``."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    return Markup(body)


def _environment() -> Environment:
    ours = environment(TEMPLATES)
    for name in "at_least at_most p_value percent confidence counts settings leading delta".split():
        ours.filters[name] = getattr(wording, name)
    ours.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    ours.globals.update(w=wording, colours=COLOURS)
    return ours
