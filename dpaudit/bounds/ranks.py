"""One run under a named family of independent canaries: Xiang, Wang & Wang 2025 (arXiv 2509.08704).

Far tighter than the bounds for any mechanism, and false outside its family: a mechanism that with probability ½ answers
every canary and else none has the claim's curve and is refuted too often. It tests the recipe, never the curve.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, betaln, ndtr, xlog1py, xlogy

from .. import check
from ..accounting.claims import Claim
from ..accounting.curves import Curve, GaussianCurve, GridCurve, bisect
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from .choices import Fixed
from .designs import Coins, fair_coins
from .families import Family, family_of, largest_refuted, rough_curve
from .guessing import Guesses, guess
from .searching import GuessCount, best_over
from .tails import SLACK, Array, at_least

METHOD = "order statistics (Xiang et al. 2025)"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)
_CUT_OFF = 1e-13


def order_statistics(
    obs: Observations,
    guesses: GuessCount,
    *,
    delta: float,
    significance: float = 0.05,
    claim: Claim | None = None,
    family: Family | None = None,
    threshold: Fixed | None = None,
) -> Bound:
    """Lower bound under a family of independent per-canary channels; the tightest there is, and not for any mechanism.

    Of m coins the r surest are guessed. Under a member of the family, whoever guesses r makes at most u errors with
    probability at most E[BinCDF(u; r, g(W))], W ~ Beta(m − r, r + 1), where g(w) is the error rate of the optimal
    guesses that remain when the share w abstains; any other rule, whatever the scores, makes more errors. Valid for the
    designs of ``one_run``, if scores are independent given the coins.

    Args:
        obs: scores, shape ``(runs, canaries)``.
        guesses: how many in all, fixed beforehand; a policy as in ``one_run``.
        delta: the δ that the refuted member is converted at.
        claim: its recipe with the noise scaled is the family, a canary that is in being the record that was added;
            Gaussian without one.
        family: another family, such as :class:`~dpaudit.bounds.LaplaceFamily`.
        threshold: guess the scores that are farthest from it, above "in" and below "out"; 0 is the best one for
            log-likelihood ratios. By default half of the guesses go to the highest scores and half to the lowest.

    Raises:
        DesignError: the design is not one of ``one_run``.
        InputError: an argument is out of range, or the claim is a bare pair, which names no family.
    """
    delta, significance = check.delta(delta), check.significance(significance)
    chosen = family_of(claim, delta) if family is None else family
    if chosen.any_mechanism:
        raise InputError("order_statistics needs a claim with a recipe, or a family, got a bare pair")
    if threshold is not None and not isinstance(threshold, Fixed):
        raise InputError(f"threshold must be bounds.Fixed or None, got {threshold!r}")
    coins = fair_coins(obs, "order_statistics")
    return best_over(coins, guesses, significance, lambda *a: _bound(a[0], a[1], a[2], chosen, delta, claim, threshold))


def _bound(
    coins: Coins,
    guesses: int,
    level: float,
    family: Family,
    delta: float,
    claim: Claim | None,
    threshold: Fixed | None,
) -> Bound:
    got = guess(coins, guesses) if threshold is None else farthest(coins, guesses, threshold.threshold)

    def parameter(right: int) -> float:
        return parameter_lower(family, got.coins, got.planned, right, level)

    def ceiling(right: int) -> float:
        return family.ceiling(parameter(right), delta)

    return Bound(
        epsilon=family.epsilon(parameter(got.right), delta),
        delta=delta,
        significance=level,
        method=f"{METHOD}, family: {family.name}",
        null=f"canaries independent given the coins, each with a curve of the family {family.name}",
        any_mechanism=False,
        adjacency=coins.adjacency,
        threshold=_policy(got, threshold),
        counts=got.counts(),
        perfect=ceiling(got.planned),
        at_claim=None if claim is None else ceiling(got.planned - _median_errors(rough_curve(claim), got)),
        rates=got.rates,
        notes=coins.notes,
    )


def parameter_lower(family: Family, coins: int, guesses: int, right: int, level: float) -> float:
    """The largest parameter of ``family`` that the counts refute at ``level``, rounded down; 0 if none is."""

    def refutes(curve: Curve) -> BoolArray:
        return p_value(curve, coins, guesses, right) < level

    return largest_refuted(family, refutes)


def p_value(curve: Curve, coins: int, guesses: int, right: int) -> Array:
    """P[at most ``guesses`` − ``right`` errors] of the optimal attacker; one value, or one per row of a curve."""
    errors = guesses - right
    if guesses == coins:
        return np.minimum(_at_most(errors, guesses, error_rates(curve, np.ones(1))).sum(axis=-1) * (1 + SLACK), 1.0)
    a, b = float(coins - guesses), guesses + 1.0
    low, high = betaincinv(a, b, _CUT_OFF), betaincinv(a, b, 1 - _CUT_OFF)
    abstained = low + (high - low) * (_NODES + 1) / 2
    density = np.exp(xlogy(a - 1, abstained) + xlog1py(b - 1, -abstained) - betaln(a, b))
    weights = _WEIGHTS * density * (high - low) / 2
    tails = _at_most(errors, guesses, error_rates(curve, 1.0 - abstained))
    return np.minimum((tails * weights).sum(axis=-1) * (1 + SLACK) + 2 * _CUT_OFF, 1.0)


def error_rates(curve: Curve, share: Array) -> Array:
    """The share of wrong guesses among the surest ``share`` of fair coins: α / w where α + 1 − f(α) = w.

    Where the pair "in, out" itself is known, its own law: a curve covers both directions and is easier to guess.
    """
    share = np.asarray(share, float)
    if isinstance(curve, GridCurve) and curve.surest is not None:
        guessed, wrong = curve.surest
        return np.clip(np.interp(share, guessed, wrong) / share, 0.0, 0.5)
    if isinstance(curve, GaussianCurve):
        return _gaussian_rates(np.asarray(curve.mu, float), share)
    probe = np.asarray(curve.fnr(np.zeros_like(share)))
    low = np.zeros(np.broadcast_shapes(share.shape, probe.shape))
    fpr = bisect(lambda x: x + 1.0 - curve.fnr(x) >= share, low, np.ones_like(low), rounds=60)
    return np.clip(fpr / share, 0.0, 0.5)


def _gaussian_rates(mu: Array, share: Array) -> Array:
    """For μ-GDP: Φ(−μ/2 − t) / w where Φ(μ/2 − t) + Φ(−μ/2 − t) = w; bisected, and polished by Newton's method."""
    half, shape = mu / 2, np.broadcast_shapes(mu.shape, share.shape)
    low, high = np.zeros(shape), np.broadcast_to(half + 40.0, shape)
    t = most = bisect(lambda t: ndtr(half - t) + ndtr(-half - t) <= share, low, high, rounds=12)
    least = np.maximum(most - (high - low) / 2**12, 0.0)
    for _ in range(4):
        excess = ndtr(half - t) + ndtr(-half - t) - share
        slope = np.maximum(np.exp(-((half - t) ** 2) / 2) + np.exp(-((half + t) ** 2) / 2), 1e-290)
        t = np.clip(t + np.sqrt(2 * np.pi) * excess / slope, least, most)
    return np.clip(ndtr(-half - t) / share, 0.0, 0.5)


