"""What is refused, and that it is refused for what it does and not only for its name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpaudit.errors import InputError  # noqa: E402
from dpaudit.trainers import architectures  # noqa: E402
from dpaudit.trainers.private import ClippedSums, CrossEntropy, GlobalClipping, check_independence  # noqa: E402

CLIPPING = GlobalClipping(norm=1.0)


def inputs(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def labels(size=6):
    return torch.arange(size) % 3


NORMS = {
    "BatchNorm1d": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    "BatchNorm2d": lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, affine=False)),
    "SyncBatchNorm": lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.SyncBatchNorm(3)),
    "BatchNorm1d without statistics": lambda: nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)
    ).eval(),
}


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_is_refused_with_the_reason_and_a_way_out(name):
    with pytest.raises(InputError, match=rf"{name.split()[0]} \(1\) divides each example by statistics .*GroupNorm"):
        ClippedSums(NORMS[name](), CLIPPING)


def test_batch_norm_in_eval_mode_may_stay_until_it_is_trained():
    model = NORMS["BatchNorm1d"]().eval().requires_grad_(False)
    model[0].requires_grad_(True)
    sums = ClippedSums(model, CLIPPING)
    statistics = model[1].running_mean.clone()
    assert sums.sum(inputs(6, 4), labels()).any() and torch.equal(model[1].running_mean, statistics)
    model.train()
    with pytest.raises(InputError, match="BatchNorm1d"):
        sums.sum(inputs(6, 4), labels())


def test_statistics_that_are_kept_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, track_running_stats=True))
    with pytest.raises(InputError, match="keeps running statistics of all examples"):
        ClippedSums(model, CLIPPING)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"max_norm": 1.0}, "max_norm"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        ({"sparse": True}, "sparse"),
    ],
)
def test_embeddings_that_look_at_other_examples_are_refused(option, reason):
    with pytest.raises(InputError, match=reason):
        ClippedSums(nn.Sequential(nn.Embedding(5, 4, **option), nn.Flatten(), nn.Linear(8, 3)), CLIPPING)


class Centred(nn.Module):
    """Takes the mean of the batch away."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 3)

    def forward(self, x):
        y = self.inside(x)
        return y - y.mean(0)


class Shuffled(nn.Module):
    """Adds to each example a little of its neighbour."""

    def __init__(self):
        super().__init__()
        self.inside, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = self.inside(x)
        return self.scale * (y + 0.01 * y.roll(1, 0))


class Largest(nn.Module):
    """Divides by the largest entry of the batch."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 3)

    def forward(self, x):
        return self.inside(x / x.abs().max())


@pytest.mark.parametrize("kind", [Centred, Shuffled, Largest])
@pytest.mark.filterwarnings("ignore::dpaudit.trainers.private.SlowGradients")
def test_examples_that_mix_are_found_out(kind):
    x = inputs(6, 4)
    with pytest.raises(InputError, match="examples are mixed"):
        check_independence(kind(), x)
    sums = ClippedSums(kind(), CLIPPING)
    with pytest.raises(InputError, match="examples are mixed"):
        sums.sum(x, labels())


@pytest.mark.filterwarnings("ignore::dpaudit.trainers.private.SlowGradients")
def test_they_are_found_out_at_the_first_batch_that_can_show_it():
    sums = ClippedSums(Centred(), CLIPPING)
    sums.sum(inputs(1, 4), labels(1))
    with pytest.raises(InputError, match="examples are mixed"):
        sums.sum(inputs(2, 4), labels(2))


def test_a_loss_that_mixes_is_found_out():
    def contrast(outputs, targets):
        return CrossEntropy()(outputs, targets) - torch.log_softmax(outputs[:, 0], 0)

    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(InputError, match="examples are mixed"):
        ClippedSums(model, CLIPPING, contrast).sum(inputs(6, 4), labels())
    by_hand = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(InputError, match="examples are mixed"):
        ClippedSums(by_hand, CLIPPING, contrast).sum(inputs(6, 4), labels())


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.LayerNorm(8)), inputs(6, 4)),
        (nn.GroupNorm(2, 4), inputs(6, 4, 3)),
        (nn.InstanceNorm1d(4), inputs(6, 4, 3)),
        (nn.BatchNorm1d(4).eval(), inputs(6, 4)),
        (architectures.cnn(torch.Generator().manual_seed(0)), inputs(2, 1, 28, 28)),
        (architectures.transformer(9, 5, 3, torch.Generator().manual_seed(0)), torch.arange(20).view(4, 5) % 9),
    ],
)
def test_examples_that_do_not_mix_pass_and_leave_no_trace(model, x):
    torch.manual_seed(1)
    wanted = float(torch.rand(1))
    torch.manual_seed(1)
    check_independence(model, x)
    assert float(torch.rand(1)) == wanted


def test_buffers_are_put_back():
    model = nn.BatchNorm1d(4)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(InputError, match="examples are mixed"):
        check_independence(model, inputs(6, 4))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_one_example_cannot_show_it():
    with pytest.raises(InputError, match="at least two examples"):
        check_independence(nn.Linear(4, 3), inputs(1, 4))


def test_models_without_anything_to_train_are_refused():
    with pytest.raises(InputError, match="must have a parameter that is trained"):
        ClippedSums(nn.Linear(4, 3).requires_grad_(False), CLIPPING)
    with pytest.raises(InputError, match="run the model once before"):
        ClippedSums(nn.LazyLinear(3), CLIPPING)
    with pytest.raises(InputError, match="one type and one device"):
        ClippedSums(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double()), CLIPPING)


@pytest.mark.parametrize("x", [None, [inputs(3, 4)], (), torch.tensor(3.0)], ids=["none", "list", "empty", "number"])
def test_batches_of_other_kinds_are_refused(x):
    with pytest.raises(InputError, match="x must be a tensor"):
        ClippedSums(nn.Linear(4, 3), CLIPPING).sum(x, labels(3))


@pytest.mark.filterwarnings("ignore::dpaudit.trainers.private.SlowGradients")
def test_a_batch_that_says_nothing_settles_nothing(oracle, distance):
    """NaN alone cannot show whether book-keeping is right; the first batch of numbers does."""

    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.inside(x))) + nn.functional.linear(x, self.inside.weight[:3])

    model, x = Behind(), inputs(6, 4)
    sums = ClippedSums(model, CLIPPING)
    assert not sums.sum(x * torch.nan, labels()).any()
    assert distance(sums.sum(x, labels()), oracle(model, x, labels(), CLIPPING)) < 1e-5


class BehindItsBack(nn.Module):
    """A weight is used by its module, and once more: book-keeping would see one use."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) + x @ self.first.weight)


def test_a_batch_of_zero_gradients_settles_nothing(oracle, distance):
    """No label counts: all ways agree on zeros, wrong ones too."""
    torch.manual_seed(0)
    model, x = BehindItsBack(), inputs(6, 4)
    sums = ClippedSums(model, GlobalClipping(norm=0.1))
    assert not sums.sum(x, torch.full((6,), -100)).any()
    with pytest.warns(UserWarning, match="written out"):
        got = sums.sum(x, labels())
    assert distance(got, oracle(model, x, labels(), GlobalClipping(norm=0.1))) < 1e-5
