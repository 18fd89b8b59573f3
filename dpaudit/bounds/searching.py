"""How many guesses: a number fixed beforehand, the best of several that were, or one chosen on a part of the coins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import check
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from .choices import Split
from .designs import Coins, digest
from .tails import Array, log_ratio, upper_limit

GuessCount = int | Sequence[int] | Split
FRACTIONS = tuple(2.0 ** (-i / 2) for i in range(13))


def best_over(
    coins: Coins,
    guesses: GuessCount,
    significance: float,
    bound: Callable[[Coins, int, float], Bound],
) -> Bound:
    """The bound under a policy for the number of guesses, with its price paid.

    Args:
        guesses: a number; several, which share the significance in equal parts; or a :class:`Split`, which chooses the
            share of coins to guess on a part of them and bounds from the rest.
        bound: the bound for so many guesses of these coins at this level.
    """
    if isinstance(guesses, Split):
        rest, count, looked = _chosen(coins, guesses, significance)
        found = bound(rest, count, significance)
        what = "chosen, with the direction," if guesses.direction else "chosen"
        how = f"{guesses.fraction:.0%} of the coins ({looked}, seed {guesses.seed}), which the bound does not use"
        return replace(found, threshold=f"{found.threshold.split(',')[0]}, {what} on {how}")
    if isinstance(guesses, (str, bytes)) or not isinstance(guesses, Sequence):
        return bound(coins, check.integer("guesses", guesses, 2, len(coins)), significance)
    return _best_of(coins, guesses, significance, bound)


def either_direction(
    bound: Callable[..., Bound], obs: Observations, *arguments: Any, significance: float = 0.05, **options: Any
) -> Bound:
    """The better of two bounds: high scores say "in", or low scores do; each at half of the significance.

    Args:
        bound: any bound of :mod:`dpaudit.bounds`.
        obs, arguments, options: what it takes besides the significance.

    >>> import dpaudit
    >>> from dpaudit import bounds
    >>> obs = dpaudit.Observations.from_worlds([0.0] * 500, [1.0] * 500)
    >>> round(either_direction(bounds.clopper_pearson, obs, threshold=bounds.Ranks([1])).epsilon, 2)
    4.59
    """
    assert obs.present is not None
    turned = replace(obs, scores=np.where(obs.present, -obs.scores, 0.0))
    both = [bound(each, *arguments, significance=significance / 2, **options) for each in (obs, turned)]
    best = max(both, key=lambda b: b.epsilon)
    how = "better of both directions, significance divided by 2"
    perfect = max(b.perfect for b in both)
    return replace(best, significance=significance, threshold=f"{best.threshold}; {how}", perfect=perfect)


def _best_of(
    coins: Coins, counts: Sequence[int], significance: float, bound: Callable[[Coins, int, float], Bound]
) -> Bound:
    if not counts:
        raise InputError("guesses must be a number, or at least one in a sequence, got none")
    found = [bound(coins, count, significance / len(counts)) for count in counts]
    best = max(found, key=lambda b: b.epsilon)
    ceilings = [b.at_claim for b in found if b.at_claim is not None]
    listed = ", ".join(str(c) for c in counts)
    return replace(
        best,
        significance=significance,
        threshold=f"{best.threshold}; best of {len(counts)} numbers ({listed}), significance divided by {len(counts)}",
        perfect=max(b.perfect for b in found),
        at_claim=max(ceilings) if ceilings else None,
    )


def _chosen(coins: Coins, policy: Split, significance: float) -> tuple[Coins, int, int]:
    """The coins that were not looked at, how many of them to guess, and how many were looked at.

    The part is drawn by score values, from the scores and the seed but from no coin; tied scores stay together, so that
    the order of the rows never matters.
    """
    values, group = np.unique(coins.scores, return_inverse=True)
    rng = np.random.default_rng([policy.seed, digest(values)])
    look = (rng.permutation(len(values)) < round(policy.fraction * len(values)))[group]
    first, rest = _part(coins, look), _part(coins, ~look)
    if len(first) < 4 or len(rest) < 4:
        raise InputError(f"a split needs at least 4 coins on either side, got {len(first)} and {len(rest)}")
    counts = sorted({_even(len(first) * f) for f in FRACTIONS})
    options = [(sign, count) for sign in policy.signs for count in counts]
    shown = np.concatenate([_pure_epsilon(_turned(first, sign), counts, significance) for sign in policy.signs])
    sign, count = options[int(np.argmax(shown))]
    return _turned(rest, sign), min(_even(len(rest) * count / len(first)), len(rest)), len(first)


def _turned(coins: Coins, sign: float) -> Coins:
    return coins if sign > 0 else replace(coins, scores=-coins.scores)


def _pure_epsilon(coins: Coins, counts: Sequence[int], significance: float) -> Array:
    """The bound at δ = 0, which a number of guesses is chosen by: the log odds of the lower limit of being right."""
    wrong = upper_limit(np.array(counts) - _right(coins, counts), counts, significance)
    return log_ratio(1.0 - wrong, wrong)


def _right(coins: Coins, counts: Sequence[int]) -> Array:
    """For every count as many right guesses as :func:`~dpaudit.bounds.guessing.guess` finds, from one sort for all."""
    scores = coins.scores[coins.present]
    order = np.argsort(scores)
    scores, members = scores[order], np.append(0, np.cumsum(coins.member[coins.present][order]))
    n = len(scores)
    if n < 2:
        return np.zeros(len(counts))
    side = np.minimum(np.array(counts) // 2, n // 2)
    high = np.searchsorted(scores, scores[n - side - 1], side="right")
    low = np.searchsorted(scores, scores[side], side="left")
    return members[n] - members[high] + low - members[low]


def _part(coins: Coins, keep: BoolArray) -> Coins:
    return replace(coins, scores=coins.scores[keep], member=coins.member[keep], present=coins.present[keep])


def _even(count: float) -> int:
    return max(2 * int(count / 2), 2)
