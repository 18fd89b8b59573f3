"""Linear layers with the fast products: the same values and derivatives, only for as long as they are asked for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.trainers import products  # noqa: E402
from dpaudit.trainers.private import linears  # noqa: E402
from dpaudit.trainers.private.linears import LinearLayers  # noqa: E402


@pytest.fixture(autouse=True)
def all_products_are_large(monkeypatch):
    if products._ONEDNN is None:
        pytest.skip("no oneDNN")
    monkeypatch.setattr(products, "_FEWEST", 0)


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


def layer(bias=True):
    model = nn.Sequential(nn.Linear(6, 4, bias=bias))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rand(*parameter.shape))
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (3, 2, 6), (2, 3, 1, 6)])
def test_values_and_derivatives_are_torchs(shape, bias):
    model, x = layer(bias), rand(*shape).requires_grad_()
    wanted = model(x)
    with LinearLayers(model).multiplied_fast():
        got = model(x)
    assert type(got.grad_fn).__name__ == "_LinearBackward"
    close(got, wanted)
    slope, inputs = rand(*wanted.shape), [x, *model.parameters()]
    for one, other in zip(
        torch.autograd.grad(got, inputs, slope), torch.autograd.grad(wanted, inputs, slope), strict=True
    ):
        close(one, other)


def test_slopes_that_lie_otherwise_in_memory():
    model, x = layer(), rand(3, 2, 6).requires_grad_()
    with LinearLayers(model).multiplied_fast():
        got = model(x).transpose(0, 2)
    (slope,) = torch.autograd.grad(got.sum(), x)
    close(slope, model[0].weight.sum(0).expand(3, 2, 6))


def test_weights_get_no_gradient_where_only_inputs_are_wanted():
    model, x = layer(), rand(5, 6).requires_grad_()
    layers = LinearLayers(model)
    with layers.multiplied_fast():
        loss = model(x).sum()
    with layers.inputs_only():
        found = torch.autograd.grad(loss, [x, *model.parameters()], retain_graph=True, allow_unused=True)
    assert [one is None for one in found] == [False, True, True]
    assert all(one is not None for one in torch.autograd.grad(loss, [x, *model.parameters()]))


def test_second_derivatives_are_torchs():
    model, x = layer(), rand(5, 6).requires_grad_()

    def penalty():
        (slope,) = torch.autograd.grad(torch.tanh(model(x)).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, model[0].weight])

    wanted = penalty()
    with LinearLayers(model).multiplied_fast():
        got = penalty()
    for one, other in zip(got, wanted, strict=True):
        close(one, other)


def test_the_layers_are_as_before_afterwards_even_after_an_error():
    model = layer()
    layers = LinearLayers(model)
    with pytest.raises(RuntimeError), layers.multiplied_fast():
        model(rand(5, 7))
    assert "forward" not in vars(model[0])
    with pytest.raises(ValueError), layers.inputs_only():
        raise ValueError
    assert layers.weights_wanted


@pytest.mark.parametrize("x", [rand(6), rand(5, 6).double()])
def test_what_does_not_fit_is_torchs_business(x, monkeypatch):
    model = layer().to(x.dtype)
    monkeypatch.setattr(linears, "product", None)
    with LinearLayers(model).multiplied_fast():
        close(
            model(x), model[0].weight @ x + model[0].bias if x.dim() == 1 else x @ model[0].weight.t() + model[0].bias
        )


def test_autocast_is_torchs_business():
    model = layer()
    with LinearLayers(model).multiplied_fast(), torch.autocast("cpu", torch.bfloat16):
        assert model(rand(5, 6)).dtype == torch.bfloat16


def test_other_classes_and_replaced_methods_are_left_alone():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(Doubled(6, 4), nn.Linear(4, 3))
    model[1].forward = lambda x: x
    x = rand(5, 6)
    wanted = model(x)
    with LinearLayers(model).multiplied_fast():
        assert torch.equal(model(x), wanted)
    assert "forward" in vars(model[1])


@pytest.mark.parametrize("shape", [(5, 6), (3, 2, 6)])
def test_what_follows_may_overwrite_the_output(shape):
    model, x = layer(), rand(*shape).requires_grad_()
    (wanted,) = torch.autograd.grad(torch.nn.functional.elu(model(x)).sum(), x)
    with LinearLayers(model).multiplied_fast():
        out = torch.nn.functional.elu_(model(x))
    (got,) = torch.autograd.grad(out.sum(), x)
    close(got, wanted)
