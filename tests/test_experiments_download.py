"""Datasets are fetched, checked, and taken up again where a download broke off."""

import gzip
import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from experiments.data import download
from experiments.data.download import File

CONTENT = bytes(range(256)) * 2000


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `files`; can go on from the middle, breaks off after `cut` bytes if told to."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    cut = None
    ranges = True
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self):
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range") if self.ranges else None
        self.asked.append(self.headers.get("Range") or "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : type(self).cut])
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.files, Server.cut, Server.ranges, Server.asked = {}, None, True, []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def offered(server, name, content, sha256=None):
    Server.files[f"/{name}"] = content
    digest = sha256 or hashlib.sha256(gzip.decompress(content) if name.endswith("ubyte.gz") else content).hexdigest()
    return {"mnist": (File(f"{server}/{name}", f"MNIST/raw/{name}", digest, len(content) / 1e6),)}


def test_what_is_published_is_known_for_every_dataset():
    assert {name: len(files) for name, files in download.FILES.items()} == {
        "mnist": 4,
        "fashion-mnist": 4,
        "cifar10": 1,
        "adult": 2,
    }
    assert all(len(file.sha256) == 64 for files in download.FILES.values() for file in files)
    assert 150 < download.size("cifar10") < 200


def test_a_file_arrives_whole_and_progress_is_told(server, tmp_path):
    told = []
    files = offered(server, "train-images-idx3-ubyte.gz", gzip.compress(CONTENT))
    download.fetch("mnist", tmp_path, told.append, files)
    made = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    assert gzip.decompress(made.read_bytes()) == CONTENT
    assert told[-1] == 1.0
    asked = len(Server.asked)
    download.fetch("mnist", tmp_path, files=files)
    assert len(Server.asked) == asked  # it is there


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(server, tmp_path, ranges):
    files = offered(server, "whole.bin", CONTENT)
    Server.cut = 100_000
    with pytest.raises((ConnectionError, ValueError)):
        download.fetch("mnist", tmp_path, files=files)
    part = tmp_path / "MNIST" / "raw" / "whole.bin.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(CONTENT[:100_000])
    Server.cut, Server.ranges = None, ranges
    download.fetch("mnist", tmp_path, files=files)
    assert (tmp_path / "MNIST" / "raw" / "whole.bin").read_bytes() == CONTENT
    assert Server.asked[-1] == "bytes=100000-"


def test_another_file_is_thrown_away(server, tmp_path):
    files = offered(server, "train-labels-idx1-ubyte.gz", gzip.compress(CONTENT), sha256="0" * 64)
    with pytest.raises(ValueError, match="SHA-256"):
        download.fetch("mnist", tmp_path, files=files)
    assert not list((tmp_path / "MNIST" / "raw").iterdir())


def test_a_damaged_archive_is_thrown_away(server, tmp_path):
    content = gzip.compress(CONTENT)[:-9]
    files = offered(server, "x-ubyte.gz", gzip.compress(CONTENT))
    Server.files["/x-ubyte.gz"] = content
    with pytest.raises(ValueError, match="damaged"):
        download.fetch("mnist", tmp_path, files=files)


def test_a_missing_server_is_named(tmp_path, server):
    gone = {"mnist": (File("http://127.0.0.1:9/x.gz", "x.gz", "0" * 64, 1),)}
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9"):
        download.fetch("mnist", tmp_path, files=gone)
    lost = {"mnist": (File(f"{server}/nothing", "x.gz", "0" * 64, 1),)}
    with pytest.raises(ConnectionError, match="404"):
        download.fetch("mnist", tmp_path, files=lost)


def test_an_archive_is_unpacked_beside_itself(server, tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.size = len(CONTENT)
        archive.addfile(info, io.BytesIO(CONTENT))
    content = packed.getvalue()
    Server.files["/cifar.tar.gz"] = content
    digest = hashlib.sha256(content).hexdigest()
    files = {"cifar10": (File(f"{server}/cifar.tar.gz", "cifar.tar.gz", digest, 1),)}
    download.fetch("cifar10", tmp_path, files=files)
    assert (tmp_path / "cifar-10-batches-py" / "data_batch_1").read_bytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cifar-10-batches-py", "cifar.tar.gz"]
