"""Scores of gradient canaries from what the steps released; a higher score says "member".

A product is in units of norm²: with noise multiplier σ, one step says N(1, σ²) of a canary that joined it and N(0, σ²)
of one that did not, plus what the rest of the step's sum has in its direction.
"""

from __future__ import annotations

import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import check
from ...errors import InputError
from .canary_vectors import CanaryVectors
from .likelihoods import log_ratios as log_ratios

FloatArray = NDArray[np.float64]


class Scores(abc.ABC):
    """What is kept of the steps."""

    def __init__(self, vectors: CanaryVectors) -> None:
        self._vectors = vectors
        self._unit = vectors.canaries.norm**2

    @abc.abstractmethod
    def add(self, released: Tensor, weight: float = 1.0) -> None:
        """Take in one step's noisy sum, shape ``(parameters,)``, which the caller may overwrite afterwards."""

    @abc.abstractmethod
    def log_ratios(self, noise_multiplier: float, sampling_rate: float = 1.0) -> FloatArray:
        """Ln of how much likelier the steps are with each canary than without, shape ``(count,)``, float64.

        Args:
            noise_multiplier: σ, as claimed.
            sampling_rate: q, with which a member joins a step.

        Raises:
            InputError: a setting out of range, or what was kept does not tell.
        """

    def _in_units(self, products: Tensor) -> FloatArray:
        return products.double().cpu().numpy() / self._unit


class LinearScore(Scores):
    """Σ w_t ⟨canary, released_t⟩ / norm²: one vector is kept, and products are taken once, at the end.

    Nothing is lost if every member joins every step and the weights are equal: the log-likelihood ratio is a line in
    it. For members its mean is Σ w_t times their share of the steps, and its noise has deviation σ √(Σ w_t²).
    """

    def __init__(self, vectors: CanaryVectors) -> None:
        super().__init__(vectors)
        self._total: Tensor | None = None
        self._weights: list[float] = []

    def add(self, released: Tensor, weight: float = 1.0) -> None:
        if self._total is None:
            self._total = torch.zeros_like(released)
        self._total.add_(released, alpha=weight)
        self._weights.append(weight)

    def sums(self) -> FloatArray:
        """The scores, shape ``(count,)``; zeros before the first step."""
        if self._total is None:
            return np.zeros(self._vectors.canaries.count)
        return self._in_units(self._vectors.products(self._total))

    def log_ratios(self, noise_multiplier: float, sampling_rate: float = 1.0) -> FloatArray:
        sigma = check.positive("noise_multiplier", noise_multiplier)
        if check.probability("sampling_rate", sampling_rate) < 1 or any(w != 1.0 for w in self._weights):
            raise InputError(
                "the likelihood of a linear score needs a sampling_rate of 1 and weights of 1, "
                f"got {sampling_rate:g} and {len(set(self._weights))} different weights: keep per-step scores"
            )
        return (self.sums() - len(self._weights) / 2) / sigma**2


class StepScores(Scores):
    """w_t ⟨canary, released_t⟩ / norm² of every step: steps × count numbers are kept."""

    def __init__(self, vectors: CanaryVectors) -> None:
        super().__init__(vectors)
        self._found: list[Tensor] = []
        self._waiting: Tensor | None = None
        self._filled = 0
        self._weights: list[float] = []

    def add(self, released: Tensor, weight: float = 1.0) -> None:
        self._weights.append(weight)
        if self._vectors.steps_per_product == 1:
            self._found.append(self._vectors.products(released)[None])
            return
        if self._waiting is None:
            self._waiting = released.new_empty((self._vectors.steps_per_product, released.numel()))
        self._waiting[self._filled] = released
        self._filled += 1
        if self._filled == len(self._waiting):
            self._take()

    def _take(self) -> None:
        if self._waiting is not None and self._filled:
            self._found.append(self._vectors.products(self._waiting[: self._filled]))
            self._filled = 0

    def table(self) -> FloatArray:
        """The scores, shape ``(steps, count)``."""
        self._take()
        if not self._found:
            return np.zeros((0, self._vectors.canaries.count))
        return self._in_units(torch.cat(self._found)) * np.array(self._weights)[:, None]

    def log_ratios(self, noise_multiplier: float, sampling_rate: float = 1.0) -> FloatArray:
        if any(w != 1.0 for w in self._weights):
            raise InputError("the likelihood of per-step scores needs weights of 1")
        return log_ratios(self.table(), noise_multiplier, sampling_rate)
