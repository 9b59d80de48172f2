"""Labels in files and by name: one way for `fit` and `audit`."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoreveil.files.labels import read_labels
from scoreveil.files.records import read_sides

LABELS = [2, 0, 1, 1]
NAMES = ("ant", "bee", "cat")
SCORES = np.full((4, 3), 1 / 3)


def written(folder, name):
    """Numbers in a file of each kind."""
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, LABELS)
    elif name.endswith(".npz"):
        np.savez(path, label=LABELS, x=SCORES)
    elif name.endswith(".parquet"):
        pq.write_table(pa.table({"a": [0.1] * 4, "label": LABELS}), path)
    elif name == "bare.csv":
        path.write_text("".join(f"{label}\n" for label in LABELS))
    elif name == "headed.csv":
        path.write_text("\ufefflabel\r\n" + "".join(f"{label}\r\n" for label in LABELS), encoding="utf-8")
    elif name == "among.csv":
        path.write_text('id,label,"p, q"\n' + "".join(f'7,{label},"0,5"\n' for label in LABELS))
    else:
        path.write_text("\n".join(map(str, LABELS)))
    return path


@pytest.mark.parametrize(
    "name", ["y.npy", "y.npz", "y.parquet", "bare.csv", "headed.csv", "among.csv", "y.txt", "Y.CSV"]
)
def test_labels_are_read_from_files_of_each_kind(tmp_path, name):
    sides, note = read_sides({"members": (SCORES, written(tmp_path, name))})
    assert sides["members"].labels.tolist() == LABELS
    assert note == ""


def test_a_first_line_is_a_label_where_there_are_as_many_as_records(tmp_path):
    path = tmp_path / "y.txt"
    path.write_text("cat\nant\nbee\nbee\n")
    assert read_labels(path, 4).tolist() == ["cat", "ant", "bee", "bee"]
    assert read_labels(path, 3).tolist() == ["ant", "bee", "bee"]


def test_names_without_named_columns_are_taken_in_sorted_order_over_all_sides():
    one, two = (["cat", "ant", "ant", "ant"], ["bee", "bee", "bee", "cat"])
    sides, note = read_sides({"members": (SCORES, one), "nonmembers": (SCORES, np.array(two))})
    assert sides["members"].labels.tolist() == [2, 0, 0, 0]
    assert sides["nonmembers"].labels.tolist() == [1, 1, 1, 2]
    assert note == "Labels are names. The columns of scores are taken for 'ant', 'bee', 'cat', in sorted order."


@pytest.mark.parametrize("prefix", ["", "p_", "score of "])
def test_names_are_matched_with_the_columns_of_a_file(tmp_path, prefix):
    path = tmp_path / "scores.csv"
    head = ",".join(f"{prefix}{name}" for name in ("cat", "cow", "calf"))
    path.write_text(head + "\n" + "\n".join(["0.5,0.25,0.25"] * 4))
    sides, note = read_sides({"members": (path, ["cow", "cat", "cow", "cow"])})
    assert sides["members"].labels.tolist() == [1, 0, 1, 1]
    assert "by the names of the columns" in note


def test_names_of_which_only_some_are_those_of_columns_are_refused_without_being_quoted(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("p_cat,p_cow,p_calf\n" + "\n".join(["0.5,0.25,0.25"] * 4))
    told = (
        "1 are names of columns of scores, and 2 others are not. Write all as the columns are named: 'p_cat', 'p_cow'"
    )
    with pytest.raises(ValueError, match=told) as caught:
        read_sides({"members": (path, ["cow", "Cat", "private", "cow"])})
    assert "private" not in str(caught.value)
    sides, note = read_sides({"members": (path, ["x", "y", "z", "z"])})  # none is: columns may be p_0, p_1, …
    assert sides["members"].labels.tolist() == [0, 1, 2, 2]
    assert "in sorted order" in note


def test_columns_in_another_order_on_the_other_side_are_refused(tmp_path):
    for name, head in (("in", "a,b"), ("out", "b,a")):
        (tmp_path / f"{name}.csv").write_text(head + "\n" + "\n".join(["0.5,0.5"] * 4))
    with pytest.raises(ValueError, match=r"nonmembers: expected the columns 'a', 'b', got 'b', 'a'"):
        read_sides({"members": (tmp_path / "in.csv", None), "nonmembers": (tmp_path / "out.csv", None)})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["ant", "secret", "bee", "dog"], "or 3 of them in all. Got 4 others"),
        (["ant", "secret", "secret", "ant"], "Got 2 others"),
        (["ant", None, "bee", "cat"], "row 1 is neither"),
        (["ant", "", "bee", "cat"], "row 1 is neither"),
        ([0, 1, 2], "expected 4 of them"),
        (["0", "1", "2", "3"], "row 3 is not the number"),
    ],
)
def test_labels_that_are_none_are_refused_without_quoting_them(labels, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_sides({"members": (SCORES, np.array(labels, dtype=object))})
    assert "secret" not in str(caught.value)


def test_files_without_a_column_of_labels_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [0.1] * 4, "b": LABELS}), tmp_path / "y.parquet")
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    (tmp_path / "y.xlsx").write_text("")
    np.save(tmp_path / "objects.npy", np.array(["ant", None], dtype=object), allow_pickle=True)
    for name, message in (
        ("y.parquet", "one called 'label', in y.parquet, got 'a', 'b'"),
        ("y.csv", "one called 'label', in y.csv"),
        ("y.xlsx", "ending in .npy"),
        ("none.csv", "no such file"),
        ("objects.npy", "Python objects are not read"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labels(tmp_path / name, 4)
