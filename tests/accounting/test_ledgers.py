"""Ledgers side by side: figures in print, on which side each errs, and what is said where a method fails."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import Claim
from dpaudit.accounting import renyi
from dpaudit.accounting.curves import PairCurve
from dpaudit.accounting.ledgers import STATUSES, Ledger, ledgers, over_steps
from dpaudit.errors import InputError
from dpaudit.records import Adjacency

DELTA = 1e-5
UPPER = ("claim", "upper bound")
ABADI = {"noise_multiplier": 4.0, "sampling_rate": 0.01}
EPOCH = {"noise_multiplier": 0.6, "sampling_rate": 0.001, "steps": 1000}


def by_method(claim: Claim, delta: float = DELTA) -> dict[str, Ledger]:
    rows = ledgers(claim, delta)
    assert len({row.method for row in rows}) == len(rows)
    return {row.method: row for row in rows}


def test_seed_figures_of_the_paper():
    for steps, figures in {
        10_000: (0.947, 1.259, 1.258, 26.390, 9.353),
        40_000: (2.033, 2.576, 2.574, 82.348, 24.245),
    }.items():
        rows = by_method(Claim.dp_sgd(**ABADI, steps=steps))
        names = ("PLD", "moments accountant, λ ≤ 32", "moments accountant, any λ", "strong composition")
        for name, figure in zip((*names, "strong composition, as in the paper"), figures, strict=True):
            assert rows[name].epsilon == pytest.approx(figure, abs=1e-3), name
        in_paper = rows["strong composition, as in the paper"]
        assert in_paper.status == "not a bound" and "as in the paper, not a bound" in in_paper.note


def test_seed_figures_of_the_tutorial():
    rows = by_method(Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100))
    for name, figure in {"PLD": 2.385, "RDP, improved conversion": 2.600, "RDP, classic conversion": 3.012}.items():
        assert rows[name].epsilon == pytest.approx(figure, abs=6e-4)


def test_any_order_of_the_moments_accountant_is_the_classic_conversion():
    for settings_ in ({**ABADI, "steps": 10_000}, {**EPOCH, "steps": 50}):
        rows = by_method(Claim.dp_sgd(**settings_))
        classic, free = rows["RDP, classic conversion"].epsilon, rows["moments accountant, any λ"].epsilon
        assert free <= classic <= 1.003 * free


class TestShuffledChargedAsPoisson:
    def test_the_mistake_stands_beside_the_bracket(self):
        rows = by_method(Claim.dp_sgd(**EPOCH, sampler="shuffled"))
        mistake, below, claim = (rows[n] for n in ("charged as Poisson batches", "from below", "deterministic batches"))
        assert mistake.epsilon == pytest.approx(1.43, abs=0.005)
        assert below.epsilon >= 7.98 and below.status == "lower bound"
        assert below.epsilon <= claim.epsilon == pytest.approx(8.004, abs=1e-3)
        assert claim.status == "claim" and mistake.status == "not a bound"
        assert "mistake" in mistake.note and "shuffled" in mistake.note
        assert {row.adjacency for row in rows.values()} == {Adjacency.ZERO_OUT}

    def test_the_claim_comes_first(self):
        assert ledgers(Claim.dp_sgd(**EPOCH, sampler="shuffled"), DELTA)[0].status == "claim"


def test_balls_and_bins_have_a_pair_and_bounds_on_both_sides():
    rows = by_method(Claim.dp_sgd(**EPOCH, sampler="balls-and-bins"))
    assert rows["from below"].epsilon <= rows["PLD"].epsilon <= 1.01 * rows["from below"].epsilon
    assert rows["PLD"].epsilon < 0.2 * rows["deterministic batches"].epsilon
    assert rows["charged as Poisson batches"].status == "not a bound"


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_a_row_about_other_neighbours_says_so(relation):
    claim = Claim.dp_sgd(noise_multiplier=2.0, sampling_rate=0.01, steps=300, sampler="fixed-size", adjacency=relation)
    rows = by_method(claim)
    mistake = rows.pop("charged as Poisson batches")
    assert {row.adjacency for row in rows.values()} == {Adjacency(relation)}
    assert "fixed-size" in mistake.note
    if relation == "replace-one":
        assert mistake.adjacency is Adjacency.ADD_REMOVE
        assert "add-remove neighbours, not replace-one" in mistake.note
    else:
        assert mistake.adjacency is Adjacency.ZERO_OUT
    assert mistake.epsilon < 0.6 * rows["PLD"].epsilon


def test_full_batches_have_the_exact_curve():
    claim = Claim.gaussian(noise_multiplier=4.0, steps=100)
    rows = by_method(claim)
    assert rows["exact Gaussian"].status == "claim" and rows["exact Gaussian"].epsilon == claim.epsilon(DELTA)
    closed = rows["moments accountant, closed form"]
    assert closed.epsilon is None and closed.status == "not valid here" and "q = 1 ≥ 1/(16σ)" in closed.note


def test_replacing_a_record_in_full_batches_counts_twice():
    twice = by_method(Claim.gaussian(noise_multiplier=4.0, steps=100, adjacency="replace-one"))
    once = by_method(Claim.gaussian(noise_multiplier=2.0, steps=100))
    assert {n: row.epsilon for n, row in twice.items()} == {n: row.epsilon for n, row in once.items()}


class TestPair:
    CLAIM = Claim.pair(epsilon=1.0, delta=1e-6)

    def test_at_its_own_delta_it_is_itself(self):
        (row,) = ledgers(self.CLAIM, 1e-6)
        assert (row.epsilon, row.delta, row.status) == (1.0, 1e-6, "claim")

    def test_at_another_delta_it_implies_something(self):
        implied, stated = ledgers(self.CLAIM, 0.1)
        assert implied.epsilon == PairCurve(1.0, 1e-6).epsilon(np.asarray(0.1)) and implied.status == "claim"
        assert (stated.epsilon, stated.delta, stated.status) == (1.0, 1e-6, "upper bound")

    def test_below_its_own_delta_it_says_nothing(self):
        implied, stated = ledgers(self.CLAIM, 1e-9)
        assert implied.epsilon == math.inf and "below its own δ = 1e-06" in implied.note
        assert stated.epsilon == 1.0


def test_compositions_add_up_their_parts():
    parts = (
        Claim.dp_sgd(**ABADI, steps=500),
        Claim.gaussian(noise_multiplier=10.0),
        Claim.laplace(noise_multiplier=8.0),
    )
    claim = Claim.compose(*parts)
    rows = by_method(claim)
    naive = sum(part.epsilon(DELTA / 3) for part in parts)
    assert rows["naive composition"].epsilon == pytest.approx(naive, rel=2e-3)
    assert rows["PLD"].epsilon < rows["RDP, improved conversion"].epsilon < rows["naive composition"].epsilon


def test_a_part_without_a_divergence_is_named():
    rows = by_method(Claim.compose(Claim.gaussian(noise_multiplier=2.0), Claim.pair(epsilon=0.1, delta=1e-7)))
    refused = rows["RDP, improved conversion"]
    assert refused.epsilon is None and refused.status == "not valid here" and "(0.1, 1e-07)" in refused.note
    assert rows["naive composition"].epsilon > rows["PLD"].epsilon


def test_orders_too_few_are_said():
    rows = by_method(Claim.dp_sgd(noise_multiplier=50.0, sampling_rate=0.001, steps=10))
    assert "last of those tried, 32: orders too few" in rows["moments accountant, λ ≤ 32"].note
    assert rows["moments accountant, any λ"].note == ""
    loud = by_method(Claim.gaussian(noise_multiplier=0.1, steps=10))
    assert "first of those tried, 1: orders too few" in loud["moments accountant, λ ≤ 32"].note


def test_a_coarse_grid_is_said():
    claim = Claim.dp_sgd(noise_multiplier=0.1, sampling_rate=0.5, steps=3000)
    precision = claim.curve.precision(DELTA)
    row = ledgers(claim, DELTA)[0]
    assert (precision.note in row.note) == precision.limited


def test_the_limit_law_is_an_estimate_below_what_is_spent():
    claim = Claim.dp_sgd(**EPOCH)
    row = by_method(claim)["CLT (GDP)"]
    assert row.status == "estimate" and "under-reports" in row.note and "never a claim" in row.note
    assert row.epsilon < 0.8 * claim.epsilon_from_below(DELTA)


def test_the_papers_strong_composition_may_be_below_what_is_spent():
    claim = Claim.dp_sgd(noise_multiplier=0.3, sampling_rate=0.01, steps=1)
    row = by_method(claim)["strong composition, as in the paper"]
    assert row.status == "not a bound" and row.epsilon < 0.2 * claim.epsilon_from_below(DELTA)


SAMPLERS = ("poisson", "full-batch", "fixed-size", "shuffled", "balls-and-bins")


def claim_of(sampler: str, noise: float, batches: int, steps: int) -> Claim:
    rate = 1.0 if sampler == "full-batch" else 1.0 / batches
    return Claim.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps, sampler=sampler)


def check_sides(claim: Claim, delta: float) -> None:
    """Every upper bound is above what is surely spent, every lower bound below the claim, every row complete."""
    spent, promised = claim.epsilon_from_below(delta), claim.epsilon(delta)
    rows = ledgers(claim, delta)
    assert rows[0].status == "claim" and [row.status for row in rows].count("claim") == 1
    for row in rows:
        assert row.status in STATUSES and row.method and row.source
        assert (row.epsilon is None) == (row.status == "not valid here")
        if row.epsilon is None:
            assert row.note
        elif row.status in UPPER:
            assert row.epsilon >= spent * (1 - 1e-6) and not math.isnan(row.epsilon), row
        elif row.status == "lower bound":
            assert row.epsilon <= promised


@given(
    sampler=st.sampled_from(SAMPLERS),
    noise=st.floats(-1.2, 2.5).map(np.exp),
    batches=st.integers(2, 300),
    steps=st.integers(2, 2000),
    delta=st.floats(-18, -3).map(np.exp),
)
@settings(max_examples=10, deadline=None)
def test_every_row_errs_on_the_side_that_it_says(sampler, noise, batches, steps, delta):
    check_sides(claim_of(sampler, noise, batches, steps), delta)


@pytest.mark.parametrize("noise", [0.1, 100.0])
@pytest.mark.parametrize(
    "sampler,batches,steps",
    [
        *[(sampler, 10**6, 1) for sampler in SAMPLERS],
        *[(sampler, 10, 10**6) for sampler in ("full-batch", "shuffled", "balls-and-bins")],
        *[pytest.param(sampler, 10, 10**6, marks=pytest.mark.slow) for sampler in ("poisson", "fixed-size")],
        ("poisson", 10**6, 10**6),
        ("shuffled", 10**6, 10**6),
    ],
)
def test_extreme_settings_have_rows_on_their_side(sampler, noise, batches, steps):
    check_sides(claim_of(sampler, noise, batches, steps), 1e-12)


@pytest.mark.parametrize("noise", [1e-4, 0.02, 1e5])
def test_absurd_settings_have_rows_or_reasons(noise):
    for claim in (Claim.gaussian(noise_multiplier=noise, steps=1000), Claim.laplace(noise_multiplier=noise, steps=50)):
        assert all(row.note for row in ledgers(claim, DELTA) if row.epsilon is None)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_at_delta_zero_the_reason_is_said(sampler):
    first, *others = ledgers(claim_of(sampler, 1.0, 10, 20), 0.0)
    assert first.status == "claim" and first.epsilon == math.inf
    for row in others:
        if row.status != "lower bound":
            assert row.epsilon is None and row.status == "not valid here" and row.note


def test_pure_claims_have_an_epsilon_at_delta_zero():
    rows = by_method(Claim.laplace(noise_multiplier=10.0, steps=7), 0.0)
    assert rows["naive composition"].epsilon == pytest.approx(0.7)


def test_every_ledger_is_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "ledgers.md").read_text(encoding="utf-8")
    claims = [claim_of(sampler, 1.0, 10, 20) for sampler in SAMPLERS]
    methods = {row.method.split(", λ")[0].split(", any")[0] for claim in claims for row in ledgers(claim, DELTA)}
    assert [name for name in methods if f"| {name} |" not in text] == []


class TestOverSteps:
    CLAIM = Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.05, steps=400)

    def test_the_last_point_is_the_table(self):
        steps, epsilons = over_steps(self.CLAIM, DELTA, points=6)
        assert steps == sorted(set(steps)) and steps[-1] == 400
        for name, row in by_method(self.CLAIM).items():
            if row.epsilon is None:
                assert name not in epsilons
            else:
                assert epsilons[name][-1] == row.epsilon and len(epsilons[name]) == len(steps)

    def test_each_point_is_the_table_after_so_many_steps(self):
        steps, epsilons = over_steps(self.CLAIM, DELTA, points=6)
        for i, n in enumerate(steps):
            rows = by_method(Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.05, steps=n))
            for name, values in epsilons.items():
                assert values[i] == pytest.approx(rows[name].epsilon, rel=5e-3)

    @pytest.mark.parametrize("sampler", SAMPLERS)
    def test_every_sampler_grows_with_its_steps(self, sampler):
        steps, epsilons = over_steps(claim_of(sampler, 1.0, 10, 45), DELTA, points=4)
        assert steps[-1] == 45 and len(steps) > 3
        for values in epsilons.values():
            assert np.all(np.diff(values) >= -1e-3 * values[1:])

    def test_epochs_are_not_broken_off_after_the_first(self):
        steps, _ = over_steps(claim_of("shuffled", 2.0, 10, 205), DELTA, points=6)
        assert all(n % 10 == 0 for n in steps[:-1] if n > 10) and steps[-1] == 205

    def test_phases_follow_one_another(self):
        one, two = Claim.dp_sgd(**ABADI, steps=100), Claim.gaussian(noise_multiplier=3.0, steps=10)
        steps, epsilons = over_steps(Claim.compose(one, two), DELTA, points=40)
        assert steps[-1] == 110
        divergences = epsilons["RDP, improved conversion"]
        inside = [i for i, n in enumerate(steps) if n <= 100]
        assert len(inside) < len(steps)
        for i in inside[-2:]:
            alone = Claim.dp_sgd(**ABADI, steps=steps[i])
            assert divergences[i] == pytest.approx(renyi.epsilon(alone, DELTA).epsilon)

    def test_a_pair_has_no_steps(self):
        assert over_steps(Claim.pair(epsilon=1.0, delta=0.0), DELTA) is None

    @pytest.mark.parametrize("named,arguments", [("delta", (1.5,)), ("points", (DELTA, 1))])
    def test_bad_settings_are_named(self, named, arguments):
        with pytest.raises(InputError, match=named):
            over_steps(self.CLAIM, *arguments)


def test_a_bad_delta_is_named():
    with pytest.raises(InputError, match="delta"):
        ledgers(Claim.gaussian(noise_multiplier=1.0), 1.0)
