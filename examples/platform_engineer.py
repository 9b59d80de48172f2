"""For platform engineers: a gateway with a model inside, asked over HTTP.

Trains a classifier on scikit-learn's digits, stores it with skops, fits a veil for it, starts `scoreveil serve` on both
and asks it twice. This veil has no ε, so the gateway keeps no ledger and needs no secret.

    pip install 'scoreveil[fit,serve,sklearn,skops]'
    python examples/platform_engineer.py
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import skops.io
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from scoreveil import fit


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(url, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urlopen(f"{url}/v2/health/ready", timeout=5):
                return
        except (URLError, OSError):
            if time.monotonic() > deadline or gateway.poll() is not None:
                raise SystemExit("The gateway did not start.") from None
            time.sleep(0.1)


def ask(url, record):
    """One record in the Open Inference Protocol v2, as KServe's and Triton's clients send it."""
    tensor = {"name": "x", "shape": [1, len(record)], "datatype": "FP32", "data": record.tolist()}
    request = Request(f"{url}/v2/models/digits/infer", data=json.dumps({"inputs": [tensor]}).encode())
    with urlopen(request) as answer:
        return json.load(answer)["outputs"][0]["data"]


x, y = load_digits(return_X_y=True)
classifier = LogisticRegression(C=1e-4, max_iter=50, tol=0.1).fit(x[:1000], y[:1000])
inside, outside = classifier.predict_proba(x[:1000]), classifier.predict_proba(x[1000:])
veil = fit(nonmembers=outside, nonmember_labels=y[1000:], members=inside, member_labels=y[:1000])
record = x[1500]

with tempfile.TemporaryDirectory() as folder:
    skops.io.dump(classifier, Path(folder) / "digits.skops")
    veil.save(Path(folder) / "veil.json")
    port, admin_port = free_port(), free_port()
    command = [str(Path(sys.executable).with_name("scoreveil")), "serve", "digits.skops", "--veil", "veil.json"]
    command += ["--port", str(port), "--admin-port", str(admin_port)]
    with (Path(folder) / "log").open("wb") as log:
        gateway = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url)
        first, again = ask(url, record), ask(url, record)
        raw = classifier.predict_proba([record])[0]
        print("class      " + "".join(f"{digit:6d}" for digit in range(10)))
        print("the model  " + "".join(f"{score:6.2f}" for score in raw))
        print("a client   " + "".join(f"{score:6.2f}" for score in first))
        print(f"label      {np.argmax(first)}, as the model's: {np.argmax(first) == np.argmax(raw)}")
        print(f"asked again, the same answer: {first == again}")
        with urlopen(f"http://127.0.0.1:{admin_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        print("metrics    " + next(line for line in lines if line.startswith("scoreveil_requests_total")))
    finally:
        gateway.terminate()
        gateway.wait(timeout=60)
