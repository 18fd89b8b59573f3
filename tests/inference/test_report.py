"""What an inference says: the split first, the null beside each number, and nothing about a record in the release."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.attacks.evidence import Evidence
from dpaudit.attacks.metrics import auc
from dpaudit.attacks.registry import ATTACKS
from dpaudit.data.scores import read_scores, read_tensors
from dpaudit.errors import InputError
from dpaudit.inference import Inference, Source, document, infer, read_source, render_text, write
from dpaudit.records import Design

from .conftest import RECORDS, Arrays, make_world

SEED = 918273645


@pytest.fixture(scope="module")
def source(whole: Path) -> Source:
    pytest.importorskip("sklearn")
    return read_source(whole, slices=["site"])


@pytest.fixture(scope="module")
def found(source: Source) -> Inference:
    return infer(source, attacks=["loss", "correctness", "reference", "lira", "rmia"], seed=SEED, prior=0.2)


@pytest.fixture(scope="module")
def out(found: Inference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "run"
    write(found, folder)
    return folder


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "release" / "report.json").read_text(), parse_constant=_refuse)
    return content


def _refuse(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def attack(facts: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = (a for a in facts["attacks"] if a["name"] == name)
    return dict(one)


def test_the_numbers_are_those_of_the_scores(found: Inference, source: Source, facts: dict[str, Any]) -> None:
    for result in found.results:
        said = attack(facts, result.attack.name)
        scored = ATTACKS[result.attack.name].scores(source.evidence.of(result.rows), SEED)
        assert result.scores.tolist() == scored.tolist()
        assert said["auc"]["value"] == auc(result.scores, source.member[result.rows])
        assert said["null"]["auc"]["low"] < 0.5 < said["null"]["auc"]["high"]
    assert facts["records"] == {"members": int(source.member.sum()), "others": int((~source.member).sum())}
    assert facts["prior"] == 0.2 and facts["schema"] == "dpaudit.attack/1"


def test_what_can_not_be_resolved_says_so(facts: dict[str, Any]) -> None:
    for said in facts["attacks"]:
        resolved = {p["fpr"]: p["resolvable"] for p in said["tpr_at_fpr"]}
        assert resolved == {0.1: True, 0.01: True, 0.001: False, 0.0: True}
        (permille,) = (p for p in said["tpr_at_fpr"] if p["fpr"] == 0.001)
        assert permille["tpr"] is permille["p_value"] is permille["ppv"] is None


def test_thresholds_say_where_they_come_from(facts: dict[str, Any]) -> None:
    sources = [t["source"] for t in attack(facts, "lira")["thresholds"]]
    assert sources == [f"8 shadow models in the target's place, at FPR {f} % there" for f in ("10", "1", "0.1")][
        :2
    ] or (len(sources) == 3)
    assert all("threshold" not in t for said in facts["attacks"] for t in said["thresholds"])


def test_without_shadows_one_half_chooses_for_the_other(source: Source) -> None:
    alone = replace(source, evidence=replace(source.evidence, shadow_logits=None, shadow_member=None,
                                             shadow_population_logits=None), x=None)  # fmt: skip
    result = infer(alone, attacks=["loss"]).results[0]
    (decision,) = result.measures.decisions
    assert "half" in decision.source
    assert decision.tpr.trials + decision.fpr.trials == pytest.approx(RECORDS / 2, abs=1)


def test_findings_are_those_of_holm_over_everything(found: Inference) -> None:
    names = {test.attack for test in found.tests}
    assert names == {r.attack.name for r in found.results}
    smallest = min(found.tests, key=lambda t: t.p_value)
    assert smallest.adjusted == pytest.approx(min(1.0, smallest.p_value * len(found.tests)))
    assert all((t in found.findings) == (t.adjusted <= 0.05) for t in found.tests)
    per_attack = {name: sum(t.attack == name for t in found.tests) for name in names}
    assert per_attack["lira"] == 1 + 3 + len(found.results[3].measures.decisions) + 2  # area, points, two sites


def test_a_biased_split_comes_before_everything_else(source: Source, tmp_path: Path) -> None:
    x = source.x.copy()
    x[source.member] += 1.0
    biased = infer(replace(source, x=x), attacks=["loss"])
    assert biased.biased
    text = render_text(biased)
    assert text.splitlines()[2].startswith(
        "The split is biased: members can be told from non-members without the model"
    )
    assert document(biased)["headline"].startswith("The split is biased")
    write(biased, tmp_path)
    page = (tmp_path / "release" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<h1>The split is biased", page)
    assert page.index("The split is biased") < page.index("Loss threshold")


def test_shadows_that_tell_of_the_target_bias_the_split(source: Source) -> None:
    """Exact halves: each model in turn the target, where half of all models had each record."""
    rng = np.random.default_rng(3)
    member = rng.permuted(np.tile(np.arange(10)[:, None] < 5, (1, RECORDS)), axis=0)
    losses = rng.exponential(size=(10, RECORDS))
    halves = Evidence(losses=losses[0], shadow_losses=losses[1:], shadow_member=member[1:])
    found = infer(Source("halves", halves, member[0], labels=source.labels), attacks=["lira"])
    assert found.biased and found.biased_shadows and not found.biased_records
    assert (
        render_text(found).splitlines()[2].startswith("The split is biased: the shadows' membership tells the target's")
    )
    coins = replace(halves, shadow_member=rng.random((9, RECORDS)) < 0.5)
    fair = infer(Source("coins", coins, member[0], labels=source.labels), attacks=["lira"])
    assert not fair.biased and document(fair)["shadow_split"]["p_value"] > 0.025
    assert infer(Source("none", Evidence(losses=losses[0]), member[0])).shadow_split is None


def test_a_missing_baseline_is_said(source: Source) -> None:
    few = np.flatnonzero(source.member)[:12].tolist() + np.flatnonzero(~source.member)[:12].tolist()
    losses = source.evidence.target
    small = Source("small", Evidence(losses=losses[few]), source.member[few], labels=source.labels[few])
    found = infer(small)
    assert found.baseline is None and "at least 20 members" in " ".join(render_text(found).split())
    bare = Source("bare", Evidence(losses=losses), source.member)
    assert "neither features" in " ".join(render_text(infer(bare)).split())
    assert document(infer(bare))["biased_split"] is None


def test_the_order_of_records_is_irrelevant(source: Source) -> None:
    order = np.random.default_rng(1).permutation(RECORDS)
    assert source.x is not None and source.labels is not None
    moved = replace(
        source, evidence=source.evidence.of(order), member=source.member[order], x=source.x[order],
        labels=source.labels[order], groups={k: v[order] for k, v in source.groups.items()},
    )  # fmt: skip
    names = ["loss", "correctness", "calibrated-loss", "lira"]
    assert render_text(infer(moved, attacks=names)) == render_text(infer(source, attacks=names))


def test_without_scikit_learn_its_attack_is_left_out_and_named(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    found = infer(replace(source, x=None, groups={}))
    assert "dpaudit[train]" in dict(found.refused)["learned"]
    assert found.baseline is not None  # labels alone ask for no classifier


def test_records_that_every_shadow_had_are_left_out_and_counted(source: Source) -> None:
    everywhere = source.evidence.shadow_member.all(axis=0)
    assert everywhere.any() and not everywhere.all()
    found = infer(source, attacks=["loss", "reference"])
    by_name = {r.attack.name: r for r in found.results}
    assert by_name["reference"].rows.tolist() == np.flatnonzero(~everywhere).tolist()
    assert len(by_name["loss"].scores) == RECORDS
    assert f"{everywhere.sum()} records were left out" in " ".join(render_text(found).split())


def test_nothing_to_find_is_said_to_be_luck() -> None:
    world = make_world(gap=0.0, seed=4)
    null = Source("null", Evidence(logits=world["logits"], labels=world["labels"]), world["member"])
    found = infer(null)
    assert found.findings == ()
    assert "None of 5 attacks tells members from non-members beyond luck" in render_text(found)


class TestRelease:
    def test_is_complete(self, out: Path) -> None:
        files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
        figures = {f"release/figures/{n}.{k}" for n in ("roc", "scores") for k in ("svg", "png")}
        pages = {f"release/report.{k}" for k in ("html", "json", "txt")}
        assert files == figures | pages | {f"retained/scores-{n}.safetensors" for n in
                                           ("loss", "correctness", "reference", "lira", "rmia")}  # fmt: skip

    def test_names_no_record_and_no_seed(self, out: Path, arrays: Arrays, found: Inference) -> None:
        numbers = [*found.results[0].scores.tolist(), *arrays["x"].ravel().tolist(), *arrays["logits"].ravel().tolist()]
        hidden = {*arrays["ids"].tolist(), str(SEED), *map(repr, numbers)} | {f"{n:.10g}" for n in numbers}
        assert len(hidden) > 4000
        for path in (out / "release").rglob("*"):
            if path.is_file():
                text = path.read_bytes().decode("utf-8", "replace")
                assert [secret for secret in hidden if len(secret) > 7 and secret in text] == [], path.name

    def test_page_is_self_contained(self, out: Path) -> None:
        page = (out / "release" / "report.html").read_text(encoding="utf-8")
        assert "<script" not in page and "http" not in page and "<img" not in page and "@import" not in page
        assert not re.search(r"url\((?!#)", page)
        ids = re.findall(r'\bid="([^"]+)"', page)
        assert len(ids) == len(set(ids))

    def test_page_and_text_show_the_null_beside_each_number(self, out: Path, facts: dict[str, Any]) -> None:
        page = (out / "release" / "report.html").read_text(encoding="utf-8")
        text = (out / "release" / "report.txt").read_text(encoding="utf-8")
        for said in facts["attacks"]:
            null = said["null"]["auc"]
            shown = f"{null['mean']:.3f} ({null['low']:.3f}–{null['high']:.3f})"
            assert f"null {shown}" in page and shown in text
            assert f"{said['auc']['value']:.3f} ({said['auc']['low']:.3f}–{said['auc']['high']:.3f})" in page
        assert page.count("not resolvable") >= len(facts["attacks"])

    def test_json_has_no_curves(self, out: Path, facts: dict[str, Any]) -> None:
        def longest(value: Any) -> int:
            if isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
                return len(json.dumps(value))
            children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            return max(map(longest, children), default=0)

        assert longest(facts) < 2000
        assert (out / "release" / "report.json").stat().st_size < 20_000 * len(facts["attacks"])

    def test_same_inference_same_bytes(self, source: Source, out: Path, tmp_path: Path) -> None:
        again = infer(source, attacks=["rmia", "lira", "reference", "correctness", "loss"], seed=SEED, prior=0.2)
        write(again, tmp_path)
        for path in sorted((out / "release").rglob("*")):
            if path.is_file():
                assert path.read_bytes() == (tmp_path / path.relative_to(out)).read_bytes(), path.name


def test_retained_scores_are_read_by_bound(out: Path, arrays: Arrays, found: Inference) -> None:
    path = out / "retained" / "scores-lira.safetensors"
    obs = read_scores(path, Design(coins="fixed"))
    assert read_tensors(path)[0]["rows"].tolist() == list(range(RECORDS))
    assert obs.scores[0].tolist() == found.results[3].scores.tolist()
    assert obs.member[0].tolist() == arrays["member"].tolist()
    assert read_tensors(path)[1]["ids"] == arrays["ids"].tolist()


class TestRefusing:
    def test_what_an_attack_lacks(self, arrays: Arrays) -> None:
        source = Source("s", Evidence(losses=np.ones(RECORDS)), arrays["member"])
        with pytest.raises(InputError, match=r"rmia needs .*shadow_member.*got losses"):
            infer(source, attacks=["rmia"])
        unasked = dict(infer(source).refused)
        assert unasked["lira"] == "needs shadows" and "outputs" in unasked["entropy"]

    def test_unknown_attacks_and_nothing_to_use(self, source: Source) -> None:
        with pytest.raises(InputError, match="attack must be one of loss, "):
            infer(source, attacks=["magic"])
        with pytest.raises(InputError, match="something that an attack can use"):
            infer(replace(source, evidence=Evidence(labels=source.evidence.labels)))

    def test_an_attack_that_fails_is_said_and_the_others_run(self, source: Source) -> None:
        none_out = np.ones_like(source.evidence.shadow_member)
        found = infer(replace(source, evidence=replace(source.evidence, shadow_member=none_out), x=None))
        refused = dict(found.refused)
        assert "got none for any record" in refused["reference"] and "lira" in refused
        assert "loss" in {r.attack.name for r in found.results}

    @pytest.mark.parametrize("options", [{"prior": 0.0}, {"significance": 0.9}, {"seed": -1}])
    def test_numbers_out_of_range(self, source: Source, options: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            infer(source, attacks=["loss"], **options)
