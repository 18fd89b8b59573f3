"""Claims from JSON: what Opacus and dp-accounting write is read back, and what is not known is named by its place."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import Claim
from dpaudit.accounting.claims import SAMPLERS
from dpaudit.accounting.reading import KINDS, claim_of, read_claim
from dpaudit.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples" / "claims"
DELTA = 1e-5
GAUSSIAN = {"class_name": "GaussianDpEvent", "noise_multiplier": 5.0}
POISSON = {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": GAUSSIAN}
SGD = {"kind": "dp-sgd", "settings": {"noise_multiplier": 1.1, "sampling_rate": 0.01, "steps": 100}}


def changed(content: dict[str, Any], *path: Any, **values: Any) -> dict[str, Any]:
    """A deep copy with ``values`` set in the object at ``path``; ``...`` removes the key."""
    out = json.loads(json.dumps(content))
    there = out
    for key in path:
        there = there[key]
    for name, value in values.items():
        if value is ...:
            del there[name]
        else:
            there[name] = value
    return out


def as_json(event: Any) -> Any:
    """A dp-accounting event's named tuple as JSON has it: objects for named tuples, all the way down."""
    if hasattr(event, "_asdict"):
        return {name: as_json(value) for name, value in event._asdict().items()}
    return [as_json(e) for e in event] if isinstance(event, (list, tuple)) else event


EVENTS = {
    "gaussian": dp_event.GaussianDpEvent(2.0),
    "laplace": dp_event.LaplaceDpEvent(3.0),
    "repeated laplace": dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(20.0), 30),
    "dp-sgd": dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(0.9)), 200),
    "full batches": dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(9.0)), 9),
    "phases": dp_event.ComposedDpEvent([
        dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 100),
        dp_event.GaussianDpEvent(4.0),
        dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.03, dp_event.GaussianDpEvent(1.5)), 50),
    ]),
    "repeated phases": dp_event.SelfComposedDpEvent(
        dp_event.ComposedDpEvent([
            dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.2)),
            dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(40.0), 2),
            dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(20.0)]),
        ]),
        20,
    ),
}  # fmt: skip


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_events_of_dp_accounting_are_read_back(event, tmp_path):
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(as_json(event.to_named_tuple())))
    claim = read_claim(path)
    theirs = PLDAccountant(value_discretization_interval=1e-4)
    theirs.compose(event)
    assert claim.adjacency == "add-remove"
    assert claim.epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "full batches"])
def test_replace_one_means_what_dp_accounting_means_by_it(name):
    relation = privacy_accountant.NeighboringRelation.REPLACE_ONE
    theirs = PLDAccountant(relation, 1e-4)
    theirs.compose(EVENTS[name])
    claim = claim_of(as_json(EVENTS[name].to_named_tuple()) | {"neighboring_relation": relation.name})
    assert claim.adjacency == "replace-one"
    assert claim.epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize(
    "name,relation",
    [("ADD_OR_REMOVE_ONE", "add-remove"), ("REPLACE_SPECIAL", "zero-out"), ("replace_one", "replace-one"),
     ("add-remove", "add-remove")],
)  # fmt: skip
@pytest.mark.parametrize("key", ["neighboring_relation", "adjacency"])
def test_neighbouring_relations_of_dp_accounting(key, name, relation):
    assert claim_of({**GAUSSIAN, key: name}).adjacency == relation


def test_every_relation_of_dp_accounting_is_known():
    assert (
        len({claim_of({**GAUSSIAN, "adjacency": r.name}).adjacency for r in privacy_accountant.NeighboringRelation})
        == 3
    )


def test_an_event_is_the_claim_with_its_settings():
    event = {"class_name": "SelfComposedDpEvent", "count": 100, "event": POISSON}
    assert claim_of(event) == Claim.dp_sgd(noise_multiplier=5.0, sampling_rate=0.01, steps=100)
    assert claim_of({"class_name": "SelfComposedDpEvent", "count": 1, "event": GAUSSIAN}) == claim_of(GAUSSIAN)
    assert claim_of({"class_name": "ComposedDpEvent", "events": [GAUSSIAN]}) == claim_of(GAUSSIAN)


def test_two_repetitions_multiply():
    inner = {"class_name": "SelfComposedDpEvent", "count": 6, "event": POISSON}
    assert claim_of({"class_name": "SelfComposedDpEvent", "count": 7, "event": inner}).settings["steps"] == 42


