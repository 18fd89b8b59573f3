"""How batches are drawn: Poisson, fixed-size, shuffled, balls-and-bins.

Whatever the sampler, batches are drawn from all records, members or not, and the joins of those that are no members
are dropped. Taking a record out of the training set then changes no other record's batches: with Poisson sampling that
is removing it, with the others it is zeroing it out, which is the neighbouring relation of their claims.

Poisson coins are not flipped one by one. The gaps between heads of independent coins are geometric, and a geometric
variable is the whole part of an exponential one (Devroye 1986, *Non-Uniform Random Variate Generation*, X.2.2), so
the cost is one draw per record that joins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..accounting.mechanisms import batches_per_epoch
from ..errors import InputError
from ..records import BoolArray

Picks = tuple[NDArray[np.int64], NDArray[np.int64]]  # step and record of every join, in order
Draw = Callable[[int], Picks]  # of so many further steps

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
    generators: Sequence[np.random.Generator], member: BoolArray, rate: float, steps: int, sampler: str = "poisson"
) -> Iterator[BatchBlock]:
    """The batches of all steps, some steps at a time.

    Each model's batches depend on its own generator, the number of records and the settings only: not on which
    other models are drawn with it.

    Args:
        generators: one per model.
        member: bool, shape ``(models, records)``; who may join a batch of that model.
        rate: the share of the records that a batch has.
        steps: number of batches per model.
        sampler: one of :data:`SAMPLERS`.

    Raises:
        InputError: a batch would have no records, or balls and bins whose number is not whole.
    """
    records = member.shape[1]
    length = max(1, int(_PICKS_PER_BLOCK / max(1.0, rate * records)))
    draws = [SAMPLERS[sampler](g, records, rate) for g in generators]
    for start in range(0, steps, length):
        count = min(length, steps - start)
        picks = [_members(draw(count), row) for draw, row in zip(draws, member, strict=True)]
        yield _padded(picks, count, records)


def _members(picks: Picks, member: BoolArray) -> Picks:
    """Only the joins of records that are members; the others are zeroed out."""
    step, record = picks
    keep = np.flatnonzero(member.take(record))  # faster than a mask, and it leaves Python's lock to other threads
    return step.take(keep), record.take(keep)


def poisson(generator: np.random.Generator, records: int, rate: float) -> Draw:
    """Every record joins every batch by a coin of its own."""

    def draw(steps: int) -> Picks:
        return np.divmod(flips(generator, rate, steps * records), records)

    return draw


def fixed_size(generator: np.random.Generator, records: int, rate: float) -> Draw:
    """Every batch is ``floor(rate · records)`` records drawn without replacement, from members and others alike.

    The floor keeps the share of a batch at or below ``rate``, which is what the claim is made with.
    """
    size = int(rate * records + 1e-9)
    if size < 1:
        raise InputError(f"sampling_rate must give a batch of at least 1 of {records} records, got {rate:g}")

    def draw(steps: int) -> Picks:
        chosen = [np.sort(generator.choice(records, size, replace=False, shuffle=False)) for _ in range(steps)]
        return np.repeat(np.arange(steps), size), np.concatenate(chosen).astype(np.int64)

    return draw


def shuffled(generator: np.random.Generator, records: int, rate: float) -> Draw:
    """Every epoch the records are permuted anew and cut into 1 / ``rate`` batches of sizes that differ by at most 1."""
    batches = batches_per_epoch(rate)

    def places() -> NDArray[np.int64]:
        return generator.permutation(np.arange(records) * batches // records)

    return _by_epochs(batches, places)


def balls_and_bins(generator: np.random.Generator, records: int, rate: float) -> Draw:
    """Every epoch every record joins one of 1 / ``rate`` batches, each drawn by itself."""
    batches = round(1.0 / rate)
    if abs(rate * batches - 1.0) > 1e-3:
        raise InputError(f"sampling_rate must be 1 over a whole number of batches, such as 1/{batches}, got {rate:g}")
    return _by_epochs(batches, lambda: generator.integers(0, batches, records))


def _by_epochs(batches: int, places: Callable[[], NDArray[np.int64]]) -> Draw:
    """Steps that run through epochs; ``places`` draws the batch of every record in one epoch."""
    at, order, bounds = batches, np.empty(0, np.int64), np.empty(0, np.int64)

    def draw(steps: int) -> Picks:
        nonlocal at, order, bounds
        chosen = []
        for _ in range(steps):
            if at == batches:
                where = places()
                order = np.argsort(where, kind="stable")
                bounds = np.searchsorted(where[order], np.arange(batches + 1))
                at = 0
            chosen.append(order[bounds[at] : bounds[at + 1]])
            at += 1
        sizes = [len(c) for c in chosen]
        return np.repeat(np.arange(steps), sizes), np.concatenate(chosen)

    return draw


SAMPLERS: Mapping[str, Callable[[np.random.Generator, int, float], Draw]] = {
    "poisson": poisson,
    "full-batch": poisson,
    "fixed-size": fixed_size,
    "shuffled": shuffled,
    "balls-and-bins": balls_and_bins,
}


def _padded(picks: Sequence[Picks], steps: int, records: int) -> BatchBlock:
    sizes = np.stack([np.bincount(step, minlength=steps) for step, _ in picks], axis=1)
    index = np.full((steps, len(picks), int(sizes.max(initial=0))), records, dtype=np.int64)
    for model, (step, record) in enumerate(picks):
        starts = np.cumsum(sizes[:, model]) - sizes[:, model]
        index[step, model, np.arange(len(step)) - starts[step]] = record
    return BatchBlock(index, sizes)
