"""Writing an inference: a release that names no record, and retained scores that do."""

from __future__ import annotations

from pathlib import Path

from ..data.scores import tensor_bytes
from ..report.writing import json_text, replace_release, write_figures, write_pages
from ..store import RETAINED, write_aside
from .facts import document
from .outcome import Inference
from .text import render_text

SCORES_SCHEMA = "dpaudit.scores/1"


def write(found: Inference, out: Path) -> Path:
    """Write ``out/retained/scores-ATTACK.safetensors`` and ``out/release`` as a whole or not at all.

    The scores have the arrays ``scores`` and ``member``, shape ``(records,)``, as ``dpaudit bound`` reads them, the
    records' ``rows`` in the source, and their ids in the metadata.

    Returns:
        The release folder.
    """
    for result in found.results:
        ids = None if found.ids is None else [found.ids[row] for row in result.rows]
        meta = {"schema": SCORES_SCHEMA, "attack": result.attack.name, "ids": ids}
        arrays = {"scores": result.scores, "member": result.member, "rows": result.rows}
        write_aside(out / RETAINED / f"scores-{result.attack.name}.safetensors", tensor_bytes(arrays, meta))
    return replace_release(out, lambda folder: _write(found, folder))


def _write(found: Inference, folder: Path) -> None:
    from ..report.figures import to_svg
    from .figures import draw
    from .page import attack_page

    drawn = draw(found)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    write_figures(drawn, svgs, folder / "figures")
    pages = {
        "report.json": json_text(document(found)),
        "report.html": attack_page(found, svgs),
        "report.txt": render_text(found),
    }
    write_pages(pages, folder)