def test_fixed_size_batches_of_dp_accounting():
    event = {"class_name": "SampledWithoutReplacementDpEvent", "source_dataset_size": 200, "sample_size": 10,
             "event": GAUSSIAN}  # fmt: skip
    claim = claim_of({"class_name": "SelfComposedDpEvent", "count": 30, "event": event})
    assert claim == Claim.dp_sgd(noise_multiplier=5.0, sampling_rate=0.05, steps=30, sampler="fixed-size")
    assert claim.adjacency == "replace-one"


@pytest.mark.opacus
@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
@pytest.mark.parametrize("mechanism,least,most", [("prv", 0.98, 1.02), ("rdp", 1.0, 1.5), ("gdp", 0.5, 1.0)])
def test_a_history_that_opacus_wrote(mechanism, least, most, tmp_path):
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.create_accountant(mechanism)
    phases = ((1.3, 0.02, 50),) if mechanism == "gdp" else ((1.3, 0.02, 50), (0.9, 0.02, 25))  # gdp takes only one
    for noise, rate, count in phases:
        for _ in range(count):
            accountant.step(noise_multiplier=noise, sample_rate=rate)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(accountant.state_dict()))
    claim = read_claim(path)
    wanted = [Claim.dp_sgd(noise_multiplier=n, sampling_rate=q, steps=t) for n, q, t in phases]
    assert claim == Claim.compose(*wanted)
    # Of Opacus' accountants prv is as tight as ours, rdp an upper bound, and gdp reports too little.
    assert least <= accountant.get_epsilon(DELTA) / claim.epsilon(DELTA) <= most


def test_a_state_dict_in_memory_is_read_too():
    state = OrderedDict(history=[(1.0, 0.01, 100), (2.0, 0.01, 50)], mechanism="rdp")
    first, second = (Claim.dp_sgd(noise_multiplier=n, sampling_rate=0.01, steps=t) for n, t in ((1.0, 100), (2.0, 50)))
    assert claim_of(state) == Claim.compose(first, second)


def test_the_sampler_of_a_history_can_be_said():
    claim = claim_of({"history": [[1.0, 0.01, 100]], "sampler": "shuffled"})
    assert claim.settings["sampler"] == "shuffled"
    assert claim.adjacency == "zero-out"


CLAIMS = {
    "gaussian": Claim.gaussian(noise_multiplier=2.0, steps=3),
    "replace-one": Claim.gaussian(noise_multiplier=2.0, adjacency="replace-one"),
    "laplace": Claim.laplace(noise_multiplier=2.0, steps=3),
    "pair": Claim.pair(epsilon=3.0, delta=1e-6),
    "composed": Claim.compose(
        Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.1, steps=3),
        Claim.gaussian(noise_multiplier=7.0),
        Claim.pair(epsilon=0.5, delta=1e-7),
    ),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_s_own_document_is_read_back(claim):
    assert Claim.of(json.loads(json.dumps(claim.document()))) == claim


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_is_read_back(sampler):
    claim = Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=1.0 if sampler == "full-batch" else 0.01, steps=300,
                         sampler=sampler)  # fmt: skip
    assert Claim.of(json.loads(json.dumps(claim.document()))) == claim


def test_every_kind_is_written_by_some_claim():
    assert {claim.kind for claim in CLAIMS.values()} | {claim_of(SGD).kind} == set(KINDS)


def test_a_pair_by_hand():
    content = {"kind": "pair", "adjacency": "replace-one", "settings": {"epsilon": 1, "delta": 1e-6}}
    assert claim_of(content) == Claim.pair(epsilon=1.0, delta=1e-6, adjacency="replace-one")


def test_a_part_may_repeat_the_relation_around_it():
    parts = [{"kind": "gaussian", "adjacency": "zero-out", "settings": {"noise_multiplier": 2}}] * 2
    content = {"kind": "composed", "settings": {"parts": parts}}
    assert claim_of(content).adjacency == "zero-out"
    assert claim_of(content) == claim_of({**content, "adjacency": "zero-out"})


