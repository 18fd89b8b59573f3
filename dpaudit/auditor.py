"""Judging: observations and a claim in, a verdict out. Nothing here trains, and nothing imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from . import check
from .accounting.claims import Claim
from .accounting.curves import Curve
from .bounds import corner, credible, lifted, planning, ranks, recursion, steinke, two_worlds
from .bounds.choices import Split, Threshold
from .bounds.designs import fair_coins, tested_adjacency
from .bounds.guessing import guess
from .bounds.halves import expected_right
from .bounds.tails import upper_limit
from .errors import InputError
from .records import Audit, Bound, Finding, Observations, PlannedTest, Verdict


def audit(
    obs: Observations,
    claim: Claim | None = None,
    *,
    delta: float,
    significance: float = 0.05,
    tests: Sequence[PlannedTest] | None = None,
    name: str = "audit",
) -> Audit:
    """Judge observations against a claim.

    Args:
        obs: scores and membership, shape ``(runs, canaries)``.
        claim: what was promised; without one the verdict is NO_CLAIM and only bounds are computed.
        delta: the δ that bounds are stated at; the claim's ε there must be finite.
        significance: the probability that a true claim is called VIOLATED, all tests together; in (0, 0.5).
        tests: the list fixed before the scores were seen; by default it is chosen from the design alone.
        name: what the audit is called in reports.

    Raises:
        InputError: an argument is out of range, or the claim's ε at ``delta`` is infinite.

    >>> import numpy as np, dpaudit
    >>> rng = np.random.default_rng(7)
    >>> member = rng.random((50, 40)) < 0.5
    >>> leaky = dpaudit.Observations(member + rng.normal(0, 0.1, member.shape), member)
    >>> judged = audit(leaky, dpaudit.Claim.pair(epsilon=1.0, delta=1e-5), delta=1e-5)
    >>> judged.verdict.value, judged.lower > judged.upper
    ('violated', True)
    """
    delta, significance = check.delta(delta), check.significance(significance)
    _require_finite(claim, delta)
    if tests is None:
        tests = planning.default_tests(obs.design, obs.shape, claim, delta, significance)
    return judge([(test, obs) for test in tests], claim, delta=delta, significance=significance, name=name)


def judge(
    planned: Sequence[tuple[PlannedTest, Observations]],
    claim: Claim | None,
    *,
    delta: float,
    significance: float,
    name: str = "audit",
) -> Audit:
    """Judge a list of tests, each with the observations it was planned for.

    ``lower`` is the largest of the list's bounds, each at its own share of the significance; ``p_value`` is the
    smallest p-value divided by its weight (weighted Bonferroni).
    """
    delta, significance = check.delta(delta), check.significance(significance)
    _require_finite(claim, delta)
    _require_weights([test for test, _ in planned])
    planned = [(_settled(test), obs) for test, obs in planned]
    barred = _why_no_verdict(planned, claim)
    if any(obs.design.calibration == "cross" for _, obs in planned):
        return _decide([], [], claim, delta, significance, name, planned[0][1], barred)
    bounds = [b for test, obs in planned for b in _bounds(test, obs, claim, delta, significance)]
    findings = [] if claim is None or barred else [_finding(t, obs, claim, delta, significance) for t, obs in planned]
    return _decide(bounds, findings, claim, delta, significance, name, planned[0][1], barred)


def _require_finite(claim: Claim | None, delta: float) -> None:
    if claim is not None and not math.isfinite(claim.epsilon(delta)):
        raise InputError(f"delta must be one at which the claim's ε is finite, got {delta:g}, where it is infinite")


def _settled(test: PlannedTest) -> PlannedTest:
    """The test with the default policy where it names none."""
    return replace(test, threshold=Split()) if test.method == "threshold" and test.threshold is None else test


def _require_weights(tests: Sequence[PlannedTest]) -> None:
    total = sum(test.weight for test in tests)
    if not tests or total > 1 + 1e-9:
        raise InputError(f"the weights of at least one test must sum to at most 1, got {total:g} over {len(tests)}")


def _why_no_verdict(planned: Sequence[tuple[PlannedTest, Observations]], claim: Claim | None) -> str | None:
    """What bars these observations from carrying a verdict, in words; None if nothing does."""
    for _, obs in planned:
        if obs.design.calibration == "cross":
            return "the scores depend on the coins of other tested runs, and no test is valid for that"
        if obs.design.coins == "unknown":
            return "how membership was decided is unknown, so the bounds are conditional and carry no verdict"
        adjacency = tested_adjacency(obs.design, obs.shape)
        if adjacency != (first := tested_adjacency(planned[0][1].design, planned[0][1].shape)):
            return f"some observations are about {first} neighbours, others about {adjacency}"
        if claim is not None and planning.comparable(claim, adjacency) is None:
            return f"the claim is about {claim.adjacency} neighbours, the observations are about {adjacency}"
    return None


def _bounds(
    test: PlannedTest, obs: Observations, claim: Claim | None, delta: float, significance: float
) -> list[Bound]:
    level = test.weight * significance
    if test.method == "threshold":
        policy = test.threshold
        found = [two_worlds.clopper_pearson(obs, delta=delta, significance=level, threshold=policy, claim=claim)]
        if claim is not None and claim.has_recipe and delta > 0:
            found.append(corner.claimed_family(obs, claim, delta=delta, significance=level, threshold=policy))
    else:
        guesses = _affordable(test, obs)
        anything = claim if claim is not None and not claim.has_recipe else Claim.pair(epsilon=0.0, delta=delta)
        pair = recursion.one_run_fdp(obs, guesses, anything, delta=delta, significance=level)
        pair = replace(pair, at_claim=None if claim is None else _pair_ceiling(pair, claim, delta, level))
        found = [steinke.one_run(obs, guesses, delta=delta, significance=level, claim=claim), pair]
        if claim is not None and claim.has_recipe and delta > 0:
            found.append(recursion.one_run_fdp(obs, guesses, claim, delta=delta, significance=level))
            found.append(ranks.order_statistics(obs, guesses, delta=delta, significance=level, claim=claim))
    label = f"{test.canaries} canaries, {test.attack} on {test.signal}"
    return [replace(b, threshold=f"{b.threshold}; {label}; {test.weight:.3g} of the significance") for b in found]


def other_bounds(
    obs: Observations, claim: Claim | None, *, delta: float, significance: float, tests: Sequence[PlannedTest]
) -> tuple[Bound, ...]:
    """Bounds that no verdict rests on, each at the whole significance: credible, asymptotic, and Gaussian families.

    Args:
        tests: of the audit; the first one's threshold or number of guesses is used.
    """
    if obs.design.calibration == "cross":
        return ()
    first = tests[0]
    if first.method == "threshold":
        found = _other_worlds(obs, claim, delta, significance, first.threshold)
    else:
        guesses = _affordable(first, obs)
        gaussians = (recursion.one_run_fdp, ranks.order_statistics) if delta > 0 else ()
        found = [method(obs, guesses, delta=delta, significance=significance) for method in gaussians]
        if min(obs.shape) > 1 and obs.design.coins in ("fair", "fixed"):
            found.append(lifted.lidp(obs, delta=delta, significance=significance))
    return tuple(replace(b, threshold=f"{b.threshold}; no verdict rests on it") for b in found)


def _other_worlds(
    obs: Observations, claim: Claim | None, delta: float, significance: float, policy: Threshold
) -> list[Bound]:
    found = [
        credible.joint_beta(obs, delta=delta, significance=significance, threshold=policy),
        credible.jeffreys(obs, delta=delta, significance=significance, threshold=policy),
    ]
    if delta > 0:
        found.append(corner.gaussian(obs, delta=delta, significance=significance, threshold=policy, claim=claim))
    return found


def _pair_ceiling(bound: Bound, claim: Claim, delta: float, level: float) -> float:
    coins, guesses = int(bound.counts["coins"]), int(bound.counts["guesses"])
    right = expected_right(claim.curve, coins, guesses)
    return recursion.largest_refuted(recursion.PairFamily(delta), coins, guesses, right, level)


def _affordable(test: PlannedTest, obs: Observations) -> int:
    """The planned number of guesses, or all coins where thinning left fewer."""
    assert test.guesses is not None
    return min(test.guesses, len(fair_coins(obs, "guesses"))) if obs.design.coins == "fixed" else test.guesses


def _finding(test: PlannedTest, obs: Observations, claim: Claim, delta: float, significance: float) -> Finding:
    """The test of the claim's curve."""
    curve = planning.comparable(claim, tested_adjacency(obs.design, obs.shape))
    assert curve is not None
    coins = scored = None
    if test.method == "threshold":
        tables = two_worlds.confusions(obs, delta, test.weight * significance, test.threshold)
        p_value, best = two_worlds.p_value(tables, curve)
        rates = best.rates
        method, threshold = two_worlds.METHOD, str(test.threshold)
    else:
        found = fair_coins(obs, "guesses")
        coins, scored = len(found), int(found.present.sum())
        p_value, rates = _guessing_p_value(test, obs, curve, delta)
        method, threshold = recursion.METHOD, f"{_affordable(test, obs)} guesses, fixed beforehand"
    members, others = int(obs.member[:, 0].sum()), max(int((~obs.member).sum()), 1)
    return Finding(
        p_value=p_value,
        weight=test.weight,
        power=planning.test_power(test, obs.design, obs.shape, members, claim, delta, significance, coins, scored),
        method=method,
        canaries=test.canaries,
        threshold=threshold,
        rates=rates,
        curve_fnr=float(curve.fnr(upper_limit(rates[0] * others, others, test.weight * significance / 2))),
    )


