"""One training run, many canaries: Steinke, Nasr & Jagielski 2023, theorem 5.2."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from .. import check
from ..accounting.claims import Claim
from ..records import Bound, Observations
from .designs import Coins, fair_coins
from .guessing import guess
from .halves import expected_right
from .searching import GuessCount, best_over
from .tails import SLACK, at_most, mass

METHOD = "one run (Steinke et al. 2023, theorem 5.2)"
# The masses come from logs of factorials: relative accuracy about 1e-16 · n ln n.
_MASS_SLACK = 1e-6
NULL = "any (ε, δ)-DP mechanism, however its outputs depend on each other"


def one_run(
    obs: Observations,
    guesses: GuessCount,
    *,
    delta: float = 0.0,
    significance: float = 0.05,
    claim: Claim | None = None,
) -> Bound:
    """Lower bound on ε from the number of right guesses, for any mechanism.

    Valid for designs ``fair``, ``fixed`` (thinned to fair coins, replace-one) and ``unknown`` (conditional). Runs are
    pooled: the tuple of independent runs is one mechanism with runs × canaries coins.

    Args:
        obs: scores, shape ``(runs, canaries)``.
        guesses: how many in all, fixed before any score is seen; half of them "in", half "out". There is no default. A
            sequence of numbers shares the significance, and a :class:`Split` chooses on a part of the coins.
        delta: the δ of the bound; its price grows with the number of all coins, guessed or not.
        significance: probability that the bound exceeds the true ε.
        claim: only for ``at_claim``, the ceiling of an optimal attacker on a mechanism that spends the claim.

    Raises:
        DesignError: the design is not one of the above.
        InputError: an argument is out of range.

    >>> import numpy as np, dpaudit
    >>> member = np.random.default_rng(1).random(1000) < 0.5
    >>> bound = one_run(dpaudit.Observations(np.where(member, 1.0, -1.0) + np.arange(1000) / 1e4, member), 100)
    >>> round(bound.epsilon, 3)
    3.493
    """
    delta, significance = check.delta(delta), check.significance(significance)
    coins = fair_coins(obs, "one_run")
    return best_over(coins, guesses, significance, lambda *a: _bound(a[0], a[1], a[2], delta, claim))


def _bound(coins: Coins, guesses: int, level: float, delta: float, claim: Claim | None) -> Bound:
    got = guess(coins, guesses)

    def bound(right: int) -> float:
        return epsilon_lower(got.coins, got.planned, right, delta, level)

    perfect = bound(got.planned)
    empty = (
        f"δ = {delta:g} over {got.coins} coins is too much: not even {got.planned} right guesses would show anything"
    )
    return Bound(
        epsilon=bound(got.right),
        delta=delta,
        significance=level,
        method=METHOD,
        null=NULL,
        any_mechanism=True,
        adjacency=coins.adjacency,
        threshold=f"{got.planned} guesses, fixed beforehand",
        counts=got.counts(),
        perfect=perfect,
        at_claim=None if claim is None else bound(expected_right(claim.curve, got.coins, got.planned)),
        rates=got.rates,
        notes=coins.notes + ((empty,) if perfect == 0 and delta > 0 else ()),
    )


def p_value(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of at least ``right`` right guesses under (``epsilon``, ``delta``)-DP.

    P[V ≥ v] ≤ P[W ≥ v] + 2 m δ max_i P[v > W ≥ v − i] / i with W ~ Bin(r, e^ε / (1 + e^ε)): the δ-term counts all
    m ``coins``.
    """
    error, wrong = float(expit(-epsilon)), guesses - right
    tail = float(at_most(wrong, guesses, error))
    spill = 0.0 if delta == 0 or right == 0 else 2 * coins * delta * _densest(wrong, guesses, error)
    return min((tail + spill) * (1 + SLACK), 1.0)


def _densest(wrong: int, guesses: int, error: float) -> float:
    """max_i P[``wrong`` < E ≤ ``wrong`` + i] / i for the number of errors E ~ Bin(``guesses``, ``error``).

    The law has one mode, so the mean of its masses from ``wrong`` + 1 on falls once it has passed the mode.
    """
    spread = 40 * np.sqrt(guesses * error) + 100
    last = min(guesses, int(max(wrong + 1, guesses * error) + spread))
    masses = mass(np.arange(wrong + 1, last + 1), guesses, error)
    return float(np.max(np.cumsum(masses) / np.arange(1, len(masses) + 1))) * (1 + _MASS_SLACK)


def epsilon_lower(coins: int, guesses: int, right: int, delta: float, significance: float) -> float:
    """The largest ε that ``right`` of ``guesses`` refute, rounded down; 0 if not even ε = 0 is refuted."""

    def refuted(epsilon: float) -> bool:
        return p_value(coins, guesses, right, epsilon, delta) < significance

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    width = 1e-10 * high
    root = brentq(lambda e: _log_p(coins, guesses, right, e, delta) - np.log(significance), low, high, xtol=width)
    while not refuted(root - width) and root - width > low:
        width *= 2
    return max(root - width, low)


def _log_p(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    return float(np.log(max(p_value(coins, guesses, right, epsilon, delta), 1e-300)))
