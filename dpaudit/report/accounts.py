"""The facts of an account as plain JSON values: the schema ``dpaudit.account/1``; and its folder on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..accounting import Claim
from ..accounting.curves import GaussianCurve
from ..records import FloatArray
from ..store import write_aside
from . import wording
from .account_words import SAMPLERS, STATUSES, UPPER_BOUNDS, beside, conditions, headline, shown, warnings
from .facts import plain

if TYPE_CHECKING:
    from ..accounting.calibration import Calibrated
    from ..accounting.curves import Precision
    from ..accounting.ledgers import Ledger

SCHEMA = "dpaudit.account/1"
FPRS = (0.001, 0.01, 0.05, 0.1, 0.5)
COLUMNS = "method epsilon delta status upper_bound adjacency source note".split()
# Dense where the curve bends: logarithmic from far below the table's smallest rate, then even.
_CURVE = np.unique(np.concatenate([[0.0], np.geomspace(1e-6, 0.05, 80), np.linspace(0.05, 1.0, 77)]))


@dataclass(frozen=True, kw_only=True)
class Account:
    """What an accountant found out about one claim.

    Attributes:
        claim: what is claimed.
        delta: the δ of every ε, where nothing else is said.
        ledgers: every method's ε, the claim's own first.
        by_steps: the numbers of steps, and every method's ε at each of them; None for a claim without
            steps; no line is drawn through a single one.
        solved: the setting that was solved for, if any.
        beside: other ways to solve for it: method, value or None, note.
        tuning: what choosing the best of several runs costs, by method.
        given: how settings follow from those given, in words.
    """

    claim: Claim
    delta: float
    ledgers: Sequence[Ledger]
    by_steps: tuple[Sequence[int], Mapping[str, FloatArray]] | None = None
    solved: Calibrated | None = None
    beside: Sequence[Mapping[str, Any]] = ()
    tuning: Sequence[Any] = ()
    given: Sequence[str] = ()


def account_document(account: Account) -> dict[str, Any]:
    """The content of ``account.json``. All values are JSON's own; an infinite number is the string ``"inf"``."""
    claim, delta = account.claim, account.delta
    facts = {
        "schema": SCHEMA,
        **claim.document(),
        "words": claim.mechanism.words(),
        "sampler": _sampler(claim),
        "given": account.given,
        "delta": delta,
        "epsilon": claim.epsilon(delta),
        "bracket": _bracket(account),
        "precision": _precision(claim.curve.precision(delta)),
        "calibration": None if account.solved is None else _calibration(account.solved, account.beside),
        "ledgers": [_ledger(entry) for entry in account.ledgers],
        "by_steps": _by_steps(account),
        "trade_off": [{"fpr": a, "fnr": b} for a, b in zip(FPRS, claim.fnr(list(FPRS)), strict=True)],
        "curve": _curve(claim, delta),
        "tuning": [asdict(cost) for cost in account.tuning] or None,
    }
    out: dict[str, Any] = plain(facts, "account")
    return out


def _sampler(claim: Claim) -> dict[str, str] | None:
    name = claim.settings.get("sampler", "full-batch" if claim.kind == "gaussian" else None)
    return None if name is None else {"name": name, "words": SAMPLERS[name]}


def _precision(found: Precision) -> dict[str, Any]:
    grid = None if found.grid is None else asdict(found.grid)
    return {"limited": found.limited, "note": found.note, "grid": grid}


def _bracket(account: Account) -> dict[str, float] | None:
    """Where ε lies, if a ledger bounds it from below."""
    lower = [entry.epsilon for entry in account.ledgers if entry.status == "lower bound"]
    if not lower or lower[0] is None:
        return None
    return {"lower": lower[0], "upper": account.claim.epsilon(account.delta)}


def _calibration(solved: Calibrated, beside: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = "parameter value epsilon target delta tolerance".split()
    return {name: getattr(solved, name) for name in names} | {"adjacency": solved.claim.adjacency, "beside": beside}


def _ledger(entry: Ledger) -> dict[str, Any]:
    names = "method epsilon delta status adjacency source note".split()
    return {name: getattr(entry, name) for name in names} | {"upper_bound": entry.status in UPPER_BOUNDS}


def _by_steps(account: Account) -> dict[str, Any] | None:
    if account.by_steps is None or len(account.by_steps[0]) < 2:
        return None
    steps, epsilons = account.by_steps
    status = {entry.method: entry.status for entry in account.ledgers}
    ledgers = [
        {"method": m, "status": status[m], "epsilon": [None if np.isnan(v) else v for v in e]}
        for m, e in epsilons.items()
    ]
    return {"steps": [int(t) for t in steps], "delta": account.delta, "ledgers": ledgers}


def _curve(claim: Claim, delta: float) -> dict[str, Any]:
    """The trade-off function, and that of the Gaussian mechanism with the same ε at ``delta``, where there is one."""
    epsilon, mu = claim.epsilon(delta), None
    if delta > 0 and 0 < epsilon < np.inf:
        from ..accounting.calibration import analytic_gaussian

        mu = 1.0 / analytic_gaussian(epsilon, delta)
    return {
        "fpr": _CURVE,
        "fnr": claim.fnr(_CURVE),
        "mu": mu,
        "gaussian_fnr": None if mu is None else GaussianCurve(mu).fnr(_CURVE),
    }


def ledgers_csv(facts: Mapping[str, Any]) -> str:
    """The ledgers of an :func:`account_document`, one a row; what has no number is empty, infinity is inf."""
    out = io.StringIO()
    rows = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    rows.writeheader()
    rows.writerows({name: entry[name] for name in COLUMNS} for entry in facts["ledgers"])
    return out.getvalue()


def account_page(facts: Mapping[str, Any], svgs: Mapping[str, str]) -> str:
    """``account.html``: one file with its figures inside.

    Args:
        svgs: SVG text by name, as :func:`~dpaudit.report.account_figures.draw_account` names the figures.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from .html import TEMPLATES, inline

    pages = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    figures = {name: inline(svg, f"f{i}") for i, (name, svg) in enumerate(svgs.items())}
    words = {"w": wording, "shown": shown, "STATUSES": STATUSES, "headline": headline(facts)}
    words["conditions"] = conditions(facts["tuning"] or [])
    page = pages.get_template("account.html.j2")
    return page.render(facts=facts, figures=figures, beside=beside(facts), warnings=warnings(facts), **words)


def write_account(facts: Mapping[str, Any], text: str, folder: Path) -> Path:
    """Write ``account.html``, ``.json``, ``.txt`` and ``.csv`` and ``figures/`` (SVG and PNG) into ``folder``.

    The page comes last, and holds its figures itself. The same facts give the same bytes.

    Returns:
        The page.
    """
    from .account_figures import draw_account
    from .figures import to_png, to_svg
    from .writing import json_text

    drawn = draw_account(facts)
    svgs = {name: to_svg(figure) for name, figure in drawn.items()}
    page = account_page(facts, svgs)
    for name, figure in drawn.items():
        write_aside(folder / "figures" / f"{name}.svg", svgs[name].encode())
        write_aside(folder / "figures" / f"{name}.png", to_png(figure))
    write_aside(folder / "account.json", json_text(facts).encode())
    write_aside(folder / "account.csv", ledgers_csv(facts).encode())
    write_aside(folder / "account.txt", text.encode())
    write_aside(folder / "account.html", page.encode())
    return folder / "account.html"
