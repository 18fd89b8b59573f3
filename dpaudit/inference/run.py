"""Run every attack that the evidence allows, with both controls, and test what they show."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..attacks.chance import area_p_value, draws_for, holm
from ..attacks.controls import LEAST, Baseline, blind_baseline, null_run
from ..attacks.evidence import Evidence
from ..attacks.metrics import FPRS, PRIOR, Measures, measure, slices, threshold
from ..attacks.registry import ATTACKS, Attack
from ..bounds.designs import digest
from ..errors import InputError, MissingExtra
from ..plan import VERSIONS
from ..records import BoolArray
from ..runner import environment
from .outcome import AttackResult, Inference, Test
from .sources import Source

Array = NDArray[np.float64]
Progress = Callable[[int, int, str], None]

CONFIDENCE = 0.95
LEAST_SLICE = 10
_NULL_SCORES = 4_000_000  # scores that the null runs of one attack look at
_SHADOW_SCORES = 50_000  # scores of shadows in the target's place that thresholds come from
_MOST_SHADOWS = 16


def infer(
    source: Source,
    *,
    attacks: Sequence[str] | None = None,
    prior: float = PRIOR,
    significance: float = 0.05,
    seed: int = 1,
    command: str = "",
    progress: Progress | None = None,
) -> Inference:
    """Attack a model, measure, and say what luck would have shown. Writes nothing.

    Args:
        source: evidence and truth; see :func:`read_source`.
        attacks: names in :data:`~dpaudit.attacks.ATTACKS`; by default all whose needs are met.
        prior: share of members among those that an attacker asks about.
        significance: probability of any finding where nothing tells members apart, over all attacks and metrics.
        seed: of the blind baseline, the null runs and the redrawn memberships.
        command: what to print as the command that repeats this.
        progress: called with (attacks done, attacks in all, what is being done).

    Raises:
        InputError: an unknown attack, one whose needs are not met, no attack left, or a number out of range.
        MissingExtra: scikit-learn is needed and not installed.
    """
    prior = check.number("prior", prior, 0.0, 1.0, ends="()")
    significance, seed = check.significance(significance), check.integer("seed", seed, 0)
    tell = progress or (lambda *_: None)
    chosen, refused = _chosen(source.evidence, attacks)
    tell(0, len(chosen) + 1, "blind baseline")
    shadow_split = _shadow_split(source, seed)
    baseline, note = _baseline(source, seed, significance if shadow_split is None else significance / 2)
    draws = draws_for(len(chosen) * (_per_attack(source) + 2 * len(FPRS)), significance)
    results: list[AttackResult] = []
    failed: list[tuple[str, str]] = []
    said: list[str] = []
    for number, attack in enumerate(chosen):
        tell(number + 1, len(chosen) + 1, attack.title)
        try:
            results.append(_attacked(attack, source, prior, seed, draws, said))
        except (InputError, MissingExtra) as error:
            if attacks is not None:
                raise
            failed.append((attack.name, str(error)))
    if not results:
        raise InputError("; ".join(dict.fromkeys(why for _, why in failed)))
    return Inference(
        name=source.name,
        member=source.member,
        ids=source.ids,
        baseline=baseline,
        baseline_note=note,
        shadow_split=shadow_split,
        results=tuple(results),
        refused=(*refused, *failed),
        tests=_tests(results),
        significance=significance,
        prior=prior,
        confidence=CONFIDENCE,
        notes=(*source.notes, *dict.fromkeys(said)),
        command=command or f"dpaudit attack {source.name}",
        environment=environment(_versions()),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _chosen(evidence: Evidence, names: Sequence[str] | None) -> tuple[list[Attack], list[tuple[str, str]]]:
    """Attacks to run, and those that are not, with the reason."""
    if names is not None:
        for name in names:
            check.choice("attack", name, tuple(ATTACKS))
        chosen = [attack for attack in ATTACKS.values() if attack.name in names]
        for attack in chosen:
            attack.require(evidence)
        return chosen, []
    chosen, refused = [], []
    for attack in ATTACKS.values():
        missing = attack.missing(evidence)
        if missing:
            refused.append((attack.name, f"needs {', '.join(missing)}"))
        elif not attack.default or _is_long(attack, evidence):
            refused.append((attack.name, f"only when named: --attack {attack.name}"))
        else:
            chosen.append(attack)
    if not chosen:
        raise InputError(_nothing_to_run(evidence, refused))
    return chosen, refused


def _is_long(attack: Attack, evidence: Evidence) -> bool:
    return attack.most_pairs is not None and np.size(evidence.shadow_member) > attack.most_pairs


def _nothing_to_run(evidence: Evidence, refused: Sequence[tuple[str, str]]) -> str:
    there = ", ".join(evidence.present) or "none of losses, logits, probabilities, traces or gradient_norms"
    why = "; ".join(f"{name}: {reason}" for name, reason in refused[:3])
    return f"there must be something that an attack can use, got {there} ({why})"


def _per_attack(source: Source) -> int:
    """Tests of one attack that its slices add, and its area."""
    return 1 + sum(len(np.unique(values)) for values in source.groups.values())


def _baseline(source: Source, seed: int, significance: float) -> tuple[Baseline | None, str]:
    if source.x is None and source.labels is None:
        return None, "There are neither features (x) nor labels to ask without the model."
    few = min(int(source.member.sum()), int((~source.member).sum()))
    if few < LEAST:
        return None, f"It needs at least {LEAST} members and {LEAST} others."
    return blind_baseline(source.x, source.member, source.labels, seed=seed, significance=significance), ""


def _shadow_split(source: Source, seed: int) -> float | None:
    """Do the coins of the shadows tell those of the target? Then an attack may have learnt from them alone."""
    if source.evidence.shadow_member is None:
        return None
    count = np.asarray(source.evidence.shadow_member).sum(axis=0).astype(np.float64)
    return min(1.0, 2 * min(area_p_value(sign * count, source.member, seed) for sign in (1, -1)))


def _attacked(attack: Attack, source: Source, prior: float, seed: int, draws: int, said: list[str]) -> AttackResult:
    rows = np.flatnonzero(attack.usable(source.evidence))
    member = source.member[rows]
    if len(rows) < len(source.member):
        left = len(source.member) - len(rows)
        said.append(f"{attack.title}: {left:,} records were left out, since every shadow was trained on them.")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        scores = _scores(attack, source.evidence, rows, seed)
    said.extend(f"{attack.title}: {w.message}." for w in warned)
    cuts = _thresholds(attack, source.evidence, seed)
    repeats = int(np.clip(_NULL_SCORES // len(scores), 20, 200))
    options: dict[str, Any] = {"prior": prior, "confidence": CONFIDENCE, "seed": seed, "draws": draws}
    return AttackResult(
        attack=attack,
        rows=rows,
        member=member,
        scores=scores,
        measures=measure(scores, member, thresholds=cuts, **options),
        null=null_run(scores, member, thresholds=tuple(cuts.values()), repeats=repeats, seed=seed),
        slices=tuple(
            part
            for column, values in source.groups.items()
            for part in slices(scores, member, column, values[rows], least=LEAST_SLICE, **options)
        ),
    )


def _scores(attack: Attack, evidence: Evidence, rows: NDArray[np.intp], seed: int) -> Array:
    """Scores of some records, or of all without copying what is known of them."""
    if len(rows) == 0:
        raise InputError(f"{attack.name} needs a shadow without the record, got none for any record")
    return attack.scores(evidence if len(rows) == evidence.records else evidence.of(rows), seed)


def _thresholds(attack: Attack, evidence: Evidence, seed: int) -> dict[str, float]:
    """Thresholds by where they come from: shadows in the target's place; none where there are no shadows."""
    if not evidence.has("shadows"):
        return {}
    found = list(_shadow_scores(attack, evidence, seed))
    if not found:
        return {}
    scores, member = (np.concatenate(part) for part in zip(*found, strict=True))
    if member.all() or not member.any():
        return {}
    where = f"{len(found)} shadow models in the target's place, at FPR {{}} there"
    resolved = [fpr for fpr in FPRS if fpr > 0 and fpr * (~member).sum() >= 1]
    return {where.format(f"{100 * fpr:g} %"): threshold(scores, member, fpr) for fpr in resolved}


