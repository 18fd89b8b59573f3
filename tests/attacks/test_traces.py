"""Scores from loss traces, and traces from the iterates of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpaudit.attacks.metrics import auc
from dpaudit.attacks.signals import cross_entropy
from dpaudit.attacks.traces import STATISTICS, _put_back, loss_traces, traces_of
from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, Convolution, ConvolutionalNet, train_many
from dpaudit.trainers.models import CheckedModel


def falling(seed: int = 0, records: int = 7, checkpoints: int = 9):
    return np.random.default_rng(seed).gamma(1.0, 2.0, (checkpoints, records))


def plain(trace, statistic):
    """One record's score, from its list of losses."""
    ordered = sorted(trace)

    def quantile(q):
        place = q * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    mean = sum(trace) / len(trace)
    match statistic:
        case "iqr":
            return quantile(0.75) - quantile(0.25)
        case "signed-iqr":
            return plain(trace, "iqr") * (-1 if plain(trace, "slope") < 0 else 1)
        case "deviation":
            return (sum((loss - mean) ** 2 for loss in trace) / len(trace)) ** 0.5
        case "slope":
            return -np.polyfit(np.arange(len(trace)), trace, 1)[0]
        case "mean":
            return -mean
        case "last":
            return -trace[-1]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_are_the_plain_ones(statistic):
    traces = falling()
    expected = [plain(list(traces[:, j]), statistic) for j in range(traces.shape[1])]
    assert loss_traces(traces, statistic) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_many_runs_at_once_and_no_array_changed(statistic, monkeypatch):
    monkeypatch.setattr("dpaudit.attacks.traces._NUMBERS", 40)  # several parts
    traces = np.stack([falling(seed) for seed in range(3)]).astype(np.float32)
    traces.setflags(write=False)
    found = loss_traces(traces, statistic)
    assert found.dtype == np.float64 and found.shape == (3, 7)
    for row, trace in zip(found, traces, strict=True):
        assert row.tolist() == pytest.approx(loss_traces(trace, statistic).tolist(), rel=1e-13)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_order_of_rows_is_of_no_account(statistic):
    traces, order = falling(), np.random.default_rng(1).permutation(7)
    assert loss_traces(traces[:, order], statistic).tolist() == loss_traces(traces, statistic)[order].tolist()


@pytest.mark.parametrize("statistic", STATISTICS)
def test_equal_traces_tie(statistic):
    assert len(set(loss_traces(np.tile(falling()[:, :1], (1, 50)), statistic).tolist())) == 1


def test_other_quantiles():
    assert loss_traces([[4.0], [0.0], [2.0]], quantiles=(0.0, 1.0)).tolist() == [4.0]


@pytest.mark.parametrize(
    ("traces", "arguments", "words"),
    [
        ([[1.0, 2.0]], {}, "at least 2 checkpoints"),
        ([1.0, 2.0], {"statistic": "last"}, "checkpoints, records"),
        ([[1.0], [np.nan]], {}, "finite, got NaN or infinity in 1 of 2"),
        ([[1.0], [np.inf]], {}, "finite"),
        ([["a"], ["b"]], {}, "numbers"),
        ([[1.0], [2.0]], {"statistic": "median"}, "statistic must be one of signed-iqr"),
        ([[1.0], [2.0]], {"quantiles": (0.75, 0.25)}, "rising order"),
        ([[1.0], [2.0]], {"quantiles": (0.0, 1.5)}, r"high quantile must be in \[0, 1\]"),
        ([[1.0], [2.0]], {"quantiles": 0.5}, "two numbers"),
    ],
)
def test_what_is_refused(traces, arguments, words):
    with pytest.raises(InputError, match=words):
        loss_traces(traces, **arguments)


def blobs(records: int = 60, classes: int = 3, features: int = 16) -> Data:
    rng = np.random.default_rng(5)
    y = rng.integers(classes, size=records)
    return Data(rng.normal(size=(records, features)) + y[:, None], y, classes, nominal_size=records)


def trained(trainer, data: Data, models: int = 1):
    member = np.random.default_rng(9).random((models, len(data))) < 0.5
    return train_many(trainer, data, member, 3, keep_iterates=True), member


def deep(features, classes, generator, frozen=False):
    """A module whose parameters are shared and partly frozen."""
    torch = pytest.importorskip("torch")
    from dpaudit.trainers.architectures import mlp

    module = mlp(features, [5], classes, generator)
    module.register_parameter("fixed", torch.nn.Parameter(torch.ones(3), requires_grad=False))
    return module


