"""A whole exploration on a tiny grid: what it trains, finds, counts and leaves."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import Claim
from dpaudit.accounting.tuning import repeated
from dpaudit.errors import InputError
from dpaudit.frontier import Frontier, document, explore, render_text
from dpaudit.frontier.costs import whole_search
from dpaudit.frontier.facts import SCHEMA
from dpaudit.frontier.grid import Grid, make_grid
from dpaudit.frontier.outcome import Halves
from dpaudit.frontier.tables import COLUMNS
from dpaudit.frontier.training import Work
from dpaudit.runner import run
from dpaudit.spec import load_spec
from dpaudit.trainers import DPSGD, SGD

from .conftest import OPTIONS, SEED, small_spec

pytest.importorskip("torch")


def grid_of(**options: Any) -> Grid:
    return make_grid(load_spec(small_spec()), **{**OPTIONS, **options})


def numbers(value: Any) -> Iterator[float]:
    """Every float of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, float):
        yield value


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class TestGrid:
    def test_every_noise_with_every_clip_norm(self) -> None:
        grid = grid_of()
        assert [(lv.noise_multiplier, c) for lv, c in grid.points] == [
            (n, c) for n in (3.0, 1.0) for c in (0.1, 0.3, 1.0)
        ]
        settings = [s for unit in grid.grid_units() for s in unit.settings]
        assert settings == [grid.private(point) for point in grid.points for _ in range(2)]

    def test_all_else_is_the_trainers(self) -> None:
        grid = grid_of()
        wanted = small_spec()["trainers"][1]["settings"]
        for unit in (*grid.grid_units(), *grid.fresh_units(3)):
            for one in unit.settings:
                assert isinstance(one, DPSGD)
                assert (one.learning_rate, one.steps, one.sampling_rate) == (
                    wanted["learning_rate"], wanted["steps"], wanted["sampling_rate"],
                )  # fmt: skip

    def test_no_two_models_share_a_seed(self) -> None:
        """Shared noise would cancel in a difference of two models, which no composition covers."""
        grid = grid_of()
        units = [*grid.grid_units(), *grid.reference_units(), *(u for i in range(6) for u in grid.fresh_units(i))]
        seeds = [seed for unit in units for seed in unit.seeds]
        assert len(set(seeds)) == len(seeds) == 12 + 2 + 12

    def test_epsilon_is_the_accountants(self) -> None:
        for level in grid_of().levels:
            claim = Claim.dp_sgd(noise_multiplier=level.noise_multiplier, sampling_rate=0.05, steps=15)
            assert level.epsilon == claim.epsilon(1e-5)

    def test_targets_are_kept_and_not_missed_by_far(self) -> None:
        grid = grid_of(noise=None, epsilon=[2.0, 0.8], budget=None)
        assert [level.target for level in grid.levels] == [0.8, 2.0]
        for level in grid.levels:
            assert level.target is not None
            assert 0.99 * level.target < level.epsilon <= level.target

    def test_test_records_are_halved_and_in_no_training_set(self) -> None:
        grid = grid_of()
        assert (grid.choosing, grid.reporting) == (slice(0, 30), slice(30, 61))
        data = grid.data
        assert data.x_test is not None
        trained_on = {row.tobytes() for row in data.x}
        assert len(data) == 150 and not any(row.tobytes() in trained_on for row in data.x_test)

    def test_order_does_not_matter(self) -> None:
        assert grid_of().digest == grid_of(noise=[1.0, 3.0], clip=[0.3, 0.1, 1.0]).digest

    @pytest.mark.parametrize(
        "changes", [{"repeats": 3}, {"delta": 1e-6}, {"within": 0.02}, {"budget": 5.0}, {"clip": [0.1]},
                    {"noise": [3.0]}, {"reference": False}, {"trainer": "forgotten-noise"}],
    )  # fmt: skip
    def test_whatever_changes_a_result_is_another_plan(self, changes: dict[str, Any]) -> None:
        assert grid_of().digest != grid_of(**{"budget": None, **changes}).digest

    def test_reference_is_the_specs_own_sgd(self) -> None:
        reference = grid_of().reference
        assert reference is not None
        assert reference == ("sgd", SGD(learning_rate=2.0, steps=15, sampling_rate=0.05))

    def test_reference_of_another_width_is_made(self) -> None:
        spec = small_spec()
        spec["trainers"][1]["settings"]["hidden"] = [8]
        reference = make_grid(load_spec(spec), **OPTIONS).reference
        assert reference is not None
        assert reference[1] == SGD(learning_rate=4.0, steps=15, sampling_rate=0.05, hidden=[8])
        assert reference[0] == "digits without clip and noise"

    def test_a_trainer_by_name_needs_no_noise_of_its_own(self) -> None:
        grid = grid_of(trainer="forgotten-noise")
        assert grid.trainer == "forgotten-noise" and grid.levels[0].noise_multiplier == 3.0


