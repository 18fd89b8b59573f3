"""Where nothing tells members apart, no attack and no metric finds anything beyond the stated rate.

Worlds: 120 records, half of them members of the target, drawn at random; the target's outputs, traces, gradients and
steps do not depend on that. Its shadows do give their members away, so that the attacks are sharp. ``WORLDS`` worlds
with fixed seeds, significance 5 %.

Bars. Each test of each attack may call luck a finding in at most 5 % + 5 standard errors of the worlds (12.7 % of 200):
were all tests exactly at 5 % and independent, the suite would raise a false alarm with probability 0.2 %. It catches a
rate of 20 % with probability 0.99. The mean AUC of each attack is within 4.5 standard errors of 0.5. The broken twins
at the end, which choose a threshold on the target, correct for nothing, or leave one out of exact halves, are caught by
these very bars.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from dpaudit.attacks import ATTACKS, Evidence, blind_baseline, holm, lira_leave_one_out, measure, threshold
from dpaudit.attacks.chance import decision_p_value
from dpaudit.attacks.metrics import Measures, auc, roc

pytestmark = pytest.mark.statistical

FULL = bool(os.environ.get("DPAUDIT_FULL"))
WORLDS = 1000 if FULL else 200
SIGNIFICANCE, RECORDS, SHADOWS, CLASSES, OTHERS, STEPS = 0.05, 120, 6, 3, 60, 12
SLOW = ("learned", "exposure-extrapolated")  # a classifier or a fit per world: by themselves below, in fewer worlds
NAMES = [name for name in ATTACKS if name not in SLOW]
FPRS = (0.1, 0.05, 0.0)


def bar(worlds: int) -> float:
    return SIGNIFICANCE + 5 * np.sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / worlds)


def null_world(seed: int) -> tuple[Evidence, np.ndarray]:
    """Evidence, and members of the target that it knows nothing about."""
    rng = np.random.default_rng([7, seed])
    labels = rng.integers(CLASSES, size=RECORDS)
    hardness = rng.normal(size=(RECORDS, CLASSES))
    models = hardness + 0.5 * rng.normal(size=(SHADOWS + 1, RECORDS, CLASSES))
    shadow_member = rng.random((SHADOWS, RECORDS)) < 0.5
    shadow_member[0], shadow_member[1] = True, False  # every record has a shadow with it and one without
    models[1:, np.arange(RECORDS), labels] += 1.5 * shadow_member
    others = rng.integers(CLASSES, size=OTHERS)
    outside = rng.normal(size=(SHADOWS + 1, OTHERS, CLASSES))
    evidence = Evidence(
        logits=models[0],
        labels=labels,
        shadow_logits=models[1:],
        shadow_member=shadow_member,
        population_logits=outside[0],
        population_labels=others,
        shadow_population_logits=outside[1:],
        traces=rng.exponential(size=(8, RECORDS)),
        gradient_norms=rng.exponential(size=RECORDS),
        perplexities=rng.normal(size=RECORDS),
        reference_perplexities=rng.normal(size=200),
        projections=rng.normal(size=(RECORDS, STEPS)),
        steps={"noise_deviation": 1.0, "sampling_rate": 0.5},
    )
    return evidence, rng.permutation(np.arange(RECORDS) < RECORDS // 2)


def each_test(found: Measures) -> Iterator[tuple[str, float]]:
    yield "auc", found.area.p_value
    for point in found.points:
        if point.p_value is not None:
            yield f"tpr at {point.fpr:g}", point.p_value
    for number, decision in enumerate(found.decisions):
        yield f"decision {number}", decision.p_value


def measured(name: str, seed: int) -> tuple[Measures, Measures]:
    """With a threshold from half of the records, and with one from a shadow in the target's place."""
    evidence, member = null_world(seed)
    scores = ATTACKS[name].scores(evidence, seed)
    half = measure(scores, member, fprs=FPRS, seed=seed, draws=399)
    if not evidence.has("shadows") or "traces" in ATTACKS[name].needs:
        return half, half
    other, truth = evidence.shadow_as_target(2)
    if ATTACKS[name].missing(other):
        return half, half
    cut = threshold(ATTACKS[name].scores(other, seed), truth, 0.1)
    return half, measure(scores, member, fprs=(), thresholds={"a shadow": cut}, seed=seed, draws=1)


