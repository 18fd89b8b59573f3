"""The whole demonstration, small: what it finds, says and writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpaudit.attacks.metrics import rate
from dpaudit.attacks.signals import logit_margin
from dpaudit.bounds import Fixed, Split
from dpaudit.bounds.two_worlds import chosen_threshold, clopper_pearson
from dpaudit.demo import DemoResult, render_text, run_demo, words, write
from dpaudit.demo.experiment import DELTA, SIGNIFICANCE, SPLIT_FRACTION
from dpaudit.demo.facts import SCHEMA, document, histogram
from dpaudit.demo.outcome import LevelResult
from dpaudit.errors import InputError
from dpaudit.records import Observations, Verdict

SEED, MODELS = 3, 40  # as in conftest


class TestFindings:
    def test_models_that_saw_the_knitter_score_higher_without_privacy(self, result: DemoResult) -> None:
        found = result.plain.knitter
        assert np.median(found.inside) > np.median(found.outside) + 1.0
        # 20 pairs: a guessing attacker gets 16 or more of them with probability below 0.006.
        assert found.pairs.hits >= 16
        assert found.audit.verdict is Verdict.NO_CLAIM and found.audit.upper is None

    def test_levels_fall_and_keep_their_targets(self, result: DemoResult) -> None:
        assert [entry.level.target for entry in result.levels] == [None, 8.0, 3.0, 1.0]
        for entry in result.private:
            level = entry.level
            assert level.epsilon is not None and level.target is not None and level.added_up is not None
            assert 0.99 * level.target < level.epsilon <= level.target < level.added_up
            spent = [epsilon for _, epsilon in level.ledger]
            assert spent == sorted(spent) and spent[-1] == level.epsilon

    def test_noise_hides_the_knitter_and_costs_accuracy(self, result: DemoResult) -> None:
        def gap(entry: LevelResult) -> float:
            found = entry.knitter
            return float((found.inside.mean() - found.outside.mean()) / found.outside.std())

        assert gap(result.plain) > 2 * gap(result.private[-1])
        assert (result.plain.accuracy.mean or 0) > (result.private[-1].accuracy.mean or 1)

    def test_design(self, result: DemoResult) -> None:
        for entry in result.levels:
            for found in entry.students:
                design = found.audit.design
                assert (design.coins, design.adjacency, design.threat_model) == ("worlds", "add-remove", "black-box")
                assert len(found.inside) == len(found.outside) == MODELS // 2
                assert found.audit.significance == found.bound.significance == SIGNIFICANCE
                assert found.bound.any_mechanism and found.bound.delta == DELTA
                assert found.together <= found.audit.lower <= found.bound.perfect
        assert result.bounds == 8 and result.family_error == pytest.approx(0.4)

    def test_no_two_trainings_share_a_seed(self, result: DemoResult) -> None:
        scores = [s for e in result.levels for f in e.students for s in (*f.inside, *f.outside)]
        assert len(set(scores)) == len(scores)

    def test_rates_are_those_of_the_bound(self, result: DemoResult) -> None:
        for entry in result.levels:
            for found in entry.students:
                assert found.bound.rates == pytest.approx((found.fpr.high, 1 - found.tpr.low))
                assert found.tpr.trials == found.fpr.trials == 15

    def test_the_drawn_threshold_is_the_one_of_the_bound(self) -> None:
        rng = np.random.default_rng(2)
        obs = Observations.from_worlds(rng.normal(1, 1, 400), rng.normal(0, 1, 400))
        policy = Split(SPLIT_FRACTION, seed=9)
        value = chosen_threshold(obs, policy, delta=DELTA, significance=SIGNIFICANCE)
        split = clopper_pearson(obs, delta=DELTA, significance=SIGNIFICANCE, threshold=policy).counts
        whole = clopper_pearson(obs, delta=DELTA, significance=SIGNIFICANCE, threshold=Fixed(value)).counts
        for name in ("missed", "false_alarms"):
            assert split[name] <= whole[name] <= split[name] + 100
            assert split[name] / 300 == pytest.approx(whole[name] / 400, abs=0.1)

    def test_interval_in_closed_form(self) -> None:
        assert rate(0, 50).high == pytest.approx(1 - 0.025 ** (1 / 50)) and rate(0, 50).low == 0
        assert rate(50, 50).low == pytest.approx(0.025 ** (1 / 50)) and rate(50, 50).high == 1

    def test_progress_counts_every_training(self, tmp_path: Path) -> None:
        seen: list[tuple[int, int, str]] = []
        run_demo(tmp_path, seed=SEED, models=MODELS, progress=lambda *step: seen.append(step))
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
        assert seen[-1][:2] == (8 * MODELS, 8 * MODELS) and "knitter" in seen[0][2]

    def test_score_is_the_margin(self) -> None:
        logits = np.array([[[2.0, 0.0, 0.0]]])
        assert logit_margin(logits, np.array([0]))[0, 0] == pytest.approx(2 - np.log(2))


class TestDocument:
    def test_same_seed_same_bytes(self, written: Path, tmp_path: Path) -> None:
        write(run_demo(tmp_path, seed=SEED, models=MODELS), tmp_path)
        for path in sorted(p for p in written.rglob("*") if p.is_file()):
            assert path.read_bytes() == (tmp_path / path.relative_to(written)).read_bytes(), path.name

    def test_strict_json(self, written: Path) -> None:
        def refuse(name: str) -> None:
            raise AssertionError(name)

        facts = json.loads((written / "demo.json").read_text(encoding="utf-8"), parse_constant=refuse)
        assert facts["schema"] == SCHEMA and facts["seed"] == SEED and facts["models"] == MODELS
        assert facts["adjacency"] == "add-remove" and facts["delta"] == DELTA
        for level in facts["levels"]:
            assert set(level["students"]) == {"knitter", "ordinary"}
            for found in level["students"].values():
                keys = {"lower", "lower_together", "upper", "verdict", "tpr", "fpr", "bound", "p_value", "power"}
                assert keys <= set(found)
                bound = {"epsilon", "delta", "significance", "method", "null", "threshold", "counts", "perfect",
                         "at_claim", "adjacency"}  # fmt: skip
                assert set(found["bound"]) == bound and "seed" in found["bound"]["threshold"]

    def test_lower_can_be_computed_again_from_the_counts(self, result: DemoResult) -> None:
        for level in document(result)["levels"]:
            for found in level["students"].values():
                fpr, fnr = found["fpr"]["high"], 1 - found["tpr"]["low"]
                best = max(0.0, *(np.log(max(1 - DELTA - a, 1e-9) / b) for a, b in ((fnr, fpr), (fpr, fnr))))
                assert found["lower"] == pytest.approx(best, abs=1e-6)

    def test_histogram_counts_every_score(self, result: DemoResult) -> None:
        _, inside, outside = histogram(result.plain.knitter)
        assert inside.sum() == pytest.approx(1) and outside.sum() == pytest.approx(1)


class TestWords:
    def test_text_says_what_a_bound_needs(self, result: DemoResult) -> None:
        text = render_text(result)
        flat = " ".join(text.split())
        for needed in ("δ = 1e-5", "confidence 95 %", "adding or removing one student", "at least 60 %"):
            assert needed in flat
        assert max(map(len, text.splitlines())) <= 100
        assert 6 <= len(words.sentences(result)) <= 10

    def test_verdicts_follow_from_the_audits(self, result: DemoResult) -> None:
        assert f"6 {words.w.VERDICTS['underpowered'][0]}" in words.verdicts(result)  # 40 models can't judge anything
        entry = result.levels[3]
        broken = replace(entry.knitter, audit=replace(entry.knitter.audit, verdict=Verdict.VIOLATED, lower=1.5))
        told = replace(result, levels=(*result.levels[:3], replace(entry, knitter=broken)))
        assert "1 VIOLATED" in words.verdicts(told) and "(ε ≥ 1.50)" in " ".join(words.sentences(told))

    def test_a_bound_of_nothing_is_said_to_be_nothing(self, result: DemoResult) -> None:
        def with_lower(value: float) -> DemoResult:
            levels = [
                replace(e, knitter=replace(e.knitter, audit=replace(e.knitter.audit, lower=value)),
                        ordinary=replace(e.ordinary, audit=replace(e.ordinary.audit, lower=value)))
                for e in result.levels
            ]  # fmt: skip
            return replace(result, levels=tuple(levels))

        assert "showed nothing" in words.caution(with_lower(0.0))
        assert "showed nothing" not in words.caution(with_lower(0.2))

    def test_no_sentence_breaks_the_sign_off_its_number(self, result: DemoResult) -> None:
        assert not re.search(r"(^|\n)\s*(%|= \d)", render_text(result))


class TestPage:
    def test_is_self_contained(self, written: Path) -> None:
        page = (written / "demo.html").read_text(encoding="utf-8")
        assert not re.search(r"<script|<link|<img|<iframe|@import|src=|https?://|url\((?!#)", page)
        assert page.count("<svg") == 7 and page.rstrip().endswith("</html>")
        ids = re.findall(r'\bid="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
        assert used <= set(ids)

    def test_says_what_was_not_shown(self, written: Path) -> None:
        page = (written / "demo.html").read_text(encoding="utf-8")
        assert "What was not shown" in page and page.count("<li>") >= len(words.LIMITS)

    def test_files(self, written: Path) -> None:
        names = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
        views = ("1-source", "2-pipeline", "3-ledger", "4-terminal-scores", "4-terminal-rates", "4-terminal-epsilon",
                 "5-price")  # fmt: skip
        figures = {f"figures/{view}.{kind}" for view in views for kind in ("svg", "png")}
        assert names == {"demo.html", "demo.json", "demo.txt", *figures}


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"models": 38}, "models must be .* at least 40, got 38"),
            ({"models": 41}, "models must be even"),
            ({"models": 40.5}, "models"),
            ({"models": True}, "models"),
            ({"seed": -1}, "seed"),
            ({"seed": "x"}, "seed"),
        ],
    )
    def test_is_named(self, arguments: dict, named: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=named):
            run_demo(tmp_path / "new", **{"seed": 1, "models": 40, **arguments})
        assert not (tmp_path / "new").exists()

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(InputError, match="must be a folder"):
            run_demo(tmp_path / "file", seed=1, models=40)
        assert (tmp_path / "file").read_text() == "mine"


def test_import_loads_no_torch() -> None:
    code = "import dpaudit.demo, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
