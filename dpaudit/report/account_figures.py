"""The two figures of an account: ε against steps by every ledger, and the trade-off of an attacker's two errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from ..records import FloatArray
from . import wording as w
from .account_words import UPPER_BOUNDS, about_claim, shown
from .figures import FAINT, INK, RULE, SHOWN, STYLE, WIDTH

# Okabe & Ito's palette, darkened until text in it can be read on white.
COLOURS = ("#b23a00", "#00694f", "#9a3d78", "#7d5b00", "#2d5d93", "#5e5e00", "#6b4ba1")
DASHES: Mapping[str, Any] = {
    "claim": "-",
    "upper bound": "-",
    "lower bound": (0, (1, 1.2)),
    "estimate": (0, (1, 2.2)),
    "not a bound": (0, (5, 2)),
    "not valid here": (0, (5, 2)),
}
_LABEL_APART = 0.052  # of the axes' height, between two labels
_SMALLEST = 1e-4
_DASH = (0, (4, 2.5))


def draw_account(facts: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures by file name: ``epsilon-by-steps`` where the claim has steps, and ``trade-off``.

    Args:
        facts: an :func:`~dpaudit.report.accounts.account_document`.
    """
    figures = {"trade-off": trade_off(facts)}
    return {"epsilon-by-steps": epsilon_by_steps(facts), **figures} if facts["by_steps"] else figures


def epsilon_by_steps(facts: Mapping[str, Any]) -> Figure:
    """ε at the account's δ against the number of steps, both axes logarithmic, every ledger labelled at its end."""
    by_steps = facts["by_steps"]
    steps = np.array(by_steps["steps"], float)
    lines = [(line, _numbers(line["epsilon"])) for line in by_steps["ledgers"]]
    lines = [(line, e) for line, e in lines if np.isfinite(e).any() and (e > 0).any()]
    with matplotlib.rc_context(STYLE):
        figure = _canvas(4.3)
        axes = figure.add_axes((0.07, 0.125, 0.54, 0.85))
        axes.set(xscale="log", yscale="log", xlim=(steps[0], steps[-1]))
        axes.set_xlabel("steps", loc="left")
        axes.set_ylabel(f"ε in nats at δ = {w.delta(facts['delta'])}, {facts['adjacency']}", loc="bottom")
        ends = []
        for line, epsilon in reversed(lines):
            style = _style(line, [other for other, _ in lines])
            axes.plot(steps, np.where(epsilon > 0, epsilon, np.nan), **style)
            if np.isfinite(epsilon[-1]) and epsilon[-1] > 0:
                ends.append((line, style["color"], float(epsilon[-1])))
        axes.set_ylim(_range([e for _, e in lines]))
        _label_ends(axes, ends)
        _log_ticks(axes)
    return figure


