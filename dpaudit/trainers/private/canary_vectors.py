"""Gradient canaries as vectors: sums of them, and their products with a flat gradient, without writing them out."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import check
from ...errors import InputError
from ...records import BoolArray
from . import canary_kernels as kernels
from .canaries import GradientCanaries

_FACTOR = 64  # the largest Hadamard matrix that is multiplied by as it stands
_LONGEST = 16  # stretches of 2,048 parameters in a block of random signs; fewer where
_LARGEST = 2**14  # stretches of all canaries together, 4 MiB, would be more
_SHARE = 8  # blocks come in eights
_QUICK = 2**16  # stretches of members that are added up in a millisecond or two, without other threads
Indices = NDArray[np.int64]
Words = NDArray[np.uint32]
Floats = NDArray[Any]
Result = TypeVar("Result")


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
    """Independent fair signs: every number of a canary is ±norm/√parameters, by a fair coin of its own.

    That is a random direction: the mean of its numbers is 0 and their covariance that of a uniform direction, and its
    length is norm but for rounding, which only shortens it. Two overlap by the mean of as many fair signs as there are
    parameters, about 1 / √parameters. Signs come from Philox by seed, canary and place, so they may be kept, as single
    bits, or made anew block by block. Work is split into blocks that do not depend on the number of threads, nor does
    any result.
    """

    steps_per_product = 2 * kernels.GRADIENTS  # one start of threads for both halves

    def __init__(self, canaries: GradientCanaries, like: Tensor, stored: bool) -> None:
        super().__init__(canaries, like)
        _require(canaries, like, 1)
        self._key: Words = np.random.SeedSequence(canaries.seed).generate_state(4).astype(np.uint32)
        self._scale = _rounded_down(canaries.norm / math.sqrt(like.numel()), like.dtype)
        self._stretches = -(-like.numel() // kernels.STRETCH)
        longest = max(1, min(_LONGEST, _LARGEST // canaries.count))
        blocks = -(-self._stretches // (_SHARE * longest)) * _SHARE  # so that threads have as much to do as each other
        self._length = -(-self._stretches // blocks)
        self._counts = np.empty((self._stretches, kernels.TILES, kernels.BITS, kernels.WORDS), np.int32)
        self._stored: Words | None = None
        if stored:
            self._stored = _signs(self._stretches, canaries.count)
            self._over_blocks(self._store)

    def _store(self, first: int) -> None:
        assert self._stored is not None
        kernels.fill_signs(self._stored[first : first + self._length], self._key, first)

    def _block(self, first: int) -> Words:
        """The signs of the block whose first stretch this is."""
        if self._stored is not None:
            return self._stored[first : first + self._length]
        made = _signs(min(self._length, self._stretches - first), self.canaries.count)
        kernels.fill_signs(made, self._key, first)
        return made

    def _over_blocks(self, work: Callable[[int], Result], alone: bool = False) -> list[Result]:
        """``work(first stretch)`` of all blocks, in order, by as many threads as torch has, of which this is one."""
        firsts = range(0, self._stretches, self._length)
        threads = 1 if alone else min(torch.get_num_threads(), len(firsts))
        own, *others = (firsts[i * len(firsts) // threads : (i + 1) * len(firsts) // threads] for i in range(threads))
        if not others:
            return [work(first) for first in own]
        with ThreadPoolExecutor(len(others)) as pool:
            waited = [pool.submit(lambda share: [work(first) for first in share], share) for share in others]
            done = [work(first) for first in own]
            return done + [result for share in waited for result in share.result()]

    def _add_up(self, members: Indices) -> None:
        def work(first: int) -> None:
            kernels.add_up(self._counts[first : first + self._length], self._block(first), members)

        self._over_blocks(work, alone=self._stored is not None and len(members) * self._stretches < _QUICK)
        self._sum.copy_(torch.from_numpy(self._counts).view(-1)[: self.parameters]).mul_(self._scale)

    def _products(self, rows: Tensor) -> Tensor:
        rows = rows.detach()
        if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
            return self._written_out(rows)
        if len(rows) == 1 and rows.dtype == torch.float32:
            sums = self._with_one(rows[0])[None]
        else:
            sums = self._with_many(rows.contiguous().numpy())
        return torch.from_numpy(sums).mul_(self._scale).to(rows.dtype)

    def _with_one(self, gradient: Tensor) -> Floats:
        """Products of all signs with a gradient of float32, shape ``(count,)``, float64."""
        negative = _zeros(self._stretches * kernels.STRETCH, np.dtype(np.float32))
        np.negative(gradient.numpy(), out=negative[: self.parameters])
        bits = negative.view(np.uint32).reshape(self._counts.shape)

        def work(first: int) -> Floats:
            sums = np.zeros((self.canaries.count, kernels.WORDS), np.float32)
            kernels.add_signed(sums, self._block(first), bits[first : first + self._length])
            return sums.sum(1, dtype=np.float64)

        return sum(self._over_blocks(work), np.zeros(self.canaries.count))

    def _with_many(self, rows: Floats) -> Floats:
        """Products of all signs with gradients, shape ``(rows, count)``, float64."""
        parts = range(0, len(rows), kernels.GRADIENTS)
        numbers = self.canaries.count * kernels.GRADIENTS

        def work(first: int) -> Floats:
            block, table = self._block(first), _zeros(kernels.TABLE, rows.dtype)
            sums = _zeros(len(parts) * numbers, rows.dtype).reshape(-1, numbers)
            for part, found in zip(parts, sums, strict=True):
                these = rows[part : part + kernels.GRADIENTS, first * kernels.STRETCH :]
                kernels.add_looked_up(found, block, these, table)
            return sums

        total = np.zeros((len(parts), numbers))
        for sums in self._over_blocks(work):
            total += sums
        shape = len(parts), self.canaries.count, kernels.GRADIENTS
        return total.reshape(shape).transpose(0, 2, 1).reshape(-1, self.canaries.count)[: len(rows)]

    def _written_out(self, rows: Tensor) -> Tensor:
        """Products on another device or of another type: by signs written out block by block."""
        found = rows.new_zeros((len(rows), self.canaries.count))
        shifts = torch.arange(kernels.BITS, dtype=torch.int32, device=rows.device)[:, None]
        for first in range(0, self._stretches, self._length):
            words = torch.from_numpy(self._block(first).view(np.int32)).to(rows.device)
            signs = (words[:, :, :, None] >> shifts & 1).to(rows.dtype).mul_(2).sub_(1)
            part = rows[:, first * kernels.STRETCH :][:, : signs.numel() // self.canaries.count]
            signs = signs.transpose(0, 1).reshape(self.canaries.count, -1)[:, : part.shape[1]]
            found.addmm_(part, signs.T)
        return found.mul_(self._scale)


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
        out = (
            _product(out.reshape(-1, factor), matrix) if done == 1 else _product(matrix, out.reshape(-1, factor, done))
        )
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


def _product(a: Tensor, b: Tensor) -> Tensor:
    if a.device.type == "cpu" and not (a.requires_grad or b.requires_grad):
        return torch.from_numpy(a.numpy() @ b.numpy())
    return a @ b


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


# Arrays begin at a cache line: wide loads within one are twice as fast as across two. numpy asks for large pages, which
# torch does not, and numpy fills them: torch's threads would go on waiting for more to do, where ours are to work.


def _zeros(numbers: int, dtype: np.dtype) -> Floats:
    """A flat array."""
    found = _empty(numbers * dtype.itemsize).view(dtype)
    found.fill(0)
    return found


def _signs(stretches: int, count: int) -> Words:
    shape = (stretches, count, kernels.TILES, kernels.WORDS)
    return _empty(4 * math.prod(shape)).view(np.uint32).reshape(shape)


def _empty(size: int) -> NDArray[np.uint8]:
    made = np.empty(size + 63, np.uint8)
    start = -made.ctypes.data % 64
    return made[start : start + size]


def _rounded_down(number: float, dtype: torch.dtype) -> float:
    """The largest number of the type that is not above this positive one."""
    nearest = torch.tensor(number, dtype=dtype)
    return float(nearest if float(nearest) <= number else torch.nextafter(nearest, torch.zeros_like(nearest)))


def _require(canaries: GradientCanaries, like: Tensor, least: int) -> None:
    check.integer(f"parameters of a model with {canaries.count} {canaries.kind} canaries", like.numel(), least)
