"""What an inference found: frozen, computed once, drawn and written elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attacks.controls import Baseline, NullRun
from ..attacks.metrics import Measures, Slice
from ..attacks.registry import Attack
from ..records import BoolArray


@dataclass(frozen=True)
class Test:
    """One of the tests that share the error probability.

    Attributes:
        attack: name of the attack.
        metric: what was tested, in words.
        p_value: by itself, exact.
        adjusted: after Holm over all tests of the inference.
    """

    __test__ = False  # not one of pytest's

    attack: str
    metric: str
    p_value: float
    adjusted: float


@dataclass(frozen=True, eq=False)
class AttackResult:
    """One attack on the target.

    Attributes:
        attack: which.
        rows: the records that it could score, rising; by what shadows were trained on, never the target.
        member: the truth of these, same shape.
        scores: same shape, finite; a higher score says "member". Retained, never released.
        measures: all numbers, on all records.
        null: the same with shuffled membership.
        slices: the same on parts of the records.
    """

    attack: Attack
    rows: NDArray[np.intp]
    member: BoolArray
    scores: NDArray[np.float64]
    measures: Measures
    null: NullRun
    slices: tuple[Slice, ...]


@dataclass(frozen=True, eq=False)
class Inference:
    """Everything that was found.

    Attributes:
        name: of the source.
        member: the truth, shape ``(records,)``.
        ids: of the records, or None. Retained, never released.
        baseline: whether members can be told without the model; None where that could not be asked, see
            ``baseline_note``.
        shadow_split: whether the number of shadows that had a record tells if the target had it: the p-value, exact and
            two-sided; None without shadows.
        results: one per attack, in the order of the registry.
        refused: attacks that were not run, and why.
        tests: all tests, with their adjusted p-values.
        significance: the probability that any test is significant where nothing tells members apart.
        prior, confidence: of every predictive value and interval.
        notes: what was assumed, in sentences.
        command: what repeats this, without the seed.
        environment: commit and versions.
    """

    name: str
    member: BoolArray
    ids: tuple[str, ...] | None
    baseline: Baseline | None
    baseline_note: str
    shadow_split: float | None
    results: tuple[AttackResult, ...]
    refused: tuple[tuple[str, str], ...]
    tests: tuple[Test, ...]
    significance: float
    prior: float
    confidence: float
    notes: tuple[str, ...]
    command: str
    environment: Mapping[str, Any]

    @property
    def members(self) -> int:
        """How many records are members."""
        return int(self.member.sum())

    @property
    def others(self) -> int:
        """How many are not."""
        return int((~self.member).sum())

    @property
    def biased(self) -> bool:
        """Whether members could be told from non-members without the model, by the records or by the shadows."""
        return self.biased_records or self.biased_shadows

    @property
    def biased_records(self) -> bool:
        """Whether features or labels tell members from non-members."""
        return self.baseline is not None and self.baseline.biased

    @property
    def biased_shadows(self) -> bool:
        """Whether the shadows' own membership does."""
        return self.shadow_split is not None and self.shadow_split <= self.split_level

    @property
    def split_level(self) -> float:
        """The level of each of the two questions about the split: together they are wrong at the significance."""
        return self.significance if self.shadow_split is None else self.significance / 2

    @property
    def findings(self) -> tuple[Test, ...]:
        """Tests that are significant after Holm; where nothing tells members apart there are any at most so often."""
        return tuple(test for test in self.tests if test.adjusted <= self.significance)

    def found(self, attack: str) -> tuple[Test, ...]:
        """Findings of one attack."""
        return tuple(test for test in self.findings if test.attack == attack)
