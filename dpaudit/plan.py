"""Plans: a spec with everything in it decided before the first coin is looked at, as a list of work units."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .accounting.claims import Claim
from .attacks.canaries import CanarySet, flip_coins, plant
from .attacks.planned import PLANNED
from .bounds.planning import default_tests, strongest_guesses
from .data import Pool, load
from .errors import InputError
from .interfaces import Trainer
from .records import Adjacency, BoolArray, Design, PlannedTest
from .spec import Spec, TestSpec, load_spec

SCHEMA = "dpaudit.plan/1"
CHUNK, STACKS = 25, 2
_DEFAULT_FIRST_SHARE = 0.8
VERSIONS = "numpy", "scipy", "torch", "numba", "dp-accounting"  # of packages that decide about bits
_NOT_IN_RUNS = ("report", "cli", "demo", "frontier", "inference", "vulnerable")  # what no result of a run depends on
_DATA, _CANARIES, _COINS, _TRAINING = range(4)


@dataclass(frozen=True)
class Unit:
    """A chunk of work: models ``first`` to ``first + count`` of one trainer, trained in stacks of ``chunk``."""

    name: str
    trainer: int
    first: int
    count: int
    chunk: int


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec with its data, canaries, trainers, claims and tests at hand. Make one with :func:`make_plan`.

    Attributes:
        spec: as the user wrote it, with its tests filled in.
        planted: the data with canaries.
        trainers, claims: one of each per trainer of the spec.
        tests: the list frozen before any score exists; the same for every trainer.
        code: versions and a digest of the code that the results depend on.
    """

    spec: Spec
    planted: CanarySet
    trainers: tuple[Trainer, ...]
    claims: tuple[Claim | None, ...]
    tests: tuple[PlannedTest, ...]
    code: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """Names the plan: everything that a result depends on, and nothing that only changes the speed."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        data = self.planted.data
        content = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in (data.x, data.y, data.x_test)))
        return {
            "spec": self.spec.model_dump(mode="json"),
            "tests": [asdict(t) for t in self.tests],
            "data": content.hexdigest()[:16],
            "code": dict(self.code),
        }

    @property
    def models(self) -> int:
        """Models per trainer: shadows first, then the tested runs."""
        return self.spec.shadows + self.spec.runs

    def units(self, chunk: int = CHUNK) -> tuple[Unit, ...]:
        """The work, in order."""
        size = chunk * STACKS
        return tuple(
            Unit(f"{trainer.name}-{first:05d}", i, first, min(size, self.models - first), chunk)
            for i, trainer in enumerate(self.spec.trainers)
            for first in range(0, self.models, size)
        )

    def coins(self, trainer: int) -> BoolArray:
        """Membership of one trainer's models, shape ``(models, canaries)``."""
        return flip_coins(self.models, len(self.planted.canaries), _stream(self.spec.seed, _COINS, trainer))

    def adjacency(self, trainer: int) -> Adjacency:
        """The neighbouring relation that one trainer's coins realise."""
        return realised(self.claims[trainer])

    def training_seed(self, trainer: int) -> int:
        """The root seed of one trainer's models; no attack sees it, and it is not that of the coins."""
        return _integer(_stream(self.spec.seed, _TRAINING, trainer))

    def chosen_chunk(self) -> int:
        """How many models to stack, by this machine's memory. It is stored with the plan and used again on resume,
        since another one changes results by float rounding.
        """
        from .trainers import choose_chunk

        return min(CHUNK, choose_chunk(self.trainers, self.planted.data))

    def document(self, chunk: int = CHUNK) -> dict[str, Any]:
        """The plan as it is stored, seeds included."""
        units = [{**asdict(u), "seed": self.training_seed(u.trainer), "threads": STACKS} for u in self.units(chunk)]
        return {"schema": SCHEMA, "digest": self.digest, **self._identity(), "chunk": chunk, "units": units}


def make_plan(source: str | Path | dict[str, Any] | Spec | Plan) -> Plan:
    """Decide everything that a spec leaves open, and check everything that can be checked before training.

    Args:
        source: a bundled name, a TOML file, a dict of the same shape, or a :class:`~dpaudit.spec.Spec`; a plan is
            returned as it is.

    Raises:
        InputError: the spec or something that it names is wrong: one line.
        MissingExtra: a package of the extra ``train`` is not installed.
    """
    if isinstance(source, Plan):
        return source
    spec = load_spec(source)
    trainers = tuple(t.build(spec.folder) for t in spec.trainers)
    claims = tuple(s.promised(t) for s, t in zip(spec.trainers, trainers, strict=True))
    _require_finite(spec, claims)
    planted = plant(load_pool(spec), [c.build() for c in spec.canaries], seed=_integer(_stream(spec.seed, _CANARIES)))
    tests = tuple(t.build() for t in spec.tests) or _planned(spec, claims)
    plan = Plan(spec, planted, trainers, claims, tests, code_of(spec))
    _require_what_attacks_need(plan)
    return plan


