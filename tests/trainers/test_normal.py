"""Normal numbers by their place: Philox's words, Box and Muller's numbers, each a function of key, step and place."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from dpaudit.trainers import normal  # noqa: E402

ROOT = Path(__file__).parents[2]
KEY = [0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
TILE = 256  # numbers made together, from 64 counters
EXTREME = [0, 1, 2, 127, 128, 2**24 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1, 3037000499, 3037000500]
EXTREME += [2**32 - 385, 2**32 - 384, 2**32 - 129, 2**32 - 128, 2**32 - 127, 2**32 - 2, 2**32 - 1]
DIGEST = "7752ceb8f35c81c7ee7168b08da5eb5ffc847de73b2967ea1dc59b086753a004"  # of a million numbers
NEAR_ONE = 2.5e-4  # √(−2 ln u) for the u next to 1 in float32: how far the radius may be off there


def words(counters, key=KEY, step=0, first=0):
    out = np.empty((counters, 4), np.uint32)
    normal.fill_words(out, np.array(key, np.uint32), step, first)
    return out


def numbers(count, key=KEY, step=0, first=0, dtype=np.float32):
    out = np.zeros((1, count), dtype)
    normal.add_normals(out, np.ones(1, dtype), np.array([key], np.uint32), step, first)
    return out[0]


@numba.njit
def fill_pairs(out, u, v):
    """The inlined function, so that it can be given words."""
    for i in range(len(u)):
        out[0, i], out[1, i] = normal._pair(u[i], v[i])


def pairs(u, v):
    """What is made of words, shape ``(2, *words)``."""
    u, v = np.broadcast_arrays(np.asarray(u, np.uint32), np.asarray(v, np.uint32))
    out = np.empty((2, u.size), np.float32)
    fill_pairs(out, u.ravel(), v.ravel())
    return out.reshape(2, *u.shape)


# ---- the words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_words_are_philoxs(counter, key, wanted):
    """Known answers of philox4x32-10 from ``kat_vectors`` of Random123, the library of its authors."""
    first, step, *upper = (int(word, 16) for word in counter.split())
    made = words(1, upper + [int(word, 16) for word in key.split()], step, first)
    assert " ".join(f"{word:08x}" for word in made[0]) == wanted


def test_counters_follow_each_other():
    together = words(300, first=2**31 - 100)
    for at in (0, 1, 63, 64, 99, 100, 299):
        np.testing.assert_array_equal(words(1, first=2**31 - 100 + at)[0], together[at])
    assert len(np.unique(together)) == together.size


# ---- from words to numbers ------------------------------------------------------------------------------------------


def exact(u, v):
    """Box and Muller's pairs in float64. A pair's angle is π/2 times the two highest bits of v, the higher for half a
    turn and the lower for a reflection, and the other bits as a signed number of eighths of a turn.
    """
    radius = np.sqrt(-2 * np.log((np.asarray(u) | 1) / 2**32))
    t = (np.asarray(v, np.uint32) << np.uint32(2)).view(np.int32) * (np.pi / 4 * 2.0**-31)
    cosine, sine = np.cos(t), np.sin(t)
    swapped, sign = (v >> 30) & 1 == 1, np.where(v >> 31, -1, 1)
    return sign * radius * np.where(swapped, [sine, cosine], [cosine, sine])


def laid_out(made):
    """Two pairs per counter, shape ``(2, 2, counters)``, in the order of the numbers."""
    return made.reshape(2, 2, -1, 64).transpose(2, 0, 1, 3).ravel()


def test_numbers_are_box_and_mullers():
    """2¹⁷ of them: a radius of less than 0.01 has a probability of 5·10⁻⁵, and there u is coarse."""
    bits = words(2**15, step=3).astype(np.int64)
    wanted = laid_out(np.stack([exact(bits[:, 0], bits[:, 1]), exact(bits[:, 2], bits[:, 3])]))
    made = numbers(wanted.size, step=3)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=NEAR_ONE)
    u = laid_out(np.repeat([bits[:, :1].T, bits[:, 2:3].T], 2, axis=1))
    far = np.sqrt(-2 * np.log((u | 1) / 2**32)) > 0.05
    assert far.mean() > 0.99
    np.testing.assert_allclose(made[far], wanted[far], rtol=0, atol=2e-6)


def test_the_angles_are_those_of_a_whole_turn():
    """Of words at equal distances: each of 64 equal arcs has as many, on average in its middle."""
    v = np.arange(2**16) * 2**16 + 2**15
    cosine, sine = pairs(2**31, v).astype(float)
    np.testing.assert_allclose(np.hypot(cosine, sine), np.sqrt(2 * np.log(2)), rtol=1e-6)
    arc = (np.arctan2(sine, cosine) / (2 * np.pi) + 0.5) * 64
    np.testing.assert_array_equal(np.bincount(arc.astype(int) % 64, minlength=64), 2**10)
    np.testing.assert_allclose(np.bincount(arc.astype(int) % 64, arc % 1) / 2**10, 0.5, atol=2e-3)


def test_extreme_words_make_finite_numbers():
    u, v = np.meshgrid(EXTREME, [*EXTREME, 2**29 - 1, 2**29, 2**30 - 1, 2**30, 2**30 + 2**29, 3 * 2**30])
    made = pairs(u, v)
    assert np.isfinite(made).all()
    assert np.abs(made).max() == np.float32(normal.LARGEST) == np.float32(6.6604369)
    np.testing.assert_allclose(made, exact(u, v), rtol=0, atol=NEAR_ONE)
    np.testing.assert_allclose(made[:, u < 2**31], exact(u, v)[:, u < 2**31], rtol=0, atol=2e-6)


@pytest.mark.parametrize("start", [0, 3037000500 - 2**19, 2**31 - 2**19, 2**32 - 2**20])
def test_the_radius_falls_as_the_word_rises(start):
    """A million words in a row at the ends, at √½ and at a power of two, where the logarithm's parts change."""
    radius = pairs(np.arange(start, start + 2**20), 0)[0]
    assert np.isfinite(radius).all() and radius.min() >= 0 and radius.max() <= np.float32(normal.LARGEST)
    assert np.diff(radius).max() <= 5e-7  # one unit in the last place


