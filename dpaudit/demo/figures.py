"""The four views and the price, drawn. Everything drawn is in the result; no global state is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from ..attacks.metrics import Rate
from ..records import FloatArray
from ..report import wording as w
from ..report.figures import COLOURS, FAINT, INK, MEMBER, OTHER, RULE, SHOWN, STYLE
from .classroom import CLUBS, HOBBIES
from .facts import histogram
from .mechanism import ANGLES
from .outcome import DemoResult, LevelResult, StudentAudit
from .words import share

WIDTH = 9.0
KNITTER, ORDINARY, CROWD, LINE = MEMBER, SHOWN, "#a9b3bd", "#b3122f"
STUDENT = {"knitter": KNITTER, "ordinary": ORDINARY}
_DASH = (0, (4, 2.5))


def draw(result: DemoResult) -> dict[str, Figure]:
    """All figures by file name."""
    views: dict[str, Callable[[DemoResult], Figure]] = {
        "1-source": source,
        "2-pipeline": pipeline,
        "3-ledger": ledger,
        "4-terminal-scores": scores,
        "4-terminal-rates": rates,
        "4-terminal-epsilon": epsilon,
        "5-price": price,
    }
    with matplotlib.rc_context(STYLE):
        return {name: view(result) for name, view in views.items()}


def source(result: DemoResult) -> Figure:
    """The class as arrows, its odd one out, and the red line."""
    step, row = result.first_step, result.classroom.knitter.row
    figure, (axes,) = _panels(1, 1, 4.5, width=6.6)
    ring = 1.04 * _reach(np.delete(step.hobbies, row, axis=0))
    _arrow_map(axes, result, step.hobbies, side=1.5 * ring, down=1.15 * ring)
    if step.hobby_radius is not None:
        _red_line(axes, step.hobby_radius)
    _beside(axes, step.hobbies[row], "the knitter")
    _compass(axes, ring)
    handles = [
        Line2D([], [], color=ORDINARY, lw=2.2, label=result.classroom.ordinary.name),
        Line2D([], [], color=CROWD, lw=1.4, label="everyone else"),
        Line2D([], [], color=LINE, lw=1.4, ls=_DASH, label="the red line: what reaches\npast it is clipped at step 1"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1.0), frameon=False, fontsize=8.5)
    return figure


def pipeline(result: DemoResult) -> Figure:
    """Gradients of step 1 before and after the clip, and what noise does to the difference one student makes."""
    step, row = result.first_step, result.classroom.knitter.row
    figure, panels = _panels(1, 3, 3.15, ratios=(1, 1, 1.3))
    side = 1.05 * float(np.abs(step.raw[:, 0]).max())
    down = 1.08 * float(-step.raw[:, 1].min())
    for axes, tips, title in ((panels[0], step.raw, "gradients"), (panels[1], step.clipped, "clipped")):
        _arrow_map(axes, result, tips, side=side, down=down, up=1.06 * float(step.raw[:, 1].max()))
        _red_line(axes, step.clip_norm)
        _beside(axes, tips[row], f"{_reach(tips[[row]]) / step.clip_norm:.2f} C")
        _title(axes, title)
    _noise_hills(panels[2], result)
    _title(panels[2], "noise on one step's sum")
    return figure


def ledger(result: DemoResult) -> Figure:
    """ε spent against steps, by the accountant."""
    figure, (axes,) = _panels(1, 1, 2.7, width=6.2)
    styles = ("-", (0, (6, 2)), (0, (2, 1.5)))
    last = 0
    for entry, style in zip(result.private, styles, strict=True):
        steps, spent = zip(*entry.level.ledger, strict=True)
        last = steps[-1]
        axes.plot(steps, spent, color=INK, lw=1.6, ls=style)
        axes.plot(steps[-1:], spent[-1:], "o", color=INK, ms=4.5, clip_on=False)
        noise = getattr(entry.level.trainer, "noise_multiplier", 0.0)
        axes.annotate(f"ε = {w.at_most(entry.level.epsilon)} · noise {noise:.2f} C", (steps[-1], spent[-1]),
                      xytext=(8, 0), textcoords="offset points", va="center", fontsize=8.5)  # fmt: skip
    axes.set(xlim=(1, last), ylim=(0, None), xticks=[1, *range(10, last + 1, 10)])
    axes.set_xlabel("steps of training", loc="left")
    axes.set_ylabel(f"ε spent, at δ = {w.delta(result.delta)}")
    _grid(axes)
    return figure


def scores(result: DemoResult) -> Figure:
    """What the attacker sees: score distributions with and without each student, per level."""
    rows = len(result.levels)
    figure, panels = _panels(rows, 2, 1.55 * rows + 0.2)
    for number, entry in enumerate(result.levels):
        for axes, found in zip(panels[2 * number : 2 * number + 2], entry.students, strict=True):
            _score_panel(axes, found)
            if number == 0:
                axes.set_title(found.student.name, loc="left", fontsize=10, weight="bold",
                               color=STUDENT[found.student.role], pad=12)  # fmt: skip
        panels[2 * number].set_ylabel(entry.level.title.replace(", ", "\n"), rotation=0, ha="right", va="center",
                                      fontsize=9, labelpad=10, weight="bold")  # fmt: skip
    for axes in panels[-2:]:
        axes.set_xlabel("score (higher: the attacker says “in”)", loc="left")
    handles = [
        Patch(color=OTHER, alpha=0.6, label="trained without the student"),
        *(Line2D([], [], color=c, lw=1.6, label=f"trained with {n}") for c, n in _names(result)),
        Line2D([], [], color=INK, lw=1.0, ls=_DASH, label="threshold"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5, handlelength=1.5)
    return figure


def rates(result: DemoResult) -> Figure:
    """Pairs told apart, and true and false positive rates, with exact intervals."""
    figure, panels = _panels(1, 3, 2.75, ratios=(1.0, 1.0, 1.0))
    _title(panels[0], "pairs told apart")
    for found_of, colour, shift in ((_knitter, KNITTER, 0.13), (_ordinary, ORDINARY, -0.13)):
        _whiskers(panels[0], [found_of(e).pairs for e in result.levels], colour, shift)
    panels[0].axvline(0.5, color=FAINT, lw=0.9, ls=(0, (1, 2)))
    panels[0].text(0.49, -len(result.levels) + 0.47, "guessing", color=FAINT, fontsize=7.5, ha="right", va="bottom")
    for axes, found_of, colour in ((panels[1], _knitter, KNITTER), (panels[2], _ordinary, ORDINARY)):
        _title(axes, f"TPR ● FPR ○ · {found_of(result.plain).student.name}", colour)
        _whiskers(axes, [found_of(e).tpr for e in result.levels], colour, 0.13)
        _whiskers(axes, [found_of(e).fpr for e in result.levels], colour, -0.13, hollow=True)
    for axes in panels:
        _level_rows(axes, result.levels, labelled=axes is panels[0])
        axes.set(xlim=(-0.03, 1.03))
        axes.xaxis.set_major_locator(MultipleLocator(0.25))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f} %"))
    handles = [Line2D([], [], color=c, marker="o", ms=5, label=n) for c, n in _names(result)]
    panels[0].legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False,
                     fontsize=8, columnspacing=1.2)  # fmt: skip
    return figure


def epsilon(result: DemoResult) -> Figure:
    """What the attack shows and what the accountant promises, on one axis of ε."""
    figure, (axes,) = _panels(1, 1, 3.3)
    finite = [v for e in result.levels for s in e.students for v in (s.audit.lower, s.audit.upper) if v is not None]
    top = 1.12 * max(1.0, *(v for v in finite if np.isfinite(v)))
    for number, entry in enumerate(result.levels):
        for found, shift in zip(entry.students, (0.19, -0.19), strict=True):
            _epsilon_row(axes, found, -number + shift, top)
        _promise(axes, entry, -number)
    _level_rows(axes, result.levels)
    axes.set(xlim=(0, top))
    axes.set_xlabel(f"ε in nats at δ = {w.delta(result.delta)} (less is more private)", loc="left")
    handles = [
        *(Patch(color=c, label=f"shown on {n}") for c, n in _names(result)),
        Line2D([], [], ls="none", marker="|", mec=INK, ms=12, mew=2.6, label="accountant's ε"),
        Line2D([], [], ls="none", marker="D", mfc="white", mec=FAINT, ms=4.5, label="ceiling at the claim"),
        Line2D([], [], ls="none", marker="|", mec=FAINT, ms=8, mew=1.2, label="ceiling, all right"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.46, -0.17), ncols=5, frameon=False, fontsize=8,
                handlelength=1.1, handletextpad=0.5, columnspacing=1.6)  # fmt: skip
    return figure


def price(result: DemoResult) -> Figure:
    """Accuracy on fresh students: mean and central 90 % of models."""
    figure, (axes,) = _panels(1, 1, 2.2, width=6.2)
    for number, entry in enumerate(result.levels):
        mean, low, high = (float(v or 0.0) for v in (entry.accuracy.mean, entry.accuracy.low, entry.accuracy.high))
        axes.plot([low, high], [-number, -number], color=INK, lw=5, alpha=0.22, solid_capstyle="butt")
        axes.plot([mean], [-number], "o", color=INK, ms=6)
        axes.text(mean, -number + 0.2, w.percent(mean), ha="center", va="bottom", fontsize=8.5, weight="bold")
    chance = 1 / len(CLUBS)
    axes.axvline(chance, color=FAINT, lw=0.9, ls=(0, (1, 2)))
    axes.text(chance + 0.008, -len(result.levels) + 0.5, "guessing", color=FAINT, fontsize=7.5, va="bottom")
    _level_rows(axes, result.levels)
    axes.set(xlim=(0.2, 1.0))
    axes.set_xlabel("accuracy on fresh students; bar: central 90 % of models", loc="left")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f} %"))
    return figure


def _panels(
    rows: int, columns: int, height: float, *, width: float = WIDTH, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, width_ratios=ratios)
    return figure, list(grid.ravel())


def _title(axes: Axes, text: str, colour: str = INK) -> None:
    axes.set_title(text, loc="left", fontsize=9.5, weight="bold", color=colour)


def _grid(axes: Axes) -> None:
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)


def _reach(tips: FloatArray) -> float:
    return float(np.linalg.norm(tips, axis=1).max())


def _arrow_map(
    axes: Axes, result: DemoResult, tips: FloatArray, *, side: float, down: float, up: float | None = None
) -> None:
    """All arrows from one origin, true to scale; the two under test on top."""
    room = result.classroom
    special = {room.knitter.row: (KNITTER, 0.030), room.ordinary.row: (ORDINARY, 0.026)}
    rest = [i for i in range(len(tips)) if i not in special]
    _arrows(axes, tips[rest], CROWD, 0.011)
    for row, (colour, width) in special.items():
        _arrows(axes, tips[[row]], colour, width)
    axes.set(xlim=(-side, side), ylim=(-down, up or 1.06 * _reach(tips)), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _beside(axes: Axes, tip: FloatArray, words: str) -> None:
    """A label beside the tip of the knitter's arrow."""
    axes.annotate(
        words, (float(tip[0]), float(tip[1])), xytext=(7, 0), textcoords="offset points", color=KNITTER, weight="bold",
        fontsize=9, va="bottom",
    )  # fmt: skip


