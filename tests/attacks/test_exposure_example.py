"""The example of exposure: repeated secrets are learnt without privacy, and single ones are not with it."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest

from dpaudit.attacks.exposure import PoorFit

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "exposure.py"
    spec = importlib.util.spec_from_file_location("exposure_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_exposure_rises_with_repetitions_without_privacy_and_single_secrets_are_hidden_with_it(example):
    """Exposure of an unknown secret is 1.44 on average, with a deviation of 1.44: of five, above 4 with p < 0.001."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoorFit)
        plain, private = example.measure(0.0), example.measure(example.NOISE)
    bare, kept = ({r: float(np.mean(e)) for r, e in o.interpolated.items()} for o in (plain, private))
    assert bare[0] < 4 and kept[0] < 4 and kept[1] < 4
    assert bare[1] < bare[4] and bare[4] > 8 and bare[16] > 9
    assert bare[1] > kept[1] + 1 and bare[4] > kept[4] + 3
    assert np.mean(plain.extrapolated[16]) > 9
    assert plain.bits < 11 and private.bits < 14, "both write notes"
