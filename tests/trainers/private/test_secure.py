"""The secure noise: the exact law, the grid, and where the bits come from.

The sampler is fed seeded bytes here, so that its statistical checks have fixed outcomes; the operating system's, which
it uses by default, are only checked for not repeating.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.trainers.private.discrete import LARGEST_DEVIATION, discrete_gaussian

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import GlobalClipping, PerLayerClipping, PrivateEngine, Sgd  # noqa: E402
from dpaudit.trainers.private.secure import Grid, SecureNoise  # noqa: E402

Z = 5.0  # standard deviations: one false alarm in 1.7 million independent two-sided checks


def entropy(seed):
    return np.random.default_rng(seed).bytes


def exact_law(sigma, reach=12):
    """Probabilities of −reach·σ to reach·σ."""
    k = np.arange(-reach * sigma, reach * sigma + 1)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * sigma**2))
    return k, weights / weights.sum()


def misfit(drawn, sigma):
    """Standard score of the chi-square statistic of draws against the exact law, rare values taken together."""
    k, law = exact_law(sigma)
    counts = np.bincount(drawn - k[0], minlength=len(k))
    expected = law * len(drawn)
    common = expected > 20
    cells = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    freedom = len(cells) - 1
    return (((cells - wanted) ** 2 / wanted).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("sigma", [1, 2, 5, 40])
def test_the_law_is_the_discrete_gaussian(sigma):
    """200,000 draws: a probability that is wrong by 5 % where it is 0.1 or more shows by 7 standard deviations."""
    assert abs(misfit(discrete_gaussian(sigma, 200_000, entropy(0)), sigma)) < Z


@pytest.mark.parametrize("sigma", [1, 2])
def test_the_same_check_catches_rounded_gaussians(sigma):
    rounded = np.round(np.random.default_rng(0).normal(0, sigma, 200_000)).astype(int)
    assert misfit(rounded, sigma) > Z


def test_the_same_check_catches_an_accepted_zero_too_many():
    drawn = discrete_gaussian(2, 200_000, entropy(0))
    drawn[:3000] = 0
    assert misfit(drawn, 2) > Z


@pytest.mark.parametrize("sigma", [3, 1000, 2**24 + 12345, LARGEST_DEVIATION])
def test_moments_at_any_size(sigma):
    z = discrete_gaussian(sigma, 200_000, entropy(1)) / sigma
    assert abs(z.mean()) * math.sqrt(z.size) < Z
    assert abs(np.mean(z**2) - 1) * math.sqrt(z.size / 2) < Z
    assert abs(np.mean(z**2) - 1) < 0.01
    assert abs(np.mean(z**3)) * math.sqrt(z.size / 15) < Z
    assert abs(np.mean(z**4) - 3) * math.sqrt(z.size / 96) < Z
    assert abs(np.mean(z[1:] * z[:-1])) * math.sqrt(z.size) < Z


def test_low_bits_are_fair():
    """Of a grid this fine every residue is as likely as any other; textbook noise has gaps there."""
    drawn = discrete_gaussian(2**22, 160_000, entropy(2))
    counts = np.bincount(drawn % 16, minlength=16)
    assert abs(((counts - 10_000) ** 2 / 10_000).sum() - 15) < Z * math.sqrt(30)


def test_bits_come_from_where_they_are_told_and_by_default_from_the_system():
    same = [discrete_gaussian(1000, 50, entropy(3)) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    np.random.seed(0)  # noqa: NPY002
    first = discrete_gaussian(2**20, 50)
    np.random.seed(0)  # noqa: NPY002
    assert (first != discrete_gaussian(2**20, 50)).sum() > 45


def test_sizes_and_arguments():
    assert discrete_gaussian(5, 0).shape == (0,)
    assert discrete_gaussian(5, 1).dtype == np.int64
    for arguments, name in (
        ((0, 5), "deviation"),
        ((1.5, 5), "deviation"),
        ((2**25 + 1, 5), "deviation"),
        ((1, -1), "size"),
    ):
        with pytest.raises(InputError, match=name):
            discrete_gaussian(*arguments)


# ---- the grid -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", [1, 1000, 10**8])
@pytest.mark.parametrize("sensitivity", [1e-3, 1.0, 7.3])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 25.0])
def test_noise_covers_what_rounding_adds(sigma, sensitivity, coordinates):
    grid = Grid.of(sigma, sensitivity, coordinates)
    assert math.frexp(grid.spacing)[0] == 0.5  # a power of two
    assert 2**24 <= grid.deviation <= 2**25
    moved = sensitivity * (1 + 2**-10) + grid.spacing * math.sqrt(coordinates)
    assert sigma * moved <= grid.spacing * grid.deviation <= sigma * sensitivity * 1.02


def test_rounding_moves_two_sums_apart_by_no_more_than_is_covered():
    spacing, rng = 2.0**-3, np.random.default_rng(0)
    for _ in range(200):
        a = rng.normal(size=400)
        b = a + rng.normal(size=400) * 1e-2
        rounded = np.linalg.norm((np.round(a / spacing) - np.round(b / spacing)) * spacing)
        assert rounded <= np.linalg.norm(a - b) + spacing * math.sqrt(400)


def secure_engine(model, **changes):
    options = {
        "clipping": GlobalClipping(norm=0.5),
        "noise_multiplier": 1.5,
        "divisor": 8,
        "optimizer": Sgd(learning_rate=0.5),
        "secure": True,
        **changes,
    }
    return PrivateEngine(model, **options)


def model_and_batch(dtype=torch.float32, size=6):
    generator = torch.Generator().manual_seed(0)
    model = architectures.mlp(20, [30], 3, generator).to(dtype)
    return model, torch.randn((size, 20), generator=generator, dtype=dtype), torch.zeros(size, dtype=torch.long)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [0, 6])
def test_what_is_released_lies_on_a_grid_that_the_settings_fix(dtype, size):
    model, x, y = model_and_batch(dtype, size)
    engine = secure_engine(model)
    engine.step(x, y)
    steps = engine.released.double() / Grid.of(1.5, 0.5, engine.released.numel()).spacing
    assert torch.equal(steps, steps.round()) and int(steps.abs().max()) > 2**22
    assert len(torch.unique(steps % 2)) == 2  # and on no coarser one


def test_the_same_check_catches_ordinary_noise():
    model, x, y = model_and_batch(torch.float64)
    engine = secure_engine(model, secure=False, generator=np.random.default_rng(0))
    engine.step(x, y)
    steps = engine.released / Grid.of(1.5, 0.5, engine.released.numel()).spacing
    assert not torch.equal(steps, steps.round())


@pytest.mark.parametrize("clipping", [GlobalClipping(norm=0.5), PerLayerClipping(norms=[0.3, 0.4])], ids=str)
def test_its_variance_is_the_stated_one_and_its_mean_the_sum(clipping):
    """95,850 numbers: 1 % of the variance is 2.2 standard deviations, so the bytes are seeded."""
    model, x, y = model_and_batch()
    engine = secure_engine(model, clipping=clipping)
    clean = engine.clipped_sum(x, y)
    noise = SecureNoise(Grid.of(1.5, 0.5, clean.numel()), entropy(4))
    rows = []
    for _ in range(150):
        total = clean.clone()
        noise.release(total)
        rows.append((total - clean).double().numpy() / (1.5 * 0.5))
    z = np.concatenate(rows)
    assert abs(np.mean(z**2) - 1) < 0.01
    assert abs(z.mean()) * math.sqrt(z.size) < Z
    assert abs(np.mean(z**4) - 3) * math.sqrt(z.size / 96) < Z


def test_no_two_runs_are_alike():
    released = []
    for _ in range(2):
        model, x, y = model_and_batch()
        torch.manual_seed(0)
        engine = secure_engine(model)
        engine.step(x, y)
        released.append(engine.released.clone())
    assert float((released[0] != released[1]).double().mean()) > 0.99
    correlation = float((released[0] * released[1]).double().sum()) / 0.75**2 / math.sqrt(len(released[0]))
    assert abs(correlation) < 7  # the clipped sum is in both


def test_a_sum_that_leaves_the_range_is_held():
    noise = SecureNoise(Grid(1.0, 2**22), entropy(5))
    total = torch.tensor([1e30, -1e30, 3.0], dtype=torch.float64)
    noise.release(total)
    assert torch.isfinite(total).all() and float(total[0]) > 2**51


def divergence(sigma):
    """KL divergence, per coordinate, of the discrete Gaussian from a continuous one rounded to whole numbers."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    terms = range(-14 * sigma, 14 * sigma + 1)
    total = mpmath.fsum(mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) for k in terms)
    out = mpmath.mpf(0)
    for k in terms:
        p = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) / total
        q = mpmath.ncdf((0.5 - abs(k)) / mpmath.mpf(sigma)) - mpmath.ncdf((-0.5 - abs(k)) / mpmath.mpf(sigma))
        out += p * mpmath.log(p / q)
    return float(out)


@pytest.mark.parametrize("sigma", [4, 8, 16])
def test_how_far_it_is_from_a_rounded_gaussian(sigma):
    """docs/private_step.md builds on 1 / (576 σ⁴)."""
    assert divergence(sigma) * 576 * sigma**4 == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("order", [2, 5, 30])
@pytest.mark.parametrize("shift", [1, 3])
def test_its_renyi_divergence_is_at_most_the_gaussians(order, shift):
    """Canonne, Kamath & Steinke 2020, Theorem 14; summed here."""
    sigma = 3
    k = np.arange(-400, 401).astype(float)
    log_p = -((k - shift) ** 2) / (2 * sigma**2)
    log_q = -(k**2) / (2 * sigma**2)
    norm = np.logaddexp.reduce(log_q)
    renyi = (np.logaddexp.reduce(order * log_p + (1 - order) * log_q) - norm) / (order - 1)
    assert renyi <= order * shift**2 / (2 * sigma**2) * (1 + 1e-12)


def test_it_is_said_in_the_engine_that_it_takes_no_generator():
    with pytest.raises(InputError, match="generator must be None"):
        secure_engine(nn.Linear(2, 2), generator=np.random.default_rng(0))
