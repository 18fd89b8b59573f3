"""Two controls beside every number: can members be told without the model, and what would luck have shown?"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError, need_extra
from .arrays import as_array
from .chance import DRAWS
from .metrics import FPRS, auc, chosen_on_half, roc

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Score = Callable[[Flags], ArrayLike]

LEAST = 20
_MOST_RECORDS, _MOST_FEATURES, _PARTS, _GROUPS, _BINS = 10_000, 1_000, 5, 64, 63
_Learner = Callable[[Array, Flags, Array], Array]


@dataclass(frozen=True)
class Baseline:
    """What classifiers that never see the model tell of membership.

    Attributes:
        biased: whether members could be told from non-members without the model, at ``significance``: then every
            attack's success may come from the split and not from the model.
        auc: of the classifier with the smallest p-value, over records that it was not fitted to.
        p_value: the smallest times the number of classifiers (Bonferroni); exact.
        significance: the probability of ``biased`` for a fair split.
        classifier: which one; ``aucs`` holds all by name.
        records: how many were predicted.
        seen: what the classifiers saw, in words.
    """

    biased: bool
    auc: float
    p_value: float
    significance: float
    classifier: str
    aucs: dict[str, float]
    records: int
    seen: str


def blind_baseline(
    x: ArrayLike | None,
    member: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    seed: int = 0,
    significance: float = 0.05,
    draws: int = DRAWS,
) -> Baseline:
    """Can members be told from non-members without the model?

    The records are put in an order that depends on their content and the seed alone, and cut into five parts. Logistic
    regression, gradient boosting (both on features and labels) and the share of members per label are fitted to all
    earlier parts and predict the next one. Tied predictions are parted by lot. Given the earlier parts, the ranks of
    the members of a part then follow the same law whatever was learnt, so that the test is exact.

    Args:
        x: features, shape ``(records, ...)``; None to look at labels alone. Of more than 10,000 records or 1,000
            features, so many are taken.
        member: was the record in the training set? Shape ``(records,)``.
        labels: of the records, numbers or text, or None.
        seed: for the order, the boosting and the lots.
        significance: probability of calling a fair split biased.
        draws: redrawn memberships; the smallest p-value is 3 / (1 + draws).

    Raises:
        InputError: shapes that differ, features that are not finite, neither features nor labels, or fewer than 20
            members or non-members.
        MissingExtra: ``x`` is given and scikit-learn is not installed.
    """
    significance, draws = check.significance(significance), check.integer("draws", draws, 1)
    m = _flags(member)
    features, names = _features(x, labels, len(m))
    order = _by_content(features, check.integer("seed", seed, 0))[:_MOST_RECORDS]
    rng = np.random.default_rng([seed, len(m)])
    learners = _learners(x is not None, labels is not None, seed)
    x_in_order, m_in_order = features[order], m[order]
    sums = _drawn_sums(m_in_order, rng, draws)
    with nullcontext() if x is None else _one_thread():
        found = {name: _tested(learner, x_in_order, m_in_order, sums, rng) for name, learner in learners.items()}
    best = min(found, key=lambda name: found[name][1])
    p_value = min(found[best][1] * len(found), 1.0)
    return Baseline(
        biased=p_value <= significance,
        auc=found[best][0],
        p_value=p_value,
        significance=significance,
        classifier=best,
        aucs={name: value for name, (value, _) in found.items()},
        records=len(order) - int(_bounds(len(order))[1]),
        seen=names,
    )


def _one_thread() -> AbstractContextManager[Any]:
    """On a busy machine, threads that wait for each other take longer than such small fits."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # it comes with scikit-learn
        raise need_extra("scikit-learn") from None
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def _flags(member: ArrayLike) -> Flags:
    flags = as_array("member", member)
    if flags.ndim != 1 or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise InputError(f"member must be true or false (1 or 0) per record, got {flags.dtype} {flags.shape}")
    m: Flags = flags.astype(bool)
    if min(m.sum(), (~m).sum()) < LEAST:
        raise InputError(f"a blind baseline needs at least {LEAST} members and {LEAST} others, got {m.sum()} and "
                         f"{(~m).sum()}")  # fmt: skip
    return m


