"""Models with noise multipliers and clip norms of their own in one stack, against stacks of one setting each.

In stacks of the same models (seeds, members, and so batches and padding) the parameters are the same bits, except
where the processor has no fused multiply-add: there the noise is rounded twice, so float32 rounding is allowed for.
Alone or in a stack of another size, sums are added in another order, and the same rounding applies.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, train_many

torch = pytest.importorskip("torch")

FEATURES, CLASSES, RECORDS = 6, 4, 20
GRID = list(itertools.product((0.0, 0.7, 3.0), (0.05, 1.0, 1e30)))
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


def some_data() -> Data:
    rng = np.random.default_rng(0)
    return Data(rng.normal(size=(RECORDS, FEATURES)), rng.integers(0, CLASSES, RECORDS), CLASSES)


def settings(hidden=(), steps=30):
    base = DPSGD(steps=steps, sampling_rate=0.3, hidden=hidden)
    return [replace(base, noise_multiplier=noise, clip_norm=clip) for noise, clip in GRID]


def members():
    return np.random.default_rng(1).random((len(GRID), RECORDS)) < 0.7


def trained(trainer, **options):
    """Parameters of one model per point of the grid, seeded by its number."""
    models = train_many(trainer, some_data(), members(), list(range(len(GRID))), **options)
    return np.stack([m.parameters() for m in models])


@pytest.mark.parametrize("hidden", [(), (5, 4)], ids=str)
def test_a_mixed_stack_equals_stacks_of_one_setting(hidden):
    mixed = trained(settings(hidden))
    for k, one in enumerate(settings(hidden)):
        np.testing.assert_allclose(mixed[k], trained(one)[k], **ROUNDING)


@pytest.mark.parametrize("hidden", [(), (5, 4)], ids=str)
def test_a_mixed_stack_equals_models_alone(hidden):
    mixed = trained(settings(hidden))
    for k, one in enumerate(settings(hidden)):
        alone = one.train(some_data(), members()[k], k).parameters()
        np.testing.assert_allclose(mixed[k], alone, rtol=1e-4, atol=1e-5)


def test_clip_norms_without_noise_give_the_same_bits():
    """Clipping has no sum in it whose order or rounding could differ."""
    quiet = [replace(s, noise_multiplier=0.0) for s in settings()]
    mixed = trained(quiet)
    for k, one in enumerate(quiet):
        np.testing.assert_array_equal(mixed[k], trained(one)[k])


def test_the_same_check_catches_settings_that_are_handed_out_in_another_order():
    mixed = trained(settings()[::-1])
    assert not np.allclose(mixed[0], trained(settings()[0])[0], **ROUNDING)


def test_models_of_one_seed_differ_by_their_settings_alone():
    """Without noise and below the clip norm, clipping changes nothing; with noise, the noise is in proportion."""
    nobody = np.zeros((3, RECORDS), bool)
    base = DPSGD(steps=1, sampling_rate=0.3, learning_rate=1.0)
    mixed = [replace(base, noise_multiplier=n, clip_norm=c) for n, c in ((1.0, 1.0), (2.0, 1.0), (2.0, 4.0))]
    one, two, three = (m.parameters() for m in train_many(mixed, some_data(), nobody, [7, 7, 7]))
    assert np.abs(one).max() > 0.01
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)
    np.testing.assert_allclose(three, 8 * one, rtol=1e-6)


def test_no_noise_beside_noise_is_no_noise():
    nobody = np.zeros((2, RECORDS), bool)
    quiet, loud = settings()[0], settings()[-2]
    models = train_many([quiet, loud], some_data(), nobody, [7, 7])
    assert not models[0].parameters().any()
    assert models[1].parameters().any()


def test_a_clip_norm_that_nothing_reaches_is_plain_sgd():
    plain = SGD(steps=30, sampling_rate=0.3)
    unclipped = trained([replace(settings()[0], clip_norm=c) for c in np.geomspace(1e3, 3e38, len(GRID))])
    np.testing.assert_allclose(unclipped, trained(plain), rtol=1e-4, atol=1e-5)


def test_a_list_of_equal_settings_is_one_setting():
    one = settings()[4]
    assert trained([one] * len(GRID)).tobytes() == trained(one).tobytes()


def test_any_number_of_threads_gives_the_same_bits():
    one, two = (trained(settings(), chunk=2, threads=threads).tobytes() for threads in (1, 2))
    assert one == two


def test_any_chunk_draws_the_same():
    for chunk in (1, 4):
        np.testing.assert_allclose(trained(settings(), chunk=chunk), trained(settings()), rtol=1e-4, atol=1e-5)


def test_each_models_sum_is_clipped_at_its_own_norm():
    """One record, one step from zeros: the parameters are one clipped gradient."""
    clips = np.array([0.01, 0.1, 0.3])
    base = DPSGD(noise_multiplier=0.0, steps=1, sampling_rate=1.0, learning_rate=1.0, expected_batch_size=1.0)
    member = np.zeros((3, RECORDS), bool)
    member[:, 3] = True
    models = train_many([replace(base, clip_norm=float(c)) for c in clips], some_data(), member, 0)
    np.testing.assert_allclose([np.linalg.norm(m.parameters()) for m in models], clips, rtol=1e-5)


def test_iterates_are_kept_per_model():
    member = np.ones((2, RECORDS), bool)
    models = train_many(settings()[3:5], some_data(), member, 1, keep_iterates=True)
    for model in models:
        np.testing.assert_array_equal(model.iterates()[-1], model.parameters())


@pytest.mark.parametrize(
    ("trainers", "message"),
    [
        ([DPSGD()], "one DPSGD per row of member \\(2\\), got 1 of DPSGD"),
        ([], "got 0"),
        ([DPSGD(), SGD()], "got 2 of DPSGD and SGD"),
        ([DPSGD(), DPSGD(learning_rate=0.1)], "several values of learning_rate"),
        ([DPSGD(), DPSGD(hidden=[3])], "several values of hidden"),
        ([DPSGD(), DPSGD(expected_batch_size=2)], "several values of expected_batch_size"),
        ("xy", "got 2 of str"),
    ],
)
def test_a_list_that_is_no_stack_is_refused(trainers, message):
    with pytest.raises(InputError, match=message):
        train_many(trainers, some_data(), np.ones((2, RECORDS), bool), 0)


@pytest.mark.parametrize("clip", [0.0, -1.0, 1e39, 1e-39, float("inf"), float("nan"), "wide"])
def test_a_clip_norm_that_float32_cannot_divide_by_is_refused(clip):
    with pytest.raises(InputError, match="clip_norm"):
        DPSGD(clip_norm=clip)
