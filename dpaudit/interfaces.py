"""The three protocols of dpaudit, on one page. Anything that has these methods can be audited.

They say nothing about privacy: a trainer that fits them may claim what it likes. Whether the claim is true is what
an audit is for.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .records import BoolArray, Data


class PrivacyCurve(Protocol):
    """What a trainer promises: a privacy curve. :class:`dpaudit.Claim` is one."""

    def epsilon(self, delta: float) -> float:
        """The ε promised at ``delta``, in nats; may be infinite."""

    def delta(self, epsilon: float) -> float:
        """The δ promised at ``epsilon``."""

    def fnr(self, fpr: float) -> float:
        """The trade-off function: the smallest false negative rate of any attack with false positive rate ``fpr``."""


@runtime_checkable
class Model(Protocol):
    """One trained model, as far as an attacker of each threat model may look."""

    def logits(self, x: ArrayLike) -> NDArray[np.floating]:
        """Unnormalised log-probabilities, shape ``(records, classes)``, for features ``(records, features)``."""

    def parameters(self) -> NDArray[np.floating] | None:
        """The final parameters as one flat vector, or None where they are not to be seen."""

    def iterates(self) -> NDArray[np.floating] | None:
        """All released parameters, shape ``(steps, parameters)``, or None where they were not kept."""


@runtime_checkable
class Trainer(Protocol):
    """Settings that know how to train one model."""

    def train(self, data: Data, member: BoolArray, seed: int) -> Model:
        """Train on the records of ``data`` where ``member``, shape ``(records,)``, is True.

        All randomness must come from ``seed``. Batch sizes, divisors, sampling rates and step counts must come from
        ``data.nominal_size`` and the settings, never from ``member.sum()``: that number is private.
        """

    def claim(self) -> PrivacyCurve | None:
        """What is promised about :meth:`train`, or None."""


class Attack(Protocol):
    """Turns signals of target models into scores; a higher score says "member"."""

    def __call__(
        self, signal: NDArray[np.floating], shadow_signals: NDArray[np.floating], shadow_member: BoolArray
    ) -> NDArray[np.float64]:
        """Scores, shape ``(targets, canaries)``.

        Args:
            signal: one number per target model and canary, shape ``(targets, canaries)``; higher says "member".
            shadow_signals: the same from models set aside, shape ``(shadows, canaries)``.
            shadow_member: their membership, shape ``(shadows, canaries)``. The targets' own is never given.
        """
