"""Samplers other than Poisson: what their claims take for granted of the batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.trainers.sampling import SAMPLERS, batch_blocks

RECORDS, MODELS = 23, 2


def joined(sampler: str, rate: float, steps: int, member=None, seed: int = 0) -> np.ndarray:
    """Bool, shape (models, steps, records): who joined which batch."""
    member = np.ones((MODELS, RECORDS), bool) if member is None else member
    generators = [np.random.default_rng([seed, k]) for k in range(len(member))]
    out = np.zeros((len(member), steps, RECORDS + 1), bool)
    done = 0
    for block in batch_blocks(generators, member, rate, steps, sampler):
        for index, sizes in zip(block.index, block.sizes, strict=True):
            for k, row in enumerate(index):
                assert len(set(row[: sizes[k]])) == sizes[k] and (row[sizes[k] :] == RECORDS).all()
                out[k, done, row] = True
            done += 1
    assert done == steps
    return out[:, :, :-1]


@pytest.mark.parametrize("rate", [1 / 3, 1 / 5, 0.22, 1.0])
def test_shuffling_shows_every_record_once_an_epoch(rate):
    batches = int(np.ceil(1 / rate))
    who = joined("shuffled", rate, 4 * batches)
    epochs = who.reshape(MODELS, 4, batches, RECORDS)
    assert (epochs.sum(axis=2) == 1).all()
    sizes = epochs.sum(axis=3)
    assert sizes.max() - sizes.min() <= 1
    if batches > 1:
        assert any((a != b).any() for a, b in pairwise(epochs[0])), "permuted anew"
        assert (epochs[0] != epochs[1]).any(), "each model by itself"


def test_balls_fall_into_bins_one_by_one():
    who = joined("balls-and-bins", 1 / 4, 4 * 300).reshape(MODELS, 300, 4, RECORDS)
    assert (who.sum(axis=2) == 1).all()
    sizes = who.sum(axis=3)
    assert sizes.var() == pytest.approx(RECORDS * 3 / 16, rel=0.15)  # binomial; shuffled batches have almost none
    np.testing.assert_allclose(who.mean(axis=(0, 1, 3)), 1 / 4, atol=0.02)


def test_fixed_size_batches_have_one_size_and_no_record_twice():
    who = joined("fixed-size", 0.3, 500)
    assert (who.sum(axis=2) == 6).all()  # the floor of 6.9, so that the rate of the claim is not exceeded
    np.testing.assert_allclose(who.mean(axis=(0, 1)), 6 / 23, atol=0.06)
    together = (who[..., 0] & who[..., 1]).mean()
    assert together == pytest.approx(6 * 5 / (23 * 22), abs=0.02)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_who_is_no_member_joins_nothing_and_changes_nobody_elses_batches(sampler):
    member = np.ones((1, RECORDS), bool)
    without = member.copy()
    without[0, [3, 11]] = False
    a, b = joined(sampler, 1 / 5, 40, member), joined(sampler, 1 / 5, 40, without)
    assert not b[0][:, [3, 11]].any()
    others = [i for i in range(RECORDS) if i not in (3, 11)]
    np.testing.assert_array_equal(a[0][:, others], b[0][:, others])


@pytest.mark.parametrize("sampler", ["fixed-size", "shuffled", "balls-and-bins"])
def test_batches_do_not_depend_on_how_steps_fall_into_blocks(sampler, monkeypatch):
    whole = joined(sampler, 1 / 5, 37)
    monkeypatch.setattr("dpaudit.trainers.sampling._PICKS_PER_BLOCK", 12)
    np.testing.assert_array_equal(joined(sampler, 1 / 5, 37), whole)


@pytest.mark.parametrize(("sampler", "rate"), [("fixed-size", 0.01), ("balls-and-bins", 0.3)])
def test_rates_that_a_sampler_cannot_have_are_refused(sampler, rate):
    with pytest.raises(InputError, match="sampling_rate must"):
        joined(sampler, rate, 2)
