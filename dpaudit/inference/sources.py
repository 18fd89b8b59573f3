"""From files to evidence: arrays put under their names, joined by id, and checked against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..attacks.evidence import Evidence
from ..attacks.signals import log_probabilities
from ..errors import InputError
from ..records import BoolArray
from .tables import Arrays, read_arrays

_OUTPUTS = ("losses", "logits", "probabilities")
_SHADOW_AXES = {"shadow_member", *(f"shadow_{k}" for k in _OUTPUTS)}  # (shadows, records, ...)
_STEPS = ("noise_deviation", "size", "sampling_rate", "sampler", "records")
_TARGET_ALONE = ("traces", "gradient_norms", "perplexities", "reference_perplexities", "projections")
_OWN = {
    "member", "labels", "ids", "classes", "x", "shadow", *_TARGET_ALONE, *_OUTPUTS, *_STEPS,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Source:
    """What there is to attack, and the truth.

    Attributes:
        name: for reports; a file's name without its folder.
        evidence: what the attacker holds.
        member: the truth, shape ``(records,)``; no attack sees it.
        ids: of the records, or None; never released.
        x: features, for the blind baseline and for models, or None.
        labels: as they were given, shape ``(records,)``, or None.
        groups: values to slice by, by column.
        notes: what was assumed while reading, in sentences.
    """

    name: str
    evidence: Evidence
    member: BoolArray
    ids: tuple[str, ...] | None = None
    x: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_source(
    path: str | Path,
    *,
    shadows: str | Path | None = None,
    population: str | Path | None = None,
    slices: Sequence[str] = (),
    outputs: Mapping[str, ArrayLike] | None = None,
    features_only: bool = False,
) -> Source:
    """Evidence from files.

    Args:
        path: CSV, NPZ, safetensors or Parquet with ``member`` and what the attacks need; see docs/attack.md for names.
        shadows: a second file with ``losses``, ``logits`` or ``probabilities`` of shadow models, their ``member`` and,
            where both files have them, ``ids`` to join by.
        population: a third one with the target's outputs on records that no model was trained on.
        slices: columns to slice by: ``label`` for the classes, or others of the file.
        outputs: ``logits`` or ``probabilities`` with ``classes``, of a model; in place of the file's own.
        features_only: read features, labels and membership alone, to ask a model about.

    Raises:
        InputError: a file that can't be read or lacks something, arrays that do not fit, ids that do not.
    """
    path = Path(path)
    arrays = read_arrays(path)
    if "member" not in arrays:
        raise InputError(f"{path} must hold member, got {', '.join(sorted(arrays)) or 'nothing'}")
    member = _member(path, arrays["member"])
    if outputs is not None:
        arrays = {k: v for k, v in arrays.items() if k not in (*_OUTPUTS, "classes")} | {
            k: np.asarray(v) for k, v in outputs.items()
        }
    _require_rows(path, arrays, member)
    if features_only:
        return Source(path.name, Evidence(), member, x=arrays.get("x"), labels=arrays.get("labels"))
    ids = _ids(path, arrays.get("ids"), len(member))
    notes: list[str] = []
    if shadows is not None:
        theirs = _shadow_arrays(Path(shadows), ids, len(member), arrays.get("classes"), notes)
        arrays = _joined(path, arrays, Path(shadows), theirs, _SHADOW_AXES)
    if population is not None:
        others = _population_arrays(Path(population))
        arrays = _joined(path, arrays, Path(population), others, {f"population_{k}" for k in _OUTPUTS})
    return replace(_source(path, arrays, member, ids, slices), notes=tuple(notes))


def _source(
    path: Path, arrays: Arrays, member: BoolArray, ids: tuple[str, ...] | None, slices: Sequence[str]
) -> Source:
    raw, classes = arrays.get("labels"), arrays.get("classes")
    given: dict[str, Any] = {}
    for prefix in ("", "shadow_", "population_", "shadow_population_"):
        given |= _outputs(path, arrays, prefix)
    width = next((given[k].shape[-1] for k in ("logits", "shadow_logits") if given.get(k) is not None), None)
    given["labels"] = None if raw is None else _numbered(path, "labels", raw, classes, width)
    others = arrays.get("population_labels")
    wide = given.get("population_logits")
    if others is not None:
        columns = width if wide is None else wide.shape[-1]
        named = arrays.get("population_classes", classes)
        given["population_labels"] = _numbered(path, "population_labels", others, named, columns)
    elif wide is not None and "population_losses" not in given:
        raise InputError(f"{path}: population_logits must come with population_labels, got none")
    if "shadow_member" in arrays:
        given["shadow_member"] = _shadow_member(path, arrays["shadow_member"])
    for name in _TARGET_ALONE:
        if name in arrays:
            given[name] = _finite(path, name, arrays[name])
    if "projections" in arrays:
        given["steps"] = {name: _plain(arrays[name]) for name in _STEPS if name in arrays}
    try:
        evidence = Evidence(**given)
        if evidence.present and evidence.records != len(member):
            raise InputError(f"there must be {len(member)} records as in member, got {evidence.records}")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    x = arrays.get("x")
    groups = _groups(path, arrays, raw, slices, len(member))
    return Source(path.name, evidence, member, ids, x, raw, groups)


def _require_rows(path: Path, arrays: Arrays, member: BoolArray) -> None:
    """Features, and labels, of every record."""
    x, labels = arrays.get("x"), arrays.get("labels")
    if x is not None and (x.ndim == 0 or len(x) != len(member)):
        raise InputError(f"{path}: x must have one row per record ({len(member)}), got shape {x.shape}")
    if labels is not None and labels.shape != member.shape:
        raise InputError(f"{path}: labels must be one per record ({len(member)}), got shape {labels.shape}")


def _joined(path: Path, arrays: Arrays, other: Path, theirs: Arrays, own: Set[str]) -> Arrays:
    """Both files' arrays, where only one of them has what the other file is for: no mixture of two sets of models."""
    twice = sorted(arrays.keys() & (own | theirs.keys()))
    if twice:
        raise InputError(f"{twice[0]} must be in {path} or in {other}, got it in both")
    return arrays | theirs


