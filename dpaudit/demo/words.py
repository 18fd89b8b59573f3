"""Sentences that follow from the numbers: nothing here knows beforehand how the demonstration ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..attacks.metrics import Rate
from ..records import Verdict
from ..report import wording as w
from .classroom import FRESH, KNITTING_HOURS, STUDENTS
from .experiment import SCORE, SPLIT_FRACTION
from .levels import CLIP_NORM, SAMPLING_RATE, STEPS
from .outcome import DemoResult, LevelResult, StudentAudit

WHY_DELTA = (
    f"δ = {w.delta(1e-5)} lies far below 1/{STUDENTS} ≈ {1 / STUDENTS:.3f}: a mechanism that with probability δ gives "
    f"everything away would expose anyone of the class with probability at most {STUDENTS} δ = "
    f"{w.delta(STUDENTS * 1e-5)}. At δ near 1/{STUDENTS} publishing one record outright would count as private."
)
LIMITS = (
    "One class, made by a generator. Another class, another unusual student or another hobby gives other numbers.",
    f"One attack, which sees {SCORE} and nothing else. An attacker who sees the weights, or every update of the "
    "training, may learn more; DP-SGD's promise covers those attackers too.",
    f"Two of the {STUDENTS} students. Nothing here is about the other {STUDENTS - 2}.",
    "A lower bound near 0 is not proof of privacy. It is what this attack reached with so many trainings.",
    "The settings (learning rate, steps, clip norm) were fixed in the program. Choosing them by looking at real data "
    "would cost privacy that no ε here counts.",
    "The random number generator and floating-point arithmetic are taken as ideal.",
)


def headline(result: DemoResult) -> str:
    """The whole demonstration in two sentences."""
    plain, last = result.plain, result.private[-1]
    return (
        f"Shown one training with and one without the only knitter of a class of {STUDENTS}, an attacker tells them "
        f"apart in {share(plain.knitter.pairs)} of pairs without privacy and in "
        f"{share(last.knitter.pairs)} at ε = {last.level.target:g}, where guessing gets 50 %. "
        f"Accuracy on fresh students: {w.percent(plain.accuracy.mean)} and {w.percent(last.accuracy.mean)}."
    )


def findings(result: DemoResult) -> tuple[str, ...]:
    """What was found, in order."""
    return (
        setup(result),
        without_privacy(result.plain.knitter, most=True),
        without_privacy(result.plain.ordinary),
        with_privacy("the knitter", [(entry, entry.knitter) for entry in result.private]),
        with_privacy("the ordinary student", [(entry, entry.ordinary) for entry in result.private]),
        verdicts(result),
        price(result),
    )


def sentences(result: DemoResult) -> tuple[str, ...]:
    """The findings, how sure they are, and what they don't say."""
    return (*findings(result), confidence(result), caution(result))


def setup(result: DemoResult) -> str:
    """Who is in the class and what was trained."""
    return (
        f"In a class of {STUDENTS} one student knits {KNITTING_HOURS:g} hours a week and nobody else does; a model "
        f"learns to tell a student's club from hobbies. For each of two students and each setting {result.models:,} "
        f"models were trained, half with that student and half without, everyone else always in."
    )


def without_privacy(found: StudentAudit, *, most: bool = False) -> str:
    """What the attacker gets on one student where nothing is promised; ``most`` adds the ceiling."""
    ceiling = f" ({w.at_least(found.bound.perfect)} is the most that so many trainings can show)" if most else ""
    return (
        f"Without privacy, an attacker who sees only the model's answer on {found.student.name} tells trainings with "
        f"and without that student apart in {share(found.pairs)} of pairs (95 % interval {interval(found.pairs)}; "
        f"guessing gets 50 %). The lower bound on ε is {w.at_least(found.audit.lower)}{ceiling}."
    )


def with_privacy(name: str, entries: Sequence[tuple[LevelResult, StudentAudit]]) -> str:
    """What the attacker gets on one student at the levels with a promise, beside the accountant's ε."""
    each = [
        f"{share(found.pairs)} at ε = {w.at_most(entry.level.epsilon)} (ε ≥ {w.at_least(found.audit.lower)})"
        for entry, found in entries
    ]
    return f"With DP-SGD, pairs told apart on {name} at the accountant's ε (and the ε shown): {listed(each)}."


