"""Sentences and digits."""

from __future__ import annotations

from typing import Any

import pytest

from dpaudit.report import wording


def audit(name: str, verdict: str, expect: str | None = None, **facts: Any) -> dict[str, Any]:
    claimed = verdict != "no_claim"
    as_expected = verdict == expect if expect else verdict != "violated"
    return {"name": name, "verdict": verdict, "expect": expect, "lower": 1.239, "upper": 4.0 if claimed else None,
            "claim": {} if claimed else None, "delta": 1e-5, "as_expected": as_expected, **facts}  # fmt: skip


@pytest.mark.parametrize(
    ("audits", "sentence"),
    [
        ([audit("a", "no_claim")], "No claim was made; the attack shows ε of at least 1.23 on a."),
        ([audit("a", "violated")], "The claim of a (ε ≤ 4.00 at δ = 1e-5) is false."),
        ([audit("a", "violated", "violated")], "The claim of a (ε ≤ 4.00 at δ = 1e-5) is false, as expected."),
        (
            [audit("a", "consistent")],
            "The claim of a (ε ≤ 4.00 at δ = 1e-5) is consistent with the attack: twice its ε would have been caught.",
        ),
        ([audit("a", "underpowered")], "The claim of a (ε ≤ 4.00 at δ = 1e-5) can't be judged by this audit."),
        (
            [audit("n", "no_claim"), audit("d", "consistent"), audit("f", "violated", "violated")],
            "Of 2 claims, 1 is false as expected (f) and 1 is consistent with the attack (d); "
            "without a claim, the attack shows ε of at least 1.23 on n.",
        ),
        (
            [audit("a", "violated"), audit("b", "violated"), audit("c", "underpowered"), audit("d", "consistent")],
            "Of 4 claims, 2 are false (a; b), 1 is consistent with the attack (d) and 1 can't be judged (c).",
        ),
        ([audit(c, "consistent") for c in "abcd"], "Of 4 claims, 4 are consistent with the attack."),
    ],
)
def test_headline(audits: list[dict[str, Any]], sentence: str) -> None:
    assert wording.headline(audits) == sentence


@pytest.mark.parametrize(
    ("audits", "sentence"),
    [
        ([audit("a", "consistent")], "No claim was found to be false."),
        ([audit("a", "violated", "violated")], "Every verdict is as expected."),
        ([audit("a", "violated")], "Not as expected: a is VIOLATED."),
        ([audit("a", "consistent", "violated")], "Not as expected: a is CONSISTENT, expected VIOLATED."),
    ],
)
def test_expectation(audits: list[dict[str, Any]], sentence: str) -> None:
    assert wording.expectation({"audits": audits}) == sentence


def test_digits_err_on_the_true_side() -> None:
    assert (wording.at_least(0.67548), wording.at_most(4.00496)) == ("0.67", "4.01")
    assert (wording.at_least("inf"), wording.at_most("inf"), wording.at_most(None)) == ("∞", "∞", "–")
    assert (wording.p_value(0.00100411), wording.p_value(0.99999), wording.p_value(None)) == ("0.0011", "1", "–")


def test_counts_of_two_worlds() -> None:
    table = {"members": 500, "others": 1500, "missed": 7, "false_alarms": 0, "tests": 3}
    assert wording.counts(table) == "7 of 500 members missed; 0 false alarms on 1,500 others; best of 3"
    assert wording.counts({"draws": 12345.0}) == "draws 12,345"


def test_leading_is_the_bound_that_lower_comes_from(facts: dict[str, Any]) -> None:
    for entry in facts["audits"]:
        lead = wording.leading(entry)
        assert lead is not None and lead["any_mechanism"] and lead["epsilon"] == entry["lower"]
    assert wording.leading({"bounds": []}) is None
