"""Products of matrices that fit a cache, inside compiled loops: no call of a library, and no threads of its own.

A tile of the result stays in registers while the inner dimension is run through. Loops are written as such, with
vectors of LLVM's, as no compiler finds this by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import cgutils, compiled, intrinsic, ir, types, vector_registers

Reals = NDArray[np.float32]

LANES, _TALL = vector_registers()
"""Numbers in a register; rows of a tile of two registers that all registers together can hold."""
_LOW = _TALL // 2
_LINE = 16  # numbers in a cache line


def _tile(rows: int, registers: int) -> Any:
    """Code for one tile of the result, so many rows by so many registers, whose rows are ``LANES`` numbers each."""

    @intrinsic
    def tile(
        typing: Any, a: Any, a_row: Any, a_outer: Any, a_inner: Any, x: Any, x_row: Any, out: Any, out_row: Any,
        outer: Any, inner: Any, add: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 10, types.boolean), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_row, a_outer, a_inner, x, x_row, out, out_row, outer, inner, add = arguments
        real, many, word = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)

        def at(base: Any, *steps: tuple[Any, Any]) -> Any:
            """The address so many numbers further."""
            for count, step in steps:
                base = builder.add(base, builder.mul(builder.mul(count, step), word(4)))
            return base

        def load(kind: Any, address: Any) -> Any:
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

        def places() -> Iterator[Any]:
            for i in range(rows):
                for v in range(registers):
                    yield builder.inttoptr(at(out, (out_row, word(i)), (word(LANES), word(v))), many.as_pointer())

        sums = [cgutils.alloca_once(builder, many) for _ in range(rows * registers)]  # in registers, once optimised
        with builder.if_else(add) as (then, otherwise):
            with then:
                for place, total in zip(places(), sums, strict=True):
                    builder.store(builder.load(place, align=4), total)
            with otherwise:
                for total in sums:
                    builder.store(ir.Constant(many, [0.0] * LANES), total)
        nothing = ir.Constant(many, ir.Undefined)
        first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        with cgutils.for_range(builder, outer) as loop:
            left, top = at(a, (a_outer, loop.index)), at(x, (x_row, builder.mul(loop.index, inner)))
            with cgutils.for_range(builder, inner) as step:
                row = at(top, (x_row, step.index))
                found = [load(many, at(row, (word(LANES), word(v)))) for v in range(registers)]
                for i in range(rows):
                    one = load(real, at(left, (a_row, word(i)), (a_inner, step.index)))
                    spread = builder.shuffle_vector(
                        builder.insert_element(nothing, one, ir.IntType(32)(0)), nothing, first
                    )
                    for v, values in enumerate(found):
                        total = sums[i * registers + v]
                        part = builder.fmul(spread, values, flags=("contract",))
                        builder.store(builder.fadd(builder.load(total), part, flags=("contract",)), total)
        for place, total in zip(places(), sums, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return tile


_TALL_WIDE, _TALL_THIN, _LOW_WIDE, _LOW_THIN = _tile(_TALL, 2), _tile(_TALL, 1), _tile(_LOW, 2), _tile(_LOW, 1)
_ROW_WIDE, _ROW_THIN = _tile(1, 2), _tile(1, 1)


@compiled
def multiply_at(
    a: int, a_row: int, a_outer: int, a_inner: int, x: int, x_row: int, out: int, out_row: int, rows: int, outer: int,
    inner: int, columns: int, add: bool,
) -> None:  # fmt: skip
    """A product of matrices at addresses; all steps are numbers of float32.

    The inner dimension has two levels, ``outer`` times ``inner``, as that of a convolution has, which goes down and
    across an image: its number ``inner · o + i`` is at ``a + row · a_row + o · a_outer + i · a_inner`` of the left
    matrix, and in that row of the right one.
    """
    for j in range(0, columns, 2 * LANES):
        wide = j + 2 * LANES <= columns
        given, i = x + 4 * j, 0
        most = _TALL if rows >= _TALL else _LOW if rows >= _LOW else 1
        while i < rows:
            height = most if rows - i >= most else _LOW if rows - i >= _LOW else 1
            if height < most and not add:  # some rows again, in one go with the last
                height, i = most, rows - most
            one, place = a + 4 * i * a_row, out + 4 * (i * out_row + j)
            if wide and height == _TALL:
                _TALL_WIDE(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            elif wide and height == _LOW:
                _LOW_WIDE(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            elif wide:
                _ROW_WIDE(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            elif height == _TALL:
                _TALL_THIN(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            elif height == _LOW:
                _LOW_THIN(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            else:
                _ROW_THIN(one, a_row, a_outer, a_inner, given, x_row, place, out_row, outer, inner, add)
            i += height


@compiled
def multiply(a: Reals, x: Reals, out: Reals, add: bool) -> None:
    """``out = a @ x``, or that added to ``out``.

    Args:
        a: of at least ``(rows, inner)``, the rest is not used; of any strides.
        x: ``inner`` rows, contiguous, of at least so many columns.
        out: shape ``(rows, columns)``, rows contiguous; columns are a multiple of :data:`LANES`.
        add: whether to add.
    """
    multiply_at(
        a.ctypes.data, a.strides[0] // 4, 0, a.strides[1] // 4, x.ctypes.data, x.strides[0] // 4, out.ctypes.data,
        out.strides[0] // 4, out.shape[0], 1, x.shape[0], out.shape[1], add,
    )  # fmt: skip


@compiled
def padded(numbers: int) -> int:
    """The next multiple of :data:`LANES`."""
    return (numbers + LANES - 1) // LANES * LANES


@compiled
def room(numbers: int) -> Reals:
    """Zeros that begin at a cache line: registers that are loaded from across two take twice as long."""
    whole = np.zeros(numbers + _LINE, np.float32)
    first = (_LINE - (whole.ctypes.data // 4) % _LINE) % _LINE
    return whole[first : first + numbers]
