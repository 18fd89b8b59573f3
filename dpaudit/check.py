"""Validation of arguments, in one place. A message is the name, the allowed range and the value got."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .errors import InputError


def number(name: str, value: Any, low: float, high: float, *, ends: str = "[]") -> float:
    """``value`` as a float inside the interval from ``low`` to ``high``; ``ends`` says which ends belong to it.

    Raises:
        InputError: the value is no number, is NaN, or lies outside.
    """
    span = f"{ends[0]}{low:g}, {high:g}{ends[1]}"
    try:
        got = math.nan if isinstance(value, (bool, str, bytes)) or _is_flag(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        got = math.nan
    if math.isnan(got):
        raise InputError(f"{name} must be a number in {span}, got {value!r}")
    above = got >= low if ends[0] == "[" else got > low
    below = got <= high if ends[1] == "]" else got < high
    if not (above and below):
        raise InputError(f"{name} must be in {span}, got {value!r}")
    return got


def _is_flag(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "b"


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    return number(name, value, 0.0, math.inf, ends="()")


def not_negative(name: str, value: Any) -> float:
    """A finite number of at least 0."""
    return number(name, value, 0.0, math.inf, ends="[)")


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as an int of at least ``low`` and, if given, at most ``high``."""
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    try:
        whole = not isinstance(value, bool) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole or value < low or (high is not None and value > high):
        raise InputError(f"{name} must be a whole number {span}, got {value!r}")
    return int(value)


def significance(value: Any) -> float:
    """A significance level: the share of audits of a true claim that may call it false."""
    return number("significance", value, 0.0, 0.5, ends="()")


def delta(value: Any) -> float:
    """The δ of (ε, δ)-differential privacy."""
    return number("delta", value, 0.0, 1.0, ends="[)")


def probability(name: str, value: Any) -> float:
    """A probability above 0, at most 1."""
    return number(name, value, 0.0, 1.0, ends="(]")


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """``value`` if it is one of ``allowed``."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)
