"""Measures what is claimed of the bounds, and writes it between the markers of docs/methods.md.

How often each bound exceeds the truth (``error_rates.py``, ``mechanisms.py``), and how near to it bounds come
(``tightness.py``). A cell of the first that fails is run again at ten times the size, and what it shows then counts.
The exit code is 1 if a bar was missed. About five minutes on two cores.

    python benchmarks/evidence.py
    python benchmarks/evidence.py --repetitions 40 --print
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before numpy is imported
    os.environ.setdefault(variable, "1")

import error_rates as rates  # noqa: E402
import tightness  # noqa: E402

DOCUMENT = Path(__file__).parent.parent / "docs" / "methods.md"
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
Key = tuple[str, str]


@dataclass
class Cell:
    """What a method and policy showed on one column's mechanisms: the largest share, and where."""

    share: float = -1.0
    repetitions: int = 0
    where: str = ""
    failed: list[str] = field(default_factory=list)


@dataclass
class Coverage:
    """The first table.

    Attributes:
        barred, free: (method, policy) → column → cell; with a bar, and without one.
        checks: how many cells had a bar.
        again: how many of them failed at first.
    """

    barred: dict[Key, dict[str, Cell]] = field(default_factory=dict)
    free: dict[Key, dict[str, Cell]] = field(default_factory=dict)
    checks: int = 0
    again: int = 0

    def add(self, job: rates.Job, found: Mapping[Key, tuple[float, int]], repetitions: int) -> None:
        for key, (share, size) in found.items():
            barred = key not in job.unbarred
            cell = (self.barred if barred else self.free).setdefault(key, {}).setdefault(job.column, Cell())
            if barred:
                self.checks += 1
                self.again += size > repetitions
                if share > rates.limit(size):
                    cell.failed.append(f"{', '.join(key)} on {job.name}: {share:.1%} of {size}")
            if share > cell.share:
                cell.share, cell.repetitions, cell.where = share, size, job.name

    @property
    def failed(self) -> list[str]:
        return [line for row in self.barred.values() for cell in row.values() for line in cell.failed]


@dataclass
class Results:
    """All that was measured."""

    repetitions: int
    coverage: Coverage
    medians: dict[tuple[int, float], dict[str, float]]
    dp_sgd: dict[tuple[float, tuple[float, int]], tightness.Measured]

    @property
    def missed(self) -> list[str]:
        return [*self.coverage.failed, *_missed_medians(self.medians), *_missed_ratios(self.dp_sgd)]


def measure(repetitions: int, workers: int) -> Results:
    """Everything, on ``workers`` processes; the result does not depend on their number."""
    sgd = [(e, s) for s in reversed(tightness.SGD_SETTINGS) for e in tightness.SGD_BARS]
    with ProcessPoolExecutor(workers) as pool:
        ratios = {key: pool.submit(tightness.dp_sgd, key[0], *key[1]) for key in sgd}
        shares = [pool.submit(rates.run, at, repetitions) for at in range(len(rates.jobs()))]
        medians = {at: pool.submit(tightness.medians, *at) for at in tightness.SETTINGS}
        _watch([*ratios.values(), *shares, *medians.values()])
        coverage = Coverage()
        for job, future in zip(rates.jobs(), shares, strict=True):
            coverage.add(job, future.result(), repetitions)
        return Results(
            repetitions,
            coverage,
            {at: future.result() for at, future in medians.items()},
            {key: future.result() for key, future in ratios.items()},
        )


def _watch(futures: list[Future]) -> None:
    start = time.perf_counter()
    while not all(f.done() for f in futures):
        time.sleep(1.0)
        done = sum(f.done() for f in futures)
        if sys.stderr.isatty():
            print(f"\r{done} of {len(futures)} jobs, {time.perf_counter() - start:.0f} s", end="", file=sys.stderr)
    print(f"\r{len(futures)} jobs in {time.perf_counter() - start:.0f} s", file=sys.stderr)


# --- what falls short ------------------------------------------------------------------------------------------------


def _bar(row: tightness.Row, at: tuple[int, float], found: Mapping[str, float]) -> float | None:
    return tightness.WITHIN * found[row.of] if row.of else row.bars.get(at)


def _missed_medians(medians: Mapping[tuple[int, float], Mapping[str, float]]) -> Iterable[str]:
    for at, found in medians.items():
        for row in tightness.ROWS:
            bar = _bar(row, at, found)
            if bar is not None and found[row.name] < bar:
                yield f"{row.name} at n = {at[0]}, μ = {at[1]:g}: {found[row.name]:.3f} < {bar:.3f}"


def _missed_ratios(ratios: Mapping[tuple[float, tuple[float, int]], tightness.Measured]) -> Iterable[str]:
    for (epsilon, setting), got in ratios.items():
        if got.ratio < tightness.SGD_BARS[epsilon] or not got.holds():
            yield f"DP-SGD ε = {epsilon:g} at {setting}: ratio {got.ratio:.3f}, above the truth {got.above:.1%}"


# --- as Markdown -----------------------------------------------------------------------------------------------------


def written(results: Results) -> str:
    """The section between the markers."""
    parts = [_preamble(), _coverage(results), _free(results.coverage), _medians(results.medians)]
    missed = "\n".join(f"- {line}" for line in results.missed)
    verdict = f"Bars missed:\n\n{missed}" if missed else "Every bar above is met."
    return "\n\n".join([*parts, _dp_sgd(results.dp_sgd), verdict])


