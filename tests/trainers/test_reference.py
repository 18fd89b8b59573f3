"""The reference against hand calculation and autograd, and the engine against the reference."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, reference, train_many
from dpaudit.trainers.noise import NoiseSource

ROOT = Path(__file__).parents[2]
RECORDS, FEATURES, CLASSES = 40, 6, 4


def some_data(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, FEATURES)) * scale
    return Data(x, rng.integers(0, CLASSES, RECORDS), CLASSES)


def some_members(seed=1):
    return np.random.default_rng(seed).random(RECORDS) < 0.6


# ---- the reference itself -------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    """From zeros all classes have the probability 1/2, so the gradient of a record is ±(x, 1)/2."""
    data = Data([[3.0, 0.0], [0.0, 0.5]], [0, 1], 2)
    settings = DPSGD(steps=1, sampling_rate=1, learning_rate=2, clip_norm=1, noise_multiplier=0, expected_batch_size=4)
    first = np.outer([3, 0, 1], [-1, 1]) / 2  # of length √5, so it is cut to 1
    second = np.outer([0, 0.5, 1], [1, -1]) / 2  # of length √(5/8), which is below 1
    wanted = -2 / 4 * (first / math.sqrt(5) + second)
    np.testing.assert_allclose(reference.dp_sgd(settings, data, np.ones(2, bool), 0), wanted, rtol=1e-14)
    plain = SGD(steps=1, sampling_rate=1, learning_rate=2, expected_batch_size=4)
    np.testing.assert_allclose(reference.sgd(plain, data, np.ones(2, bool), 0), -0.5 * (first + second), rtol=1e-14)


def test_gradients_equal_autograd():
    torch = pytest.importorskip("torch")
    data, theta = some_data(), np.random.default_rng(2).normal(size=(FEATURES + 1, CLASSES))
    for i in range(RECORDS):
        leaf = torch.tensor(theta, requires_grad=True)
        logits = torch.tensor(data.x[i].astype(float)) @ leaf[:-1] + leaf[-1]
        torch.nn.functional.cross_entropy(logits[None], torch.tensor(data.y[i : i + 1])).backward()
        np.testing.assert_allclose(reference._gradient(theta, data, i), leaf.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_noise_alone_is_that_of_the_stated_deviation():
    settings = DPSGD(steps=3, sampling_rate=0.5, learning_rate=0.2, clip_norm=0.7, noise_multiplier=1.9)
    data = some_data()
    noise = NoiseSource([9])
    total = sum(noise.step((FEATURES + 1) * CLASSES).astype(float) for _ in range(3)).reshape(CLASSES, FEATURES + 1)
    wanted = -0.2 * 1.9 * 0.7 * total.T / (0.5 * RECORDS)  # class by class, as a stack's layers lie in memory
    np.testing.assert_allclose(reference.dp_sgd(settings, data, np.zeros(RECORDS, bool), 9), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    "changes", [{"hidden": [3]}, {"clipping": "automatic"}, {"optimizer": "adam"}, {"secure_noise": True}]
)
def test_it_is_for_softmax_regression_with_plain_steps(changes):
    with pytest.raises(InputError, match="softmax regression with plain steps"):
        reference.dp_sgd(DPSGD(**changes), some_data(), some_members(), 0)
    if changes.keys() & {"hidden", "optimizer"}:
        with pytest.raises(InputError, match="softmax regression with plain steps"):
            reference.sgd(SGD(**changes), some_data(), some_members(), 0)


def test_it_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from dpaudit.records import Data\n"
        "from dpaudit.trainers import DPSGD, reference\n"
        "print(reference.dp_sgd(DPSGD(), Data(np.eye(2), [0, 1], 2), np.ones(2, bool), 0).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(3, 2)", done.stderr


# ---- the engine against it ------------------------------------------------------------------------------------------

CASES = {
    "clipped": DPSGD(noise_multiplier=0, clip_norm=0.5),
    "hardly clipped": DPSGD(noise_multiplier=0, clip_norm=3.0),
    "noise": DPSGD(noise_multiplier=1.3, clip_norm=0.5),
    "much noise": DPSGD(noise_multiplier=20.0, clip_norm=2.0),
    "many empty batches": DPSGD(noise_multiplier=1.0, sampling_rate=0.01),
    "everybody": DPSGD(noise_multiplier=1.0, sampling_rate=1.0),
    "fixed size": DPSGD(noise_multiplier=1.0, sampler="fixed-size", sampling_rate=0.1),
    "shuffled": DPSGD(noise_multiplier=1.0, sampler="shuffled", sampling_rate=0.1),
    "another divisor": DPSGD(noise_multiplier=1.0, expected_batch_size=3.5),
}


def arrived(settings, data, member, seed):
    pytest.importorskip("torch")
    return settings.train(data, member, seed).layers[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 12345678901234567])
def test_private_training_arrives_where_the_reference_does(name, seed):
    data, member = some_data(), some_members()
    wanted = reference.dp_sgd(CASES[name], data, member, seed)
    np.testing.assert_allclose(arrived(CASES[name], data, member, seed), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_plain_training_arrives_where_the_reference_does(rate):
    settings, data, member = SGD(sampling_rate=rate, steps=200), some_data(), some_members()
    wanted = reference.sgd(settings, data, member, 3)
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(arrived(settings, data, member, 3), wanted, rtol=2e-5, atol=2e-5)


def test_records_whose_gradient_is_not_finite_are_left_out_by_both():
    data = some_data()
    x = data.x.copy()
    x[::5] = 3e30  # squares overflow single precision
    huge = Data(x, data.y, CLASSES)
    member = np.ones(RECORDS, bool)
    settings = DPSGD(noise_multiplier=1.0, sampling_rate=0.3)
    wanted = reference.dp_sgd(settings, huge, member, 4)
    np.testing.assert_allclose(arrived(settings, huge, member, 4), wanted, rtol=2e-5, atol=2e-5)
    kept = np.arange(RECORDS) % 5 > 0  # coins are flipped for all records, members or not
    np.testing.assert_array_equal(reference.dp_sgd(settings, huge, kept, 4), wanted)


def test_every_model_of_a_stack_arrives_where_the_reference_does():
    pytest.importorskip("torch")
    data, settings = some_data(), DPSGD(noise_multiplier=0.8, steps=60)
    member = np.random.default_rng(5).random((5, RECORDS)) < 0.5
    stack = train_many(settings, data, member, [1, 2, 3, 4, 5], chunk=3)
    for k, model in enumerate(stack):
        wanted = reference.dp_sgd(settings, data, member[k], k + 1)
        np.testing.assert_allclose(model.layers[0], wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "changes", [{"clip_norm": 0.505}, {"noise_multiplier": 1.32}, {"sampling_rate": 0.052}, {"learning_rate": 0.505}]
)
def test_the_same_check_catches_settings_that_are_a_little_off(changes):
    data, member = some_data(), some_members()
    other = DPSGD(**{"noise_multiplier": 1.3, "clip_norm": 0.5, **changes})
    assert np.abs(arrived(CASES["noise"], data, member, 0) - reference.dp_sgd(other, data, member, 0)).max() > 1e-3
