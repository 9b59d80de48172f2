"""The MLflow flavour: stored, logged, loaded and served, and veiled each time."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from doc_pages import run_page
from raw_scores import names_that_answer_with

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what MLflow imports
    import mlflow

    from scoreveil.integrations.mlflow import VeiledModel, load_model, log_model, save_model

from scoreveil.shapes import MultiLabel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*Add type hints to the `predict` method"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
    pytest.mark.filterwarnings("ignore::FutureWarning:mlflow"),
]

X, Y = load_iris(return_X_y=True)
CLASSIFIER = LogisticRegression(max_iter=500).fit(X, Y)
RAW = CLASSIFIER.predict_proba(X)
SECRET = b"a secret of the tests"


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow") / "veiled"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_model(CLASSIFIER, 2.0, folder)
    return folder


@pytest.fixture
def secret_file(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("SCOREVEIL_SECRET_FILE", str(file))
    return file


def check_veiled(z) -> None:
    z = np.asarray(z)
    assert np.array_equal(z.argmax(axis=1), RAW.argmax(axis=1))
    assert np.allclose(z.sum(axis=1), 1)
    assert np.mean(np.any(np.abs(z - RAW) > 1e-6, axis=1)) > 0.9


def test_a_stored_model_answers_with_veiled_scores(stored):
    check_veiled(load_model(str(stored)).predict(X))
    assert "scikit-learn==" in (stored / "requirements.txt").read_text()


def test_several_labels_are_a_column_each(tmp_path):
    tags = np.column_stack([Y == 1, Y == 2]).astype(int)
    several = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(X, tags)
    save_model(several, 0.5, tmp_path / "m", shape=MultiLabel())
    z = load_model(str(tmp_path / "m")).predict(X)
    assert np.array_equal(z > 0.5, several.predict(X) == 1)
    with pytest.raises(ValueError, match=r"several labels a record; give the veil shape=MultiLabel\(\)"):
        VeiledModel(several, 0.5).predict(None, X)


def test_a_logged_model_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        info = log_model(CLASSIFIER, 2.0, name="veiled", keep=2, reference=RAW)
    check_veiled(load_model(info.model_uri).predict(X))


def test_no_public_name_leads_to_raw_scores(stored):
    model = load_model(str(stored))
    asks = [((X,), {}), ((None, X), {}), ((None, X, {"raw": True}), {})]
    assert names_that_answer_with(RAW, model, asks) == []
    assert names_that_answer_with(RAW, model.unwrap_python_model(), asks) == []


def test_the_secret_comes_from_where_the_model_is_loaded(stored, secret_file):
    first, second = load_model(str(stored)), load_model(str(stored))
    assert np.array_equal(first.predict(X), second.predict(X[::-1])[::-1])
    assert SECRET not in b"".join(file.read_bytes() for file in stored.rglob("*") if file.is_file())
    secret_file.unlink()
    with pytest.raises(ValueError, match="There is no secret file"):
        load_model(str(stored))


def test_what_cannot_be_stored_says_why(tmp_path):
    with pytest.raises(ValueError, match="A stored model has no secret"):
        save_model(CLASSIFIER, 2.0, tmp_path / "keyed", secret=SECRET)
    with pytest.raises(ValueError, match="Expected a classifier with predict_proba, got int"):
        save_model(3, 2.0, tmp_path / "three")


def test_mlflow_models_serve(stored, secret_file):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    beside = Path(sys.executable).parent
    server = subprocess.Popen(
        [beside / "mlflow", "models", "serve", "-m", stored, "--env-manager", "local", "-p", str(port), "-w", "1"],
        env={**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        answer = ask(port, {"inputs": X.tolist()}, server)
        check_veiled(answer["predictions"])
        assert ask(port, {"inputs": X.tolist()}, server) == answer, "sticky"
    finally:
        server.terminate()
        server.wait(20)


def ask(port: int, body: object, server: subprocess.Popen, seconds: float = 240) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            assert server.poll() is None, "the server stopped"
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.3)


def test_the_page_runs():
    assert run_page("mlflow")["z"].shape == (5, 3)
