"""Ledgers: what the same run costs by every method there is, side by side.

The claim's own figure comes first. A method that bounds nothing is shown where it is in use or in print, and its status
says so; where a method's conditions fail there is no number but the condition that failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .. import check
from ..errors import InputError
from ..records import Adjacency
from . import composition as compose
from . import grids, moments, renyi
from .claims import Claim
from .curves import Array, GaussianCurve
from .mechanisms import Composed, Gaussian, Laplace, Mechanism, Pair, SampledSteps, SubsampledGaussian, sensitivity
from .samplers import BallsAndBinsGaussian, FixedSizeGaussian, InEpochs

STATUSES = ("claim", "upper bound", "lower bound", "estimate", "not a bound", "not valid here")

_SHUFFLED, _BINS = "Chua et al. 2024", "Chua et al. 2024b"
_PLD = "dp-accounting, privacy loss distributions (Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022)"
_STRONG = "Dwork, Rothblum & Vadhan 2010, theorem III.3"
_MOMENTS = "Abadi et al. 2016, theorem 2"
_CLASSIC = "dp-accounting; Mironov 2017, proposition 3"
_IMPROVED = "dp-accounting; Canonne, Kamath & Steinke 2020, proposition 12; Balle et al. 2020, theorem 21"
_PARTIAL = 8  # points inside a first epoch, each of which is a pair of its own
_MOST_CELLS = 4e6  # of all grids together, over steps
_UNSAMPLED = "the order of the records as good as known: one full-batch release an epoch"


@dataclass(frozen=True)
class Ledger:
    """What one method says of a claim.

    Attributes:
        method: its name.
        epsilon: at ``delta``, in nats; None where the method says nothing here.
        delta: δ.
        status: one of :data:`STATUSES`. ``claim`` is an upper bound, the tightest that holds: the default.
        adjacency: the neighbouring relation that the number is about.
        source: paper, theorem or library.
        note: what a reader must know of its validity here; may be empty.
    """

    method: str
    epsilon: float | None
    delta: float
    status: str
    adjacency: Adjacency
    source: str
    note: str = ""


def ledgers(claim: Claim, delta: float) -> tuple[Ledger, ...]:
    """What ``claim`` costs at ``delta`` by every method that has something to say of it, the claim's own first.

    >>> claim = Claim.dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=10_000)
    >>> for row in ledgers(claim, 1e-5)[:3]:
    ...     print(f"{row.method}: {row.epsilon:.3f}, {row.status}")
    PLD: 0.947, claim
    moments accountant, λ ≤ 32: 1.259, upper bound
    moments accountant, any λ: 1.258, upper bound

    Raises:
        InputError: ``delta`` is out of range.
    """
    delta = check.delta(delta)
    return tuple(_rows(_Page(claim, delta)))


def over_steps(claim: Claim, delta: float, points: int = 24) -> tuple[list[int], dict[str, Array]] | None:
    """ε by every method of :func:`ledgers` after so many steps of the same run, up to all of them.

    Accounting grids are coarse but for the last point, which is the table's.

    Args:
        claim: what is claimed.
        delta: δ of every ε.
        points: how many numbers of steps at most, evenly on a logarithmic scale; fewer where there are fewer, and none
            so small that its grid is large (the less a run spends, the finer it must be). Epochs after the first one
            are not broken off.

    Returns:
        the numbers of steps, rising, and by method ε at each, NaN where the method says nothing; None for a claim
        without steps.

    Raises:
        InputError: a value is out of range.
    """
    delta, points = check.delta(delta), check.integer("points", points, 2)
    if _total(claim.mechanism) is None:
        return None
    shorter, last = _shorter(claim, points), ledgers(claim, delta)
    tables = [*(_rows(_Page(part, delta, noted=False)) for part in shorter.values()), last]
    found = [{row.method: row.epsilon for row in table} for table in tables]
    names = [row.method for row in last if any(table.get(row.method) is not None for table in found)]
    epsilons = {name: np.array([_or_nan(table.get(name)) for table in found]) for name in names}
    return [*shorter, _total(claim.mechanism) or 1], epsilons


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class _Page:
    """Where rows are written: about one claim at one δ, with notes or in haste without those that take work."""

    claim: Claim
    delta: float
    noted: bool = True

    def row(
        self, method: str, epsilon: Callable[[], float], status: str, source: str, note: str = "",
        adjacency: Adjacency | None = None,
    ) -> Ledger:  # fmt: skip
        """A row with the number that ``epsilon`` gives; without one if that refuses, or is infinite but for a claim."""
        relation = self.claim.adjacency if adjacency is None else adjacency
        value: float | None
        try:
            value = float(epsilon())
        except InputError as error:
            value, status, note = None, "not valid here", str(error)
        if value is not None and not math.isfinite(value) and status != "claim":
            value, status = None, "not valid here"
            note = "says nothing at δ = 0" if self.delta == 0 else note or "no finite ε, or more than a float holds"
        return Ledger(method, value, self.delta, status, relation, source, note)

    def claimed(self, method: str, source: str, note: str = "") -> Ledger:
        """The claim's own figure, and what its accounting grid has to say of itself."""
        row = self.row(method, lambda: self.claim.epsilon(self.delta), "claim", source, note)
        if row.epsilon is None or not self.noted or not (precision := self.claim.curve.precision(self.delta)).limited:
            return row
        return replace(row, note="; ".join(part for part in (note, precision.note) if part))

    def from_below(self, method: str, source: str, note: str = "") -> Ledger:
        return self.row(method, lambda: self.claim.epsilon_from_below(self.delta), "lower bound", source, note)


