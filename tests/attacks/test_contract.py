"""What every scoring function promises: inputs stay, order and layout are of no account, equals tie, nonsense is named.

Each case is a function of the package, its arrays, and along which axis of each the records lie.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import dpaudit.attacks as package
from dpaudit.attacks import ATTACKS, SIGNALS, Evidence, lira
from dpaudit.attacks import arrays as cutting
from dpaudit.attacks.evidence import NEEDS
from dpaudit.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::dpaudit.attacks.PoorFit", "ignore::dpaudit.attacks.ThinClassWarning")

RECORDS, SHADOWS, CLASSES, OTHERS = 61, 8, 3, 30


def coarse(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers on a coarse grid: ties are common, and sums still round."""
    return rng.integers(-20, 20, shape) / 10


def world():
    rng = np.random.default_rng(0)
    member = rng.random((SHADOWS, RECORDS)) < 0.5
    member[:4] = [[True], [True], [False], [False]]
    return {
        "logits": coarse(rng, RECORDS, CLASSES),
        "labels": rng.integers(CLASSES, size=RECORDS),
        "shadow_logits": coarse(rng, SHADOWS, RECORDS, CLASSES),
        "signal": coarse(rng, RECORDS),
        "shadows": coarse(rng, SHADOWS, RECORDS),
        "member": member,
        "logs": -abs(coarse(rng, RECORDS)),
        "shadow_logs": -abs(coarse(rng, SHADOWS, RECORDS)),
        "others": coarse(rng, OTHERS),
        "other_logs": -abs(coarse(rng, OTHERS)),
        "shadow_other_logs": -abs(coarse(rng, SHADOWS, OTHERS)),
        "traces": abs(coarse(rng, 6, RECORDS)),
        "norms": abs(coarse(rng, RECORDS)),
        "projections": coarse(rng, RECORDS, 9),
        "sequences": coarse(rng, RECORDS, 4, 5),
        "tokens": rng.integers(5, size=(RECORDS, 4)),
    }


def rmia(mode, signal, shadows, member, others, shadow_others):
    return package.rmia(signal, shadows, member, others, shadow_population_signals=shadow_others, mode=mode)


def rmia_in_turn(mode, shadows, member, shadow_others):
    return package.rmia_leave_one_out(shadows, member, shadow_others, mode=mode)


LIRA = ("online", "offline", "offline-two-sided")
RMIA = ("online", "offline", "offline-reference")
VARIANCES = ("per-example", "pooled", "shrink", "reference", "reference-fixed")
CASES = {
    **{
        f"signal {name}": (signal, {"logits": 0, "labels": 0})
        for name, signal in SIGNALS.items()
        if name not in ("confidence", "entropy")  # which ask for no label, and are below
    },
    "entropy": (package.entropy, {"logits": 0}),
    "confidence": (package.confidence, {"logits": 0}),
    "loss threshold": (package.loss_threshold, {"signal": 0}),
    "calibrated loss": (package.calibrated_loss, {"signal": 0, "shadows": 1, "member": 1}),
    "population": (package.population, {"signal": 0, "others": None}),
    "reference": (package.reference, {"signal": 0, "shadows": 1, "member": 1}),
    **{
        f"lira {mode} {variance}": (
            partial(lira, mode=mode, variance=variance), {"signal": 0, "shadows": 1, "member": 1}
        )
        for mode in LIRA for variance in VARIANCES
    },
    **{
        f"lira in turn {mode}": (partial(package.lira_leave_one_out, mode=mode), {"shadows": 1, "member": 1})
        for mode in LIRA
    },
    **{
        f"rmia {mode}": (
            partial(rmia, mode),
            {"logs": 0, "shadow_logs": 1, "member": 1, "other_logs": None, "shadow_other_logs": None},
        )
        for mode in RMIA
    },
    **{
        f"rmia in turn {mode}": (
            partial(rmia_in_turn, mode), {"shadow_logs": 1, "member": 1, "shadow_other_logs": None}
        )
        for mode in RMIA
    },
    **{
        f"traces {statistic}": (partial(package.loss_traces, statistic=statistic), {"traces": 1})
        for statistic in ("signed-iqr", "iqr", "deviation", "slope", "mean", "last")
    },
    "gradient norm": (package.gradient_norm, {"norms": 0}),
    **{
        f"gradient canaries {sampler}": (
            partial(package.gradient_canary_score, noise_deviation=1.0, sampling_rate=rate, sampler=sampler),
            {"projections": 0},
        )
        for sampler, rate in (("poisson", 0.3), ("full-batch", 1.0), ("shuffled", 1 / 3))
    },
    "exposure": (package.exposure_interpolated, {"signal": 0, "others": None}),
    "extrapolated exposure": (package.exposure_extrapolated, {"signal": 0, "others": None}),
    "log-perplexity": (package.log_perplexity, {"sequences": 0, "tokens": 0}),
    "learned": (
        partial(package.learned, by_class=False), {"logits": 0, "labels": 0, "shadow_logits": 1, "member": 1}
    ),
}  # fmt: skip


