"""The oracle of private training: one example at a time, by autograd, in float64, written to be read."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from dpaudit.trainers.private import AutomaticClipping, CrossEntropy, GlobalClipping, PerLayerClipping  # noqa: E402


def example_gradients(model, x, y, loss=None):
    """A list with one dict per example: trained parameter's name → gradient of that example's loss."""
    loss = loss or CrossEntropy()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = []
    for i in range(len(y)):
        one = _row(x, i)
        outputs = model(*one) if isinstance(one, tuple) else model(**one) if isinstance(one, dict) else model(one)
        found = torch.autograd.grad(loss(outputs, y[i : i + 1])[0], list(trained.values()), allow_unused=True)
        pairs = zip(trained.items(), found, strict=True)
        rows.append({name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs})
    return rows


def _row(x, i):
    if isinstance(x, tuple):
        return tuple(part[i : i + 1] for part in x)
    if isinstance(x, dict):
        return {name: part[i : i + 1] for name, part in x.items()}
    return x[i : i + 1]


def clip_one(gradient, clipping):
    """One example's clipped gradient, by the formula of each rule."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in gradient))
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
    if isinstance(clipping, GlobalClipping):
        return {n: g * min(1.0, clipping.norm / norm) if norm else g for n, g in gradient.items()}
    if isinstance(clipping, AutomaticClipping):
        return {n: g * clipping.norm / (norm + clipping.stability) for n, g in gradient.items()}
    assert isinstance(clipping, PerLayerClipping)
    limits = clipping.norms or [clipping.norm / math.sqrt(len(layers))] * len(layers)
    out = {}
    for layer, limit in zip(layers, limits, strict=True):
        own = {n: g for n, g in gradient.items() if n.rpartition(".")[0] == layer}
        size = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
        out.update({n: g * min(1.0, limit / size) if size else g for n, g in own.items()})
    return {n: out[n] for n in gradient}


def _double(x):
    if isinstance(x, tuple):
        return tuple(map(_double, x))
    if isinstance(x, dict):
        return {name: _double(part) for name, part in x.items()}
    return x.double() if x.is_floating_point() else x


def slow_sum(model, x, y, clipping, loss=None):
    """The clipped sum, flat and float64."""
    exact = copy.deepcopy(model).double()
    rows = [clip_one(g, clipping) for g in example_gradients(exact, _double(x), _double(y), loss)]
    names = [name for name, p in exact.named_parameters() if p.requires_grad]
    return torch.cat([sum((row[n] for row in rows), torch.zeros_like(rows[0][n])).flatten() for n in names])


def relative(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


@pytest.fixture(scope="session")
def oracle():
    return slow_sum


@pytest.fixture(scope="session")
def distance():
    return relative


@pytest.fixture(scope="session")
def gradients():
    return example_gradients
