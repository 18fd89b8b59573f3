"""The examination drawn, for release. Everything drawn is in the result; no global state is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from ..report import wording as w
from ..report.figures import FAINT, INK, MEMBER, OTHER, RULE, SHOWN, STYLE
from .confirming import RecordResult
from .outcome import Exposure, LevelResult, average

WIDTH = 9.0
EXPOSED, ORDINARY = MEMBER, SHOWN
_BINS, _TAIL = 40, 0.005  # of the scores on either side, which the outermost bins take in
_DASH = (0, (4, 2.5))


def draw(found: Exposure) -> dict[str, Figure]:
    """All figures by file name."""
    views: dict[str, Callable[[Exposure], Figure]] = {"parting": parting, "rates": rates, "scores": scores}
    with matplotlib.rc_context(STYLE):
        return {name: view(found) for name, view in views.items()}


def parting(found: Exposure) -> Figure:
    """How the worst case and the average part ways: ε shown and pairs told apart, per record, over the levels."""
    figure, panels = _panels(1, 2, 3.7)
    _epsilon(panels[0], found)
    _pairs(panels[1], found)
    for axes in panels:
        axes.set_xticks(range(len(found.levels)), [_level_label(entry) for entry in found.levels])
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set_xlim(-0.45, len(found.levels) - 0.55)
        axes.grid(axis="y", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
    handles = [
        Line2D([], [], color=EXPOSED, marker="o", ms=6, lw=1.8, label="shortlist: largest ε; mean of pairs"),
        Line2D([], [], color=ORDINARY, marker="s", ms=5.5, lw=1.8, label="drawn at random: mean"),
        Line2D([], [], ls="none", marker="o", ms=3.2, color=FAINT, alpha=0.6, label="one record"),
        Line2D([], [], ls="none", marker="_", ms=15, mew=2.6, color=INK, label="ε claimed"),
        Line2D([], [], ls="none", marker="_", ms=11, mew=1.2, color=FAINT, label="ceiling, all right"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8, handlelength=1.6,
                  columnspacing=1.4)  # fmt: skip
    return figure


def rates(found: Exposure) -> Figure:
    """True and false positive rates of every record of the shortlist, with exact intervals, one panel per level."""
    count = len(found.levels)
    figure, panels = _panels(1, count, 0.95 + 0.21 * found.task.shortlist)
    for number, (axes, entry) in enumerate(zip(panels, found.levels, strict=True)):
        for place, record in enumerate(entry.exposed, 1):
            _whisker(axes, record, place)
        axes.set_title(entry.level.title, loc="left", fontsize=9.5, weight="bold")
        axes.set(xlim=(-0.03, 1.03), ylim=(found.task.shortlist + 0.7, 0.3))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        axes.tick_params(axis="y", length=0, labelleft=number == 0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f} %"))
        axes.set_xticks([0, 0.5, 1])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("place on the shortlist")
    handles = [
        Line2D([], [], ls="none", marker="o", ms=5, color=EXPOSED, label="TPR: models with the record"),
        Line2D([], [], ls="none", marker="o", ms=5, mfc="white", mec=INK, label="FPR: models without it"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def scores(found: Exposure) -> Figure:
    """Score distributions with and without the most exposed record, level by level."""
    place = found.plain.exposed.index(found.plain.worst)
    figure, panels = _panels(1, len(found.levels), 2.35)
    for axes, entry in zip(panels, found.levels, strict=True):
        edges, inside, outside = histogram(entry.exposed[place])
        axes.stairs(outside, edges, fill=True, color=OTHER, alpha=0.5)
        axes.stairs(inside, edges, color=EXPOSED, lw=1.6)
        axes.axvline(0.0, color=INK, lw=1.0, ls=_DASH)
        axes.set_title(entry.level.title, loc="left", fontsize=9.5, weight="bold")
        axes.set(yticks=[], xlim=(edges[0], edges[-1]), ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"ε ≥ {w.at_least(entry.exposed[place].bound.epsilon)}", loc="left")
    handles = [
        Patch(color=OTHER, alpha=0.6, label="models without the record"),
        Line2D([], [], color=EXPOSED, lw=1.6, label="models with it"),
        Line2D([], [], color=INK, lw=1.0, ls=_DASH, label="threshold"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    return figure


def histogram(found: RecordResult) -> tuple[NDArray[np.float64], ...]:
    """Common bins and the share of scores with and without the record in each: (edges, inside, outside)."""
    both = np.concatenate([found.inside, found.outside])
    low, high = np.quantile(both, [_TAIL, 1 - _TAIL])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    inside, outside = (
        np.histogram(np.clip(scores, low, high), edges)[0] / max(len(scores), 1)
        for scores in (found.inside, found.outside)
    )
    return edges, inside, outside


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _level_label(entry: LevelResult) -> str:
    title = "ε = ∞" if entry.level.target is None else entry.level.title
    return f"{title}\n{w.percent(entry.accuracy.mean)} right"


def _epsilon(axes: Axes, found: Exposure) -> None:
    for at, entry in enumerate(found.levels):
        _dots(axes, at - 0.13, [r.bound.epsilon for r in entry.exposed], EXPOSED)
        _dots(axes, at + 0.13, [r.bound.epsilon for r in entry.ordinary], ORDINARY)
        axes.plot([at], [entry.worst.bound.perfect], ls="none", marker="_", ms=11, mew=1.2, color=FAINT)
        if entry.level.epsilon is not None:
            axes.plot([at], [entry.level.epsilon], ls="none", marker="_", ms=15, mew=2.6, color=INK, zorder=5)
    worst = [entry.worst.bound.epsilon for entry in found.levels]
    _line(axes, worst, [average(entry.ordinary)[0] for entry in found.levels])
    for at, value in enumerate(worst):
        axes.annotate(w.at_least(value), (at, value), xytext=(7, 4), textcoords="offset points", fontsize=8,
                      color=EXPOSED, weight="bold")  # fmt: skip
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    axes.set_ylabel(f"ε shown, at δ = {w.delta(found.task.delta)}")


def _pairs(axes: Axes, found: Exposure) -> None:
    for at, entry in enumerate(found.levels):
        _dots(axes, at - 0.13, [r.pairs.value for r in entry.exposed], EXPOSED)
        _dots(axes, at + 0.13, [r.pairs.value for r in entry.ordinary], ORDINARY)
    exposed, ordinary = ([average(getattr(e, name))[1] for e in found.levels] for name in ("exposed", "ordinary"))
    axes.axhline(0.5, color=FAINT, lw=0.9, ls=(0, (1, 2)))
    _line(axes, exposed, ordinary)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f} %"))
    axes.set_ylabel("pairs told apart (dotted: guessing)")


def _dots(axes: Axes, at: float, values: Sequence[float], colour: str) -> None:
    axes.plot([at] * len(values), values, "o", ms=3.2, color=colour, alpha=0.45, mew=0)


def _line(axes: Axes, exposed: Sequence[float], ordinary: Sequence[float]) -> None:
    at = range(len(exposed))
    axes.plot(at, ordinary, color=ORDINARY, marker="s", ms=5.5, lw=1.8, zorder=3)
    axes.plot(at, exposed, color=EXPOSED, marker="o", ms=6, lw=1.8, zorder=4)


def _whisker(axes: Axes, found: RecordResult, place: int) -> None:
    for rate, shift, colour, face in ((found.tpr, -0.13, EXPOSED, EXPOSED), (found.fpr, 0.13, INK, "white")):
        axes.plot([rate.low, rate.high], [place + shift] * 2, color=colour, lw=1.4, solid_capstyle="butt")
        axes.plot([rate.value], [place + shift], "o", mfc=face, mec=colour, mew=1.1, ms=4.2, zorder=3)