@pytest.fixture(params=list(CASES))
def case(request):
    if request.param == "learned":
        pytest.importorskip("sklearn")
    function, axes = CASES[request.param]
    held = world()
    return function, [held[name] for name in axes], list(axes.values())


def test_arrays_may_be_read_only_and_stay(case):
    function, arrays, _ = case
    kept = [a.copy() for a in arrays]
    for array in arrays:
        array.setflags(write=False)
    assert np.isfinite(function(*arrays)).all()
    assert all(np.array_equal(a, b) for a, b in zip(arrays, kept, strict=True))


def test_lists_and_other_layouts_are_the_same(case):
    function, arrays, _ = case
    scores = function(*arrays)
    assert scores.dtype == np.float64
    assert function(*(a.tolist() for a in arrays)).tolist() == scores.tolist()
    assert function(*map(np.asfortranarray, arrays)).tolist() == scores.tolist()


def test_single_precision_is_worked_on_in_double(case):
    function, arrays, _ = case
    narrow = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    scores = function(*narrow)
    assert scores.dtype == np.float64
    assert scores.tolist() == function(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in narrow)).tolist()


def test_the_order_of_records_changes_no_bit(case):
    function, arrays, axes = case
    order = np.random.default_rng(1).permutation(RECORDS)
    moved = [a if axis is None else np.take(a, order, axis) for a, axis in zip(arrays, axes, strict=True)]
    assert function(*moved).tolist() == function(*arrays)[..., order].tolist()


def test_equals_tie_wherever_they_stand(case, monkeypatch):
    """The last of the records is the first once more, beyond the end of a block."""
    function, arrays, axes = case
    monkeypatch.setattr(cutting, "BLOCK", RECORDS - 1)
    for array, axis in zip(arrays, axes, strict=True):
        if axis is not None:
            rows = np.moveaxis(array, axis, 0)
            rows[-1] = rows[0]
    scores = function(*arrays)
    assert scores[..., -1].tolist() == scores[..., 0].tolist()


def bad_ones(array: np.ndarray):
    """Arrays that nobody can score, from one that is fine."""
    yield "NaN", np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array)
    yield "text", array.astype(str)
    yield "objects", np.full(array.shape, None)
    yield "complex", array.astype(complex)
    yield "empty", array[..., :0]
    yield "ragged", [[1.0, 2.0], [3.0]]


def test_nonsense_is_refused_with_what_was_got(case):
    function, arrays, _ = case
    for place, array in enumerate(arrays):
        for kind, bad in bad_ones(array):
            with pytest.raises(InputError, match=r"^[a-z_]+ .*\bmust\b.*\bgot\b") as refused:
                function(*(bad if i == place else a for i, a in enumerate(arrays)))
            assert "\n" not in str(refused.value), kind


def test_no_records_at_all_are_refused(case):
    function, arrays, axes = case
    none = [a if axis is None else np.take(a, np.zeros(0, int), axis) for a, axis in zip(arrays, axes, strict=True)]
    with pytest.raises(InputError, match=r"must .*got"):
        function(*none)


