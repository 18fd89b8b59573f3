"""The options that state a claim, in the commands that share them: a pair, settings with a sampler, or a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.cli import main

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"
SETTINGS = ("--noise-multiplier", "1.0", "--sampling-rate", "0.01", "--steps", "300")


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """Scores of one run that give every canary away."""
    rng = np.random.default_rng(5)
    member = rng.random(1000) < 0.5
    path = tmp_path / "scores.csv"
    rows = [f"c{i},{int(m)},{s:.6f}" for i, (m, s) in enumerate(zip(member, rng.random(1000) + member, strict=True))]
    path.write_text("\n".join(["canary,member,score", *rows]) + "\n")
    return path


def test_plan_takes_a_claim_from_a_file(capsys):
    code, out, err = call(capsys, "plan", "--claim", CLAIMS / "dp_sgd.json", "--delta", "1e-5", "--json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    claim = Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=0.00427, steps=14063)
    assert content["claim"] == claim.document()
    assert content["epsilon"] == pytest.approx(claim.epsilon(1e-5))
    settings = ("--noise-multiplier", "1.1", "--sampling-rate", "0.00427", "--steps", "14063")
    assert json.loads(call(capsys, "plan", *settings, "--delta", "1e-5", "--json")[1]) == content


def test_plan_takes_a_sampler(capsys):
    _, out, _ = call(capsys, "plan", *SETTINGS, "--sampler", "shuffled", "--delta", "1e-5", "--json")
    content = json.loads(out)
    assert content["claim"]["adjacency"] == "zero-out"
    assert content["epsilon"] == pytest.approx(Claim.gaussian(noise_multiplier=1.0, steps=3).epsilon(1e-5))


def test_full_batches_need_no_sampling_rate(capsys):
    given = ("--noise-multiplier", "2", "--steps", "3", "--sampler", "full-batch", "--delta", "1e-5", "--json")
    content = json.loads(call(capsys, "plan", *given)[1])
    assert content["epsilon"] == pytest.approx(Claim.gaussian(noise_multiplier=2.0, steps=3).epsilon(1e-5))


def test_bound_takes_a_claim_from_a_file(capsys, scores):
    code, out, _ = call(capsys, "bound", scores, "--claim", CLAIMS / "opacus_history.json", "--delta", "1e-5", "--json")
    (audit,) = json.loads(out)["audits"]
    assert code == 1 and audit["verdict"] == "violated"
    assert audit["claim"]["kind"] == "composed"
    assert audit["upper"] == pytest.approx(2.1716, abs=2e-3)


def test_bound_judges_a_shuffled_claim_on_coins_that_zero_out(capsys, scores):
    given = ("bound", scores, *SETTINGS, "--sampler", "shuffled", "--delta", "1e-5", "--json")
    code, out, _ = call(capsys, *given, "--adjacency", "zero-out")
    (audit,) = json.loads(out)["audits"]
    assert code == 1 and audit["verdict"] == "violated"
    assert {b["adjacency"] for b in audit["bounds"]} == {"zero-out"}
    code, out, _ = call(capsys, *given)  # coins that add or remove say nothing about it
    assert code == 0 and json.loads(out)["verdict"] == "underpowered"


@pytest.mark.parametrize("command", ["plan", "bound"])
@pytest.mark.parametrize(
    "claim,message",
    [
        (("--claim", CLAIMS / "dp_sgd.json", "--epsilon", "3"), "or --claim, got both"),
        (("--claim", CLAIMS / "dp_sgd.json", *SETTINGS), "or --claim, got both"),
        (("--claim", CLAIMS / "dp_sgd.json", "--sampler", "shuffled"), "or --claim, got both"),
        (("--claim", CLAIMS / "dp_sgd.json", "--epsilon", "3", *SETTINGS), "got all of them"),
        (("--epsilon", "3", "--sampler", "poisson"), "got both"),
        (("--sampler", "poisson"), "got only some of these"),
        (SETTINGS[:-2], "got only some of these"),
        ((*SETTINGS, "--sampler", "random"), "sampler must be one of poisson, full-batch"),
        (("--claim", "nowhere.json"), "nowhere.json: can't be read"),
    ],
)
def test_mistakes_get_one_line(capsys, scores, command, claim, message):
    code, out, err = call(capsys, command, *([scores] if command == "bound" else []), *claim, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert err.startswith("dpaudit: ") and len(err.splitlines()) == 1
    assert message in err


def test_bound_needs_the_delta_of_a_pair(capsys, scores):
    assert "--delta must be given" in call(capsys, "bound", scores, "--epsilon", "3")[2]


def test_the_relation_of_the_coins_is_one_of_three(capsys, scores):
    code, _, err = call(capsys, "bound", scores, "--epsilon", "3", "--delta", "1e-5", "--adjacency", "swap")
    assert code == 2 and "adjacency must be one of add-remove, replace-one, zero-out" in err
