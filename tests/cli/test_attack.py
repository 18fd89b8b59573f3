"""`dpaudit attack` as a user meets it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.cli import main
from dpaudit.data.scores import read_scores
from dpaudit.records import Design

RECORDS = 200


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    """Losses alone: nothing beyond the base install is needed."""
    rng = np.random.default_rng(0)
    member = rng.random(RECORDS) < 0.5
    loss = rng.exponential(np.where(member, 0.3, 1.0))
    rows = [
        f"person-{i},{int(m)},{i % 3},{v:.6f},{'ab'[i % 2]}" for i, (m, v) in enumerate(zip(member, loss, strict=True))
    ]
    path = tmp_path / "losses.csv"
    path.write_text("\n".join(["id,member,label,loss,ward", *rows]) + "\n")
    return path


@pytest.fixture
def features(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, 4))
    np.savez(tmp_path / "people.npz", member=np.arange(RECORDS) % 2, x=x,
             labels=(x[:, 0] + rng.normal(size=RECORDS) > 0).astype(int))  # fmt: skip
    return tmp_path / "people.npz"


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_prints_the_report_and_leaves_it(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, text, err = call(capsys, "attack", losses, "--out", out, "--slice", "label", "--slice", "ward")
    assert code == 0
    assert text == (out / "release" / "report.txt").read_text(encoding="utf-8")
    assert err.splitlines() == [f"report: {out / 'release' / 'report.html'}"]
    assert "Again: dpaudit attack losses.csv --slice label --slice ward" in text
    assert "AUC, ward a" in text and "AUC, label 2" in text
    assert call(capsys, "attack", losses, "--out", out, "--slice", "label", "--slice", "ward")[1] == text
    obs = read_scores(out / "retained" / "scores-loss.safetensors", Design(coins="fixed"))
    assert obs.shape == (1, RECORDS)


def test_json_is_one_document(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--attack", "loss", "--prior", "0.01", "--significance", "0.01", "--seed", "98765")
    code, text, _ = call(capsys, "attack", losses, "--out", tmp_path / "out", "--json", *options)
    facts = json.loads(text)
    assert code == 0
    assert facts == json.loads((tmp_path / "out" / "release" / "report.json").read_text(encoding="utf-8"))
    assert (facts["prior"], facts["rule"]["significance"]) == (0.01, 0.01)
    assert "98765" not in text and "another seed" in facts["command"]
    assert [a["name"] for a in facts["attacks"]] == ["loss"]


def test_another_plan_is_refused_until_fresh(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "attack", losses, "--out", tmp_path / "out")
    other = ("attack", losses, "--out", tmp_path / "out", "--prior", "0.3")
    code, _, err = call(capsys, *other)
    assert code == 2 and "settings.prior was None and is 0.3" in err and "--fresh" in err
    assert call(capsys, *other, "--fresh")[0] == 0
    losses.write_text(losses.read_text().replace(",0.", ",1."))
    code, _, err = call(capsys, *other)
    assert code == 2 and "evidence.losses was" in err


def test_bound_reads_what_is_retained(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "attack", losses, "--out", tmp_path / "out")
    scores = tmp_path / "out" / "retained" / "scores-loss.safetensors"
    options = ("--delta", "1e-5", "--coins", "fixed", "--calibration", "none", "--json")
    code, text, _ = call(capsys, "bound", scores, *options)
    assert code == 0 and json.loads(text)["audits"]


class TestModels:
    def test_skops(self, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        io, trees = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.tree")
        with np.load(features) as held:
            inside = held["member"] == 1
            model = trees.DecisionTreeClassifier(random_state=0).fit(held["x"][inside], held["labels"][inside])
        io.dump(model, tmp_path / "tree.skops")
        line = ("attack", features, "--model", tmp_path / "tree.skops", "--out", tmp_path / "out", "--json")
        code, _, err = call(capsys, *line)
        assert code == 2 and "--trust sklearn.tree._tree.Tree" in err
        code, text, _ = call(capsys, *line, "--trust", "sklearn.tree._tree.Tree")
        facts = json.loads(text)
        (gap,) = (a for a in facts["attacks"] if a["name"] == "correctness")
        assert code == 0 and gap["significant"] and gap["auc"]["value"] > 0.6  # an over-fit tree knows its members
        assert facts["biased_split"] is False
        assert any("predict_proba" in sentence for sentence in facts["assumptions"])
        assert "--model tree.skops" in facts["command"] and str(tmp_path) not in text

    def test_a_function(
        self, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("sklearn")
        lines = "import numpy as np\ndef outputs(x):\n    return np.stack([-x[:, 0], x[:, 0]], axis=1)\n"
        (tmp_path / "model_of_test_attack.py").write_text(lines)
        monkeypatch.chdir(tmp_path)
        code, text, _ = call(
            capsys, "attack", features, "--model", "model_of_test_attack:outputs", "--out", "o", "--json"
        )
        facts = json.loads(text)
        assert code == 0 and not facts["findings"]  # it was trained on nobody
        assert "--model model_of_test_attack:outputs" in facts["command"]

    def test_what_a_model_prints_is_no_part_of_the_report(
        self, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("sklearn")
        lines = "print('loading')\ndef outputs(x):\n    print('asked')\n    return x[:, :2]\n"
        (tmp_path / "model_that_prints.py").write_text(lines)
        monkeypatch.chdir(tmp_path)
        code, text, err = call(capsys, "attack", features, "--model", "model_that_prints:outputs", "--json")
        assert code == 0 and json.loads(text)["attacks"]
        assert "loading" in err and "asked" in err

    def test_a_pickle_only_when_told(self, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trees = pytest.importorskip("sklearn.tree")
        with np.load(features) as held:
            model = trees.DecisionTreeClassifier(max_depth=2).fit(held["x"], held["labels"])
        (tmp_path / "tree.pkl").write_bytes(pickle.dumps(model))
        line = ("attack", features, "--model", tmp_path / "tree.pkl", "--out", tmp_path / "out")
        code, out, err = call(capsys, *line)
        assert (code, out) == (2, "") and "any code" in err and len(err.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()
        assert call(capsys, *line, "--unpickle", "--json")[0] == 0

    def test_features_must_be_there(self, losses: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = call(capsys, "attack", losses, "--model", "numpy:sin")
        assert code == 2 and "must hold x" in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--attack", "magic"), "attack must be one of loss, confidence"),
        (("--attack", "lira"), "lira needs the same from shadow models"),
        (("--prior", "1.5"), "prior must be in (0, 1)"),
        (("--prior", "nan"), "prior must be a number"),
        (("--slice", "nobody"), "must have the column 'nobody' to slice by"),
        (("--slice", "id"), "'id' to slice by"),
        (("--shadows", "nowhere.npz"), "does not exist"),
        (("--trust", "a.b"), "--trust must come with --model"),
        (("--unpickle",), "--unpickle must come with --model"),
        (("--models", "0"), "--models must not be given with a source without --vulnerable"),
        (("--vulnerable", "--prior", "0"), "--prior must not be given with --vulnerable"),
        (("--shortlist", "5"), "--shortlist must not be given with a source without --vulnerable"),
        (("--vulnerable", "--prior", "0.1"), "--prior must not be given with --vulnerable"),
        (("--seed", "-1"), "seed"),
    ],
)
def test_a_mistake_is_one_clear_line(
    losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: str
) -> None:
    code, out, err = call(capsys, "attack", losses, *options, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and named in err
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_why_no_attack_could_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not what other attacks would have needed."""
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(["member,loss,ward", *(f"{i % 2},{i}.5,w{i}" for i in range(120))]))
    code, _, err = call(capsys, "attack", path, "--slice", "ward", "--out", tmp_path / "out")
    assert code == 2 and "ward must have at most 100 different values" in err and "needs" not in err


