"""Files as people have them: other separators, JSON lines, compression, percent, rounding, bad rows, raw columns."""

import base64
import gzip
import json
import re
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from score_files import SECRET, leftovers, make_scores, save_scores, small_batches
from scoreveil import Veil, files
from scoreveil.cli import main
from scoreveil.files import BadRows, Cleaning, compression, json_lines, score_file, text
from scoreveil.shapes import VECTORS, Binary, TopK
from scoreveil.tables import raw_columns


def written(path, text):
    path.write_text(text)
    return path


def protected(source, veil=None, **options):
    target = source.parent / f"out{''.join(compression.suffixes(source))}"
    done = files.protect(
        source, target, veil or Veil(2.0), options.pop("columns", None), force=True, cleaning=Cleaning(**options)
    )
    return done, target


def lines_of(path):
    return path.read_text().splitlines()


# Formats


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_cells_are_separated_by_what_the_header_uses(tmp_path, separator):
    source = written(tmp_path / "in.csv", separator.join("ab") + "\n" + separator.join(["0.25", "0.75"]) + "\n")
    _, out = protected(source)
    head, row = lines_of(out)
    assert head == separator.join("ab")
    low, high = map(float, row.split(separator))
    assert low < high
    assert low + high == pytest.approx(1)


def test_a_header_with_two_separators_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"one kind of separator in the header of in\.csv, got 2"):
        protected(written(tmp_path / "in.csv", "a;b,c\n0.25;0.75,1\n"))
    protected(written(tmp_path / "in.csv", '"a;b",c\n0.25,0.75\n'))  # in quotes it is part of a name


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_compressed_text_is_veiled_like_the_text(tmp_path, monkeypatch, kind, codec):
    small_batches(monkeypatch)
    plain = save_scores(tmp_path / f"in{kind}", make_scores())
    packed = tmp_path / f"in{kind}{codec}"
    with packed.open("wb") as file, compression.compressed(file, codec) as out:
        out.write(plain.read_bytes())
    (_, expected), (_, found) = (protected(path, Veil(2.0, secret=SECRET)) for path in (plain, packed))
    with compression.opened(found) as text:
        assert text.lines.read() == expected.read_bytes()
    assert files.sample(packed)[0].shape == (200, 5)


def test_a_damaged_archive_is_refused(tmp_path):
    source = tmp_path / "in.csv.gz"
    source.write_bytes(gzip.compress(b"a,b\n" + b"0.25,0.75\n" * 100_000)[:-300])
    with pytest.raises(ValueError, match=r"Expected a file that can be read, got in.csv.gz"):
        protected(source)
    (tmp_path / "no.csv.zst").write_bytes(b"this is no archive")
    with pytest.raises(ValueError, match=r"Expected a file that can be read, got no.csv.zst"):
        protected(tmp_path / "no.csv.zst")
    assert leftovers(tmp_path, "in.csv.gz", "no.csv.zst") == []


@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_a_file_that_is_not_compressed_is_named_and_not_quoted(tmp_path, codec):
    source = tmp_path / f"in.csv{codec}"
    source.write_bytes(b"0.971,0.029\n")
    with pytest.raises(ValueError, match=r"in.csv.*it is damaged, or not compressed as its name says") as refused:
        protected(source)
    assert "0." not in str(refused.value)
    assert leftovers(tmp_path, source.name) == []


def test_json_lines_keep_every_other_byte(tmp_path):
    first = '{ "id":1.10 ,"cat": 0.25,"dog":0.75, "tags": ["a",  {"x" : "é\\u00e9"}] }'
    second = '{"cat":1,"dog":0,"id":-0,"tags":null}'
    _, out = protected(written(tmp_path / "in.jsonl", f"{first}\n\n{second}\r\n"), columns="cat,dog")
    one, two = (line for line in out.read_bytes().decode().split("\n") if line)
    assert one.startswith('{ "id":1.10 ,"cat": ')
    assert one.endswith(', "tags": ["a",  {"x" : "é\\u00e9"}] }')
    assert two.endswith(',"id":-0,"tags":null}\r')
    assert json.loads(one)["dog"] > json.loads(one)["cat"]
    assert json.loads(two)["dog"] < json.loads(two)["cat"]


