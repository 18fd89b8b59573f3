"""The settings of the built-in trainers.

What is in here changes the guarantee. What only changes the speed (chunk, threads, device) is an argument of
:func:`dpaudit.trainers.train_many`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import check
from ..errors import InputError
from ..records import BoolArray, Data
from .models import Network

if TYPE_CHECKING:
    from ..accounting import Claim


@dataclass(frozen=True, kw_only=True)
class GradientDescent(abc.ABC):
    """What SGD and DPSGD have in common: a softmax classifier, Poisson batches, a constant step.

    Attributes:
        learning_rate: step length on the mean of the (clipped, noised) per-example gradients.
        steps: number of batches.
        sampling_rate: probability that a member joins a batch, each member and step independently.
        hidden: widths of ReLU layers; ``()`` is softmax regression, ``(128,)`` one hidden layer.
        expected_batch_size: the constant that the sum over a batch is divided by; by default ``sampling_rate`` times
            the data's public ``nominal_size``. Never the size of a batch or of the training set: those are private.
    """

    learning_rate: float = 0.5
    steps: int = 300
    sampling_rate: float = 0.05
    hidden: Sequence[int] = ()
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        check.positive("learning_rate", self.learning_rate)
        check.integer("steps", self.steps, 1)
        check.probability("sampling_rate", self.sampling_rate)
        if isinstance(self.hidden, (str, int)):
            raise InputError(f"hidden must be a list of layer widths such as [128], got {self.hidden!r}")
        widths = tuple(check.integer("width of a hidden layer", width, 1) for width in self.hidden)
        object.__setattr__(self, "hidden", widths)
        if self.expected_batch_size is not None:
            check.positive("expected_batch_size", self.expected_batch_size)

    def divisor(self, data: Data) -> float:
        """What the sum over a batch is divided by: a public constant, whoever is a member."""
        if self.expected_batch_size is not None:
            return float(self.expected_batch_size)
        assert data.nominal_size is not None
        return float(self.sampling_rate) * data.nominal_size

    def train(self, data: Data, member: BoolArray, seed: int) -> Network:
        """One model on the records where ``member`` (shape ``(records,)``) is True; all randomness from ``seed``.

        Raises:
            InputError: ``member`` has another shape or holds anything but true and false.
            MissingExtra: torch is not installed.
        """
        from .training import train_one

        return train_one(self, data, member, seed)

    @abc.abstractmethod
    def claim(self) -> Claim | None:
        """What is promised about :meth:`train`, or None."""


@dataclass(frozen=True, kw_only=True)
class SGD(GradientDescent):
    """Stochastic gradient descent without any privacy: no clipping, no noise, nothing promised.

    Raises:
        InputError: a setting out of range; see :class:`GradientDescent` for their meaning.

    >>> SGD(steps=100, hidden=[32]).claim() is None
    True
    """

    def claim(self) -> None:
        """Nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class DPSGD(GradientDescent):
    """Differentially private SGD (Abadi et al. 2016, Algorithm 1), under adding or removing one record.

    Each step sums the batch's per-example gradients, each scaled down to an L2 norm of at most ``clip_norm`` over
    all parameters together, adds Gaussian noise of standard deviation ``noise_multiplier · clip_norm`` to every
    coordinate of the sum, and divides by a constant. An example whose gradient is not finite adds nothing. A step
    with an empty batch is a step with noise alone.

    Attributes:
        noise_multiplier: noise standard deviation per unit of ``clip_norm``; 0 is clipping alone, without a promise.
        clip_norm: largest L2 norm of one example's part of a sum.

    Raises:
        InputError: a setting out of range; see :class:`GradientDescent` for the others.
    """

    noise_multiplier: float = 1.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative("noise_multiplier", self.noise_multiplier)
        check.positive("clip_norm", self.clip_norm)

    def claim(self) -> Claim | None:
        """The privacy curve of these settings; None without noise, when there is nothing to promise."""
        if self.noise_multiplier == 0:
            return None
        from ..accounting import Claim

        return Claim.dp_sgd(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, steps=self.steps)
