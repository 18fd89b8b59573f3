"""The whole line: plan, train, attack, judge, write."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import check
from .archive import TrainerRecord, read_archive, scores_name, write_archive
from .attacks import planned
from .attacks.coins import CanaryCoins, write_canaries
from .attacks.planned import PLANNED
from .attacks.signals import SIGNALS
from .errors import need_extra
from .plan import CHUNK, STACKS, VERSIONS, Plan, Unit, make_plan
from .records import Accuracy, BoolArray, CanaryFamily, Design, Observations, PlannedTest, RunResult
from .report import write_release
from .spec import Spec
from .store import RunFolder

Progress = Callable[[int, int, str], None]
Arrays = dict[str, NDArray[Any]]
_POPULATION = 1000  # records in nobody's training set that are asked about, at most


def run(
    source: str | Path | dict[str, Any] | Spec | Plan,
    out: str | Path,
    *,
    fresh: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    command: str = "",
) -> RunResult:
    """Audit the trainers of a spec: train, attack, judge and write the report.

    Finished work units are kept in ``out``; the same plan and code go on where they were stopped, and a finished run is
    judged again from its stored observations. The result does not depend on ``workers``.

    Args:
        source: a bundled name (``digits``, ``fashion-mnist``, …), a TOML file, a dict of the same shape, or a plan.
        out: folder for ``release/`` and ``retained/``.
        fresh: forget what an earlier run left in ``out``.
        workers: processes that train side by side.
        progress: called with (models done, models in all, what is being done).
        command: what a report prints as the command that repeats the run.

    Raises:
        InputError: bad input, or ``out`` holds another plan. Nothing is written then.
        MissingExtra: torch or scikit-learn is not installed.
    """
    workers = check.integer("workers", workers, 1)
    plan = make_plan(source)
    _require_torch(plan)
    folder = RunFolder(out)
    folder.admit(plan.document(), fresh)
    with folder.locked():
        if fresh:
            folder.clear()
        if folder.plan() is None:
            folder.begin(plan.document(plan.chosen_chunk()))
        if folder.finished:
            return read_archive(folder.observations)
        _work(plan, folder, workers, progress)
        _conclude(plan, folder, command or f"dpaudit run {plan.spec.name}")
        return redraw(folder.path)


def redraw(out: str | Path) -> RunResult:
    """Judge and draw a finished run again from its stored observations; trains nothing.

    Raises:
        InputError: ``out`` holds no finished run.
    """
    folder = RunFolder(out)
    result = read_archive(folder.observations)
    write_release(result, folder.path)
    return result


def _require_torch(plan: Plan) -> None:
    if any(":" not in t.trainer for t in plan.spec.trainers):
        try:
            import torch  # noqa: F401 - only to fail early
        except ImportError:
            raise need_extra("torch") from None


def _work(plan: Plan, folder: RunFolder, workers: int, progress: Progress | None) -> None:
    """Train and attack what is not finished yet."""
    units = plan.units(_stored_chunk(folder))
    todo = [u for u in units if folder.unit(u.name, plan.digest) is None]
    total, done = sum(u.count for u in units), sum(u.count for u in units) - sum(u.count for u in todo)
    tell = progress or (lambda *_: None)
    for unit, arrays in _results(plan, todo, workers):
        folder.save_unit(unit.name, plan.digest, arrays)
        done += unit.count
        tell(done, total, plan.spec.trainers[unit.trainer].name)


def _stored_chunk(folder: RunFolder) -> int:
    """The chunk that the folder's plan was cut by: chosen once, and used again on resume."""
    return int((folder.plan() or {}).get("chunk", CHUNK))


def _results(plan: Plan, todo: list[Unit], workers: int) -> Iterator[tuple[Unit, Arrays]]:
    if workers == 1 or len(todo) < 2:
        for unit in todo:
            yield unit, _do(plan, unit)
        return
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise need_extra("joblib") from None
    jobs = Parallel(n_jobs=workers, return_as="generator")(delayed(_do_alone)(plan.spec, unit) for unit in todo)
    yield from zip(todo, jobs, strict=True)


