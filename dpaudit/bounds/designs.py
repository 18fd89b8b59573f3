"""Which designs a bound is valid for, and the coins that a one-run bound may count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import DesignError
from ..records import BoolArray, Observations
from .tails import Array

THINNING_SEED = 0


@dataclass(frozen=True, eq=False)
class Coins:
    """Independent fair coins with their scores, pooled over runs and canaries, all 1-D.

    ``present`` is False for coins that were flipped but whose pair was never scored: counted, never guessed.
    """

    scores: Array
    member: BoolArray
    present: BoolArray
    adjacency: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.member)


def require_runs(obs: Observations, method: str) -> None:
    """Two-world bounds: independent runs, and every score from its own run alone."""
    if obs.design.calibration == "cross":
        raise DesignError(
            f"{method} needs scores that depend on their own run alone, or on runs set aside; "
            'got Design(calibration="cross")'
        )
    if obs.shape[0] < 2:
        raise DesignError(
            f"{method} is valid for independent runs with and without a canary (designs worlds, fair, fixed), "
            f"got 1 run of {obs.shape[1]} canaries; one_run and one_run_fdp take that"
        )


def fair_coins(obs: Observations, method: str) -> Coins:
    """The coins that a one-run bound may count; fixed counts are thinned to fair coins first.

    Raises:
        DesignError: two worlds, unfair coins, or scores that depend on the coins of other tested runs.
    """
    design = obs.design
    if design.calibration == "cross":
        raise DesignError(
            f"{method} needs scores that depend on no coin of a tested run; "
            'got Design(calibration="cross"), so set shadow runs aside'
        )
    if design.coins == "worlds":
        raise DesignError(f"{method} is valid for designs fair, fixed and unknown, got worlds; use clopper_pearson")
    if design.inclusion != 0.5 and design.coins != "fixed":
        raise DesignError(f"{method} needs coins with inclusion 0.5, got {design.inclusion:g}")
    if design.coins == "fixed":
        return _thinned(obs)
    assert obs.present is not None
    notes = ("conditional: holds only if membership fell by independent fair coins",) * (design.coins == "unknown")
    return Coins(obs.scores.ravel(), obs.member.ravel(), obs.present.ravel(), design.adjacency, notes)


def _thinned(obs: Observations) -> Coins:
    """From fixed counts to fair coins: in every run, keep Bin(n, ½) members and n minus that many others.

    With n the smaller of the two counts, every pattern of the kept coins is equally likely. Flipping a kept coin moves
    one of the others the opposite way, since the totals are fixed: the pair that is tested is replace-one.
    """
    assert obs.present is not None
    rng = np.random.default_rng(THINNING_SEED)
    keep = np.zeros(obs.member.shape, bool)
    for row, member in enumerate(obs.member):
        inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
        size = min(len(inside), len(outside))
        heads = rng.binomial(size, 0.5)
        keep[row, rng.choice(inside, heads, replace=False)] = True
        keep[row, rng.choice(outside, size - heads, replace=False)] = True
    if not keep.any():
        raise DesignError("fixed counts leave no fair coin: every run needs both members and non-members")
    note = f"thinned from {obs.coins} fixed to {int(keep.sum())} fair coins (seed {THINNING_SEED})"
    return Coins(obs.scores[keep], obs.member[keep], obs.present[keep], "replace-one", (note,))
