"""Fashion-MNIST in the idx format of MNIST: a magic number, the dimensions, then one byte per pixel or label."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .pool import Table, table_of

DEBIAN_FOLDER = "/usr/share/datasets/fashion-mnist"
_UNSIGNED_BYTES = 0x08  # the third byte of the magic number is the type, the fourth the number of dimensions


def read_fashion_mnist(folder: str | os.PathLike[str] | None = None) -> Table:
    """The whole of Fashion-MNIST from the four idx files in a folder, gzipped or not.

    Raises:
        InputError: files that are missing or damaged.
    """
    where = Path(DEBIAN_FOLDER if folder is None else folder)
    parts = []
    for what, prefix in (("records", "train"), ("test records", "t10k")):
        images = read_idx(_find(where, f"{prefix}-images-idx3-ubyte"), 3)
        labels = read_idx(_find(where, f"{prefix}-labels-idx1-ubyte"), 1)
        parts.append((what, images.astype(np.float32) / np.float32(255), labels))
    if max(int(labels.max(initial=0)) for _, _, labels in parts) > 9:
        raise InputError(f"{where}: labels of Fashion-MNIST must be from 0 to 9; is this another data set?")
    return table_of(parts, "fashion-mnist", str(where), 10)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(f"Fashion-MNIST has no {name}[.gz] in {folder}; apt-get install dataset-fashion-mnist, or name "
                     "the folder that holds its four files")  # fmt: skip


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file.

    Raises:
        InputError: the file is not gzip where its name says so, is cut short or too long, or holds something else.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
        raise InputError(f"{path} is no idx file of bytes in {dimensions} dimensions, or is damaged")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    if len(content) - header != math.prod(shape):
        raise InputError(f"{path} is damaged: it should hold {math.prod(shape)} bytes after its header for the shape "
                         f"{shape}, got {len(content) - header}")  # fmt: skip
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged or cannot be read: {error}") from None
