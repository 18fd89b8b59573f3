"""Small products inside compiled loops, against float64: any shape, any strides, nothing read or written beyond."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from dpaudit.trainers.small_products import LANES, multiply, multiply_at, padded, room

CLOSE = 2e-6  # of the sum of absolute products: single precision
CANARY = np.float32(123.456)

# As transformers have them: weights as they are and turned, values in rows that are part of wider ones.
ORDERS = {
    "as it is": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "part of a larger one": lambda a: around(a, 2, 3),
    "part of a larger one, transposed": lambda a: around(a.T, 3, 2).T,
    "every other row and column": lambda a: strided(a),
}


def reals(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def around(a, rows, columns, filling=np.nan):
    """In the corner of a larger matrix, whose other numbers must not matter."""
    block = np.full((len(a) + rows, a.shape[1] + columns), filling, np.float32)
    block[: len(a), : a.shape[1]] = a
    return block[: len(a), : a.shape[1]]


def strided(a):
    block = np.full((2 * len(a) + 1, 2 * a.shape[1] + 1), np.nan, np.float32)
    block[1::2, 1::2] = a
    return block[1::2, 1::2]


def misfit(out, a, x, start=0.0):
    """The largest difference from float64, over the sum of the absolute values of what was added up."""
    a, x, start = a.astype(np.float64), x.astype(np.float64), np.asarray(start, np.float64)
    wanted, size = start + a @ x, np.abs(start) + np.abs(a) @ np.abs(x)
    return float((np.abs(out - wanted) / np.maximum(size, 1e-300)).max())


class Guarded:
    """A matrix in the middle of a larger one: who writes beyond it changes a canary."""

    def __init__(self, start):
        rows, columns = start.shape
        self.block = np.full((rows + 10, columns + 4 * LANES), CANARY, np.float32)
        self._place = slice(5, 5 + rows), slice(2 * LANES, 2 * LANES + columns)
        self.view = self.block[self._place]
        self.view[...] = start

    def intact(self):
        beyond = np.ones(self.block.shape, bool)
        beyond[self._place] = False
        return bool((self.block[beyond] == CANARY).all())


@pytest.mark.parametrize("place", [(4, 2 * LANES), (5, 2 * LANES - 1), (5, 3 * LANES), (8, 2 * LANES)])
def test_the_guard_notices_a_write_beyond_a_matrix(place):
    guarded = Guarded(np.zeros((3, LANES), np.float32))
    assert guarded.intact()
    guarded.block[place] = 0
    assert not guarded.intact()


@pytest.mark.parametrize("panels", [1, 2, 3, 5])
@pytest.mark.parametrize("inner", [1, 2, 7, 64, 300])
def test_products_are_right_and_nothing_is_written_beyond(inner, panels):
    for rows in range(1, 21):
        a, x, start = reals(rows, inner), reals(inner, panels * LANES, seed=1), reals(rows, panels * LANES, seed=2)
        for add in (False, True):
            out = Guarded(start)
            assert multiply(a, x, out.view, add) is None
            assert out.intact()
            assert misfit(out.view, a, x, start if add else 0.0) < CLOSE, (rows, add)


def test_the_same_check_catches_half_precision_and_a_term_less():
    a, x = reals(5, 64), reals(64, LANES, seed=1)
    assert misfit(a.astype(np.float16).astype(np.float32) @ x, a, x) > 10 * CLOSE
    assert misfit(a[:, :-1] @ x[:-1], a, x) > 10 * CLOSE


@pytest.mark.parametrize("rows", [1, 8, 13])
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_in_memory_does_not_matter(order, rows):
    """Numbers that lie around those of a matrix are NaN: who used them would show it."""
    for inner, columns in ((1, LANES), (9, 3 * LANES), (33, 2 * LANES)):
        plain, narrow, start = reals(rows, inner), reals(inner, columns, seed=1), reals(rows, columns, seed=2)
        a = ORDERS[order](plain)
        np.testing.assert_array_equal(a, plain)
        for x in (narrow, around(narrow, 2, LANES)):
            for add in (False, True):
                out = Guarded(start)
                multiply(a, x, out.view, add)
                assert out.intact() and misfit(out.view, plain, narrow, start if add else 0.0) < CLOSE


@pytest.mark.parametrize("turned", [False, True])
def test_what_of_the_first_is_beyond_the_second_and_the_result_is_not_used(turned):
    """As padded weights are: more columns than rows follow, and more rows than are wanted."""
    part = reals(5, 9)
    a, x = around(part, 4, 7).base, reals(9, 2 * LANES, seed=1)
    if turned:
        a = np.ascontiguousarray(a.T).T
    out = Guarded(np.full((5, 2 * LANES), np.nan, np.float32))
    multiply(a, x, out.view, False)
    assert out.intact() and misfit(out.view, part, x) < CLOSE


def test_columns_of_the_second_beyond_the_result_are_not_used():
    a, x = reals(10, 9), reals(9, LANES, seed=1)
    out = Guarded(np.zeros((10, LANES), np.float32))
    multiply(a, around(x, 0, 2 * LANES).base, out.view, False)
    assert out.intact() and misfit(out.view, a, x) < CLOSE


@pytest.mark.parametrize("rows", [1, 11])
def test_without_an_inner_dimension_there_are_zeros_or_what_was(rows):
    start = reals(rows, 2 * LANES)
    for add in (False, True):
        out = Guarded(start)
        multiply(np.empty((rows, 0), np.float32), np.empty((0, 2 * LANES), np.float32), out.view, add)
        assert out.intact()
        np.testing.assert_array_equal(out.view, start if add else np.zeros_like(start))


def test_without_rows_or_columns_nothing_happens():
    multiply(np.empty((0, 3), np.float32), reals(3, LANES), np.empty((0, LANES), np.float32), False)
    multiply(reals(4, 3), np.empty((3, 0), np.float32), np.empty((4, 0), np.float32), False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 7, 8, 12])
def test_what_is_not_finite_in_a_row_stays_in_it(row, bad):
    """In tiles of many rows, and in what is left of them."""
    a, x = reals(13, 6), reals(6, 3 * LANES, seed=1)
    clean, out = (np.zeros((13, 3 * LANES), np.float32) for _ in range(2))
    multiply(a, x, clean, False)
    a[row, 4] = bad
    multiply(a, x, out, False)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out[row], np.where(np.isnan(bad), np.nan, bad * np.sign(x[4])))
    np.testing.assert_array_equal(np.delete(out, row, 0), np.delete(clean, row, 0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, LANES - 1, LANES, 3 * LANES - 1])
def test_what_is_not_finite_in_a_column_stays_in_it(column, bad):
    a, x = reals(13, 6), reals(6, 3 * LANES, seed=1)
    clean, out = (np.zeros((13, 3 * LANES), np.float32) for _ in range(2))
    multiply(a, x, clean, False)
    x[2, column] = bad
    multiply(a, x, out, False)
    np.testing.assert_array_equal(out[:, column], np.where(np.isnan(bad), np.nan, bad * np.sign(a[:, 2])))
    np.testing.assert_array_equal(np.delete(out, column, 1), np.delete(clean, column, 1))


def test_nothing_times_what_is_not_finite_is_no_number():
    """Zeros may not be skipped."""
    a, x = reals(9, 6), reals(6, LANES, seed=1)
    a[:, 2] = 0
    x[2] = np.inf
    out = np.zeros((9, LANES), np.float32)
    multiply(a, x, out, False)
    assert np.isnan(out).all()


def test_what_was_there_counts_only_where_it_is_added_to():
    a, x = reals(9, 6), reals(6, 2 * LANES, seed=1)
    out = np.full((9, 2 * LANES), np.nan, np.float32)
    multiply(a, x, out, True)
    assert np.isnan(out).all()
    multiply(a, x, out, False)
    assert misfit(out, a, x) < CLOSE


def test_sums_beyond_the_largest_number_are_infinite():
    out = np.zeros((1, LANES), np.float32)
    multiply(np.full((1, 2), 3e38, np.float32), np.ones((2, LANES), np.float32), out, False)
    assert (out == np.inf).all()


def test_the_same_twice_is_the_same_to_the_last_bit():
    a, x = reals(19, 65), reals(65, 3 * LANES, seed=1)
    first, second = (Guarded(np.zeros((19, 3 * LANES), np.float32)) for _ in range(2))
    multiply(a, x, first.view, False)
    multiply(a, x, second.view, False)
    np.testing.assert_array_equal(first.view, second.view)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize(("outer", "inner"), [(1, 5), (3, 1), (3, 5), (0, 5), (3, 0)])
def test_an_inner_dimension_of_two_levels_is_right(outer, inner, rows):
    """As that of a convolution, whose windows overlap: the left matrix is read where its steps lead."""
    source, columns, steps = reals(400), 3 * LANES, (7, 31, 2)
    places = sum(np.ix_(*(step * np.arange(n) for step, n in zip(steps, (rows, outer, inner), strict=True))))
    a, x, start = source[places].reshape(rows, -1), reals(outer * inner, columns, seed=1), reals(rows, columns, seed=2)
    for add in (False, True):
        out = Guarded(start)
        lines, given = out.block.shape[1], around(x, 1, LANES)
        multiply_at(
            source.ctypes.data, *steps, given.ctypes.data, columns + LANES, out.view.ctypes.data, lines, rows, outer,
            inner, columns, add,
        )  # fmt: skip
        assert out.intact() and misfit(out.view, a, x, start if add else 0.0) < CLOSE


def test_padding_is_up_to_the_next_multiple():
    for numbers in range(5 * LANES):
        assert padded(numbers) == next(n for n in range(0, 6 * LANES, LANES) if n >= numbers)


@pytest.mark.parametrize("numbers", [0, 1, 15, 16, 17, 1000])
def test_room_is_of_zeros_and_begins_at_a_cache_line(numbers):
    rooms = [room(numbers) for _ in range(5)]
    assert all(r.shape == (numbers,) and r.dtype == np.float32 and not r.any() for r in rooms)
    assert all(r.ctypes.data % 64 == 0 for r in rooms)