def _features(x: ArrayLike | None, labels: ArrayLike | None, records: int) -> tuple[Array, str]:
    """Everything known of a record as numbers: the label's number first, if there is one, then the features."""
    if x is None and labels is None:
        raise InputError("a blind baseline needs features or labels, got neither")
    parts: list[Array] = []
    words = []
    if labels is not None:
        kinds, number = np.unique(as_array("labels", labels), return_inverse=True)
        parts.append(_rows("labels", number.reshape(-1), records).reshape(-1, 1))
        words.append(f"labels ({len(kinds)} kinds)")
    if x is not None:
        flat = _rows("x", as_array("x", x), records).reshape(records, -1)
        kept = np.unique(np.linspace(0, flat.shape[1] - 1, min(flat.shape[1], _MOST_FEATURES)).round().astype(int))
        parts.append(flat[:, kept])
        words.append(f"{len(kept):,} features" + (f" of {flat.shape[1]:,}" if len(kept) < flat.shape[1] else ""))
    return np.concatenate(parts, axis=1), " and ".join(words)


def _rows(name: str, array: NDArray[Any], records: int) -> Array:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers, got {array.dtype}")
    out: Array = array.astype(np.float64)
    if out.ndim == 0 or len(out) != records or out.size == 0:
        raise InputError(f"{name} must have one row per record ({records}), got shape {out.shape}")
    if not np.isfinite(out).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    return out


def _by_content(features: Array, seed: int) -> NDArray[np.intp]:
    """An order of the records that does not depend on how they came, nor on who is a member."""
    key = seed.to_bytes(16, "little")
    names = [hashlib.blake2b(row.tobytes(), digest_size=8, key=key).digest() for row in features + 0.0]
    return np.argsort(np.array(names, "S8"), kind="stable")


def _bounds(records: int) -> NDArray[np.intp]:
    """Where the parts begin, and the end."""
    return np.linspace(0, records, _PARTS + 1).round().astype(np.intp)


def _learners(with_features: bool, with_labels: bool, seed: int) -> dict[str, _Learner]:
    found: dict[str, _Learner] = {"share of members per label": _per_label} if with_labels else {}
    if with_features:
        found |= {"logistic regression": _logistic(with_labels), "gradient boosting": _boosting(with_labels, seed)}
    return found


def _per_label(known: Array, member: Flags, new: Array) -> Array:
    kinds = int(max(known[:, 0].max(), new[:, 0].max())) + 1
    inside, outside = (np.bincount(known[side, 0].astype(int), minlength=kinds) for side in (member, ~member))
    return (np.log(inside + 0.5) - np.log(outside + 0.5))[new[:, 0].astype(int)]


def _logistic(with_labels: bool) -> _Learner:
    def learn(known: Array, member: Flags, new: Array) -> Array:
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.linear_model import LogisticRegression
        except ImportError:
            raise need_extra("scikit-learn") from None
        first, second = (_spread_out(part, known, with_labels) for part in (known, new))
        mean, scale = first.mean(axis=0), first.std(axis=0)
        scale[scale == 0] = 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a rough fit is a weaker baseline, not a wrong one
            model = LogisticRegression(C=0.1, max_iter=200).fit((first - mean) / scale, member)
        out: Array = model.decision_function((second - mean) / scale)
        return out

    return learn


def _spread_out(part: Array, known: Array, with_labels: bool) -> Array:
    """The label as one column per kind that was seen."""
    if not with_labels:
        return part
    return np.concatenate([part[:, :1] == np.unique(known[:, 0]), part[:, 1:]], axis=1).astype(np.float64)


