"""The benchmark of Ray runs, in its short form."""

import json
import subprocess
import sys

import pytest

from doc_pages import ROOT

pytestmark = pytest.mark.ray


def test_one_worker_and_two_are_compared():
    # in a process of its own: it starts and ends clusters
    command = [sys.executable, ROOT / "benchmarks" / "ray_scale.py", "--short"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["vectors"] == 200_000
    assert found["ratio"] == found["one"] / found["two"] > 0
