"""What tuning costs: the privacy of releasing the best of several training runs.

Each run alone keeps its claim. The best of them tells more than any one does, because which run was the best depends on
the data too. How much more depends on how the number of runs is fixed:

- drawn at random and kept secret: a few times the ε of one run, all but independent of how many there are
  (Liu & Talwar 2019; Papernot & Steinke 2022);
- fixed beforehand, or a grid of settings: as if every run were released, which is composition. No more is proved.

Runs of different settings are covered where each is within one bound: of several claims the largest divergence of each
order, or the largest δ at each ε, is the bound of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .. import check
from ..errors import InputError
from . import renyi
from .claims import Claim
from .curves import Array, bisect
from .releases import LaplaceRelease, PairRelease

STATUSES = ("upper bound", "not valid here")
LEDGERS = ("renyi", "curve")
_MOST_RUNS = 1e6
_POINTS = 2_000

_SECRET = (
    "only the best run is released, and the number of runs stays secret; each run draws its setting anew from a list "
    "fixed beforehand; the score that chooses is itself within the claim, or is computed on data outside of it; "
    "a fixed number of runs or a fixed grid is not covered"
)
_OPEN = (
    "all runs are charged as if all were released, so all may be; settings may depend on earlier runs; the score that "
    "chooses is itself within the claim, or is computed on data outside of it"
)
_FIXED = "the setting was fixed without a look at the data"


@dataclass(frozen=True)
class TuningCost:
    """What it costs to release the best of several runs.

    Attributes:
        method: how the cost was computed.
        runs: how the number of runs comes about, in words.
        expected_runs: the expected number of runs.
        epsilon: ε at ``delta`` of the whole search, an upper bound in nats; None where the method says nothing here.
        delta: δ.
        base_epsilon: ε at ``delta`` of one run (the largest of all candidates) by the same ledger; None as above.
        status: one of :data:`STATUSES`.
        source: paper and theorem.
        note: the conditions under which the number holds, or why there is none.
    """

    method: str
    runs: str
    expected_runs: float
    epsilon: float | None
    delta: float
    base_epsilon: float | None
    status: str
    source: str
    note: str


Claims = Claim | Sequence[Claim]


def tuning_costs(claims: Claims, delta: float, runs: float = 10) -> tuple[TuningCost, ...]:
    """The cost of a search with ``runs`` expected runs by every method, a single run first.

    Args:
        claims: what one run promises, or what each candidate setting promises. A fixed grid is all of several
            candidates once, or one candidate ``runs`` times (rounded up).
        delta: δ of every ε.
        runs: the expected number of runs, from 1 to a million.

    Raises:
        InputError: a value is out of range, or the claims are about different neighbours.

    >>> claim = Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100)
    >>> for row in tuning_costs(claim, 1e-5)[:2]:
    ...     print(f"{row.method}, {row.runs}: {row.epsilon:.2f} (one run {row.base_epsilon:.2f})")
    one run, nothing chosen: 2.39 (one run 2.39)
    Rényi, geometric, 10 expected: 5.06 (one run 2.60)
    """
    candidates, delta, runs = _candidates(claims), check.delta(delta), _mean(runs)
    rows = [
        _row("one run", "nothing chosen", 1, delta, lambda: (_largest(candidates, delta),) * 2, "the claim", _FIXED)
    ]
    for by in LEDGERS:
        rows += [repeated(candidates, delta, mean=runs, shape=shape, by=by) for shape in (1.0, 0.5, 0.0)]
        rows.append(poisson(candidates, delta, mean=runs, by=by))
    rows.append(random_stopping(candidates, delta, mean=runs))
    times = Counter(candidates) if len(candidates) > 1 else Counter({candidates[0]: math.ceil(runs)})
    return (*rows, _composition(times, delta), _naive(times, delta))


def repeated(claims: Claims, delta: float, mean: float = 10, shape: float = 1.0, by: str = "renyi") -> TuningCost:
    """The best of a number of runs from a truncated negative binomial law.

    The law has P(k) proportional to (1 − γ)^k · (η + k − 1 choose k) over k ≥ 1, with the γ that gives it its mean.

    - ``renyi``: ε'(a) = ε(a) + (1 + η) min over b of [(1 − 1/b) ε(b) + ln(1/γ) / b] + ln E[K] / (a − 1) (Papernot &
      Steinke 2022, theorem 2), converted at the best order.
    - ``curve``: from the privacy curve itself, tighter as a rule; it covers bare pairs too (see docs/tuning.md).

    Args:
        claims: what one run promises, or what each candidate setting promises.
        delta: δ of the result.
        mean: the expected number of runs, from 1 to a million.
        shape: η above −1: 1 is the geometric law, 0 the logarithmic one.
        by: ``renyi`` or ``curve``.

    Raises:
        InputError: a value is out of range, or the claims are about different neighbours.

    >>> claim = Claim.laplace(noise_multiplier=2.0)
    >>> round(repeated(claim, 1e-5, mean=10, by="curve").epsilon, 3)
    1.5
    """
    mean, shape = _mean(mean), check.number("shape", shape, -1.0, math.inf, ends="()")
    return _drawn(claims, delta, _TruncatedNegativeBinomial(mean, shape, _log_gamma(mean, shape)), by)


def poisson(claims: Claims, delta: float, mean: float = 10, by: str = "renyi") -> TuningCost:
    """The best of a Poisson number of runs; where that is 0, nothing is released.

    - ``renyi``: ε'(a) = ε(a) + E[K] δ̂ + ln E[K] / (a − 1), where one run is (ln(1 + 1 / (a − 1)), δ̂)-private
      (Papernot & Steinke 2022, theorem 6).
    - ``curve``: as for :func:`repeated`.

    Arguments and errors as for :func:`repeated`.
    """
    return _drawn(claims, delta, _Poisson(_mean(mean)), by)


def random_stopping(claims: Claims, delta: float, mean: float = 10) -> TuningCost:
    """After each run, stop with probability 1 / ``mean``: 3ε-DP for runs that are ε-DP (Liu & Talwar 2019).

    Only pure claims are covered, those that promise a finite ε at δ = 0. For others the same search is
    :func:`repeated` with shape 1. Arguments and errors as there.
    """
    candidates, mean = _candidates(claims), _mean(mean)
    pure = max(_pure_epsilon(claim) for claim in candidates)
    return _row(
        "random stopping",
        f"geometric, {mean:g} expected",
        mean,
        check.delta(delta),
        lambda: (pure, 3 * pure),
        "Liu & Talwar 2019, random stopping",
        f"pure: at any δ; {_SECRET}",
        refusal="only for claims that promise a finite ε at δ = 0; for this one see the geometric law",
    )


def fixed_grid(claims: Claims, delta: float) -> TuningCost:
    """One run of each of the claims, the best released or all: the curve of their composition."""
    return _composition(Counter(_candidates(claims)), check.delta(delta))


def naive_grid(claims: Claims, delta: float) -> TuningCost:
    """One run of each of the claims: the sum of their ε, each at δ over the number of claims (basic composition)."""
    return _naive(Counter(_candidates(claims)), check.delta(delta))


@dataclass(frozen=True)
class _TruncatedNegativeBinomial:
    """The law of the number of runs. Its generating function has f'(x) = mean · ((1 − (1 − γ) x) / γ)^(−1 − η)."""

    mean: float
    shape: float
    log_gamma: float

    source = "theorem 2"

    @property
    def words(self) -> str:
        names = {1.0: "geometric", 0.0: "logarithmic"}
        return f"{names.get(self.shape, f'negative binomial of shape {self.shape:g}')}, {self.mean:g} expected"

    @property
    def draw(self) -> str:
        """How the number is drawn."""
        if self.shape == 1.0:
            return f"after each run, stop with probability {1 / self.mean:.4g}"
        return f"γ = {math.exp(self.log_gamma):.4g}"

    def divergences(self, orders: Array, base: Array) -> Array:
        if self.mean == 1.0:
            return base
        extra = (1 + self.shape) * np.min((1 - 1 / orders) * base - self.log_gamma / orders)
        return base + extra + math.log(self.mean) / (orders - 1)

    def log_ratio(self, epsilons: Array, deltas: Array) -> float:
        """The largest ln f'(p) − ln f'(p') where 1 − p' ≤ e^ε (1 − p) + δ at every ε, of which the best is taken."""
        with np.errstate(divide="ignore"):
            odds = np.log(deltas) + _log_expm1(-self.log_gamma)
        return (1 + self.shape) * float(np.min(np.logaddexp(epsilons, odds)))


