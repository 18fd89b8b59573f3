"""The inference drawn: log-log ROC curves with their bands, and scores of members and others, a panel per attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..records import Design, Observations
from ..report.evidence import Histogram, RocBand, histogram, roc_band
from ..report.figures import FAINT, MEMBER, OTHER, SHOWN, STYLE
from .outcome import Inference

WIDTH = 9.0
_ACROSS, _DESIGN = 4, Design(coins="fixed")
_GUESS: dict[str, Any] = {"color": FAINT, "lw": 0.8, "ls": (0, (1, 2))}
_LEAST: dict[str, Any] = {"color": FAINT, "lw": 0.8, "ls": (0, (4, 3))}


def draw(found: Inference) -> dict[str, Figure]:
    """All figures by file name: ``roc`` and ``scores``."""
    shown = {r.attack.title: Observations(r.scores, r.member, design=_DESIGN) for r in found.results}
    with matplotlib.rc_context(STYLE):
        return {
            "roc": roc_curves([roc_band(title, obs) for title, obs in shown.items()]),
            "scores": score_histograms([histogram(title, obs) for title, obs in shown.items()]),
        }


def roc_curves(bands: Sequence[RocBand]) -> Figure:
    """True against false positive rates, both logarithmic, from half of the smallest rate that can be resolved."""
    left = min(band.smallest_fpr for band in bands) / 2
    figure, panels = _panels(len(bands), 2.25, share=True)
    for axes, band in zip(panels, bands, strict=True):
        at = np.maximum(band.fpr, left)
        axes.plot([left, 1], [left, 1], **_GUESS)
        axes.axvline(band.smallest_fpr, **_LEAST)
        axes.fill_between(at, np.maximum(band.low, left), band.high, step="post", color=SHOWN, alpha=0.22, lw=0)
        axes.plot(at, np.maximum(band.tpr, left), color=SHOWN, lw=1.6, drawstyle="steps-post")
        axes.set(xscale="log", yscale="log", xlim=(left, 1), ylim=(left, 1.15), aspect="equal")
        axes.set_title(band.canaries, loc="left", fontsize=8.5, weight="bold", parse_math=False)
        _percent_ticks(axes, left)
    figure.supxlabel("false positive rate", fontsize=8.5)
    figure.supylabel("true positive rate", fontsize=8.5)
    handles = [
        Line2D([], [], color=SHOWN, lw=1.6, label="attack"),
        Patch(color=SHOWN, alpha=0.22, label="95 %, pointwise"),
        Line2D([], [], label="guessing", **_GUESS),
        Line2D([], [], label="smallest resolvable false positive rate", **_LEAST),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return figure


def score_histograms(histograms: Sequence[Histogram]) -> Figure:
    """Scores of members and of others in common bins, shares per bin."""
    figure, panels = _panels(len(histograms), 1.6)
    for axes, shown in zip(panels, histograms, strict=True):
        axes.stairs(shown.outside, shown.edges, fill=True, color=OTHER, alpha=0.55)
        axes.stairs(shown.inside, shown.edges, color=MEMBER, lw=1.4)
        axes.set_title(shown.canaries, loc="left", fontsize=8.5, weight="bold", parse_math=False)
        axes.set_yticks([])
        axes.tick_params(labelsize=7)
        axes.spines["left"].set_visible(False)
    figure.supxlabel("score (higher: the attack says member)", fontsize=8.5)
    handles = [
        Line2D([], [], color=MEMBER, lw=1.4, label="members"),
        Patch(color=OTHER, alpha=0.55, label="non-members"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return figure


def _panels(count: int, height: float, share: bool = False) -> tuple[Figure, Sequence[Axes]]:
    """Panels in rows of four; fewer stay as small."""
    rows = -(-count // _ACROSS)
    figure = Figure(figsize=(WIDTH, height * rows + 0.7), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, _ACROSS, squeeze=False, sharex=share, sharey=share).ravel()
    for number, unused in enumerate(grid[count:], start=count):
        if number >= _ACROSS:
            grid[number - _ACROSS].tick_params(labelbottom=True)
        unused.remove()
    return figure, list(grid[:count])


def _percent_ticks(axes: Axes, left: float) -> None:
    ticks = [10.0**k for k in range(-8, 1) if 10.0**k >= left]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.6g} %"))
