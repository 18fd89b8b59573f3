"""The facts, figures, page and table of an account: what is drawn is what is known, and nothing hides anything."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from dpaudit.accounting import Claim
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.accounting.ledgers import ledgers, over_steps
from dpaudit.errors import InputError
from dpaudit.report.account_figures import COLOURS, draw_account
from dpaudit.report.account_words import CHARGED_AS_POISSON, headline, shown, warnings
from dpaudit.report.accounts import Account, account_document, account_page, ledgers_csv
from dpaudit.report.figures import FAINT, SHOWN, to_png, to_svg

DELTA = 1e-5
CLAIMS = {
    "dp-sgd": Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=500),
    "one step": Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=1),
    "gaussian": Claim.gaussian(noise_multiplier=4.0, steps=10),
    "replace-one": Claim.gaussian(noise_multiplier=4.0, adjacency="replace-one"),
    "shuffled": Claim.dp_sgd(noise_multiplier=0.6, sampling_rate=0.01, steps=100, sampler="shuffled"),
    "fixed-size": Claim.dp_sgd(noise_multiplier=2.0, sampling_rate=0.05, steps=40, sampler="fixed-size"),
    "laplace": Claim.laplace(noise_multiplier=10.0, steps=4),
    "pair": Claim.pair(epsilon=2.0, delta=1e-6),
    "pair, below its δ": Claim.pair(epsilon=2.0, delta=1e-3),
    "hopeless": Claim.gaussian(noise_multiplier=0.02),
    "hardly anything": Claim.dp_sgd(noise_multiplier=100.0, sampling_rate=1e-5, steps=3),
    "composed": Claim.compose(
        Claim.gaussian(noise_multiplier=9.0), Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=50)
    ),
}


@functools.cache
def facts_of(name: str) -> dict[str, Any]:
    claim = CLAIMS[name]
    return account_document(
        Account(claim=claim, delta=DELTA, ledgers=ledgers(claim, DELTA), by_steps=over_steps(claim, DELTA))
    )


@functools.cache
def figures_of(name: str) -> dict[str, Figure]:
    return draw_account(facts_of(name))


every_claim = pytest.mark.parametrize("name", CLAIMS)


@every_claim
def test_facts_are_strict_json_and_keep_their_order(name):
    facts = facts_of(name)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["schema"] == "dpaudit.account/1"
    assert facts["ledgers"][0]["status"] == "claim"
    assert facts["epsilon"] == facts["ledgers"][0]["epsilon"]
    assert [e["upper_bound"] for e in facts["ledgers"]] == [
        e["status"] in ("claim", "upper bound") for e in facts["ledgers"]
    ]


@every_claim
def test_the_curve_is_the_claim_s_and_the_reference_has_its_epsilon(name):
    facts, claim = facts_of(name), CLAIMS[name]
    curve = facts["curve"]
    fpr = np.array(curve["fpr"])
    np.testing.assert_allclose(curve["fnr"], claim.fnr(fpr), atol=1e-12)
    assert np.all(np.array(curve["fnr"]) <= 1 - fpr + 1e-12)
    if curve["mu"] is None:
        assert facts["epsilon"] in (0.0, "inf") and curve["gaussian_fnr"] is None
    else:
        reference = GaussianCurve(curve["mu"])
        assert float(reference.epsilon(np.asarray(DELTA))) == pytest.approx(facts["epsilon"], rel=1e-6)
        np.testing.assert_allclose(curve["gaussian_fnr"], reference.fnr(fpr), atol=1e-12)


def test_the_reference_of_a_gaussian_is_itself():
    curve = facts_of("gaussian")["curve"]
    assert curve["mu"] == pytest.approx(math.sqrt(10) / 4)
    np.testing.assert_allclose(curve["gaussian_fnr"], curve["fnr"], atol=1e-9)


def test_a_claim_without_steps_has_no_figure_of_steps():
    assert set(figures_of("pair")) == set(figures_of("one step")) == {"trade-off"}
    assert set(figures_of("dp-sgd")) == {"epsilon-by-steps", "trade-off"}


@every_claim
def test_lines_are_the_facts(name):
    facts = facts_of(name)
    if facts["by_steps"] is None:
        return
    (axes,) = figures_of(name)["epsilon-by-steps"].axes
    drawn = {tuple(np.round(line.get_ydata(), 12)) for line in axes.lines if len(line.get_xdata()) > 2}
    for entry in facts["by_steps"]["ledgers"]:
        values = np.array([math.nan if v is None else float(v) for v in entry["epsilon"]])
        if len(values) > 2 and np.isfinite(values).all() and (values > 0).all():
            assert tuple(np.round(values, 12)) in drawn, entry["method"]


@every_claim
def test_every_number_of_the_end_is_labelled_inside_the_figure_and_apart(name):
    facts = facts_of(name)
    if facts["by_steps"] is None:
        return
    figure = figures_of(name)["epsilon-by-steps"]
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    wanted = [e for e in facts["by_steps"]["ledgers"] if e["epsilon"][-1] not in (None, "inf") and e["epsilon"][-1] > 0]
    assert len(boxes) == len(wanted)
    for entry in wanted:
        assert any(f"{entry['method']}  {shown({**entry, 'epsilon': entry['epsilon'][-1]}, 2)}" in t for t in boxes)
    rows = sorted(boxes.values(), key=lambda box: box.y0)
    assert all(above.y0 >= below.y1 - 1 for below, above in pairwise(rows))
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes.values())


def test_what_is_no_bound_is_grey_and_dashed_and_the_claim_is_thick():
    facts = facts_of("dp-sgd")
    (axes,) = figures_of("dp-sgd")["epsilon-by-steps"].axes
    styles = {tuple(line.get_ydata()): line for line in axes.lines if len(line.get_xdata()) > 2}
    for entry in facts["by_steps"]["ledgers"]:
        line = styles[tuple(entry["epsilon"])]
        if entry["status"] == "claim":
            assert to_hex(line.get_color()) == SHOWN and line.get_linewidth() > 2
        elif entry["status"] == "upper bound":
            assert line.get_color() in COLOURS and line.get_linestyle() == "-"
        else:
            assert line.get_color() == FAINT and line.get_linestyle() != "-"
    bounds = [e for e in facts["by_steps"]["ledgers"] if e["status"] == "upper bound"]
    assert len({styles[tuple(e["epsilon"])].get_color() for e in bounds}) == len(bounds)


def luminance(colour: str) -> float:
    """Of sRGB, by the definition of WCAG."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*COLOURS, SHOWN, FAINT])
