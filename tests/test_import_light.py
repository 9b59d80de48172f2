"""Importing the package is quick and brings none of the heavy libraries; each integration brings its own alone."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = (
    "torch",
    "sklearn",
    "numba",
    "ray",
    "pyarrow",
    "pandas",
    "scipy",
    "mlflow",
    "transformers",
    "onnxruntime",
    "art",
)
PROGRAM = """
import json, sys, time
started = time.process_time()
import {module}
print(json.dumps({{"seconds": time.process_time() - started, "modules": list(sys.modules)}}))
"""


def imported(module: str) -> dict:
    """What importing it in a new process costs, in time of the processor, and brings."""
    answer = subprocess.run([sys.executable, "-c", PROGRAM.format(module=module)], capture_output=True, check=True)
    return json.loads(answer.stdout)


def test_the_package_brings_nothing_heavy_and_takes_less_than_0_3_seconds():
    tries = [imported("scoreveil") for _ in range(3)]
    assert not set(HEAVY) & set(tries[0]["modules"])
    assert min(each["seconds"] for each in tries) < 0.3


@pytest.mark.parametrize("module", ["scoreveil.integrations.columns", "scoreveil.audit"])
def test_the_integrations_and_the_audit_themselves_are_light(module):
    found = imported(module)
    assert not set(HEAVY) & set(found["modules"])


@pytest.mark.parametrize(
    ("module", "strangers"),
    [
        ("sklearn", {"torch", "ray", "mlflow", "transformers", "onnxruntime", "art"}),
        ("torch", {"sklearn", "ray", "mlflow", "transformers", "onnxruntime", "art"}),
        ("onnx", {"torch", "sklearn", "ray", "mlflow", "transformers", "art"}),
    ],
)
def test_each_brings_its_own_library_alone(module, strangers):
    assert not strangers & set(imported(f"scoreveil.integrations.{module}")["modules"])
