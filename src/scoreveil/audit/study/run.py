"""The study: every defense against every attack, from scores of a target and of a shadow model.

    found = run(subject, planned(defenses=("regions", "rounding_1")), "scoreveil audit …")

The attacker has a shadow: members and non-members of a model like the target. "paper" attacks are fitted on its
undefended scores; "adaptive" ones on scores under the same defense; "averaging" ones too, with each record asked about
several times. Every cell of the study is kept on disk under the hash of all that went into it, so a study that is
killed goes on where it stopped and gives the same numbers.

Quick attacks on what a verdict is about, no defense and the fitted veil, come first: a first answer is there long
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
from typing import TYPE_CHECKING, Any

import joblib

from scoreveil.audit.attacks import ATTACKS, COMPARISONS, missing_packages
from scoreveil.audit.defenses import DEFENSES, Method
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.results import (
    FORMS,
    LABEL,
    TEMPERED,
    UNDEFENDED,
    VEIL,
    AttackResult,
    Findings,
    Form,
    Setting,
    Study,
    setting_name,
)
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject

if TYPE_CHECKING:
    from scoreveil.audit.networks.inverter import InversionSettings

FIRST = ("none", VEIL)  # what a verdict is about: attacked first
EPSILONS = (4.0, 1.0)  # to try where a defense needs one; the fitted veil needs none
# what may be recommended, and two rivals that cost nothing to apply
BY_DEFAULT = (*FIRST, "label_constant", "rounding_1", "top_3")
# attacks on each of many labels
OF_LABELS = (
    *("max_confidence", "true_confidence", "random_forest", "random_forest_known"),
    *("label_floor", "label_floor_known"),
)
EVERYTHING = "all"  # in place of names: every defense there is
QUICK = 100  # the cost of an attack that a first answer waits for, at most
TOGETHER = 50  # attacks are run together until they cost so much
DEFENDING, COMPARING, REDRAWING = 10, 300, 4000  # what a defense costs, about, and LiRA and RMIA, and an inversion
BESIDE: tuple[Setting, ...] = (TEMPERED, LABEL)  # which a confidence is measured beside, attacked or not


def grid(defenses: Iterable[str], epsilons: Iterable[float | None] | None = None) -> tuple[Setting, ...]:
    """Each defense, at each ε where it takes one, and without where it needs none; no defense comes first."""
    given = None if epsilons is None else tuple(epsilons)
    names = ["none", *(name for name in defenses if name != "none")]
    _known("defense", names, DEFENSES)
    methods = [DEFENSES[name] for name in names]

    def tried(method: Method) -> Iterable[float | None]:
        if not method.takes_epsilon:
            return (None,)
        return given if given is not None else EPSILONS if method.needs_epsilon else (None,)

    return tuple((method.name, e) for method in methods for e in tried(method) if method.goes_with(e))


@dataclass(frozen=True)
class StudyPlan:
    """What to study.

    settings    defenses by name, each with its ε or None
    attacks     membership attacks by name
    comparisons attacks from many shadows, by name: LiRA, RMIA and their kin
    likelihood  the settings that these attack, where the subject has many shadows
    inverted    the settings that the inversion attack is run on, where the subject has pictures
    notes       what the reader should know about the choice
    """

    settings: tuple[Setting, ...] = field(default_factory=lambda: grid(BY_DEFAULT))
    attacks: tuple[str, ...] = tuple(ATTACKS)
    comparisons: tuple[str, ...] = tuple(COMPARISONS)
    likelihood: tuple[Setting, ...] = ()
    inverted: tuple[Setting, ...] = ()
    inversion: "InversionSettings | None" = None  # by default its own
    forms: tuple[Form, ...] = FORMS  # of which an attacker is
    repeats: int = 5  # queries of the averaging attacker
    seed: int = 0
    jobs: int = 2
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        every = (*self.settings, *self.likelihood, *self.inverted)
        _known("defense", (name for name, _ in every), DEFENSES)
        _known("attack", self.attacks, ATTACKS)
        _known("attack from many shadows", self.comparisons, COMPARISONS)
        for name, epsilon in every:
            if not DEFENSES[name].goes_with(epsilon):
                raise ValueError(f"Expected {'an' if epsilon is None else 'no'} epsilon for {name}, got {epsilon}.")
            if epsilon is not None and not 0 < epsilon < float("inf"):
                raise ValueError(f"Expected every epsilon > 0, got {epsilon}.")
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
    epsilon: float | Iterable[float | None] | None = None,
    attacks: Iterable[str] | None = None,
    seed: int = 0,
    jobs: int = 2,
    of_labels: bool = False,
) -> StudyPlan:
    """The plan of an audit.

    Args:
        defenses: Names, or "all"; by default the fitted veil, and the rivals that are quick and often asked about.
        epsilon: One or several, for the defenses that take one; by default the fitted veil has none.
        attacks: Names; by default all.
        seed: The same seed gives the same table.
        jobs: Processes at a time.
        of_labels: Whether it is one of many labels, for which the defaults are fewer.
    """
    default = (VEIL,) if of_labels else BY_DEFAULT
    names = default if defenses is None else tuple(DEFENSES) if defenses == EVERYTHING else tuple(defenses)
    notes: tuple[str, ...] = ()
    if defenses is None:
        others = ", ".join(name for name in DEFENSES if name not in ("none", *default))
        notes = (f"Left out to save time: {others}. Name them, or {EVERYTHING}, with --defenses to try them too.",)
    settings = grid(names, epsilon if epsilon is None or isinstance(epsilon, Iterable) else (epsilon,))
    if attacks is None and of_labels:
        attacks = OF_LABELS
    elif attacks is None:
        missing = missing_packages()
        notes += tuple(f"Left out, since {package} is not installed: {name}." for name, package in missing.items())
        attacks = (name for name in ATTACKS if name not in missing)
    plan = StudyPlan(settings, tuple(attacks), seed=seed, jobs=jobs, notes=notes)
    return replace(plan, forms=("adaptive",), repeats=1) if of_labels else plan


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
    """Attack everything that the plan names; the results are in its order.

    Args:
        subject: Whose scores are attacked.
        plan: Defenses and attacks.
        command: What the reader types to get the same results again.
        cache: A folder that keeps every trial, so that a study that is killed goes on where it stopped.
        progress: Told about each part that is done.
        first: Is given what the quick attacks on no defense and on the fitted veil found, while the rest is to do.
    """
    if subject.reference.labels is None:
        plan = plan.without_labels()
    evidence = tuple(subject.evidence(epsilon) for name, epsilon in plan.settings if name == VEIL)
    bench = Bench(subject, plan.attacks, plan.comparisons, plan.repeats, plan.seed, cache, plan.forms)
    soon, later = _first(bench, plan), _then(bench, plan)
    if subject.pictures is not None and plan.inverted:  # before the rest: inversions take longest
        from scoreveil.audit.networks.inverter import InversionSettings  # torch is loaded only by those who need it
        from scoreveil.audit.study.redrawing import InversionStudy

        studio = InversionStudy(subject, subject.pictures, plan.inversion or InversionSettings(), plan.seed, cache)
        later = [*(_Task(name, REDRAWING, do) for name, do in studio.tasks(plan.inverted)), *later]
    tasks = [*soon, *later]
    total, done, found = sum(task.size for task in tasks), 0, list[Findings]()
    parallel = joblib.Parallel(n_jobs=min(plan.jobs, len(tasks)), return_as="generator")
    for task, result in zip(tasks, parallel(joblib.delayed(task.do)() for task in tasks), strict=True):
        found.append(result)
        done += task.size
        progress(task.name, done, total)
        if first is not None and later and len(found) == len(soon):
            first(replace(_study(subject, plan, command, found), evidence=evidence))
    beside = tuple(bench.cost(one) for one in BESIDE if one not in plan.settings) if bench.labelled else ()
    return replace(_study(subject, plan, command, found), beside=beside, evidence=evidence)


def _first(bench: Bench, plan: StudyPlan) -> list[_Task]:
    """The quick attacks on what a verdict is about; the quickest come first."""
    quick = [name for name in plan.attacks if ATTACKS[name].cost <= QUICK]
    return _in_parts(bench, plan, _together(quick) or [()], with_cost=True)


def _then(bench: Bench, plan: StudyPlan) -> list[_Task]:
    """The slow attacks on the same settings; then the other settings, by all attacks, what takes longest first."""
    tasks = _in_parts(bench, plan, _together(name for name in plan.attacks if ATTACKS[name].cost > QUICK))
    for one in sorted(plan.settings, key=lambda setting: not DEFENSES[setting[0]].is_slow):
        many = one in plan.likelihood and bench.subject.many is not None
        rest = replace(bench, attacks=()) if one[0] in FIRST else bench
        if rest.attacks or many:
            do = partial(rest.study_setting, one, one[0] not in FIRST, many)
            tasks.append(_Task(setting_name(one), _size(rest.attacks) + COMPARING * many, do))
    return tasks


def _in_parts(bench: Bench, plan: StudyPlan, parts: Iterable[tuple[str, ...]], with_cost: bool = False) -> list[_Task]:
    """Some of the attacks at a time; with the first part what the defense costs."""
    settings = [one for one in plan.settings if one[0] in FIRST]
    return [
        _Task(
            setting_name(one),
            _size(part),
            partial(replace(bench, attacks=part).study_setting, one, with_cost and number == 0, False),
        )
        for number, part in enumerate(parts)
        for one in settings
    ]


def _together(attacks: Iterable[str]) -> list[tuple[str, ...]]:
    """Attacks in parts, the quickest first: one that takes long is alone."""
    parts = list[tuple[str, ...]]()
    for name in sorted(attacks, key=lambda name: ATTACKS[name].cost):
        if parts and _size((*parts[-1], name)) <= TOGETHER + DEFENDING:
            parts[-1] = (*parts[-1], name)
        else:
            parts.append((name,))
    return parts


def _size(attacks: Iterable[str]) -> int:
    return DEFENDING + sum(ATTACKS[name].cost for name in attacks)


def _study(subject: Subject, plan: StudyPlan, command: str, found: Iterable[Findings]) -> Study:
    """What was found so far, in the order of the plan."""
    defenses, attacks, inversions = (tuple(row for part in kind for row in part) for kind in zip(*found, strict=True))
    settings, names = (list(each) for each in (plan.settings, plan.attacks))

    def place(result: AttackResult) -> tuple[int, int]:
        # those from many shadows come last
        return settings.index(result.setting), names.index(result.attack) if result.attack in names else len(names)

    return Study(
        about(subject, plan, command),
        tuple(sorted(attacks, key=place)),
        tuple(sorted(defenses, key=lambda row: settings.index(row.setting))),
        inversions,
        subject.pictures.originals() if inversions and subject.pictures is not None else (),
        (*subject.doubts, *subject.notes, *plan.notes),
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
