"""Faults that were found in other tools for membership inference, one test each: none of them is here.

Most such faults have their test beside what they are about (ties in test_metrics.py, signs in test_registry.py, files
in tests/inference, and so on); here are those that had none.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from dpaudit.attacks import ATTACKS, Evidence, flip_coins, lira, measure, null_run, rmia
from dpaudit.attacks.metrics import auc
from dpaudit.data.scores import read_tensors
from dpaudit.errors import InputError
from dpaudit.inference import Source, document, infer, write
from dpaudit.inference.planning import plan

RECORDS, SHADOWS, OTHERS = 600, 12, 60


def signals(gap: float, records: int = RECORDS, shadows: int = SHADOWS, seed: int = 0):
    """Losses of a target and of shadows, below those of others for members by ``gap``; and the coins of all."""
    rng = np.random.default_rng([3, seed])
    member = rng.random((shadows + 1, records)) < 0.5
    return 4 + rng.normal(size=records) - gap * member + rng.normal(size=member.shape), member


def source(gap: float = 0.0, records: int = RECORDS, seed: int = 0, **more: object) -> Source:
    losses, member = signals(gap, records, seed=seed)
    losses = np.maximum(losses, 0.01)
    evidence = Evidence(losses=losses[0], shadow_losses=losses[1:], shadow_member=member[1:])
    return Source("people.npz", evidence, member[0], **more)  # type: ignore[arg-type]


# --- evidence of one attack in the verdict of another ------------------------------------------------------------


def test_no_finding_is_carried_over_from_an_earlier_run_or_attack():
    """A list of significant areas that was not emptied between experiments counted one attack's for the next."""
    silent = source(0.0)
    before = infer(silent, attacks=["loss"])
    loud = infer(source(3.0), attacks=["loss", "lira"])
    after = infer(silent, attacks=["loss"])
    assert loud.findings and not before.findings
    assert document(after) == document(before)


def test_each_attack_is_judged_by_its_own_scores():
    """Chance scores beside scores that tell everything: only the second are found."""
    held = source(0.0)
    norms = np.where(held.member, 1.0, 2.0)
    evidence = replace(held.evidence, gradient_norms=norms)
    found = infer(replace(held, evidence=evidence), attacks=["loss", "gradient-norm"])
    assert found.found("gradient-norm") and not found.found("loss")
    facts = {a["name"]: a["significant"] for a in document(found)["attacks"]}
    assert facts == {"loss": False, "gradient-norm": True}


def test_attacks_do_not_depend_on_which_of_them_ran_first():
    """Losses that were worked out only when members had been asked for first."""
    rng = np.random.default_rng(0)
    _, member = signals(1.0)
    held = {
        "logits": rng.normal(size=(RECORDS, 2)), "labels": rng.integers(2, size=RECORDS), "shadow_member": member[1:],
        "shadow_logits": rng.normal(size=(SHADOWS, RECORDS, 2)),
    }  # fmt: skip
    names = ["loss", "reference", "lira", "calibrated-loss", "lira-offline"]
    one, other = Evidence(**held), Evidence(**held)
    forth = {name: ATTACKS[name].scores(one).tolist() for name in names}
    back = {name: ATTACKS[name].scores(other).tolist() for name in reversed(names)}
    assert forth == back


# --- thresholds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lira-offline", "reference"])
def test_half_of_the_outsiders_are_not_called_members(name):
    """A rank among models without the record is even for outsiders: cut at one half, it accuses every second one."""
    held = source(1.0, 3000)
    for decision in infer(held, attacks=[name]).results[0].measures.decisions:
        asked = float(re.search(r"at FPR ([\d.]+) %", decision.source).group(1)) / 100  # type: ignore[union-attr]
        assert decision.fpr.low <= 1.2 * asked and decision.fpr.value < 0.2
    scores = ATTACKS["reference"].scores(held.evidence)
    assert 0.4 < (scores[~held.member] > 0.5).mean() < 0.6  # what the fault would have said


