"""Clipping is refused where torch rounds the factors of float32 products."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dpaudit.errors import InputError  # noqa: E402
from dpaudit.records import Data  # noqa: E402
from dpaudit.trainers import DPSGD, SGD  # noqa: E402
from dpaudit.trainers.private import ClippedSums, GlobalClipping  # noqa: E402

DATA = Data(np.eye(4), [0, 1, 0, 1], 2)
MEMBER = [True] * 4


@pytest.fixture(params=["high", "medium"])
def rounding(request):
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision("highest")


def test_stacks_and_steps_refuse_to_clip(rounding):
    with pytest.raises(InputError, match=r"must not be rounded to (tf32|bf16)"):
        DPSGD(steps=2, sampling_rate=0.5).train(DATA, MEMBER, 0)
    sums = ClippedSums(torch.nn.Linear(4, 2), GlobalClipping(norm=1.0))
    with pytest.raises(InputError, match="set_float32_matmul_precision"):
        sums.sum(torch.ones(2, 4), torch.tensor([0, 1]))


def test_without_clipping_it_is_the_users_choice(rounding):
    SGD(steps=2, sampling_rate=0.5).train(DATA, MEMBER, 0)


def test_all_is_well_by_default():
    sums = ClippedSums(torch.nn.Linear(4, 2), GlobalClipping(norm=1.0))
    assert float(sums.sum(torch.ones(1, 4), torch.tensor([0])).norm()) <= 1 + 1e-6