def _rows(page: _Page) -> Iterator[Ledger]:
    match page.claim.mechanism:
        case SubsampledGaussian() as mechanism:
            return _poisson(page, mechanism)
        case FixedSizeGaussian() as mechanism:
            return _fixed_size(page, mechanism)
        case InEpochs() as mechanism:
            return _in_epochs(page, mechanism)
        case Gaussian() as mechanism:
            return _full_batch(page, mechanism)
        case Laplace() as mechanism:
            return _laplace(page, mechanism)
        case Pair() as mechanism:
            return _pair(page, mechanism)
        case Composed() as mechanism:
            return _composed(page, mechanism)
    raise InputError(f"there are no ledgers for {type(page.claim.mechanism).__name__}")


def _poisson(page: _Page, mechanism: SubsampledGaussian) -> Iterator[Ledger]:
    noise, rate, steps = mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.steps
    yield page.claimed("PLD", _PLD)
    yield from _moments(page, noise, rate, steps)
    yield from _renyi(page)
    exact = compose.sampled(compose.exact_gaussian(noise), rate)
    yield from _compositions(page, exact, compose.sampled(compose.proven_gaussian(noise), rate), steps)
    in_paper = compose.linearly_sampled(compose.classic_gaussian(noise), rate)
    yield page.row(
        "strong composition, as in the paper", lambda: compose.strong_epsilon(in_paper, steps, page.delta),
        "not a bound", "Abadi et al. 2016, figure 2",
        "a step is charged q·ε where it spends ln(1 + q(e^ε − 1)), which is more; as in the paper, not a bound",
    )  # fmt: skip
    yield page.row(
        "CLT (GDP)", lambda: _gaussian(float(compose.clt_mu(noise, rate, steps)), page.delta), "estimate",
        "Bu, Dong, Long & Su 2020", "a limit for many steps; it under-reports what is spent and is never a claim",
    )  # fmt: skip


def _full_batch(page: _Page, mechanism: Gaussian) -> Iterator[Ledger]:
    noise, steps = mechanism.noise_multiplier / sensitivity(page.claim.adjacency), mechanism.steps
    yield page.claimed("exact Gaussian", "Balle & Wang 2018, theorem 8; Dong, Roth & Su 2019, corollary 3.3")
    yield from _moments(page, noise, 1.0, steps)
    yield from _renyi(page)
    exact = compose.exact_gaussian(noise)
    yield from _compositions(page, exact, exact, steps)


def _fixed_size(page: _Page, mechanism: FixedSizeGaussian) -> Iterator[Ledger]:
    yield page.claimed("PLD", f"{_PLD}; the pair of Balle, Barthe & Gaboardi 2018, section 4")
    yield from _renyi(page, "Wang, Balle & Kasiviswanathan 2019, theorem 9")
    step = _one_step(replace(mechanism, steps=1), page.claim.adjacency)
    yield from _compositions(page, step, step, mechanism.steps)
    yield _mistaken(page, mechanism)


def _in_epochs(page: _Page, mechanism: InEpochs) -> Iterator[Ledger]:
    known, bound = "deterministic batches", partial(_deterministic, mechanism, page.delta)
    if isinstance(mechanism, BallsAndBinsGaussian):
        yield page.claimed("PLD", f"{_PLD}; the pair of {_BINS}")
        yield page.from_below("from below", _BINS, "the same pair, rounded down")
        yield page.row(known, bound, "upper bound", _SHUFFLED, _UNSAMPLED)
    else:
        yield page.claimed(known, _SHUFFLED, f"{_UNSAMPLED}; the upper end of a bracket")
        yield page.from_below("from below", _SHUFFLED, "what one data set spends; the lower end of a bracket")
    yield from _renyi(page, note=_UNSAMPLED)
    yield _mistaken(page, mechanism)


