"""A run like the main job, made of random scores: no claim, a claim that holds, a claim whose noise was forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpaudit.accounting import Claim
from dpaudit.auditor import judge
from dpaudit.records import (
    Accuracy,
    CanaryFamily,
    Design,
    Observations,
    PlannedTest,
    RunResult,
    TrainerAudit,
    Verdict,
)
from dpaudit.report import document, write_release

RUNS, CANARIES = 60, 20
ROOT_SEED = 918273645546
CLAIM = Claim.gaussian(noise_multiplier=1.08)
DESIGN = Design(calibration="set-aside")
TESTS = {
    "far-out": PlannedTest("guesses", 0.8, 150, canaries="far-out", signal="logit margin", attack="lira"),
    "mislabelled": PlannedTest("guesses", 0.2, 150, canaries="mislabelled", signal="logit margin", attack="lira"),
}
SHIFTS = {"non-private SGD": (9.0, 3.0), "DP-SGD": (0.5, 0.1), "DP-SGD, noise forgotten": (9.0, 2.6)}


def observe(family: str, shift: float, rng: np.random.Generator, rows: int = RUNS) -> Observations:
    member = rng.random((rows, CANARIES)) < 0.5
    scores = rng.normal(size=member.shape) * (1 + member * shift / 4) + shift * member
    return Observations(
        scores,
        member,
        runs=tuple(f"run-{r:05d}-secret" for r in range(rows)),
        canaries=tuple(f"{family}-{c:04d}-secret" for c in range(CANARIES)),
        design=DESIGN,
    )


def trainer_audit(name: str, claim: Claim | None, expect: Verdict | None, rng: np.random.Generator) -> TrainerAudit:
    observations = {family: observe(family, s, rng) for family, s in zip(TESTS, SHIFTS[name], strict=True)}
    planned = [(TESTS[family], obs) for family, obs in observations.items()]
    return TrainerAudit(
        audit=judge(planned, claim, delta=1e-5, significance=0.05, name=name),
        trainer={"kind": "dp-sgd", "steps": 300, "learning_rate": 4.0, "hidden": [64, 32], "seed": ROOT_SEED},
        expect=expect,
        accuracy=Accuracy(0.94881, 0.921, 0.96, RUNS, 797),
        observations=observations,
        cross={"far-out": observe("far-out", SHIFTS[name][0], rng, 70)},
    )


@pytest.fixture(scope="session")
def result() -> RunResult:
    rng = np.random.default_rng(5)
    return RunResult(
        name="digits",
        audits=(
            trainer_audit("non-private SGD", None, None, rng),
            trainer_audit("DP-SGD", CLAIM, None, rng),
            trainer_audit("DP-SGD, noise forgotten", CLAIM, Verdict.VIOLATED, rng),
        ),
        error_probability=0.1,
        data={"name": "scikit-learn digits", "records": 1000, "test_records": 797, "features": 84, "classes": 10,
              "nominal_size": 1000},
        canaries=(
            CanaryFamily("far-out", CANARIES, "each has a feature of its own that no other record uses"),
            CanaryFamily("mislabelled", CANARIES, "real held-out records with a wrong label"),
        ),
        runs=RUNS,
        shadows=50,
        not_tested=(
            "An attacker who sees the updates of training; only outputs of the final model were used.",
            "Records other than the canaries: ordinary records may leak less, and stranger ones more.",
            "Tuning: choosing settings by looking at the data costs privacy that no claim here counts.",
            "The random number generator and floating-point side channels.",
        ),
        command="dpaudit run digits",
        environment={
            "commit": "0123abcd",
            "dirty": True,
            "versions": {"python": "3.11.9", "numpy": np.__version__, "dpaudit": "0.1.0"},
        },
    )  # fmt: skip


@pytest.fixture(scope="session")
def facts(result: RunResult) -> dict:
    return document(result)


@pytest.fixture(scope="session")
def release(result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_release(result, tmp_path_factory.mktemp("run"))
