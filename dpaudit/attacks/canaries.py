"""Canaries: extra records, each in or out by its own fair coin.

Out means absent. A canary made from a record of the data set takes one that is in nobody's training set, so that both
worlds differ by the canary alone. Sizes, rates and divisors are fixed before the coins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..data import Pool, unused_features
from ..errors import InputError
from ..records import BoolArray, Data

Array = NDArray[np.float32]


@dataclass(frozen=True)
class FarOut:
    """The unusual student: each canary has ``value`` in a feature that nobody else uses, zeros elsewhere.

    Unused input features are taken first, then features are appended. Labels are random.
    """

    count: int
    value: float = 4.0
    name: str = "far-out"

    def __post_init__(self) -> None:
        check.integer("count of far-out canaries", self.count, 1)
        check.positive("value of far-out canaries", self.value)

    @property
    def description(self) -> str:
        """For reports."""
        return f"extra records with {self.value:g} in a feature of their own, zeros elsewhere, random label"


@dataclass(frozen=True)
class Mislabelled:
    """Distinct records of the data set that no model is otherwise trained on, each with a wrong label."""

    count: int
    name: str = "mislabelled"

    def __post_init__(self) -> None:
        check.integer("count of mislabelled canaries", self.count, 1)

    @property
    def description(self) -> str:
        """For reports."""
        return "records held out of everybody's training set, each with a random wrong label"


@dataclass(frozen=True)
class Blank:
    """All-zero records, at most one per label."""

    count: int
    name: str = "blank"

    def __post_init__(self) -> None:
        check.integer("count of blank canaries", self.count, 1)

    @property
    def description(self) -> str:
        """For reports."""
        return "all-zero records, one per label"


@dataclass(frozen=True)
class RandomNoise:
    """Features drawn uniformly between 0 and the largest value of the data; random labels."""

    count: int
    name: str = "random"

    def __post_init__(self) -> None:
        check.integer("count of random canaries", self.count, 1)

    @property
    def description(self) -> str:
        """For reports."""
        return "uniform noise with a random label"


Family = FarOut | Mislabelled | Blank | RandomNoise


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
    made = [_make(f, pool, np.random.default_rng([seed, i])) for i, f in enumerate(families)]
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


_Made = tuple[Array, NDArray[np.int64], tuple[str | None, ...]]


def _make(family: Family, pool: Pool, rng: np.random.Generator) -> _Made:
    """Features (without private columns), labels and source ids of a family's canaries."""
    count, features = family.count, pool.x.shape[1]
    labels = rng.integers(pool.classes, size=count)
    nothing: tuple[str | None, ...] = (None,) * count
    match family:
        case FarOut():
            return np.zeros((count, features), np.float32), labels, nothing
        case RandomNoise():
            top = float(max(np.abs(pool.x).max(), 1e-6))
            return rng.uniform(0, top, (count, features)).astype(np.float32), labels, nothing
        case Blank():
            if count > pool.classes:
                raise InputError(f"count of blank canaries must be at most one per label ({pool.classes}), got {count}")
            return np.zeros((count, features), np.float32), rng.permutation(pool.classes)[:count], nothing
        case Mislabelled():
            return _mislabel(count, pool, rng)


def _mislabel(count: int, pool: Pool, rng: np.random.Generator) -> _Made:
    if count > len(pool.x_spare):
        raise InputError(
            f"count of mislabelled canaries must be at most the {len(pool.x_spare)} records of {pool.name} that are "
            f"neither trained on nor tested on, got {count}"
        )
    chosen = rng.choice(len(pool.x_spare), count, replace=False)
    wrong = (pool.y_spare[chosen] + rng.integers(1, pool.classes, size=count)) % pool.classes
    return pool.x_spare[chosen], wrong, tuple(pool.spare_ids[i] for i in chosen)


def _widen(pool: Pool, families: Sequence[Family], made: Sequence[_Made]) -> tuple[Array, tuple[int, ...]]:
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


def _named(pool: Pool, families: Sequence[Family], made: Sequence[_Made]) -> tuple[Canary, ...]:
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
