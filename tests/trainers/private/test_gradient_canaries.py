"""Gradient canaries: what is planted, what is scored, and that an audit by them says what theory says.

Statistical checks use fixed seeds; each states the false-alarm rate it would have over seeds.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import mechanisms
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

torch = pytest.importorskip("torch")

import dpaudit  # noqa: E402
from dpaudit import Claim, Verdict, bounds  # noqa: E402
from dpaudit.errors import InputError  # noqa: E402
from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    AuditedEngine,
    GlobalClipping,
    GradientCanaries,
    LinearScore,
    PrivateEngine,
    Sgd,
    StepScores,
    audit_one_run,
)
from dpaudit.trainers.private import canary_kernels as kernels  # noqa: E402
from dpaudit.trainers.private.canaries import KINDS  # noqa: E402
from dpaudit.trainers.private.canary_scores import log_ratios  # noqa: E402
from dpaudit.trainers.private.canary_vectors import walsh_hadamard  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "gradient_canaries.md"
DELTA = 1e-5
NORM = 0.5
WIDTH = 30  # 310 parameters
ORTHOGONAL = ("dirac", "signs")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Vectors as short as these gain nothing from a second one, and wait for it on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def canaries(kind="signs", count=100, **changes):
    return GradientCanaries(**{"kind": kind, "count": count, "norm": NORM, "seed": 5, **changes})


def flat(size=310, seed=0, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def model(width=WIDTH):
    return architectures.softmax(width, 10)


def maker(noise=1.0, width=WIDTH):
    def make(generator):
        return PrivateEngine(
            model(width),
            clipping=GlobalClipping(norm=NORM),
            noise_multiplier=noise,
            divisor=8,
            optimizer=Sgd(learning_rate=0.05),
            generator=generator,
        )

    return make


def batch(size=8, width=WIDTH):
    return flat(size * width, seed=2).view(size, width), torch.arange(size) % 10


def same_batch(size=8, width=WIDTH):
    return itertools.repeat(batch(size, width))


def coins(count=100, seed=0):
    return np.random.default_rng(seed).random(count) < 0.5


# ---- vectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2**k for k in range(12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_transform_is_hadamards(size, dtype):
    x = flat(3 * size, dtype=dtype).view(3, size)
    wanted = x.double() @ torch.from_numpy(hadamard(size)).double()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(walsh_hadamard(x).double(), wanted, rtol=tolerance, atol=tolerance * math.sqrt(size))
    torch.testing.assert_close(walsh_hadamard(x[1]), walsh_hadamard(x)[1], rtol=1e-5, atol=1e-4)


def test_a_transform_of_many_is_its_own_inverse():
    x = flat(2**17, dtype=torch.float64)
    torch.testing.assert_close(walsh_hadamard(walsh_hadamard(x)) / 2**17, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 6)])
def test_transforms_need_a_power_of_two(shape):
    with pytest.raises(InputError, match="power of two"):
        walsh_hadamard(torch.zeros(shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 7), (5, 8), (64, 310), (100, 310), (128, 128)])
def test_every_canary_is_as_long_as_the_norm(kind, count, size):
    vectors = canaries(kind, count).vectors(flat(size, dtype=torch.float64))
    dense = vectors.dense()
    assert dense.shape == (count, size)
    torch.testing.assert_close(dense.norm(dim=1), torch.full((count,), NORM, dtype=torch.float64))
    gram = dense @ dense.T / NORM**2 - torch.eye(count, dtype=torch.float64)
    if kind in ORTHOGONAL:
        assert float(gram.abs().max()) < 1e-12
    else:  # 4,950 pairs, each beyond 6 deviations with probability 2e-9
        assert float(gram.abs().max()) < 6 / math.sqrt(size)


def test_dirac_canaries_share_no_coordinate():
    dense = canaries("dirac").vectors(flat()).dense()
    assert ((dense != 0).sum(0) <= 1).all() and ((dense == NORM).sum(1) == 1).all()


def test_signs_are_rows_of_a_randomised_hadamard_transform():
    dense = canaries("signs").vectors(flat(dtype=torch.float64)).dense()
    used = 310 // 128 * 128
    assert not dense[:, used:].any()
    signs = dense[:, :used] * math.sqrt(used) / NORM
    torch.testing.assert_close(signs.abs(), torch.ones_like(signs))
    rows = signs * signs[0]  # the column signs cancel; row 0 of Hadamard's matrix is of ones
    wanted = torch.from_numpy(hadamard(512)[:100, :used]).double()
    torch.testing.assert_close(rows * rows[:, :1], wanted)
    # Fair signs: 256 of columns and 100 of rows, each sum within 5 deviations.
    assert abs(float(signs[0].sum())) < 5 * 16 and abs(float(rows[:, 0].sum())) < 5 * 10
    assert float(rows[:, 0].std()) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_and_products_are_those_of_the_dense_canaries(kind, dtype):
    vectors = canaries(kind).vectors(flat(dtype=dtype))
    dense = vectors.dense()
    for seed in range(3):
        member = coins(seed=seed)
        wanted = torch.from_numpy(member).to(dtype) @ dense
        torch.testing.assert_close(vectors.insertion(member), wanted, rtol=1e-5, atol=1e-5)
    rows = torch.stack([flat(seed=seed, dtype=dtype) for seed in range(4)])
    torch.testing.assert_close(vectors.products(rows), rows @ dense.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vectors.products(rows[2]), dense @ rows[2], rtol=1e-5, atol=1e-5)
    assert not vectors.insertion(np.zeros(100, bool)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_read_off_its_own_insertion(kind):
    vectors = canaries(kind).vectors(flat(dtype=torch.float64))
    member = coins()
    found = vectors.products(vectors.insertion(member)).numpy() / NORM**2
    if kind in ORTHOGONAL:
        np.testing.assert_allclose(found, member, atol=1e-12)
    else:
        assert stats.mannwhitneyu(found[member], found[~member]).pvalue < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_and_nothing_else_makes_the_vectors(kind):
    state = torch.random.get_rng_state()
    one = canaries(kind, 20).vectors(flat()).dense()
    assert torch.equal(one, canaries(kind, 20).vectors(flat(seed=9)).dense())
    assert not torch.equal(one, canaries(kind, 20, seed=6).vectors(flat()).dense())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_random_signs_need_not_be_kept(dtype):
    size = 2 * kernels.STRETCH + 70
    kept, made = (canaries("random").vectors(flat(size, dtype=dtype), stored=stored) for stored in (True, False))
    assert torch.equal(kept.dense(), made.dense())
    assert torch.equal(kept.insertion(coins()), made.insertion(coins()))
    rows = torch.stack([flat(size, seed, dtype) for seed in range(3)])
    assert torch.equal(kept.products(rows), made.products(rows))
    assert torch.equal(kept.products(rows[0]), made.products(rows[0]))


@pytest.mark.parametrize("size", [1, 15, 16, 511, 512, 513, 2047, 2049, 20_000])
def test_random_canaries_are_no_longer_than_the_norm(size):
    for dtype in (torch.float32, torch.float64):
        dense = canaries("random", 20).vectors(flat(size, dtype=dtype)).dense().double()
        assert (dense.abs() == dense.abs().max()).all()
        lengths = dense.norm(dim=1)
        assert (lengths <= NORM * (1 + 1e-12)).all() and (lengths >= NORM * (1 - 2e-7)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (7, 1), (7, 2), (300, 32), (300, 33), (3, 70)])
def test_products_with_random_signs_are_exact(count, rows, dtype):
    """To 1e-6 of norm times length, over blocks, a tile with gaps, and more gradients than are taken at once."""
    size = 20 * kernels.STRETCH + 700
    vectors = canaries("random", count).vectors(flat(size))
    gradients = flat(rows * size, 3, dtype).view(rows, size) * torch.logspace(-3, 3, rows, dtype=dtype)[:, None]
    wanted = gradients.double() @ vectors.dense().double().T
    found = vectors.products(gradients)
    assert found.dtype == dtype and found.shape == (rows, count)
    assert ((found - wanted).abs() <= 1e-6 * NORM * gradients.norm(dim=1, keepdim=True)).all()
    turned = gradients.T.contiguous().T  # as columns in memory
    assert torch.equal(vectors.products(turned), found)
    one = vectors.products(gradients[0])
    assert ((one - wanted[0]).abs() <= 1e-6 * NORM * gradients[0].norm()).all()


def test_a_common_part_of_all_numbers_hides_no_product():
    """As in a sum over set signs alone, from which half the whole would have to be taken away again."""
    vectors = canaries("random", 5).vectors(flat(20_000))
    gradient = flat(20_000, 1) + 1000.0
    wanted = vectors.dense().double() @ gradient.double()
    for found in (vectors.products(gradient), vectors.products(gradient.expand(2, -1))[0]):
        assert ((found - wanted).abs() <= 1e-6 * NORM * gradient.norm()).all()


@pytest.mark.parametrize("members", [0, 1, 2, 255, 256, 300, 511, 700])
def test_the_sum_of_random_members_is_exact(members):
    vectors = canaries("random", 700).vectors(flat(kernels.STRETCH + 9, dtype=torch.float64))
    member = np.random.default_rng(1).permutation(700) < members
    wanted = torch.from_numpy(member).double() @ vectors.dense()
    torch.testing.assert_close(vectors.insertion(member), wanted, rtol=0, atol=1e-12)


def test_as_many_members_as_may_be_with_the_same_sign_are_counted():
    block = np.full((2, 600, kernels.TILES, kernels.WORDS), 2**32 - 1, np.uint32)
    sums = np.empty((2, kernels.TILES, kernels.BITS, kernels.WORDS), np.int32)
    kernels.add_up(sums, block, np.arange(600))
    assert (sums == 600).all()
    kernels.add_up(sums, ~block, np.arange(0, 600, 2))
    assert (sums == -300).all()


@pytest.mark.parametrize("stored", [True, False])
def test_no_number_of_threads_changes_random_canaries(stored):
    size, found = 30 * kernels.STRETCH + 5, []
    gradients = flat(3 * size).view(3, size)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        vectors = canaries("random", 40).vectors(flat(size), stored=stored)
        found.append((vectors.insertion(coins(40)), vectors.products(gradients), vectors.products(gradients[1])))
    torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_random_products_elsewhere_are_the_same(dtype):
    """As on a device without the loops, in several blocks; bfloat16 holds eight bits."""
    size = 9 * kernels.STRETCH + 3
    vectors = canaries("random").vectors(flat(size, dtype=dtype))
    gradients = flat(2 * size).view(2, size).to(dtype)
    wanted = gradients.double() @ vectors.dense().double().T
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-6
    for found in (vectors._written_out(gradients), vectors.products(gradients)):
        assert found.dtype == dtype
        assert ((found - wanted).abs() <= tolerance * NORM * gradients.double().norm(dim=1, keepdim=True)).all()
    assert (vectors.dense().double().norm(dim=1) <= NORM * (1 + 1e-12)).all()


def test_random_signs_are_fair_and_independent():
    """200 canaries of 20,000 signs, far from the last tile's end and near it; false alarms of 1e-5 each, or less.

    Their mean, those of each canary and of each number, and the products of neighbours: other canaries, and numbers a
    bit, a word or a tile away.
    """
    signs = canaries("random", 200, norm=1.0).vectors(flat(20_000)).dense().sign().numpy()
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 4.5 / math.sqrt(signs.size)
    for axis in (0, 1):
        sums = signs.sum(axis) / math.sqrt(signs.shape[axis])
        smooth = sums + np.random.default_rng(0).normal(0, 0.2, len(sums))  # sums of 200 signs have few values
        assert stats.kstest(smooth, "norm", (0, math.sqrt(1.04))).pvalue > 1e-5
        assert abs((sums**2).mean() - 1) < 4.5 * math.sqrt(2 / len(sums))
    for shift in (1, 2, 4, 8, 16, 64, 128, 256, kernels.TILE, kernels.STRETCH):
        assert abs((signs[:, shift:] * signs[:, :-shift]).mean()) < 4.5 / math.sqrt(signs.size - 200 * shift)
    pairs = np.corrcoef(signs)[np.triu_indices(200, 1)] * math.sqrt(20_000)
    assert abs(pairs.mean()) < 4.5 / math.sqrt(len(pairs)) and abs(pairs.var() - 1) < 4.5 * math.sqrt(2 / len(pairs))


def test_a_random_canary_does_not_depend_on_how_many_there_are():
    few, many = (canaries("random", count).vectors(flat(3000)).dense() for count in (3, 90))
    assert torch.equal(few, many[:3])
    assert torch.equal(few[:, :512].sign(), canaries("random", 3).vectors(flat(512)).dense().sign())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientCanaries(kind="dense"), "kind of gradient canaries must be one of dirac, signs, random"),
        (lambda: GradientCanaries(count=0), "count of gradient canaries"),
        (lambda: GradientCanaries(norm=0), "norm of gradient canaries"),
        (lambda: GradientCanaries(seed=-1), "seed of gradient canaries"),
        (lambda: canaries("dirac", 311).vectors(flat()), "with 311 dirac canaries must be a whole number of at least"),
        (lambda: canaries("signs", 257).vectors(flat()), "with 257 signs canaries .* of at least 512, got 310"),
        (lambda: canaries().vectors(torch.zeros(3, 4)), "like must be a flat vector"),
        (lambda: canaries().vectors(torch.zeros(400, dtype=torch.long)), "like must be a flat vector"),
        (lambda: canaries().vectors(flat()).insertion(np.ones(99, bool)), r"member must be 100 booleans, got bool"),
        (lambda: canaries().vectors(flat()).insertion(np.ones(100)), "member must be 100 booleans, got float64"),
        (lambda: canaries().vectors(flat()).products(flat(309)), r"310 numbers in each row, got shape \(309,\)"),
        (lambda: log_ratios(np.zeros(3), 1.0), "table must have shape"),
        (lambda: log_ratios(np.zeros((1, 3)), 0.0), "noise_multiplier"),
        (lambda: log_ratios(np.zeros((1, 3)), 1.0, 0.0), "sampling_rate"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


# ---- scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 1, 32, 70])
def test_scores_are_dense_products(kind, steps):
    vectors = canaries(kind).vectors(flat())
    dense = vectors.dense().double()
    released = torch.stack([flat(seed=seed) for seed in range(steps)]) if steps else torch.zeros((0, 310))
    weights = np.linspace(0.5, 2.0, steps)
    linear, each, reused = LinearScore(vectors), StepScores(vectors), flat()
    for row, weight in zip(released, weights, strict=True):
        reused.copy_(row)  # as an engine does with what it releases
        linear.add(reused, weight)
        each.add(reused, weight)
        reused.zero_()
    wanted = (released.double() @ dense.T).numpy() * weights[:, None] / NORM**2
    np.testing.assert_allclose(each.table(), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(each.table(), wanted, rtol=1e-4, atol=1e-4)  # looking changes nothing
    np.testing.assert_allclose(linear.sums(), wanted.sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sigma", [0.02, 0.7, 5.0])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 1.0])
def test_log_ratios_are_those_of_the_densities(sigma, rate):
    table = np.random.default_rng(0).normal(0.3, max(sigma, 0.5), size=(6, 20))
    out = stats.norm.logpdf(table, 0, sigma)
    inside = np.logaddexp(
        np.log1p(-rate) + out if rate < 1 else -np.inf, np.log(rate) + stats.norm.logpdf(table, 1, sigma)
    )
    np.testing.assert_allclose(log_ratios(table, sigma, rate), (inside - out).sum(0), rtol=1e-9, atol=1e-9)


def test_a_linear_score_gives_the_same_ratio_where_all_join():
    vectors = canaries().vectors(flat(dtype=torch.float64))
    linear, each = LinearScore(vectors), StepScores(vectors)
    for seed in range(9):
        for scores in (linear, each):
            scores.add(flat(seed=seed, dtype=torch.float64))
    np.testing.assert_allclose(linear.log_ratios(2.0), each.log_ratios(2.0), rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="keep per-step scores"):
        linear.log_ratios(2.0, 0.5)
    for scores in (linear, each):
        scores.add(flat(dtype=torch.float64), 2.0)
        with pytest.raises(InputError, match="weights of 1"):
            scores.log_ratios(2.0)


# ---- audited steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_canaries_is_the_step_and_the_canaries(kind):
    plain, planted = (maker()(np.random.default_rng(0)) for _ in range(2))
    vectors = canaries(kind).vectors(planted.released)
    audited = AuditedEngine(planted, vectors, coins(), LinearScore(vectors))
    plain.step(*batch())
    audited.step(*batch())
    torch.testing.assert_close(planted.released - plain.released, vectors.insertion(coins()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ORTHOGONAL)
@pytest.mark.parametrize("known", [False, True])
def test_without_noise_the_steps_that_a_member_joined_are_seen(kind, known):
    """500 steps at rate 0.1; each member's share within 5 deviations: false alarm below 1e-4 over 50 members."""
    engine = maker(noise=0.0)(np.random.default_rng(0))
    vectors = canaries(kind).vectors(engine.released)
    scores = StepScores(vectors)
    options = {"sampling_rate": 0.1, "generator": np.random.default_rng(1), "known_data": known}
    audited = AuditedEngine(engine, vectors, coins(), scores, **options)
    x, y = batch() if known else batch(0)
    for _ in range(500):
        audited.step(x, y)
    table = scores.table()
    joined = np.round(table)
    np.testing.assert_allclose(table, joined, atol=1e-4)
    assert set(np.unique(joined)) == {0.0, 1.0} and not joined[:, ~coins()].any()
    assert np.abs(joined[:, coins()].mean(0) - 0.1).max() < 5 * math.sqrt(0.09 / 500)
    together = joined[:, coins()].sum(1)  # joins are independent: the variance is binomial
    assert abs(together.var() / (0.09 * coins().sum()) - 1) < 5 * math.sqrt(2 / 500)


