"""The noise: its law, its independence, and that a model's is its own whatever it is stacked with.

Seeds are fixed; ``Z`` standard errors are one false alarm in 1.7 million independent two-sided checks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

pytest.importorskip("numba")

from dpaudit.trainers import normal
from dpaudit.trainers.noise import DeviceNoise, NoiseSource
from dpaudit.trainers.seeds import stream

Z = 5.0
TILE = 256  # numbers made together; the two of a pair are 64 places apart


def drawn(count, seed=0):
    """One step of a model with so many parameters."""
    return NoiseSource([seed]).step(count)[0]


def steps(seeds, parameters, count):
    """Float64, shape ``(steps, models, parameters)``."""
    source = NoiseSource(seeds)
    return np.stack([source.step(parameters).astype(float) for _ in range(count)])


def added(seeds, widths, scale=None, count=1):
    """Steps added up, layer by layer, each of shape ``(models, parameters of the layer)``."""
    source, layers = NoiseSource(seeds), [np.zeros((len(seeds), width), np.float32) for width in widths]
    for _ in range(count):
        source.add_to(layers, np.ones(len(seeds), np.float32) if scale is None else scale)
    return layers


def halves(count, seed=0):
    """The first and the second number of each pair, shape ``(2, count / 2)``; ``count`` is a multiple of a tile."""
    return drawn(count, seed).astype(float).reshape(-1, 2, 64).swapaxes(0, 1).reshape(2, -1)


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


def test_each_half_of_a_pair_is_and_each_quarter_of_a_tile():
    numbers = drawn(2**18)
    for part in (*halves(2**18), *numbers.astype(float).reshape(-1, 4, 64).swapaxes(0, 1).reshape(4, -1)):
        assert distance_score(part) < 2.7


def test_the_halves_of_a_pair_are_independent():
    """Not just uncorrelated: the radius and the angle of a pair are independent, and the angle is uniform."""
    first, second = halves(2**18, seed=1)
    assert max(scores_of_halves(first, second)) < Z


def test_the_same_check_catches_halves_that_share_something():
    first, second = halves(2**18, seed=1)
    assert max(scores_of_halves(first, np.sign(second) * np.abs(first))) > Z  # the size
    assert max(scores_of_halves(first, np.where(second > 0, 1, np.sign(first)) * np.abs(second))) > Z  # the sign
    assert max(scores_of_halves(first[:-1], first[1:])) < Z  # nothing


def scores_of_halves(first, second):
    """Standard scores of the correlations of values and squares, and of the counts in 64 arcs of the circle."""
    n = first.size
    angle = np.arctan2(second, first) / (2 * np.pi) + 0.5
    counts = np.histogram(angle, 64, (0, 1))[0]
    return (
        abs(np.sum(first * second)) / math.sqrt(n),
        abs(np.sum((first**2 - 1) * (second**2 - 1))) / (2 * math.sqrt(n)),
        (np.sum((counts - n / 64) ** 2) / (n / 64) - 63) / math.sqrt(2 * 63),
    )


def test_the_tails_are_those_of_the_normal_law():
    x = np.abs(drawn(8_000_000, seed=3))
    for bound in (2.0, 3.0, 4.0, 5.0):
        wanted = 2 * ndtr(-bound) * x.size
        assert abs(np.sum(x > bound) - wanted) < Z * math.sqrt(wanted) + 1


@pytest.mark.parametrize("break_it", [lambda x: 1.004 * x, lambda x: x + 0.004, lambda x: np.clip(x, -3, 3)])
def test_the_same_checks_catch_a_law_that_is_a_little_off(break_it):
    assert any(abs(score) > Z for score in moment_scores(break_it(drawn(2_000_000).astype(float))).values())


# ---- independence ---------------------------------------------------------------------------------------------------


def worst_correlation(rows):
    """The largest standard score of the correlation between two rows."""
    scores = (rows @ rows.T) / math.sqrt(rows.shape[1])
    return np.abs(scores[~np.eye(len(rows), dtype=bool)]).max()


@pytest.mark.parametrize("parameters", [3001, 66_771, 263_379])
def test_steps_and_models_are_uncorrelated(parameters):
    """45 pairs of (step, model) rows: a false alarm at 5 has probability 2.6e-5."""
    rows = steps([1, 2, 3, 4, 5], parameters, 2).reshape(10, parameters)
    assert worst_correlation(rows) < Z


def lag_scores(x, lag):
    """Standard scores of the correlation of values, and of squares, with those ``lag`` places on."""
    n = x.size - lag
    values = abs(np.sum(x[lag:] * x[:-lag])) / math.sqrt(n)
    squares = abs(np.sum((x[lag:] ** 2 - 1) * (x[:-lag] ** 2 - 1))) / (2 * math.sqrt(n))
    return values, squares


LAGS = (1, 2, 63, 64, 65, 128, 192, TILE, 2 * TILE, 3001, 2**17, 2**18 + 64)


def test_neighbours_far_and_near_are_uncorrelated():
    """Within a model's noise: one after the other, of one pair, counter or tile, and of the same place in two steps."""
    x = steps([0], 2**17, 3).ravel()
    assert max(max(lag_scores(x, lag)) for lag in LAGS) < Z


