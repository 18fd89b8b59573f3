"""`dpaudit demo`: the unusual student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import progress_bar, say, say_aside


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and its figures.")] = Path("reports/runs/demo"),
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 1,
    models: Annotated[
        int | None, typer.Option(help="Trainings per student and privacy level, half of them with [default: 4000].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the facts as one JSON document.")] = False,
) -> None:
    """Show what a model gives away about one unusual student, what DP-SGD hides, and what that costs."""
    from ..demo import DEFAULT_MODELS, render_text, run_demo, write

    with progress_bar("demo") as progress:
        result = run_demo(out, seed=seed, models=DEFAULT_MODELS if models is None else models, progress=progress)
    write(result, out)
    if json:
        say((out / "demo.json").read_text(encoding="utf-8").rstrip())
    else:
        say(render_text(result).rstrip())
    say_aside(f"page: {out / 'demo.html'}")
