"""A model of the user's: loaded without running code from its file unless told so, asked in batches."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DpauditError, InputError, need_extra
from ..trainers.external import folders_on_path, imports_named, named
from .sources import as_text

BATCH = 4096
PICKLED = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
_SUM = 1e-3


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model said of every record.

    Attributes:
        kind: ``logits`` or ``probabilities``.
        values: shape ``(records, classes)``.
        classes: names of the columns, or None where they are numbered.
        note: how that was found out, in a sentence.
    """

    kind: str
    values: NDArray[np.floating]
    classes: tuple[str, ...] | None
    note: str

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As :func:`~dpaudit.inference.read_source` takes them."""
        found: dict[str, NDArray[Any]] = {self.kind: self.values}
        return found if self.classes is None else found | {"classes": np.array(self.classes)}


def load_model(target: str, *, trust: Sequence[str] = (), unpickle: bool = False) -> Any:
    """The model that ``target`` names.

    Args:
        target: a file ``.skops``; a pickle (``.pkl``, ``.pickle``, ``.joblib``, ``.pt``, ``.pth``) with ``unpickle``;
            or ``package.module:name``, looked for in the current directory and on the Python path.
        trust: names of types in a skops file that may be made beside those that skops itself trusts.
        unpickle: allow pickles. Loading one runs whatever code is in it, with all of the caller's rights.

    Raises:
        InputError: no such file or name, a type that is not trusted, a pickle without ``unpickle``, a damaged file.
        MissingExtra: skops, joblib or torch is needed and not installed.
    """
    if Path(target).suffix.lower() in (".skops", *PICKLED):
        path = Path(target)
        if not path.is_file():
            why = "is no file" if path.exists() else "does not exist"
            raise InputError(f"the model must be a file or package.module:name, got {target!r}, which {why}")
        return _skops(path, trust) if path.suffix.lower() == ".skops" else _pickled(path, unpickle)
    if ":" not in target:
        raise InputError(
            f"the model must be a file ending in .skops or package.module:name, got {target!r} "
            f"({', '.join(PICKLED)} only with --unpickle)"
        )
    with folders_on_path(()), imports_named(target):
        try:
            return named(target, "model")
        except SystemExit as error:
            raise InputError(f"{target} could not be loaded: it ended the program with {error.code!r}") from error


def _skops(path: Path, trust: Sequence[str]) -> Any:
    try:
        from skops import io
    except ImportError:
        raise need_extra("skops", "skops") from None
    try:
        unknown = sorted(set(io.get_untrusted_types(file=path)) - set(trust))
    except Exception as error:  # zip, JSON and skops' own errors of a damaged file
        raise InputError(f"{path} must be a file written by skops, got {type(error).__name__}: {error}") from None
    if unknown:
        options = " ".join(f"--trust {name}" for name in unknown)
        raise InputError(
            f"{path} holds types that are not known to be harmless: {', '.join(unknown)}; "
            f"if you know them, add {options}"
        )
    with imports_named(str(path)):
        try:
            return io.load(path, trusted=list(trust))
        except (ImportError, DpauditError):
            raise
        except Exception as error:
            raise InputError(f"{path} could not be loaded: {type(error).__name__}: {error}") from None


def _pickled(path: Path, unpickle: bool) -> Any:
    if not unpickle:
        raise InputError(
            f"{path} is a pickle, and loading one runs any code that is in it; save the model with skops, name it as "
            "package.module:name, or add --unpickle if you trust whoever made the file"
        )
    with imports_named(str(path)):
        try:
            return _LOADERS[path.suffix.lower()](path)
        except (ImportError, DpauditError):
            raise
        except (Exception, SystemExit) as error:  # a pickle can raise anything
            raise InputError(f"{path} could not be loaded: {type(error).__name__}: {error}") from None


def _load_pickle(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


def _load_joblib(path: Path) -> Any:
    try:
        import joblib
    except ImportError:
        raise need_extra("joblib") from None
    return joblib.load(path)


def _load_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise need_extra("torch") from None
    return torch.load(path, map_location="cpu", weights_only=False)


_LOADERS: dict[str, Callable[[Path], Any]] = {
    ".pkl": _load_pickle,
    ".pickle": _load_pickle,
    ".joblib": _load_joblib,
    ".pt": _load_torch,
    ".pth": _load_torch,
}


def ask(model: Any, x: NDArray[Any], labels: NDArray[Any] | None, name: str) -> Answers:
    """The model's outputs on every record, in batches.

    An object with ``predict_proba`` gives probabilities; their columns are matched by its ``classes_``, and a label
    that it never saw gets a column of zeros. An object with ``logits`` gives logits. Anything else is called with
    features: rows that are probabilities (in [0, 1], sum 1) are taken as such, others as logits.

    Args:
        model: as :func:`load_model` gives it.
        x: features, shape ``(records, ...)``.
        labels: of the records, to know which classes there are; or None.
        name: for messages.

    Raises:
        InputError: an object that can't answer, or answers of another shape, or not finite.
    """
    if not inspect.isclass(model) and hasattr(model, "predict_proba"):
        values = _batched(model.predict_proba, x, name)
        _require_probabilities(values, name)
        classes = _classes(model, values.shape[1], name)
        values, classes = _with_unseen(values, classes, labels, name)
        return Answers("probabilities", values, classes, "probabilities by predict_proba, columns by classes_")
    if not inspect.isclass(model) and callable(getattr(model, "logits", None)):
        return Answers("logits", _batched(model.logits, x, name), None, "logits by its method logits")
    if inspect.isclass(model) or not callable(model):
        raise InputError(
            f"{name} must be a function of x or an object with predict_proba or logits, got "
            f"{'the class ' + model.__name__ if inspect.isclass(model) else type(model).__name__}"
        )
    values = _batched(_without_gradients(model), x, name)
    if (values >= 0).all() and np.abs(values.sum(axis=1, dtype=np.float64) - 1).max() <= _SUM:
        return Answers("probabilities", values, None, "probabilities: every row of outputs sums to 1")
    return Answers("logits", values, None, "logits: rows of outputs do not sum to 1")


def _batched(function: Callable[[Any], Any], x: NDArray[Any], name: str) -> NDArray[np.floating]:
    parts = []
    for start in range(0, len(x), BATCH):
        batch = x[start : start + BATCH]
        try:
            found = function(batch)
        except DpauditError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{name} failed on records {start} to {start + len(batch) - 1} of x: "
                             f"{type(error).__name__}: {error}") from error  # fmt: skip
        parts.append(_checked(found, len(batch), name))
    if len({part.shape[1] for part in parts}) != 1:
        raise InputError(f"{name} must give the same number of classes for every batch")
    return np.concatenate(parts)


def _checked(found: Any, records: int, name: str) -> NDArray[np.floating]:
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    try:
        out = np.asarray(found)
        if out.dtype.kind != "c":  # numpy would drop the imaginary parts
            out = out if out.dtype.kind == "f" else out.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must give numbers, got {type(found).__name__}") from None
    if out.dtype.kind == "c":
        raise InputError(f"{name} must give real numbers, got {out.dtype}")
    if out.ndim != 2 or len(out) != records or out.shape[1] < 2:
        raise InputError(f"{name} must give ({records}, classes) with at least 2 classes, got shape {out.shape}")
    if not np.isfinite(out).all():
        raise InputError(f"{name} must give finite numbers, got NaN or infinity")
    return out


def _require_probabilities(values: NDArray[np.floating], name: str) -> None:
    bad = (values < 0).any(axis=1) | (np.abs(values.sum(axis=1, dtype=np.float64) - 1) > _SUM)
    if bad.any():
        row = values[bad.argmax()].tolist()
        raise InputError(f"{name} must give rows of predict_proba in [0, 1] that sum to 1, got {row[:5]}")


def _without_gradients(model: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A torch module takes tensors, in evaluation mode; anything else takes the array as it is."""
    if not hasattr(model, "state_dict"):
        return model
    import torch

    model.eval()  # type: ignore[attr-defined]
    kind = next((p.dtype for p in model.parameters()), torch.float32)  # type: ignore[attr-defined]

    def call(batch: NDArray[Any]) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(np.ascontiguousarray(batch)).to(kind))

    return call


def _classes(model: Any, width: int, name: str) -> tuple[str, ...]:
    classes = getattr(model, "classes_", None)
    if classes is None or np.ndim(classes) != 1 or len(classes) != width:
        raise InputError(f"{name} must have classes_, one per column of predict_proba ({width}), got {classes!r}")
    return tuple(as_text(c) for c in classes)


def _with_unseen(
    values: NDArray[np.floating], classes: tuple[str, ...], labels: NDArray[Any] | None, name: str
) -> tuple[NDArray[np.floating], tuple[str, ...]]:
    """Columns of zeros for labels that the model does not know."""
    given = [] if labels is None else sorted({as_text(label) for label in np.unique(labels)})
    unseen = tuple(label for label in given if label not in classes)
    if given and len(unseen) == len(given):
        raise InputError(
            f"{name} must know some of the labels ({', '.join(given[:12])}), got the classes {', '.join(classes[:12])}"
        )
    zeros = np.zeros((len(values), len(unseen)), values.dtype)
    return np.concatenate([values, zeros], axis=1), (*classes, *unseen)
