"""From accuracies to a suggestion, by rules that are fixed before anything is trained.

All choices look at the choosing half of the test records alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from ..records import FloatArray
from .grid import Grid
from .outcome import CONFIDENCE, Halves, Measured, Point


def measure(accuracy: FloatArray, records: int) -> Measured:
    """Mean and Student's t-interval over models.

    Args:
        accuracy: one share per model, shape ``(models,)``, at least two; NaN where the model diverged.
        records: how many test records the shares are of.

    >>> found = measure(np.array([0.8, 0.9]), 100)
    >>> round(found.mean, 3), round(found.low, 3), found.high
    (0.85, 0.215, 1.0)
    """
    diverged = int(np.isnan(accuracy).sum())
    if diverged:
        return Measured(None, None, None, len(accuracy), diverged, records)
    mean = float(accuracy.mean())
    error = float(accuracy.std(ddof=1)) / math.sqrt(len(accuracy))
    reach = float(stdtrit(len(accuracy) - 1, (1 + CONFIDENCE) / 2)) * error
    return Measured(mean, max(0.0, mean - reach), min(1.0, mean + reach), len(accuracy), 0, records)


def measure_halves(grid: Grid, accuracy: FloatArray) -> Halves:
    """Both halves of an array of shape ``(models, 2)``."""
    sizes = [half.stop - half.start for half in (grid.choosing, grid.reporting)]
    choosing, reporting = (measure(column, size) for column, size in zip(accuracy.T, sizes, strict=True))
    return Halves(choosing, reporting)


def judged(grid: Grid, found: Sequence[Halves]) -> tuple[Point, ...]:
    """The grid's points with what was found at them, in order."""
    means = [_mean(halves) for halves in found]
    best = best_of_each_epsilon(grid, means)
    front = non_dominated([grid.points[i][0].epsilon for i in best], [means[i] for i in best])
    leading = {best[i] for i in front}
    return tuple(
        Point(level, clip_norm, halves, i in best, i in leading)
        for i, ((level, clip_norm), halves) in enumerate(zip(grid.points, found, strict=True))
    )


def best_of_each_epsilon(grid: Grid, means: Sequence[float]) -> list[int]:
    """The best point of every level, the one with the smaller clip norm of equals; none where all diverged.

    Args:
        means: accuracy of each point; −∞ where it has none.
    """
    width, best = len(grid.clip_norms), []
    for start in range(0, len(means), width):
        at = max(range(start, start + width), key=lambda i: (means[i], -i))
        if math.isfinite(means[at]):
            best.append(at)
    return best


def non_dominated(epsilons: Sequence[float], means: Sequence[float]) -> list[int]:
    """Which points no other one beats: a larger ε must come with a larger accuracy.

    Args:
        epsilons: ascending.
        means: accuracies in that order.

    >>> non_dominated([1.0, 2.0, 4.0, 8.0], [0.7, 0.7, 0.9, 0.8])
    [0, 2]
    """
    front: list[int] = []
    for i in range(len(epsilons)):
        if not front or means[i] > means[front[-1]]:
            front.append(i)
    return front


def within_rule(points: Sequence[Point], within: float) -> int | None:
    """The smallest ε whose best accuracy is within ``within`` of the best one of all; None if there is no accuracy."""
    best = [i for i, point in enumerate(points) if point.best]
    if not best:
        return None
    least = max(_mean(points[i].accuracy) for i in best) - within
    return next(i for i in best if _mean(points[i].accuracy) >= least - 1e-12)


def budget_rule(points: Sequence[Point], budget: float) -> int | None:
    """The best accuracy among points whose ε is at most ``budget``; the smaller ε of equals."""
    allowed = [i for i, point in enumerate(points) if point.best and point.level.epsilon <= budget]
    return max(allowed, key=lambda i: (_mean(points[i].accuracy), -i), default=None)


def _mean(halves: Halves) -> float:
    mean = halves.choosing.mean
    return -math.inf if mean is None else mean
