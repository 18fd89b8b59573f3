"""Claims from JSON: dpaudit's own documents, Opacus' accountant histories and dp-accounting's events.

Three forms, told apart by their keys; anything that is not known is refused by its place in the document:

- ``{"kind": "dp-sgd", "settings": {"noise_multiplier": 1.1, "sampling_rate": 0.00427, "steps": 14063}}``, where
  ``adjacency`` and, inside ``settings``, ``sampler`` may be given; kinds are those of :data:`KINDS`. A composition is
  ``{"kind": "composed", "settings": {"parts": [...]}}``.
- ``{"history": [[noise_multiplier, sample_rate, steps], ...]}``, as Opacus' ``accountant.state_dict()`` has it.
- ``{"class_name": "SelfComposedDpEvent", "count": 14063, "event": {...}}``, as dp-accounting's
  ``event.to_named_tuple()`` has it, field by field.
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
_LARGEST_FILE = 2**24
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
        if file.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{file}: a claim must be a JSON document of at most 16 MiB")
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise InputError(f"{file}: can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{file}: {error}") from None
        raise InputError(f"{file}: a claim must be a JSON document in UTF-8, got an error: {error}") from None
    try:
        return claim_of(content)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


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
        got = " and ".join(forms) or f"the keys {', '.join(map(str, content)) or 'of an empty object'}"
        raise InputError(
            "a claim must have one of the keys 'kind' (dpaudit), 'history' (Opacus) or 'class_name' (dp-accounting), "
            f"got {got}"
        )
    try:
        return {"kind": _own, "history": _opacus, "class_name": _events}[forms[0]](content)
    except RecursionError:
        raise InputError("a claim must not be nested so deeply") from None


def _own(content: Mapping[str, Any]) -> Claim:
    _only(content, ("schema", "kind", "adjacency", "settings"), "")
    relation = content.get("adjacency")
    if relation is not None:
        check.choice("adjacency", relation, ADJACENCY)
    return _own_part(content, "", relation)


def _own_part(content: Any, place: str, relation: str | None) -> Claim:
    if not isinstance(content, Mapping):
        raise InputError(f"{place or 'claim'} must be an object, got {_short(content)}")
    kind = content.get("kind")
    if kind not in KINDS:
        raise InputError(f"{_at(place, 'kind')} must be one of {', '.join(KINDS)}, got {_short(kind)}")
    if "settings" not in content:
        raise InputError(f"{_at(place, 'settings')} is missing")
    here, settings = _at(place, "settings"), content["settings"]
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
        if name not in settings:
            raise InputError(f"{_at(here, name)} is missing")
    named = dict(settings) | ({} if relation is None else {"adjacency": relation})
    return _placed(here, lambda: make(**named))


def _own_composition(settings: Mapping[str, Any], here: str, relation: str | None) -> Claim:
    _only(settings, ("parts",), here)
    parts = settings.get("parts")
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise InputError(f"{_at(here, 'parts')} must be a list of claims, got {_short(parts)}")
    inner = [_own_part(part, f"{_at(here, 'parts')}[{i}]", relation) for i, part in enumerate(parts)]
    return _placed(_at(here, "parts"), lambda: Claim.compose(*inner))


def _pair(adjacency: str = "add-remove", **settings: Any) -> Claim:
    named = {name.removeprefix("at_"): value for name, value in settings.items()}
    if len(settings) != 2 or set(named) != {"epsilon", "delta"}:
        raise InputError(f"a pair must have epsilon and delta, got {', '.join(settings) or 'neither'}")
    return Claim.pair(**named, adjacency=adjacency)


def _opacus(content: Mapping[str, Any]) -> Claim:
    _only(content, ("history", "mechanism", "adjacency", "sampler"), "")
    history, sampler = content["history"], check.choice("sampler", content.get("sampler", "poisson"), SAMPLERS)
    if not isinstance(history, Sequence) or isinstance(history, str) or not history:
        raise InputError(f"history must be a list of [noise_multiplier, sample_rate, steps], got {_short(history)}")
    named: dict[str, Any] = {"sampler": sampler, "adjacency": content.get("adjacency")}
    phases = []
    for i, row in enumerate(history):
        place = f"history[{i}]"
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise InputError(f"{place} must be [noise_multiplier, sample_rate, steps], got {_short(row)}")
        settings = named | dict(zip(("noise_multiplier", "sampling_rate", "steps"), row, strict=True))
        phases.append(_placed(place, partial(Claim.dp_sgd, **settings)))
    return Claim.compose(*phases)


def _events(content: Mapping[str, Any]) -> Claim:
    event = dict(content)
    relation = event.pop("neighboring_relation", event.pop("adjacency", None))
    if relation is not None:
        relation = str(relation).lower().replace("_", "-")
        relation = check.choice("adjacency", _RELATIONS.get(relation, relation), ADJACENCY)
    return _event(event, "", relation)


def _event(event: Any, place: str, relation: str | None) -> Claim:
    """The claim of one event; ``place`` is its path in the document."""
    if not isinstance(event, Mapping):
        raise InputError(f"{place or 'the event'} must be an object with a class_name, got {_short(event)}")
    name = event.get("class_name")
    readers = {
        "GaussianDpEvent": _gaussian_event,
        "LaplaceDpEvent": _laplace_event,
        "ComposedDpEvent": _composed_event,
        "SelfComposedDpEvent": _repeated_event,
        "PoissonSampledDpEvent": _poisson_event,
        "SampledWithoutReplacementDpEvent": _fixed_size_event,
    }
    if name not in readers:
        raise InputError(
            f"{_at(place, 'class_name')} must be one of {', '.join(readers)}, got {_short(name)}: "
            "there is no accountant for it here"
        )
    return readers[str(name)](event, place, relation)


def _gaussian_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    noise = _field(event, "noise_multiplier", place, ("noise_multiplier",))
    return _placed(place, lambda: Claim.gaussian(noise_multiplier=noise, adjacency=relation))


def _laplace_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    noise = _field(event, "noise_multiplier", place, ("noise_multiplier",))
    return _placed(place, lambda: Claim.laplace(noise_multiplier=noise, adjacency=relation))


def _composed_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    events = _field(event, "events", place, ("events",))
    if not isinstance(events, Sequence) or isinstance(events, str) or not events:
        raise InputError(f"{_at(place, 'events')} must be a list of events, got {_short(events)}")
    parts = [_event(part, f"{_at(place, 'events')}[{i}]", relation) for i, part in enumerate(events)]
    return _placed(place, lambda: Claim.compose(*parts))


def _repeated_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    inner = _event(_field(event, "event", place, ("event", "count")), _at(place, "event"), relation)
    count = _field(event, "count", place, ("event", "count"))
    return _placed(place, lambda: inner.repeat(count))


def _poisson_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    fields = ("sampling_probability", "event")
    noise = _sampled_noise(event, place, fields)
    rate = _field(event, "sampling_probability", place, fields)
    settings: dict[str, Any] = {"noise_multiplier": noise, "sampling_rate": rate, "steps": 1}
    return _placed(place, lambda: Claim.dp_sgd(**settings, adjacency=relation))


def _fixed_size_event(event: Mapping[str, Any], place: str, relation: str | None) -> Claim:
    fields = ("source_dataset_size", "sample_size", "event")
    noise = _sampled_noise(event, place, fields)
    records = check.integer(_at(place, "source_dataset_size"), _field(event, "source_dataset_size", place, fields), 1)
    batch = check.integer(_at(place, "sample_size"), _field(event, "sample_size", place, fields), 1, records)
    settings: dict[str, Any] = {"noise_multiplier": noise, "sampling_rate": batch / records, "steps": 1}
    return _placed(place, lambda: Claim.dp_sgd(**settings, sampler="fixed-size", adjacency=relation))


def _sampled_noise(event: Mapping[str, Any], place: str, fields: tuple[str, ...]) -> Any:
    """The noise multiplier of the Gaussian event inside a sampled one."""
    inner, there = _field(event, "event", place, fields), _at(place, "event")
    if not isinstance(inner, Mapping) or inner.get("class_name") != "GaussianDpEvent":
        got = inner.get("class_name") if isinstance(inner, Mapping) else inner
        raise InputError(f"{_at(there, 'class_name')} must be GaussianDpEvent in a sampled event, got {_short(got)}")
    return _field(inner, "noise_multiplier", there, ("noise_multiplier",))


def _field(event: Mapping[str, Any], name: str, place: str, allowed: tuple[str, ...]) -> Any:
    _only(event, ("module_name", "class_name", *allowed), place)
    if name not in event:
        raise InputError(f"{_at(place, name)} is missing")
    return event[name]


def _placed(place: str, make: Callable[[], Claim]) -> Claim:
    try:
        return make()
    except InputError as error:
        raise InputError(f"{place}: {error}" if place else str(error)) from None


def _only(content: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in content:
        if key not in allowed:
            raise InputError(f"{_at(place, str(key))} is not known here; known are {', '.join(allowed)}")


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _no_constant(name: str) -> float:
    raise InputError(f"numbers must be finite, got {name}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
