"""The errors that dpaudit raises on purpose. All of them end a command with one line and no traceback."""

from __future__ import annotations


class DpauditError(Exception):
    """Base of every error that dpaudit raises on purpose."""


class InputError(DpauditError, ValueError):
    """The caller's mistake: what was wrong, what was expected, what was got. Exit code 2."""


class MissingExtra(DpauditError, ImportError):
    """A package of an optional extra is not installed. The message is the pip line that installs it. Exit code 2."""


class DesignError(InputError):
    """A bound or an attack was asked for under a design that it is not valid for. Exit code 2."""


class Interrupted(DpauditError):
    """Work was stopped by SIGINT or SIGTERM; what was finished is on disk and is not done again. Exit code 3."""


def need_extra(package: str, extra: str = "train") -> MissingExtra:
    """The error to raise when ``package`` of the optional ``extra`` cannot be imported."""
    return MissingExtra(f'this needs {package}; install it with: pip install "dpaudit[{extra}]"')
