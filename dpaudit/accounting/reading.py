"""Claims from JSON: dpaudit's own documents, Opacus' accountant histories and dp-accounting's events.

Three forms, told apart by their keys; anything that is not known is refused by its place in the document:

- ``{"kind": "dp-sgd", "settings": {"noise_multiplier": 1.1, "sampling_rate": 0.00427, "steps": 14063}}``, where
  ``adjacency`` and, inside ``settings``, ``sampler`` may be given; kinds are those of :data:`KINDS`. A composition is
  ``{"kind": "composed", "settings": {"parts": [...]}}``. What ``dpaudit account --json`` prints is read as well.
- ``{"history": [[noise_multiplier, sample_rate, steps], ...]}``, as Opacus' ``accountant.state_dict()`` has it;
  ``sampler`` and ``adjacency`` may be given.
- ``{"class_name": "SelfComposedDpEvent", "count": 14063, "event": {...}}``, as dp-accounting's
  ``event.to_named_tuple()`` has it, field by field; ``neighboring_relation`` or ``adjacency`` may be given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import check
from ..errors import InputError
from ..records import ADJACENCY
from .claims import SAMPLERS, Claim

KINDS = ("dp-sgd", "gaussian", "laplace", "pair", "composed")
SCHEMAS = ("dpaudit.claim/1", "dpaudit.account/1")
_LARGEST_FILE = 2**24
_HISTORY_ROW = "[noise_multiplier, sample_rate, steps]"
_OPACUS_ACCOUNTANTS = ("rdp", "prv", "gdp")
_TOO_DEEP = "a claim must not be nested so deeply"
_EVENTS_MODULE = "dp_accounting.dp_event"
_RELATIONS = {  # dp-accounting's names, where they are not the same but for case and underscores
    "add-or-remove-one": "add-remove",
    "replace-special": "zero-out",
}


def read_claim(path: str | Path) -> Claim:
    """The claim in a JSON file, in any of the forms of this module.

    Raises:
        InputError: no such file, no JSON, or a part of it is not known or does not fit.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{file}: can't be read: {error.strerror or error}") from None
    if len(text) > _LARGEST_FILE:
        raise InputError(f"{file}: a claim must be a JSON document of at most {_LARGEST_FILE // 2**20} MiB")
    try:
        return claim_of(_parsed(text))
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _parsed(text: bytes) -> Any:
    """Strict JSON: no NaN, no infinity, no key twice."""
    try:
        return json.loads(text.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_once)
    except InputError:
        raise
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError as error:
        raise InputError(f"a claim must be a JSON document in UTF-8, got an error: {error}") from None