def _arrows(axes: Axes, tips: FloatArray, colour: str, width: float) -> None:
    """Arrows from the origin; ``width`` in inches."""
    zero = np.zeros(len(tips))
    axes.quiver(zero, zero, tips[:, 0], tips[:, 1], color=colour, angles="xy", scale_units="xy", scale=1, width=width,
                units="inches", headwidth=3.6, headlength=4.4, headaxislength=4.0, minlength=0, zorder=3)  # fmt: skip


def _red_line(axes: Axes, radius: float) -> None:
    axes.add_patch(Circle((0, 0), radius, fill=False, color=LINE, lw=1.4, ls=_DASH, zorder=4))


def _compass(axes: Axes, at: float) -> None:
    """Names of the hobbies where they point."""
    for name, angle in zip(HOBBIES, ANGLES, strict=True):
        x, y = np.cos(angle), np.sin(angle)
        if y > 0.5:  # the knitter's own label says it
            continue
        side = "center" if abs(x) < 0.4 else "left" if x > 0 else "right"
        axes.text(at * x, at * y - 0.06, name, ha=side, va="center" if abs(y) < 0.3 else "top", fontsize=8,
                  color=FAINT)  # fmt: skip


def _noise_hills(axes: Axes, result: DemoResult) -> None:
    """One step's sum along the knitter's clipped gradient, without and with the knitter, in units of C."""
    step, row = result.first_step, result.classroom.knitter.row
    gap = float(step.clipped_norms[row]) / step.clip_norm
    raw = float(step.norms[row]) / step.clip_norm
    noises = [float(getattr(e.level.trainer, "noise_multiplier", 0.0)) for e in result.private]
    reach = min(2.2 * max(noises), 8.0)
    at = np.linspace(-reach, reach + gap, 241)
    axes.vlines([0.0], 0, 0.72, color=OTHER, lw=3)
    axes.vlines([raw], 0, 0.72, color=KNITTER, lw=2)
    for number, noise in enumerate(noises, 1):
        without, present = (0.72 * np.exp(-0.5 * ((at - m) / noise) ** 2) - number for m in (0.0, gap))
        axes.fill_between(at, without, -number, color=OTHER, alpha=0.5, lw=0)
        axes.plot(at, present, color=KNITTER, lw=1.6)
    for number in range(len(noises) + 1):
        axes.axhline(-number, color=FAINT, lw=0.6)
    _level_rows(axes, result.levels, at=0.3)
    axes.set(xlim=(at[0], at[-1]), ylim=(-len(noises) - 0.05, 1.25))
    axes.set_xlabel("along the knitter's gradient, in units of C", loc="left")
    handles = [Patch(color=OTHER, alpha=0.6, label="without"), Line2D([], [], color=KNITTER, lw=1.6, label="with")]
    axes.legend(handles=handles, loc="upper right", ncols=2, frameon=False, fontsize=8, handlelength=1.2,
                borderaxespad=0.1)  # fmt: skip


