"""Files of scores: what is read, and one clear line for what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit import Design
from dpaudit.data.scores import METADATA, read_scores, read_tensors, tensor_bytes
from dpaudit.errors import InputError

PAIRS = """run,canary,member,score
0,b,0,0.25
0,a,1,1.5
1,a,false,-2
1,b,TRUE,3e1
"""


def write(folder, text, name="scores.csv", encoding="utf-8"):
    path = folder / name
    path.write_text(text, encoding=encoding)
    return path


def test_csv_of_pairs(tmp_path):
    obs = read_scores(write(tmp_path, PAIRS))
    assert obs.runs == ("0", "1") and obs.canaries == ("a", "b")
    assert obs.scores.tolist() == [[1.5, 0.25], [-2, 30]]
    assert obs.member.tolist() == [[True, False], [False, True]]
    assert obs.design == Design()


def test_csv_of_one_run(tmp_path):
    obs = read_scores(write(tmp_path, "score,member\n1,1\n2,0\n3,0\n"))
    assert obs.shape == (1, 3) and obs.scores.tolist() == [[1, 2, 3]]


def test_csv_of_one_canary(tmp_path):
    obs = read_scores(write(tmp_path, "run,canary,member,score\n1,c,1,2\n2,c,0,1\n"), Design(coins="worlds"))
    assert obs.shape == (2, 1) and obs.design.coins == "worlds"


def test_the_order_of_rows_and_columns_never_matters(tmp_path):
    head, *rows = PAIRS.splitlines()
    shuffled = "\n".join([head, *rows[::-1]])
    swapped = "\n".join(",".join(line.split(",")[::-1]) for line in PAIRS.splitlines())
    first = read_scores(write(tmp_path, PAIRS))
    for other in (shuffled, swapped):
        obs = read_scores(write(tmp_path, other))
        assert np.array_equal(obs.scores, first.scores) and np.array_equal(obs.member, first.member)


def test_runs_are_ordered_by_number(tmp_path):
    rows = "".join(f"{r},c,{r % 2},{r}\n" for r in (10, 9, 2))
    assert read_scores(write(tmp_path, "run,canary,member,score\n" + rows)).runs == ("2", "9", "10")


def test_names_that_look_like_no_number_are_ordered_too(tmp_path):
    rows = "".join(f"{r},c,{m},1\n" for r, m in (("nan", 1), ("2", 0), ("x", 1), ("1", 0)))
    assert read_scores(write(tmp_path, "run,canary,member,score\n" + rows)).runs == ("1", "2", "nan", "x")


def test_an_empty_score_was_never_taken(tmp_path):
    obs = read_scores(write(tmp_path, PAIRS.replace("0,a,1,1.5", "0,a,1,")))
    assert obs.present.tolist() == [[False, True], [True, True]]


def test_other_columns_blank_lines_spaces_and_byte_order_marks_are_passed_over(tmp_path):
    text = " member , score ,note\n\n1, 2 ,x\n0,1,y\n\n"
    assert read_scores(write(tmp_path, text, encoding="utf-8-sig")).scores.tolist() == [[2, 1]]


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "got an empty file"),
        ("\n\n", "got an empty file"),
        ("member,score\n", "at least one row"),
        ("member\n1\n", "one column 'score'"),
        ("score\n1\n", "one column 'member'"),
        ("member,score,score\n1,1,1\n", "one column 'score'"),
        ("member,score,run,run\n1,1,1,1\n", "one column 'run'"),
        ("member,score\n1\n", "line 2: must have 2 values, got 1"),
        ("member,score\n1,2,3\n", "line 2: must have 2 values, got 3"),
        ("member,score\n1,0.5\n\n\n0,x\n", "line 5: score must be a finite number, got 'x'"),
        ("member,score\n1,nan\n0,1\n", "line 2: score must be a finite number, got 'nan'"),
        ("member,score\n1,-inf\n0,1\n", "score must be a finite number"),
        ("member,score\n2,1\n0,1\n", "line 2: member must be 1, 0, true or false, got '2'"),
        ("member,score\nyes,1\n", "member must be 1, 0"),
        ("member,score\n,1\n", "member must be 1, 0"),
        ("member,score\n1,1\n1,2\n", "all members"),
        ("member,score\n0,1\n0,2\n", "no member"),
        ("run,canary,member,score\n1,a,1,1\n1,a,0,1\n", "scored once in a run, got canary 'a' twice in run '1'"),
        ("run,canary,member,score\n1,a,1,1\n2,b,0,1\n", "a row for every canary, got none for canary 'b' in run '1'"),
        ('member,score\n"1,1\n', "must be a CSV file"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_scores(write(tmp_path, text))
    assert "scores.csv" in str(caught.value) and "\n" not in str(caught.value)


def test_csv_that_is_not_text(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_bytes(b"member,score\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="must be a CSV file"):
        read_scores(path)


ARRAYS = {"scores": np.array([[1.0, 2.0], [3.0, 4.0]]), "member": np.array([[1, 0], [0, 1]], np.uint8)}


def save(folder, ending, arrays):
    path = folder / f"scores.{ending}"
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        path.write_bytes(tensor_bytes(arrays, {}))
    return path


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_arrays(tmp_path, ending):
    obs = read_scores(save(tmp_path, ending, {**ARRAYS, "present": np.array([[1, 1], [1, 0]], bool)}))
    assert obs.scores.tolist() == ARRAYS["scores"].tolist()
    assert obs.present.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize(
    "change,message",
    [
        ({"scores": None}, "must hold scores, got member"),
        ({"member": None}, "must hold member, got scores"),
        ({"scores": np.full((2, 2), np.nan)}, "scores must be finite"),
        ({"member": np.ones((2, 3))}, "member must have the shape"),
        ({"member": np.ones((2, 2))}, "all members"),
        ({"present": np.ones((1, 2))}, "present must have the shape"),
        ({"runs": np.array(3)}, "runs must be 2 different names"),
    ],
)
def test_bad_arrays(tmp_path, ending, change, message):
    arrays = {k: v for k, v in {**ARRAYS, **change}.items() if v is not None}
    with pytest.raises(InputError, match=message) as caught:
        read_scores(save(tmp_path, ending, arrays))
    assert f"scores.{ending}" in str(caught.value)


@pytest.mark.parametrize("ending", ["npz", "safetensors", "csv", "parquet"])
def test_damaged_files(tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"scores.{ending}"
    path.write_bytes(b"\x00\x01PK nothing of the kind \x80")
    with pytest.raises(InputError, match="must be"):
        read_scores(path)


def test_pickles_are_refused(tmp_path):
    path = tmp_path / "scores.npz"
    np.savez(path, scores=np.array([{}, {}], dtype=object), member=np.array([1, 0]))
    with pytest.raises(InputError, match="without pickled objects"):
        read_scores(path)


@pytest.mark.parametrize(
    "name,message", [("none.csv", "does not exist"), ("scores.xlsx", "'.xlsx'"), ("s", "no ending")]
)
def test_files_that_are_none_of_these(tmp_path, name, message):
    if not name.startswith("none"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=message):
        read_scores(tmp_path / name)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="must be a file"):
        read_scores(tmp_path)


def test_metadata_is_read_back(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensor_bytes(ARRAYS, {"a": [1, None]}))
    assert read_tensors(path)[1] == {"a": [1, None]}


def test_broken_metadata_is_the_files_mistake(tmp_path):
    from safetensors.numpy import save as save_tensors

    path = tmp_path / "x.safetensors"
    path.write_bytes(save_tensors({"scores": np.ones(2)}, metadata={METADATA: "{"}))
    with pytest.raises(InputError, match="metadata"):
        read_tensors(path)
