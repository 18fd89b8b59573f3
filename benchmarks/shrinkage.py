"""Is LiRA's shrinkage variance as good as the better of pooled and per-example, with 4, 8 and 16 shadows?

TPR at 0.1 % FPR in simulated worlds with 100,000 non-members per target, and on Fashion-MNIST (784-128-10 on halves of
4,000 records), where the threshold is that of the pooled out-scores of all targets. The bar is met in a cell unless the
95 % interval of the mean difference to the better of the two, paired by target, lies wholly below 0. Each record is in
half of the shadows, so that per-example variances exist at all; with coins instead the pooled variance is the rival.
The bar is about the online attack. Offline rates stand beside it without one: what a tail probability gives up for the
same false positive rate of every record depends on whether unsteady records also gain more from being trained on.

    python benchmarks/shrinkage.py            (minutes; --write puts the table into docs/attacks.md)
    python benchmarks/shrinkage.py --quick    (seconds)
    python benchmarks/shrinkage.py --again    (minutes: ten smaller trainings of Fashion-MNIST, halves and coins)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from dpaudit.attacks import lira, logit_margin

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

DOCUMENT = Path(__file__).parent.parent / "docs" / "attacks.md"
BEGIN, END = "<!-- shrinkage:begin -->", "<!-- shrinkage:end -->"
SHADOWS, FPR = (4, 8, 16), 1e-3
RIVALS = ("pooled", "per-example")


@dataclass(frozen=True, eq=False)
class World:
    """Signals of targets and of sixteen shadows about the same records, and who was in.

    Attributes:
        signal, member: shape ``(targets, records)``.
        shadows, shadow_member: shape ``(shadows, records)``; any even number of first rows splits each record in halves
            unless ``coins``.
        together: is the threshold that of all targets' out-scores?
    """

    name: str
    signal: Array
    member: Bools
    shadows: Array
    shadow_member: Bools
    coins: bool = False
    together: bool = False


@dataclass(frozen=True)
class Cell:
    """One world and number of shadows: mean rates, and shrinkage's lead over the better rival, with its interval."""

    world: str
    shadows: int
    rates: dict[str, float]
    rival: str
    above: float
    low: float
    high: float
    barred: bool

    @property
    def met(self) -> bool:
        """Is the interval not wholly below 0?"""
        return self.high >= 0


def simulated(name: str, records: int, targets: int, coins: bool, seed: int) -> World:
    """A record has a mean, a spread and a gap of its own; ``heavy`` has noise of Student's t with 4 degrees besides."""
    rng = np.random.default_rng(seed)
    member, shadow_member = rng.random((targets, records)) < 0.5, _split(records, max(SHADOWS), coins, rng)
    base, gap = rng.normal(0, 3, records), rng.gamma(0.7, 1.0, records)
    spread = np.ones(records) if name == "equal" else np.exp(rng.normal(0, 0.6, records))
    within = spread * np.exp(rng.normal(0, 0.2, records)) if name != "equal" else spread

    def signals(inside: Bools) -> Array:
        noise = rng.standard_t(4, inside.shape) / np.sqrt(2) if name == "heavy" else rng.normal(size=inside.shape)
        return base + np.where(inside, gap * spread + within * noise, spread * noise)

    return World(name, signals(member), member, signals(shadow_member), shadow_member, coins)