def _score_panel(axes: Axes, found: StudentAudit) -> None:
    edges, inside, outside = histogram(found)
    high = float(max(inside.max(), outside.max()))
    axes.stairs(outside, edges, fill=True, color=OTHER, alpha=0.5)
    axes.stairs(inside, edges, color=STUDENT[found.student.role], lw=1.6)
    if edges[0] <= found.threshold <= edges[-1]:
        axes.plot([found.threshold] * 2, [0, 1.12 * high], color=INK, lw=1.0, ls=_DASH)
    axes.set(ylim=(0, 1.45 * high), yticks=[], xlim=(edges[0], edges[-1]))
    axes.spines["left"].set_visible(False)
    lower = w.at_least(found.audit.lower)
    words = f"TPR {share(found.tpr)} · FPR {share(found.fpr)} · shown ε ≥ {lower}"
    axes.text(0.0, 0.985, words, transform=axes.transAxes, va="top", ha="left", fontsize=8, color=INK)


def _whiskers(axes: Axes, found: Sequence[Rate], colour: str, shift: float, *, hollow: bool = False) -> None:
    for number, rate in enumerate(found):
        y = -number + shift
        axes.plot([rate.low, rate.high], [y, y], color=colour, lw=1.6, solid_capstyle="butt")
        axes.plot([rate.value], [y], "o", mfc="white" if hollow else colour, mec=colour, mew=1.3, ms=5, zorder=3)


