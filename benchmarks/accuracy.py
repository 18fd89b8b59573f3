"""Test accuracy of the bundled spec ``fashion-mnist-cnn``, with privacy and without, and the cost of its tuning.

Each trainer of the spec trains one model on the spec's training records, without canaries; accuracy is measured on the
10,000 test records, which no choice of settings has seen. With ``--hold-out`` the model trains on the rest and is
measured on so many training records instead: that is how the settings were chosen.

Bars: at least 85 % with ε = 3 at δ = 1e-5, at least 90 % without privacy.

    python benchmarks/accuracy.py            (or: --only sgd --hold-out 10000)
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np

from dpaudit.accounting import Claim
from dpaudit.accounting.tuning import tuning_costs
from dpaudit.plan import load_pool
from dpaudit.records import Data
from dpaudit.spec import load_spec
from dpaudit.trainers import train_many
from dpaudit.trainers.settings import GradientDescent

SPEC = "fashion-mnist-cnn"
BARS = {"dp-sgd": 0.85, "sgd": 0.90}
TRIED = 4  # private settings that were trained on held-out training records, that of the spec among them


def accuracy(trainer: GradientDescent, data: Data, seed: int) -> float:
    """Share of the test records that one model labels right."""
    assert data.x_test is not None and data.y_test is not None
    (model,) = train_many(trainer, data, np.ones((1, len(data)), bool), seed)
    return float((model.logits(data.x_test).argmax(1) == data.y_test).mean())


def held_out(data: Data, records: int) -> Data:
    """The training records alone, of which the last ones stand for the test set."""
    x, y = data.x[:-records], data.y[:-records]
    return Data(x, y, data.classes, x_test=data.x[-records:], y_test=data.y[-records:], shape=data.shape)


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(BARS), help="one trainer")
    parser.add_argument("--hold-out", type=int, default=0, help="measure on so many training records")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="another setting, to tune it")
    given = parser.parse_args()
    spec = load_spec(SPEC)
    data = load_pool(spec).as_data()
    data = held_out(data, given.hold_out) if given.hold_out else data
    for part in spec.trainers:
        if given.only not in (None, part.name):
            continue
        trainer = part.build()
        assert isinstance(trainer, GradientDescent)
        changes: dict[str, Any] = {name: float(value) for name, value in (s.split("=") for s in given.set)}
        trainer = replace(trainer, **changes)
        began = time.perf_counter()
        share = accuracy(trainer, data, given.seed)
        took = time.perf_counter() - began
        claim = trainer.claim()
        promised = "without privacy" if claim is None else f"ε = {claim.epsilon(spec.delta):.3f} at δ = {spec.delta:g}"
        print(f"{part.name}: {share:.2%} right, {promised}, {took:.0f} s", flush=True)
        if not given.hold_out:
            print(f"  bar {BARS[part.name]:.0%}: {'met' if share >= BARS[part.name] else 'MISSED'}")
        if claim is not None:
            print_costs(claim, spec.delta)


def print_costs(claim: Claim, delta: float) -> None:
    """What it would cost to charge the choice among the settings that were tried."""
    print(f"cost of tuning, {TRIED} settings tried, ε at δ = {delta:g}:")
    for row in tuning_costs(claim, delta, TRIED):
        print(f"  {row.method}, {row.runs}: {'-' if row.epsilon is None else f'{row.epsilon:.2f}'} ({row.status})")


if __name__ == "__main__":
    main()
