"""`dpaudit account`: what settings promise, by every ledger; or the setting that a promise needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .claiming import CLAIM_HELP, SAMPLER_HELP
from .console import line_width, say, say_aside, say_json

if TYPE_CHECKING:
    from ..accounting import Claim
    from ..accounting.calibration import Calibrated
    from ..report.accounts import Account

MECHANISMS = ("dp-sgd", "gaussian")
_TEXT_WIDTH = 140
_OPTIONS = {"noise_multiplier": "--noise-multiplier", "sampling_rate": "--sampling-rate", "steps": "--steps"}


def account(
    delta: Annotated[float, typer.Option(help="The δ that ε is stated at.")],
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise on the sum, in clip norms.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="A batch's share of the records; 1: all.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of noisy steps.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Solve for the one of these three that is left out.")] = None,
    records: Annotated[int | None, typer.Option(help="With --batch-size, in place of --sampling-rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Records in a batch, nominally.")] = None,
    epochs: Annotated[int | None, typer.Option(help="In place of --steps.")] = None,
    sampler: Annotated[str | None, typer.Option(help=SAMPLER_HELP)] = None,
    mechanism: Annotated[str, typer.Option(help="dp-sgd, or gaussian: full batches, by default one.")] = "dp-sgd",
    adjacency: Annotated[str | None, typer.Option(help="add-remove, replace-one or zero-out.")] = None,
    claim: Annotated[Path | None, typer.Option(help=f"{CLAIM_HELP} In place of all settings.")] = None,
    runs: Annotated[int | None, typer.Option(help="Also what choosing the best of so many runs costs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write page, JSON, text, CSV and figures here.")] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Print where every ledger is from.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what settings promise, by every ledger there is: ε at δ, ε against steps, the trade-off of two errors."""
    from .. import check
    from ..report.accounts import account_document, write_account
    from .account_text import account_text

    given = Given(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=steps, epsilon=epsilon,
                  records=records, batch_size=batch_size, epochs=epochs, sampler=sampler,
                  mechanism=check.choice("--mechanism", mechanism, MECHANISMS), adjacency=adjacency)  # fmt: skip
    check.delta(delta)
    found = _settled(given.resolved(), delta) if claim is None else _read(claim, given)
    content = account_document(_accounted(found, delta, runs))
    if out is not None:
        say_aside(f"account: {write_account(content, account_text(content, _TEXT_WIDTH, sources=True), out)}")
    if json:
        say_json(content)
    else:
        say(account_text(content, line_width(), sources).rstrip("\n"))


