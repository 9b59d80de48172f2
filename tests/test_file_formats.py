"""Each file format: what is no score comes out as it was, and what is no such file is refused."""

import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from score_files import NAMES, SECRET, assert_veiled, leftovers, make_scores, scores_of, small_batches, write_csv
from scoreveil import Veil, files
from scoreveil.files import text


def make_table(scores, names=NAMES):
    """A table with score columns among others of many types."""
    n = len(scores)
    columns = {
        "id": pa.array([f"{i:06d}" for i in range(n)]),
        **{name: pa.array(np.ascontiguousarray(scores[:, i])) for i, name in enumerate(names)},
        "when": pa.array(np.arange(n), pa.timestamp("us", tz="UTC")),
        "kind": pa.array(["a", None, "b", "a"] * n)[:n].dictionary_encode(),
        "tags": pa.array([["x"] * (i % 3) for i in range(n)], pa.list_(pa.string())),
        "about": pa.array(
            [{"depth": i, "ok": None} for i in range(n)], pa.struct([("depth", pa.int8()), ("ok", pa.bool_())])
        )
        if n < 100
        else pa.array(np.arange(n, dtype=np.int16)),
    }
    return pa.table(columns).replace_schema_metadata({"made by": "a test"})


# .npy and .npz


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f8"])
def test_npy_keeps_dtype_and_labels(tmp_path, monkeypatch, dtype):
    small_batches(monkeypatch)
    scores = make_scores().astype(dtype)
    np.save(tmp_path / "in.npy", scores)
    done = files.protect(tmp_path / "in.npy", tmp_path / "out.npy", Veil(2.0))
    assert (done.rows, done.classes) == (200, 5)
    assert_veiled(scores, np.load(tmp_path / "out.npy"))


def test_npy_in_fortran_order_and_as_one_vector(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    scores = make_scores()
    np.save(tmp_path / "f.npy", np.asfortranarray(scores))
    np.save(tmp_path / "c.npy", scores)
    for name in "fc":
        files.protect(tmp_path / f"{name}.npy", tmp_path / f"{name}-out.npy", Veil(2.0, secret=SECRET))
    np.testing.assert_array_equal(np.load(tmp_path / "f-out.npy"), np.load(tmp_path / "c-out.npy"))
    np.save(tmp_path / "one.npy", scores[0])
    files.protect(tmp_path / "one.npy", tmp_path / "one-out.npy", Veil(2.0))
    assert_veiled(scores[0], np.load(tmp_path / "one-out.npy"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 4), dtype=int), "Expected floating-point scores, got dtype int64"),
        (np.ones((3, 4), dtype="f4,f4"), "Expected floating-point scores"),
        (np.ones((2, 3, 4)), r"row 0 and 1 more: the scores sum to more than 1, by over 0.001 \(place 0 of row 0\)"),
        (np.ones((2, 3, 1)), "Expected at least 2 classes, got 1"),
        (np.ones((3, 0)), "Expected at least 2 classes, got 0"),
        (np.array(0.5), "got 0 dimensions"),
    ],
)
def test_npy_that_is_no_batch_of_scores(tmp_path, array, message):
    np.save(tmp_path / "in.npy", array)
    with pytest.raises(ValueError, match=message):
        files.protect(tmp_path / "in.npy", tmp_path / "out.npy", Veil(2.0))
    assert leftovers(tmp_path, "in.npy") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-5], "a file that ends before"),
        (lambda data: data + b"more", "There is data after the array"),
        (lambda data: b"not an array", "Expected a file that can be read"),
        (lambda data: b"", "Expected a file that can be read"),
    ],
)
def test_damaged_npy_leaves_nothing(tmp_path, monkeypatch, change, message):
    small_batches(monkeypatch)
    np.save(tmp_path / "good.npy", make_scores())
    (tmp_path / "in.npy").write_bytes(change((tmp_path / "good.npy").read_bytes()))
    with pytest.raises(ValueError, match=message):
        files.protect(tmp_path / "in.npy", tmp_path / "out.npy", Veil(2.0))
    assert leftovers(tmp_path, "in.npy", "good.npy") == []


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_copies_the_other_arrays(tmp_path, monkeypatch, save):
    small_batches(monkeypatch)
    scores = make_scores(dtype=np.float32)
    others = {"labels": np.arange(200), "names": np.array(["a", "b"]), "weights": np.ones(3), "any": np.array([{}])}
    save(
        tmp_path / "in.npz",
        labels=others["labels"],
        scores=scores,
        **{k: others[k] for k in ("names", "weights", "any")},
    )
    done = files.protect(tmp_path / "in.npz", tmp_path / "out.npz", Veil(2.0))
    assert (done.columns, set(done.untouched)) == (("scores",), set(others))
    with np.load(tmp_path / "out.npz", allow_pickle=True) as out:
        assert_veiled(scores, out["scores"])
        for name, array in others.items():
            np.testing.assert_array_equal(out[name], array)
    kinds = [[m.compress_type for m in zipfile.ZipFile(tmp_path / name).infolist()] for name in ("in.npz", "out.npz")]
    assert kinds[0] == kinds[1]