def horner(x, coefficients):
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = c + x * total
    return total


def fused(x, coefficients):
    """Products are exact in float64, and so are sums but for their last bits."""
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = (c + x.astype(np.float64) * total).astype(np.float32)
    return total


def twin(u, v, polynomial=horner):
    """The same operations one after the other on whole arrays of float32, where nothing can be fused."""
    single = np.float32
    bits = (u | np.uint32(1)).astype(single).view(np.uint32) - np.uint32(0x3F3504F3)
    exponent = ((bits.view(np.int32) >> 23) - 32).astype(single)
    f = ((bits & np.uint32(0x7FFFFF)) + np.uint32(0x3F3504F3)).view(single) - single(1)
    p = polynomial(f, [normal._L0, normal._L1, normal._L2, normal._L3, normal._L4, normal._L5, normal._L6, normal._L7])
    r = np.sqrt(single(-2) * (exponent * single(np.log(2)) + (f + f * f * p)))
    r = np.where(v >> np.uint32(31), -r, r)
    t = (v << np.uint32(2)).view(np.int32).astype(single) * single(np.pi / 4 * 2.0**-31)
    z = t * t
    s = t * polynomial(z, [normal._S0, normal._S1, normal._S2, normal._S3])
    c = polynomial(z, [normal._C0, normal._C1, normal._C2, normal._C3, normal._C4])
    swapped = (v >> np.uint32(30)) & np.uint32(1)
    return np.stack([r * np.where(swapped, s, c), r * np.where(swapped, c, s)])


def test_products_and_sums_are_rounded_one_by_one():
    """Not in a bit may they differ: if only the polynomials were fused, 4 % would."""
    bits = words(2**16, step=9)
    made = numbers(4 * len(bits), step=9)
    u0, v0, u1, v1 = (np.ascontiguousarray(column) for column in bits.T)
    one_by_one = laid_out(np.stack([twin(u0, v0), twin(u1, v1)]))
    assert one_by_one.dtype == np.float32
    np.testing.assert_array_equal(made.view(np.uint32), one_by_one.view(np.uint32))
    assert np.mean(made != laid_out(np.stack([twin(u0, v0, fused), twin(u1, v1, fused)]))) > 0.02
    factor = np.full(1, 1.7, np.float32)
    sums = np.arange(made.size, dtype=np.float32)[None] / 1000
    wanted = sums + factor * made
    normal.add_normals(sums, factor, np.array([KEY], np.uint32), 9, 0)
    np.testing.assert_array_equal(sums, wanted)


