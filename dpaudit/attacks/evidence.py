"""What an attacker holds: outputs, shadows, a population, traces, gradients, iterates; never the target's members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .arrays import as_array, spans
from .signals import cross_entropy, logit_margin

Array = NDArray[np.floating]

NEEDS = {
    "losses": "losses of the target, or its outputs with labels",
    "outputs": "the target's outputs for every class (logits or probabilities)",
    "labels": "labels of the records",
    "shadows": "the same from shadow models, with their membership (shadow_losses, shadow_logits or "
    "shadow_probabilities, and shadow_member)",
    "shadow outputs": "the shadows' outputs for every class (shadow_logits or shadow_probabilities)",
    "population": "the target's losses or outputs on records of the same population that no model was trained on "
    "(population_losses, population_logits or population_probabilities)",
    "shadow population": "the shadows' losses or outputs on that population (shadow_population_losses, ...)",
    "traces": "losses at checkpoints of the target's training (traces)",
    "gradients": "norms of the records' gradients at the final model (gradient_norms)",
    "perplexities": "perplexities of inserted secrets and of references drawn alike (perplexities, "
    "reference_perplexities)",
    "iterates": "what every step released in the canaries' directions (projections, with noise_deviation)",
}
"""What an attack can need, in words."""

_SMALLEST_LOSS = 1e-12  # an exact 0 says that the loss was rounded; its margin would be infinite


@dataclass(frozen=True, eq=False)
class Evidence:
    """What an attacker holds. Arrays are looked at and never changed.

    Attributes:
        losses: of the target, in nats, shape ``(records,)``.
        logits: of the target, or logarithms of its probabilities, shape ``(records, classes)``.
        labels: whole numbers in ``[0, classes)``, shape ``(records,)``.
        shadow_losses, shadow_logits: the same of shadow models, ``(shadows, records)`` and ``(shadows, records,
            classes)``.
        shadow_member: was the record in the shadow's training set? ``(shadows, records)``.
        population_losses, population_logits, population_labels: of the target on records that are in no model's
            training set, ``(population,)`` and ``(population, classes)``.
        shadow_population_losses, shadow_population_logits: the shadows' there, with one more axis in front.
        traces: the target's losses at checkpoints of its training, ``(checkpoints, records)``.
        gradient_norms: of the records' gradients at the final model, ``(records,)``.
        perplexities, reference_perplexities: of secrets that were inserted or not, ``(records,)``, and of texts drawn
            like them that nobody inserted, ``(references,)``.
        projections: what each step released in a canary's direction, ``(records, steps)``.
        steps: keyword arguments of :func:`~dpaudit.attacks.gradient_canary_score`; ``noise_deviation`` at least.

    Raises:
        InputError: shapes that do not fit each other.
    """

    losses: Any = None
    logits: Any = None
    labels: Any = None
    shadow_losses: Any = None
    shadow_logits: Any = None
    shadow_member: Any = None
    population_losses: Any = None
    population_logits: Any = None
    population_labels: Any = None
    shadow_population_losses: Any = None
    shadow_population_logits: Any = None
    traces: Any = None
    gradient_norms: Any = None
    perplexities: Any = None
    reference_perplexities: Any = None
    projections: Any = None
    steps: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, axes in _AXES.items():
            value = getattr(self, name)
            if value is not None:
                array = as_array(name, value)
                if array.ndim != len(axes):
                    raise InputError(f"{name} must be ({', '.join(axes)}), got shape {array.shape}")
                object.__setattr__(self, name, array)
        sizes: dict[str, tuple[str, int]] = {}
        for name, axes in _AXES.items():
            value = getattr(self, name)
            for axis, length in zip(axes, () if value is None else value.shape, strict=value is not None):
                first, known = sizes.setdefault(axis, (name, length))
                if known != length and axis not in ("checkpoints", "steps"):
                    raise InputError(f"{name} must have {known} {axis} like {first}, got {length}")

    @property
    def records(self) -> int:
        """How many records there are."""
        for name, axes in _AXES.items():
            value = getattr(self, name)
            if value is not None and "records" in axes:
                return int(value.shape[axes.index("records")])
        raise InputError("evidence must hold something about records, got nothing")

    def has(self, need: str) -> bool:
        """Whether there is what :data:`NEEDS` calls so."""
        match need:
            case "losses":
                return self.losses is not None or (self.logits is not None and self.labels is not None)
            case "outputs":
                return self.logits is not None
            case "labels":
                return self.labels is not None
            case "shadows":
                known = self.shadow_losses is not None or (self.shadow_logits is not None and self.labels is not None)
                return known and self.shadow_member is not None
            case "shadow outputs":
                return self.shadow_logits is not None and self.shadow_member is not None
            case "population":
                return self.population_losses is not None or (
                    self.population_logits is not None and self.population_labels is not None
                )
            case "shadow population":
                return self.shadow_population_losses is not None or (
                    self.shadow_population_logits is not None and self.population_labels is not None
                )
            case "traces":
                return self.traces is not None
            case "gradients":
                return self.gradient_norms is not None
            case "perplexities":
                return self.perplexities is not None and self.reference_perplexities is not None
            case "iterates":
                return self.projections is not None and "noise_deviation" in self.steps
        raise InputError(f"a need must be one of {', '.join(NEEDS)}, got {need!r}")

    @property
    def present(self) -> tuple[str, ...]:
        """All needs that are met."""
        return tuple(need for need in NEEDS if self.has(need))

    @cached_property
    def target(self) -> Array:
        """The target's losses, from outputs where there are some."""
        return _losses(self.losses, self.logits, self.labels)

    @cached_property
    def shadows(self) -> Array:
        """The shadows' losses."""
        return _losses(self.shadow_losses, self.shadow_logits, self.labels)

    @cached_property
    def population(self) -> Array:
        """The target's losses on the population."""
        return _losses(self.population_losses, self.population_logits, self.population_labels)

    @cached_property
    def shadow_population(self) -> Array:
        """The shadows' losses on the population."""
        return _losses(self.shadow_population_losses, self.shadow_population_logits, self.population_labels)

    @cached_property
    def margins(self) -> tuple[Array, Array]:
        """Logit margins of target and shadows; from losses where there are no outputs: −ln(e^loss − 1).

        Losses below 0 are no cross-entropies; they are then taken as they are, negated.
        """
        if self.logits is not None and self.shadow_logits is not None and self.labels is not None:
            return logit_margin(self.logits, self.labels), logit_margin(self.shadow_logits, self.labels)
        if min(self.target.min(), self.shadows.min()) < 0:
            return -self.target, -self.shadows
        return _margins(self.target), _margins(self.shadows)

    def of(self, rows: Any) -> Evidence:
        """The same about some of the records: indices or flags, shape ``(records,)``."""
        taken = {}
        for name, axes in _AXES.items():
            value = getattr(self, name)
            if value is not None and "records" in axes:
                taken[name] = value[(slice(None),) * axes.index("records") + (rows,)]
        return replace(self, **taken)

    def shadow_as_target(self, number: int) -> tuple[Evidence, NDArray[np.bool_]]:
        """One shadow in the target's place, with the others as its shadows; and its own membership.

        What there is of the target alone (traces, gradients, iterates) is left out.
        """
        member = np.asarray(self.shadow_member)
        rest = np.arange(len(member)) != number
        taken: dict[str, Any] = dict.fromkeys(_TARGET_ALONE)
        for kind in ("losses", "logits"):
            for where in ("", "population_"):
                all_of_them = getattr(self, f"shadow_{where}{kind}")
                taken[f"{where}{kind}"] = None if all_of_them is None else all_of_them[number]
                taken[f"shadow_{where}{kind}"] = None if all_of_them is None else all_of_them[rest]
        return replace(self, **taken, shadow_member=member[rest]), member[number].astype(bool)


