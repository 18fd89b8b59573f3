"""A user's model: nothing in a file runs unasked, columns are matched by name, records are asked in batches."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.inference.models import BATCH, ask, load_model

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.array(["cat", "dog", "ant"])[np.arange(60) % 3]


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def fitted() -> Any:
    linear = pytest.importorskip("sklearn.linear_model")
    return linear.LogisticRegression().fit(X, Y)


def test_columns_are_matched_by_classes_and_not_by_place() -> None:
    model = fitted()
    answers = ask(model, X, Y, "m")
    assert answers.classes == ("ant", "cat", "dog") and answers.kind == "probabilities"
    model.classes_, model.coef_ = model.classes_[::-1].copy(), model.coef_[::-1].copy()
    model.intercept_ = model.intercept_[::-1].copy()
    turned = ask(model, X, Y, "m")
    assert turned.classes == ("dog", "cat", "ant")
    assert turned.values[:, ::-1] == pytest.approx(answers.values)


def test_a_label_that_the_model_never_saw_has_probability_zero() -> None:
    answers = ask(fitted(), X, np.append(Y[:-1], "yak"), "m")
    assert answers.classes == ("ant", "cat", "dog", "yak")
    assert (answers.values[:, 3] == 0).all()
    assert answers.values.sum(axis=1) == pytest.approx(1.0)


def test_a_model_that_knows_none_of_the_labels() -> None:
    with pytest.raises(InputError, match=r"m must know some of the labels \(0, 1\), got the classes ant, cat, dog"):
        ask(fitted(), X, np.arange(60) % 2, "m")


def test_numbers_as_classes_match_numbers_of_any_kind() -> None:
    trees = pytest.importorskip("sklearn.tree")
    model = trees.DecisionTreeClassifier(max_depth=1).fit(X, np.arange(60) % 2 * 5)
    for labels in (np.array([0, 5] * 30), np.array([0.0, 5.0] * 30), np.array(["0", "5"] * 30)):
        assert ask(model, X, labels, "m").classes == ("0", "5")


def test_records_are_asked_in_batches() -> None:
    sizes = []

    def model(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x))
        return np.stack([x[:, 0], -x[:, 0]], axis=1)

    x = np.arange(2.0 * BATCH + 5)[:, None]
    answers = ask(model, x, None, "m")
    assert sizes == [BATCH, BATCH, 5]
    assert (answers.values[:, 0] == x[:, 0]).all()
    assert answers.kind == "logits"


def test_outputs_that_sum_to_one_are_probabilities() -> None:
    assert ask(lambda x: np.full((len(x), 4), 0.25), X, None, "m").kind == "probabilities"
    assert ask(lambda x: np.full((len(x), 4), 0.3), X, None, "m").kind == "logits"
    assert ask(lambda x: np.tile([2.0, -1.0], (len(x), 1)), X, None, "m").kind == "logits"


def test_a_model_of_dpaudits_own_kind() -> None:
    class Mine:
        def logits(self, x: np.ndarray) -> np.ndarray:
            return np.asarray(x)[:, :2]

    assert ask(Mine(), X, None, "m").kind == "logits"


def test_a_torch_module_is_asked_without_dropout() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
    one, two = (ask(module.train(), X, None, "m").values for _ in range(2))
    assert (one == two).all() and one.shape == (60, 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: np.zeros(len(x)), "classes"),
        (lambda x: np.zeros((len(x), 1)), "at least 2 classes"),
        (lambda x: np.zeros((3, 2)), "must give"),
        (lambda x: np.full((len(x), 2), np.nan), "finite"),
        (lambda x: [["a", "b"]] * len(x), "numbers"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x: sys.exit(0), "SystemExit: 0"),
        (lambda x: np.full((len(x), 2), 1j), "real numbers, got complex128"),
        (object(), "must be a function of x"),
        (dict, "the class dict"),
    ],
)
def test_answers_that_are_none(model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(model, X, None, "m")


def test_predict_proba_without_classes() -> None:
    class Nameless:
        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return np.full((len(x), 2), 0.5)

    with pytest.raises(InputError, match="classes_"):
        ask(Nameless(), X, None, "m")


def test_probabilities_that_are_none() -> None:
    class Thrice:
        classes_ = np.array(["cat", "dog"])

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return np.full((len(x), 2), 1.5)

    with pytest.raises(InputError, match=r"m must give rows of predict_proba .* got \[1.5, 1.5\]"):
        ask(Thrice(), X, None, "m")
    with pytest.raises(InputError, match="the class Thrice"):
        ask(Thrice, X, None, "m")


class TestFiles:
    def test_a_pickle_or_a_module_that_ends_the_program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "m.pkl").write_bytes(b"csys\nexit\n(I0\ntR.")
        with pytest.raises(InputError, match="SystemExit: 0"):
            load_model(str(tmp_path / "m.pkl"), unpickle=True)
        (tmp_path / "model_that_ends_it.py").write_text("raise SystemExit(0)\n")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match="it ended the program with 0"):
            load_model("model_that_ends_it:f")

    def test_a_pickle_is_not_loaded_unasked(self, tmp_path: Path) -> None:
        left = tmp_path / "left-behind"
        for ending in (".pkl", ".pickle", ".joblib", ".pt", ".pth"):
            path = tmp_path / f"model{ending}"
            path.write_bytes(pickle.dumps(Bomb(str(left))))
            with pytest.raises(InputError, match="runs any code"):
                load_model(str(path))
        assert not left.exists()
        load_model(str(tmp_path / "model.pkl"), unpickle=True)
        assert left.is_dir()  # the flag says what it risks

    def test_pickles_that_are_asked_for(self, tmp_path: Path) -> None:
        joblib = pytest.importorskip("joblib")
        (tmp_path / "m.pkl").write_bytes(pickle.dumps(fitted()))
        joblib.dump(fitted(), tmp_path / "m.joblib")
        for name in ("m.pkl", "m.joblib"):
            model = load_model(str(tmp_path / name), unpickle=True)
            assert model.predict_proba(X) == pytest.approx(fitted().predict_proba(X))

    def test_a_torch_pickle(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        torch.save(torch.nn.Linear(3, 2), tmp_path / "m.pt")
        assert ask(load_model(str(tmp_path / "m.pt"), unpickle=True), X, None, "m").values.shape == (60, 2)

    def test_skops(self, tmp_path: Path) -> None:
        io = pytest.importorskip("skops.io")
        io.dump(fitted(), tmp_path / "m.skops")
        model = load_model(str(tmp_path / "m.skops"))
        assert model.predict_proba(X) == pytest.approx(fitted().predict_proba(X))

    def test_types_that_are_not_trusted_are_listed_and_not_made(self, tmp_path: Path) -> None:
        io = pytest.importorskip("skops.io")
        preprocessing = pytest.importorskip("sklearn.preprocessing")
        pipeline = pytest.importorskip("sklearn.pipeline")
        function = preprocessing.FunctionTransformer(np.linalg.norm, kw_args={"axis": 1, "keepdims": True})
        io.dump(pipeline.make_pipeline(function, fitted().fit(X[:, :1], Y)), tmp_path / "m.skops")
        path = str(tmp_path / "m.skops")
        (name,) = io.get_untrusted_types(file=path)
        with pytest.raises(InputError, match=f"--trust {name}"):
            load_model(path)
        assert load_model(path, trust=[name]).predict_proba(X).shape == (60, 3)
        with pytest.raises(InputError, match=name):
            load_model(path, trust=["another.type"])

    def test_damaged_and_missing_files(self, tmp_path: Path) -> None:
        pytest.importorskip("skops")
        (tmp_path / "m.skops").write_bytes(b"not a zip")
        with pytest.raises(InputError, match="written by skops"):
            load_model(str(tmp_path / "m.skops"))
        (tmp_path / "m.pkl").write_bytes(b"not a pickle")
        with pytest.raises(InputError, match="could not be loaded"):
            load_model(str(tmp_path / "m.pkl"), unpickle=True)
        with pytest.raises(InputError, match="does not exist"):
            load_model(str(tmp_path / "none.skops"))
        with pytest.raises(InputError, match="module:name"):
            load_model("model.bin")


class TestNames:
    def test_a_function_of_the_current_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_model_b.py").write_text("def predict(x):\n    return [[0.5, 0.5] for _ in x]\n")
        monkeypatch.chdir(tmp_path)
        model = load_model("my_model_b:predict")
        assert ask(model, X, None, "m").kind == "probabilities"

    @pytest.mark.parametrize("target", ["no_such_module_b:f", "numpy:no_such_function"])
    def test_what_is_not_there(self, target: str) -> None:
        with pytest.raises(InputError):
            load_model(target)