def _laplace(page: _Page, mechanism: Laplace) -> Iterator[Ledger]:
    one = replace(page.claim, mechanism=replace(mechanism, steps=1))
    exact = mechanism.steps == 1
    yield page.claimed(*(("exact Laplace", "Dong, Roth & Su 2019, proposition A.6") if exact else ("PLD", _PLD)))
    yield from _renyi(page)
    step = one.curve.epsilon
    yield from _compositions(page, step, step, mechanism.steps)


def _pair(page: _Page, mechanism: Pair) -> Iterator[Ledger]:
    stated, source = mechanism.at_delta, "the claim itself"
    if page.delta == stated:
        yield page.claimed("the pair", source)
        return
    below = "" if page.delta > stated else f"a pair promises nothing below its own δ = {stated:g}"
    yield page.claimed("what the pair implies", "Dong, Roth & Su 2019, equation 5", below)
    there = _Page(page.claim, stated)
    yield there.row("the pair", lambda: mechanism.at_epsilon, "upper bound", source, "at its own δ")


def _composed(page: _Page, mechanism: Composed) -> Iterator[Ledger]:
    exact = len(mechanism.releases(page.claim.adjacency)) == 1 and all(isinstance(p, Gaussian) for p in mechanism.parts)
    yield page.claimed(*(("exact Gaussian", "Dong, Roth & Su 2019, corollary 3.3") if exact else ("PLD", _PLD)))
    yield from _renyi(page)
    yield page.row(
        "naive composition", lambda: _sum_of_parts(page.claim, page.delta), "upper bound",
        "Dwork & Roth 2014, theorem 3.16", f"the sum of {len(mechanism.parts)} parts' ε, each at an equal share of δ",
    )  # fmt: skip


def _moments(page: _Page, noise: float, rate: float, steps: int) -> Iterator[Ledger]:
    for name, largest in (("λ ≤ 32", moments.PAPER_ORDERS), ("any λ", None)):
        found = moments.moments_epsilon(noise, rate, steps, page.delta, largest)
        note = _too_few("λ", found.order, found.end)
        yield page.row(f"moments accountant, {name}", partial(float, found.epsilon), "upper bound", _MOMENTS, note)
    yield _closed_form(page, noise, rate, steps)


def _closed_form(page: _Page, noise: float, rate: float, steps: int) -> Ledger:
    method, source = "moments accountant, closed form", "Abadi et al. 2016, lemma 3"
    found = moments.closed_form_epsilon(noise, rate, steps, page.delta)
    if isinstance(found, str):
        return Ledger(method, None, page.delta, "not valid here", page.claim.adjacency, source, found)
    note = "its O(q³λ³/σ³) has no constant in the paper and is left out"
    if found.end:
        note += f"; the best λ is the largest that the lemma allows, {found.order:.0f}"
    return page.row(method, lambda: found.epsilon, "estimate", source, note)


def _renyi(page: _Page, of: str = "", note: str = "") -> Iterator[Ledger]:
    conversions: tuple[tuple[renyi.Conversion, str], ...] = (("improved", _IMPROVED), ("classic", _CLASSIC))
    for conversion, source in conversions:
        method, source = f"RDP, {conversion} conversion", f"{source}; {of}" if of else source
        try:
            found = renyi.epsilon(page.claim, page.delta, conversion)
        except InputError as error:
            yield Ledger(method, None, page.delta, "not valid here", page.claim.adjacency, source, str(error))
            continue
        notes = "; ".join(part for part in (note, _too_few("order", found.order, found.end)) if part)
        yield page.row(method, partial(float, found.epsilon), "upper bound", source, notes)


def _too_few(what: str, order: float, end: moments.End | None) -> str:
    return f"the best {what} is the {end} of those tried, {order:g}: orders too few" if end else ""


def _compositions(page: _Page, exact: compose.OneStep, proven: compose.OneStep, steps: int) -> Iterator[Ledger]:
    """Naive composition of the exact step, strong composition of the proven one."""
    yield page.row(
        "strong composition", lambda: compose.strong_epsilon(proven, steps, page.delta), "upper bound", _STRONG,
        "" if proven is exact or not page.noted else _with_exact_step(exact, steps, page.delta),
    )  # fmt: skip
    yield page.row(
        "naive composition", lambda: compose.naive_epsilon(exact, steps, page.delta), "upper bound",
        "Dwork & Roth 2014, theorem 3.16", "T times the exact ε of one step at δ/T",
    )  # fmt: skip


def _with_exact_step(exact: compose.OneStep, steps: int, delta: float) -> str:
    value = compose.strong_epsilon(exact, steps, delta)
    words = "ε of the Gaussian by √(2 ln(1.25/δ))/σ, or exact where that isn't proved"
    return f"{words}; with the exact ε everywhere {value:.4g}" if math.isfinite(value) else words


