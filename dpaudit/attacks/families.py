"""Families of canaries as data: what a canary looks like, and how many there are.

A family is settings. What comes out of it depends on the data set and a seed, never on a coin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..data import Pool, load, unused_features
from ..errors import InputError
from .texts import Secrets, encode

Array = NDArray[np.float32]

_ROWS = 4096  # records whose products are taken at once
_RIDGE = 1e-3  # of the ridge regression, per record


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


@dataclass(frozen=True)
class OutOfDistribution:
    """Records of another data set, or of this one with their features in another order. Labels are random.

    Attributes:
        count: how many.
        source: ``permuted`` takes records that nobody is trained on and shuffles the features of all in one and the
            same way: every pixel's values are ordinary, the image is none. Or another data set, by name or path, as
            :func:`dpaudit.data.load` reads it; images of another size are scaled to this one's by nearest neighbours,
            and values such that both data sets have the same largest one.
        folder: where the files of Fashion-MNIST are, if that is the source.
    """

    count: int
    source: str = "permuted"
    folder: str | None = None
    name: str = "out-of-distribution"

    def __post_init__(self) -> None:
        check.integer("count of out-of-distribution canaries", self.count, 1)
        if not isinstance(self.source, str) or not self.source:
            raise InputError(f"source of out-of-distribution canaries must be 'permuted' or a data set, got "
                             f"{self.source!r}")  # fmt: skip

    @property
    def description(self) -> str:
        """For reports."""
        if self.source == "permuted":
            return "records held out of everybody's training set, their features in another order, random label"
        return "records of another data set with a random label"


@dataclass(frozen=True)
class ClipBKD:
    """Records in directions that the data set has least of (Jagielski, Ullman and Oprea 2020, algorithm 2).

    Clipping shortens what ordinary records do to the model in such a direction less than anything else; a canary's
    gradient is hardly hidden there. The paper plants one such record several times. Here each canary has a direction
    of its own, the unit vectors of features that no record uses first, then the right singular vectors of the training
    records (not centred), least singular value first. It is as long as the training records are on average, times
    ``scale``, and has the label that a ridge regression fitted to the training records likes least for it.
    """

    count: int
    scale: float = 1.0
    name: str = "clipbkd"

    def __post_init__(self) -> None:
        check.integer("count of clipbkd canaries", self.count, 1)
        check.positive("scale of clipbkd canaries", self.scale)

    @property
    def description(self) -> str:
        """For reports."""
        return "records along directions in which the training records vary least, with the least likely label"


@dataclass(frozen=True)
class InsertedText:
    """Secrets among token sequences: texts of one format with random blanks. Labels are random.

    Attributes:
        count: how many.
        secrets: the format, and what its blanks are filled with.
        alphabet: the characters that the data's tokens stand for: token i is the i-th. Texts are filled up with 0.
    """

    count: int
    secrets: Secrets
    alphabet: str
    name: str = "inserted-text"

    def __post_init__(self) -> None:
        check.integer("count of inserted-text canaries", self.count, 1)
        if not isinstance(self.secrets, Secrets):
            raise InputError(f"secrets of inserted-text canaries must be Secrets, got {type(self.secrets).__name__}")

    @property
    def description(self) -> str:
        """For reports."""
        return f"texts like {self.secrets.format!r}, with random symbols in the blanks and a random label"


Family = FarOut | Mislabelled | Blank | RandomNoise | OutOfDistribution | ClipBKD | InsertedText

Made = tuple[Array, NDArray[np.int64], tuple[str | None, ...]]
"""Features, without private columns; labels; and the ids of source records."""


def make(family: Family, pool: Pool, generator: np.random.Generator) -> Made:
    """The canaries of a family.

    Raises:
        InputError: more than the data set has spare records, labels, features or secrets for, or another data set that
            does not fit.
    """
    count, features = family.count, pool.x.shape[1]
    labels = generator.integers(pool.classes, size=count)
    nothing: tuple[str | None, ...] = (None,) * count
    match family:
        case FarOut():
            return np.zeros((count, features), np.float32), labels, nothing
        case RandomNoise():
            top = float(max(np.abs(pool.x).max(), 1e-6))
            return generator.uniform(0, top, (count, features)).astype(np.float32), labels, nothing
        case Blank():
            if count > pool.classes:
                raise InputError(f"count of blank canaries must be at most one per label ({pool.classes}), got {count}")
            return np.zeros((count, features), np.float32), generator.permutation(pool.classes)[:count], nothing
        case Mislabelled():
            chosen = _spare(family, pool, generator)
            wrong = (pool.y_spare[chosen] + generator.integers(1, pool.classes, size=count)) % pool.classes
            return pool.x_spare[chosen], wrong, tuple(pool.spare_ids[i] for i in chosen)
        case OutOfDistribution(source="permuted"):
            chosen = _spare(family, pool, generator)
            order = generator.permutation(features)
            return pool.x_spare[chosen][:, order], labels, tuple(pool.spare_ids[i] for i in chosen)
        case OutOfDistribution():
            x, sources = _other(family, pool, generator)
            return x, labels, sources
        case ClipBKD():
            x, labels = _least(family, pool)
            return x, labels, nothing
        case InsertedText():
            return _inserted(family, pool, generator), labels, nothing


def _spare(family: Mislabelled | OutOfDistribution, pool: Pool, generator: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of spare records, no two the same."""
    if family.count > len(pool.x_spare):
        raise InputError(
            f"count of {family.name} canaries must be at most the {len(pool.x_spare)} records of {pool.name} that are "
            f"neither trained on nor tested on, got {family.count}"
        )
    return generator.choice(len(pool.x_spare), family.count, replace=False)