@dataclass(frozen=True)
class _Poisson:
    """The law of the number of runs. Its generating function has f'(x) = mean · e^(mean (x − 1))."""

    mean: float

    source = "theorem 6"

    @property
    def words(self) -> str:
        return f"Poisson, {self.mean:g} expected"

    @property
    def draw(self) -> str:
        return f"with probability {math.exp(-self.mean):.2g} there is no run and no release"

    def divergences(self, orders: Array, base: Array) -> Array:
        lost = np.array([_delta(orders, base, math.log1p(1 / (a - 1))) for a in orders])
        return base + self.mean * lost + math.log(self.mean) / (orders - 1)

    def log_ratio(self, epsilons: Array, deltas: Array) -> float:
        """The largest ln f'(p) − ln f'(p') where p − p' ≤ δ at the first ε, which is 0."""
        return self.mean * float(deltas[0])


_Law = _TruncatedNegativeBinomial | _Poisson


def _drawn(claims: Claims, delta: float, law: _Law, by: str) -> TuningCost:
    """The cost of a number of runs that is drawn from ``law``."""
    candidates, delta, by = _candidates(claims), check.delta(delta), check.choice("by", by, LEDGERS)
    method, numbers, source = {
        "renyi": ("Rényi", _by_renyi, f"Papernot & Steinke 2022, {law.source}"),
        "curve": ("privacy curve", _by_curve, "after Koskela, Redberg & Wang 2024; proof in docs/tuning.md"),
    }[by]
    note = f"{law.draw}; {_SECRET}"
    return _row(method, law.words, law.mean, delta, lambda: numbers(candidates, delta, law), source, note)


