"""The report as plain text, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from . import wording as w

WIDTH = 100
_WIDTHS = (8, 11, 11, 10, 8, 11)


def text_page(facts: Mapping[str, Any]) -> str:
    """``report.txt`` of a :func:`~dpaudit.report.document`."""
    lines = [*_opening(facts)]
    for audit in facts["audits"]:
        lines += ["", *_audit(audit)]
    lines += ["", *_closing(facts)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _opening(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"dpaudit report: {facts['name']}"
    yield "=" * WIDTH
    yield from _wrap(facts["headline"])
    yield from _wrap(w.expectation(facts))
    yield ""
    yield from _overview(facts["audits"])
    yield from _wrap(w.levels(facts))
    yield from _wrap(w.NOT_PROOF)
    yield from _wrap(f'The column "if recipe" {w.IF_RECIPE}.')
    yield ""
    yield "Not tested"
    for sentence in facts["not_tested"]:
        yield from _wrap(sentence, "  - ")


def _overview(audits: list[Mapping[str, Any]]) -> Iterator[str]:
    yield _columns("trainer", "verdict", "ε shown", "if recipe", "ε claimed", "p-value", "power", "accuracy")
    yield "-" * WIDTH
    for a in audits:
        power = "–" if a["power"] is None else f"{a['power']:.2f}"
        yield _columns(
            textwrap.shorten(a["name"], 27, placeholder=" …"), w.VERDICTS[a["verdict"]][0], w.at_least(a["lower"]),
            w.at_least(a["lower_if_recipe"]), w.at_most(a["upper"]), w.p_value(a["p_value"]), power,
            w.percent(a["accuracy"]["mean"]),
        )  # fmt: skip
    yield "-" * WIDTH


def _columns(name: str, verdict: str, *numbers: str) -> str:
    return f"{name:<28}{verdict:<13}" + "".join(f"{n:>{w}}" for n, w in zip(numbers, _WIDTHS, strict=True))


def _audit(audit: Mapping[str, Any]) -> Iterator[str]:
    word, plain, _ = w.VERDICTS[audit["verdict"]]
    yield f"{audit['name']}: {word} ({plain})"
    yield "-" * WIDTH
    yield from _wrap(audit["reason"][:1].upper() + audit["reason"][1:] + ".")
    if audit["claim"] is not None:
        claim = audit["claim"]
        yield from _wrap(
            f"Claim: {claim['kind']}, ε ≤ {w.at_most(claim['epsilon'])} at δ = {w.delta(claim['delta'])}, "
            f"{claim['adjacency']} ({w.settings(claim['settings'])})."
        )
    yield from _wrap(f"Trainer: {w.settings(audit['trainer'])}.")
    yield from _wrap(f"Threat model {audit['threat_model']}: {w.THREAT_MODELS[audit['threat_model']]}")
    for finding in audit["findings"]:
        yield from _wrap(_finding(finding), "  test   ")
    for bound in audit["bounds"]:
        yield from _wrap(_bound(bound), "  bound  ")
    for family in audit["rates"]:
        yield from _wrap(_rates(family), "  attack ")


def _finding(finding: Mapping[str, Any]) -> str:
    return (
        f"{finding['canaries']}, {finding['threshold']}: p = {w.p_value(finding['p_value'])}, "
        f"{w.p_value(finding['corrected_p_value'])} after correction (share {finding['weight']:g}); "
        f"power {finding['power']:.2f}; at FPR {w.percent(finding['rates']['fpr'], 2)} the attack missed "
        f"{w.percent(finding['rates']['fnr'], 2)}, the claim allows no less than {w.percent(finding['curve_fnr'], 2)}"
    )


def _bound(bound: Mapping[str, Any]) -> str:
    scope = "any mechanism" if bound["any_mechanism"] else w.IF_RECIPE
    return (
        f"ε ≥ {w.at_least(bound['epsilon'])} at δ = {w.delta(bound['delta'])}, "
        f"{w.confidence(bound['significance'])}, {scope}; {bound['method']}; {bound['threshold']}; "
        f"{w.counts(bound['counts'])}; ceiling "
        f"{w.at_least(bound['perfect'])} all right, {w.at_least(bound['at_claim'])} at the claim"
    )


def _rates(family: Mapping[str, Any]) -> str:
    points = "; ".join(
        f"TPR {w.percent(p['tpr'])} at FPR {100 * p['fpr']:g} %"
        if p["tpr"] is not None
        else f"FPR {100 * p['fpr']:g} % not resolvable"
        for p in family["points"]
    )
    return f"{family['canaries']}: AUC {family['auc']:.3f}; {points}"


def _closing(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "How it was made"
    yield "-" * WIDTH
    yield from _wrap(f"Data: {w.settings(facts['data'])}.")
    yield from _wrap(f"Models per trainer: {facts['runs']} tested, {facts['shadows']} set aside as shadows.")
    for family in facts["canaries"]:
        yield from _wrap(f"{family['count']} {family['name']}: {family['description']}", "  canaries ")
    environment = facts["environment"]
    dirty = " with uncommitted changes" if environment["dirty"] else ""
    yield from _wrap(f"Code: commit {environment['commit'] or 'unknown'}{dirty}.")
    yield from _wrap("Versions: " + ", ".join(f"{k} {v}" for k, v in environment["versions"].items()) + ".")
    yield from _wrap(f"Again: {facts['command']}")


def _wrap(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) or [first]