class TestAccuracy:
    def test_is_that_of_models_trained_alone(self, found: Frontier) -> None:
        """One by one by the public method; float32 rounding may flip a label that hangs in the balance."""
        grid = found.grid
        models = [m for unit in grid.grid_units() for m in zip(unit.settings, unit.seeds, strict=True)]
        for number, point in enumerate(found.points):
            shares = [right(grid, *model) for model in models[2 * number : 2 * number + 2]]
            assert_close(point.accuracy, np.array(shares))

    def test_of_the_reference_and_the_fresh_models(self, found: Frontier) -> None:
        grid = found.grid
        (unit,) = grid.reference_units()
        assert found.reference is not None
        assert_close(found.reference, np.array([right(grid, s, seed) for s, seed in zip(unit.settings, unit.seeds)]))  # noqa: B905
        for suggestion in found.suggestions:
            (unit,) = grid.fresh_units(suggestion.point)
            assert set(unit.settings) == {grid.private(grid.points[suggestion.point])}
            shares = [right(grid, s, seed)[1] for s, seed in zip(unit.settings, unit.seeds, strict=True)]
            assert suggestion.fresh.mean == pytest.approx(np.mean(shares), abs=1 / 31)
            assert suggestion.fresh.records == 31

    def test_noise_costs_accuracy(self, tmp_path: Path) -> None:
        """Far enough apart to be no matter of luck: all but guessing among ten digits, and learning."""
        found = explore(small_spec(), tmp_path, noise=[40.0, 0.01], clip=[1.0], repeats=3)
        guessing, learning = (p.accuracy.choosing.mean for p in found.points)
        assert guessing is not None and learning is not None and guessing < 0.3 < 0.4 < learning

    def test_suggestions_follow_the_rules(self, found: Frontier) -> None:
        assert [s.rule for s in found.suggestions] == ["within", "budget"]
        means = [p.accuracy.choosing.mean or 0.0 for p in found.points]
        within, budget = (found.points[s.point] for s in found.suggestions)
        assert (within.accuracy.choosing.mean or 0) >= max(means) - 0.001
        assert budget.level.epsilon <= 0.9 and budget.accuracy.choosing.mean == max(means[:3])


def right(grid: Grid, settings: Any, seed: int) -> tuple[float, float]:
    """Accuracy of a model trained alone on both halves."""
    data = grid.data
    assert data.x_test is not None and data.y_test is not None
    model = settings.train(data, np.ones(len(data), bool), seed)
    hits = model.logits(data.x_test).argmax(axis=1) == data.y_test
    return float(hits[:30].mean()), float(hits[30:].mean())


def assert_close(halves: Halves, shares: np.ndarray) -> None:
    assert halves.choosing.mean == pytest.approx(shares[:, 0].mean(), abs=1 / 30)
    assert halves.reporting.mean == pytest.approx(shares[:, 1].mean(), abs=1 / 31)


