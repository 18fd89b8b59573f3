"""Writing an examination: what may be released, and apart from it the records themselves and every score."""

from __future__ import annotations

from pathlib import Path

from ..data.scores import tensor_bytes
from ..report.writing import json_text, replace_release, write_figures, write_pages
from ..store import RETAINED, write_aside
from .facts import document
from .outcome import Exposure, LevelResult
from .page import records_page, release_page
from .showing import gallery, portraits
from .tables import bounds_csv
from .text import render_text


def write(found: Exposure, out: Path) -> Path:
    """Write ``out/release`` as a whole or not at all, and what belongs to ``out/retained``.

    Released: ``report.html``, ``report.json``, ``report.txt``, ``bounds.csv`` and ``figures/``, in which no record, id,
    row or seed appears. Retained: ``records.html`` and ``records.png``, which show the records of the shortlist, and
    per level and record the scores of all tested models as ``scores/LEVEL.safetensors``.

    Returns:
        The release folder.
    """
    _retain(found, out / RETAINED)
    return replace_release(out, lambda folder: _write(found, folder))


def _write(found: Exposure, folder: Path) -> None:
    from ..report.figures import to_svg
    from .figures import draw

    drawn = draw(found)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    write_figures(drawn, svgs, folder / "figures")
    pages = {
        "report.json": json_text(document(found)),
        "report.html": release_page(found, svgs),
        "report.txt": render_text(found),
        "bounds.csv": bounds_csv(found),
    }
    write_pages(pages, folder)


def _retain(found: Exposure, folder: Path) -> None:
    from ..report.figures import to_png

    shown = portraits(found)
    write_aside(folder / "records.html", records_page(found, shown).encode())
    write_aside(folder / "records.png", to_png(gallery(found, shown)))
    for entry in found.levels:
        write_aside(folder / "scores" / f"{entry.level.key}.safetensors", _scores(entry))


def _scores(entry: LevelResult) -> bytes:
    """Scores less their thresholds, shape ``(tested models, shortlist)``, which ``dpaudit bound`` can read."""
    observed = entry.observed
    facts = {"records": list(observed.canaries or ()), "level": entry.level.key}
    return tensor_bytes({"scores": observed.scores, "member": observed.member}, facts)