@cache
def outcomes(names: tuple[str, ...], worlds: int) -> tuple[dict[tuple[str, str], list[float]], dict[str, list[float]]]:
    """p-values by attack and test, and areas by attack."""
    p_values: dict[tuple[str, str], list[float]] = defaultdict(list)
    areas: dict[str, list[float]] = defaultdict(list)
    for seed in range(worlds):
        for name in names:
            half, shadows = measured(name, seed)
            areas[name].append(half.area.value)
            for test, p in each_test(half):
                p_values[name, test].append(p)
            for number, decision in enumerate(shadows.decisions):
                p_values[name, f"shadow decision {number}"].append(decision.p_value)
    return p_values, areas


def rates(p_values: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], float]:
    return {key: float(np.mean(np.array(values) <= SIGNIFICANCE)) for key, values in p_values.items()}


def test_every_attack_and_metric_keeps_its_rate() -> None:
    p_values, _ = outcomes(tuple(NAMES), WORLDS)
    assert {name for name, _ in p_values} == set(NAMES)
    assert {test for _, test in p_values} >= {"auc", "tpr at 0.1", "tpr at 0.05", "tpr at 0", "decision 0"}
    over = {key: rate for key, rate in rates(p_values).items() if rate > bar(WORLDS)}
    assert over == {}


def test_tests_are_not_empty_promises() -> None:
    """A test that never calls luck a finding would pass above; the area's is exact, so it does in 5 % of the worlds."""
    p_values, _ = outcomes(tuple(NAMES), WORLDS)
    for name in ("loss", "lira", "rmia"):
        assert rates(p_values)[name, "auc"] > SIGNIFICANCE - 5 * np.sqrt(SIGNIFICANCE / WORLDS)
        assert 0.3 < np.mean(p_values[name, "auc"]) < 0.7


def test_every_area_is_one_half() -> None:
    _, areas = outcomes(tuple(NAMES), WORLDS)
    for name, values in areas.items():
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - 0.5) < 4.5 * error, name


def test_all_together_find_something_at_the_stated_rate() -> None:
    p_values, _ = outcomes(tuple(NAMES), WORLDS)
    table = np.array(list(p_values.values()))
    any_found = np.mean([holm(column).min() <= SIGNIFICANCE for column in table.T])
    assert any_found <= bar(WORLDS)


@pytest.mark.parametrize("name", SLOW)
def test_the_slow_attacks(name: str) -> None:
    pytest.importorskip("sklearn")
    worlds = 100 if FULL else 30
    p_values, areas = outcomes((name,), worlds)
    assert all(rate <= bar(worlds) for rate in rates(p_values).values())
    assert abs(np.mean(areas[name]) - 0.5) < 4.5 * np.std(areas[name]) / np.sqrt(worlds)


def test_a_fair_split_is_called_biased_at_the_stated_rate() -> None:
    found = []
    for seed in range(WORLDS):
        rng = np.random.default_rng([8, seed])
        member = rng.permutation(np.arange(150) < 75)
        found.append(blind_baseline(None, member, rng.integers(8, size=150), seed=seed, draws=199).biased)
    assert np.mean(found) <= bar(WORLDS)


class TestBrokenTwins:
    """Each does what some tool does, and is caught."""

    def test_a_threshold_chosen_on_the_target(self) -> None:
        found = []
        for seed in range(WORLDS):
            evidence, member = null_world(seed)
            scores = ATTACKS["loss"].scores(evidence)
            curve = roc(scores, member)
            best = int(np.argmax(curve.tpr - curve.fpr))
            hits, alarms = round(curve.tpr[best] * curve.members), round(curve.fpr[best] * curve.others)
            found.append(decision_p_value(hits, alarms, curve.members, curve.others) <= SIGNIFICANCE)
        assert np.mean(found) > bar(WORLDS)

    def test_the_best_of_all_tests_uncorrected(self) -> None:
        p_values, _ = outcomes(tuple(NAMES), WORLDS)
        smallest = np.array(list(p_values.values())).min(axis=0)
        assert np.mean(smallest <= SIGNIFICANCE) > 2 * bar(WORLDS)

    def test_leaving_one_out_of_exact_halves(self) -> None:
        """The other models tell what the target has: where it has the record, fewer of them do."""
        areas = []
        for seed in range(WORLDS // 4):
            rng = np.random.default_rng([9, seed])
            member = rng.permuted(np.tile(np.arange(6)[:, None] < 3, (1, RECORDS)), axis=0)
            signals = rng.normal(size=member.shape) + rng.normal(size=RECORDS)
            areas.append(auc(lira_leave_one_out(signals, member), member))
        error = np.std(areas) / np.sqrt(len(areas))
        assert abs(np.mean(areas) - 0.5) > 4.5 * error
