"""How long one example's gradient may be: clipping rules as small frozen settings, free of torch.

A rule turns per-example gradient norms into the weights of a sum. Whatever the gradients are, one example's weighted
gradient has an L2 norm of at most :attr:`Clipping.sensitivity`, so that is how far adding or removing an example moves
the sum. The noise is scaled by the same number.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import check
from ...errors import InputError

Array = Any  # of numpy or torch: what is used below has the same name in both


@dataclass(frozen=True, kw_only=True)
class Clipping(abc.ABC):
    """A clipping rule.

    A *layer* is a module together with the trainable parameters that it owns: the weight and bias of a
    ``torch.nn.Linear`` are clipped as one.
    """

    @property
    @abc.abstractmethod
    def sensitivity(self) -> float:
        """The largest L2 norm of one example's part of a sum, over all parameters together."""

    @property
    def by_layer(self) -> bool:
        """Whether the rule looks at each layer's norm, or only at the norm over all."""
        return False

    @abc.abstractmethod
    def weights(self, squares: Array) -> Array:
        """What to multiply each example's gradient by.

        Args:
            squares: squared L2 norms of floats, by numpy or torch, not below 0: over all parameters, shape
                ``(examples,)``; for a rule :attr:`by_layer` one row per layer, ``(layers, examples)``.

        Returns:
            Weights in the shape of ``squares``: in [0, 1] or, for :class:`AutomaticClipping`, in
            [0, norm / stability]. NaN where a square is NaN.

        Raises:
            InputError: the rule has limits for another number of layers.
        """


@dataclass(frozen=True, kw_only=True)
class GlobalClipping(Clipping):
    """Scales a gradient down to a norm of at most ``norm`` over all parameters: min(1, C / ‖g‖).

    Source: Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1.

    Attributes:
        norm: the largest norm, C; also the sensitivity.

    Raises:
        InputError: ``norm`` is not above 0.

    >>> import numpy as np
    >>> GlobalClipping(norm=2.0).weights(np.array([1.0, 16.0]))
    array([1. , 0.5])
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        check.positive("norm", self.norm)

    @property
    def sensitivity(self) -> float:
        return float(self.norm)

    def weights(self, squares: Array) -> Array:
        return self.norm / (squares**0.5).clip(min=self.norm)


@dataclass(frozen=True, kw_only=True)
class AutomaticClipping(Clipping):
    """Scales every gradient, long or short, to about ``norm``: C / (‖g‖ + γ), always below C / ‖g‖.

    Source: Bu, Wang, Zha & Karypis 2023, "Automatic clipping: differentially private deep learning made easier and
    stronger" (AUTO-S); their R is C, and C is absorbed by the learning rate.

    Attributes:
        norm: C; also the sensitivity.
        stability: γ, which keeps gradients near zero from being blown up.

    Raises:
        InputError: a setting that is not above 0.

    >>> import numpy as np
    >>> AutomaticClipping(norm=1.0, stability=0.5).weights(np.array([0.0, 2.25]))
    array([2. , 0.5])
    """

    norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        check.positive("norm", self.norm)
        check.positive("stability", self.stability)

    @property
    def sensitivity(self) -> float:
        return float(self.norm)

    def weights(self, squares: Array) -> Array:
        return self.norm / (squares**0.5 + self.stability)


@dataclass(frozen=True, kw_only=True)
class PerLayerClipping(Clipping):
    """Scales each layer's part of a gradient by itself: layer l to a norm of at most C_l.

    Source: McMahan et al. 2018, "A general approach to adding differential privacy to iterative training procedures";
    the parts are orthogonal, so the whole has a norm of at most √(Σ C_l²).

    Attributes:
        norm: √(Σ C_l²), shared out equally: C_l = norm / √layers. Exactly one of ``norm`` and ``norms`` is given.
        norms: the C_l themselves, one per layer, in the order of :attr:`PrivateEngine.layers`.

    Raises:
        InputError: both or none of them, or a norm that is not above 0.

    >>> PerLayerClipping(norms=[3.0, 4.0]).sensitivity
    5.0
    """

    norm: float | None = None
    norms: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.norm is None) == (self.norms is None):
            raise InputError(f"give either norm or norms, got norm={self.norm!r} and norms={self.norms!r}")
        if self.norm is not None:
            check.positive("norm", self.norm)
            return
        if not isinstance(self.norms, Sequence) or isinstance(self.norms, str) or not self.norms:
            raise InputError(f"norms must be a list of numbers, one per layer, got {self.norms!r}")
        object.__setattr__(self, "norms", tuple(check.positive("norm of a layer", norm) for norm in self.norms))

    @property
    def sensitivity(self) -> float:
        return float(self.norm) if self.norm is not None else math.hypot(*(self.norms or ()))

    @property
    def by_layer(self) -> bool:
        return True

    def limits(self, layers: int) -> tuple[float, ...]:
        """C_l of each layer.

        Raises:
            InputError: ``norms`` are given for another number of layers.
        """
        if self.norm is not None:
            return (self.norm / math.sqrt(layers),) * layers
        norms = tuple(self.norms or ())
        if len(norms) != layers:
            raise InputError(f"norms must have one number per layer ({layers}), got {len(norms)}")
        return norms

    def weights(self, squares: Array) -> Array:
        out = squares**0.5
        for row, limit in zip(out, self.limits(len(out)), strict=True):
            row[:] = limit / row.clip(min=limit)
        return out