def _do_alone(spec: Spec, unit: Unit) -> Arrays:
    """One unit in a process of its own, which makes the plan again from the spec."""
    return _do(make_plan(spec), unit)


def _do(plan: Plan, unit: Unit) -> Arrays:
    """Train the unit's models and take every signal of every canary, and the accuracy."""
    from .trainers import model_seeds, train_many

    rows = slice(unit.first, unit.first + unit.count)
    planted = plan.planted
    seeds = model_seeds(plan.training_seed(unit.trainer), plan.models)[rows]
    member = planted.membership(plan.coins(unit.trainer)[rows])
    models = train_many(plan.trainers[unit.trainer], planted.data, member, seeds, chunk=unit.chunk, threads=STACKS)
    logits, labels = models.logits(planted.data.x[planted.rows]), planted.data.y[planted.rows]
    signals = {name: SIGNALS[name](logits, labels) for name in _signals(plan)}
    return {**signals, **_population(models, plan), **_diagnostics(models), "accuracy": _accuracy(models, plan)}


def _signals(plan: Plan) -> list[str]:
    """What is kept of every model: the signals that tests use, and these two for whoever looks later."""
    return list(dict.fromkeys(["margin", "loss", *(test.signal for test in plan.tests)]))


def _population(models: Any, plan: Plan) -> Arrays:
    """The same signals of records in nobody's training set, for the attacks that compare with these."""
    names = [test.signal for test in plan.tests if PLANNED[test.attack].population]
    if not names:
        return {}
    data = plan.planted.data
    x, y = np.array(data.x_test[:_POPULATION]), np.array(data.y_test[:_POPULATION])  # type: ignore[index]
    logits = models.logits(x)
    return {f"population:{name}": SIGNALS[name](logits, y) for name in dict.fromkeys(names)}


def _diagnostics(models: Any) -> Arrays:
    """Counts of each model's steps, shape ``(models, steps)``, from models that have any. They say more about the data
    than the claim covers: units are retained, and nothing that is released is made of these.
    """
    found = [model.diagnostics.steps for model in models if hasattr(model, "diagnostics")]
    if not found:
        return {}
    return {
        f"diagnostics:{name}": np.array([[getattr(step, name) for step in steps] for steps in found])
        for name in ("examples", "scaled", "dropped")
    }


def _accuracy(models: Any, plan: Plan) -> NDArray[np.float64]:
    """Share of test records that each model labels right, shape ``(models,)``; NaN without test records."""
    data = plan.planted.data
    assert data.x_test is not None
    if len(data.x_test) == 0:
        return np.full(len(models), np.nan)
    # A copy, since foreign models may want to write to what they are given.
    return (models.logits(np.array(data.x_test)).argmax(axis=-1) == data.y_test).mean(axis=-1)


def _conclude(plan: Plan, folder: RunFolder, command: str) -> None:
    """Turn stored signals into scores, and store these with all that judging them needs."""
    observed: dict[str, Observations] = {}
    cross: dict[str, Observations] = {}
    records = []
    for i, trainer in enumerate(plan.spec.trainers):
        signals = _collected(plan, folder, i)
        coins = plan.coins(i)
        for test in plan.tests:
            name = scores_name(trainer.name, test)
            observed[name], cross[name] = _scores(plan, i, test, signals, coins)
        records.append(_record(plan, i, signals["accuracy"]))
    _store_canaries(plan, folder)
    write_archive(folder.observations, records, observed, cross, _facts(plan, command))


def _collected(plan: Plan, folder: RunFolder, trainer: int) -> Arrays:
    """The signals of all models of one trainer, in order."""
    units = [u for u in plan.units(_stored_chunk(folder)) if u.trainer == trainer]
    parts = [folder.unit(u.name, plan.digest) for u in units]
    populations = [f"population:{t.signal}" for t in plan.tests if PLANNED[t.attack].population]
    wanted = [*_signals(plan), *dict.fromkeys(populations), "accuracy"]
    return {key: np.concatenate([p[key] for p in parts if p is not None]) for key in wanted}


