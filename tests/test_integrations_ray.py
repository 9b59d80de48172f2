"""Ray: who draws, how often and where makes no difference to a sticky answer."""

import os
import signal
import warnings
from functools import partial

import joblib
import numpy as np
import pyarrow.parquet as pq
import pytest

from doc_pages import run_page
from score_datasets import SECRET, content, run, secret_in, write
from scoreveil import Veil
from scoreveil.audit.data.records import Records
from scoreveil.audit.study.shadows import shadow_models
from scoreveil.cli.audit import _engine
from scoreveil.files import dataset
from scoreveil.integrations.columns import ColumnVeil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what Ray imports
    import ray
    import ray.data

    from scoreveil.integrations.ray import VeilBatches, each, joblib_on_ray

# warnings of Ray's own threads come at times of their choosing
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ray]


def test_batches_of_a_dataset_are_veiled_wherever_they_are(ray_cluster):
    rng = np.random.default_rng(0)
    scores, names = rng.dirichlet(np.ones(4), 300), np.arange(300)
    given = ray.data.from_numpy_refs([ray.put(part) for part in np.array_split(scores, 3)]).rename_columns(
        {"data": "z"}
    )
    given = given.zip(ray.data.range(300))
    options = {"epsilon": 2.0, "columns": "z", "records": "id", "secret": SECRET}
    veiled = given.map_batches(
        VeilBatches, fn_constructor_kwargs=options, batch_format="numpy", batch_size=70, concurrency=2, num_cpus=0.5
    )
    rows = sorted(veiled.take_all(), key=lambda row: row["id"])
    alone = ColumnVeil(2.0, "z", "id", secret=SECRET)({"z": scores, "id": names})
    assert np.array_equal(np.stack([row["z"] for row in rows]), alone["z"])


def test_protect_on_ray_writes_what_one_process_writes(ray_cluster, tmp_path):
    source = write(tmp_path / "in", files=4)
    options = ("-e", 2, "--columns", "p*", "--secret-file", secret_in(tmp_path))
    assert run("protect", source, "-o", tmp_path / "here", *options) == 0
    assert run("protect", source, "-o", tmp_path / "there", *options, "--engine", "ray", "--workers", 2) == 0
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_killed_worker_changes_nothing(ray_cluster, tmp_path):
    source, out = write(tmp_path / "in", files=4), tmp_path / "out"
    veil = Veil(2.0, secret=secret_in(tmp_path))

    def killed_once(partition, flag):
        """The first who comes is killed with a part of the output written."""
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return dataset.protect_partition(partition, veil, "p*")
        folder, _, name = partition.target.rpartition("/")
        with open(f"{folder}/.{name}.0badcafe.part", "wb") as half:
            half.write(b"half")
        return os.kill(os.getpid(), signal.SIGKILL)

    todo = dataset.begin(str(source), str(out), veil, "p*")
    (out / "b").mkdir()
    done = list(each(partial(killed_once, flag=str(tmp_path / "flag")), todo))
    assert (tmp_path / "flag").exists()
    assert sum(part.rows for part in done) == 200
    for partition in dataset.begin(str(source), str(tmp_path / "calm"), veil, "p*"):
        dataset.protect_partition(partition, veil, "p*")
    assert content(out) == content(tmp_path / "calm")
    assert not list(out.rglob(".*.part"))
    assert dataset.begin(str(source), str(out), veil, "p*") == []


def test_what_a_task_raises_comes_back_as_it_was(ray_cluster, tmp_path):
    source = write(tmp_path / "in")
    table = pq.read_table(source / "part-2.parquet")
    pq.write_table(table.set_column(1, "p0", table["p1"]), source / "part-2.parquet")
    veil = Veil(2.0)
    todo = dataset.begin(str(source), str(tmp_path / "out"), veil, "p*")
    one = partial(dataset.protect_partition, veil=veil, columns="p*")
    with pytest.raises(ValueError, match=r"part-2.parquet: .* rows that are not score vectors") as raised:
        list(each(one, todo))
    assert type(raised.value) is ValueError
    assert not (tmp_path / "out" / "part-2.parquet").exists()


def test_shadows_train_on_ray_as_they_do_here(ray_cluster):
    def train(rows, seed):
        drawn = np.random.default_rng(seed).dirichlet(np.ones(3), 24)
        return drawn[:20] + len(rows), drawn[20:]

    population = Records(np.full((4, 3), 1 / 3), np.zeros(4, dtype=np.int64))
    here = shadow_models(train, 20, population, count=4, seed=0, jobs=1)
    with joblib_on_ray():
        assert type(joblib.parallel.get_active_backend()[0]).__name__ == "JoblibTasks"
        there = shadow_models(train, 20, population, count=4, seed=0, jobs=2)
    assert there.digest == here.digest


def test_the_audit_takes_an_engine(ray_cluster):
    with _engine("ray", 2):
        assert type(joblib.parallel.get_active_backend()[0]).__name__ == "JoblibTasks"
    with _engine("local", 2):
        assert type(joblib.parallel.get_active_backend()[0]).__name__ != "JoblibTasks"
    with pytest.raises(ValueError, match="Expected --engine local or ray, got mpi"):
        _engine("mpi", 2)


def test_columns_are_veiled_and_the_rest_stays():
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), 20)
    batch = {"id": np.arange(20), "a": scores[:, 0], "b": scores[:, 1], "c": scores[:, 2]}
    after = ColumnVeil(2.0, ["a", "b", "c"])(batch)
    assert list(after) == list(batch)
    assert after["id"] is batch["id"]
    assert np.array_equal(np.stack([after[n] for n in "abc"], axis=1).argmax(axis=1), scores.argmax(axis=1))
    lists = np.empty(20, dtype=object)
    lists[:] = list(scores)
    assert ColumnVeil(2.0, "z")({"z": lists})["z"].shape == (20, 3)
    with pytest.raises(ValueError, match=r"The batch has no column 'z'; it has 'id', 'a'"):
        ColumnVeil(2.0, "z")(batch)
    with pytest.raises(ValueError, match="z are named as both"):
        ColumnVeil(2.0, "z", records="z")
    lists[0] = scores[0, :2]
    with pytest.raises(ValueError, match="Expected vectors of one length, got 2 to 3"):
        ColumnVeil(2.0, "z")({"z": lists})


def test_the_page_runs(ray_cluster):
    assert run_page("ray")["veiled"].count() == 100
