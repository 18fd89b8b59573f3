"""Loops that numba compiles: what numpy and torch do in many passes, or many calls, in one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import need_extra

try:
    import numba
    from llvmlite import ir as ir
    from numba import types as types
    from numba.core import cgutils as cgutils
    from numba.core.registry import cpu_target
    from numba.extending import intrinsic as intrinsic
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise need_extra("numba") from None

float32, float64, int32, uint32, uint64 = numba.float32, numba.float64, numba.int32, numba.uint32, numba.uint64

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
    """The file of a function, of all compiled ones that it calls, and of what compiles them."""
    found = {function.__code__.co_filename, __file__}
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
    """How many float32 numbers a register holds, and how many pairs of registers there is room for beside others.

    Of the processor that numba compiles for, which its store of compiled code goes by: not always this one.
    """
    features = set(str(cpu_target.target_context.codegen().magic_tuple()[2]).split(","))
    if "+avx512f" in features:
        return 16, 8
    if "+avx2" in features:
        return 8, 4
    return 4, 8 if "+neon" in features else 4
