"""`dpaudit bound`: lower bounds and a verdict for scores from any framework."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .claiming import CLAIM_HELP, SAMPLER_HELP, Options
from .console import UNDERPOWERED, VIOLATED, number, say, say_json, table

if TYPE_CHECKING:
    from ..accounting import Claim
    from ..records import Audit, Bound, Design, Observations, PlannedTest

_COLUMNS = ("ε at least", "δ", "confidence", "method", "holds for", "neighbours", "threshold", "perfect", "at claim")


def bound(
    file: Annotated[Path, typer.Argument(help="Scores: .csv, .npz, .safetensors, .parquet; or a run's observations.")],
    delta: Annotated[float | None, typer.Option(help="The δ of the bounds; needed unless the file is a run's.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The claim: this ε at --delta.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="The claim: DP-SGD with this noise ...")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="... this sampling rate ...")] = None,
    steps: Annotated[int | None, typer.Option(help="... and so many steps.")] = None,
    sampler: Annotated[str | None, typer.Option(help=SAMPLER_HELP)] = None,
    claim: Annotated[Path | None, typer.Option(help=CLAIM_HELP)] = None,
    significance: Annotated[float | None, typer.Option(help="Error probability of all tests [default: 0.05].")] = None,
    guesses: Annotated[list[int] | None, typer.Option(help="Number of guesses; several share the level.")] = None,
    threshold: Annotated[float | None, typer.Option(help="For worlds: a threshold fixed beforehand.")] = None,
    coins: Annotated[str | None, typer.Option(help="fair, fixed, worlds or unknown [assumed: fair].")] = None,
    calibration: Annotated[str | None, typer.Option(help="none, set-aside or cross [assumed: none].")] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="What a coin decides: add-remove, replace-one or zero-out [default: add-remove].")
    ] = None,
    audit: Annotated[str | None, typer.Option(help="Of a run's observations, only this trainer's.")] = None,
    require_power: Annotated[bool, typer.Option("--require-power", help="Exit with 5 if underpowered.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Bound ε from below, and judge a claim: a table of methods, a verdict, an exit code."""
    from ..archive import is_archive

    options = Options(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate,
                      steps=steps, sampler=sampler, claim=claim)  # fmt: skip
    promise = options.stated()
    assumed: list[str] = []
    others: tuple[Bound, ...] = ()
    if is_archive(file):
        _refuse_options_of_scores(file, delta, promise, significance, guesses, threshold, coins, calibration, adjacency)
        audits = _stored(file, audit)
    else:
        design, assumed = _design(coins, calibration, adjacency)
        level = 0.05 if significance is None else significance
        one, others = _fresh(file, design, promise, delta, level, guesses, threshold)
        audits = [one]
    if json:
        say_json(_document(file, audits, others, assumed))
    else:
        for one in audits:
            _print(one, others, assumed)
    return _exit_code(audits, require_power)


def _required(delta: float | None) -> float:
    from ..errors import InputError

    if delta is None:
        raise InputError("--delta must be given: the δ that the bounds are stated at")
    return delta


def _design(coins: str | None, calibration: str | None, adjacency: str | None) -> tuple[Design, list[str]]:
    """The declared design, and what had to be assumed, in words."""
    from ..records import Design

    assumed = []
    if coins is None:
        assumed.append("each canary in or out by an independent fair coin (--coins fair)")
    if calibration is None:
        assumed.append("no score depends on the coins of another run (--calibration none)")
    relation = adjacency or "add-remove"
    return Design(coins=coins or "fair", calibration=calibration or "none", adjacency=relation), assumed


def _fresh(
    file: Path,
    design: Design,
    claim: Claim | None,
    delta: float | None,
    significance: float,
    guesses: list[int] | None,
    threshold: float | None,
) -> tuple[Audit, tuple[Bound, ...]]:
    from ..auditor import audit, other_bounds
    from ..bounds.planning import default_tests
    from ..data.scores import read_scores

    delta = _required(delta)
    obs = read_scores(file, design)
    tests = _tests(obs, guesses, threshold) or default_tests(design, obs.shape, claim, delta, significance)
    judged = audit(obs, claim, delta=delta, significance=significance, tests=tests, name=file.name)
    return judged, other_bounds(obs, claim, delta=delta, significance=significance, tests=tests)