class TestCosts:
    def test_one_training_is_the_claim_of_the_suggestion(self, found: Frontier) -> None:
        known = [c for c in found.costs if c.key == "known-beforehand"]
        assert [c.epsilon for c in known] == [found.points[s.point].level.epsilon for s in found.suggestions]

    def test_the_search_is_composed(self, found: Frontier) -> None:
        """Every training one by one, the fresh ones at the least noise of the grid."""
        (whole,) = (c for c in found.costs if c.key == "whole-search")
        fresh = 2 * len({s.point for s in found.suggestions})
        assert whole.trainings == found.trainings == 12 + fresh
        noisy, quiet = (
            Claim.dp_sgd(noise_multiplier=n, sampling_rate=0.05, steps=15) for n in (3.0, 1.0)
        )  # fmt: skip
        one_by_one = Claim.compose(*[noisy] * 6, *[quiet] * (6 + fresh))
        assert whole.epsilon == pytest.approx(one_by_one.epsilon(1e-5), rel=0.01)
        assert whole.epsilon is not None and whole.epsilon > found.grid.levels[-1].epsilon

    def test_random_stopping_is_the_accountants(self, found: Frontier) -> None:
        """Candidates are the levels; the least noise has the largest divergences, so it alone gives the same."""
        (cost,) = (c for c in found.costs if c.key == "random-stopping")
        alone = found.grid.levels[-1].claim
        rows = [repeated(alone, 1e-5, mean=12, shape=1.0, by=by) for by in ("renyi", "curve")]
        assert cost.trainings == 12
        assert cost.epsilon == pytest.approx(min(r.epsilon for r in rows if r.epsilon is not None))
        assert cost.epsilon > alone.epsilon(1e-5)

    def test_what_the_accountant_refuses_is_said(self, found: Frontier, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise InputError("too many cells")

        monkeypatch.setattr(Claim, "compose", refuse)
        whole = whole_search(found.grid, 1)
        assert (whole.epsilon, whole.note) == (None, "too many cells")
        said = replace(found, costs=(whole,))
        assert "Not computed: everything private that was trained here, by composition (too many cells)." in " ".join(
            render_text(said).split()
        )
        assert document(said)["costs"][0]["epsilon"] is None


class TestDocument:
    def test_is_strict_json(self, found: Frontier, out: Path) -> None:
        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        text = (out / "release" / "frontier.json").read_text(encoding="utf-8")
        facts = json.loads(text, parse_constant=refuse)
        assert facts == json.loads(json.dumps(document(found)))
        assert facts["schema"] == SCHEMA == "dpaudit.frontier/1"
        wanted = {"schema", "name", "command", "headline", "rules", "delta", "adjacency", "trainer", "data", "grid",
                  "points", "reference", "suggestions", "costs", "free", "limits", "environment"}  # fmt: skip
        assert set(facts) == wanted
        assert (facts["delta"], facts["adjacency"]) == (1e-5, "add-remove")
        assert all(np.isfinite(list(numbers(facts))))

    def test_points_are_the_grid(self, found: Frontier) -> None:
        facts = document(found)
        assert len(facts["points"]) == 6
        for fact, point in zip(facts["points"], found.points, strict=True):
            assert (fact["clip_norm"], fact["epsilon"]) == (point.clip_norm, point.level.epsilon)
            assert fact["choosing"]["mean"] == point.accuracy.choosing.mean
            assert fact["choosing"]["low"] <= fact["choosing"]["mean"] <= fact["choosing"]["high"]
        assert sum(fact["best_at_epsilon"] for fact in facts["points"]) == 2

    def test_csv_holds_the_same(self, found: Frontier, out: Path) -> None:
        rows = list(csv.DictReader(io.StringIO((out / "release" / "frontier.csv").read_text(encoding="utf-8"))))
        assert tuple(rows[0]) == COLUMNS
        for row, fact in zip(rows, document(found)["points"], strict=True):
            assert float(row["reporting_mean"]) == fact["reporting"]["mean"]
            assert float(row["epsilon"]) == fact["epsilon"] and row["target_epsilon"] == ""
        assert {row["suggested"] for row in rows} >= {"", "within"} or rows[0]["suggested"] == "within budget"

    def test_text_says_what_a_number_needs(self, found: Frontier) -> None:
        text = render_text(found)
        flat = " ".join(text.split())
        for needed in ("δ = 1e-5, add-remove", "by composition", "public data", "choosing half", "95 %",
                       "fresh trainings", "without any privacy", "fixed before training"):  # fmt: skip
            assert needed in flat, needed
        assert max(map(len, text.splitlines())) <= 100

    def test_page_is_self_contained(self, out: Path) -> None:
        page = (out / "release" / "frontier.html").read_text(encoding="utf-8")
        assert not re.search(r"<script|<link|<img|<iframe|<image|@import|src=|https?://|url\((?!#)", page)
        assert page.count("<svg") == 2 and page.rstrip().endswith("</html>")
        ids = re.findall(r'\bid="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)

    def test_release_identifies_nothing(self, found: Frontier, out: Path) -> None:
        grid = found.grid
        units = [*grid.grid_units(), *grid.reference_units()]
        secrets = [str(SEED), *(str(seed) for unit in units for seed in unit.seeds), *grid.data.ids]
        for name, content in files(out / "release").items():
            assert [s for s in secrets if s.encode() in content] == [], name
        assert str(SEED).encode() in (out / "retained" / "plan.json").read_bytes()

    def test_files(self, out: Path) -> None:
        figures = {f"figures/{name}.{kind}" for name in ("frontier", "grid") for kind in ("svg", "png")}
        pages = {f"frontier.{kind}" for kind in ("html", "json", "txt", "csv")}
        assert set(files(out / "release")) == pages | figures


class TestAgain:
    def test_the_same_call_trains_nothing_and_repeats_the_result(
        self, explored: tuple[Frontier, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, out = explored
        before = files(out / "release")
        monkeypatch.setattr(Work, "_trained", lambda *_: 1 / 0)
        again = explore(small_spec(), out, **OPTIONS)
        assert again.points == found.points and again.suggestions == found.suggestions
        assert files(out / "release") == before

    @pytest.mark.parametrize("workers", [1, 2])
    def test_elsewhere_it_gives_the_same_bytes(self, out: Path, tmp_path: Path, workers: int) -> None:
        explore(small_spec(), tmp_path / "again", **OPTIONS, workers=workers)
        assert files(tmp_path / "again") == files(out)

    def test_interrupted_and_resumed(self, out: Path, tmp_path: Path) -> None:
        def stop(done: int, _: int, what: str) -> None:
            if what == "without privacy":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            explore(small_spec(), tmp_path / "out", **OPTIONS, progress=stop)
        units = tmp_path / "out" / "retained" / "units"
        kept = {p.name: p.stat().st_mtime_ns for p in units.iterdir()}
        assert "grid-00000.safetensors" in kept
        assert not (tmp_path / "out" / "release").exists()
        explore(small_spec(), tmp_path / "out", **OPTIONS)
        assert {name: (units / name).stat().st_mtime_ns for name in kept} == kept
        assert files(tmp_path / "out") == files(out)

    def test_a_damaged_unit_is_done_again(self, out: Path, tmp_path: Path) -> None:
        explore(small_spec(), tmp_path / "out", **OPTIONS)
        unit = tmp_path / "out" / "retained" / "units" / "grid-00000.safetensors"
        unit.write_bytes(unit.read_bytes()[:50])
        explore(small_spec(), tmp_path / "out", **OPTIONS)
        assert files(tmp_path / "out") == files(out)

    def test_another_plan_is_named_and_refused(self, out: Path) -> None:
        before = files(out)
        with pytest.raises(InputError, match=r"holds plan \w+ and this is plan \w+: repeats was 2 and is 3; .*--fresh"):
            explore(small_spec(), out, **{**OPTIONS, "repeats": 3})
        with pytest.raises(InputError, match=r"spec\.seed was"):
            explore(small_spec(seed=1), out, **OPTIONS)
        assert files(out) == before

    def test_fresh_starts_over(self, tmp_path: Path) -> None:
        explore(small_spec(), tmp_path, **OPTIONS)
        found = explore(small_spec(), tmp_path, **{**OPTIONS, "repeats": 3}, fresh=True)
        assert found.points[0].accuracy.choosing.models == 3

    def test_an_audits_folder_is_not_taken(self, tmp_path: Path) -> None:
        spec = small_spec(runs=6, shadows=4, canaries=[{"family": "far-out", "count": 4}], tests=[])
        spec["trainers"] = spec["trainers"][:1]
        run(spec, tmp_path / "audit")
        with pytest.raises(InputError, match=r"schema was 'dpaudit\.plan/1' and is 'dpaudit\.frontier-plan/1'"):
            explore(small_spec(), tmp_path / "audit", **OPTIONS)

    def test_progress_counts_every_training(self, tmp_path: Path) -> None:
        seen: list[tuple[int, int, str]] = []
        found = explore(small_spec(), tmp_path, **OPTIONS, progress=lambda *step: seen.append(step))
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
        assert seen[-1][0] == found.trainings + 2 <= seen[-1][1] == 18
        assert seen[0][2] == "grid" and seen[-1][2] == "suggestion"


class TestEdges:
    def test_many_stacks_give_what_one_gives(self, found: Frontier, tmp_path: Path, monkeypatch: Any) -> None:
        for module in ("grid", "training"):
            monkeypatch.setattr(f"dpaudit.frontier.{module}.CHUNK", 3)
        cut = explore(small_spec(), tmp_path, **OPTIONS)
        assert len(list((tmp_path / "retained" / "units").glob("grid-*"))) == 2
        for one, other in zip(cut.points, found.points, strict=True):
            assert one.accuracy.choosing.mean == pytest.approx(other.accuracy.choosing.mean, abs=1 / 30)

    def test_a_point_that_diverges_is_counted_and_never_chosen(self, tmp_path: Path) -> None:
        found = explore(small_spec(), tmp_path, **{**OPTIONS, "clip": [1.0, 3e38]})
        calm, wild = found.points[:2]
        assert (wild.accuracy.choosing.mean, wild.accuracy.reporting.diverged) == (None, 2)
        assert calm.accuracy.choosing.mean is not None and not wild.best
        assert all(found.points[s.point].clip_norm == 1.0 for s in found.suggestions)
        assert "2 of 2 diverged" in render_text(found)
        assert all(np.isfinite(list(numbers(document(found)))))

    def test_a_grid_that_diverges_everywhere_suggests_nothing(self, tmp_path: Path) -> None:
        found = explore(small_spec(), tmp_path, **{**OPTIONS, "clip": [3e38]})
        assert found.suggestions == () and "No suggestion" in render_text(found)
        assert [(c.key, c.trainings) for c in found.costs] == [("whole-search", 4), ("random-stopping", 4)]
        assert all(c.epsilon is not None for c in found.costs)

    def test_one_point(self, tmp_path: Path) -> None:
        found = explore(small_spec(), tmp_path, noise=[1.0], clip=[1.0], repeats=2)
        assert [s.point for s in found.suggestions] == [0] and found.points[0].non_dominated

    def test_without_a_reference(self, tmp_path: Path) -> None:
        found = explore(small_spec(), tmp_path, **OPTIONS, reference=False)
        assert found.reference is None and document(found)["reference"] is None
        assert not list((tmp_path / "retained" / "units").glob("reference-*"))
        assert "without privacy" not in render_text(found)

    def test_hidden_layers(self, tmp_path: Path) -> None:
        spec = small_spec()
        spec["trainers"][1]["settings"]["hidden"] = [6]
        found = explore(spec, tmp_path, **OPTIONS)
        assert document(found)["trainer"]["settings"]["hidden"] == [6]

    def test_a_spec_file_of_a_users_own_data(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, 300)
        np.savez(tmp_path / "mine.npz", x=rng.normal(size=(300, 4)) + y[:, None], y=y)
        spec = small_spec(data={"source": str(tmp_path / "mine.npz"), "records": 200, "test": 60}, name="mine")
        found = explore(spec, tmp_path / "out", **OPTIONS)
        assert found.grid.data.classes == 3 and document(found)["data"]["records"] == 200


BAD: list[tuple[dict[str, Any], str]] = [
    ({"noise": []}, "noise must hold at least one value"),
    ({"clip": []}, "clip must hold at least one value"),
    ({"noise": None, "epsilon": []}, "epsilon must hold at least one value"),
    ({"noise": [-1.0]}, r"noise must be in \(0, inf\), got -1.0"),
    ({"noise": [0.0]}, r"noise must be in \(0, inf\), got 0.0"),
    ({"noise": [float("nan")]}, "noise must be a number"),
    ({"noise": [float("inf")]}, "noise must be in"),
    ({"noise": [1e7]}, "noise must be such that ε at δ = 1e-05 is above 0 and finite, got 1e\\+07 with ε = 0"),
    ({"noise": ["much"]}, "noise must be a number in .* got 'much'"),
    ({"noise": "1,2"}, "noise must be a list of numbers"),
    ({"noise": 1.0}, "noise must be a list of numbers"),
    ({"noise": [1.0, 2.0, 1.0]}, "noise must name each value once, got 1 twice"),
    ({"clip": [0.1, 0.1]}, "clip must name each value once, got 0.1 twice"),
    ({"clip": [0.0]}, "clip must be in"),
    ({"clip": [1e39]}, "clip_norm must be in"),
    ({"clip": [None]}, "clip must be a number"),
    ({"epsilon": [1.0]}, "takes noise or epsilon, got both"),
    ({"noise": None, "epsilon": [0.0]}, "epsilon must be in"),
    ({"repeats": 1}, "repeats must be a whole number of at least 2, got 1"),
    ({"repeats": 2.5}, "repeats must be a whole number"),
    ({"delta": 0.0}, r"delta must be in \(0, 1\)"),
    ({"delta": 1.0}, r"delta must be in \(0, 1\)"),
    ({"within": -0.1}, "within must be in"),
    ({"within": 1.5}, "within must be in"),
    ({"budget": 0.0}, "budget must be in"),
    ({"budget": 0.1}, "budget must be at least the smallest ε of the grid"),
    ({"trainer": "adam"}, r"one of the spec's of the kind dp-sgd \(dp-sgd, forgotten-noise\), got 'adam'"),
    ({"trainer": "sgd"}, "trainer must be one of"),
    ({"workers": 0}, "workers must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_bad_input_is_named_and_leaves_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        explore(small_spec(), tmp_path / "out", **{**OPTIONS, **changes})
    assert not (tmp_path / "out").exists()


def test_a_spec_without_dp_sgd(tmp_path: Path) -> None:
    spec = small_spec()
    spec["trainers"] = spec["trainers"][:1]
    with pytest.raises(InputError, match="a spec without any"):
        explore(spec, tmp_path / "out")


def test_data_without_test_records(tmp_path: Path) -> None:
    spec = small_spec(data={"source": "digits", "records": 150, "test": 1})
    with pytest.raises(InputError, match="at least 2 test records"):
        explore(spec, tmp_path / "out", **OPTIONS)
