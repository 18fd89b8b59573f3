"""The records: what they accept, what they refuse in one clear line, and their views."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

from dpaudit import Design, Observations, Verdict
from dpaudit.errors import InputError
from dpaudit.records import (
    Accuracy,
    Audit,
    Data,
    HalfSplitWarning,
    PlannedTest,
    RunResult,
    TrainerAudit,
)

SCORES, MEMBER = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), np.array([[1, 0, 0], [0, 1, 0]], bool)


def test_one_dimension_is_one_run():
    obs = Observations([1.0, 2.0, 3.0], [True, False, True])
    assert obs.shape == (1, 3) and obs.coins == 3


@pytest.mark.parametrize("member", [[1, 0], [True, False], [1.0, 0.0], np.array([1, 0], np.uint8)])
def test_membership_in_any_spelling(member):
    assert Observations([1, 0], member).member.tolist() == [[True, False]]


def test_arrays_are_private_read_only_copies():
    scores, member = SCORES.copy(), MEMBER.copy()
    obs = Observations(scores, member)
    scores[0, 0] = 9.0
    assert obs.scores[0, 0] == 0.1
    for array in (obs.scores, obs.member, obs.present):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        obs.design = Design()


def test_names_are_numbers_unless_given():
    obs = Observations(SCORES, MEMBER, canaries=("a", "b", "c"))
    assert obs.runs == ("0", "1") and obs.canaries == ("a", "b", "c")


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"scores": [["x"]]}, "scores must be numbers"),
        ({"scores": []}, "scores must be a non-empty array"),
        ({"scores": np.zeros((2, 2, 2))}, "scores must be a non-empty array"),
        ({"scores": [[1.0, 2.0], [3.0]]}, "scores must be numbers"),
        ({"scores": np.where(MEMBER, np.nan, SCORES)}, "scores must be finite, got NaN or infinity in 2 of 6"),
        ({"scores": np.where(MEMBER, np.inf, SCORES)}, "scores must be finite"),
        ({"member": MEMBER[:1]}, "member must have the shape of scores"),
        ({"member": MEMBER + 1}, "member must be true or false"),
        ({"member": MEMBER * 0.5}, "member must be true or false"),
        ({"member": np.full((2, 3), "yes")}, "member must be true or false"),
        ({"member": np.full((2, 3), np.nan)}, "member must be true or false"),
        ({"member": MEMBER | True}, "both members and non-members, got all members"),
        ({"member": MEMBER & False}, "both members and non-members, got no member"),
        ({"present": np.zeros((2, 3), bool)}, "got no scored pair"),
        ({"present": ~MEMBER}, "got no member"),
        ({"present": MEMBER[:, :2]}, "present must have the shape"),
        ({"runs": ("a", "a")}, "runs must be 2 different names"),
        ({"canaries": ("a", "b")}, "canaries must be 3 different names"),
        ({"design": "fair"}, "design must be a Design"),
    ],
)
def test_bad_observations(arguments, message):
    with pytest.raises(InputError, match=message):
        Observations(**{"scores": SCORES, "member": MEMBER, **arguments})


def test_what_was_never_scored_may_be_anything():
    present = np.array([[1, 1, 1], [1, 1, 0]], bool)
    obs = Observations(np.where(present, SCORES, np.nan), MEMBER, present=present)
    assert obs.coins == 6


@pytest.mark.parametrize(
    "name,bad",
    [
        ("coins", "biased"),
        ("calibration", "some"),
        ("adjacency", "swap"),
        ("threat_model", "white-box"),
        *[("inclusion", v) for v in (0, 1, -0.1, float("nan"), "x", True)],
    ],
)
def test_bad_designs_are_named(name, bad):
    with pytest.raises(InputError, match=name):
        Design(**{name: bad})


def test_worlds():
    obs = Observations.from_worlds([3.0, 2.0], [1.0, 0.0, -1.0])
    assert obs.shape == (5, 1) and obs.design == Design(coins="worlds")
    assert obs.member[:, 0].tolist() == [True, True, False, False, False]
    assert obs.scores[:, 0].tolist() == [3, 2, 1, 0, -1]


@pytest.mark.parametrize("inside,outside,named", [([], [1.0], "in_scores"), ([1.0], [[1.0]], "out_scores")])
def test_bad_worlds(inside, outside, named):
    with pytest.raises(InputError, match=named):
        Observations.from_worlds(inside, outside)


def test_columns():
    part = Observations(SCORES, MEMBER, canaries=("a", "b", "c")).columns(["b", "a"])
    assert part.canaries == ("b", "a") and part.scores.tolist() == [[0.2, 0.1], [0.5, 0.4]]
    with pytest.raises(InputError, match="'z'"):
        part.columns(["z"])


def halves(runs: int, canaries: int) -> np.ndarray:
    return np.tile(np.arange(canaries) < canaries // 2, (runs, 1))


def test_exact_halves_are_questioned_where_fair_coins_are_assumed():
    with pytest.warns(HalfSplitWarning, match="fixed"):
        Observations(np.zeros((1, 40)), halves(1, 40))


@pytest.mark.parametrize(
    "member,design",
    [
        (halves(1, 40), Design(coins="fixed")),
        (halves(1, 40), Design(inclusion=0.3)),
        (halves(1, 4), Design()),
        (np.roll(halves(1, 40), 1) | (np.arange(40) == 39), Design()),
    ],
)
def test_exact_halves_are_not_questioned_elsewhere(member, design):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Observations(np.zeros(member.shape), member, design=design)


def data(**changes: object) -> Data:
    return Data(**{"x": np.zeros((3, 2)), "y": [0, 1, 1], "classes": 2, **changes})


def test_data_defaults():
    d = data()
    assert (len(d), d.features, d.nominal_size, d.ids) == (3, 2, 3, ("record-0", "record-1", "record-2"))
    assert d.x.dtype == np.float32 and d.y.dtype == np.int64 and d.x_test.shape == (0, 2)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"x": np.zeros(3)}, "x \\(records, features\\)"),
        ({"x": np.full((3, 2), np.nan)}, "features of the records must be finite"),
        ({"x": [["a", "b"]] * 3}, "features of the records must be numbers"),
        ({"x": np.zeros((0, 2)), "y": []}, "at least one record"),
        ({"y": [0, 1]}, "y \\(records,\\)"),
        ({"y": [0, 1, 2]}, r"labels of the records must be in \[0, 2\), got 2 at number 2"),
        ({"y": [0, 1, -1]}, r"got -1 at number 2"),
        ({"y": [0, 0.5, 1]}, "whole numbers"),
        ({"y": [0, np.nan, 1]}, "whole numbers"),
        ({"classes": 1}, "classes"),
        ({"nominal_size": 0}, "nominal_size"),
        ({"ids": ("a", "a", "b")}, "ids must be 3 different names"),
        ({"private_columns": (2,)}, "private column"),
        ({"x_test": np.zeros((1, 3)), "y_test": [0]}, "test records must have 2 features"),
        ({"x_test": np.zeros((1, 2)), "y_test": [5]}, "labels of the test records"),
    ],
)
def test_bad_data(changes, message):
    with pytest.raises(InputError, match=message):
        data(**changes)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("scores", 1.0, 10), "method"),
        (("guesses", 0.0, 10), "weight"),
        (("guesses", 1.1, 10), "weight"),
        (("guesses", 1.0, 1), "guesses"),
        (("guesses", 1.0, None), "guesses"),
    ],
)
def test_bad_planned_tests(arguments, message):
    with pytest.raises(InputError, match=message):
        PlannedTest(*arguments)


def test_verdicts_are_ordered_by_how_loudly_they_speak():
    order = [Verdict.NO_CLAIM, Verdict.CONSISTENT, Verdict.UNDERPOWERED, Verdict.VIOLATED]
    assert [v.severity for v in order] == [0, 1, 2, 3]


def entry(verdict: Verdict, expect: Verdict | None = None, name: str = "") -> TrainerAudit:
    audit = Audit(verdict, 1.0, 2.0, 3.0, 0.5, 1e-5, 0.05, 0.05, 0.9, (), (), Design(), "because", name=name)
    return TrainerAudit(audit, {}, expect, Accuracy(None, None, None, 1, 0), {}, {})


def result(*entries: TrainerAudit) -> RunResult:
    return RunResult("r", entries, 0.05, {}, (), 1, 1, (), "cmd", {})


@pytest.mark.parametrize(
    "verdict,expect,met",
    [
        (Verdict.VIOLATED, None, False),
        (Verdict.CONSISTENT, None, True),
        (Verdict.UNDERPOWERED, None, True),
        (Verdict.VIOLATED, Verdict.VIOLATED, True),
        (Verdict.CONSISTENT, Verdict.VIOLATED, False),
    ],
)
def test_expectations(verdict, expect, met):
    assert entry(verdict, expect).as_expected is met
    assert result(entry(verdict, expect)).as_expected is met


def test_the_loudest_audit_is_the_headline_and_expected_violations_come_last():
    calm, loud = entry(Verdict.CONSISTENT, name="calm"), entry(Verdict.VIOLATED, Verdict.VIOLATED, "loud")
    assert result(calm, loud).headline is calm
    surprising = entry(Verdict.VIOLATED, name="surprising")
    both = result(loud, calm, surprising)
    assert both.headline is surprising and both.verdict is Verdict.VIOLATED
    assert (both.lower, both.lower_if_recipe, both.upper, both.p_value) == (1.0, 2.0, 3.0, 0.5)
