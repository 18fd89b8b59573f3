"""Writing the release of an exploration: page, JSON, text, CSV and figures; nothing in it names a record or a seed."""

from __future__ import annotations

from pathlib import Path

from ..report.writing import json_text, replace_release, write_figures, write_pages
from .facts import document
from .outcome import Frontier
from .tables import points_csv
from .text import render_text


def write(found: Frontier, out: Path) -> Path:
    """Write ``out/release`` as a whole or not at all.

    Returns:
        The release folder.
    """
    return replace_release(out, lambda folder: _write(found, folder))


def _write(found: Frontier, folder: Path) -> None:
    from ..report.figures import to_svg
    from .figures import draw
    from .page import frontier_page

    drawn = draw(found)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    write_figures(drawn, svgs, folder / "figures")
    pages = {
        "frontier.json": json_text(document(found)),
        "frontier.html": frontier_page(found, svgs),
        "frontier.txt": render_text(found),
        "frontier.csv": points_csv(found),
    }
    write_pages(pages, folder)