@pytest.mark.parametrize(
    ("scores", "read"),
    [
        ('[0.25, 0.75]', lambda row: row["scores"]),
        ('{"cat": 0.25, "dog": 0.75}', lambda row: [row["scores"]["cat"], row["scores"]["dog"]]),
    ],
)  # fmt: skip
def test_scores_may_be_one_member_of_a_line(tmp_path, scores, read):
    done, out = protected(written(tmp_path / "in.jsonl", f'{{"id": 7, "scores": {scores}}}\n' * 3))
    assert (done.rows, done.classes, done.columns) == (3, 2, ("scores",))
    for line in lines_of(out):
        low, high = read(json.loads(line))
        assert low < high
        assert low + high == pytest.approx(1)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"a": 0.25, "b": 0.75', "this is not JSON"),
        ('[0.25, 0.75]', "expected an object"),
        ('{"a": 0.25, "a": 0.25, "b": 0.75}', "expected each member once, got 'a' twice"),
        ('{"a": 0.25, "b": "0.75"}', "expected a number for each score"),
        ('{"a": 0.25, "b": true}', "expected a number for each score"),
        ('{"a": 0.25, "b": 0.75, "raw": 0.75}', "expected the members of the first line, got others"),
        ('{"a": 0.25}', "expected the members of the first line, got fewer"),
        ('{"a": 0.25, "b": 0.75} {}', "expected one object on a line"),
        ('{"a": 0.25, "b": 0.75,}', "expected the name of a member"),
        ('{"a": 0.25, "b": NaN}', "column 'b': a score is NaN"),
        ("{" + '"a":{' * 100_000, "this is not JSON"),
    ],
)  # fmt: skip
def test_lines_that_are_refused(tmp_path, line, fault):
    source = written(tmp_path / "in.jsonl", f'{{"a": 0.25, "b": 0.75}}\n{line}\n')
    with pytest.raises(BadRows) as caught:
        protected(source)
    assert [(row, said.startswith(fault)) for row, said in caught.value.rows] == [(1, True)]
    assert leftovers(tmp_path, "in.jsonl") == []


# Percent and rounding


def test_percent_signs_stay(tmp_path):
    _, out = protected(written(tmp_path / "in.csv", "id,a,b\n7,25%,75 %\n"), columns="a,b")
    _, row = lines_of(out)
    number, low, high = row.split(",")
    assert (number, low[-1], high[-1]) == ("7", "%", "%")
    assert float(low[:-1]) + float(high[:-1]) == pytest.approx(100)


