"""Progress says what remains, wherever it goes; and a command is printed as it can be typed."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scoreveil.cli import terminal
from scoreveil.cli.terminal import Estimate, duration, program, progress_bar, progress_steps


def estimate_after(*marks, now):
    """An estimate that was told at these seconds what was done."""
    clock = [0.0]
    estimate = Estimate(clock=lambda: clock[0])
    for seconds, done in marks:
        clock[0] = seconds
        estimate.tell(done)
    clock[0] = now
    return str(estimate)


def test_the_estimate_falls_as_time_goes_by_and_with_each_step():
    marks = [(15.0, 0.125), (30.0, 0.25)]
    assert estimate_after(now=30) == "30 s so far"  # nothing is known yet
    assert estimate_after(*marks, now=30) == "30 s so far, about 1 min 30 s left"
    assert estimate_after(*marks, now=45) == "45 s so far, about 1 min 15 s left"
    assert estimate_after(*marks, (60.0, 0.5), (80.0, 0.75), now=80) == "1 min 20 s so far, about 27 s left"
    assert estimate_after(*marks, now=121) == "2 min 1 s so far", "it took longer than it seemed it would"


@pytest.mark.parametrize(
    "marks",
    [
        [(20.0, 0.01)],  # one step, most of which was loading
        [(1.0, 0.01), (2.0, 0.02)],  # a hundredth says nothing about the rest
        [(20.0, 0.05), (24.0, 0.1), (32.0, 0.2)],  # it began slowly: three times as long as now
        [(1.0, 0.1), (2.0, 0.2), (10.0, 0.3), (60.0, 0.5)],  # what comes now takes longer
    ],
)
def test_without_a_steady_pace_nothing_is_said_about_what_remains(marks):
    assert estimate_after(*marks, now=marks[-1][0]).endswith(" so far")


def test_an_estimate_that_is_shown_is_within_a_factor_of_two():
    """Of jobs that load first and then take steps of one second."""
    for loading in (0.0, 5.0, 20.0, 60.0):
        for done in range(1, 40):
            marks = [(loading + step, step / 40) for step in range(1, done + 1)]
            shown = re.search(r"about (?:(\d+) min ?)?(?:(\d+) s )?left", estimate_after(*marks, now=marks[-1][0]))
            if shown:
                seconds = 60 * int(shown[1] or 0) + int(shown[2] or 0)
                assert (40 - done) / 2 - 1 <= seconds <= 2 * (40 - done) + 1, (loading, done)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (48.4, "48 s"), (60, "1 min"), (80, "1 min 20 s"), (500, "8 min"), (-3, "0 s")],
)
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


def test_without_a_terminal_a_line_comes_at_once_and_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "EVERY", 0.01)
    with progress_steps("Attacking") as progress:
        assert capsys.readouterr().err == "Attacking …\n"
        time.sleep(0.02)
        progress("none", 1, 4)
        assert capsys.readouterr().err == "Attacking: none: 25%, 0 s so far\n"
        monkeypatch.setattr(terminal, "EVERY", 20.0)
        time.sleep(0.02)
        progress("isotonic", 2, 4)
        progress("published", 3, 4)
    assert capsys.readouterr().err == "Attacking: isotonic: 50%, 0 s so far\n", "one more line, then none for a while"


def test_a_short_job_says_nothing_without_a_terminal(capsys):
    with progress_bar("Protecting", is_short=True) as job:
        job(0.5)
    assert capsys.readouterr().err == ""


def test_the_program_is_named_as_it_can_be_typed(tmp_path, monkeypatch):
    script = Path(sys.executable).parent / "scoreveil"
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    assert program() == "scoreveil"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for folder in (tmp_path, script.parent.parent):
        line = f"{program(folder)} --version"
        shell = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True)
        assert (shell.returncode, shell.stdout.partition(" ")[0]) == (0, "scoreveil"), line
    assert program(script.parent.parent) == "bin/scoreveil"
