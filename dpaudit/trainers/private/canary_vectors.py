"""Gradient canaries as vectors: sums of them, and their products with a flat gradient, without writing them out."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import check
from ...errors import InputError
from ...records import BoolArray
from .canaries import GradientCanaries

_FACTOR = 64  # the largest Hadamard matrix that is multiplied by as it stands
_BLOCK = 2**24  # numbers of random directions that are held at once where they are not stored
Indices = NDArray[np.int64]


class CanaryVectors(abc.ABC):
    """The canaries of one flat gradient.

    Attributes:
        canaries: their description.
        steps_per_product: of how many gradients products are best taken at once.
    """

    steps_per_product = 1

    def __init__(self, canaries: GradientCanaries, like: Tensor) -> None:
        self.canaries = canaries
        self._like = like.detach()
        self._sum = torch.zeros_like(self._like)

    @property
    def parameters(self) -> int:
        """Length of a flat gradient."""
        return self._like.numel()

    @abc.abstractmethod
    def _add_up(self, members: Indices) -> None:
        """Overwrite ``self._sum`` by the sum of these canaries."""

    @abc.abstractmethod
    def _products(self, rows: Tensor) -> Tensor:
        """Inner products, shape ``(rows, count)``, with gradients of shape ``(rows, parameters)``."""

    def insertion(self, member: BoolArray) -> Tensor:
        """The sum of the members' gradients, shape ``(parameters,)``: overwritten by the next call.

        Args:
            member: bool, shape ``(count,)``.

        Raises:
            InputError: another type or shape.
        """
        member = np.asarray(member)
        if member.dtype != bool or member.shape != (self.canaries.count,):
            raise InputError(f"member must be {self.canaries.count} booleans, got {member.dtype} {member.shape}")
        self._add_up(np.flatnonzero(member))
        return self._sum

    def products(self, gradients: Tensor) -> Tensor:
        """Inner products of every canary with flat gradients.

        Args:
            gradients: shape ``(parameters,)`` or ``(rows, parameters)``.

        Returns:
            Shape ``(count,)`` or ``(rows, count)``.

        Raises:
            InputError: another shape.
        """
        if gradients.dim() not in (1, 2) or gradients.shape[-1] != self.parameters:
            raise InputError(
                f"gradients must have {self.parameters} numbers in each row, got shape {tuple(gradients.shape)}"
            )
        found = self._products(gradients if gradients.dim() == 2 else gradients[None])
        return found if gradients.dim() == 2 else found[0]

    def dense(self) -> Tensor:
        """All canaries written out, shape ``(count, parameters)``: for a look at small ones."""
        each = np.eye(self.canaries.count, dtype=bool)
        return torch.stack([self.insertion(row).clone() for row in each])


class DiracVectors(CanaryVectors):
    """``norm`` on a coordinate of its own, and zero elsewhere. Products are taken by looking there."""

    def __init__(self, canaries: GradientCanaries, like: Tensor) -> None:
        super().__init__(canaries, like)
        _require(canaries, like, canaries.count)
        chosen = np.random.default_rng(canaries.seed).choice(like.numel(), canaries.count, replace=False)
        self.coordinates = torch.from_numpy(chosen).to(like.device)

    def _add_up(self, members: Indices) -> None:
        self._sum[self.coordinates] = 0.0
        self._sum[self.coordinates[torch.from_numpy(members).to(self.coordinates.device)]] = self.canaries.norm

    def _products(self, rows: Tensor) -> Tensor:
        return rows[:, self.coordinates] * self.canaries.norm


class SignVectors(CanaryVectors):
    """Rows of a randomised Hadamard transform: all of a canary's numbers have the same size, signs look random.

    With H the Hadamard matrix of size n = 2^k ≥ ``count``, canary a is ε_a D_j H[a, j mod n] norm / √used on the first
    ``used`` coordinates j, the largest multiple of n, and 0 on the fewer than n that are left. ε and D are fair signs.
    That is row a of the transform H_N D of the whole padded gradient, as H_N[a, j] = H[a, j mod n] for a < n. Rows are
    exactly orthogonal, and since the first rows repeat with period n, a product is one fold of the gradient to n
    numbers and a transform of these: parameters + n log n operations for all canaries, with one vector stored.
    """

    def __init__(self, canaries: GradientCanaries, like: Tensor) -> None:
        super().__init__(canaries, like)
        self._size = 1 << (canaries.count - 1).bit_length()
        _require(canaries, like, self._size)
        self._used = like.numel() - like.numel() % self._size
        rng = np.random.default_rng(canaries.seed)
        signs = rng.integers(0, 2, self._used, dtype=np.int8) * 2 - 1
        scale = canaries.norm / math.sqrt(self._used)
        self._signs = torch.from_numpy(signs).to(like).mul_(scale).view(-1, self._size)
        self._flips = torch.from_numpy(rng.integers(0, 2, canaries.count) * 2 - 1).to(like)
        self._scratch = torch.empty_like(self._signs)

    def _add_up(self, members: Indices) -> None:
        at = torch.from_numpy(members).to(self._flips.device)
        short = self._flips.new_zeros(self._size)
        short[at] = self._flips[at]
        _multiply(self._signs, walsh_hadamard(short), self._sum[: self._used].view(-1, self._size))

    def _products(self, rows: Tensor) -> Tensor:
        rows = rows.detach()
        folded = rows.new_empty((len(rows), self._size))
        for row, out in zip(rows, folded, strict=True):
            _multiply(self._signs, row[: self._used].view(-1, self._size), self._scratch)
            _add_rows(self._scratch, out)
        return walsh_hadamard(folded)[:, : self.canaries.count] * self._flips


class RandomVectors(CanaryVectors):
    """Independent directions, uniform on the sphere: stored, or made anew from one seed each.

    Two of them overlap by about 1 / √parameters. A product reads them all, so several gradients are taken at once.
    """

    steps_per_product = 32

    def __init__(self, canaries: GradientCanaries, like: Tensor, stored: bool) -> None:
        super().__init__(canaries, like)
        _require(canaries, like, 1)
        seeds = np.random.SeedSequence(canaries.seed).generate_state(canaries.count, np.uint64)
        self._seeds = [int(seed) >> 1 for seed in seeds]
        self._stored = self._made(0, canaries.count) if stored else None

    def _made(self, start: int, stop: int) -> Tensor:
        rows = self._like.new_empty((stop - start, self.parameters))
        for row, seed in zip(rows, self._seeds[start:stop], strict=True):
            generator = torch.Generator().manual_seed(seed)
            row.copy_(torch.randn(self.parameters, generator=generator))
            row.mul_(self.canaries.norm / row.norm())
        return rows

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(number of its first canary, canaries) of a block."""
        if self._stored is not None:
            yield 0, self._stored
            return
        length = max(1, _BLOCK // self.parameters)
        for start in range(0, self.canaries.count, length):
            yield start, self._made(start, min(start + length, self.canaries.count))

    def _add_up(self, members: Indices) -> None:
        self._sum.zero_()
        for start, rows in self._blocks():
            for member in members[(members >= start) & (members < start + len(rows))]:
                self._sum += rows[member - start]

    def _products(self, rows: Tensor) -> Tensor:
        return torch.cat([rows @ block.T for _, block in self._blocks()], dim=1)


def walsh_hadamard(x: Tensor) -> Tensor:
    """H x along the last dimension, H Sylvester's Hadamard matrix of ±1: H[a, j] = (−1)^(ones in a & j).

    By H_(fn) = H_f ⊗ H_n, factor by factor; several bits at a time, since a small matrix product is faster than many
    additions.

    Args:
        x: shape ``(…, n)``, n a power of two.

    Raises:
        InputError: n is none.

    >>> walsh_hadamard(torch.tensor([1.0, 2.0, 0.0, 0.0]))
    tensor([ 3., -1.,  3., -1.])
    """
    size = x.shape[-1] if x.dim() else 0
    if size < 1 or size & (size - 1):
        raise InputError(f"the last dimension must be a power of two, got {size}")
    out, done = x, 1
    while done < size:
        factor = min(_FACTOR, size // done)
        matrix = _hadamard(factor, x.dtype, x.device)
        out = out.reshape(-1, factor) @ matrix if done == 1 else matrix @ out.reshape(-1, factor, done)
        done *= factor
    return out.reshape(x.shape)


@functools.lru_cache(maxsize=32)
def _hadamard(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix = torch.ones((1, 1), dtype=dtype, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


# On a CPU by numpy: torch would split a pass as short as these over its threads and wait for the last, which on a busy
# machine can take longer than the whole step.


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    if out.device.type == "cpu":
        np.multiply(a.numpy(), b.numpy(), out=out.numpy())
    else:
        torch.mul(a, b, out=out)


def _add_rows(rows: Tensor, out: Tensor) -> None:
    if out.device.type == "cpu":
        np.add.reduce(rows.numpy(), axis=0, out=out.numpy())
    else:
        torch.sum(rows, 0, out=out)


def _require(canaries: GradientCanaries, like: Tensor, least: int) -> None:
    check.integer(f"parameters of a model with {canaries.count} {canaries.kind} canaries", like.numel(), least)