def test_npz_with_several_candidates_wants_a_name(tmp_path):
    np.savez(tmp_path / "in.npz", train=make_scores(seed=1), test=make_scores(seed=2))
    with pytest.raises(ValueError, match=r"Expected one 2-D floating-point array .*got 2 among 'train', 'test'"):
        files.protect(tmp_path / "in.npz", tmp_path / "out.npz", Veil(2.0))
    with pytest.raises(ValueError, match="Expected a column that matches 'tast'"):
        files.protect(tmp_path / "in.npz", tmp_path / "out.npz", Veil(2.0), columns="tast")
    files.protect(tmp_path / "in.npz", tmp_path / "out.npz", Veil(2.0), columns="test")
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["train"], make_scores(seed=1))
        assert_veiled(make_scores(seed=2), out["test"])


@pytest.mark.parametrize("where", [0.3, 0.9])
def test_damaged_npz_leaves_nothing(tmp_path, where):
    np.savez_compressed(
        tmp_path / "in.npz", labels=np.random.default_rng(0).integers(0, 9, 5000), scores=make_scores(500)
    )
    data = bytearray((tmp_path / "in.npz").read_bytes())
    place = int(len(data) * where)
    data[place : place + 40] = bytes(40)
    (tmp_path / "in.npz").write_bytes(data)
    with pytest.raises(ValueError, match="Expected a file that can be read"):
        files.protect(tmp_path / "in.npz", tmp_path / "out.npz", Veil(2.0))
    assert leftovers(tmp_path, "in.npz") == []


# .csv


def csv_records(scores, quote=""):
    return [
        f'00{i},{a!r},"x, ""{i}""\nnext line",{quote}{b!r}{quote},2024-01-0{i % 9},{c!r}'
        for i, (a, b, c) in enumerate(scores.tolist())
    ]


@pytest.mark.parametrize(("end", "mark", "quote"), [("\n", "", ""), ("\r\n", "\ufeff", '"')])
def test_csv_changes_the_scores_and_no_other_byte(tmp_path, monkeypatch, end, mark, quote):
    small_batches(monkeypatch)
    scores = make_scores(50, 3)
    head = f'{mark}id,p0,"a ""name"", quoted",p1,date,p2'
    source = write_csv(tmp_path / "in.csv", [head, *csv_records(scores, quote)], end)
    done = files.protect(source, tmp_path / "out.csv", Veil(2.0), columns="p*")
    assert done.columns == ("p0", "p1", "p2")
    assert done.untouched == ("id", 'a "name", quoted', "date")
    veiled = np.array(
        [[float(cell) for cell in line.split(",")[-5:] if "." in cell] for line in _last_lines(tmp_path / "out.csv")]
    )
    firsts = [
        float(line.split(",")[1]) for line in (tmp_path / "out.csv").read_text().splitlines() if line.startswith("00")
    ]
    veiled = np.column_stack([firsts, veiled])
    assert_veiled(scores, veiled)
    write_csv(tmp_path / "expected.csv", [head, *csv_records(veiled)], end)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()


def _last_lines(path):
    return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.startswith("next line")]


