"""Two worlds under a named family: the corner of exact confidence limits against the family's curves."""

from __future__ import annotations

import numpy as np

from .. import check
from ..accounting.claims import Claim
from ..accounting.curves import Curve
from ..errors import InputError
from ..records import BoolArray, Bound, Observations
from .choices import Split, Threshold
from .designs import require_runs
from .families import ClaimFamily, Family, GaussianFamily, largest_refuted, rough_curve
from .two_worlds import Confusion, confusions, policy, table_counts

METHOD = "corner of Clopper–Pearson limits"


def gaussian(
    obs: Observations,
    *,
    delta: float,
    significance: float = 0.05,
    threshold: Threshold | None = None,
    claim: Claim | None = None,
) -> Bound:
    """Lower bound for a mechanism that is known to be μ-GDP (Nasr et al. 2023), over independent runs.

    μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) at the upper limits, and 0 where that is negative: scores that point the wrong way show
    nothing. On mechanisms that are not Gaussian the number means nothing. Arguments as in ``clopper_pearson``.
    """
    return _bound(obs, GaussianFamily(), delta, significance, threshold, claim, "Nasr et al. 2023")


def claimed_family(
    obs: Observations,
    claim: Claim,
    *,
    delta: float,
    significance: float = 0.05,
    threshold: Threshold | None = None,
) -> Bound:
    """Lower bound for a mechanism that is the claim's recipe with some amount of noise, over independent runs.

    The family is the trade-off curve of the claim's sampling rate and steps with the noise scaled, both neighbouring
    directions composed apart and the larger δ taken at the end. Arguments as in ``clopper_pearson``.

    Raises:
        InputError: the claim is a bare pair, which names no recipe.
    """
    if not claim.has_recipe:
        raise InputError("claimed_family needs a claim with a recipe, got a bare pair")
    return _bound(obs, ClaimFamily(claim), delta, significance, threshold, claim, "Nasr et al. 2023, section 5")


def _bound(
    obs: Observations,
    family: Family,
    delta: float,
    significance: float,
    threshold: Threshold | None,
    claim: Claim | None,
    source: str,
) -> Bound:
    delta, significance = check.delta(delta), check.significance(significance)
    if delta == 0:
        raise InputError(f"delta must be above 0 for {family.name}, whose ε at 0 is infinite, got 0")
    threshold = Split() if threshold is None else threshold
    require_runs(obs, "a bound on two worlds")
    tables = confusions(obs, delta, significance, threshold)
    level = significance / len(tables)
    parameters = [parameter_lower(t, family, level) for t in tables]
    best = tables[int(np.argmax(parameters))]
    perfect = max(parameter_lower(Confusion(t.members, t.others, 0, 0), family, level) for t in tables)
    return Bound(
        epsilon=family.epsilon(max(parameters), delta),
        delta=delta,
        significance=significance,
        method=f"{METHOD} ({source}), family: {family.name}",
        null=f"the mechanism is of the family {family.name}; runs independent",
        any_mechanism=False,
        adjacency=obs.design.adjacency,
        threshold=policy(threshold, obs.shape[1]),
        counts=table_counts(best, len(tables)),
        perfect=family.ceiling(perfect, delta),
        at_claim=None if claim is None else family.ceiling(_at_claim(rough_curve(claim), best, family, level), delta),
        rates=best.limits(level),
    )


def parameter_lower(table: Confusion, family: Family, level: float) -> float:
    """The largest parameter whose curve lies above the corner of limits."""
    fpr, fnr = (np.array([v]) for v in table.limits(level))

    def refutes(curve: Curve) -> BoolArray:
        return fnr < curve.fnr(fpr)

    return largest_refuted(family, refutes)


def _at_claim(curve: Curve, table: Confusion, family: Family, level: float) -> float:
    """The bound of an optimal attacker with the median counts at a threshold that errs both ways alike."""
    grid = np.linspace(0.0, 1.0, 2001)
    rate = float(grid[int(np.argmax(grid >= curve.fnr(grid)))])
    missed, alarms = round(rate * table.members), round(rate * table.others)
    return parameter_lower(Confusion(table.members, table.others, missed, alarms), family, level)
