"""The task: everything that is decided before the first model is trained, down to whose membership will be tested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import check
from ..accounting.calibration import noise_multiplier as calibrated
from ..accounting.claims import Claim
from ..attacks.canaries import flip_coins
from ..errors import InputError
from ..plan import code_of, realised
from ..records import Adjacency, BoolArray, Data
from ..trainers.memory import choose_chunk
from ..trainers.seeds import model_seeds
from ..trainers.settings import DPSGD, SGD
from .sources import Source

SCHEMA = "dpaudit.vulnerable-plan/1"
EPSILONS = (8.0, 3.0, 1.0)
SHORTLIST, MODELS = 10, 2000
SIGNIFICANCE = 0.05
SIGNAL, STATISTIC, CHECKPOINTS = "margin", "iqr", 100
LEAST_MODELS = 40
_SET_ASIDE = 4  # one model in so many is the attacker's
_LEAST_RECORDS = 4  # per record of the shortlist
_CHUNK, _STACKS = 25, 4
_KEY = 0x76756C6E  # "vuln": keeps these seeds apart from whatever else is drawn from the same root
_ORDINARY, _RANKING, _COINS, _TRAINING, _NULL = range(5)


@dataclass(frozen=True)
class Level:
    """One training.

    Attributes:
        key: ``non-private``, ``epsilon-8`` and so on.
        title: what tables call it.
        target: the ε that the noise was calibrated to; None without privacy.
        trainer: its settings.
        claim: what the accountant promises; None without privacy.
        epsilon: the claim's ε at the task's δ, at most ``target``; None without privacy.
        adjacency: the neighbouring relation that a record's coin realises.
    """

    key: str
    title: str
    target: float | None
    trainer: SGD | DPSGD
    claim: Claim | None = None
    epsilon: float | None = None
    adjacency: str = Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class Unit:
    """Models ``first`` to ``first + count`` of one level, whose results are one file."""

    name: str
    level: int
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained, and how it will be judged. Make one with :func:`make_task`.

    Attributes:
        source: the records and the two trainings.
        seed: all randomness but that of the data comes from it.
        levels: without privacy first, then by falling ε.
        shortlist: how many records the ranking run may name; fixed before it.
        ordinary: as many records, drawn from all with equal chances, whatever the ranking says.
        models: per level; the first :attr:`set_aside` of them are the attacker's.
        significance: of all bounds on the shortlist at one level together, and of those on the ordinary records.
        code: versions and a digest of the code that the results depend on.
    """

    source: Source
    seed: int
    levels: tuple[Level, ...]
    shortlist: int
    ordinary: tuple[int, ...]
    models: int
    significance: float
    code: Mapping[str, str]

    @property
    def data(self) -> Data:
        """The records."""
        return self.source.data

    @property
    def delta(self) -> float:
        """The δ of every ε."""
        return self.source.delta

    @property
    def set_aside(self) -> int:
        """How many of a level's models the attack may look at."""
        return self.models // _SET_ASIDE

    @property
    def tested(self) -> int:
        """How many of a level's models rates and bounds are counted on."""
        return self.models - self.set_aside

    @property
    def trainings(self) -> int:
        """All models, the one of the ranking run included."""
        return 1 + self.models * len(self.levels)

    def columns(self, exposed: Sequence[int]) -> tuple[int, ...]:
        """The records that have a coin: the shortlist, then those ordinary ones that are not on it."""
        return tuple(dict.fromkeys((*exposed, *self.ordinary)))

    def units(self, chunk: int) -> tuple[Unit, ...]:
        """The work after the ranking, in order."""
        size = chunk * _STACKS
        return tuple(
            Unit(f"{level.key}-{first:05d}", number, first, min(size, self.models - first))
            for number, level in enumerate(self.levels)
            for first in range(0, self.models, size)
        )

    def coins(self, level: int, columns: int) -> BoolArray:
        """Membership of one level's models, shape ``(models, columns)``: a fair coin for each."""
        return flip_coins(self.models, columns, self._stream(_COINS, level))

    def null_coins(self, level: int, columns: int) -> BoolArray:
        """Coins that no model has seen, for the null run; same shape and law."""
        return flip_coins(self.models, columns, self._stream(_NULL, level))

    def training_seeds(self, level: int) -> tuple[int, ...]:
        """One seed per model of a level."""
        return model_seeds(self._integer(_TRAINING, level), self.models)

    @property
    def ranking_seed(self) -> int:
        """Of the ranking run; no model of a level has it."""
        return self._integer(_RANKING)

    def _stream(self, *purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(_KEY, *purpose))

    def _integer(self, *purpose: int) -> int:
        return int(self._stream(*purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))

    @cached_property
    def digest(self) -> str:
        """Names everything that the results depend on, and nothing that only changes the speed."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        data = self.data
        content = hashlib.sha256(
            b"".join(np.ascontiguousarray(a).tobytes() for a in (data.x, data.y, data.x_test, data.y_test))
        )
        return {
            "name": self.source.name,
            "seed": self.seed,
            "shortlist": self.shortlist,
            "models": self.models,
            "delta": self.delta,
            "significance": self.significance,
            "ranking": {"statistic": STATISTIC, "checkpoints": CHECKPOINTS},
            "levels": [{"key": v.key, "target": v.target, "trainer": settings_of(v.trainer)} for v in self.levels],
            "data": content.hexdigest()[:16],
            "code": dict(self.code),
        }

    def document(self, chunk: int = _CHUNK) -> dict[str, Any]:
        """The plan as it is stored, the seed included."""
        units = [asdict(unit) for unit in self.units(chunk)]
        return {"schema": SCHEMA, "digest": self.digest, **self._identity(), "chunk": chunk, "units": units}

    def chosen_chunk(self) -> int:
        """How many models to stack on this machine. Another number changes results by float rounding, so it is stored
        with the plan and used again on resume.
        """
        return min(_CHUNK, choose_chunk([v.trainer for v in self.levels], self.data))


def settings_of(trainer: SGD | DPSGD) -> dict[str, Any]:
    """A trainer's settings as strict JSON can hold them."""
    shown: dict[str, Any] = json.loads(json.dumps(asdict(trainer), default=str))
    return {"kind": type(trainer).__name__, **shown}


