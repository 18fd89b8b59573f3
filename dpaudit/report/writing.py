"""Writing a release folder: everything aside, then one rename."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import RunResult
from .facts import document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEW, OLD = ".release.new", ".release.old"


def write_release(result: RunResult, folder: Path) -> Path:
    """Write ``folder/release``: the report as HTML, JSON and text, the bounds as CSV, the figures as SVG and PNG.

    Returns:
        The release folder.
    """
    return replace_release(folder, lambda new: _write(result, new))


def replace_release(folder: Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a folder that then becomes ``folder/release``.

    All files are written to a folder aside, which then takes the name: a failure leaves an earlier release as it was,
    and nothing half-written. What a kill between the two renames leaves behind is put right by the next call.

    Returns:
        The release folder.
    """
    release, new, old = folder / "release", folder / NEW, folder / OLD
    folder.mkdir(parents=True, exist_ok=True)
    if old.exists() and not release.exists():
        old.rename(release)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        write(new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if release.exists():
        release.rename(old)
    new.rename(release)
    shutil.rmtree(old, ignore_errors=True)
    return release


def _write(result: RunResult, folder: Path) -> None:
    from .figures import draw, to_svg
    from .html import html_page
    from .tables import bounds_csv
    from .text import text_page

    facts = document(result)
    drawn = draw(result, facts)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    write_figures(drawn, svgs, folder / "figures")
    pages = {
        "report.json": json_text(facts),
        "report.html": html_page(facts, svgs),
        "report.txt": text_page(facts),
        "bounds.csv": bounds_csv(facts),
    }
    write_pages(pages, folder)


def write_pages(pages: Mapping[str, str], folder: Path) -> None:
    """Texts by file name, with the same bytes on every system."""
    for name, content in pages.items():
        (folder / name).write_text(content, encoding="utf-8", newline="\n")


def json_text(facts: Mapping[str, Any]) -> str:
    """Strict JSON: a NaN or an infinity that is not yet text raises."""
    return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_figures(drawn: Mapping[str, Figure], svgs: Mapping[str, str], folder: Path) -> None:
    """Every figure as SVG and as PNG, into a new folder."""
    from .figures import to_png

    folder.mkdir(parents=True)
    for name, figure in drawn.items():
        (folder / f"{name}.svg").write_text(svgs[name], encoding="utf-8", newline="\n")
        (folder / f"{name}.png").write_bytes(to_png(figure))