def test_without_knowing_the_data_their_sum_is_in_the_scores():
    engine = maker(noise=0.0)(np.random.default_rng(0))
    vectors = canaries().vectors(engine.released)
    clean = vectors.products(engine.clipped_sum(*batch())).numpy() / NORM**2
    scores = LinearScore(vectors)
    AuditedEngine(engine, vectors, coins(), scores).step(*batch())
    np.testing.assert_allclose(scores.sums(), coins() + clean, atol=1e-4)
    assert np.abs(clean).max() > 0.1


def test_an_audit_needs_what_fits():
    engine = maker()(np.random.default_rng(0))
    vectors = canaries().vectors(engine.released)
    other = canaries().vectors(flat(400))
    for arguments, options, message in (
        ((engine, other, coins(), LinearScore(other)), {}, "engine's 310 parameters, got 400"),
        ((engine, vectors, coins(99), LinearScore(vectors)), {}, "member must be 100 booleans"),
        ((engine, vectors, coins(), LinearScore(vectors)), {"sampling_rate": 0.5}, "generator must be a numpy"),
        ((engine, vectors, coins(), LinearScore(vectors)), {"sampling_rate": 0}, "sampling_rate"),
    ):
        with pytest.raises(InputError, match=message):
            AuditedEngine(*arguments, **options)
    for options, message in (
        ({"steps": 0}, "steps"),
        ({"seed": -1}, "seed"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"statistic": "best"}, "statistic must be one of log-ratio, linear"),
        ({"steps": 3}, r"one per step \(3\), got 2"),
    ):
        with pytest.raises(InputError, match=message):
            audit_one_run(
                maker(), [batch()] * 2, canaries(), **{"steps": 2, "seed": 0, "noise_multiplier": 1.0, **options}
            )