def _guessing_p_value(
    test: PlannedTest, obs: Observations, curve: Curve, delta: float
) -> tuple[float, tuple[float, float]]:
    got = guess(fair_coins(obs, "guesses"), _affordable(test, obs))
    p_value = recursion.p_value(curve, got.coins, got.planned, got.right)
    epsilon = float(curve.epsilon(np.asarray(delta)))
    if math.isfinite(epsilon):
        # Both p-values fall with the same count, so the smaller of the two is valid as it stands.
        p_value = min(p_value, steinke.p_value(got.coins, got.planned, got.right, epsilon, delta))
    return p_value, got.rates


def _decide(
    bounds: list[Bound],
    findings: list[Finding],
    claim: Claim | None,
    delta: float,
    significance: float,
    name: str,
    obs: Observations,
    barred: str | None,
) -> Audit:
    power = None if claim is None else max((f.power for f in findings), default=0.0)
    recipe = [b.epsilon for b in bounds if not b.any_mechanism]
    lower = 0.0 if barred else max((b.epsilon for b in bounds if b.any_mechanism), default=0.0)
    if_recipe = max(recipe) if recipe and not barred else None
    upper, notes = _upper(claim, obs, delta)
    p_value = None if claim is None else _least_p_value(findings, lower, upper, significance)
    verdict = _verdict(p_value, power, significance)
    return Audit(
        verdict=verdict,
        lower=lower,
        lower_if_recipe=if_recipe,
        upper=upper,
        p_value=p_value,
        delta=delta,
        significance=significance,
        error_probability=significance,
        power=power,
        bounds=tuple(bounds),
        findings=tuple(findings),
        design=obs.design,
        reason=barred or _reason(verdict, lower, upper, p_value, power, delta),
        claim=claim,
        name=name,
        notes=notes + _disagreement(verdict, if_recipe, upper),
    )


