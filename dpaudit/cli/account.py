"""`dpaudit account`: the ε that mechanism settings promise."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import number, say, say_json, table

_FPRS = (0.001, 0.01, 0.05, 0.1, 0.5)


def account(
    noise_multiplier: Annotated[float, typer.Option(help="Noise on the sum, in units of the clip norm.")],
    sampling_rate: Annotated[float, typer.Option(help="Probability that a record joins a batch; 1 is full batch.")],
    steps: Annotated[int, typer.Option(help="Number of noisy steps.")],
    delta: Annotated[float, typer.Option(help="The δ that ε is stated at.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what DP-SGD with these settings promises: ε at δ, and the trade-off of an attacker's two errors."""
    from ..accounting import Claim
    from ..report.facts import plain

    claim = Claim.dp_sgd(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=steps)
    epsilon, fnrs = claim.epsilon(delta), claim.fnr(list(_FPRS))
    method = "exact Gaussian" if claim.kind == "gaussian" else "privacy loss distribution (PLD)"
    if json:
        content = {
            "schema": "dpaudit.account/1",
            **claim.document(),
            "delta": delta,
            "ledgers": [{"method": method, "epsilon": epsilon, "upper_bound": True}],
            "trade_off": [{"fpr": a, "fnr": b} for a, b in zip(_FPRS, fnrs, strict=True)],
        }
        say_json(plain(content))
        return
    setting = f"noise multiplier {noise_multiplier:g}, sampling rate {sampling_rate:g}, {steps} steps, Poisson sampling"
    say(f"DP-SGD, {setting}, neighbours: {claim.adjacency}\n")
    table(("ledger", f"ε at δ = {delta:g}", "is"), [(method, number(epsilon, 4), "an upper bound, rounded up")])
    say("")
    rows = [(f"{a:g}", number(float(b), 4)) for a, b in zip(_FPRS, fnrs, strict=True)]
    table(("false positive rate", "false negative rate of any attack is at least"), rows)
