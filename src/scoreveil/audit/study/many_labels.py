"""The study of a model with many labels: each label attacked as two classes, and all labels of an answer together.

    found = run(subject, ("even", "prime"), epsilons=(None, 2.0))

What is attacked is what is served: undefended, and behind the fitted veil of all labels. Attacks are quick ones, since
there are many labels: a threshold and a random forest, with and without the true labels.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import joblib
import numpy as np

from scoreveil.audit.attacks.interface import Attack
from scoreveil.audit.attacks.many_labels import OF_ALL_LABELS, OF_ONE_LABEL
from scoreveil.audit.data.records import Defense, Membership, Records
from scoreveil.audit.defenses.ours import cross_fitted
from scoreveil.audit.study.membership import judged
from scoreveil.audit.study.results import LABEL, UNDEFENDED, VEIL, AttackResult, Setting, Study, setting_name
from scoreveil.audit.study.run import StudyPlan, about
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject
from scoreveil.fitting import cost, metrics
from scoreveil.fitting.decision import Evidence
from scoreveil.fitting.records import Scored, read
from scoreveil.veil import Veil


@dataclass(frozen=True)
class Worth:
    """What a way to answer is worth, over all labels: AUROC of the confidence, log-loss, calibration error."""

    setting: Setting
    useful: float
    nll: float
    ece: float


@dataclass(frozen=True)
class LabelsStudy:
    """What was found: a study of all labels together, and one of each label."""

    meta: dict[str, Any]
    names: tuple[str, ...]
    whole: Study
    labels: tuple[Study, ...]
    worth: tuple[Worth, ...] = ()  # empty without true labels
    evidence: tuple[Evidence, ...] = ()  # what the advice rests on, of each veil
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[AttackResult, ...]:
        """Every attack on everything, for limits that all must keep."""
        return tuple(r for study in (self.whole, *self.labels) for r in study.results)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the curves."""
        rows = {"the whole answer": self.whole, **dict(zip(self.names, self.labels, strict=True))}
        return {
            "meta": self.meta,
            "notes": self.notes,
            "evidence": [asdict(each) for each in self.evidence],
            "worth": [asdict(each) for each in self.worth],
            "whole": [_row(r) for r in rows.pop("the whole answer").results],
            "labels": [{"label": name, "results": [_row(r) for r in each.results]} for name, each in rows.items()],
        }


def _row(result: AttackResult) -> dict[str, Any]:
    return {name: value for name, value in asdict(result).items() if name != "roc"}


@dataclass(frozen=True, eq=False)
class _Seen:
    """Both sides as an attacker sees them: (n, labels, 2) score vectors."""

    target: Membership
    shadow: Membership

    def through(self, change: Callable[[Records], Records]) -> "_Seen":
        sides = (Membership(change(m.members), change(m.nonmembers)) for m in (self.target, self.shadow))
        return _Seen(*sides)


def run(
    subject: Subject,
    names: tuple[str, ...] = (),
    epsilons: Iterable[float | None] = (None,),
    command: str = "",
    seed: int = 0,
    jobs: int = 2,
    progress: Progress = silent,
) -> LabelsStudy:
    """Attack every label, and all together.

    Args:
        subject: Whose answers are attacked. Scores are those that are served, (n, labels), and so are true labels.
        names: Of the labels.
        epsilons: Of the veils; None for the one without.
        command: What the reader types to get the same results again.
        seed: The same seed gives the same numbers.
        jobs: Processes at a time.
        progress: Told about each setting that is done.
    """
    labels = subject.target.classes
    tried = sorted(set(epsilons), key=lambda e: -(e or math.inf))
    settings: list[Setting] = [UNDEFENDED, *((VEIL, epsilon) for epsilon in tried)]
    found: dict[int | None, list[AttackResult]] = {which: [] for which in (None, *range(labels))}
    worth = list[Worth]()
    for number, setting in enumerate(settings):
        answer = None if setting == UNDEFENDED else _veiled(subject, setting[1], seed + number)
        seen = _seen(subject, answer)
        done = joblib.Parallel(n_jobs=min(jobs, len(found)))(
            joblib.delayed(_attacked)(seen, label, setting, seed) for label in found
        )
        for label, rows in zip(found, done, strict=True):
            found[label] += rows
        worth += _worth(subject, answer, setting)
        progress(setting_name(setting), number + 1, len(settings))
    plan = StudyPlan(tuple(settings), seed=seed, repeats=1)
    meta = about(subject, plan, command) | {"shape": subject.shape.settings()}
    meta["records"]["labels"] = meta["records"].pop("classes")
    studies = {label: Study(meta, tuple(rows), ()) for label, rows in found.items()}
    called = names or tuple(map(str, range(labels)))
    whole = studies.pop(None)
    evidence = tuple(subject.evidence(epsilon) for epsilon in tried)
    notes = (*subject.doubts, *subject.notes)
    return LabelsStudy(meta, called, whole, tuple(studies.values()), tuple(worth), evidence, notes)