@pytest.mark.parametrize("places", [1, 2])
def test_groups_of_equal_means_are_not_cut(places):
    """Many records share a mean on the other side: where a group ended once depended on who came first."""
    rng = np.random.default_rng(0)
    shadows, signal = np.round(rng.normal(size=(16, 1000)) * places), np.round(rng.normal(size=1000))
    member = np.arange(16)[:, None] % 2 == rng.integers(2, size=1000)
    order = rng.permutation(1000)
    assert (
        lira(signal[order], shadows[:, order], member[:, order]).tolist()
        == lira(signal, shadows, member)[order].tolist()
    )


@pytest.mark.parametrize("kind", ["NaN", "text", "objects", "complex", "empty", "ragged"])
@pytest.mark.parametrize(
    "function",
    [
        package.roc, package.auc, package.measure, package.null_run, partial(package.threshold, fpr=0.5),
        partial(package.slices, column="ward", values=np.zeros(RECORDS)),
    ],
    ids=["roc", "auc", "measure", "null run", "threshold", "slices"],
)  # fmt: skip
def test_measures_refuse_the_same(function, kind):
    held = world()
    scores, member = held["signal"], held["member"][5]
    for place, array in enumerate((scores, member)):
        bad = dict(bad_ones(array))[kind]
        with pytest.raises(InputError, match=r"must .*got"):
            function(*(bad if i == place else a for i, a in enumerate((scores, member))))


# --- what attacks need -------------------------------------------------------------------------------------------


def pieces():
    """What each need is met by, and nothing more."""
    held = world()
    return {
        "losses": {"losses": -held["logs"]},
        "outputs": {"logits": held["logits"]},
        "labels": {"labels": held["labels"]},
        "shadows": {"shadow_losses": -held["shadow_logs"], "shadow_member": held["member"]},
        "shadow outputs": {"shadow_logits": held["shadow_logits"], "shadow_member": held["member"]},
        "population": {"population_losses": -held["other_logs"]},
        "shadow population": {"shadow_population_losses": -held["shadow_other_logs"]},
        "traces": {"traces": held["traces"]},
        "gradients": {"gradient_norms": held["norms"]},
        "perplexities": {"perplexities": held["signal"], "reference_perplexities": held["others"]},
        "iterates": {"projections": held["projections"], "steps": {"noise_deviation": 1.0}},
    }


def test_evidence_in_rows_of_different_lengths_is_refused():
    with pytest.raises(InputError, match=r"^shadow_losses must be an array, got rows of different lengths"):
        Evidence(losses=[1.0, 2.0], shadow_losses=[[1.0, 2.0], [1.0]])


def evidence_for(needs):
    return Evidence(**{name: value for need in needs for name, value in pieces()[need].items()})


@pytest.mark.parametrize("name", ATTACKS)
def test_needs_are_enough_and_all_of_them_are_needed(name):
    if name == "learned":
        pytest.importorskip("sklearn")
    attack = ATTACKS[name]
    scores = attack.scores(evidence_for(attack.needs))
    assert scores.shape == (RECORDS,) and np.isfinite(scores).all() and len(np.unique(scores)) > 1
    for lacking in attack.needs:
        rest = evidence_for(need for need in attack.needs if need != lacking)
        if rest.has(lacking):  # outputs with labels are losses as well
            continue
        with pytest.raises(InputError) as refused:
            attack.scores(rest)
        assert str(refused.value).startswith(f"{name} needs ") and NEEDS[lacking] in str(refused.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_looks_at_nothing_but_what_it_needs(name):
    """With everything else there and other, the scores are the same: needs leave nothing out."""
    attack = ATTACKS[name]
    if name == "learned":
        pytest.importorskip("sklearn")
    extra = {key: held for value in pieces().values() for key, held in value.items()}
    bare = evidence_for(attack.needs)
    for key in ("logits", "labels", "shadow_logits"):  # outputs are looked at before losses, and say the same
        extra.pop(key, None)
    given = {key: held for need in attack.needs for key, held in pieces()[need].items()}
    assert attack.scores(Evidence(**extra | given), 3).tolist() == attack.scores(bare, 3).tolist()
