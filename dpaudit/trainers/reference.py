"""DP-SGD for softmax regression, to be read beside Algorithm 1 of Abadi et al. 2016 ("Deep learning with differential
privacy"): one model, one example at a time, float64, numpy alone.

It is slow on purpose. It takes the same random draws as the engine, so the fast paths must arrive where it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..records import BoolArray, Data
from .noise import NoiseSource
from .sampling import batch_blocks
from .seeds import stream
from .settings import DPSGD, GradientDescent

Matrix = NDArray[np.float64]


def dp_sgd(settings: DPSGD, data: Data, member: BoolArray, seed: int) -> Matrix:
    """Train privately.

    Args:
        settings: of softmax regression with plain steps, one clip norm and noise from the seed.
        data: the records.
        member: bool, shape ``(records,)``; who may join a batch.
        seed: as :meth:`~dpaudit.trainers.DPSGD.train` takes it.

    Returns:
        The parameters, shape ``(features + 1, classes)``; the last row is the bias.

    Raises:
        InputError: settings of anything else.
    """
    theta = _start(settings, data)  # Initialize θ₀: at zero, as the loss is convex
    noise = NoiseSource([seed])
    eta, C, sigma = settings.learning_rate, settings.clip_norm, settings.noise_multiplier
    L = settings.divisor(data)  # the lot size: a public constant, not the size of a batch
    for lot in _lots(settings, member, seed):  # for t in [T]: take a random sample L_t, each record with probability q
        total = np.zeros_like(theta)
        for i in lot:
            g = _gradient(theta, data, i)  # Compute gradient: g_t(x_i) ← ∇_θ L(θ_t, x_i)
            total += _clipped(g, C)  # Clip gradient: ḡ_t(x_i) ← g_t(x_i) / max(1, ‖g_t(x_i)‖₂ / C)
        if sigma > 0:
            z = noise.step(theta.size).reshape(theta.T.shape).T.astype(np.float64)
            total += sigma * C * z  # Add noise: Σ_i ḡ_t(x_i) + N(0, σ²C²I)
        theta -= eta * total / L  # Descent: θ_{t+1} ← θ_t − η_t g̃_t, where g̃_t is 1/L times the noisy sum
    return theta  # Output θ_T; what was spent is for the accountant: settings.claim()


def sgd(settings: GradientDescent, data: Data, member: BoolArray, seed: int) -> Matrix:
    """The same without clipping and noise; arguments and result as for :func:`dp_sgd`."""
    theta = _start(settings, data)
    for lot in _lots(settings, member, seed):
        total = np.zeros_like(theta)
        for i in lot:
            total += _gradient(theta, data, i)
        theta -= settings.learning_rate * total / settings.divisor(data)
    return theta


def _start(settings: GradientDescent, data: Data) -> Matrix:
    if settings.hidden or settings.model not in (None, "softmax") or not settings.stacks:
        raise InputError(f"the reference is softmax regression with plain steps and one clip norm, got {settings!r}")
    return np.zeros((data.features + 1, data.classes))


def _lots(settings: GradientDescent, member: BoolArray, seed: int) -> Iterator[NDArray[np.int64]]:
    """Record numbers of each step's batch; some are empty."""
    generators = [stream(seed, "sampling")]
    rate, steps = settings.sampling_rate, settings.steps
    for block in batch_blocks(generators, member[None], rate, steps, settings.sampler):
        for row, (size,) in zip(block.index[:, 0], block.sizes, strict=True):
            yield row[:size]


def _gradient(theta: Matrix, data: Data, i: int) -> Matrix:
    """Of the cross-entropy of record i: its features and a 1, times the softmax of its logits less its label."""
    x = np.append(data.x[i].astype(np.float64), 1.0)
    z = x @ theta
    p = np.exp(z - z.max())
    p /= p.sum()
    p[data.y[i]] -= 1.0
    return np.outer(x, p)


def _clipped(g: Matrix, C: float) -> Matrix:
    """``g`` at a length of at most C; nothing if its squared length is no number of single precision."""
    squared = np.sum(g * g)
    if not squared <= np.finfo(np.float32).max:
        return np.zeros_like(g)
    return g / max(1.0, float(np.sqrt(squared)) / C)