def test_vulnerable_gets_its_options_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpaudit.cli import vulnerable

    seen: dict[str, Any] = {}

    def stand_in(source: str, **options: Any) -> int:
        seen.update(options, source=source)
        return 1

    monkeypatch.setattr(vulnerable, "vulnerable", stand_in)
    options = ("--shortlist", 7, "--models", 64, "--epsilon", 8, "--epsilon", 1, "--records", 500, "--workers", 2)
    code, _, _ = call(
        capsys, "attack", "digits", "--vulnerable", *options, "--seed", 3, "--out", tmp_path / "o", "--json"
    )
    assert code == 1
    assert seen == {
        "source": "digits", "shortlist": 7, "models": 64, "epsilons": (8.0, 1.0), "records": 500, "workers": 2,
        "seed": 3, "out": tmp_path / "o", "fresh": False, "as_json": True,
    }  # fmt: skip


def test_a_folder_of_somebody_else_is_refused(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("two years of work")
    code, _, err = call(capsys, "attack", losses, "--out", tmp_path / "mine")
    assert code == 2 and "others' files" in err


def test_help_says_what_unpickling_risks(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "attack", "--help")
    assert code == 0 and "RUNS ANY CODE" in " ".join(text.split())


def test_losses_need_no_training_library(losses: Path, tmp_path: Path) -> None:
    """Not even scikit-learn, where there are no features to ask without the model."""
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'skops', 'joblib'): sys.modules[name] = None\n"
        f"from dpaudit.cli import main\nmain(['attack', {str(losses)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "share of members per label" in done.stdout
