"""The benchmark of Ray runs, in its short form."""

import os
import warnings

import pytest

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a busy machine a minute is not enough
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what Ray imports
    import ray_scale


@pytest.mark.filterwarnings("ignore")  # of Ray's own threads, at times of their choosing
def test_one_worker_and_two_are_compared():
    found = ray_scale.measure(ray_scale.Size(vectors=4000, files=4))
    assert found["vectors"] == 4000
    assert found["ratio"] == found["one"] / found["two"] > 0
    assert ray_scale.FULL.vectors == 100_000_000