def _at_most(errors: int, guesses: int, rate: Array) -> Array:
    """P[Bin(``guesses``, ``rate``) ≤ ``errors``], from the tail that is small."""
    return at_least(guesses - errors, guesses, 1.0 - rate)


def farthest(coins: Coins, guesses: int, threshold: float) -> Guesses:
    """Guess the scores farthest from a threshold; those tied across the cut, or on the threshold, abstain."""
    guesses = check.integer("guesses", guesses, 2, len(coins))
    scores, member = coins.scores[coins.present], coins.member[coins.present]
    distance = np.abs(scores - threshold)
    sure = distance > 0
    if guesses < len(scores):
        sure &= distance > np.sort(distance)[len(scores) - guesses - 1]
    high, low = sure & (scores > threshold), sure & (scores < threshold)
    return Guesses(
        coins=len(coins),
        planned=guesses,
        high=int(high.sum()),
        low=int(low.sum()),
        high_right=int(member[high].sum()),
        low_right=int((~member[low]).sum()),
        members=int(coins.member.sum()),
    )


def _median_errors(curve: Curve, got: Guesses) -> int:
    """The median number of errors of the optimal attacker on ``curve``."""
    rate = float(error_rates(curve, np.array([got.planned / got.coins]))[0])
    return round(got.planned * rate)


def _policy(got: Guesses, threshold: Fixed | None) -> str:
    where = "" if threshold is None else f", farthest from {threshold.threshold:g}"
    return f"{got.planned} guesses{where}, fixed beforehand"