@pytest.mark.parametrize("lag", [64, TILE, 2**17])
def test_the_same_check_catches_places_that_share_a_word(lag):
    """One number in fifty takes its size from the one ``lag`` places before."""
    x = steps([0], 2**17, 3).ravel()
    copied = np.arange(lag, x.size, 50)
    x[copied] = np.sign(x[copied]) * np.abs(x[copied - lag])
    assert max(lag_scores(x, lag)) > Z


def worst_between(one, other):
    """The largest standard score of the correlation between a column of each, over all rows."""
    return np.abs(one.T @ other).max() / math.sqrt(len(one))


def layers_of_steps(widths, count):
    """Two models' noise of many steps, each layer's as float64 of shape ``(2 · steps, parameters of the layer)``."""
    source, found = NoiseSource([0, 1]), []
    for _ in range(count):
        layers = [np.zeros((2, width), np.float32) for width in widths]
        source.add_to(layers, np.ones(2, np.float32))
        found.append(layers)
    return [np.concatenate(layer).astype(float) for layer in zip(*found, strict=True)]


def test_tensors_are_uncorrelated():
    """Of a small network: 35 · 15 correlations of 600 numbers, a false alarm 3e-4, beside those in one layer."""
    one, other = layers_of_steps([35, 15], 300)
    assert worst_between(one, other) < Z
    assert worst_between(one[:, :20], one[:, 20:]) < Z


def test_the_same_check_catches_a_number_that_two_tensors_share():
    one, other = layers_of_steps([35, 15], 300)
    assert worst_between(np.hstack([one, other[:, :1]]), other) > Z


def test_the_same_check_catches_a_stream_used_twice():
    rows = steps([1, 2, 1], 3001, 1).reshape(3, 3001)
    assert worst_correlation(rows) > 50


# ---- each model's own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1, 7, TILE - 1, TILE, TILE + 1, 3000, 100_003])
def test_a_models_noise_does_not_depend_on_its_stack(parameters):
    """Not in a bit: whatever is made in one call with it, and wherever in that call it lies."""
    count = 30 if parameters < 10_000 else 2
    together = steps([5, 6, 7], parameters, count)
    np.testing.assert_array_equal(steps([6], parameters, count)[:, 0], together[:, 1])
    np.testing.assert_array_equal(steps([7, 6], parameters, count), together[:, [2, 1]])


def test_of_several_layers_it_does_not_either():
    together = added([5, 6, 7], [300, 1, 513], count=3)
    for whole, alone, turned in zip(
        together, added([6], [300, 1, 513], count=3), added([7, 6], [300, 1, 513], count=3), strict=True
    ):
        np.testing.assert_array_equal(alone[0], whole[1])
        np.testing.assert_array_equal(turned, whole[[2, 1]])


