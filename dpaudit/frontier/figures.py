"""The exploration drawn. Everything drawn is in the result; no global state is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import offset_copy

from ..report import wording as w
from ..report.figures import FAINT, INK, RULE, STYLE
from . import words
from .outcome import Frontier, Measured, Point, Suggestion

WIDTH = 9.0
CHOSEN = "#b3122f"
_MARKERS = "osD^vPX*"
_DASH = (0, (5, 2.5))
_STARS: dict[str, Any] = {
    "within": {"ls": "none", "marker": "*", "color": CHOSEN, "mec": CHOSEN, "ms": 13},
    "budget": {"ls": "none", "marker": "*", "color": "white", "mec": CHOSEN, "mew": 1.4, "ms": 12},
}
_BESIDE = 12.0


def draw(found: Frontier) -> dict[str, Figure]:
    """All figures by file name."""
    views: dict[str, Callable[[Frontier], Figure]] = {"frontier": frontier, "grid": grid}
    with matplotlib.rc_context(STYLE):
        return {name: view(found) for name, view in views.items()}


def frontier(found: Frontier) -> Figure:
    """Accuracy on the reporting half against ε, one line per clip norm."""
    figure = _canvas(4.6)
    axes = figure.subplots()
    clips = found.grid.clip_norms
    for colour, marker, clip in zip(_colours(len(clips)), _markers(len(clips)), clips, strict=True):
        _line(axes, [p for p in found.points if p.clip_norm == clip], colour, marker)
    _reference(axes, found)
    for number, point in enumerate(found.points):
        if point.non_dominated and point.accuracy.reporting.mean is not None:
            axes.plot([point.level.epsilon], [point.accuracy.reporting.mean], "o", ms=12, mfc="none", mec=INK, mew=1.1,
                      zorder=5, gid=f"point-{number}")  # fmt: skip
    for number, suggestion in enumerate(found.suggestions):
        shared = sum(s.point == suggestion.point for s in found.suggestions[:number])
        _suggested(axes, found.points[suggestion.point], suggestion, _BESIDE * (1 + shared))
    _axes(axes, found)
    _legend(figure, found)
    return figure


def grid(found: Frontier) -> Figure:
    """Accuracy on the reporting half at every noise multiplier and clip norm."""
    levels, clips = found.grid.levels, found.grid.clip_norms
    means = np.array([_value(p.accuracy.reporting) for p in found.points]).reshape(len(levels), len(clips))
    figure = _canvas(0.95 + 0.42 * len(levels), width=min(WIDTH, 2.6 + 1.05 * len(clips)))
    axes = figure.subplots()
    low, high = _range(means)
    axes.pcolormesh(np.ma.masked_invalid(means), cmap="cividis", vmin=low, vmax=high, edgecolors="white", lw=1.0)
    for (row, column), mean in np.ndenumerate(means):
        _cell(axes, column, row, found.points[row * len(clips) + column], mean, (low, high))
    for suggestion in found.suggestions:
        row, column = divmod(suggestion.point, len(clips))
        dash = "-" if suggestion.rule == "within" else (0, (3, 2))
        axes.add_patch(Rectangle((column + 0.03, row + 0.05), 0.94, 0.9, fill=False, ec=CHOSEN, lw=2.2, ls=dash))
    axes.set_xticks(np.arange(len(clips)) + 0.5, [words.number(c) for c in clips])
    axes.set_yticks(np.arange(len(levels)) + 0.5, [_row_label(p) for p in found.points[:: len(clips)]])
    axes.invert_yaxis()
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("clip norm", loc="left")
    axes.set_ylabel(f"ε at {words.at_delta(found.grid)}", loc="top")
    return figure


def _canvas(height: float, width: float = WIDTH) -> Figure:
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _colours(count: int) -> list[str]:
    """From dark to light, by an ordered map that the colour-blind can read; never too light for white paper."""
    ramp = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(ramp(x)) for x in np.linspace(0.0, 0.82, count)]


def _markers(count: int) -> list[str]:
    return [_MARKERS[i % len(_MARKERS)] for i in range(count)]


def _value(measured: Measured) -> float:
    return np.nan if measured.mean is None else measured.mean


def _line(axes: Axes, points: Sequence[Point], colour: str, marker: str) -> None:
    epsilon = [p.level.epsilon for p in points]
    found = [p.accuracy.reporting for p in points]
    low, high = (
        [np.nan if v is None else v for v in side] for side in zip(*((m.low, m.high) for m in found), strict=True)
    )
    if len(points) == 1:
        axes.vlines(epsilon, low, high, color=colour, lw=1.2)
    axes.fill_between(epsilon, low, high, color=colour, alpha=0.11, lw=0)
    axes.plot(epsilon, [_value(m) for m in found], color=colour, marker=marker, ms=5, lw=1.7, zorder=3)


def _reference(axes: Axes, found: Frontier) -> None:
    if found.reference is None or found.reference.reporting.mean is None:
        return
    measured = found.reference.reporting
    axes.axhspan(measured.low or 0.0, measured.high or 0.0, color=FAINT, alpha=0.14, lw=0)
    axes.axhline(_value(measured), color=INK, lw=1.2, ls=_DASH)


def _suggested(axes: Axes, point: Point, suggestion: Suggestion, shift: float) -> None:
    """What the fresh trainings reached, a little to the right of the point itself."""
    fresh = suggestion.fresh
    if fresh.mean is None or fresh.low is None or fresh.high is None:
        return
    x, beside = (
        point.level.epsilon,
        offset_copy(axes.transData, axes.get_figure(root=True), x=shift, units="points"),
    )
    axes.plot([x, x], [fresh.low, fresh.high], color=CHOSEN, lw=1.6, zorder=6, transform=beside)
    axes.plot([x], [fresh.mean], transform=beside, zorder=7, **_STARS[suggestion.rule])
    axes.plot([x], [fresh.high], alpha=0.0)  # what is drawn beside does not stretch the axes


def _axes(axes: Axes, found: Frontier) -> None:
    ticks = _apart([level.epsilon for level in found.grid.levels])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: w.at_most(v)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.3g} %"))
    axes.set_xlabel(f"ε of one training, at {words.at_delta(found.grid)} (less is more private)", loc="left")
    axes.set_ylabel("accuracy on the reporting half")
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)


def _apart(values: Sequence[float]) -> list[float]:
    """Those that labels have room for on a log axis."""
    kept: list[float] = []
    room = 0.05 * np.log(max(values) / min(values))
    for value in values:
        if not kept or np.log(value / kept[-1]) > room:
            kept.append(value)
    return kept


def _legend(figure: Figure, found: Frontier) -> None:
    clips = found.grid.clip_norms
    handles = [
        Line2D([], [], color=c, marker=m, ms=5, lw=1.7, label=f"clip norm {words.number(v)}")
        for c, m, v in zip(_colours(len(clips)), _markers(len(clips)), clips, strict=True)
    ]
    if found.reference is not None and found.reference.reporting.mean is not None:
        handles.append(Line2D([], [], color=INK, lw=1.2, ls=_DASH, label="without privacy"))
    handles.append(
        Line2D([], [], ls="none", marker="o", ms=10, mfc="none", mec=INK, label="frontier, by the\nchoosing half")
    )
    for suggestion in found.suggestions:
        name = "suggested" if suggestion.rule == "within" else "for the budget"
        handles.append(Line2D([], [], label=f"{name},\ntrained afresh", **_STARS[suggestion.rule]))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8.5, handlelength=2.2,
                  labelspacing=0.7)  # fmt: skip


def _range(means: np.ndarray) -> tuple[float, float]:
    known = means[np.isfinite(means)]
    if len(known) == 0:
        return 0.0, 1.0
    return float(known.min()), float(max(known.max(), known.min() + 1e-6))


def _cell(axes: Axes, column: int, row: int, point: Point, mean: float, span: tuple[float, float]) -> None:
    if not np.isfinite(mean):
        axes.text(column + 0.5, row + 0.5, "diverged", ha="center", va="center", fontsize=8, color=FAINT)
        return
    light, wide = (mean - span[0]) / (span[1] - span[0]) > 0.55, axes.get_xlim()[1]
    axes.text(column + 0.5, row + 0.5, f"{100 * mean:.1f} %", ha="center", va="center", fontsize=min(9.5, 95 / wide),
              color=INK if light else "white", weight="bold" if point.best else "normal")  # fmt: skip


def _row_label(point: Point) -> str:
    return f"{w.at_most(point.level.epsilon)}  (noise {words.number(point.level.noise_multiplier)})"