def _level_rows(axes: Axes, levels: Sequence[LevelResult], *, labelled: bool = True, at: float = 0.0) -> None:
    """One row per level, from the top."""
    axes.set_ylim(-len(levels) + 0.45, 0.6)
    axes.set_yticks([at - i for i in range(len(levels))])
    axes.set_yticklabels([e.level.title for e in levels] if labelled else [""] * len(levels), color=INK, fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _epsilon_row(axes: Axes, found: StudentAudit, y: float, top: float) -> None:
    colour, lower = STUDENT[found.student.role], min(found.audit.lower, top)
    axes.plot([0, top], [y, y], color=RULE, lw=0.7, zorder=0)
    axes.barh(y, lower, height=0.24, color=colour, zorder=2)
    if found.bound.at_claim is not None and found.bound.at_claim <= top:
        axes.plot([found.bound.at_claim], [y], ls="none", marker="D", mfc="white", mec=FAINT, ms=4.0, zorder=5,
                  clip_on=False)  # fmt: skip
    if found.bound.perfect <= top:
        axes.plot([found.bound.perfect], [y], ls="none", marker="|", mec=FAINT, ms=8.0, mew=1.2, zorder=3)
    ceiling = found.bound.at_claim or 0.0
    label = ceiling if lower <= ceiling <= lower + 0.09 * top else lower  # not across the diamond
    axes.text(
        label + 0.012 * top, y, f"≥ {w.at_least(found.audit.lower)}", va="center", fontsize=8, weight="bold",
        color=colour, zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip
    _verdict(axes, found, y)


def _verdict(axes: Axes, found: StudentAudit, y: float) -> None:
    verdict = found.audit.verdict.value
    word, _, sign = w.VERDICTS[verdict]
    axes.text(1.01, y, f"{sign} {word}", transform=axes.get_yaxis_transform(), va="center", fontsize=8.5,
              weight="bold", color=COLOURS[verdict])  # fmt: skip


def _promise(axes: Axes, entry: LevelResult, y: float) -> None:
    if entry.level.epsilon is not None:
        axes.plot([entry.level.epsilon] * 2, [y - 0.36, y + 0.36], color=INK, lw=2.6, zorder=5, solid_capstyle="butt")
        axes.annotate(f"≤ {w.at_most(entry.level.epsilon)}", (entry.level.epsilon, y), xytext=(5, 0), va="center",
                      textcoords="offset points", fontsize=8.5, weight="bold", zorder=6)  # fmt: skip


def _names(result: DemoResult) -> list[tuple[str, str]]:
    return [(STUDENT[s.role], s.name) for s in result.classroom.students]


def _knitter(entry: LevelResult) -> StudentAudit:
    return entry.knitter


def _ordinary(entry: LevelResult) -> StudentAudit:
    return entry.ordinary
