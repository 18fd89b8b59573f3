"""The records of the shortlist themselves, as images, rows or texts: only for ``retained/``, never released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..report import wording as w
from ..report.figures import FAINT, INK, STYLE
from .outcome import Exposure
from .sources import row_numbers

_MOST_CELLS = 12  # of a row, where a picture has to hold it
_LINES, _LINE = 4, 120  # of a text or a row there, and letters in one; the page has all of it
_PIXEL = 9


@dataclass(frozen=True)
class Portrait:
    """One record of the shortlist.

    Attributes:
        place: on the shortlist, from 1.
        name: its id.
        number: its number in the source.
        label: its label.
        statistic: of its loss trace.
        image: the record as an image, SVG; None if it is none.
        text: the record as text; None if it is none.
        cells: (name, value) of every feature, as the source has them; empty for images and texts.
    """

    place: int
    name: str
    number: int
    label: int
    statistic: float
    image: Markup | None
    text: str | None
    cells: tuple[tuple[str, float], ...]


def portraits(found: Exposure) -> tuple[Portrait, ...]:
    """The shortlist in the order of the ranking."""
    return tuple(_portrait(found, place, row) for place, row in enumerate(found.rows, 1))


def _portrait(found: Exposure, place: int, row: int) -> Portrait:
    source, data = found.task.source, found.task.data
    values, text = source.original[row], source.texts[row] if source.texts else None
    image = _svg(values.reshape(data.shape)) if data.shape is not None and text is None else None
    names = source.columns or tuple(f"feature {i}" for i in range(data.features))
    shown = () if image is not None or text is not None else tuple(zip(names, map(float, values), strict=True))
    number = row_numbers([data.ids[row]])[0]
    return Portrait(
        place, data.ids[row], number, int(data.y[row]), float(found.ranking[row]), image, text, shown
    )  # fmt: skip


def _svg(pixels: NDArray[np.float32]) -> Markup:
    """A grey image, dark where values are large, as rectangles: nothing for a page to load."""
    low, high = float(pixels.min()), float(pixels.max())
    grey = np.round(255 * (1 - (pixels - low) / max(high - low, 1e-12))).astype(int)
    height, width = pixels.shape
    squares = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" fill="rgb({v},{v},{v})"/>' for (y, x), v in np.ndenumerate(grey)
    )
    size = f'width="{_PIXEL * max(16, width)}" height="{_PIXEL * max(16, height)}"'
    return Markup(f'<svg {size} viewBox="0 0 {width} {height}" shape-rendering="crispEdges">{squares}</svg>')


def gallery(found: Exposure, shown: Sequence[Portrait]) -> Figure:
    """All records of the shortlist on one sheet, each with what is shown of it at every level."""
    columns = min(5, len(shown)) if shown[0].image is not None else 1
    rows = -(-len(shown) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(9.0, rows * (2.5 if columns > 1 else 1.1)), facecolor="white", layout="constrained"
        )  # fmt: skip
        FigureCanvasAgg(figure)
        panels = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
        for axes in panels:
            axes.set_axis_off()
        for axes, portrait, row in zip(panels, shown, found.rows, strict=False):
            if portrait.image is not None:
                axes.imshow(found.task.source.original[row].reshape(found.task.data.shape), cmap="gray_r")
            else:
                axes.text(0.0, 0.9, _summary(portrait), va="top", fontsize=8, color=INK, parse_math=False,
                          transform=axes.transAxes).set_in_layout(False)  # fmt: skip
            axes.set_title(_caption(found, portrait), loc="left", fontsize=7.5, color=FAINT, parse_math=False)
        figure.suptitle("Not for release: the records of the shortlist", fontsize=9.5, weight="bold", color=INK)
    return figure


def _caption(found: Exposure, portrait: Portrait) -> str:
    each = (
        f"{entry.level.title}: ε ≥ {w.at_least(entry.exposed[portrait.place - 1].bound.epsilon)}"
        for entry in found.levels
    )
    lines = "\n".join(each) if portrait.image is not None else "; ".join(each)
    return f"{portrait.place}. {portrait.name}, label {portrait.label}\n{lines}"


def _summary(portrait: Portrait) -> str:
    if portrait.text is not None:
        return _lines(portrait.text)
    cells = [f"{name} {value:g}" for name, value in portrait.cells[:_MOST_CELLS]]
    more = len(portrait.cells) - len(cells)
    return _lines(", ".join(cells) + (f" and {more} more" if more else ""))


def _lines(text: str) -> str:
    """Broken here, since matplotlib looks for formulas in what it wraps itself."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 2 * _LINES * _LINE])
    return "\n".join(wrap(plain, _LINE, max_lines=_LINES, placeholder=" …"))