def _member(path: Path, array: NDArray[Any]) -> BoolArray:
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(f"{path}: member must be 1 or 0 per record, got {array.dtype} of shape {array.shape}")
    if array.all() or not array.any():
        raise InputError(f"{path}: member must hold both members and non-members, got only one kind")
    return array.astype(bool)


def _shadow_member(path: Path, array: NDArray[Any]) -> BoolArray:
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(
            f"{path}: shadow_member must be 1 or 0, shape (shadows, records), got {array.dtype} of shape {array.shape}"
        )
    return array.astype(bool)


def _outputs(path: Path, arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Losses and logits of one set of models; probabilities become their logarithms."""
    found: dict[str, Any] = {}
    if f"{prefix}logits" in arrays and f"{prefix}probabilities" in arrays:
        raise InputError(f"{path} must hold {prefix}logits or {prefix}probabilities, got both")
    if f"{prefix}losses" in arrays:
        found[f"{prefix}losses"] = _finite(path, f"{prefix}losses", arrays[f"{prefix}losses"])
    if f"{prefix}logits" in arrays:
        found[f"{prefix}logits"] = _finite(path, f"{prefix}logits", arrays[f"{prefix}logits"])
    if f"{prefix}probabilities" in arrays:
        try:
            found[f"{prefix}logits"] = log_probabilities(arrays[f"{prefix}probabilities"])
        except InputError as error:
            raise InputError(f"{path}: {prefix}{error}") from None
    return found


def _finite(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "iuf":
        raise InputError(f"{path}: {name} must be numbers, got {array.dtype}")
    bad = int(array.size - np.count_nonzero(np.isfinite(array)))
    if bad:
        raise InputError(f"{path}: {name} must be finite, got NaN or infinity in {bad} of {array.size} places")
    return array


def _plain(array: NDArray[Any]) -> Any:
    """A setting: a number, a text, or one number per step; a CSV repeats it in every row."""
    kinds = np.unique(array)
    return kinds[0].item() if array.ndim == 0 or len(kinds) == 1 else array


def _numbered(
    path: Path, what: str, labels: NDArray[Any], classes: NDArray[Any] | None, width: int | None
) -> NDArray[np.int64]:
    """Labels as columns of the outputs: by the names of the classes where there are some, else as whole numbers."""
    if labels.dtype.kind not in "biufSU":
        raise InputError(f"{path}: {what} must be numbers or names, got {labels.dtype}")
    if classes is None:
        return _whole(path, what, labels, width)
    if classes.ndim != 1 or (width is not None and len(classes) != width):
        wanted = "one name per class" if width is None else f"one name per column of the outputs ({width})"
        raise InputError(f"{path}: classes must be {wanted}, got shape {classes.shape}")
    places = {as_text(name): i for i, name in enumerate(classes)}
    if len(places) != len(classes):
        raise InputError(f"{path}: classes must name each class once, got {', '.join(_texts(classes))}")
    kinds, number = np.unique(labels, return_inverse=True)
    unknown = [as_text(k) for k in kinds if as_text(k) not in places]
    if unknown:
        listed = ", ".join(list(places)[:12])
        raise InputError(f"{path}: {what} must be among the classes of the outputs ({listed}), got {unknown[0]!r}")
    return np.array([places[as_text(k)] for k in kinds], np.int64)[number.reshape(-1)]


def _whole(path: Path, what: str, labels: NDArray[Any], width: int | None) -> NDArray[np.int64]:
    try:
        found = labels.astype(np.float64)
    except (TypeError, ValueError):
        if width is None:  # only slices look at them
            return np.unique(labels, return_inverse=True)[1].reshape(-1)
        raise InputError(f"{path}: {what} must be whole numbers, or classes must name the outputs") from None
    if not np.isfinite(found).all() or (found != np.floor(found)).any():
        raise InputError(f"{path}: {what} must be whole numbers, got others")
    if width is not None and ((found < 0) | (found >= width)).any():
        raise InputError(f"{path}: {what} must be in [0, {width}), got {found.min():g} to {found.max():g}")
    return found.astype(np.int64)


def as_text(value: Any) -> str:
    """A class as text; 3, 3.0 and "3" are one class."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "replace")
    text = str(plain).strip()
    return text.removesuffix(".0") if text.removesuffix(".0").lstrip("-").isdecimal() else text


def _texts(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(as_text(one) for one in np.ravel(array))


def _ids(path: Path, array: NDArray[Any] | None, records: int) -> tuple[str, ...] | None:
    if array is None:
        return None
    if array.shape != (records,):
        raise InputError(f"{path}: ids must be one per record ({records}), got shape {array.shape}")
    ids = _texts(array)
    if len(set(ids)) != len(ids):
        twice, times = Counter(ids).most_common(1)[0]
        raise InputError(f"{path}: ids must name each record once, got {twice!r} {times} times")
    return ids


def _shadow_arrays(
    path: Path, ids: tuple[str, ...] | None, records: int, classes: NDArray[Any] | None, notes: list[str]
) -> Arrays:
    """Arrays of the file of shadows under their full names, their records in the order of the source."""
    arrays = read_arrays(path)
    named = arrays.get("classes")
    if named is not None and classes is not None and _texts(named) != _texts(classes):
        raise InputError(f"{path} must have the classes of the source, in the same order, got others")
    if "shadow" in arrays:
        arrays = _pivoted(path, arrays)
    own = {k if k.startswith("shadow_") else f"shadow_{k}": v for k, v in arrays.items() if k not in ("ids", "classes")}
    if "shadow_member" not in own:
        raise InputError(f"{path} must hold member of the shadows, got {', '.join(sorted(arrays)) or 'nothing'}")
    if not own.keys() & (_SHADOW_AXES - {"shadow_member"}):
        raise InputError(
            f"{path} must hold losses, logits or probabilities of the shadows, got {', '.join(sorted(arrays))}"
        )
    if own["shadow_member"].ndim != 2:
        hint = ", and no column shadow" if path.suffix.lower() in (".csv", ".parquet") else ""
        raise InputError(f"{path}: member must be (shadows, records), got shape {own['shadow_member'].shape}{hint}")
    length = own["shadow_member"].shape[1]
    theirs = _ids(path, arrays.get("ids"), length) if "ids" in arrays else None
    order = _order(path, ids, theirs)
    if order is None:
        if length != records:
            raise InputError(f"{path}: the shadows must have the source's {records} records, got {length}, and no ids")
        notes.append("The shadows' records are taken to be in the order of the source's: there are no ids to join by.")
    for name, array in own.items():
        if name in _SHADOW_AXES and (array.ndim < 2 or array.shape[1] != length):
            raise InputError(f"{path}: {name} must be (shadows, records, ...) with {length} records, got {array.shape}")
    return {
        name: array[:, order] if order is not None and name in _SHADOW_AXES else array
        for name, array in own.items()
        if name in _SHADOW_AXES or name.startswith("shadow_population_")
    }


def _order(path: Path, ids: tuple[str, ...] | None, theirs: tuple[str, ...] | None) -> NDArray[np.intp] | None:
    """Where the source's records are in another file; None where either has no ids: then by position."""
    if ids is None or theirs is None:
        return None
    place = {name: i for i, name in enumerate(theirs)}
    lacking = [i for i in ids if i not in place]
    if lacking:
        raise InputError(f"{path} must hold every record of the source, got none with the id {lacking[0]!r} "
                         f"({len(lacking)} lacking)")  # fmt: skip
    return np.array([place[i] for i in ids], np.intp)


def _pivoted(path: Path, arrays: Arrays) -> Arrays:
    """From one row per shadow and record to (shadows, records, ...)."""
    if "ids" not in arrays or "member" not in arrays:
        raise InputError(f"{path} must have the columns shadow, id and member, got {', '.join(sorted(arrays))}")
    shadows, row = np.unique(arrays["shadow"], return_inverse=True)
    records, column = np.unique(arrays["ids"], return_inverse=True)
    place = row * len(records) + column
    if len(np.unique(place)) != len(place) or len(place) != len(shadows) * len(records):
        raise InputError(
            f"{path} must have one row for every shadow and record ({len(shadows)} × {len(records)}), got {len(place)}"
        )
    order = np.argsort(place)
    out = {
        name: array[order].reshape(len(shadows), len(records), *array.shape[1:])
        for name, array in arrays.items()
        if name in ("member", *_OUTPUTS)
    }
    return out | {"ids": records}


def _population_arrays(path: Path) -> Arrays:
    arrays = read_arrays(path)
    out = {}
    for name, array in arrays.items():
        stem = name.removeprefix("shadow_").removeprefix("population_")
        if stem in (*_OUTPUTS, "labels", "classes"):
            out[f"{'shadow_' if name.startswith('shadow_') else ''}population_{stem}"] = array
    if not any(f"population_{k}" in out for k in _OUTPUTS):
        raise InputError(f"{path} must hold losses, logits or probabilities, got {', '.join(sorted(arrays))}")
    return out


def _groups(
    path: Path, arrays: Arrays, labels: NDArray[Any] | None, slices: Sequence[str], records: int
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name in slices:
        column = labels if name in ("label", "labels", "class") else arrays.get(name)
        if column is None or (name in _OWN and name not in ("labels", "label")):
            can = sorted(k for k, v in arrays.items() if k not in _OWN and v.ndim == 1 and len(v) == records)
            raise InputError(
                f"{path} must have the column {name!r} to slice by, got {', '.join(can) or 'none to choose'}"
            )
        if column.shape != (records,):
            raise InputError(f"{path}: {name} must be one value per record ({records}), got shape {column.shape}")
        found["label" if column is labels else name] = column
    return found
