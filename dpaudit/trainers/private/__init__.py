"""Private training of any ``torch.nn.Module``: per-example clipping at about the price of ordinary training.

Names load on first use: the settings (clipping rules, optimizers) need no torch, the engine does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import need_extra

if TYPE_CHECKING:
    from .canaries import GradientCanaries
    from .canary_audit import AuditedEngine, audit_one_run
    from .canary_scores import LinearScore, StepScores
    from .clipped import ClippedSums
    from .clipping import AutomaticClipping, Clipping, GlobalClipping, PerLayerClipping
    from .diagnostics import Diagnostics, StepCounts
    from .discrete import discrete_gaussian
    from .engine import PrivateEngine
    from .losses import CrossEntropy
    from .optimizers import Adam, Momentum, Optimizer, Sgd
    from .perexample import SlowGradients
    from .screening import check_independence

__all__ = [
    "Adam",
    "AuditedEngine",
    "AutomaticClipping",
    "ClippedSums",
    "Clipping",
    "CrossEntropy",
    "Diagnostics",
    "GlobalClipping",
    "GradientCanaries",
    "LinearScore",
    "Momentum",
    "Optimizer",
    "PerLayerClipping",
    "PrivateEngine",
    "Sgd",
    "SlowGradients",
    "StepCounts",
    "StepScores",
    "audit_one_run",
    "check_independence",
    "discrete_gaussian",
]

_HOMES = {
    **dict.fromkeys(("AutomaticClipping", "Clipping", "GlobalClipping", "PerLayerClipping"), "clipping"),
    **dict.fromkeys(("Adam", "Momentum", "Optimizer", "Sgd"), "optimizers"),
    **dict.fromkeys(("Diagnostics", "StepCounts"), "diagnostics"),
    **dict.fromkeys(("AuditedEngine", "audit_one_run"), "canary_audit"),
    **dict.fromkeys(("LinearScore", "StepScores"), "canary_scores"),
    "ClippedSums": "clipped",
    "CrossEntropy": "losses",
    "GradientCanaries": "canaries",
    "PrivateEngine": "engine",
    "SlowGradients": "perexample",
    "check_independence": "screening",
    "discrete_gaussian": "discrete",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise need_extra("torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
