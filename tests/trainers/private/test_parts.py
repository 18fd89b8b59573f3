"""Clipping rules, losses and architectures by themselves."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.trainers.private.clipping import AutomaticClipping, GlobalClipping, PerLayerClipping

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import CrossEntropy  # noqa: E402
from dpaudit.trainers.private.pieces import Outer, Rows, Tied  # noqa: E402

# ---- clipping -------------------------------------------------------------------------------------------------------


def test_settings_need_no_torch():
    code = (
        "import sys; import dpaudit.trainers.private as p; from dpaudit.trainers.private import GlobalClipping, Adam,"
        " PerLayerClipping, AutomaticClipping, Sgd, Momentum, Diagnostics;"
        " assert 'PrivateEngine' in dir(p) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_weights_by_numpy_and_torch(kind):
    def array(values):
        return np.array(values) if kind == "numpy" else torch.tensor(values, dtype=torch.float64)

    squares = [0.0, 1e-30, 0.25, 4.0, 1e30, math.inf, math.nan]
    weights = np.asarray(GlobalClipping(norm=0.5).weights(array(squares)))
    np.testing.assert_allclose(weights, [1, 1, 1, 0.25, 5e-16, 0, math.nan])
    weights = np.asarray(AutomaticClipping(norm=0.5, stability=0.5).weights(array(squares)))
    np.testing.assert_allclose(weights, [1, 1, 0.5, 0.2, 5e-16, 0, math.nan])
    weights = np.asarray(PerLayerClipping(norms=[0.5, 2.0]).weights(array([squares, squares])))
    np.testing.assert_allclose(weights[0], [1, 1, 1, 0.25, 5e-16, 0, math.nan])
    np.testing.assert_allclose(weights[1], [1, 1, 1, 1, 2e-15, 0, math.nan])


@pytest.mark.parametrize(
    "rule",
    [
        GlobalClipping(norm=0.7),
        AutomaticClipping(norm=0.7),
        PerLayerClipping(norm=0.7),
        PerLayerClipping(norms=[0.3] * 5),
    ],
    ids=str,
)
def test_no_gradient_outgrows_the_sensitivity(rule):
    rng = np.random.default_rng(0)
    squares = 10 ** rng.uniform(-20, 20, (5, 4000))
    weights = rule.weights(squares) if rule.by_layer else rule.weights(squares.sum(0))
    norms = np.sqrt((squares * weights**2).sum(0))
    assert norms.max() <= rule.sensitivity * (1 + 1e-12)
    assert norms.max() > 0.99 * rule.sensitivity
    squares[0] = 1e40
    assert np.all(np.diff(np.sort(norms)) >= 0)


def test_limits_of_layers():
    assert PerLayerClipping(norm=2.0).limits(4) == (1.0, 1.0, 1.0, 1.0)
    assert PerLayerClipping(norms=[1, 2, 2]).sensitivity == 3.0
    assert PerLayerClipping(norms=[1, 2, 2]) == PerLayerClipping(norms=(1.0, 2.0, 2.0))
    with pytest.raises(InputError, match=r"one number per layer \(2\), got 3"):
        PerLayerClipping(norms=[1, 2, 2]).limits(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GlobalClipping(norm=0),
        lambda: GlobalClipping(norm=math.inf),
        lambda: AutomaticClipping(norm=1, stability=0),
        lambda: PerLayerClipping(),
        lambda: PerLayerClipping(norm=1, norms=[1]),
        lambda: PerLayerClipping(norms=[]),
        lambda: PerLayerClipping(norms=[1, -1]),
        lambda: PerLayerClipping(norms="12"),
    ],
)
def test_wrong_rules_are_refused(make):
    with pytest.raises(InputError, match=r"norm|stability"):
        make()


# ---- norms that cancel ----------------------------------------------------------------------------------------------


def test_cancelling_positions_never_look_shorter_than_they_are():
    """Positions that cancel to rounding: what is left must not be under-measured, or it would not be clipped."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn((40, 1, 1, 90), generator=generator)
    right = torch.randn((40, 1, 1, 90), generator=generator)
    noise = 1 + 1e-6 * torch.randn((40, 1, 1, 1), generator=generator)
    piece = Outer(torch.cat([left, -left * noise], 2), torch.cat([right, right], 2))
    true = (piece.left.double().transpose(2, 3) @ piece.right.double()).square().sum((1, 2, 3))
    assert bool((piece.squares() >= 0.99 * true).all())
    naive = ((piece.left @ piece.left.transpose(2, 3)) * (piece.right @ piece.right.transpose(2, 3))).sum((1, 2, 3))
    assert bool((naive < 0.99 * true).any())  # what is guarded against does happen