@dataclass(frozen=True)
class Found:
    """A claim, and how it came about."""

    claim: Claim
    solved: Calibrated | None = None
    beside: tuple[dict[str, Any], ...] = ()
    how: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Given:
    """Settings as given; ``how`` says in words what became of them."""

    noise_multiplier: float | None
    sampling_rate: float | None
    steps: int | None
    epsilon: float | None
    records: int | None
    batch_size: int | None
    epochs: int | None
    sampler: str | None
    mechanism: str
    adjacency: str | None
    how: tuple[str, ...] = ()

    def resolved(self) -> Given:
        """Sampling rate and steps from whatever stands for them.

        Raises:
            InputError: settings that contradict each other.
        """
        return self._full_batches()._rate_from_records()._steps_from_epochs()

    @property
    def missing(self) -> list[str]:
        """Which of noise multiplier, sampling rate and steps are not given."""
        return [name for name in _OPTIONS if getattr(self, name) is None]

    def _full_batches(self) -> Given:
        if self.mechanism == "gaussian" and self.sampler not in (None, "full-batch"):
            raise InputError(f"--sampler must be full-batch with --mechanism gaussian, got {self.sampler}")
        if self.mechanism != "gaussian" and self.sampler != "full-batch":
            return self
        if self.sampling_rate not in (None, 1.0) or (self.records, self.batch_size) != (None, None):
            raise InputError("full batches have sampling rate 1; leave --sampling-rate, --records and --batch-size out")
        one_release = self.mechanism == "gaussian" and self.steps is None and self.epochs is None
        solves_steps = self.epsilon is not None and self.noise_multiplier is not None
        steps = 1 if one_release and not solves_steps else self.steps
        return replace(self, sampler="full-batch", sampling_rate=1.0, steps=steps)

    def _rate_from_records(self) -> Given:
        from .. import check

        if self.records is None and self.batch_size is None:
            return self
        if self.records is None or self.batch_size is None:
            raise InputError("--records and --batch-size must be given together, got only one of them")
        if self.sampling_rate is not None:
            raise InputError("--records and --batch-size give the sampling rate; leave --sampling-rate out")
        count = check.integer("--records", self.records, 1)
        size = check.integer("--batch-size", self.batch_size, 1, count)
        if self.sampler == "balls-and-bins":
            bins = -(-count // size)
            words = f"⌈{count:,} / {size:,}⌉ = {bins:,} bins an epoch: sampling rate 1 / {bins:,}"
            return replace(self, sampling_rate=1 / bins, how=(*self.how, words))
        words = f"sampling rate {size:,} / {count:,} = {size / count:.6g}"
        return replace(self, sampling_rate=size / count, how=(*self.how, words))

    def _steps_from_epochs(self) -> Given:
        from .. import check
        from ..accounting.mechanisms import batches_per_epoch

        if self.epochs is None:
            return self
        if self.steps is not None:
            raise InputError("--epochs gives the number of steps; leave --steps out")
        if self.sampling_rate is None:
            raise InputError("--epochs needs --sampling-rate, or --records and --batch-size, got neither")
        epochs = check.integer("--epochs", self.epochs, 1)
        if self.records is not None and self.batch_size is not None:
            batches, words = -(-self.records // self.batch_size), f"{self.records:,} / {self.batch_size:,}"
        else:
            rate = check.probability("sampling_rate", self.sampling_rate)
            batches, words = batches_per_epoch(rate), f"1 / {rate:g}"
        how = f"{epochs:,} epochs of ⌈{words}⌉ = {batches:,} batches: {batches * epochs:,} steps"
        return replace(self, steps=batches * epochs, how=(*self.how, how))


def _settled(given: Given, delta: float) -> Found:
    """The claim of settings that are complete, or of those and the one that is solved for."""
    from ..accounting import Claim

    if given.epsilon is not None:
        return _solved(given, delta)
    if given.noise_multiplier is None or given.sampling_rate is None or given.steps is None:
        names = ", ".join(_OPTIONS[name] for name in given.missing)
        raise InputError(f"settings must be complete, or --epsilon given to solve for one of them; missing: {names}")
    claim = Claim.dp_sgd(
        noise_multiplier=given.noise_multiplier,
        sampling_rate=given.sampling_rate,
        steps=given.steps,
        sampler=given.sampler or "poisson",
        adjacency=given.adjacency,
    )
    return Found(claim, how=given.how)


def _solved(given: Given, delta: float) -> Found:
    from ..accounting import calibration

    if len(given.missing) != 1:
        got = ", ".join(_OPTIONS[name] for name in given.missing) or "none"
        raise InputError(
            "--epsilon solves for one of --noise-multiplier, --sampling-rate and --steps, "
            f"so exactly one must be left out, got without a value: {got}"
        )
    wanted = given.missing[0]
    settings = {name: getattr(given, name) for name in _OPTIONS if name != wanted}
    settings |= {"sampler": given.sampler or "poisson", "adjacency": given.adjacency}
    solved = getattr(calibration, wanted)(epsilon=given.epsilon, delta=delta, **settings)
    return Found(solved.claim, solved, _beside(solved), given.how)


def _beside(solved: Calibrated) -> tuple[dict[str, Any], ...]:
    """Of full batches, the noise multipliers of the analytic and of the classic Gaussian for the same target."""
    from ..accounting.calibration import analytic_gaussian, classic_gaussian
    from ..accounting.mechanisms import Gaussian, sensitivity

    mechanism = solved.claim.mechanism
    if solved.parameter != "noise_multiplier" or not isinstance(mechanism, Gaussian):
        return ()
    # All releases together are one Gaussian release of √steps times the sensitivity.
    size = sensitivity(solved.claim.adjacency) * math.sqrt(mechanism.steps)
    analytic = analytic_gaussian(solved.target, solved.delta) * size
    source = "Balle & Wang 2018, theorem 8"
    exact = {"method": "analytic Gaussian", "value": analytic, "note": f"exact; {source}", "source": source}
    source = "Dwork & Roth 2014, theorem A.1"
    textbook: dict[str, Any] = {"method": "classic Gaussian", "value": None, "source": source}
    try:
        textbook["value"] = classic_gaussian(solved.target, solved.delta) * size
        textbook["note"] = f"√(2 ln(1.25/δ)) / ε, proved up to ε = 1; {source}"
    except InputError as refused:
        textbook["note"] = f"refused: {refused}"
    return (exact, textbook)


def _read(file: Path, given: Given) -> Found:
    """The claim in a file, under ``--adjacency`` if that is given."""
    from ..accounting.reading import read_claim

    settings = "noise_multiplier sampling_rate steps epsilon records batch_size epochs sampler".split()
    if given.mechanism != MECHANISMS[0] or any(getattr(given, name) is not None for name in settings):
        raise InputError("--claim holds the settings; leave all options that state settings out")
    claim = read_claim(file)
    if given.adjacency is None:
        return Found(claim, how=(f"read from {file}",))
    restated = claim.under(given.adjacency)
    if restated is None:
        raise InputError(f"--adjacency can't be {given.adjacency} for {file}: its claim is about {claim.adjacency}")
    return Found(restated, how=(f"read from {file}, as a claim about {given.adjacency}",))


def _accounted(found: Found, delta: float, runs: int | None) -> Account:
    """Every ledger of the claim."""
    from ..accounting.ledgers import ledgers, over_steps
    from ..report.accounts import Account

    claim = found.claim
    return Account(
        claim=claim,
        delta=delta,
        ledgers=ledgers(claim, delta),
        by_steps=over_steps(claim, delta),
        solved=found.solved,
        beside=found.beside,
        tuning=() if runs is None else _tuning(claim, delta, runs),
        given=found.how,
    )


def _tuning(claim: Claim, delta: float, runs: int) -> tuple[Any, ...]:
    from ..accounting.tuning import tuning_costs

    return tuple(tuning_costs(claim, delta, runs))