@pytest.mark.parametrize("whole", [1, 100])
def test_rounded_rows_need_rescale_and_keep_their_unit(tmp_path, whole):
    rows = np.round(make_scores() * whole, 2 if whole == 1 else 0)
    source = written(tmp_path / "in.csv", "a,b,c,d,e\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    with pytest.raises(BadRows, match="rows that are not score vectors"):
        protected(source)
    done, out = protected(source, rescale=True)
    after = np.loadtxt(out, delimiter=",", skiprows=1)
    assert done.bad == []
    np.testing.assert_allclose(after.sum(axis=1), whole)
    np.testing.assert_array_equal(after.argmax(axis=1), rows.argmax(axis=1))


@pytest.mark.parametrize("unit", [1, 100])
@pytest.mark.parametrize("keep", [1, "all"])
def test_scores_that_differ_in_their_last_digit_keep_their_order_when_rescaled(tmp_path, unit, keep):
    rng = np.random.default_rng(0)
    low = unit * rng.uniform(0.4, 0.45, 20_000)
    scores = np.stack([low, np.nextafter(low, np.inf), unit * rng.uniform(0.1, 0.19, 20_000)], axis=1)
    merged = scores / unit
    merged /= merged.sum(axis=1, keepdims=True)
    assert (merged.argmax(axis=1) != scores.argmax(axis=1)).any()  # dividing alone would change labels
    np.save(tmp_path / "in.npy", scores)
    _, out = protected(tmp_path / "in.npy", Veil(2.0, keep=keep), rescale=True)
    assert (np.load(out).argmax(axis=1) == scores.argmax(axis=1)).all()


def test_rows_that_sum_to_something_else_are_not_rescaled(tmp_path):
    with pytest.raises(BadRows, match="1 row that is not"):
        protected(written(tmp_path / "in.csv", "a,b\n0.5,0.49\n0.5,0.2\n"), rescale=True)


# Bad rows

ROWS = "id,a,b\n0,0.25,0.75\n1,0.9,0.9\n2,nan,0.5\n3,0.7,0.3,0.8\n4,x,0.5\n5,0.6,0.4\n"


def test_bad_rows_are_skipped_and_reported(tmp_path):
    done, out = protected(written(tmp_path / "in.csv", ROWS), columns="a,b", on_bad_row="skip")
    assert [row for row, _ in done.bad] == [1, 2, 3, 4]
    assert done.rows == 2
    assert [line.split(",")[0] for line in lines_of(out)] == ["id", "0", "5"]


def test_bad_rows_keep_their_label_alone_and_never_a_raw_score(tmp_path):
    done, out = protected(written(tmp_path / "in.csv", ROWS), columns="a,b", on_bad_row="label-only")
    assert [row for row, _ in done.bad] == [1, 2, 3, 4]
    rows = {line.split(",")[0]: line.split(",")[1:] for line in lines_of(out)[1:]}
    assert rows["1"] == ["1.0", "0.0"]
    assert rows["2"] == rows["4"] == ["", ""]
    assert "3" not in rows, "its cells are not those of the header: one of them might be a raw score elsewhere"
    assert len(rows) == 5


@pytest.mark.parametrize("on_bad_row", ["skip", "label-only"])
def test_bad_rows_of_every_other_format(tmp_path, on_bad_row):
    scores = make_scores(6)
    scores[2] *= 2
    scores[4, 1] = np.nan
    lists = pa.table({"id": range(6), "p": pa.array(scores.tolist(), pa.list_(pa.float64()))})
    pq.write_table(lists, tmp_path / "lists.parquet")
    lines = "".join(json.dumps({"id": i, "p": row}) + "\n" for i, row in enumerate(scores.tolist()))
    written(tmp_path / "in.jsonl", lines)
    left = [0, 1, 3, 5] if on_bad_row == "skip" else list(range(6))
    done, out = protected(tmp_path / "lists.parquet", on_bad_row=on_bad_row)
    table = pq.read_table(out)
    assert table["id"].to_pylist() == left
    again, out = protected(tmp_path / "in.jsonl", on_bad_row=on_bad_row)
    assert [json.loads(line)["id"] for line in lines_of(out)] == left
    assert [row for row, _ in done.bad] == [row for row, _ in again.bad] == [2, 4]
    if on_bad_row == "label-only":
        assert sorted(table["p"].to_pylist()[2]) == [0, 0, 0, 0, 1]
        assert json.loads(lines_of(out)[4])["p"] == [None] * 5


def test_rows_of_an_array_are_not_skipped(tmp_path):
    scores = make_scores(6)
    scores[2] *= 2
    np.save(tmp_path / "in.npy", scores)
    with pytest.raises(ValueError, match="known by their place; --on-bad-row label-only leaves them there"):
        protected(tmp_path / "in.npy", on_bad_row="skip")
    _, out = protected(tmp_path / "in.npy", on_bad_row="label-only")
    assert sorted(np.load(out)[2]) == [0, 0, 0, 0, 1]


# Columns that give the scores away


@pytest.mark.parametrize("name", ["confidence", "max_prob", "LOGIT", "margin", "Score", "pred_conf"])
def test_a_raw_confidence_does_not_pass_unasked(tmp_path, name):
    source = written(tmp_path / "in.csv", f"id,{name},a,b\n1,0.8,0.3,0.7\n2,0.6,0.4,0.6\n")
    with pytest.raises(
        ValueError, match=rf"^'{name}' .* stay as it is, .* --drop '{name}' leaves it out, --pass '{name}' lets it"
    ):
        protected(source, columns="a,b")
    assert leftovers(tmp_path, "in.csv") == []
    done, out = protected(source, columns="a,b", drop=name)
    assert done.dropped == (name,)
    assert lines_of(out)[0] == "id,a,b"
    assert [len(line.split(",")) for line in lines_of(out)] == [3, 3, 3]
    _, out = protected(source, columns="a,b", allow=name)
    assert [line.split(",")[1] for line in lines_of(out)] == [name, "0.8", "0.6"]


def test_a_raw_score_is_known_by_what_it_is(tmp_path):
    scores = make_scores(50)
    columns = {"id": range(50), **{f"p{i}": scores[:, i] for i in range(5)}, "value": scores.max(axis=1)}
    pq.write_table(pa.table({**columns, "age": np.linspace(0, 1, 50)}), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"'value' in in\.parquet would stay"):
        protected(tmp_path / "in.parquet", columns="p*")
    done, out = protected(tmp_path / "in.parquet", columns="p*", drop="value")
    assert pq.read_table(out).column_names == ["id", "p0", "p1", "p2", "p3", "p4", "age"]
    assert done.untouched == ("id", "age")


@pytest.mark.parametrize(
    "made",
    [
        lambda top, second: np.round(100 * top),
        lambda top, second: np.round(top, 2),
        lambda top, second: np.log(top),
        lambda top, second: 1 - np.sqrt(top),
        lambda top, second: np.round(top - second, 3),
        lambda top, second: top.argsort().argsort(),
    ],
)
def test_a_score_in_another_dress_does_not_pass_unasked(tmp_path, made):
    scores = make_scores(60)
    second, top = np.sort(scores, axis=1)[:, -2:].T
    columns = {"id": range(60), **{f"p{i}": scores[:, i] for i in range(5)}, "age": np.random.default_rng(1).random(60)}
    pq.write_table(pa.table({**columns, "w": made(top, second)}), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"^'w' in in\.parquet would stay"):
        protected(tmp_path / "in.parquet", columns="p*")
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    assert protected(tmp_path / "in.parquet", columns="p*")[0].untouched == ("id", "age")


@pytest.mark.parametrize("text", ["93 %", "0,93", "[0.93, 0.07]", " .93"])
def test_a_raw_confidence_does_not_pass_as_text(tmp_path, text):
    lines = [{"scores": [0.07, 0.93], "confidence": text, "scored_at": "2026-11-18 10:00"}] * 2
    source = written(tmp_path / "in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"^'confidence' in in"):
        protected(source, columns="scores")
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"^'confidence' in in"):
        protected(tmp_path / "in.parquet", columns="scores")
    source = written(tmp_path / "in.csv", f'a;b;confidence\n0.07;0.93;"{text}"\n')
    with pytest.raises(ValueError, match=r"^'confidence' in in"):
        protected(source, columns="a,b")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0.7, 0.6]).cast(pa.decimal128(9, 6)),
        pa.array([0.7, 0.6]).dictionary_encode(),
        pa.array([[], [0.4, 0.6]]),
        pa.array([{"top": [{"it": 0.7}]}, None]),
        pa.array([7, 6], pa.int8()),
    ],
)
def test_a_raw_confidence_of_any_type_does_not_pass_unasked(tmp_path, column):
    pq.write_table(pa.table({"a": [0.3, 0.4], "b": [0.7, 0.6], "confidence": column}), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match="'confidence' in in"):
        protected(tmp_path / "in.parquet", columns="a,b")