def test_rates_are_of_members_above_and_never_of_others():
    """Non-members below a threshold were counted as members found."""
    scores, member = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]), np.array([1, 1, 0, 0, 0, 0])
    found = measure(scores, member, fprs=[0.25, 0.0], draws=9)
    assert [(p.tpr.hits, p.tpr.trials, p.false_alarms) for p in found.points] == [(2, 2, 1), (2, 2, 0)]
    turned = measure(-scores, member, fprs=[0.25, 0.0], draws=9)
    assert [(p.tpr.hits, p.tpr.trials) for p in turned.points] == [(0, 2), (0, 2)]


# --- direction and chance ----------------------------------------------------------------------------------------


def test_scores_that_point_the_wrong_way_are_no_finding():
    """Chance and reversed scores had a bound above 0; a direction chosen afterwards finds something in both."""
    losses, member = signals(2.0)
    wrong = measure(losses[0], member[0], thresholds={"beforehand": 4.0}, draws=199)
    assert wrong.area.value < 0.2 and wrong.area.p_value > 0.99
    assert all(p.p_value > 0.5 for p in wrong.points if p.p_value is not None)
    assert all(d.p_value > 0.99 and d.advantage.value < 0 for d in wrong.decisions)


def test_no_shuffles_at_all_are_refused_by_name():
    """A report asked for the mean of no dummy repetitions, and broke."""
    with pytest.raises(InputError, match="repeats must be a whole number of at least 1, got 0"):
        null_run([1.0, 2.0], [0, 1], repeats=0)


def test_a_larger_gap_has_a_larger_area():
    """A generalisation gap had the wrong sign, and an over-fitted model an area of one half."""
    areas = []
    for gap in (0.0, 1.0, 3.0):
        losses, member = signals(gap)
        areas.append(auc(ATTACKS["loss"].scores(Evidence(losses=losses[0])), member[0]))
    assert areas == sorted(areas) and areas[0] == pytest.approx(0.5, abs=0.07) and areas[2] > 0.9


# --- few shadows, many shadows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_shadows_are_said_and_never_a_score_of_minus_1e60(count):
    """The standard deviation of one signal is 0, and a small number beside it made scores of any size."""
    losses, member = signals(1.0, shadows=2)
    for mode in ("online", "offline", "offline-two-sided"):
        with pytest.raises(InputError, match=r"got"):
            lira(-losses[0], -losses[1 : 1 + count], member[1 : 1 + count], mode)


def test_equal_signals_of_all_shadows_make_no_score_of_any_size():
    """Two shadows that agree to the last bit: the variance of one record alone is 0."""
    losses, member = signals(1.0)
    member[1:3, 0], member[3:, 0] = True, False
    losses[1:3, 0] = losses[1, 0]
    assert np.abs(lira(-losses[0], -losses[1:], member[1:])).max() < 50


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_every_shadow_that_is_given_counts(attack):
    """A number of reference models was read and not used, or worked for one number only: here each changes scores."""
    losses, member = signals(1.0, records=60, shadows=37)
    losses, others = np.maximum(losses, 0.01), abs(signals(0.0, OTHERS, 37, seed=1)[0])

    def scores(shadows: np.ndarray) -> np.ndarray:
        if attack == "lira":
            return lira(-losses[0], -shadows, member[1:])
        return rmia(-losses[0], -shadows, member[1:], -others[0], shadow_population_signals=-others[1:])

    usual = scores(losses[1:])
    for row in range(37):
        changed = losses[1:].copy()
        changed[row] += 3.0
        assert not np.array_equal(scores(changed), usual), row


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_shadows_may_have_any_share_of_the_records(share):
    """A share was read from the settings and one half was taken, whatever it said."""
    losses, _ = signals(0.0, shadows=24)
    member = np.random.default_rng(6).random(losses.shape) < share
    losses = losses - 3.0 * member
    for name in ("lira", "lira-offline", "reference", "calibrated-loss"):
        attack = ATTACKS[name]
        evidence = Evidence(losses=losses[0], shadow_losses=losses[1:], shadow_member=member[1:])
        rows = attack.usable(evidence)
        assert rows.mean() > 0.85 and auc(attack.scores(evidence.of(rows)), member[0, rows]) > 0.75, name