def test_a_tied_table_that_cancels_is_not_measured_below_zero():
    values = torch.randn((30, 1, 5), generator=torch.Generator().manual_seed(0))
    index = torch.zeros((30, 1), dtype=torch.long)
    left = torch.zeros((30, 1, 1, 4))
    left[..., 0] = -1.0
    tied = Tied(Outer(left, values[:, None]), Rows(index, values, 4))
    assert bool((tied.squares() >= 0).all()) and float(tied.squares().max()) < 1e-4


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_torchs_for_each_example_alone():
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn((4, 6, 9), generator=generator), torch.randint(9, (4, 6), generator=generator)
    y[0, 2:] = y[2, :] = -100
    for reduction in ("mean", "sum"):
        got = CrossEntropy(reduction=reduction)(logits, y)
        for i in (0, 1, 3):
            wanted = nn.functional.cross_entropy(logits[i], y[i], reduction=reduction)
            torch.testing.assert_close(got[i], wanted)
        assert float(got[2]) == 0
    flat = CrossEntropy()(logits[:, 0], y[:, 0])
    torch.testing.assert_close(flat, nn.functional.cross_entropy(logits[:, 0], y[:, 0], reduction="none"))
    soft = torch.softmax(torch.randn((4, 6, 9), generator=generator), 2)
    wanted = -(soft * torch.log_softmax(logits, 2)).sum(2)
    torch.testing.assert_close(CrossEntropy()(logits, soft), wanted.mean(1))
    torch.testing.assert_close(CrossEntropy(reduction="sum")(logits, soft), wanted.sum(1))


@pytest.mark.parametrize(
    ("outputs", "targets"), [((4, 3), (3,)), ((4,), (4,)), ((4, 5, 3), (4, 3)), ((4, 3), (4, 1))], ids=str
)
def test_shapes_that_do_not_fit_are_refused(outputs, targets):
    with pytest.raises(InputError, match="logits and targets must be"):
        CrossEntropy()(torch.zeros(outputs), torch.zeros(targets, dtype=torch.long))
    with pytest.raises(InputError, match="probabilities must have the shape"):
        CrossEntropy()(torch.zeros(outputs), torch.zeros(targets))


def test_other_reductions_are_refused():
    with pytest.raises(InputError, match="reduction must be one of mean, sum"):
        CrossEntropy(reduction="none")


# ---- architectures --------------------------------------------------------------------------------------------------

MODELS = {
    "mlp": lambda g: architectures.mlp(6, [5, 4], 3, g),
    "cnn": lambda g: architectures.cnn(g),
    "transformer": lambda g: architectures.transformer(20, 8, 3, g, width=8, heads=2),
    "language model": lambda g: architectures.transformer(20, 8, None, g, width=8, heads=2),
    "low rank": lambda g: architectures.lora(architectures.mlp(6, [5], 3, g), 2, g),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_from_the_generator_alone(name):
    torch.manual_seed(1)
    wanted = float(torch.rand(1))
    torch.manual_seed(1)
    first, again, other = (MODELS[name](torch.Generator().manual_seed(s)).state_dict() for s in (0, 0, 1))
    assert float(torch.rand(1)) == wanted
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert all(bool(torch.isfinite(value).all()) for value in first.values())


def test_sizes_are_those_of_the_literature():
    generator = torch.Generator().manual_seed(0)
    assert sum(p.numel() for p in architectures.cnn(generator).parameters()) == 26_010
    assert sum(p.numel() for p in architectures.mlp(784, [256, 128], 10, generator).parameters()) == 235_146
    assert not any(p.any() for p in architectures.softmax(784, 10).parameters())


def test_weights_are_spread_as_torchs_own():
    ours = architectures.mlp(400, [300], 10, torch.Generator().manual_seed(0))[1]
    bound = 1 / math.sqrt(400)
    weight, bias = ours.weight.detach(), ours.bias.detach()
    assert float(weight.abs().max()) <= bound and float(bias.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_a_causal_model_does_not_look_ahead():
    model = architectures.transformer(20, 8, None, torch.Generator().manual_seed(0))
    x = torch.arange(8)[None].clone()
    before = model(x)
    x[0, 5] = 19
    after = model(x)
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5:], before[:, 5:])


def test_low_rank_additions_start_at_nothing_and_are_all_that_is_trained():
    generator = torch.Generator().manual_seed(0)
    model = architectures.transformer(20, 8, 3, generator)
    x = torch.arange(16).view(2, 8)
    before = model(x)
    changed = architectures.lora(model, 4, generator, alpha=8.0, targets=["query", "value"])
    assert changed is model
    torch.testing.assert_close(model(x), before)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == [
        f"blocks.{block}.attention.{part}.{which}.weight"
        for block in range(2) for part in ("query", "value") for which in ("down", "up")
    ]  # fmt: skip
    with pytest.raises(InputError, match="targets must name linear layers"):
        architectures.lora(model, 4, generator, targets=["nothing"])


@pytest.mark.parametrize(
    "make",
    [
        lambda g: architectures.softmax(0, 3),
        lambda g: architectures.mlp(4, [], 3, g),
        lambda g: architectures.mlp(4, 8, 3, g),
        lambda g: architectures.transformer(10, 8, 3, g, width=10, heads=4),
        lambda g: architectures.lora(architectures.mlp(4, [3], 3, g), 0, g),
        lambda g: architectures.lora(nn.Linear(4, 3), 1, g),
    ],
)
def test_wrong_sizes_are_refused(make):
    with pytest.raises(InputError, match="must"):
        make(torch.Generator().manual_seed(0))