def test_labels_that_stand_in_the_order_of_their_scores_do_not_pass(tmp_path):
    # what Hugging Face's zero-shot pipeline answers with
    rng = np.random.default_rng(0)
    lines = []
    for scores in make_scores(8):
        order = np.argsort(-scores)
        lines.append({"text": "…", "labels": [f"c{i}" for i in order], "scores": scores[order].tolist()})
    source = written(tmp_path / "in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"'labels' in in\.jsonl.* tell their ranks.* top_k.* --drop 'labels'"):
        protected(source, columns="scores")
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"'labels' in in\.parquet.* tell their ranks"):
        protected(tmp_path / "in.parquet", columns="scores")
    for line in lines:  # in no order, they may pass
        line["scores"], line["labels"] = rng.permuted(line["scores"]).tolist(), rng.permuted(line["labels"]).tolist()
    source = written(tmp_path / "in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert protected(source, columns="scores")[0].untouched == ("text", "labels")


def test_rows_in_the_order_of_a_score_are_said_to_tell_their_rank(tmp_path):
    p = np.sort(np.random.default_rng(0).random(30))
    source = written(tmp_path / "in.csv", "id,fraud\n" + "".join(f"{i},{x}\n" for i, x in enumerate(p)))
    with pytest.warns(UserWarning, match="The rows stand in the order of 'fraud', which tells how they rank"):
        protected(source, columns="fraud")
    ranked = -np.sort(-make_scores(30), axis=1)
    pq.write_table(pa.table({"who": ["x"] * 30, **{f"p{i}": ranked[:, i] for i in range(5)}}), tmp_path / "in.parquet")
    with pytest.warns(UserWarning, match="In every row the scores fall from the first column to the last"):
        protected(tmp_path / "in.parquet", columns="p*")


def late_scores(path, note):
    """A file of scores, with a column beside them that holds this; NaN for nothing."""
    scores = make_scores(len(note), 3)
    cells = [None if np.isnan(value) else value for value in note.tolist()]
    columns = {"id": [f"r{i}" for i in range(len(note))], **{f"p{i}": scores[:, i].tolist() for i in range(3)}}
    if path.suffix == ".npz":
        np.savez(path, scores=scores, wide=np.random.default_rng(1).random((len(note), 4)), note=note)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({**columns, "note": cells}), path)
    elif path.suffix == ".jsonl":
        rows = zip(scores.tolist(), cells, strict=True)
        path.write_text("".join(json.dumps({"p": row, "note": {"x": cell}}) + "\n" for row, cell in rows))
    else:
        rows = zip(*columns.values(), cells, strict=True)
        path.write_text("id,p0,p1,p2,note\n" + "".join(f"{i},{a},{b},{c},{d or ''}\n" for i, a, b, c, d in rows))
    return path, {".npz": "scores", ".jsonl": "p"}.get(path.suffix, "p*")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz", ".parquet"])