def load_pool(spec: Spec) -> Pool:
    """The spec's data, divided by its seed."""
    return load(
        spec.data.source,
        records=spec.data.records,
        test=spec.data.test,
        folder=spec.data.folder,
        seed=_integer(_stream(spec.seed, _DATA)),
    )


def realised(claim: Claim | None) -> Adjacency:
    """What a trainer makes of a record that is no member: zeroed out under a zero-out claim, else absent."""
    zeroed = claim is not None and claim.adjacency is Adjacency.ZERO_OUT
    return Adjacency.ZERO_OUT if zeroed else Adjacency.ADD_REMOVE


def _require_finite(spec: Spec, claims: tuple[Claim | None, ...]) -> None:
    for trainer, claim in zip(spec.trainers, claims, strict=True):
        if claim is not None and not np.isfinite(claim.epsilon(spec.delta)):
            raise InputError(
                f"trainer {trainer.name!r}: delta must be one at which the claim's ε is finite, got {spec.delta:g}"
            )


def _require_what_attacks_need(plan: Plan) -> None:
    """Records in nobody's training set, and shadows without each canary: known before anything is trained."""
    for test in plan.tests:
        wanted = PLANNED[test.attack]
        if wanted.population and not len(plan.planted.data.y_test):  # type: ignore[arg-type]
            raise InputError(
                f"the attack {test.attack} needs records that nobody is trained on: test must be at least 1"
            )
        columns = [i for i, c in enumerate(plan.planted.canaries) if test.canaries == c.family]
        for i in range(len(plan.trainers)) if wanted.without else ():
            least = int((~plan.coins(i)[: plan.spec.shadows, columns]).sum(axis=0).min())
            if least < wanted.without:
                raise InputError(
                    f"the attack {test.attack} needs {wanted.without} shadows without each canary, and the coins of "
                    f"{plan.spec.shadows} leave one with {least}: shadows must be more"
                )


def _planned(spec: Spec, claims: tuple[Claim | None, ...]) -> tuple[PlannedTest, ...]:
    """One test per canary family, the first with most of the significance; guesses from the first claim's power."""
    claim = next((c for c in claims if c is not None), None)
    others = len(spec.canaries) - 1
    first = 1.0 if others == 0 else _DEFAULT_FIRST_SHARE
    attack: Any = "lira" if spec.shadows >= 4 else "threshold"
    tests = []
    for i, family in enumerate(spec.canaries):
        share = first if i == 0 else (1 - first) / others
        shape = (spec.runs, family.count)
        guesses = _guesses(shape, claim, spec.delta, share * spec.significance)
        tests.append(TestSpec(canaries=family.family, attack=attack, guesses=guesses, share=share).build())
    return tuple(tests)


def _guesses(shape: tuple[int, int], claim: Claim | None, delta: float, level: float) -> int:
    if claim is not None:
        return strongest_guesses(Design(adjacency=realised(claim)), shape, claim, delta, level)
    middle = default_tests(Design(), shape, None, delta, level)[len(shape) // 2]
    assert middle.guesses is not None
    return middle.guesses


def _stream(seed: int, *purpose: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=purpose)


def _integer(stream: np.random.SeedSequence) -> int:
    return int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))


def code_of(spec: Spec, user: str = "") -> dict[str, str]:
    """Versions and source digests of everything that a result depends on.

    Args:
        user: the package that asks, if it is one of those that runs do not depend on.
    """
    package = Path(__file__).parent
    ours = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        part = file.relative_to(package).parts[0]
        if part == user or part not in _NOT_IN_RUNS:
            ours.update(file.read_bytes())
    versions = {name: _version(name) for name in VERSIONS}
    named = [name for t in spec.trainers for name in (t.trainer, t.settings.get("model")) if isinstance(name, str)]
    theirs = {f"source of {name}": _module_digest(name) for name in named if ":" in name}
    return {"dpaudit": ours.hexdigest()[:16], **versions, **theirs}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _module_digest(target: str) -> str:
    """A digest of the file that a user's trainer is defined in; it has been imported by now."""
    file = getattr(sys.modules.get(target.split(":")[0]), "__file__", None)
    return "unknown" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
