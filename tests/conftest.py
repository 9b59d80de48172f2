"""What many tests need."""

import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postgres_server import PostgresServer
from scoreveil import blocks
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.mechanism import Mechanism

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a busy machine a minute is not enough


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
        self.draws = mechanism.draws

    def perturb(self, rows: Any, uniforms: Any) -> Any:
        kernel = loading.kernel(self.mechanism, rows.shape[1])
        assert kernel is not None
        out = np.empty_like(rows)
        assert kernel(rows, uniforms, out) == -1
        return out


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, started where a test asks for it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
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
    ray.shutdown()


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
