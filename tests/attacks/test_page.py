"""What docs/attacks.md shows is what its code prints."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"


def test_the_page_is_true():
    done = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted > 20 and done.failed == 0
