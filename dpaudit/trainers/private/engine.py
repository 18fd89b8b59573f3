"""The private step: clip each example's gradient, add up, add noise, divide by a constant, move the parameters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ... import check
from ...errors import InputError
from .batches import Batch
from .clipped import ClippedSums
from .clipping import Clipping
from .diagnostics import Diagnostics, StepCounts
from .losses import Loss
from .noise import GaussianNoise
from .optimizers import Optimizer
from .secure import Grid, SecureNoise
from .workspace import keep_freed_memory


class PrivateEngine:
    """DP-SGD (Abadi et al. 2016, Algorithm 1) on a model of the caller's, one logical batch per step.

    A step sums the batch's clipped per-example gradients, adds Gaussian noise of standard deviation
    ``noise_multiplier · clipping.sensitivity`` to every coordinate, divides by ``divisor``, and hands the result to the
    optimizer. Which examples are in a batch is the caller's business, and so is what all steps together promise; an
    empty batch is a step too, of noise alone. The parameters' ``.grad`` is neither read nor written.

    Parameters that have ``requires_grad`` when the engine is made are trained, clipped and given noise; others stay.

    Args:
        model: any module; examples are along dimension 0 of its inputs. It is trained in place, in the mode that it
            is in.
        clipping: :class:`GlobalClipping`, :class:`PerLayerClipping` or :class:`AutomaticClipping`.
        noise_multiplier: noise standard deviation per unit of sensitivity; 0 is clipping alone, without privacy.
        divisor: a public constant, usually the expected batch size. Never the size of a batch: that is private.
        optimizer: :class:`Sgd`, :class:`Momentum` or :class:`Adam`.
        generator: where the noise comes from; None only with ``secure``, or without noise.
        loss: gives one number per example; cross-entropy by default.
        physical_batch_size: at most this many examples are held at once; a larger batch is split, its clipped sums
            added up, and noise added once. By default as many as is fast.
        secure: exact noise on a grid from the operating system's entropy (:mod:`.secure`); half a microsecond each.

    Raises:
        InputError: a setting out of range, nothing to train, or a model that mixes examples.

    >>> from dpaudit.trainers.private import GlobalClipping, Sgd
    >>> model = nn.Linear(3, 2)
    >>> engine = PrivateEngine(model, clipping=GlobalClipping(norm=1.0), noise_multiplier=1.0, divisor=4,
    ...                        optimizer=Sgd(learning_rate=0.1), generator=np.random.default_rng(0))
    >>> engine.step(torch.ones(5, 3), torch.zeros(5, dtype=torch.long))
    >>> engine.diagnostics.batch_sizes
    (5,)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clipping: Clipping,
        noise_multiplier: float,
        divisor: float,
        optimizer: Optimizer,
        generator: np.random.Generator | None = None,
        loss: Loss | None = None,
        physical_batch_size: int | None = None,
        secure: bool = False,
    ) -> None:
        keep_freed_memory()
        self._sums = ClippedSums(model, clipping, loss, physical_batch_size)
        self._layout = self._sums.layout
        self._scale = 1 / check.positive("divisor", divisor)
        self._total = self._layout.new_vector().zero_()
        self._totals = self._layout.split(self._total)
        check.not_negative("noise_multiplier", noise_multiplier)
        self._sensitivity = clipping.sensitivity
        self._deviation = noise_multiplier * clipping.sensitivity
        self._noise = self._source(noise_multiplier, clipping.sensitivity, generator, secure)
        self._optimizer = optimizer
        self._stepper = optimizer.start(self._layout.parameters, self._layout.split)
        self._counts: list[StepCounts] = []

    def _source(
        self, noise_multiplier: float, sensitivity: float, generator: np.random.Generator | None, secure: bool
    ) -> GaussianNoise | SecureNoise | None:
        if not isinstance(secure, bool):
            raise InputError(f"secure must be True or False, got {secure!r}")
        if secure:
            if generator is not None:
                raise InputError("secure noise comes from the operating system: generator must be None")
            return SecureNoise(Grid.of(noise_multiplier, sensitivity, self._layout.total))
        if not noise_multiplier:
            return None
        if not isinstance(generator, np.random.Generator):
            raise InputError(f"generator must be a numpy Generator, got {type(generator).__name__}")
        check.number("noise_multiplier times sensitivity", self._deviation, 0, torch.finfo(self._total.dtype).max)
        return GaussianNoise(generator, self._total.device)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of flat vectors."""
        return self._layout.names

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the modules that own them: the layers of :class:`PerLayerClipping`."""
        return self._layout.layers

    @property
    def sensitivity(self) -> float:
        """The largest L2 norm that one example's gradient can have in a step's sum."""
        return self._sensitivity

    @property
    def diagnostics(self) -> Diagnostics:
        """What the steps did to the examples: outside the claim, for ``retained/`` only."""
        return Diagnostics(tuple(self._counts))

    @property
    def released(self) -> Tensor:
        """The last step's noisy sum, before it was divided: a flat vector, overwritten by the next step."""
        return self._total

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector as views by parameter name, each in the parameter's shape."""
        return dict(zip(self._layout.names, self._layout.split(flat), strict=True))

    def clipped_sum(self, x: Batch, y: Batch) -> Tensor:
        """The sum of a batch's clipped gradients, without noise: private, and no part of any step. Flat.

        Raises:
            InputError: see :meth:`step`.
        """
        return self._sums.sum(x, y)

    def _start(self) -> None:
        """The vector that clipped gradients are added to: noise already, where it needs not know the sum."""
        if isinstance(self._noise, GaussianNoise):
            self._noise.fill(self._total, self._deviation)
        elif self._total.is_cpu:
            self._total.numpy()[:] = 0
        else:
            self._total.zero_()

    def _add(self, extra: Tensor) -> None:
        """Numpy, as torch would wake threads of its own; see :class:`.optimizers.Stepper`."""
        if self._total.is_cpu and extra.is_cpu and self._sums.shared_out:
            total = self._total.numpy()
            total += extra.detach().numpy()
        else:
            self._total += extra

    def step(self, x: Batch, y: Batch, *, rate: float = 1.0, extra: Tensor | None = None) -> None:
        """One private step on a logical batch, which may be empty.

        Args:
            x: the model's input, examples along dimension 0; a tuple or dict of tensors for several arguments.
            y: what the loss compares the model's output with, examples along dimension 0.
            rate: multiplies the learning rate: a public schedule.
            extra: added to the clipped sum before the noise, a flat vector: gradients that an auditor plants.

        Raises:
            InputError: numbers of examples that differ, a loss that is not one number per example, or (at the first
                batch that shows it) a model that mixes examples. Nothing was changed then.
        """
        check.positive("rate", rate)
        with torch.no_grad():
            self._start()
            self._counts.append(self._sums.add_to(self._totals, x, y))
            if extra is not None:
                self._add(extra)
            if isinstance(self._noise, SecureNoise):
                self._noise.release(self._total)
            self._stepper.alone = self._sums.shared_out
            self._stepper.step(self._total, self._scale, rate * self._optimizer.learning_rate)