def _seen(subject: Subject, answer: Defense | None) -> _Seen:
    """The subject through a veil, or as it is."""
    seen = _Seen(subject.target, subject.shadow)
    if answer is not None:
        seen = seen.through(lambda side: side.defended(answer))
    return seen.through(lambda side: replace(side, scores=subject.shape.vectors(side.scores)))


def _veiled(subject: Subject, epsilon: float | None, seed: int) -> Defense:
    """The veil that was given, or one for each fold."""
    if subject.veil is None:
        return cross_fitted(subject.everyone, epsilon, seed, subject.shape)
    drawing = Veil(subject.veil.mechanism, shape=subject.shape, rng=np.random.default_rng(seed))
    return lambda scores: cost.asked_quietly(drawing, scores)


def _attacked(seen: _Seen, label: int | None, setting: Setting, seed: int) -> list[AttackResult]:
    """All attacks on one label, or on all together (None)."""
    if label is not None:
        seen = seen.through(
            lambda side: Records(side.scores[:, label], None if side.labels is None else side.labels[:, label])
        )
    shadow, target = (m.balanced(np.random.default_rng(seed)) for m in (seen.shadow, seen.target))
    known = all(r.labels is not None for m in (shadow, target) for r in (m.members, m.nonmembers))
    attacks = OF_ALL_LABELS if label is None else OF_ONE_LABEL
    return [_result(attack, shadow, target, setting, seed) for attack in attacks if known or not attack.knows_label]


def _result(attack: Attack, shadow: Membership, target: Membership, setting: Setting, seed: int) -> AttackResult:
    began = time.perf_counter()
    scorer = attack.fit(shadow, "scores", np.random.default_rng(seed))
    about_it = {"form": "adaptive", "features": "scores", "reads": attack.reads}
    return judged(setting, attack.name, attack.knows_label, target.truth, scorer(target.records), began, about_it)


def _worth(subject: Subject, answer: Defense | None, setting: Setting) -> list[Worth]:
    """What is served is worth, and with the undefended scores what the label alone is worth."""
    if subject.reference.labels is None or subject.target.nonmembers.labels is None:
        return []
    reference, asked = (
        read(side.scores, side.labels, "records", shape=subject.shape)
        for side in (subject.reference, subject.target.nonmembers)
    )
    alone = cost.label_alone(reference)(asked)
    if answer is None:
        return [_measured(UNDEFENDED, asked, asked.said), _measured(LABEL, asked, alone)]
    said = subject.shape.said(subject.target.nonmembers.defended(answer).scores)
    return [_measured(setting, asked, said)]


def _losses(asked: Scored, answers: Any) -> Any:
    """The log-loss of each record."""
    assert asked.labels is not None
    return metrics.log_loss(answers, asked.labels).reshape(-1, asked.releases).mean(axis=1)


def _measured(setting: Setting, asked: Scored, answers: Any) -> Worth:
    sure, right = cost.confidence(asked, answers), asked.is_right
    useful, nll = metrics.auroc(sure[right], sure[~right]), float(_losses(asked, answers).mean())
    return Worth(setting, useful, nll, metrics.calibration_error(sure, right))
