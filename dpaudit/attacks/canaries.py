"""Canaries: extra records, each in or out by its own fair coin.

Out means absent. A canary made from a record of the data set takes one that is in nobody's training set, so that both
worlds differ by the canary alone. Sizes, rates and divisors are fixed before the coins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..data import Pool, unused_features
from ..errors import InputError
from ..records import BoolArray, Data
from .families import (
    Blank,
    ClipBKD,
    Family,
    FarOut,
    InsertedText,
    Made,
    Mislabelled,
    OutOfDistribution,
    RandomNoise,
    make,
)

Array = NDArray[np.float32]

__all__ = [
    "Blank",
    "Canary",
    "CanarySet",
    "ClipBKD",
    "Family",
    "FarOut",
    "InsertedText",
    "Mislabelled",
    "OutOfDistribution",
    "RandomNoise",
    "flip_coins",
    "plant",
]


@dataclass(frozen=True)
class Canary:
    """One canary: its name, its family, its row in the data, and the record that it was made from, if any."""

    id: str
    family: str
    row: int
    source: str | None = None


@dataclass(frozen=True, eq=False)
class CanarySet:
    """Data with canaries appended, before any coin is flipped."""

    data: Data
    canaries: tuple[Canary, ...]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the canaries in the data, shape ``(canaries,)``."""
        return np.array([c.row for c in self.canaries], dtype=np.int64)

    def names(self, family: str) -> tuple[str, ...]:
        """Ids of one family's canaries, or of all for ``all``."""
        return tuple(c.id for c in self.canaries if family in ("all", c.family))

    def membership(self, coins: BoolArray) -> BoolArray:
        """Training sets from coins: shape ``(models, records)`` from ``(models, canaries)``; other records are in."""
        member = np.ones((len(coins), len(self.data)), bool)
        member[:, self.rows] = coins
        return member


def plant(pool: Pool, families: Sequence[Family], seed: int) -> CanarySet:
    """Add canaries to a data set.

    Args:
        pool: training records and spare ones that canaries may be made from.
        families: at most one entry per family.
        seed: for labels, noise and the choice of source records.

    Raises:
        InputError: more canaries than spare records or labels, a family named twice, or two identical canaries.
    """
    names = [f.name for f in families]
    if not names or len(set(names)) != len(names):
        raise InputError(f"canaries must name at least one family, each once, got {', '.join(names) or 'none'}")
    made = _all_made(pool, families, seed)
    x, columns = _widen(pool, families, made)
    y = np.concatenate([pool.y, *(labels for _, labels, _ in made)])
    canaries = _named(pool, families, made)
    _refuse_identical(x, y, canaries)
    data = Data(
        x=x,
        y=y,
        classes=pool.classes,
        nominal_size=len(pool.x) + (len(canaries) + 1) // 2,
        x_test=_padded(pool.x_test, x.shape[1]),
        y_test=pool.y_test,
        ids=(*pool.ids, *(c.id for c in canaries)),
        private_columns=columns,
        name=pool.name,
        shape=pool.shape,
    )
    return CanarySet(data, canaries)


def flip_coins(models: int, canaries: int, seed: np.random.SeedSequence) -> BoolArray:
    """Independent fair coins, shape ``(models, canaries)``; each canary's come from a child seed of its own."""
    # Not seed.spawn, which gives other children every time that it is called.
    children = (np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, i)) for i in range(canaries))
    return np.stack([np.random.default_rng(c).random(models) < 0.5 for c in children], axis=1)


def _all_made(pool: Pool, families: Sequence[Family], seed: int) -> list[Made]:
    """The canaries of every family; a record that one was made of is not spare for the next."""
    made: list[Made] = []
    for i, family in enumerate(families):
        made.append(make(family, pool, np.random.default_rng([seed, i])))
        used = np.isin(pool.spare_ids, [source for source in made[-1][2] if source is not None])
        if used.any():
            ids = tuple(name for name, gone in zip(pool.spare_ids, used, strict=True) if not gone)
            pool = replace(pool, x_spare=pool.x_spare[~used], y_spare=pool.y_spare[~used], spare_ids=ids)
    return made


def _widen(pool: Pool, families: Sequence[Family], made: Sequence[Made]) -> tuple[Array, tuple[int, ...]]:
    """All features side by side, with the private columns of far-out canaries filled in."""
    far = [(f, i) for i, f in enumerate(families) if isinstance(f, FarOut)]
    needed = sum(f.count for f, _ in far)
    everything = np.concatenate([pool.x, pool.x_test, pool.x_spare, *(features for features, _, _ in made)])
    free = unused_features(everything)[:needed]
    width = pool.x.shape[1] + needed - len(free)
    columns = (*free, *range(pool.x.shape[1], width))
    x = _padded(np.concatenate([pool.x, *(features for features, _, _ in made)]), width)
    for family, at in far:
        start = len(pool.x) + sum(len(labels) for _, labels, _ in made[:at])
        x[np.arange(start, start + family.count), list(columns)] = family.value
    return x, tuple(columns)


def _padded(x: Array, width: int) -> Array:
    return np.pad(np.asarray(x, np.float32), ((0, 0), (0, width - x.shape[1])))


def _named(pool: Pool, families: Sequence[Family], made: Sequence[Made]) -> tuple[Canary, ...]:
    out: list[Canary] = []
    for family, (_, _, sources) in zip(families, made, strict=True):
        for i, source in enumerate(sources):
            out.append(Canary(f"{family.name}-{i:04d}", family.name, len(pool.x) + len(out), source))
    return tuple(out)


def _refuse_identical(x: Array, y: NDArray[np.int64], canaries: Sequence[Canary]) -> None:
    seen: dict[tuple[bytes, int], str] = {}
    for canary in canaries:
        key = x[canary.row].tobytes(), int(y[canary.row])
        if key in seen:
            raise InputError(
                f"canaries must all differ, got {seen[key]} and {canary.id} with the same features and label"
            )
        seen[key] = canary.id
