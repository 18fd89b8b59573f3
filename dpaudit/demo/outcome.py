"""What the demonstration found: frozen records, from which text, page and figures are made without computing more."""

from __future__ import annotations

from dataclasses import dataclass

from ..attacks.metrics import Rate
from ..bounds.choices import Split
from ..records import Accuracy, Audit, Bound, FloatArray
from .classroom import Classroom, Student
from .levels import Level
from .mechanism import FirstStep


@dataclass(frozen=True, eq=False)
class StudentAudit:
    """What the attacker gets on one student at one level.

    Attributes:
        student: whose membership it is.
        audit: the judgement at the significance of one bound.
        inside, outside: scores of the models with and without the student; higher says "in".
        pairs: how often the model with the student scores higher, over independent pairs of one with and one without;
            a tie counts as wrong. Guessing gets one half.
        tpr, fpr: rates of the threshold that was chosen on the runs set aside, on the other runs.
        policy: how the threshold was chosen.
        threshold: where it fell.
        together: the lower bound when all bounds of the demonstration share the significance of one.
    """

    student: Student
    audit: Audit
    inside: FloatArray
    outside: FloatArray
    pairs: Rate
    tpr: Rate
    fpr: Rate
    policy: Split
    threshold: float
    together: float

    @property
    def bound(self) -> Bound:
        """The one bound that ``audit.lower`` comes from."""
        return self.audit.bounds[0]


@dataclass(frozen=True, eq=False)
class LevelResult:
    """One level: both students, and what it costs.

    Attributes:
        accuracy: on fresh students, of the models that were trained with the whole class.
    """

    level: Level
    knitter: StudentAudit
    ordinary: StudentAudit
    accuracy: Accuracy

    @property
    def students(self) -> tuple[StudentAudit, StudentAudit]:
        """Both, the knitter first."""
        return self.knitter, self.ordinary


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The whole demonstration.

    Attributes:
        seed: all randomness comes from it.
        models: trainings per student and level; half of them with the student.
        delta, significance: of every bound.
        classroom: the class and who is tested.
        first_step: the arrows of the class at step 1.
        levels: non-private first, then by falling ε.
    """

    seed: int
    models: int
    delta: float
    significance: float
    classroom: Classroom
    first_step: FirstStep
    levels: tuple[LevelResult, ...]

    @property
    def bounds(self) -> int:
        """How many lower bounds are shown."""
        return sum(len(entry.students) for entry in self.levels)

    @property
    def family_error(self) -> float:
        """At most the probability that any of the bounds exceeds the true ε: their sum, whatever their dependence."""
        return min(self.bounds * self.significance, 1.0)

    @property
    def plain(self) -> LevelResult:
        """The level without privacy."""
        return self.levels[0]

    @property
    def private(self) -> tuple[LevelResult, ...]:
        """The levels with a promise, by falling ε."""
        return self.levels[1:]