# ---- one run --------------------------------------------------------------------------------------------------------


def test_coins_follow_from_the_seed_alone():
    def members(seed=0, noise=1.0, kind="dirac", **changes):
        options = {"steps": 2, "seed": seed, "noise_multiplier": 1.0, **changes}
        return audit_one_run(maker(noise), same_batch(), canaries(kind), **options).member

    first = members()
    for changes in (
        {"noise": 30.0},
        {"kind": "signs"},
        {"statistic": "linear"},
        {"steps": 5},
        {"sampling_rate": 0.3},
        {"known_data": True},
    ):
        assert np.array_equal(first, members(**changes))
    drawn = np.array([members(seed)[0] for seed in range(100)])
    # 10,000 fair coins, and no canary or run apart from the others: each false alarm 1e-5 or less.
    assert abs(drawn.mean() - 0.5) < 4.5 * 0.5 / 100
    for axis in (0, 1):
        assert stats.chisquare(drawn.sum(axis), np.full(100, drawn.mean() * 100)).pvalue / 2 > 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_a_run_is_repeated_by_its_seed(kind, rate):
    def run(seed):
        options = {"steps": 3, "noise_multiplier": 1.0, "sampling_rate": rate}
        return audit_one_run(maker(), same_batch(), canaries(kind), seed=seed, **options)

    one, again, other = run(4), run(4), run(5)
    assert np.array_equal(one.scores, again.scores) and np.array_equal(one.member, again.member)
    assert not np.array_equal(one.scores, other.scores)
    assert one.shape == (1, 100) and one.canaries == canaries(kind).names
    assert (one.design.coins, one.design.inclusion, one.design.threat_model) == ("fair", 0.5, "iterates")


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ORTHOGONAL)
@pytest.mark.parametrize("known", [False, True])
def test_scores_have_the_law_of_the_theory(kind, known):
    """Σ_t s_t ~ N(T · member, T σ²): 4,000 scores, Kolmogorov–Smirnov at 1e-4, mean and variance to 5 deviations."""
    sigma, steps, standard = 3.0, 20, []
    for seed in range(40):
        options = {"steps": steps, "seed": seed, "noise_multiplier": sigma, "statistic": "linear"}
        found = audit_one_run(maker(sigma), same_batch(8 * known), canaries(kind), **options, known_data=known)
        standard.append((found.scores - steps * found.member) / (sigma * math.sqrt(steps)))
    standard = np.concatenate(standard)
    assert stats.kstest(standard.ravel(), "norm").pvalue > 1e-4
    assert abs(standard.mean()) < 5 / math.sqrt(4000) and abs(standard.var() - 1) < 5 * math.sqrt(2 / 4000)
    pairs = np.corrcoef(standard.T)[np.triu_indices(100, 1)]
    assert abs(pairs.mean()) < 5 / math.sqrt(40 * len(pairs))  # canaries don't see each other


