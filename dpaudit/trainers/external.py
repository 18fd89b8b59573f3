"""Trainers of other people's making: found by name, wrapped, and checked in what they return."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..errors import DpauditError, InputError
from ..interfaces import PrivacyCurve, Trainer
from ..records import BoolArray, Data
from .models import CheckedModel, checked
from .settings import GradientDescent

_FUNCTION_PARAMETERS = ["data", "member", "seed"]


@dataclass(frozen=True)
class FunctionTrainer:
    """A plain function ``function(data, member, seed) -> Model`` as a trainer.

    Attributes:
        function: see :meth:`dpaudit.interfaces.Trainer.train` for what it is given and must keep to.
        promise: the privacy curve that it is said to have, or None.
        name: what to call it in messages and reports; by default the function's own name.
    """

    function: Callable[[Data, BoolArray, int], Any]
    promise: PrivacyCurve | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"function must be callable as function(data, member, seed), got {self.function!r}")
        object.__setattr__(self, "name", self.name or getattr(self.function, "__qualname__", "the function"))

    def train(self, data: Data, member: BoolArray, seed: int) -> CheckedModel:
        """Call the function.

        Raises:
            InputError: what it returns is no model, or it could not import something that it needs.
        """
        with imports_named(self.name):
            model = self.function(data, member, seed)
        return checked(model, self.name, data.classes)

    def claim(self) -> PrivacyCurve | None:
        """What was said to be promised."""
        return self.promise


@dataclass(frozen=True)
class ObjectTrainer:
    """An object with a ``train`` method as a trainer, with a claim of its own or one that is put on it.

    Attributes:
        trainer: the object.
        promise: the claim to judge it by; None asks the object's own ``claim``, if it has one.
        name: what to call it in messages and reports; by default the name of its class.
    """

    trainer: Any
    promise: PrivacyCurve | None = None
    name: str = ""

    def __post_init__(self) -> None:
        kind = type(self.trainer).__name__
        object.__setattr__(self, "name", self.name or kind)
        if not callable(getattr(self.trainer, "train", None)):
            raise InputError(f"{self.name} must have a method train(data, member, seed), got {kind}")

    def train(self, data: Data, member: BoolArray, seed: int) -> CheckedModel:
        """Call the object's ``train``.

        Raises:
            InputError: what it returns is no model, or it could not import something that it needs.
        """
        with imports_named(self.name):
            model = self.trainer.train(data, member, seed)
        return checked(model, self.name, data.classes)

    def claim(self) -> PrivacyCurve | None:
        """The claim that was put on it, or else its own, or else None."""
        if self.promise is not None:
            return self.promise
        own: Any = getattr(self.trainer, "claim", None)
        promised: PrivacyCurve | None = own() if callable(own) else own
        return promised


def resolve(
    target: str,
    settings: Mapping[str, Any] | None = None,
    claim: PrivacyCurve | None = None,
    folders: Sequence[str] = (),
) -> Trainer:
    """The trainer that ``target`` names, as ``"package.module:name"``.

    The name may stand for a function whose first three parameters are ``data, member, seed``; for a class or other
    factory, called with the settings to get an object with a method ``train``; or for such an object. The module is
    looked for in ``folders``, then in the current directory, then on ``sys.path``.

    Args:
        target: module and attribute, with a colon between.
        settings: keyword arguments of the function or factory.
        claim: what the trainer is said to promise; overrides the trainer's own ``claim``.
        folders: where to look first; a spec's own folder.

    Raises:
        InputError: no colon, no such module or attribute, a module that it imports is missing, settings that it does
            not take, or nothing that can train.
    """
    chosen = dict(settings or {})
    with folders_on_path(folders), imports_named(target):
        found = named(target)
        if _is_training_function(found):
            _check_settings(target, found, (None, None, None), chosen)
            function = functools.partial(found, **chosen) if chosen else found
            return FunctionTrainer(function, claim, target)
        trainer = _made(target, found, chosen)
    if isinstance(trainer, GradientDescent | FunctionTrainer | ObjectTrainer) and claim is None:
        return trainer
    return ObjectTrainer(trainer, claim, target)


def named(target: str, what: str = "trainer") -> Any:
    """What ``"package.module:name"`` stands for.

    Raises:
        InputError: no colon, or no such module or attribute.
    """
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise InputError(f"a {what} must be named as package.module:name, got {target!r}")
    found: Any = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise InputError(f"module {module_name} has no {path!r}")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (DpauditError, ImportError) as error:
        own = (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        )
        if own:
            raise InputError(
                f"there is no module {name!r} in {os.getcwd()}, beside the spec or on the Python path"
            ) from None
        raise
    except Exception as error:
        raise InputError(f"module {name!r} could not be imported: {type(error).__name__}: {error}") from error


def _is_training_function(found: Any) -> bool:
    if inspect.isclass(found) or hasattr(found, "train"):
        return False
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return False
    return names[:3] == _FUNCTION_PARAMETERS


def _made(target: str, found: Any, settings: dict[str, Any]) -> Any:
    """The object itself, if it can train, or else what it makes from the settings."""
    if hasattr(found, "train") and not inspect.isclass(found):
        if settings:
            raise InputError(f"{target} is an object and takes no settings, got {', '.join(settings)}")
        return found
    if not callable(found):
        raise InputError(f"{target} must be a function, a class or an object with a method train, got {found!r}")
    _check_settings(target, found, (), settings)
    made = found(**settings)
    if not callable(getattr(made, "train", None)):
        raise InputError(f"{target} must make an object with a method train(data, member, seed), or have the first "
                         f"parameters data, member, seed itself; it made {type(made).__name__}")  # fmt: skip
    return made


def _check_settings(target: str, found: Any, first: tuple[None, ...], settings: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*first, **settings)
    except TypeError as error:
        raise InputError(f"settings of {target} do not fit {signature}: {error}") from None


@contextlib.contextmanager
def imports_named(who: str) -> Iterator[None]:
    """Turn an import that fails in foreign code into one line that says whose it was and what is missing."""
    try:
        yield
    except DpauditError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"{who} needs the module {error.name!r}, which is not installed") from error
    except ImportError as error:
        raise InputError(f"{who} could not import what it needs: {error}") from error


@contextlib.contextmanager
def folders_on_path(folders: Sequence[str]) -> Iterator[None]:
    """Look in ``folders`` first, then in the current directory, then on the Python path."""
    added = [os.path.abspath(folder) for folder in (*folders, os.getcwd())]
    sys.path[:0] = added
    try:
        yield
    finally:
        # The foreign module may have changed the path itself: take out the entries that were added, nothing else.
        for entry in added:
            if entry in sys.path:
                sys.path.remove(entry)
