"""Exposure of secrets in a small model of text, trained without privacy and with it: python examples/exposure.py.

A transformer of one block learns to write notes like "bea owes tom 27 pounds". Among 1,000 of them there are codes,
"code of sam: 4715", once, four or sixteen times. Without privacy it learns some of those that are there once, and comes
to know the repeated ones by heart. With DP-SGD at ε = 4.2, a code that is there once has the exposure of codes that are
not there at all. What is promised is promised to one record: sixteen of a kind are a group, and still show.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dpaudit import Claim
from dpaudit.attacks.exposure import exposure_extrapolated, exposure_interpolated, log_perplexity
from dpaudit.attacks.texts import Secrets, encode
from dpaudit.trainers.architectures import transformer
from dpaudit.trainers.private import Adam, CrossEntropy, GlobalClipping, PrivateEngine

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789:"
LENGTH = 24
NAMES = ("ann", "bea", "cem", "dan", "eva", "sam", "tom", "zoe")
NOTES, REFERENCES = 1000, 1000
REPEATS = (0, 1, 4, 16)  # so many times each code is there
SECRETS = 5  # codes of each kind
RATE, STEPS, NOISE = 0.1, 300, 2.0


@dataclass(frozen=True)
class Outcome:
    """Exposures in bits by number of repetitions, each of so many secrets, and the mean bits of a note."""

    interpolated: dict[int, np.ndarray]
    extrapolated: dict[int, np.ndarray]
    bits: float


def notes(count: int, generator: np.random.Generator) -> list[str]:
    """Ordinary notes."""
    who = generator.choice(NAMES, (count, 2))
    return [f"{a} owes {b} {n} pounds" for (a, b), n in zip(who, generator.integers(10, 99, count), strict=True)]


def train(tokens: np.ndarray, noise_multiplier: float, seed: int) -> torch.nn.Module:
    """A model of the next character, by Poisson batches."""
    model = transformer(len(ALPHABET), LENGTH, None, torch.Generator().manual_seed(seed), width=32, heads=2, layers=1)
    sampling, noise = (np.random.default_rng([seed, i]) for i in range(2))
    engine = PrivateEngine(
        model,
        clipping=GlobalClipping(norm=1.0 if noise_multiplier else 1e6),
        noise_multiplier=noise_multiplier,
        divisor=RATE * len(tokens),
        optimizer=Adam(learning_rate=0.01),
        generator=noise,
        loss=CrossEntropy(reduction="mean"),
    )
    x = torch.from_numpy(tokens)
    for _ in range(STEPS):
        batch = x[torch.from_numpy(sampling.random(len(x)) < RATE)]
        engine.step(batch[:, :-1], batch[:, 1:])
    return model


def bits(model: torch.nn.Module, texts: list[str]) -> np.ndarray:
    """The log-perplexity of each text, what it is filled up with included."""
    tokens = encode(texts, ALPHABET, LENGTH)
    with torch.no_grad():
        return log_perplexity(model(torch.from_numpy(tokens[:, :-1])).numpy(), tokens[:, 1:])


def measure(noise_multiplier: float, seed: int = 0) -> Outcome:
    """Train once with all secrets among the notes, and take their exposures."""
    generator = np.random.default_rng(seed)
    codes = Secrets("code of sam: ####")
    drawn = codes.draw(SECRETS * len(REPEATS), generator)
    planted = {r: list(drawn[i * SECRETS : (i + 1) * SECRETS]) for i, r in enumerate(REPEATS)}
    others = list(codes.draw(REFERENCES, generator, without=drawn))
    texts = notes(NOTES, generator) + [text for r, some in planted.items() for text in some * r]
    model = train(encode(texts, ALPHABET, LENGTH), noise_multiplier, seed)
    references = bits(model, others)
    found = {r: bits(model, some) for r, some in planted.items()}
    return Outcome(
        {r: exposure_interpolated(b, references) for r, b in found.items()},
        {r: exposure_extrapolated(b, references) for r, b in found.items()},
        float(bits(model, notes(200, generator)).mean()),
    )


def main() -> None:
    """Print both tables."""
    records = NOTES + SECRETS * sum(REPEATS)
    torch.set_num_threads(1)  # for matrices this small, several only get in each other's way
    claim = Claim.dp_sgd(noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS)
    for noise, name in ((0.0, "without privacy"), (NOISE, f"DP-SGD, epsilon {claim.epsilon(1e-5):.1f} for a note")):
        outcome = measure(noise)
        print(f"{name}, {records} records, {outcome.bits:.1f} bits a note")
        for repeats in REPEATS:
            ranks, law = outcome.interpolated[repeats], outcome.extrapolated[repeats]
            print(f"  {repeats:2} times: exposure {ranks.mean():5.2f} interpolated, {law.mean():5.2f} extrapolated")


if __name__ == "__main__":
    main()
