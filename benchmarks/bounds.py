"""CPU time of every bound beside jax_privacy's, in one run on one machine, from the same scores to ε.

Scores: ``default_rng(0)``, N(0, 1) without and N(1, 1) with the canary, n of either; δ = 1e-5, significance 5 %. Each
round times dpaudit here and jax_privacy in a process of its own environment (``make peers``), in an order that
alternates; the ratio is taken within a round. One thread each, CPU time, less what a first call imports or compiles.
Numbers of guesses, fixed threshold and split are the same on both sides; what is searched over is not: no bar there.

    make bench        (or: python benchmarks/bounds.py --rounds 5 --largest 10000)
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before numpy is imported
    os.environ[variable] = "1"

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

import numpy as np  # noqa: E402

from dpaudit import Bound, Claim, Observations, bounds  # noqa: E402
from dpaudit.accounting import pld  # noqa: E402

HERE = Path(__file__).parent
PEER = HERE.parent / ".venv-peers" / "jax" / "bin" / "python"
DELTA, MU = 1e-5, 1.0
SIZES = (1000, 10_000, 100_000)
PATIENCE = 60.0  # seconds; a peer's call that would take longer is left out
CLAIM = Claim.dp_sgd(noise_multiplier=0.8, sampling_rate=0.1, steps=100)
PAIR = Claim.pair(epsilon=1.0, delta=DELTA)

Scores = tuple[np.ndarray, np.ndarray]
Method = Callable[[Scores], Bound]


@lru_cache(maxsize=4)
def scores(n: int) -> Scores:
    """(in, out), as ``peer_jax.py`` draws them."""
    rng = np.random.default_rng(0)
    out, inside = rng.normal(0, 1, n), rng.normal(MU, 1, n)
    return inside, out


def _worlds(method: Callable[..., Bound], threshold: object, **more: object) -> Method:
    return lambda s: method(Observations.from_worlds(*s), delta=DELTA, threshold=threshold, **more)


def _coins(method: Callable[..., Bound], guesses: Callable[[int], object], **more: object) -> Method:
    def call(both: Scores) -> Bound:
        inside, out = both
        member = np.repeat([True, False], [len(inside), len(out)])
        return method(Observations(np.concatenate(both), member), guesses(len(member)), delta=DELTA, **more)

    return call


def _tenth(m: int) -> int:
    return m // 10


def _several(m: int) -> tuple[int, ...]:
    return m // 20, m // 10, m // 5


def _split(_: int) -> bounds.Split:
    return bounds.Split()


def _weighted(both: Scores) -> Bound:
    member = np.repeat([True, False], [len(both[0]), len(both[1])])
    obs = Observations(np.concatenate(both), member)
    return bounds.weighted_order_statistics(obs, delta=DELTA, threshold=bounds.Fixed(MU / 2))


@dataclass(frozen=True)
class Row:
    """A bound, its bars in CPU seconds by n, and the name of the peer's call.

    Attributes:
        same: whether both compute the same bound, so that the ratio may be at most 1; what is searched over differs.
    """

    name: str
    call: Method
    bars: dict[int, float]
    peer: str = ""
    same: bool = True


_EVERY = {100_000: 1.0}
_JOINT = dict.fromkeys(SIZES, 0.2)
_FDP = {10_000: 0.1, 100_000: 0.5}
_MIDDLE = bounds.Fixed(MU / 2)
ROWS = (
    Row("clopper_pearson, fixed", _worlds(bounds.clopper_pearson, _MIDDLE), _EVERY, "cp, fixed"),
    Row("clopper_pearson, split", _worlds(bounds.clopper_pearson, bounds.Split()), _EVERY, "cp, split"),
    Row("clopper_pearson, ranks", _worlds(bounds.clopper_pearson, bounds.Ranks()), _EVERY, "cp, searched", False),
    Row("one_run, m/10", _coins(bounds.one_run, _tenth), _EVERY, "one run, m/10"),
    Row("one_run, split", _coins(bounds.one_run, _split), _EVERY, "one run, split"),
    Row("one_run, best of 3", _coins(bounds.one_run, _several), _EVERY, "one run, searched", False),
    Row("one_run_fdp, m/10", _coins(bounds.one_run_fdp, _tenth), _FDP, "fdp, m/10"),
    Row("one_run_fdp, split", _coins(bounds.one_run_fdp, _split), _EVERY, "fdp, split"),
    Row("one_run_fdp, best of 3", _coins(bounds.one_run_fdp, _several), _EVERY, "fdp, searched", False),
    Row("gaussian, ranks", _worlds(bounds.gaussian, bounds.Ranks()), _EVERY, "gaussian, searched", False),
    Row("joint_beta, fixed", _worlds(bounds.joint_beta, _MIDDLE), _JOINT),
    Row("jeffreys, fixed", _worlds(bounds.jeffreys, _MIDDLE), _EVERY),
    Row("lidp, fixed", _worlds(bounds.lidp, _MIDDLE), _EVERY),
    Row("claimed_family, fixed", _worlds(bounds.claimed_family, _MIDDLE, claim=CLAIM), _EVERY),
    Row("one_run_fdp of a pair, m/10", _coins(bounds.one_run_fdp, _tenth, claim=PAIR), _EVERY),
    Row("one_run_fdp of the recipe, m/10", _coins(bounds.one_run_fdp, _tenth, claim=CLAIM), _EVERY),
    Row("order_statistics, m", _coins(bounds.order_statistics, lambda m: m, threshold=_MIDDLE), _EVERY),
    Row("weighted_order_statistics", _weighted, _EVERY),
    Row("order_statistics, m/10", _coins(bounds.order_statistics, _tenth), _EVERY),
    Row("order_statistics of the recipe, m/10", _coins(bounds.order_statistics, _tenth, claim=CLAIM), _EVERY),
)


def ours(row: Row, n: int) -> float:
    """CPU seconds of one call, with nothing remembered of privacy curves."""
    both = scores(n)
    pld.clear_cache()
    start = time.process_time()
    row.call(both)
    return time.process_time() - start


class Peer:
    """jax_privacy in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last: dict[str, float] = {}

    def seconds(self, call: str, n: int) -> float | None:
        """CPU seconds of one call; None if it would take too long, judged by ten times fewer scores."""
        if self._last.get(call, 0.0) > PATIENCE / 10 and n > SIZES[0]:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"call": call, "n": n}), file=self._process.stdin, flush=True)
        self._last[call] = json.loads(self._process.stdout.readline())["seconds"]
        return self._last[call]


