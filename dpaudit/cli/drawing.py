"""Charts for the terminal: one glyph per line, axes with numbers, labels at the lines' right ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
WIDTH, HEIGHT = 60, 16


@dataclass(frozen=True)
class Axis:
    """What an axis measures; on a logarithmic one, what is not above 0 is not drawn."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Line:
    """A line through points (x, y), shape ``(points,)`` each, x rising; points that are not finite are left out."""

    glyph: str
    label: str
    x: ArrayLike
    y: ArrayLike


def chart(lines: Sequence[Line], x: Axis, y: Axis, *, width: int = WIDTH, height: int = HEIGHT) -> str:
    """The lines on one grid of characters, the first line on top; empty where nothing can be drawn.

    Args:
        lines: where two of them meet, the glyph of the earlier one is drawn.
        width, height: of the grid inside the axes, in characters.

    >>> print(chart([Line("*", "twice", [0, 4], [0, 8])], Axis("x"), Axis("y"), width=13, height=5))
    y
    8 ┤           ** * twice
      │        ***
    4 ┤     ***
      │  ***
    0 ┤**
      └┬───────────┬
       0           4
      x
    """
    points = [(line, _scaled(line, x, y)) for line in lines]
    points = [(line, p) for line, p in points if p.shape[1]]
    if not points:
        return ""
    xs, ys = (np.concatenate([p[i] for _, p in points]) for i in (0, 1))
    across, up = _Scale(xs, x.log, width), _Scale(ys, y.log, height)
    rows = [[" "] * width for _ in range(height)]
    ends: list[tuple[int, str]] = []
    for line, p in reversed(points):
        column, row = _cells(p, across, up)
        for c, r, before in zip(column, row, np.concatenate([row[:1], row[:-1]]), strict=True):
            # A steep line goes through all heights between two columns.
            for at in {int(r), *range(min(r, before) + 1, max(r, before))}:
                rows[height - 1 - at][c] = line.glyph
        ends.append((height - 1 - int(row[-1]), f"{line.glyph} {line.label}"))
    return "\n".join(line.rstrip() for line in _framed(rows, _spread(ends[::-1], height), across, up, x, y))


class _Scale:
    """A range of (logarithms of) numbers on ``cells`` cells, and round numbers to mark it with."""

    def __init__(self, values: Array, log: bool, cells: int) -> None:
        self._log, self._cells = log, cells
        self.low, self.high = float(values.min()), float(values.max())
        if self.high - self.low < 1e-12:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def cell(self, values: Array) -> NDArray[np.int64]:
        share = (values - self.low) / (self.high - self.low)
        return np.clip(np.rint(share * (self._cells - 1)), 0, self._cells - 1).astype(np.int64)

    def ticks(self, apart: int) -> list[tuple[int, str]]:
        """Cells and numbers, at least ``apart`` cells from each other; a logarithmic axis has 1, 2 and 5 marked."""
        numbers = _round_logs(self.low, self.high) if self._log else _round_steps(self.low, self.high, 6)
        out: list[tuple[int, str]] = []
        for value in numbers:
            at = int(self.cell(np.array([math.log10(value) if self._log else value]))[0])
            if not out or at - out[-1][0] >= apart:
                out.append((at, short(value)))
        return out


def _round_logs(low: float, high: float) -> list[float]:
    """Powers of ten within the range; with 2 and 5 times these if they are few, and in a narrow one even steps."""
    decades = [10.0**k for k in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    if len(decades) >= 3:
        return decades
    between = (m * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5))
    marks = [v for v in between if low - 1e-9 <= math.log10(v) <= high + 1e-9]
    return marks if len(marks) > 2 else _round_steps(10**low, 10**high, 6)


def _round_steps(low: float, high: float, most: int) -> list[float]:
    """Multiples of a round number within the range, at most ``most`` of them."""
    size = 10.0 ** math.floor(math.log10(high - low))
    steps = (m * size * scale for scale in (0.1, 1.0, 10.0) for m in (1, 2, 5))
    step = next(s for s in steps if (high - low) / s <= most - 1 + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def short(value: float) -> str:
    """A number of an axis: ``0.05``, ``20``, ``14,000``, ``1e6``, ``1e-5``.

    >>> [short(v) for v in (0, 0.05, 20.0, 14000, 1e6, 2e-6)]
    ['0', '0.05', '20', '14,000', '1e6', '2e-6']
    """
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else (f"{value:g}", "0")
    return f"{mantissa}e{int(exponent)}"


def _scaled(line: Line, x: Axis, y: Axis) -> Array:
    """The points that can be drawn, shape ``(2, points)``, in logarithms where the axis has them."""
    out = np.array([np.asarray(line.x, float), np.asarray(line.y, float)])
    with np.errstate(divide="ignore", invalid="ignore"):
        for i, axis in enumerate((x, y)):
            out[i] = np.log10(out[i]) if axis.log else out[i]
    return out[:, np.isfinite(out).all(axis=0)]


def _cells(points: Array, across: _Scale, up: _Scale) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One cell in every column that the line crosses."""
    first, last = across.cell(points[0][[0, -1]])
    columns = np.arange(first, last + 1)
    at = across.low + columns / (across._cells - 1) * (across.high - across.low)
    return columns, up.cell(np.interp(at, points[0], points[1]))


def _spread(ends: Sequence[tuple[int, str]], height: int) -> dict[int, str]:
    """A row for every label, as near to its line's end as the others leave free; in the order of the ends."""
    labels: dict[int, str] = {}
    order = sorted(ends, key=lambda end: end[0])
    row = 0
    for i, (wanted, label) in enumerate(order):
        row = min(max(wanted, row), max(height - (len(order) - i), row))
        labels[row] = label
        row += 1
    return labels


def _framed(
    rows: Sequence[Sequence[str]], labels: dict[int, str], across: _Scale, up: _Scale, x: Axis, y: Axis
) -> list[str]:
    height, width = len(rows), len(rows[0])
    ticks = {height - 1 - at: text for at, text in up.ticks(2)}
    margin = max(map(len, ticks.values()), default=0)
    out = [f"{y.label}"]
    for i, row in enumerate(rows):
        tick = f"{ticks[i]:>{margin}} ┤" if i in ticks else f"{'':>{margin}} │"
        out.append(tick + "".join(row) + (f" {labels[i]}" if i in labels else ""))
    for i in sorted(i for i in labels if i >= height):
        out.append(f"{'':>{margin}}  {'':>{width}} {labels[i]}")
    marks = across.ticks(10)
    ruler, numbers = ["─"] * width, [" "] * (width + 12)
    for at, text in marks:
        ruler[at] = "┬"
        numbers[at : at + len(text)] = text
    out.append(f"{'':>{margin}} └{''.join(ruler)}")
    out.append(f"{'':>{margin}}  {''.join(numbers)}")
    out.append(f"{'':>{margin}} {x.label}")
    return out
