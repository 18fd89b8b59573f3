"""Files of arrays: CSV, NPZ, safetensors or Parquet in, arrays by their plain names out. Nothing is unpickled."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.scores import read_tensors
from ..errors import InputError, need_extra

Arrays = dict[str, NDArray[Any]]

ENDINGS = (".csv", ".npz", ".safetensors", ".parquet")
ALIASES = {
    "members": "member",
    "membership": "member",
    "label": "labels",
    "y": "labels",
    "id": "ids",
    "loss": "losses",
    "logit": "logits",
    "prob": "probabilities",
    "probs": "probabilities",
    "probability": "probabilities",
    "features": "x",
    "gradient_norm": "gradient_norms",
    "perplexity": "perplexities",
}
_FAMILIES = {"logit": "logits", "prob": "probabilities", "x": "x", "trace": "traces", "projection": "projections"}
_PLAIN_NUMBERS = ("losses", "gradient_norms", "perplexities", "noise_deviation", "size", "sampling_rate")
_FAMILY = re.compile(r"(logit|prob|x|trace|projection)_(.+)")


def read_arrays(path: Path) -> Arrays:
    """All arrays of a file by their plain names (``losses``, ``labels``, ``member``, ...), other names as they are.

    CSV and Parquet have one row per record, and columns ``logit_0``, ``logit_1``, ... (or ``logit_NAME`` with the
    classes' names) that become one array; those of ``prob_``, ``x_``, ``trace_`` and ``projection_`` likewise.

    Raises:
        InputError: no such file, another ending, damaged, or a cell that is no number; the message says where.
        MissingExtra: Parquet without pyarrow.
    """
    if not path.is_file():
        why = "is no file" if path.exists() else "does not exist"
        raise InputError(f"the arrays must be in a file, got {str(path)!r}, which {why}")
    match path.suffix.lower():
        case ".csv":
            found = _gathered(path, _csv_columns(path))
        case ".parquet":
            found = _gathered(path, _parquet_columns(path))
        case ".npz":
            found = _npz(path)
        case ".safetensors":
            found = read_tensors(path)[0]
        case other:
            raise InputError(f"{path} must end in {', '.join(ENDINGS)}, got {other or 'no ending'!r}")
    return _plainly_named(path, found)


def _plainly_named(path: Path, found: Mapping[str, NDArray[Any]]) -> Arrays:
    out: Arrays = {}
    for name, array in found.items():
        prefix, stem = _prefix(name)
        plain = prefix + ALIASES.get(stem, stem)
        if plain in out:
            raise InputError(f"{path} must hold {plain} once, got it again as {name}")
        out[plain] = array
    return out


def _prefix(name: str) -> tuple[str, str]:
    for prefix in ("shadow_population_", "population_", "shadow_"):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _npz(path: Path) -> Arrays:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # numpy raises whatever the damaged part made it stumble over
        raise InputError(f"{path} must be an NPZ file without pickled objects, got {error}") from None


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a CSV file in UTF-8, got {error}") from None
    if len(rows) < 2:
        raise InputError(f"{path} must hold a header and at least one row, got {len(rows)} lines")
    header = [name.strip() for name in rows[0]]
    for name in header:
        if not name or header.count(name) > 1:
            raise InputError(f"{path} must name every column once, got {name!r} {header.count(name)} times")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise InputError(f"{path}, record {number}: must have {len(header)} cells, got {len(row)}")
    return {name: list(column) for name, column in zip(header, zip(*rows[1:], strict=True), strict=True)}


def _parquet_columns(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise need_extra("pyarrow", "parquet") from None
    try:
        names = parquet.read_schema(path).names
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{path} must name every column once, got {name!r} {names.count(name)} times")
        content = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} must be a Parquet file, got {error}") from None
    if content.num_rows == 0:
        raise InputError(f"{path} must hold at least one row, got none")
    return {
        name: ["" if value is None else str(value) for value in content.column(name).to_pylist()]
        for name in content.column_names
    }


def _gathered(path: Path, columns: Mapping[str, Sequence[str]]) -> Arrays:
    """One array per family of columns; the names of the classes go to ``classes``."""
    families: dict[str, dict[str, Sequence[str]]] = {}
    out: Arrays = {}
    for name, cells in columns.items():
        family = _FAMILY.fullmatch(name)
        if family:
            families.setdefault(family[1], {})[family[2]] = cells
        elif ALIASES.get(name, name) in _PLAIN_NUMBERS:
            out[name] = _numbers(path, name, cells)
        elif ALIASES.get(name, name) == "member":
            out[name] = _flags(path, name, cells)
        else:
            out[name] = np.array([cell.strip() for cell in cells])
    for family_name, parts in families.items():
        names = sorted(parts, key=_natural)
        table = np.stack([_numbers(path, f"{family_name}_{part}", parts[part]) for part in names], axis=1)
        out[_FAMILIES[family_name]] = table.T if family_name == "trace" else table
        if family_name in ("logit", "prob"):
            if "classes" in out:
                raise InputError(f"{path} must hold logit_ or prob_ columns, got both")
            out["classes"] = np.array(names)
    return out


def _natural(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def _numbers(path: Path, name: str, cells: Sequence[str]) -> NDArray[np.float64]:
    try:
        found = np.array(cells).astype(np.float64)
    except ValueError:
        found = np.array([_number(cell) for cell in cells])
    bad = ~np.isfinite(found)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"{path}, record {at + 1}: {name} must be a finite number, got {cells[at]!r}")
    return found


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


_TRUE, _FALSE = ("1", "true", "1.0"), ("0", "false", "0.0")


def _flags(path: Path, name: str, cells: Sequence[str]) -> NDArray[np.bool_]:
    plain = [cell.strip().lower() for cell in cells]
    for number, cell in enumerate(plain, start=1):
        if cell not in _TRUE and cell not in _FALSE:
            raise InputError(f"{path}, record {number}: {name} must be 1, 0, true or false, got {cell!r}")
    return np.array([cell in _TRUE for cell in plain])
