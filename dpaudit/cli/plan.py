"""`dpaudit plan`: how many runs or canaries it takes to refute a claim that is too low."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .claiming import CLAIM_HELP, SAMPLER_HELP, Options
from .console import say, say_json, table

if TYPE_CHECKING:
    from ..accounting import Claim
    from ..bounds.sizing import Recommendation, Size

_NAMES = {
    "worlds-fixed": "two worlds, fixed threshold",
    "worlds-ranks": "two worlds, ranks",
    "worlds-split": "two worlds, split",
    "sequential": "sequential, pairs of runs",
    "one-canary": "coins, one canary per run",
    "one-run": "coins, one run",
    "pooled": "coins, runs × canaries",
    "pooled-by-runs": "coins, the runs given",
    "order-statistics": "order statistics, one run",
}
_COLUMNS = ("design", "runs", "canaries", "coins", "guesses or threshold", "power", "perfect", "at claim", "null")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def plan(
    delta: Annotated[float, typer.Option(help="The δ that ε is stated at.")],
    epsilon: Annotated[float | None, typer.Option(help="The claim: this ε at --delta.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="The claim: DP-SGD with this noise ...")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="... this sampling rate ...")] = None,
    steps: Annotated[int | None, typer.Option(help="... and so many steps.")] = None,
    sampler: Annotated[str | None, typer.Option(help=SAMPLER_HELP)] = None,
    claim: Annotated[Path | None, typer.Option(help=CLAIM_HELP)] = None,
    factor: Annotated[float, typer.Option(help="How many times more than claimed the training leaks.")] = 2.0,
    power: Annotated[float, typer.Option(help="The probability of noticing it that is asked for.")] = 0.9,
    significance: Annotated[float, typer.Option(help="The probability of refuting a true claim.")] = 0.05,
    canaries: Annotated[int, typer.Option(help="How many canaries one run can hold.")] = 40,
    runs: Annotated[int | None, typer.Option(help="How many runs can be afforded [default: any number].")] = None,
    seconds_per_run: Annotated[float | None, typer.Option(help="What one training run takes.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say how many runs or canaries would refute a claim that is too low, by which design, for ideal scores."""
    from .. import check
    from ..bounds.sizing import recommend, size

    options = Options(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate,
                      steps=steps, sampler=sampler, claim=claim)  # fmt: skip
    promise = options.required()
    seconds = None if seconds_per_run is None else check.positive("seconds_per_run", seconds_per_run)
    asked: dict[str, Any] = {"delta": delta, "factor": factor, "power": power, "significance": significance}
    sizes = size(promise, **asked, canaries=canaries, runs=runs)
    best = recommend(sizes, canaries=canaries, runs=runs)
    asked |= {"epsilon": promise.epsilon(delta), "canaries": canaries, "runs": runs, "seconds_per_run": seconds}
    if json:
        say_json(_document(promise, asked, sizes, best))
    else:
        _print(promise, asked, sizes, best)


def _document(claim: Claim, asked: dict[str, Any], sizes: tuple[Size, ...], best: Recommendation) -> dict[str, Any]:
    from ..report.facts import plain

    content = {
        "schema": "dpaudit.plan-size/1",
        "claim": claim.document(),
        **asked,
        "scores": "ideal",
        "sizes": [{**asdict(s), "coins": s.coins, "seconds": _seconds(s, asked["seconds_per_run"])} for s in sizes],
        "recommendation": {
            "design": best.size and best.size.design,
            "seconds": best.size and _seconds(best.size, asked["seconds_per_run"]),
            "why": best.why,
        },
    }
    out: dict[str, Any] = plain(content)
    return out


def _print(claim: Claim, asked: dict[str, Any], sizes: tuple[Size, ...], best: Recommendation) -> None:
    seconds = asked["seconds_per_run"]
    claimed = f"the claim ε = {asked['epsilon']:.4g} at δ = {asked['delta']:g} ({claim.kind})".replace("e-0", "e-")
    say(
        f"to refute {claimed} with probability {asked['power']:g} if training leaks {asked['factor']:g} times as much, "
        f"and a true claim with at most {asked['significance']:g}; for ideal scores, so a floor for real attacks\n"
    )
    columns = _COLUMNS if seconds is None else (*_COLUMNS, "time")
    table(columns, [_row(s, seconds)[: len(columns)] for s in sizes])
    say("")
    for s in sizes:
        if s.out_of_reach is not None:
            say(f"{_NAMES[s.design]}: {s.out_of_reach}")
    if any(not s.any_mechanism for s in sizes):
        say("recipe: rejects the stated mechanism, if canaries are independent; never a verdict on ε")
    say(f"recommended: {_recommended(best, seconds)}")


def _recommended(best: Recommendation, seconds: float | None) -> str:
    if best.size is None:
        return f"none, since {best.why}"
    time = _seconds(best.size, seconds)
    return (
        f"{_NAMES[best.size.design]}: {best.why}"
        + ("" if best.size.guesses is None else f"; guess {best.size.guesses:,} of them (--guesses), fixed beforehand")
        + ("" if time is None else f"; {_duration(time)} of training")
    )


def _row(s: Size, seconds: float | None) -> tuple[str, ...]:
    time = _seconds(s, seconds)
    least = "≥ " if s.at_least else ""
    return (
        _NAMES[s.design],
        "out of reach" if s.runs is None else f"{least}{s.runs:,}",
        _count(s.canaries),
        "–" if s.coins is None else f"{least}{s.coins:,}",
        _threshold(s),
        "–" if s.power is None else f"{'≤ ' if s.at_least else ''}{_down(s.power, 3)}",
        _down(s.perfect, 2),
        _down(s.at_claim, 2),
        "curve" if s.any_mechanism else "recipe",
        "–" if time is None else f"{least}{_duration(time)}",
    )


def _threshold(s: Size) -> str:
    if s.guesses is not None:
        return f"{s.guesses:,} guesses"
    if s.fpr is not None:
        return f"false positives {s.fpr:.2g}"
    return "–" if s.test is None else type(s.test.threshold).__name__.lower()


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _down(value: float | None, digits: int) -> str:
    """Powers and lower bounds are rounded down."""
    return "–" if value is None else f"{floor(round(value * 10**digits, 6)) / 10**digits:.{digits}f}"


def _seconds(s: Size, seconds: float | None) -> float | None:
    return None if s.runs is None or seconds is None else s.runs * seconds


def _duration(seconds: float) -> str:
    """Two units, the smaller one rounded up: ``3 h 20 min``."""
    for (unit, name), (smaller, below) in pairwise(_UNITS):
        if seconds >= unit:
            whole, rest = divmod(ceil(seconds / smaller), unit // smaller)
            return f"{whole:,} {name}" + (f" {rest} {below}" if rest else "")
    return f"{ceil(seconds)} s"
