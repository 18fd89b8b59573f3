"""Loops over canaries of packed fair signs: to make them, to add members up, to take products with gradients.

512 numbers of a canary are a tile, 16 words in a cache line: bit b of word i is the sign of number 16 b + i, and 1 is
plus. A few tiles after each other are a stretch, long enough to be read at the speed of memory. A block holds some
stretches of all canaries, shape ``(stretches, count, TILES, 16)``.

Products with one gradient flip the signs of its numbers. With many at once they are looked up: four numbers have only
16 signed sums, which all canaries share (the method of the "four Russians", Arlazarov et al. 1970), so a canary costs a
quarter of an addition for each number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiled import cgutils, compiled, float32, inlined, int32, intrinsic, ir, types, uint32
from ..normal import fill_words

Words = NDArray[np.uint32]
Floats = NDArray[np.float32] | NDArray[np.float64]

WORDS, BITS = 16, 32
TILE = WORDS * BITS
TILES = 4
STRETCH = TILES * TILE
GRADIENTS = 32  # that products are taken of at once
_ROW, _SUMS = 15 * GRADIENTS, 16 * GRADIENTS  # where the last of a four's signed sums begins, and where they end
TABLE = 8 * _SUMS  # numbers in the signed sums of a word, which is eight fours
_SIGN, _BYTE, _BYTES = uint32(1 << 31), uint32(255), uint32(0x01010101)
_MOST = 255  # members that a counter of one byte can count


@compiled
def fill_signs(block: Words, key: Words, first: int) -> None:
    """Make the signs of a block: canary and place are all that they depend on, beside the key.

    Args:
        block: overwritten.
        key: four words.
        first: the number of the block's first stretch.
    """
    made = np.empty((4 * TILES * len(block), 4), np.uint32)
    stretches = made.reshape(len(block), TILES, WORDS)
    for canary in range(block.shape[1]):
        fill_words(made, key, canary, 4 * TILES * first)
        for stretch in range(len(block)):
            for tile in range(TILES):
                for i in range(WORDS):
                    block[stretch, canary, tile, i] = stretches[stretch, tile, i]


@compiled
def add_up(out: NDArray[np.int32], block: Words, members: NDArray[np.int64]) -> None:
    """Overwrite ``out``, shape ``(stretches, TILES, 32, 16)``, by the sum of the members' signs."""
    packed = np.empty((TILES, 8, WORDS), np.uint32)  # bits that are 8 apart are counted in the bytes of one word
    for stretch in range(len(block)):
        for tile in range(TILES):
            for bit in range(BITS):
                for i in range(WORDS):
                    out[stretch, tile, bit, i] = -len(members)
        for start in range(0, len(members), _MOST):
            packed[:] = 0
            for member in members[start : start + _MOST]:
                for tile in range(TILES):
                    for i in range(WORDS):
                        word = block[stretch, member, tile, i]
                        for j in range(8):
                            packed[tile, j, i] += uint32(word >> uint32(j)) & _BYTES
            for tile in range(TILES):
                _unpack(out[stretch, tile], packed[tile])


@compiled
def _unpack(out: NDArray[np.int32], packed: Words) -> None:
    """Add twice the counts in bytes, shape ``(8, 16)``, to where they belong, shape ``(32, 16)``."""
    for byte in range(4):
        for j in range(8):
            for i in range(WORDS):
                out[8 * byte + j, i] += 2 * int32(uint32(packed[j, i] >> uint32(8 * byte)) & _BYTE)


@compiled
def add_signed(sums: NDArray[np.float32], block: Words, gradient: Words) -> None:
    """Add to each canary's sums its signs times one gradient.

    Args:
        sums: shape ``(count, 16)``; a product is the sum of a row.
        block: signs.
        gradient: the bits of numbers of float32, shape ``(stretches, TILES, 32, 16)``, inverted where a sign is to be
            plus.
    """
    for stretch in range(len(block)):
        for canary in range(block.shape[1]):
            for tile in range(TILES):
                for i in range(WORDS):
                    word, total = block[stretch, canary, tile, i], float32(0)
                    for bit in range(BITS):
                        flipped = uint32(uint32(word << uint32(31 - bit)) & _SIGN) ^ gradient[stretch, tile, bit, i]
                        total += np.uint32(flipped).view(np.float32)
                    sums[canary, i] += total


