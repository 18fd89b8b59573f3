"""What commands print with: results to stdout, all else to stderr, and no progress bar without a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import DpauditError

MISTAKE, VIOLATED, UNDERPOWERED = 2, 1, 5
Progress = Callable[[int, int, str], None]
_WIDTH = 140


class ReaderGoneError(DpauditError):
    """Whoever read our output has closed it, as ``head`` does."""


def say(text: str) -> None:
    """A result, to stdout."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Not let through as it is: typer would make exit code 1 of it, which means that a claim is violated.
        raise ReaderGoneError("nobody reads the output any more") from None


def say_aside(text: str) -> None:
    """Anything that is not the result, to stderr."""
    print(text, file=sys.stderr)


def say_json(document: Mapping[str, Any]) -> None:
    """The one document of ``--json``; strict JSON."""
    say(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))


def fail(message: str, code: int, as_json: bool) -> int:
    """One line of what went wrong; with ``--json`` also a document on stdout."""
    line = " ".join(message.split())
    say_aside(f"dpaudit: {line}")
    if as_json:
        say_json({"schema": "dpaudit.error/1", "error": line, "exit_code": code})
    return code


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of results, to stdout."""
    say(drawn_table(columns, rows, line_width()))


def line_width() -> int:
    """How many characters a line of stdout has."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH


def drawn_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """A table as text, in lines of at most ``width`` characters."""
    import io

    from rich.console import Console
    from rich.table import Table

    grid = Table(*columns, show_edge=False, pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    # Drawn aside, since rich ends the program by itself where nobody reads its output any more.
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(grid)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A callback (done, in all, what) that draws a bar on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=f"{title}: {what}")


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"
