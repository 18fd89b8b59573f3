"""The sentences of an examination, the same in text, page and JSON. They name no record."""

from __future__ import annotations

from collections.abc import Sequence

from ..attacks.metrics import Rate
from ..records import Verdict
from ..report import wording as w
from .outcome import Exposure, LevelResult, average
from .task import CHECKPOINTS

RANKED_BY = "the interquartile range of a record's losses (Pollock et al. 2024, arXiv 2411.05743)"
ATTACK = "online LiRA with a shrunken variance on the logit margin of the record under the final model"


def tight(sentence: str) -> str:
    """The sentence with spaces that don't break between a number and its sign.

    >>> tight("ε ≥ 1 at 5 %").count("\u00a0")
    3
    """
    for sign in ("≤", "≥", "="):
        sentence = sentence.replace(f"ε {sign} ", f"ε\u00a0{sign}\u00a0")
    return sentence.replace(" %", "\u00a0%").replace("δ = ", "δ\u00a0=\u00a0")


def share(rate: Rate) -> str:
    """A rate in percent.

    >>> share(Rate(1, 8, 0.0, 0.5))
    '12.5 %'
    """
    return w.percent(rate.value)


def interval(rate: Rate) -> str:
    """Its interval in percent, without a sign.

    >>> interval(Rate(1, 8, 0.003, 0.527))
    '0.3–52.7'
    """
    return f"{100 * rate.low:.1f}–{100 * rate.high:.1f}"


def headline(found: Exposure) -> str:
    """What to read if only one sentence is read."""
    plain, last = found.plain, found.private[-1]
    false = [entry.level.title for entry in found.private if entry.audit.verdict is Verdict.VIOLATED]
    return (f"VIOLATED: the claim of {listed(false)} is false. " if false else "") + (
        f"Without privacy, training shows ε ≥ {shown(plain)} on the most exposed of {_records(found)}, and "
        f"ε ≥ {w.at_least(average(plain.ordinary)[0])} on average on {found.task.shortlist} drawn at random; under "
        f"DP-SGD at {last.level.title}, ε ≥ {shown(last)} and {w.at_least(average(last.ordinary)[0])}."
    )


def shown(entry: LevelResult) -> str:
    """The largest bound on the shortlist, rounded down."""
    return w.at_least(entry.worst.bound.epsilon)


def findings(found: Exposure) -> tuple[str, ...]:
    """What was found, in order."""
    return ranking(found), without_privacy(found), with_privacy(found), parting(found), verdicts(found), price(found)


def sentences(found: Exposure) -> tuple[str, ...]:
    """The findings, how sure they are, what the controls say, and what it all rests on."""
    return (*findings(found), confidence(found), null(found))


def ranking(found: Exposure) -> str:
    """How the shortlist came about, and what was trained then."""
    task = found.task
    return (
        f"One training without privacy on all {_records(found)} ranked them by {RANKED_BY} at {CHECKPOINTS} "
        f"checkpoints; the {task.shortlist} highest are the shortlist, whose length was fixed beforehand. Then "
        f"{task.models:,} fresh models per setting were trained, in which each of these records, and of "
        f"{task.shortlist} drawn at random from all, was in or out by its own fair coin, and all others were in."
    )


def without_privacy(found: Exposure) -> str:
    """What the attacker gets on the most exposed record where nothing is promised."""
    worst, count = found.plain.worst, sum(r.bound.epsilon > 0 for r in found.plain.exposed)
    return (
        f"Without privacy, the attack calls the most exposed record “in” in {share(worst.tpr)} of the trainings with "
        f"it ({interval(worst.tpr)}) and in {share(worst.fpr)} of those without it ({interval(worst.fpr)}), and tells "
        f"{share(worst.pairs)} of pairs apart (guessing: 50 %). That shows ε ≥ {w.at_least(worst.bound.epsilon)}; the "
        f"most that so many trainings can show is {w.at_least(worst.bound.perfect)}. {count} of the "
        f"{found.task.shortlist} on the shortlist show an ε above 0."
    )


def with_privacy(found: Exposure) -> str:
    """What the attacker gets on the shortlist at the levels with a promise, beside the accountant's ε."""
    each = [
        f"ε ≥ {shown(entry)} where the accountant says ε ≤ {w.at_most(entry.level.epsilon)}" for entry in found.private
    ]
    return f"With DP-SGD, the largest bound on the shortlist is {listed(each)}."


def parting(found: Exposure) -> str:
    """The worst case and the average, side by side."""
    each = []
    for entry in found.levels:
        _, exposed = average(entry.exposed)
        _, ordinary = average(entry.ordinary)
        each.append(f"{w.percent(exposed)} against {w.percent(ordinary)} ({entry.level.title})")
    return (
        f"Pairs told apart, on average over the shortlist against the average over records drawn at random: "
        f"{listed(each)}."
    )


