"""An account as text: what `dpaudit account` prints and `account.txt` holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..report import wording as w
from ..report.account_words import STATUSES, about_claim, beside, conditions, headline, shown, warnings
from .console import drawn_table
from .drawing import Axis, Line, chart

Facts = Mapping[str, Any]
GLYPHS = "●abcdefghijkl"
# A line that ends further above the claim than this is not drawn: it would squeeze all others together.
_FARTHEST = 20.0


def account_text(facts: Facts, width: int, sources: bool = False) -> str:
    """The account in words, tables and charts.

    Args:
        facts: an :func:`~dpaudit.report.accounts.account_document`.
        width: of the terminal, in characters.
        sources: whether the ledgers' sources are printed too.
    """
    parts = [_opening(facts), _ledgers(facts, width), *_notes(facts, sources)]
    parts += [_by_steps(facts, width)] if facts["by_steps"] else []
    parts += [_trade_off(facts, width), _tuning(facts, width)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(facts: Facts) -> str:
    how = f": {facts['sampler']['words']}" if facts["sampler"] else ""
    lines = [headline(facts), *beside(facts)]
    lines += [f"{facts['words']}{how}", f"neighbours {facts['adjacency']}: {_relation(facts['adjacency'])}"]
    return "\n".join([*lines, *facts["given"], *(f"note: {sentence}" for sentence in warnings(facts))])


def _relation(adjacency: str) -> str:
    sentence = w.ADJACENCIES[adjacency].split(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:]


def _ledgers(facts: Facts, width: int) -> str:
    rows = [
        (
            entry["method"],
            shown(entry) + ("" if entry["delta"] == facts["delta"] else f" at δ = {w.delta(entry['delta'])}"),
            STATUSES[entry["status"]],
            entry["adjacency"],
        )
        for entry in facts["ledgers"]
    ]
    return drawn_table(("ledger", f"ε at δ = {w.delta(facts['delta'])}", "is", "neighbours"), rows, width)


def _notes(facts: Facts, sources: bool) -> list[str]:
    notes = [f"{e['method']}: {e['note']}" for e in facts["ledgers"] if e["note"]]
    from_where = [f"{e['method']}: {e['source']}" for e in facts["ledgers"]] if sources else []
    return ["\n".join(lines) for lines in (notes, from_where) if lines]


def _by_steps(facts: Facts, width: int) -> str:
    by_steps = facts["by_steps"]
    lines, out_of_sight = [], []
    glyphs = iter(GLYPHS)
    for entry in by_steps["ledgers"]:
        values = [math.nan if v is None else w.number(v) for v in entry["epsilon"]]
        last = values[-1]
        if math.isnan(last):  # says nothing of the whole run, and why stands in the table
            continue
        end = shown({**entry, "epsilon": entry["epsilon"][-1]}, 2)
        if entry["status"] != "claim" and not last <= _FARTHEST * w.number(facts["epsilon"]):
            out_of_sight.append(f"{entry['method']} {end}")
            continue
        lines.append(Line(next(glyphs), f"{entry['method']} {end}", by_steps["steps"], values))
    what = f"ε at δ = {w.delta(facts['delta'])} against steps, {facts['adjacency']} (both axes logarithmic)"
    drawn = chart(lines, Axis("steps", log=True), Axis(what, log=True), width=min(60, max(width - 50, 30)))
    if not drawn:
        return ""
    return drawn + (f"\nfarther up, not drawn: {', '.join(out_of_sight)}" if out_of_sight else "")


def _trade_off(facts: Facts, width: int) -> str:
    curve = facts["curve"]
    fpr = curve["fpr"]
    lines = [Line("●", about_claim(facts), fpr, curve["fnr"])]
    if curve["mu"] is not None:
        lines.append(Line("○", f"{curve['mu']:.3g}-GDP, the same ε at this δ", fpr, curve["gaussian_fnr"]))
    lines.append(Line("·", "perfect privacy: guessing", [0, 1], [1, 0]))
    x, y = Axis("false positive rate"), Axis("least false negative rate of any attack (0 everywhere: no privacy)")
    rows = [(f"{point['fpr']:g}", w.at_least(point["fnr"], 4)) for point in facts["trade_off"]]
    columns = ("false positive rate", "false negative rate of any attack is at least")
    drawn = chart(lines, x, y, width=min(60, max(width - 50, 30)))
    return f"{drawn}\n\n{drawn_table(columns, rows, width)}"


def _tuning(facts: Facts, width: int) -> str:
    costs = facts["tuning"]
    if not costs:
        return ""
    columns = ("releasing the best of", "method", f"ε at δ = {w.delta(facts['delta'])}", "one run", "is")
    rows = [
        (
            cost["runs"],
            cost["method"],
            w.at_most(cost["epsilon"], 4),
            w.at_most(cost["base_epsilon"], 4),
            cost["status"],
        )
        for cost in costs
    ]
    head = f"what tuning costs ({facts['adjacency']}; an ε of one run is by the same method)"
    return "\n".join([head, drawn_table(columns, rows, width), "", *conditions(costs)])
