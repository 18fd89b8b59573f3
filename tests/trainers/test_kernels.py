"""Each compiled loop against plain numpy in float64, with what is not finite, and canaries around what it writes."""

from __future__ import annotations

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from dpaudit.trainers import kernels  # noqa: E402

CANARY = np.float32(123.456)
SHAPES = [(1, 1, 1), (3, 4, 8), (2, 7, 13), (5, 3, 64), (2, 1, 100), (1, 33, 7)]  # models, units, places
LARGEST = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)
CLOSE = {"rtol": 2e-6, "atol": 0}

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def reals(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


class Guarded:
    """Arrays in the middle of larger blocks: a loop that writes beyond them changes a canary."""

    def __init__(self):
        self._blocks = []

    def array(self, content):
        content = np.asarray(content)
        canary = CANARY if content.dtype == np.float32 else 77
        block = np.full(content.size + 128, canary, content.dtype)
        view = block[64 : 64 + content.size].reshape(content.shape)
        view[...] = content
        self._blocks.append((block, content.size, canary))
        return view

    def empty(self, *shape, dtype=np.float32):
        """Full of NaN (or −9): what was there before must not matter."""
        return self.array(np.full(shape, np.nan if dtype == np.float32 else -9, dtype))

    def intact(self):
        return all((b[:64] == canary).all() and (b[64 + n :] == canary).all() for b, n, canary in self._blocks)


@pytest.fixture
def room():
    guarded = Guarded()
    yield guarded
    assert guarded.intact()


def test_the_guard_notices_a_write_beyond_an_array():
    for place in (63, 64 + 12):
        guarded = Guarded()
        view = guarded.empty(3, 4)
        view.base[place] = 0
        assert not guarded.intact()


# ---- records --------------------------------------------------------------------------------------------------------


def table(records=9, features=5):
    """With one record of zeros at the end, as the engine has it."""
    x, y = reals(records + 1, features), np.arange(records + 1) % 4
    x[-1], y[-1] = 0, 0
    return x, y, (x**2).sum(1)


@pytest.mark.parametrize(("known", "width"), [(6, 6), (6, 8), (0, 8), (1, 16)])
def test_records_are_gathered_and_further_places_are_empty(known, width, room):
    all_x, all_y, all_squares = map(room.array, table())
    index = np.random.default_rng(1).integers(0, 10, (3, known))
    x, y, squares = room.empty(3, width, 5), room.empty(3, width, dtype=np.int64), room.empty(3, width)
    kernels.gather(x, y, squares, all_x, all_y, all_squares, index)
    whole = np.concatenate([index, np.full((3, width - known), 9)], axis=1)
    np.testing.assert_array_equal(x, all_x[whole])
    np.testing.assert_array_equal(y, all_y[whole])
    np.testing.assert_array_equal(squares, all_squares[whole])
    assert not x[:, known:].any()


def test_an_index_may_be_part_of_a_wider_one(room):
    x, y, squares = room.empty(3, 8, 5), room.empty(3, 8, dtype=np.int64), room.empty(3, 8)
    index = np.random.default_rng(1).integers(0, 9, (3, 20))
    kernels.gather(x, y, squares, *table(), index[:, :7])
    np.testing.assert_array_equal(x[:, :7], table()[0][index[:, :7]])
    assert not x[:, 7].any()


def test_what_is_not_finite_in_a_record_is_gathered_as_it_is(room):
    all_x, all_y, all_squares = table()
    all_x[2, 1], all_x[3, 0], all_squares[2:4] = np.nan, -np.inf, [np.nan, np.inf]
    x, y, squares = room.empty(1, 8, 5), room.empty(1, 8, dtype=np.int64), room.empty(1, 8)
    kernels.gather(x, y, squares, all_x, all_y, all_squares, np.array([[2, 3, 4]]))
    np.testing.assert_array_equal(x[0, :3], all_x[2:5])
    assert np.isnan(squares[0, 0]) and squares[0, 1] == np.inf and np.isfinite(squares[0, 2:]).all()


# ---- ReLU -----------------------------------------------------------------------------------------------------------


def batch_sizes(models, places):
    """All of the places, none, and between."""
    return np.linspace(places, 0, models).astype(np.int64)


@each_shape
def test_units_are_activated_and_the_last_is_one_for_records(shape, room):
    models, units, places = shape
    z, sizes = room.array(reals(*shape, scale=3)), batch_sizes(models, places)
    a, squares, before = room.empty(models, units + 1, places), room.empty(models, places), z.copy()
    kernels.activate(z, a, squares, sizes)
    np.testing.assert_array_equal(z, before)
    np.testing.assert_array_equal(a[:, :-1], np.maximum(z, 0))
    np.testing.assert_array_equal(a[:, -1], np.arange(places) < sizes[:, None])
    np.testing.assert_allclose(squares, (a.astype(float) ** 2).sum(1), **CLOSE)


def test_what_is_not_finite_stays_unless_it_is_negative(room):
    z = room.array(np.array([[[np.nan, np.inf, -np.inf, -0.0, -1.0, 2.0, 3e38]]], np.float32))
    a, squares = room.empty(1, 2, 7), room.empty(1, 7)
    kernels.activate(z, a, squares, np.array([7]))
    np.testing.assert_array_equal(a[0, 0], np.array([np.nan, np.inf, 0, 0, 0, 2, 3e38], np.float32))
    np.testing.assert_array_equal(squares[0], np.array([np.nan, np.inf, 1, 1, 1, 5, np.inf], np.float32))


@each_shape
def test_slopes_behind_units_that_are_off_are_zero(shape, room):
    models, units, places = shape
    slopes, a = room.array(reals(*shape)), room.array(np.maximum(reals(models, units + 1, places, seed=1), 0))
    before = slopes.copy()
    kernels.mask(slopes, a)
    np.testing.assert_array_equal(slopes, np.where(a[:, :-1] > 0, before, 0))


def test_a_unit_that_is_nan_keeps_its_slope_and_one_that_is_off_loses_even_nan(room):
    nan, inf = np.nan, np.inf
    slopes = room.array(np.array([[[nan, nan, 2.0, 2.0, inf, inf]]], np.float32))
    kernels.mask(slopes, room.array(np.array([[[1.0, 0.0, nan, inf, 0.0, -0.0], [1.0] * 6]], np.float32)))
    np.testing.assert_array_equal(slopes[0, 0], [nan, 0, 2, 2, 0, 0])


# ---- softmax --------------------------------------------------------------------------------------------------------


def slow_slopes(z, y):
    z = z.astype(np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    k, b = np.indices(y.shape)
    p[k, y, b] -= 1
    return p


def labels(shape):
    return np.random.default_rng(2).integers(0, shape[1], (shape[0], shape[2]))


@each_shape
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_slopes_are_softmax_less_the_label(shape, scale, room):
    z, y = room.array(reals(*shape, scale=scale)), room.array(labels(shape))
    wanted, before = slow_slopes(z, y), y.copy()
    kernels.softmax_slopes(z, y)
    np.testing.assert_allclose(z, wanted, rtol=1e-6, atol=3e-7)  # of p − 1 only the difference from 1 is known
    np.testing.assert_array_equal(y, before)
    others = np.arange(shape[1])[:, None] != y[:, None]
    # The difference of two logits is rounded before it is an exponent, and what is less than 10⁻³⁸ is that.
    np.testing.assert_allclose(z[others], wanted[others], rtol=1e-5, atol=2e-38)


def test_slopes_add_up_to_zero(room):
    z, y = room.array(reals(4, 10, 40, scale=5)), labels((4, 10, 40))
    kernels.softmax_slopes(z, y)
    np.testing.assert_allclose(z.sum(1, dtype=float), 0, atol=1e-6)


def test_a_constant_that_all_logits_share_does_not_matter():
    z, y = np.round(reals(2, 5, 9, scale=50)), labels((2, 5, 9))
    moved = z + np.float32(2**15)
    kernels.softmax_slopes(z, y)
    kernels.softmax_slopes(moved, y)
    np.testing.assert_array_equal(z, moved)


def test_extreme_logits_make_certainties(room):
    z = np.zeros((1, 3, 6), np.float32)
    z[0, :, 0] = 1e4, -1e4, -1e4
    z[0, :, 1] = -1e4, -1e4, -1e4
    z[0, :, 2] = LARGEST, -LARGEST, 0
    z[0, :, 3] = -np.inf, 0, 0
    z[0, :, 4] = -np.inf, -np.inf, 5
    z[0, :, 5] = LARGEST, LARGEST, LARGEST
    z = room.array(z)
    kernels.softmax_slopes(z, np.zeros((1, 6), np.int64))
    third = 1 / 3
    wanted = [[0, 0, 0], [third - 1, third, third], [0, 0, 0], [-1, 0.5, 0.5], [-1, 0, 1], [third - 1, third, third]]
    np.testing.assert_allclose(z[0].T, wanted, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("unit", [0, 1, 3])
@pytest.mark.parametrize("place", [0, 5, 16])
def test_logits_that_are_not_finite_spoil_their_column_and_no_other(bad, unit, place, room):
    z, y = reals(2, 4, 17), labels((2, 4, 17))
    wanted = slow_slopes(z, y)
    z[1, unit, place] = bad
    z = room.array(z)
    kernels.softmax_slopes(z, y)
    assert np.isnan(z[1, :, place]).all()
    z[1, :, place] = wanted[1, :, place] = 0
    np.testing.assert_allclose(z, wanted, rtol=1e-6, atol=3e-7)


def test_logits_that_are_all_minus_infinity_are_no_probabilities(room):
    z = room.array(np.full((1, 3, 9), -np.inf, np.float32))
    kernels.softmax_slopes(z, np.zeros((1, 9), np.int64))
    assert np.isnan(z).all()


# ---- norms ----------------------------------------------------------------------------------------------------------


@each_shape
def test_squares_of_layers_add_up(shape, room):
    models, _, places = shape
    total, slopes = room.array(np.abs(reals(models, places))), room.array(reals(*shape, seed=1))
    squares = room.array(np.abs(reals(models, places, seed=2)))
    wanted = total + (slopes.astype(float) ** 2).sum(1) * squares
    kernels.add_squares(total, slopes, squares)
    np.testing.assert_allclose(total, wanted, **CLOSE)


def test_squares_that_overflow_are_infinite_and_those_of_padding_nothing(room):
    slopes = np.ones((1, 2, 6), np.float32)
    slopes[0, 0] = 1e20, 1e10, 0, np.nan, np.inf, 1
    squares = np.array([[1, 1e20, 0, 1, 0, np.inf]], np.float32)
    total = room.array(np.zeros((1, 6), np.float32))
    kernels.add_squares(total, slopes, squares)
    np.testing.assert_array_equal(total[0], [np.inf, np.inf, 0, np.nan, np.nan, np.inf])


# ---- clipping -------------------------------------------------------------------------------------------------------


def weighed(squares, norms, sizes, room):
    total = room.array(np.asarray(squares, np.float32))
    counts = room.array(np.full((len(total), 2), -9, np.int32))
    lost = kernels.weigh(total, np.asarray(norms, np.float32), np.asarray(sizes), counts)
    return total, lost, counts


def test_weights_are_the_clip_norm_over_the_norm_and_at_most_one(room):
    squares = np.abs(reals(4, 50, scale=2)) ** 3
    norms, sizes = [0.01, 1.0, 7.0, 1e30], [50, 20, 0, 50]
    total, lost, counts = weighed(squares, norms, sizes, room)
    wanted = np.minimum(1, np.array(norms)[:, None] / np.sqrt(squares.astype(float)))
    np.testing.assert_allclose(total, wanted, rtol=2e-7)
    assert lost == 0 and not np.signbit(total).any()
    records = np.arange(50) < np.array(sizes)[:, None]
    np.testing.assert_array_equal(counts, np.stack([((total < 1) & records).sum(1), np.zeros(4)], axis=1))
    assert counts[0, 0] > 40 and 0 < counts[1, 0] < 20 and counts[2:, 0].tolist() == [0, 0]


def test_norms_that_are_extreme(room):
    squares = [0, TINY, 1e-38, 1.0, np.nextafter(np.float32(1), np.float32(2)), 1e38, LARGEST]
    total, lost, counts = weighed([squares], [1.0], [7], room)
    np.testing.assert_allclose(total[0], [1, 1, 1, 1, 1, 1e-19, 1 / math.sqrt(LARGEST)], rtol=2e-7)
    assert lost == 0 and counts[0, 0] in (2, 3) and not np.signbit(total).any()  # the one next to 1 may round to 1


def test_the_smallest_clip_norm_over_the_largest_norm_is_no_dropped_gradient(room):
    total, lost, counts = weighed([[LARGEST, 0.0]], [1.2e-38], [2], room)
    assert lost == 0 and counts.tolist() == [[1, 0]]
    assert 0 <= total[0, 0] < 1e-38 and total[0, 1] == 1 and not np.signbit(total).any()


def test_what_is_not_finite_weighs_nothing_with_a_sign_and_only_that(room):
    squares = [[np.inf, 1.0, np.nan, 4.0, -np.nan, 0.0], [1.0] * 6, [np.nan] * 6]
    total, lost, counts = weighed(squares, [1.0, 0.5, 1.0], [4, 6, 2], room)
    np.testing.assert_array_equal(total, [[0, 1, 0, 0.5, 0, 1], [0.5] * 6, [0] * 6])
    np.testing.assert_array_equal(np.signbit(total), ~np.isfinite(squares))
    assert lost == 9  # of padding too: it is set to zero as well
    assert counts.tolist() == [[1, 2], [6, 0], [0, 2]]


def test_no_places_at_all_are_counted_as_nothing(room):
    _, lost, counts = weighed(np.zeros((2, 0)), [1, 1], [0, 0], room)
    assert lost == 0 and not counts.any()


@each_shape
def test_slopes_are_scaled_place_by_place(shape, room):
    models, _, places = shape
    slopes, weights = room.array(reals(*shape)), room.array(reals(models, places, seed=1))
    wanted = slopes * weights[:, None]
    kernels.scale(slopes, weights)
    np.testing.assert_array_equal(slopes, wanted)


@each_shape
def test_clipped_gradients_are_no_longer_than_the_clip_norm(shape, room):
    """The three together, as a step uses them: outer products of inputs and slopes."""
    models, _, places = shape
    slopes, inputs = reals(*shape, scale=3), reals(models, places, 6, seed=1)
    squares = (inputs**2).sum(2)
    total, counts = room.array(np.zeros((models, places), np.float32)), np.zeros((models, 2), np.int32)
    kernels.add_squares(total, slopes, squares)
    kernels.weigh(total, np.full(models, 0.7, np.float32), np.full(models, places), counts)
    before = slopes.astype(float)
    kernels.scale(slopes, total)
    gradients, unclipped = (np.einsum("kub,kbi->kbui", s.astype(float), inputs.astype(float)) for s in (slopes, before))
    lengths, long = (np.sqrt((g**2).sum((2, 3))) for g in (gradients, unclipped))
    np.testing.assert_allclose(lengths, np.minimum(long, 0.7), rtol=1e-6)
    np.testing.assert_array_equal(counts[:, 0], (long > 0.7).sum(1))
