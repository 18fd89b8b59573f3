"""Does the search for exposed records hold its error rate, and would this suite notice if it did not?

Every check draws ``REPETITIONS`` examinations (ten times as many with DPAUDIT_FULL=1) of records whose ε is known
exactly, and counts those in which any bound on the shortlist exceeds its record's ε. That share may be at most
``ALPHA`` plus ``SIGMAS`` standard errors.

False alarms: a procedure whose true rate is exactly ``ALPHA`` fails one check with probability below 0.5 %; the real
rate is far lower, since bounds are conservative. Effect: a rate of 15 % is caught with probability 99 % (of a twin, in
fewer repetitions, 25 %). Each broken twin below is at least that bad, and must be caught by the very same check.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.special import expit

from dpaudit.accounting.curves import GaussianCurve
from dpaudit.bounds.choices import Fixed
from dpaudit.bounds.two_worlds import confusions, epsilon_lower
from dpaudit.records import Observations
from dpaudit.vulnerable.confirming import attack, confirm
from dpaudit.vulnerable.experiment import shortlisted

FULL = bool(os.environ.get("DPAUDIT_FULL"))
ALPHA, SIGMAS, DELTA = 0.05, 3.0, 1e-5
REPETITIONS = 3000 if FULL else 300
TWINS = 100  # repetitions of a broken twin
MODELS, SET_ASIDE, RECORDS, SHORTLIST = 224, 24, 100, 12

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning"),
]

World = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray, np.ndarray]]  # signal, coins, ε of each record
Bounds = Callable[[np.ndarray, np.ndarray, Sequence[int]], Sequence[float]]


def coins(rng: np.random.Generator, records: int = RECORDS) -> np.ndarray:
    return rng.random((MODELS, records)) < 0.5


def nothing(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.normal(size=(MODELS, RECORDS)), coins(rng), np.zeros(RECORDS)


def randomised_responses(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each record answers by randomised response with an ε of its own; the others' coins move its signal, too."""
    epsilon = rng.choice([0.0, 3.0], RECORDS)
    member = coins(rng)
    said = member == (rng.random(member.shape) < expit(epsilon))
    others = member.sum(axis=1, keepdims=True) - member
    return said + 0.1 * rng.random(member.shape) + 0.001 * others, member, epsilon + _by_delta(epsilon)


def gaussians(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mu = rng.choice([0.0, 0.3, 1.0, 2.0], RECORDS)
    member = coins(rng)
    known = {m: float(GaussianCurve(m).epsilon(np.asarray(DELTA))) if m else 0.0 for m in set(mu)}
    return mu * member + rng.normal(size=member.shape), member, np.array([known[m] for m in mu])


def _by_delta(epsilon: np.ndarray) -> np.ndarray:
    """Randomised response at δ: ln((p − δ) / (1 − p)) is below its pure ε, where it is not 0."""
    right = expit(epsilon)
    return np.maximum(np.log((right - DELTA) / (1 - right)), 0.0) - epsilon


def by_a_ranking_run(rng: np.random.Generator, truth: np.ndarray) -> tuple[int, ...]:
    """A shortlist by a statistic of another training: it knows something of the ε, and nothing of the models."""
    return shortlisted(truth + rng.normal(size=len(truth)), SHORTLIST)


def as_built(signal: np.ndarray, member: np.ndarray, rows: Sequence[int]) -> list[float]:
    """What an examination reports of these records."""
    at, names = list(rows), [str(row) for row in rows]
    found = confirm(signal[:, at], member[:, at], SET_ASIDE, names, delta=DELTA, significance=ALPHA, family=SHORTLIST)
    return [result.bound.epsilon for result in found]


def wrong_share(world: World, bounds: Bounds, choose: Callable | None, seed: int, repetitions: int) -> float:
    """The share of examinations in which some bound exceeds its record's ε."""
    rng, wrong = np.random.default_rng(seed), 0
    for _ in range(repetitions):
        signal, member, truth = world(rng)
        rows = by_a_ranking_run(rng, truth) if choose is None else choose(signal, member)
        wrong += bool(np.any(np.asarray(bounds(signal, member, rows)) > truth[list(rows)]))
    return wrong / repetitions


def holds(share: float, repetitions: int) -> bool:
    """The one check that the procedure must pass and every broken twin must fail."""
    return share <= ALPHA + SIGMAS * math.sqrt(ALPHA * (1 - ALPHA) / repetitions)


@pytest.mark.parametrize("world", [nothing, randomised_responses, gaussians])
def test_bounds_on_the_shortlist_hold_together(world: World) -> None:
    share = wrong_share(world, as_built, None, 20261130, REPETITIONS)
    assert holds(share, REPETITIONS), share


def test_worlds_with_a_known_epsilon_are_as_strong_as_they_say() -> None:
    """The largest bound comes near the truth where there are many models, so that a pass is no lack of power."""
    rng = np.random.default_rng(5)
    member = rng.random((40_000, 1)) < 0.5
    said = member == (rng.random(member.shape) < expit(1.5))
    signal = said + 0.1 * rng.random(member.shape)
    (found,) = confirm(signal, member, 400, ["a"], delta=DELTA, significance=ALPHA, family=1)
    assert 1.4 < found.bound.epsilon < 1.5


class TestBrokenTwins:
    def test_no_correction_for_the_shortlist(self) -> None:
        """Each record at the whole significance."""

        def uncorrected(signal: np.ndarray, member: np.ndarray, rows: Sequence[int]) -> list[float]:
            return _at_level(signal, member, rows, ALPHA)

        share = wrong_share(randomised_responses, uncorrected, None, 1, TWINS)
        assert not holds(share, TWINS), share

    def test_confirmed_on_the_models_that_chose(self) -> None:
        """A shortlist of one: the record that looks worst on the very same models."""

        def worst(signal: np.ndarray, member: np.ndarray) -> tuple[int, ...]:
            return shortlisted(np.asarray(_at_level(signal, member, range(RECORDS), ALPHA)), 1)

        def at_its_length(signal: np.ndarray, member: np.ndarray, rows: Sequence[int]) -> list[float]:
            return _at_level(signal, member, rows, ALPHA)

        share = wrong_share(randomised_responses, at_its_length, worst, 2, TWINS)
        assert not holds(share, TWINS), share

    def test_the_twins_compute_what_is_built(self) -> None:
        """With the right level the short way of the twins gives the same bounds."""
        signal, member, _ = randomised_responses(np.random.default_rng(4))
        rows = range(SHORTLIST)
        assert _at_level(signal, member, rows, ALPHA / SHORTLIST) == as_built(signal, member, rows)


def _at_level(signal: np.ndarray, member: np.ndarray, rows: Sequence[int], level: float) -> list[float]:
    """Bounds of records at a level each, by the shortest way."""
    at = list(rows)
    scores, _ = attack(signal[:, at], member[:, at], SET_ASIDE, delta=DELTA, level=level)
    obs = Observations(scores, member[SET_ASIDE:, at])
    return [epsilon_lower(table, DELTA, level) for table in confusions(obs, DELTA, level, Fixed(0.0))]
