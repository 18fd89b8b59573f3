"""Gradient canaries: gradients that an auditor plants in a private step, each in or out by its own coin.

A canary is a direction. Where it is a member, every step that it joins has that direction in its sum, as long as the
clipping rule lets any example's gradient be: the worst record that the analysis of DP-SGD thinks of (Nasr et al. 2023,
"Tight auditing of differentially private machine learning"). Canaries of one run share its noise, so their directions
should not see each other (Xiang, Wang & Wang 2025, arXiv 2509.08704). Free of torch until directions are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import check
from ...errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from .canary_vectors import CanaryVectors

KINDS = ("dirac", "signs", "random")


@dataclass(frozen=True, kw_only=True)
class GradientCanaries:
    """Which gradients are planted.

    Attributes:
        kind: ``dirac`` (each canary is one coordinate, no two the same), ``signs`` (each is ± the same number on nearly
            every coordinate, orthogonal to the others: rows of a randomised Hadamard transform) or ``random``
            (± the same number on every coordinate by independent fair coins; they see each other a little).
        count: number of canaries.
        norm: L2 norm of each, the sensitivity of the clipping rule. A larger one would accuse the innocent.
        seed: of coordinates, signs or directions; public, drawn before any membership coin and apart from it.

    Raises:
        InputError: a setting out of range.

    >>> import torch
    >>> vectors = GradientCanaries(kind="signs", count=3, norm=2.0).vectors(torch.zeros(9))
    >>> [[round(x, 3) for x in row] for row in (vectors.dense() @ vectors.dense().T).abs().tolist()]
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """

    kind: str = "signs"
    count: int = 1000
    norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check.choice("kind of gradient canaries", self.kind, KINDS)
        check.integer("count of gradient canaries", self.count, 1)
        check.positive("norm of gradient canaries", self.norm)
        check.integer("seed of gradient canaries", self.seed, 0)

    @property
    def names(self) -> tuple[str, ...]:
        """One per canary, for records and reports."""
        return tuple(f"{self.kind}-{i:04d}" for i in range(self.count))

    def vectors(self, like: Tensor, *, stored: bool = True) -> CanaryVectors:
        """The canaries as vectors of one model's flat gradient.

        Args:
            like: any flat vector of the model, such as :attr:`PrivateEngine.released`: its length, type and device.
            stored: for ``random``: keep all of them, count × parameters bits; otherwise they are made anew whenever
                they are used. What they are does not depend on it.

        Raises:
            InputError: fewer parameters than the kind needs: ``count``, for ``signs`` the next power of two, for
                ``random`` one.
        """
        from .canary_vectors import DiracVectors, RandomVectors, SignVectors

        if like.dim() != 1 or not like.is_floating_point():
            raise InputError(f"like must be a flat vector of real numbers, got {like.dtype} {tuple(like.shape)}")
        if self.kind == "random":
            return RandomVectors(self, like, stored)
        return DiracVectors(self, like) if self.kind == "dirac" else SignVectors(self, like)