def test_csv_takes_all_columns_and_names_those_that_hold_text(tmp_path):
    scores = make_scores(20, 3)
    rows = [",".join(map(repr, row)) for row in scores.tolist()]
    source = write_csv(tmp_path / "in.csv", ["0,1,2", *rows, ""])
    assert files.protect(source, tmp_path / "out.csv", Veil(2.0)).columns == ("0", "1", "2")
    after = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    assert_veiled(scores, after)
    source = write_csv(tmp_path / "text.csv", ["a,b,c,who", *(f"{row},me" for row in rows)])
    with pytest.raises(ValueError, match=r"--columns to name those .* got text in 'who' of text\.csv"):
        files.protect(source, tmp_path / "out2.csv", Veil(2.0))


def test_csv_without_a_last_line_end(tmp_path):
    (tmp_path / "in.csv").write_text("a,b\n0.25,0.75")
    files.protect(tmp_path / "in.csv", tmp_path / "out.csv", Veil(2.0))
    assert (tmp_path / "out.csv").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expected a header line in in.csv, got an empty file"),
        ("0.25,0.75\n0.5,0.5\n", "Expected a header line with column names in in.csv, got numbers"),
        ("a,a\n0.25,0.75\n", "got 'a' more than once"),
        ("a,b\n0.25,0.75\n0.1,0.2,0.7\n", "row 1: expected 2 cells, got 3"),
        ("a,b\n0.25,0.75\n0.1\n", "row 1: expected 2 cells, got 1"),
        ("a,b\n0.25,0.75\n0.1,\n", "row 1: expected a number in column 'b', got an empty cell"),
        ("a,b\n0.25,0.75\n0.1,me\n", "row 1: expected a number in column 'b', got text"),
        ("a,b\n0.25,0.75\nnan,1\n", "row 1, column 'a': a score is NaN"),
        ('a,b\n0.25,0.75\n0.1,"0.9\n', "A quote is opened and never closed"),
        ('w,a,b\n5" pipe,0.3,0.7\n6" pipe,0.2,0.8\n', "row 0: a quote stands within a cell"),
        ("a,b\n".encode("utf-16").decode("latin-1"), "is not text in UTF-8"),
    ],
)
def test_csv_that_is_refused_leaves_nothing(tmp_path, content, message):
    (tmp_path / "in.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        files.protect(
            tmp_path / "in.csv", tmp_path / "out.csv", Veil(2.0), columns="a,b" if "pipe" in content else None
        )
    assert leftovers(tmp_path, "in.csv") == []


def test_an_open_quote_does_not_swallow_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_RECORD", 1000)
    monkeypatch.setattr(text, "READ_BYTES", 300)
    source = write_csv(tmp_path / "in.csv", ["a,b", '"0.5,0.5', *["0.5,0.5"] * 5000])
    with source.open("rb") as file, pytest.raises(ValueError, match="opened and never closed"):
        list(text._records(file, 300))
    with source.open("rb") as file:
        with pytest.raises(ValueError, match="opened and never closed"):
            for _ in text._records(file, 300):
                pass
        assert file.tell() < 5000


# .parquet


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_parquet_keeps_its_schema_and_all_other_columns_and_leaves_metadata_behind(tmp_path, monkeypatch, dtype):
    small_batches(monkeypatch)
    scores = make_scores(60, dtype=dtype)
    table = make_table(scores)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=25)
    table = pq.read_table(tmp_path / "in.parquet")  # as pyarrow reads it back
    done = files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert done.columns == tuple(NAMES)
    out = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.metadata  # which might hold anything
    assert out.schema.equals(table.schema.remove_metadata(), check_metadata=True)
    assert out.drop_columns(NAMES).equals(table.drop_columns(NAMES))
    assert_veiled(scores, scores_of(out))


