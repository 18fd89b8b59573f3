"""Secrets for models of text: a format with blanks and a known number of ways to fill them in (Carlini et al. 2019)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..errors import InputError

MOST_LISTED = 10**6
"""So many fillings are listed at most."""


@dataclass(frozen=True)
class Secrets:
    """Texts that all look alike and differ in the blanks, each filled in with a symbol drawn at random.

    Attributes:
        format: the text, with :attr:`blank` wherever a symbol goes.
        symbols: what may go there, each equally likely.
        blank: stands for a symbol; one character that nothing else in the format is.

    Raises:
        InputError: no blank in the format, fewer than two symbols, one twice, or a blank of more than one character.

    >>> codes = Secrets("code of ann: ####")
    >>> codes.space
    10000
    >>> codes.draw(2, np.random.default_rng(0))
    ('code of ann: 3577', 'code of ann: 8925')
    """

    format: str
    symbols: str = "0123456789"
    blank: str = "#"

    def __post_init__(self) -> None:
        if not isinstance(self.blank, str) or len(self.blank) != 1:
            raise InputError(f"blank must be one character, got {self.blank!r}")
        if not isinstance(self.format, str) or self.blank not in self.format:
            raise InputError(f"format must be a text with the blank {self.blank!r} in it, got {self.format!r}")
        if not isinstance(self.symbols, str) or len(set(self.symbols)) != len(self.symbols) or len(self.symbols) < 2:
            raise InputError(f"symbols must be at least two different characters, got {self.symbols!r}")

    @property
    def blanks(self) -> int:
        """How many there are."""
        return self.format.count(self.blank)

    @property
    def space(self) -> int:
        """|R|, the number of ways to fill them in."""
        return len(self.symbols) ** self.blanks

    @property
    def bits(self) -> float:
        """log2 |R|: the exposure of a secret that the model likes best of all."""
        return self.blanks * math.log2(len(self.symbols))

    def draw(self, count: int, generator: np.random.Generator, without: Iterable[str] = ()) -> tuple[str, ...]:
        """Different fillings, all sets of so many equally likely.

        Args:
            count: how many.
            generator: draws them.
            without: texts that are not to be drawn: references are drawn without the secrets.

        Raises:
            InputError: there are not so many.
        """
        taken = set(without)
        left = self.space - sum(self._is_one(text) for text in taken)
        check.integer("count of secrets", count, 1)
        if count > left:
            raise InputError(
                f"count of secrets must be at most the {left} of {self.format!r} that are left, got {count}"
            )
        if left <= MOST_LISTED:
            rest = [text for text in self if text not in taken]
            return tuple(rest[i] for i in generator.permutation(len(rest))[:count])
        found: dict[str, None] = {}
        while len(found) < count:  # few of very many, so that one is rarely drawn twice
            numbers = generator.integers(len(self.symbols), size=self.blanks)
            text = self._filled(self.symbols[i] for i in numbers)
            if text not in taken:
                found[text] = None
        return tuple(found)

    def __iter__(self) -> Iterator[str]:
        """All texts, in the order of the symbols.

        Raises:
            InputError: there are more than a million.
        """
        if self.space > MOST_LISTED:
            raise InputError(f"secrets must be at most {MOST_LISTED} to be listed, got {self.space}: draw some")
        for symbols in itertools.product(self.symbols, repeat=self.blanks):
            yield self._filled(symbols)

    def _filled(self, symbols: Iterable[str]) -> str:
        left = iter(symbols)
        return "".join(next(left) if c == self.blank else c for c in self.format)

    def _is_one(self, text: str) -> bool:
        return len(text) == len(self.format) and all(
            (c in self.symbols) if f == self.blank else c == f for f, c in zip(self.format, text, strict=True)
        )


def encode(texts: Iterable[str], alphabet: str, length: int) -> NDArray[np.int64]:
    """Texts as tokens: each character's place in the alphabet, filled up with 0, which is its first character.

    Args:
        texts: of at most ``length`` characters.
        alphabet: different characters; the first one is what texts are filled up with, and should not end one.
        length: of every row.

    Returns:
        int64, shape ``(texts, length)``.

    Raises:
        InputError: a character that is not in the alphabet, or is there twice, or a text that is too long.

    >>> encode(["abba", "b"], " ab", 5)
    array([[1, 2, 2, 1, 0],
           [2, 0, 0, 0, 0]])
    """
    place = {c: i for i, c in enumerate(alphabet)}
    if len(place) < len(alphabet) or not alphabet:
        raise InputError(f"alphabet must be different characters, got {alphabet!r}")
    width = check.integer("length", length, 1)
    rows = []
    for text in texts:
        unknown = sorted(set(text) - place.keys())
        if unknown:
            raise InputError(f"texts must be written in the alphabet {alphabet!r}, got {unknown[0]!r} in {text!r}")
        if len(text) > width:
            raise InputError(f"texts must have at most {width} characters, got {len(text)} in {text!r}")
        rows.append([place[c] for c in text] + [0] * (width - len(text)))
    return np.array(rows, np.int64).reshape(len(rows), width)


def decode(tokens: ArrayLike, alphabet: str) -> tuple[str, ...]:
    """The texts of rows of tokens, without what they were filled up with.

    Args:
        tokens: whole numbers, shape ``(texts, length)``.
        alphabet: as in :func:`encode`.

    Raises:
        InputError: another shape, or a token that stands for nothing.

    >>> decode(encode(["abba", "b"], " ab", 5), " ab")
    ('abba', 'b')
    """
    found = np.asarray(tokens)
    if found.ndim != 2 or not np.isin(found, np.arange(len(alphabet))).all():
        raise InputError(f"tokens must be whole numbers from 0 to {len(alphabet) - 1} of shape (texts, length)")
    return tuple("".join(alphabet[int(token)] for token in row).rstrip(alphabet[0]) for row in found)
