"""Writing the demonstration: each file aside and renamed, so that what is there is whole."""

from __future__ import annotations

import json
from pathlib import Path

from ..store import write_aside
from .facts import document
from .outcome import DemoResult
from .page import demo_page
from .text import render_text


def write(result: DemoResult, out: str | Path) -> Path:
    """Write ``demo.html``, ``demo.json``, ``demo.txt`` and ``figures/`` (SVG and PNG) into the folder ``out``.

    The page comes last, and holds its figures itself. The same result gives the same bytes.

    Returns:
        The page.
    """
    from ..report.figures import to_png, to_svg
    from .figures import draw

    folder = Path(out)
    drawn = draw(result)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    facts = json.dumps(document(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    page = demo_page(result, svgs)
    for name, figure in drawn.items():
        write_aside(folder / "figures" / f"{name}.svg", svgs[name].encode())
        write_aside(folder / "figures" / f"{name}.png", to_png(figure))
    write_aside(folder / "demo.json", facts.encode())
    write_aside(folder / "demo.txt", render_text(result).encode())
    write_aside(folder / "demo.html", page.encode())
    return folder / "demo.html"
