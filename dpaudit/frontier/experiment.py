"""The whole exploration: train the grid, choose, train the chosen point afresh, count the cost, write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import check
from ..errors import need_extra
from ..runner import environment
from ..spec import Spec, load_spec
from ..store import RunFolder
from .choosing import budget_rule, judged, measure, measure_halves, within_rule
from .costs import search_costs
from .grid import DEFAULT_REPEATS, DEFAULT_WITHIN, STACKS, Grid, make_grid
from .outcome import Frontier, Point, Suggestion
from .training import Progress, Work


def explore(
    source: str | Path | dict[str, Any] | Spec,
    out: str | Path,
    *,
    noise: Sequence[float] | None = None,
    epsilon: Sequence[float] | None = None,
    clip: Sequence[float] | None = None,
    repeats: int = DEFAULT_REPEATS,
    delta: float | None = None,
    within: float = DEFAULT_WITHIN,
    budget: float | None = None,
    trainer: str | None = None,
    reference: bool = True,
    fresh: bool = False,
    workers: int = STACKS,
    progress: Progress | None = None,
    command: str = "",
) -> Frontier:
    """Accuracy against ε over a grid of noise multipliers and clip norms, and a suggestion with its cost.

    All training records are members of every model. Every model has a seed, and so batches and noise, of its own:
    noise that two models share would cancel in their difference, and no composition would cover that. Choices look
    at one half of the test records; accuracies to be quoted come from the other half. Finished work is kept in
    ``out``; the same call goes on where it was stopped, or repeats the result.

    Args:
        source: a spec, as :func:`dpaudit.run` takes it. Data, seed, model, learning rate, steps and sampling rate are
            those of its DP-SGD trainer; its canaries and tests are not used.
        out: folder for ``release/`` and ``retained/``.
        noise: noise multipliers of the grid, above 0.
        epsilon: instead of ``noise``, target ε in nats that noise multipliers are calibrated to; by default 0.5, 1, 2,
            4 and 8.
        clip: clip norms of the grid.
        repeats: models per point, at least 2.
        delta: the δ of every ε; by default the spec's.
        within: the suggestion is the smallest ε whose accuracy is at most this far below the best one.
        budget: suggest the best accuracy at an ε of at most this, too.
        trainer: name of the spec's DP-SGD trainer; by default its first.
        reference: also train without privacy: the spec's SGD trainer of the same widths, or the same settings
            unclipped and without noise. Those models have no privacy at all.
        fresh: forget what an earlier exploration left in ``out``.
        workers: stacks that are trained side by side; the result does not depend on it.
        progress: called with (models done, models in all, what is being done).
        command: what to print as the command that repeats this.

    Raises:
        InputError: bad input, or ``out`` holds another plan. Nothing is written then.
        MissingExtra: torch or scikit-learn is not installed.
    """
    workers = check.integer("workers", workers, 1)
    spec = load_spec(source)
    _require_torch()
    grid = make_grid(
        spec, noise=noise, epsilon=epsilon, clip=clip, repeats=repeats, delta=delta, within=within, budget=budget,
        trainer=trainer, reference=reference,
    )  # fmt: skip
    folder = RunFolder(out)
    folder.admit(grid.document(), fresh)
    with folder.locked():
        if fresh:
            folder.clear()
        if folder.plan() is None:
            folder.begin(grid.document())
        found = _found(grid, Work(grid, folder, workers, progress), command or f"dpaudit frontier {spec.name}")
        _write(found, folder.path)
        return found


def _write(found: Frontier, out: Path) -> None:
    from .writing import write

    write(found, out)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - only to fail early
    except ImportError:
        raise need_extra("torch") from None


def _found(grid: Grid, work: Work, command: str) -> Frontier:
    accuracy = work.accuracy(grid.grid_units(), "grid")
    groups = accuracy.reshape(len(grid.points), grid.repeats, 2)
    points = judged(grid, [measure_halves(grid, group) for group in groups])
    plain = grid.reference_units()
    reference = measure_halves(grid, work.accuracy(plain, "without privacy")) if plain else None
    suggestions = _suggestions(grid, points, work)
    chosen = dict.fromkeys(s.point for s in suggestions)
    levels = list(dict.fromkeys(points[i].level for i in chosen))
    costs = search_costs(grid, levels, len(chosen))
    return Frontier(grid, points, reference, suggestions, costs, command, environment(grid.code))


def _suggestions(grid: Grid, points: Sequence[Point], work: Work) -> tuple[Suggestion, ...]:
    """By each rule a point, trained afresh; the same point is trained once."""
    chosen = {"within": within_rule(points, grid.within)}
    if grid.budget is not None:
        chosen["budget"] = budget_rule(points, grid.budget)
    numbers = {rule: point for rule, point in chosen.items() if point is not None}
    half = grid.reporting
    fresh = {
        point: measure(np.asarray(work.accuracy(grid.fresh_units(point), "suggestion")[:, 1]), half.stop - half.start)
        for point in sorted(set(numbers.values()))
    }
    return tuple(Suggestion(rule, point, fresh[point]) for rule, point in numbers.items())