TRAINERS = {
    "dense": SGD(steps=6, hidden=(5,)),
    "private": DPSGD(steps=6, hidden=(5,), noise_multiplier=1.0, sampling_rate=0.5),
    "images": SGD(steps=6, model=ConvolutionalNet((4, 4, 1), [Convolution(2, 3)])),
    "momentum": SGD(steps=6, hidden=(5,), optimizer="momentum"),
    "factory": SGD(steps=6, model=deep),
}


@pytest.fixture(params=list(TRAINERS))
def run(request):
    data = replace(blobs(), shape=(4, 4))
    return train_many(TRAINERS[request.param], data, coins(1, data), 3, keep_iterates=True)[0], data


def coins(models: int, data: Data):
    return np.random.default_rng(9).random((models, len(data))) < 0.5


def test_traces_are_the_losses_at_the_iterates(run):
    model, data = run
    traces, iterates = traces_of(model, data), model.iterates()
    assert traces.shape == (6, len(data))
    assert traces[-1] == pytest.approx(cross_entropy(model.logits(data.x), data.y), rel=1e-5, abs=1e-6)
    assert traces[0] != pytest.approx(traces[-1], rel=1e-3)
    third = _put_back(model, iterates[2])
    assert third.parameters().tolist() == iterates[2].tolist()
    assert traces[2].tolist() == cross_entropy(third.logits(data.x), data.y).tolist()
    assert model.parameters().tolist() == iterates[-1].tolist(), "the model itself stays"


def test_checkpoints_are_evenly_spaced_and_end_with_the_last(run):
    model, data = run
    whole = traces_of(model, data)
    assert traces_of(model, data, 1).tolist() == whole[[5]].tolist()
    assert traces_of(model, data, 2).tolist() == whole[[0, 5]].tolist()
    assert traces_of(model, data, 6).tolist() == whole.tolist()
    assert traces_of(CheckedModel(model, "somebody", 3), data, 2).tolist() == whole[[0, 5]].tolist()


def test_models_without_iterates_are_refused():
    data = blobs()
    model = train_many(SGD(steps=2), data, coins(1, data), 0)[0]
    with pytest.raises(InputError, match="keep_iterates=True"):
        traces_of(model, data)
    with pytest.raises(InputError, match="checkpoints must be a whole number"):
        traces_of(model, data, 0)


def test_foreign_models_and_diverged_runs_are_refused():
    data = blobs()
    model = train_many(SGD(steps=2), data, coins(1, data), 0, keep_iterates=True)[0]

    class Foreign:
        logits, parameters, iterates = model.logits, model.parameters, model.iterates

    with pytest.raises(InputError, match="got Foreign"):
        traces_of(Foreign(), data)
    with pytest.raises(InputError, match="diverge"):
        traces_of(replace(model, released=np.full_like(model.released, np.nan)), data)


def test_members_of_a_model_that_learns_by_heart_score_higher():
    """60 random labels, half of them learnt; the losses of the others rise, which only quantiles without sign hide."""
    rng = np.random.default_rng(4)
    data = Data(rng.normal(size=(60, 40)), rng.integers(3, size=60), 3, nominal_size=30)
    member = coins(1, data)
    model = train_many(SGD(steps=100, sampling_rate=0.5), data, member, 1, keep_iterates=True)[0]
    found = {name: auc(loss_traces(traces_of(model, data), name), member[0]) for name in STATISTICS}
    assert found["mean"] > 0.8 and found["last"] > 0.8
    assert found["slope"] > 0.6 and found["signed-iqr"] > 0.6
    assert found["iqr"] < 0.5


@pytest.mark.parametrize("statistic", ["signed-iqr", "iqr", "deviation", "slope"])
def test_among_members_those_learnt_by_heart_come_first(statistic):
    """Twenty of 220 members have a wrong label, which the model learns all the same, but late."""
    rng = np.random.default_rng(4)
    odd, kinds = np.arange(220) < 20, np.arange(220) % 3
    x = rng.normal(size=(220, 60)) + 4 * np.eye(3, 60)[kinds]
    data = Data(x, np.where(odd, (kinds + 1) % 3, kinds), 3)
    trainer = SGD(steps=300, hidden=(32,), learning_rate=0.2)
    model = train_many(trainer, data, np.ones((1, 220), bool), 1, keep_iterates=True)[0]
    assert auc(loss_traces(traces_of(model, data), statistic), odd) > 0.95