@compiled
def add_looked_up(sums: Floats, block: Words, rows: Floats, table: Floats) -> None:
    """Add to each canary's sums its signs times as many gradients as there may be at once, or fewer.

    Args:
        sums: one for each gradient of each canary, shape ``(count × GRADIENTS,)``.
        block: signs.
        rows: gradients, shape ``(up to GRADIENTS, numbers)``; they may end before the block does.
        table: to work in, shape ``(TABLE,)``.
    """
    turned = np.zeros((TILE, GRADIENTS), rows.dtype)
    for place in range(len(block) * TILES):
        stretch, tile = place // TILES, place % TILES
        _turn(turned, rows, place * TILE)
        for i in range(WORDS):
            _tabulate(table, turned, i)
            for canary in range(block.shape[1]):
                w = np.int64(block[stretch, canary, tile, i]) * GRADIENTS  # each four bits choose one of 16 rows
                at = (w & _ROW, _SUMS + (w >> 4 & _ROW), 2 * _SUMS + (w >> 8 & _ROW), 3 * _SUMS + (w >> 12 & _ROW),
                      4 * _SUMS + (w >> 16 & _ROW), 5 * _SUMS + (w >> 20 & _ROW), 6 * _SUMS + (w >> 24 & _ROW),
                      7 * _SUMS + (w >> 28 & _ROW))  # fmt: skip
                _add_rows(sums, canary * GRADIENTS, table, at)


@compiled
def _turn(turned: Floats, rows: Floats, first: int) -> None:
    """A tile of the rows as columns, with zeros where they end."""
    numbers = max(0, min(TILE, rows.shape[1] - first))
    turned[numbers:] = 0
    for j in range(numbers):
        for row in range(len(rows)):
            turned[j, row] = rows[row, first + j]


@compiled
def _tabulate(table: Floats, turned: Floats, i: int) -> None:
    """The signed sums of each four of the numbers that word i has signs of, gradient beside gradient."""
    for four in range(8):
        at, first = _SUMS * four, 4 * WORDS * four + i
        for j in range(GRADIENTS):
            a, b = turned[first, j], turned[first + WORDS, j]
            c, d = turned[first + 2 * WORDS, j], turned[first + 3 * WORDS, j]
            _put_four(table, at + j, a + b, a - b, -(c + d))
            _put_four(table, at + j + 4 * GRADIENTS, a + b, a - b, c - d)
            _put_four(table, at + j + 8 * GRADIENTS, a + b, a - b, d - c)
            _put_four(table, at + j + 12 * GRADIENTS, a + b, a - b, c + d)


@inlined
def _put_four(table: Any, at: Any, both: Any, one: Any, others: Any) -> None:
    """The sums with neither of two numbers, the first, the second, and both of them positive."""
    table[at] = others - both
    table[at + GRADIENTS] = others + one
    table[at + 2 * GRADIENTS] = others - one
    table[at + 3 * GRADIENTS] = others + both


def _row_adder(context: Any, sums: Any, start: Any, table: Any, starts: Any) -> Any:
    """Add eight rows of a table to one of ``sums``; a row has as many numbers as there are gradients at once.

    A loop would make sure each time that the rows do not lie in what it writes to, which takes longer than to add them.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(array: int, index: Any) -> Any:
            kind = signature.args[array]
            data = target.make_array(kind)(target, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())

        vector = ir.VectorType(target.get_data_type(sums.dtype), GRADIENTS)
        size = sums.dtype.bitwidth // 8
        found = [builder.load(pointer(2, at), align=size) for at in cgutils.unpack_tuple(builder, arguments[3])]
        while len(found) > 1:
            found = [builder.fadd(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        out = pointer(0, arguments[1])
        builder.store(builder.fadd(builder.load(out, align=size), found[0]), out, align=size)
        return target.get_dummy_value()

    return types.void(sums, types.intp, table, types.UniTuple(types.intp, 8)), generate


_add_rows: Any = intrinsic(_row_adder)