def _scores(
    plan: Plan, trainer: int, test: PlannedTest, found: Arrays, coins: BoolArray
) -> tuple[Observations, Observations]:
    """Scores of a test: as the verdict sees them, and of every model with all others as its shadows (for ROC only)."""
    columns = [i for i, c in enumerate(plan.planted.canaries) if test.canaries == c.family]
    shadows, coins = plan.spec.shadows, coins[:, columns]
    signals = planned.Signals(found[test.signal][:, columns], coins, found.get(f"population:{test.signal}"))
    design = Design(adjacency=plan.adjacency(trainer))
    if PLANNED[test.attack].shadows:
        design = replace(design, calibration="set-aside")
    scores, in_turn = planned.scores(test.attack, signals, shadows), planned.in_turn(test.attack, signals)
    names = plan.planted.names(test.canaries)
    observed = Observations(scores, coins[shadows:], canaries=names, design=design)
    return observed, Observations(in_turn, coins, canaries=names, design=replace(design, calibration="cross"))


def _record(plan: Plan, trainer: int, accuracy: NDArray[np.float64]) -> TrainerRecord:
    spec = plan.spec.trainers[trainer]
    return TrainerRecord(
        name=spec.name,
        trainer={"kind": spec.trainer, "settings": dict(spec.settings)},
        claim=plan.claims[trainer],
        expect=spec.expected,
        tests=plan.tests,
        accuracy=_summary(accuracy, len(plan.planted.data.y_test)),  # type: ignore[arg-type]
    )


def _summary(accuracy: NDArray[np.float64], test_records: int) -> Accuracy:
    if test_records == 0:
        return Accuracy(None, None, None, len(accuracy), 0)
    low, high = np.quantile(accuracy, [0.05, 0.95])
    return Accuracy(float(accuracy.mean()), float(low), float(high), len(accuracy), test_records)


def _store_canaries(plan: Plan, folder: RunFolder) -> None:
    """The records that were planted, and how their coins fell: for the auditor's eyes, never released."""
    trainers = plan.spec.trainers
    runs = [f"{trainer.name}-{i:05d}" for trainer in trainers for i in range(plan.models)]
    coins = np.concatenate([plan.coins(i) for i in range(len(trainers))])
    families = [c.build() for c in plan.spec.canaries]
    write_canaries(folder.retained / "canaries.safetensors", CanaryCoins.of(plan.planted, coins, runs, families))


def _facts(plan: Plan, command: str) -> dict[str, Any]:
    data = plan.planted.data
    families = [c.build() for c in plan.spec.canaries]
    return {
        "name": plan.spec.name,
        "delta": plan.spec.delta,
        "significance": plan.spec.significance,
        "data": {
            "name": data.name,
            "records": len(data) - len(plan.planted.canaries),
            "test_records": len(data.y_test),  # type: ignore[arg-type]
            "features": data.features,
            "classes": data.classes,
            "nominal_size": data.nominal_size,
        },
        "canaries": [asdict(CanaryFamily(f.name, f.count, f.description)) for f in families],
        "runs": plan.spec.runs,
        "shadows": plan.spec.shadows,
        "not_tested": _not_tested(plan),
        "command": command,
        "environment": environment(plan.code),
    }


def _not_tested(plan: Plan) -> list[str]:
    names = " and ".join(c.family for c in plan.spec.canaries)
    return [
        "Attackers who see parameters or intermediate models: only outputs of the final model were attacked.",
        f"Records unlike the {names} canaries, and stronger attacks: another record or attack may show more.",
        "The randomness itself: weak generators, reused seeds and floating-point gaps of the noise were not examined.",
        "Choices made by looking at the data before this run, such as tuned settings, whose privacy cost is not in it.",
    ]


def environment(code: Mapping[str, str]) -> dict[str, Any]:
    """Commit and versions that the run was made with."""
    commit = _git("rev-parse", "HEAD")
    dirty = None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no"))
    from . import __version__

    versions = {name: code[name] for name in VERSIONS}
    return {"commit": commit, "dirty": dirty, "versions": {"dpaudit": __version__, **versions}}


def _git(*arguments: str) -> str | None:
    """What git says of the checkout that dpaudit runs from; None where it runs from no checkout of its own."""
    root = Path(__file__).parent.parent
    if not (root / "pyproject.toml").is_file():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
