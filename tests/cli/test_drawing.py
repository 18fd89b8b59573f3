"""Charts in the terminal: what is high is drawn high, and labels never hide each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.cli.drawing import Axis, Line, chart, short

X, Y = Axis("steps"), Axis("ε")


def grid(drawn: str) -> list[str]:
    """The rows inside the axes, from the top."""
    rows = [line for line in drawn.splitlines() if "┤" in line or "│" in line]
    return [line.replace("┤", "│", 1).split("│", 1)[1] for line in rows]


def heights(drawn: str, glyph: str, width: int) -> list[int]:
    """The height of a glyph in every column that has it, from the left."""
    rows = [row.ljust(width)[:width] for row in grid(drawn)]
    columns = [[len(rows) - 1 - i for i, row in enumerate(rows) if row[c] == glyph] for c in range(width)]
    return [column[0] for column in columns if column]


@pytest.mark.parametrize("log", [False, True])
def test_a_rising_line_rises(log):
    x = np.geomspace(1, 1e4, 30)
    drawn = chart([Line("o", "up", x, np.sqrt(x))], Axis("steps", log), Axis("ε", log), width=50, height=12)
    found = heights(drawn, "o", 50)
    assert len(found) == 50
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 11)


def test_a_line_is_where_it_should_be():
    drawn = chart([Line("o", "", [0, 6], [0, 3]), Line("x", "", [0, 6], [3, 0])], X, Y, width=7, height=7)
    assert heights(drawn, "x", 7) == [6, 5, 4, 2, 1, 0]
    assert heights(drawn, "o", 7) == [0, 1, 2, 3, 4, 5, 6]  # the first line is on top where both meet


def test_a_steep_line_has_no_gaps():
    drawn = chart([Line("o", "", [0, 1, 2], [0, 0, 10])], X, Y, width=3, height=11)
    assert [sum(row.ljust(3)[c] == "o" for row in grid(drawn)) for c in range(3)] == [1, 1, 10]


def test_a_log_axis_is_even_in_decades():
    drawn = chart([Line("o", "", [1, 10, 100], [1, 100, 10_000])], Axis("x", True), Axis("y", True), width=21, height=9)
    assert heights(drawn, "o", 21)[::10] == [0, 4, 8]
    assert "10,000 ┤" in drawn and "    1 ┤" in drawn


def test_labels_keep_the_order_of_the_ends_and_a_row_each():
    lines = [Line(g, f"line {g}", [0, 1], [0, 1 + 0.001 * i]) for i, g in enumerate("abcdef")]
    drawn = chart(lines, X, Y, height=8)
    labels = [row.split(" line ")[1] for row in grid(drawn) if " line " in row]
    assert sorted(labels) == list("abcdef")
    spread = [Line(g, f"line {g}", [0, 1], [0, y]) for g, y in zip("abc", (3, 1, 2), strict=True)]
    assert [row.split(" line ")[1] for row in grid(chart(spread, X, Y)) if " line " in row] == list("acb")


def test_more_labels_than_rows_are_all_printed():
    lines = [Line(g, f"line {g}", [0, 1], [0, 1]) for g in "abcdef"]
    drawn = chart(lines, X, Y, height=3)
    assert all(f"line {g}" in drawn for g in "abcdef")


def test_what_can_t_be_drawn_is_left_out():
    line = Line("o", "part", [1, 2, 3, 4], [math.nan, 1, 2, math.inf])
    assert len(heights(chart([line], X, Y, width=20), "o", 20)) == 20
    zero = Line("o", "zero", [0, 1, 10], [0, 0, 0])
    assert chart([zero], X, Axis("y", log=True)) == ""
    assert chart([], X, Y) == ""
    both = chart([zero, Line("x", "some", [1, 10], [1, 2])], X, Axis("y", log=True))
    assert "some" in both and "zero" not in both


def test_a_constant_and_a_single_point_are_drawn():
    assert heights(chart([Line("o", "flat", [0, 1], [3, 3])], X, Y, width=20, height=9), "o", 20) == [4] * 20
    assert len(heights(chart([Line("o", "dot", [5], [3])], X, Y, width=21), "o", 21)) == 1


@pytest.mark.parametrize("low,high", [(0.0, 1.0), (0.003, 0.0031), (1.0, 1e6), (120, 14_063), (2.0, 2.2)])
@pytest.mark.parametrize("log", [False, True])
def test_axes_have_numbers_that_are_told_apart(low, high, log):
    low = low or 1e-3 if log else low
    drawn = chart([Line("o", "", [low, high], [low, high])], Axis("x", log), Axis("y", log))
    numbers = [line.split("┤")[0].strip() for line in drawn.splitlines() if "┤" in line]
    assert len(numbers) >= 2
    assert len(set(numbers)) == len(numbers)
    assert drawn.count("┬") >= 1
    assert max(map(len, drawn.splitlines())) < 90


def test_numbers_are_short():
    values = (0.0, 1e-12, 0.0001, 0.25, 1.0, 300.0, 1234.0, 999_999.0, 1e6, 2.5e7, -3.0)
    assert [short(v) for v in values] == [
        "0", "1e-12", "0.0001", "0.25", "1", "300", "1,234", "999,999", "1e6", "2.5e7", "-3",
    ]  # fmt: skip
