"""How often a bound exceeds the truth: methods × policies × mechanisms whose ε is known.

A job draws data sets of one mechanism in one layout, and every method looks at the same ones. Seeds are fixed.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from mechanisms import (
    DELTA,
    Known,
    Make,
    all_or_nothing,
    coins,
    exact_halves,
    gaussian,
    laplace,
    one_noisy_sum,
    public_levels,
    randomised_response,
    shared_offset,
    subsampled_gaussian,
    worlds,
)
from scipy.stats import binom

from dpaudit import Claim, Observations, bounds
from dpaudit.bounds import corner, credible, ranks, recursion, steinke, weighted
from dpaudit.bounds.families import GaussianFamily

ALPHA, SIGMAS, AGAIN = 0.05, 3.0, 10
PAIR = Claim.pair(epsilon=1.0, delta=DELTA)
LEVEL: dict[str, Any] = {"delta": DELTA, "significance": ALPHA}
Measure = Callable[[Observations], float]


def limit(repetitions: int) -> float:
    """The largest share that passes: the level plus three standard errors."""
    return ALPHA + SIGMAS * math.sqrt(ALPHA * (1 - ALPHA) / repetitions)


def false_alarm(repetitions: int) -> float:
    """The probability that a cell whose true rate is exactly ``ALPHA`` fails, and fails again at ten times the size."""
    sizes = (repetitions, AGAIN * repetitions)
    return float(np.prod([binom.sf(math.floor(n * limit(n) + 1e-9), n, ALPHA) for n in sizes]))


@dataclass(frozen=True)
class Job:
    """One mechanism in one layout.

    Attributes:
        column: what the table calls the mechanism.
        cells: (method, policy) → the bound.
        unbarred: those whose rate is printed without a bar.
    """

    column: str
    name: str
    make: Make
    truth: float
    cells: Mapping[tuple[str, str], Measure]
    unbarred: frozenset[tuple[str, str]] = field(default=frozenset())


def shares(job: Job, repetitions: int, only: frozenset[tuple[str, str]] | None = None) -> dict[tuple[str, str], float]:
    """Of each cell, the share of data sets on which the bound is above the truth."""
    rng = np.random.default_rng(zlib.crc32(f"{job.name} {repetitions}".encode()))
    cells = {key: measure for key, measure in job.cells.items() if only is None or key in only}
    above = dict.fromkeys(cells, 0)
    for _ in range(repetitions):
        obs = job.make(rng)
        for key, measure in cells.items():
            above[key] += measure(obs) > job.truth
    return {key: count / repetitions for key, count in above.items()}


def run(at: int, repetitions: int) -> dict[tuple[str, str], tuple[float, int]]:
    """The shares of job number ``at``, with the repetitions they rest on: ten times as many where a cell failed."""
    warnings.simplefilter("ignore")
    remember()
    job = jobs()[at]
    found = {key: (share, repetitions) for key, share in shares(job, repetitions).items()}
    failed = frozenset(k for k, (s, _) in found.items() if k not in job.unbarred and s > limit(repetitions))
    if failed:
        more = AGAIN * repetitions
        found.update({key: (share, more) for key, share in shares(job, more, failed).items()})
    return found


@lru_cache(maxsize=1)
def remember() -> None:
    """The same counts give the same bound: compute it once for each."""
    counted: tuple[tuple[Any, str], ...] = (
        (steinke, "epsilon_lower"),
        (recursion, "largest_refuted"),
        (recursion, "expected_right"),
        (ranks, "parameter_lower"),
        (corner, "parameter_lower"),
        (credible, "joint_beta_lower"),
        (weighted, "_largest"),
        (GaussianFamily, "epsilon"),
    )
    for owner, name in counted:
        setattr(owner, name, lru_cache(maxsize=None)(getattr(owner, name)))


# --- what is measured ------------------------------------------------------------------------------------------------


def _even(count: float) -> int:
    return max(2 * int(count / 2), 2)


def guess_policies(n: int) -> dict[str, Any]:
    """For ``n`` coins that a bound may count."""
    return {
        "number": _even(max(n / 10, 8)),
        "several": sorted({_even(n / 20), _even(n / 7), _even(n / 2)}),
        "split": bounds.Split(),
    }


THRESHOLDS: dict[str, Any] = {
    "fixed": bounds.Fixed(0.5),
    "split": bounds.Split(),
    "Bonferroni": bounds.Bonferroni(np.linspace(-1, 3, 9)),
    "ranks": bounds.Ranks(),
}


def _guessing(known: Known, n: int) -> dict[tuple[str, str], Measure]:
    methods: dict[str, tuple[Callable[..., Any], dict[str, Any] | None]] = {
        "one_run": (bounds.one_run, {}),
        "one_run_fdp, pair": (bounds.one_run_fdp, {"claim": PAIR}),
        "one_run_fdp, family": (bounds.one_run_fdp, known.families.get("one_run_fdp")),
        "order_statistics": (bounds.order_statistics, known.families.get("order_statistics")),
    }
    cells = {
        (name, policy): _told(method, k, told)
        for name, (method, told) in methods.items()
        if told is not None
        for policy, k in guess_policies(n).items()
    }
    if (told := known.families.get("order_statistics")) is not None:
        middle = bounds.Fixed(known.middle)
        cells["order_statistics", "all, farthest"] = _told(bounds.order_statistics, n, {**told, "threshold": middle})
        cells["weighted_order_statistics", "all, farthest"] = _thresholded(
            bounds.weighted_order_statistics, middle, told
        )
    return cells


def _told(method: Callable[..., Any], k: Any, told: dict[str, Any]) -> Measure:
    return lambda obs: method(obs, k, **LEVEL, **told).epsilon


def _two_worlds(known: Known) -> dict[tuple[str, str], Measure]:
    cells: dict[tuple[str, str], Measure] = {}
    for policy, t in THRESHOLDS.items():
        cells["clopper_pearson", policy] = _thresholded(bounds.clopper_pearson, t, {})
        for name in ("gaussian", "claimed_family"):
            if (told := known.families.get(name)) is not None:
                cells[name, policy] = _thresholded(getattr(bounds, name), t, told)
    return cells


def _thresholded(method: Callable[..., Any], threshold: Any, told: dict[str, Any]) -> Measure:
    return lambda obs: method(obs, threshold=threshold, **LEVEL, **told).epsilon


CREDIBLE: dict[tuple[str, str], Measure] = {
    ("joint_beta", "fixed"): _thresholded(bounds.joint_beta, bounds.Fixed(0.5), {}),
    ("jeffreys", "fixed"): _thresholded(bounds.jeffreys, bounds.Fixed(0.5), {}),
}
LIFTED: dict[tuple[str, str], Measure] = {("lidp", "fixed"): _thresholded(bounds.lidp, bounds.Fixed(0.5), {})}


def _outside(n: int) -> dict[tuple[str, str], Measure]:
    middle = bounds.Fixed(0.5)
    return {
        ("order_statistics, Gaussian", "outside"): lambda obs: (
            bounds.order_statistics(obs, n, threshold=middle, **LEVEL).epsilon
        ),
        ("one_run_fdp, Gaussian", "outside"): lambda obs: bounds.one_run_fdp(obs, _even(n / 5), **LEVEL).epsilon,
    }


def of_coins(column: str, known: Known, n: int, runs: int = 1, outside: bool = False) -> Job:
    """Fair coins, pooled over ``runs``; with the Gaussian families as well where these do not hold."""
    more = _outside(n) if outside else {}
    cells = {**_guessing(known, n), **more}
    name = f"{known.name}, {n} coins" if runs == 1 else f"{known.name}, {runs} × {n // runs} coins"
    return Job(column, name, coins(known.draw, runs, n // runs), known.epsilon, cells, frozenset(more))


def of_halves(known: Known, runs: int, canaries: int) -> Job:
    """Fixed halves: about half of the canaries are left as fair coins, and the pair is replace-one."""
    cells = _guessing(known, runs * canaries // 2)
    name = f"{known.name}, {runs} × {canaries} in exact halves"
    kept = {key: cell for key, cell in cells.items() if key[0].startswith(("one_run", "one_run_fdp, pair"))}
    return Job("exact half", name, exact_halves(known.draw, runs, canaries), known.replaced, kept)


def of_worlds(column: str, known: Known, n: int, unbarred: bool = False, outside: bool = False) -> Job:
    """``n`` runs with the canary and as many without."""
    more = dict(CREDIBLE) if unbarred else {}
    if outside:
        more["gaussian", "outside"] = _thresholded(bounds.gaussian, bounds.Fixed(0.5), {})
    cells = {**_two_worlds(known), **more}
    return Job(column, f"{known.name}, {n} + {n} runs", worlds(known.draw, n), known.epsilon, cells, frozenset(more))


def of_columns(column: str, known: Known, runs: int, canaries: int) -> Job:
    """Runs × a few canaries, one column each with Bonferroni over the columns."""
    cells = {key: cell for key, cell in _two_worlds(known).items() if key[0] == "clopper_pearson"}
    name = f"{known.name}, {runs} runs × {canaries}"
    cells = {**cells, **LIFTED}
    return Job(column, name, coins(known.draw, runs, canaries), known.epsilon, cells, frozenset(LIFTED))


NONE, RESPONSE, LAPLACE, GAUSSIAN, DP_SGD = "no leak", "randomised response", "Laplace", "Gaussian", "DP-SGD"
OFFSET, ALL, LEVELS, SUM = "offset per run", "all or nothing", "public levels", "one noisy sum"
COLUMNS = (NONE, RESPONSE, LAPLACE, GAUSSIAN, DP_SGD, ALL, LEVELS, OFFSET, SUM, "exact half")


@lru_cache(maxsize=1)
def jobs() -> list[Job]:
    """The grid: ε from 0 to 8, n from 50 to 10,000, long jobs first."""
    response = {e: randomised_response(e) for e in (0.0, 1.0, 2.0, 4.0, 8.0)}
    whole, levels, noisy, dp_sgd = (
        all_or_nothing(),
        public_levels(),
        one_noisy_sum(1.0),
        subsampled_gaussian(0.8, 0.3, 4),
    )
    shifted, moved = shared_offset(response[1.0]), shared_offset(gaussian(1.0))
    return [
        *(of_coins(GAUSSIAN, gaussian(1.0), n) for n in (10_000, 1000, 50)),
        *(of_worlds(GAUSSIAN, gaussian(1.0), n) for n in (10_000, 1000, 50)),
        of_coins(DP_SGD, dp_sgd, 1000),
        of_worlds(DP_SGD, dp_sgd, 1000),
        of_coins(DP_SGD, dp_sgd, 50),
        *(of_coins(RESPONSE, response[e], n) for e, n in ((1.0, 10_000), (8.0, 10_000), (4.0, 1000), (2.0, 1000))),
        *(of_coins(NONE, response[0.0], n) for n in (10_000, 1000, 50)),
        *(of_worlds(RESPONSE, response[e], 1000, unbarred=True) for e in (1.0, 2.0, 4.0, 8.0)),
        *(of_worlds(NONE, response[0.0], n, unbarred=True) for n in (1000, 50)),
        of_worlds(RESPONSE, response[1.0], 50, unbarred=True),
        of_coins(RESPONSE, response[1.0], 1000),
        of_coins(RESPONSE, response[1.0], 50),
        *(of_coins(GAUSSIAN, gaussian(mu), 1000) for mu in (0.5, 1.7)),
        *(of_worlds(GAUSSIAN, gaussian(mu), 1000) for mu in (0.5, 1.7)),
        *(of_coins(LAPLACE, laplace(e), 1000, outside=True) for e in (1.0, 4.0)),
        *(of_worlds(LAPLACE, laplace(e), 1000, outside=True) for e in (1.0, 4.0)),
        *(of_coins(ALL, whole, 1000, runs, outside=True) for runs in (1, 20)),
        *(of_coins(LEVELS, levels, 1000, runs) for runs in (1, 20)),
        of_coins(OFFSET, shifted, 1000, 20),
        of_coins(OFFSET, moved, 1000, 20),
        of_coins(SUM, noisy, 200),
        of_coins(SUM, noisy, 1000, 20),
        of_halves(response[1.0], 20, 50),
        of_halves(response[4.0], 100, 2),
        *(of_columns(c, k, 200, 4) for c, k in ((ALL, whole), (LEVELS, levels), (OFFSET, shifted), (SUM, noisy))),
        of_columns(RESPONSE, response[1.0], 100, 4),
    ]
