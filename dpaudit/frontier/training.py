"""Training the grid, unit by unit; what is finished is on disk and is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..interfaces import Model
from ..records import FloatArray
from ..store import RunFolder
from .grid import CHUNK, STACKS, Grid, Unit

if TYPE_CHECKING:
    from ..trainers.models import ModelStack

Progress = Callable[[int, int, str], None]
_NAME = "accuracy"


class Work:
    """The trainings of one exploration, with one count over all of them.

    The same units give the same bits for any number of ``workers``: stacks that are trained side by side.
    """

    def __init__(self, grid: Grid, folder: RunFolder, workers: int, progress: Progress | None) -> None:
        self._grid, self._folder, self._workers = grid, folder, workers
        self._tell = progress or (lambda *_: None)
        self._done = 0

    def accuracy(self, units: Sequence[Unit], what: str) -> FloatArray:
        """Shares of both halves of the test records that the units' models label right, shape ``(models, 2)``.

        NaN where a model diverged.
        """
        return np.concatenate([self._one(unit, what) for unit in units])

    def _one(self, unit: Unit, what: str) -> FloatArray:
        stored = self._folder.unit(unit.name, self._grid.digest)
        if stored is None:
            stored = {_NAME: self._trained(unit, what)}
            self._folder.save_unit(unit.name, self._grid.digest, stored)
        self._done += len(unit.seeds)
        self._tell(self._done, self._grid.models, what)
        return stored[_NAME]

    def _trained(self, unit: Unit, what: str) -> FloatArray:
        data = self._grid.data
        member = np.ones((len(unit.seeds), len(data)), bool)
        models = self._models(unit, member, lambda done, _: self._tell(self._done + done, self._grid.models, what))
        return np.stack([_shares(self._grid, model) for model in models])

    def _models(self, unit: Unit, member: np.ndarray, tell: Callable[[int, int], None]) -> ModelStack:
        from ..trainers.settings import DPSGD
        from ..trainers.training import train_many

        private = [s for s in unit.settings if isinstance(s, DPSGD)]
        settings = private or unit.settings[0]  # without privacy all models of a unit have the same settings
        return train_many(
            settings, self._grid.data, member, unit.seeds, chunk=CHUNK, threads=min(self._workers, STACKS),
            progress=tell,
        )  # fmt: skip


def _shares(grid: Grid, model: Model) -> FloatArray:
    """Accuracy of one model on the choosing and on the reporting half, shape ``(2,)``."""
    data = grid.data
    assert data.x_test is not None and data.y_test is not None
    logits = model.logits(data.x_test)
    if not np.isfinite(logits).all():
        return np.full(2, np.nan)
    right = logits.argmax(axis=-1) == data.y_test
    return np.array([right[grid.choosing].mean(), right[grid.reporting].mean()])
