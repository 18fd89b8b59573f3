"""Clipped sums of a model of the caller's: which way to get its gradients, in which pieces, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ... import check
from ..precision import check_precision
from . import batches
from .bookkeeping import BookKeeping, LayoutError
from .clipping import Clipping
from .convolutional import ConvolutionalByHand
from .diagnostics import StepCounts
from .feedforward import FeedForward
from .layout import Layout
from .losses import CrossEntropy, Loss
from .perexample import PerExample, SlowGradients
from .screening import agrees, check_losses, find_rules, refuse_mixing, settle
from .summing import ByHand, Gradients
from .transformers import TransformerByHand


class ClippedSums:
    """Sums of clipped per-example gradients of a model.

    Args:
        model: any module; examples are along dimension 0 of its inputs.
        clipping: a rule of :mod:`.clipping`.
        loss: gives one number per example; cross-entropy by default.
        physical_batch_size: at most this many examples are held at once; by default as many as is fast.

    Attributes:
        layout: the trained parameters.

    Raises:
        InputError: nothing to train, or a model that mixes examples.

    >>> from dpaudit.trainers.private import GlobalClipping
    >>> sums = ClippedSums(nn.Linear(3, 2), GlobalClipping(norm=0.01))
    >>> total = sums.sum(torch.ones(1, 3), torch.tensor([1]))
    >>> round(float(total.norm()), 4)
    0.01
    """

    def __init__(
        self,
        model: nn.Module,
        clipping: Clipping,
        loss: Loss | None = None,
        physical_batch_size: int | None = None,
    ) -> None:
        if physical_batch_size is not None:
            check.integer("physical_batch_size", physical_batch_size, 1)
        refuse_mixing(model)
        self.layout = Layout.of(model)
        self._model, self._clipping = model, clipping
        self._loss: Loss = CrossEntropy() if loss is None else loss
        self._physical = physical_batch_size
        self._mode = model.training
        self._by_hand = self._by_any_hand()
        self._tried = isinstance(self._by_hand, FeedForward)  # a few lines, and a trial takes more memory than a step
        self._independent = False
        self._gradients = self._choose()

    def _by_any_hand(self) -> ByHand | None:
        about = self._model, self.layout, self._loss
        found: ByHand | None = FeedForward.of(*about)
        found = found or ConvolutionalByHand.of(*about, self._clipping)
        return found or TransformerByHand.of(*about, self._clipping)

    @property
    def shared_out(self) -> bool:
        """Whether examples may be shared out to threads that are not torch's."""
        return isinstance(self._by_hand, (ConvolutionalByHand, TransformerByHand))

    def _choose(self) -> Gradients:
        rules, unknown = find_rules(self._model, self.layout)
        if not unknown:
            return BookKeeping(self._model, self.layout, rules, self._loss)
        return self._write_out(f"{unknown} has parameters of its own and no rule")

    def _write_out(self, reason: str) -> PerExample:
        warnings.warn(f"per-example gradients of {type(self._model).__name__} are written out, which is slower: "
                      f"{reason}", SlowGradients, stacklevel=4)  # fmt: skip
        return PerExample(self._model, self.layout, self._loss)

    def sum(self, x: batches.Batch, y: batches.Batch) -> Tensor:
        """The sum of the clipped gradients of a batch, a flat vector in the order of :attr:`Layout.names`.

        Args:
            x: the model's input, examples along dimension 0; a tuple or dict stands for several arguments.
            y: what the loss compares the model's output with, examples along dimension 0.

        Raises:
            InputError: sizes that differ, a loss that is not one number per example, examples that are mixed, or torch
                was told to round float32 products to fewer bits.
        """
        total = self.layout.new_vector().zero_()
        with torch.no_grad():
            self.add_to(self.layout.split(total), x, y)
        return total

    def add_to(self, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch) -> StepCounts:
        """Add the same to one tensor per parameter, in place, and count what happened. For use under ``no_grad``."""
        size = batches.examples(x, y)
        if not size:
            return StepCounts()
        check_precision(totals[0].device)
        gradients = self._prepare(x, y, size)
        parts = max(gradients.parts(size), -(-size // (self._physical or size)))
        if parts == 1:
            return self._add(gradients, totals, x, y, size)
        counts, step = StepCounts(), -(-size // parts)
        for at in range(0, size, step):
            rows = slice(at, min(at + step, size))
            part = batches.pick(x, rows), batches.pick(y, rows), rows.stop - at
            counts += self._add(gradients, totals, *part)
        return counts

    def _add(
        self, gradients: Gradients, totals: Sequence[Tensor], x: batches.Batch, y: batches.Batch, size: int
    ) -> StepCounts:
        try:
            return gradients.add_clipped(totals, x, y, size, self._clipping)
        except LayoutError as error:  # before anything was added
            self._gradients = self._write_out(str(error))
            return self._gradients.add_clipped(totals, x, y, size, self._clipping)

    def _prepare(self, x: batches.Batch, y: batches.Batch, size: int) -> Gradients:
        """How to do this batch: find out what must be known before a model's gradients are believed."""
        if self._model.training != self._mode:
            refuse_mixing(self._model)
            self._mode = self._model.training
        by_hand = self._by_hand if self._by_hand is not None and self._by_hand.fits(x, y) else None
        if by_hand is not None and not self._trusted(by_hand, x, y, size):
            by_hand = None
        apart = by_hand is not None and type(self._loss) is CrossEntropy
        if not self._independent and not apart and size > 1:
            check_losses(self._model, self._loss, x, y)
            self._independent = True
        if by_hand is not None:
            return by_hand
        if isinstance(self._gradients, BookKeeping) and not self._gradients.settled:
            reason = settle(self._gradients, self._model, self.layout, x, y, size)
            if reason:
                self._gradients = self._write_out(reason)
            elif not self._gradients.settled:
                return PerExample(self._model, self.layout, self._loss)
        return self._gradients

    def _trusted(self, by_hand: ByHand, x: batches.Batch, y: batches.Batch, size: int) -> bool:
        """Whether a way was tried, on the first batch with finite gradients, and found to agree with autograd."""
        if not self._tried:
            found = agrees(by_hand, self._model, self.layout, self._loss, self._clipping, x, y, size)
            if found is False:
                self._by_hand = None
            self._tried = bool(found)
        return self._tried
