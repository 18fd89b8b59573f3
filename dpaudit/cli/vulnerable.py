"""`dpaudit attack SOURCE --vulnerable`: which of a data set's own records training gives away most."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from .console import VIOLATED, progress_bar, say, say_aside, say_json


def vulnerable(
    source: str,
    *,
    shortlist: int | None = None,
    models: int | None = None,
    epsilons: tuple[float, ...] | None = None,
    records: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    out: Path | None = None,
    fresh: bool = False,
    as_json: bool = False,
    data_folder: str | None = None,
) -> int:
    """Rank, confirm, write and print; what is None takes :func:`dpaudit.vulnerable.examine`'s default.

    Args:
        source: a bundled name, a spec, or a data file.
        out: folder for the results; by default ``reports/runs/NAME-vulnerable``.
        as_json: print ``report.json`` instead of ``report.txt``.

    Returns:
        The exit code: 1 if a claim is violated, else 0.
    """
    from ..vulnerable import examine

    numbers = {"shortlist": shortlist, "models": models, "records": records}
    given = {name: value for name, value in numbers.items() if value is not None}
    options: dict[str, Any] = dict(given)
    if epsilons:
        options["epsilons"] = tuple(epsilons)
    if workers is not None:
        options["workers"] = workers
    name = Path(source).stem
    folder = Path("reports/runs") / f"{name}-vulnerable" if out is None else out
    with progress_bar(name) as progress:
        found = examine(
            source, folder, **options, seed=seed, fresh=fresh, data_folder=data_folder, progress=progress,
            command=_command(source, given, tuple(epsilons or ()), seed),
        )  # fmt: skip
    if as_json:
        from ..vulnerable.facts import document

        say_json(document(found))
    else:
        say((folder / "release" / "report.txt").read_text(encoding="utf-8").rstrip())
    say_aside(f"report: {folder / 'release' / 'report.html'}")
    say_aside(f"the records themselves, not for release: {folder / 'retained' / 'records.html'}")
    return VIOLATED if found.violated else 0


def _command(source: str, options: dict[str, int], epsilons: tuple[float, ...], seed: int | None) -> str:
    """What repeats this: the file without its folder, and no seed."""
    named = [f"--{name} {value}" for name, value in options.items()]
    levels = [f"--epsilon {value:g}" for value in epsilons]
    other = " with another seed than the default" if seed is not None else ""
    return " ".join(["dpaudit attack", shlex.quote(Path(source).name), "--vulnerable", *named, *levels]) + other