def test_compositions_nest():
    inner = {"kind": "composed", "settings": {"parts": [SGD, SGD]}}
    claim = claim_of({"kind": "composed", "settings": {"parts": [inner, SGD]}})
    assert claim.epsilon(DELTA) == pytest.approx(claim_of(changed(SGD, "settings", steps=300)).epsilon(DELTA), rel=1e-9)


def test_a_document_of_an_account_is_a_claim():
    content = {"schema": "dpaudit.account/1", **SGD, "adjacency": "zero-out", "delta": 1e-5, "ledgers": [], "more": 1}
    assert claim_of(content) == claim_of({**SGD, "adjacency": "zero-out"})
    assert claim_of({**SGD, "schema": "dpaudit.claim/1"}) == claim_of(SGD)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda p: p.stem)
def test_examples_are_claims(path):
    assert 0 < read_claim(path).epsilon(DELTA) < 20


def test_there_is_an_example_of_every_form():
    forms = {key for path in EXAMPLES.glob("*.json") for key in json.loads(path.read_text())}
    assert {"kind", "history", "class_name"} <= forms


REFUSED: dict[str, tuple[Any, str]] = {
    # Not an object, or of no form or of two.
    "a list": ([SGD], "a claim must be a JSON object, got ["),
    "null": (None, "a claim must be a JSON object, got None"),
    "a number": (3.0, "a claim must be a JSON object, got 3.0"),
    "text": ("dp-sgd", "a claim must be a JSON object, got 'dp-sgd'"),
    "an empty object": ({}, "got an empty object"),
    "no form": ({"noise_multiplier": 1.0, "steps": 3}, "got the keys 'noise_multiplier, steps'"),
    "two forms": ({**SGD, "history": []}, "got kind and history"),
    # dpaudit's own.
    "schema": ({**SGD, "schema": "dpaudit.report/1"}, "schema must be one of dpaudit.claim/1, dpaudit.account/1, got"),
    "kind": ({"kind": "sgd", "settings": {}}, "kind must be one of dp-sgd, gaussian, laplace, pair, composed, got"),
    "kind, a list": ({"kind": [], "settings": {}}, "kind must be one of"),
    "kind, null": ({"kind": None, "settings": {}}, "kind must be one of"),
    "no settings": ({"kind": "dp-sgd"}, "settings is missing"),
    "settings, a list": ({"kind": "dp-sgd", "settings": []}, "settings must be an object, got []"),
    "another key": ({**SGD, "count": 3}, "count is not known here"),
    "another setting": (changed(SGD, "settings", clip_norm=1), "settings.clip_norm is not known here; known are"),
    "no steps": (changed(SGD, "settings", steps=...), "settings.steps is missing"),
    "noise": (changed(SGD, "settings", noise_multiplier=0), "settings.noise_multiplier must be in (0, inf), got 0"),
    "noise, text": (changed(SGD, "settings", noise_multiplier="1"), "settings.noise_multiplier must be a number"),
    "noise, true": (changed(SGD, "settings", noise_multiplier=True), "settings.noise_multiplier must be a number"),
    "noise, null": (changed(SGD, "settings", noise_multiplier=None), "settings.noise_multiplier must be a number"),
    "noise, a list": (changed(SGD, "settings", noise_multiplier=[1]), "settings.noise_multiplier must be a number"),
    "noise, an object": (changed(SGD, "settings", noise_multiplier={}), "settings.noise_multiplier must be a number"),
    "noise, too large": (changed(SGD, "settings", noise_multiplier=10**400), "settings.noise_multiplier must be a"),
    "rate": (changed(SGD, "settings", sampling_rate=1.5), "settings.sampling_rate must be in (0, 1], got 1.5"),
    "steps": (changed(SGD, "settings", steps=1.5), "settings.steps must be a whole number of at least 1, got 1.5"),
    "steps, 0": (changed(SGD, "settings", steps=0), "settings.steps must be a whole number of at least 1, got 0"),
    "steps, true": (changed(SGD, "settings", steps=True), "settings.steps must be a whole number"),
    "sampler": (changed(SGD, "settings", sampler="uniform"), "settings.sampler must be one of poisson, full-batch"),
    "sampler, a list": (changed(SGD, "settings", sampler=["poisson"]), "settings.sampler must be one of"),
    "relation": ({**SGD, "adjacency": "unbounded"}, "adjacency must be one of add-remove, replace-one, zero-out, got"),
    "relation, null": ({**SGD, "adjacency": None}, "adjacency must be one of"),
    "relation without an accountant": ({**SGD, "adjacency": "replace-one"}, "settings: adjacency must be one of add-r"),
    "a pair with half of it": ({"kind": "pair", "settings": {"epsilon": 1}}, "settings: a pair must have epsilon and"),
    "a pair, twice": ({"kind": "pair", "settings": {"epsilon": 1, "at_epsilon": 2}}, "a pair must have epsilon and"),
    "a pair, δ": ({"kind": "pair", "settings": {"epsilon": 1, "delta": 1}}, "settings.delta must be in [0, 1), got 1"),
    "a pair, ε": ({"kind": "pair", "settings": {"epsilon": -1, "delta": 0}}, "settings.epsilon must be in [0, inf)"),
    "no parts": ({"kind": "composed", "settings": {"parts": []}}, "settings.parts must be a list of claims, got []"),
    "parts missing": ({"kind": "composed", "settings": {}}, "settings.parts is missing"),
    "parts, text": ({"kind": "composed", "settings": {"parts": "ab"}}, "settings.parts must be a list of claims"),
    "a part, a number": ({"kind": "composed", "settings": {"parts": [SGD, 3]}}, "settings.parts[1] must be an object"),
    "a part's kind": (
        {"kind": "composed", "settings": {"parts": [SGD, {"kind": "x", "settings": {}}]}},
        "settings.parts[1].kind must be one of",
    ),
    "a part's key": (
        {"kind": "composed", "settings": {"parts": [{**SGD, "count": 2}]}},
        "settings.parts[0].count is not known here",
    ),
    "a part's setting": (
        {"kind": "composed", "settings": {"parts": [SGD, changed(SGD, "settings", steps=-1)]}},
        "settings.parts[1].settings.steps must be a whole number",
    ),
    "a part's relation": (
        {"kind": "composed", "adjacency": "add-remove", "settings": {"parts": [{**SGD, "adjacency": "zero-out"}]}},
        "settings.parts[0].adjacency must be add-remove, as stated around it, got 'zero-out'",
    ),
    "parts about different neighbours": (
        {"kind": "composed", "settings": {"parts": [SGD, {**SGD, "adjacency": "zero-out"}]}},
        "settings.parts: claims that are composed must be about the same neighbours, got add-remove and zero-out",
    ),
    # Opacus.
    "history, empty": ({"history": []}, "history must be a list of [noise_multiplier, sample_rate, steps], got []"),
    "history, null": ({"history": None}, "history must be a list of"),
    "history, an object": ({"history": {"0": [1, 0.1, 1]}}, "history must be a list of"),
    "history, a row too short": ({"history": [[1, 0.1, 1], [1, 0.1]]}, "history[1] must be [noise_multiplier, sample"),
    "history, a row of text": ({"history": ["abc"]}, "history[0] must be [noise_multiplier, sample_rate, steps], got"),
    "history, noise": ({"history": [[1, 0.1, 1], [0, 0.1, 1]]}, "history[1]: noise_multiplier must be in (0, inf)"),
    "history, rate": ({"history": [[1, 0, 1]]}, "history[0]: sampling_rate must be in (0, 1], got 0"),
    "history, steps": ({"history": [[1, 0.1, 1.5]]}, "history[0]: steps must be a whole number"),
    "history, mechanism": ({"history": [[1, 0.1, 1]], "mechanism": "mine"}, "mechanism must be one of rdp, prv, gdp"),
    "history, sampler": ({"history": [[1, 0.1, 1]], "sampler": "none"}, "sampler must be one of"),
    "history, relation": ({"history": [[1, 0.1, 1]], "adjacency": "swap"}, "adjacency must be one of add-remove"),
    "history, another key": ({"history": [[1, 0.1, 1]], "delta": 1e-5}, "delta is not known here; known are history"),
    # dp-accounting.
    "class": ({"class_name": "ZCDpEvent", "rho": 1}, "class_name must be one of GaussianDpEvent, LaplaceDpEvent, Comp"),
    "class, a list": ({"class_name": ["GaussianDpEvent"]}, "class_name must be one of GaussianDpEvent"),
    "class, null": ({"class_name": None}, "class_name must be one of GaussianDpEvent"),
    "module": ({**GAUSSIAN, "module_name": "mine"}, "module_name must be 'dp_accounting.dp_event', got 'mine'"),
    "event, noise": ({**GAUSSIAN, "noise_multiplier": -1}, "noise_multiplier must be in (0, inf), got -1"),
    "event, noise missing": ({"class_name": "GaussianDpEvent"}, "noise_multiplier is missing"),
    "event, another field": ({**GAUSSIAN, "clip": 1}, "clip is not known here; known are module_name, class_name, n"),
    "events, empty": ({"class_name": "ComposedDpEvent", "events": []}, "events must be a list of events, got []"),
    "events, deep": (
        {"class_name": "ComposedDpEvent", "events": [GAUSSIAN, changed(POISSON, "event", class_name="ZCDpEvent")]},
        "events[1].event.class_name must be GaussianDpEvent in a sampled event, got 'ZCDpEvent'",
    ),
    "events, unknown": (
        {"class_name": "ComposedDpEvent", "events": [GAUSSIAN, {"class_name": "SelfComposedDpEvent", "count": 2,
         "event": {"class_name": "NonPrivateDpEvent"}}]},
        "events[1].event.class_name must be one of GaussianDpEvent",
    ),
    "events, no class": ({"class_name": "ComposedDpEvent", "events": [{}]}, "events[0].class_name is missing"),
    "events, a number": ({"class_name": "ComposedDpEvent", "events": [1]}, "events[0] must be an object with a class"),
    "count, 0": ({"class_name": "SelfComposedDpEvent", "count": 0, "event": GAUSSIAN}, "count must be a whole number"),
    "counts without end": (
        {"class_name": "SelfComposedDpEvent", "count": 10**9, "event": {"class_name": "SelfComposedDpEvent",
         "count": 10**9, "event": GAUSSIAN}},
        "steps must be at most 1e+15, got 1e+18",
    ),
    "count, true": ({"class_name": "SelfComposedDpEvent", "count": True, "event": GAUSSIAN}, "count must be a whole"),
    "count missing": ({"class_name": "SelfComposedDpEvent", "event": GAUSSIAN}, "count is missing"),
    "probability": (changed(POISSON, sampling_probability=2), "sampling_probability must be in (0, 1], got 2"),
    "probability, 0": (changed(POISSON, sampling_probability=0), "sampling_probability must be in (0, 1], got 0"),
    "sampled twice": (changed(POISSON, event=POISSON), "event.class_name must be GaussianDpEvent in a sampled event"),
    "sampled Laplace": (changed(POISSON, "event", class_name="LaplaceDpEvent"), "event.class_name must be GaussianDp"),
    "sampled nothing": (changed(POISSON, event=None), "event.class_name must be GaussianDpEvent in a sampled event"),
    "sampled noise": (changed(POISSON, "event", noise_multiplier="x"), "event.noise_multiplier must be a number in"),
    "a sample too large": (
        {"class_name": "SampledWithoutReplacementDpEvent", "source_dataset_size": 9, "sample_size": 10,
         "event": GAUSSIAN},
        "sample_size must be a whole number from 1 to 9, got 10",
    ),
    "with replacement": (
        {"class_name": "SampledWithReplacementDpEvent", "source_dataset_size": 9, "sample_size": 2, "event": GAUSSIAN},
        "class_name must be one of",
    ),
    "event's relation": ({**GAUSSIAN, "neighboring_relation": "SWAP"}, "neighboring_relation must be one of add-remov"),
    "event's relation, a list": ({**GAUSSIAN, "neighboring_relation": [1]}, "neighboring_relation must be one of"),
    "event's relation, null": ({**GAUSSIAN, "adjacency": None}, "adjacency must be one of"),
    "event's relation, twice": (
        {**GAUSSIAN, "adjacency": "zero-out", "neighboring_relation": "ADD_OR_REMOVE_ONE"},
        "one of neighboring_relation and adjacency, got both",
    ),
    "Poisson, replace-one": ({**POISSON, "adjacency": "replace-one"}, "adjacency must be one of add-remove, zero-out"),
}  # fmt: skip


