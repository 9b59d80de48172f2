"""A plugin of pytest for `python -m tests.mutation`: which test runs which line, and how long each takes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter  # tests put another clock into the module

import coverage
import pytest

MEASURED = coverage.Coverage(data_file=os.environ["MUTATION_DATA"], source_pkgs=["scoreveil"], config_file=False)
MEASURED.start()
SECONDS: dict[str, float] = {}


def _name(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    MEASURED.switch_context(f"{_name(item)}|setup")
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    MEASURED.switch_context(f"{_name(item)}|call")
    began = perf_counter()
    try:
        yield
    finally:
        SECONDS[_name(item)] = SECONDS.get(_name(item), 0.0) + perf_counter() - began


def pytest_unconfigure() -> None:
    MEASURED.stop()
    MEASURED.save()
    Path(os.environ["MUTATION_TIMES"]).write_text(json.dumps(SECONDS))
