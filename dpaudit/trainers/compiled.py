"""Loops that numba compiles: what numpy and torch do in many passes, or many calls, in one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import need_extra

try:
    import numba
    from llvmlite import binding, ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise need_extra("numba") from None

__all__ = ["cgutils", "compiled", "float32", "inlined", "int32", "intrinsic", "ir", "types", "uint32", "uint64",
           "vector_registers"]  # fmt: skip

float32, int32, uint32, uint64 = numba.float32, numba.int32, numba.uint32, numba.uint64

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compiled at the first call, and kept on disk for later processes where there is a place for it.

    Other threads run meanwhile. Divisions by zero give infinity, as in numpy.
    """
    try:
        kept = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return numba.njit(**_OPTIONS)(function)
    _mark(kept)
    return kept


def _mark(kept: Any) -> None:
    """Let what is kept be out of date as soon as a file has changed of whose functions it is made.

    numba looks at the function's own file alone.
    """
    index: Any = getattr(getattr(kept, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        try:
            files = {name: os.stat(name) for name in sorted(_files(kept.py_func))}
        except OSError:  # in an archive, of which numba looks at the whole
            return
        index._source_stamp = tuple((name, file.st_mtime_ns, file.st_size) for name, file in files.items())


def _files(function: Callable[..., Any]) -> set[str]:
    """The file of a function, and of all compiled ones that it calls."""
    found = {function.__code__.co_filename}
    for name in function.__code__.co_names:
        called = getattr(function.__globals__.get(name), "py_func", None)
        if called is not None and called is not function:
            found |= _files(called)
    return found


def inlined(function: Function) -> Function:
    """Part of whichever compiled function calls it."""
    inline: Any = numba.njit(inline="always", error_model="numpy")
    return inline(function)


def vector_registers() -> tuple[int, int]:
    """How many float32 numbers a register of this processor holds, and how many pairs of them stay in registers."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 8
    if features.get("avx2"):
        return 8, 4
    return 4, 8 if features.get("neon") else 4
