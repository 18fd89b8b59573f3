"""The whole line: rank by one training, train afresh with coins, confirm, judge, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..attacks.signals import SIGNALS
from ..attacks.traces import loss_traces, traces_of
from ..auditor import judge
from ..bounds.choices import Fixed
from ..errors import need_extra
from ..records import Accuracy, Audit, BoolArray, Observations, PlannedTest
from ..runner import environment
from ..spec import Spec
from ..store import RunFolder
from .confirming import RecordResult, confirm, observed
from .outcome import Exposure, LevelResult
from .sources import open_source
from .task import CHECKPOINTS, EPSILONS, MODELS, SHORTLIST, SIGNAL, STATISTIC, Level, Task, Unit, make_task

if TYPE_CHECKING:
    from ..trainers.models import ModelStack

Progress = Callable[[int, int, str], None]
Array = NDArray[np.float64]
_RANKING = "ranking"


def examine(
    source: str | Path | Spec,
    out: str | Path,
    *,
    shortlist: int = SHORTLIST,
    models: int = MODELS,
    epsilons: tuple[float, ...] = EPSILONS,
    records: int | None = None,
    seed: int | None = None,
    workers: int = 2,
    fresh: bool = False,
    data_folder: str | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Exposure:
    """Which of a data set's own records training gives away most, and how much, without privacy and with it.

    One training without privacy ranks all records by their loss traces and names a shortlist, whose length is fixed
    beforehand. Then fresh models are trained, without privacy and by DP-SGD at each ε, in which every record of the
    shortlist, and of as many drawn at random, is in or out by its own fair coin per model, and all others are in.
    Finished work is kept in ``out``; the same call goes on where it was stopped, or repeats the result.

    Args:
        source: a bundled name (``digits``, ``fashion-mnist``, …), a spec, or a data file as :func:`dpaudit.data.load`
            takes it. From a spec come data, seed, δ, its first private trainer and a plain one of the same model.
        out: folder for ``release/`` and ``retained/``.
        shortlist: how many records are tested; at most a quarter of all.
        models: per level, at least 40; a quarter of them are the attacker's, the others are counted on.
        epsilons: the ε of the private trainings, in nats; noise is calibrated to them.
        records: train on so many; by default the spec's, or four fifths of a file.
        seed: all randomness comes from it; by default the spec's, or 1.
        workers: stacks that are trained side by side; the result does not depend on it.
        fresh: forget what an earlier examination left in ``out``.
        data_folder: where the four files of Fashion-MNIST are.
        progress: called with (models done, models in all, what is being done).
        command: what to print as the command that repeats this; without seeds.

    Raises:
        InputError: bad input, or ``out`` holds another plan. Nothing is written then.
        MissingExtra: torch or scikit-learn is not installed.
    """
    workers = check.integer("workers", workers, 1)
    _require_torch()
    found = open_source(source, records=records, seed=seed, data_folder=data_folder)
    root = found.seed if seed is None else seed
    task = make_task(found, seed=root, shortlist=shortlist, models=models, epsilons=epsilons)
    folder = RunFolder(out)
    folder.admit(task.document(), fresh)
    with folder.locked():
        if fresh:
            folder.clear()
        if folder.plan() is None:
            folder.begin(task.document(task.chosen_chunk()))
        result = _Work(task, folder, workers, progress).all(command or f"dpaudit attack {found.name} --vulnerable")
        _write(result, folder.path)
        return result


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - only to fail early
    except ImportError:
        raise need_extra("torch") from None


def _write(result: Exposure, out: Path) -> None:
    from .writing import write

    write(result, out)


class _Work:
    """The trainings of one examination, with one count over all of them."""

    def __init__(self, task: Task, folder: RunFolder, workers: int, progress: Progress | None) -> None:
        self._task, self._folder, self._workers = task, folder, workers
        self._tell = progress or (lambda *_: None)
        self._done = 0

    def all(self, command: str) -> Exposure:
        task = self._task
        ranking = self._kept(_RANKING, 1, "one training, to rank the records", self._rank)["statistic"]
        rows = shortlisted(ranking, task.shortlist)
        columns = task.columns(rows)
        chunk = int((self._folder.plan() or task.document())["chunk"])
        parts: list[list[dict[str, Any]]] = [[] for _ in task.levels]
        for unit in task.units(chunk):
            title = task.levels[unit.level].title
            done = self._kept(unit.name, unit.count, title, lambda u=unit: self._train(u, columns, chunk))  # type: ignore[misc]
            parts[unit.level].append(done)
        levels = tuple(
            self._level(number, rows, columns, *(np.concatenate([p[key] for p in of_level]) for key in _KEPT))
            for number, of_level in enumerate(parts)
        )
        return Exposure(task, ranking, rows, levels, command, environment(task.code))

    def _kept(self, name: str, models: int, what: str, make: Callable[[], dict[str, Array]]) -> dict[str, Any]:
        """A unit's arrays: from disk, or made now and stored."""
        arrays: dict[str, Any] | None = self._folder.unit(name, self._task.digest)
        if arrays is None:
            arrays = make()
            self._folder.save_unit(name, self._task.digest, arrays)
        self._done += models
        self._tell(self._done, self._task.trainings, what)
        return arrays

    def _rank(self) -> dict[str, Array]:
        """What the losses of all records did while one model was trained on all of them, without privacy."""
        from ..trainers.training import train_many

        task = self._task
        member = np.ones((1, len(task.data)), bool)
        (model,) = train_many(task.levels[0].trainer, task.data, member, [task.ranking_seed], keep_iterates=True)
        return {"statistic": loss_traces(traces_of(model, task.data, CHECKPOINTS), STATISTIC)}

    def _train(self, unit: Unit, columns: tuple[int, ...], chunk: int) -> dict[str, Array]:
        from ..trainers.training import train_many

        task, rows = self._task, slice(unit.first, unit.first + unit.count)
        level = task.levels[unit.level]
        member = np.ones((unit.count, len(task.data)), bool)
        member[:, columns] = task.coins(unit.level, len(columns))[rows]
        models = train_many(
            level.trainer, task.data, member, task.training_seeds(unit.level)[rows], chunk=chunk,
            threads=self._workers,
            progress=lambda done, _: self._tell(self._done + done, task.trainings, level.title),
        )  # fmt: skip
        at = list(columns)
        signal = SIGNALS[SIGNAL](models.logits(task.data.x[at]), task.data.y[at])
        return {"signal": signal, "accuracy": _accuracy(models, task)}

    def _level(
        self, number: int, rows: tuple[int, ...], columns: tuple[int, ...], signal: Array, accuracy: Array
    ) -> LevelResult:
        task = self._task
        level, coins = task.levels[number], task.coins(number, len(columns))
        results = _confirmed(task, columns, signal, coins, level)
        null = _confirmed(task, columns, signal, task.null_coins(number, len(columns)), level)
        exposed, others = ([columns.index(row) for row in group] for group in (rows, task.ordinary))
        seen = observed([results[i] for i in exposed], coins[task.set_aside :, exposed], level.adjacency)
        return LevelResult(
            level=level,
            exposed=tuple(results[i] for i in exposed),
            ordinary=tuple(results[i] for i in others),
            observed=seen,
            audit=_judged(task, level, seen),
            null=max(null[i].bound.epsilon for i in exposed),
            accuracy=_summary(accuracy, task),
        )


