"""Every attack by name: one orientation, refused clearly without what it needs, blind to order and to the target."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from dpaudit.attacks.evidence import NEEDS, Evidence
from dpaudit.attacks.metrics import auc
from dpaudit.attacks.registry import ATTACKS, finite
from dpaudit.attacks.signals import cross_entropy, logit_margin
from dpaudit.errors import InputError

RECORDS, SHADOWS, CLASSES, OTHERS, STEPS = 160, 12, 4, 90, 30


@cache
def world():
    """A target and shadows that are surer of their members; and the truth."""
    rng = np.random.default_rng(0)
    labels, member = rng.integers(CLASSES, size=RECORDS), rng.random((SHADOWS + 1, RECORDS)) < 0.5
    logits = rng.normal(size=(RECORDS, CLASSES)) + 0.5 * rng.normal(size=(SHADOWS + 1, RECORDS, CLASSES))
    logits[:, np.arange(RECORDS), labels] += 0.5 + 2.5 * member
    others = rng.integers(CLASSES, size=OTHERS)
    outside = rng.normal(size=(SHADOWS + 1, OTHERS, CLASSES))
    outside[:, np.arange(OTHERS), others] += 0.5
    truth = member[0]
    evidence = Evidence(
        logits=logits[0],
        labels=labels,
        shadow_logits=logits[1:],
        shadow_member=member[1:],
        population_logits=outside[0],
        population_labels=others,
        shadow_population_logits=outside[1:],
        traces=np.linspace(2.0, np.where(truth, 0.2, 1.6), 9) + 0.1 * rng.random((9, RECORDS)),
        gradient_norms=rng.exponential(np.where(truth, 0.3, 1.0)),
        perplexities=rng.normal(np.where(truth, 18.0, 22.0), 2.0),
        reference_perplexities=rng.normal(22.0, 2.0, size=400),
        projections=rng.normal(size=(RECORDS, STEPS)) + 0.6 * truth[:, None],
        steps={"noise_deviation": 1.0, "size": 0.6, "sampling_rate": 1.0, "sampler": "full-batch"},
    )  # fmt: skip
    return evidence, truth


@pytest.mark.parametrize("name", ATTACKS)
def test_members_score_higher(name):
    evidence, truth = world()
    scores = ATTACKS[name].scores(evidence, seed=1)
    assert scores.shape == (RECORDS,) and scores.dtype == np.float64 and np.isfinite(scores).all()
    assert auc(scores, truth) > 0.6, name


def rearranged(evidence: Evidence, order: np.ndarray) -> Evidence:
    axis = {"shadow_losses": 1, "shadow_logits": 1, "shadow_member": 1, "traces": 1}
    names = ("logits", "labels", "gradient_norms", "perplexities", "projections", *axis)
    found = {n: getattr(evidence, n) for n in names}
    return dataclasses.replace(
        evidence, **{n: np.take(v, order, axis.get(n, 0)) for n, v in found.items() if v is not None}
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_the_order_of_records_is_irrelevant(name):
    evidence, _ = world()
    order = np.random.default_rng(5).permutation(RECORDS)
    there = ATTACKS[name].scores(rearranged(evidence, order), seed=1)
    assert there == pytest.approx(ATTACKS[name].scores(evidence, seed=1)[order], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ATTACKS)
def test_evidence_is_not_changed_and_a_seed_repeats(name):
    evidence, _ = world()
    arrays = {f.name: getattr(evidence, f.name) for f in dataclasses.fields(evidence) if f.name != "steps"}
    before = {n: v.copy() for n, v in arrays.items() if v is not None}
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - to see that nobody draws from it
    one, two = (ATTACKS[name].scores(evidence, seed=3) for _ in range(2))
    assert one.tolist() == two.tolist()
    assert all((arrays[n] == v).all() for n, v in before.items())
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@pytest.mark.parametrize("name", ATTACKS)
def test_without_what_it_needs_an_attack_refuses_and_names_it(name):
    attack = ATTACKS[name]
    assert attack.needs and set(attack.needs) <= set(NEEDS)
    nothing = Evidence(gradient_norms=np.ones(3)) if "gradients" not in attack.needs else Evidence(losses=np.ones(3))
    missing = attack.missing(nothing)
    assert missing == attack.needs
    with pytest.raises(InputError) as refused:
        attack.scores(nothing)
    assert str(refused.value).startswith(f"{name} needs ")
    assert all(NEEDS[need] in str(refused.value) for need in missing)


def test_losses_alone_are_enough_for_margins():
    evidence, _ = world()
    losses = cross_entropy(evidence.logits, evidence.labels)
    shadows = cross_entropy(evidence.shadow_logits, evidence.labels)
    bare = Evidence(losses=losses, shadow_losses=shadows, shadow_member=evidence.shadow_member)
    assert bare.margins[0] == pytest.approx(logit_margin(evidence.logits, evidence.labels), rel=1e-9)
    for name in ("loss", "calibrated-loss", "reference", "lira", "lira-offline"):
        assert ATTACKS[name].scores(bare) == pytest.approx(ATTACKS[name].scores(evidence), rel=1e-6, abs=1e-9)
    assert "outputs" not in bare.present and "losses" in bare.present


def test_losses_that_are_no_cross_entropies_are_taken_as_they_are():
    rng = np.random.default_rng(1)
    bare = Evidence(losses=rng.normal(size=20), shadow_losses=rng.normal(size=(8, 20)),
                    shadow_member=np.arange(160).reshape(8, 20) % 3 == 0)  # fmt: skip
    assert bare.margins[0].tolist() == (-np.asarray(bare.losses)).tolist()
    assert np.isfinite(ATTACKS["lira"].scores(bare)).all()
    with pytest.raises(InputError, match="logarithms"):
        replaced = dataclasses.replace(bare, population_losses=rng.normal(size=9),
                                       shadow_population_losses=rng.normal(size=(8, 9)))  # fmt: skip
        ATTACKS["rmia"].scores(replaced)


def test_a_loss_of_zero_has_a_finite_margin():
    bare = Evidence(losses=np.array([0.0, 1e-30, 0.5]), shadow_losses=np.full((4, 3), 0.3, np.float32),
                    shadow_member=np.zeros((4, 3), bool))  # fmt: skip
    target, shadows = bare.margins
    assert np.isfinite(target).all() and shadows.dtype == np.float32


def test_a_shadow_takes_the_targets_place():
    evidence, _ = world()
    other, truth = evidence.shadow_as_target(3)
    assert (other.logits == evidence.shadow_logits[3]).all()
    assert (truth == evidence.shadow_member[3]).all()
    assert len(other.shadow_member) == SHADOWS - 1
    assert (other.population_logits == evidence.shadow_population_logits[3]).all()
    assert other.traces is None and other.gradient_norms is None and other.projections is None
    rest = np.arange(SHADOWS) != 3
    assert (other.shadow_logits == evidence.shadow_logits[rest]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(3, int)}, "must have"),
        ({"shadow_member": np.ones((SHADOWS, 5))}, "must have"),
        ({"losses": np.ones((3, 3))}, "losses must be"),
        ({"shadow_logits": np.ones((SHADOWS, RECORDS))}, "shadow_logits must be"),
        ({"traces": np.ones(RECORDS)}, "traces must be"),
    ],
)
def test_shapes_that_do_not_fit(change, message):
    evidence, _ = world()
    with pytest.raises(InputError, match=message):
        dataclasses.replace(evidence, **change)


def test_one_shadow_is_refused_by_those_that_need_more():
    evidence, _ = world()
    names = ("shadow_logits", "shadow_member", "shadow_population_logits")
    one = dataclasses.replace(evidence, **{name: getattr(evidence, name)[:1] for name in names})
    with pytest.raises(InputError, match="shadow"):
        ATTACKS["lira"].scores(one)


def test_infinite_scores_become_the_first_and_the_last():
    scores = finite(np.array([-np.inf, 3.0, np.inf, -1.0]))
    assert np.isfinite(scores).all() and np.argsort(scores).tolist() == [0, 3, 1, 2]
    assert finite(np.array([-np.inf, np.inf])).tolist() == [-0.5, 0.5]
