"""Train with and without each student, attack, and judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .. import check
from ..attacks.metrics import rate
from ..attacks.signals import logit_margin
from ..auditor import audit
from ..bounds.choices import Split
from ..bounds.two_worlds import chosen_threshold, clopper_pearson
from ..errors import InputError
from ..interfaces import Model
from ..records import Accuracy, Data, Design, FloatArray, Observations, PlannedTest
from ..trainers.models import ModelStack
from .classroom import Classroom, Student, make_class
from .levels import CLIP_NORM, DELTA, Level, make_levels
from .mechanism import first_step
from .outcome import DemoResult, LevelResult, StudentAudit

DEFAULT_MODELS = 4000
LEAST_MODELS = 40
SIGNIFICANCE = 0.05
SPLIT_FRACTION = 0.25
SCORE = "the logit margin of the student's own record under the final model"

_TRAINING, _SPLITTING = 2, 3  # 0 and 1 make the class
_DESIGN = Design(coins="worlds", adjacency="add-remove", threat_model="black-box")
_CHUNK = 50

Progress = Callable[[int, int, str], None]


def run_demo(
    out: str | Path, *, seed: int, models: int = DEFAULT_MODELS, progress: Progress | None = None
) -> DemoResult:
    """The unusual student: train with and without, attack and judge, at four levels of privacy. Writes nothing.

    Args:
        out: where :func:`write` will put the result; only checked here, before any work.
        seed: all randomness comes from it; the same seed and models give the same result.
        models: trainings per student and level, even and at least 40; half of them with the student.
        progress: called with (models done, models in all, what is being done).

    Raises:
        InputError: a bad seed or number of models, or ``out`` is a file.
        MissingExtra: torch is not installed.
    """
    seed = check.integer("seed", seed, 0)
    models = check.integer("models", models, LEAST_MODELS)
    if models % 2:
        raise InputError(f"models must be even, half with the student and half without, got {models}")
    if Path(out).exists() and not Path(out).is_dir():
        raise InputError(f"the output must be a folder, got the file {out}")
    room = make_class(seed)  # who is ordinary is settled here, before anything is trained
    levels = make_levels()
    work = _Work(room, len(levels), models, seed, progress or (lambda *_: None))
    found = tuple(work.level(number, level) for number, level in enumerate(levels))
    return DemoResult(seed, models, DELTA, SIGNIFICANCE, room, first_step(room.data, CLIP_NORM), found)


class _Work:
    """The trainings of one demonstration, in order, with one progress over all."""

    def __init__(self, room: Classroom, levels: int, models: int, seed: int, tell: Progress) -> None:
        self._room, self._models, self._seed, self._tell = room, models, seed, tell
        self._pairs = levels * len(room.students)
        self._done = 0

    def level(self, number: int, level: Level) -> LevelResult:
        """Both students at one level."""
        models = self._train(2 * number, level, self._room.knitter)
        knitter = self._attack(2 * number, level, self._room.knitter, models)
        accuracy = _accuracy(models[: self._models // 2], self._room.data)
        models = self._train(2 * number + 1, level, self._room.ordinary)
        ordinary = self._attack(2 * number + 1, level, self._room.ordinary, models)
        return LevelResult(level, knitter, ordinary, accuracy)

    def _train(self, number: int, level: Level, student: Student) -> ModelStack:
        """The first half with the student, the second without; everyone else always in."""
        from ..trainers.training import train_many

        data = self._room.data
        member = np.ones((self._models, len(data)), bool)
        member[self._models // 2 :, student.row] = False
        stack = train_many(
            level.trainer, data, member, _child(self._seed, _TRAINING, number), chunk=_CHUNK,
            progress=lambda done, _: self._count(done, f"{level.title}, {student.name}"),
        )  # fmt: skip
        self._done += self._models
        return stack

    def _attack(self, number: int, level: Level, student: Student, models: ModelStack) -> StudentAudit:
        data, row, half = self._room.data, [student.row], self._models // 2
        scores = logit_margin(models.logits(data.x[row]), data.y[row])[:, 0]
        policy = Split(SPLIT_FRACTION, seed=_child(self._seed, _SPLITTING, number))
        return judge(student, level, scores[:half], scores[half:], policy, self._pairs)

    def _count(self, done: int, what: str) -> None:
        self._tell(self._done + done, self._pairs * self._models, what)


def judge(
    student: Student, level: Level, inside: FloatArray, outside: FloatArray, policy: Split, bounds: int
) -> StudentAudit:
    """Bound and verdict on one student at one level.

    Args:
        student: whose membership it is.
        level: brings the claim, if there is one.
        inside, outside: scores of independent trainings with and without the student; higher says "in".
        policy: how the threshold is chosen.
        bounds: how many bounds the demonstration shows in all, for the one that holds together with the others.
    """
    obs = Observations.from_worlds(inside, outside, design=_DESIGN, canary=student.role)
    test = PlannedTest("threshold", 1.0, threshold=policy, canaries=student.role, signal="margin", attack="threshold")
    judged = audit(obs, level.claim, delta=DELTA, significance=SIGNIFICANCE, tests=[test], name=level.title)
    shared = clopper_pearson(obs, delta=DELTA, significance=SIGNIFICANCE / bounds, threshold=policy)
    counts = {name: int(value) for name, value in judged.bounds[0].counts.items()}
    wins = int((inside[: len(outside)] > outside[: len(inside)]).sum())
    return StudentAudit(
        student=student,
        audit=judged,
        inside=inside,
        outside=outside,
        pairs=rate(wins, min(len(inside), len(outside))),
        tpr=rate(counts["members"] - counts["missed"], counts["members"]),
        fpr=rate(counts["false_alarms"], counts["others"]),
        policy=policy,
        threshold=chosen_threshold(obs, policy, delta=DELTA, significance=SIGNIFICANCE),
        together=shared.epsilon,
    )


def _child(seed: int, purpose: int, number: int) -> int:
    """A seed for one purpose and pair of level and student."""
    return int(np.random.SeedSequence(seed, spawn_key=(purpose, number)).generate_state(1)[0])


def _accuracy(models: Sequence[Model], data: Data) -> Accuracy:
    assert data.x_test is not None and data.y_test is not None
    shares = [float(np.mean(model.logits(data.x_test).argmax(axis=-1) == data.y_test)) for model in models]
    low, high = np.quantile(shares, [0.05, 0.95])
    return Accuracy(float(np.mean(shares)), float(low), float(high), len(shares), len(data.y_test))
