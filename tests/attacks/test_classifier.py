"""The learned attack: any classifier, the right column, thin classes said, rows in any order."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dpaudit.attacks import ThinClassWarning, auc, learned
from dpaudit.errors import InputError

SHADOWS, RECORDS, CLASSES, TARGETS = 4, 400, 3, 2


def world(seed: int = 0, gain: float = 2.5):
    """Logits of models that are surer of their members."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=RECORDS)
    member = rng.random((SHADOWS + TARGETS, RECORDS)) < 0.5
    logits = rng.normal(size=(*member.shape, CLASSES))
    logits[:, np.arange(RECORDS), labels] += 1 + gain * member
    return logits[SHADOWS:], labels, logits[:SHADOWS], member[:SHADOWS], member[SHADOWS:]


def linear():
    return make_pipeline(StandardScaler(), LogisticRegression())


class Backwards(ClassifierMixin, BaseEstimator):
    """Logistic regression that lists its classes from 1 to 0."""

    def fit(self, x, y):
        self.inner_ = linear().fit(x, y)
        self.classes_ = np.array([1, 0])
        return self

    def predict_proba(self, x):
        return self.inner_.predict_proba(x)[:, ::-1]


class Deciding(ClassifierMixin, BaseEstimator):
    """A decision function only, for a first class of 1: positive says 0."""

    def fit(self, x, y):
        self.inner_ = linear().fit(x, y)
        self.classes_ = np.array([1, 0])
        return self

    def decision_function(self, x):
        return -self.inner_.decision_function(x)


@pytest.mark.parametrize("by_class", [True, False])
@pytest.mark.parametrize(
    "classifier",
    [None, linear(), RandomForestClassifier(20), Backwards(), Deciding(), make_pipeline(StandardScaler(), LinearSVC())],
    ids=["default", "logistic", "forest", "backwards", "deciding", "svm"],
)
def test_members_score_higher_whatever_the_classifier(classifier, by_class):
    *arrays, truth = world()
    scores = learned(*arrays, classifier=classifier, by_class=by_class)
    assert scores.shape == truth.shape and scores.dtype == np.float64
    assert auc(scores, truth) > 0.75


def test_the_member_column_is_found_by_its_name():
    """AIJack #125: the wrong column of predict_proba gives the mirror image."""
    *arrays, _ = world()
    usual = learned(*arrays, classifier=linear())
    assert learned(*arrays, classifier=Backwards()) == pytest.approx(usual)
    assert (
        np.argsort(learned(*arrays, classifier=Deciding(), by_class=False)[0]).tolist()
        == np.argsort(learned(*arrays, classifier=linear(), by_class=False)[0]).tolist()
    )


def test_without_signal_it_is_a_coin():
    """Null: 3 standard errors of the AUC of 400 + 400 records."""
    *arrays, truth = world(gain=0.0)
    assert auc(learned(*arrays, classifier=linear()), truth) == pytest.approx(0.5, abs=3 * 0.021)


def test_the_seed_decides_and_nothing_global_does():
    *arrays, _ = world()
    forest = RandomForestClassifier(5)
    first = learned(*arrays, classifier=forest, seed=1)
    np.random.seed(3)  # noqa: NPY002 - to show that it does not matter
    assert learned(*arrays, classifier=forest, seed=1).tolist() == first.tolist()
    assert learned(*arrays, classifier=forest, seed=np.random.default_rng(1)).tolist() == first.tolist()
    assert learned(*arrays, classifier=forest, seed=2).tolist() != first.tolist()
    assert forest.random_state is None and not hasattr(forest, "classes_")


@pytest.mark.parametrize("classifier", [None, RandomForestClassifier(5)], ids=["default", "forest"])
def test_rows_may_be_in_any_order_and_inputs_stay(classifier):
    outputs, labels, shadows, member, _ = arrays = world()
    kept = [a.copy() for a in arrays]
    scores = learned(outputs, labels, shadows, member, classifier=classifier)
    assert all((a == b).all() for a, b in zip(arrays, kept, strict=True))
    order, rows = np.random.default_rng(0).permutation(RECORDS), np.random.default_rng(1).permutation(SHADOWS)
    moved = learned(outputs[:, order], labels[order], shadows[rows][:, order], member[rows][:, order],
                    classifier=classifier)  # fmt: skip
    assert moved.tolist() == scores[:, order].tolist()
    assert learned(outputs[1], labels, shadows, member, classifier=classifier).tolist() == scores[1].tolist()


def test_shadows_may_have_other_records():
    outputs, labels, *_, truth = world(0)
    _, shadow_labels, shadows, member, _ = world(1)
    scores = learned(outputs, labels, shadows[:, :300], member[:, :300], shadow_labels[:300], classifier=linear())
    assert auc(scores, truth) > 0.75


def test_a_thin_class_is_judged_by_all_and_said():
    outputs, labels, shadows, member, _ = world()
    labels = np.where((labels == 2) & (np.arange(RECORDS) > 12), 1, labels)
    assert 0 < (labels == 2).sum() < 10
    with pytest.warns(ThinClassWarning, match="1 of 3 classes have fewer than 20 members or others .*: 2$"):
        scores = learned(outputs, labels, shadows, member, classifier=linear())
    pooled = learned(outputs, labels, shadows, member, classifier=linear(), by_class=False)
    assert scores[:, labels == 2] == pytest.approx(pooled[:, labels == 2], rel=1e-12)
    assert scores[:, labels == 0] != pytest.approx(pooled[:, labels == 0], rel=1e-3)


def test_a_class_that_no_shadow_record_has():
    """SACRO-ML PR #34: a class that is missing from a split is no reason to crash."""
    outputs, labels, shadows, member, _ = world()
    shadow_labels = np.where(labels == 2, 0, labels)
    with pytest.warns(ThinClassWarning, match=": 2$"):
        assert np.isfinite(learned(outputs, labels, shadows, member, shadow_labels, classifier=linear())).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: k.update(shadow_member=np.ones_like(k["shadow_member"])), "at least 20 members and 20 others"),
        (lambda k: k.update(shadow_member=k["shadow_member"] + 1), "true or false"),
        (lambda k: k.update(shadow_member=k["shadow_member"][:1]), "shadow_outputs must be"),
        (lambda k: k.update(shadow_outputs=k["shadow_outputs"][0]), "shadow_outputs must be"),
        (lambda k: k.update(shadow_outputs=k["shadow_outputs"][..., :2], shadow_labels=np.zeros(RECORDS, int)),
         "with the classes of outputs"),
        (lambda k: k.update(outputs=k["outputs"] * np.nan), "finite"),
        (lambda k: k.update(labels=k["labels"] + 9), "labels must be"),
    ],
)  # fmt: skip
def test_bad_input(change, message):
    outputs, labels, shadows, member, _ = world()
    keywords = {"outputs": outputs, "labels": labels, "shadow_outputs": shadows, "shadow_member": member}
    change(keywords)
    with pytest.raises(InputError, match=message):
        learned(**keywords, by_class=False, classifier=linear())
