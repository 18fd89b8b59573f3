"""Files of scores, from any framework: CSV, NPZ, safetensors or Parquet in, observations out."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, need_extra
from ..records import Design, Observations

METADATA = "dpaudit"


def read_scores(path: str | Path, design: Design | None = None) -> Observations:
    """Observations from a file.

    CSV has a header and the columns ``member`` and ``score``, and optionally ``run`` and ``canary``. Without ``canary``
    every row is another canary of one run; without ``run`` there is one run. Pairs that no row names were never scored:
    with ``run`` and ``canary`` they are refused, since their membership is unknown. NPZ and safetensors hold ``scores``
    and ``member``, shape ``(runs, canaries)`` or ``(canaries,)``, and optionally ``present``.

    Args:
        design: how membership was decided; fair coins and scores without references if None.

    Raises:
        InputError: one line that says what is wrong with the file, and where.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"scores must be a file, got {str(path)!r}, which does not exist")
    match path.suffix.lower():
        case ".csv":
            arrays = _read_csv(path)
        case ".npz":
            arrays = _read_npz(path)
        case ".safetensors":
            arrays = read_tensors(path)[0]
        case ".parquet":
            arrays = _read_parquet(path)
        case other:
            raise InputError(
                f"scores must be a .csv, .npz, .safetensors or .parquet file, got {other or 'no ending'!r}"
            )
    missing = [name for name in ("scores", "member") if name not in arrays]
    if missing:
        raise InputError(f"{path} must hold {missing[0]}, got {', '.join(sorted(arrays)) or 'nothing'}")
    names = {key: tuple(np.ravel(arrays[key])) for key in ("runs", "canaries") if key in arrays}
    try:
        return Observations(
            arrays["scores"], arrays["member"], arrays.get("present"), **names, design=design or Design()
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any] | None]:
    """The arrays of a safetensors file, and dpaudit's own metadata if it wrote the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = (file.metadata() or {}).get(METADATA)
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two of types that numpy lacks
        raise InputError(f"{path} must be a safetensors file, got {error}") from None
    try:
        return arrays, None if metadata is None else json.loads(metadata)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} must hold dpaudit's metadata as JSON, got {error}") from None


def tensor_bytes(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file with dpaudit's own metadata."""
    from safetensors.numpy import save

    whole = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    return save(whole, metadata={METADATA: json.dumps(metadata, allow_nan=False)})


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # numpy raises whatever the damaged part made it stumble over
        raise InputError(f"{path} must be an NPZ file without pickled objects, got {error}") from None


def _read_parquet(path: Path) -> dict[str, Any]:
    """A Parquet file with the columns of the CSV."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise need_extra("pyarrow", "parquet") from None
    try:
        content = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} must be a Parquet file, got {error}") from None
    header = _header(path, content.column_names)
    if content.num_rows == 0:
        raise InputError(f"{path} must hold at least one row, got none")
    columns = [content.column(name).to_pylist() for name in header]
    rows = [["" if value is None else str(value) for value in row] for row in zip(*columns, strict=True)]
    return _pivot(path, header, list(enumerate(rows, start=1)))


def _header(path: Path, names: list[str]) -> list[str]:
    header = [name.strip() for name in names]
    for name in ("member", "score"):
        if header.count(name) != 1:
            raise InputError(f"{path} must have one column {name!r}, got the columns {', '.join(header)}")
    return header


def _read_csv(path: Path) -> dict[str, Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a CSV file, got {error}") from None
    if not rows:
        raise InputError(f"{path} must hold a header and at least one row, got an empty file")
    header = [name.strip() for name in rows[0][1]]
    for name in ("member", "score", "run", "canary"):
        if header.count(name) != 1 and (name in header or name in ("member", "score")):
            raise InputError(f"{path} must have one column {name!r}, got the columns {', '.join(header)}")
    if len(rows) == 1:
        raise InputError(f"{path} must hold at least one row under its header, got none")
    return _pivot(path, header, rows[1:])


def _pivot(path: Path, header: list[str], rows: list[tuple[int, list[str]]]) -> dict[str, Any]:
    """From one row per pair to (runs, canaries)."""
    places = {name: header.index(name) for name in header}
    records = [_record(path, line, str(i), row, header, places) for i, (line, row) in enumerate(rows)]
    runs = sorted({r for r, _, _, _ in records}, key=_natural)
    canaries = sorted({c for _, c, _, _ in records}, key=_natural)
    shape = (len(runs), len(canaries))
    row_of, column_of = {r: i for i, r in enumerate(runs)}, {c: i for i, c in enumerate(canaries)}
    scores, member, seen = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool)
    for run, canary, inside, score in records:
        at = row_of[run], column_of[canary]
        if seen[at]:
            raise InputError(
                f"{path}: a canary must be scored once in a run, got canary {canary!r} twice in run {run!r}"
            )
        seen[at], member[at], scores[at] = True, inside, score
    if not seen.all():
        gap = np.argwhere(~seen)[0]
        raise InputError(
            f"{path}: every run must have a row for every canary, got none for canary {canaries[gap[1]]!r} in run "
            f"{runs[gap[0]]!r} (leave its score empty if it was never scored)"
        )
    present = np.isfinite(scores)
    return {
        "scores": np.where(present, scores, 0.0),
        "member": member,
        "present": present,
        "runs": runs,
        "canaries": canaries,
    }


_Record = tuple[str, str, bool, float]


def _record(path: Path, line: int, number: str, row: list[str], header: list[str], places: dict[str, int]) -> _Record:
    """(run, canary, member, score) of one line; an empty score is one that was never taken, marked by NaN."""
    if len(row) != len(header):
        raise InputError(f"{path}, line {line}: must have {len(header)} values, got {len(row)}")
    run = row[places["run"]].strip() if "run" in places else "0"
    canary = row[places["canary"]].strip() if "canary" in places else number
    return run, canary, _flag(path, line, row[places["member"]]), _number(path, line, row[places["score"]])


def _flag(path: Path, line: int, text: str) -> bool:
    match text.strip().lower():
        case "1" | "true" | "1.0":
            return True
        case "0" | "false" | "0.0":
            return False
    raise InputError(f"{path}, line {line}: member must be 1, 0, true or false, got {text!r}")


def _number(path: Path, line: int, text: str) -> float:
    if not text.strip():
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {line}: score must be a finite number, got {text!r}")
    return value


def _natural(text: str) -> tuple[int, float, str]:
    """Numbers by value, then everything else by spelling, so that the order of rows never matters."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return (1, 0.0, text) if math.isnan(value) else (0, value, text)
