"""Histograms and ROC bands, against slow and obvious counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from dpaudit.accounting import Claim
from dpaudit.records import Design, Observations
from dpaudit.report.evidence import histogram, rates, roc_band


def noisy(seed: int, decimals: int | None = None, **options: object) -> Observations:
    rng = np.random.default_rng(seed)
    member = rng.random((30, 7)) < 0.5
    scores = rng.normal(size=member.shape) + member
    return Observations(scores if decimals is None else scores.round(decimals), member, **options)  # type: ignore[arg-type]


def slow_tpr(obs: Observations, fpr: float) -> float:
    inside, outside = obs.scores[obs.member & obs.present], obs.scores[~obs.member & obs.present]
    thresholds = [np.inf, *np.unique(obs.scores[obs.present])]
    return max((inside >= t).mean() for t in thresholds if (outside >= t).mean() <= fpr + 1e-12)


@pytest.mark.parametrize("decimals", [None, 0])
def test_band_is_what_counting_gives(decimals: int | None) -> None:
    obs = noisy(3, decimals)
    band = roc_band("x", obs)
    assert band.fpr[0] == 0 and band.fpr[-1] == 1 and band.allowed is None
    for fpr, tpr, low, high in zip(band.fpr, band.tpr, band.low, band.high, strict=True):
        assert tpr == pytest.approx(slow_tpr(obs, fpr))
        hits = round(tpr * band.members)
        assert low == pytest.approx(beta.ppf(0.025, hits, band.members - hits + 1) if hits else 0, abs=1e-7)
        assert high == pytest.approx(beta.ppf(0.975, hits + 1, band.members - hits) if tpr < 1 else 1, abs=1e-7)


def test_pairs_never_scored_are_left_out() -> None:
    present = np.random.default_rng(0).random((30, 7)) < 0.6
    obs = noisy(3, present=present)
    band, shown = roc_band("x", obs), histogram("x", obs)
    assert band.members + band.others == shown.members + shown.others == present.sum()


def test_claim_is_drawn_only_where_it_speaks_of_these_neighbours() -> None:
    claim = Claim.gaussian(noise_multiplier=1.0)
    band = roc_band("x", noisy(1), claim)
    assert band.allowed is not None
    fpr, tpr = band.allowed
    np.testing.assert_allclose(tpr, 1 - claim.fnr(fpr))
    assert roc_band("x", noisy(1, design=Design(adjacency="zero-out")), claim).allowed is None
    replaced = roc_band("x", noisy(1, design=Design(adjacency="replace-one")), claim).allowed
    assert replaced is not None and np.all(replaced[1] >= tpr)


def test_rates_below_one_in_all_others_are_not_resolvable() -> None:
    obs = noisy(2)
    shown = rates("x", obs)
    tiny, small, large = shown["points"]
    assert tiny["tpr"] is tiny["low"] is tiny["high"] is None
    assert small["tpr"] is None or 1 / shown["others"] <= 0.01
    assert large["tpr"] == pytest.approx(slow_tpr(obs, 0.1))
    assert large["low"] < large["tpr"] < large["high"]
    useless = Observations(np.zeros((4, 4)), np.eye(4))
    assert rates("x", useless)["auc"] == 0.5


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_bins_are_common_round_and_hold_everything(scale: float) -> None:
    obs = noisy(5)
    obs = Observations(obs.scores * scale, obs.member)
    shown = histogram("x", obs)
    assert shown.inside.sum() == pytest.approx(1) and shown.outside.sum() == pytest.approx(1)
    assert not set(shown.edges) & set(obs.scores.ravel()), "an edge must be no score"
    step = shown.edges[1] - shown.edges[0]
    np.testing.assert_allclose(np.diff(shown.edges), step)
    assert f"{step:.3e}"[0] in "125" and len(shown.edges) <= 43


def test_a_constant_score_has_bins_too() -> None:
    shown = histogram("x", Observations(np.full((3, 4), 7.0), np.eye(3, 4)))
    assert shown.inside.max() == shown.outside.max() == 1
