"""What is heavy to install: real servers behind the gateway, real clients in front of it. `make conformance`.

    MLServer with a scikit-learn model   behind, over the Open Inference Protocol, JSON both ways
    MLflow's own scoring server          behind, over /invocations
    tritonclient, the kserve clients     in front, as they are, over HTTP; kserve's over gRPC too
    schemathesis                         10,000 cases against the OpenAPI document

Each lives in an environment of its own, made under .venv-conformance, since their requirements do not go together.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import tritonclient.http as triton

import api_cases

HERE = Path(__file__).resolve().parent
SCOREVEIL = Path(sys.executable).parent / "scoreveil"
ENVIRONMENTS = {
    "mlserver": ["mlserver", "mlserver-sklearn"],
    "kserve": ["kserve"],
    "mlflow": ["mlflow", "scikit-learn"],
}
PORTS = {
    "mlserver": 18180,
    "grpc": 18181,
    "metrics": 18182,
    "mlflow": 18183,
    "gateway": 18184,
    "admin": 18185,
    "gateway_grpc": 18186,
}


def python(folder: Path, name: str) -> Path:
    """The interpreter of an environment, which is made first where there is none."""
    home = folder / name
    if not (home / "ready").exists():
        say(f"installing {' '.join(ENVIRONMENTS[name])}")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", *ENVIRONMENTS[name]], check=True)
        (home / "ready").touch()
    return home / "bin" / "python"


@contextlib.contextmanager
def running(name: str, command: list[str], ready: str, work: Path, **environ: str) -> Iterator[None]:
    """A server, from when it is ready until the end."""
    import os

    with (work / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log, env={**os.environ, **environ})
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urlopen(ready, timeout=5):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start:\n{(work / f'{name}.log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def gateway(work: Path, toml: str) -> contextlib.AbstractContextManager[None]:
    (work / "gateway.toml").write_text(toml)
    ports = ["--port", str(PORTS["gateway"]), "--admin-port", str(PORTS["admin"])]
    ports += ["--grpc-port", str(PORTS["gateway_grpc"])]
    ready = f"http://127.0.0.1:{PORTS['gateway']}/v2/health/ready"
    return running("gateway", [str(SCOREVEIL), "serve", "--config", "gateway.toml", *ports], ready, work)


def check_mlserver(folder: Path, work: Path) -> None:
    """A scikit-learn model that MLServer serves, seen through tritonclient and the kserve client."""
    interpreter = python(folder, "mlserver")
    subprocess.run([str(interpreter), str(HERE / "iris.py"), "mlserver", str(work)], check=True)
    x = np.load(work / "x.npy")
    raw = np.load(work / "raw.npy")
    settings = {"http_port": PORTS["mlserver"], "grpc_port": PORTS["grpc"], "metrics_port": PORTS["metrics"]}
    (work / "settings.json").write_text(json.dumps({**settings, "host": "127.0.0.1", "parallel_workers": 0}))
    url = f"http://127.0.0.1:{PORTS['mlserver']}"
    toml = f"""
    [models.iris]
    epsilon = 2.0
    scores = ["predict_proba"]
    upstream = {{ url = "{url}" }}
    [models.labelled]
    epsilon = 2.0
    scores = ["predict_proba"]
    passes = ["predict"]
    upstream = {{ url = "{url}", model = "iris" }}
    """
    serve = [str(interpreter.parent / "mlserver"), "start", "."]
    with running("mlserver", serve, f"{url}/v2/models/iris/ready", work), gateway(work, toml):
        check_triton(x, raw)
        kserve_python = python(folder, "kserve")
        done = subprocess.run(
            [
                *(str(kserve_python), str(HERE / "kserve_client.py")),
                *(f"http://127.0.0.1:{PORTS['gateway']}", f"127.0.0.1:{PORTS['gateway_grpc']}", str(work)),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"kserve client: {done.stdout}\n{done.stderr[-3000:]}")
        compare("kserve client", np.array(json.loads(done.stdout.splitlines()[-1])), raw)


def check_triton(x: np.ndarray, raw: np.ndarray) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{PORTS['gateway']}") as client:
        for binary_in in (False, True):
            for binary_out in (False, True):
                given = triton.InferInput("x", list(x.shape), "FP32")
                given.set_data_from_numpy(x, binary_data=binary_in)
                wanted = [triton.InferRequestedOutput("predict_proba", binary_data=binary_out)]
                found = client.infer("iris", [given], outputs=wanted)
                form = f"{'binary' if binary_in else 'JSON'} in, {'binary' if binary_out else 'JSON'} out"
                compare(f"tritonclient, {form}", found.as_numpy("predict_proba"), raw)
        labels = client.infer("labelled", [given]).as_numpy("predict")
        assert np.array_equal(labels.ravel(), raw.argmax(axis=1)), "labels pass as they are"


def check_mlflow(folder: Path, work: Path) -> None:
    """MLflow's own scoring server, with a model whose predictions are probabilities."""
    interpreter = python(folder, "mlflow")
    subprocess.run([str(interpreter), str(HERE / "iris.py"), "mlflow", str(work)], check=True)
    x, raw = np.load(work / "x.npy"), np.load(work / "raw.npy")
    url = f"http://127.0.0.1:{PORTS['mlflow']}"
    inputs = ", ".join(f'{{ name = "{name}", datatype = "FP32", shape = [-1] }}' for name in "abcd")
    upstream = f'{{ url = "{url}", protocol = "mlflow" }}'
    toml = f"[models.iris]\nepsilon = 2.0\ninputs = [{inputs}]\nupstream = {upstream}\n"
    serve = [str(interpreter), "-m", "mlflow", "models", "serve", "-m", "model", "--env-manager", "local"]
    serve += ["--host", "127.0.0.1", "--port", str(PORTS["mlflow"])]
    path = f"{interpreter.parent}:/usr/bin:/bin"
    with running("mlflow", serve, f"{url}/ping", work, PATH=path), gateway(work, toml):
        body = {"dataframe_split": {"columns": ["a", "b", "c", "d"], "data": x.tolist()}}
        request = Request(
            f"http://127.0.0.1:{PORTS['gateway']}/invocations",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=30) as answer:
            compare("MLflow", np.array(json.loads(answer.read())["predictions"]), raw)


