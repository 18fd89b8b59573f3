"""How long ``import dpaudit`` and ``dpaudit --help`` take beside ``import numpy``, in one run on one machine.

Each round times all three in fresh processes, in an order that alternates from round to round; the ratio is taken
within a round, so a slow moment of the machine hits both sides. Aim: at most 2.

    python benchmarks/imports.py --rounds 20
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path
from statistics import median
from time import perf_counter

SCRIPT = str(Path(sysconfig.get_path("scripts")) / "dpaudit")
COMMANDS = {
    "import numpy": [sys.executable, "-c", "import numpy"],
    "import dpaudit": [sys.executable, "-c", "import dpaudit"],
    "dpaudit --help": [SCRIPT, "--help"],
}


def seconds(command: list[str]) -> float:
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def measure(rounds: int) -> dict[str, list[float]]:
    names = list(COMMANDS)
    for name in names:  # fills the disk and bytecode caches
        seconds(COMMANDS[name])
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 == 0 else reversed(names):
            times[name].append(seconds(COMMANDS[name]))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    times = measure(parser.parse_args().rounds)
    base = times["import numpy"]
    print(f"{'':16}{'median ms':>10}{'ratio to import numpy: median (min to max)':>46}")
    for name, got in times.items():
        ratios = [a / b for a, b in zip(got, base, strict=True)]
        print(f"{name:16}{1e3 * median(got):10.0f}{median(ratios):24.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
