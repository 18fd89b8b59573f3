"""Calibration: the least noise, the most steps or the largest sampling rate that a privacy target allows.

Every answer is on the private side: the accountant's ε at the answer, on the grid that a claim uses by default, is at
most the target.

The search starts from the central limit theorem (Dong, Roth & Su 2019, section 5), which under-reports and is nothing
but a place to start from. It goes on by secants, with ε seen through the μ of the Gaussian mechanism that spends as
much: its logarithm is all but straight in that of the noise. A coarse grid of the accountant does the searching and the
fine one, two calls as a rule, the landing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .. import check
from ..errors import InputError
from .claims import Claim
from .curves import GaussianCurve, bisect
from .mechanisms import Gaussian, SampledSteps, sensitivity
from .samplers import BallsAndBinsGaussian, InEpochs, ShuffledGaussian

TOLERANCE = 2e-4
_COARSE_GRID, _COARSE_TOLERANCE = 1e-3, 1e-3
_USUAL_EVALUATIONS, _MOST_EVALUATIONS = 8, 100
_LEAST_SLOPE, _LARGEST_STEP = 0.05, 3.0
_ROUND_UP = 1 + 1e-12
_IN_EPOCHS = (ShuffledGaussian.sampler, BallsAndBinsGaussian.sampler)


@dataclass(frozen=True)
class _Axis:
    """The numbers that a parameter may be: whole ones, or those of six digits, so that what is printed is the answer.

    A number's place on the axis is its logarithm, or minus that: ε rises with the place.
    """

    least: float
    most: float
    falling: bool
    whole: bool

    @property
    def last(self) -> float:
        """The number at which most is spent."""
        return self.least if self.falling else self.most

    def place(self, number: float) -> float:
        return -math.log(number) if self.falling else math.log(number)

    def at(self, place: float) -> float:
        """The number at a place, or the next one on its private side."""
        ends = sorted((self.place(self.least), self.place(self.most)))
        number = math.exp((-1 if self.falling else 1) * min(max(place, ends[0]), ends[1]))
        count = number / self._grain(number)
        count = math.ceil(count / _ROUND_UP) if self.falling else math.floor(count * _ROUND_UP)
        return self._inside(count * self._grain(number))

    def after(self, number: float, steps: int = 1) -> float:
        """The number that many steps on, where more is spent; at the end of the axis, the end."""
        return self._inside(number + (-steps if self.falling else steps) * self._grain(number))

    def between(self, wanted: float, private: float | None, exceeding: float | None) -> float | None:
        """A number strictly between two others (or one and an end of the axis) near a wanted place; None if none.

        Where both are known and the place is not between them, or NaN, it is the middle.
        """
        if private is not None and exceeding is not None:
            low, high = self.place(private), self.place(exceeding)
            wanted = wanted if low < wanted < high else (low + high) / 2
        number = self.at(wanted)
        if private is not None and self.place(number) <= self.place(private):
            number = self.after(private)
        if exceeding is not None and self.place(number) >= self.place(exceeding):
            number = self.after(exceeding, -1)
        return None if number in (private, exceeding) else number

    def _grain(self, number: float) -> float:
        return 1.0 if self.whole else 10.0 ** (math.floor(math.log10(number)) - 5)

    def _inside(self, number: float) -> float:
        number = min(max(number, self.least), self.most)
        return round(number) if self.whole else float(f"{number:.6g}")


_NOISE = _Axis(1e-2, 1e9, falling=True, whole=False)
_STEPS = _Axis(1, 10**7, falling=False, whole=True)
_RATE = _Axis(1e-9, 1.0, falling=False, whole=False)
_BATCHES = _Axis(1, 10**9, falling=True, whole=True)


@dataclass(frozen=True)
class Calibrated:
    """A setting solved for a privacy target.

    Attributes:
        parameter: which setting: ``noise_multiplier``, ``steps`` or ``sampling_rate``.
        value: the answer, exact in six digits.
        claim: the claim with this setting.
        epsilon: its ε at ``delta``; at most ``target``.
        target: the ε that was asked for.
        delta: the δ that was asked for.
        tolerance: a noise multiplier or a sampling rate is final once ε is at least (1 − ``tolerance``) · ``target``,
            or the next one in six digits is above the target. Whole numbers (of steps, of batches in an epoch) are
            final once the next one is above the target.
        evaluations: how many privacy curves were computed.
    """

    parameter: str
    value: float
    claim: Claim
    epsilon: float
    target: float
    delta: float
    tolerance: float
    evaluations: int


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    sampler: str = "poisson",
    adjacency: str | None = None,
    finest: float = Claim.finest,
) -> Calibrated:
    """The smallest noise multiplier at which DP-SGD spends at most ``epsilon`` at ``delta``.

    For shuffled batches, of which only a bracket is known, it is the upper end that stays below ``epsilon``.

    Args:
        epsilon: the target, above 0, in nats.
        delta: the target's δ, in (0, 1).
        sampling_rate, steps, sampler, adjacency: as in :meth:`~dpaudit.accounting.claims.Claim.dp_sgd`.
        finest: the cell of the accountant's grid; by default a claim's own.

    Raises:
        InputError: a setting out of range, or a target that no noise multiplier from 0.01 to a million meets.

    >>> solved = noise_multiplier(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    >>> round(solved.value, 3), solved.epsilon <= 3.0
    (0.814, True)
    """

    def claim(noise: float) -> Claim:
        return Claim.dp_sgd(
            noise_multiplier=noise, sampling_rate=sampling_rate, steps=steps, sampler=sampler, adjacency=adjacency
        )

    return _Search("noise_multiplier", _NOISE, claim, epsilon, delta, finest).solve()


def steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_rate: float,
    sampler: str = "poisson",
    adjacency: str | None = None,
    finest: float = Claim.finest,
) -> Calibrated:
    """The most steps of DP-SGD that spend at most ``epsilon`` at ``delta``: one more spends more.

    Arguments and errors as for :func:`noise_multiplier`.

    >>> steps(epsilon=3.0, delta=1e-5, noise_multiplier=2.0, sampling_rate=1.0).value
    2
    """

    def claim(count: float) -> Claim:
        return Claim.dp_sgd(
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=int(count),
            sampler=sampler,
            adjacency=adjacency,
        )

    return _Search("steps", _STEPS, claim, epsilon, delta, finest).solve()


def sampling_rate(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    sampler: str = "poisson",
    adjacency: str | None = None,
    finest: float = Claim.finest,
) -> Calibrated:
    """The largest sampling rate at which DP-SGD spends at most ``epsilon`` at ``delta``; 1 if any rate will do.

    Where an epoch is a whole number of batches (shuffled, balls-and-bins) it is 1 over such a number. Arguments and
    errors as for :func:`noise_multiplier`.
    """
    by_epoch = sampler in _IN_EPOCHS

    def claim(number: float) -> Claim:
        return Claim.dp_sgd(
            noise_multiplier=noise_multiplier,
            sampling_rate=1 / number if by_epoch else number,
            steps=steps,
            sampler=sampler,
            adjacency=adjacency,
        )

    return _Search("sampling_rate", _BATCHES if by_epoch else _RATE, claim, epsilon, delta, finest).solve()


def analytic_gaussian(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier of one Gaussian release that is (ε, δ)-DP: exact (Balle & Wang 2018, theorem 8).

    Args:
        epsilon: above 0, in nats.
        delta: in (0, 1).

    Returns:
        The standard deviation in units of the sensitivity, rounded up.

    >>> round(analytic_gaussian(1.0, 1e-5), 4)
    3.7306
    """
    epsilon, delta = check.positive("epsilon", epsilon), check.number("delta", delta, 0.0, 1.0, ends="()")
    noise, slack = math.exp(-_log_mu(epsilon, delta)), 1e-12
    while GaussianCurve(1 / noise).epsilon(np.asarray(delta)) > epsilon:
        noise, slack = noise * (1 + slack), slack * 2
    return noise


def classic_gaussian(epsilon: float, delta: float) -> float:
    """The textbook's noise multiplier of one Gaussian release, √(2 ln(1.25/δ)) / ε (Dwork & Roth 2014, theorem A.1).

    Args:
        epsilon: in (0, 1], in nats: the proof does not reach beyond 1, and the formula fails there.
        delta: in (0, 1).

    Raises:
        InputError: ``epsilon`` above 1; the message says what the formula's noise would really spend.

    >>> round(classic_gaussian(1.0, 1e-5), 4)
    4.8448
    """
    epsilon, delta = check.positive("epsilon", epsilon), check.number("delta", delta, 0.0, 1.0, ends="()")
    noise = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if epsilon > 1.0:
        spent = float(GaussianCurve(1 / noise).epsilon(np.asarray(delta)))
        raise InputError(
            f"epsilon must be in (0, 1] for the classic Gaussian, which is not proved above, got {epsilon!r}: "
            f"its noise multiplier {noise:.4g} would spend {spent:.4g}; use the analytic Gaussian"
        )
    return noise


def _log_mu(epsilon: float, delta: float) -> float:
    """The logarithm of the largest μ whose Gaussian mechanism spends no more than ``epsilon``."""
    at = np.asarray(epsilon)
    return -float(bisect(lambda s: GaussianCurve(np.exp(-s)).delta(at) <= delta, np.array(-40.0), np.array(700.0)))


@dataclass
class _Search:
    """The search for the last number of an axis at which no more than ``epsilon`` is spent."""

    parameter: str
    axis: _Axis
    claim: Callable[[float], Claim]
    epsilon: float
    delta: float
    finest: float
    evaluations: int = 0
    spent: dict[float, float] = field(default_factory=dict)  # ε by number, on the grid in use
    refused: dict[float, InputError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.epsilon = check.positive("epsilon", self.epsilon)
        self.delta = check.number("delta", self.delta, 0.0, 1.0, ends="()")
        self.finest = check.positive("finest", self.finest)
        self.claim(self.axis.last)  # names a setting that is wrong
        self.aim = self._log_mu(self.epsilon if self.axis.whole else self.epsilon * (1 - TOLERANCE / 2))

    def solve(self) -> Calibrated:
        number: float = self.axis.at(self._clt_place(self.aim))
        slope: float | None = None
        private, exceeding = None, None
        coarse = ((_COARSE_GRID, self._near),) if self.finest < _COARSE_GRID else ()
        for cell, enough in (*coarse, (self.finest, self._final)):
            number, slope = self._approach(number, slope, cell, enough)
            private, exceeding = self._bracket()
            if exceeding is None and private == self.axis.last:  # not even a coarse grid has anything to refuse
                break
        settled = private is not None and self._final(self.spent[private])
        if exceeding in self.refused and not settled:
            raise self.refused[exceeding]
        if private is None:
            assert exceeding is not None
            raise self._too_little(exceeding)
        if exceeding is None and not settled and self.parameter != "sampling_rate":
            raise self._too_much(private)
        claim = replace(self.claim(private), finest=self.finest)
        return Calibrated(
            parameter=self.parameter,
            value=claim.settings.get(self.parameter, private),
            claim=claim,
            epsilon=self.spent[private],
            target=self.epsilon,
            delta=self.delta,
            tolerance=TOLERANCE,
            evaluations=self.evaluations,
        )

    def _approach(
        self, number: float, slope: float | None, cell: float, enough: Callable[[float], bool]
    ) -> tuple[float, float | None]:
        """Secants on one grid until an ε is ``enough`` or no number is left; the last number, and the slope there.

        With no slope to start with, the first step is the one that the central limit theorem would take.
        """
        self.spent, before = {}, None
        while True:
            epsilon = self._spend(number, cell)
            x, y = self.axis.place(number), self._log_mu(epsilon)
            if before is not None:
                slope = max((y - before[1]) / (x - before[0]), _LEAST_SLOPE)
            before, missing = (x, y), self.aim - y
            wanted = self._clt_place(self._log_clt(number) + missing) if slope is None else x + missing / slope
            wanted = min(max(wanted, x - _LARGEST_STEP), x + _LARGEST_STEP)
            private, exceeding = self._bracket()
            if len(self.spent) > _USUAL_EVALUATIONS and len(self.spent) % 2 == 0 and None not in (private, exceeding):
                wanted = math.nan  # the middle, in case the secants creep
            new = self.axis.between(wanted, private, exceeding)
            if enough(epsilon) or new is None or len(self.spent) == _MOST_EVALUATIONS:
                return number, slope
            number = new

    def _spend(self, number: float, cell: float) -> float:
        """ε at ``number``; infinite, so far, where the accountant refuses: there is less than that to be had."""
        self.evaluations += 1
        try:
            self.spent[number] = replace(self.claim(number), finest=cell).epsilon(self.delta)
        except InputError as error:
            self.spent[number], self.refused[number] = math.inf, self._refused(number, error)
        return self.spent[number]

    def _bracket(self) -> tuple[float | None, float | None]:
        """The last number known to be private, and the first known not to be."""
        private = [n for n, e in self.spent.items() if e <= self.epsilon]
        rest = [n for n, e in self.spent.items() if e > self.epsilon]
        return max(private, key=self.axis.place, default=None), min(rest, key=self.axis.place, default=None)

    def _near(self, epsilon: float) -> bool:
        return abs(epsilon / self.epsilon - 1) <= _COARSE_TOLERANCE

    def _final(self, epsilon: float) -> bool:
        return not self.axis.whole and (1 - TOLERANCE) * self.epsilon <= epsilon <= self.epsilon

    def _log_mu(self, epsilon: float) -> float:
        """ε through the μ of the Gaussian mechanism that spends as much."""
        return _log_mu(min(max(epsilon, 1e-9), 1e9), self.delta)

    def _log_clt(self, number: float) -> float:
        claim = self.claim(number)
        mechanism, per_record = claim.mechanism, sensitivity(claim.adjacency)
        assert isinstance(mechanism, Gaussian | SampledSteps)
        mu, count = per_record / mechanism.noise_multiplier, mechanism.steps
        if isinstance(mechanism, InEpochs):
            count = mechanism.epochs
        elif isinstance(mechanism, SampledSteps):
            sampled = mechanism.sampling_rate * math.sqrt(math.expm1(min(mu**2, 500.0)))
            mu = min(sampled, mu)  # at most that of full batches
        return math.log(mu * math.sqrt(count))

    def _clt_place(self, log_mu: float) -> float:
        """Where on the axis the central limit theorem puts a μ."""
        low, high = sorted((self.axis.place(self.axis.least), self.axis.place(self.axis.most)))
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._log_clt(self.axis.at(middle)) <= log_mu else (low, middle)
        return high

    def _too_little(self, end: float) -> InputError:
        return InputError(
            f"epsilon must be at least {self.spent[end]:.4g} at delta = {self.delta:g}, "
            f"which {self.parameter} = {end:g} spends already, got {self.epsilon!r}"
        )

    def _too_much(self, end: float) -> InputError:
        return InputError(
            f"epsilon must be below {self.spent[end]:.4g} at delta = {self.delta:g}, since {self.parameter} = {end:g} "
            f"spends no more: any from {self.axis.least:g} to {self.axis.most:g} would do, got {self.epsilon!r}"
        )

    def _refused(self, number: float, error: InputError) -> InputError:
        return InputError(
            f"epsilon = {self.epsilon!r} at delta = {self.delta:g} is out of the accountant's reach: "
            f"at {self.parameter} = {number:g}, {error}"
        )
