"""Files of scores for the tests, in every format."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scoreveil.files import json_lines, score_file, text

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SECRET = b"sixteen bytes, or more"
NAMES = [f"score_{i}" for i in range(5)]


def make_scores(n=200, k=5, dtype=np.float64, seed=0):
    logits = np.random.default_rng(seed).normal(scale=2, size=(n, k))
    scores = np.exp(logits)
    return (scores / scores.sum(axis=1, keepdims=True)).astype(dtype)


def small_batches(monkeypatch, rows=7):
    monkeypatch.setattr(score_file, "BATCH_ROWS", rows)
    monkeypatch.setattr(text, "READ_BYTES", 300)
    monkeypatch.setattr(json_lines, "READ_BYTES", 300)


def leftovers(folder, *expected):
    return sorted(path.name for path in folder.iterdir() if path.name not in expected)


def scores_of(table, names=NAMES):
    return np.stack([table[name].to_numpy() for name in names], axis=1)


def assert_veiled(before, after):
    """Score vectors of the same type and labels, and not the raw ones."""
    assert after.dtype == before.dtype
    assert after.shape == before.shape
    np.testing.assert_array_equal(after.argmax(axis=-1), before.argmax(axis=-1))
    np.testing.assert_allclose(after.astype(float).sum(axis=-1), 1, atol=5e-3)
    assert (np.abs(after - before).max(axis=-1) > 0).mean() > 0.9


def write_csv(path, records, end="\n"):
    path.write_bytes("".join(record + end for record in records).encode())
    return path


def save_scores(path, scores):
    if path.suffix == ".npy":
        np.save(path, scores)
    elif path.suffix == ".npz":
        np.savez(path, scores=scores)
    elif path.suffix in SEPARATORS:
        separator = SEPARATORS[path.suffix]
        write_csv(path, [separator.join(NAMES), *(separator.join(map(repr, row)) for row in scores.tolist())])
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(dict(zip(NAMES, row, strict=True)))}\n" for row in scores.tolist()))
    else:
        pq.write_table(pa.table({name: scores[:, i] for i, name in enumerate(NAMES)}), path)
    return path


def load_scores(path):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays["scores"]
    if path.suffix in SEPARATORS:
        return np.loadtxt(path, delimiter=SEPARATORS[path.suffix], skiprows=1, ndmin=2)
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return np.array([[row[name] for name in NAMES] for row in rows]).reshape(-1, len(NAMES))
    return scores_of(pq.read_table(path))
