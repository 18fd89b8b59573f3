"""How long attacks take and how much memory, against the bars: LiRA and RMIA on a million records and 64 shadows, and
256 shadows of Fashion-MNIST from training to report.

Each part runs in a process of its own, whose peak of memory is the operating system's; arrays count in it. Exit code 1
if a bar is missed.

    python benchmarks/attacks.py              (or one part: --only scoring | shadows)
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RECORDS, SHADOWS, POPULATION = 1_000_000, 64, 10_000
SECONDS, GIBIBYTES, MINUTES = 60.0, 4.0, 3.0
TRAINED, TRAINED_RECORDS = 256, 2000


def scoring() -> dict[str, float]:
    """Seconds of each attack in float32, and the peak of memory in GiB."""
    from dpaudit.attacks import lira, rmia

    rng = np.random.default_rng(0)
    member = rng.random((SHADOWS, RECORDS), dtype=np.float32) < 0.5
    shadows, signal, z, shadow_z = (
        -rng.standard_exponential(shape, dtype=np.float32)
        for shape in ((SHADOWS, RECORDS), (RECORDS,), (POPULATION,), (SHADOWS, POPULATION))
    )
    found = {"arrays GiB": _peak()}
    for mode in ("online", "offline"):
        found[f"lira {mode}"] = _seconds(lambda mode=mode: lira(signal, shadows, member, mode))  # type: ignore[misc]
        found[f"rmia {mode}"] = _seconds(
            lambda mode=mode: rmia(signal, shadows, member, z, shadow_population_signals=shadow_z, mode=mode)  # type: ignore[misc]
        )
    return {**found, "GiB": _peak()}


def shadows() -> dict[str, float]:
    """Seconds from data to report: one target and 256 shadows of 784-128-10 on halves of 2,000 records."""
    from dpaudit.data import load
    from dpaudit.records import Data
    from dpaudit.trainers import SGD, train_many

    start = time.perf_counter()
    pool = load("fashion-mnist", records=TRAINED_RECORDS, test=TRAINED_RECORDS, seed=0)
    data = Data(pool.x, pool.y, pool.classes, nominal_size=TRAINED_RECORDS)
    member = np.random.default_rng(0).random((TRAINED + 1, TRAINED_RECORDS)) < 0.5
    settings = SGD(
        hidden=(128,), learning_rate=0.1, sampling_rate=64 / TRAINED_RECORDS, steps=20 * TRAINED_RECORDS // 64
    )
    models = train_many(settings, data, member, 1)
    logits, outside = models.logits(data.x), models.logits(pool.x_test)
    found = {"training": time.perf_counter() - start}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "evidence.npz"
        targets = {"member": member[0], "labels": data.y, "logits": logits[0]}
        shadows = {"shadow_logits": logits[1:], "shadow_member": member[1:], "shadow_population_logits": outside[1:]}
        others = {"population_logits": outside[0], "population_labels": pool.y_test}
        np.savez(source, **{**targets, **shadows, **others})
        command = [sys.executable, "-m", "dpaudit", "attack", str(source), "--out", str(Path(folder) / "out")]
        command += [part for name in ("lira", "rmia") for part in ("--attack", name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (Path(folder) / "out" / "release" / "report.html").is_file()
    return {**found, "all": time.perf_counter() - start, "GiB": _peak()}


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _peak() -> float:
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20


def missed(part: str, found: dict[str, float]) -> list[str]:
    """Bars that were not met."""
    if part == "shadows":
        return [f"{found['all']:.0f} s from data to report"] * (found["all"] > 60 * MINUTES)
    slow = [f"{name}: {seconds:.0f} s" for name, seconds in found.items() if "GiB" not in name and seconds > SECONDS]
    return slow + [f"{found['GiB']:.1f} GiB"] * (found["GiB"] > GIBIBYTES)


PARTS = {"scoring": scoring, "shadows": shadows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--here", action="store_true", help="run the part in this process and print its numbers as JSON"
    )
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(PARTS[chosen.only or "scoring"]()))
        return 0
    wrong = []
    for part in [chosen.only] if chosen.only else PARTS:
        done = subprocess.run([sys.executable, __file__, "--only", part, "--here"], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 2
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{part}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
        wrong += missed(part, found)
    for line in wrong:
        print(f"missed: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
