"""Words and digits of an account: its headline, what a reader must not miss, numbers rounded to their safe side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import wording

UPPER_BOUNDS = ("claim", "upper bound")
CHARGED_AS_POISSON = "charged as Poisson batches"
STATUSES = {
    "claim": "the claim: the tightest upper bound",
    "upper bound": "an upper bound, rounded up",
    "lower bound": "a lower bound, rounded down",
    "estimate": "an estimate; never a claim",
    "not a bound": "not a bound",
    "not valid here": "not valid here",
}

EXTREMES = {
    "noise_multiplier": ("noise multiplier", "the smallest"),
    "steps": ("number of steps", "the most"),
    "sampling_rate": ("sampling rate", "the largest"),
}

SAMPLERS = {
    "poisson": "every record joins every batch by a coin of its own",
    "full-batch": "every record is in every batch",
    "fixed-size": "every batch is drawn without replacement",
    "shuffled": "every epoch the records are permuted and cut into batches",
    "balls-and-bins": "every epoch every record joins one batch, drawn at random",
}


def headline(facts: Mapping[str, Any]) -> str:
    """What the account says, in one sentence; a setting that was solved for comes first."""
    at, method = f"at δ = {wording.delta(facts['delta'])} ({facts['adjacency']})", facts["ledgers"][0]["method"]
    if facts["calibration"]:
        solved = facts["calibration"]
        name, most = EXTREMES[solved["parameter"]]
        value = f"{solved['value']:,.0f}" if solved["parameter"] == "steps" else f"{solved['value']:g}"
        return (
            f"{name} {value} gives ε = {_claimed(solved['epsilon'])} {at} by {method}: "
            f"{most} for ε ≤ {solved['target']:g}{_within(solved)}"
        )
    if facts["epsilon"] == "inf":
        return f"no finite ε {at}, by {method}"
    if facts["bracket"]:
        low = shown({"status": "lower bound", "epsilon": facts["bracket"]["lower"]})
        return f"ε is between {low} and {_claimed(facts['epsilon'])} {at}; the claim is the upper end, by {method}"
    return f"ε ≤ {_claimed(facts['epsilon'])} {at}, by {method}"


def _claimed(epsilon: Any, digits: int = 4) -> str:
    return shown({"status": "claim", "epsilon": epsilon}, digits)


def about_claim(facts: Mapping[str, Any]) -> str:
    """The label of the claim's own line."""
    return f"the claim, ε = {_claimed(facts['epsilon'], 2)}"


def _within(solved: Mapping[str, Any]) -> str:
    return "" if solved["parameter"] == "steps" else f", to {100 * solved['tolerance']:g} % of ε"


def beside(facts: Mapping[str, Any]) -> list[str]:
    """The other ways to solve for what was solved for."""
    found = facts["calibration"]["beside"] if facts["calibration"] else []
    values = ["" if o["value"] is None else f"noise multiplier {o['value']:.6g}, " for o in found]
    return [f"{other['method']}: {value}{other['note']}" for other, value in zip(found, values, strict=True)]


def warnings(facts: Mapping[str, Any]) -> list[str]:
    """What a reader must not miss."""
    out = []
    if facts["settings"].get("sampler") == "shuffled":
        out.append("Of shuffled batches only a bracket of ε is known")
    out += _mistake(facts)
    relations = list(dict.fromkeys(entry["adjacency"] for entry in facts["ledgers"]))
    if len(relations) > 1:
        out.append(f"Rows are about different neighbours ({' and '.join(relations)}): their ε are not the same promise")
    if facts["precision"]["limited"]:
        out.append(f"The claim's ε is limited by its grid: {facts['precision']['note']}")
    return out


def shown(entry: Mapping[str, Any], digits: int = 4) -> str:
    """A ledger's ε in digits: an upper bound rounded up, a lower bound down, all else to the nearest.

    >>> shown({"status": "upper bound", "epsilon": 12345.6}), shown({"status": "estimate", "epsilon": 2.0004})
    ('12,346', '2.0004')
    >>> shown({"status": "upper bound", "epsilon": 1.23401e17})
    '1.2341e+17'
    """
    epsilon, status = entry["epsilon"], entry["status"]
    if epsilon is None or epsilon in ("inf", np.inf):
        return wording.at_most(epsilon)
    towards = wording.at_most if status in UPPER_BOUNDS else wording.at_least if status == "lower bound" else None
    if epsilon >= 1e9:
        size = 10.0 ** math.floor(math.log10(epsilon))
        return f"{wording.number(towards(epsilon / size, digits)) * size if towards else epsilon:.{digits}e}"
    digits = digits if epsilon < 1000 else 0
    return f"{wording.number(towards(epsilon, digits)) if towards else epsilon:,.{digits}f}"


def _mistake(facts: Mapping[str, Any]) -> list[str]:
    """How much charging the run as Poisson batches would hide, if it would."""
    charged = [
        e for e in facts["ledgers"] if e["method"] == CHARGED_AS_POISSON and e["adjacency"] == facts["adjacency"]
    ]
    lower = facts["bracket"] and facts["bracket"]["lower"]
    if lower is None or not charged or charged[0]["epsilon"] is None or not charged[0]["epsilon"] < lower:
        return []
    least = shown({"status": "lower bound", "epsilon": lower})
    name = facts["sampler"]["name"]
    return [
        f"Charging {name} batches as Poisson batches is a mistake: "
        f"it would report ε = {shown(charged[0])} where at least {least} is spent"
    ]


def conditions(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of tuning costs, each condition once, with the number of runs or the methods that it is about."""
    about: dict[str, list[Mapping[str, Any]]] = {}
    for cost in costs:
        for condition in cost["note"].split("; "):
            about.setdefault(condition, []).append(cost)
    groups: dict[str, list[str]] = {}
    for condition, concerned in about.items():
        runs = dict.fromkeys(cost["runs"] for cost in concerned)
        methods = dict.fromkeys(cost["method"] for cost in concerned)
        names = [*methods, *runs] if len(concerned) == 1 else runs if len(runs) == 1 else methods
        groups.setdefault(", ".join(names), []).append(condition)
    return [f"{names}: {'; '.join(said)}" for names, said in groups.items()]
