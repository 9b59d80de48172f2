"""The laboratory is on its map, in no wheel, and what the pages say about its command is so."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import experiments
from doc_pages import PAGES, ROOT

HERE = Path(experiments.__file__).parent


def test_every_module_is_on_the_map():
    for module in HERE.rglob("*.py"):
        if module.name != "__init__.py":
            assert f"{module.name} " in experiments.__doc__, module


def test_no_wheel_has_it():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert targets == {"wheel": {"packages": ["src/scoreveil"]}}


@pytest.mark.slow
def test_its_command_has_the_options_that_the_pages_name():
    from experiments.__main__ import app

    command, lines = get_command(app), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines += re.findall(r"^python -m experiments( .*)$", text, re.MULTILINE)
        lines += re.findall(r"`python -m experiments( [^`…]*)`", text)
    for line in lines:
        if "--help" not in line:
            command.make_context("experiments", shlex.split(line, comments=True))
    assert len(lines) >= 6