def claim_of(content: Any) -> Claim:
    """The claim that a document in any of the forms of this module states.

    >>> claim_of({"history": [[1.1, 0.01, 100]], "mechanism": "rdp"}).settings["steps"]
    100

    Raises:
        InputError: a part is not known or does not fit; the message names its place.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"a claim must be a JSON object, got {_short(content)}")
    forms = [key for key in ("kind", "history", "class_name") if key in content]
    if len(forms) != 1:
        keys = f"the keys {_short(', '.join(map(str, content)))}" if content else "an empty object"
        got = " and ".join(forms) or keys
        raise InputError(
            "a claim must have one of the keys 'kind' (dpaudit), 'history' (Opacus) or 'class_name' (dp-accounting), "
            f"got {got}"
        )
    try:
        return {"kind": _own, "history": _opacus, "class_name": _events}[forms[0]](content)
    except RecursionError:
        raise InputError(_TOO_DEEP) from None


def _own(content: Mapping[str, Any]) -> Claim:
    schema = check.choice("schema", content.get("schema", SCHEMAS[0]), SCHEMAS)
    if schema == SCHEMAS[0]:
        _only(content, ("schema", "kind", "adjacency", "settings"), "")
    return _own_part({key: content[key] for key in ("kind", "adjacency", "settings") if key in content}, "", None)


def _own_part(content: Any, place: str, relation: str | None) -> Claim:
    """The claim of one object with a kind; ``relation`` is what the composition around it says."""
    if not isinstance(content, Mapping):
        raise InputError(f"{place} must be an object with kind and settings, got {_short(content)}")
    _only(content, ("kind", "adjacency", "settings"), place)
    kind, settings = _needed(content, "kind", place), _needed(content, "settings", place)
    if kind not in KINDS:
        raise InputError(f"{_at(place, 'kind')} must be one of {', '.join(KINDS)}, got {_short(kind)}")
    relation = _relation(content, place, relation)
    here = _at(place, "settings")
    if not isinstance(settings, Mapping):
        raise InputError(f"{here} must be an object, got {_short(settings)}")
    if kind == "composed":
        return _own_composition(settings, here, relation)
    makers: dict[str, tuple[Callable[..., Claim], tuple[str, ...], tuple[str, ...]]] = {
        "dp-sgd": (Claim.dp_sgd, ("noise_multiplier", "sampling_rate", "steps"), ("sampler",)),
        "gaussian": (Claim.gaussian, ("noise_multiplier",), ("steps",)),
        "laplace": (Claim.laplace, ("noise_multiplier",), ("steps",)),
        "pair": (_pair, (), ("epsilon", "delta", "at_epsilon", "at_delta")),
    }
    make, needed, more = makers[str(kind)]
    _only(settings, (*needed, *more), here)
    for name in needed:
        _needed(settings, name, here)
    named = dict(settings) | ({} if relation is None else {"adjacency": relation})
    return _placed(here, lambda: make(**named), tuple(settings))


def _relation(content: Mapping[str, Any], place: str, around: str | None) -> str | None:
    """The neighbouring relation that an object states, or the one that is stated around it."""
    if "adjacency" not in content:
        return around
    relation = check.choice(_at(place, "adjacency"), content["adjacency"], ADJACENCY)
    if around not in (None, relation):
        raise InputError(f"{_at(place, 'adjacency')} must be {around}, as stated around it, got {relation!r}")
    return relation


def _own_composition(settings: Mapping[str, Any], here: str, relation: str | None) -> Claim:
    _only(settings, ("parts",), here)
    parts = _list(_needed(settings, "parts", here), _at(here, "parts"), "claims")
    inner = [_own_part(part, f"{_at(here, 'parts')}[{i}]", relation) for i, part in enumerate(parts)]
    return _placed(_at(here, "parts"), lambda: Claim.compose(*inner))


def _pair(adjacency: str = "add-remove", **settings: Any) -> Claim:
    named = {name.removeprefix("at_"): value for name, value in settings.items()}
    if len(settings) != 2 or set(named) != {"epsilon", "delta"}:
        raise InputError(f"a pair must have epsilon and delta, got {', '.join(settings) or 'neither'}")
    return Claim.pair(**named, adjacency=adjacency)


def _opacus(content: Mapping[str, Any]) -> Claim:
    _only(content, ("history", "mechanism", "adjacency", "sampler"), "")
    if "mechanism" in content:  # which of Opacus' accountants kept the history; none of them changes what was done
        check.choice("mechanism", content["mechanism"], _OPACUS_ACCOUNTANTS)
    named: dict[str, Any] = {
        "sampler": check.choice("sampler", content.get("sampler", "poisson"), SAMPLERS),
        "adjacency": _relation(content, "", None),
    }
    phases = []
    for i, row in enumerate(_list(content["history"], "history", _HISTORY_ROW)):
        place = f"history[{i}]"
        if not _is_list(row) or len(row) != 3:
            raise InputError(f"{place} must be {_HISTORY_ROW}, got {_short(row)}")
        settings = named | dict(zip(("noise_multiplier", "sampling_rate", "steps"), row, strict=True))
        phases.append(_placed(place, partial(Claim.dp_sgd, **settings)))
    return Claim.compose(*phases)


def _events(content: Mapping[str, Any]) -> Claim:
    event = dict(content)
    given = [key for key in ("neighboring_relation", "adjacency") if key in event]
    if len(given) > 1:
        raise InputError("a claim must have one of neighboring_relation and adjacency, got both")
    relation = None
    for key in given:
        name = event.pop(key)
        plain = name.lower().replace("_", "-") if isinstance(name, str) else name
        known = _RELATIONS.get(plain, plain) if isinstance(plain, str) else plain
        relation = check.choice(key, known, ADJACENCY)
    return _event(event, "", relation)


def _event(event: Any, place: str, relation: str | None) -> Claim:
    """The claim of one event; ``place`` is its path in the document."""
    if not isinstance(event, Mapping):
        raise InputError(f"{place or 'the event'} must be an object with a class_name, got {_short(event)}")
    name = _needed(event, "class_name", place)
    readers = {
        "GaussianDpEvent": _gaussian_event,
        "LaplaceDpEvent": _laplace_event,
        "ComposedDpEvent": _composed_event,
        "SelfComposedDpEvent": _repeated_event,
        "PoissonSampledDpEvent": _poisson_event,
        "SampledWithoutReplacementDpEvent": _fixed_size_event,
    }
    if not isinstance(name, str) or name not in readers:
        raise InputError(
            f"{_at(place, 'class_name')} must be one of {', '.join(readers)}, got {_short(name)}: "
            "there is no accountant for it here"
        )
    module = event.get("module_name", _EVENTS_MODULE)
    if module != _EVENTS_MODULE:
        raise InputError(f"{_at(place, 'module_name')} must be {_EVENTS_MODULE!r}, got {_short(module)}")
    return readers[name](event, place, relation)


def _gaussian_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    noise = _noise(event, place)
    return _placed(place, lambda: Claim.gaussian(noise_multiplier=noise, adjacency=relation))


def _laplace_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    noise = _noise(event, place)
    return _placed(place, lambda: Claim.laplace(noise_multiplier=noise, adjacency=relation))


def _composed_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    (events,) = _fields(event, place, "events")
    there = _at(place, "events")
    parts = [_event(e, f"{there}[{i}]", relation) for i, e in enumerate(_list(events, there, "events"))]
    return _placed(place, lambda: Claim.compose(*parts))


def _repeated_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    inner, count = _fields(event, place, "event", "count")
    claim = _event(inner, _at(place, "event"), relation)
    times = check.integer(_at(place, "count"), count, 1)
    return _placed(place, lambda: claim.repeat(times))


def _poisson_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    rate, inner = _fields(event, place, "sampling_probability", "event")
    probability = check.probability(_at(place, "sampling_probability"), rate)
    return _sampled(inner, place, relation, probability, "poisson")


def _fixed_size_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    size, sample, inner = _fields(event, place, "source_dataset_size", "sample_size", "event")
    records = check.integer(_at(place, "source_dataset_size"), size, 1)
    batch = check.integer(_at(place, "sample_size"), sample, 1, records)
    return _sampled(inner, place, relation, batch / records, "fixed-size")


def _sampled(inner: Any, place: str, relation: str | None, rate: float, sampler: str) -> Claim:
    """One step on a sampled batch; only a Gaussian event can be inside."""
    there = _at(place, "event")
    name = inner.get("class_name") if isinstance(inner, Mapping) else inner
    if name != "GaussianDpEvent":
        raise InputError(f"{_at(there, 'class_name')} must be GaussianDpEvent in a sampled event, got {_short(name)}")
    noise = _noise(inner, there)
    settings: dict[str, Any] = {"noise_multiplier": noise, "sampling_rate": rate, "steps": 1, "sampler": sampler}
    return _placed(place, lambda: Claim.dp_sgd(**settings, adjacency=relation))


def _noise(event: Mapping[str, Any], place: str) -> float:
    (noise,) = _fields(event, place, "noise_multiplier")
    return check.positive(_at(place, "noise_multiplier"), noise)


def _fields(event: Mapping[str, Any], place: str, *names: str) -> list[Any]:
    """The values of an event's fields; it must have these and no others."""
    _only(event, ("module_name", "class_name", *names), place)
    return [_needed(event, name, place) for name in names]


def _needed(content: Mapping[str, Any], name: str, place: str) -> Any:
    if name not in content:
        raise InputError(f"{_at(place, name)} is missing")
    return content[name]


def _list(value: Any, place: str, what: str) -> Sequence[Any]:
    if not _is_list(value) or not value:
        raise InputError(f"{place} must be a list of {what}, got {_short(value)}")
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _placed(place: str, make: Callable[[], Claim], names: Sequence[str] = ()) -> Claim:
    """What ``make`` makes; its complaint is put at ``place``, or at the one of ``names`` there that it is about."""
    try:
        return make()
    except InputError as error:
        text = str(error)
        about = text.split(" ", 1)[0]
        raise InputError(_at(place, text) if about in names else f"{place}: {text}" if place else text) from None


def _only(content: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in content:
        if key not in allowed:
            raise InputError(f"{_at(place, str(key))} is not known here; known are {', '.join(allowed)}")


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _no_constant(name: str) -> float:
    raise InputError(f"numbers must be finite, got {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"every key must be given once, got {twice!r} twice in one object")
    return content


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