def _disagreement(verdict: Verdict, if_recipe: float | None, upper: float | None) -> tuple[str, ...]:
    """A warning where the recipe falls and the curve does not."""
    if verdict is Verdict.VIOLATED or if_recipe is None or upper is None or if_recipe <= upper:
        return ()
    return (
        "the bound under the recipe is above the claim, the bound for any mechanism is not: the mechanism is not the "
        "stated recipe, or its canaries depend on each other; that alone does not refute the claimed ε",
    )


def _upper(claim: Claim | None, obs: Observations, delta: float) -> tuple[float | None, tuple[str, ...]]:
    """The claim's ε for the neighbours that were tested, and a note where these are not the claim's own."""
    if claim is None:
        return None, ()
    adjacency = tested_adjacency(obs.design, obs.shape)
    curve = planning.comparable(claim, adjacency)
    if curve is None or adjacency == claim.adjacency:
        return claim.epsilon(delta), ()
    upper = float(curve.epsilon(np.asarray(delta)))
    return upper, (
        f"both ε are about {adjacency} neighbours, since the counts of members are fixed; for {claim.adjacency} "
        f"neighbours the claim is ε = {claim.epsilon(delta):.3g}",
    )


def _least_p_value(findings: list[Finding], lower: float, upper: float | None, significance: float) -> float:
    p_value = min((min(f.p_value / f.weight, 1.0) for f in findings), default=1.0)
    # A bound above the claim refutes it at this significance by the same counts; only rounding could hide that.
    return min(p_value, significance) if findings and upper is not None and lower > upper else p_value


def _verdict(p_value: float | None, power: float | None, significance: float) -> Verdict:
    if p_value is None or power is None:
        return Verdict.NO_CLAIM
    if p_value <= significance:
        return Verdict.VIOLATED
    return Verdict.CONSISTENT if power >= planning.ENOUGH_POWER else Verdict.UNDERPOWERED


def _reason(
    verdict: Verdict, lower: float, upper: float | None, p_value: float | None, power: float | None, delta: float
) -> str:
    """The verdict in one sentence; lower bounds and powers are rounded down, claims and p-values up."""
    shown, claimed, at = _rounded(lower, down=True), _rounded(upper, down=False), f"δ = {delta:g}".replace("e-0", "e-")
    caught = _rounded(power, down=True)
    match verdict:
        case Verdict.NO_CLAIM:
            return f"no claim was made; the attack shows ε of at least {shown} at {at}"
        case Verdict.VIOLATED:
            return (
                f"the claimed curve (ε = {claimed} at {at}) is false for any mechanism: attacks as successful as these "
                f"have probability at most {_significant_up(p_value)} under it"
            )
        case Verdict.CONSISTENT:
            return (
                f"no violation was found, and twice the claimed ε = {claimed} would have been caught with probability "
                f"{caught}; a lower bound of {shown} is what this attack shows, not proof that no more leaks"
            )
        case Verdict.UNDERPOWERED:
            return (
                f"nothing can be said: even twice the claimed ε = {claimed} would have been caught only with "
                f"probability {caught}"
            )


def _rounded(value: float | None, *, down: bool) -> str:
    """Two decimals, towards the safe side."""
    if value is None:
        return "none"
    if math.isinf(value):
        return "∞"
    return f"{(math.floor if down else math.ceil)(round(100 * value, 6)) / 100:.2f}"


def _significant_up(value: float | None) -> str:
    """Two significant digits, rounded up."""
    if not value:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(round(value / unit, 6)) * unit:.2g}".replace("e-0", "e-")
