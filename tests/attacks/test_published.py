"""LiRA as published: a transcription of its formulas, one record and one target at a time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.attacks import arrays as cutting
from dpaudit.attacks import lira
from dpaudit.errors import InputError

SHADOWS, RECORDS, TARGETS, QUERIES = 16, 12, 5, 2


def world(seed: int = 0, halves: bool = False):
    rng = np.random.default_rng(seed)
    member = rng.random((SHADOWS, RECORDS)) < 0.5
    if halves:
        member = np.argsort(rng.random((SHADOWS, RECORDS)), axis=0) < SHADOWS // 2
    base, scale = rng.normal(0, 3, (RECORDS, QUERIES)), rng.uniform(0.5, 2, (RECORDS, QUERIES))
    shadows = base + 2.0 * member[..., None] + scale * rng.normal(size=(SHADOWS, RECORDS, QUERIES))
    return base + 2 * rng.normal(size=(TARGETS, RECORDS, QUERIES)), shadows, member


def published(signal, shadows, member, online, fixed):
    """Scores of the published code with the sign turned: higher says "member"."""
    inside = [shadows[member[:, j], j] for j in range(RECORDS)]
    outside = [shadows[~member[:, j], j] for j in range(RECORDS)]
    fewest_in, fewest_out = min(map(len, inside)), min(map(len, outside))
    inside, outside = [s[:fewest_in] for s in inside], [s[:fewest_out] for s in outside]
    everything = np.std(inside if online else outside)
    scores = np.zeros(signal.shape[:2])
    for i in range(len(signal)):
        for j in range(RECORDS):
            ratios = []
            for q in range(signal.shape[2]):
                x, own, rest = signal[i, j, q], inside[j][:, q], outside[j][:, q]
                out = norm.logpdf(x, np.median(rest), (everything if fixed else np.std(rest)) + 1e-30)
                within = norm.logpdf(x, np.median(own), (everything if fixed else np.std(own)) + 1e-30)
                ratios.append(within - out if online else -out)
            scores[i, j] = np.mean(ratios)
    return scores


@pytest.mark.parametrize("mode", ["online", "offline-two-sided"])
@pytest.mark.parametrize("variance", ["reference", "reference-fixed"])
@pytest.mark.parametrize("halves", [True, False])
def test_the_published_scores(mode, variance, halves):
    signal, shadows, member = world(halves=halves)
    wanted = published(signal, shadows, member, mode == "online", variance.endswith("fixed"))
    assert lira(signal, shadows, member, mode, variance) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    one = published(signal[..., :1], shadows[..., :1], member, mode == "online", variance.endswith("fixed"))
    assert lira(signal[..., 0], shadows[..., 0], member, mode, variance) == pytest.approx(one, rel=1e-6, abs=1e-6)
    assert lira(signal[2], shadows, member, mode, variance) == pytest.approx(wanted[2], rel=1e-6, abs=1e-6)


def test_its_quirks_are_not_ours():
    """Differences between records count as noise, *out* has the spread of *in*, and the order of shadows matters."""
    signal, shadows, member = (a[..., 0] if a.ndim == 3 else a for a in world())
    fixed = lira(signal, shadows, member, variance="reference-fixed")
    assert fixed != pytest.approx(lira(signal, shadows, member, variance="pooled"), rel=0.2)
    order = np.arange(SHADOWS)[::-1]
    assert lira(signal, shadows[order], member[order], variance="reference-fixed") != pytest.approx(fixed, rel=1e-3)
    shifted = shadows + 50 * (np.arange(RECORDS) % 2)
    moved = lira(signal + 50 * (np.arange(RECORDS) % 2), shifted, member, variance="reference-fixed")
    assert np.abs(moved).max() < 0.2 * np.abs(fixed).max()
    for variance in ("per-example", "pooled", "shrink"):
        before = lira(signal, shadows, member, variance=variance) if variance != "per-example" else None
        if before is not None:
            after = lira(signal + 50 * (np.arange(RECORDS) % 2), shifted, member, variance=variance)
            assert after == pytest.approx(before, rel=1e-6, abs=1e-6)


def test_one_sided_is_offered_on_the_same_law():
    signal, shadows, member = world(halves=True)
    rest = np.stack([shadows[~member[:, j], j, 0] for j in range(RECORDS)])
    wanted = -norm.logsf(signal[..., 0], np.median(rest, axis=1), rest.std(axis=1) + 1e-30)
    assert lira(signal[..., 0], shadows[..., 0], member, "offline", "reference") == pytest.approx(wanted, rel=1e-6)


def test_blocks_do_not_show(monkeypatch):
    signal, shadows, member = world()
    whole = lira(signal, shadows, member, variance="reference")
    monkeypatch.setattr(cutting, "BLOCK", 5)
    assert lira(signal, shadows, member, variance="reference").tolist() == whole.tolist()


def test_one_shadow_on_a_side_is_refused():
    """Where the published code divides by 1e-30 and says nothing."""
    signal, shadows, member = world(halves=True)
    member[:, 0] = np.arange(SHADOWS) == 0
    for variance in ("reference", "reference-fixed", "per-example"):
        with pytest.raises(InputError, match="train more shadows"):
            lira(signal, shadows, member, variance=variance)


def test_bad_input():
    signal, shadows, member = world()
    for variance in ("reference", "shrink"):
        with pytest.raises(InputError, match="finite"):
            lira(signal, np.where(shadows == shadows.max(), np.nan, shadows), member, variance=variance)
        with pytest.raises(InputError, match="signal must be"):
            lira(signal, shadows, member[:3], variance=variance)
        with pytest.raises(InputError, match="true or false"):
            lira(signal, shadows, member + 3, variance=variance)
