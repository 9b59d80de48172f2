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


WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "skimage", "matplotlib"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
from scoreveil.audit.study import run
plan = run.planned()
assert "nsh" not in plan.attacks and "random_forest_known" in plan.attacks
print(*plan.notes, sep="\\n")
"""


def test_an_audit_without_torch_leaves_nsh_out_and_says_so():
    job = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert (job.returncode, job.stderr) == (0, "")
    assert "Left out, since torch is not installed: nsh." in job.stdout.splitlines()