def _split(records: int, shadows: int, coins: bool, rng: np.random.Generator) -> Bools:
    """Coins, or pairs of shadows with complementary training sets."""
    first = rng.random((shadows // 2, records)) < 0.5
    return rng.random((shadows, records)) < 0.5 if coins else np.stack([first, ~first], 1).reshape(shadows, records)


def trained(records: int, targets: int, coins: bool, seed: int) -> World:
    """Models of Fashion-MNIST, overfitted on halves of the records."""
    from dpaudit.data import load
    from dpaudit.records import Data
    from dpaudit.trainers import SGD, train_many

    pool = load("fashion-mnist", records=records, test=1000, seed=seed)
    data = Data(pool.x, pool.y, pool.classes, nominal_size=records)
    rng = np.random.default_rng(seed)
    member, shadow_member = rng.random((targets, records)) < 0.5, _split(records, max(SHADOWS), coins, rng)
    settings = SGD(hidden=(128,), learning_rate=0.1, sampling_rate=64 / records, steps=20 * records // 64)
    models = train_many(settings, data, np.concatenate([member, shadow_member]), seed)
    signal = np.concatenate([logit_margin(models.logits(data.x[i : i + 500]), data.y[i : i + 500])
                             for i in range(0, records, 500)], axis=1)  # fmt: skip
    return World("Fashion-MNIST", signal[:targets], member, signal[targets:], shadow_member, coins, together=True)


def true_positive_rates(scores: Array, member: Bools, together: bool) -> Array:
    """Of each target, at the smallest threshold that at most ``FPR`` of its out-scores (or of all targets') exceed."""
    thresholds = [_threshold(scores[~member])] * len(scores) if together else [
        _threshold(s[~m]) for s, m in zip(scores, member, strict=True)
    ]  # fmt: skip
    return np.array([(s[m] > t).mean() for s, m, t in zip(scores, member, thresholds, strict=True)])


def _threshold(out: Array) -> float:
    return float(np.sort(out)[len(out) - 1 - int(FPR * len(out))])


def compare(world: World, shadows: int, mode: str = "online", variance: str = "shrink") -> Cell:
    """Rates of each variance, and how far ``variance`` is above the better rival."""
    rivals = RIVALS[:1] if world.coins else RIVALS
    arrays = world.signal, world.shadows[:shadows], world.shadow_member[:shadows]
    found = {
        each: true_positive_rates(lira(*arrays, mode, each), world.member, world.together)
        for each in dict.fromkeys((variance, *rivals))
    }
    rival = max(rivals, key=lambda each: float(found[each].mean()))
    above = found[variance] - found[rival]
    error = float(stdtrit(len(above) - 1, 0.975) * above.std(ddof=1) / np.sqrt(len(above)))
    rates, mean = {each: float(rate.mean()) for each, rate in found.items()}, float(above.mean())
    name = world.name + (f", {mode}" if mode != "online" else "") + (", coins" if world.coins else "")
    return Cell(name, shadows, rates, rival, mean, mean - error, mean + error, mode == "online")


def cells(quick: bool) -> Iterator[Cell]:
    """All of the study."""
    records, targets = (20_000, 4) if quick else (200_000, 20)
    for coins in (False, True):
        for name in ("uneven", "heavy", "equal"):
            world = simulated(name, records, targets, coins, seed=11)
            for mode in ("online", "offline") if not coins else ("online",):
                yield from (compare(world, shadows, mode) for shadows in SHADOWS)
    for coins in (False, True):
        world = trained(*((1000, 20) if quick else (4000, 48)), coins, seed=12)
        for mode in ("online", "offline"):
            yield from (compare(world, shadows, mode) for shadows in SHADOWS)


def again() -> Iterator[Cell]:
    """Smaller sets of Fashion-MNIST with other seeds: intervals are paired by target, and do not cover the shadows."""
    for records, seeds in ((1000, range(100, 106)), (2000, range(200, 204))):
        for coins in (False, True):
            for seed in seeds:
                world = trained(records, 24, coins, seed)
                yield from (compare(world, shadows) for shadows in SHADOWS)


def summary(found: list[Cell]) -> str:
    """Of each number of shadows: how many times the pooled rate, and how many cells are below the better rival."""
    lines = []
    for shadows in SHADOWS:
        mine = [cell for cell in found if cell.shadows == shadows]
        ratio = np.exp(np.mean([np.log(cell.rates["shrink"] / cell.rates["pooled"]) for cell in mine]))
        below = sum(not cell.met for cell in mine)
        lines.append(f"{shadows} shadows: {ratio:.2f} times the pooled rate, {below} of {len(mine)} cells below")
    return "\n".join(lines)


def table(found: list[Cell]) -> str:
    """Markdown."""
    lines = [
        "| world | shadows | shrink | pooled | per-example | above the better, 95 % |",
        "|---|---|---|---|---|---|",
    ]
    for cell in found:
        rates = [f"{100 * cell.rates[v]:.2f} %" if v in cell.rates else "–" for v in ("shrink", *RIVALS)]
        interval = f"{100 * cell.above:+.2f} ({100 * cell.low:+.2f} to {100 * cell.high:+.2f})"
        lines.append(
            f"| {cell.world} | {cell.shadows} | {' | '.join(rates)} | {interval}{'' if cell.barred else ', no bar'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small worlds, to see that it runs")
    parser.add_argument("--again", action="store_true", help="smaller trainings instead")
    parser.add_argument("--write", action="store_true", help="put the table into docs/attacks.md")
    chosen = parser.parse_args()
    found = []
    for cell in again() if chosen.again else cells(chosen.quick):
        print(
            f"{cell.world}, {cell.shadows} shadows: {cell.above:+.4f} ({cell.low:+.4f} to {cell.high:+.4f})",
            file=sys.stderr,
        )
        found.append(cell)
    print(table(found))
    if chosen.again:
        print(summary(found))
        return 0
    if chosen.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")
    return 0 if all(cell.met for cell in found if cell.barred) else 1


if __name__ == "__main__":
    sys.exit(main())
