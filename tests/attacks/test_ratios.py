"""RMIA against a plain double loop, and against the formula of the authors' tool."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.attacks import arrays as cutting
from dpaudit.attacks import auc, rmia, rmia_leave_one_out, tune_offline_a
from dpaudit.errors import InputError

SHADOWS, RECORDS, POPULATION, TARGETS = 8, 40, 60, 3


def world(seed: int = 0, halves: bool = False, shadows: int = SHADOWS):
    """ln p of targets and shadows about records and a population, and who was a member."""
    rng = np.random.default_rng(seed)
    member = rng.random((shadows + TARGETS, RECORDS)) < 0.5
    if halves:
        member[:shadows] = np.argsort(rng.random((shadows, RECORDS)), axis=0) < shadows // 2
    odds = rng.normal(0, 2, RECORDS) + 1.5 * member + rng.normal(size=member.shape)
    outside = rng.normal(0, 2, POPULATION) + rng.normal(size=(shadows + TARGETS, POPULATION))
    x, z = -np.logaddexp(0, -odds), -np.logaddexp(0, -outside)
    return x[shadows:], x[:shadows], member[:shadows], z[shadows:], z[:shadows], member[shadows:]


def plain(x, shadows, member, z, shadow_z, mode, gamma, a):
    """Every pair in turn."""
    scores = np.zeros(x.shape)
    mean_z = np.exp(shadow_z).mean(axis=0)
    for t in range(len(x)):
        for j in range(x.shape[1]):
            out = np.exp(shadows[~member[:, j], j]).mean()
            p_x = np.exp(shadows[:, j]).mean() if mode == "online" else ((1 + a) * out + 1 - a) / 2
            above = 0
            for k in range(z.shape[1]):
                p_z = mean_z[k] if mode == "online" else ((1 + a) * mean_z[k] + 1 - a) / 2
                above += (np.exp(x[t, j]) / p_x) / (np.exp(z[t, k]) / p_z) >= gamma
            scores[t, j] = above / z.shape[1]
    return scores


def tool(x, shadows, member, z, shadow_z, a):
    """What ``run_rmia`` of ml_privacy_meter computes, one record at a time."""
    half = max(len(shadows) // 2, 1)

    def average(p, was_in):
        if half > 1:
            return sorted([0.0 if inside else value for value, inside in zip(p, was_in, strict=True)])[-half:]
        slope = a if a != 0 else 0.3
        return [(value + slope - 1) / slope if inside else value for value, inside in zip(p, was_in, strict=True)]

    def ratio(target, p, was_in):
        return target / ((1 + a) / 2 * np.mean(average(p, was_in)) + (1 - a) / 2)

    nobody = [False] * len(shadows)
    scores = np.zeros(x.shape)
    for t in range(len(x)):
        others = [ratio(np.exp(z[t, k]), np.exp(shadow_z[:, k]), nobody) for k in range(z.shape[1])]
        for j in range(x.shape[1]):
            mine = ratio(np.exp(x[t, j]), np.exp(shadows[:, j]), member[:, j])
            scores[t, j] = np.mean([mine / other > 1.0 for other in others])
    return scores


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (1.0, 1.0), (1.0, 0.0), (2.0, 0.7), (0.5, 0.3)])
def test_rmia_is_the_plain_double_loop(mode, gamma, a):
    *arrays, _ = world()
    x, shadows, member, z, shadow_z = arrays
    got = rmia(x, shadows, member, z, shadow_population_signals=shadow_z, mode=mode, gamma=gamma, offline_a=a)
    assert got == pytest.approx(plain(x, shadows, member, z, shadow_z, mode, gamma, a), abs=1e-9)
    assert len(np.unique(got)) > 15


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("shadows", [8, 5, 3, 2, 1])
@pytest.mark.parametrize("a", [0.3, 0.0, 1.0])
def test_the_authors_tool_with_its_quirks(halves, shadows, a):
    x, s, member, z, shadow_z, _ = world(3, halves, shadows)
    got = rmia(x, s, member, z, shadow_population_signals=shadow_z, mode="offline-reference", offline_a=a)
    assert got == pytest.approx(tool(x, s, member, z, shadow_z, a), abs=1e-6)


def test_the_tools_population_average_is_its_quirk():
    """With halves, records agree; the population is averaged over the larger half of the shadows only."""
    x, s, member, z, shadow_z, _ = world(halves=True)
    options = {"offline_a": 0.5, "shadow_population_signals": shadow_z}
    ours = rmia(x, s, member, z, mode="offline", **options)
    theirs = rmia(x, s, member, z, mode="offline-reference", **options)
    assert (theirs >= ours).all() and (theirs > ours).any()
    same = np.repeat(shadow_z[:1], SHADOWS, axis=0)
    options["shadow_population_signals"] = same
    ours, theirs = (rmia(x, s, member, z, mode=m, **options) for m in ("offline", "offline-reference"))
    assert ours.tolist() == theirs.tolist()


def test_a_record_in_the_population_ties_with_itself():
    x, s, member, z, shadow_z, _ = world()
    none = np.zeros_like(member)
    score = rmia(z, shadow_z, np.zeros(shadow_z.shape, bool), z, shadow_population_signals=shadow_z, mode="online")
    order = np.argsort(np.argsort(z - np.log(np.exp(shadow_z).mean(axis=0)), axis=1), axis=1)
    assert score == pytest.approx((order + 1) / POPULATION)
    assert rmia(x, s, none, z, shadow_population_signals=shadow_z).shape == x.shape


def test_ties_do_not_depend_on_the_order_of_the_shadows():
    """A coarse grid of probabilities: sums round by order, and ratios are often equal."""
    rng = np.random.default_rng(0)
    p, q = rng.integers(1, 4, (9, 300)) / 10, rng.integers(1, 4, (9, 300)) / 10
    x, s, z, shadow_z = np.log(p[0]), np.log(p[1:]), np.log(q[0]), np.log(q[1:])
    member = rng.random(s.shape) < 0.5
    first = rmia(x, s, member, z, shadow_population_signals=shadow_z)
    for _ in range(20):
        order = rng.permutation(8)
        assert rmia(x, s[order], member[order], z, shadow_population_signals=shadow_z[order]).tolist() == first.tolist()


@pytest.mark.parametrize("mode", ["online", "offline", "offline-reference"])
def test_each_model_in_turn(mode):
    _, s, member, _, shadow_z, _ = world(1, shadows=12)
    got = rmia_leave_one_out(s, member, shadow_z, mode=mode, offline_a=0.4, gamma=1.5)
    for i in range(len(s)):
        rest = np.arange(len(s)) != i
        alone = rmia(s[i], s[rest], member[rest], shadow_z[i], shadow_population_signals=shadow_z[rest], mode=mode,
                     offline_a=0.4, gamma=1.5)  # fmt: skip
        assert got[i] == pytest.approx(alone, abs=1e-12)


def test_own_membership_is_not_looked_at():
    _, s, member, _, shadow_z, _ = world()
    for mode in ("online", "offline"):
        before = rmia_leave_one_out(s, member, shadow_z, mode=mode)
        other = member.copy()
        other[5] = ~other[5]
        assert rmia_leave_one_out(s, other, shadow_z, mode=mode)[5].tolist() == before[5].tolist()


def test_tiny_probabilities_keep_their_ratios():
    """Far below where exp underflows in float64."""
    x, s = np.array([-2000.0, -2100.0]), np.array([[-2050.0, -2050.0], [-2050.0, -2050.0]])
    member = np.array([[True, True], [False, False]])
    z, shadow_z = np.zeros(4), np.zeros((2, 4))
    assert rmia(x, s, member, z, shadow_population_signals=shadow_z).tolist() == [1.0, 0.0]
    rows = np.concatenate([x[None], s])
    loo = rmia_leave_one_out(rows, np.zeros(rows.shape, bool), np.zeros((3, 4)), offline_a=1.0, mode="offline")
    assert loo[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("mode", ["online", "offline", "offline-reference"])
class TestContract:
    def test_members_score_higher(self, mode):
        x, s, member, z, shadow_z, truth = world(2)
        assert auc(rmia(x, s, member, z, shadow_population_signals=shadow_z, mode=mode), truth) > 0.65

    def test_inputs_stay_one_target_is_a_row_and_order_is_free(self, mode):
        x, s, member, z, shadow_z, _ = arrays = world()
        kept = [a.copy() for a in arrays]
        scores = rmia(x, s, member, z, shadow_population_signals=shadow_z, mode=mode)
        assert all((a == b).all() for a, b in zip(arrays, kept, strict=True))
        assert scores[1].tolist() == rmia(x[1], s, member, z[1], shadow_population_signals=shadow_z, mode=mode).tolist()
        order, rows = np.random.default_rng(0).permutation(RECORDS), np.random.default_rng(1).permutation(SHADOWS)
        moved = rmia(x[:, order], s[rows][:, order], member[rows][:, order], z,
                     shadow_population_signals=shadow_z[rows], mode=mode)  # fmt: skip
        assert moved.tolist() == scores[:, order].tolist()

    def test_blocks_do_not_show(self, mode, monkeypatch):
        x, s, member, z, shadow_z, _ = world()
        whole = rmia(x, s, member, z, shadow_population_signals=shadow_z, mode=mode)
        turns = rmia_leave_one_out(s, member, shadow_z, mode=mode)
        monkeypatch.setattr(cutting, "BLOCK", 7)
        assert rmia(x, s, member, z, shadow_population_signals=shadow_z, mode=mode).tolist() == whole.tolist()
        assert rmia_leave_one_out(s, member, shadow_z, mode=mode).tolist() == turns.tolist()


def test_a_is_tuned_on_shadows_alone():
    _, s, member, _, shadow_z, _ = world(4, shadows=16)
    a = tune_offline_a(s, member, shadow_z)
    areas = {
        b / 10: np.mean([auc(r, m) for r, m in
                         zip(rmia_leave_one_out(s, member, shadow_z, mode="offline", offline_a=b / 10), member,
                             strict=True)])
        for b in range(11)
    }  # fmt: skip
    assert areas[a] == pytest.approx(max(areas.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: k.update(signal=np.exp(k["signal"])), "logarithms of probabilities, at most 0"),
        (lambda k: k.update(shadow_signals=k["shadow_signals"] + 9), "logarithms of probabilities"),
        (lambda k: k.update(population_signals=k["population_signals"][0]), "population_signals must be shaped"),
        (lambda k: k.update(shadow_population_signals=k["shadow_population_signals"][:3]), "population"),
        (lambda k: k.update(population_signals=k["population_signals"] * np.nan), "population_signals must be finite"),
        (lambda k: k.update(shadow_member=k["shadow_member"] + 1), "true or false"),
        (lambda k: k.update(shadow_member=np.ones_like(k["shadow_member"]), mode="offline"), "train more shadows"),
        (lambda k: k.update(mode="both"), "mode must be one of"),
        (lambda k: k.update(gamma=0), "gamma"),
        (lambda k: k.update(offline_a=1.1), "offline_a"),
    ],
)
def test_bad_input(change, message):
    x, s, member, z, shadow_z, _ = world()
    keywords = {"signal": x, "shadow_signals": s, "shadow_member": member, "population_signals": z,
                "shadow_population_signals": shadow_z}  # fmt: skip
    change(keywords)
    with pytest.raises(InputError, match=message):
        rmia(**keywords)


def test_one_model_has_no_others():
    _, s, member, _, shadow_z, _ = world()
    with pytest.raises(InputError, match="at least 2 models"):
        rmia_leave_one_out(s[:1], member[:1], shadow_z[:1])


def test_one_shadow_is_enough_online():
    """LeakPro #228: a single shadow is no reason to crash."""
    x, s, member, z, shadow_z, truth = world(2)
    scores = rmia(x, s[:1], member[:1], z, shadow_population_signals=shadow_z[:1])
    assert auc(scores, truth) > 0.6