def _by_renyi(candidates: tuple[Claim, ...], delta: float, law: _Law) -> tuple[float, float]:
    """ε of one run and of the search."""
    orders = np.array(renyi.ORDERS)
    base = np.max([renyi.curve(claim, orders) for claim in candidates], axis=0)
    # Divergences rise with the order, so that each order has what a higher one proves.
    whole = np.minimum.accumulate(law.divergences(orders, base)[::-1])[::-1]
    one, all_runs = (float(np.min(renyi.converted(orders, r, delta))) for r in (base, whole))
    return one, all_runs


def _by_curve(candidates: tuple[Claim, ...], delta: float, law: _Law) -> tuple[float, float]:
    """ε of one run and of the search: ε(δ / E[K]), and what the rank of the best run adds."""
    last = _largest(candidates, delta / law.mean)
    if not math.isfinite(last):
        return _largest(candidates, delta), math.inf
    grid = np.linspace(0.0, last, _POINTS)
    deltas = np.max([claim.delta(grid) for claim in candidates], axis=0)
    return _largest(candidates, delta), last + law.log_ratio(grid, deltas)


def _delta(orders: Array, divergences: Array, epsilon: float) -> float:
    """δ at ``epsilon`` by the best order: see :func:`dpaudit.accounting.renyi.converted`, whose inverse it is."""
    logs = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    shift = np.sqrt(-np.expm1(-divergences))
    return float(min(np.min(np.exp(np.minimum(logs, 0.0))), np.min(shift)))