_KEPT = ("signal", "accuracy")


def shortlisted(ranking: Array, count: int) -> tuple[int, ...]:
    """The rows with the highest statistics, highest first; of equal ones those that come first in the data.

    >>> shortlisted(np.array([0.1, 3.0, 2.0, 3.0]), 3)
    (1, 3, 2)
    """
    return tuple(int(i) for i in np.argsort(-ranking, kind="stable")[:count])


def _accuracy(models: ModelStack, task: Task) -> Array:
    """Share of the test records that each model labels right, shape ``(models,)``."""
    x, y = task.data.x_test, task.data.y_test
    assert x is not None and y is not None
    return np.array([float(np.mean(model.logits(x).argmax(axis=-1) == y)) for model in models])


def _summary(accuracy: Array, task: Task) -> Accuracy:
    low, high = np.quantile(accuracy, [0.05, 0.95])
    assert task.data.y_test is not None
    return Accuracy(float(accuracy.mean()), float(low), float(high), len(accuracy), len(task.data.y_test))


def _confirmed(
    task: Task, columns: Sequence[int], signal: Array, coins: BoolArray, level: Level
) -> tuple[RecordResult, ...]:
    """One result per record that has a coin; the shortlist is one family, the records drawn at random another."""
    names = [task.data.ids[row] for row in columns]
    return confirm(
        signal, coins, task.set_aside, names, delta=task.delta, significance=task.significance,
        family=task.shortlist, claim=level.claim, adjacency=level.adjacency,
    )  # fmt: skip


def _judged(task: Task, level: Level, seen: Observations) -> Audit:
    """The level's claim, judged on the shortlist: each record at its share of the significance."""
    test = PlannedTest("threshold", 1.0, threshold=Fixed(0.0), canaries="shortlist", signal=SIGNAL, attack="lira")
    return judge([(test, seen)], level.claim, delta=task.delta, significance=task.significance, name=level.title)
