"""The noise: its law, its independence, and that a model's is its own whatever it is stacked with.

Seeds are fixed; ``Z`` standard errors are one false alarm in 1.7 million independent two-sided checks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.trainers import noise
from dpaudit.trainers.noise import DeviceNoise, NoiseSource
from dpaudit.trainers.seeds import stream

Z = 5.0


def drawn(count, seed=0):
    """One step of a model with so many parameters."""
    return NoiseSource([seed], count).step()[0].copy()


def steps(seeds, parameters, count):
    """Float64, shape ``(steps, models, parameters)``."""
    source = NoiseSource(seeds, parameters)
    return np.stack([source.step().astype(float) for _ in range(count)])


# ---- the law --------------------------------------------------------------------------------------------------------


def moment_scores(x):
    """Standard scores of the first four moments of what should be standard normal."""
    return {
        "mean": np.mean(x) * math.sqrt(x.size),
        "variance": (np.mean(x**2) - 1) * math.sqrt(x.size / 2),
        "skewness": np.mean(x**3) * math.sqrt(x.size / 15),
        "kurtosis": (np.mean(x**4) - 3) * math.sqrt(x.size / 96),
    }


def distance_score(x):
    """√n times the Kolmogorov–Smirnov distance to the normal law; above 2.7 with probability 1e-6."""
    u, n = np.sort(ndtr(x)), x.size
    grid = np.arange(n + 1) / n
    return math.sqrt(n) * max(np.max(grid[1:] - u), np.max(u - grid[:-1]))


def test_it_is_standard_normal():
    x = drawn(2_000_000).astype(float)
    assert all(abs(score) < Z for score in moment_scores(x).values()), moment_scores(x)
    assert distance_score(x) < 2.7
    assert abs(np.var(x) - 1) < 0.01 / 3  # "within 1 %", with room


@pytest.mark.parametrize("place", ["cosines", "sines"])
def test_each_half_of_a_pair_is(place):
    pairs = drawn(2**16).astype(float).reshape(2, -1)
    assert distance_score(pairs[["cosines", "sines"].index(place)]) < 2.7


def test_the_halves_of_a_pair_are_independent():
    """Not just uncorrelated: the radius and the angle of a pair are independent, and the angle is uniform."""
    cosine, sine = drawn(2**16, seed=1).astype(float).reshape(2, -1)
    n = cosine.size
    assert abs(np.sum(cosine * sine)) / math.sqrt(n) < Z
    assert abs(np.sum((cosine**2 - 1) * (sine**2 - 1))) / (2 * math.sqrt(n)) < Z
    angle = np.arctan2(sine, cosine) / (2 * np.pi) + 0.5
    counts = np.histogram(angle, 64, (0, 1))[0]
    assert np.sum((counts - n / 64) ** 2) / (n / 64) < 63 + Z * math.sqrt(2 * 63)


def test_the_tails_are_those_of_the_normal_law():
    x = np.abs(drawn(8_000_000, seed=3))
    for bound in (2.0, 3.0, 4.0, 5.0):
        wanted = 2 * ndtr(-bound) * x.size
        assert abs(np.sum(x > bound) - wanted) < Z * math.sqrt(wanted) + 1


@pytest.mark.parametrize("break_it", [lambda x: 1.004 * x, lambda x: x + 0.004, lambda x: np.clip(x, -3, 3)])
def test_the_same_checks_catch_a_law_that_is_a_little_off(break_it):
    assert any(abs(score) > Z for score in moment_scores(break_it(drawn(2_000_000).astype(float))).values())


class Words:
    """A bit generator that says what it is told, again and again."""

    def __init__(self, words):
        self._words = np.array(words, np.uint32).view(np.uint64)

    @property
    def bit_generator(self):
        return self

    def random_raw(self, count):
        return np.resize(self._words, count)


def test_extreme_words_make_finite_numbers(monkeypatch):
    """Of two pairs: radii from the smallest and the largest bits, angles from the smallest and about 0."""
    monkeypatch.setattr(noise, "stream", lambda *_: Words([0, 2**32 - 1, 2**31, 0]))
    largest = math.sqrt(2 * 32 * math.log(2))
    assert largest == pytest.approx(6.660, abs=1e-3)
    np.testing.assert_allclose(NoiseSource([0], 4).step()[0], [-largest, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(NoiseSource([0], 3).step()[0], [-largest, 0, 0], atol=1e-5)


# ---- independence ---------------------------------------------------------------------------------------------------


def worst_correlation(rows):
    """The largest standard score of the correlation between two rows."""
    scores = (rows @ rows.T) / math.sqrt(rows.shape[1])
    return np.abs(scores[~np.eye(len(rows), dtype=bool)]).max()


@pytest.mark.parametrize("parameters", [3001, 66_771, noise.PIECE + 1235])
def test_steps_and_models_are_uncorrelated(parameters):
    """45 pairs of (step, model) rows: a false alarm at 5 has probability 2.6e-5."""
    rows = steps([1, 2, 3, 4, 5], parameters, 2).reshape(10, parameters)
    assert worst_correlation(rows) < Z


def test_neighbours_far_and_near_are_uncorrelated():
    """Within a stream, at every lag at which something is reused: one, a pair's distance, a piece, a step."""
    x = steps([0], 2 * noise.PIECE, 3).ravel()
    for lag in (1, 2, noise.PIECE // 2, noise.PIECE, 2 * noise.PIECE, 3001):
        assert abs(np.sum(x[lag:] * x[:-lag])) / math.sqrt(x.size - lag) < Z
        assert abs(np.sum((x[lag:] ** 2 - 1) * (x[:-lag] ** 2 - 1))) / (2 * math.sqrt(x.size - lag)) < Z


def test_tensors_are_uncorrelated():
    """The halves of many steps of a small network: 35 · 15 correlations of 600 numbers, a false alarm 3e-4."""
    rows = steps([0, 1], 50, 300).reshape(600, 50)
    assert np.abs(rows[:, :35].T @ rows[:, 35:]).max() / math.sqrt(600) < Z


def test_the_same_check_catches_a_stream_used_twice():
    rows = steps([1, 2, 1], 3001, 1).reshape(3, 3001)
    assert worst_correlation(rows) > 50


# ---- each model's own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1, 7, 3000, 100_003, noise.COLUMNS - 1, noise.COLUMNS + 1, noise.COLUMNS + 5])
def test_a_models_noise_does_not_depend_on_its_stack(parameters):
    """Not in a bit: whatever is made in one operation with it, and wherever in that operation it lies."""
    count = 30 if parameters < 10_000 else 2
    together = steps([5, 6, 7], parameters, count)
    np.testing.assert_array_equal(steps([6], parameters, count)[:, 0], together[:, 1])
    np.testing.assert_array_equal(steps([7, 6], parameters, count), together[:, [2, 1]])


@pytest.mark.parametrize(("name", "value"), [("PIECE", 10), ("PIECE", 2**22), ("WORDS", 1), ("WORDS", 2**16)])
def test_sizes_that_serve_speed_change_no_bit(name, value, monkeypatch):
    wanted = steps([5, 6], 71, 40)
    monkeypatch.setattr(noise, name, value)
    np.testing.assert_array_equal(steps([5, 6], 71, 40), wanted)


@pytest.mark.parametrize("parameters", [1, 7, noise.COLUMNS - 1, noise.COLUMNS + 1])
def test_no_number_is_given_twice(parameters):
    rows = steps([3], parameters, max(2, 3000 // parameters))
    assert len(np.unique(rows)) > 0.9 * rows.size  # of float32 numbers some are equal by chance


def test_steps_take_the_words_of_a_stream_one_after_the_other():
    words = stream(4, "noise").bit_generator.random_raw(3 * 5) | np.uint64(2**32 + 1)
    u, v = words.view(np.uint32).reshape(3, 2, 5).swapaxes(0, 1).astype(float)
    radius, angle = np.sqrt(-2 * np.log(u / 2**32)), 2 * np.pi * v / 2**32
    wanted = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    np.testing.assert_allclose(steps([4], 10, 3)[:, 0], wanted, atol=1e-5)
    np.testing.assert_allclose(steps([4], 9, 3)[:, 0], wanted[:, :9], atol=1e-5)


def test_a_seed_gives_the_same_noise_again_and_another_seed_another():
    np.testing.assert_array_equal(drawn(1001, seed=8), drawn(1001, seed=8))
    assert not np.any(drawn(1001, seed=8) == drawn(1001, seed=9))


def test_seeds_that_differ_in_their_high_bits_differ():
    """A generator seeded with 32 bits would not know these apart."""
    rows = np.stack([drawn(500, seed=seed) for seed in (1, 1 + 2**32, 1 + 2**40, 1 + 2**62)])
    assert all(not np.any(a == b) for a, b in itertools.combinations(rows, 2))


def test_noise_is_not_the_batches_and_not_the_start():
    streams = [stream(4, purpose).bit_generator.random_raw(100) for purpose in ("init", "sampling", "noise")]
    assert len(np.unique(streams)) == 300


def test_on_a_device_noise_has_the_same_law_and_is_each_models_own():
    torch = pytest.importorskip("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = DeviceNoise([1, 2], 200_000, device)
    first, second = (source.step().cpu().numpy().astype(float) for _ in range(2))
    assert worst_correlation(np.concatenate([first, second])) < Z
    assert all(abs(score) < Z for score in moment_scores(np.concatenate([first, second])).values())
    alone = DeviceNoise([2], 200_000, device)
    np.testing.assert_array_equal(alone.step().cpu().numpy()[0], first[1].astype(np.float32))
