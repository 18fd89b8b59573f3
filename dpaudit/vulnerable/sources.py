"""Whose records they are, and what is trained on them: a spec, or a file of somebody's own."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..data import Pool, load
from ..errors import InputError
from ..plan import load_pool
from ..records import Data
from ..spec import BUNDLED, Spec, load_spec
from ..trainers.settings import DPSGD, SGD

DELTA = 1e-5
DEFAULT_SEED = 1  # of a file
_NORM = 3.0  # about the norm of a record of a file after scaling; that of a digit
_FILE_PLAIN = SGD(learning_rate=2.0, sampling_rate=0.05, steps=300)
_FILE_PRIVATE = DPSGD(learning_rate=4.0, sampling_rate=0.05, steps=300, noise_multiplier=1.2241)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set whose own records are to be ranked, and the two trainings.

    Attributes:
        name: what the report calls it.
        spec: where data and trainers come from; of a file, an empty one.
        data: the records as they are trained on.
        original: their features as the source has them, same shape.
        columns: the features' names; empty if they have none.
        texts: what each record reads as text; empty if the source holds none.
        plain: the training without privacy.
        private: the private training, whose noise follows from each ε.
        delta: the δ of every ε.
        seed: that the records were drawn with.
        scaling: how features were scaled, in a sentence; empty if they are as they were.
    """

    name: str
    spec: Spec
    data: Data
    original: NDArray[np.float32]
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    plain: SGD
    private: DPSGD
    delta: float
    seed: int
    scaling: str


def open_source(
    source: str | Path | Spec, *, records: int | None = None, seed: int | None = None, data_folder: str | None = None
) -> Source:
    """A source by the name of a bundled spec, the path of a spec or of a data file, or a spec itself.

    Args:
        records: train on so many; by default as many as the spec says, or all of a file but a fifth.
        seed: draws the records; by default the spec's, or 1.
        data_folder: where the four files of Fashion-MNIST are.

    Raises:
        InputError: no such source, one that can't be read, a spec without a private trainer, or no test records.
        MissingExtra: a package of the extra ``train`` is not installed.
    """
    seed = None if seed is None else check.integer("seed", seed, 0)
    if isinstance(source, Spec) or str(source) in BUNDLED or Path(source).suffix.lower() == ".toml":
        found = _of_spec(load_spec(source), records, seed, data_folder)
    else:
        found = _of_file(Path(source), records, DEFAULT_SEED if seed is None else seed)
    if found.data.x_test is None or len(found.data.x_test) == 0:
        raise InputError(f"{found.name} must have test records to measure accuracy on, got none")
    return found


def _of_spec(spec: Spec, records: int | None, seed: int | None, data_folder: str | None) -> Source:
    data = {"records": records, "folder": data_folder}
    changed = spec.data.model_copy(update={k: v for k, v in data.items() if v is not None})
    spec = spec.model_copy(update={"data": changed} | ({} if seed is None else {"seed": seed}))
    plain, private = _trainers(spec)
    pool = load_pool(spec)
    columns, texts = _named(Path(spec.data.source), pool)
    return Source(
        spec.name, spec, pool.as_data(), pool.x, columns, texts, plain, private, spec.delta or DELTA, spec.seed, ""
    )  # fmt: skip


def _trainers(spec: Spec) -> tuple[SGD, DPSGD]:
    """The spec's first private trainer, and its first one without privacy of the same model.

    Without such a one, the same settings unclipped and without noise.
    """
    built = [t.build(spec.folder) for t in spec.trainers if t.trainer in ("sgd", "dp-sgd")]
    private = next((t for t in built if isinstance(t, DPSGD) and t.noise_multiplier > 0), None)
    if private is None:
        raise InputError(f"{spec.name} must have a trainer of the kind dp-sgd with noise, got none")
    for trainer in built:
        if isinstance(trainer, SGD) and (trainer.hidden, trainer.model) == (private.hidden, private.model):
            return trainer, private
    return SGD(**{name: getattr(private, name) for name in SGD.__dataclass_fields__}), private


def _of_file(path: Path, records: int | None, seed: int) -> Source:
    pool = load(path, records=records, seed=seed)
    raw = pool.as_data()
    shift, scale = _scaling(pool.x_test)
    data = Data(
        (pool.x - shift) * scale, pool.y, raw.classes, x_test=(pool.x_test - shift) * scale, y_test=pool.y_test,
        ids=pool.ids, name=pool.name, shape=pool.shape,
    )  # fmt: skip
    columns, texts = _named(path, pool)
    empty = load_spec("digits").model_copy(update={"name": pool.name, "trainers": ()})
    said = "Features were shifted and scaled by means and deviations of the test records, which no model is trained on."
    return Source(pool.name, empty, data, pool.x, columns, texts, _FILE_PLAIN, _FILE_PRIVATE, DELTA, seed, said)


def _scaling(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What to subtract from every feature and to multiply it with, from records that no model is trained on."""
    if len(x) == 0:
        return np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    scale = _NORM / np.sqrt(x.shape[1]) / np.where(deviation > 0, deviation, 1.0)
    return mean.astype(np.float32), scale.astype(np.float32)


def _named(path: Path, pool: Pool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the features, and the records' texts, where a file has them."""
    match path.suffix.lower():
        case ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                names = [name.strip() for name in next(csv.reader(file))]
            return tuple(name for name in names if name != "label"), ()
        case ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                kept: Any = arrays["text"] if "text" in arrays.files else None
            return (), _texts(path, kept, pool)
        case _:
            return (), ()


def _texts(path: Path, kept: NDArray[Any] | None, pool: Pool) -> tuple[str, ...]:
    if kept is None:
        return ()
    numbers = row_numbers(pool.ids)
    if kept.ndim != 1 or kept.dtype.kind not in "US" or len(kept) <= max(numbers):
        raise InputError(f"{path}: text must be one string per record, got {kept.dtype} of shape {kept.shape}")
    return tuple(str(kept[i]) for i in numbers)


def row_numbers(ids: Sequence[str]) -> list[int]:
    """The records' numbers in their source, from their ids.

    >>> row_numbers(["digits-17", "my-file-0"])
    [17, 0]
    """
    return [int(name.rpartition("-")[2]) for name in ids]
