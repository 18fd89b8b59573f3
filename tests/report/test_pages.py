"""report.html, report.txt and the figures: content, self-containment, the same digits as report.json."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import Claim
from dpaudit.auditor import audit
from dpaudit.records import Observations, RunResult
from dpaudit.report import document, figures
from dpaudit.report.html import html_page
from dpaudit.report.text import text_page


class Tables(HTMLParser):
    """Cells of every table by class, and all tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append((dict(attrs).get("class") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag == "td":
            self.tables[-1][1][-1].append("")
        self.inside = tag == "td" or (self.inside and tag in ("br", "span", "a", "small"))

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "td"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][1][-1][-1] += data

    def rows(self, name: str) -> list[list[list[str]]]:
        return [[row for row in rows if row] for kind, rows in self.tables if kind == name]


@pytest.fixture(scope="module")
def page(release: Path) -> str:
    return (release / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(page: str) -> Tables:
    tables = Tables()
    tables.feed(page)
    return tables


def test_html_is_self_contained(page: str, parsed: Tables) -> None:
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "base"}
    for tag, attributes in parsed.tags:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "http" not in page and "@import" not in page and not re.search(r"url\((?!#)", page)


def test_ids_are_unique_and_links_have_a_target(parsed: Tables) -> None:
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {(a.get("href") or a.get("xlink:href") or "")[1:] for _, a in parsed.tags} - {""}
    assert targets <= set(ids)


def test_first_screen_says_what_it_must(page: str, facts: dict[str, Any]) -> None:
    first = page[page.index("<main>") : page.index('<section class="trainer"')]
    for words in (facts["headline"], "Every verdict is as expected.", "Confidence 95 %", "δ = 1e-5", "not proof that",
                  "holds only if the code is the claimed recipe", "Not tested", "CONSISTENT", "VIOLATED", "NO CLAIM",
                  "claimed ≤ 4.01, refuted", "ceiling at the claim", *facts["not_tested"]):  # fmt: skip
        assert words in first, words


def test_bounds_in_html_are_those_in_json(parsed: Tables, facts: dict[str, Any]) -> None:
    tables = parsed.rows("bounds")
    assert len(tables) == len(facts["audits"])
    for rows, entry in zip(tables, facts["audits"], strict=True):
        assert len(rows) == len(entry["bounds"])
        for row, bound in zip(rows, entry["bounds"], strict=True):
            same_bound(row, bound)


def same_bound(row: list[str], bound: dict[str, Any]) -> None:
    epsilon, delta, confidence, method, adjacency, threshold, counts, perfect, at_claim = row
    for shown, value in ((epsilon, bound["epsilon"]), (perfect, bound["perfect"]), (at_claim, bound["at_claim"])):
        assert shown == "–" if value is None else -1e-9 <= value - float(shown) < 0.001
    assert float(delta) == bound["delta"]
    assert float(confidence.removesuffix(" %")) == pytest.approx(100 * (1 - bound["significance"]))
    assert method.startswith(bound["method"] + bound["null"]) and adjacency == bound["adjacency"]
    assert ("holds only if" in method) is not bound["any_mechanism"]
    assert threshold == bound["threshold"]
    keys = ("correct", "made", "guesses", "coins")
    assert [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", counts)] == [bound["counts"][k] for k in keys]


def test_findings_in_html_are_those_in_json(parsed: Tables, facts: dict[str, Any]) -> None:
    judged = [entry for entry in facts["audits"] if entry["findings"]]
    for rows, entry in zip(parsed.rows("findings"), judged, strict=True):
        for row, finding in zip(rows, entry["findings"], strict=True):
            seen = [float(cell.removesuffix(" %")) / 100 for cell in row[-3:]]
            wanted = [finding["rates"]["fpr"], finding["rates"]["fnr"], finding["curve_fnr"]]
            assert seen == pytest.approx(wanted, abs=0.51e-4)
            assert finding["corrected_p_value"] <= float(row[4]) <= 1.1 * finding["corrected_p_value"]


def test_text_report(release: Path, facts: dict[str, Any]) -> None:
    content = (release / "report.txt").read_text(encoding="utf-8")
    flat = " ".join(content.split())
    assert max(map(len, content.splitlines())) <= 100
    recipe = "holds only if the code is the claimed recipe"
    for words in (facts["headline"], "Not tested", "not proof that", facts["command"], "VIOLATED (the claim is false)",
                  "the claim allows no less than", recipe, "commit 0123abcd", *facts["not_tested"]):  # fmt: skip
        assert words in flat, words
    for entry in facts["audits"]:
        assert content.count(f"\n{entry['name']}: ") == 1
    assert content.count("  bound  ε ≥") == sum(len(entry["bounds"]) for entry in facts["audits"])


def with_audits(result: RunResult, *entries: Any) -> RunResult:
    return replace(result, audits=entries)


def draw(result: RunResult) -> tuple[str, str, dict[str, str]]:
    facts = document(result)
    svgs = {name: figures.to_svg(figure) for name, figure in figures.draw(result, facts).items()}
    return html_page(facts, svgs), text_page(facts), svgs


def test_infinite_values_are_shown_as_such(result: RunResult) -> None:
    entry = result.audits[1]
    endless = replace(
        entry.audit, upper=math.inf, lower_if_recipe=math.inf,
        bounds=tuple(replace(b, perfect=math.inf, at_claim=math.inf) for b in entry.audit.bounds),
    )  # fmt: skip
    page, plain, svgs = draw(with_audits(result, replace(entry, audit=endless)))
    assert "claimed ≤ ∞" in svgs["epsilon"] and "≤ ∞" in page and "∞" in plain
    assert "nan" not in svgs["epsilon"].lower() and "inf" not in svgs["epsilon"].lower()


def test_names_are_escaped(result: RunResult) -> None:
    hostile = "<script>alert('$x^$')</script> & co"
    entry = result.audits[0]
    page, _, svgs = draw(with_audits(result, replace(entry, audit=replace(entry.audit, name=hostile))))
    assert "<script" not in page and "&lt;script&gt;" in page
    for svg in svgs.values():
        ET.fromstring(svg)


def test_two_worlds_and_a_trainer_without_observations(result: RunResult) -> None:
    rng = np.random.default_rng(2)
    obs = Observations.from_worlds(rng.normal(4, 1, 300), rng.normal(0, 1, 250))
    judged = audit(obs, Claim.pair(epsilon=0.5, delta=1e-5), delta=1e-5, name="worlds")
    entry = replace(result.audits[1], audit=judged, observations={"canary": obs}, cross={})
    page, plain, svgs = draw(with_audits(result, entry, replace(entry, observations={}, cross={})))
    assert "members missed" in page and "false alarms on" in " ".join(plain.split())
    assert set(svgs) == {"epsilon", "1-worlds-scores", "1-worlds-roc"}


def test_figures_draw_no_mark_per_score(result: RunResult, release: Path) -> None:
    scores = min(obs.coins for entry in result.audits for obs in entry.observations.values())
    for path in (release / "figures").glob("*.svg"):
        root = ET.fromstring(path.read_text(encoding="utf-8"))
        marks = [e for e in root.iter() if e.tag.endswith("}use")]
        points = [len(re.findall(r"[ML] ", e.get("d", ""))) for e in root.iter() if e.tag.endswith("}path")]
        assert len(marks) < scores / 10 and max(points) < scores / 2, path.name


def test_file_names_are_safe() -> None:
    assert figures.file_name(0, "../../Etc Passwd") == "1-etc-passwd"
    assert figures.file_name(1, "ε") == "2"
    assert len(figures.file_name(2, "x" * 500)) <= 60
