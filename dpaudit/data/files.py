"""Data files of the user's: NPZ, safetensors, CSV. Nothing is unpickled."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .pool import Table, table_of

LABEL = "label"


def read_file(path: Path) -> Table:
    """The table in a file, by the ending of its name.

    Raises:
        InputError: the file is damaged or does not hold what it should; the message names it.
    """
    return READERS[path.suffix.lower()](path)


def _read_npz(path: Path) -> Table:
    try:
        with path.open("rb") as file:  # np.load, given a path, leaves it open when the archive is damaged
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(f"{path} must be an npz archive with the arrays x and y, got a single array")
            arrays = {name: _member(path, archive, name) for name in archive.files}
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
        raise InputError(f"{path} is no npz archive of numbers, or is damaged") from None
    return _named_arrays(path, arrays)


def _member(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"{path}: {name} holds Python objects, which are never unpickled; save it as numbers"
        ) from None
    return array


def _read_safetensors(path: Path) -> Table:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no safetensors file that numpy can hold, or is damaged: {error}") from None
    return _named_arrays(path, arrays)


def _named_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Table:
    wanted = ("x", "y", "x_test", "y_test") if {"x_test", "y_test"} & set(arrays) else ("x", "y")
    missing = [name for name in wanted if name not in arrays]
    if missing:
        there = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"{path} must hold {', '.join(wanted)}; {missing[0]} is missing, there is {there}")
    parts = [("records", arrays["x"], arrays["y"])]
    if len(wanted) == 4:
        parts.append(("test records", arrays["x_test"], arrays["y_test"]))
    return table_of(parts, path.stem, str(path))


def _read_csv(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a text file in UTF-8: {error}") from None
    header = _header(path, text)
    body = text.partition("\n")[2]
    if not body.strip():
        raise InputError(f"{path} must have at least one record below its header, got none")
    try:
        cells = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, comments=None, quotechar='"')
    except ValueError as error:
        raise _csv_fault(path, text, header) or InputError(f"{path} could not be read: {error}") from None
    if cells.shape[1] != len(header):
        raise InputError(f"{path} must have {len(header)} cells in every line, got {cells.shape[1]}")
    at = header.index(LABEL)
    return table_of([("records", np.delete(cells, at, axis=1), cells[:, at])], path.stem, str(path))


def _header(path: Path, text: str) -> list[str]:
    names = [name.strip() for name in next(csv.reader(text.splitlines()[:1]), [])]
    if not any(names):
        raise InputError(f"{path} must have a header in its first line, got an empty one")
    if names.count(LABEL) != 1:
        raise InputError(f"{path} must have one column {LABEL!r}, got {names.count(LABEL)} in: {_few(names)}")
    if len(names) < 2:
        raise InputError(f"{path} must have a column of numbers beside {LABEL!r}, got none")
    return names


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _csv_fault(path: Path, text: str, header: Sequence[str]) -> InputError | None:
    """What is wrong with the first cell that is no number; slow, and only asked once reading has failed."""
    for number, row in enumerate(csv.reader(text.splitlines()[1:]), start=2):
        if row and len(row) != len(header):
            return InputError(f"{path}, line {number}: there must be {len(header)} cells, got {len(row)}")
        for name, cell in zip(header, row, strict=False):
            try:
                float(cell)
            except ValueError:
                return InputError(f"{path}, line {number}: {name} must be a number, got {cell!r}")
    return None


READERS: dict[str, Callable[[Path], Table]] = {
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".safetensors": _read_safetensors,
}
