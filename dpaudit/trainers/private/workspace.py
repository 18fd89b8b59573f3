"""Memory that is kept: to get much from the system anew, page by page, costs more than the arithmetic done in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNED = 16  # numbers
_BLOCK = 2**25 - 2**12  # bytes: the largest that the C library of Linux learns from


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB of what is freed, where it would give it back and get it anew, step by step.

    glibc gives freed memory back once it is more than twice the largest block that it got from the system by itself and
    that was freed so far, up to 32 MiB (mallopt(3), "M_MMAP_THRESHOLD"). So one such block is asked for, and freed
    untouched. Other C libraries, and thresholds that the user has set, are not affected.
    """
    torch.empty(_BLOCK, dtype=torch.uint8)


class Workspace:
    """Hands out tensors that live until it is started again.

    Args:
        kept: all from one block that grows to what is needed. Otherwise they are tensors like any other, which take
            the place of what was let go of meanwhile.
    """

    def __init__(self, kept: bool = True) -> None:
        self._kept = kept
        self._block = torch.empty(0)
        self._used = self.wanted = 0

    def start(self, numbers: int = 0) -> None:
        """Take back everything that was handed out, and be ready for at least ``numbers``."""
        most = max(self.wanted, numbers)
        if self._kept and most > self._block.numel():
            self._block = self._block.new_empty(0)  # let go of the old one before there is a new one
            self._block = self._block.new_empty(most)
        self._used = self.wanted = 0

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A contiguous tensor of this shape and undefined content, of the type and on the device of ``like``."""
        if self._block.dtype != like.dtype or self._block.device != like.device:
            self._block, self._used = like.new_empty(0), 0
        size = -(-math.prod(shape) // _ALIGNED) * _ALIGNED
        self.wanted += size
        if self._used + size > self._block.numel():
            return like.new_empty(shape)
        part = self._block[self._used : self._used + math.prod(shape)].view(shape)
        self._used += size
        return part
