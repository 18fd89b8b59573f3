"""Attention over short sequences: what torch's function gives, from the same arguments."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import ClippedSums, GlobalClipping, attention  # noqa: E402
from dpaudit.trainers.private.attention import Attention  # noqa: E402


def inputs(*shape, of_values=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [shape, shape, (*shape[:3], of_values or shape[3])]
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


def both(arguments, options, slope=None):
    """Output and derivatives by torch and here; whether it was done here."""
    found = []
    for faster in (False, True):
        with Attention(faster) as mode:
            out = scaled_dot_product_attention(*arguments, **options)
        assert mode.seen
        slope = torch.cos(torch.arange(out.numel())).view_as(out) if slope is None else slope
        found.append([out, *torch.autograd.grad(out, arguments, slope)])
    return *found, type(out.grad_fn).__name__ == "_AttentionBackward"


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"dropout_p": 0.0, "attn_mask": None}])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 1, 1, 2), (3, 2, 128, 8), (4, 1, 7, 1)])
def test_values_and_derivatives_are_torchs(shape, options):
    wanted, got, here = both(inputs(*shape), options)
    assert here
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_values_of_another_width():
    wanted, got, here = both(inputs(2, 3, 5, 4, of_values=6), {})
    assert here
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_inputs_and_slopes_that_lie_otherwise_in_memory():
    flat = torch.randn((2, 5, 3 * 12), generator=torch.Generator().manual_seed(1))
    parts = [part.unflatten(2, (3, 4)).transpose(1, 2).requires_grad_() for part in flat.chunk(3, 2)]
    slope = torch.randn((2, 5, 3, 4), generator=torch.Generator().manual_seed(2)).transpose(1, 2)
    wanted, got, here = both(parts, {}, slope)
    assert here
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (inputs(1, 1, 129, 2), {}),
        (inputs(1, 2, 5, 4), {"attn_mask": torch.zeros(5, 5)}),
        ([x.detach().double().requires_grad_() for x in inputs(1, 2, 5, 4)], {}),
        ([inputs(1, 2, 3, 4)[0], *inputs(1, 2, 5, 4)[1:]], {}),
        ([x[0].detach().requires_grad_() for x in inputs(1, 2, 5, 4)], {}),
        ([inputs(1, 4, 5, 4)[0], *inputs(1, 2, 5, 4)[1:]], {"enable_gqa": True}),
    ],
    ids=["long", "mask", "double", "two lengths", "three dimensions", "grouped"],
)
def test_all_else_is_torchs_business(arguments, options):
    wanted, got, here = both(arguments, options)
    assert not here
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_dropout_is_torchs_business():
    with Attention(True), torch.random.fork_rng():
        out = scaled_dot_product_attention(*inputs(1, 1, 50, 4), dropout_p=0.5)
    assert type(out.grad_fn).__name__ != "_AttentionBackward"


def test_what_is_wrong_in_one_example_stays_there():
    arguments = inputs(3, 2, 5, 4)
    with torch.no_grad():
        arguments[0][1, 0, 2, 3] = float("nan")
    with Attention(True):
        out = scaled_dot_product_attention(*arguments)
    found = [out, *torch.autograd.grad(out.sum(), arguments)]
    for values in found:
        assert torch.isfinite(values[[0, 2]]).all()
    assert torch.isnan(out[1, 0, 2]).all()


def test_second_derivatives_are_refused_not_wrong():
    arguments = inputs(1, 1, 3, 2)
    with Attention(True):
        out = scaled_dot_product_attention(*arguments)
    (slope,) = torch.autograd.grad(out.sum(), arguments[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(slope.square().sum(), arguments[1])


def test_a_model_that_attends_is_noticed_and_another_is_not(monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "_is_short", lambda *_: calls.append(1) or False)
    generator = torch.Generator().manual_seed(0)
    sums = ClippedSums(architectures.transformer(9, 5, 3, generator, width=8), GlobalClipping(norm=1.0))
    sums.sum(torch.arange(20).view(4, 5) % 9, torch.tensor([0, 1, 2, 0]))
    assert len(calls) == 4  # one for each block, when the fast way is tried and when it is used
    plain = ClippedSums(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)),
                        GlobalClipping(norm=1.0))  # fmt: skip
    plain.sum(torch.ones(3, 4), torch.tensor([0, 1, 0]))
    assert not plain._gradients._attends and sums._gradients._attends


def test_what_follows_may_overwrite_the_output():
    arguments = inputs(2, 3, 5, 4)
    wanted = torch.autograd.grad(torch.nn.functional.elu(scaled_dot_product_attention(*arguments)).sum(), arguments)
    with Attention(True):
        out = torch.nn.functional.elu_(scaled_dot_product_attention(*arguments))
    for one, other in zip(torch.autograd.grad(out.sum(), arguments), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
