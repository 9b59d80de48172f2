"""The study: every defense against every attack, from scores of a target and of a shadow model.

    found = run(subject, planned(defenses=("optimal", "rounding_1")), "scoreveil audit …")

The attacker has a shadow: members and non-members of a model like the target. "paper" attacks are fitted on its
undefended scores; "adaptive" ones on scores under the same defense; "averaging" ones too, with each record asked about
several times. Every cell of the study is kept on disk under the hash of all that went into it, so a study that is
killed goes on where it stopped and gives the same numbers.

Quick attacks on what a verdict is about, no defense and the optimal veil, come first: a first answer is there long
before the last attack is done.
"""

import difflib
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib

from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.redrawing import Studio
from scoreveil.audit.study.results import UNDEFENDED, AttackResult, Findings, Setting, Study, setting_name
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject
from scoreveil.fitting.frontier import EPSILONS

FIRST = ("none", "optimal")  # what a verdict is about: attacked first
BY_DEFAULT = (*FIRST, "rounding_1", "top_3")  # a rival of the cheapest kind beside it: fewer digits, fewer classes
EVERYTHING = "all"  # in place of names: every defense there is
# how long the parts of a study take beside a quick attack, about: for the estimate of what remains
SLOW, REDRAWING = 12, 200


def grid(defenses: Iterable[str], epsilons: Iterable[float]) -> tuple[Setting, ...]:
    """Each defense, at each ε where it takes one; no defense comes first."""
    given = tuple(epsilons)
    names = ["none", *(name for name in defenses if name != "none")]
    _known("defense", names, DEFENSES)
    return tuple((name, e) for name in names for e in (given if DEFENSES[name].takes_epsilon else (None,)))


@dataclass(frozen=True)
class StudyPlan:
    """What to study.

    settings    defenses by name, each with its ε or None
    attacks     membership attacks by name
    likelihood  the settings that LiRA and RMIA attack, where the subject has many shadows
    inverted    the settings that the inversion attack is run on, where the subject has pictures
    notes       what the reader should know about the choice
    """

    settings: tuple[Setting, ...] = field(default_factory=lambda: grid(BY_DEFAULT, EPSILONS))
    attacks: tuple[str, ...] = tuple(ATTACKS)
    likelihood: tuple[Setting, ...] = ()
    inverted: tuple[Setting, ...] = ()
    inversion: InversionSettings = field(default_factory=InversionSettings)
    repeats: int = 5  # queries of the averaging attacker
    seed: int = 0
    jobs: int = 2
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        every = (*self.settings, *self.likelihood, *self.inverted)
        _known("defense", (name for name, _ in every), DEFENSES)
        _known("attack", self.attacks, ATTACKS)
        for name, epsilon in every:
            if (epsilon is not None) != DEFENSES[name].takes_epsilon:
                raise ValueError(f"Expected {'an' if epsilon is None else 'no'} epsilon for {name}, got {epsilon}.")
            if epsilon is not None and not 0 < epsilon < float("inf"):
                raise ValueError(f"Expected epsilons > 0, got {epsilon}.")
        if UNDEFENDED not in self.settings:
            raise ValueError("Expected the setting without a defense, ('none', None), among the settings.")
        if self.repeats < 1:
            raise ValueError(f"Expected repeats >= 1, got {self.repeats}.")

    def without_labels(self) -> "StudyPlan":
        """The plan for records without true labels: what is fitted to labels is left out, and named."""
        missing = [one for one in self.settings if DEFENSES[one[0]].needs_labels]
        if not missing:
            return self
        kept = (tuple(s for s in part if s not in missing) for part in (self.settings, self.likelihood, self.inverted))
        settings, likelihood, inverted = kept
        names = ", ".join(setting_name(one) for one in missing)
        notes = (*self.notes, f"Left out, since there are no true labels: {names}.")
        return replace(self, settings=settings, likelihood=likelihood, inverted=inverted, notes=notes)


def planned(
    defenses: Iterable[str] | None = None,
    epsilons: Iterable[float] | None = None,
    attacks: Iterable[str] | None = None,
    seed: int = 0,
    jobs: int = 2,
) -> StudyPlan:
    """The plan of an audit.

    Args:
        defenses: Names, or "all"; by default the optimal veil, and the rivals that are quick and often asked about.
        epsilons: For the defenses that take one.
        attacks: Names; by default all.
        seed: The same seed gives the same table.
        jobs: Processes at a time.
    """
    names = BY_DEFAULT if defenses is None else tuple(DEFENSES) if defenses == EVERYTHING else tuple(defenses)
    notes: tuple[str, ...] = ()
    if defenses is None:
        others = ", ".join(name for name in DEFENSES if name not in BY_DEFAULT)
        notes = (f"Left out to save time: {others}. Name them, or {EVERYTHING}, with --defenses to try them too.",)
    settings = grid(names, EPSILONS if epsilons is None else epsilons)
    tried = tuple(ATTACKS) if attacks is None else tuple(attacks)
    return StudyPlan(settings, tried, seed=seed, jobs=jobs, notes=notes)


def _known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    every = list(known)
    for name in names:
        if name not in every:
            near = difflib.get_close_matches(name, every, n=1)
            hint = f": did you mean {near[0]}?" if near else "."
            raise ValueError(
                f"Expected a{'n' * (kind == 'attack')} {kind} among {', '.join(every)}, got {name!r}{hint}"
            )