def verdicts(result: DemoResult) -> str:
    """How many promises were refuted, held up, or could not be judged."""
    found = [s.audit.verdict for entry in result.private for s in entry.students]
    said = [
        (Verdict.VIOLATED, "the claimed curve is refuted"),
        (Verdict.CONSISTENT, "not refuted, and twice the claimed ε would have been with probability 0.8 or more"),
        (Verdict.UNDERPOWERED, "so few trainings would refute even twice the claimed ε with probability below 0.8"),
    ]
    counted = [f"{found.count(v)} {_word(v.value)} ({what})" for v, what in said if v in found]
    return f"Of {len(found)} tests of the accountant's claims, three levels on two students: {listed(counted)}."


def price(result: DemoResult) -> str:
    """What it costs in accuracy."""
    each = [f"{w.percent(entry.accuracy.mean)} ({_setting(entry)})" for entry in result.levels]
    return f"Accuracy on {FRESH:,} fresh students from the same generator is {listed(each)} on average."


def accuracy(entry: LevelResult) -> str:
    """The mean and the central 90 % of models."""
    a = entry.accuracy
    return f"{w.percent(a.mean)} ({w.percent(a.low)} to {w.percent(a.high)})"


def confidence(result: DemoResult) -> str:
    """How sure the bounds are, each and together, and of which neighbours they speak."""
    return (
        f"Each bound holds with confidence {w.confidence(result.significance)} at δ = {w.delta(result.delta)}, for "
        f"neighbouring classes that differ by adding or removing one student; all {result.bounds} together hold with "
        f"at least {w.percent(1 - result.family_error, 0)}, and the page and demo.json also give bounds that together "
        f"hold with {w.confidence(result.significance)}."
    )


def caution(result: DemoResult) -> str:
    """What a lower bound is not."""
    zero = any(s.audit.lower == 0 for entry in result.levels for s in entry.students)
    return w.NOT_PROOF + (" Where it is 0, this attack showed nothing." if zero else "")


def source(result: DemoResult) -> str:
    """What the first view shows."""
    step = result.first_step
    over = sum(bool(n > step.clip_norm) for n in step.norms)
    return (
        f"Each arrow is one student: the direction says which hobbies, the length how many hours. The knitter's is "
        f"{_times(result)} times as long as the median. Past the red circle a student's first gradient is longer than "
        f"the clip norm C = {step.clip_norm:g} and will be shortened: {over} of {STUDENTS} are."
    )


def pipeline(result: DemoResult) -> str:
    """What the second view shows."""
    step, row = result.first_step, result.classroom.knitter.row
    levels = [f"{s:.2f} at ε = {e.level.target:g}" for e in result.private if (s := _noise(e)) is not None]
    return (
        f"The gradients of all {STUDENTS} students at step 1. The knitter's has length {step.norms[row]:.2f} before "
        f"the clip and {step.clipped_norms[row]:.2f} after it; shorter arrows stay as they are. Then Gaussian noise is "
        f"added to every coordinate of the sum; its standard deviation, in units of C, is {listed(levels)}. The more "
        f"the two hills overlap, the less one step says about the knitter."
    )


def clip_and_noise(result: DemoResult) -> str:
    """How to read the second view."""
    return (
        "Left and middle: actual gradients of the whole class, the model still all zeros; true lengths, directions of "
        f"the hobbies. In training each step draws every student with probability {SAMPLING_RATE:g}. Right: the sum of "
        "one step along the knitter's gradient, as it falls without the knitter and with, all hills drawn to one "
        "height; without privacy there is no clip and no noise, only two different numbers."
    )


def ledger(result: DemoResult) -> str:
    """What the third view shows."""
    naive = [
        f"{e.level.added_up:.0f} instead of {w.at_most(e.level.epsilon)}" for e in result.private if e.level.added_up
    ]
    return (
        f"Every one of the {STEPS} steps spends some ε. The accountant adds up privacy losses, not worst cases; "
        f"adding each step's own ε at δ / {STEPS} would come to {listed(naive)}."
    )


def terminal(result: DemoResult) -> str:
    """What the fourth view shows."""
    return (
        f"The score is {SCORE}. Filled: models trained without the student. Line: models trained with. Right of the "
        f"dashed threshold the attacker says “in”. The threshold was chosen on {_split_percent()} of the trainings, "
        "and the rates are counted on the others."
    )


