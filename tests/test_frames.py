"""Tables in memory: pandas, polars and Arrow in, the same out, and all else as it was."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from scoreveil import Veil
from scoreveil.shapes import Binary, MultiLabel, TopK

SECRET = bytes(range(32))
NAMES = ["cat", "dog", "fox"]


def scores(n: int = 6, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(3), n).astype(dtype)


def as_frame(library: str, values: np.ndarray, **others: Any) -> Any:
    columns = {name: np.array(values[:, i]) for i, name in enumerate(NAMES)}
    table = {"id": list(range(len(values))), **columns, **others}
    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table, "batch": pa.record_batch}[library](table)


def as_array(frame: Any, names: list[str]) -> np.ndarray:
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return np.stack([np.array(frame.column(name).to_pylist()) for name in names], axis=1)
    return np.asarray(frame[names].to_numpy())


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "batch"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_same_kind_of_table_comes_back_with_the_answers_of_the_array(library: str, dtype: str) -> None:
    if (library, dtype) == ("polars", "float16"):
        dtype = "float32"
    values = scores(dtype=dtype)
    text = [f"row {i}" for i in range(len(values))]
    frame = as_frame(library, values, text=text)
    veil = Veil(1.0, secret=SECRET)
    answer = veil(frame, columns=NAMES)
    assert type(answer) is type(frame)
    assert list(answer.schema if library != "pandas" else answer.dtypes) == list(
        frame.schema if library != "pandas" else frame.dtypes
    )
    np.testing.assert_array_equal(as_array(answer, NAMES), veil(values))
    np.testing.assert_array_equal(as_array(answer, ["id", "text"]), as_array(frame, ["id", "text"]))
    np.testing.assert_array_equal(as_array(frame, NAMES), values)  # what was given stays as it was
    # without names the columns of floating-point numbers are taken
    np.testing.assert_array_equal(as_array(veil(frame), NAMES), veil(values))


def test_the_order_of_columns_is_the_order_in_which_they_are_named() -> None:
    values, veil = scores(), Veil(1.0, secret=SECRET)
    answer = veil(as_frame("pandas", values), columns=["fox", "cat", "dog"])
    assert list(answer.columns) == ["id", *NAMES]
    np.testing.assert_array_equal(answer[["fox", "cat", "dog"]].to_numpy(), veil(values[:, [2, 0, 1]]))


@pytest.mark.parametrize(
    "index",
    [
        pd.Index(["b", "a", "b", "c", "c", "c"], name="twice"),
        pd.MultiIndex.from_product([["x", "y"], [1, 2, 3]], names=["letter", "number"]),
        pd.date_range("2026-01-01", periods=6)[::-1],
    ],
    ids=["duplicates", "levels", "dates"],
)
def test_any_index_stays(index: pd.Index) -> None:
    frame = as_frame("pandas", scores(), kind=pd.Categorical(list("ababab")), when=pd.Timestamp("2026-01-01"))
    frame.index = index
    answer = Veil(1.0)(frame, columns=NAMES)
    pd.testing.assert_index_equal(answer.index, index)
    pd.testing.assert_frame_equal(answer.drop(columns=NAMES), frame.drop(columns=NAMES))


@pytest.mark.parametrize("kind", ["Float64", "Float32", "double[pyarrow]", "float[pyarrow]"])
def test_nullable_and_arrow_columns_of_pandas_stay_what_they_are(kind: str) -> None:
    frame = as_frame("pandas", scores()).astype(dict.fromkeys(NAMES, kind))
    answer = Veil(1.0)(frame, columns=NAMES)
    pd.testing.assert_series_equal(answer.dtypes, frame.dtypes)
    sums = answer[NAMES].to_numpy(dtype="float64").sum(axis=1)
    np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-5)
    frame.loc[2, "dog"] = pd.NA
    with pytest.raises(ValueError, match="Row 2, column 'dog': there is no score"):
        Veil(1.0)(frame, columns=NAMES)


def test_columns_may_be_numbers_or_tuples() -> None:
    numbered = pd.DataFrame(scores())
    assert Veil(1.0)(numbered).shape == (6, 3)
    assert Veil(1.0)(numbered, columns=[0, 1, 2]).shape == (6, 3)
    tall = pd.DataFrame(scores(), columns=pd.MultiIndex.from_product([["model"], NAMES]))
    assert Veil(1.0)(tall).columns.equals(tall.columns)


@pytest.mark.parametrize("column", [pd.Series, pl.Series], ids=["pandas", "polars"])
def test_one_column_of_probabilities(column: Any) -> None:
    p = np.random.default_rng(1).random(9)
    given = column(p) if column is pd.Series else column("p", p)
    answer = Veil(1.0, shape=Binary(0.3))(given)
    assert type(answer) is type(given)
    assert answer.name == given.name
    np.testing.assert_array_equal(answer.to_numpy() >= 0.3, p >= 0.3)
    frame = pl.DataFrame({"id": range(9), "p": p})
    np.testing.assert_array_equal(Veil(1.0, shape=Binary(0.3))(frame)["p"].to_numpy() >= 0.3, p >= 0.3)


def test_chunks_and_slices_of_arrow_tables() -> None:
    values = scores(8)
    whole = pa.table({name: values[:, i] for i, name in enumerate(NAMES)})
    chunked = pa.concat_tables([whole.slice(0, 3), whole.slice(3)])
    veil = Veil(1.0, secret=SECRET)
    answer = veil(chunked)
    assert answer.schema.equals(chunked.schema, check_metadata=True)
    np.testing.assert_array_equal(as_array(answer, NAMES), veil(values))


def test_the_attributes_of_a_frame_are_left_behind() -> None:
    frame = as_frame("pandas", scores())
    frame.attrs = {"first": 0.7172908}
    assert Veil(1.0)(frame, columns=NAMES).attrs == {}
    p = pd.Series([0.2, 0.9])
    p.attrs = {"first": 0.7172908}
    assert Veil(1.0, shape=Binary())(p).attrs == {}
    assert frame.attrs == p.attrs == {"first": 0.7172908}  # what was given stays as it was


@pytest.mark.parametrize("library", ["arrow", "batch"])
def test_metadata_of_arrow_tables_are_left_behind_and_pandas_index_stays(library: str) -> None:
    raw = {"first": "0.7172908"}
    frame = as_frame("pandas", scores()).set_index(pd.Index(list("uvwxyz"), name="who"))
    frame.attrs = raw
    table = pa.Table.from_pandas(frame)
    inner = pa.field("x", pa.int64(), metadata=raw)
    for kind in (pa.struct([inner]), pa.list_(inner), pa.large_list(inner), pa.list_(inner, 1), pa.map_("int8", inner)):
        empty = pa.nulls(6, kind)
        table = table.append_column(pa.field(f"more {table.num_columns}", kind, metadata=raw), empty)
    table = table.replace_schema_metadata({**table.schema.metadata, **raw})
    given = table if library == "arrow" else table.combine_chunks().to_batches()[0]
    answer = Veil(1.0)(given, columns=NAMES)
    assert answer.schema.equals(given.schema)
    assert "0.7172908" in given.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    assert "0.7172908" not in answer.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    assert not any("0.7172908" in pa.schema([("x", column.type)]).to_string() for column in answer.columns)
    again = answer.to_pandas()
    pd.testing.assert_index_equal(again.index, frame.index)
    assert again.attrs == {}


def test_what_pandas_says_of_columns_is_kept_and_nothing_else() -> None:
    frame = as_frame("pandas", scores()).assign(kind=pd.Categorical(list("xyxyxy")))
    table = pa.Table.from_pandas(frame)
    about = json.loads(table.schema.metadata[b"pandas"])
    about["columns"][0]["metadata"] = {"first": 0.7172908}
    about["columns"][1]["first"] = 0.7172908
    answer = Veil(1.0)(table.replace_schema_metadata({"pandas": json.dumps(about)}), columns=NAMES)
    assert b"0.7172908" not in answer.schema.metadata[b"pandas"]
    pd.testing.assert_series_equal(answer.to_pandas()["kind"], frame["kind"])
    for unreadable in (b"{}", b"[]", b"no JSON", b'{"columns": [7], "column_indexes": []}'):
        answer = Veil(1.0)(table.replace_schema_metadata({"pandas": unreadable}), columns=NAMES)
        assert answer.schema.metadata is None
        assert len(answer.to_pandas()) == 6


def test_the_number_of_a_field_stays() -> None:
    """Iceberg knows columns by it."""
    table = as_frame("arrow", scores())
    for i, (number, kept) in enumerate(((b"12", {b"PARQUET:field_id": b"12"}), (b"0.7172908", None))):
        marked = table.schema.set(i, table.schema.field(i).with_metadata({"PARQUET:field_id": number}))
        answer = Veil(1.0)(table.cast(marked), columns=NAMES)
        assert answer.schema.field(i).metadata == kept


def test_a_type_that_keeps_its_metadata_refuses_the_table() -> None:
    kind = pa.dense_union([pa.field("x", pa.int64(), metadata={"first": "0.7172908"})])
    table = as_frame("arrow", scores()).append_column("either", pa.nulls(6, kind))
    with pytest.raises(ValueError, match="Column 'either' is of a type whose metadata cannot be left behind"):
        Veil(1.0)(table, columns=NAMES)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_column_that_looks_like_a_raw_score_refuses_the_table(library: str) -> None:
    values = scores()
    named = as_frame(library, values, confidence=values.max(axis=1))
    message = r"^'confidence' would stay as it is, and looks .* Drop it, .* veil\(frame\[columns\]\)"
    with pytest.raises(ValueError, match=message):
        Veil(1.0)(named, columns=NAMES)
    copied = as_frame(library, values, w=values[:, 0] + 1e-9)
    with pytest.raises(ValueError, match="'w' would stay"):
        Veil(1.0)(copied, columns=NAMES)
    text = as_frame(library, values, conf=[f"{x:.0%}" for x in values.max(axis=1)])
    with pytest.raises(ValueError, match="'conf' would stay"):
        Veil(1.0)(text, columns=NAMES)
    lists = as_frame(library, values, logits=np.log(values).tolist())
    with pytest.raises(ValueError, match="'logits' would stay"):
        Veil(1.0)(lists, columns=NAMES)
    kept = as_frame(library, values, age=np.arange(6) * 1.5)
    assert Veil(1.0)(kept, columns=NAMES) is not None


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "batch"])
@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_raw_score_that_begins_late_refuses_the_table(library: str, kind: str) -> None:
    values = scores(10_000)
    top = [None if i < 6000 else float(each) for i, each in enumerate(values.max(axis=1))]
    note = top if kind == "number" else ["" if each is None else str(each) for each in top]
    with pytest.raises(ValueError, match=r"^'note' would stay as it is, and looks like raw scores"):
        Veil(1.0)(as_frame(library, values, note=note), columns=NAMES)
    other = np.random.default_rng(1).random(10_000).tolist()
    answer = Veil(1.0)(as_frame(library, values, note=other), columns=NAMES)
    assert as_array(answer, ["note"])[:, 0].tolist() == other


def test_an_index_that_becomes_a_raw_score_refuses_the_table() -> None:
    values = scores(10_000)
    index = np.where(np.arange(10_000) < 6000, np.nan, values[:, 0])
    with pytest.raises(ValueError, match="The index 'who'"):
        Veil(1.0)(pd.DataFrame(values, columns=NAMES, index=pd.Index(index, name="who")))


def test_a_map_of_raw_scores_refuses_the_table() -> None:
    values = scores(50)
    raw = pa.array([list(zip(NAMES, row, strict=True)) for row in values.tolist()], pa.map_(pa.string(), pa.float64()))
    with pytest.raises(ValueError, match=r"^'note' would stay"):
        Veil(1.0)(as_frame("arrow", values, note=raw), columns=NAMES)


def test_an_index_that_is_a_raw_score_refuses_the_table() -> None:
    values = scores()
    frame = as_frame("pandas", values).set_index(pd.Index(values.max(axis=1), name="w"))
    with pytest.raises(ValueError, match=r"The index 'w' would stay as it is, .*reset_index\(drop=True\)"):
        Veil(1.0)(frame, columns=NAMES)


@pytest.mark.parametrize("kind", ["category", "object", "Sparse[float64]"])
def test_a_raw_confidence_of_any_dtype_refuses_the_table(kind: str) -> None:
    values = scores()
    frame = as_frame("pandas", values).assign(confidence=pd.Series(values.max(axis=1)).astype(kind))
    with pytest.raises(ValueError, match="'confidence' would stay"):
        Veil(1.0)(frame, columns=NAMES)


def test_rows_in_the_order_of_a_score_are_said_to_tell_their_rank() -> None:
    p = pd.Series(np.sort(np.random.default_rng(0).random(20)), name="fraud")
    with pytest.warns(UserWarning, match="The rows stand in the order of 'fraud'"):
        Veil(1.0, shape=Binary())(p)
    assert np.isclose(Veil(1.0)(p / p.sum()).sum(), 1)  # one vector, whose classes may stand as they like


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda f: f["cat"], {}, r"needs Veil\(…, shape=Binary\(\)\)"),
        (lambda f: f.astype(dict.fromkeys(NAMES, object)), {}, r"'cat' \(object\).*astype\(float\)"),
        (lambda f: f.assign(dog=np.nan), {"columns": NAMES}, "Row 0, column 'dog': a score is NaN"),
        (lambda f: f, {"columns": ["cat", "cow"]}, "Expected one column 'cow', got none; there are 'id', 'cat'"),
        (lambda f: f, {"columns": []}, "Expected the names of the score columns"),
        (lambda f: f, {"columns": ["cat", "cat"]}, "each once"),
        (lambda f: f, {"columns": ["id", "cat"]}, "got int64 in column 'id'"),
        (
            lambda f: f.astype({"cat": "float32"}),
            {"columns": NAMES},
            "of one dtype, got float32 in 'cat', float64 in 'fox'; cast them",
        ),
        (lambda f: f.assign(cat=9.0), {"columns": NAMES}, r"Row 0: the scores sum to more than 1, by over 0.001\."),
        (lambda f: f.assign(age=9.0), {}, "sum to more than 1.* Taken as scores: 'cat', 'dog', 'fox', 'age'"),
        (
            lambda f: f[["id"]],
            {},
            r"Expected columns of floating-point scores, got 'id' \(int64\)\. Name and convert them",
        ),
        (lambda f: pd.concat([f, f[["cat"]]], axis=1), {"columns": NAMES}, "Expected one column 'cat', got 2"),
        (lambda f: f["cat"], {"columns": ["cat"]}, "Expected no columns for a Series"),
        (lambda f: pl.DataFrame(f.to_dict("list")).lazy(), {}, r"got LazyFrame; collect\(\) it first"),
        (lambda f: pa.array([0.5]), {}, "Expected a DataFrame, a Series or an Arrow table, got DoubleArray"),
        (lambda f: f[NAMES].to_numpy(), {"columns": NAMES}, "Columns are named in a table; a ndarray has none"),
    ],
)
def test_tables_that_do_not_fit_are_refused(change: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Veil(1.0)(change(as_frame("pandas", scores())), **options)


def test_a_list_whose_columns_stand_in_the_order_of_its_scores_is_refused() -> None:
    ranked = -np.sort(-scores(20), axis=1)
    with pytest.raises(ValueError, match="The columns stand in the order of their scores"):
        Veil(1.0, shape=TopK())(as_frame("polars", ranked), columns=NAMES)
    assert len(Veil(1.0, shape=TopK())(as_frame("polars", scores(20)), columns=NAMES)) == 20


def test_a_missing_score_is_named_by_row_and_column() -> None:
    for frame in (
        pl.DataFrame({"a": [0.5, 0.4], "b": [0.5, None]}),
        pa.table({"a": [0.5, 0.4], "b": [0.5, None]}),
        pa.record_batch({"a": [0.5, 0.4], "b": [0.5, None]}),
    ):
        with pytest.raises(ValueError, match="Row 1, column 'b': there is no score"):
            Veil(1.0, shape=MultiLabel())(frame)
    with pytest.raises(ValueError, match="Row 1, column 'b': the score is more than 1"):
        Veil(1.0, shape=MultiLabel())(pd.DataFrame({"a": [0.5, 0.4], "b": [0.5, 4.0]}), columns=["a", "b"])


def test_no_rows_give_no_rows() -> None:
    for library in ("pandas", "polars", "arrow"):
        assert len(Veil(1.0)(as_frame(library, scores(0)), columns=NAMES)) == 0


@pytest.mark.slow
def test_arrays_bring_none_of_these_libraries() -> None:
    heavy = "{'pandas', 'polars', 'pyarrow'} & {*sys.modules}"
    program = f"import sys, scoreveil; scoreveil.Veil(1.0)([0.2, 0.8]); print({heavy})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.strip() == b"set()"