@dataclass(frozen=True)
class _Task:
    """A piece of work for one process; `size` says how long it takes beside the others, about."""

    name: str
    size: int
    do: Callable[[], Findings]


def run(
    subject: Subject,
    plan: StudyPlan,
    command: str = "",
    cache: Path | None = None,
    progress: Progress = silent,
    first: Callable[[Study], None] | None = None,
) -> Study:
    """Attack everything that the plan names.

    Args:
        subject: Whose scores are attacked.
        plan: Defenses and attacks.
        command: What the reader types to get the same results again.
        cache: A folder that keeps every trial, so that a study that is killed goes on where it stopped.
        progress: Told about each part that is done.
        first: Is given what was found by the quick attacks on no defense and on the optimal veil, while the rest is
            still to do.

    Returns:
        All results, in the order of the plan.
    """
    if subject.reference.labels is None:
        plan = plan.without_labels()
    bench = Bench(subject, plan.attacks, plan.repeats, plan.seed, cache)
    soon, later = _quick(bench, plan), _slow(bench, plan)
    if subject.pictures is not None and plan.inverted:  # before the rest: inversions take longest
        studio = Studio(subject, subject.pictures, plan.inversion, plan.seed, cache)
        later = [*(_Task(name, REDRAWING, do) for name, do in studio.tasks(plan.inverted)), *later]
    tasks = [*soon, *later]
    total, done, found = sum(task.size for task in tasks), 0, list[Findings]()
    parallel = joblib.Parallel(n_jobs=min(plan.jobs, len(tasks)), return_as="generator")
    for task, result in zip(tasks, parallel(joblib.delayed(task.do)() for task in tasks), strict=True):
        found.append(result)
        done += task.size
        progress(task.name, done, total)
        if first is not None and later and len(found) == len(soon):
            first(_study(subject, plan, command, found))
    return _study(subject, plan, command, found)


def _quick(bench: Bench, plan: StudyPlan) -> list[_Task]:
    """What is attacked first, by the quick attacks."""
    quick = tuple(name for name in plan.attacks if not ATTACKS[name].slow)
    part = replace(bench, attacks=quick)
    there = [one for one in plan.settings if one[0] in FIRST]
    return [_Task(setting_name(one), len(quick) + 1, partial(part.study_setting, one, True, False)) for one in there]


def _slow(bench: Bench, plan: StudyPlan) -> list[_Task]:
    """The slow attacks on the same settings; then the other settings, by all attacks."""
    slow = tuple(name for name in plan.attacks if ATTACKS[name].slow)
    quick, tasks = len(plan.attacks) - len(slow), list[_Task]()
    for one in sorted(plan.settings, key=lambda one: one[0] not in FIRST):
        again, many = one[0] in FIRST, one in plan.likelihood and bench.subject.many is not None
        if again and not slow and not many:
            continue
        part = replace(bench, attacks=slow) if again else bench
        size = SLOW * (len(slow) + many) + (0 if again else quick + 1)
        tasks.append(_Task(setting_name(one), size, partial(part.study_setting, one, not again, many)))
    return tasks


def _study(subject: Subject, plan: StudyPlan, command: str, found: Iterable[Findings]) -> Study:
    """What was found so far, in the order of the plan."""
    defenses, attacks, inversions = (tuple(row for part in kind for row in part) for kind in zip(*found, strict=True))
    settings, names = (list(each) for each in (plan.settings, plan.attacks))

    def place(result: AttackResult) -> tuple[int, int]:
        # LiRA and RMIA, which a plan does not name, come last
        return settings.index(result.setting), names.index(result.attack) if result.attack in names else len(names)

    return Study(
        about(subject, plan, command),
        tuple(sorted(attacks, key=place)),
        tuple(sorted(defenses, key=lambda row: settings.index(row.setting))),
        inversions,
        subject.pictures.originals() if inversions and subject.pictures is not None else (),
        (*subject.notes, *plan.notes),
    )


def about(subject: Subject, plan: StudyPlan, command: str) -> dict[str, Any]:
    """How a study was made, for `Study.meta`."""
    packages = ("scoreveil", "numpy", "scipy", "scikit-learn", "torch", "numba")
    target, shadow = subject.target, subject.shadow
    records = {
        "members": len(target.members),
        "nonmembers": len(target.nonmembers),
        "shadow members": len(shadow.members),
        "shadow nonmembers": len(shadow.nonmembers),
        "reference": len(subject.reference),
        "classes": target.classes,
    }
    if subject.given_records is not None:
        given = subject.given_records
        records |= {"given members": len(given.members), "given nonmembers": len(given.nonmembers)}
    if subject.many is not None:
        records["shadow models"] = len(subject.many.inside)
    if subject.pictures is not None:
        records["pictures of the inversion attacker"] = len(subject.pictures.auxiliary)
    return ({"title": subject.title} if subject.title else {}) | {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "records": records,
        "plan": {"settings": [setting_name(s) for s in plan.settings], "repeats": plan.repeats, "seed": plan.seed},
        "sha256": {"members": target.members.digest, "nonmembers": target.nonmembers.digest},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