@pytest.mark.parametrize("content,message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_named_by_its_place(content, message):
    with pytest.raises(InputError) as refused:
        claim_of(content)
    assert message in str(refused.value)
    assert str(refused.value).startswith(message) or "got " in message or "must have" in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_rate", "steps"])
def test_numbers_in_memory_are_finite(name, value):
    with pytest.raises(InputError, match=f"^settings.{name} must be"):
        claim_of({"kind": "dp-sgd", "settings": {**SGD["settings"], name: value}})


@pytest.mark.parametrize("depth", [2_000, 100_000])
@pytest.mark.parametrize("form", ["event", "claim"])
def test_deep_nesting_is_refused_not_followed(form, depth, tmp_path):
    inner: Any = GAUSSIAN if form == "event" else SGD
    opening, closing = (
        ('{"class_name":"SelfComposedDpEvent","count":2,"event":', "}")
        if form == "event"
        else ('{"kind":"composed","settings":{"parts":[', "]}}")
    )
    path = tmp_path / "deep.json"
    path.write_text(opening * depth + json.dumps(inner) + closing * depth)
    with pytest.raises(InputError, match="must not be nested so deeply"):
        read_claim(path)
    content = inner
    for _ in range(2_000):
        content = (
            {"class_name": "SelfComposedDpEvent", "count": 1, "event": content}
            if form == "event"
            else {"kind": "composed", "settings": {"parts": [content]}}
        )
    with pytest.raises(InputError, match="must not be nested so deeply"):
        claim_of(content)


FILES = {
    "empty": (b"", "must be a JSON document in UTF-8"),
    "no JSON": (b"{'kind': 'pair'}", "must be a JSON document in UTF-8"),
    "cut off": (b'{"kind": "pair", ', "must be a JSON document in UTF-8"),
    "two documents": (b"{} {}", "must be a JSON document in UTF-8"),
    "binary": (b"\x93NUMPY\x01\x00\xff", "must be a JSON document in UTF-8"),
    "Latin-1": ('{"kind": "é"}'.encode("latin-1"), "must be a JSON document in UTF-8"),
    "NaN": (b'{"history": [[NaN, 0.1, 1]]}', "numbers must be finite, got NaN"),
    "Infinity": (b'{"history": [[-Infinity, 0.1, 1]]}', "numbers must be finite, got -Infinity"),
    "1e999": (b'{"history": [[1e999, 0.1, 1]]}', "history[0]: noise_multiplier must be in (0, inf), got inf"),
    "many digits": (b'{"history": [[1, 0.1, 1' + b"0" * 5000 + b"]]}", "must be a JSON document in UTF-8"),
    "a key twice": (b'{"kind": "pair", "settings": {"epsilon": 9, "delta": 0, "epsilon": 1}}', "got 'epsilon' twice"),
    "a list": (b"[[1.0, 0.1, 1]]", "a claim must be a JSON object"),
}


@pytest.mark.parametrize("content,message", FILES.values(), ids=FILES)
def test_files_that_are_no_claims(content, message, tmp_path):
    path = tmp_path / "claim.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_claim(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_a_byte_order_mark_is_allowed(tmp_path):
    path = tmp_path / "claim.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SGD).encode())
    assert read_claim(path) == claim_of(SGD)


def test_files_that_can_t_be_read(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="can't be read: "):
            read_claim(path)
    large = tmp_path / "large.json"
    large.write_bytes(json.dumps(SGD).encode() + b" " * 2**24)
    with pytest.raises(InputError, match="at most 16 MiB"):
        read_claim(large)


_LEAVES = st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(
    ["dp-sgd", "composed", "pair", "poisson", "zero-out", "GaussianDpEvent", "SelfComposedDpEvent", ""]
)  # fmt: skip
_KEYS = st.sampled_from(
    "kind settings parts history class_name event events count noise_multiplier sampling_rate steps adjacency "
    "sampling_probability epsilon delta schema".split()
)
_DOCUMENTS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=25
)


@given(content=_DOCUMENTS)
@settings(max_examples=300, deadline=None)
def test_any_document_is_a_claim_or_refused(content):
    try:
        assert isinstance(claim_of(content), Claim)
    except InputError as refused:
        assert str(refused)


@given(content=_DOCUMENTS, at=st.sampled_from(["kind", "adjacency", "settings"]), deep=st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_claim_with_anything_else_in_a_place_is_a_claim_or_refused(content, at, deep):
    claim = {**SGD, at: content}
    try:
        claim_of({"kind": "composed", "settings": {"parts": [SGD, claim]}} if deep else claim)
    except InputError as refused:
        assert str(refused)
