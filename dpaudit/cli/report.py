"""`dpaudit report`: draw the report of a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import say, say_aside, say_json
from .run import exit_code


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    require_power: Annotated[bool, typer.Option("--require-power", help="Exit with 5 if underpowered.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print report.json to stdout.")] = False,
) -> int:
    """Judge and draw a finished run again from its stored observations."""
    from ..report import document
    from ..runner import redraw

    result = redraw(folder)
    if json:
        say_json(document(result))
    else:
        say((folder / "release" / "report.txt").read_text(encoding="utf-8").rstrip())
    say_aside(f"report: {folder / 'release' / 'report.html'}")
    return exit_code(result, require_power)
