"""The learned attack: a classifier that shadow models teach what members look like (Shokri et al. 2017)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, need_extra
from .arrays import as_array, require_flags
from .signals import correctness, cross_entropy, log_softmax, logit_margin

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

LARGEST = 10
"""So many of a record's largest probabilities are features."""
FEWEST = 20
"""A class of its own needs so many members and as many others among the shadows' records."""


class ThinClassWarning(UserWarning):
    """Some classes had too few records for a classifier of their own."""


def learned(
    outputs: ArrayLike,
    labels: ArrayLike,
    shadow_outputs: ArrayLike,
    shadow_member: ArrayLike,
    shadow_labels: ArrayLike | None = None,
    *,
    classifier: Any = None,
    by_class: bool = True,
    seed: int | np.random.Generator = 0,
) -> Array:
    """Probabilities of membership from a classifier trained on shadow models; needs shadows and scikit-learn.

    Features of a record under a model are the logarithms of its ten largest probabilities in order, its loss, the
    log-odds of its label, and whether the prediction is right. The shadows' records with them teach a classifier for
    each class (as in the paper), or one for all, which sees the label as well.

    Args:
        outputs: logits or logarithms of probabilities of the target models, shape ``(records, classes)`` or
            ``(targets, records, classes)``.
        labels: shape ``(records,)``.
        shadow_outputs: the same of the shadow models, shape ``(shadows, shadow records, classes)``; these may be the
            same records or others.
        shadow_member: shape ``(shadows, shadow records)``.
        shadow_labels: shape ``(shadow records,)``; by default the records are the same, and so are the labels.
        classifier: any classifier of scikit-learn's kind, fitted as a clone; by default gradient-boosted trees.
        by_class: a class with fewer than 20 members or others among the shadows' records is judged by the classifier
            for all, and a :class:`ThinClassWarning` says which.
        seed: for every ``random_state`` of the classifier that is None.

    Returns:
        Shape of ``outputs`` without the classes: the classifier's probability of its class "member", or its decision
        function where it gives no probabilities. Rows are put in order before they teach, so that their order does not
        matter.

    Raises:
        InputError: shapes that do not fit, or shadows with too few members or others to learn from.
        MissingExtra: scikit-learn is not installed.

    >>> rng = np.random.default_rng(0)
    >>> labels, member = rng.integers(2, size=50), rng.random((3, 50)) < 0.5
    >>> logits = rng.normal(size=(3, 50, 2)) + 4 * member[..., None] * np.eye(2)[labels]
    >>> scores = learned(logits[0], labels, logits[1:], member[1:], by_class=False)
    >>> bool(scores[member[0]].mean() > scores[~member[0]].mean() + 0.3)
    True
    """
    member = as_array("shadow_member", shadow_member)
    same = labels if shadow_labels is None else shadow_labels
    targets, shadows = _features(outputs, labels), _features(shadow_outputs, same)
    if (
        np.ndim(shadow_outputs) != 3
        or member.shape != shadows.shape[:-1]
        or np.shape(outputs)[-1] != np.shape(shadow_outputs)[-1]
    ):
        raise InputError(
            "shadow_outputs must be (shadows, records, classes), with the classes of outputs, and shadow_member "
            f"(shadows, records), got {np.shape(shadow_outputs)}, {np.shape(outputs)} and {member.shape}"
        )
    require_flags("shadow_member", member)
    classes = np.shape(outputs)[-1]
    lesson = _Lesson(
        shadows.reshape(-1, shadows.shape[-1]),
        np.tile(np.asarray(same), len(shadows)),
        member.astype(bool).ravel(),
        classes,
    )
    asked = targets.reshape(-1, targets.shape[-1])
    asked_labels = np.tile(np.asarray(labels), len(asked) // max(len(np.asarray(labels)), 1))
    scores = _judge(lesson, asked, asked_labels, _seeded(classifier, seed), by_class)
    return scores.reshape(np.shape(outputs)[:-1])


class _Lesson:
    """What the shadows teach: rows of features with a label and a membership, in an order of their own."""

    def __init__(self, features: Array, labels: Labels, member: NDArray[np.bool_], classes: int) -> None:
        order = np.lexsort([member, *features.T, labels])
        self.features, self.labels, self.member = features[order], labels[order], member[order]
        self.classes = classes

    def of(self, label: int) -> tuple[Array, NDArray[np.bool_]]:
        """Features and membership of one class."""
        mine = self.labels == label
        return self.features[mine], self.member[mine]

    def with_labels(self, features: Array, labels: Labels) -> Array:
        """Features with the label beside them, one column a class."""
        return np.column_stack([features, np.eye(self.classes)[labels]])


def _judge(lesson: _Lesson, asked: Array, labels: Labels, classifier: Any, by_class: bool) -> Array:
    present = [int(label) for label in np.unique(labels)]
    rich = [label for label in present if _enough(lesson.of(label)[1])] if by_class else []
    scores = np.empty(len(asked))
    for label in rich:
        mine = labels == label
        scores[mine] = _taught(classifier, *lesson.of(label), asked[mine])
    rest = ~np.isin(labels, rich)
    if rest.any():
        if by_class:
            thin = ", ".join(str(label) for label in present if label not in rich)
            warnings.warn(
                f"{len(present) - len(rich)} of {len(present)} classes have fewer than {FEWEST} members or others "
                f"among the shadows' records and were judged by the classifier for all: {thin}",
                ThinClassWarning,
                stacklevel=3,
            )
        if not _enough(lesson.member):
            raise InputError(
                f"learned needs at least {FEWEST} members and {FEWEST} others among the shadows' records, got "
                f"{int(lesson.member.sum())} and {int((~lesson.member).sum())}; train more shadows"
            )
        features = lesson.with_labels(lesson.features, lesson.labels)
        scores[rest] = _taught(classifier, features, lesson.member, lesson.with_labels(asked[rest], labels[rest]))
    return scores


def _enough(member: NDArray[np.bool_]) -> bool:
    return bool(min(member.sum(), (~member).sum()) >= FEWEST)


def _taught(classifier: Any, features: Array, member: NDArray[np.bool_], asked: Array) -> Array:
    """Scores of a fresh clone; the column of members is found by its name, not by its place."""
    from sklearn.base import clone
    from threadpoolctl import threadpool_limits

    # One thread: tasks are small, and threads that wait for busy cores are far slower than none.
    with threadpool_limits(1):
        model = clone(classifier).fit(features, member.astype(np.int64))
        column = int(np.flatnonzero(np.asarray(model.classes_) == 1)[0])
        if hasattr(model, "predict_proba"):
            return np.asarray(model.predict_proba(asked), np.float64)[:, column]
        decision = np.asarray(model.decision_function(asked), np.float64)
        return decision if column == 1 else -decision


def _seeded(classifier: Any, seed: int | np.random.Generator) -> Any:
    """A clone whose empty ``random_state`` settings, nested ones too, are filled from the seed, in order of name."""
    try:
        from sklearn.base import clone
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise need_extra("scikit-learn") from None
    rng = np.random.default_rng(seed)
    if classifier is None:
        classifier = HistGradientBoostingClassifier(max_leaf_nodes=15, early_stopping=False)
    model = clone(classifier)
    for name, value in sorted(model.get_params(deep=True).items()):
        if name.rpartition("__")[2] == "random_state" and value is None:
            model.set_params(**{name: int(rng.integers(2**31))})
    return model


def _features(outputs: ArrayLike, labels: ArrayLike) -> Array:
    """Shape ``(…, records, features)``."""
    loss = cross_entropy(outputs, labels)
    largest = log_softmax(outputs)
    largest = np.sort(largest, axis=-1)[..., ::-1][..., :LARGEST]
    own = np.stack([loss, logit_margin(outputs, labels), correctness(outputs, labels)], axis=-1)
    return np.concatenate([largest, own], axis=-1)
