"""Trained models as plain arrays: numpy alone is enough to use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from ..interfaces import Model
from .private.diagnostics import Diagnostics, StepCounts

_ROWS = 4096  # records whose activations are held at once


def _features(x: ArrayLike, width: int | None = None) -> NDArray[np.floating[Any]]:
    array = np.asarray(x)
    if array.ndim != 2 or (width is not None and array.shape[1] != width):
        wanted = "features" if width is None else str(width)
        raise InputError(f"features must have the shape (records, {wanted}), got {array.shape}")
    return array


@dataclass(frozen=True, eq=False)
class Network:
    """A softmax classifier with any number of ReLU layers; one kind of :class:`dpaudit.interfaces.Model`.

    Attributes:
        layers: one float32 matrix per layer, shape ``(inputs + 1, outputs)``; the last row is the bias. The flat
            parameter vector is these matrices, row by row, one after the other: in a network without hidden layers
            the weight from feature j to class c is at ``j · classes + c``.
        start: the parameters before the first step, flat, float32.
        released: the parameters after each step, float32, shape ``(steps, parameters)``, if they were kept.
        counts: for each step, how many examples there were, and how many gradients were scaled down and dropped,
            int32, shape ``(steps, 3)``. **Outside the claim**: never to be released.
    """

    layers: tuple[NDArray[np.float32], ...]
    start: NDArray[np.float32]
    released: NDArray[np.float32] | None = None
    counts: NDArray[np.int32] | None = field(default=None, kw_only=True, repr=False)

    @property
    def diagnostics(self) -> Diagnostics:
        """The same counts, step by step. **Outside the claim**: never to be released."""
        return Diagnostics(() if self.counts is None else tuple(StepCounts(*row) for row in self.counts.tolist()))

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Unnormalised log-probabilities, float64, shape ``(records, classes)``.

        Raises:
            InputError: ``x`` is not of shape ``(records, features)``.
        """
        array = _features(x, self.layers[0].shape[0] - 1)
        out = np.empty((len(array), self.layers[-1].shape[1]))
        for at in range(0, len(array), _ROWS):
            out[at : at + _ROWS] = self._forward(array[at : at + _ROWS].astype(np.float64))
        return out

    def _forward(self, activation: NDArray[np.float64]) -> NDArray[np.float64]:
        for number, layer in enumerate(self.layers):
            if number:
                np.maximum(activation, 0.0, out=activation)
            with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged; its logits are checked
                activation = activation @ layer[:-1].astype(np.float64) + layer[-1]
        return activation

    def parameters(self) -> NDArray[np.float32]:
        """The final parameters as one flat vector; see :attr:`layers` for the order."""
        return np.concatenate([layer.ravel() for layer in self.layers])

    def iterates(self) -> NDArray[np.float32] | None:
        """The parameters after each step, shape ``(steps, parameters)``; None unless training kept them."""
        return self.released


@dataclass(frozen=True, eq=False)
class CheckedModel:
    """Somebody else's model, whose answers are checked before they are believed.

    Attributes:
        model: has ``logits``, and perhaps ``parameters`` and ``iterates``.
        trainer: the name to blame.
        classes: how many logits a record must get.

    Raises:
        InputError: the object has no ``logits``.
    """

    model: Any
    trainer: str
    classes: int

    def __post_init__(self) -> None:
        if not callable(getattr(self.model, "logits", None)):
            kind = type(self.model).__name__
            raise InputError(f"{self.trainer} must return a model with a method logits(x), got {kind}")

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """The model's logits as float64, shape ``(records, classes)``.

        Raises:
            InputError: they are no numbers, have another shape, or are not finite.
        """
        array = _features(x)
        try:
            out = np.asarray(self.model.logits(array), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"logits of {self.trainer} could not be read as numbers: {error}") from error
        wanted = (len(array), self.classes)
        if out.shape != wanted:
            raise InputError(f"logits of {self.trainer} must have the shape (records, classes) = {wanted}, "
                             f"got {out.shape}")  # fmt: skip
        if not np.isfinite(out).all():
            raise InputError(f"logits of {self.trainer} must be finite, got NaN or infinity")
        return out

    def parameters(self) -> NDArray[np.floating[Any]] | None:
        """The model's flat parameters, or None if it doesn't show them."""
        return self._optional("parameters", 1)

    def iterates(self) -> NDArray[np.floating[Any]] | None:
        """The model's released iterates ``(steps, parameters)``, or None if it doesn't show them."""
        return self._optional("iterates", 2)

    def _optional(self, name: str, dimensions: int) -> NDArray[np.floating[Any]] | None:
        method = getattr(self.model, name, None)
        value = method() if callable(method) else None
        if value is None:
            return None
        array = np.asarray(value, dtype=np.float64)
        if array.ndim != dimensions:
            raise InputError(f"{name}() of {self.trainer} must have {dimensions} dimensions, got shape {array.shape}")
        return array


def checked(model: Any, trainer: str, classes: int) -> CheckedModel:
    """``model`` as a :class:`CheckedModel`, unless it is one."""
    return model if isinstance(model, CheckedModel) else CheckedModel(model, trainer, classes)


@dataclass(frozen=True, eq=False)
class ModelStack(Sequence[Model]):
    """Models trained with one call, in the order of the rows of ``member``.

    Attributes:
        models: the models themselves.
        trainer: what they were trained with, for messages.
    """

    models: tuple[Model, ...]
    trainer: str = "the trainer"

    def __len__(self) -> int:
        return len(self.models)

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models)

    @overload
    def __getitem__(self, key: int) -> Model: ...
    @overload
    def __getitem__(self, key: slice) -> ModelStack: ...
    def __getitem__(self, key: int | slice) -> Model | ModelStack:
        if isinstance(key, slice):
            return ModelStack(self.models[key], self.trainer)
        return self.models[key]

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Logits of every model for the same records, float64, shape ``(models, records, classes)``.

        The result is the only large array: activations are held for one model and a few thousand records at a time.

        Raises:
            InputError: ``x`` is not ``(records, features)``, there is no model, or a model's logits are not finite
                (a training run that diverged).
        """
        if not self.models:
            raise InputError("logits need at least one model, got none")
        array = _features(x)
        first = self._one(0, array)
        out = np.empty((len(self), *first.shape))
        out[0] = first
        for k in range(1, len(self)):
            out[k] = self._one(k, array)
        return out

    def _one(self, k: int, x: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        logits = self.models[k].logits(x)
        if not np.isfinite(logits).all():
            raise InputError(f"logits of {self.trainer} must be finite, got NaN or infinity from model {k}; "
                             "did the learning rate make it diverge?")  # fmt: skip
        return logits