def test_canaries_longer_than_any_clipped_gradient_are_refused():
    engine = maker(1.0)(np.random.default_rng(0))
    long = GradientCanaries(kind="dirac", count=4, norm=1.01 * engine.sensitivity).vectors(engine.released)
    with pytest.raises(InputError, match=r"not be longer than the engine's sensitivity 0.5, .* got 0.505"):
        AuditedEngine(engine, long, np.ones(4, bool), LinearScore(long))


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ORTHOGONAL)
def test_log_ratios_under_poisson_sampling_are_those_of_the_known_mechanism(kind):
    """3,000 members and as many others against a direct simulation: Kolmogorov–Smirnov, each at 1e-4."""
    sigma, rate, steps = 0.8, 0.1, 30
    options = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate, "known_data": True}
    runs = [audit_one_run(maker(sigma), same_batch(), canaries(kind), seed=seed, **options) for seed in range(60)]
    scores, member = (np.concatenate([getattr(run, name) for run in runs]) for name in ("scores", "member"))
    direct = mechanisms.log_ratios(np.random.default_rng(0), member, sigma, rate, steps)
    for side in (member, ~member):
        assert stats.ks_2samp(scores[side], direct[side]).pvalue > 1e-4
    assert stats.ks_2samp(scores[member], scores[~member]).pvalue < 1e-4


