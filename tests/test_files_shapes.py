"""Files whose scores are not vectors: many labels, the largest of many classes, a vector for each place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreveil import Veil, files
from scoreveil.cli import main
from scoreveil.files import BadRows, Cleaning
from scoreveil.files.records import read as read_records
from scoreveil.shapes import VECTORS, Binary, MultiLabel, Shape, TopK

SECRET = bytes(range(32))


def labels(n: int = 40, k: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((n, k)).round(6)


def write_csv(path: Path, scores: np.ndarray) -> Path:
    lines = [f"r{i}," + ",".join(map(repr, row)) for i, row in enumerate(scores.tolist())]
    path.write_text("\n".join(["id," + ",".join("abc"[: scores.shape[1]]), *lines]) + "\n")
    return path


def write_lists(path: Path, n: int = 30) -> Path:
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for i in range(n):
            p = rng.dirichlet(np.full(50, 0.1))
            top = np.argsort(-p)[:4]
            listed = [{"label": f"class {j}", "score": float(p[j])} for j in top]
            file.write(json.dumps({"id": i, "answer": listed}) + "\n")
    return path


def protect(source: Path, shape: Shape, columns: str | None = None, **cleaning: Any) -> Path:
    target = source.with_stem(source.stem + "-out")
    veil = Veil(1.0, shape=shape, secret=SECRET)
    files.protect(source, target, veil, columns, cleaning=Cleaning(**cleaning))
    return target


@pytest.mark.parametrize("shape", [MultiLabel(), MultiLabel((0.2, 0.5, 0.7))])
def test_many_labels_of_a_table_get_the_answers_of_the_array(tmp_path: Path, shape: Shape) -> None:
    scores = labels()
    out = protect(write_csv(tmp_path / "in.csv", scores), shape, "a,b,c")
    cells = [line.split(",") for line in out.read_text().splitlines()]
    assert cells[0] == ["id", "a", "b", "c"]
    assert [row[0] for row in cells[1:]] == [f"r{i}" for i in range(40)]
    veiled = np.array([row[1:] for row in cells[1:]], dtype=float)
    np.testing.assert_array_equal(veiled, Veil(1.0, shape=shape, secret=SECRET)(scores))


def test_one_column_gets_the_answers_of_the_array(tmp_path: Path) -> None:
    scores = labels(k=1)
    np.save(tmp_path / "in.npy", scores)
    for shape in (VECTORS, Binary(0.3), Binary(0.3, logits=True)):
        out = protect(tmp_path / "in.npy", shape)
        np.testing.assert_array_equal(
            np.load(out), Veil(1.0, shape=Binary() if shape == VECTORS else shape, secret=SECRET)(scores)
        )
        out.unlink()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_an_array_of_one_axis_is_a_column_where_the_veil_says_so(tmp_path: Path, suffix: str) -> None:
    scores, source = labels(k=1)[:, 0], tmp_path / f"in{suffix}"
    np.save(source, scores) if suffix == ".npy" else np.savez(source, p=scores, id=np.arange(len(scores)))
    out = np.load(protect(source, Binary(0.3), "p" if suffix == ".npz" else None))
    answer = out if suffix == ".npy" else out["p"]
    np.testing.assert_array_equal(answer, Veil(1.0, shape=Binary(0.3), secret=SECRET)(scores))
    assert suffix == ".npy" or out["id"].tolist() == list(range(len(scores)))


def test_places_of_an_array_are_veiled_each_and_counted(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).dirichlet(np.ones(4), (9, 2, 3)).astype(np.float32)
    for name, array in (("c", scores), ("f", np.asfortranarray(scores))):
        np.save(tmp_path / f"{name}.npy", array)
        done = files.protect(tmp_path / f"{name}.npy", tmp_path / f"{name}-out.npy", Veil(0.5, secret=SECRET))
        assert (done.rows, done.classes, done.releases) == (9, 4, 6)
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}-out.npy"), Veil(0.5, secret=SECRET)(scores))
    scores[3, 1, 2, 0] += 1
    np.save(tmp_path / "bad.npy", scores)
    with pytest.raises(BadRows, match="row 3, place 1, 2: the scores sum to more than 1"):
        files.protect(tmp_path / "bad.npy", tmp_path / "out.npy", Veil(0.5))
    with pytest.raises(ValueError, match="--on-bad-row label-only is for rows of one vector"):
        protect(tmp_path / "bad.npy", VECTORS, on_bad_row="label-only")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("shape", [TopK(), TopK(50)])
def test_lists_of_labels_keep_their_labels_and_lose_their_order(tmp_path: Path, shape: TopK) -> None:
    source = write_lists(tmp_path / "in.jsonl")
    out = protect(source, shape)
    veil = Veil(1.0, shape=shape, secret=SECRET)
    given = [json.loads(line)["answer"] for line in source.read_text().splitlines()]
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in found] == list(range(30))
    assert [row["answer"] for row in found] == veil.pairs(given)
    for row, before in zip(found, given, strict=True):
        assert row["answer"][0]["label"] == before[0]["label"]
        others = [entry["label"] for entry in row["answer"][1:]]
        assert others == sorted(others)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id": 1, "answer": [{"label": "a", "score": 0.4}]}', "expected 2 scores, like the first line, got 1"),
        ('{"id": 1, "answer": [{"label": "a", "score": 0.4}, {"label": "a", "score": 0.2}]}', "listed twice"),
        ('{"id": 1, "answer": [{"label": "a", "score": 0.4, "x": 1}, {"label": "b", "score": 0.2}]}', "nothing else"),
        ('{"id": 1, "answer": [{"label": "a", "score": "1"}, {"label": "b", "score": 0.2}]}', "got str"),
        ('{"id": 1, "answer": [{"label": "a", "score": 0.9}, {"label": "b", "score": 0.9}]}', "sum to more than 1"),
        ('{"id": 1, "answer": 3}', "expected a list of labels and scores, got int"),
    ],
)
def test_a_line_that_is_no_such_list_is_refused_skipped_or_told(tmp_path: Path, line: str, fault: str) -> None:
    good = '{"id": 0, "answer": [{"label": "a", "score": 0.7}, {"label": "b", "score": 0.2}]}'
    source = tmp_path / "in.jsonl"
    source.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(BadRows, match=f"row 1: .*{fault}"):
        protect(source, TopK())
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    out = protect(source, TopK(), on_bad_row="skip")
    assert [json.loads(each)["id"] for each in out.read_text().splitlines()] == [0, 0]
    out.unlink()
    alone = protect(source, TopK(), on_bad_row="label-only").read_text()
    for raw in ("0.4", "0.9", '"1"', '"x"'):
        assert raw not in alone.splitlines()[1]


def test_columns_in_the_order_of_their_scores_are_refused(tmp_path: Path) -> None:
    ranked = -np.sort(-np.random.default_rng(0).dirichlet(np.ones(9), 20)[:, :3], axis=1)
    with pytest.raises(ValueError, match=r"columns stand in the order of their scores.*\.jsonl"):
        protect(write_csv(tmp_path / "in.csv", ranked), TopK(), "a,b,c")
    with pytest.raises(ValueError, match="columns stand in the order of their scores"):
        protect(write_csv(tmp_path / "in.csv", ranked[:, ::-1]), TopK(), "a,b,c")
    np.save(tmp_path / "in.npy", ranked)  # indices of the classes may stand in another file
    with pytest.raises(ValueError, match="columns stand in the order of their scores"):
        protect(tmp_path / "in.npy", TopK(), None)
    shuffled = np.random.default_rng(1).permuted(ranked, axis=1)
    protect(write_csv(tmp_path / "in.csv", shuffled), TopK(), "a,b,c")


def test_all_bad_rows_of_many_labels_are_listed_by_column(tmp_path: Path) -> None:
    scores = labels(900)
    scores[7, 1], scores[8, 0], scores[600, 2] = 1.5, -0.5, 9
    with pytest.raises(BadRows) as caught:
        protect(write_csv(tmp_path / "in.csv", scores), MultiLabel(), "a,b,c")
    assert [row for row, _ in caught.value.rows] == [7, 8, 600]
    assert [fault.partition(";")[0] for _, fault in caught.value.rows] == [
        "column 'b': the score is more than 1",
        "column 'a': the score is less than 0",
        "column 'c': the score is more than 1",
    ]


def test_percent_of_many_labels_stays_percent(tmp_path: Path) -> None:
    scores = labels()
    out = protect(write_csv(tmp_path / "in.csv", scores * 100), MultiLabel(), "a,b,c", rescale=True)
    veiled = np.array([line.split(",")[1:] for line in out.read_text().splitlines()[1:]], dtype=float)
    np.testing.assert_array_equal(veiled >= 50, scores >= 0.5)
    assert veiled.max() > 2


def command(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(line.split())
    told = capsys.readouterr()
    return int(done.value.code or 0), told.out, told.err


def test_the_command_protects_shapes_and_says_what_an_answer_spends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "in.csv", labels())
    write_lists(tmp_path / "in.jsonl")
    line = "protect in.csv -o out.csv -e 8 --columns a,b,c --shape multi_label --threshold 0.2,0.5,0.7"
    code, out, err = command(line, capsys)
    assert code == 0
    assert "40 rows × 3 labels" in out
    assert "an answer  has 3 releases, ε = 24 in all" in out
    assert err.count("Warning") == 1
    assert "nothing about a whole answer" in err
    code, out, _ = command("protect in.jsonl -o out.jsonl -e 1 --shape top_k --classes 50", capsys)
    assert (code, "releases" in out) == (0, False)
    Veil(1.0, shape=MultiLabel((0.2, 0.5, 0.7))).save("veil.json")
    code, out, _ = command("protect in.csv -o again.csv --veil veil.json --columns a,b,c", capsys)
    assert (code, "has 3 releases, ε = 3 in all" in out) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--columns a,b,c --shape multi_label --threshold 0.2,0.3", "Expected a threshold for each of 3 labels, got 2"),
        ("--columns a,b,c --shape multi_label --threshold x", "Expected --threshold to be numbers"),
        ("--columns a,b,c --shape labels", "Expected --shape binary, multi_label, top_k, got 'labels'"),
        ("--columns a,b,c --shape multi_label --classes 9", "--classes goes with --shape top_k"),
        ("--columns a,b,c --shape top_k --threshold 0.3", "--threshold and --logits are for --shape binary"),
        ("--columns a,b,c --shape top_k --classes 2", "3 classes are listed, and there are 2 in all"),
        ("--columns a,b,c", "If rows need not sum to 1, name a --shape, or one column with --columns."),
        ("--shape multi_label", "got text in 'id'"),
    ],
)
def test_options_that_do_not_fit_are_one_error_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "in.csv", labels())
    code, _, err = command(f"protect in.csv -o out.csv -e 1 {options}", capsys)
    assert code != 0
    assert message in err
    assert not (tmp_path / "out.csv").exists()


# Files that were meant otherwise


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_an_array_of_one_axis_is_one_vector_or_the_way_out_is_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = "p" if suffix == ".npz" else None

    def save(name: str, array: np.ndarray) -> str:
        path = tmp_path / f"{name}{suffix}"
        np.savez(path, p=array) if columns else np.save(path, array)
        return str(path)

    column, vector = np.linspace(0.05, 0.96, 200), np.full(200, 1 / 200)
    told = (
        rf"col{suffix} has 1 row that is not a score vector. It has one dimension, and was read as one vector of 200 "
        r"classes. If it is one column, .*--shape binary, in Python shape=Binary\(\)"
    )
    with pytest.raises(ValueError, match=f"^members: {told}"):
        read_records(save("col", column), None, "members", columns)
    with pytest.raises(BadRows, match=f"^{told}"):
        files.protect(save("col", column), tmp_path / f"out{suffix}", Veil(2.0), columns)
    assert read_records(save("col", column), None, "members", columns, Binary()).scores.shape == (200, 2)
    assert read_records(save("one", vector), None, "members", columns).scores.shape == (1, 200)
    named = f"--columns {columns}" if columns else ""
    code, _, err = command(f"fit --nonmembers col{suffix} {named} -e 2 -o veil.json", capsys)
    assert (code, "--shape binary" in err) == (2, True)
    code, _, err = command(f"protect col{suffix} {named} -o out{suffix} -e 2 --shape binary", capsys)
    assert code == 0, err


def test_a_file_in_percent_is_refused_once_and_the_way_out_is_to_divide_or_rescale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = np.random.default_rng(0).dirichlet(np.ones(3), 40) * 100
    write_csv(tmp_path / "in.csv", scores)
    once = "  row 0 and 39 more: the scores look like percentages; divide them by 100"
    code, _, err = command("protect in.csv -o out.csv -e 2 --columns a,b,c", capsys)
    assert (code, err.count("look like percentages")) == (2, 1)
    assert f"{once}\nIf rows are rounded or in percent, --rescale divides each by its sum. --on-bad-row skip" in err
    with pytest.raises(ValueError, match=r"^members: in.csv has 40 rows") as caught:
        read_records(tmp_path / "in.csv", None, "members", "a,b,c")
    assert str(caught.value).splitlines()[1:] == [once]
    write_csv(tmp_path / "in.csv", scores[:, :1].repeat(3, axis=1))
    with pytest.raises(
        ValueError, match=r"the score is more than 1.*\nIf these are percentages, divide them by 100\.$"
    ):
        read_records(tmp_path / "in.csv", None, "members", "a")


def test_what_else_the_rows_of_a_file_may_be_is_said_where_most_are_bad(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).dirichlet(np.ones(3), 40)

    def told(rows: np.ndarray) -> str:
        with pytest.raises(ValueError, match=r"not (a score vector|score vectors)\.") as caught:
            read_records(write_csv(tmp_path / "in.csv", rows), None, "members", "a,b,c")
        return str(caught.value).splitlines()[-1]

    many = "If each column is a yes or no of its own, add --shape multi_label, in Python shape=MultiLabel()."
    assert told(labels()) == many
    assert told(scores * 0.98) == "If rows are rounded, divide each by its sum."
    scores[7] = 0.9
    assert told(scores) == "  row 7: the scores sum to more than 1, by over 0.001"
