"""The grid: everything that is decided before the first model is trained."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import check
from ..accounting.calibration import noise_multiplier as calibrated
from ..accounting.claims import Claim
from ..errors import InputError
from ..plan import code_of, load_pool
from ..records import Data
from ..spec import Spec, TrainerSpec
from ..trainers.seeds import model_seeds
from ..trainers.settings import DPSGD, SGD, GradientDescent

SCHEMA = "dpaudit.frontier-plan/1"
DEFAULT_EPSILON, DEFAULT_CLIP = (0.5, 1.0, 2.0, 4.0, 8.0), (0.1, 0.3, 1.0, 3.0)
DEFAULT_REPEATS, DEFAULT_WITHIN = 5, 0.01
CHUNK, STACKS = 25, 2
_KEY = 0x66726F6E  # "fron": keeps these seeds apart from whatever else is drawn from the spec's
_GRID, _REFERENCE, _FRESH = range(3)


@dataclass(frozen=True)
class Level:
    """One noise multiplier, and so one ε: the clip norm does not change it.

    Attributes:
        noise_multiplier: of the training.
        target: the ε that the noise was calibrated to; None where the noise was given.
        claim: what the accountant promises.
        epsilon: the claim's ε at the grid's δ, in nats.
    """

    noise_multiplier: float
    target: float | None
    claim: Claim
    epsilon: float


@dataclass(frozen=True)
class Unit:
    """Work whose result is one file: some models, each with its settings and seed."""

    name: str
    settings: tuple[GradientDescent, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Grid:
    """What is trained, and by which rule a point will be suggested. Make one with :func:`make_grid`.

    Attributes:
        spec: where data, seed and trainer come from.
        trainer: the DP-SGD trainer's name in the spec.
        settings: its settings, of which the grid replaces the noise multiplier and the clip norm.
        reference: name and settings of the training without privacy; None if there is to be none.
        data: the training records, all of them members of every model, and the test records.
        levels: ascending in ε.
        clip_norms: ascending.
        repeats: models per point, which differ in their seeds.
        delta: the δ of every ε.
        within: how far below the best accuracy the suggestion may be.
        budget: the largest ε of a second suggestion; None if there is to be none.
        code: versions and a digest of the code that the results depend on.
    """

    spec: Spec
    trainer: str
    settings: DPSGD
    reference: tuple[str, SGD] | None
    data: Data
    levels: tuple[Level, ...]
    clip_norms: tuple[float, ...]
    repeats: int
    delta: float
    within: float
    budget: float | None
    code: Mapping[str, str]

    @property
    def points(self) -> tuple[tuple[Level, float], ...]:
        """Every noise multiplier with every clip norm, in order."""
        return tuple(itertools.product(self.levels, self.clip_norms))

    @property
    def choosing(self) -> slice:
        """The test records that choices are made on: the first half, in the random order of the data."""
        return slice(0, self.test_records // 2)

    @property
    def reporting(self) -> slice:
        """The test records that had no part in any choice."""
        return slice(self.test_records // 2, self.test_records)

    @property
    def test_records(self) -> int:
        """Number of test records."""
        return len(_test(self.data))

    @property
    def models(self) -> int:
        """Models of the grid and the reference, and at most as many fresh ones as there may be suggestions for."""
        suggestions = 1 if self.budget is None else 2
        return self.repeats * (len(self.points) + (self.reference is not None) + suggestions)

    def private(self, point: tuple[Level, float]) -> DPSGD:
        """The settings at one point."""
        return replace(self.settings, noise_multiplier=point[0].noise_multiplier, clip_norm=point[1])

    def grid_units(self) -> tuple[Unit, ...]:
        """The models of all points, point by point."""
        settings = [self.private(point) for point in self.points for _ in range(self.repeats)]
        return tuple(_cut("grid", settings, self._root(_GRID)))

    def reference_units(self) -> tuple[Unit, ...]:
        """The models without privacy."""
        if self.reference is None:
            return ()
        return tuple(_cut("reference", [self.reference[1]] * self.repeats, self._root(_REFERENCE)))

    def fresh_units(self, point: int) -> tuple[Unit, ...]:
        """Further models of one point, whose seeds had no part in any choice."""
        settings = [self.private(self.points[point])] * self.repeats
        return tuple(_cut(f"fresh-{point:05d}", settings, self._root(_FRESH, point)))

    def _root(self, *purpose: int) -> int:
        stream = np.random.SeedSequence(self.spec.seed, spawn_key=(_KEY, *purpose))
        return int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))

    @cached_property
    def digest(self) -> str:
        """Names everything that the results depend on, and nothing that only changes the speed."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        data = self.data
        content = hashlib.sha256(
            b"".join(np.ascontiguousarray(a).tobytes() for a in (data.x, data.y, data.x_test, data.y_test))
        )
        return {
            "spec": {"name": self.spec.name, "seed": self.spec.seed, "data": self.spec.data.model_dump(mode="json")},
            "trainer": {"name": self.trainer, "settings": asdict(self.settings)},
            "reference": None if self.reference is None else asdict(self.reference[1]),
            "noise_multipliers": [level.noise_multiplier for level in self.levels],
            "targets": [level.target for level in self.levels],
            "clip_norms": list(self.clip_norms),
            "repeats": self.repeats,
            "delta": self.delta,
            "within": self.within,
            "budget": self.budget,
            "chunk": CHUNK,
            "data": content.hexdigest()[:16],
            "code": dict(self.code),
        }

    def document(self) -> dict[str, Any]:
        """The plan as it is stored, the seed included."""
        units = [{"name": u.name, "models": len(u.seeds)} for u in (*self.grid_units(), *self.reference_units())]
        return {"schema": SCHEMA, "digest": self.digest, **self._identity(), "units": units}


