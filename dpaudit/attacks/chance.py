"""How often luck does as well: p-values that hold exactly where membership is exchangeable given the scores.

The null says: had the same number of members been drawn at random among these records, the scores would be what they
are. It holds where neither the model nor the split tells members apart. Nothing here is asymptotic.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from .. import check
from ..errors import InputError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

DRAWS = 9_999
_BLOCKS = 64


def hypergeometric_tail(hits: int, records: int, members: int, drawn: int) -> float:
    """P[at least ``hits`` members among ``drawn`` records], drawn at random from ``records`` with ``members``.

    >>> round(hypergeometric_tail(3, 10, 3, 3), 6)  # 1 / 120
    0.008333
    """
    low, high = max(0, drawn - (records - members)), min(members, drawn)
    if hits <= low:
        return 1.0
    if hits > high:
        return 0.0
    k = np.arange(hits, high + 1, dtype=np.float64)
    others = records - members
    # Stirling's series cancels to about 1e-9 for a million records: always on the side of the larger p-value.
    ways = _log_choose(members, k) + _log_choose(others, drawn - k) - _log_choose(records, np.float64(drawn))
    return float(min(np.exp(ways).sum() * (1 + 1e-8), 1.0))


def _log_choose(n: int, k: Array | np.float64) -> Array:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def share_p_value(hits: int, false_alarms: int, members: int, others: int) -> float:
    """For "``hits`` members score above the (``false_alarms`` + 1)-th highest other": the chance of as many or more.

    In a random order at least h members come before the (j + 1)-th other exactly if the first h + j places hold at
    least h members (negative hypergeometric law). Members tied with that other are not counted as hits, which only
    makes the p-value larger.

    Args:
        hits: members strictly above.
        false_alarms: j, fixed before the scores were seen.
        members, others: how many there are.
    """
    return hypergeometric_tail(hits, members + others, members, min(hits + false_alarms, members + others))


def decision_p_value(hits: int, false_alarms: int, members: int, others: int) -> float:
    """Fisher's exact test, one-sided: of all that a threshold fixed beforehand calls members, so many are ones."""
    return hypergeometric_tail(hits, members + others, members, hits + false_alarms)


def area_p_value(scores: Array, member: NDArray[np.bool_], seed: int = 0, draws: int = DRAWS) -> float:
    """One-sided Mann–Whitney test by random membership: (1 + draws at least as high) / (1 + draws).

    The statistic is the rank sum of the members, ranks grouped into at most 64 blocks that never part tied scores;
    grouping loses less than a thousandth of the test's power, and no validity.

    Args:
        scores, member: one score per record, without NaN.
        seed: what membership is redrawn with.
        draws: how many; the smallest p-value is 1 / (1 + draws).
    """
    inside, size = _blocks(scores, member)
    sums = _drawn_sums(tuple(size.tolist()), int(inside.sum()), seed, draws)
    below = np.searchsorted(sums, inside @ _middle_ranks(size) - 1e-6)
    return float((1 + draws - below) / (1 + draws))


@lru_cache(maxsize=32)
def _drawn_sums(size: tuple[int, ...], members: int, seed: int, draws: int) -> Array:
    """Rank sums of random members, rising; scores without ties all have the same blocks, so that they share these."""
    counts = np.array(size)
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(counts, members, size=draws, method="marginals")
    return np.sort(drawn @ _middle_ranks(counts))


def _middle_ranks(size: Counts) -> Array:
    return np.cumsum(size) - (size - 1) / 2


def _blocks(scores: Array, member: NDArray[np.bool_]) -> tuple[Counts, Counts]:
    """Members and records per block of neighbouring scores, lowest first; tied scores share a block."""
    values, place = np.unique(scores, return_inverse=True)
    size = np.bincount(place, minlength=len(values))
    inside = np.bincount(place[member], minlength=len(values))
    block = (np.cumsum(size) - size) * _BLOCKS // len(scores)
    start = np.flatnonzero(np.diff(block, prepend=-1))
    return np.add.reduceat(inside, start), np.add.reduceat(size, start)


def holm(p_values: ArrayLike) -> Array:
    """Adjusted p-values by Holm (1979): those at most α are significant, with any false one at rate at most α.

    Args:
        p_values: any shape, each in [0, 1]; however they depend on each other.

    Raises:
        InputError: a value outside [0, 1] or NaN.

    >>> holm([0.01, 0.04, 0.03]).round(6).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"p_values must be in [0, 1], got {p[~((p >= 0) & (p <= 1))].ravel()[0]!r}")
    order = np.argsort(p, axis=None, kind="stable")
    raised = np.maximum.accumulate(p.ravel()[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty(p.size)
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted.reshape(p.shape)


def draws_for(tests: int, significance: float) -> int:
    """So many draws that the smallest p-value passes Holm among ``tests``, with room to spare; at least 9,999."""
    return max(DRAWS, int(np.ceil(4 * check.integer("tests", tests, 1) / check.significance(significance))) - 1)
