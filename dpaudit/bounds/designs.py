"""Which designs a bound is valid for, and the coins that a one-run bound may count."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ..errors import DesignError
from ..records import BoolArray, Design, Observations
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


def tested_adjacency(design: Design, shape: tuple[int, int]) -> str:
    """The neighbouring relation that a flipped coin realises; fixed counts move a second canary the other way."""
    if design.coins != "fixed" or shape[1] == 1:
        return design.adjacency
    return "replace-one" if design.adjacency == "add-remove" else f"two {design.adjacency}"


def digest(*parts: np.ndarray) -> int:
    """A number drawn from the values of arrays.

    A random part of the observations must be drawn anew for new observations: under one seed for all, the number of
    heads or the ranks that fall into a half would always be the same ones, and no bound would hold for that seed.
    """
    content = b"|".join(np.ascontiguousarray(part + 0.0).tobytes() for part in parts)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def require_runs(obs: Observations, method: str) -> None:
    """Two-world bounds: independent runs, and every score from its own run alone."""
    if obs.design.calibration == "cross":
        raise DesignError(
            f"{method} needs scores that depend on their own run alone, or on runs set aside; "
            'got Design(calibration="cross")'
        )
    if obs.design.coins == "worlds" and obs.shape[1] > 1:
        raise DesignError(
            f'Design(coins="worlds") is for one canary, got {obs.shape[1]}; canaries that come and go together are a '
            "group, not neighbours"
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
    scores, member, present = in_order(obs)
    rng = np.random.default_rng([THINNING_SEED, digest(scores, member, present)])
    keep = np.zeros(member.shape, bool)
    for row, inside_row in enumerate(member):
        inside, outside = np.flatnonzero(inside_row), np.flatnonzero(~inside_row)
        size = min(len(inside), len(outside))
        heads = rng.binomial(size, 0.5)
        keep[row, rng.choice(inside, heads, replace=False)] = True
        keep[row, rng.choice(outside, size - heads, replace=False)] = True
    if keep.sum() < 2:
        raise DesignError(f"fixed counts leave {keep.sum()} fair coins: runs need both members and non-members")
    note = f"thinned from {obs.coins} fixed to {int(keep.sum())} fair coins (seed {THINNING_SEED} and the scores)"
    adjacency = tested_adjacency(obs.design, obs.shape)
    return Coins(scores[keep], member[keep], present[keep], adjacency, (note,))


def in_order(obs: Observations) -> tuple[Array, BoolArray, BoolArray]:
    """Scores, membership and presence with each run's canaries by score, and the runs by those: no order of rows or
    columns matters to what is drawn from them.
    """
    assert obs.present is not None
    scores = np.where(obs.present, obs.scores, -np.inf)
    columns = np.lexsort((obs.member, scores), axis=1)
    scores, member, present = (np.take_along_axis(a, columns, axis=1) for a in (scores, obs.member, obs.present))
    rows = np.lexsort(np.concatenate([member, scores], axis=1).T)
    return scores[rows], member[rows], present[rows]
