"""What happened in the steps, for whoever may see the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepCounts:
    """Counts over the examples of one step.

    Attributes:
        examples: how many there were: the realised batch size.
        scaled: how many had their gradient scaled down, in at least one layer.
        dropped: how many had a loss or gradient that is NaN or infinite, and added nothing.
    """

    examples: int = 0
    scaled: int = 0
    dropped: int = 0

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(self.examples + other.examples, self.scaled + other.scaled, self.dropped + other.dropped)


@dataclass(frozen=True)
class Diagnostics:
    """What the steps of a training run did to its examples.

    **Outside the claim.** These numbers are functions of the private data with no noise added: one example more or
    less changes them. They belong in a run's ``retained/`` folder, never in what is released, and no setting of a
    training run may be chosen by them.

    Attributes:
        steps: counts of each step, in order.

    >>> Diagnostics((StepCounts(60, 45, 0), StepCounts(0), StepCounts(40, 5, 1))).scaled_fraction
    0.5
    """

    steps: tuple[StepCounts, ...] = ()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The realised size of each batch."""
        return tuple(step.examples for step in self.steps)

    @property
    def dropped(self) -> int:
        """How many examples, counted once per step, were left out as NaN or infinite."""
        return sum(step.dropped for step in self.steps)

    @property
    def scaled_fraction(self) -> float:
        """The share of examples whose gradient was scaled down; 0 where there was none."""
        return sum(step.scaled for step in self.steps) / max(1, sum(step.examples for step in self.steps))
