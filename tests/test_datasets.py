"""Datasets of many files: each is complete or absent, and a run goes on where it was stopped."""

import json
import shutil
import threading
import warnings

import numpy as np
import pytest

from score_datasets import SECRET, content, run, secret_in, write
from scoreveil import Veil
from scoreveil.files import dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses what Python has deprecated
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import FTPServer


@pytest.fixture
def secret_file(tmp_path):
    return secret_in(tmp_path)


def test_every_file_is_veiled_in_its_place(tmp_path, secret_file, capsys):
    source = write(tmp_path / "in")
    assert run("protect", source, "-o", tmp_path / "out", "-e", 2, "--columns", "p*", "--secret-file", secret_file) == 0
    before, after = content(source), content(tmp_path / "out")
    assert list(after) == list(before) == ["b/part-1.parquet", "part-0.parquet", "part-2.parquet"]
    veil = Veil(2.0, secret=SECRET)
    for name, table in after.items():
        raw = np.stack([before[name][c] for c in ("p0", "p1", "p2")], axis=1)
        assert table["id"] == before[name]["id"]
        assert np.array_equal(np.stack([table[c] for c in ("p0", "p1", "p2")], axis=1), veil(raw))
    assert "150 rows × 3 classes" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path, secret_file, capsys):
    source, out = write(tmp_path / "in"), tmp_path / "out"
    command = ("protect", source, "-o", out, "-e", 2, "--columns", "p*", "--secret-file", secret_file)
    assert run(*command) == 0
    whole = content(out)
    (out / "part-2.parquet").unlink()
    (out / ".part-2.parquet.12345678.part").write_bytes(b"half of it")
    kept = (out / "part-0.parquet").stat().st_mtime_ns
    assert run(*command) == 0
    assert content(out) == whole
    assert (out / "part-0.parquet").stat().st_mtime_ns == kept
    assert not list(out.glob(".*.part"))
    assert "2 files of" in capsys.readouterr().out
    assert run(*command) == 0, "nothing is left to do"


def test_one_output_is_never_of_two_settings(tmp_path, secret_file, capsys):
    source, out = write(tmp_path / "in"), tmp_path / "out"
    command = ("protect", source, "-o", out, "--columns", "p*")
    assert run(*command, "-e", 2, "--secret-file", secret_file) == 0
    for other in (("-e", 3, "--secret-file", secret_file), ("-e", 2)):
        assert run(*command, *other) == 2
        assert "was begun with other settings" in capsys.readouterr().err
    assert SECRET.hex() not in (out / dataset.MANIFEST).read_text()
    assert json.loads((out / dataset.MANIFEST).read_text())["epsilon"] == 2
    assert run(*command, "-e", 3, "--force") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("empty", "-o", "out", "-e", "2"), "There are no .parquet files in"),
        (("in", "-o", "in/out", "-e", "2"), "Expected an output outside the input"),
        (("in", "-o", "full", "-e", "2"), "has .parquet files already"),
        (("in/part-0.parquet", "-o", "out", "-e", "2", "--engine", "ray"), "ray for a folder or URL"),
        (("in", "-o", "out", "-e", "2", "--engine", "mpi"), "Expected --engine local"),
        (("in", "-o", "out", "-e", "2", "--columns", "id,p*"), "part-1.parquet: Expected floating-point"),
    ],
)
def test_what_cannot_be_done_says_why_and_names_the_file(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copytree(write(tmp_path / "in"), tmp_path / "full")
    assert run("protect", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def ftp(tmp_path):
    """A real server of files, reached over a socket."""
    (tmp_path / "served").mkdir()
    authorizer = DummyAuthorizer()
    authorizer.add_user("user", "word", str(tmp_path / "served"), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = FTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.05, "handle_exit": False})
    thread.start()
    yield tmp_path / "served", f"ftp://user:word@127.0.0.1:{server.socket.getsockname()[1]}"
    server.close_all()
    thread.join(10)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # fsspec leaves its connection to the end
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dataset_elsewhere_is_veiled_like_one_here(tmp_path, ftp, secret_file):
    served, url = ftp
    write(served / "in")
    options = ("-e", 2, "--columns", "p*", "--secret-file", secret_file)
    assert run("protect", f"{url}/in", "-o", f"{url}/out", *options) == 0
    assert run("protect", served / "in", "-o", tmp_path / "here", *options) == 0
    assert content(served / "out") == content(tmp_path / "here")
    assert not list((served / "out").rglob(".*"))
    (served / "out" / "part-2.parquet").unlink()
    assert run("protect", f"{url}/in", "-o", f"{url}/out", *options) == 0
    assert content(served / "out") == content(tmp_path / "here")


def test_a_missing_package_for_a_url_is_named(capsys):
    assert run("protect", "s3://bucket/scores", "-o", "s3://bucket/veiled", "-e", 2) == 2
    assert capsys.readouterr().err == "Error: s3:// needs a package that is missing: pip install s3fs.\n"
