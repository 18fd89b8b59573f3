"""Data sets and files: what is drawn, and one clear line for each thing that can be wrong with a file."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpaudit.data import Pool, load, unused_features
from dpaudit.data.idx import DEBIAN_FOLDER
from dpaudit.errors import InputError

X = np.arange(24, dtype=np.float64).reshape(12, 2)
Y = np.arange(12) % 3
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def refused(match, *args, **kwargs):
    with pytest.raises(InputError, match=match) as caught:
        load(*args, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return path

    return write


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "mine.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# ---- dividing -------------------------------------------------------------------------------------------------------


def test_the_parts_are_disjoint_and_keep_labels_with_records(npz):
    pool = load(npz(x=X, y=Y), records=5, test=3, seed=4)
    assert isinstance(pool, Pool) and len(pool) == 5
    assert (len(pool.x_test), len(pool.x_spare)) == (3, 4)
    rows = np.concatenate([pool.x, pool.x_test, pool.x_spare])
    assert sorted(rows[:, 0]) == list(X[:, 0])
    for x, y in ((pool.x, pool.y), (pool.x_test, pool.y_test), (pool.x_spare, pool.y_spare)):
        np.testing.assert_array_equal(x[:, 0] / 2 % 3, y)
    assert [f"mine-{int(v)}" for v in pool.x[:, 0] / 2] == list(pool.ids)
    assert [f"mine-{int(v)}" for v in pool.x_spare[:, 0] / 2] == list(pool.spare_ids)


def test_the_seed_draws_the_parts(npz):
    path = npz(x=X, y=Y)
    assert load(path, 5, seed=1).ids == load(path, 5, seed=1).ids != load(path, 5, seed=2).ids


def test_more_records_contain_the_fewer(npz):
    path = npz(x=X, y=Y)
    assert load(path, 8, test=2).ids[:5] == load(path, 5, test=2).ids


def test_without_a_wish_a_fifth_is_for_testing_and_nothing_is_spare(npz):
    pool = load(npz(x=X, y=Y))
    assert (len(pool.x), len(pool.x_test), len(pool.x_spare)) == (10, 2, 0)


def test_a_test_set_of_its_own_is_used(npz):
    path = npz(x=X, y=Y, x_test=-X[:4], y_test=Y[:4])
    pool = load(path)
    assert (len(pool.x), len(pool.x_test), len(pool.x_spare)) == (12, 4, 0)
    assert (pool.x_test <= 0).all()
    assert len(load(path, 6, test=3).x_test) == 3
    refused("mine has 4 records for the test part, got a wish for 5", path, test=5)


def test_more_than_there_is_is_refused_with_numbers(npz):
    path = npz(x=X, y=Y)
    refused("mine has 10 records for the training part, got a wish for 11", path, 11)
    refused("mine has 11 records for the test part, got a wish for 12", path, test=12)
    refused("records must be a whole number", path, 0)
    refused("test must be a whole number", path, test=-1)
    refused("seed must be a whole number", path, seed=-1)


def test_pools_are_read_only_and_become_data(npz):
    pool = load(npz(x=X, y=Y), 6)
    assert not pool.x.flags.writeable
    data = pool.as_data(nominal_size=5)
    assert (len(data), data.nominal_size, data.ids, data.name) == (6, 5, pool.ids, "mine")


def test_unused_features_are_zero_everywhere():
    assert unused_features(np.array([[0, 1, 0, -2], [0, 0, 0, 0]])) == (0, 2)
    with pytest.raises(InputError, match="shape"):
        unused_features(np.zeros(3))


# ---- bundled --------------------------------------------------------------------------------------------------------


def test_digits_are_images_in_the_unit_interval():
    pytest.importorskip("sklearn")
    pool = load("digits", 1000)
    assert pool.x.shape == (1000, 64) and pool.shape == (8, 8) and pool.classes == 10
    assert (pool.x.min(), pool.x.max()) == (0.0, 1.0)
    assert (len(pool.x_test), len(pool.x_spare)) == (359, 438)
    assert set(unused_features(pool.x)) >= {0, 32, 39}


def write_idx(folder: Path, name: str, array, zipped=False):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path = folder / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.fixture
def small_fashion(tmp_path):
    """Four small idx files, two of them gzipped."""
    images = np.arange(20 * 6).reshape(20, 2, 3) % 256
    write_idx(tmp_path, IDX[0], images, zipped=True)
    write_idx(tmp_path, IDX[1], np.arange(20) % 10)
    write_idx(tmp_path, IDX[2], images[:5])
    write_idx(tmp_path, IDX[3], np.arange(5), zipped=True)
    return tmp_path


def test_fashion_mnist_from_a_folder_zipped_or_not(small_fashion):
    pool = load("fashion-mnist", 8, folder=small_fashion)
    assert (len(pool.x), len(pool.x_test), len(pool.x_spare), pool.shape, pool.classes) == (8, 5, 12, (2, 3), 10)
    number = int(pool.ids[0].rsplit("-", 1)[1])
    np.testing.assert_allclose(pool.x[0], np.arange(6 * number, 6 * number + 6) % 256 / np.float32(255))
    assert pool.y[0] == number % 10


def test_fashion_mnist_that_is_missing_says_how_to_get_it(tmp_path):
    refused("apt-get install dataset-fashion-mnist, or name the folder", "fashion-mnist", folder=tmp_path / "absent")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda b: gzip.compress(gzip.decompress(b)[:-1]), "should hold 120 bytes"),
        (lambda b: gzip.compress(gzip.decompress(b) + b"0"), "should hold 120 bytes"),
        (lambda b: b[: len(b) // 2], "is damaged"),
        (lambda b: b"not gzip at all", "is damaged"),
        (lambda b: b[:12] + bytes(8) + b[20:], "is damaged"),
        (lambda b: gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(b)[4:]), "no idx file"),
        (lambda b: gzip.compress(b""), "no idx file"),
    ],
)
def test_damaged_idx_files_are_named(small_fashion, damage, match):
    path = small_fashion / f"{IDX[0]}.gz"
    path.write_bytes(damage(path.read_bytes()))
    refused(f"{IDX[0]}.*{match}", "fashion-mnist", folder=small_fashion)


def test_images_and_labels_must_be_as_many(small_fashion):
    write_idx(small_fashion, IDX[1], np.arange(19) % 10)
    refused("one label per record, got 20 and 19", "fashion-mnist", folder=small_fashion)
    write_idx(small_fashion, IDX[1], np.arange(20))
    refused("from 0 to 9", "fashion-mnist", folder=small_fashion)


@pytest.mark.skipif(not Path(DEBIAN_FOLDER).is_dir(), reason="apt-get install dataset-fashion-mnist")
def test_the_real_fashion_mnist():
    pool = load("fashion-mnist", 1000, test=500)
    assert pool.x.shape == (1000, 784) and pool.shape == (28, 28) and pool.classes == 10
    assert (len(pool.x_test), len(pool.x_spare)) == (500, 59_000)
    assert (pool.x.min(), pool.x.max()) == (0.0, 1.0)
    assert np.bincount(pool.y_spare, minlength=10).min() > 5800  # 6,000 of each class, less about 100 drawn


# ---- files of the user's --------------------------------------------------------------------------------------------


def test_images_in_a_file_keep_their_shape(npz):
    pool = load(npz(x=X.reshape(12, 2, 1), y=Y))
    assert pool.shape == (2, 1) and pool.x.shape[1] == 2


def test_safetensors_hold_the_same(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "mine.safetensors"
    safetensors.save_file({"x": X, "y": Y, "x_test": X, "y_test": Y}, path)
    assert load(path).ids[0].startswith("mine-")
    path.write_bytes(path.read_bytes()[:40])
    refused("no safetensors file", path)
    safetensors.save_file({"x": X}, path)
    refused("y is missing, there is x", path)


def test_csv_holds_the_same(csv):
    pool = load(csv('\ufeffa,"label",b\n1,0,2.5\n3,1,-4e1\n\n"5",2,6\n'), test=0)
    rows = {tuple(x): y for x, y in zip(pool.x.tolist(), pool.y.tolist(), strict=True)}
    assert rows == {(1, 2.5): 0, (3, -40): 1, (5, 6): 2}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "header"),
        ("\n", "header"),
        ("a,b\n1,2\n", "one column 'label', got 0 in: a, b"),
        ("label,label,a\n1,2,3\n", "one column 'label', got 2"),
        ("label\n1\n", "a column of numbers beside"),
        ("label,a\n", "at least one record"),
        ("label,a\n0,1\n1,red\n", "line 3: a must be a number, got 'red'"),
        ("label,a\n0,1\n1,\n", "line 3: a must be a number, got ''"),
        ("label,a\n0,1\n1,2,3\n", "line 3: there must be 2 cells, got 3"),
        ("label,a\n0,1,5\n1,2,3\n", "2 cells"),
        ("label,a\n0,1\n1,nan\n", "finite"),
        ("label,a\n0,1\n1.5,2\n", "whole numbers from 0, got 1.5 at number 1"),
        ("label,a\n0,1\n-1,2\n", "whole numbers from 0, got -1"),
        ("label,a\n0,1\n48210,2\n", "class numbers"),
        ("label,a\n0,1\n0,2\n", "class numbers"),
        ("label,a\n0,1\ncat,2\n", "line 3: label must be a number, got 'cat'"),
    ],
)
def test_each_fault_of_a_csv_has_its_line(csv, text, match):
    refused(f"mine.csv.*{match}", csv(text))


def test_a_csv_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"\xff\xfe\x00")
    refused("UTF-8", tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": X}, "y is missing, there is x"),
        ({"x": X, "y": Y, "x_test": X}, "y_test is missing"),
        ({"x": X, "y": Y[:-1]}, "one label per record, got 12 and 11"),
        ({"x": X[:, 0], "y": Y}, r"\(records, features\)"),
        ({"x": X[:0], "y": Y[:0]}, "non-empty"),
        ({"x": X, "y": X}, r"labels of the records must have the shape \(records,\)"),
        ({"x": X, "y": Y.astype(str)}, "whole numbers"),
        ({"x": X.astype(str), "y": Y}, "must be numbers"),
        ({"x": np.where(X == 4, np.nan, X), "y": Y}, "the first is number 2"),
        ({"x": X * 1e300, "y": Y}, "finite in 32 bits"),
        ({"x": X, "y": np.where(Y == 1, np.nan, Y)}, "whole numbers"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "other shapes"),
        ({"x": X.astype(object), "y": Y}, "x holds Python objects, which are never unpickled"),
    ],
)
def test_each_fault_of_an_npz_has_its_line(npz, arrays, match):
    refused(f"mine.npz.*{match}", npz(**arrays))


def test_other_files_are_refused(tmp_path):
    refused("no file", tmp_path / "absent.npz")
    refused("source must be digits, fashion-mnist or a path", "mnist")
    refused("source must be digits, fashion-mnist or a path", tmp_path / "mine.pkl")
    path = tmp_path / "mine.npz"
    for content in (b"", b"rubbish", b"PK\x03\x04rubbish"):
        path.write_bytes(content)
        refused("no npz archive", path)
    with path.open("wb") as file:
        np.save(file, X)
    refused("single array", path)
