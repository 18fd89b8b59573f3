"""From scores to guesses: the highest say "in", the lowest say "out", the rest abstain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import check
from .designs import Coins
from .tails import Array


@dataclass(frozen=True)
class Guesses:
    """Counts of one round of guesses.

    ``planned`` guesses were paid for; ``made`` is smaller where ties across the cut made entries abstain.
    ``high`` and ``low`` are the guesses "in" and "out", ``high_right`` and ``low_right`` those that were right.
    """

    coins: int
    planned: int
    high: int
    low: int
    high_right: int
    low_right: int
    members: int

    @property
    def made(self) -> int:
        """Guesses that were made."""
        return self.high + self.low

    @property
    def right(self) -> int:
        """Guesses that were right."""
        return self.high_right + self.low_right

    @property
    def rates(self) -> tuple[float, float]:
        """(false positive, false negative) rates of the test "guessed in" over all coins."""
        others = self.coins - self.members
        return (self.high - self.high_right) / max(others, 1), 1 - self.high_right / max(self.members, 1)

    def counts(self) -> dict[str, float]:
        """For a :class:`~dpaudit.Bound`."""
        return {"coins": self.coins, "guesses": self.planned, "made": self.made, "correct": self.right}


def guess(coins: Coins, guesses: int) -> Guesses:
    """Guess ``guesses`` // 2 of the highest scores "in" and as many of the lowest "out".

    Entries tied across a cut all abstain, so that neither row order nor a tie-break ever matters.

    Raises:
        InputError: fewer than 2 guesses, or more than there are coins.
    """
    guesses = check.integer("guesses", guesses, 2, len(coins))
    scores, member = coins.scores[coins.present], coins.member[coins.present]
    side = min(guesses // 2, len(scores) // 2)
    high, low = _top(scores, side), _top(-scores, side)
    return Guesses(
        coins=len(coins),
        planned=guesses,
        high=int(high.sum()),
        low=int(low.sum()),
        high_right=int(member[high].sum()),
        low_right=int((~member[low]).sum()),
        members=int(coins.member.sum()),
    )


def _top(scores: Array, count: int) -> np.ndarray:
    """Which entries are surely among the ``count`` highest; those tied with the next one are not."""
    if count == 0 or len(scores) == 0:
        return np.zeros(len(scores), bool)
    if count == len(scores):
        return np.ones(len(scores), bool)
    at = len(scores) - count
    ranked = np.partition(scores, (at - 1, at))
    return scores > ranked[at - 1]
