"""The law of right guesses when half go to the highest scores and half to the lowest."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv

from ..accounting.curves import Curve
from .ideal import error_rate
from .tails import Array, at_least

_NODES = (np.arange(48) + 0.5) / 48


class HalfAndHalf:
    """The law of right guesses when half go to the highest scores ("in") and half to the lowest ("out"), ideal scores.

    Of m fair coins the h highest scores lie in the top share W₁ of all scores that could come up, the h lowest in the
    bottom share W₂; (W₁, 1 − W₁ − W₂, W₂) is Dirichlet(h + 1, m − 2h − 1, h + 1), and given these, guesses are right
    independently of each other. A guess among the top share w is wrong with probability α / (2w), where
    (α + 1 − f(α)) / 2 = w. Unlike :func:`~dpaudit.bounds.ideal.error_rate` this knows that coins seldom fall half and
    half: who must name as many "in" as "out" and leaves none out is wrong whenever they do not.
    """

    def __init__(self, curve: Curve) -> None:
        corner = error_rate(curve, 1, 1)
        tail = np.geomspace(1e-14, 0.5, 2000)
        self._alpha = np.unique(np.concatenate([[0.0, corner], tail, 1.0 - tail, [1.0]]))
        self._share = (self._alpha + 1.0 - curve.fnr(self._alpha)) / 2

    def at_least(self, critical: int, coins: int, guesses: int) -> float:
        """P[at least ``critical`` of ``guesses`` are right]; ``guesses`` even.

        Within the quadrature the two binomials are replaced by one at their mean rate, which has the heavier lower tail
        (Hoeffding 1956, theorem 4), so a power above one half is not overstated.
        """
        if critical > guesses:
            return 0.0
        half = guesses // 2
        spare = coins - guesses - 1
        both = betaincinv(guesses + 2, spare, _NODES)[:, None] if spare > 0 else np.ones((1, 1))
        part = 0.5 + np.abs(betaincinv(half + 1, half + 1, _NODES / 2) - 0.5)  # the larger of the two, by symmetry
        wrong = (self._wrong(both * part) + self._wrong(both * (1.0 - part))) / 2
        return float(np.mean(at_least(critical, guesses, 1.0 - wrong)))

    def _wrong(self, share: Array) -> Array:
        # α is convex in the share, so that a chord lies above it: errors are rounded up.
        return np.asarray(np.interp(share, self._share, self._alpha) / (2 * share))

    def median(self, coins: int, guesses: int) -> int:
        """The largest number of right guesses that is reached with probability at least one half."""
        low, high = 0, guesses + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at_least(middle, coins, guesses) >= 0.5 else (low, middle)
        return low


def expected_right(curve: Curve, coins: int, guesses: int) -> int:
    """The median number of right guesses of an optimal attacker on ``curve``."""
    return HalfAndHalf(curve).median(coins, 2 * (guesses // 2))