def _shadow_scores(attack: Attack, evidence: Evidence, seed: int) -> Iterator[tuple[Array, BoolArray]]:
    member = np.asarray(evidence.shadow_member)
    count = min(len(member), int(np.clip(_SHADOW_SCORES // member.shape[1], 2, _MOST_SHADOWS)), attack.most_shadows)
    order = sorted(range(len(member)), key=lambda i: digest(member[i].astype(np.int8)))  # not as they happened to come
    for number in order[:count]:
        other, truth = evidence.shadow_as_target(number)
        if attack.missing(other):
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said of the target already
                rows = np.flatnonzero(attack.usable(other))
                yield _scores(attack, other, rows, seed), truth[rows]
        except InputError:  # too few shadows are left
            return


def _tests(results: Sequence[AttackResult]) -> tuple[Test, ...]:
    """All tests of the inference, adjusted together."""
    found = [(r.attack.name, metric, p) for r in results for metric, p in _p_values(r)]
    adjusted = holm([p for _, _, p in found])
    return tuple(Test(*one, float(value)) for one, value in zip(found, adjusted, strict=True))


def _p_values(result: AttackResult) -> Iterator[tuple[str, float]]:
    yield "AUC", result.measures.area.p_value
    yield from _of_points(result.measures)
    for decision in result.measures.decisions:
        yield f"threshold from {decision.source}", decision.p_value
    for part in result.slices:
        if part.measures is not None:
            yield f"AUC where {part.column} is {part.value}", part.measures.area.p_value


def _of_points(measures: Measures) -> Iterator[tuple[str, float]]:
    for point in measures.points:
        if point.p_value is not None:
            yield f"TPR at FPR {100 * point.fpr:g} %", point.p_value