def _style(line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    status = line["status"]
    if status == "claim":
        return {"color": SHOWN, "lw": 2.6, "zorder": 4}
    if status == "upper bound":
        bounds = [other["method"] for other in lines if other["status"] == status]
        return {"color": COLOURS[bounds.index(line["method"]) % len(COLOURS)], "lw": 1.3, "zorder": 3}
    return {"color": FAINT, "lw": 1.2, "ls": DASHES[status], "zorder": 2}


def _range(epsilons: Sequence[FloatArray]) -> tuple[float, float]:
    """What the axis shows: all of the claim, and of the others what is within two decades of it."""
    drawn = [e[np.isfinite(e) & (e > 0)] for e in epsilons]
    low, high = float(drawn[0].min()), float(drawn[0].max())
    top = min(max(float(e.max()) for e in drawn), 100 * high)
    bottom = max(min(float(e.min()) for e in drawn), low / 30)
    return 0.8 * bottom, 1.25 * top


def _label_ends(axes: Axes, ends: Sequence[tuple[Mapping[str, Any], str, float]]) -> None:
    """A label for every line, at its end's height or as near to it as the others leave free."""
    low, high = np.log(axes.get_ylim())
    ends = sorted(ends, key=lambda end: end[2])
    heights = np.array([(np.log(y) - low) / (high - low) for *_, y in ends])
    for (line, colour, y), height, at in zip(ends, heights, _apart(heights, _LABEL_APART), strict=True):
        status = "" if line["status"] in UPPER_BOUNDS else f" ({line['status']})"
        farther = "↑ " if height > 1 else ""
        words = f"{farther}{line['method']}  {shown({**line, 'epsilon': y}, 2)}{status}"
        if not farther:
            axes.plot([1.0, 1.02], [height, at], color=colour, lw=0.7, transform=axes.transAxes, clip_on=False)
        bold = "bold" if line["status"] == "claim" else "normal"
        axes.text(1.025, at, words, transform=axes.transAxes, va="center", fontsize=8, color=colour, weight=bold)


def _apart(heights: FloatArray, gap: float) -> FloatArray:
    """Rising positions in [0, 1], at least ``gap`` from each other, nearest to ``heights`` in squares."""
    even = gap * np.arange(len(heights))
    moved = isotonic_regression(np.clip(heights, 0, 1) - even).x
    return np.clip(moved, 0.0, max(1.0 - float(even[-1]), 0.0)) + even


def trade_off(facts: Mapping[str, Any]) -> Figure:
    """The least false negative rate at every false positive rate; and the same as power at small ones, log-log."""
    curve = facts["curve"]
    fpr, fnr = np.array(curve["fpr"]), np.array(curve["fnr"])
    gaussian = None if curve["gaussian_fnr"] is None else np.array(curve["gaussian_fnr"])
    with matplotlib.rc_context(STYLE):
        figure, (plain, logs) = _panels(2, 3.9)
        plain.fill_between(fpr, 0, fnr, color=SHOWN, alpha=0.10, lw=0)
        plain.plot([0, 1], [1, 0], color=FAINT, lw=1.0, ls=(0, (1, 2)))
        plain.plot([0, 0, 1], [1, 0, 0], color=COLOURS[0], lw=1.6, clip_on=False, zorder=5)
        shown = fpr >= _SMALLEST
        logs.fill_between(fpr[shown], (1 - fnr)[shown], 1, color=SHOWN, alpha=0.10, lw=0)
        logs.plot([_SMALLEST, 1], [_SMALLEST, 1], color=FAINT, lw=1.0, ls=(0, (1, 2)))
        logs.plot([_SMALLEST, 1], [1, 1], color=COLOURS[0], lw=1.6, clip_on=False, zorder=5)
        for axes, rate in ((plain, lambda miss: miss), (logs, lambda miss: 1 - miss)):
            axes.plot(fpr, rate(fnr), color=SHOWN, lw=2.4, zorder=4)
            if gaussian is not None:
                axes.plot(fpr, rate(gaussian), color=INK, lw=1.1, ls=_DASH, zorder=6)
            axes.set_xlabel("false positive rate", loc="left")
        plain.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        plain.set_ylabel("false negative rate", loc="bottom")
        logs.set(xscale="log", yscale="log", xlim=(_SMALLEST, 1), ylim=(_SMALLEST, 1), aspect="equal")
        logs.set_ylabel("true positive rate", loc="bottom")
        for axis in (logs.xaxis, logs.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.6g} %"))
        _legend(figure, facts)
    return figure


def _legend(figure: Figure, facts: Mapping[str, Any]) -> None:
    curve = facts["curve"]
    claim = f"{about_claim(facts)} at δ = {w.delta(facts['delta'])}"
    handles: list[Any] = [
        Line2D([], [], color=SHOWN, lw=2.4, label=claim),
        Line2D([], [], color=FAINT, lw=1.0, ls=(0, (1, 2)), label="perfect privacy: guessing"),
        Line2D([], [], color=COLOURS[0], lw=1.6, label="no privacy: never wrong"),
        Patch(color=SHOWN, alpha=0.10, label="no attack gets here if the claim is true"),
    ]
    if curve["mu"] is not None:
        label = f"{curve['mu']:.3g}-GDP: the Gaussian with that ε at that δ"
        handles.insert(1, Line2D([], [], color=INK, lw=1.1, ls=_DASH, label=label))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=7.8, handlelength=2.2)


def _canvas(height: float, **options: Any) -> Figure:
    figure = Figure(figsize=(WIDTH, height), facecolor="white", **options)
    FigureCanvasAgg(figure)
    return figure


def _panels(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    figure = _canvas(height, layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)).ravel())


def _log_ticks(axes: Axes) -> None:
    """Plain numbers; 2 and 5 are marked as well where the range is short."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        marks = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
        axis.set_major_locator(LogLocator(base=10, subs=marks, numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}" if v < 1e6 else f"{v:.0e}"))
        axis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)


def _numbers(values: Sequence[Any]) -> FloatArray:
    return np.array([np.nan if v is None else w.number(v) for v in values], float)
