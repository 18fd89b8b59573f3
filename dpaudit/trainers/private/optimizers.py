"""What a released gradient does to the parameters: frozen settings, free of torch.

All of it happens after the noise was added, so none of it costs privacy. Each rule does what ``torch.optim`` does with
the same gradient; it works on one flat gradient of all parameters, which takes fewer and larger operations.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import check
from ...errors import InputError

Tensor = Any  # of torch
_PIECE = 2**14  # numbers: half of what torch splits over its threads
Split = Callable[[Tensor], Sequence[Tensor]]  # a flat vector → one view per parameter, in its shape


@dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
    """A rule that turns gradients into steps.

    Attributes:
        learning_rate: step size; the method :meth:`start` gives may be told to scale it.
    """

    learning_rate: float

    def __post_init__(self) -> None:
        check.positive("learning_rate", self.learning_rate)

    @abc.abstractmethod
    def start(self, parameters: Sequence[Tensor], split: Split) -> Stepper:
        """The rule with the state it keeps between steps, for these parameters."""


class Stepper(abc.ABC):
    """An optimizer at work on some parameters, with its state.

    Attributes:
        alone: whether all work is done in pieces so small that torch gives them to no threads of its own. They go on
            spinning for milliseconds after each operation, and would take the processors that other threads work on.
    """

    alone = False

    def __init__(self, parameters: Sequence[Tensor], split: Split) -> None:
        self._parameters = list(parameters)
        self._split = split
        self._last: Tensor = None
        self._parts: Sequence[Tensor] = ()

    @abc.abstractmethod
    def step(self, total: Tensor, scale: float, rate: float) -> None:
        """One step along the gradient ``scale · total``, with the learning rate ``rate``. ``total`` is left as it is.

        Args:
            total: flat, shape ``(parameters,)``.
            scale: what to multiply ``total`` by to get the gradient.
            rate: the learning rate of this step.
        """

    def _subtract(self, direction: Tensor, rate: float) -> None:
        if direction is not self._last:  # most rules give the same vector every time
            self._last, self._parts = direction, self._split(direction)
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            if self.alone and parameter.is_contiguous():
                for some, change in self._pieces(parameter.view(-1), part.view(-1)):
                    some.add_(change, alpha=-rate)
            else:
                parameter.add_(part, alpha=-rate)

    def _pieces(self, *vectors: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """Views of parts of flat vectors, which together are all of them."""
        if not self.alone or len(vectors[0]) <= _PIECE:
            return [vectors]
        return zip(*(vector.split(_PIECE) for vector in vectors), strict=True)


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """Plain gradient descent: θ ← θ − η g.

    Raises:
        InputError: ``learning_rate`` is not above 0.
    """

    def start(self, parameters: Sequence[Tensor], split: Split) -> Stepper:
        return _SgdStepper(parameters, split)


class _SgdStepper(Stepper):
    def step(self, total: Tensor, scale: float, rate: float) -> None:
        self._subtract(total, rate * scale)


@dataclass(frozen=True, kw_only=True)
class Momentum(Optimizer):
    """Gradient descent with momentum, as ``torch.optim.SGD``: v ← μ v + g, θ ← θ − η v.

    Attributes:
        momentum: μ, in [0, 1).
        nesterov: step along g + μ v instead of v.

    Raises:
        InputError: a setting out of range.
    """

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number("momentum", self.momentum, 0.0, 1.0, ends="[)")
        if not isinstance(self.nesterov, bool):
            raise InputError(f"nesterov must be True or False, got {self.nesterov!r}")

    def start(self, parameters: Sequence[Tensor], split: Split) -> Stepper:
        return _MomentumStepper(self, parameters, split)


class _MomentumStepper(Stepper):
    def __init__(self, settings: Momentum, parameters: Sequence[Tensor], split: Split) -> None:
        super().__init__(parameters, split)
        self._settings = settings
        self._velocity: Tensor = None

    def step(self, total: Tensor, scale: float, rate: float) -> None:
        if self._velocity is None:
            self._velocity = total.new_zeros(total.shape)
        velocity = self._velocity
        for some, gradient in self._pieces(velocity, total):
            some.mul_(self._settings.momentum).add_(gradient, alpha=scale)
        if self._settings.nesterov:
            self._subtract(total, rate * scale)
            self._subtract(velocity, rate * self._settings.momentum)
        else:
            self._subtract(velocity, rate)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1), as ``torch.optim.AdamW``, which without weight decay is ``Adam``.

    The second moment is that of the noisy gradient, and is not corrected for the noise.

    Attributes:
        betas: decay of the first and of the second moment, each in [0, 1).
        stability: ε, added to the denominator.
        weight_decay: each step first shrinks the parameters by ``learning_rate · weight_decay`` of themselves
            (Loshchilov & Hutter 2019, "Decoupled weight decay regularization").

    Raises:
        InputError: a setting out of range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    stability: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise InputError(f"betas must be two numbers, got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(check.number("beta", b, 0.0, 1.0, ends="[)") for b in self.betas))
        check.positive("stability", self.stability)
        check.not_negative("weight_decay", self.weight_decay)

    def start(self, parameters: Sequence[Tensor], split: Split) -> Stepper:
        return _AdamStepper(self, parameters, split)


class _AdamStepper(Stepper):
    def __init__(self, settings: Adam, parameters: Sequence[Tensor], split: Split) -> None:
        super().__init__(parameters, split)
        self._settings = settings
        self._first: Tensor = None
        self._second: Tensor = None
        self._direction: Tensor = None
        self._steps = 0

    def step(self, total: Tensor, scale: float, rate: float) -> None:
        if self._first is None:
            self._first, self._second, self._direction = (total.new_zeros(total.shape) for _ in range(3))
        self._steps += 1
        slow, slower = self._settings.betas
        for first, second, gradient, direction in self._pieces(self._first, self._second, total, self._direction):
            first.mul_(slow).add_(gradient, alpha=(1 - slow) * scale)
            second.mul_(slower).addcmul_(gradient, gradient, value=(1 - slower) * scale * scale)
            direction.copy_(second).div_(1 - slower**self._steps).sqrt_().add_(self._settings.stability)
            direction.copy_(first / direction)
        if self._settings.weight_decay:
            for parameter in self._parameters:
                for (some,) in self._pieces(parameter.view(-1)) if parameter.is_contiguous() else [(parameter,)]:
                    some.mul_(1 - rate * self._settings.weight_decay)
        self._subtract(self._direction, rate / (1 - slow**self._steps))
