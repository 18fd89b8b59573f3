"""A data set divided by a seed: records to train on, records to test on, and spare ones that canaries are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError
from ..records import Data

_TEST_SHARE = 5  # without a test set of its own and without a wish, one record in five is kept for testing


@dataclass(frozen=True, eq=False)
class Table:
    """Everything that a source holds, checked, before anything is drawn from it.

    Attributes:
        x: features, float32, shape ``(records, features)``.
        y: labels, int64, shape ``(records,)``.
        x_test, y_test: the source's own test set, or None if it has none.
        classes: number of labels.
        name: what reports call it; record number i is ``name-i``.
        shape: height and width of a record shown as an image, or None.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32] | None
    y_test: NDArray[np.int64] | None
    classes: int
    name: str
    shape: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Pool:
    """Disjoint parts of one data set, drawn by a seed. Arrays are read-only.

    Attributes:
        x, y: the training records; features float32 ``(records, features)``, labels int64 ``(records,)``.
        x_test, y_test: records for accuracy, in nobody's training set.
        x_spare, y_spare: the rest of the training part. A mislabelled canary is a changed copy of one of these, so
            that its source is in no training set, with the canary or without it.
        classes: number of labels.
        name: what reports call the data.
        shape: height and width of a record shown as an image, or None.
        ids: one name per training record: the data's name and the record's number in the source.
        spare_ids: the same for the spare records.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    x_spare: NDArray[np.float32]
    y_spare: NDArray[np.int64]
    classes: int
    name: str
    shape: tuple[int, int] | None
    ids: tuple[str, ...]
    spare_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("x", "y", "x_test", "y_test", "x_spare", "y_spare"):
            array = getattr(self, name).copy()
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.x)

    def as_data(self, nominal_size: int | None = None) -> Data:
        """The training and test records as :class:`dpaudit.records.Data`, without canaries.

        Args:
            nominal_size: the public number that sampling rates refer to; by default the number of records.
        """
        return Data(
            self.x,
            self.y,
            self.classes,
            nominal_size=nominal_size,
            x_test=self.x_test,
            y_test=self.y_test,
            ids=self.ids,
            name=self.name,
            shape=self.shape,
        )


def unused_features(x: ArrayLike) -> tuple[int, ...]:
    """The features that are zero in every record, ascending. A far-out canary can have one to itself.

    Args:
        x: shape ``(records, features)``.

    Raises:
        InputError: another shape.

    >>> unused_features([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    (0,)
    """
    array = np.asarray(x)
    if array.ndim != 2:
        raise InputError(f"x must have the shape (records, features), got {array.shape}")
    return tuple(int(i) for i in np.flatnonzero(~array.any(axis=0)))


def divide(table: Table, records: int | None, test: int | None, seed: int) -> Pool:
    """Draw a pool from a table; see :func:`dpaudit.data.load` for the arguments and defaults."""
    generator = np.random.default_rng(np.random.SeedSequence(check.integer("seed", seed, 0)))
    order = generator.permutation(len(table.x))
    if table.x_test is None or table.y_test is None:
        x_test, y_test, order = _own_test_part(table, order, test)
    else:
        wanted = len(table.x_test) if test is None else check.integer("test", test, 0)
        _enough("test", wanted, len(table.x_test), table.name)
        drawn = generator.permutation(len(table.x_test))[:wanted]
        x_test, y_test = table.x_test[drawn], table.y_test[drawn]
    wanted = len(order) if records is None else check.integer("records", records, 1)
    _enough("training", wanted, len(order), table.name)
    train, spare = order[:wanted], order[wanted:]
    return Pool(
        x=table.x[train],
        y=table.y[train],
        x_test=x_test,
        y_test=y_test,
        x_spare=table.x[spare],
        y_spare=table.y[spare],
        classes=table.classes,
        name=table.name,
        shape=table.shape,
        ids=_ids(table.name, train),
        spare_ids=_ids(table.name, spare),
    )


def _own_test_part(table: Table, order: NDArray[np.int64], test: int | None) -> tuple[Any, Any, NDArray[np.int64]]:
    """Test records taken from the front of the order, and the order without them."""
    wanted = len(order) // _TEST_SHARE if test is None else check.integer("test", test, 0)
    _enough("test", wanted, len(order) - 1, table.name)
    return table.x[order[:wanted]], table.y[order[:wanted]], order[wanted:]


def _enough(what: str, wanted: int, there: int, name: str) -> None:
    if wanted > there:
        raise InputError(f"{name} has {there} records for the {what} part, got a wish for {wanted}")


def _ids(name: str, numbers: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(f"{name}-{i}" for i in numbers)


def table_of(
    arrays: Sequence[tuple[str, ArrayLike, ArrayLike]],
    name: str,
    where: str,
    classes: int | None = None,
) -> Table:
    """A checked table from raw arrays.

    Args:
        arrays: ``(what, x, y)`` of the training part and, if there is one, of the test part. ``x`` is
            ``(records, features)`` or ``(records, height, width)``.
        name: what reports call the data.
        where: the file or folder, for messages.
        classes: number of labels; by default the largest label plus one.

    Raises:
        InputError: empty parts, shapes that do not fit, features that are not finite numbers, labels that are not
            whole numbers from 0.
    """
    parts = [(*_features(what, x, where), _labels(what, y, where)) for what, x, y in arrays]
    for (what, _, _), (x, shape, y) in zip(arrays, parts, strict=True):
        if len(x) != len(y):
            raise InputError(f"{where}: {what} must have one label per record, got {len(x)} and {len(y)}")
        if (x.shape[1], shape) != (parts[0][0].shape[1], parts[0][1]):
            raise InputError(f"{where}: {what} must have records like those to train on, got other shapes")
    x, shape, y = parts[0]
    found = max(int(labels.max()) for _, _, labels in parts) + 1
    if classes is None and (found < 2 or found > max(2, len(y))):
        raise InputError(f"{where}: labels must be class numbers 0, 1, …, got {found - 1} as the largest in "
                         f"{len(y)} records")  # fmt: skip
    x_test, y_test = (parts[1][0], parts[1][2]) if len(parts) > 1 else (None, None)
    return Table(x, y, x_test, y_test, classes or found, name, shape)


def _features(what: str, value: ArrayLike, where: str) -> tuple[NDArray[np.float32], tuple[int, int] | None]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}: features of the {what} must be numbers, got {array.dtype}")
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise InputError(f"{where}: features of the {what} must be a non-empty array (records, features) or (records, "
                         f"height, width), got shape {array.shape}")  # fmt: skip
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    with np.errstate(over="ignore"):
        flat = array.reshape(len(array), -1).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if len(bad):
        raise InputError(f"{where}: features of the {what} must be finite in 32 bits, got NaN or infinity in "
                         f"{len(bad)} records, the first is number {bad[0]}")  # fmt: skip
    return flat, shape


def _labels(what: str, value: ArrayLike, where: str) -> NDArray[np.int64]:
    array = np.asarray(value)
    if array.ndim != 1:
        raise InputError(f"{where}: labels of the {what} must have the shape (records,), got {array.shape}")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}: labels of the {what} must be whole numbers from 0, got {array.dtype}")
    bad = np.flatnonzero((array < 0) | (array != np.floor(array)) | ~np.isfinite(array))
    if len(bad):
        raise InputError(f"{where}: labels of the {what} must be whole numbers from 0, got {array[bad[0]]} at number "
                         f"{bad[0]}")  # fmt: skip
    return array.astype(np.int64)
