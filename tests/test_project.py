"""What the project says about itself in many places is the same in all of them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import scoreveil
from doc_pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    version = scoreveil.__version__
    assert yaml.safe_load(text("CITATION.cff"))["version"] == version
    assert re.search(rf"^## {re.escape(version)}\b", text("CHANGELOG.md"), re.MULTILINE)
    for file in ("deploy/compose.yaml", "deploy/kubernetes.yaml", "Dockerfile", ".github/workflows/tests.yml"):
        assert set(re.findall(r"scoreveil:(\d+\.\d+\.\d+)", text(file))) == {version}, file


def test_the_citation_names_the_paper():
    (paper,) = yaml.safe_load(text("CITATION.cff"))["references"]
    assert paper["title"].startswith("One Parameter Defense")
    assert [each["family-names"] for each in paper["authors"]] == ["Ye", "Shen", "Zhu", "Liu", "Zhou"]


def test_pre_commit_and_make_check_run_the_same_ruff():
    (hooks,) = [each for each in yaml.safe_load(text(".pre-commit-config.yaml"))["repos"] if "ruff" in each["repo"]]
    assert f"ruff=={hooks['rev'].removeprefix('v')}\n" in text("constraints.txt")


def test_the_workflow_runs_every_python_that_the_package_names():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    named = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    matrix = yaml.safe_load(text(".github/workflows/tests.yml"))["jobs"]["fast"]["strategy"]["matrix"]
    assert named <= set(matrix["python"])
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_may_read_and_no_more(file):
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        for step in job["steps"]:
            assert "run" in step or re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])


def test_what_the_image_and_the_compose_file_copy_exists():
    kept = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    for names in re.findall(r"^COPY (?!--)(.*) \S+$", text("Dockerfile"), re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists(), name
            assert name in kept, name
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    assert set(re.search(r"^ARG EXTRAS=(.*)$", text("Dockerfile"), re.MULTILINE)[1].split(",")) <= set(extras)
    compose = yaml.safe_load(text("deploy/compose.yaml"))
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / "deploy" / source).exists(), volume
        if "build" in service:
            assert (ROOT / "deploy" / service["build"] / "Dockerfile").exists()


def test_linters_pass_what_is_deployed():
    """Kubernetes' own schemas, strictly; a custom resource of KServe's has none there. And Compose's."""
    tools = Path(sys.executable).parent
    for command in (
        [tools / "kubernetes-validate", "--strict", ROOT / "deploy" / "kubernetes.yaml"],
        [tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "deploy" / "compose.yaml"],
    ):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_slowest_tests_become_a_table(tmp_path):
    report = tmp_path / "tests.xml"
    case = '<testcase classname="tests.{}" name="{}" time="9"><properties>{}</properties></testcase>'
    spent = '<property name="other" value="many"/><property name="processor" value="{}"/>'
    cases = case.format("test_a", "test_x[1]", spent.format(1.25)) + case.format("test_b", "test_y", spent.format(3.5))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    ran = subprocess.run([sys.executable, ROOT / ".ci" / "slowest.py", report], capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        "| seconds | test |",
        "|---:|---|",
        "| 3.5 | `test_b::test_y` |",
        "| 1.2 | `test_a::test_x[1]` |",
        "",
        "2 tests, 5 processor seconds.",
    ]
