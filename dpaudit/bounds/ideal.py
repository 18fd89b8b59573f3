"""What an optimal attacker gets: ceilings and power, computed before any score is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from ..accounting.curves import Curve, bisect
from .tails import at_least, mass, upper_limit


def error_rate(curve: Curve, coins: int, guesses: int) -> float:
    """The share of wrong guesses of an optimal attacker who guesses the ``guesses`` surest of ``coins`` fair coins.

    The highest scores are those above the quantile at which (fpr + 1 − fnr) / 2 is the guessed share of one side; a
    wrong guess there is a false positive. The other side mirrors it, since the curve is symmetric.
    """
    share = guesses / coins
    fpr = bisect(lambda a: a + 1.0 - curve.fnr(a) >= share, np.zeros(1), np.ones(1), rounds=60)[0]
    return float(min(fpr / share, 0.5))


def fewest(rejects: Callable[[int], bool], guesses: int) -> int:
    """The fewest right guesses that reject; ``guesses`` + 1 if all of them would not."""
    low, high = guesses // 2, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return high


def threshold_power(truth: Curve, claimed: Curve, members: int, others: int, level: float) -> float:
    """Probability that the best threshold on ``truth``, fixed beforehand, refutes ``claimed`` at ``level``."""
    fpr_limit = upper_limit(np.arange(others + 1), np.full(others + 1, others), level / 2)
    allowed = claimed.fnr(fpr_limit)
    fnr_limit = upper_limit(np.arange(members + 1), np.full(members + 1, members), level / 2)
    # For each number of false alarms, how many members may be missed at most.
    most_missed = np.asarray(np.searchsorted(fnr_limit, allowed, side="left") - 1, np.int64)
    rates = np.concatenate([np.geomspace(1e-5, 0.5, 40), 1 - np.geomspace(1e-5, 0.5, 40)])
    return max(_corner_power(a, float(truth.fnr(np.asarray(a))), most_missed, members, others) for a in rates)


def _corner_power(fpr: float, fnr: float, most_missed: NDArray[np.int64], members: int, others: int) -> float:
    alarms = mass(np.arange(others + 1), others, fpr)
    hit = 1.0 - at_least(most_missed + 1, np.full(others + 1, members), fnr)
    return float(min(np.sum(alarms * np.where(most_missed < 0, 0.0, hit)), 1.0))


def rank_power(truth: Curve, claimed: Curve, members: int, others: int, ranks: Sequence[int], level: float) -> float:
    """Probability that the best of ``ranks`` among ideal scores on ``truth`` refutes ``claimed``, each at ``level``.

    The rate above the k-th highest score of n runs without the canary is Beta(k, n − k + 1); given it, the misses are
    binomial. The curve is symmetric, so the other side is the same with the two numbers of runs exchanged.
    """
    sides = ((members, others), (others, members))
    return max(
        (_one_rank(truth, claimed, m, n, k, level) for m, n in sides for k in ranks if m > 0 and k <= n), default=0.0
    )


def _one_rank(truth: Curve, claimed: Curve, members: int, others: int, rank: int, level: float) -> float:
    allowed = float(claimed.fnr(upper_limit(rank - 1, others, level / 2)))
    limits = upper_limit(np.arange(members + 1), np.full(members + 1, members), level / 2)
    most_missed = int(np.searchsorted(limits, allowed, side="left")) - 1
    if most_missed < 0:
        return 0.0
    rates = betaincinv(rank, others - rank + 1, (np.arange(100) + 0.5) / 100)
    return float(np.mean(1.0 - at_least(most_missed + 1, members, truth.fnr(rates))))
