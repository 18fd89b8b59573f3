"""Scores from gradients: their norms against autograd, the canary score against densities and the claim's own curve."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.attacks.gradients import gradient_canary_score, gradient_norm, gradient_norms
from dpaudit.attacks.metrics import auc, roc
from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import SGD, Convolution, ConvolutionalNet, train_many
from dpaudit.trainers.models import CheckedModel

torch = pytest.importorskip("torch")

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import (  # noqa: E402
    CrossEntropy,
    GlobalClipping,
    GradientCanaries,
    PrivateEngine,
    Sgd,
    SlowGradients,
    StepScores,
)

# ---- norms ----------------------------------------------------------------------------------------------------------


def autograd_norms(model, x, y, loss):
    out = []
    for i in range(len(x)):
        found = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1])[0], list(model.parameters()))
        out.append(float(torch.sqrt(sum(g.square().sum() for g in found))))
    return np.array(out)


def modules():
    start = torch.Generator().manual_seed(0)
    return {
        "mlp": architectures.mlp(12, [7, 5], 3, start),
        "transformer": architectures.transformer(9, 6, 3, start, width=8, heads=2, layers=1),
        "next-token": architectures.transformer(9, 6, None, start, width=8, heads=2, layers=1),
    }


@pytest.mark.parametrize("kind", ["mlp", "transformer", "next-token"])
def test_norms_are_autograds(kind):
    model, rng = modules()[kind], np.random.default_rng(1)
    if kind == "mlp":
        x, y = rng.normal(size=(9, 12)), rng.integers(3, size=9)
    else:
        x = rng.integers(9, size=(9, 6))
        y = x if kind == "next-token" else rng.integers(3, size=9)
    x.setflags(write=False)
    before = [p.clone() for p in model.parameters()]
    found = gradient_norms(model, x, y)
    assert all(torch.equal(p, b) and p.dtype == torch.float32 for p, b in zip(model.parameters(), before, strict=True))
    assert model.training
    expected = autograd_norms(model.double(), torch.tensor(np.array(x)), torch.tensor(np.array(y)), CrossEntropy())
    assert found == pytest.approx(expected, rel=1e-9)


def test_norms_in_parts_and_with_another_loss(monkeypatch):
    monkeypatch.setattr("dpaudit.attacks.gradients._ROWS", 4)
    model, rng = modules()["mlp"], np.random.default_rng(2)
    x, y = rng.normal(size=(11, 12)), rng.normal(size=(11, 3))

    def squared(outputs, targets):
        return (outputs - targets).square().sum(1)

    expected = autograd_norms(modules()["mlp"].double(), torch.tensor(x), torch.tensor(y), squared)
    assert gradient_norms(model, x, y, squared) == pytest.approx(expected, rel=1e-9)
    order = rng.permutation(11)
    assert gradient_norms(model, x[order], y[order], squared) == pytest.approx(expected[order], rel=1e-12)


def test_modules_without_a_rule_are_done_all_the_same():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.arange(1.0, 4.0))

        def forward(self, x):
            return self.scale * x

    x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(3)), torch.tensor([0, 1, 2, 0, 1])
    with pytest.warns(SlowGradients):
        found = gradient_norms(Scaled(), x, y)
    assert found == pytest.approx(autograd_norms(Scaled().double(), x.double(), y, CrossEntropy()), rel=1e-9)


@pytest.mark.parametrize(
    "trainer",
    [
        SGD(steps=5, hidden=(6,)),
        SGD(steps=5, model=ConvolutionalNet((4, 4, 1), [Convolution(2, 3)]), hidden=(3,)),
        SGD(steps=5, hidden=(6,), optimizer="momentum"),
    ],
)
def test_models_of_every_engine(trainer):
    from dpaudit.attacks.gradients import _module

    rng = np.random.default_rng(0)
    data = Data(rng.normal(size=(20, 16)), rng.integers(3, size=20), 3, shape=(4, 4))
    model = train_many(trainer, data, np.ones((1, 20), bool), 0)[0]
    inside = _module(model).double()
    x = torch.tensor(np.array(data.x, float))
    assert inside(x).detach().numpy() == pytest.approx(model.logits(data.x), abs=1e-5)
    expected = autograd_norms(inside, x, torch.tensor(np.array(data.y)), CrossEntropy())
    assert gradient_norms(model, data.x, data.y) == pytest.approx(expected, rel=1e-9)
    assert gradient_norms(CheckedModel(model, "somebody", 3), data.x, data.y).tolist() == pytest.approx(expected)


def test_well_learnt_records_do_not_tie():
    """In float32 the softmax of a margin of 40 is 1, and all gradients would be 0."""
    model = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    norms = gradient_norms(model, np.array([[20.0], [25.0], [30.0]]), np.zeros(3, int))
    assert norms[0] > norms[1] > norms[2] > 0


def test_members_of_a_model_that_learns_by_heart_have_short_gradients():
    rng = np.random.default_rng(4)
    data = Data(rng.normal(size=(60, 40)), rng.integers(3, size=60), 3, nominal_size=30)
    member = rng.random((1, 60)) < 0.5
    model = train_many(SGD(steps=100, sampling_rate=0.5), data, member, 1)[0]
    assert auc(gradient_norm(gradient_norms(model, data.x, data.y)), member[0]) > 0.8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gradient_norm([1.0, np.nan]), "at least 0, got others in 1 of 2"),
        (lambda: gradient_norm([-1.0]), "at least 0"),
        (lambda: gradient_norm(["a"]), "norms must be numbers"),
        (lambda: gradient_norms("model", np.ones((1, 2)), [0]), "model must be a torch.nn.Module .* got str"),
        (lambda: gradient_norms(modules()["mlp"], np.ones((2, 12)), [0]), "as many records"),
        (lambda: gradient_norms(modules()["mlp"], np.full((2, 12), np.nan), [0, 1]), "finite, got NaN .* 2 of 2"),
        (lambda: gradient_norms(torch.nn.ReLU(), np.ones((2, 3)), [0, 1]), "a parameter that is trained"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


# ---- the score of a gradient canary ---------------------------------------------------------------------------------

SAMPLERS = [("poisson", 0.3), ("poisson", 1.0), ("fixed-size", 0.3), ("full-batch", 1.0), ("shuffled", 1 / 3),
            ("balls-and-bins", 1 / 3)]  # fmt: skip


def patterns(sampler, rate, steps):
    """Every way to join the steps, with its probability."""
    if sampler in ("shuffled", "balls-and-bins"):
        batches = round(1 / rate)
        epochs = -(-steps // batches)
        for places in itertools.product(range(batches), repeat=epochs):
            joined = [places[t // batches] == t % batches for t in range(steps)]
            yield joined, mpmath.mpf(1) / batches**epochs
    else:
        for joined in itertools.product([False, True], repeat=steps):
            share = mpmath.mpf(1 if sampler == "full-batch" else rate)
            yield joined, mpmath.fprod(share if j else 1 - share for j in joined)


def brute_force(row, deviations, sizes, sampler, rate):
    """Ln of the ratio of both densities of all steps together, by summing over every pattern of joins."""
    with mpmath.workdps(40):
        inside = mpmath.mpf(0)
        for joined, chance in patterns(sampler, rate, len(row)):
            inside += chance * mpmath.fprod(
                mpmath.npdf(mpmath.mpf(s), a if j else 0, d)
                for s, j, a, d in zip(row, joined, sizes, deviations, strict=True)
            )
        outside = mpmath.fprod(mpmath.npdf(mpmath.mpf(s), 0, d) for s, d in zip(row, deviations, strict=True))
        return float(mpmath.log(inside / outside))


@pytest.mark.parametrize(("sampler", "rate"), SAMPLERS)
@pytest.mark.parametrize("steps", [1, 6, 7])
def test_the_score_is_the_ratio_of_the_densities(sampler, rate, steps):
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 3, (4, steps))
    deviations, sizes = rng.uniform(0.2, 2, steps), rng.uniform(0.5, 2, steps)
    found = gradient_canary_score(rows, deviations, size=sizes, sampling_rate=rate, sampler=sampler)
    expected = [brute_force(row.tolist(), deviations.tolist(), sizes.tolist(), sampler, rate) for row in rows]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_batches_of_whole_records():
    """Seven records in three batches: a record is in the first with chance 3/7, and 2/7 each in the others."""
    row = np.array([0.3, 1.2, -0.4])
    ratio = np.exp(row - 0.5)
    found = gradient_canary_score(row, 1.0, sampling_rate=1 / 3, sampler="shuffled", records=7)
    assert found == pytest.approx(np.log(ratio @ [3 / 7, 2 / 7, 2 / 7]), rel=1e-12)
    fixed = gradient_canary_score(row, 1.0, sampling_rate=1 / 3, sampler="fixed-size", records=7)
    assert fixed == pytest.approx(np.log(5 / 7 + 2 / 7 * ratio).sum(), rel=1e-12)


def test_far_tails_neither_overflow_nor_tie():
    rows = np.array([[400.0, -400.0, 0.0], [401.0, -400.0, 0.0]])
    for sampler, rate in SAMPLERS:
        found = gradient_canary_score(rows, 0.1, sampling_rate=rate, sampler=sampler)
        assert np.isfinite(found).all() and found[1] > found[0]


def test_shapes_order_and_inputs_are_left_alone():
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(5, 4, 6)).astype(np.float32)
    rows.setflags(write=False)
    for sampler, rate in SAMPLERS:
        found = gradient_canary_score(rows, 0.8, sampling_rate=rate, sampler=sampler)
        assert found.shape == (5, 4) and found.dtype == np.float64
        assert found[2, 1] == gradient_canary_score(rows[2, 1], 0.8, sampling_rate=rate, sampler=sampler)
        order = rng.permutation(5)
        again = gradient_canary_score(rows[order], 0.8, sampling_rate=rate, sampler=sampler)
        assert again.tolist() == found[order].tolist()


def test_steps_of_a_private_run_give_the_scores_that_the_run_keeps():
    canaries = GradientCanaries(kind="dirac", count=4, norm=2.0, seed=1)
    like = torch.zeros(30)
    scores = StepScores(canaries.vectors(like))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        scores.add(torch.randn(30, generator=generator) * 1.4)
    in_units = scores.table().T
    kept = scores.log_ratios(0.7, 0.25)
    assert gradient_canary_score(in_units, 0.7, sampling_rate=0.25) == pytest.approx(kept, rel=1e-12)
    projections = in_units * 2.0  # onto a direction of norm 1
    assert gradient_canary_score(projections, 1.4, size=2.0, sampling_rate=0.25) == pytest.approx(kept, rel=1e-12)


def test_canaries_of_a_shuffled_private_run_score_as_the_law_says():
    """400 canaries in four shuffled epochs of a real engine: means within 4.5 deviations of the simulated law's."""
    sigma, batches, epochs, norm = 0.7, 5, 4, 0.5
    rng = np.random.default_rng(11)
    engine = PrivateEngine(
        architectures.mlp(20, [32], 3, torch.Generator().manual_seed(0)),
        clipping=GlobalClipping(norm=norm),
        noise_multiplier=sigma,
        divisor=40,
        optimizer=Sgd(learning_rate=0.1),
        generator=np.random.default_rng(12),
    )
    vectors = GradientCanaries(kind="dirac", count=400, norm=norm, seed=1).vectors(engine.released)
    x, y = torch.randn((200, 20), generator=torch.Generator().manual_seed(1)), torch.arange(200) % 3
    member = rng.random(400) < 0.5
    projections = []
    for _ in range(epochs):
        places = rng.permutation(np.arange(400) % batches)
        for t in range(batches):
            data = engine.clipped_sum(x[t::batches], y[t::batches])
            engine.step(x[t::batches], y[t::batches], extra=vectors.insertion(member & (places == t)))
            projections.append(vectors.products(engine.released - data).numpy() / norm)
    setting = {"sampling_rate": 1 / batches, "sampler": "shuffled"}
    score = gradient_canary_score(np.array(projections).T, sigma * norm, size=norm, **setting)
    ideal, inside = simulated("balls-and-bins", 1 / batches, batches * epochs, sigma, 20_000, seed=13)
    law = gradient_canary_score(ideal, sigma, **setting)
    for found, expected in ((score[member], law[inside]), (score[~member], law[~inside])):
        assert abs(found.mean() - expected.mean()) < 4.5 * expected.std() / np.sqrt(len(found))
    assert auc(score, member) == pytest.approx(auc(law, inside), abs=4.5 * 0.025)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"projections": [["a"]]}, "numbers of shape"),
        ({"projections": 1.0}, r"\(\.\.\., steps\)"),
        ({"projections": np.zeros((3, 0))}, r"\(\.\.\., steps\)"),
        ({"projections": [0.0, np.nan]}, "finite, got NaN or infinity in 1 of 2"),
        ({"noise_deviation": 0.0}, "noise_deviation must be in"),
        ({"noise_deviation": [1.0, 2.0, 3.0]}, r"one per step \(2\)"),
        ({"size": -1.0}, "size must be in"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 0.5, "sampler": "full-batch"}, "must be 1 for full batches"),
        ({"sampling_rate": 0.3, "sampler": "balls-and-bins"}, "whole number of batches"),
        ({"sampler": "urns"}, "sampler must be one of"),
        ({"sampling_rate": 0.1, "sampler": "fixed-size", "records": 5}, "whole records"),
    ],
)
def test_settings_that_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        gradient_canary_score(**({"projections": [0.0, 1.0], "noise_deviation": 1.0} | arguments))