def rates(result: DemoResult) -> str:
    """How to read the rates."""
    return (
        "A pair is one training with and one without; the attacker says which is which, a tie counts as wrong. TPR: "
        "trainings with the student that are called “in”. FPR: trainings without that are called “in”. Bars are exact "
        "95 % Clopper–Pearson intervals, and the lower bound on ε is computed from the ends of the last two. The "
        "threshold is the one that promised the largest bound, which may sit far out in a tail."
    )


def rests_on(result: DemoResult) -> tuple[tuple[str, str], ...]:
    """The assumptions, as terms and explanations."""
    knitter, ordinary = result.classroom.students
    found = result.plain.knitter
    return (
        ("The knitter", f"Student {knitter.row + 1}, who joined the {knitter.club}: {knitter.rule}."),
        ("The ordinary student", f"Student {ordinary.row + 1}, who joined the {ordinary.club}: {ordinary.rule}."),
        ("Worlds", f"{result.models // 2:,} trainings with and {result.models // 2:,} without, fixed by design; each "
         "with its own seed for sampling and noise, so runs are independent."),
        ("Neighbours", "Add or remove one student. " + w.ADJACENCIES["add-remove"]),
        ("Constants", f"Nominal size {STUDENTS}, sampling rate {SAMPLING_RATE:g}, {STEPS} steps, clip norm "
         f"{CLIP_NORM:g} and the divisor {SAMPLING_RATE * STUDENTS:g} are the same in both worlds."),
        ("Threat model", w.THREAT_MODELS["black-box"]),
        ("Score", SCORE[:1].upper() + SCORE[1:] + ": ln p(own club) − ln p(any other). Higher says “in”."),
        ("Threshold", f"Chosen on {_split_percent()} of the trainings, which the bound does not use; the seeds are in "
         "demo.json. What was chosen by looking at scores is thereby paid for."),
        ("Bound", f"{found.bound.method}; null: {found.bound.null}."),
        ("Confidence", confidence(result)),
        ("δ", WHY_DELTA),
        ("Ceilings", "All right: the bound if every guess had been right. At the claim: the median bound of the best "
         "attacker on a mechanism that leaks exactly the claim."),
        ("Verdicts", f"{_word('consistent')}: not refuted, although twice the claimed ε would have been with "
         f"probability 0.8 or more. {_word('underpowered')}: it would not. {_word('violated')}: the claimed curve is "
         "refuted for any mechanism."),
        ("Accuracy", f"On {FRESH:,} fresh students from the same generator, none of whom knits; models trained with "
         "the whole class."),
    )  # fmt: skip


def interval(rate: Rate) -> str:
    """An interval in percent.

    >>> interval(Rate(5, 10, 0.18709, 0.81291))
    '18.7 to 81.3 %'
    """
    return f"{100 * rate.low:.1f} to {w.percent(rate.high)}"


def share(rate: Rate) -> str:
    """A rate in percent, never rounded to all or nothing.

    >>> share(Rate(711, 1000, 0.7, 0.8)), share(Rate(1999, 2000, 0.9, 1.0)), share(Rate(10, 10, 0.6, 1.0))
    ('71.1 %', '99.95 %', '100.0 %')
    """
    edge = 0 < rate.hits < rate.trials and not 0.0005 <= rate.value < 0.9995
    return w.percent(rate.value, 2 if edge else 1)


def tight(text: str) -> str:
    """The text with no line break between a number and its sign.

    >>> len(tight("5 % at ε = 3").split(" "))
    3
    """
    for loose in (" %", "ε = ", "ε ≥ ", "δ = "):
        text = text.replace(loose, loose.replace(" ", "\u00a0"))
    return text


def listed(parts: Sequence[str]) -> str:
    """A list as a sentence has it.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _word(verdict: str) -> str:
    return w.VERDICTS[verdict][0]


def _setting(entry: LevelResult) -> str:
    return "without privacy" if entry.level.target is None else f"ε = {entry.level.target:g}"


def _split_percent() -> str:
    return w.percent(SPLIT_FRACTION, 0)


def _noise(entry: LevelResult) -> float | None:
    return getattr(entry.level.trainer, "noise_multiplier", None)


def _times(result: DemoResult) -> str:
    lengths = sorted(_lengths(result))
    return f"{max(lengths) / lengths[len(lengths) // 2]:.1f}"


def _lengths(result: DemoResult) -> Iterator[float]:
    return (float((x**2).sum() ** 0.5) for x in result.first_step.hobbies)
