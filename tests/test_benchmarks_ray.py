"""The benchmark of Ray runs, in its short form."""

import json
import subprocess
import sys

import pytest

from benchmarks.speed import ray_scale

pytestmark = pytest.mark.ray


def test_one_worker_and_two_write_every_vector():
    # in a process of its own: it starts and ends clusters, and fails where cores or vectors are missing
    command = [sys.executable, "-m", "benchmarks", "ray_scale", "--short"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["vectors"] == ray_scale.SHORT.vectors
    assert 0.2 < found["ratio"] < 5, "one worker over two: where it is far from 1 to 2, something else was timed"


def test_a_run_that_lost_vectors_is_no_figure(monkeypatch):
    monkeypatch.setattr(
        ray_scale, "run", lambda source, target, workers: {"seconds": 1, "cores": workers, "written": 9}
    )
    with pytest.raises(SystemExit, match="200,000 vectors from 1 cores"):
        ray_scale.measure(ray_scale.SHORT)