def verdicts(found: Exposure) -> str:
    """What is to be said of each claim."""
    each = [
        f"{w.VERDICTS[entry.audit.verdict.value][0]} at {entry.level.title}" + _power(entry) for entry in found.private
    ]
    return f"The accountant's claims, judged on the shortlist: {listed(each)}."


def _power(entry: LevelResult) -> str:
    if entry.audit.verdict is Verdict.VIOLATED or entry.audit.power is None:
        return ""
    return f" (twice the claim would have been caught with probability {w.at_least(entry.audit.power)})"


def price(found: Exposure) -> str:
    """What privacy costs in accuracy."""
    each = [f"{w.percent(entry.accuracy.mean)} ({entry.level.title})" for entry in found.levels]
    return f"Accuracy on {found.plain.accuracy.test_records:,} test records is {listed(each)} on average."


def confidence(found: Exposure) -> str:
    """How sure the bounds are, alone and together, at which δ and of which neighbours."""
    task = found.task
    return (
        f"At each setting all {task.shortlist} bounds on the shortlist hold together with confidence "
        f"{w.confidence(task.significance)} (each by itself with {w.confidence(task.significance / task.shortlist)}), "
        f"and so do the {task.shortlist} on records drawn at random; δ = {w.delta(task.delta)}, {neighbours(found)}. "
        f"Verdicts rest on the shortlist: the probability that any true claim is called violated is at most "
        f"{w.at_most(100 * found.error_probability).rstrip('0').rstrip('.')} %."
    )


def null(found: Exposure) -> str:
    """The same with coins that no model saw."""
    each = [f"{w.at_least(entry.null)} ({entry.level.title})" for entry in found.levels]
    return (
        f"Null run, the same models judged by coins that none of them saw: the largest bound on the shortlist is "
        f"{listed(each)}; an ε above 0 there has probability at most {w.percent(found.task.significance, 0)} a setting."
    )


def neighbours(found: Exposure) -> str:
    """The neighbouring relations of all levels."""
    return " or ".join(sorted({entry.level.adjacency for entry in found.levels}))


def rests_on(found: Exposure) -> list[tuple[str, str]]:
    """Terms and what they mean here."""
    task, bound = found.task, found.plain.worst.bound
    said = [
        ("ε shown", f"{bound.method}; null: {bound.null}. Rounded down."),
        ("ε claimed", f"The accountant's, by privacy loss distributions, at δ = {w.delta(task.delta)}. Rounded up."),
        ("Neighbours", " ".join(w.ADJACENCIES[a] for a in sorted({e.level.adjacency for e in found.levels}))),
        ("Attack", f"{ATTACK}. {w.THREAT_MODELS['black-box']}"),
        ("Thresholds", f"{bound.threshold[0].upper()}{bound.threshold[1:]}."),
        ("Models", f"{task.models:,} per setting: {task.set_aside:,} set aside for the attacker, {task.tested:,} that "
         "rates and bounds are counted on. Each has a seed of its own; none of them was used to rank."),
        ("Controls", "The null run above. A blind baseline is not needed: who is in was decided by fair coins, so "
         "nothing about a record tells without the model whether it is."),
        ("Learning rates", "Of private trainings those of the source, shortened where there is more noise than in its "
         "settings, so that the noise of a step stays theirs. No claim depends on them."),
        ("TPR, FPR", "Shares of the models with and without the record that the attack calls “in”. Intervals are exact "
         "(Clopper–Pearson), at 95 %, for one rate by itself."),
        ("Pairs", "Of disjoint pairs of one model with and one without the record, how often the one with it has the "
         "higher score; a tie counts as wrong."),
        ("Ceilings", "“All right”: the bound if every guess had been right. “At the claim”: the median bound of the "
         "best possible attacker on a mechanism that spends exactly the claim."),
        ("Records drawn at random", "As many as the shortlist has, from all records with equal chances and before the "
         "ranking, tested in the same models in the same way."),
    ]  # fmt: skip
    if task.source.scaling:
        said.append(("Features", task.source.scaling))
    return said


def limits(found: Exposure) -> tuple[str, ...]:
    """What the numbers do not cover."""
    return (
        f"The other {len(found.task.data) - len(found.task.columns(found.rows)):,} records. The shortlist is what one "
        "training pointed out; a more exposed record may not be on it.",
        "Attackers who see parameters or updates, and better attacks: a lower bound is what this attack shows, not "
        "proof that no more leaks.",
        "This page itself. Its numbers come from the records, and from models trained without privacy: they are no "
        "output of a private mechanism.",
        "The choice of settings (learning rate, steps, clip norm), where it was made by looking at these records, and "
        "the test records, on which accuracies are computed as they are.",
        "The randomness itself: weak generators, reused seeds and floating-point gaps of the noise.",
    )


def listed(parts: Sequence[str]) -> str:
    """Parts as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _records(found: Exposure) -> str:
    return f"{len(found.task.data):,} records"
