"""Models per second of ``train_many`` beside a plain torch loop and beside an Opacus loop, in one run, two threads.

Each model trains for 20 epochs of batches of 64 on a half of its own: digits 64-64-10 on 898 of 1,797 records,
784-128-10 on 1,000 of 2,000 records of Fashion-MNIST, and for comparison, without a bar, the CNN of Opacus's MNIST
example on the same. The plain loop is what one writes by hand: ``nn.Sequential``, ``torch.optim.SGD``, batches
gathered from tensors in memory (no DataLoader). The Opacus loop is the same with ``GradSampleModule`` and
``DPOptimizer`` (hooks), in two processes of its own: as installed, and with the C library told to keep the memory that
it frees, which suits Opacus best. Time is linear in steps and in models, so each way is timed on as many of both as a
few seconds allow.

Rounds alternate in order; a ratio is taken within a round. A slot during which other processes took over 5 % of a core
is timed again, up to ``--patience`` times, and the least disturbed counts. A bar is met when the median or the lower
quartile of the ratios reaches it.

    python benchmarks/many.py            (or: --rounds 3 --only digits)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpaudit.data import load
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, train_many
from dpaudit.trainers.settings import GradientDescent

THREADS, EPOCHS, BATCH = 2, 20, 64
QUIET = 0.05  # of a core that others may take
TUNED = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


@dataclass(frozen=True)
class Work:
    """What one way of training does in one slot."""

    models: int
    epochs: int


@dataclass(frozen=True)
class Task:
    """What is trained, how much of it in one slot, and the bars.

    Attributes:
        stacked, loop, opacus: of ``train_many``, of the plain loop and of Opacus's.
        bars: how many times the models per second: SGD to the plain loop, DP-SGD to it, DP-SGD to the Opacus loop.
    """

    name: str
    source: str
    records: int
    settings: GradientDescent
    stacked: Work
    loop: Work
    opacus: Work
    bars: tuple[float, float, float] | None

    @property
    def half(self) -> int:
        """Records that each model trains on."""
        return self.records // 2

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch."""
        return self.half // BATCH


TASKS = (
    Task(
        "digits 64-64-10", "digits", 1797, SGD(hidden=[64]), Work(64, 20), Work(4, 20), Work(1, 4), (10.0, 6.0, 25.0)
    ),
    Task(
        "Fashion-MNIST 784-128-10", "fashion-mnist", 2000, SGD(hidden=[128]),
        Work(28, 20), Work(4, 10), Work(1, 2), (2.6, 1.25, 12.0),
    ),
    Task("Fashion-MNIST CNN", "fashion-mnist", 2000, SGD(model="cnn"), Work(28, 1), Work(1, 10), Work(1, 2), None),
)  # fmt: skip


def records(task: Task) -> Data:
    pool = load(task.source, records=task.records, test=0, seed=0)
    return Data(pool.x, pool.y, pool.classes, nominal_size=task.half, shape=pool.shape)


def halves(task: Task, models: int) -> np.ndarray:
    """Bool ``(models, records)``, a random half for each."""
    order = np.random.default_rng(1).permuted(np.tile(np.arange(task.records), (models, 1)), axis=1)
    return order < task.half


def stacked(task: Task, data: Data, private: bool) -> float:
    """Seconds per model and epoch."""
    models, epochs = task.stacked.models, task.stacked.epochs
    settings = replace(task.settings, steps=epochs * task.steps_per_epoch, sampling_rate=BATCH / task.half)
    if private:
        settings = DPSGD(**{name: getattr(settings, name) for name in ("steps", "sampling_rate", "hidden", "model")})
    member = halves(task, models)
    start = time.perf_counter()
    train_many(settings, data, member, 0, threads=THREADS)
    return (time.perf_counter() - start) / models / epochs


def network(task: Task, data: Data) -> nn.Module:
    if task.settings.model == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(),
            nn.Linear(32, data.classes),
        )  # fmt: skip
    (hidden,) = task.settings.hidden
    return nn.Sequential(nn.Linear(data.features, hidden), nn.ReLU(), nn.Linear(hidden, data.classes))


def loop(task: Task, data: Data, private: bool) -> float:
    """Seconds per model and epoch of a loop over models; the private one is Opacus's."""
    torch.set_num_threads(THREADS)
    work = task.opacus if private else task.loop
    x, y = torch.from_numpy(np.array(data.x)), torch.from_numpy(np.array(data.y))
    start = time.perf_counter()
    for row in halves(task, work.models):
        model = network(task, data)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if private:
            model, optimizer = opacus(model, optimizer)
        own = torch.from_numpy(np.flatnonzero(row))
        for _ in range(work.epochs):
            order = own[torch.randperm(len(own))]
            for batch in order.split(BATCH)[: task.steps_per_epoch]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return (time.perf_counter() - start) / work.models / work.epochs


