"""`dpaudit plan`: the table, the document, the recommendation, and one clear line for every mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpaudit.cli import main

RECIPE = ("--noise-multiplier", "1.0", "--sampling-rate", "0.02", "--steps", "500")
SLOWEST = 10.0


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    content: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return content


def test_the_table_and_the_recommendation(capsys):
    code, out, err = call(capsys, "--epsilon", "4", "--delta", "1e-5")
    assert (code, err) == (0, "")
    assert all(word in out for word in ("two worlds, ranks", "sequential", "≥ 332", "coins, runs × canaries", "curve"))
    assert "of training" not in out and "recipe" not in out
    assert "recommended: coins, runs × canaries: 200 coins from 5 runs of 40 canaries" in out


def test_seconds_per_run_become_hours(capsys):
    out = call(capsys, "--epsilon", "4", "--delta", "1e-5", "--seconds-per-run", "60")[1]
    assert "6 h 52 min" in out and "5 min of training" in out


def test_the_runs_that_can_be_afforded(capsys):
    out = call(capsys, "--epsilon", "4", "--delta", "1e-5", "--runs", "10")[1]
    assert "coins, the runs given" in out
    out = call(capsys, "--epsilon", "4", "--delta", "1e-5", "--runs", "2")[1]
    assert "recommended: none, since no design fits 40 canaries a run and 2 runs" in out


@pytest.mark.parametrize("claim", [("--epsilon", "1"), ("--epsilon", "4"), ("--epsilon", "8"), RECIPE])
def test_the_document_is_strict(capsys, claim):
    content = document(capsys, *claim, "--delta", "1e-5", "--seconds-per-run", "2")
    assert content["schema"] == "dpaudit.plan-size/1"
    sizes = {s["design"]: s for s in content["sizes"]}
    assert ("order-statistics" in sizes) == (claim is RECIPE)
    for s in sizes.values():
        assert s["seconds"] == 2 * s["runs"] and s["searched"]
        assert s["power"] is None or s["power"] >= 0.9
    chosen = sizes[content["recommendation"]["design"]]
    assert chosen["any_mechanism"] and chosen["test"]["guesses"] == chosen["guesses"]


def test_what_is_out_of_reach_is_said_with_its_reason(capsys):
    out = call(capsys, "--epsilon", "12", "--delta", "1e-5")[1]
    assert "out of reach" in out and "not reachable below 100,000 coins: even an attacker who is always right" in out
    assert "recommended: none" in out
    content = document(capsys, "--epsilon", "12", "--delta", "1e-5")
    assert content["recommendation"]["design"] is None
    assert all(s["runs"] is None and s["out_of_reach"]["reason"] for s in content["sizes"])


def test_a_recipe_is_said_to_carry_no_verdict(capsys):
    out = call(capsys, *RECIPE[:2], "--sampling-rate", "1", "--steps", "1", "--delta", "1e-5")[1]
    assert "order statistics" in out and "never a verdict" in out


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("--epsilon", "1", "--delta", "1e-5", "--factor", "1"), "factor must be in"),
        (("--epsilon", "1", "--delta", "1e-5", "--power", "0.5"), "power must be in"),
        (("--epsilon", "1", "--delta", "1e-5", "--seconds-per-run", "0"), "seconds_per_run must be in"),
        (("--epsilon", "1", "--delta", "1e-5", *RECIPE), "got both"),
        (("--delta", "1e-5"), "got neither"),
        (("--delta", "1e-5", "--steps", "3"), "got only some of these"),
        (("--epsilon", "0", "--delta", "1e-5"), "must be above 0 and finite"),
        (
            (
                "--epsilon",
                "1",
            ),
            "--delta",
        ),
        (("--epsilon", "1", "--delta", "2"), "delta must be in"),
    ],
)
def test_a_mistake_gets_one_line(capsys, arguments, message):
    code, out, err = call(capsys, *arguments)
    assert code == 2 and out == ""
    assert message in err and err.count("\n") == 1