@pytest.mark.parametrize("widths", [[1, 1], [256, 256], [255, 300, 1, 513, 40]])
def test_layers_of_a_model_follow_each_other_and_share_no_number(widths):
    """Each has the places after those that the layers before it used, which end with a tile."""
    layers = added([3, 4], widths)
    used = [-(-width // TILE) * TILE for width in widths]
    row = steps([3, 4], sum(used), 1)[0]
    for layer, width, at in zip(layers, widths, np.cumsum([0, *used[:-1]]), strict=True):
        np.testing.assert_array_equal(layer, row[:, at : at + width].astype(np.float32))
        assert normal.counters(width) * 4 == -(-width // TILE) * TILE
    for one, other in itertools.combinations(layers, 2):
        assert not np.isin(one, other).any()


def test_a_layer_may_have_no_parameters():
    empty, layer = added([3], [0, 10])
    assert empty.shape == (1, 0)
    np.testing.assert_array_equal(layer, steps([3], 10, 1)[0].astype(np.float32))


def test_it_is_added_times_each_models_scale():
    scale = np.array([-2.0, 0.0, 0.3], np.float32)
    source, layer = NoiseSource([1, 2, 3]), np.full((3, 500), 4.0, np.float32)
    source.add_to([layer], scale)
    noise = NoiseSource([1, 2, 3]).step(500)
    np.testing.assert_array_equal(layer, np.float32(4) + scale[:, None] * noise)
    assert (layer[1] == 4).all()


@pytest.mark.parametrize("parameters", [1, 7, TILE - 1, TILE + 1, 2**17])
def test_no_number_is_given_twice(parameters):
    rows = steps([3], parameters, max(2, 3000 // parameters))
    assert len(np.unique(rows)) > 0.9 * rows.size  # of float32 numbers some are equal by chance


def test_a_step_is_a_function_of_key_step_and_place():
    key = stream(4, "noise").integers(0, 2**32, 4, np.uint32)
    for number, row in enumerate(steps([4], 700, 3)[:, 0]):
        wanted = np.zeros((1, 700), np.float32)
        normal.add_normals(wanted, np.ones(1, np.float32), key[None], number, 0)
        np.testing.assert_array_equal(row, wanted[0])


def test_another_number_of_parameters_has_the_same_beginning():
    np.testing.assert_array_equal(steps([4], 700, 3)[:, :, :299], steps([4], 299, 3))


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

    def layers_of(seeds, count):
        source, found = DeviceNoise(seeds, device), []
        for _ in range(count):
            layers = [torch.zeros((len(seeds), width), device=device) for width in (150_000, 50_000)]
            source.add_to(layers, torch.ones(len(seeds), device=device))
            found.append([layer.cpu().numpy() for layer in layers])
        return found

    together = layers_of([1, 2], 2)
    rows = np.concatenate([np.concatenate(layers, axis=1) for layers in together]).astype(float)
    assert worst_correlation(rows) < Z
    assert worst_correlation(np.concatenate([rows[:, :50_000], rows[:, 150_000:]])) < Z
    assert all(abs(score) < Z for score in moment_scores(rows).values())
    for alone, both in zip(layers_of([2], 2), together, strict=True):
        for one, two in zip(alone, both, strict=True):
            np.testing.assert_array_equal(one[0], two[1])


def test_on_a_device_it_is_added_times_each_models_scale():
    torch = pytest.importorskip("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ones, scaled = (torch.full((3, 500), value, device=device) for value in (0.0, 4.0))
    scale = torch.tensor([-2.0, 0.0, 0.3], device=device)
    DeviceNoise([1, 2, 3], device).add_to([ones], torch.ones(3, device=device))
    DeviceNoise([1, 2, 3], device).add_to([scaled], scale)
    torch.testing.assert_close(scaled, 4 + scale[:, None] * ones)
