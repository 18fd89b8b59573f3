"""Extreme settings: a correct number, a number that is marked, or a clear error; and grids as large as was foreseen."""

from __future__ import annotations

import itertools
import math
import re
import tracemalloc

import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from dpaudit import Claim
from dpaudit.accounting import grids, pld
from dpaudit.accounting.curves import GaussianCurve
from dpaudit.accounting.releases import GaussianRelease, LaplaceRelease, Release, SampledGaussianRelease
from dpaudit.errors import InputError

NOISES = (0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
RATES = (1e-6, 1e-3, 0.01, 0.5, 1.0)
STEPS = (1, 1000, 10**6)
DELTAS = (1e-5, 1e-12)
QUICK = [
    *itertools.product((0.1, 100.0), RATES, (1, 1000)),
    (0.05, 0.5, 1000),
    (0.5, 0.01, 1000),
    (1.0, 0.01, 10**6),
    (100.0, 1e-3, 10**6),
    (100.0, 1.0, 10**6),
    (0.1, 1.0, 10**6),
]
# Where the grid can't do better, the number is marked, and still no further off than this.
MARKED = {(0.5, 1e-6, 1000, 1e-5): 0.3, (0.5, 1e-6, 10**6, 1e-5): 0.3}
TOLERANCE = 0.01
WHERE_NOTHING_IS_SPENT = 1e-7  # ε this small may be the rounding of a grid


def sampled(noise: float, rate: float, steps: int) -> SampledGaussianRelease:
    return SampledGaussianRelease(noise_multiplier=noise, sampling_rate=rate, count=steps)


def by_renyi(noise: float, rate: float, steps: int, delta: float) -> float:
    orders = np.concatenate([np.arange(2, 64), np.geomspace(64, 4096, 20).astype(int)]).astype(float)
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def check(noise: float, rate: float, steps: int) -> None:
    claim = Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    for delta in DELTAS:
        above, below, precision = claim.epsilon(delta), claim.epsilon_from_below(delta), claim.curve.precision(delta)
        assert 0.0 <= below <= above < math.inf
        full = float(GaussianCurve(math.sqrt(steps) / noise).epsilon(np.asarray(delta)))
        assert above <= full * (1 + 1e-9)
        if precision.limited:
            assert precision.note.startswith("grid-limited: ")
            assert above - below <= MARKED.get((noise, rate, steps, delta), 2 * TOLERANCE) * above
        else:
            assert above - below <= 2 * TOLERANCE * above + WHERE_NOTHING_IS_SPENT
        if noise >= 0.5 and rate < 1:
            assert above <= by_renyi(noise, rate, steps, delta) * (1 + TOLERANCE)
        if steps == 1 or rate == 1.0:
            assert precision.note in ("exact", "exact profile of one use")


@pytest.mark.parametrize("noise,rate,steps", QUICK)
def test_some_extremes(noise, rate, steps):
    check(noise, rate, steps)


@pytest.mark.slow
@pytest.mark.parametrize("noise,rate,steps", [s for s in itertools.product(NOISES, RATES, STEPS) if s not in QUICK])
def test_all_extremes(noise, rate, steps):
    check(noise, rate, steps)
    pld.clear_cache()


@pytest.mark.slow
@pytest.mark.parametrize("noise,rate,steps", [(1.0, 0.001, 10**6), (10.0, 0.5, 10**6), (0.5, 1e-6, 10**6)])
@pytest.mark.parametrize("delta", DELTAS)
def test_a_number_that_is_not_marked_is_within_a_hundredth_of_that_of_a_finer_grid(noise, rate, steps, delta):
    release = (sampled(noise, rate, steps),)
    curve = pld.curve(release)
    found = float(curve.epsilon(np.asarray(delta)))
    finer = pld._spent(pld._on(release, curve.grid.cell / 4), delta)
    assert finer <= found * (1 + 1e-9)
    assert curve.precision(delta).limited or found <= (1 + TOLERANCE) * finer


@pytest.mark.parametrize("noise,rate,steps", [(1e6, 1e-9, 1000), (0.3, 1e-12, 10**6), (1000.0, 1 - 1e-12, 5)])
def test_beyond_all_reason_there_is_still_a_number(noise, rate, steps):
    curve = pld.curve((sampled(noise, rate, steps),))
    full = GaussianCurve(math.sqrt(steps) / noise).epsilon(np.array(DELTAS))
    assert np.all(curve.epsilon(np.array(DELTAS)) <= full * (1 + 1e-9))
    assert float(curve.epsilon(np.asarray(1e-5))) <= 6e-3


def test_tiny_deltas_of_many_steps_are_not_drowned_by_rounding():
    # δ = 1e-12 after 10^6 steps: plain transforms leave 1e-10 everywhere.
    curve = pld.curve((GaussianRelease(noise_multiplier=300.0, count=10**6), sampled(50.0, 0.5, 10**6)))
    sure = GaussianCurve(math.hypot(1000 / 300, 500 / 50 * math.sqrt(math.expm1(50.0**-2)) * 50))
    for delta in (1e-9, 1e-12, 1e-15):
        # The sampled part is all but Gaussian, by the central limit theorem.
        assert float(curve.epsilon(np.asarray(delta))) == pytest.approx(
            float(sure.epsilon(np.asarray(delta))), rel=0.02
        )
        assert not curve.precision(delta).limited


# --- the size of grids

SIZES: dict[str, tuple[Release, ...]] = {
    "common": (sampled(1.0, 0.01, 1000),),
    "many small steps": (sampled(4.0, 0.01, 40_000),),
    "little noise": (sampled(0.6, 0.001, 1000),),
    "a million steps": (sampled(10.0, 0.01, 10**6),),
    "one of many": (sampled(0.5, 0.5, 2),),
    "several": (sampled(1.0, 0.02, 500), LaplaceRelease(noise_multiplier=5.0, count=30)),
}


@pytest.mark.parametrize("releases", SIZES.values(), ids=SIZES.keys())
def test_as_much_memory_is_taken_as_was_foreseen(releases):
    pld.clear_cache()
    grid = grids.plan(releases, 1e-4)
    tracemalloc.start()
    curve = pld.curve(releases)
    curve.epsilon(np.array([1e-5, 1e-12]))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert curve.grid == grid
    assert taken <= grid.bytes + 2**22
    assert grid.bytes <= 40 * taken


@pytest.mark.parametrize("releases", SIZES.values(), ids=SIZES.keys())
def test_as_many_cells_come_out_as_was_foreseen(releases):
    grid = grids.plan(releases, 1e-4)
    for side in pld._on(releases, grid.cell):
        for tail in (side.plain, side.tilted):
            assert len(tail._sums) <= grid.cells


@pytest.fixture
def little_memory(monkeypatch):
    """A workplace with room for some ten thousand cells."""

    def limit(size: int) -> None:
        pld.clear_cache()
        monkeypatch.setattr(grids, "MOST_BYTES", size)

    yield limit
    pld.clear_cache()


def test_a_grid_that_does_not_fit_is_coarsened_and_says_so(little_memory):
    release = (sampled(4.0, 0.01, 40_000),)
    fine = float(pld.curve(release).epsilon(np.asarray(1e-5)))
    little_memory(2_000_000)
    curve = pld.curve(release)
    precision = curve.precision(1e-5)
    assert curve.grid.coarsened and curve.grid.cell > curve.grid.wanted and curve.grid.bytes <= 2_100_000
    assert precision.limited and precision.grid is curve.grid
    assert re.search(r"grid-limited: .* coarsened from [\d.e-]+ to [\d.e-]+ nats to stay under 1 GiB", precision.note)
    coarse = float(curve.epsilon(np.asarray(1e-5)))
    assert 1.01 * fine < coarse < 1.5 * fine


def test_a_grid_that_could_say_nothing_is_refused_with_the_nearest_that_can(little_memory):
    little_memory(400_000)
    with pytest.raises(InputError, match=r"40,000 uses must fit on a grid of 1 GiB, got [\d.]+ GiB") as refused:
        pld.curve((sampled(4.0, 0.01, 40_000),))
    nearest = int(re.search(r"accounted for are ([\d,]+) uses", str(refused.value))[1].replace(",", ""))
    assert 10 < nearest < 40_000
    assert pld.curve((sampled(4.0, 0.01, nearest),)).grid.bytes <= 420_000


@pytest.mark.parametrize("steps", [10**13, 10**15])
def test_more_steps_than_a_float_can_tell_apart_are_refused(steps):
    claim = Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=steps)
    with pytest.raises(InputError, match=r"must fit on a grid of 1 GiB, got .* the nearest that can be accounted for"):
        claim.epsilon(1e-5)
    assert Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=1.0, steps=steps).epsilon(1e-5) > 0