def _tests(obs: Observations, guesses: list[int] | None, threshold: float | None) -> list[PlannedTest] | None:
    """The tests that the user fixed; None leaves the choice to the design."""
    from ..bounds import Fixed
    from ..bounds.planning import uses_worlds
    from ..errors import InputError
    from ..records import PlannedTest

    worlds = uses_worlds(obs.design, obs.shape)
    if guesses and worlds:
        raise InputError("--guesses is for coins, got two worlds; use --threshold")
    if threshold is not None and not worlds:
        raise InputError("--threshold is for two worlds (--coins worlds), got coins; use --guesses")
    if threshold is not None:
        return [PlannedTest("threshold", 1.0, threshold=Fixed(threshold))]
    return [PlannedTest("guesses", 1 / len(guesses), g) for g in guesses] if guesses else None


def _refuse_options_of_scores(file: Path, *given: object) -> None:
    from ..errors import InputError

    if any(option is not None for option in given):
        raise InputError(f"{file} holds a run with its own claims, δ and tests; only --audit can be chosen")


def _stored(file: Path, name: str | None) -> list[Audit]:
    """The audits of a finished run, judged again as they were planned."""
    from ..archive import read_archive
    from ..errors import InputError

    audits = [entry.audit for entry in read_archive(file).audits]
    chosen = [a for a in audits if name in (None, a.name)]
    if not chosen:
        raise InputError(f"--audit must be one of {', '.join(a.name for a in audits)}, got {name!r}")
    return chosen


def _document(file: Path, audits: list[Audit], others: tuple[Bound, ...], assumed: list[str]) -> dict[str, Any]:
    from ..report.facts import judged, plain, stated

    worst = max(audits, key=lambda a: a.verdict.severity)
    content = {
        "schema": "dpaudit.bound/1",
        "file": str(file),
        "assumed": assumed,
        "verdict": worst.verdict,
        "audits": [judged(a) for a in audits],
        "other_bounds": [stated(b) for b in others],
    }
    out: dict[str, Any] = plain(content)
    return out


def _print(audit: Audit, others: tuple[Bound, ...], assumed: list[str]) -> None:
    say(f"{audit.name}: {audit.verdict.value.upper()}, {audit.reason}")
    for sentence in assumed:
        say(f"assumed: {sentence}")
    say("")
    table(_COLUMNS, [_row(b) for b in (*audit.bounds, *others)])
    say("")
    facts = [f"lower {number(audit.lower)} (any mechanism)"]
    if audit.lower_if_recipe is not None:
        facts.append(f"{number(audit.lower_if_recipe)} if the mechanism is the claim's recipe")
    if audit.upper is not None:
        facts.append(f"claimed {number(audit.upper)}")
    if audit.p_value is not None and audit.power is not None:
        facts.append(f"p-value {audit.p_value:.3g}, power against twice the claim {audit.power:.2f}")
    say(f"{'; '.join(facts)}; δ = {audit.delta:g}, error probability {audit.error_probability:g}")
    say("")
    for method, null in dict.fromkeys((b.method, b.null) for b in (*audit.bounds, *others)):
        say(f"{method}: {null}")
    for note in dict.fromkeys([*audit.notes, *(n for b in (*audit.bounds, *others) for n in b.notes)]):
        say(f"note: {note}")


def _row(b: Bound) -> tuple[str, ...]:
    holds = "any mechanism" if b.any_mechanism else "the family only" if b.kind == "confidence" else b.kind
    return (
        number(b.epsilon),
        f"{b.delta:g}",
        f"{100 * (1 - b.significance):.4g} %",
        _short(b),
        holds,
        b.adjacency,
        b.threshold.replace("; all canaries, given on score", ""),
        number(b.perfect),
        number(b.at_claim),
    )


def _short(b: Bound) -> str:
    """The method without its source, which stands below the table."""
    return re.sub(r" \([^()]*\d{4}[^()]*\)", "", b.method)


def _exit_code(audits: list[Audit], require_power: bool) -> int:
    verdicts = {a.verdict.value for a in audits}
    if "violated" in verdicts:
        return VIOLATED
    return UNDERPOWERED if require_power and "underpowered" in verdicts else 0