def _boosting(with_labels: bool, seed: int) -> _Learner:
    def learn(known: Array, member: Flags, new: Array) -> Array:
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier
        except ImportError:
            raise need_extra("scikit-learn") from None
        kinds = np.unique(known[:, 0]) if with_labels else np.zeros(0)
        label = [0] if with_labels and len(kinds) <= _BINS else None
        first, second = known, new
        if label:  # a kind that was not seen yet is unknown to the trees
            first, second = known.copy(), new.copy()
            first[:, 0] = np.searchsorted(kinds, known[:, 0])
            second[:, 0] = np.where(np.isin(new[:, 0], kinds), np.searchsorted(kinds, new[:, 0]), np.nan)
        model = HistGradientBoostingClassifier(
            max_iter=50, max_leaf_nodes=15, max_bins=_BINS, categorical_features=label, early_stopping=False,
            random_state=seed % 2**32,
        ).fit(first, member)  # fmt: skip
        out: Array = model.decision_function(second)
        return out

    return learn


def _parts(member: Flags) -> list[tuple[int, int]]:
    """Where the parts that are predicted begin and end; those that can't be learnt or tested are left out."""
    cuts = [int(cut) for cut in _bounds(len(member))]
    return [
        (start, end)
        for start, end in itertools.pairwise(cuts[1:])
        if 0 < member[:start].sum() < start and 0 < member[start:end].sum() < end - start
    ]


def _groups(records: int) -> tuple[NDArray[np.intp], Array]:
    """For each rank the group that it falls into, and the middle rank of each group."""
    group = np.arange(records) * _GROUPS // records
    size = np.bincount(group, minlength=_GROUPS)
    return group, np.cumsum(size) - (size - 1) / 2


def _drawn_sums(member: Flags, rng: np.random.Generator, draws: int) -> Array:
    """Rank sums of members drawn at random in each part, over all parts."""
    sums = np.zeros(draws)
    for start, end in _parts(member):
        group, middle = _groups(end - start)
        size = np.bincount(group, minlength=_GROUPS)
        members = int(member[start:end].sum())
        sums += rng.multivariate_hypergeometric(size, members, size=draws, method="marginals") @ middle
    return np.sort(sums)


