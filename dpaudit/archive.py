"""The stored observations of a run, and the judgement that follows from them and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accounting.claims import Claim
from .auditor import judge
from .data.scores import read_tensors, tensor_bytes
from .errors import InputError
from .records import (
    Accuracy,
    CanaryFamily,
    Design,
    Observations,
    PlannedTest,
    RunResult,
    TrainerAudit,
    Verdict,
)
from .store import write_aside

SCHEMA = "dpaudit.observations/1"


@dataclass(frozen=True)
class TrainerRecord:
    """What is kept of one trainer: settings, claim, planned tests and accuracy; its scores are kept by name."""

    name: str
    trainer: Mapping[str, Any]
    claim: Claim | None
    expect: Verdict | None
    tests: tuple[PlannedTest, ...]
    accuracy: Accuracy

    def document(self) -> dict[str, Any]:
        """As stored."""
        return {
            "name": self.name,
            "trainer": dict(self.trainer),
            "claim": None if self.claim is None else self.claim.document(),
            "expect": None if self.expect is None else self.expect.value,
            "tests": [asdict(t) for t in self.tests],
            "accuracy": asdict(self.accuracy),
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> TrainerRecord:
        """From what was stored."""
        return cls(
            name=content["name"],
            trainer=content["trainer"],
            claim=None if content["claim"] is None else Claim.of(content["claim"]),
            expect=None if content["expect"] is None else Verdict(content["expect"]),
            tests=tuple(PlannedTest(**t) for t in content["tests"]),
            accuracy=Accuracy(**content["accuracy"]),
        )


def scores_name(trainer: str, test: PlannedTest) -> str:
    """The name that the scores of a test are stored under."""
    return f"{trainer}/{test.canaries}/{test.attack}-{test.signal}"


def write_archive(
    path: Path,
    trainers: Sequence[TrainerRecord],
    observed: Mapping[str, Observations],
    cross: Mapping[str, Observations],
    facts: Mapping[str, Any],
) -> None:
    """Store observations and everything that judging them needs.

    Args:
        observed, cross: scores by :func:`scores_name`; for the verdict, and for ROC figures only.
        facts: ``name, delta, significance, data, canaries, runs, shadows, not_tested, command, environment``.
    """
    arrays: dict[str, NDArray[Any]] = {}
    sets = []
    for kind, group in (("observed", observed), ("cross", cross)):
        for name, obs in group.items():
            assert obs.present is not None
            arrays |= {f"{kind}/{name}:scores": obs.scores, f"{kind}/{name}:member": obs.member}
            arrays[f"{kind}/{name}:present"] = obs.present
            sets.append(
                {"kind": kind, "name": name, "design": asdict(obs.design), "canaries": list(obs.canaries or ())}
            )
    if len(observed) == 1:
        # One set of scores also goes under the plain names that other tools read.
        only = next(iter(observed.values()))
        arrays |= {"scores": only.scores, "member": only.member}
    meta = {"schema": SCHEMA, "sets": sets, "trainers": [t.document() for t in trainers], "facts": dict(facts)}
    write_aside(path, tensor_bytes(arrays, meta))


def is_archive(path: Path) -> bool:
    """Whether a file holds the stored observations of a run, rather than one matrix of scores."""
    return path.suffix == ".safetensors" and path.is_file() and (read_tensors(path)[1] or {}).get("schema") == SCHEMA


def read_archive(path: Path) -> RunResult:
    """Judge the stored observations again.

    Raises:
        InputError: the file is not there or was not written by dpaudit.
    """
    if not path.is_file():
        raise InputError(f"{path.parent.parent} must hold a finished dpaudit run, got no {path.name} in it")
    arrays, meta = read_tensors(path)
    if meta is None or meta.get("schema") != SCHEMA:
        raise InputError(f"{path} must hold observations with the schema {SCHEMA}, got something else")
    observed = {s["name"]: _observations(arrays, s) for s in meta["sets"] if s["kind"] == "observed"}
    cross = {s["name"]: _observations(arrays, s) for s in meta["sets"] if s["kind"] == "cross"}
    facts = meta["facts"]
    records = [TrainerRecord.of(t) for t in meta["trainers"]]
    audits = tuple(_judged(r, observed, cross, facts) for r in records)
    return RunResult(
        name=facts["name"],
        audits=audits,
        error_probability=_family_wise(audits, facts["significance"]),
        data=facts["data"],
        canaries=tuple(CanaryFamily(**c) for c in facts["canaries"]),
        runs=facts["runs"],
        shadows=facts["shadows"],
        not_tested=tuple(facts["not_tested"]),
        command=facts["command"],
        environment=facts["environment"],
    )


def _observations(arrays: Mapping[str, NDArray[Any]], stored: Mapping[str, Any]) -> Observations:
    key = f"{stored['kind']}/{stored['name']}"
    return Observations(
        arrays[f"{key}:scores"],
        arrays[f"{key}:member"],
        arrays[f"{key}:present"],
        canaries=stored["canaries"],
        design=Design(**stored["design"]),
    )


def _judged(
    record: TrainerRecord,
    observed: Mapping[str, Observations],
    cross: Mapping[str, Observations],
    facts: Mapping[str, Any],
) -> TrainerAudit:
    planned = [(test, observed[scores_name(record.name, test)]) for test in record.tests]
    return TrainerAudit(
        audit=judge(planned, record.claim, delta=facts["delta"], significance=facts["significance"], name=record.name),
        trainer=record.trainer,
        expect=record.expect,
        accuracy=record.accuracy,
        observations=_by_family(record.name, observed),
        cross=_by_family(record.name, cross),
    )


def _by_family(trainer: str, sets: Mapping[str, Observations]) -> dict[str, Observations]:
    """The sets of one trainer by canary family, or by family and attack where a family has several."""
    mine = {name.split("/", 1)[1]: obs for name, obs in sets.items() if name.split("/", 1)[0] == trainer}
    families = [name.split("/")[0] for name in mine]
    return {n.split("/")[0] if families.count(n.split("/")[0]) == 1 else n: obs for n, obs in mine.items()}


def _family_wise(audits: Sequence[TrainerAudit], significance: float) -> float:
    """The probability that any true claim is called violated, by the union over all claims (one if there is none)."""
    claims = sum(a.audit.claim is not None for a in audits)
    return float(np.minimum(max(claims, 1) * significance, 1.0))
