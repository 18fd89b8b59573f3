"""Words and digits of a report. Numbers are rounded to the side on which they stay true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]

VERDICTS = {
    "violated": ("VIOLATED", "the claim is false", "✗"),
    "consistent": ("CONSISTENT", "no violation found, with enough power to see one", "✓"),
    "underpowered": ("UNDERPOWERED", "this audit could not have caught even twice the claim", "?"),
    "no_claim": ("NO CLAIM", "nothing to judge; the attack shows what leaks", "–"),
}

THREAT_MODELS = {
    "black-box": "The attacker sees the outputs of the final model on records of its choice, and nothing else.",
    "final-model": "The attacker sees the parameters of the final model, but nothing of the training.",
    "iterates": "The attacker sees every update that training releases, which is what DP-SGD's analysis grants it.",
}

ADJACENCIES = {
    "add-remove": "Neighbouring data sets differ by one record that is there or not there.",
    "replace-one": "Neighbouring data sets differ in one record that is exchanged for another. "
    "One such step counts as two of add-or-remove.",
    "zero-out": "Neighbouring data sets differ in one record that is there or is replaced by a null record.",
}

COINS = {
    "fair": "Every canary is in or out by an independent fair coin, flipped anew in every run.",
    "fixed": "Fixed numbers of canaries are in and out, at random; one-run bounds thin them to fair coins first.",
    "worlds": "Whole runs are made with and without the one canary.",
    "unknown": "How membership was decided is unknown. Every bound is conditional on fair coins; there is no verdict.",
}

CALIBRATION = {
    "none": "A score depends on its own run alone.",
    "set-aside": "The attack was calibrated on runs set aside, whose coins are not tested.",
    "cross": "Scores depend on the coins of other tested runs; no bound is valid for that.",
}

GLOSSARY = (
    ("ε (epsilon)", "How much one record may change what training releases, in nats. At ε = 1 an attacker's odds that "
     "the record was there may grow by a factor of e ≈ 2.7, at ε = 4 by 55. 0 is perfect privacy."),
    ("δ (delta)", "The probability mass that the ε guarantee may miss. An ε without its δ says nothing."),
    ("Claim", "What the trainer promises: a curve of ε over δ, computed by an accountant from its settings, and with "
     "it the smallest false negative rate that any attacker can have at each false positive rate."),
    ("Lower bound", "The ε that this attack shows. A mechanism with less than that would have let the attack succeed "
     "so well only with the stated error probability. It is no proof that nothing more leaks."),
    ("Lower bound under the recipe", "A tighter bound that holds only if the code is the recipe that the claim names "
     "(noise of that family, in those steps). It can't refute a claim by itself, and code that does "
     "something else may leak less than it says."),
    ("Canary", "An extra record made to be found. Each is in the training set or absent from it by chance, and the "
     "attack must say which."),
    ("Ceiling, all right", "The bound if every guess had been right: the most that so many guesses can ever show."),
    ("Ceiling at the claim", "The median bound of the best possible attacker on a mechanism that leaks exactly the "
     "claim. A bound well below it is a weak attack or a mechanism that leaks less."),
    ("Power", "The probability that this design would have rejected a mechanism that leaks twice the claim, with ideal "
     "scores. Computed before scores are seen. Below 0.8 the audit is called underpowered."),
    ("p-value", "The probability, if the claim is true, of an attack at least as successful as this one. Several tests "
     "share one error probability: each p-value is divided by the test's share (weighted Bonferroni)."),
    ("FPR, FNR, TPR", "False positive rate: the share of absent canaries that the attack calls members. False negative "
     "rate: the share of members that it misses. True positive rate: 1 − FNR."),
    ("VIOLATED", "The claimed curve is rejected for any mechanism, at the stated error probability."),
    ("CONSISTENT", "No violation was found although twice the claim would have been caught with probability "
     "0.8 or more."),
)  # fmt: skip

NOT_PROOF = (
    "A lower bound is what this attack shows. It is not proof that no more leaks: a better attack, other canaries or "
    "more runs may show more."
)
IF_RECIPE = "holds only if the code is the claimed recipe"


def number(value: float | str) -> float:
    """A number of a document, infinity included.

    >>> number("inf"), number(1.5)
    (inf, 1.5)
    """
    return float(value)


def at_least(value: float | str | None, digits: int = 2) -> str:
    """A lower bound, rounded down.

    >>> at_least(3.999), at_least("inf"), at_least(None)
    ('3.99', '∞', '–')
    """
    return _rounded(value, digits, math.floor, 1e-9)


def at_most(value: float | str | None, digits: int = 2) -> str:
    """An upper bound, rounded up.

    >>> at_most(3.991), at_most(4.0)
    ('4.00', '4.00')
    """
    return _rounded(value, digits, math.ceil, -1e-9)


def _rounded(value: float | str | None, digits: int, side: Any, slack: float) -> str:
    if value is None:
        return "–"
    if math.isinf(number(value)):
        return "∞"
    scale = 10**digits
    return f"{side(number(value) * scale + slack) / scale:.{digits}f}"


def p_value(value: float | None) -> str:
    """A p-value to two digits, rounded up.

    >>> p_value(0.000341), p_value(1.0), p_value(1e-30)
    ('0.00035', '1', '1e-30')
    """
    if value is None:
        return "–"
    if value <= 0:
        return "0"
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{min(math.ceil(value / scale - 1e-6) * scale, 1.0):.2g}"


def delta(value: float) -> str:
    """A δ.

    >>> delta(1e-5), delta(0.0)
    ('1e-5', '0')
    """
    return f"{value:g}".replace("e-0", "e-")


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage, to the nearest.

    >>> percent(0.94881), percent(None)
    ('94.9 %', '–')
    """
    return "–" if value is None else f"{value:.{digits}%}".replace("%", " %")