def _tested(
    learner: _Learner, features: Array, member: Flags, sums: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """AUC over the pairs within each predicted part, and the p-value of the members' rank sum."""
    right = pairs = statistic = 0.0
    for start, end in _parts(member):
        scores, truth = learner(features[:start], member[:start], features[start:end]), member[start:end]
        weight = float(truth.sum() * (~truth).sum())
        right, pairs = right + auc(scores, truth) * weight, pairs + weight
        # Parted by lot, the ranks of the members have one law, whatever the classifier learnt.
        place = np.argsort(np.lexsort((rng.random(len(scores)), scores)))
        group, middle = _groups(len(scores))
        statistic += float(middle[group[place[truth]]].sum())
    at_least = len(sums) - int(np.searchsorted(sums, statistic - 1e-6))
    return (right / pairs if pairs else 0.5), (1 + at_least) / (1 + len(sums))


@dataclass(frozen=True)
class Spread:
    """A number over shuffled memberships: its mean, and the range that holds 95 % of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class NullDecision:
    """What a threshold does where membership is shuffled: as many members as others lie above it.

    Attributes:
        tpr, fpr: rates above the threshold.
        advantage: TPR − FPR.
    """

    tpr: Spread
    fpr: Spread
    advantage: Spread


@dataclass(frozen=True)
class NullRun:
    """What the same attack shows where there is nothing to show.

    Attributes:
        repeats: how many memberships were shuffled.
        auc: area under the ROC curve.
        tprs: true positive rates at the false positive rates asked for, in order.
        best_advantage: the largest TPR − FPR over all thresholds; above 0 although there is nothing.
        decisions: at the thresholds asked for, in order; without any, at one that half of the records chose for the
            other, anew for every shuffle.
    """

    repeats: int
    auc: Spread
    tprs: tuple[Spread, ...]
    best_advantage: Spread
    decisions: tuple[NullDecision, ...]


def null_run(
    scores: ArrayLike | Score,
    member: ArrayLike,
    *,
    within: ArrayLike | None = None,
    fprs: Sequence[float] = FPRS,
    thresholds: Sequence[float] = (),
    repeats: int = 200,
    seed: int = 0,
) -> NullRun:
    """The same design with shuffled membership, attacked and measured again.

    Args:
        scores: of the attack, shape ``(records,)``. An attack that was given the target's membership, for a threshold
            or as somebody's shadow, must be given as a function from membership to scores: it is called again for
            every shuffle, and what it gains by having looked shows here.
        member: was the record in the target's training set? Shape ``(records,)``.
        within: a group per record; members are exchanged inside groups only. For designs that fix how many members
            each group has.
        fprs: false positive rates.
        thresholds: from elsewhere, as in :func:`~dpaudit.attacks.measure`.
        repeats: how many shuffles.
        seed: of the shuffles.

    Raises:
        InputError: shapes that differ, NaN scores, all members or none.
    """
    repeats = check.integer("repeats", repeats, 1)
    flags = as_array("member", member)
    right = flags.ndim == 1 and flags.dtype.kind in "biuf" and np.isin(flags, (0, 1)).all()
    if not right or flags.all() or not flags.any():
        raise InputError(f"member must hold true and false (1 and 0), one per record, got {flags.dtype} {flags.shape}")
    rng = np.random.default_rng([check.integer("seed", seed, 0), repeats])
    steps = [check.number("fpr", f, 0.0, 1.0) for f in fprs]
    groups = np.zeros(len(flags), int) if within is None else np.unique(np.asarray(within), return_inverse=True)[1]
    if groups.shape != flags.shape:
        raise InputError(f"within must be one group per record ({len(flags)}), got shape {groups.shape}")
    if not callable(scores):
        scores = _of_records(scores, flags)
        order = np.lexsort((flags, scores, groups))  # whatever order the rows came in
        scores, flags, groups = scores[order], flags[order], groups[order]
    cuts = tuple(thresholds)
    shuffles = _shuffles(flags.astype(bool), groups, repeats, rng)
    measured = np.array([_numbers(scores, m, steps, cuts, rng) for m in shuffles])
    auc_, best, *others = (_spread(column) for column in measured.T)
    at_cuts = others[len(steps) :]
    triples = (NullDecision(*at_cuts[i : i + 3]) for i in range(0, len(at_cuts), 3))
    return NullRun(repeats, auc_, tuple(others[: len(steps)]), best, tuple(triples))


def _spread(values: Array) -> Spread:
    return Spread(float(values.mean()), *map(float, np.quantile(values, (0.025, 0.975))))


def _of_records(scores: ArrayLike, member: NDArray[Any]) -> Array:
    found = as_array("scores", scores)
    if found.dtype.kind not in "biuf" or found.shape != member.shape or np.isnan(found).any():
        raise InputError(f"scores must be numbers, one per record ({len(member)}), got {found.dtype} {found.shape}")
    return found.astype(np.float64)


def _shuffles(member: Flags, groups: NDArray[np.intp], repeats: int, rng: np.random.Generator) -> Iterator[Flags]:
    rows = [np.flatnonzero(groups == g) for g in range(int(groups.max()) + 1)]
    for _ in range(repeats):
        out = member.copy()
        for at in rows:
            out[at] = rng.permutation(member[at])
        yield out


def _numbers(
    scores: ArrayLike | Score, member: Flags, fprs: Sequence[float], cuts: Sequence[float], rng: np.random.Generator
) -> list[float]:
    """AUC, the best advantage, true positive rates, and three numbers per threshold."""
    found = np.asarray(scores(member) if callable(scores) else scores, np.float64)
    curve = roc(found, member)
    at = np.searchsorted(curve.fpr, np.array(fprs) * (1 + 1e-9), side="right") - 1
    area, best = float(np.trapezoid(curve.tpr, curve.fpr)), float(np.max(curve.tpr - curve.fpr))
    return [area, best, *map(float, curve.tpr[at]), *_decided(found[member], found[~member], cuts, rng)]


def _decided(inside: Array, outside: Array, cuts: Sequence[float], rng: np.random.Generator) -> list[float]:
    if not cuts:
        if min(len(inside), len(outside)) < 2:
            return []
        cut, inside, outside = chosen_on_half(inside, outside, rng)
        cuts = (cut,)
    rates = [(float(np.mean(inside > cut)), float(np.mean(outside > cut))) for cut in cuts]
    return [number for tpr, fpr in rates for number in (tpr, fpr, tpr - fpr)]