RUNS = 20
SETTINGS = {"full batch": (10.0, 1.0, 100), "poisson": (1.0, 0.1, 40)}


def claim_of(setting):
    sigma, rate, steps = SETTINGS[setting]
    return Claim.dp_sgd(noise_multiplier=sigma, sampling_rate=rate, steps=steps)


def observed(kind, setting, seed, noise_factor=1.0, count=1000):
    sigma, rate, steps = SETTINGS[setting]
    make = maker(sigma * noise_factor, width=110)  # 1,110 parameters
    options = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate, "known_data": True}
    return audit_one_run(make, same_batch(width=110), canaries(kind, count), seed=seed, **options)


def recipe_bound(obs, claim):
    options = {"delta": DELTA, "claim": claim, "threshold": bounds.Fixed(0.0)}
    return bounds.order_statistics(obs, obs.coins, **options).epsilon


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::dpaudit.records.HalfSplitWarning")  # some of the simulated coins
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ORTHOGONAL)
def test_bounds_are_those_of_ideal_canaries_and_hold(kind, setting):
    """20 runs at level 5 %: more than 5 exceed the claim with probability 3e-4. Medians within 4.5 deviations."""
    claim = claim_of(setting)
    sigma, rate, steps = SETTINGS[setting]
    epsilon = claim.epsilon(DELTA)
    ideal = mechanisms.subsampled_gaussian(sigma, rate, steps)
    runs = [observed(kind, setting, seed) for seed in range(RUNS)]
    draws = [mechanisms.coins(ideal.draw, 1, 1000)(np.random.default_rng(seed)) for seed in range(RUNS)]
    found, wanted = (np.array([recipe_bound(obs, claim) for obs in many]) for many in (runs, draws))
    assert (found > epsilon).sum() <= 5
    spread = 1.25 * math.hypot(found.std(), wanted.std()) / math.sqrt(RUNS)
    assert abs(np.median(found) - np.median(wanted)) < 4.5 * spread
    assert np.median(found) > 0.6 * epsilon
    any_mechanism = np.array([bounds.one_run_fdp(obs, 100, delta=DELTA, claim=claim).epsilon for obs in runs])
    assert (any_mechanism > epsilon).sum() <= 5 and np.median(any_mechanism) > 0.3 * epsilon


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ORTHOGONAL)
def test_half_the_noise_is_caught_and_the_whole_is_not(kind):
    """Six runs of each: a true claim is called false with probability 5 %, in more than 3 of 6 with 9e-5."""
    claim = claim_of("full batch")
    fair = [dpaudit.audit(observed(kind, "full batch", seed), claim, delta=DELTA) for seed in range(6)]
    assert sum(a.verdict is Verdict.VIOLATED for a in fair) <= 3
    half = [dpaudit.audit(observed(kind, "full batch", seed, 0.5), claim, delta=DELTA) for seed in range(6)]
    assert sum(a.verdict is Verdict.VIOLATED for a in half) >= 4
    for setting in SETTINGS:  # the recipe falls further
        caught = dpaudit.audit(observed(kind, setting, 0, 0.5), claim_of(setting), delta=DELTA)
        assert caught.lower_if_recipe > 1.5 * claim_of(setting).epsilon(DELTA)


def test_random_directions_tell_members_too():
    """Overlaps and all: the area under the curve is 0.76 by theory, its deviation 0.015 over 1,000 coins."""
    sigma, steps = 10.0, 100
    obs = audit_one_run(
        maker(sigma, width=500), same_batch(0, 500), canaries("random", 1000), steps=steps, seed=1,
        noise_multiplier=sigma,
    )  # fmt: skip
    inside, outside = obs.scores[obs.member], obs.scores[~obs.member]
    area = stats.mannwhitneyu(inside, outside).statistic / (len(inside) * len(outside))
    overlap = steps * math.sqrt(500 / 5010)  # of some 500 members
    theory = stats.norm.cdf(steps / math.sqrt(2 * (sigma**2 * steps + overlap**2)))
    assert abs(area - theory) < 0.06


def test_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert blocks
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_does_the_same(kind):
    cpu, gpu = (canaries(kind).vectors(like) for like in (flat(), flat().cuda()))
    torch.testing.assert_close(gpu.insertion(coins()).cpu(), cpu.insertion(coins()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gpu.products(flat().cuda()).cpu(), cpu.products(flat()), rtol=1e-4, atol=1e-5)
