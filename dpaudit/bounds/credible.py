"""Bayesian bounds over two worlds. They are credible, not frequentist: how often they exceed the truth is not promised,
and they never feed a verdict.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betainc, betaincinv

from .. import check
from ..accounting.curves import PairCurve
from ..records import Bound, Observations
from .choices import Split, Threshold
from .designs import require_runs
from .tails import Array, log_ratio
from .two_worlds import Confusion, confusions, policy, table_counts

_NULL = "credible under Jeffreys priors, not a confidence bound; any (ε, δ)-DP mechanism, runs independent"
_QUANTILES = (np.arange(4000) + 0.5) / 4000


def jeffreys(
    obs: Observations, *, delta: float = 0.0, significance: float = 0.05, threshold: Threshold | None = None
) -> Bound:
    """The bound of ``clopper_pearson`` with Jeffreys' credible limits in place of exact ones."""
    return _bound(obs, delta, significance, threshold, jeffreys_lower, "Jeffreys limits")


def joint_beta(
    obs: Observations, *, delta: float = 0.0, significance: float = 0.05, threshold: Threshold | None = None
) -> Bound:
    """The ε that leaves posterior mass ``significance`` to (ε, δ)-private rates (Zanella-Béguelin et al. 2023).

    FPR and FNR are independent Betas a posteriori; the mass of the region that (ε, δ)-DP allows grows with ε.
    """
    return _bound(obs, delta, significance, threshold, joint_beta_lower, "joint Beta (Zanella-Béguelin et al. 2023)")


def _bound(
    obs: Observations,
    delta: float,
    significance: float,
    threshold: Threshold | None,
    lower: Callable[[Confusion, float, float], float],
    method: str,
) -> Bound:
    delta, significance = check.delta(delta), check.significance(significance)
    threshold = Split() if threshold is None else threshold
    require_runs(obs, "a bound on two worlds")
    tables = confusions(obs, delta, significance, threshold)
    level = significance / len(tables)
    values = [lower(t, delta, level) for t in tables]
    best = tables[int(np.argmax(values))]
    return Bound(
        epsilon=max(values),
        delta=delta,
        significance=significance,
        method=method,
        null=_NULL,
        any_mechanism=False,
        adjacency=obs.design.adjacency,
        threshold=policy(threshold, obs.shape[1]),
        counts=table_counts(best, len(tables)),
        perfect=max(lower(Confusion(t.members, t.others, 0, 0), delta, level) for t in tables),
        rates=best.rates,
        kind="credible",
    )


def jeffreys_lower(table: Confusion, delta: float, level: float) -> float:
    """ε at Jeffreys' upper limits, each at half of the level."""
    alarms, missed = table.false_alarms, table.missed
    fpr = betaincinv(alarms + 0.5, table.others - alarms + 0.5, 1 - level / 2) if table.others else 1.0
    fnr = betaincinv(missed + 0.5, table.members - missed + 0.5, 1 - level / 2) if table.members else 1.0
    return float(max(log_ratio(1 - delta - fnr, fpr), log_ratio(1 - delta - fpr, fnr)))


def joint_beta_lower(table: Confusion, delta: float, level: float) -> float:
    """The largest ε with posterior mass of the (ε, δ)-private region below ``level``; 0 if ε = 0 has as much."""
    fpr = betaincinv(table.false_alarms + 0.5, table.others - table.false_alarms + 0.5, _QUANTILES)
    low, high = 0.0, 1.0
    if _mass(table, fpr, 0.0, delta) >= level:
        return 0.0
    while _mass(table, fpr, high, delta) < level and high < 1e3:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _mass(table, fpr, middle, delta) < level else (low, middle)
    return low


def _mass(table: Confusion, fpr: Array, epsilon: float, delta: float) -> float:
    """The posterior probability that no attacker of (ε, δ)-DP is worse or better than the rates allow."""
    curve = PairCurve(epsilon, delta)
    least, most = curve.fnr(fpr), 1.0 - curve.fnr(1.0 - fpr)
    a, b = table.missed + 0.5, table.members - table.missed + 0.5
    return float(np.mean(betainc(a, b, most) - betainc(a, b, least)))
