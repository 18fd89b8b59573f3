"""One run under a named family, with the surer half of the guesses counted twice: order statistics with weights."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, betaln, xlog1py, xlogy

from .. import check
from ..accounting.claims import Claim
from ..accounting.curves import Curve
from ..errors import InputError
from ..records import Bound, Observations
from .choices import Fixed
from .designs import Coins, fair_coins
from .families import Family, family_of, rough_curve
from .guessing import Guesses
from .ranks import error_rates, farthest
from .tails import SLACK, Array, mass

METHOD = "weighted order statistics (after Xiang et al. 2025)"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_CUT_OFF = 1e-10
_DEVIATIONS = 9.0  # a binomial leaves this range with probability below 1e-15
_TOLERANCE = 1e-4


def weighted_order_statistics(
    obs: Observations,
    *,
    threshold: Fixed,
    delta: float,
    significance: float = 0.05,
    claim: Claim | None = None,
    family: Family | None = None,
) -> Bound:
    """Lower bound under a family of independent per-canary channels, from guesses on all coins.

    Scores above ``threshold`` are guessed "in", those below "out". With A right among the surer half, those farther
    from the threshold, and B right among all, the statistic is A + B: who is sure and right counts twice. Under a
    member of the family it is largest in law for the optimal guesser. (Of two guesses with chances c₁ ≥ c₂ of being
    right, to give the larger weight to the first makes "the heavier alone is right" likelier and "the lighter alone"
    less so, and leaves the rest; sort by such exchanges. A rule that is not optimal is right with smaller chances.)
    Given the share w of all scores above the (h + 1)-th surest of m, w ~ Beta(h + 1, m − h), the h surest are right
    independently with chance 1 − g(w) and the others with that of the rest; the (h + 1)-th itself is taken to be
    right.

    It uses more of the scores than a plain count of errors, and so is nearer to the truth. Valid for the designs of
    ``one_run``, if scores are independent given the coins; it tests the recipe, never the curve.

    Args:
        obs: scores, shape ``(runs, canaries)``.
        threshold: fixed beforehand; 0 for log-likelihood ratios.
        delta: the δ that the refuted member is converted at.
        claim, family: as in ``order_statistics``.

    Raises:
        DesignError: the design is not one of ``one_run``.
        InputError: an argument is out of range, or the claim is a bare pair, which names no family.
    """
    delta, significance = check.delta(delta), check.significance(significance)
    chosen = family_of(claim, delta) if family is None else family
    if chosen.any_mechanism:
        raise InputError("weighted_order_statistics needs a claim with a recipe, or a family, got a bare pair")
    if not isinstance(threshold, Fixed):
        raise InputError(f"threshold must be bounds.Fixed, got {threshold!r}")
    coins = fair_coins(obs, "weighted_order_statistics")
    sure, every = _counted(coins, threshold.threshold)
    half, all_coins = sure.planned, every.planned

    def parameter(statistic: int) -> float:
        return _largest(chosen, all_coins, half, statistic, significance)

    return Bound(
        epsilon=chosen.epsilon(parameter(sure.right + every.right), delta),
        delta=delta,
        significance=significance,
        method=f"{METHOD}, family: {chosen.name}",
        null=f"canaries independent given the coins, each with a curve of the family {chosen.name}",
        any_mechanism=False,
        adjacency=coins.adjacency,
        threshold=f"all coins guessed, fixed beforehand at {threshold.threshold:g}; the surer half counts twice",
        counts={**every.counts(), "correct_in_surer_half": sure.right},
        perfect=chosen.ceiling(parameter(half + all_coins), delta),
        at_claim=None
        if claim is None
        else chosen.ceiling(parameter(_median(rough_curve(claim), all_coins, half)), delta),
        rates=every.rates,
        notes=coins.notes,
    )


def _counted(coins: Coins, threshold: float) -> tuple[Guesses, Guesses]:
    if len(coins) < 4:
        raise InputError(f"weighted_order_statistics needs at least 4 coins, got {len(coins)}")
    return farthest(coins, len(coins) // 2, threshold), farthest(coins, len(coins), threshold)


def p_value(curve: Curve, coins: int, half: int, statistic: int) -> float:
    """P[A + B ≥ ``statistic``] for the optimal guesser: ``half`` of ``coins`` guesses count twice."""
    a, b = half + 1.0, float(coins - half)
    low, high = betaincinv(a, b, _CUT_OFF), betaincinv(a, b, 1 - _CUT_OFF)
    share = low + (high - low) * (_NODES + 1) / 2
    weights = _WEIGHTS * np.exp(xlogy(a - 1, share) + xlog1py(b - 1, -share) - betaln(a, b)) * (high - low) / 2
    sure, others = _right_rates(curve, share)
    tails = [_tail(half, p, coins - half - 1, q, statistic) for p, q in zip(sure, others, strict=True)]
    return float(min(np.dot(tails, weights) * (1 + SLACK) + 4 * _CUT_OFF, 1.0))


def _right_rates(curve: Curve, share: Array) -> tuple[Array, Array]:
    """Chances of being right among the surest ``share`` of all coins, and among the rest."""
    wrong, overall = error_rates(curve, share), error_rates(curve, np.ones(1))
    rest = np.clip((overall - share * wrong) / (1 - share), 0.0, 0.5)
    return 1.0 - wrong, 1.0 - rest


def _tail(half: int, sure: float, rest: int, other: float, statistic: int) -> float:
    """P[2 A + C + 1 ≥ ``statistic``], A ~ Bin(``half``, ``sure``), C ~ Bin(``rest``, ``other``)."""
    twice, singly = _window(half, sure), _window(rest, other)
    masses, tail = mass(twice, half, sure), np.append(np.cumsum(mass(singly, rest, other)[::-1])[::-1], 0.0)
    needed = statistic - 1 - 2 * twice
    at = np.clip(needed - singly[0], 0, len(singly)).astype(int)
    return float(np.dot(masses, np.where(needed <= singly[0], 1.0, tail[at]))) + 1e-14


def _window(trials: int, rate: float) -> Array:
    """The numbers that a binomial takes but for a probability that doubles can't tell from 0."""
    spread = _DEVIATIONS * np.sqrt(trials * rate * (1 - rate)) + 60
    first, last = max(int(trials * rate - spread), 0), min(int(trials * rate + spread) + 1, trials)
    return np.arange(first, last + 1, dtype=float)


def _largest(family: Family, coins: int, half: int, statistic: int, level: float) -> float:
    """The largest parameter that is refuted, rounded down; 0 if none is."""

    def refuted(parameter: float) -> bool:
        return p_value(family.curve(np.array(parameter)), coins, half, statistic) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < family.most and refuted(high):
        low, high = high, min(2 * high, family.most)
    while high - low > max(_TOLERANCE, family.tolerance) * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _median(curve: Curve, coins: int, half: int) -> int:
    """About the median of the statistic for the optimal guesser."""
    sure, others = _right_rates(curve, np.array([half / coins]))
    return round(float(2 * half * sure[0] + (coins - half) * others[0]))
