"""Poisson sampling: every member joins every batch by a coin of its own.

The coins are not flipped one by one. The gaps between heads of independent coins are geometric, and a geometric
variable is the whole part of an exponential one (Devroye 1986, *Non-Uniform Random Variate Generation*, X.2.2), so
the cost is one draw per record that joins. Coins are drawn for all records, members or not, and those of the others
are dropped: taking a record out of the training set then changes no other record's batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..records import BoolArray

_PICKS_PER_BLOCK = 2**14  # joins that one model is expected to have in a block; bounds memory, changes no result


@dataclass(frozen=True, eq=False)
class BatchBlock:
    """The batches of several models in a few consecutive steps, padded to one width.

    Attributes:
        index: record numbers, int64, shape ``(steps, models, width)``; places beyond a batch's size hold the number
            of records, which is no record.
        sizes: batch sizes, int64, shape ``(steps, models)``; 0 is a batch like any other.
    """

    index: NDArray[np.int64]
    sizes: NDArray[np.int64]


def flips(generator: np.random.Generator, probability: float, coins: int) -> NDArray[np.int64]:
    """Which of ``coins`` independent coins show heads, each with ``probability`` in (0, 1]; ascending."""
    if probability >= 1.0:
        return np.arange(coins)
    scale = -1.0 / math.log1p(-probability)
    found, last = [], -1
    while last < coins:
        heads = (coins - last) * probability
        draws = generator.standard_exponential(int(heads + 4 * math.sqrt(heads)) + 8) * scale
        positions = last + np.cumsum(np.minimum(draws, float(coins)).astype(np.int64) + 1)
        found.append(positions)
        last = int(positions[-1])
    heads_at = np.concatenate(found)
    return heads_at[: np.searchsorted(heads_at, coins)]


def batch_blocks(
    generators: Sequence[np.random.Generator], member: BoolArray, rate: float, steps: int
) -> Iterator[BatchBlock]:
    """The batches of all steps, some steps at a time.

    Each model's batches depend on its own generator, the number of records and the settings only: not on which
    other models are drawn with it.

    Args:
        generators: one per model.
        member: bool, shape ``(models, records)``; who may join a batch of that model.
        rate: probability that a member joins a batch.
        steps: number of batches per model.
    """
    records = member.shape[1]
    length = max(1, int(_PICKS_PER_BLOCK / max(1.0, rate * records)))
    for start in range(0, steps, length):
        count = min(length, steps - start)
        picks = [_picks(g, row, rate, count) for g, row in zip(generators, member, strict=True)]
        yield _padded(picks, count, records)


def _picks(
    generator: np.random.Generator, member: BoolArray, rate: float, steps: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Step and record of every join of one model, in order."""
    step, record = np.divmod(flips(generator, rate, steps * len(member)), len(member))
    keep = member[record]
    return step[keep], record[keep]


def _padded(picks: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], steps: int, records: int) -> BatchBlock:
    sizes = np.stack([np.bincount(step, minlength=steps) for step, _ in picks], axis=1)
    index = np.full((steps, len(picks), int(sizes.max(initial=0))), records, dtype=np.int64)
    for model, (step, record) in enumerate(picks):
        starts = np.cumsum(sizes[:, model]) - sizes[:, model]
        index[step, model, np.arange(len(step)) - starts[step]] = record
    return BatchBlock(index, sizes)
