"""Settings that may be given as an object, a name or a TOML table: optimizers, clipping, models. Free of torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from .. import check
from ..errors import InputError
from ..records import Data
from .images import Convolution, ConvolutionalNet
from .private.clipping import AutomaticClipping, Clipping, GlobalClipping, PerLayerClipping
from .private.optimizers import Adam, Momentum, Optimizer, Sgd

MODELS = ("softmax", "mlp", "cnn", "transformer")
ACTIVATIONS = ("relu", "tanh")
OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
RULES: Mapping[str, type[Clipping]] = {
    "global": GlobalClipping,
    "per-layer": PerLayerClipping,
    "automatic": AutomaticClipping,
}
_OF_IMAGES = ("activation", "image")
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "softmax": (),
    "mlp": ("activation",),
    "cnn": _OF_IMAGES,
    "transformer": ("vocabulary", "width", "heads", "layers"),
}

Kind = TypeVar("Kind")


class Table(dict[str, Any]):
    """A read-only dict with a hash, so that settings that hold one are values."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("settings are frozen: make new ones with dataclasses.replace")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (dict(self),)


def frozen(value: Any) -> Any:
    """The same value with tables in place of dicts and tuples in place of lists, all the way down."""
    if isinstance(value, Mapping):
        return Table({key: frozen(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    return value


def table(name: str, value: Any) -> Table:
    """A mapping with names as keys, frozen.

    Raises:
        InputError: it is none, or holds what can't be a setting.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{name} must be a table of settings by name, got {value!r}")
    made: Table = frozen(value)
    try:
        hash(made)
    except TypeError:
        raise InputError(f"{name} must hold numbers, text, lists and tables, got {value!r}") from None
    return made


def choice(name: str, value: Any, kinds: Mapping[str, type[Kind]], base: type[Any], scales: tuple[str, ...]) -> Any:
    """An optimizer or clipping rule as it is kept: an object, or a table where its scale is still to be said.

    Args:
        name: of the setting.
        value: an object of ``base``; the name of a kind; or a table with ``kind`` and the object's own settings.
        kinds: classes by name.
        base: what an object must be.
        scales: those of the object's settings of which one is needed and may come from elsewhere.

    Raises:
        InputError: anything else, or settings that the kind does not take.
    """
    if isinstance(value, base):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be {base.__name__}, a kind ({', '.join(kinds)}) or a table with a kind, "
                         f"got {value!r}")  # fmt: skip
    given = table(name, value)
    complete(name, given, kinds, {} if any(key in given for key in scales) else {scales[0]: 1.0})
    return complete(name, given, kinds, {}) if any(key in given for key in scales) else given


def complete(name: str, given: Table, kinds: Mapping[str, type[Kind]], scale: Mapping[str, float]) -> Kind:
    """The object that a table stands for, with what it leaves open."""
    settings = {key: value for key, value in given.items() if key != "kind"}
    kind = kinds[check.choice(f"kind of {name}", given.get("kind"), tuple(kinds))]
    known = list(inspect.signature(kind).parameters)
    for key in settings:
        if key not in known:
            raise InputError(f"{name} of kind {given['kind']} must have settings among {', '.join(known)}, got {key!r}")
    try:
        return kind(**settings, **scale)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def model(value: Any) -> Any:
    """A model as it is kept: a name, a description of convolutions, or what makes the module.

    Raises:
        InputError: it is neither.
    """
    if value is None or isinstance(value, ConvolutionalNet):
        return value
    if isinstance(value, str):
        if ":" not in value:
            check.choice("model", value, (*MODELS, "package.module:factory"))
        return value
    if isinstance(value, Mapping):
        return _convolutions(value)
    if hasattr(value, "state_dict") and not isinstance(value, type):
        raise InputError(f"model must be what makes a module, anew for every training run, not the module itself, "
                         f"got {type(value).__name__}")  # fmt: skip
    if not callable(value):
        raise InputError(f"model must be one of {', '.join(MODELS)}, package.module:factory, a table of convolutions "
                         f"or a function factory(features, classes, generator), got {value!r}")  # fmt: skip
    return value


def _convolutions(value: Mapping[str, Any]) -> ConvolutionalNet:
    """From ``{shape = [28, 28, 1], layers = [{channels = 16, kernel = 5}]}``."""
    layers = value.get("layers")
    if set(value) != {"shape", "layers"} or not isinstance(layers, (list, tuple)):
        raise InputError(f"model as a table must have shape and layers, a list of convolutions, got {dict(value)!r}")
    if not isinstance(value["shape"], (list, tuple)):
        raise InputError(f"shape must be height, width and channels, got {value['shape']!r}")
    made = []
    for layer in layers:
        try:
            made.append(layer if isinstance(layer, Convolution) else Convolution(**layer))
        except TypeError:
            known = ", ".join(inspect.signature(Convolution).parameters)
            raise InputError(f"a convolution must be a table of channels, kernel and others of {known}, "
                             f"got {layer!r}") from None  # fmt: skip
    return ConvolutionalNet(tuple(value["shape"]), made)


def factory(target: str) -> Callable[..., Any]:
    """The function named ``"package.module:name"``, looked for in the current folder and on the Python path.

    Raises:
        InputError: there is none.
    """
    from .external import folders_on_path, imports_named, named

    with folders_on_path(()), imports_named(target):
        found = named(target, "model")
    if not callable(found):
        raise InputError(f"model must name a function factory(features, classes, generator), got {target}: {found!r}")
    made: Callable[..., Any] = found
    return made


def check_model_settings(value: Any, make: Callable[..., Any] | None, given: Table) -> None:
    """Refuse settings that a model does not take.

    Raises:
        InputError: naming the first of them, or one that is missing.
    """
    if make is not None:
        try:
            inspect.signature(make).bind(None, None, None, **given)
        except TypeError as error:
            raise InputError(f"model_settings do not fit the model, called as factory(features, classes, generator, "
                             f"**model_settings): {error}") from None  # fmt: skip
        except ValueError:  # a callable that does not say what it takes
            return
        return
    name = "softmax" if value is None else "convolutions" if isinstance(value, ConvolutionalNet) else str(value)
    taken = _TAKEN.get(name, ("activation",))
    for key in given:
        if key not in taken:
            wanted = f"among {', '.join(taken)}" if taken else "empty"
            raise InputError(f"model_settings of {name} must be {wanted}, got {key!r}")
    check.choice("activation", given.get("activation", "relu"), ACTIVATIONS)
    if name == "transformer":
        if "vocabulary" not in given:
            raise InputError("model_settings of transformer must say vocabulary, how many tokens there are; a number "
                             "taken from the records would depend on them")  # fmt: skip
        for key, number in given.items():
            check.integer(key, number, 1)
    if "image" in given:
        image = given["image"]
        if not isinstance(image, tuple) or len(image) != 3:
            raise InputError(f"image must be height, width and channels, got {image!r}")
        for side in image:
            check.integer("side of an image", side, 1)


def example_net(shape: tuple[int, int, int]) -> ConvolutionalNet:
    """The convolutions of Opacus's MNIST example (Papernot et al. 2021), for images (height, width, channels)."""
    return ConvolutionalNet(shape, [Convolution(16, 8, 2, 3, pool=2), Convolution(32, 4, 2, pool=2)])


def image_shape(data: Data, given: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Height, width and channels of the records: as given, or as the data say, or those of a square grey image.

    Raises:
        InputError: the records have another number of features.
    """
    side = math.isqrt(data.features)
    height, width = data.shape or (side, side)
    shape = given or (height, width, max(1, data.features // (height * width)))
    if math.prod(shape) != data.features:
        raise InputError(f"image must give the height, width and channels of records with {data.features} features, "
                         f"got {shape}")  # fmt: skip
    return shape
