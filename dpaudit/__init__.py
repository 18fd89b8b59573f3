"""dpaudit audits differentially private learning: does training leak more about one record than its claim allows?

The names below load on first use, so ``import dpaudit`` is as cheap as importing nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import accounting, attacks, bounds, data, report, trainers
    from .accounting import Claim
    from .auditor import audit
    from .records import Audit, Bound, Data, Design, Finding, Observations, Verdict
    from .runner import run

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Bound",
    "Claim",
    "Data",
    "Design",
    "Finding",
    "Observations",
    "Verdict",
    "__version__",
    "accounting",
    "attacks",
    "audit",
    "bounds",
    "data",
    "report",
    "run",
    "trainers",
]

_SUBMODULES = frozenset({"accounting", "attacks", "bounds", "data", "report", "trainers"})
_HOMES = {
    "Claim": "accounting",
    "audit": "auditor",
    "run": "runner",
    **dict.fromkeys(("Audit", "Bound", "Data", "Design", "Finding", "Observations", "Verdict"), "records"),
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
