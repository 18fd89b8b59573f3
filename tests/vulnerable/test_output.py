"""What an examination leaves behind: a release that names nobody, and the records apart from it."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpaudit.data.scores import read_scores
from dpaudit.vulnerable import Exposure, examine, words
from dpaudit.vulnerable.facts import document
from dpaudit.vulnerable.figures import draw, histogram
from dpaudit.vulnerable.page import release_page
from dpaudit.vulnerable.text import WIDTH, render_text

from .conftest import SEED, small_spec

pytest.importorskip("torch")


def released(out: Path) -> dict[str, str]:
    texts = {
        p.name: p.read_text(encoding="utf-8")
        for p in (out / "release").rglob("*")
        if p.suffix != ".png" and p.is_file()
    }
    assert {"report.html", "report.json", "report.txt", "bounds.csv", "parting.svg", "rates.svg"} <= set(texts)
    return texts


def test_release_names_no_record_and_no_seed(examined: tuple[Exposure, Path]) -> None:
    found, out = examined
    seeds = {SEED, found.task.ranking_seed, *(s for n in range(3) for s in found.task.training_seeds(n))}
    for name, text in released(out).items():
        assert not re.search(r"digits-\d", text), name
        assert not any(str(seed) in text for seed in seeds), name
        scores = {repr(float(v)) for e in found.levels for r in e.exposed for v in (*r.inside, *r.outside)}
        assert not any(score in text for score in scores), name
        assert str(out) not in text, name
    assert not list((out / "release").rglob("*.safetensors"))


def test_release_is_self_contained(out: Path) -> None:
    page = released(out)["report.html"]
    assert "<script" not in page and not re.search(r'(src|href)="(?!#)', page) and "url(http" not in page
    assert page.count("<svg") == 3


def test_json_is_strict_and_says_all(found: Exposure, out: Path) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in the JSON")

    facts = json.loads(released(out)["report.json"], parse_constant=refuse)
    assert facts == json.loads(json.dumps(document(found)))
    assert facts["schema"] == "dpaudit.vulnerable/1"
    assert (facts["shortlist"], facts["significance"], facts["significance_each"]) == (3, 0.05, 0.05 / 3)
    assert facts["models"] == {"each_level": 64, "set_aside": 16, "tested": 48}
    assert [v["key"] for v in facts["levels"]] == ["non-private", "epsilon-8", "epsilon-1"]
    for level in facts["levels"]:
        assert len(level["shortlist"]) == len(level["drawn_at_random"]) == 3
        for record in level["shortlist"]:
            bound = record["bound"]
            assert (bound["delta"], bound["significance"], bound["adjacency"]) == (1e-5, 0.05 / 3, "add-remove")
            assert bound["method"] and bound["null"] and bound["threshold"] and bound["perfect"] >= bound["epsilon"]
            assert (bound["at_claim"] is None) == (level["key"] == "non-private")
            assert record["tpr"]["low"] <= record["tpr"]["value"] <= record["tpr"]["high"]


def test_csv_has_every_bound(found: Exposure, out: Path) -> None:
    rows = list(csv.DictReader(released(out)["bounds.csv"].splitlines()))
    assert len(rows) == 3 * 2 * 3
    assert [float(r["epsilon"]) for r in rows[:3]] == [r.bound.epsilon for r in found.plain.exposed]
    assert {r["significance"] for r in rows} == {str(0.05 / 3)}


def test_every_printed_epsilon_is_explained(found: Exposure) -> None:
    text = render_text(found)
    for said in ("δ = 1e-5", "95 %", "add-remove", "Clopper–Pearson", "any (ε, δ)-DP mechanism", "Per record, the best",
                 "divided by 3", "All right", "At the claim", "Null run", "blind baseline",
                 "rounded down"):  # fmt: skip
        assert said in re.sub(r"\s+", " ", text), said
    assert all(len(line) <= WIDTH for line in text.splitlines())
    page = release_page(found, dict.fromkeys(draw(found), "<svg></svg>"))
    for sentence in words.sentences(found)[:-2]:
        assert words.tight(sentence) in page.replace("&#39;", "'")


def test_retained_shows_the_records(found: Exposure, out: Path) -> None:
    page = (out / "retained" / "records.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "Not for release" in page
    assert all(found.task.data.ids[row] in page for row in found.rows)
    assert (out / "retained" / "records.png").read_bytes()[:4] == b"\x89PNG"


def test_retained_scores_can_be_bounded_again(found: Exposure, out: Path) -> None:
    for entry in found.levels:
        obs = read_scores(out / "retained" / "scores" / f"{entry.level.key}.safetensors")
        assert np.array_equal(obs.scores, entry.observed.scores) and np.array_equal(obs.member, entry.observed.member)


def test_the_worst_is_marked_only_where_something_is_shown(found: Exposure) -> None:
    shown = sum(entry.worst.bound.epsilon > 0 for entry in found.levels)
    assert release_page(found, dict.fromkeys(draw(found), "<svg></svg>")).count('class="worst"') == shown


def test_a_violation_is_said_loudly(found: Exposure) -> None:
    from dpaudit.records import Verdict

    last = found.levels[-1]
    false = replace(last, audit=replace(last.audit, verdict=Verdict.VIOLATED, reason="the claimed curve is false"))
    loud = replace(found, levels=(*found.levels[:-1], false))
    assert loud.violated and not found.violated
    assert "VIOLATED at ε = 1" in words.verdicts(loud)
    assert words.headline(loud).startswith("VIOLATED") and document(loud)["violated"]
    assert 'class="v-violated"' in release_page(loud, dict.fromkeys(draw(loud), "<svg></svg>"))


def test_histograms_hold_every_score(found: Exposure) -> None:
    for entry in found.levels:
        for record in entry.exposed:
            edges, inside, outside = histogram(record)
            assert len(edges) == len(inside) + 1
            assert inside.sum() == pytest.approx(1.0) and outside.sum() == pytest.approx(1.0)


def test_texts_are_shown_as_texts(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 120)
    x = rng.normal(size=(120, 5)) + y[:, None]
    path = tmp_path / "letters.npz"
    np.savez(path, x=x, y=y, text=np.array([f"letter <{i}> & more" for i in range(120)]))
    found = examine(path, tmp_path / "out", shortlist=2, models=40, epsilons=(8.0,))
    page = (tmp_path / "out" / "retained" / "records.html").read_text(encoding="utf-8")
    number = found.task.data.ids[found.rows[0]].rpartition("-")[2]
    assert f"letter &lt;{number}&gt; &amp; more" in page
    assert "letter &lt;" not in (tmp_path / "out" / "release" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["$x_{$", "so much for $b_x^$ and its like " * 40, "\x07 a\nb $" * 400, "y" * 3000])
def test_names_never_reach_a_formula_renderer(tmp_path: Path, text: str) -> None:
    """Dollar signs in a file's name or texts are no mathematics, and no text is too long for the sheet."""
    rng = np.random.default_rng(3)
    path = tmp_path / "cost$in$.npz"
    y = rng.integers(0, 2, 80)
    np.savez(path, x=rng.normal(size=(80, 3)) + y[:, None], y=y, text=np.array([text] * 80))
    examine(path, tmp_path / "out", shortlist=1, models=40, epsilons=(8.0,))
    assert (tmp_path / "out" / "release" / "report.html").is_file()


def test_the_small_examination_is_what_the_fixture_says(found: Exposure) -> None:
    assert found.task.source.spec == small_spec()