def confidence(error: float) -> str:
    """1 − ``error`` as a percentage, with the digits that it needs; ``error`` is a significance.

    >>> confidence(0.05), confidence(0.0005), confidence(0.1 / 3)
    ('95 %', '99.95 %', '96.67 %')
    """
    digits = 2 if error > 0.001 else 2 - math.floor(math.log10(error) + 3)
    return f"{100 * (1 - error):.{digits}f}".rstrip("0").rstrip(".") + " %"


def plain_number(value: float | None) -> str:
    """A number where no side is safer: whole numbers with separators, else three digits."""
    if value is None:
        return "–"
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.3g}"


def counts(values: Mapping[str, float]) -> str:
    """What a bound counted, in words.

    >>> counts({"coins": 6000, "guesses": 500, "made": 498, "correct": 489})
    '489 right of 498 made; 500 planned; 6,000 coins'
    """
    if "correct" in values:
        right, made, planned, coins = (plain_number(values[k]) for k in ("correct", "made", "guesses", "coins"))
        return f"{right} right of {made} made; {planned} planned; {coins} coins"
    if "missed" in values:
        missed, members, alarms, others = (
            plain_number(values[k]) for k in "missed members false_alarms others".split()
        )
        tests = f"; best of {plain_number(values['tests'])}" if values.get("tests", 1) > 1 else ""
        return f"{missed} of {members} members missed; {alarms} false alarms on {others} others{tests}"
    return "; ".join(f"{key} {plain_number(value)}" for key, value in values.items())


def settings(values: Mapping[str, Any]) -> str:
    """Settings by name on one line."""
    return ", ".join(f"{key.replace('_', ' ')} {_setting(value)}" for key, value in values.items())


