"""How a threshold is chosen, and how the choice is paid for. Each policy is valid for what it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .. import check
from ..errors import InputError


@dataclass(frozen=True)
class Fixed:
    """One threshold, chosen before any score was seen. A score above ``threshold`` says "in"."""

    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check.number("threshold", self.threshold, float("-inf"), float("inf")))

    def __str__(self) -> str:
        return f"fixed beforehand at {self.threshold:g}"


@dataclass(frozen=True)
class Split:
    """The threshold is chosen on a random part of the runs and the bound is computed on the others.

    Args:
        fraction: share of the runs that the choice may look at, in (0, 1).
        seed: which runs, together with the scores; recorded, so that the same scores give the same bound, whatever
            the order of the runs.
        direction: choose there, too, whether high scores say "in", or low ones.
    """

    fraction: float = 0.5
    seed: int = 0
    direction: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", check.number("fraction", self.fraction, 0.0, 1.0, ends="()"))
        object.__setattr__(self, "seed", check.integer("seed", self.seed, 0))

    def __str__(self) -> str:
        what = "chosen, with the direction," if self.direction else "chosen"
        return f"{what} on {self.fraction:.0%} of the runs (seed {self.seed}), which the bound does not use"

    @property
    def signs(self) -> tuple[float, ...]:
        """What scores may be multiplied by."""
        return (1.0, -1.0) if self.direction else (1.0,)


@dataclass(frozen=True)
class Bonferroni:
    """The best of a family of thresholds that was fixed beforehand; the significance is divided by its size."""

    thresholds: tuple[float, ...]

    def __init__(self, thresholds: Iterable[float]) -> None:
        values = tuple(check.number("threshold", t, float("-inf"), float("inf")) for t in thresholds)
        if not values:
            raise InputError("thresholds must hold at least one number, got none")
        object.__setattr__(self, "thresholds", values)

    def __str__(self) -> str:
        return f"best of {len(self.thresholds)} fixed beforehand, significance divided by {len(self.thresholds)}"


@dataclass(frozen=True)
class Ranks:
    """The best of several thresholds that are ranks among the scores themselves, fixed beforehand; for two worlds.

    The k-th highest score of the runs without the canary has an exactly known law of false positive rates,
    Beta(k, n − k + 1), and given that score the misses are binomial; likewise the k-th lowest score with the canary. So
    no threshold needs to be known beforehand, and the significance is divided by the number of ranks.

    Args:
        ranks: for both sides, each at least 1; ranks beyond the number of runs are left out (and still paid for).
    """

    ranks: tuple[int, ...] = (1, 4, 16, 64, 256)

    def __init__(self, ranks: Iterable[int] = (1, 4, 16, 64, 256)) -> None:
        values = tuple(check.integer("rank", r, 1) for r in ranks)
        if not values or len(set(values)) != len(values):
            raise InputError(f"ranks must hold different whole numbers, got {values}")
        object.__setattr__(self, "ranks", values)

    def __str__(self) -> str:
        listed = ", ".join(str(r) for r in self.ranks)
        return f"best of ranks {listed} from either end, significance divided by {2 * len(self.ranks)}"


Threshold = Fixed | Split | Bonferroni | Ranks
