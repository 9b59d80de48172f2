"""What many tests need, and the marks that they carry."""

# ruff: noqa: E402
import os

# the networks of the tests are small and the workers of pytest-xdist use the cores already: with a thread for each core
# on top, training takes four times the processor time. Read when numpy and torch are first imported
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import gc
import importlib.util
import re
import runpy
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scoreveil import blocks
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.mechanism import Mechanism

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from benchmarks.postgres_server import PostgresServer

# commands are printed as they would be typed where the environment is active
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a busy machine a minute is not enough

QUIET = "--disable-background-networking --disable-component-update --disable-sync --no-first-run"

# a test is marked by what it asks for, or by hand
MARK_OF_FIXTURE = {"browser": "browser", "postgres": "postgres", "postgres_url": "postgres", "ray_cluster": "ray"}
LEFT_OUT = {"slow", "browser", "postgres", "ray"}  # of `pytest --fast`

if sys.platform == "win32":  # the gateway and the ledgers lock files and talk through unix sockets
    collect_ignore_glob = ["test_gateway*", "test_ledger*", "test_cli_ledger*", "test_postgres*", "test_benchmarks*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="the suite for every day: without tests marked " + ", ".join(LEFT_OUT)
    )


def pytest_configure(config: pytest.Config) -> None:
    """ART writes a file into the home folder when it is first imported: before there are two workers to do it at once.

    One of them finds the file that the other has just begun, and fails: `name '_config' is not defined`.
    """
    art = importlib.util.find_spec("art")
    if art is not None and art.origin is not None and not hasattr(config, "workerinput"):
        runpy.run_path(str(Path(art.origin).with_name("config.py")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose tests are all left out is not even imported: ART, MLflow and Ray take seconds to."""
    if not config.getoption("--fast") or not collection_path.match("test_*.py"):
        return None
    marks = re.search(
        r"^pytestmark = (?:\[\n.*?^\]|.*?$)", collection_path.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return True if marks and LEFT_OUT & set(re.findall(r"pytest\.mark\.(\w+)", marks[0])) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a browser, PostgreSQL or Ray; leave out what is not wanted or cannot run here."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARK_OF_FIXTURE:
                item.add_marker(MARK_OF_FIXTURE[fixture])
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("ledger_url") == "postgresql":
            item.add_marker("postgres")
        if item.get_closest_marker("linux") and sys.platform != "linux":
            item.add_marker(pytest.mark.skip(reason="reads /proc, or needs another feature of Linux"))
        if item.get_closest_marker("posix") and sys.platform == "win32":
            item.add_marker(pytest.mark.skip(reason="needs fork, signals or file modes, which Windows does not have"))
    if config.getoption("--fast"):
        unwanted = [item for item in items if LEFT_OUT & {mark.name for mark in item.iter_markers()}]
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]


BEGAN = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Of this process, and of those that it has started and seen end."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGAN] = processor_seconds()
    if item.get_closest_marker("filterwarnings"):
        loading.wait()  # the thread that compiles would put back the filters that it found when it began
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What a test took goes into the report of --junitxml: on a busy machine the clock says little."""
    try:
        yield
    finally:
        item.user_properties.append(("processor", round(processor_seconds() - item.stash[BEGAN], 2)))


@pytest.fixture(params=["numpy", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to an answer: plain numpy, and the compiled kernels.

    A veil with a generator uses plain numpy alone; here, on the way of the kernels, they take its draws.
    """
    if request.param == "numpy":
        monkeypatch.setattr(loading, "kernel", lambda mechanism, classes: None)
        monkeypatch.setattr(loading, "keyed_kernel", lambda mechanism, classes: None)
        return "numpy"
    assert loading.wait()
    fresh = blocks.fresh

    def compiled(mechanism: Any, rows: Any, rng: Any = None, threads: int = 1) -> Any:
        return fresh(mechanism if rng is None else Compiled(mechanism), rows, rng, threads)

    monkeypatch.setattr(blocks, "fresh", compiled)
    return "kernel"


class Compiled:
    """A mechanism whose plain operations are its kernel, for draws that use no kernel by themselves."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.draws, self.together = mechanism.draws, mechanism.together

    def perturb(self, rows: Any, uniforms: Any) -> Any:
        kernel = loading.kernel(self.mechanism, rows.shape[1])
        if kernel is None:  # of the printed reading, which has none
            return self.mechanism.perturb(rows, uniforms)
        out = np.empty_like(rows)
        assert kernel(rows, uniforms, out) == -1
        return out


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A real PostgreSQL server, started where a test asks for it."""
    from benchmarks.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: "PostgresServer") -> str:
    """Of an empty ledger in it."""
    schema = f"ledger_{secrets.token_hex(6)}"
    postgres.sql(f"CREATE SCHEMA {schema}")
    return postgres.url(schema)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty ledger, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Two Ray workers, started where a test asks for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Ray imports
        import ray

        from scoreveil.integrations.ray import start

        start(workers=2)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a busy machine Ray does not wait for all processes that it ends
        ray.shutdown()
        gc.collect()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of digits as .onnx and .skops, and its raw scores."""
    import skops.io
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    from gateway_servers import PIXELS

    folder = tmp_path_factory.mktemp("models")
    data, labels = load_digits(return_X_y=True)
    classifier = LogisticRegression(C=1e-4, max_iter=50, tol=0.1).fit(data, labels)
    made = to_onnx(classifier, PIXELS[:1], options={"zipmap": False}, target_opset=17)
    (folder / "digits.onnx").write_bytes(made.SerializeToString())
    skops.io.dump(classifier, folder / "digits.skops")
    np.save(folder / "raw.npy", classifier.predict_proba(PIXELS))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A real Chromium, as users have it."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # a page on a busy machine may take more than the 5 s that are usual
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("These tests open a page in Chromium, which is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", *QUIET.split()]
        )
        yield opened
        opened.close()