def _composition(times: Counter[Claim], delta: float) -> TuningCost:
    def numbers() -> tuple[float, float]:
        whole = Claim.compose(*(claim.repeat(count) for claim, count in times.items()))
        return _largest(tuple(times), delta), whole.epsilon(delta)

    count = times.total()
    return _row("composition", f"exactly {count:,}", count, delta, numbers, "the claims, composed", _OPEN)


def _naive(times: Counter[Claim], delta: float) -> TuningCost:
    count = times.total()

    def numbers() -> tuple[float, float]:
        each = math.fsum(n * claim.epsilon(delta / count) for claim, n in times.items())
        return _largest(tuple(times), delta), each

    source = "Dwork & Roth 2014, theorem 3.16"
    return _row("naive composition", f"exactly {count:,}", count, delta, numbers, source, _OPEN)


def _row(
    method: str,
    runs: str,
    expected: float,
    delta: float,
    numbers: Callable[[], tuple[float, float]],
    source: str,
    note: str,
    refusal: str = "no finite ε at this δ",
) -> TuningCost:
    """A row of (ε of one run, ε of the search); one without ε where there is none, or where accounting refuses."""
    try:
        base, epsilon = numbers()
    except InputError as error:
        base = epsilon = math.inf
        refusal = str(error)
    held = math.isfinite(epsilon)
    return TuningCost(
        method=method,
        runs=runs,
        expected_runs=expected,
        epsilon=epsilon if held else None,
        delta=delta,
        base_epsilon=base if math.isfinite(base) else None,
        status=STATUSES[0] if held else STATUSES[1],
        source=source,
        note=note if held else refusal,
    )


def _largest(candidates: tuple[Claim, ...], delta: float) -> float:
    return max(claim.epsilon(delta) for claim in candidates)


def _pure_epsilon(claim: Claim) -> float:
    """The ε at δ = 0; infinite where there is none."""
    total = 0.0
    for release in claim.mechanism.releases(claim.adjacency):
        match release:
            case LaplaceRelease():
                total += release.count / release.noise_multiplier
            case PairRelease(at_delta=0.0):
                total += release.count * release.at_epsilon
            case _:
                return math.inf
    return total


def _candidates(claims: Claims) -> tuple[Claim, ...]:
    candidates = tuple(claims) if isinstance(claims, Sequence) else (claims,)
    if not candidates or not all(isinstance(claim, Claim) for claim in candidates):
        raise InputError(f"claims must be a claim or at least one of them, got {claims!r}")
    relations = list(dict.fromkeys(claim.adjacency for claim in candidates))
    if len(relations) > 1:
        raise InputError(f"claims must be about the same neighbours, got {' and '.join(relations)}")
    return candidates


def _mean(value: float) -> float:
    return check.number("expected runs", value, 1.0, _MOST_RUNS)


def _log_gamma(mean: float, shape: float) -> float:
    """The ln γ of the law of this mean, rounded down, which costs more."""

    def log_mean(g: Array) -> Array:
        # E[K] = η (1/γ − 1) / (1 − γ^η), and (1/γ − 1) / ln(1/γ) at η = 0; g = ln(1/γ).
        if shape == 0.0:
            return _log_expm1(g) - np.log(g)
        log_power = np.log(-np.expm1(-shape * g)) if shape > 0 else _log_expm1(-shape * g)
        return _log_expm1(g) + math.log(abs(shape)) - log_power

    if mean == 1.0:
        return 0.0
    return -float(bisect(lambda g: log_mean(g) >= math.log(mean), np.array(1e-12), np.array(1e12), rounds=200))


def _log_expm1(x: float | Array) -> Array:
    """ln(e^x − 1) for x ≥ 0."""
    with np.errstate(divide="ignore"):
        return np.where(np.asarray(x) > 0, x + np.log(-np.expm1(-np.asarray(x, float))), -np.inf)