def simulated(sampler, rate, steps, sigma, runs, seed):
    """Projections of runs with the canary and of as many without."""
    rng = np.random.default_rng(seed)
    if sampler == "balls-and-bins":
        batches = round(1 / rate)
        places = rng.integers(batches, size=(runs, steps // batches, 1))
        joined = (np.arange(batches) == places).reshape(runs, steps)
    else:
        joined = rng.random((runs, steps)) < rate
    noise = rng.normal(0, sigma, (2 * runs, steps))
    noise[:runs] += joined
    return noise, np.arange(2 * runs) < runs


CLAIMS = [("poisson", 0.2, 10, 0.9), ("balls-and-bins", 0.1, 20, 0.8), ("full-batch", 1.0, 4, 1.7)]


@pytest.mark.parametrize(("sampler", "rate", "steps", "sigma"), CLAIMS)
def test_the_score_is_as_good_as_any_attack_can_be(sampler, rate, steps, sigma):
    """TPR − e^ε FPR at score > ε is the claim's own δ(ε), which no attack exceeds.

    40,000 + 40,000 runs; a false alarm needs an error of 4.5 deviations in one of 9 places: below 1e-4.
    """
    runs = 40_000
    claim = Claim.dp_sgd(noise_multiplier=sigma, sampling_rate=rate, steps=steps, sampler=sampler)
    projections, member = simulated(sampler, rate, steps, sigma, runs, seed=7)
    score = gradient_canary_score(projections, sigma, sampling_rate=rate, sampler=sampler)
    for epsilon in (0.1, 0.5, 1.0):
        tpr, fpr = (score[member] > epsilon).mean(), (score[~member] > epsilon).mean()
        error = np.sqrt((tpr * (1 - tpr) + np.exp(2 * epsilon) * fpr * (1 - fpr)) / runs)
        assert tpr - np.exp(epsilon) * fpr == pytest.approx(claim.delta(epsilon), abs=4.5 * error)


def above_the_curve(score, member, claim):
    """How far a score's ROC is above the claim's trade-off curve at three places, in 4.5 deviations of that."""
    runs = int(member.sum())
    curve = roc(score, member)
    fnr = 1 - curve.tpr
    fpr = np.array([0.01, 0.05, 0.2])
    least = claim.fnr(fpr)
    forward, backward = np.interp(fpr, curve.fpr, fnr), np.interp(fpr, fnr[::-1], curve.fpr[::-1])
    slope = (1 - least) / fpr  # at least the curve's own, which is convex
    deviation = np.sqrt(least * (1 - least) / runs) + np.sqrt(fpr / runs) * slope
    return (np.minimum(forward, backward) - least) / (4.5 * deviation)


@pytest.mark.parametrize(("sampler", "rate", "steps", "sigma"), CLAIMS)
def test_its_roc_is_on_the_claims_curve(sampler, rate, steps, sigma):
    """Nowhere below it, and on it in one of both directions, within 4.5 deviations of 100,000 + 100,000 runs.

    The sum of the projections is not, where it is not the same.
    """
    claim = Claim.dp_sgd(noise_multiplier=sigma, sampling_rate=rate, steps=steps, sampler=sampler)
    projections, member = simulated(sampler, rate, steps, sigma, 100_000, seed=8)
    score = gradient_canary_score(projections, sigma, sampling_rate=rate, sampler=sampler)
    assert np.abs(above_the_curve(score, member, claim)).max() < 1
    assert above_the_curve(projections.max(1), member, claim).max() > 1
    if sampler != "full-batch":
        assert above_the_curve(projections.sum(1), member, claim).max() > 1


def test_a_wrong_noise_is_told_from_it():
    """Power of the test of δ: the ratio at twice the noise falls short of it."""
    sampler, rate, steps, sigma = CLAIMS[0]
    projections, member = simulated(sampler, rate, steps, sigma, 40_000, seed=7)
    delta = Claim.dp_sgd(noise_multiplier=sigma, sampling_rate=rate, steps=steps).delta(0.5)
    wrong = gradient_canary_score(projections, 2 * sigma, sampling_rate=rate)
    at = (wrong[member] > 0.5).mean() - np.exp(0.5) * (wrong[~member] > 0.5).mean()
    assert at < delta - 0.01
