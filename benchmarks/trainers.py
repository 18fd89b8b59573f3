"""One step of private training beside one of ordinary training and of Opacus: time and peak memory, in one run.

Models, batches and losses are the same for all; a step is all from the batch to the new parameters. Each round times
every contender once, in an order that alternates; a time is the median of the calls that fit a slot of 80 ms, done
again while other processes were busy; a ratio is taken within a round. A bar is met when the median of the ratios, or
their lower quartile, meets it. Opacus is timed as it comes and with its allocator tuned, by environment variables, in
a process of its own. Peak memory is that of three steps above what was resident before them, each in its own process
in which a step of another model was done, and forgotten, before; the median of three.

    python benchmarks/trainers.py                  (all, about fifteen minutes on two cores)
    python benchmarks/trainers.py --only mlp --skip-opacus --rounds 5
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.trainers import architectures
from dpaudit.trainers.private import GlobalClipping, PrivateEngine, Sgd

THREADS = 2
SLOT = 0.08  # seconds
BUSY = 0.1  # cores that others may use during a slot before it is done again
CLIP, SIGMA, RATE = 1.0, 1.0, 0.01
TUNED = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
}
MEMORY_BAR = 1.6
SMALL = 1.0  # MiB: what takes less is not compared

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A model, a batch, and what is asked of a private step.

    Attributes:
        name: of the model.
        size: of the batch.
        bar: largest ratio of a private step's time to a plain one's; None where none was set.
        faster: how many times faster than the fastest mode of Opacus it must be.
        faster_than_default: than Opacus's default mode, as installed.
    """

    name: str
    size: int
    bar: float | None
    faster: float
    faster_than_default: float = 1.0

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(0)
        if self.name == "logistic":
            return architectures.softmax(784, 10)
        if self.name == "mlp":
            return architectures.mlp(784, [256, 128], 10, generator)
        if self.name == "cnn":
            return architectures.cnn(generator)
        return architectures.transformer(1000, 32, 10, generator)

    def batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        examples = self.size if size is None else size
        y = torch.randint(10, (examples,), generator=generator)
        if self.name == "transformer":
            return torch.randint(1000, (examples, 32), generator=generator), y
        shape = (1, 28, 28) if self.name == "cnn" else (784,)
        return torch.randn((examples, *shape), generator=generator), y


CASES = (
    Case("logistic", 64, 1.2, 3.0),
    Case("logistic", 256, 1.2, 3.0),
    Case("logistic", 1024, 1.2, 3.0),
    Case("mlp", 64, 2.0, 2.0, 30.0),
    Case("mlp", 256, 1.4, 2.0, 30.0),
    Case("mlp", 1024, 1.2, 2.0, 30.0),
    Case("cnn", 64, None, 1.4),
    Case("cnn", 256, 1.3, 1.4),
    Case("cnn", 1024, 1.3, 1.4),
    Case("transformer", 64, 1.4, 1.9),
    Case("transformer", 256, None, 1.9),
)


# ---- contenders -----------------------------------------------------------------------------------------------------


def plain(case: Case, x: Tensor, y: Tensor) -> Step:
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def private(case: Case, x: Tensor, y: Tensor) -> Step:
    engine = PrivateEngine(
        case.model(),
        clipping=GlobalClipping(norm=CLIP),
        noise_multiplier=SIGMA,
        divisor=len(y),
        optimizer=Sgd(learning_rate=RATE),
        generator=np.random.default_rng(0),
    )
    return lambda: engine.step(x, y)


def _opacus(mode: str) -> Callable[[Case, Tensor, Tensor], Step]:
    def make(case: Case, x: Tensor, y: Tensor) -> Step:
        from opacus.grad_sample.utils import wrap_model
        from opacus.optimizers import DPOptimizer

        model = wrap_model(case.model(), grad_sample_mode=mode, batch_first=True, loss_reduction="mean")
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=RATE),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=len(y),
        )

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    return make


def _ghost(case: Case, x: Tensor, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        case.model(), batch_first=True, max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=len(y),
    )
    loss = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss(reduction="mean"), loss_reduction="mean")

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


OPACUS = {
    "opacus hooks": _opacus("hooks"),
    "opacus functorch": _opacus("functorch"),
    "opacus ew": _opacus("ew"),
    "opacus ghost": _ghost,
}
CONTENDERS: dict[str, Callable[[Case, Tensor, Tensor], Step]] = {"plain": plain, "private": private, **OPACUS}


def possible(case: Case, name: str) -> str:
    """Why a contender cannot do a case; empty if it can. Tried on a batch of two."""
    try:
        CONTENDERS[name](case, *case.batch(2))()
    except Exception as error:  # whatever a peer raises
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return ""


# ---- time -----------------------------------------------------------------------------------------------------------


def _others_seconds() -> float:
    """CPU seconds that everybody but this process has used so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK") - own.user - own.system


def timed(step: Step, patience: float) -> float:
    """Seconds of one call: the median over a slot, done again while others were busy, the quietest after a while."""
    best, quietest, end = 0.0, float("inf"), time.perf_counter() + max(patience, 4 * SLOT)
    while time.perf_counter() < end:
        calls: list[float] = []
        before, start = _others_seconds(), time.perf_counter()
        while (now := time.perf_counter()) - start < SLOT or len(calls) < 2:
            step()
            calls.append(time.perf_counter() - now)
        others = (_others_seconds() - before) / (time.perf_counter() - start)
        if others < quietest:
            best, quietest = median(calls), others
        if others < BUSY:
            break
        time.sleep(SLOT)
    return best


@dataclass
class Times:
    """Seconds per step of each contender, round by round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, over: str, under: str) -> list[float]:
        return [a / b for a, b in zip(self.seconds[over], self.seconds[under], strict=True)]


