"""What gradient canaries add to a private step: a step with the audit beside the same step without it, in one run.

1,000 canaries, each a member by a fair coin, in a private step as in ``trainers.py``. Each round times every contender
once, in an order that alternates, and ratios are taken within a round. A step with the audit and the step alone take
turns within a slot, on engines of their own, so that both see the same machine. A bar is met when the median of the
ratios, or their lower quartile, meets it. Products that wait for the end, or for a block of steps, are timed with the
steps that they belong to.

    python benchmarks/gradient_canaries.py                  (about three minutes on two cores)
    python benchmarks/gradient_canaries.py --only mlp --rounds 5
    python benchmarks/gradient_canaries.py --tells 30       (what so many runs show of ε, instead; half a minute)
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

import mechanisms
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit import Claim, bounds
from dpaudit.records import HalfSplitWarning, Observations
from dpaudit.trainers import architectures
from dpaudit.trainers.private import (
    AuditedEngine,
    GlobalClipping,
    GradientCanaries,
    LinearScore,
    PrivateEngine,
    Sgd,
    StepScores,
    audit_one_run,
)
from dpaudit.trainers.private.canaries import KINDS
from dpaudit.trainers.private.canary_vectors import CanaryVectors

COUNT = 1000
SLOT = 0.6  # seconds, of both steps together
STEPS = 100  # of a run: what is done once per run is shared out among so many
ENDS = 9  # times that is done, of which the median counts
THREADS = 2
BATCH = 256
CLIP, SIGMA, RATE = 1.0, 1.0, 1e-9  # models stay as they are: what is measured must not depend on where they go
MODELS: dict[str, tuple[Callable[[torch.Generator], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda generator: architectures.mlp(784, [256, 128], 10, generator), (784,)),
    "cnn": (architectures.cnn, (1, 28, 28)),
}
DELTA = 1e-5
SETTINGS = {"full batch": (10.0, 1.0, 100), "Poisson": (1.0, 0.1, 40)}  # σ, q, steps
Step = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """A way to audit.

    Attributes:
        name: for the report.
        kind: of the canaries.
        linear: whether the statistic is linear over the steps.
        rate: with which members join a step.
        bar: largest ratio to the step alone; None where none is set.
        naive: dense sums and products, step by step, with nothing kept: what anyone would write first.
    """

    name: str
    kind: str
    linear: bool
    rate: float = 1.0
    bar: float | None = None
    naive: bool = False


CONTENDERS = (
    Contender("dirac, linear", "dirac", True, bar=1.05),
    Contender("signs, linear", "signs", True, bar=1.05),
    Contender("dirac, per step", "dirac", False, bar=1.5),
    Contender("signs, per step", "signs", False, bar=1.5),
    Contender("dirac, per step, q = 0.1", "dirac", False, rate=0.1, bar=1.5),
    Contender("signs, per step, q = 0.1", "signs", False, rate=0.1, bar=1.5),
    Contender("random, linear", "random", True, bar=1.05),
    Contender("random, per step", "random", False, bar=1.5),
    Contender("random, per step, q = 0.1", "random", False, rate=0.1, bar=1.5),
    Contender("random, per step, naive", "random", False, naive=True),
)


def engine(name: str) -> PrivateEngine:
    return PrivateEngine(
        MODELS[name][0](torch.Generator().manual_seed(0)),
        clipping=GlobalClipping(norm=CLIP),
        noise_multiplier=SIGMA,
        divisor=BATCH,
        optimizer=Sgd(learning_rate=RATE),
        generator=np.random.Generator(np.random.SFC64(0)),
    )


def audited(name: str, contender: Contender, x: Tensor, y: Tensor, made: dict[str, CanaryVectors]) -> tuple[Step, int]:
    """A step with its audit, and how many of them make a whole that holds every product due."""
    one = engine(name)
    if contender.kind not in made:
        made[contender.kind] = GradientCanaries(kind=contender.kind, count=COUNT, norm=CLIP).vectors(one.released)
    vectors = made[contender.kind]
    member = np.random.default_rng(1).random(COUNT) < 0.5
    if contender.naive:
        return _naive(one, vectors, member, x, y), 1
    scores = LinearScore(vectors) if contender.linear else StepScores(vectors)
    joins = np.random.default_rng(2)
    steps = AuditedEngine(one, vectors, member, scores, sampling_rate=contender.rate, generator=joins)
    return lambda: steps.step(x, y), 1 if contender.linear else vectors.steps_per_product


def _naive(one: PrivateEngine, vectors: CanaryVectors, member: NDArray[np.bool_], x: Tensor, y: Tensor) -> Step:
    """One dense matrix of canaries: a product for what is planted, and one for the scores."""
    dense = vectors.dense()
    inside, table = torch.from_numpy(member).float(), []

    def step() -> None:
        one.step(x, y, extra=inside @ dense)
        table.append(dense @ one.released)

    return step


def timed(step: Step, alone: Step, whole: int) -> tuple[float, float]:
    """Seconds of one step with the audit and alone, which take turns in wholes for the length of a slot.

    The lower decile of the calls: others on the machine only ever add time, to either.
    """
    with_audit: list[float] = []
    without: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < SLOT or len(with_audit) < 2:
        for run, times in ((step, with_audit), (alone, without)):
            now = time.perf_counter()
            for _ in range(whole):
                run()
            times.append((time.perf_counter() - now) / whole)
    return float(np.quantile(with_audit, 0.1)), float(np.quantile(without, 0.1))


def once_per_run(contender: Contender, made: dict[str, CanaryVectors]) -> float:
    """Seconds of what a linear statistic does at the end of a run: one product."""
    if not contender.linear:
        return 0.0
    vectors, gradient, times = made[contender.kind], torch.randn(made[contender.kind].parameters), []
    for _ in range(ENDS):
        now = time.perf_counter()
        vectors.products(gradient)
        times.append(time.perf_counter() - now)
    return median(times)


def race(name: str, rounds: int, contenders: list[Contender]) -> bool:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((BATCH, *MODELS[name][1]), generator=generator)
    y = torch.randint(10, (BATCH,), generator=generator)
    made: dict[str, CanaryVectors] = {}
    alone = engine(name)
    steps = {c: audited(name, c, x, y, made) for c in contenders}
    ends = {c: once_per_run(c, made) / STEPS for c in contenders}
    for step, _ in steps.values():
        step()
    seconds: dict[Contender, list[tuple[float, float]]] = {c: [] for c in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            step, whole = steps[contender]
            seconds[contender].append(timed(step, lambda: alone.step(x, y), whole))
    base = 1e3 * median(without for pairs in seconds.values() for _, without in pairs)
    print(f"\n{name}, batch {BATCH}, {alone.released.numel():,} parameters, {COUNT:,} canaries; "
          f"a step alone takes {base:.2f} ms")  # fmt: skip
    judged = [_judge(c, [(a + ends[c]) / b for a, b in seconds[c]]) for c in contenders]
    return all(judged)


def _judge(contender: Contender, ratios: list[float]) -> bool:
    met = contender.bar is None or quarter(ratios) <= contender.bar
    line = f"  {contender.name:26} step with audit / step {spread(ratios)}"
    print(line if contender.bar is None else f"{line}   bar {contender.bar}: {'met' if met else 'MISSED'}", flush=True)
    return met


def tell(runs: int) -> None:
    """What the recipe of order statistics shows of ε: softmax regression of 1,110 parameters, data known."""
    for name, (sigma, rate, steps) in SETTINGS.items():
        claim = Claim.dp_sgd(noise_multiplier=sigma, sampling_rate=rate, steps=steps)
        epsilon = claim.epsilon(DELTA)
        print(f"\n{name}: {steps} steps, q = {rate:g}, σ = {sigma:g}, ε = {epsilon:.2f} at δ = {DELTA:g}; {runs} runs")
        draw = mechanisms.coins(mechanisms.subsampled_gaussian(sigma, rate, steps).draw, 1, COUNT)
        ways: dict[str, Callable[[int], Observations]] = {
            kind: partial(observed, kind, sigma, rate, steps) for kind in KINDS
        }
        ways["simulated ideal"] = partial(simulated, draw)
        for way, observe in ways.items():
            found = [recipe(observe(seed), claim) for seed in range(runs)]
            above = sum(bound > epsilon for bound in found)
            print(f"  {way:16} median {median(found):.2f}, above ε in {above} of {runs}", flush=True)


def observed(kind: str, sigma: float, rate: float, steps: int, seed: int) -> Observations:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn((8, 110), generator=generator), torch.arange(8) % 10

    def make(noise: np.random.Generator) -> PrivateEngine:
        return PrivateEngine(
            architectures.softmax(110, 10),
            clipping=GlobalClipping(norm=CLIP),
            noise_multiplier=sigma,
            divisor=8,
            optimizer=Sgd(learning_rate=0.05),
            generator=noise,
        )

    canaries = GradientCanaries(kind=kind, count=COUNT, norm=CLIP, seed=5)
    options: dict[str, Any] = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate}
    return audit_one_run(make, itertools.repeat((x, y)), canaries, seed=seed, known_data=True, **options)


def simulated(draw: Callable[[np.random.Generator], Observations], seed: int) -> Observations:
    return draw(np.random.default_rng(seed))


def recipe(observations: Observations, claim: Claim) -> float:
    options: dict[str, Any] = {"delta": DELTA, "claim": claim, "threshold": bounds.Fixed(0.0)}
    return bounds.order_statistics(observations, observations.coins, **options).epsilon


def quarter(values: list[float]) -> float:
    return quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def spread(values: list[float]) -> str:
    digits = 2 if median(values) >= 2 else 3
    return f"{median(values):6.{digits}f} [{min(values):.{digits}f} to {max(values):.{digits}f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of models")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--contenders", default="", help="only those with this in their name")
    parser.add_argument("--tells", type=int, default=0, help="runs to see what they show of ε; no race is held")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.tells:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HalfSplitWarning)  # fair coins, whatever they show
            tell(options.tells)
        return 0
    contenders = [c for c in CONTENDERS if options.contenders in c.name]
    fine = [race(name, options.rounds, contenders) for name in MODELS if not options.only or name in options.only]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
