"""The slowest tests of a run as a table: `python slowest.py REPORT.xml` (from pytest --junitxml)."""

import sys
from xml.etree import ElementTree


def table(report: str, most: int = 20) -> str:
    """The tests that took longest, set-up included, as Markdown."""
    root = ElementTree.parse(report).getroot()
    seconds = {
        f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}": float(case.get("time", 0))
        for case in root.iter("testcase")
    }
    slowest = sorted(seconds.items(), key=lambda each: -each[1])[:most]
    lines = [f"| {spent:.1f} | `{name}` |" for name, spent in slowest]
    return "\n".join(
        [
            "| seconds | test |",
            "|---:|---|",
            *lines,
            "",
            f"{len(seconds)} tests, {sum(seconds.values()):.0f} s of one worker.",
        ]
    )


if __name__ == "__main__":
    print(table(sys.argv[1]))
