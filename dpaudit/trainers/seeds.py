"""Where the randomness of a training run comes from: one integer per model, independent streams from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .. import check
from ..errors import InputError

Purpose = Literal["init", "sampling", "noise", "layers"]

_SPAWN_KEY: dict[Purpose, int] = {"init": 0, "sampling": 1, "noise": 2, "layers": 3}
_MODELS_KEY = 0x6D6F6465  # "mode": keeps model seeds apart from whatever else is drawn from the same root seed


def model_seeds(seed: int, models: int) -> tuple[int, ...]:
    """One seed per model from a root seed.

    Args:
        seed: the root, a whole number of at least 0.
        models: how many to make. Seed k does not depend on it: asking for more only makes the tuple longer.

    Returns:
        Whole numbers in [0, 2⁶³), which fit a signed 64-bit column.

    Raises:
        InputError: a negative seed or number of models.

    >>> model_seeds(7, 2) == model_seeds(7, 5)[:2]
    True
    """
    root = np.random.SeedSequence(check.integer("seed", seed, 0), spawn_key=(_MODELS_KEY,))
    words = root.generate_state(check.integer("models", models, 0), np.uint64)
    return tuple(int(word) >> 1 for word in words)


def resolve_seeds(seed: int | Sequence[int], models: int) -> tuple[int, ...]:
    """The seeds of ``models`` models: made from a root seed, or checked if they are given one by one."""
    if isinstance(seed, (int, np.integer)):
        return model_seeds(int(seed), models)
    seeds = tuple(check.integer("seed of a model", s, 0) for s in seed)
    if len(seeds) != models:
        raise InputError(f"seed must be one whole number or one per model ({models}), got {len(seeds)}")
    return seeds


def stream(seed: int, purpose: Purpose) -> np.random.Generator:
    """The generator that one model uses for one purpose; streams of other models or purposes are independent.

    SFC64, numpy's fastest.
    """
    child = np.random.SeedSequence(seed, spawn_key=(_SPAWN_KEY[purpose],))
    return np.random.Generator(np.random.SFC64(child))
