"""`dpaudit run`: audit the trainers of a spec."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import UNDERPOWERED, VIOLATED, progress_bar, say, say_aside, say_json

if TYPE_CHECKING:
    from ..records import RunResult


def run(
    spec: Annotated[
        str,
        typer.Argument(help="A TOML file, or one that ships with dpaudit: digits, fashion-mnist, fashion-mnist-cnn."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the results [default: reports/runs/NAME].")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run left in the folder.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that train side by side; the result is the same.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed in place of the spec's.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where the data set's files are.")] = None,
    require_power: Annotated[bool, typer.Option("--require-power", help="Exit with 5 if underpowered.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print report.json to stdout.")] = False,
) -> int:
    """Train, attack, judge and write the report; an interrupted run goes on where it was."""
    from ..report import document
    from ..runner import run as run_spec
    from ..spec import load_spec

    content = load_spec(spec)
    if seed is not None:
        content = content.model_copy(update={"seed": seed})
    if data_folder is not None:
        content = content.model_copy(update={"data": content.data.model_copy(update={"folder": str(data_folder)})})
    folder = Path("reports/runs") / content.name if out is None else out
    command = f"dpaudit run {shlex.quote(spec)}" + (" with another seed than the spec's" if seed is not None else "")
    with progress_bar(content.name) as progress:
        result = run_spec(content, folder, fresh=fresh, workers=workers, progress=progress, command=command)
    if json:
        say_json(document(result))
    else:
        say((folder / "release" / "report.txt").read_text(encoding="utf-8").rstrip())
    say_aside(f"report: {folder / 'release' / 'report.html'}")
    return exit_code(result, require_power)


def exit_code(result: RunResult, require_power: bool) -> int:
    """0, 1 or 5 by what the run found."""
    if not result.as_expected:
        return VIOLATED
    weak = any(a.audit.verdict.value == "underpowered" and a.expect is None for a in result.audits)
    return UNDERPOWERED if require_power and weak else 0
