"""Shapes that attacks share: what they accept, what they refuse, and how they cut long arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

BLOCK = 16384
"""Records that are worked on at once: a block of 64 shadows takes 8 MiB in float64."""
NAMES = ("signal", "shadow_signals", "shadow_member")


@dataclass(frozen=True, eq=False)
class Shadows:
    """Signals of target and shadow models about the same records, looked at but not copied.

    Attributes:
        signal: of the targets, shape ``(targets, records)``.
        shadows: shape ``(shadows, records)``.
        member: was the record in the shadow's training set? Same shape.
        shape: what ``signal`` looked like when it came in; scores are given in it.
    """

    signal: NDArray
    shadows: NDArray
    member: NDArray
    shape: tuple[int, ...]

    @classmethod
    def read(
        cls, signal: ArrayLike, shadow_signals: ArrayLike, shadow_member: ArrayLike, names: Sequence[str] = NAMES
    ) -> Shadows:
        """Arrays as they came, after a look at their shapes and values; ``names`` are the caller's, for messages.

        Raises:
            InputError: shapes that do not fit, NaN or infinite signals, memberships other than true and false.
        """
        given = zip(names, (signal, shadow_signals, shadow_member), strict=True)
        x, shadows, member = (as_array(name, values) for name, values in given)
        fits = x.size > 0 and shadows.ndim == 2 and shadows.size > 0 and member.shape == shadows.shape
        if not fits or x.ndim not in (1, 2) or x.shape[-1] != shadows.shape[1]:
            raise InputError(
                f"{names[0]} must be (records,) or (targets, records), {names[1]} and {names[2]} (shadows, records), "
                f"got {x.shape}, {shadows.shape} and {member.shape}"
            )
        require_finite(names[0], x)
        require_finite(names[1], shadows)
        require_flags(names[2], member)
        return cls(np.atleast_2d(x), shadows, member, x.shape)

    def others(self, row: int) -> tuple[NDArray, NDArray]:
        """Signals and membership of all shadows but one."""
        rest = np.arange(len(self.shadows)) != row
        return self.shadows[rest], self.member[rest]

    def alone(self, row: int) -> Shadows:
        """One shadow as the target of the others."""
        return Shadows(self.shadows[[row]], *self.others(row), self.shadows[row].shape)

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.bool_]]]:
        """Blocks of records: where they are, the shadows' signals and their membership, copied to float64 and bool."""
        for part in spans(self.shadows.shape[1]):
            shadows, member = self.shadows[:, part], self.member[:, part]
            yield part, shadows.astype(np.float64, order="C"), member.astype(bool, order="C")


def spans(length: int) -> Iterator[slice]:
    """Slices of ``BLOCK``, in order, none of one record beside others.

    Of a block of one record numpy adds up the shadows in another order than of several, and rounds in another way: a
    record at the end would not tie with its equals.
    """
    cuts = range(BLOCK, length - 1, BLOCK)
    return (slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, length], strict=True) if stop > start)


def as_array(name: str, values: ArrayLike) -> NDArray:
    """Values as an array of whatever type.

    Raises:
        InputError: rows of different lengths.
    """
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be an array, got rows of different lengths") from None


def require_some(name: str, array: NDArray) -> None:
    """Refuse an array with nothing in it."""
    if array.size == 0:
        raise InputError(f"{name} must hold at least 1 number, got shape {array.shape}")


def require_finite(name: str, array: NDArray) -> None:
    """Refuse what is no number, NaN, or infinite."""
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be numbers, got an array of {array.dtype}")
    bad = sum(int((~np.isfinite(array[..., part])).sum()) for part in spans(array.shape[-1] if array.ndim else 0))
    if bad:
        raise InputError(f"{name} must be finite, got NaN or infinity in {bad} of {array.size} places")


def require_flags(name: str, array: NDArray) -> None:
    """Refuse memberships other than true and false, 1 and 0."""
    if array.dtype.kind == "b":
        return
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be true or false (1 or 0), got an array of {array.dtype}")
    for part in spans(array.shape[-1]):
        other = ~np.isin(array[..., part], (0, 1))
        if other.any():
            raise InputError(f"{name} must be true or false (1 or 0), got {array[..., part][other][0]:g}")