def test_a_raw_score_that_begins_after_the_first_rows_does_not_pass_unasked(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(score_file, "BATCH_ROWS", 5000)
    monkeypatch.setattr(text, "READ_BYTES", 200_000)
    monkeypatch.setattr(json_lines, "READ_BYTES", 200_000)
    top = make_scores(10_000, 3).max(axis=1)
    late = np.where(np.arange(10_000) < 6000, np.nan, top)
    source, columns = late_scores(tmp_path / f"in{suffix}", late)
    with pytest.raises(
        ValueError, match=r"^'note' in in.* looks like raw scores from row \d+ on\. --drop 'note'"
    ) as told:
        protected(source, columns=columns)
    assert "\n" not in str(told.value)
    assert 6000 <= int(re.search(r"row (\d+)", str(told.value))[1]) < 10_000
    assert leftovers(tmp_path, source.name) == []
    assert protected(source, columns=columns, allow="note")[0].rows == 10_000
    assert "note" not in protected(source, columns=columns, drop="note")[0].untouched


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_raw_score_in_a_few_rows_does_not_pass_unasked(tmp_path, suffix):
    top = make_scores(10_000, 3).max(axis=1)
    for few, first in ((np.arange(10_000) >= 9950, 9950), (np.arange(10_000) % 400 == 399, 399)):
        source, columns = late_scores(tmp_path / f"in{suffix}", np.where(few, top, np.nan))
        with pytest.raises(ValueError, match=rf"^'note' in in.* from row {first} on"):
            protected(source, columns=columns)
    falling = np.where(np.arange(10_000) % 100 == 99, np.round(-50 * top), np.nan)
    source, columns = late_scores(tmp_path / f"in{suffix}", falling)
    with pytest.raises(ValueError, match=r"^'note' in in.* from row 99 on"):
        protected(source, columns=columns)


def test_the_row_from_which_on_a_column_is_raw_is_that_of_the_file(tmp_path):
    rows = make_scores(4001, 3)
    top = rows.max(axis=1)
    cells = [f"{','.join(map(str, row))},{top[i] if i >= 2001 else ''}" for i, row in enumerate(rows)]
    cells[1::2] = [f"x,1,1,{top[i] if i >= 2001 else ''}" for i in range(1, 4001, 2)]
    source = written(tmp_path / "in.csv", "\n".join(["a,b,c,note", *cells]) + "\n")
    with pytest.raises(ValueError, match=r"^'note' in in\.csv would stay .* from row 2002 on"):
        protected(source, columns="a,b,c", on_bad_row="skip")


@pytest.mark.parametrize(
    "raw",
    [
        lambda row: [["a", row[0]], ["b", row[1]], ["c", row[2]]],
        lambda row: [["1", row[0]], ["2", row[1]], ["3", row[2]]],
        lambda row: ["b", max(row)],
        lambda row: [7, max(row)],
        lambda row: {"a": {"x": [1, row[0]]}},
    ],
)
def test_raw_scores_within_lists_and_pairs_do_not_pass_unasked(tmp_path, raw):
    rows = make_scores(40, 3).tolist()
    lines = [json.dumps({"a": row[0], "b": row[1], "c": row[2], "debug": raw(row)}) for row in rows]
    source = written(tmp_path / "in.jsonl", "\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"^'debug' in in\.jsonl would stay as it is, and looks like raw scores"):
        protected(source, columns="a,b,c")


def test_keys_that_are_ids_take_no_room_of_their_own():
    values = [{f"u{i}": i, "same": i} for i in range(2000)]
    assert [name for _, name, _ in raw_columns.columns_within(0, "meta", values)] == ["meta.same"]
    values = [{f"score {i}": i} for i in range(2000)]
    assert len(raw_columns.columns_within(0, "meta", values)) == 1


def test_a_raw_score_in_the_second_column_of_another_array_does_not_pass_unasked(tmp_path):
    rows = make_scores(500, 3)
    beside = np.stack([np.arange(500.0), rows.max(axis=1)], axis=1)
    np.savez(tmp_path / "in.npz", scores=rows, beside=beside)
    with pytest.raises(ValueError, match=r"^'beside' in in\.npz would stay as it is"):
        protected(tmp_path / "in.npz", columns="scores")


@pytest.mark.parametrize(("last", "passes"), [("7", False), ("none", True)])
def test_a_column_that_gets_its_numbers_late_is_known_by_its_name(tmp_path, monkeypatch, last, passes):
    monkeypatch.setattr(text, "READ_BYTES", 50_000)
    rows = [f"{a},{b},{'' if i < 5000 else last}" for i, (a, b) in enumerate(make_scores(5001, 2))]
    source = written(tmp_path / "in.csv", "\n".join(["a,b,margin", *rows]) + "\n")
    with nullcontext() if passes else pytest.raises(ValueError, match=r"^'margin' in in\.csv"):
        assert protected(source, columns="a,b")[0].rows == 5001


def test_columns_of_few_numbers_are_not_refused_by_accident():
    rng = np.random.default_rng(0)
    parts, rows = 24, raw_columns.LOOKED_AT
    scores = make_scores(parts * rows, 10)
    others = [("age", "age", rng.random(len(scores))), ("count", "count", rng.integers(0, 7, len(scores)) * 1.0)]
    for i in range(40):  # ten in each part, of which some are in the order of a score
        ratings = np.full((parts, rows), np.nan)
        ratings[:, :10] = [1, 1, 1, 1, 1, 1, 2, 3, 4, 5]
        others.append((f"rating {i}", f"rating {i}", rng.permuted(ratings, axis=1).ravel()))
    assert raw_columns.looking_raw(scores, others) == {}
    assert raw_columns.looking_raw(scores, [("w", "w", scores[:, 3])]) == {"w": 0}


def test_metadata_of_a_parquet_file_are_left_behind_and_told_by_their_keys(tmp_path, capsys):
    raw = 0.7172908
    who = pd.Index([f"u{i}" for i in range(20)], name="who")
    frame = pd.DataFrame(make_scores(20, 2), columns=["p_a", "p_b"], index=who).assign(age=range(20))
    frame["when"] = pd.period_range("2026", periods=20, freq="D")
    frame.attrs = {"first_conf": raw}
    frame.to_parquet(tmp_path / "in.parquet")
    table = pq.read_table(tmp_path / "in.parquet")
    inner = pa.struct([pa.field("x", pa.int64(), metadata={"inner": str(raw)})])
    more = pa.field("more", inner, metadata={"about": str(raw)})
    pq.write_table(table.append_column(more, pa.array([{"x": 1}] * 20, inner)), tmp_path / "in.parquet")
    words = ["protect", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out.parquet")]
    assert run([*words, "--columns", "p_*", "--epsilon", "2"]) == 0
    told = capsys.readouterr().out
    keys = "more.about, more.x.inner, pandas.attributes, PANDAS_ATTRS"
    assert f"left out   metadata of the file: {keys}" in told
    assert str(raw) not in told
    out = pq.ParquetFile(tmp_path / "out.parquet")
    assert str(raw) not in out.schema_arrow.to_string(truncate_metadata=False)
    assert set(out.metadata.metadata) == {b"pandas", b"ARROW:schema"}
    assert str(raw).encode() not in (tmp_path / "out.parquet").read_bytes()
    assert str(raw).encode() not in base64.b64decode(out.metadata.metadata[b"ARROW:schema"])
    again = pd.read_parquet(tmp_path / "out.parquet")
    assert again.attrs == {}
    left = ["age", "when"]
    pd.testing.assert_frame_equal(again[left], frame[left])


def test_raw_scores_deep_in_a_line_and_in_other_arrays_are_found(tmp_path):
    line = '{"scores": [0.25, 0.75], "debug": {"top": {"confidence": 0.75}}, "problem": 3}\n'
    with pytest.raises(ValueError, match="--drop 'debug'"):
        protected(written(tmp_path / "in.jsonl", line), columns="scores")
    _, out = protected(tmp_path / "in.jsonl", columns="scores", drop="debug")
    assert list(json.loads(lines_of(out)[0])) == ["scores", "problem"]
    np.savez(tmp_path / "in.npz", scores=make_scores(), logits=np.ones((200, 5)), labels=np.arange(200))
    with pytest.raises(ValueError, match="--drop 'logits'"):
        protected(tmp_path / "in.npz", columns="scores")
    _, out = protected(tmp_path / "in.npz", columns="scores", drop="logits")
    with np.load(out) as arrays_:
        assert sorted(arrays_) == ["labels", "scores"]


def test_scores_cannot_be_dropped_or_passed(tmp_path):
    source = save_scores(tmp_path / "in.csv", make_scores(3))
    for options in ({"drop": "score_1"}, {"allow": "score_1"}):
        with pytest.raises(ValueError, match="other columns than the scores, got 'score_1'"):
            protected(source, **options)


def test_what_else_to_try_is_said(tmp_path):
    with pytest.raises(ValueError, match="or --columns to name those that hold scores, got text in 'name' of in"):
        protected(written(tmp_path / "in.csv", "name,age,cat,dog\nx,31,0.25,0.75\n"))
    with pytest.raises(BadRows, match=r"Taken as scores: 'age', 'cat', 'dog'; --columns names others"):
        protected(written(tmp_path / "in.csv", "age,cat,dog\n31,0.25,0.75\n"))


# One column


def test_a_confidence_beside_its_label_is_a_list_of_one(tmp_path):
    scores = make_scores(40)
    label, top = scores.argmax(axis=1), scores.max(axis=1)
    lines = "".join(f"c{i},{p}\n" for i, p in zip(label, top, strict=True))
    source = written(tmp_path / "in.csv", f"label,confidence\n{lines}")
    _, out = protected(source, Veil(1.0, shape=TopK(5)), columns="confidence")
    answers = [line.split(",") for line in lines_of(out)[1:]]
    assert [name for name, _ in answers] == [f"c{i}" for i in label]
    assert all(0.2 <= float(p) <= 1 for _, p in answers)  # the largest of five
    assert len({p for _, p in answers} & {str(p) for p in top}) == 0


@given(
    arrays(np.float32, array_shapes(max_dims=1, max_side=20), elements=st.floats(0, 1, width=32)),
    st.sampled_from([0.5, 0.3, 0.9, 1e-3]),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_one_column_keeps_its_side_of_the_threshold(p, threshold, dtype):
    p = p.astype(dtype)
    z = Veil(2.0, shape=Binary(threshold))(p)
    assert z.dtype == p.dtype
    np.testing.assert_array_equal(z >= dtype(threshold), p >= dtype(threshold))
    assert np.all((z >= 0) & (z <= 1))


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_a_file_with_one_column_of_probabilities(tmp_path, threshold):
    p = np.random.default_rng(0).uniform(size=400)
    source = written(
        tmp_path / "in.csv", "id,fraud\n" + "".join(f"{i},{value!r}\n" for i, value in enumerate(p.tolist()))
    )
    veil = Veil(2.0, shape=VECTORS if threshold is None else Binary(threshold))
    done, out = protected(source, veil, columns="fraud")
    z = np.loadtxt(out, delimiter=",", skiprows=1)[:, 1]
    assert (done.classes, done.columns, done.untouched) == (1, ("fraud",), ("id",))
    border = threshold or 0.5
    np.testing.assert_array_equal(z >= border, p >= border)
    assert np.mean(np.abs(z - p) > 1e-6) > 0.9


def test_what_is_no_probability_is_refused_by_row(tmp_path):
    with pytest.raises(BadRows) as caught:
        protected(written(tmp_path / "in.csv", "p\n0.2\n1.2\n-0.1\nnan\n"))
    assert [row for row, _ in caught.value.rows] == [1, 2, 3]
    told = [fault.partition(";")[0] for _, fault in caught.value.rows]
    assert told == ["the score is more than 1", "the score is less than 0", "the score is NaN"]


# The command


def run(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_the_command_says_which_rows_are_left_out_and_which_keep_their_label(tmp_path, capsys):
    source = written(tmp_path / "in.csv", ROWS)
    words = ["protect", str(source), "-o", str(tmp_path / "out.csv"), "--epsilon", "2", "--columns", "a,b"]
    assert run([*words, "--on-bad-row", "label-only"]) == 0
    said = capsys.readouterr().out
    assert "  label only  row 1: the scores sum to more than 1" in said
    assert "  skipped     row 3: expected 3 cells, got 4" in said
    written(source, "id,a,b\n" + "0,0.5,0.5\n" * 3 + "1,0.9,0.9\n" * 12 + "2,0.5\n" * 3)
    assert run([*words, "--on-bad-row", "label-only", "--force"]) == 0
    said = capsys.readouterr().out
    assert "  label only  and 2 more rows\n  skipped     and 3 more rows\n" in said


def test_a_column_without_a_name_is_called_index(tmp_path, capsys):
    pd.DataFrame({"id": [7, 8], "a": [0.3, 0.4], "b": [0.7, 0.6]}).to_csv(tmp_path / "in.csv")
    words = ["protect", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), "--epsilon", "2"]
    assert run([*words, "--columns", "a,b"]) == 0
    assert "untouched  index, id\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scores", "options", "helps"),
    [
        ([[0.2], [1.2]], ["--shape", "binary"], False),
        ([[-0.1], [0.2]], ["--shape", "binary"], False),
        ([[20], [93.5]], ["--shape", "binary"], True),
        ([[0.2, 1.2], [0.1, 0.3]], ["--shape", "multi_label"], False),
        ([[20, 90], [93.5, 3]], ["--shape", "multi_label"], True),
        ([[0.3, 0.7], [0.9, 0.9]], [], False),
        ([[0.3, 0.7], [0.33, 0.66]], [], True),
        ([[30, 70], [33, 66]], [], True),
        ([[0.6, 0.3], [0.9, 0.15]], ["--shape", "top_k"], True),
        ([[0.6, 0.3], [0.9, 0.8]], ["--shape", "top_k"], False),
    ],
)
def test_rescaling_is_offered_where_it_helps(tmp_path, capsys, scores, options, helps):
    np.save(tmp_path / "in.npy", np.array(scores, np.float32))
    words = ["protect", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.npy"), "--epsilon", "0.5", *options]
    assert run(words) == 2
    assert ("--rescale" in capsys.readouterr().err) == helps
    assert run([*words, "--rescale"]) == (0 if helps else 2)


def test_the_command_says_what_it_did(tmp_path, capsys):
    source = written(tmp_path / "in.csv", "id,confidence,a,b\n1,0.8,0.3,0.7\n2,0.6,0.4,0.65\n")
    words = ["protect", str(source), "-o", str(tmp_path / "out.csv"), "--epsilon", "2", "--columns", "a,b"]
    assert run([*words, "--drop", "confidence", "--on-bad-row", "skip"]) == 0
    said = capsys.readouterr().out
    assert "left out   confidence" in said
    assert "skipped     row 1: the scores sum to more than 1" in said
    assert run([*words, "--drop", "confidence", "--force"]) == 2
    told = capsys.readouterr().err
    assert "--rescale divides each by its sum. If rows need not sum to 1, name a --shape" in told
    assert "--on-bad-row skip leaves such rows out; --on-bad-row label-only keeps their labels alone." in told
    assert run([*words, "--on-bad-row", "sometimes"]) == 2
    assert "Expected --on-bad-row refuse, skip, label-only, got 'sometimes'" in capsys.readouterr().err
