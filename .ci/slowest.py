"""The slowest tests of a run as a table: `python slowest.py REPORT.xml` (from pytest --junitxml)."""

import sys
from xml.etree import ElementTree


def table(report: str, most: int = 20) -> str:
    """The tests that took most processor time as Markdown: with set-up and end, and the processes that ended then."""
    seconds = {
        f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}": processor_seconds(case)
        for case in ElementTree.parse(report).getroot().iter("testcase")
    }
    slowest = sorted(seconds.items(), key=lambda each: -each[1])[:most]
    lines = [f"| {spent:.1f} | `{name}` |" for name, spent in slowest]
    return "\n".join(
        [
            "| seconds | test |",
            "|---:|---|",
            *lines,
            "",
            f"{len(seconds)} tests, {sum(seconds.values()):.0f} processor seconds.",
        ]
    )


def processor_seconds(case: ElementTree.Element) -> float:
    """As tests/conftest.py has noted them."""
    return sum(float(each.get("value", 0)) for each in case.iter("property") if each.get("name") == "processor")


if __name__ == "__main__":
    print(table(sys.argv[1]))
