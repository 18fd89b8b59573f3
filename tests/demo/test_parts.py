"""The parts that need no training: the class, the noise, the first step."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpaudit.accounting import Claim
from dpaudit.demo.classroom import CLUBS, HOBBIES, KNITTING, STUDENTS, make_class, ordinary_row
from dpaudit.demo.levels import find_noise
from dpaudit.demo.mechanism import arrows, first_gradients, first_step, hobby_radius
from dpaudit.errors import InputError


def typical_by_hand(x: np.ndarray, y: np.ndarray, knitter: int) -> int:
    """The rule again, one student at a time."""
    best, at = float("inf"), -1
    for i in range(len(x)):
        club = [x[j].astype(float) for j in range(len(x)) if y[j] == y[i] and j != knitter]
        distance = float(np.linalg.norm(x[i] - sum(club) / len(club)))
        if i != knitter and distance < best:
            best, at = distance, i
    return at


class TestClass:
    def test_one_student_knits_and_does_nothing_else(self) -> None:
        room = make_class(5)
        row = room.knitter.row
        assert np.flatnonzero(room.data.x[:, KNITTING]).tolist() == [row]
        assert np.flatnonzero(room.data.x[row]).tolist() == [KNITTING]
        assert not room.data.x_test[:, KNITTING].any()  # type: ignore[index]
        norms = np.linalg.norm(room.data.x, axis=1)
        assert norms.argmax() == row

    def test_shape_and_constants(self) -> None:
        data = make_class(5).data
        assert data.x.shape == (STUDENTS, len(HOBBIES)) and data.nominal_size == STUDENTS
        assert np.bincount(np.delete(data.y, STUDENTS - 1), minlength=len(CLUBS)).tolist() == [20, 20, 19]
        assert (data.x >= 0).all()

    @pytest.mark.parametrize("seed", [0, 1, 2, 3])
    def test_the_ordinary_student_is_the_most_typical_of_a_club(self, seed: int) -> None:
        room = make_class(seed)
        assert room.ordinary.row == typical_by_hand(room.data.x, room.data.y, room.knitter.row)
        assert room.ordinary.row != room.knitter.row

    def test_the_ordinary_student_is_named_without_training_anything(self) -> None:
        code = (
            "import json, sys; from dpaudit.demo.classroom import make_class; room = make_class(1); "
            "print(json.dumps([room.ordinary.row, sorted(sys.modules)]))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        row, modules = json.loads(done.stdout)
        assert row == make_class(1).ordinary.row and "torch" not in modules

    def test_seeds_make_different_classes(self) -> None:
        one, same, other = make_class(1), make_class(1), make_class(2)
        assert np.array_equal(one.data.x, same.data.x) and not np.array_equal(one.data.x, other.data.x)

    def test_ties_go_to_the_first(self) -> None:
        assert ordinary_row(np.array([[0.0], [2.0], [9.0]]), np.array([0, 0, 0]), 2) == 0


class TestNoise:
    @pytest.mark.parametrize(("target", "rate", "steps"), [(1.0, 0.1, 60), (3.0, 0.1, 60), (0.5, 1.0, 10)])
    def test_is_on_the_private_side_and_hardly_more_than_needed(self, target: float, rate: float, steps: int) -> None:
        noise = find_noise(target, sampling_rate=rate, steps=steps, delta=1e-5)

        def epsilon(at: float) -> float:
            return Claim.dp_sgd(noise_multiplier=at, sampling_rate=rate, steps=steps).epsilon(1e-5)

        assert epsilon(noise) <= target < epsilon(0.995 * noise)

    @pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
    def test_refuses_what_is_no_target(self, target: float) -> None:
        with pytest.raises(InputError, match="target"):
            find_noise(target, sampling_rate=0.1, steps=10, delta=1e-5)

    def test_refuses_a_target_beyond_reach(self) -> None:
        with pytest.raises(InputError, match="target"):
            find_noise(1e-5, sampling_rate=1.0, steps=1, delta=1e-9)


class TestFirstStep:
    def test_gradients_are_those_of_autograd(self) -> None:
        data = make_class(4).data
        found = first_gradients(data.x, data.y, data.classes)
        for i in range(0, STUDENTS, 7):
            weights = torch.zeros((data.features + 1, data.classes), dtype=torch.float64, requires_grad=True)
            inputs = torch.cat([torch.tensor(data.x[i], dtype=torch.float64), torch.ones(1, dtype=torch.float64)])
            torch.nn.functional.cross_entropy(inputs @ weights, torch.tensor(int(data.y[i]))).backward()
            assert weights.grad is not None
            np.testing.assert_allclose(found[i], weights.grad.numpy(), atol=1e-12)

    def test_clipping_shortens_what_is_past_the_line_and_nothing_else(self) -> None:
        step = first_step(make_class(4).data, 1.0)
        np.testing.assert_allclose(step.clipped_norms, np.minimum(step.norms, 1.0))
        np.testing.assert_allclose(np.linalg.norm(step.raw, axis=1), step.norms)
        np.testing.assert_allclose(np.linalg.norm(step.clipped, axis=1), step.clipped_norms)

    def test_the_circle_on_the_hobby_map_is_the_red_line(self) -> None:
        data = make_class(4).data
        radius = hobby_radius(1.0, data.classes)
        assert radius is not None
        scaled = data.x / np.linalg.norm(data.x, axis=1, keepdims=True) * radius
        norms = np.sqrt(np.square(first_gradients(scaled, data.y, data.classes)).sum(axis=(1, 2)))
        np.testing.assert_allclose(norms, 1.0, rtol=1e-6)

    def test_an_arrow_of_no_hobby_has_no_length(self) -> None:
        assert np.array_equal(arrows(np.zeros((1, len(HOBBIES))), np.zeros(1)), np.zeros((1, 2)))