@contextmanager
def peer() -> Iterator[Peer | None]:
    """The peer, or None where its environment was not made."""
    if not PEER.exists():
        print("no peer: run `make peers` to time jax_privacy beside", file=sys.stderr)
        yield None
        return
    command = [str(PEER), str(HERE / "peer_jax.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Peer(process)
        assert process.stdin is not None
        process.stdin.close()


def compare(row: Row, n: int, other: Peer | None, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds of both, round by round, less a first one; the second list is empty without a peer for this row."""
    mine: list[float] = []
    theirs: list[float] = []
    for i in range(rounds + 1):
        if i % 2 == 0:
            mine.append(ours(row, n))
        got = other.seconds(row.peer, n) if other is not None and row.peer else None
        if got is not None:
            theirs.append(got)
        if i % 2 == 1:
            mine.append(ours(row, n))
        if got is None and row.peer and other is not None:
            other = None
        if sum(mine) + sum(theirs) > PATIENCE / 4:
            break
    return (mine[1:], theirs[1:]) if len(mine) > 1 else (mine, theirs)


def report(row: Row, n: int, mine: list[float], theirs: list[float]) -> bool:
    """Prints one line; whether all of its bars are met."""
    took, bar = median(mine), row.bars.get(n)
    line, met = f"{row.name:38}{n:>8,}{1e3 * took:11.1f}", bar is None or took <= bar
    line += f"{1e3 * bar:9.0f}" if bar is not None else 9 * " "
    if theirs:
        ratios = [a / b for a, b in zip(mine, theirs, strict=False)]
        line += f"{1e3 * median(theirs):12.1f}{median(ratios):9.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        met = met and (median(ratios) <= 1.0 or not row.same)
        line += "" if row.same else "  not the same bound"
    print(line + ("" if met else "   MISSED"), flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="leave out larger n")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{'CPU ms per call, medians':38}{'n':>8}{'dpaudit':>11}{'bar':>9}{'jax_privacy':>12}{'ratio':>9} (min to max)"
    )
    met = []
    with peer() as other:
        for row in ROWS:
            row.call(scores(100))  # what a first call imports or compiles
            if other is not None and row.peer:
                other.seconds(row.peer, 100)
            for n in (n for n in SIZES if n <= options.largest):
                met.append(report(row, n, *compare(row, n, other, options.rounds)))
    print("every bar is met" if all(met) else f"{met.count(False)} bars missed")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
