"""The records that the stages meet at: frozen, validated when made, no behaviour beyond views.

Orientation everywhere: a higher score says "member". ε is in nats. Arrays are made read-only.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import check
from .errors import InputError

FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

COINS = ("fair", "fixed", "worlds", "unknown")
CALIBRATION = ("none", "set-aside", "cross")
THREAT_MODELS = ("black-box", "final-model", "iterates")


class Adjacency(enum.StrEnum):
    """The neighbouring relation: what may differ between two data sets that are to look almost the same."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


ADJACENCY = tuple(Adjacency)


class Verdict(enum.Enum):
    """What an audit says of a claim; the values are ordered by how loudly they speak."""

    NO_CLAIM = "no_claim"
    CONSISTENT = "consistent"
    UNDERPOWERED = "underpowered"
    VIOLATED = "violated"

    @property
    def severity(self) -> int:
        """0 (nothing to judge) to 3 (a claim is false)."""
        return list(Verdict).index(self)


class HalfSplitWarning(UserWarning):
    """Fair coins were assumed, and exactly half of the canaries are members."""


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only private copy; callers' arrays are never touched."""
    out = np.array(array, copy=True)
    out.setflags(write=False)
    return out


def _set(record: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


@dataclass(frozen=True, eq=False)
class Data:
    """Records, their labels, and the constants that are public before any coin is flipped.

    Attributes:
        x: features, float32, shape ``(records, features)``.
        y: labels, int64, shape ``(records,)``, each in ``[0, classes)``.
        classes: number of labels.
        nominal_size: the number of records that sampling rates and divisors refer to; public, fixed before the coins.
        x_test, y_test: records that no model is trained on, for accuracy; may be empty.
        ids: one name per record, unique.
        private_columns: features that no ordinary record uses (all zero); far-out canaries take one each.
        name: what the data is called in reports.
        shape: height and width of a record shown as an image, or None.

    Raises:
        InputError: shapes that do not fit, NaN or infinite features, a label out of range, an id given twice.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: int
    nominal_size: int | None = None
    x_test: NDArray[np.float32] | None = None
    y_test: NDArray[np.int64] | None = None
    ids: tuple[str, ...] = ()
    private_columns: tuple[int, ...] = ()
    name: str = "data"
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        classes = check.integer("classes", self.classes, 2)
        x, y = _records("records", self.x, self.y, classes)
        if len(x) == 0:
            raise InputError("the data must have at least one record, got none")
        empty = np.zeros((0, x.shape[1]), np.float32), np.zeros(0, np.int64)
        given = empty if self.x_test is None or self.y_test is None else (self.x_test, self.y_test)
        x_test, y_test = _records("test records", *given, classes)
        if x_test.shape[1] != x.shape[1]:
            raise InputError(f"test records must have {x.shape[1]} features, got {x_test.shape[1]}")
        ids = tuple(str(i) for i in self.ids) or tuple(f"record-{i}" for i in range(len(x)))
        if len(ids) != len(x) or len(set(ids)) != len(ids):
            raise InputError(f"ids must be {len(x)} different names, got {len(ids)} with {len(set(ids))} different")
        size = len(x) if self.nominal_size is None else check.integer("nominal_size", self.nominal_size, 1)
        columns = tuple(check.integer("private column", c, 0, x.shape[1] - 1) for c in self.private_columns)
        _set(self, x=x, y=y, x_test=x_test, y_test=y_test, ids=ids, nominal_size=size, classes=classes)
        _set(self, private_columns=columns)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def features(self) -> int:
        """Number of features of a record."""
        return int(self.x.shape[1])


def _records(what: str, x: ArrayLike, y: ArrayLike, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        features = np.asarray(x, dtype=np.float32)
        labels = np.asarray(y)
    except (TypeError, ValueError):
        raise InputError(f"features of the {what} must be numbers in a (records, features) array") from None
    if features.ndim != 2 or labels.shape != (features.shape[0],):
        raise InputError(
            f"{what} must be x (records, features) and y (records,), got {features.shape} and {labels.shape}"
        )
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise InputError(f"features of the {what} must be finite, got NaN or infinity in {int(bad.sum())} records, "
                         f"the first is number {int(np.flatnonzero(bad)[0])}")  # fmt: skip
    if labels.size and (labels.dtype.kind not in "iuf" or not np.all(labels == np.floor(labels))):
        raise InputError(f"labels of the {what} must be whole numbers, got {labels.dtype}")
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise InputError(f"labels of the {what} must be in [0, {classes}), got {labels[i]} at number {i}")
    return _frozen(features), _frozen(labels.astype(np.int64))


@dataclass(frozen=True)
class Design:
    """How membership was decided and what a score was allowed to see.

    Attributes:
        coins: ``fair`` (each canary in or out by an independent coin), ``fixed`` (fixed counts, chosen at random),
            ``worlds`` (whole runs with or without the one canary), ``unknown`` (no theorem applies as it stands).
        inclusion: probability that a coin says "in".
        calibration: where the attack's references come from: ``none``, ``set-aside`` (runs that are not tested) or
            ``cross`` (other tested runs and their coins).
        adjacency: the neighbouring relation that flipping one coin realises.
        threat_model: what the attacker sees: ``black-box``, ``final-model`` or ``iterates``.
    """

    coins: str = "fair"
    inclusion: float = 0.5
    calibration: str = "none"
    adjacency: str = Adjacency.ADD_REMOVE
    threat_model: str = "black-box"

    def __post_init__(self) -> None:
        check.choice("coins", self.coins, COINS)
        check.choice("calibration", self.calibration, CALIBRATION)
        _set(self, adjacency=Adjacency(check.choice("adjacency", self.adjacency, ADJACENCY)))
        check.choice("threat_model", self.threat_model, THREAT_MODELS)
        _set(self, inclusion=check.number("inclusion", self.inclusion, 0.0, 1.0, ends="()"))


@dataclass(frozen=True, eq=False)
class Observations:
    """Scores and membership of R runs × N canaries; every bound starts from this record.

    Args:
        scores: float, shape ``(runs, canaries)``; 1-D is one run. A higher score says "member".
        member: bool (or 0 and 1), same shape: was the canary in the training set of that run?
        present: bool, same shape: was the pair scored? Pairs never scored count as coins and are never imputed.
        runs, canaries: names of the rows and columns, unique; numbered if not given.
        design: how the coins fell and what a score may depend on.

    Raises:
        InputError: shapes that do not fit, NaN or infinite scores among the present pairs, all members or none,
            a run or canary named twice.
    """

    scores: NDArray[np.float64]
    member: BoolArray
    present: BoolArray | None = None
    runs: tuple[str, ...] | None = None
    canaries: tuple[str, ...] | None = None
    design: Design = field(default_factory=Design)

    def __post_init__(self) -> None:
        scores = _matrix("scores", self.scores)
        member = _flags("member", self.member, scores.shape)
        shown = np.ones(scores.shape, bool) if self.present is None else self.present
        present = _flags("present", shown, scores.shape)
        bad = present & ~np.isfinite(scores)
        if bad.any():
            raise InputError(f"scores must be finite, got NaN or infinity in {int(bad.sum())} of {bad.size} places; "
                             "declare pairs that were never scored with present=")  # fmt: skip
        if not isinstance(self.design, Design):
            raise InputError(f"design must be a Design, got {self.design!r}")
        coins = member[present]
        if coins.size == 0 or coins.all() or not coins.any():
            got = "no scored pair" if coins.size == 0 else "all members" if coins.all() else "no member"
            raise InputError(f"member must hold both members and non-members, got {got}")
        _set(self, scores=scores, member=member, present=present)
        _set(self, runs=_names("runs", self.runs, scores.shape[0]))
        _set(self, canaries=_names("canaries", self.canaries, scores.shape[1]))
        if self.design.coins == "fair" and self.design.inclusion == 0.5 and coins.size > 10:
            self._warn_of_half_split()

    def _warn_of_half_split(self) -> None:
        counts = self.member.sum(axis=1)
        if np.all(2 * counts == self.member.shape[1]) and (self.member.shape[1] > 10 or len(counts) > 10):
            warnings.warn(
                f"exactly half of the {self.member.shape[1]} canaries are members in every run, where independent fair "
                'coins are assumed; if the counts were fixed, say so with Design(coins="fixed")',
                HalfSplitWarning,
                stacklevel=4,
            )

    @classmethod
    def from_worlds(
        cls,
        in_scores: ArrayLike,
        out_scores: ArrayLike,
        *,
        design: Design | None = None,
        canary: str = "canary",
    ) -> Observations:
        """Many independent runs of one canary: one score per run, with it and without it.

        Args:
            in_scores: shape ``(runs with the canary,)``.
            out_scores: shape ``(runs without it,)``; the two lengths may differ.
            design: defaults to ``Design(coins="worlds")``.
        """
        inside, outside = _vector("in_scores", in_scores), _vector("out_scores", out_scores)
        scores = np.concatenate([inside, outside])[:, None]
        member = np.repeat([True, False], [len(inside), len(outside)])[:, None]
        return cls(scores, member, canaries=(canary,), design=design or Design(coins="worlds"))

    @property
    def shape(self) -> tuple[int, int]:
        """(runs, canaries)."""
        return self.scores.shape[0], self.scores.shape[1]

    @property
    def coins(self) -> int:
        """How many membership bits there are, scored or not."""
        return int(self.member.size)

    def columns(self, names: Sequence[str]) -> Observations:
        """The same runs with only these canaries."""
        assert self.canaries is not None and self.present is not None
        unknown = [n for n in names if n not in self.canaries]
        if unknown:
            raise InputError(f"canaries must be among the {len(self.canaries)} observed, got {unknown[0]!r}")
        at = [self.canaries.index(n) for n in names]
        return Observations(
            self.scores[:, at], self.member[:, at], self.present[:, at], self.runs, tuple(names), self.design
        )


def _matrix(name: str, value: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in a (runs, canaries) array") from None
    array = array[None, :] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"{name} must be a non-empty array (runs, canaries), got shape {np.shape(value)}")
    return _frozen(array)


def _vector(name: str, value: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in a (runs,) array") from None
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be a non-empty array (runs,), got shape {array.shape}")
    return array


def _flags(name: str, value: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    array = np.asarray(value)
    array = array[None, :] if array.ndim == 1 else array
    if array.shape != shape:
        raise InputError(f"{name} must have the shape of scores {shape}, got {np.shape(value)}")
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(f"{name} must be true or false (1 or 0), got {array.dtype} with other values")
    return _frozen(array.astype(bool))


@lru_cache(maxsize=8)
def _numbered(length: int) -> tuple[str, ...]:
    return tuple(map(str, range(length)))


def _names(name: str, value: Sequence[Any] | None, length: int) -> tuple[str, ...]:
    if value is None:
        return _numbered(length)
    names = tuple(str(i) for i in value)
    if len(names) != length or len(set(names)) != length:
        raise InputError(f"{name} must be {length} different names, got {len(names)} with {len(set(names))} different")
    return names


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε as a statement, not a number.

    With probability at least 1 − ``significance`` over coins and training, a mechanism inside ``null`` that is
    (ε, δ)-differentially private has ``epsilon`` ≤ its own ε at ``delta``.

    Attributes:
        epsilon: the bound in nats, rounded down; 0 when nothing could be shown.
        delta: the δ that it is stated at.
        significance: error probability of this bound.
        method: the estimator and its source.
        null: the set of mechanisms that the statement covers.
        any_mechanism: True if ``null`` is every mechanism with the stated curve, False if it is a recipe's family.
        adjacency: neighbouring relation.
        threshold: how threshold or guesses were chosen, and how that was paid for.
        counts: what was counted (coins, guesses, correct, or the confusion counts).
        perfect: the bound if every guess had been right.
        at_claim: the median bound of an optimal attacker on a mechanism that spends exactly the claim, or None.
        rates: (false positive, false negative) rates at which the bound was reached, if there are such.
        notes: what a reader must know before quoting the number.
        kind: ``confidence``; or ``credible`` or ``asymptotic``, whose error rate is not promised, and which never feed
            a verdict.
    """

    epsilon: float
    delta: float
    significance: float
    method: str
    null: str
    any_mechanism: bool
    adjacency: str
    threshold: str
    counts: Mapping[str, float]
    perfect: float
    at_claim: float | None = None
    rates: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    kind: str = "confidence"

    def __post_init__(self) -> None:
        check.choice("kind of a bound", self.kind, ("confidence", "credible", "asymptotic"))


@dataclass(frozen=True)
class PlannedTest:
    """One entry of the list that is frozen before any score exists.

    Attributes:
        method: ``guesses`` (one run, or runs × canaries) or ``threshold`` (two worlds).
        weight: share of the significance, in (0, 1]; the weights of a list sum to at most 1.
        guesses: how many in all, for ``guesses``.
        threshold: a policy of :mod:`dpaudit.bounds`, for ``threshold``.
        canaries: name of the canary family, or ``all``.
        signal, attack: where the scores come from.
    """

    method: str
    weight: float
    guesses: int | None = None
    threshold: Any = None
    canaries: str = "all"
    signal: str = "score"
    attack: str = "given"

    def __post_init__(self) -> None:
        check.choice("method", self.method, ("guesses", "threshold"))
        _set(self, weight=check.probability("weight", self.weight))
        if self.method == "guesses":
            _set(self, guesses=check.integer("guesses", self.guesses, 2))


@dataclass(frozen=True)
class Finding:
    """A test of the claim itself: can the claimed curve (or pair) have made these counts?

    Attributes:
        p_value: for this test alone, before it is divided by its weight.
        weight: this test's share of the significance; the shares of a plan sum to at most 1.
        power: probability that this test rejects a mechanism that leaks exactly twice the claim.
        method, canaries, threshold: what was tested, on which canaries, with which guesses or threshold.
        rates: (false positive, false negative) rates that were seen.
        curve_fnr: the smallest false negative rate that the claim allows, at the Clopper–Pearson upper limit of that
            false positive rate.
    """

    p_value: float
    weight: float
    power: float
    method: str
    canaries: str
    threshold: str
    rates: tuple[float, float]
    curve_fnr: float


@dataclass(frozen=True)
class Audit:
    """The judgement of one trainer's claim.

    Attributes:
        verdict: VIOLATED if ``p_value`` ≤ ``significance``; see :class:`Verdict`.
        lower: largest corrected bound that holds for any mechanism, in nats at ``delta``.
        lower_if_recipe: largest corrected bound under the claim's recipe; None if no such bound was in the plan.
        upper: the claim's own ε at ``delta``, for the neighbours that were tested; None without a claim.
        p_value: corrected p-value of the claim, any mechanism; None without a claim.
        error_probability: probability that a true claim is called VIOLATED, or that ``lower`` exceeds the true ε.
        power: probability that twice the claim would have been caught, from the design alone; None without a claim.
        bounds, findings: what it rests on.
        reason: the verdict in one plain sentence.
    """

    verdict: Verdict
    lower: float
    lower_if_recipe: float | None
    upper: float | None
    p_value: float | None
    delta: float
    significance: float
    error_probability: float
    power: float | None
    bounds: tuple[Bound, ...]
    findings: tuple[Finding, ...]
    design: Design
    reason: str
    claim: Any = None
    name: str = "audit"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy of the models of one trainer: its mean and the central 90 % of models; None where not measured."""

    mean: float | None
    low: float | None
    high: float | None
    models: int
    test_records: int


@dataclass(frozen=True)
class CanaryFamily:
    """What a report says of one canary family: nothing that identifies a canary or its membership."""

    name: str
    count: int
    description: str


@dataclass(frozen=True)
class TrainerAudit:
    """One trainer of a run: the judgement and the evidence that figures are drawn from.

    Attributes:
        audit: the judgement.
        trainer: kind and settings, as a report prints them.
        expect: the verdict that the spec expects, or None.
        observations: scores of the tested runs per canary family, as the verdict saw them; shape ``(runs, canaries)``.
        cross: scores of every model as target with all others as its shadows, per family; for ROC figures only.
    """

    audit: Audit
    trainer: Mapping[str, Any]
    expect: Verdict | None
    accuracy: Accuracy
    observations: Mapping[str, Observations]
    cross: Mapping[str, Observations]

    @property
    def as_expected(self) -> bool:
        """Whether the spec's expectation was met; without one, whether no claim is violated."""
        if self.expect is None:
            return self.audit.verdict is not Verdict.VIOLATED
        return self.audit.verdict is self.expect


@dataclass(frozen=True)
class RunResult:
    """All audits of one run, and what a reader must know to repeat them.

    Attributes:
        error_probability: family-wise: the probability that any true claim of the run is called VIOLATED.
        data: facts on the data set: ``name, records, test_records, features, classes, nominal_size``.
        runs, shadows: models per trainer that were tested, and that were set aside as the attack's references.
        not_tested: what this run does not cover, one sentence each.
        command: the command that repeats the run, without seeds.
        environment: ``commit``, ``dirty``, ``versions``.
    """

    name: str
    audits: tuple[TrainerAudit, ...]
    error_probability: float
    data: Mapping[str, Any]
    canaries: tuple[CanaryFamily, ...]
    runs: int
    shadows: int
    not_tested: tuple[str, ...]
    command: str
    environment: Mapping[str, Any]

    @property
    def headline(self) -> TrainerAudit:
        """The audit that speaks loudest; one whose violation was expected speaks last."""
        return max(self.audits, key=_loudness)

    @property
    def verdict(self) -> Verdict:
        """The loudest verdict; a violation that was expected speaks only where there is nothing else."""
        return self.headline.audit.verdict

    @property
    def as_expected(self) -> bool:
        """Whether nothing is violated unexpectedly and every expectation was met."""
        return all(a.as_expected for a in self.audits)

    @property
    def lower(self) -> float:
        """Of the headline audit; see :class:`Audit`."""
        return self.headline.audit.lower

    @property
    def lower_if_recipe(self) -> float | None:
        """Of the headline audit; see :class:`Audit`."""
        return self.headline.audit.lower_if_recipe

    @property
    def upper(self) -> float | None:
        """Of the headline audit; see :class:`Audit`."""
        return self.headline.audit.upper

    @property
    def p_value(self) -> float | None:
        """Of the headline audit; see :class:`Audit`."""
        return self.headline.audit.p_value


def _loudness(entry: TrainerAudit) -> tuple[bool, int]:
    expected_violation = entry.expect is Verdict.VIOLATED and entry.as_expected
    return not expected_violation, entry.audit.verdict.severity