def _one_step(mechanism: FixedSizeGaussian, adjacency: Adjacency) -> compose.OneStep:
    """The exact ε of one step; from its profile, or where that would not fit a float from replacing a record."""
    replaced = compose.sampled(compose.exact_gaussian(mechanism.noise_multiplier / 2), mechanism.sampling_rate)
    if adjacency is Adjacency.REPLACE_ONE:
        return replaced
    profile = compose.profiled(mechanism.releases(adjacency)[0])
    return lambda delta: np.minimum(profile(delta), replaced(delta))


def _as_poisson(claim: Claim) -> Claim | None:
    """The same settings as if batches were drawn by coins; None where they are, or where there are no batches."""
    mechanism = claim.mechanism
    if not isinstance(mechanism, SampledSteps) or isinstance(mechanism, SubsampledGaussian):
        return None
    poisson = SubsampledGaussian(mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.steps)
    known = claim.adjacency in poisson.relations
    return replace(claim, mechanism=poisson, adjacency=claim.adjacency if known else poisson.relations[0])


def _mistaken(page: _Page, mechanism: SampledSteps) -> Ledger:
    wrong = _as_poisson(page.claim)
    assert wrong is not None
    note = f"a mistake: these are {mechanism.sampler} batches"
    if wrong.adjacency is not page.claim.adjacency:
        note += f", and it is about {wrong.adjacency} neighbours, not {page.claim.adjacency}"
    return page.row(
        "charged as Poisson batches", lambda: wrong.epsilon(page.delta), "not a bound", _PLD, note, wrong.adjacency
    )


def _deterministic(mechanism: InEpochs, delta: float) -> float:
    return _gaussian(math.sqrt(mechanism.epochs) / mechanism.noise_multiplier, delta)


def _gaussian(mu: float, delta: float) -> float:
    return float(GaussianCurve(mu).epsilon(np.asarray(delta))) if math.isfinite(mu) else math.inf


def _sum_of_parts(claim: Claim, delta: float) -> float:
    parts = list(claim.mechanism.parts) if isinstance(claim.mechanism, Composed) else [claim.mechanism]
    share = delta / len(parts)
    each = {part: replace(claim.coarse(), mechanism=part).epsilon(share) for part in dict.fromkeys(parts)}
    return math.fsum(each[part] for part in parts)


def _total(mechanism: Mechanism) -> int | None:
    """How many steps a mechanism has; a bare pair among others counts as one, and alone has none."""
    if isinstance(mechanism, Composed):
        counts = [_total(part) for part in mechanism.parts]
        return None if all(count is None for count in counts) else sum(count or 1 for count in counts)
    return mechanism.steps if isinstance(mechanism, (SampledSteps, Gaussian, Laplace)) else None


def _first(mechanism: Mechanism, steps: int) -> Mechanism:
    """The same run, broken off after ``steps`` steps, at most all of them."""
    if isinstance(mechanism, (SampledSteps, Gaussian, Laplace)):
        return replace(mechanism, steps=steps)
    if not isinstance(mechanism, Composed):
        return mechanism
    parts: list[Mechanism] = []
    for part in mechanism.parts:
        taken = min(steps, _total(part) or 1)
        if taken:
            parts.append(_first(part, taken))
        steps -= taken
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))


def _shorter(claim: Claim, points: int) -> dict[int, Claim]:
    """The claim on coarse grids after fewer steps, by their number, as far down as grids are small."""
    found: dict[int, Claim] = {}
    cells = 0.0
    for steps in reversed(_marks(claim.mechanism, points)[:-1]):
        part = replace(claim.coarse(), mechanism=_first(claim.mechanism, steps))
        cells += _cells(part) + (_cells(as_poisson) if (as_poisson := _as_poisson(part)) else 0.0)
        if cells > _MOST_CELLS:
            break
        found[steps] = part
    return dict(reversed(found.items()))


def _cells(claim: Claim) -> float:
    """How many cells the claim's grid will have: none for an exact curve, infinitely many where there is no grid."""
    releases = grids.gathered(claim.mechanism.releases(claim.adjacency))
    if isinstance(claim.mechanism, Pair) or (len(releases) == 1 and (releases[0].exact() or releases[0].count == 1)):
        return 0.0
    try:
        return grids.plan(releases, claim.finest).cells
    except InputError:
        return math.inf


def _marks(mechanism: Mechanism, points: int) -> list[int]:
    """Numbers of steps, evenly on a logarithmic scale, the last being all; whole epochs after the first one."""
    total = _total(mechanism) or 1
    if not isinstance(mechanism, InEpochs):
        return _even(total, points)
    epochs = [n * mechanism.batches for n in _even(mechanism.epochs, points)]
    return sorted({min(n, total) for n in (*_even(mechanism.batches, _PARTIAL), *epochs)})


def _even(last: int, points: int) -> list[int]:
    """Whole numbers from 1 to ``last``, evenly on a logarithmic scale."""
    return [int(n) for n in np.unique(np.rint(np.geomspace(1, last, points)))]
