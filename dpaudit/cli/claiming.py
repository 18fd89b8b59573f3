"""The options that state a claim, shared by the commands that take one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from ..accounting import Claim

CLAIM_HELP = "The claim: a JSON file (dpaudit's, an Opacus history, dp-accounting events)."
SAMPLER_HELP = "How batches are drawn: poisson, full-batch, fixed-size, shuffled, balls-and-bins [default: poisson]."
_WAYS = "--epsilon, or --noise-multiplier with --sampling-rate and --steps, or --claim"


@dataclass(frozen=True, kw_only=True)
class Options:
    """A claim as options state it: a pair, DP-SGD settings, or a file."""

    epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    sampling_rate: float | None
    steps: int | None
    sampler: str | None = None
    claim: Path | None = None

    def stated(self) -> Claim | None:
        """The claim; None if no option says anything.

        Raises:
            InputError: options that state two claims, or less than one.
        """
        from ..accounting import Claim

        recipe = (self.noise_multiplier, self.sampling_rate, self.steps, self.sampler)
        ways = [self.epsilon is not None, any(v is not None for v in recipe), self.claim is not None]
        if sum(ways) > 1:
            raise InputError(f"a claim must be {_WAYS}, got {'both' if sum(ways) == 2 else 'all of them'}")
        if self.claim is not None:
            from ..accounting.reading import read_claim

            return read_claim(self.claim)
        if self.epsilon is not None:
            if self.delta is None:
                raise InputError("--delta must be given: the δ that --epsilon is stated at")
            return Claim.pair(epsilon=self.epsilon, delta=self.delta)
        if not any(ways):
            return None
        return self._recipe()

    def required(self) -> Claim:
        """The claim; there must be one."""
        claim = self.stated()
        if claim is None:
            raise InputError(f"a claim must be {_WAYS}, got neither")
        return claim

    def _recipe(self) -> Claim:
        from ..accounting import Claim

        rate = 1.0 if self.sampling_rate is None and self.sampler == "full-batch" else self.sampling_rate
        if self.noise_multiplier is None or rate is None or self.steps is None:
            raise InputError(f"a claim must be {_WAYS}, got only some of these")
        return Claim.dp_sgd(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=rate,
            steps=self.steps,
            sampler=self.sampler or "poisson",
        )
