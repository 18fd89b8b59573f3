"""What data sets there are, by name or by file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import InputError, need_extra
from .files import READERS, read_file
from .idx import read_fashion_mnist
from .pool import Pool, Table, divide, table_of

PathLike = str | os.PathLike[str]


def load(
    source: PathLike,
    records: int | None = None,
    test: int | None = None,
    seed: int = 0,
    folder: PathLike | None = None,
) -> Pool:
    """A data set, divided by a seed into training, test and spare records.

    With the same seed and ``test``, more ``records`` contain the fewer ones, in the same order.

    Args:
        source: ``"digits"`` (1,797 images of 8×8 from scikit-learn, in [0, 1]); ``"fashion-mnist"`` (60,000 and
            10,000 images of 28×28, in [0, 1]; Xiao, Rasul and Vollgraf 2017); or the path of a file of your own:
            ``.npz`` or ``.safetensors`` with ``x``, ``y`` and perhaps ``x_test``, ``y_test``, or ``.csv`` with a
            header, a column ``label`` and otherwise columns of numbers. Labels are 0, 1, …; features of your own
            files are taken as they are.
        records: how many records to train on; None takes all that are not for testing and leaves none to spare.
        test: how many records to test on; None takes the source's own test set or, where it has none, a fifth.
        seed: draws all parts.
        folder: where the four files of Fashion-MNIST are; by default where Debian's package puts them.

    Raises:
        InputError: no such source, a file that is missing, damaged or not as described, or fewer records than asked.
        MissingExtra: digits without scikit-learn.
    """
    if source == "digits":
        table = _digits()
    elif source == "fashion-mnist":
        table = read_fashion_mnist(folder)
    else:
        table = _file(Path(source))
    return divide(table, records, test, seed)


def _digits() -> Table:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise need_extra("scikit-learn") from None
    digits = load_digits()
    return table_of([("records", np.asarray(digits.images) / 16, digits.target)], "digits", "digits", 10)


def _file(path: Path) -> Table:
    if path.suffix.lower() not in READERS:
        known = ", ".join(READERS)
        raise InputError(f"source must be digits, fashion-mnist or a path that ends in {known}, got {str(path)!r}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    return read_file(path)
