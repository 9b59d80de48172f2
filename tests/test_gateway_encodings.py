"""A record is one release however it is spelt, in front of MLflow's own scoring server."""

import json
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from gateway_servers import Gateway, free_ports, gateway, until

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "c", "d"]
RECORD = [5.1, 3.5, 1.4, 0.2]
SERVE = """
import sys
import mlflow, uvicorn
from mlflow.pyfunc import scoring_server
uvicorn.run(scoring_server.init(mlflow.pyfunc.load_model(sys.argv[1])), port=int(sys.argv[2]), log_level="error")
"""


@pytest.fixture(scope="module")
def mlflow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The iris behind MLflow's server, with columns of float32, as its own signature says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MLflow imports
        import mlflow
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, Schema

        folder = tmp_path_factory.mktemp("mlflow")
        model = LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True))
        signature = ModelSignature(Schema([ColSpec("float", name) for name in NAMES]))
        options: dict[str, Any] = {"signature": signature, "pip_requirements": ["scikit-learn"]}
        mlflow.sklearn.save_model(model, folder / "model", pyfunc_predict_fn="predict_proba", **options)
    (port,) = free_ports(1)
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(folder / "model"), str(port)], stdout=out, stderr=out
        )

    def up() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
                return True
        except OSError:
            return False

    try:
        until(up, seconds=300)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def server(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    inputs = ", ".join(f'{{ name = "{name}", datatype = "FP32", shape = [-1] }}' for name in NAMES)
    toml = f"""
    [models.iris]
    epsilon = 1.0
    memory.epsilon = 1.0
    memory.repeat = "refuse"
    inputs = [{inputs}]
    upstream = {{ url = "{mlflow_url}", protocol = "mlflow" }}
    """
    with gateway(tmp_path_factory.mktemp("gateway"), toml) as made:
        yield made


def split(first: Any, *rest: float) -> dict[str, Any]:
    return {"dataframe_split": {"columns": NAMES, "data": [[first, *(rest or RECORD[1:])]]}}


def test_one_release_however_a_record_is_spelt(server: Gateway, mlflow_url: str) -> None:
    """To MLflow each of these is the same record, or one that it refuses."""
    first = server.request("POST", "/invocations", split(5.1))
    assert first[0] == 200, first[2]
    spellings = [
        *(split(value) for value in ("5.1", "5.10", " 5.1", "51e-1", 5.1000000001, 5.09999999, [5.1], 51e-1)),
        *(split(f"5.1{'0' * zeros}") for zeros in range(2, 20)),
        *(split(5.1 + i * 1e-10) for i in range(1, 20)),
        {"dataframe_records": [dict(zip(NAMES, RECORD, strict=True))]},
        {"dataframe_records": [dict(zip(NAMES[::-1], RECORD[::-1], strict=True))]},
        {"dataframe_split": {"columns": NAMES[::-1], "data": [RECORD[::-1]]}},
        {"dataframe_split": {"columns": NAMES, "index": ["mine"], "data": [RECORD]}},
    ]
    statuses = [server.request("POST", "/invocations", spelt)[0] for spelt in spellings]
    assert set(statuses) == {400, 429}
    assert statuses[0] == 400  # a text where a number is declared
    assert statuses[-1] == 429  # the record itself, its one release spent


def test_booleans_are_not_numbers(server: Gateway) -> None:
    assert server.request("POST", "/invocations", split(1.0))[0] == 200
    assert server.request("POST", "/invocations", split(True))[0] == 400


def test_what_goes_on_is_what_was_counted(server: Gateway, mlflow_url: str) -> None:
    """The label is that of the record as it is counted; MLflow reads the cast values as its own type."""
    for row in ([5.9, 3.0, 5.1, 1.8], [6.4, 3.2, 4.5, 1.5]):
        body = json.dumps(split(*row)).encode()
        request = urllib.request.Request(f"{mlflow_url}/invocations", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            (raw,) = json.load(answer)["predictions"]
        status, _, veiled = server.request("POST", "/invocations", split(*row))
        assert status == 200, veiled
        (found,) = json.loads(veiled)["predictions"]
        assert found.index(max(found)) == raw.index(max(raw))
