"""Short forms of the long runs: nothing is lost when workers are killed, retries are one charge, the speed is told."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(program, *arguments):
    command = [sys.executable, "-m", "benchmarks", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("more", [["--workers", "1"], [], ["--idempotent"]], ids=["one worker", "three", "idempotent"])
def test_killed_workers_lose_no_charge(ledger_url, more):
    outcome = json.loads(run("kills", ledger_url, "--kills", "10", *more))
    assert outcome["holds"]
    assert outcome["missing"] == outcome["charged_twice"] == outcome["misremembered"] == 0
    assert outcome["acknowledged"] > 0
    assert 0 <= outcome["over_charged"] <= outcome["over_charged_at_most"]


def test_repeated_requests_are_charged_once(ledger_url):
    outcome = json.loads(run("retries", ledger_url, "--tries", "4000", "--requests", "400"))
    assert outcome["holds"]
    assert outcome["charged"] == outcome["fresh"] > 0
    assert outcome["answered_differently"] == 0


@pytest.mark.postgres
def test_the_speed_of_both_kinds_is_that_of_what_was_charged(tmp_path):
    # it fails where the ledger did not count every row that was timed
    out = run("ledger", "--rows", "1000", "--records", "20000", "--output", str(tmp_path / "ledger.json"))
    results = json.loads((tmp_path / "ledger.json").read_text())
    assert results["about"]["command"] == "python -m benchmarks ledger --rows 1000 --records 20000"
    for kind in ("sqlite", "postgresql"):
        calls = [(1, 100), (32, 1000), (256, 1000)]
        expected = [(which, *call) for call in calls for which in ("new", "known")]
        assert [(each["which"], each["batch"], each["rows"]) for each in results[kind]] == expected
        for each in results[kind]:
            assert each["fresh"] == (each["rows"] if each["which"] == "new" else 0)
            assert each["median_ms"] <= each["p99_ms"]
            assert f"{each['rows_per_second']:,} rows/s" in out
    assert results["start"]["records"] == 20_000
    assert results["start"]["file_bytes_a_record"] > 70  # marks and outcomes are in it