@pytest.mark.parametrize(
    "kind",
    [lambda f: pa.list_(f), lambda f: pa.large_list(f), lambda f: pa.list_(f, 5), lambda f: pa.list_(pa.field("x", f))],
)
@pytest.mark.parametrize(("columns", "compliant"), [(None, True), ("all scores", False), ("all*", True)])
def test_parquet_with_scores_in_lists(tmp_path, monkeypatch, kind, columns, compliant):
    small_batches(monkeypatch)
    scores = make_scores(60, dtype=np.float32)
    lists = pa.array(scores.tolist(), kind(pa.float32()))
    table = pa.table({"id": np.arange(60), "all scores": lists, "label": scores.argmax(axis=1)})
    pq.write_table(table, tmp_path / "in.parquet", use_compliant_nested_type=compliant)
    table = pq.read_table(tmp_path / "in.parquet")
    assert files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0), columns).classes == 5
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.schema.equals(table.schema, check_metadata=True)
    assert out.drop_columns("all scores").equals(table.drop_columns("all scores"))
    assert_veiled(scores, np.array(out["all scores"].to_pylist(), dtype=np.float32))
    assert column_settings(tmp_path / "out.parquet") == column_settings(tmp_path / "in.parquet")


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"])
def test_parquet_keeps_compression_and_row_groups(tmp_path, codec):
    pq.write_table(make_table(make_scores()), tmp_path / "in.parquet", compression=codec, row_group_size=64)
    files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 4
    assert column_settings(tmp_path / "out.parquet") == column_settings(tmp_path / "in.parquet")


def column_settings(path):
    """(name, compression) of each column, and how many row groups there are."""
    about = pq.read_metadata(path)
    columns = [about.row_group(0).column(i) for i in range(about.num_columns)]
    return [(column.path_in_schema, column.compression) for column in columns], about.num_row_groups


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[0.5, 0.5], None, [0.1, 0.9]], "row 1: expected a score in every column, got null"),
        ([None, [0.5, 0.5]], "row 0: expected a score in every column, got null"),
        ([[0.5, 0.5], [0.5, None]], "row 1: expected a score in every column, got null"),
        ([[0.5, 0.5], [0.1, 0.2, 0.7]], "row 1: expected 2 scores, like the first list, got 3"),
        ([None, None], "row 0 and 1 more: expected a score in every column, got null"),
    ],
)
def test_bad_lists_are_reported_by_row(tmp_path, column, message):
    pq.write_table(pa.table({"scores": pa.array(column, pa.list_(pa.float64()))}), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=message):
        files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert leftovers(tmp_path, "in.parquet") == []


@pytest.mark.parametrize(
    ("columns", "wanted", "message"),
    [
        ({"a": [0.5], "b": [0.5], "all": [[0.5, 0.5]]}, None, "--columns to name them, got 'a', 'b', 'all'"),
        ({"one": [[0.5, 0.5]], "two": [[0.5, 0.5]]}, None, "--columns to name them, got 'one', 'two'"),
        ({"a": [1], "b": [2]}, None, "--columns to name them, got none"),
        ({"a": [1], "b": [0.5]}, "a,b", "Expected floating-point scores, got int64 in column 'a'"),
        ({"a": np.float32([0.5]), "b": [0.5]}, None, "Expected score columns of one type, got double, float"),
        ({"a": [0.5], "b": [0.5]}, "c*", r"Expected a column that matches 'c\*', got 'a', 'b'"),
    ],
)
def test_parquet_columns_that_are_refused(tmp_path, columns, wanted, message):
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=message):
        files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0), wanted)
    assert leftovers(tmp_path, "in.parquet") == []


def test_columns_are_taken_in_the_order_given(tmp_path):
    pq.write_table(make_table(make_scores()), tmp_path / "in.parquet")
    wanted = "score_3, score_1,score_*"
    with files.open_scores(tmp_path / "in.parquet", wanted) as scores:
        assert list(scores.columns) == ["score_3", "score_1", "score_0", "score_2", "score_4"]


@pytest.mark.parametrize("where", [0.5, 0.999])
def test_damaged_parquet_leaves_nothing(tmp_path, where):
    pq.write_table(make_table(make_scores(2000)), tmp_path / "in.parquet", use_dictionary=False)
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    place = int(len(data) * where) - 200
    data[place : place + 150] = b"\xff" * 150
    (tmp_path / "in.parquet").write_bytes(data)
    with pytest.raises(ValueError, match=r"Expected a file that can be read, got in.parquet|not a? ?score vector"):
        files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert leftovers(tmp_path, "in.parquet") == []
