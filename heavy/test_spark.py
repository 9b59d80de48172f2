"""Spark: run by make spark, since it needs Java and half a gigabyte. The same answers as in one process."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from doc_pages import run_page
from scoreveil.integrations.columns import ColumnVeil
from scoreveil.integrations.spark import veil_columns

os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run the first python3 of the path
SECRET = b"a secret of the tests"
SCORES = np.random.default_rng(0).dirichlet(np.ones(3), 200)


@pytest.fixture(scope="module")
def spark():
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def test_vectors_are_the_same_wherever_they_are_veiled(spark, tmp_path):
    key = tmp_path / "veil.key"
    key.write_bytes(SECRET)
    frame = spark.createDataFrame(pd.DataFrame({"id": range(200), "z": list(SCORES)})).repartition(5)
    options = {"columns": "z", "records": "id", "secret": key}
    rows = frame.mapInPandas(veil_columns(2.0, **options), frame.schema).orderBy("id").toPandas()
    alone = ColumnVeil(2.0, **options)({"id": np.arange(200), "z": SCORES})["z"]
    assert np.array_equal(np.stack(rows["z"].to_list()), alone)


def test_columns_of_numbers_and_what_is_beside_them(spark):
    table = pd.DataFrame(
        {"name": [f"r{i}" for i in range(200)], "a": SCORES[:, 0], "b": SCORES[:, 1], "c": SCORES[:, 2]}
    )
    frame = spark.createDataFrame(table)
    after = frame.mapInPandas(veil_columns(2.0, ["a", "b", "c"]), frame.schema).toPandas()
    assert sorted(after["name"]) == sorted(table["name"])
    merged = table.merge(after, on="name")
    z, y = (merged[[f"{c}_{side}" for c in "abc"]].to_numpy() for side in ("y", "x"))
    assert np.array_equal(z.argmax(axis=1), y.argmax(axis=1))
    assert np.allclose(z.sum(axis=1), 1)
    assert np.abs(z - y).mean() > 0.01


def test_what_does_not_fit_is_refused_before_any_task():
    with pytest.raises(ValueError, match="epsilon"):
        veil_columns(-1.0, "z")


def test_the_page_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_page("spark")["veiled"].count() == 100
