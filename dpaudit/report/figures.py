"""Figures: facts and evidence in, matplotlib figures out. Nothing is computed here and no global state is touched."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..records import RunResult, TrainerAudit
from . import wording
from .evidence import Histogram, RocBand, histogram, roc_band

# Okabe & Ito's palette, darkened where text needs contrast: told apart by the colour-blind, and by lightness in print.
INK, FAINT, RULE = "#1b1f24", "#5b6570", "#d5dae0"
SHOWN, MEMBER, OTHER = "#0072b2", "#d55e00", "#7a8794"
COLOURS = {"violated": "#b23a00", "consistent": "#00694f", "underpowered": "#7d5b00", "no_claim": "#47525e"}
WIDTH = 9.0
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpaudit",
}


def draw(result: RunResult, facts: Mapping[str, Any]) -> dict[str, Figure]:
    """All figures of a report by file name: ``epsilon``, and per trainer ``N-name-scores`` and ``N-name-roc``.

    A trainer without observations has none of its own.

    Args:
        facts: the :func:`~dpaudit.report.document` of ``result``.
    """
    figures = {"epsilon": epsilon_axis(facts)}
    for i, entry in enumerate(result.audits):
        name = file_name(i, entry.audit.name)
        if not entry.observations:
            continue
        figures[f"{name}-scores"] = score_distributions([histogram(c, o) for c, o in entry.observations.items()])
        figures[f"{name}-roc"] = roc_curves(_bands(entry), _cross(entry))
    return figures


def file_name(index: int, name: str) -> str:
    """A file name for the trainer at ``index``: its number and what is left of its name.

    >>> file_name(0, "DP-SGD, noise forgotten")
    '1-dp-sgd-noise-forgotten'
    """
    return f"{index + 1}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}".rstrip("-")[:60]


def to_svg(figure: Figure) -> str:
    """The figure as SVG text; the same figure always gives the same text."""
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return "\n".join(line.rstrip() for line in out.getvalue().decode("utf-8").splitlines()) + "\n"


def to_png(figure: Figure) -> bytes:
    """The figure as PNG at 160 dots per inch."""
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="png", dpi=160, metadata={"Software": None})
    return out.getvalue()


def epsilon_axis(facts: Mapping[str, Any]) -> Figure:
    """What the attack shows and what the accountant promises, on one axis of ε, one row per trainer."""
    audits = facts["audits"]
    with matplotlib.rc_context(STYLE):
        height = 0.85 + 0.56 * len(audits)
        figure = _canvas(height)
        axes = figure.add_axes((0.185, 0.74 / height, 0.545, 1 - 0.78 / height))
        limit = _limit(audits)
        for row, audit in enumerate(audits):
            _epsilon_row(axes, -float(row), audit, limit)
        axes.set(xlim=(0, limit), ylim=(-len(audits) + 0.45, 0.55), yticks=[])
        axes.set_xlabel("ε in nats (less is more private)", loc="left")
        axes.spines["left"].set_visible(False)
        _epsilon_legend(figure)
    return figure


def _canvas(height: float, **options: Any) -> Figure:
    figure = Figure(figsize=(WIDTH, height), facecolor="white", **options)
    FigureCanvasAgg(figure)
    return figure


def _limit(audits: Sequence[Mapping[str, Any]]) -> float:
    """The right end of the axis: all that was shown or claimed, and ceilings unless they would squeeze the rest."""
    leads = [wording.leading(a) or {} for a in audits]
    main = _finite([a[k] for a in audits for k in ("lower", "lower_if_recipe", "upper")])
    ceilings = _finite([lead.get(k) for lead in leads for k in ("perfect", "at_claim")])
    top = max([1.0, *main])
    return 1.06 * max([top, *(c for c in ceilings if c <= 2 * top)])


def _finite(values: Sequence[Any]) -> list[float]:
    return [float(v) for v in values if v is not None and np.isfinite(float(v))]


def _epsilon_row(axes: Axes, y: float, audit: Mapping[str, Any], limit: float) -> None:
    lead = wording.leading(audit) or {}
    axes.plot([0, limit], [y, y], color=RULE, lw=0.8, zorder=0)
    axes.barh(y, min(wording.number(audit["lower"]), limit), height=0.3, color=SHOWN, zorder=2)
    _mark(axes, y, audit["lower_if_recipe"], limit, marker="o", mfc="white", mec=SHOWN, ms=5.5, mew=1.3)
    _mark(axes, y, lead.get("at_claim"), limit, marker="D", mfc="white", mec=FAINT, ms=4.5)
    _mark(axes, y, lead.get("perfect"), limit, marker="|", mec=FAINT, ms=15, mew=1.4)
    _mark(axes, y, audit["upper"], limit, marker="|", mec=_claim_colour(audit), ms=21, mew=2.6)
    _row_numbers(axes, y, audit, limit)
    _row_words(axes, y, audit)


def _mark(axes: Axes, y: float, value: Any, limit: float, **style: Any) -> None:
    """A marker at ``value``; beyond the axis, an arrow at its end."""
    if value is None:
        return
    number = wording.number(value)
    if number > limit:
        style = {**style, "marker": ">", "ms": 5, "mfc": style["mec"]}
    axes.plot([min(number, limit)], [y], ls="none", clip_on=False, zorder=3, **style)


def _claim_colour(audit: Mapping[str, Any]) -> str:
    return COLOURS["violated"] if audit["verdict"] == "violated" else INK


def _row_numbers(axes: Axes, y: float, audit: Mapping[str, Any], limit: float) -> None:
    words: dict[str, Any] = {"fontsize": 8, "weight": "bold"}
    shown = f"shown ≥ {wording.at_least(audit['lower'])}"
    axes.text(0.004 * limit, y - 0.19, shown, ha="left", va="top", color=SHOWN, **words)
    if audit["upper"] is None:
        return
    upper = wording.number(audit["upper"])
    said = f"claimed ≤ {wording.at_most(audit['upper'])}" + (", refuted" if audit["verdict"] == "violated" else "")
    side, gap = ("right", -0.008) if upper > 0.75 * limit else ("left", 0.008)
    x = min(upper, limit) + gap * limit
    axes.text(x, y + 0.18, said, ha=side, va="bottom", color=_claim_colour(audit), **words)


def _row_words(axes: Axes, y: float, audit: Mapping[str, Any]) -> None:
    word, _, sign = wording.VERDICTS[audit["verdict"]]
    at = axes.get_yaxis_transform()
    axes.text(-0.025, y, _wrapped(audit["name"]), ha="right", va="center", transform=at, fontsize=9, parse_math=False)
    colour = COLOURS[audit["verdict"]]
    axes.text(1.03, y + 0.03, f"{sign} {word}", transform=at, fontsize=11, weight="bold", color=colour, va="bottom")
    axes.text(1.03, y - 0.05, _evidence(audit), transform=at, fontsize=8, color=FAINT, va="top")


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, 20, max_lines=2, placeholder=" …"))


def _evidence(audit: Mapping[str, Any]) -> str:
    if audit["claim"] is None:
        return "nothing was promised"
    words = f"p = {wording.p_value(audit['p_value'])}, power {audit['power']:.2f}"
    return words + (", as expected" if audit["expect"] == audit["verdict"] else "")


def _epsilon_legend(figure: Figure) -> None:
    handles = [
        Patch(color=SHOWN, label="shown by the attack, any mechanism"),
        Line2D([], [], ls="none", marker="o", mfc="white", mec=SHOWN, label="shown if the code is the recipe"),
        Line2D([], [], ls="none", marker="|", mec=INK, ms=11, mew=2.6, label="accountant's claim"),
        Line2D([], [], ls="none", marker="D", mfc="white", mec=FAINT, ms=4.5, label="ceiling at the claim"),
        Line2D([], [], ls="none", marker="|", mec=FAINT, ms=8, mew=1.2, label="ceiling, all right"),
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=5, frameon=False, fontsize=7.8,
        handlelength=1.1, handletextpad=0.5, columnspacing=1.7, borderaxespad=0.2,
    )  # fmt: skip


def score_distributions(histograms: Sequence[Histogram]) -> Figure:
    """Scores of canaries that were in and that were out, one panel per family, in common bins."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(histograms), 2.4)
        for axes, shown in zip(panels, histograms, strict=True):
            axes.stairs(shown.outside, shown.edges, fill=True, color=OTHER, alpha=0.55, label=f"out ({shown.others:,})")
            axes.stairs(shown.inside, shown.edges, color=MEMBER, lw=1.7, label=f"in ({shown.members:,})")
            axes.set_title(shown.canaries, loc="left", fontsize=9.5, weight="bold", parse_math=False)
            axes.set_xlabel("score (higher: the attack says in)", loc="left")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _percentage(v)))
            axes.legend(frameon=False, fontsize=8, handlelength=1.3)
        panels[0].set_ylabel("share of scores per bin")
    return figure