def test_the_bits_are_those_of_other_machines():
    """As first made, on an AMD EPYC of 2024: the polynomials are fitted when the module is loaded."""
    assert digest() == DIGEST


def test_a_processor_without_vectors_gives_the_same_bits():
    """Compiled for the oldest 64-bit processor, in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_normal as t; print(t.digest())"
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == DIGEST, done.stderr


def digest():
    return hashlib.sha256(numbers(10**6, step=5).astype("<f4").tobytes()).hexdigest()


# ---- places ---------------------------------------------------------------------------------------------------------


def test_a_shorter_row_is_the_beginning_of_a_longer_single():
    """At every length up to four tiles and a bit, whatever the loops do with what is left over."""
    longest = numbers(1030)
    for length in range(1030):
        np.testing.assert_array_equal(numbers(length), longest[:length])


def test_nothing_beyond_a_row_is_written():
    room = np.zeros((3, 1030), np.float32)
    for length in (1, 63, 65, 255, 257, 700):
        rows = room.ravel()[: 2 * length].reshape(2, length)
        normal.add_normals(rows, np.ones(2, np.float32), np.array([KEY, KEY], np.uint32), 0, 0)
        assert rows.all() and not room.ravel()[2 * length :].any()
        room[:] = 0


def test_any_part_of_a_row_can_be_made_alone():
    whole = numbers(10 * TILE)
    for tile in range(10):
        np.testing.assert_array_equal(numbers(TILE, first=64 * tile), whole[TILE * tile : TILE * (tile + 1)])


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000, 10**6])
def test_what_follows_starts_after_the_counters_that_are_used(count):
    used = normal.counters(count)
    assert used % 64 == 0 and 4 * (used - 64) < count <= 4 * used
    both = numbers(4 * used + 100)
    np.testing.assert_array_equal(numbers(100, first=used), both[4 * used :])
    np.testing.assert_array_equal(numbers(count), both[:count])


def test_no_counters_for_no_numbers():
    assert normal.counters(0) == 0 and numbers(0).shape == (0,)


def test_every_word_of_the_key_the_step_and_the_place_count():
    """Rows that differ in one of them by one bit, the lowest or the highest: all different, none correlated."""
    rows = [numbers(3000)]
    for place in range(4):
        for bit in (1, 2**31):
            rows.append(numbers(3000, [word ^ bit * (at == place) for at, word in enumerate(KEY)]))
    rows += [numbers(3000, step=step) for step in (1, 2, 2**31, 2**32 - 1)]
    rows += [numbers(3000, first=first) for first in (64 * 12, 2**31, 2**32 - 64 * 12)]
    together = np.stack(rows).astype(float)
    scores = together @ together.T / np.sqrt(3000)
    assert np.abs(scores[~np.eye(len(rows), dtype=bool)]).max() < 5
    assert len(np.unique(together)) > 0.99 * together.size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_what_each_is_alone(dtype):
    """Each with its own key and scale, on top of what is there."""
    keys = np.random.default_rng(0).integers(0, 2**32, (5, 4), np.uint32)
    scale = np.array([1.0, -0.3, 0.0, 1e-3, 7.0], dtype)
    start = np.random.default_rng(1).normal(size=(5, 777)).astype(dtype)
    out = start.copy()
    normal.add_normals(out, scale, keys, 2, 64)
    for k, key in enumerate(keys):
        alone = start[k : k + 1].copy()
        normal.add_normals(alone, scale[k : k + 1], keys[k : k + 1], 2, 64)
        np.testing.assert_array_equal(out[k], alone[0])
        np.testing.assert_array_equal(out[k], start[k] + scale[k] * numbers(777, key, 2, 64).astype(dtype))
    np.testing.assert_array_equal(out[2], start[2])


def test_double_precision_holds_the_same_numbers():
    np.testing.assert_array_equal(numbers(5000, dtype=np.float64), numbers(5000).astype(np.float64))
