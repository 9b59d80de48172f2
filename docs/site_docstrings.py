"""Docstrings for the site: columns of names and what they mean become lists."""

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)$")


def as_list(paragraph: str) -> str:
    """A paragraph whose lines are `name   text`, or go on with one, as a list; any other as it is."""
    lines = paragraph.splitlines()
    entries: list[list[str]] = []
    for line in lines:
        entry = ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            entries.append([f"- {names}: {entry['text']}"])
        elif entries and line.startswith("  "):
            entries[-1].append(line.strip())
        else:
            return paragraph
    return "\n".join(" ".join(entry) for entry in entries)


class Columns(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(as_list, re.split(r"\n\n+", obj.docstring.value)))