def roc_curves(bands: Sequence[RocBand], cross: Mapping[str, RocBand]) -> Figure:
    """Log-log ROC per family with its interval, the diagonal, and what the claim forbids.

    Args:
        bands: the tested scores.
        cross: by family, every model as target with the others as its shadows; drawn dashed, carries no bound.
    """
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(bands), 3.3)
        for axes, band in zip(panels, bands, strict=True):
            _roc_panel(axes, band, cross.get(band.canaries))
        panels[0].set_ylabel("true positive rate")
        _shared_legend(figure, panels)
    return figure


def _roc_panel(axes: Axes, band: RocBand, cross: RocBand | None) -> None:
    left = band.smallest_fpr / 2
    at = np.maximum(band.fpr, left)
    if band.allowed is not None:
        fpr, tpr = band.allowed
        axes.fill_between(fpr, np.maximum(tpr, left), 1, color=MEMBER, alpha=0.13, lw=0, zorder=0)
        axes.plot(fpr, np.maximum(tpr, left), color=MEMBER, lw=1.2, label="most that the claim allows")
    axes.plot([left, 1], [left, 1], color=FAINT, lw=0.8, ls=(0, (1, 2)), label="guessing")
    axes.axvline(band.smallest_fpr, color=FAINT, lw=0.8, ls=(0, (4, 3)), label="smallest resolvable FPR")
    floor = np.maximum(band.low, left)
    axes.fill_between(at, floor, band.high, step="post", color=SHOWN, alpha=0.22, lw=0, label="95 %, pointwise")
    if cross is not None:
        shown = np.maximum(cross.fpr, left), np.maximum(cross.tpr, left)
        axes.plot(*shown, color=INK, lw=1.0, ls=(0, (5, 2)), drawstyle="steps-post", label="each model as target")
    axes.plot(at, np.maximum(band.tpr, left), color=SHOWN, lw=1.7, drawstyle="steps-post", label="attack")
    axes.set(xscale="log", yscale="log", xlim=(left, 1), ylim=(left, 1.15), aspect="equal")
    axes.set_title(band.canaries, loc="left", fontsize=9.5, weight="bold", parse_math=False)
    axes.set_xlabel("false positive rate", loc="left")
    _percent_ticks(axes, left)


def _shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, at the right; an entry that any panel has is named once."""
    named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(named.values()), list(named), loc="outside right upper", frameon=False, fontsize=7.8, handlelength=1.8
    )


def _percent_ticks(axes: Axes, left: float) -> None:
    ticks = [10.0**k for k in range(-6, 1) if 10.0**k >= left]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: _percentage(v)))


def _percentage(value: float) -> str:
    return f"{100 * value:.6g} %"


def _panels(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    """Panels in rows of two; a single one takes the left half, so that all figures have one scale."""
    rows = max(-(-count // 2), 1)
    figure = _canvas(height * rows, layout="constrained")
    grid = np.atleast_1d(figure.subplots(rows, 2)).ravel()
    for unused in grid[count:]:
        unused.remove()
    return figure, list(grid[:count])


def _bands(entry: TrainerAudit) -> list[RocBand]:
    return [roc_band(name, obs, entry.audit.claim) for name, obs in entry.observations.items()]


def _cross(entry: TrainerAudit) -> dict[str, RocBand]:
    return {name: roc_band(name, obs) for name, obs in entry.cross.items()}