def make_task(
    source: Source,
    *,
    seed: int,
    shortlist: int = SHORTLIST,
    models: int = MODELS,
    epsilons: Sequence[float] = EPSILONS,
    significance: float = SIGNIFICANCE,
) -> Task:
    """Check everything, find the noise for each ε, and draw the ordinary records; trains nothing.

    Raises:
        InputError: a value out of range, or an ε named twice.
    """
    seed = check.integer("seed", seed, 0)
    records = len(source.data)
    most = records // _LEAST_RECORDS
    if most < 1:
        raise InputError(f"the data must have at least {_LEAST_RECORDS} training records, got {records}")
    shortlist = check.integer("shortlist", shortlist, 1, most)
    models = check.integer("models", models, LEAST_MODELS)
    significance = check.significance(significance)
    levels = _levels(source, _targets(epsilons))
    task = Task(source, seed, levels, shortlist, (), models, significance, code_of(source.spec, "vulnerable"))
    drawn = np.random.default_rng(task._stream(_ORDINARY)).choice(records, shortlist, replace=False)
    return replace(task, ordinary=tuple(int(i) for i in drawn))


def _targets(epsilons: Sequence[float]) -> tuple[float, ...]:
    if isinstance(epsilons, (str, bytes)) or not isinstance(epsilons, Sequence):
        raise InputError(f"epsilons must be a list of numbers, got {epsilons!r}")
    values = sorted((check.positive("epsilon", value) for value in epsilons), reverse=True)
    if not values:
        raise InputError("epsilons must hold at least one ε, got none")
    if len(set(values)) < len(values):
        raise InputError(f"epsilons must name each ε once, got {', '.join(f'{v:g}' for v in values)}")
    return tuple(values)


def _levels(source: Source, targets: Sequence[float]) -> tuple[Level, ...]:
    sampler, rate = source.plain.sampler, source.plain.sampling_rate
    like = DPSGD(sampler=sampler, sampling_rate=rate).claim()  # whose batches lose a record in the same way
    plain = Level("non-private", "no privacy", None, source.plain, adjacency=realised(like))
    return (plain, *(_private(source.private, target, source.delta) for target in targets))


def _private(settings: DPSGD, target: float, delta: float) -> Level:
    claim = replace(settings, noise_multiplier=1.0).claim()
    assert claim is not None
    solved = calibrated(
        epsilon=target, delta=delta, sampling_rate=settings.sampling_rate, steps=settings.steps,
        sampler=settings.sampler, adjacency=str(claim.adjacency),
    )  # fmt: skip
    trainer = replace(settings, noise_multiplier=solved.value, learning_rate=_step_length(settings, solved.value))
    promise = trainer.claim()
    assert promise is not None
    spent, adjacency = promise.epsilon(delta), realised(promise)
    return Level(f"epsilon-{target:g}", f"ε = {target:g}", target, trainer, promise, spent, adjacency)


def _step_length(settings: DPSGD, noise: float) -> float:
    """The settings' learning rate, shortened where there is more noise than in them: a step's noise is then theirs.

    No claim depends on it. The step length of a named optimizer stays as it is.
    """
    if settings.optimizer is not None or noise <= settings.noise_multiplier:
        return float(settings.learning_rate)
    return float(f"{settings.learning_rate * settings.noise_multiplier / noise:.3g}")