def _other(
    family: OutOfDistribution, pool: Pool, generator: np.random.Generator
) -> tuple[Array, tuple[str | None, ...]]:
    """Records of another data set in the shape and range of this one."""
    seed = int(generator.integers(2**63))
    other = load(family.source, records=family.count, test=0, seed=seed, folder=family.folder)
    if other.name == pool.name:
        raise InputError(f"source of {family.name} canaries must be another data set than {pool.name}")
    x = other.x
    if other.shape and pool.shape:
        rows, columns = (np.arange(n) * m // n for n, m in zip(pool.shape, other.shape, strict=True))
        x = x.reshape(-1, *other.shape)[:, rows][:, :, columns].reshape(len(x), -1)
    elif x.shape[1] != pool.x.shape[1]:
        raise InputError(
            f"source of {family.name} canaries must have records with {pool.x.shape[1]} features like {pool.name}, "
            f"or both must be images, got {x.shape[1]} features"
        )
    scale = np.abs(pool.x).max() / max(np.abs(x).max(), 1e-6)
    return (x * scale).astype(np.float32), other.ids


def _least(family: ClipBKD, pool: Pool) -> tuple[Array, NDArray[np.int64]]:
    features = pool.x.shape[1]
    if family.count > features:
        raise InputError(
            f"count of {family.name} canaries must be at most one per feature ({features}), got {family.count}"
        )
    gram, sums = _products(pool)
    length = family.scale * float(np.linalg.norm(pool.x, axis=1).mean())
    canaries = length * _least_directions(gram[:-1, :-1], np.array(unused_features(pool.x), np.int64))[: family.count]
    # Rounded, so that no order of sums can change a bit of them.
    return canaries.round(4).astype(np.float32), _least_likely(gram, sums, len(pool.x), canaries)


def _products(pool: Pool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of records with a constant 1 as their last feature: inner products of features, and their sums by label."""
    width = pool.x.shape[1] + 1
    gram, sums = np.zeros((width, width)), np.zeros((width, pool.classes))
    for at in range(0, len(pool.x), _ROWS):
        x = np.ones((len(pool.x[at : at + _ROWS]), width))
        x[:, :-1] = pool.x[at : at + _ROWS]
        gram += x.T @ x
        sums += x.T @ np.eye(pool.classes)[pool.y[at : at + _ROWS]]
    return gram, sums


def _least_directions(gram: NDArray[np.float64], free: NDArray[np.int64]) -> NDArray[np.float64]:
    """Right singular vectors as rows, least singular value first; the sign makes the largest number positive.

    Args:
        gram: inner products of the features.
        free: features that are zero in every record.
    """
    used = np.setdiff1d(np.arange(len(gram)), free)
    out = np.zeros_like(gram)
    out[np.arange(len(free)), free] = 1.0
    if len(used):
        found = np.linalg.eigh(gram[np.ix_(used, used)])[1].T
        largest = np.take_along_axis(found, np.abs(found).argmax(axis=1)[:, None], axis=1)
        out[np.ix_(np.arange(len(free), len(out)), used)] = found * np.sign(largest)
    return out


def _least_likely(
    gram: NDArray[np.float64], sums: NDArray[np.float64], records: int, canaries: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The label that a ridge regression of the labels likes least for each canary, the first of those that tie."""
    weights = np.linalg.solve(gram + _RIDGE * records * np.eye(len(gram)), sums)
    return (canaries @ weights[:-1] + weights[-1]).round(6).argmin(axis=1)


def _inserted(family: InsertedText, pool: Pool, generator: np.random.Generator) -> Array:
    if not np.isin(pool.x, np.arange(len(family.alphabet))).all():
        raise InputError(
            f"inserted-text canaries need data of tokens, whole numbers from 0 to {len(family.alphabet) - 1} in every "
            f"feature, got others in {pool.name}"
        )
    texts = family.secrets.draw(family.count, generator)
    return encode(texts, family.alphabet, pool.x.shape[1]).astype(np.float32)
