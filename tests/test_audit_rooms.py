"""The audit's rooms are on its map, and each uses only the rooms above it."""

import ast
import re
from pathlib import Path

import pytest

from scoreveil import audit

ROOT = Path(audit.__file__).parent
ROOMS = ("cache", "data", "networks", "attacks", "defenses", "study", "verdict", "report", "api")
# neither of these two knows the other, though both are listed
BESIDE = {"attacks", "defenses"}


def test_every_module_is_on_the_map():
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")} - {"__init__"}
    assert rooms == set(ROOMS)
    for room in ("data", "networks", "study", "report"):
        section = re.search(rf"^    {room}/.*?(?=^    \w|\Z)", audit.__doc__, re.MULTILINE | re.DOTALL)[0]
        for module in (ROOT / room).glob("[a-z]*.py"):
            assert module.name in section, module


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_upwards_on_the_map_only(room):
    files = list((ROOT / room).rglob("*.py")) or [ROOT / f"{room}.py"]
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - (BESIDE - {room} if room in BESIDE else set())
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scoreveil.audit"):
                names = [node.module.removeprefix("scoreveil.audit").lstrip(".") or alias.name for alias in node.names]
                assert {name.partition(".")[0] for name in names} <= allowed, (file, names)
