"""Files in, evidence out: the same from every format, joined by id, and refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpaudit.attacks.signals import cross_entropy
from dpaudit.errors import InputError
from dpaudit.inference import read_source

from .conftest import RECORDS, SHADOWS, Arrays, rows_of


def test_npz_holds_everything(arrays: Arrays, whole: Path) -> None:
    source = read_source(whole, slices=["site", "label"])
    assert source.name == "whole.npz"
    assert (source.member == arrays["member"]).all()
    assert source.ids == tuple(arrays["ids"])
    assert set(source.evidence.present) == {
        "losses", "outputs", "labels", "shadows", "shadow outputs", "population", "shadow population"
    }  # fmt: skip
    assert (source.evidence.shadow_logits == arrays["shadow_logits"]).all()
    assert list(source.groups) == ["site", "label"]


def test_csv_says_the_same(arrays: Arrays, plain_csv: Path) -> None:
    source = read_source(plain_csv, slices=["site"])
    assert source.evidence.logits == pytest.approx(arrays["logits"])
    assert (source.evidence.labels == arrays["labels"]).all()
    assert source.x == pytest.approx(arrays["x"])
    assert source.groups["site"].tolist() == arrays["site"].tolist()


def test_safetensors_says_the_same(arrays: Arrays, tmp_path: Path) -> None:
    kept = {k: np.ascontiguousarray(v) for k, v in arrays.items() if k not in ("ids", "site")}
    save_file(kept, tmp_path / "w.safetensors")
    source = read_source(tmp_path / "w.safetensors")
    assert (source.evidence.logits == arrays["logits"]).all() and source.ids is None


def test_parquet_says_the_same(arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    table = csv.read_csv(plain_csv)
    assert isinstance(table, pa.Table)
    parquet.write_table(table, tmp_path / "w.parquet")
    source = read_source(tmp_path / "w.parquet")
    assert source.evidence.logits == pytest.approx(arrays["logits"])
    assert source.ids == tuple(arrays["ids"])


def test_losses_or_probabilities_do_as_well(arrays: Arrays, tmp_path: Path) -> None:
    losses = cross_entropy(arrays["logits"], arrays["labels"])
    p = np.exp(arrays["logits"]) / np.exp(arrays["logits"]).sum(axis=1, keepdims=True)
    np.savez(tmp_path / "l.npz", member=arrays["member"], losses=losses)
    np.savez(tmp_path / "p.npz", member=arrays["member"], probs=p, label=arrays["labels"])
    assert read_source(tmp_path / "l.npz").evidence.target == pytest.approx(losses)
    assert read_source(tmp_path / "p.npz").evidence.target == pytest.approx(losses)


def test_columns_named_by_class_match_labels_by_name(tmp_path: Path) -> None:
    rows = ["member,label,prob_dog,prob_cat,prob_ant", "1,cat,0.2,0.7,0.1", "0,dog,0.5,0.25,0.25", "1,ant,0.3,0.3,0.4"]
    (tmp_path / "named.csv").write_text("\n".join(rows))
    source = read_source(tmp_path / "named.csv")
    assert np.exp(-source.evidence.target) == pytest.approx([0.7, 0.5, 0.4])


def test_columns_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    header = ",".join(["member", "label", *(f"logit_{i}" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9))])
    values = dict.fromkeys(range(11), 0.0) | {10: 3.0}
    cells = [values[i] for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    (tmp_path / "w.csv").write_text(
        "\n".join([header, ",".join(map(str, [1, 10, *cells])), f"0,2,{','.join(map(str, cells))}"])
    )
    assert read_source(tmp_path / "w.csv").evidence.logits.argmax(axis=1).tolist() == [10, 10]


class TestJoining:
    def shadows(self, arrays: Arrays, tmp_path: Path, order: np.ndarray, **change: object) -> Path:
        held = {"logits": arrays["shadow_logits"][:, order], "member": arrays["shadow_member"][:, order],
                "ids": arrays["ids"][order]} | change  # fmt: skip
        np.savez(tmp_path / "s.npz", **{k: v for k, v in held.items() if v is not None})
        return tmp_path / "s.npz"

    def test_by_id_and_never_by_position(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        order = np.random.default_rng(0).permutation(RECORDS)
        source = read_source(plain_csv, shadows=self.shadows(arrays, tmp_path, order))
        assert (source.evidence.shadow_logits == arrays["shadow_logits"]).all()
        assert (source.evidence.shadow_member == arrays["shadow_member"]).all()
        assert source.notes == ()

    def test_without_ids_by_position_and_said(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        path = self.shadows(arrays, tmp_path, np.arange(RECORDS), ids=None)
        (note,) = read_source(plain_csv, shadows=path).notes
        assert "no ids" in note

    def test_shadows_may_know_more_records(self, arrays: Arrays, tmp_path: Path) -> None:
        few = tmp_path / "few.csv"
        few.write_text("\n".join(rows_of(arrays, np.arange(10, 40))) + "\n")
        source = read_source(few, shadows=self.shadows(arrays, tmp_path, np.arange(RECORDS)))
        assert (source.evidence.shadow_logits == arrays["shadow_logits"][:, 10:40]).all()

    def test_a_record_that_the_shadows_lack(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=f"none with the id '{arrays['ids'][0]}'"):
            read_source(plain_csv, shadows=self.shadows(arrays, tmp_path, np.arange(1, RECORDS)))

    def test_an_id_given_twice(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        ids = arrays["ids"].copy()
        ids[3] = ids[4]
        with pytest.raises(InputError, match="each record once"):
            read_source(plain_csv, shadows=self.shadows(arrays, tmp_path, np.arange(RECORDS), ids=ids))

    def test_as_many_records_without_ids(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=f"the source's {RECORDS} records, got 9"):
            read_source(plain_csv, shadows=self.shadows(arrays, tmp_path, np.arange(9), ids=None))

    def test_rows_per_shadow_and_record(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        losses = cross_entropy(arrays["shadow_logits"], arrays["labels"])
        member, ids = arrays["shadow_member"].astype(int), arrays["ids"]
        rows = [f"{s},{ids[i]},{member[s, i]},{losses[s, i]:.17g}" for s in range(SHADOWS) for i in range(RECORDS)]
        np.random.default_rng(1).shuffle(rows)
        path = tmp_path / "s.csv"
        path.write_text("\n".join(["shadow,id,member,loss", *rows]))
        source = read_source(plain_csv, shadows=path)
        assert source.evidence.shadow_losses == pytest.approx(losses)
        assert (source.evidence.shadow_member == arrays["shadow_member"]).all()
        path.write_text("\n".join(["shadow,id,member,loss", *rows[1:]]))
        with pytest.raises(InputError, match="one row for every shadow and record"):
            read_source(plain_csv, shadows=path)
        path.write_text("\n".join(["model,id,member,loss", *rows]))
        with pytest.raises(InputError, match=r"got shape .*, and no column shadow"):
            read_source(plain_csv, shadows=path)
        path.write_text("\n".join(["shadow,id,member,lost", *rows]))
        with pytest.raises(InputError, match="must hold losses, logits or probabilities of the shadows"):
            read_source(plain_csv, shadows=path)

    def test_shadows_in_both_files(self, arrays: Arrays, whole: Path, tmp_path: Path) -> None:
        """Else the one file's membership could meet the other file's losses."""
        losses = cross_entropy(arrays["shadow_logits"], arrays["labels"])
        path = self.shadows(arrays, tmp_path, np.arange(RECORDS), logits=None, losses=losses)
        with pytest.raises(InputError, match=r"shadow_logits must be in .*, got it in both"):
            read_source(whole, shadows=path)
        np.savez(tmp_path / "p.npz", losses=np.ones(5))
        with pytest.raises(InputError, match=r"population_logits must be in .*, got it in both"):
            read_source(whole, population=tmp_path / "p.npz")

    def test_shadows_with_other_classes(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        path = self.shadows(arrays, tmp_path, np.arange(RECORDS), classes=np.array("0"))
        with pytest.raises(InputError, match="classes of the source, in the same order"):
            read_source(plain_csv, shadows=path)

    @pytest.mark.parametrize("change", [{"ids": np.array([["a", "b"]])}, {"member": np.ones(RECORDS)}])
    def test_shadows_of_another_shape(
        self, arrays: Arrays, plain_csv: Path, tmp_path: Path, change: dict[str, object]
    ) -> None:
        with pytest.raises(InputError, match="got shape"):
            read_source(plain_csv, shadows=self.shadows(arrays, tmp_path, np.arange(RECORDS), **change))

    def test_a_population_of_its_own(self, arrays: Arrays, plain_csv: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "p.npz", logits=arrays["population_logits"], label=arrays["population_labels"],
                 shadow_logits=arrays["shadow_population_logits"])  # fmt: skip
        shadows = self.shadows(arrays, tmp_path, np.arange(RECORDS))
        source = read_source(plain_csv, shadows=shadows, population=tmp_path / "p.npz")
        assert source.evidence.has("population") and source.evidence.has("shadow population")
        assert (source.evidence.shadow_population_logits == arrays["shadow_population_logits"]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 lines"),
        ("member,loss\n", "1 lines"),
        ("member,loss\n1,0.5\n1\n0,2", "record 2: must have 2 cells"),
        ("member,loss\n1,0.5\n0,much", "record 2: loss must be a finite number, got 'much'"),
        ("member,loss\n1,0.5\n0,nan", "record 2: loss must be a finite number"),
        ("member,loss\n1,0.5\nperhaps,2", "record 2: member must be 1, 0, true or false"),
        ("loss\n0.5\n2", "must hold member"),
        ("member,loss\n1,1\n1,2", "both members and non-members"),
        ("member,loss,loss\n1,1,1\n0,2,2", "every column once"),
        ("member,label,loss,losses\n1,1,1,1\n0,2,2,2", "hold losses once"),
        ("member,label,logit_0,logit_1\n1,0,1,2\n0,2,2,1", "among the classes"),
        ("member,label,prob_0,prob_1\n1,0,0.5,0.7\n0,1,0.5,0.5", "sum to 1"),
        ("member,label,prob_0,logit_0\n1,0,0.5,0.7\n0,1,0.5,0.5", "logit_ or prob_"),
        ("id,member,loss\na,1,1\na,0,2", "each record once, got 'a' 2 times"),
    ],
)
def test_a_csv_with_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_source(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.full(RECORDS, 7)}, r"labels must be in \[0, 3\)"),
        ({"labels": np.zeros(3, int)}, "one per record"),
        ({"logits": np.full((RECORDS, 3), np.nan)}, "logits must be finite"),
        ({"shadow_member": np.full((SHADOWS, RECORDS), 2)}, "shadow_member must be 1 or 0"),
        ({"shadow_member": np.ones((SHADOWS, 3))}, "must have"),
        ({"member": np.full(RECORDS, 0.5)}, "member must be 1 or 0"),
        ({"probabilities": np.full((RECORDS, 3), 1 / 3)}, "logits or probabilities, got both"),
        ({"logits": np.zeros((5, 3))}, "must have"),
        ({"labels": np.zeros(RECORDS, "datetime64[s]")}, "labels must be numbers or names, got datetime64"),
        ({"labels": np.zeros(RECORDS, complex)}, "labels must be numbers or names, got complex128"),
        ({"classes": np.array(["0", "1", "2", "3"])}, r"one name per column of the outputs \(3\), got shape \(4,\)"),
        ({"classes": np.array(["0", "1"]), "labels": np.zeros(RECORDS, int)}, "one name per column of the outputs"),
        ({"classes": np.array("0")}, r"classes must be .*, got shape \(\)"),
        ({"classes": np.array(["0", "1", "1"])}, "classes must name each class once"),
        ({"ids": np.arange(RECORDS).reshape(-1, 1)}, rf"ids must be one per record \({RECORDS}\), got shape"),
        ({"x": np.zeros((3, 5))}, r"x must have one row per record .*, got shape \(3, 5\)"),
        ({"x": np.array(1.0)}, r"x must have one row per record .*, got shape \(\)"),
        ({"population_labels": np.full(80, 9)}, r"population_labels must be in \[0, 3\), got 9 to 9"),
    ],
)
def test_arrays_with_a_mistake(arrays: Arrays, tmp_path: Path, change: Arrays, message: str) -> None:
    np.savez(tmp_path / "bad.npz", **(arrays | change))
    with pytest.raises(InputError, match=message):
        read_source(tmp_path / "bad.npz")


def test_a_population_needs_labels(arrays: Arrays, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **{k: v for k, v in arrays.items() if k != "population_labels"})
    with pytest.raises(InputError, match="population_logits must come with population_labels, got none"):
        read_source(tmp_path / "bad.npz")


def test_numbers_of_a_type_that_numpy_lacks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save

    for kind in (torch.bfloat16, torch.float8_e4m3fn):
        save({"member": torch.ones(3), "losses": torch.ones(3, dtype=kind)}, tmp_path / "a.safetensors")
        with pytest.raises(InputError, match=r"a.safetensors must be a safetensors file"):
            read_source(tmp_path / "a.safetensors")


def test_a_parquet_column_given_twice(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pa.array([1, 0]), pa.array([0.1, 0.2]), pa.array([0.1, 0.2])]
    parquet.write_table(pa.Table.from_arrays(columns, names=["member", "loss", "loss"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="every column once, got 'loss' 2 times"):
        read_source(tmp_path / "a.parquet")


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.npz", b"no archive", "NPZ file"),
        ("a.safetensors", b"nothing", "safetensors file"),
        ("a.txt", b"member", "must end in"),
        ("a.csv", b"\xff\xfe\x00", "CSV file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_source(tmp_path / name)
    with pytest.raises(InputError, match="does not exist"):
        read_source(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is no file"):
        read_source(tmp_path)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", member=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(InputError, match="without pickled objects"):
        read_source(tmp_path / "a.npz")


def test_a_slice_must_be_a_column(whole: Path) -> None:
    with pytest.raises(InputError, match="'ward' to slice by, got site"):
        read_source(whole, slices=["ward"])
    with pytest.raises(InputError, match="'member' to slice by"):
        read_source(whole, slices=["member"])