def _cut(kind: str, settings: Sequence[GradientDescent], root: int) -> Iterator[Unit]:
    seeds, size = model_seeds(root, len(settings)), CHUNK * STACKS
    for at in range(0, len(settings), size):
        yield Unit(f"{kind}-{at:05d}", tuple(settings[at : at + size]), seeds[at : at + size])


def _test(data: Data) -> Any:
    assert data.x_test is not None
    return data.x_test


def make_grid(
    spec: Spec,
    *,
    noise: Sequence[float] | None = None,
    epsilon: Sequence[float] | None = None,
    clip: Sequence[float] | None = None,
    repeats: int = DEFAULT_REPEATS,
    delta: float | None = None,
    within: float = DEFAULT_WITHIN,
    budget: float | None = None,
    trainer: str | None = None,
    reference: bool = True,
) -> Grid:
    """Check everything, find the noise for each target ε, and load the data; see :func:`dpaudit.frontier.explore`.

    Raises:
        InputError: a value out of range or named twice, no such trainer, a budget below every ε, or data without
            test records.
        MissingExtra: a package of the extra ``train`` is not installed.
    """
    chosen = _trainer(spec, trainer)
    settings = chosen.build(spec.folder)
    assert isinstance(settings, DPSGD)
    delta = check.number("delta", spec.delta if delta is None else delta, 0.0, 1.0, ends="()")
    clip_norms = _values("clip", DEFAULT_CLIP if clip is None else clip, check.positive)
    for value in clip_norms:
        replace(settings, clip_norm=value)  # what float32 can't hold is refused there
    repeats = check.integer("repeats", repeats, 2)
    within = check.number("within", within, 0.0, 1.0)
    levels = _levels(settings, noise, epsilon, delta)
    if budget is not None and check.positive("budget", budget) < levels[0].epsilon:
        raise InputError(f"budget must be at least the smallest ε of the grid, {levels[0].epsilon:.4g}, got {budget!r}")
    data = load_pool(spec).as_data()
    if len(_test(data)) < 2:
        raise InputError(f"the data must have at least 2 test records, one to choose on and one to report on, "
                         f"got {len(_test(data))}")  # fmt: skip
    plain = _reference(spec, settings) if reference else None
    code = code_of(spec.model_copy(update={"trainers": (chosen,)}), "frontier")
    return Grid(
        spec, chosen.name, settings, plain, data, levels, clip_norms, repeats, delta, within,
        None if budget is None else float(budget), code,
    )  # fmt: skip


def _trainer(spec: Spec, name: str | None) -> TrainerSpec:
    usable = [t for t in spec.trainers if t.trainer == "dp-sgd"]
    named = usable if name is None else [t for t in usable if t.name == name]
    if not named:
        names = ", ".join(t.name for t in usable) or "none of this spec"
        wanted = f"one of the spec's of the kind dp-sgd ({names})"
        raise InputError(f"trainer must be {wanted}, got {'a spec without any' if name is None else repr(name)}")
    return named[0]


def _reference(spec: Spec, settings: DPSGD) -> tuple[str, SGD]:
    """The spec's own plain SGD of the same widths; without one, the same settings unclipped and without noise."""
    for trainer in spec.trainers:
        if trainer.trainer == "sgd":
            plain = trainer.build(spec.folder)
            if isinstance(plain, SGD) and plain.hidden == settings.hidden:
                return trainer.name, plain
    same = {name: getattr(settings, name) for name in SGD.__dataclass_fields__}
    return f"{spec.name} without clip and noise", SGD(**same)


def _values(name: str, given: Sequence[float], allowed: Callable[[str, Any], float]) -> tuple[float, ...]:
    """Checked values, ascending."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence | np.ndarray):
        raise InputError(f"{name} must be a list of numbers, got {given!r}")
    values = sorted(allowed(name, value) for value in given)
    if not values:
        raise InputError(f"{name} must hold at least one value, got none")
    for one, next_one in itertools.pairwise(values):
        if one == next_one:
            raise InputError(f"{name} must name each value once, got {one:g} twice")
    return tuple(values)


def _levels(
    settings: DPSGD, noise: Sequence[float] | None, epsilon: Sequence[float] | None, delta: float
) -> tuple[Level, ...]:
    """One level per noise multiplier, ascending in ε."""
    if noise is not None and epsilon is not None:
        raise InputError("the grid takes noise or epsilon, got both")
    if noise is not None:
        return tuple(
            _level(settings, value, None, delta) for value in reversed(_values("noise", noise, check.positive))
        )
    targets = _values("epsilon", DEFAULT_EPSILON if epsilon is None else epsilon, check.positive)
    return tuple(_level(settings, _noise_for(settings, target, delta), target, delta) for target in targets)


def _noise_for(settings: DPSGD, target: float, delta: float) -> float:
    claim = _claim(settings, 1.0)
    sampler = claim.settings.get("sampler", "poisson")
    solved = calibrated(
        epsilon=target, delta=delta, sampling_rate=settings.sampling_rate, steps=settings.steps, sampler=sampler,
        adjacency=str(claim.adjacency),
    )  # fmt: skip
    return solved.value


def _level(settings: DPSGD, noise: float, target: float | None, delta: float) -> Level:
    claim = _claim(settings, noise)
    epsilon = claim.epsilon(delta)
    if not 0 < epsilon < math.inf:
        raise InputError(f"noise must be such that ε at δ = {delta:g} is above 0 and finite, got {noise:g} with ε = "
                         f"{epsilon:g}")  # fmt: skip
    return Level(noise, target, claim, epsilon)


def _claim(settings: DPSGD, noise: float) -> Claim:
    claim = replace(settings, noise_multiplier=noise).claim()
    assert claim is not None
    return claim