def race(case: Case, names: list[str], rounds: int, patience: float) -> Times:
    steps = {name: CONTENDERS[name](case, *case.batch()) for name in names}
    for step in steps.values():
        step()
        step()
    times = Times({name: [] for name in names})
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            times.seconds[name].append(timed(steps[name], patience))
    return times


def quarter(values: list[float]) -> float:
    return quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def spread(values: list[float]) -> str:
    return f"{median(values):6.2f} [{min(values):.2f} to {max(values):.2f}]"


# ---- memory ---------------------------------------------------------------------------------------------------------


def peak(case: Case, name: str) -> float:
    """MiB that three steps need above what was resident, in a process of its own."""
    command = [sys.executable, __file__, "--peak", case.name, str(case.size), name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def _measure_peak(case: Case, name: str) -> float:
    CONTENDERS[name](case, *case.batch())()  # the libraries' own code and tables are there once, whatever is trained
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    step = CONTENDERS[name](case, *case.batch())
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    for _ in range(3):
        step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
    return int(line.split()[1])


# ---- report ---------------------------------------------------------------------------------------------------------


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def judge(case: Case, times: Times, peers: list[str], default: bool) -> bool:
    """Print one case; whether all of its bars are met."""
    ratios = times.ratios("private", "plain")
    ms = {name: 1e3 * median(values) for name, values in times.seconds.items()}
    line = f"{case.name:12}{case.size:6}  plain {ms['plain']:8.2f} ms   private / plain {spread(ratios)}"
    fine = True
    if case.bar is not None:
        met = quarter(ratios) <= case.bar
        fine = fine and met
        line += f"   bar {case.bar}: {verdict(met)}"
    print(line, flush=True)
    fastest = min(peers, key=lambda name: median(times.seconds[name]), default="")
    for name in peers:
        gains = times.ratios(name, "private")
        bar = max(
            case.faster if name == fastest else 1.0, case.faster_than_default if default and name == peers[0] else 1.0
        )
        met = -quarter([-gain for gain in gains]) >= bar
        fine = fine and met
        print(f"{'':20}{name:18}{ms[name]:9.2f} ms   / private {spread(gains)}   bar {bar}: {verdict(met)}", flush=True)
    return fine


def run_times(cases: list[Case], rounds: int, patience: float, opacus: bool, tuned: bool) -> bool:
    print(f"\nTime of a step, {torch.get_num_threads()} threads, allocator {'tuned' if tuned else 'as installed'}")
    fine = True
    for case in cases:
        peers = []
        for name in OPACUS if opacus else ():
            reason = possible(case, name)
            if reason:
                print(f"{case.name:12}{case.size:6}  {name} cannot: {reason}")
            else:
                peers.append(name)
        fine = (
            judge(case, race(case, ["plain", "private", *peers], rounds, patience), peers, default=not tuned) and fine
        )
    return fine


def run_memory(cases: list[Case], opacus: bool) -> bool:
    print("\nPeak memory of a step above what was resident, MiB")
    fine = True
    for case in cases:
        sizes = {
            name: median(peak(case, name) for _ in range(3))
            for name in ("plain", "private", *(["opacus hooks", "opacus ghost"] if opacus else []))
        }
        ratio = sizes["private"] / max(sizes["plain"], 1e-9)
        met = ratio <= MEMORY_BAR or sizes["private"] < SMALL
        fine = fine and met
        listed = "   ".join(f"{name} {size:7.1f}" for name, size in sizes.items())
        print(f"{case.name:12}{case.size:6}  {listed}   private / plain {ratio:.2f}   bar {MEMORY_BAR}: "
              f"{verdict(met)}", flush=True)  # fmt: skip
    return fine


def chosen(names: list[str]) -> list[Case]:
    return [case for case in CASES if not names or case.name in names or f"{case.name}-{case.size}" in names]


def _children(options: argparse.Namespace) -> Iterator[bool]:
    command = [
        sys.executable,
        __file__,
        "--tuned",
        "--rounds",
        str(options.rounds),
        "--threads",
        str(options.threads),
        "--only",
        *options.only,
    ]
    yield subprocess.run(command, env={**os.environ, **TUNED}, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of models, or model-size")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--patience", type=float, default=2.0, help="seconds to wait for a quiet slot, each time")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--skip-opacus", action="store_true")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.peak:
        (case,) = [c for c in CASES if (c.name, str(c.size)) == tuple(options.peak[:2])]
        print(_measure_peak(case, options.peak[2]))
        return 0
    cases = chosen(options.only)
    fine = run_times(cases, options.rounds, options.patience, not options.skip_opacus, options.tuned)
    if not options.tuned:
        if not options.skip_opacus:
            fine = all(_children(options)) and fine
        if not options.skip_memory:
            fine = run_memory(cases, not options.skip_opacus) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
