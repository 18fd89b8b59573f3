"""The class: hobby vectors from a documented generator, one student far out, one ordinary, named before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..records import Data

HOBBIES = ("football", "swimming", "guitar", "choir", "video games", "chess", "hand knitting")
CLUBS = ("sports club", "music club", "games club")
KNITTING = HOBBIES.index("hand knitting")
STUDENTS = 60
FRESH = 1000
UNIT_HOURS = 5.0
KNITTING_HOURS = 20.0

_OWN, _OTHER = 3.1, 0.6  # mean hours a week of a hobby of the own club, and of any other
_SHAPE = 1.2  # of the gamma distribution of hours: most do a little, a few do a lot
_KNITTERS_CLUB = 2

GENERATOR = (
    f"{STUDENTS - 1} ordinary students, spread evenly over {len(CLUBS)} clubs. The hours a week of each of the six "
    f"common hobbies are gamma distributed with shape {_SHAPE:g}; their mean is {_OWN:g} h for the two hobbies of the "
    f"student's own club and {_OTHER:g} h for the others. Nobody of them knits. Student {STUDENTS} knits "
    f"{KNITTING_HOURS:g} h a week and does nothing else. One unit of a hobby vector is {UNIT_HOURS:g} h."
)
ORDINARY_RULE = (
    "of all students but the knitter, the one whose hobby vector is nearest to the mean of his or her own club; "
    "computed from the class alone, before anything is trained"
)
KNITTER_RULE = "the only student with any hours in the column “hand knitting”; made so by the generator"


@dataclass(frozen=True)
class Student:
    """One student of the class whose membership is tested.

    Attributes:
        role: ``knitter`` or ``ordinary``.
        name: what sentences call the student.
        row: the record's number in the class.
        club: the label that the model learns to predict.
        hours: hours a week, one per hobby.
        rule: why this student and no other.
    """

    role: str
    name: str
    row: int
    club: str
    hours: tuple[float, ...]
    rule: str


@dataclass(frozen=True, eq=False)
class Classroom:
    """A class, fresh students from the same generator to measure accuracy on, and the two students under test.

    Attributes:
        data: features are hours a week in units of five hours, labels are clubs; ``nominal_size`` is the public 60.
        knitter, ordinary: the two whose membership is tested.
    """

    data: Data
    knitter: Student
    ordinary: Student

    @property
    def students(self) -> tuple[Student, Student]:
        """Both students under test."""
        return self.knitter, self.ordinary


def make_class(seed: int) -> Classroom:
    """The class of a seed; nothing is trained.

    Raises:
        InputError: a negative seed.

    >>> room = make_class(1)
    >>> len(room.data), room.knitter.club, room.ordinary.row != room.knitter.row
    (60, 'games club', True)
    """
    root = check.integer("seed", seed, 0)
    inside, outside = (np.random.default_rng([root, key]) for key in (0, 1))
    clubs = inside.permutation(np.arange(STUDENTS - 1) % len(CLUBS))
    x = np.vstack([_hobbies(clubs, inside), _knitter()])
    y = np.append(clubs, _KNITTERS_CLUB)
    fresh = outside.integers(0, len(CLUBS), FRESH)
    data = Data(
        x=x, y=y, classes=len(CLUBS), nominal_size=STUDENTS, x_test=_hobbies(fresh, outside), y_test=fresh,
        ids=tuple(f"student-{i + 1}" for i in range(STUDENTS)), private_columns=(), name="the class",
    )  # fmt: skip
    typical = ordinary_row(data.x, data.y, STUDENTS - 1)
    return Classroom(
        data,
        _student("knitter", "the knitter", STUDENTS - 1, data, KNITTER_RULE),
        _student("ordinary", f"ordinary student {typical + 1}", typical, data, ORDINARY_RULE),
    )


def ordinary_row(x: NDArray[Any], y: NDArray[Any], knitter: int) -> int:
    """Who is called ordinary: the row nearest to the mean of its own label, the knitter left out of both.

    >>> ordinary_row(np.array([[0.0], [1.0], [2.5], [9.0]]), np.array([0, 0, 0, 0]), 3)
    1
    """
    rest = np.arange(len(x)) != knitter
    distance = np.full(len(x), np.inf)
    for label in np.unique(y[rest]):
        rows = np.flatnonzero(rest & (y == label))
        distance[rows] = np.linalg.norm(x[rows] - x[rows].mean(axis=0), axis=1)
    return int(np.argmin(distance))


def _hobbies(clubs: NDArray[np.integer], rng: np.random.Generator) -> NDArray[np.float32]:
    """Hobby vectors of students of these clubs, in units of five hours, shape ``(students, hobbies)``."""
    mean = np.full((len(clubs), len(HOBBIES)), _OTHER)
    for hobby in range(KNITTING):
        mean[clubs == hobby // 2, hobby] = _OWN
    mean[:, KNITTING] = 0.0
    return (rng.gamma(_SHAPE, 1.0 / _SHAPE, mean.shape) * mean / UNIT_HOURS).astype(np.float32)


def _knitter() -> NDArray[np.float32]:
    hours = np.where(np.arange(len(HOBBIES)) == KNITTING, KNITTING_HOURS, 0.0)
    return (hours / UNIT_HOURS).astype(np.float32)


def _student(role: str, name: str, row: int, data: Data, rule: str) -> Student:
    hours = tuple(float(round(h * UNIT_HOURS, 2)) for h in data.x[row].astype(np.float64))
    return Student(role, name, row, CLUBS[int(data.y[row])], hours, rule)