_AXES = {
    "losses": ("records",),
    "logits": ("records", "classes"),
    "labels": ("records",),
    "shadow_losses": ("shadows", "records"),
    "shadow_logits": ("shadows", "records", "classes"),
    "shadow_member": ("shadows", "records"),
    "population_losses": ("population",),
    "population_logits": ("population", "classes"),
    "population_labels": ("population",),
    "shadow_population_losses": ("shadows", "population"),
    "shadow_population_logits": ("shadows", "population", "classes"),
    "traces": ("checkpoints", "records"),
    "gradient_norms": ("records",),
    "perplexities": ("records",),
    "reference_perplexities": ("references",),
    "projections": ("records", "steps"),
}
_TARGET_ALONE = (
    "losses",
    "logits",
    "traces",
    "gradient_norms",
    "perplexities",
    "reference_perplexities",
    "projections",
)


def _losses(losses: Any, logits: Any, labels: Any) -> Array:
    if logits is not None and labels is not None:
        return cross_entropy(logits, labels)
    if losses is None:
        raise InputError("losses must be given, or outputs with labels, got neither")
    return np.asarray(losses)


def _margins(losses: Array) -> Array:
    """−ln(e^loss − 1), in the type of ``losses``: shadows are many, and may be held in float32."""
    out = np.empty(losses.shape, losses.dtype if losses.dtype.kind == "f" else np.float64)
    for part in spans(losses.shape[-1]):
        loss = np.maximum(losses[..., part].astype(np.float64), _SMALLEST_LOSS)
        out[..., part] = -(loss + np.log(-np.expm1(-loss)))
    return out
