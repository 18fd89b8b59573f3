"""The attacks by name: what each needs, and how it is run on whatever evidence there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .calibration import calibrated_loss, population, reference
from .classifier import learned
from .evidence import NEEDS, Evidence
from .exposure import exposure_extrapolated, exposure_interpolated
from .gradients import gradient_canary_score, gradient_norm
from .ratios import rmia
from .shadow import lira
from .signals import confidence, correctness, entropy, loss_threshold, modified_entropy
from .traces import loss_traces

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """One attack, ready to be run on evidence.

    Attributes:
        name: as on the command line.
        title: for reports.
        needs: keys of :data:`~dpaudit.attacks.evidence.NEEDS`.
        source: where it is from.
        run: evidence and a seed in, scores of shape ``(records,)`` out; a higher score says "member".
        default: whether it is run unasked where its needs are met.
        without: whether a record must have a shadow that was not trained on it.
        most_shadows: how many shadows at most are put in the target's place to find thresholds.
        most_pairs: shadows × records beyond which it is run only when it is named, for the time it would take.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    source: str
    run: Callable[[Evidence, int], Array]
    default: bool = True
    without: bool = False
    most_shadows: int = 16
    most_pairs: int | None = None

    def missing(self, evidence: Evidence) -> tuple[str, ...]:
        """Needs that are not met."""
        return tuple(need for need in self.needs if not evidence.has(need))

    def usable(self, evidence: Evidence) -> NDArray[np.bool_]:
        """Which records can be scored, shape ``(records,)``: by what the shadows were trained on, never the target."""
        self.require(evidence)
        if not self.without:
            return np.ones(evidence.records, bool)
        return np.logical_not(np.asarray(evidence.shadow_member, bool).all(axis=0))

    def scores(self, evidence: Evidence, seed: int = 0) -> Array:
        """Finite scores, shape ``(records,)``; infinite ones are put just beyond the others, in order.

        Raises:
            InputError: something that the attack needs is not there, or not enough of it.
        """
        self.require(evidence)
        return finite(np.asarray(self.run(evidence, seed), np.float64))

    def require(self, evidence: Evidence) -> None:
        """Refuse evidence that lacks something.

        Raises:
            InputError: it names what is lacking, and what there is.
        """
        missing = self.missing(evidence)
        if missing:
            raise InputError(
                f"{self.name} needs {'; and '.join(NEEDS[need] for need in missing)}; got "
                f"{', '.join(evidence.present) or 'nothing'}"
            )


def finite(scores: Array) -> Array:
    """Scores in which −∞ and ∞ are replaced by numbers beyond all others; the order stays.

    >>> finite(np.array([-np.inf, 0.0, 2.0])).tolist()
    [-1.0, 0.0, 2.0]
    """
    inside = scores[np.isfinite(scores)]
    low, high = (inside.min(), inside.max()) if inside.size else (0.0, 0.0)
    step = max(high - low, 1.0) / 2
    return np.where(scores == -np.inf, low - step, np.where(scores == np.inf, high + step, scores))


def _lira(mode: str) -> Callable[[Evidence, int], Array]:
    return lambda e, _: lira(*e.margins, e.shadow_member, mode)


def _rmia(mode: str) -> Callable[[Evidence, int], Array]:
    return lambda e, _: rmia(
        -e.target, -e.shadows, e.shadow_member, -e.population, shadow_population_signals=-e.shadow_population, mode=mode
    )


_LISTED = (
    Attack("loss", "Loss threshold", ("losses",), "Yeom et al. 2018", lambda e, _: loss_threshold(e.target)),
    Attack(
        "confidence", "Confidence", ("outputs",), "Salem et al. 2019: the largest probability, without labels",
        lambda e, _: confidence(e.logits),
    ),
    Attack("entropy", "Entropy", ("outputs",), "Salem et al. 2019", lambda e, _: entropy(e.logits)),
    Attack(
        "modified-entropy", "Modified entropy", ("outputs", "labels"), "Song & Mittal 2021",
        lambda e, _: modified_entropy(e.logits, e.labels),
    ),
    Attack(
        "correctness", "Correctness (gap)", ("outputs", "labels"), "Yeom et al. 2018",
        lambda e, _: correctness(e.logits, e.labels),
    ),
    Attack(
        "calibrated-loss", "Calibrated loss", ("losses", "shadows"), "Watson et al. 2022, by models without the record",
        lambda e, _: calibrated_loss(e.target, e.shadows, e.shadow_member), without=True,
    ),
    Attack(
        "population", "Population", ("losses", "population"), "Ye et al. 2022, attack P",
        lambda e, _: population(-e.target, -e.population),
    ),
    Attack(
        "reference", "Reference", ("losses", "shadows"), "Ye et al. 2022, attack R",
        lambda e, _: reference(-e.target, -e.shadows, e.shadow_member), without=True,
    ),
    Attack("lira", "LiRA, online", ("losses", "shadows"), "Carlini et al. 2022; shrinkage variance", _lira("online")),
    Attack(
        "lira-offline", "LiRA, offline", ("losses", "shadows"), "Carlini et al. 2022, one-sided; shrinkage variance",
        _lira("offline"), without=True,
    ),
    Attack(
        "lira-offline-two-sided", "LiRA, offline, two-sided", ("losses", "shadows"),
        "as the code of Carlini et al. 2022 scores; shrinkage variance", _lira("offline-two-sided"), default=False,
        without=True,
    ),
    Attack(
        "rmia", "RMIA, online", ("losses", "shadows", "population", "shadow population"), "Zarifzadeh et al. 2024",
        _rmia("online"),
    ),
    Attack(
        "rmia-offline", "RMIA, offline", ("losses", "shadows", "population", "shadow population"),
        "Zarifzadeh et al. 2024", _rmia("offline"), without=True,
    ),
    Attack(
        "learned", "Learned", ("outputs", "labels", "shadows", "shadow outputs"), "Shokri et al. 2017",
        lambda e, seed: learned(e.logits, e.labels, e.shadow_logits, e.shadow_member, seed=seed), most_shadows=1,
        most_pairs=1_000_000,
    ),
    Attack(
        "loss-traces", "Loss traces", ("traces",), "after Pollock et al. 2024: mean loss over training",
        lambda e, _: loss_traces(e.traces, "mean"),
    ),
    Attack(
        "loss-trace-iqr", "Loss traces, signed IQR", ("traces",), "Pollock et al. 2024, LT-IQR with its direction",
        lambda e, _: loss_traces(e.traces, "signed-iqr"),
    ),
    Attack(
        "gradient-norm", "Gradient norm", ("gradients",), "Nasr, Shokri & Houmansadr 2019",
        lambda e, _: gradient_norm(e.gradient_norms),
    ),
    Attack(
        "exposure", "Exposure", ("perplexities",), "Carlini et al. 2019, interpolated",
        lambda e, _: exposure_interpolated(e.perplexities, e.reference_perplexities),
    ),
    Attack(
        "exposure-extrapolated", "Exposure, extrapolated", ("perplexities",), "Carlini et al. 2019, skew-normal law",
        lambda e, _: exposure_extrapolated(e.perplexities, e.reference_perplexities), default=False,
    ),
    Attack(
        "gradient-canary", "Gradient canaries", ("iterates",), "exact likelihood ratio of what the steps released",
        lambda e, _: gradient_canary_score(e.projections, **e.steps),
    ),
)  # fmt: skip

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _LISTED}
"""All attacks by name, in the order of reports."""
