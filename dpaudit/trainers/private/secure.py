"""Noise that keeps its promise in floating point.

Textbook noise leaks: a float sum plus a float normal lands on numbers whose spacing, and whose very presence among the
numbers that the sampler can make, depend on the sum (Mironov 2012, "On significance of the least significant bits for
differential privacy"; Casacuberta et al. 2022). Here

1. the clipped sum is rounded to a grid whose spacing is a power of two, fixed by the settings alone;
2. a discrete Gaussian of whole numbers is added, drawn exactly from the operating system's random bits
   (:mod:`.discrete`);
3. the whole number that results is what is released. Scaling it by the spacing is exact, and whatever rounding of
   float32 follows is a function of it.

So what is released are whole numbers, each possible on any data. What it costs, and what it does not cover, is in
``docs/private_step.md``.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ... import check
from .discrete import LARGEST_DEVIATION, Entropy, discrete_gaussian

_ARITHMETIC = 2.0**-10  # share of the sensitivity set aside for rounding in the sum's own arithmetic
_LARGEST_SUM = 2**52  # in grid steps; beyond it float64 has gaps


@dataclass(frozen=True)
class Grid:
    """The grid of one mechanism, from its settings alone.

    Attributes:
        spacing: distance between two values of a coordinate, a power of two.
        deviation: of the noise, in grid steps: a whole number between 2²⁴ and 2²⁵.
    """

    spacing: float
    deviation: int

    @classmethod
    def of(cls, noise_multiplier: float, sensitivity: float, coordinates: int) -> Grid:
        """The grid on which noise is at least ``noise_multiplier`` times how far one example moves the rounded sum.

        Rounding moves each of two sums by up to half a step per coordinate, which adds up to spacing · √coordinates
        to their distance; and ``sensitivity`` is raised by 2⁻¹⁰ of itself for rounding inside the sum.

        Raises:
            InputError: ``noise_multiplier`` or ``sensitivity`` is not above 0.

        >>> grid = Grid.of(1.0, 1.0, 10_000)
        >>> grid.spacing * grid.deviation / (1.0 + 2**-10 + grid.spacing * 100) >= 1.0
        True
        """
        check.positive("noise_multiplier", noise_multiplier)
        moved = check.positive("sensitivity", sensitivity) * (1 + _ARITHMETIC)
        exponent = math.floor(math.log2(noise_multiplier * moved)) - LARGEST_DEVIATION.bit_length() + 2
        while True:
            spacing = math.ldexp(1.0, exponent)
            steps = math.ceil(noise_multiplier * (moved / spacing + math.sqrt(coordinates)) * (1 + 2.0**-50))
            if steps <= LARGEST_DEVIATION:
                return cls(spacing, steps)
            exponent += 1


class SecureNoise:
    """Rounds a sum to a grid and adds discrete Gaussian noise from the operating system's entropy.

    Attributes:
        grid: spacing and deviation.
    """

    def __init__(self, grid: Grid, entropy: Entropy = os.urandom) -> None:
        self.grid = grid
        self._entropy = entropy

    def release(self, total: Tensor) -> None:
        """Overwrite the flat vector ``total`` by its released value."""
        steps = torch.round(total.double() / self.grid.spacing).clamp_(-_LARGEST_SUM, _LARGEST_SUM)
        noise = discrete_gaussian(self.grid.deviation, total.numel(), self._entropy)
        whole = steps.cpu().numpy().astype(np.int64) + noise
        total.copy_(torch.from_numpy(whole).double() * self.grid.spacing)
