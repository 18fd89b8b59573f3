"""One run, audited in the white box: canaries join its steps, and what the steps release is scored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ... import check
from ...errors import InputError
from ...records import BoolArray, Design, HalfSplitWarning, Observations
from .batches import Batch
from .canaries import GradientCanaries
from .canary_scores import LinearScore, Scores, StepScores
from .canary_vectors import CanaryVectors
from .engine import PrivateEngine

STATISTICS = ("log-ratio", "linear")


class AuditedEngine:
    """A private engine whose steps carry canaries and are scored.

    Args:
        engine: at work as without canaries: same noise, divisor and batches.
        vectors: the canaries, of the engine's own flat gradient.
        member: which of them are members, bool, shape ``(count,)``; by coins that know nothing of the run.
        scores: what to keep of the steps.
        sampling_rate: with which a member joins a step, by a coin of its own; at 1 all join all.
        generator: where these coins come from; None only at 1.
        known_data: subtract each step's clipped sum of the batch, as an attacker does who knows all other records and
            which of them joined; a second backward pass. What is left is noise and canaries, so products with
            orthogonal canaries are independent given the coins, whatever the data.

    Raises:
        InputError: a setting out of range, shapes that do not fit, or canaries longer than any clipped gradient.
    """

    def __init__(
        self,
        engine: PrivateEngine,
        vectors: CanaryVectors,
        member: BoolArray,
        scores: Scores,
        *,
        sampling_rate: float = 1.0,
        generator: np.random.Generator | None = None,
        known_data: bool = False,
    ) -> None:
        self._rate = check.probability("sampling_rate", sampling_rate)
        if self._rate < 1 and not isinstance(generator, np.random.Generator):
            raise InputError(f"generator must be a numpy Generator, got {type(generator).__name__}")
        if engine.released.numel() != vectors.parameters:
            raise InputError(
                f"vectors must be of the engine's {engine.released.numel()} parameters, got {vectors.parameters}"
            )
        if vectors.canaries.norm > engine.sensitivity * (1 + 1e-6):
            raise InputError(
                f"canaries must not be longer than the engine's sensitivity {engine.sensitivity:g}, "
                f"which no record is, got {vectors.canaries.norm:g}"
            )
        self._engine, self._vectors, self._scores = engine, vectors, scores
        self._generator, self._known = generator, known_data
        self._member = np.array(member)
        self._all = vectors.insertion(self._member).clone()

    def step(self, x: Batch, y: Batch, *, rate: float = 1.0, weight: float = 1.0) -> None:
        """One private step on a batch of the data, with canaries beside it.

        Args:
            x, y, rate: as of :meth:`PrivateEngine.step`.
            weight: of this step's products in the scores.

        Raises:
            InputError: see :meth:`PrivateEngine.step`.
        """
        data = self._engine.clipped_sum(x, y) if self._known else None
        self._engine.step(x, y, rate=rate, extra=self._insertion())
        released = self._engine.released
        self._scores.add(released if data is None else torch.sub(released, data, out=data), weight)

    def _insertion(self) -> Tensor:
        if self._generator is None or self._rate == 1:
            return self._all
        return self._vectors.insertion(self._member & (self._generator.random(len(self._member)) < self._rate))


def audit_one_run(
    make_engine: Callable[[np.random.Generator], PrivateEngine],
    batches: Iterable[tuple[Batch, Batch]],
    canaries: GradientCanaries,
    *,
    steps: int,
    seed: int,
    noise_multiplier: float,
    sampling_rate: float = 1.0,
    statistic: str = "log-ratio",
    known_data: bool = False,
) -> Observations:
    """Train once with canaries, each a member by a fair coin, and score them by all iterates.

    Args:
        make_engine: makes the engine, with its noise from the generator given, which no coin shares.
        batches: x and y of every step; not one of them may depend on the coins. ``itertools.repeat`` is a full batch.
        canaries: what to plant; their norm is the sensitivity of the engine's clipping rule.
        steps: number of steps.
        seed: of the coins, the canaries' joins, and the engine's generator.
        noise_multiplier: σ, as claimed.
        sampling_rate: q, with which a member joins a step: that of the claim's Poisson sampling, or 1.
        statistic: ``log-ratio``, the optimal one; it takes products step by step, if q < 1. ``linear`` is Σ_t products,
            which costs next to nothing, and tells less if q < 1.
        known_data: see :class:`AuditedEngine`.

    Returns:
        One run of ``canaries.count`` fair coins, for :func:`dpaudit.audit` and the bounds of one run; a claim to judge
        is ``Claim.dp_sgd`` or ``Claim.gaussian`` with the same σ, q and steps.

    Raises:
        InputError: a setting out of range, fewer batches than steps, scores that are not finite, or coins that all fell
            alike, which happens with probability 2^(1 − count).
    """
    steps = check.integer("steps", steps, 1)
    check.positive("noise_multiplier", noise_multiplier)
    rate = check.probability("sampling_rate", sampling_rate)
    linear = check.choice("statistic", statistic, STATISTICS) == "linear"
    coins, joins, noise = np.random.SeedSequence(check.integer("seed", seed, 0)).spawn(3)
    member = np.random.default_rng(coins).random(canaries.count) < 0.5
    engine = make_engine(np.random.Generator(np.random.SFC64(noise)))
    # Random directions that are used only twice are not worth keeping.
    vectors = canaries.vectors(engine.released, stored=rate < 1)
    scores = LinearScore(vectors) if linear or rate == 1 else StepScores(vectors)
    audited = AuditedEngine(
        engine,
        vectors,
        member,
        scores,
        sampling_rate=rate,
        generator=np.random.default_rng(joins),
        known_data=known_data,
    )
    taken = 0
    for x, y in islice(batches, steps):
        audited.step(x, y)
        taken += 1
    if taken < steps:
        raise InputError(f"batches must be one per step ({steps}), got {taken}")
    found = scores.sums() if linear and isinstance(scores, LinearScore) else scores.log_ratios(noise_multiplier, rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HalfSplitWarning)  # these coins are fair, whatever they show
        return Observations(found, member, canaries=canaries.names, design=Design(threat_model="iterates"))
