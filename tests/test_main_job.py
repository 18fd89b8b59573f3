"""The main job says what it is expected to say, on real data."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpaudit
from dpaudit.records import RunResult, TrainerAudit, Verdict

FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return dpaudit.run("digits", tmp_path_factory.mktemp("digits") / "out")


def by_name(result: RunResult, name: str) -> TrainerAudit:
    return next(a for a in result.audits if a.audit.name == name)


def test_without_privacy_the_attack_shows_more_than_4(digits: RunResult) -> None:
    entry = by_name(digits, "sgd")
    assert entry.audit.verdict is Verdict.NO_CLAIM
    assert entry.audit.lower > 4
    assert entry.accuracy.mean is not None
    assert entry.accuracy.mean > 0.93


def test_dp_sgd_is_consistent_with_power(digits: RunResult) -> None:
    audit = by_name(digits, "dp-sgd").audit
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.power is not None
    assert audit.power >= 0.8
    assert audit.upper is not None
    assert 3.99 < audit.upper <= 4.0
    assert 0.3 < audit.lower < audit.upper
    assert "not proof" in audit.reason


def test_forgotten_noise_is_violated_by_the_curve(digits: RunResult) -> None:
    entry = by_name(digits, "forgotten-noise")
    assert entry.audit.verdict is Verdict.VIOLATED
    assert entry.as_expected
    assert entry.audit.p_value is not None
    assert entry.audit.p_value < 0.01
    assert entry.audit.upper is not None
    assert entry.audit.lower > entry.audit.upper


def test_the_run_as_a_whole(digits: RunResult) -> None:
    assert digits.as_expected
    assert digits.verdict is Verdict.CONSISTENT
    assert digits.error_probability == pytest.approx(0.1)
    assert {f.name: f.count for f in digits.canaries} == {"far-out": 40, "mislabelled": 20}


def test_far_out_canaries_carry_the_verdict(digits: RunResult) -> None:
    findings = by_name(digits, "forgotten-noise").audit.findings
    assert [f.canaries for f in findings] == ["far-out", "mislabelled"]
    assert findings[0].weight == pytest.approx(0.9)
    assert findings[0].p_value / findings[0].weight < findings[1].p_value / findings[1].weight


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_at_a_small_size(tmp_path: Path) -> None:
    from dpaudit.spec import load_spec

    spec = load_spec("fashion-mnist").model_dump(mode="json")
    spec |= {"runs": 40, "shadows": 10}
    spec["data"] |= {"records": 500, "test": 500}
    for trainer in spec["trainers"]:
        trainer["expect"] = None
    result = dpaudit.run(spec, tmp_path / "out")
    assert result.data["name"] == "fashion-mnist"
    accuracy = by_name(result, "sgd").accuracy.mean
    assert accuracy is not None
    assert accuracy > 0.65
    assert by_name(result, "forgotten-noise").audit.lower > by_name(result, "dp-sgd").audit.lower


@pytest.mark.opacus
def test_somebody_elses_trainer(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    from dpaudit.spec import load_spec

    file = Path(__file__).parents[1] / "examples" / "my_trainer.toml"
    spec = load_spec(file).model_copy(update={"runs": 30, "shadows": 10})
    result = dpaudit.run(spec, tmp_path / "out")
    audit = result.audits[0].audit
    assert audit.verdict in (Verdict.CONSISTENT, Verdict.UNDERPOWERED)
    assert audit.upper is not None
    assert audit.lower < audit.upper
    accuracy = result.audits[0].accuracy.mean
    assert accuracy is not None
    assert accuracy > 0.7