def test_labels_can_be_read_on_white(colour):
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


@every_claim
def test_figures_are_the_same_again_and_well_formed(name):
    for figure, again in zip(figures_of(name).values(), draw_account(facts_of(name)).values(), strict=True):
        text = to_svg(figure)
        assert text == to_svg(again)
        ET.fromstring(text)
        assert to_png(figure).startswith(b"\x89PNG")


@every_claim
def test_the_page_is_self_contained_and_says_every_ledger(name):
    facts = facts_of(name)
    page = account_page(facts, {n: to_svg(f) for n, f in figures_of(name).items()})
    assert not re.search(r"<(script|link|iframe|object|embed|img|base)\b", page)
    assert "http" not in page and "@import" not in page and not re.search(r"url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    flat = page.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'").replace("&amp;", "&")
    for entry in facts["ledgers"]:
        assert entry["method"] in flat and entry["source"] in flat and entry["note"] in flat
        assert f">{shown(entry)}" in flat
    assert headline(facts) in flat
    assert facts["words"] in flat


@every_claim
def test_the_table_is_the_ledgers(name):
    facts = facts_of(name)
    rows = list(csv.DictReader(io.StringIO(ledgers_csv(facts))))
    assert len(rows) == len(facts["ledgers"])
    for row, entry in zip(rows, facts["ledgers"], strict=True):
        assert row["method"] == entry["method"] and row["note"] == entry["note"]
        assert row["epsilon"] == ("" if entry["epsilon"] is None else str(entry["epsilon"]))


def test_digits_are_rounded_to_the_side_on_which_they_stay_true():
    above, below = {"status": "upper bound"}, {"status": "lower bound"}
    assert shown({**above, "epsilon": 2.383401}) == "2.3835"
    assert shown({**below, "epsilon": 2.38399}) == "2.3839"
    assert shown({"status": "estimate", "epsilon": 2.3836}, 2) == "2.38"
    assert shown({**above, "epsilon": 14_063.2}) == "14,064"
    assert shown({**above, "epsilon": "inf"}) == "∞"
    assert shown({**above, "epsilon": None}) == "–"


def test_what_a_reader_must_not_miss():
    assert warnings(facts_of("dp-sgd")) == []
    bracket, mistake = warnings(facts_of("shuffled"))
    assert "only a bracket of ε is known" in bracket
    said = re.fullmatch(
        r"Charging shuffled batches as Poisson batches is a mistake: "
        r"it would report ε = (.*) where at least (.*) is spent",
        mistake,
    )
    assert said is not None
    assert float(said[1]) == pytest.approx(3.82, abs=0.01)  # the reference's table for 100 batches: 3.82 and 8.00
    assert 7.99 <= float(said[2]) <= 8.005
    (sentence,) = warnings(facts_of("fixed-size"))
    assert "replace-one and add-remove" in sentence and "not the same promise" in sentence


def test_headlines():
    assert headline(facts_of("gaussian")).startswith("ε ≤ ")
    assert headline(facts_of("gaussian")).endswith("at δ = 1e-5 (add-remove), by exact Gaussian")
    assert re.fullmatch(
        r"ε is between \d+\.\d{4} and \d+\.\d{4} at δ = 1e-5 \(zero-out\); the claim is the upper end, by .+",
        headline(facts_of("shuffled")),
    )


def test_a_number_that_is_none_is_refused_not_drawn():
    claim = CLAIMS["pair"]
    with pytest.raises(InputError, match="NaN"):
        account_document(Account(claim=claim, delta=DELTA, ledgers=[type(ledgers(claim, DELTA)[0])(
            "m", math.nan, DELTA, "claim", claim.adjacency, "s")]))  # fmt: skip


def test_a_mistake_without_a_number_is_not_quoted():
    claim = Claim.dp_sgd(noise_multiplier=1e-40, sampling_rate=0.01, steps=100, sampler="shuffled")
    facts = account_document(Account(claim=claim, delta=DELTA, ledgers=ledgers(claim, DELTA)))
    (charged,) = [e for e in facts["ledgers"] if e["method"] == CHARGED_AS_POISSON]
    assert (charged["epsilon"], charged["status"]) == (None, "not valid here")
    assert [sentence for sentence in warnings(facts) if "mistake" in sentence] == []
    assert len(headline(facts)) < 150
