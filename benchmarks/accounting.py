"""CPU time of calibration beside dp-accounting's and Opacus', and of what `dpaudit account` computes, in one run.

Calibration: the smallest noise multiplier for ε = 1, 3, 8 at δ = 1e-5. A round times every contender once, each with
nothing remembered, in an order that alternates; ratios are taken within a round. dpaudit is timed on the grid that a
claim uses by default, which is the bar of 1.5 s, and on dp-accounting's own grid of 1e-3, which is the bar of 3 times
faster. dp-accounting's ``calibrate_dp_mechanism`` runs as it comes, to a tolerance of 1e-6, and once more to dpaudit's
(2e-4 of ε, about 1e-4 of the noise). Opacus, where installed, runs as it comes, to 0.01 of ε.

Accounts: ε, δ at ε = 1 and the trade-off curve of a claim, from nothing; the bar is 1 s.

    python benchmarks/accounting.py --rounds 5
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before numpy is imported
    os.environ[variable] = "1"

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from statistics import median  # noqa: E402

import numpy as np  # noqa: E402
from dp_accounting import dp_event, mechanism_calibration, pld  # noqa: E402

from dpaudit import Claim  # noqa: E402
from dpaudit.accounting import calibration  # noqa: E402

DELTA, GRID = 1e-5, 1e-3
FPRS = np.geomspace(1e-6, 0.5, 50)
SETTINGS = ((0.01, 1000), (256 / 60_000, 14_000))
TARGETS = (1.0, 3.0, 8.0)
CALIBRATION_BAR, FASTER, ACCOUNT_BAR = 1.5, 3.0, 1.0

Solve = Callable[[float, float, int], float]

# σ of the tutorial, of a strict and a loose target, of few and many steps; every sampler.
ACCOUNTS = {
    "MNIST tutorial": Claim.dp_sgd(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_100),
    "q = 0.01, 1,000 steps": Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=1000),
    "Abadi et al., 10,000 steps": Claim.dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=10_000),
    "CIFAR-10, batches of 4,096": Claim.dp_sgd(noise_multiplier=3.0, sampling_rate=4096 / 50_000, steps=2500),
    "little noise": Claim.dp_sgd(noise_multiplier=0.5, sampling_rate=0.01, steps=1000),
    "q = 1e-4, 100,000 steps": Claim.dp_sgd(noise_multiplier=0.6, sampling_rate=1e-4, steps=100_000),
    "full batches": Claim.dp_sgd(noise_multiplier=20.0, sampling_rate=1.0, steps=200),
    "fixed-size batches": Claim.dp_sgd(noise_multiplier=2.0, sampling_rate=0.01, steps=1000, sampler="fixed-size"),
    "shuffled batches": Claim.dp_sgd(noise_multiplier=2.0, sampling_rate=0.01, steps=1000, sampler="shuffled"),
    "balls and bins": Claim.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=1000, sampler="balls-and-bins"),
}


def forget() -> None:
    """Empty every memory of the accounting modules."""
    for name in [name for name in sys.modules if name.startswith("dpaudit.accounting")]:
        for value in vars(sys.modules[name]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def seconds(call: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds of one call from nothing, and what it returned."""
    forget()
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def ours(finest: float) -> Solve:
    def solve(epsilon: float, rate: float, steps: int) -> float:
        solved = calibration.noise_multiplier(
            epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps, finest=finest
        )
        return solved.value

    return solve


def library(tolerance: float | None) -> Solve:
    def solve(epsilon: float, rate: float, steps: int) -> float:
        def event(noise: float) -> dp_event.DpEvent:
            one = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
            return dp_event.SelfComposedDpEvent(one, steps)

        accountant = lambda: pld.PLDAccountant(value_discretization_interval=GRID)  # noqa: E731
        return float(mechanism_calibration.calibrate_dp_mechanism(accountant, event, epsilon, DELTA, tol=tolerance))

    return solve


def opacus(accountant: str) -> Solve:
    from opacus.accountants.utils import get_noise_multiplier

    def solve(epsilon: float, rate: float, steps: int) -> float:
        return float(
            get_noise_multiplier(
                target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant=accountant
            )
        )

    return solve


def contenders() -> dict[str, Solve]:
    found = {
        "default grid": ours(Claim.finest),
        "grid 1e-3": ours(GRID),
        "dp-accounting": library(None),
        "to 1e-4": library(1e-4),
    }
    if find_spec("opacus") is None:
        print("opacus is not installed: left out", file=sys.stderr)
        return found
    return found | {"opacus prv": opacus("prv"), "opacus rdp": opacus("rdp")}


def calibrations(rounds: int) -> list[bool]:
    solvers = contenders()
    print("Calibration, median CPU seconds (σ), and how many times longer than dpaudit on the grid of 1e-3")
    met = []
    for rate, steps in SETTINGS:
        for epsilon in TARGETS:
            times: dict[str, list[float]] = {name: [] for name in solvers}
            noise: dict[str, float] = {}
            for i in range(rounds):
                for name in list(solvers)[:: 1 if i % 2 == 0 else -1]:
                    took, noise[name] = seconds(partial(solvers[name], epsilon, rate, steps))
                    times[name].append(took)
            print(f"\nq = {rate:.4g}, {steps:,} steps, ε = {epsilon:g}")
            for name, each in times.items():
                ratios = [a / b for a, b in zip(each, times["grid 1e-3"], strict=True)]
                line = f"  {name:16}{median(each):8.3f} s  σ {noise[name]:.5f}"
                print(line + f"{median(ratios):10.1f} ({min(ratios):.1f} to {max(ratios):.1f})", flush=True)
            faster = median(a / b for a, b in zip(times["dp-accounting"], times["grid 1e-3"], strict=True))
            met += [median(times["default grid"]) <= CALIBRATION_BAR, faster >= FASTER]
    return met


def accounts(rounds: int) -> list[bool]:
    print("\nAccounts, median CPU seconds")
    met = []
    for name, claim in ACCOUNTS.items():
        several = [seconds(partial(account, claim)) for _ in range(rounds)]
        took = median(took for took, _ in several)
        met.append(took <= ACCOUNT_BAR)
        print(f"  {name:28}ε {several[0][1]:8.4f}{took:8.3f} s", flush=True)
    return met


def account(claim: Claim) -> float:
    """ε, δ(1) and the trade-off curve; ε."""
    claim.delta(1.0)
    claim.fnr(FPRS)
    return claim.epsilon(DELTA)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for solve in contenders().values():  # what a first call imports or compiles
        solve(3.0, 0.1, 10)
    met = calibrations(options.rounds) + accounts(options.rounds)
    print("\nevery bar is met" if all(met) else f"\n{met.count(False)} bars missed")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
