"""The sentences of an inference, the same in text, page and JSON."""

from __future__ import annotations

from ..attacks.controls import NullDecision, Spread
from ..attacks.metrics import Area, Decision, Measures, Point, Rate, Share, Slice
from ..report import wording as w
from .outcome import AttackResult, Inference

UNRESOLVED = "not resolvable"

GLOSSARY = (
    ("AUC", "The probability that a random member scores above a random non-member, equal scores counting half; 0.5 is "
     "guessing. It says little about the few records that are exposed most: look at low false positive rates."),
    ("TPR at FPR", "The share of members that a threshold finds which calls at most so many non-members members. The "
     "threshold is that of these very non-members; thresholds from elsewhere have a table of their own."),
    ("Advantage", "TPR − FPR at one threshold; balanced accuracy is (1 + advantage) / 2. The best over all thresholds "
     "was chosen on these records and is above 0 even where there is nothing to find."),
    ("PPV", "Of those called members, the share that are, if the stated share (the prior) of those asked about are."),
    ("Null", "The same attack on the same records with membership shuffled: the mean, and the range of 95 % of the "
     "shuffles. A number inside that range is what luck gives."),
    ("Blind baseline", "Classifiers that see features and labels but never the model. If they can tell members from "
     "non-members, then the two were drawn differently, and so can an attack, whatever the model gives away."),
)  # fmt: skip


def headline(found: Inference) -> str:
    """The outcome in one or two sentences; a biased split comes before anything else."""
    if found.biased:
        return f"The split is biased: {_told(found)} {_best(found)} That may be the split and not the model."
    return _best(found)


def _told(found: Inference) -> str:
    if not found.biased_records or found.baseline is None:
        return f"the shadows' membership tells the target's (p = {w.p_value(found.shadow_split)})."
    return (
        f"members can be told from non-members without the model ({found.baseline.classifier}, AUC "
        f"{found.baseline.auc:.3f}, p = {w.p_value(found.baseline.p_value)})."
    )