@pytest.mark.parametrize("changed", ["losses", "shadow_losses", "shadow_member"])
def test_results_belong_to_their_shadows_and_their_target(changed):
    """Shadow models of another target were used again: nothing tied them to data or settings."""
    held = source(1.0, 50)
    array = getattr(held.evidence, changed).copy()
    array.flat[7] = not array.flat[7] if array.dtype == bool else array.flat[7] + 1e-9
    other = replace(held, evidence=replace(held.evidence, **{changed: array}))
    assert plan(held, {"seed": 1})["digest"] == plan(source(1.0, 50), {"seed": 1})["digest"]
    assert plan(held, {"seed": 1})["digest"] != plan(other, {"seed": 1})["digest"]
    assert plan(held, {"seed": 1})["digest"] != plan(held, {"seed": 2})["digest"]


def test_more_shadows_tell_more():
    """With 254 reference models a tool did worse than with a few, as its models were not the configured ones."""
    areas = []
    for count in (4, 254):
        found = [signals(1.0, 400, 254, seed) for seed in range(5)]
        areas.append(np.mean([auc(lira(-x[0], -x[1 : 1 + count], m[1 : 1 + count]), m[0]) for x, m in found]))
    assert areas[1] > areas[0] + 0.02


# --- records -----------------------------------------------------------------------------------------------------


def test_the_first_and_the_last_record_are_in_shadows_as_often_as_any():
    """Indices that were drawn below the length less one never had the last record."""
    coins = flip_coins(400, 9, np.random.SeedSequence(5))
    assert (np.abs(coins.mean(axis=0)[[0, -1]] - 0.5) < 0.13).all()


@pytest.mark.parametrize("name", ["loss", "reference", "lira", "lira-offline", "calibrated-loss"])
def test_the_last_record_is_scored_by_its_own_signal(name):
    held = source(1.0, 80).evidence
    losses = held.losses.copy()
    losses[-1] = np.median(held.shadow_losses[:, -1])
    before, after = ATTACKS[name].scores(held), ATTACKS[name].scores(replace(held, losses=losses))
    assert after[-1] != before[-1] and after[:-1].tolist() == before[:-1].tolist()


@pytest.mark.parametrize("name", ["loss", "reference", "lira", "lira-offline", "calibrated-loss"])
def test_a_score_that_is_none_is_not_dropped_in_silence(name):
    """Records with NaN were left out, and the rates were of the rest."""
    held = source(1.0, 80).evidence
    losses = held.losses.copy()
    losses[7] = np.nan
    with pytest.raises(InputError, match="NaN"):
        ATTACKS[name].scores(replace(held, losses=losses))


def test_one_bad_array_loses_one_attack_and_not_the_run():
    """The first NaN ended everything; here the others run, and the reason is in the report."""
    held = source(1.0)
    norms = np.where(np.arange(RECORDS) == 3, np.nan, 1.0)
    found = infer(replace(held, evidence=replace(held.evidence, gradient_norms=norms)))
    assert dict(found.refused)["gradient-norm"] == "norms must be numbers of at least 0, got others in 1 of 600 places"
    assert {"loss", "lira"} <= {r.attack.name for r in found.results}


def test_labels_are_not_asked_for_where_they_are_not_needed():
    """Labels were mandatory for attacks that do not look at them."""
    logits = np.random.default_rng(0).normal(size=(40, 3))
    for name in ("confidence", "entropy"):
        assert ATTACKS[name].needs == ("outputs",)
        assert np.isfinite(ATTACKS[name].scores(Evidence(logits=logits))).all()


# --- settings of RMIA --------------------------------------------------------------------------------------------


def test_without_a_word_rmia_has_the_papers_settings():
    """Another γ, and a temperature that nobody asked for, were a tool's defaults."""
    losses, member = signals(1.0)
    x, z = -np.maximum(losses, 0.01), -abs(signals(0.0, OTHERS, seed=1)[0])
    given = (x[0], x[1:], member[1:], z[0])
    for mode in ("online", "offline"):
        default = rmia(*given, shadow_population_signals=z[1:], mode=mode)
        said = rmia(*given, shadow_population_signals=z[1:], mode=mode, gamma=1.0, offline_a=0.3)
        assert default.tolist() == said.tolist()
    assert default.tolist() != rmia(*given, shadow_population_signals=z[1:], mode="offline", gamma=2.0).tolist()