def opacus(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    return wrapped, DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)


# ---- Opacus, in processes of its own --------------------------------------------------------------------------------


def serve() -> None:
    """Answer each line, the number of a task, with Opacus's seconds per model and epoch."""
    tables: dict[str, Data] = {}
    for line in sys.stdin:
        task = TASKS[int(line)]
        data = tables.setdefault(task.name, records(task))
        print(json.dumps(loop(task, data, True)), flush=True)


@contextlib.contextmanager
def peer(environment: dict[str, str]) -> Iterator[tuple[int, Callable[[Task], float]]]:
    """The number of a process that trains with Opacus, and what asks it to."""
    command = [sys.executable, "-W", "ignore", __file__, "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(task: Task) -> float:
            print(TASKS.index(task), file=questions, flush=True)
            return float(json.loads(answers.readline()))

        yield process.pid, ask
        questions.close()


# ---- rounds ---------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Times slots, again where others disturbed them."""

    def __init__(self, processes: list[int], patience: int) -> None:
        self._own, self._patience = [os.getpid(), *processes], patience
        self.disturbed = 0

    def time(self, slot: Callable[[], float]) -> float:
        best = (float("inf"), 0.0)
        for _ in range(self._patience + 1):
            before, start = self._others(), time.perf_counter()
            seconds = slot()
            share = (self._others() - before) / (time.perf_counter() - start)
            best = min(best, (share, seconds))
            if share <= QUIET:
                return seconds
        self.disturbed += 1
        return best[1]

    def _others(self) -> float:
        """Seconds that all processors have worked for others since the machine started."""
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system = (int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:4])
        own = sum(sum(map(int, _after_name(pid)[11:13])) for pid in self._own)
        return (user + nice + system - own) / ticks


def _after_name(pid: int) -> list[str]:
    """The numbers of ``/proc/PID/stat`` from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def compare(task: Task, rounds: int, opacus_loops: dict[str, Callable[[Task], float]], watch: Stopwatch) -> bool:
    """Prints seconds per model and ratios; whether every bar is met."""
    data = records(task)
    slots: dict[str, Callable[[], float]] = {
        "SGD": lambda: stacked(task, data, False),
        "plain loop": lambda: loop(task, data, False),
        "DP-SGD": lambda: stacked(task, data, True),
        **{name: lambda ask=ask: ask(task) for name, ask in opacus_loops.items()},  # type: ignore[misc]
    }
    warm = replace(task, stacked=Work(4, 1))
    stacked(warm, data, True)
    took: dict[str, list[float]] = {name: [] for name in slots}
    for i in range(rounds):
        for name in list(slots)[:: 1 if i % 2 == 0 else -1]:
            took[name].append(EPOCHS * watch.time(slots[name]))
    print(f"\n{task.name}: milliseconds per model of {EPOCHS} epochs, median of {rounds} rounds")
    for name, times in took.items():
        print(f"  {name:28}{1e3 * np.median(times):10.1f}{1 / np.median(times):10.1f} models/s")
    fast, slow = ["SGD", "DP-SGD", *("DP-SGD" for _ in opacus_loops)], ["plain loop", "plain loop", *opacus_loops]
    bars = [None] * len(fast) if task.bars is None else [*task.bars[:2], *(task.bars[2] for _ in opacus_loops)]
    met = [judge(f"{a} / {b}", took[b], took[a], bar) for a, b, bar in zip(fast, slow, bars, strict=True)]
    return all(met)


def judge(name: str, slow: list[float], fast: list[float], bar: float | None) -> bool:
    ratios = np.divide(slow, fast)
    low, middle = np.quantile(ratios, [0.25, 0.5])
    met = bar is None or max(low, middle) >= bar
    verdict = "" if bar is None else f"bar {bar:5.2f}  {'met' if met else 'NOT MET'}"
    spread = f"[{ratios.min():.2f} to {ratios.max():.2f}]"
    print(f"  {name:36}{middle:8.2f} x  lower quartile {low:6.2f}  {spread:18} {verdict}", flush=True)
    return bool(met)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--patience", type=int, default=3, help="how often a disturbed slot is timed again")
    parser.add_argument("--only", default="", help="part of a task's name")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    with peer({}) as installed, peer(TUNED) as tuned:
        watch = Stopwatch([installed[0], tuned[0]], arguments.patience)
        loops = {"Opacus": installed[1], "Opacus, memory kept": tuned[1]}
        chosen = [task for task in TASKS if arguments.only.lower() in task.name.lower()]
        met = [compare(task, arguments.rounds, loops, watch) for task in chosen]
    if watch.disturbed:
        print(f"\n{watch.disturbed} slots were disturbed by other processes every time")
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