def _best(found: Inference) -> str:
    count, findings = len(found.results), found.findings
    if not findings:
        return (
            f"None of {_many(count, 'attack')} tells members from non-members beyond luck "
            f"({_many(len(found.tests), 'test')} at {w.confidence(found.significance)} together)."
        )
    with_some = [r for r in found.results if found.found(r.attack.name)]
    best = max(with_some, key=lambda r: r.measures.area.value)
    at = [p for p in best.measures.points if p.tpr is not None and p.fpr > 0]
    low = f", TPR {w.percent(at[-1].tpr.value)} at FPR {fpr(at[-1].fpr)}" if at and at[-1].tpr is not None else ""
    return (
        f"{len(with_some)} of {_many(count, 'attack')} {'tells' if len(with_some) == 1 else 'tell'} members from "
        f"non-members beyond luck; the highest AUC is {best.measures.area.value:.3f} ({best.attack.title}{low})."
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def baseline(found: Inference) -> str:
    """What the blind baseline found, or why there is none."""
    if found.baseline is None:
        return f"There is no blind baseline, so nothing here shows that the split is fair. {found.baseline_note}"
    base = found.baseline
    seen = f"Classifiers that saw {base.seen} and not the model predicted {base.records:,} records"
    aucs = ", ".join(f"{name} {value:.3f}" for name, value in base.aucs.items())
    p = f"p = {w.p_value(base.p_value)}, exact, corrected for {_many(len(base.aucs), 'classifier')}"
    if base.biased:
        return (
            f"{seen} better than luck (AUC: {aucs}; {p}). Members and non-members were drawn differently. Draw both "
            "from one pool at random and measure again: every number below may come from the split."
        )
    return f"{seen} no better than luck (AUC: {aucs}; {p}). A bias that these classifiers do not see is not excluded."


def shadow_split(found: Inference) -> str:
    """Whether the shadows' membership tells the target's; empty without shadows."""
    if found.shadow_split is None:
        return ""
    p = f"p = {w.p_value(found.shadow_split)}, exact, two-sided"
    if found.biased_shadows:
        return (
            f"How many shadows had a record tells whether the target had it ({p}), so that an attack with shadows may "
            "have learnt it from them. Flip the shadows' coins independently of the target's, never in exact halves."
        )
    return f"How many shadows had a record does not tell whether the target had it ({p})."


def rule(found: Inference) -> str:
    """How findings are told from luck."""
    return (
        f"All {_many(len(found.tests), 'test')} (AUC, each resolvable TPR, each threshold, each slice, of every "
        f"attack) share one error probability: if scores tell nothing of membership, any of them is called significant "
        f"with probability at most {w.percent(found.significance)} (Holm over exact p-values, one-sided)."
    )


def thresholds(found: Inference) -> str:
    """Where thresholds come from."""
    shadows = any("shadow" in d.source for r in found.results for d in r.measures.decisions)
    halves = any("half" in d.source for r in found.results for d in r.measures.decisions)
    said = []
    if shadows:
        said.append(
            "Thresholds come from shadow models that were attacked in the target's place, never from the target."
        )
    if halves:
        said.append("Without shadows, a threshold is chosen on a random half of the records and measured on the other.")
    return " ".join(said)


def assumptions(found: Inference) -> list[str]:
    """What the numbers take for granted, and what they are not."""
    said = [
        "Exact p-values and intervals take for granted that which records are members was drawn at random among those "
        "that were given.",
        f"Predictive values (PPV) are at a prior of {w.percent(found.prior)}: of those an attacker asks about, that "
        "share was in the training set. At a lower prior they are lower.",
        f"Intervals are at {w.percent(found.confidence, 0)}, one by one. Those of rates are exact (Clopper–Pearson); "
        "that of the AUC is asymptotic (Newcombe's method 5).",
        "This is no privacy bound: an ε needs coins, see dpaudit bound. And it is no proof of safety: a stronger "
        "attack, more shadows or other records may show more.",
    ]
    return said + list(found.notes)


def fpr(value: float) -> str:
    """A false positive rate.

    >>> fpr(0.001), fpr(0.0)
    ('0.1 %', '0')
    """
    return "0" if value == 0 else f"{100 * value:g} %"


def area(value: Area) -> str:
    """An AUC with its interval."""
    return f"{value.value:.3f} ({value.low:.3f}–{value.high:.3f})"


def short(value: Point | None) -> str:
    """A true positive rate without its interval; a dash where it can't be resolved or was not asked for."""
    return "–" if value is None or value.tpr is None else w.percent(value.tpr.value)


def rate(value: Rate) -> str:
    """A rate with its interval, in percent."""
    return f"{w.percent(value.value)} ({interval(value.low, value.high)})"


def share(value: Share | None) -> str:
    """A share with its interval, in percent; a dash where there is none."""
    return "–" if value is None else f"{w.percent(value.value)} ({interval(value.low, value.high)})"


def point(value: Point) -> str:
    """A true positive rate, or that it can't be resolved."""
    return UNRESOLVED if value.tpr is None else rate(value.tpr)


def interval(low: float, high: float) -> str:
    """Two shares in percent, without a sign."""
    return f"{100 * low:.1f}–{100 * high:.1f}"


def spread(value: Spread, percent: bool = True) -> str:
    """What the null run gave."""
    if percent:
        return f"{w.percent(value.mean)} ({interval(value.low, value.high)})"
    return f"{value.mean:.3f} ({value.low:.3f}–{value.high:.3f})"


def decision(value: Decision, null: NullDecision) -> str:
    """One threshold's outcome with its null, in a sentence; the PPV's null is the prior."""
    return (
        f"threshold from {value.source}: TPR {rate(value.tpr)}, FPR {rate(value.fpr)}, balanced accuracy "
        f"{share(value.balanced_accuracy)}, advantage {share(value.advantage)} where shuffled membership has "
        f"{spread(null.advantage)}, PPV {share(value.ppv)}"
    )


def optimistic(measures: Measures) -> str:
    """The best advantage, labelled."""
    return (
        f"{w.percent(measures.best_advantage)} (balanced accuracy {w.percent(measures.best_balanced_accuracy)}), "
        "optimistic: threshold chosen on these records"
    )


def beyond_luck(found: Inference, result: AttackResult) -> tuple[str, str]:
    """Whether an attack found anything, and by which test."""
    tests = found.found(result.attack.name)
    if not tests:
        return "no", ""
    best = min(tests, key=lambda t: t.adjusted)
    return f"yes, p = {w.p_value(best.adjusted)}", best.metric


def balanced(null: NullDecision) -> Spread:
    """The balanced accuracy of shuffled membership."""
    gap = null.advantage
    return Spread((1 + gap.mean) / 2, (1 + gap.low) / 2, (1 + gap.high) / 2)


def verdict(found: Inference, result: AttackResult) -> str:
    """The same in one piece."""
    said, metric = beyond_luck(found, result)
    return f"beyond luck: {said}" + (f" after Holm ({metric})" if metric else "")


def part(value: Slice) -> str:
    """A slice's outcome, short."""
    return value.note if value.measures is None else area(value.measures.area)
