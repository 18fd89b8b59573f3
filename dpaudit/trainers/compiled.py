"""Loops that numba compiles: what numpy and torch do in many passes, or many calls, in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import need_extra

try:
    import numba
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise need_extra("numba") from None

float32, int32, uint32, uint64 = numba.float32, numba.int32, numba.uint32, numba.uint64

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compiled at the first call, and kept on disk for later processes where there is a place for it.

    Other threads run meanwhile. Divisions by zero give infinity, as in numpy.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return numba.njit(**_OPTIONS)(function)


def inlined(function: Function) -> Function:
    """Part of whichever compiled function calls it."""
    inline: Any = numba.njit(inline="always", error_model="numpy")
    return inline(function)