def _setting(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return f"({settings(value)})"
    return " × ".join(map(str, value)) if isinstance(value, list) else str(value)


def leading(audit: Facts) -> Facts | None:
    """The bound that ``lower`` comes from: the largest that holds for any mechanism; None where there is none."""
    valid = [b for b in audit["bounds"] if b["any_mechanism"]]
    return max(valid, key=_lead, default=None)


def _lead(bound: Facts) -> tuple[float, float, float]:
    ceiling = bound["at_claim"]
    return number(bound["epsilon"]), -1.0 if ceiling is None else number(ceiling), number(bound["perfect"])


def headline(audits: Sequence[Facts]) -> str:
    """The verdict of a whole run in one plain sentence."""
    claimed = [a for a in audits if a["claim"] is not None]
    free = [a for a in audits if a["claim"] is None]
    said = [_about_claims(claimed)] if claimed else []
    if free:
        shown = " and ".join(f"ε of at least {at_least(a['lower'])} on {a['name']}" for a in free)
        said.append(f"{'without a claim,' if claimed else 'No claim was made;'} the attack shows {shown}")
    return "; ".join(said) + "."


def _about_claims(audits: Sequence[Facts]) -> str:
    if len(audits) == 1:
        return _about_one(audits[0])
    groups = [
        (violated_not_expected(audits), "is false", "are false"),
        (violated_expected(audits), "is false as expected", "are false as expected"),
        (_with(audits, "consistent"), "is consistent with the attack", "are consistent with the attack"),
        (_with(audits, "underpowered"), "can't be judged", "can't be judged"),
    ]
    said = [_group(found, one, many) for found, one, many in groups if found]
    return f"Of {len(audits)} claims, " + (", ".join(said[:-1]) + " and " if len(said) > 1 else "") + said[-1]


def _group(audits: Sequence[Facts], one: str, many: str) -> str:
    names = f" ({'; '.join(a['name'] for a in audits)})" if len(audits) <= 3 else ""
    return f"{len(audits)} {one if len(audits) == 1 else many}{names}"


def _about_one(audit: Facts) -> str:
    promise = f"The claim of {audit['name']} (ε ≤ {at_most(audit['upper'])} at δ = {delta(audit['delta'])})"
    return {
        "violated": f"{promise} is false" + (", as expected" if audit["expect"] == "violated" else ""),
        "consistent": f"{promise} is consistent with the attack: twice its ε would have been caught",
        "underpowered": f"{promise} can't be judged by this audit",
    }.get(audit["verdict"], f"{promise} was not judged")


def _with(audits: Sequence[Facts], verdict: str) -> list[Facts]:
    return [a for a in audits if a["verdict"] == verdict]


def violated_expected(audits: Sequence[Facts]) -> list[Facts]:
    """Those whose claim is false and was said to be."""
    return [a for a in _with(audits, "violated") if a["expect"] == "violated"]


def violated_not_expected(audits: Sequence[Facts]) -> list[Facts]:
    """Those whose claim is false and nobody said so."""
    return [a for a in _with(audits, "violated") if a["expect"] != "violated"]


def expectation(facts: Facts) -> str:
    """Whether the run ended as its spec expects, in one sentence."""
    surprises = [a for a in facts["audits"] if not a["as_expected"]]
    if not surprises:
        named = any(a["expect"] for a in facts["audits"])
        return "Every verdict is as expected." if named else "No claim was found to be false."
    return "Not as expected: " + "; ".join(
        f"{a['name']} is {VERDICTS[a['verdict']][0]}"
        + (f", expected {VERDICTS[a['expect']][0]}" if a["expect"] else "")
        for a in surprises
    ) + "."  # fmt: skip


def levels(facts: Facts) -> str:
    """Confidence and δ of the bounds on the first screen, and the error probability of the run."""
    errors = sorted({a["error_probability"] for a in facts["audits"]})
    deltas = sorted({a["delta"] for a in facts["audits"]})
    each = " or ".join(confidence(e) for e in errors)
    at = " or ".join(delta(d) for d in deltas)
    family = at_most(100 * facts["error_probability"]).rstrip("0").rstrip(".")
    return (
        f"Confidence {each} for each trainer, δ = {at}. The probability that this run calls any true claim false is at "
        f"most {family} %."
    )