def _preamble() -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "dp-accounting"))
    return (
        f"Made by `make evidence` with Python {platform.python_version()}, {versions}; significance 5 %, "
        "δ = 1e-5, seeds fixed."
    )


def _coverage(results: Results) -> str:
    coverage, n = results.coverage, results.repetitions
    alone = coverage.checks * rates.false_alarm(n)
    head = (
        f"**How often a bound exceeds the truth**, in % of {n} data sets: of each kind of mechanism the worst over its "
        "ε (0 to 8) and sizes (50 to 10,000 coins, or runs of a side). A dash: outside the bound's null. Bar: 5 % + 3 "
        f"standard errors = {100 * rates.limit(n):.1f} %; a cell above it is run again with {rates.AGAIN * n:,} data "
        f"sets, bar {100 * rates.limit(rates.AGAIN * n):.1f} %. {coverage.checks} cells, {coverage.again} run again. "
        "Were every bound exactly at 5 % and all seeds drawn anew, the suite would raise a false alarm with "
        f"probability {100 * min(alone, 1.0):.2g} % at most."
    )
    rows = [_shares(key, row, rates.COLUMNS) for key, row in coverage.barred.items()]
    return head + "\n\n" + _table(["method", "policy", *rates.COLUMNS], rows)


def _shares(key: Key, row: Mapping[str, Cell], columns: Iterable[str]) -> list[str]:
    cells = (row.get(c) for c in columns)
    return [f"`{key[0]}`", key[1], *("–" if c is None else _share(c) for c in cells)]


def _share(cell: Cell) -> str:
    text = f"{100 * cell.share:.1f}"
    return f"**{text}**" if cell.failed else text


def _free(coverage: Coverage) -> str:
    columns = [c for c in rates.COLUMNS if any(c in row for row in coverage.free.values())]
    head = (
        "**Without a bar**: credible and asymptotic bounds, and families outside their family. None of these feeds "
        "`lower`, `p_value` or a verdict."
    )
    rows = [_shares(key, row, columns) for key, row in coverage.free.items()]
    return head + "\n\n" + _table(["method", "policy", *columns], rows)


def _medians(medians: Mapping[tuple[int, float], Mapping[str, float]]) -> str:
    head = (
        f"**How near the truth**: medians over seeds 0 to {tightness.SEEDS - 1} (0 to {tightness.SEEDS_OF_MANY - 1} at "
        "n = 100,000) of one run with n canaries of either kind, scores N(0, 1) and N(μ, 1), guesses fixed beforehand. "
        f"In brackets the bar; a searched number of guesses must reach {tightness.WITHIN:.0%} of the fixed one. (At "
        "n = 1,000 and μ = 1 the same 2,000 guesses counted plainly have 617 errors on average, whose exact limit is "
        "3.888; counting the surer half twice, and guessing fewer, both reach the bar of 3.9.)"
    )
    titles = [f"n = {n:,}, μ = {mu:g}" for n, mu in medians]
    rows = [["truth", *(f"{tightness.truth(mu):.3f}" for _, mu in medians)]]
    rows += [[row.name, *(_median(row, at, found) for at, found in medians.items())] for row in tightness.ROWS]
    return head + "\n\n" + _table(["", *titles], rows)


def _median(row: tightness.Row, at: tuple[int, float], found: Mapping[str, float]) -> str:
    bar = _bar(row, at, found)
    text = f"{found[row.name]:.3f}"
    return (
        text if bar is None else f"{text} ({bar:.3g})" if found[row.name] >= bar else f"**{text}** ({bar:.3g}, missed)"
    )


def _dp_sgd(ratios: Mapping[tuple[float, tuple[float, int]], tightness.Measured]) -> str:
    head = (
        f"**DP-SGD with {tightness.CANARIES:,} gradient canaries**, each on a coordinate of its own: score = "
        "log-likelihood ratio of all iterates, bound = `order_statistics` of the claim's own family, farthest from 0. "
        "The number of guesses is fixed before any score: of m · 2^(−i/2), i = 0 … 8, the one whose bound is largest "
        f"at the claim's own median count. Median of {tightness.DP_SGD_RUNS} runs over the accountant's ε (bar); share "
        f"of runs above that ε, bar {100 * rates.limit(tightness.DP_SGD_RUNS):.1f} %."
    )
    columns = list(tightness.SGD_SETTINGS)
    rows = []
    for epsilon, bar in tightness.SGD_BARS.items():
        got = [ratios[epsilon, setting] for setting in columns]
        cells = (f"{g.ratio:.3f} ({bar}); {g.guesses:,} guesses; {g.above:.1%} above" for g in got)
        rows.append([f"ε = {epsilon:g}", *cells])
    return head + "\n\n" + _table(["", *(f"q = {q:g}, T = {t}" for q, t in columns)], rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replaced(document: str, section: str) -> str:
    """The document with ``section`` between its markers."""
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400, help="data sets per cell (400)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--print", action="store_true", help="print the tables and leave docs/methods.md as it is")
    options = parser.parse_args()
    results = measure(options.repetitions, options.workers)
    section = written(results)
    if options.print:
        print(section)
    else:
        DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), section), "utf-8")
    print("\n".join(results.missed) or "every bar is met", file=sys.stderr)
    return 1 if results.missed else 0


if __name__ == "__main__":
    sys.exit(main())
