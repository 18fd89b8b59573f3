"""The program: its commands, and what becomes of every way in which they can end.

Exit codes: 0 nothing violated and every expectation met, 1 a claim violated or an expectation unmet, 2 the user's
mistake, 3 interrupted (can be resumed), 4 an internal error, 5 underpowered with ``--require-power``.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from ..errors import DpauditError, Interrupted
from . import account, attack, bound, demo, frontier, init, plan, report, run
from .console import MISTAKE, ReaderGoneError, fail, say_aside

INTERRUPTED, INTERNAL = 3, 4
_TYPER_INTERRUPTED = 130  # what newer typers make of a KeyboardInterrupt inside a command
_UsageError: Any = typer.BadParameter.__mro__[1]  # from whichever click this typer brings

app = typer.Typer(
    name="dpaudit",
    help="The auditor of differentially private learning.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _function in (
    ("demo", demo.demo),
    ("run", run.run),
    ("init", init.init),
    ("bound", bound.bound),
    ("account", account.account),
    ("frontier", frontier.frontier),
    ("plan", plan.plan),
    ("attack", attack.attack),
    ("report", report.report),
):
    app.command(_name)(_function)


def _show_version(value: bool) -> None:
    if value:
        from .. import __version__

        typer.echo(f"dpaudit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Say which version."),
) -> None:
    """The auditor of differentially private learning: is the claimed (ε, δ) true of the code?"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with its code; ``arguments`` default to the command line's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _terminated)
    warnings.showwarning = _warn
    code = _ended(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _ended(given: Sequence[str]) -> int:
    """The exit code of one run of the program; every exception ends here."""
    as_json = "--json" in given
    try:
        code = app(args=list(given), prog_name="dpaudit", standalone_mode=False)
        if code == _TYPER_INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except ReaderGoneError:
        return INTERRUPTED
    except DpauditError as error:
        return fail(str(error), INTERRUPTED if isinstance(error, Interrupted) else MISTAKE, as_json)
    except _UsageError as error:
        return fail(error.format_message(), MISTAKE, as_json)
    except OSError as error:
        return _refused_by_the_system(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted; the same command goes on from what is finished", INTERRUPTED, as_json)
    except (Exception, SystemExit) as error:
        return fail(_internal(error), INTERNAL, as_json)


def _refused_by_the_system(error: OSError, as_json: bool) -> int:
    """A file that can't be read or written is the user's to mend; anything else of the system is ours."""
    if error.filename is None:
        return fail(_internal(error), INTERNAL, as_json)
    return fail(f"{error.filename}: {(error.strerror or type(error).__name__).lower()}", MISTAKE, as_json)


def _internal(error: BaseException) -> str:
    """Put the traceback where it can be found, and say so in one line."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        with tempfile.NamedTemporaryFile("w", prefix="dpaudit-error-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
        return f"internal error, {what}; the traceback is in {file.name}"
    except OSError:
        return f"internal error, {what}"


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


def _warn(
    message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    say_aside(f"warning: {' '.join(str(message).split())}")