def test_the_population_is_not_taken_from_the_records_under_attack():
    """It was drawn from a pool with the members in it; here it is given apart, and without it RMIA does not run."""
    held = source(1.0).evidence
    for name in ("rmia", "rmia-offline", "population"):
        assert "population" in ATTACKS[name].needs
        with pytest.raises(InputError, match="no model was trained on"):
            ATTACKS[name].scores(held)


# --- reports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "others"), [(1, 1), (1, 30), (3, 2)])
def test_a_handful_of_records_gives_numbers_or_says_why_not(members, others, tmp_path):
    """Too few points gave a rate of NaN, and from it a risk of NaN."""
    member = np.arange(members + others) < members
    losses = np.linspace(1.0, 2.0, len(member))
    write(infer(Source("few", Evidence(losses=losses), member), attacks=["loss"]), tmp_path)
    text = (tmp_path / "release" / "report.json").read_text()
    (attack,) = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["attacks"]
    assert "NaN" not in text and attack["auc"]["value"] == 1.0
    assert not re.search(r"\bnan\b", (tmp_path / "release" / "report.txt").read_text())
    assert all(point["resolvable"] == (point["tpr"] is not None) for point in attack["tpr_at_fpr"])


def test_words_that_look_like_no_number_stay_words(tmp_path):
    """To keep NaN out of JSON a tool replaced it inside texts as well."""
    wards = np.array(["NaN", "Infinity", "null"])[np.arange(RECORDS) % 3]
    write(infer(source(1.0, groups={"ward -Infinity": wards}), attacks=["loss"]), tmp_path)
    text = (tmp_path / "release" / "report.json").read_text()
    (attack,) = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["attacks"]
    assert [part["value"] for part in attack["slices"]] == ["Infinity", "NaN", "null"]
    assert {part["column"] for part in attack["slices"]} == {"ward -Infinity"}


def test_every_attack_is_reported_under_the_same_names(tmp_path):
    """Per record and in the report, fields had another name for each attack."""
    write(infer(source(1.0)), tmp_path)
    attacks = json.loads((tmp_path / "release" / "report.json").read_text())["attacks"]
    assert len(attacks) >= 5 and len({tuple(a) for a in attacks}) == 1
    files = sorted((tmp_path / "retained").glob("scores-*.safetensors"))
    assert len(files) == len(attacks)
    assert len({tuple(sorted(read_tensors(path)[0])) for path in files}) == 1


def test_no_record_is_written_where_the_report_is(tmp_path):
    """Saving what was attacked wrote the sensitive arrays beside it."""
    held = source(1.0, x=np.random.default_rng(0).normal(size=(RECORDS, 3)))
    pytest.importorskip("sklearn")
    write(infer(held, attacks=["loss"]), tmp_path)
    arrays = [path.name for path in tmp_path.rglob("*") if path.suffix in (".npz", ".npy", ".pkl")]
    assert arrays == []
    first = np.ascontiguousarray(held.x[0]).tobytes()
    assert not any(first in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_the_seed_is_used_and_nothing_else_is():
    """A seed in the settings did nothing, and the records that were looked at differed from run to run."""
    held = source(0.3)
    one, same, other = (infer(held, attacks=["loss"], seed=seed) for seed in (1, 1, 2))
    assert document(one) == document(same)
    assert one.results[0].scores.tolist() == other.results[0].scores.tolist()
    assert one.results[0].null != other.results[0].null


def test_evidence_has_no_place_for_the_targets_members():
    """A guesser that has seen the answers: tuned on a model whose coins are the target's turned round."""
    names = {f.name for f in fields(Evidence)}
    assert "member" not in names and {name for name in names if "member" in name} == {"shadow_member"}
    held = source(1.0)
    flipped = infer(replace(held, member=~held.member), attacks=["lira", "reference"])
    usual = infer(held, attacks=["lira", "reference"])
    for one, two in zip(usual.results, flipped.results, strict=True):
        assert one.scores.tolist() == two.scores.tolist()
        assert [d.threshold for d in one.measures.decisions] == [d.threshold for d in two.measures.decisions]
