"""`dpaudit account`: ledgers, charts, the document, what is solved for, and one clear line for every mistake."""

from __future__ import annotations

import csv
import doctest
import json
import math
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpaudit import Claim
from dpaudit.cli import main
from dpaudit.cli.account_text import account_text
from dpaudit.report.account_words import headline

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "examples" / "claims"
SGD = ("--noise-multiplier", "1.1", "--sampling-rate", "0.00427", "--steps", "14063", "--delta", "1e-5")
SMALL = ("--noise-multiplier", "1", "--sampling-rate", "0.02", "--steps", "50", "--delta", "1e-5")


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["account", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def document(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    content: dict[str, Any] = strict(out)
    return content


def ledger(content: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [entry for entry in content["ledgers"] if entry["status"] == status]


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


# What is printed.


def test_the_table_the_charts_and_the_trade_off(capsys):
    code, out, err = call(capsys, *SGD)
    assert (code, err) == (0, "")
    assert out.startswith("ε ≤ 2.38")
    first = out.split("\n\n")[0]
    assert all(word in first for word in ("δ = 1e-5", "add-remove", "poisson", "14,063 steps", "by a coin of its own"))
    assert "ε at δ = 1e-5 against steps" in out
    assert "false negative rate of any attack is at least" in out
    assert "0.857" in out


def test_every_ledger_says_what_it_is(capsys):
    content = document(capsys, *SGD)
    _, out, _ = call(capsys, *SGD)
    table = out.split("\n\n")[1]
    for entry in content["ledgers"]:
        assert entry["method"] in table
        assert entry["adjacency"] == "add-remove"
        assert entry["source"]
        assert entry["note"] in out
    assert table.count("add-remove") == len(content["ledgers"])
    assert "never a claim" in table and "not a bound" in table


def test_sources_are_printed_on_request(capsys):
    content = document(capsys, *SMALL)
    plain, with_sources = call(capsys, *SMALL)[1], call(capsys, *SMALL, "--sources")[1]
    source = content["ledgers"][0]["source"]
    assert source in with_sources and source not in plain


# The document.


def test_the_document_keeps_its_keys(capsys):
    content = document(capsys, *SGD)
    assert content["schema"] == "dpaudit.account/1"
    assert (content["kind"], content["adjacency"], content["delta"]) == ("dp-sgd", "add-remove", 1e-5)
    assert content["settings"] == {
        "noise_multiplier": 1.1, "sampling_rate": 0.00427, "steps": 14063, "sampler": "poisson",
    }  # fmt: skip
    keys = {"method", "epsilon", "delta", "status", "upper_bound", "adjacency", "source", "note"}
    assert all(set(entry) == keys for entry in content["ledgers"])
    assert all(set(point) == {"fpr", "fnr"} for point in content["trade_off"])
    (claim,) = ledger(content, "claim")
    assert claim == content["ledgers"][0]
    assert claim["epsilon"] == content["epsilon"] == pytest.approx(2.3835, abs=2e-3)


def test_upper_bounds_are_at_or_above_the_claim_and_the_estimate_below(capsys):
    content = document(capsys, *SGD)
    assert all(number(e["epsilon"]) >= content["epsilon"] for e in ledger(content, "upper bound"))
    assert all(e["upper_bound"] for e in ledger(content, "upper bound") + ledger(content, "claim"))
    others = ledger(content, "estimate") + ledger(content, "not a bound")
    assert others and not any(e["upper_bound"] for e in others)
    (clt,) = [e for e in content["ledgers"] if e["method"].startswith("CLT")]
    assert clt["status"] == "estimate" and clt["epsilon"] < content["epsilon"]


def test_epsilon_rises_with_steps_by_every_ledger(capsys):
    by_steps = document(capsys, *SGD)["by_steps"]
    assert by_steps["steps"][-1] == 14063
    assert by_steps["steps"] == sorted(set(by_steps["steps"]))
    assert len(by_steps["ledgers"]) >= 5
    for entry in by_steps["ledgers"]:
        values = [number(v) for v in entry["epsilon"]]
        assert len(values) == len(by_steps["steps"])
        assert all(b >= a * (1 - 1e-3) for a, b in pairwise(values)), entry["method"]


def test_epsilon_by_steps_ends_at_the_ledgers(capsys):
    content = document(capsys, *SGD)
    ends = {entry["method"]: number(entry["epsilon"][-1]) for entry in content["by_steps"]["ledgers"]}
    for entry in content["ledgers"]:
        if entry["method"] in ends:
            assert ends[entry["method"]] == pytest.approx(number(entry["epsilon"]), rel=5e-3), entry["method"]


def test_the_trade_off_falls_and_is_a_table_s(capsys):
    content = document(capsys, *SGD)
    curve = content["curve"]
    assert all(b <= a for a, b in pairwise(curve["fnr"]))
    assert (curve["fpr"][0], curve["fpr"][-1]) == (0.0, 1.0)
    claim = Claim.of({"kind": content["kind"], "settings": content["settings"]})
    for point in content["trade_off"]:
        assert point["fnr"] == pytest.approx(claim.fnr(point["fpr"]))
        assert 0 <= point["fnr"] <= 1 - point["fpr"]


def test_an_infinite_epsilon_is_text(capsys):
    content = document(capsys, "--mechanism", "gaussian", "--noise-multiplier", "1", "--delta", "0")
    assert content["epsilon"] == "inf"
    code, out, _ = call(capsys, "--mechanism", "gaussian", "--noise-multiplier", "1", "--delta", "0")
    assert code == 0 and "∞" in out


def test_the_document_is_a_claim(capsys, tmp_path):
    path = tmp_path / "account.json"
    path.write_text(call(capsys, *SMALL, "--json")[1])
    assert document(capsys, "--claim", path, "--delta", "1e-5")["epsilon"] == document(capsys, *SMALL)["epsilon"]


# Settings, and what stands for them.


def test_records_batch_size_and_epochs(capsys):
    given = ("--noise-multiplier", "1.1", "--records", "60000", "--batch-size", "256", "--epochs", "60")
    content = document(capsys, *given, "--delta", "1e-5")
    assert content["settings"]["sampling_rate"] == 256 / 60000
    assert content["settings"]["steps"] == 14100
    assert content["epsilon"] == pytest.approx(2.385, abs=1e-3)
    out = call(capsys, *given, "--delta", "1e-5")[1]
    assert "sampling rate 256 / 60,000 = 0.00426667" in out
    assert "60 epochs of ⌈60,000 / 256⌉ = 235 batches: 14,100 steps" in out


def test_epochs_of_a_sampling_rate(capsys):
    content = document(capsys, "--noise-multiplier", "1", "--sampling-rate", "0.03", "--epochs", "2", "--delta", "1e-5")
    assert content["settings"]["steps"] == 68
    assert content["given"] == ["2 epochs of ⌈1 / 0.03⌉ = 34 batches: 68 steps"]


def test_bins_of_records(capsys):
    given = ("--noise-multiplier", "1", "--records", "60000", "--batch-size", "256", "--epochs", "1", "--delta", "1e-5")
    content = document(capsys, *given, "--sampler", "balls-and-bins")
    assert content["settings"]["sampling_rate"] == 1 / 235
    assert content["settings"]["steps"] == 235


def test_full_batches_are_the_gaussian_mechanism(capsys):
    wanted = Claim.gaussian(noise_multiplier=2.0, steps=3).epsilon(1e-5)
    for given in (
        ("--mechanism", "gaussian", "--steps", "3"),
        ("--sampler", "full-batch", "--steps", "3"),
        ("--sampler", "full-batch", "--epochs", "3"),
        ("--sampling-rate", "1", "--steps", "3"),
        ("--mechanism", "gaussian", "--sampling-rate", "1", "--steps", "3"),
    ):
        content = document(capsys, "--noise-multiplier", "2", "--delta", "1e-5", *given)
        assert (content["kind"], content["epsilon"]) == ("gaussian", pytest.approx(wanted, rel=1e-12))
    one = document(capsys, "--mechanism", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5")
    assert one["settings"]["steps"] == 1


def test_the_neighbouring_relation_is_named(capsys):
    gaussian = ("--mechanism", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5")
    add, replace = document(capsys, *gaussian), document(capsys, *gaussian, "--adjacency", "replace-one")
    assert (add["adjacency"], replace["adjacency"]) == ("add-remove", "replace-one")
    assert replace["epsilon"] == pytest.approx(Claim.gaussian(noise_multiplier=1.0).epsilon(1e-5))
    out = call(capsys, *gaussian, "--adjacency", "replace-one")[1]
    assert "neighbours replace-one: neighbouring data sets differ in one record that is exchanged" in out


@pytest.mark.parametrize("path", sorted(CLAIMS.glob("*.json")), ids=lambda p: p.stem)
def test_a_claim_from_a_file(capsys, path):
    from dpaudit.accounting.reading import read_claim

    content = document(capsys, "--claim", path, "--delta", "1e-5")
    assert content["epsilon"] == pytest.approx(read_claim(path).epsilon(1e-5))
    assert content["given"] == [f"read from {path}"]
    code, out, err = call(capsys, "--claim", path, "--delta", "1e-5")
    assert (code, err) == (0, "")
    assert "δ = 1e-5" in out and content["adjacency"] in out


def test_a_claim_from_a_file_under_another_relation(capsys):
    content = document(capsys, "--claim", CLAIMS / "dp_sgd.json", "--delta", "1e-5", "--adjacency", "zero-out")
    assert content["adjacency"] == "zero-out"


# Shuffled batches: a bracket, and the mistake made visible.

SHUFFLED = ("--noise-multiplier", "0.6", "--sampling-rate", "0.001", "--steps", "1000", "--delta", "1e-5")


def test_shuffled_batches_have_a_bracket(capsys):
    content = document(capsys, *SHUFFLED, "--sampler", "shuffled")
    assert content["adjacency"] == "zero-out"
    low, high = content["bracket"]["lower"], content["bracket"]["upper"]
    assert 7.98 < low < high
    assert high == content["epsilon"] == pytest.approx(Claim.gaussian(noise_multiplier=0.6).epsilon(1e-5))


def test_charging_shuffled_batches_as_poisson_is_visible(capsys):
    content = document(capsys, *SHUFFLED, "--sampler", "shuffled")
    poisson = Claim.dp_sgd(noise_multiplier=0.6, sampling_rate=0.001, steps=1000).epsilon(1e-5)
    (mistake,) = [e for e in content["ledgers"] if e["status"] == "not a bound" and "Poisson" in e["method"]]
    assert mistake["epsilon"] == pytest.approx(poisson, rel=1e-6) == pytest.approx(1.43, abs=0.01)
    out = call(capsys, *SHUFFLED, "--sampler", "shuffled")[1]
    assert out.startswith("ε is between 7.9")
    assert "charged as Poisson batches" in out and "1.43" in out
    assert "note: Of shuffled batches only a bracket of ε is known" in out
    assert "a mistake: it would report ε = 1.42" in out


# Solving for a setting.


def test_noise_is_solved_for(capsys):
    given = ("--epsilon", "3", "--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5")
    content = document(capsys, *given)
    solved = content["calibration"]
    assert (solved["parameter"], solved["target"]) == ("noise_multiplier", 3.0)
    assert solved["value"] == content["settings"]["noise_multiplier"] == pytest.approx(0.8137, abs=5e-4)
    assert 3 * (1 - solved["tolerance"]) <= solved["epsilon"] == content["epsilon"] <= 3
    out = call(capsys, *given)[1]
    assert re.match(
        r"noise multiplier 0\.81\d* gives ε = 2\.999\d at δ = 1e-5 \(add-remove\) by PLD: the smallest for ε ≤ 3,", out
    )


def test_steps_are_solved_for(capsys):
    given = ("--epsilon", "2", "--sampling-rate", "0.02", "--noise-multiplier", "1", "--delta", "1e-5")
    content = document(capsys, *given)
    steps = content["settings"]["steps"]
    claim = {"noise_multiplier": 1.0, "sampling_rate": 0.02}
    assert Claim.dp_sgd(**claim, steps=steps).epsilon(1e-5) <= 2 < Claim.dp_sgd(**claim, steps=steps + 1).epsilon(1e-5)
    assert call(capsys, *given)[1].startswith(f"number of steps {steps:,} gives ε = ")


def test_the_sampling_rate_is_solved_for(capsys):
    given = ("--epsilon", "2", "--steps", "500", "--noise-multiplier", "1", "--delta", "1e-5")
    content = document(capsys, *given)
    assert content["calibration"]["parameter"] == "sampling_rate"
    assert 0.01 < content["settings"]["sampling_rate"] < 0.02
    assert content["epsilon"] <= 2


def test_the_classic_gaussian_stands_beside_the_analytic_one(capsys):
    given = ("--mechanism", "gaussian", "--delta", "1e-5")
    one = document(capsys, *given, "--epsilon", "1")["calibration"]
    assert one["value"] == pytest.approx(3.7306, abs=1e-3)
    assert [other["value"] for other in one["beside"]] == [pytest.approx(3.73063, abs=2e-5), pytest.approx(4.84481)]
    many = document(capsys, *given, "--epsilon", "20")["calibration"]
    analytic, classic = many["beside"]
    assert analytic["value"] == pytest.approx(many["value"], rel=1e-3)
    assert classic["value"] is None and "25.4" in classic["note"]
    out = call(capsys, *given, "--epsilon", "20")[1]
    assert "analytic Gaussian: noise multiplier 0.29" in out
    assert "classic Gaussian: refused: epsilon must be in (0, 1]" in out and "25.4" in out
    assert "classic Gaussian: noise multiplier 4.84481, " in call(capsys, *given, "--epsilon", "1")[1]


def test_the_classic_gaussian_knows_steps_and_neighbours(capsys):
    given = ("--mechanism", "gaussian", "--epsilon", "1", "--delta", "1e-5")
    one = document(capsys, *given)["calibration"]
    four = document(capsys, *given, "--steps", "4")["calibration"]
    replaced = document(capsys, *given, "--adjacency", "replace-one")["calibration"]
    for other in (four, replaced):
        for twice, once in zip(other["beside"], one["beside"], strict=True):
            assert twice["value"] == pytest.approx(2 * once["value"])
        assert other["value"] == pytest.approx(2 * one["value"], rel=1e-3)


def test_steps_of_the_gaussian_mechanism_are_solved_for(capsys):
    content = document(
        capsys, "--mechanism", "gaussian", "--epsilon", "3", "--noise-multiplier", "4", "--delta", "1e-5"
    )
    assert content["calibration"]["parameter"] == "steps"
    assert content["settings"]["steps"] == 8


# Tuning.


def test_tuning_has_its_price(capsys):
    content = document(capsys, *SMALL, "--runs", "10")
    costs = [cost for cost in content["tuning"] if cost["status"] == "upper bound"]
    assert len(costs) >= 3
    for cost in costs:
        assert cost["epsilon"] > content["epsilon"] or cost["expected_runs"] == 1, cost["method"]
        assert cost["source"]
    out = call(capsys, *SMALL, "--runs", "10")[1]
    assert "what tuning costs (add-remove; an ε of one run is by the same method)" in out
    table = out[out.index("what tuning costs") :]
    assert "releasing the best of" in table and "ε at δ = 1e-5" in table
    for cost in content["tuning"]:
        assert cost["runs"] in table and cost["method"] in table
        for condition in cost["note"].split("; "):
            assert table.count(condition) == 1 or condition in table
    assert document(capsys, *SMALL)["tuning"] is None


# What --out leaves.


def test_out_leaves_a_page_a_document_a_table_and_figures(capsys, tmp_path):
    folder = tmp_path / "account"
    code, out, err = call(capsys, *SMALL, "--runs", "5", "--out", folder)
    assert (code, err) == (0, f"account: {folder / 'account.html'}\n")
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert names == {
        "account.html", "account.json", "account.txt", "account.csv", "figures/epsilon-by-steps.svg",
        "figures/epsilon-by-steps.png", "figures/trade-off.svg", "figures/trade-off.png",
    }  # fmt: skip
    content = strict((folder / "account.json").read_text())
    assert content == document(capsys, *SMALL, "--runs", "5")
    text = (folder / "account.txt").read_text()
    assert out.splitlines()[0] in text and content["ledgers"][0]["source"] in text
    rows = list(csv.DictReader((folder / "account.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == [entry["method"] for entry in content["ledgers"]]
    assert float(rows[0]["epsilon"]) == content["epsilon"]


def test_the_same_account_leaves_the_same_bytes(capsys, tmp_path):
    for name in ("a", "b"):
        call(capsys, *SMALL, "--out", tmp_path / name)
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
                     for f in (tmp_path / "a", tmp_path / "b"))  # fmt: skip
    assert first == second


def test_out_can_t_be_a_file(capsys, tmp_path):
    path = tmp_path / "taken"
    path.write_text("")
    code, _, err = call(capsys, *SMALL, "--out", path)
    assert code == 2
    assert str(path) in err and len(err.splitlines()) == 1


# Mistakes.

DELTA = ("--delta", "1e-5")
GAUSSIAN = ("--mechanism", "gaussian", *DELTA)
MISTAKES = {
    "no delta": (("--noise-multiplier", "1"), "Missing option '--delta'"),
    "nothing": (DELTA, "missing: --noise-multiplier, --sampling-rate, --steps"),
    "no steps": (("--noise-multiplier", "1", "--sampling-rate", "0.1", *DELTA), "missing: --steps"),
    "nothing to solve for": ((*SGD, "--epsilon", "3"), "exactly one must be left out, got without a value: none"),
    "two to solve for": (("--epsilon", "3", "--steps", "10", *DELTA), "without a value: --noise-multiplier, --samp"),
    "noise 0": (("--noise-multiplier", "0", "--sampling-rate", "0.1", "--steps", "3", *DELTA), "noise_multiplier must"),
    "noise nan": (("--noise-multiplier", "nan", "--sampling-rate", "0.1", "--steps", "3", *DELTA), "noise_multiplier"),
    "noise text": (("--noise-multiplier", "x", "--sampling-rate", "0.1", "--steps", "3", *DELTA), "valid"),
    "rate 2": (("--noise-multiplier", "1", "--sampling-rate", "2", "--steps", "3", *DELTA), "sampling_rate must be in"),
    "steps 0": (("--noise-multiplier", "1", "--sampling-rate", "0.1", "--steps", "0", *DELTA), "steps must be a whole"),
    "steps 1.5": (("--noise-multiplier", "1", "--sampling-rate", "0.1", "--steps", "1.5", *DELTA), "valid int"),
    "delta 1": ((*SGD[:-1], "1"), "delta must be in [0, 1), got 1.0"),
    "delta nan": ((*SGD[:-1], "nan"), "delta must be"),
    "epsilon 0": (("--epsilon", "0", "--sampling-rate", "0.1", "--steps", "9", *DELTA), "epsilon must be in (0, inf)"),
    "sampler": ((*SGD, "--sampler", "uniform"), "sampler must be one of poisson, full-batch"),
    "mechanism": ((*SGD, "--mechanism", "exponential"), "--mechanism must be one of dp-sgd, gaussian"),
    "adjacency": ((*SGD, "--adjacency", "swap"), "adjacency must be one of add-remove"),
    "no accountant": ((*SGD, "--adjacency", "replace-one"), "adjacency must be one of add-remove, zero-out for this"),
    "shuffled, add-remove": ((*SGD, "--sampler", "shuffled", "--adjacency", "add-remove"), "adjacency must be one of"),
    "Gaussian, sampled": ((*GAUSSIAN, "--sampler", "poisson"), "--sampler must be full-batch with --mechanism"),
    "Gaussian, rate": ((*GAUSSIAN, "--noise-multiplier", "1", "--sampling-rate", "0.5"), "full batches have sampling"),
    "full batch, records": ((*GAUSSIAN, "--noise-multiplier", "1", "--records", "5"), "full batches have sampling"),
    "records alone": (("--noise-multiplier", "1", "--records", "10", "--steps", "3", *DELTA), "must be given together"),
    "batch alone": (("--noise-multiplier", "1", "--batch-size", "10", "--steps", "3", *DELTA), "must be given tog"),
    "batch too large": (("--noise-multiplier", "1", "--records", "9", "--batch-size", "10", "--steps", "3", *DELTA),
                        "--batch-size must be a whole number from 1 to 9, got 10"),
    "records and rate": ((*SGD, "--records", "10", "--batch-size", "5"), "leave --sampling-rate out"),
    "epochs and steps": ((*SGD, "--epochs", "3"), "leave --steps out"),
    "epochs 0": (("--noise-multiplier", "1", "--sampling-rate", "0.1", "--epochs", "0", *DELTA), "--epochs must be a"),
    "epochs of what": (("--noise-multiplier", "1", "--epochs", "3", "--epsilon", "3", *DELTA), "--epochs needs --sam"),
    "a file and settings": (("--claim", CLAIMS / "dp_sgd.json", "--steps", "3", *DELTA), "--claim holds the settings"),
    "a file and a mechanism": (("--claim", CLAIMS / "dp_sgd.json", *GAUSSIAN), "--claim holds the settings"),
    "a file and a target": (("--claim", CLAIMS / "dp_sgd.json", "--epsilon", "3", *DELTA), "--claim holds the set"),
    "no such file": (("--claim", "nowhere.json", *DELTA), "nowhere.json: can't be read: No such file"),
    "a file's relation": (("--claim", CLAIMS / "dp_sgd.json", "--adjacency", "replace-one", *DELTA), "its claim is"),
    "steps without end": (("--noise-multiplier", "1", "--sampling-rate", "0.1", "--steps", "1" + "0" * 30, *DELTA),
                          "steps must be at most 1e+15, got 1e+30"),
    "noise without end": (("--noise-multiplier", "1e-300", "--sampling-rate", "0.1", "--steps", "1", *DELTA),
                          "noise_multiplier must be in [1e-50, 1e+50], got 1e-300"),
    "hardly a rate": (("--noise-multiplier", "1", "--sampling-rate", "1e-300", "--steps", "1", *DELTA),
                      "sampling_rate must be in [1e-50, 1], got 1e-300"),
    "runs 0": ((*SMALL, "--runs", "0"), "expected runs must be in [1, 1e+06]"),
}  # fmt: skip


@pytest.mark.parametrize("arguments,message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(capsys, arguments, message):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("dpaudit: ") and len(err.splitlines()) == 1
    assert message in err
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 2
    error = strict(out)
    assert (error["schema"], error["exit_code"]) == ("dpaudit.error/1", 2)
    assert message in error["error"]


def test_a_part_of_a_file_that_is_not_known_is_named(capsys, tmp_path):
    path = tmp_path / "claim.json"
    event = {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}
    path.write_text(json.dumps({"class_name": "ComposedDpEvent", "events": [event, {"class_name": "ZCDpEvent"}]}))
    code, _, err = call(capsys, "--claim", path, *DELTA)
    assert code == 2
    assert err.startswith(f"dpaudit: {path}: events[1].class_name must be one of GaussianDpEvent, ")


# Extreme settings: a number or one clear line.


EXTREMES = [
    # noise multiplier, sampling rate, steps, δ
    ("0.1", "1e-6", "1", "1e-12"),
    ("100", "1e-6", "1", "1e-12"),
    ("100", "1e-6", "1", "0.1"),
    ("0.1", "1", "1", "1e-12"),
    ("0.1", "1", "1000000", "1e-12"),
    ("100", "1", "1000000", "0.1"),
    ("1", "0.5", "1", "1e-12"),
    ("0.1", "1e-6", "1000000", "1e-12"),
    ("0.1", "0.5", "1000000", "1e-12"),
    ("100", "0.5", "1000000", "0.1"),
    ("1e-3", "0.5", "1000000", "1e-12"),
    ("100", "1e-6", "1000000", "1e-12"),
]


@pytest.mark.parametrize("noise,rate,steps,delta", EXTREMES)
def test_extreme_settings(capsys, noise, rate, steps, delta):
    given = ("--noise-multiplier", noise, "--sampling-rate", rate, "--steps", steps, "--delta", delta)
    code, out, err = call(capsys, *given, "--json")
    if code != 0:
        assert code == 2 and len(err.splitlines()) == 1
        return
    content = strict(out)
    epsilon = number(content["epsilon"])
    assert epsilon >= 0
    # A grid may cost 1 % of ε, and rounding of floats its last digits.
    least = [number(e["epsilon"]) for e in ledger(content, "upper bound") if e["epsilon"] is not None]
    assert all(value >= 0.99 * epsilon for value in least)
    assert headline(content) in account_text(content, 100)


# The page of how-tos says what the program says.


def examples() -> list[tuple[str, str]]:
    """Commands of docs/account.md with the output printed there."""
    text = (ROOT / "docs" / "account.md").read_text()
    return re.findall(r"```\n\$ dpaudit (.*?)\n(.*?)\n```", text, flags=re.S)


def same(printed: str, said: str) -> bool:
    """Whether two lines are equal but for the third digit of what a solver found."""
    ours, theirs = (re.split(r"(\d+\.\d+)", line) for line in (printed, said))
    numbers = zip(ours[1::2], theirs[1::2], strict=False)
    return ours[::2] == theirs[::2] and all(float(a) == pytest.approx(float(b), rel=1e-3) for a, b in numbers)


def follows(printed: list[str], said: list[str]) -> bool:
    """Whether the output is as printed, where ``...`` stands for any lines."""
    if not printed:
        return not said
    if printed[0] == "...":
        return any(follows(printed[1:], said[i:]) for i in range(len(said) + 1))
    return bool(said) and same(printed[0], said[0]) and follows(printed[1:], said[1:])


def test_the_test_of_examples_can_fail():
    assert follows(["a 2.001", "...", "z"], ["a 2.0", "b", "c", "z"])
    assert not follows(["a 2.01", "...", "z"], ["a 2.0", "z"])
    assert not follows(["a", "z"], ["a", "b", "z"])
    assert not follows(["a", "..."], ["b"])


@pytest.mark.parametrize("command,output", examples(), ids=[command[:60] for command, _ in examples()])
def test_the_examples_of_the_documentation(capsys, command, output, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(shlex.split(command))
    out, err = capsys.readouterr()
    assert follows(output.split("\n"), (out or err).rstrip("\n").split("\n")), out + err


def test_the_python_of_the_documentation():
    text = (ROOT / "docs" / "account.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    example = doctest.DocTestParser().get_doctest(block, {}, "account.md", "docs/account.md", 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
