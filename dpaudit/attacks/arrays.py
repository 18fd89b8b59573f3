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
        x, shadows, member = np.asarray(signal), np.asarray(shadow_signals), np.asarray(shadow_member)
        fits = shadows.ndim == 2 and shadows.size > 0 and member.shape == shadows.shape
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
            yield part, self.shadows[:, part].astype(np.float64), self.member[:, part].astype(bool)


def spans(length: int) -> Iterator[slice]:
    """Slices of at most ``BLOCK``, in order."""
    return (slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))


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
    if array.dtype.kind not in "fiu" or any(
        not ((array[..., part] == 0) | (array[..., part] == 1)).all() for part in spans(array.shape[-1])
    ):
        raise InputError(f"{name} must be true or false (1 or 0)")