def check_api(work: Path, cases: int) -> None:
    ports = ["--port", str(PORTS["gateway"]), "--admin-port", str(PORTS["admin"])]
    ready = f"http://127.0.0.1:{PORTS['gateway']}/v2/health/ready"
    with running("demo", [str(SCOREVEIL), "serve", "--demo", *ports], ready, work):
        seen = api_cases.run(f"http://127.0.0.1:{PORTS['gateway']}", f"http://127.0.0.1:{PORTS['admin']}", cases)
    say(f"schemathesis: {sum(seen.values()):,} cases, by status {dict(sorted(seen.items()))}, no 5xx")


def compare(what: str, veiled: Any, raw: np.ndarray) -> None:
    """The label is kept, the rows are score vectors, and none is the raw one."""
    assert veiled.shape == raw.shape, what
    assert np.array_equal(veiled.argmax(axis=1), raw.argmax(axis=1)), what
    assert np.allclose(veiled.sum(axis=1), 1, atol=1e-5), what
    assert not np.isclose(veiled, raw, atol=1e-6).all(axis=1).any(), what
    say(f"{what}: {len(raw)} rows veiled, every label kept")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=Path(".venv-conformance"))
    parser.add_argument("--only", choices=["mlserver", "mlflow", "api"], help="one part")
    parser.add_argument("--cases", type=int, default=10_000)
    given = parser.parse_args()
    import tempfile

    checks = {
        "mlserver": lambda work: check_mlserver(given.environments.resolve(), work),
        "mlflow": lambda work: check_mlflow(given.environments.resolve(), work),
        "api": lambda work: check_api(work, given.cases),
    }
    for name, check in checks.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as work:
                check(Path(work))


if __name__ == "__main__":
    main()
