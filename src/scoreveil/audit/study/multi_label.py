"""A model with many labels: an ordinary study of each label, and attacks on the whole answer.

    study = run(subject, plan)
    study.whole, study.labels["sporty"]

Each label is two classes of its own, served as one column. Labels that leak little by themselves may tell more
together, so attacks on whole answers are studied too, undefended and behind the fitted veils of all labels.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scoreveil.audit.attacks.multi_label import ON_WHOLE_ANSWERS
from scoreveil.audit.data.records import Defense, Membership
from scoreveil.audit.defenses.ours import cross_fitted, quietly
from scoreveil.audit.study import run as studies
from scoreveil.audit.study.membership import judged
from scoreveil.audit.study.results import UNDEFENDED, VEIL, AttackResult, Setting, Study
from scoreveil.audit.study.run import StudyPlan, about
from scoreveil.audit.study.shadows import Progress, part, silent
from scoreveil.audit.study.subjects import Subject
from scoreveil.veil import Veil


@dataclass(frozen=True)
class LabelsStudy:
    """What was found about whole answers, and about each label by its name."""

    whole: Study
    labels: dict[str, Study]


def run(
    subject: Subject, plan: StudyPlan, command: str = "", cache: Path | None = None, progress: Progress = silent
) -> LabelsStudy:
    """Attack each label as the plan says, and whole answers undefended and behind the fitted veils.

    The arguments are those of an ordinary study; scores of the subject are those that are served, (n, labels).
    """
    labels, ends = dict[str, Study](), np.linspace(0, 1, subject.target.classes + 2)
    for i, (name, of_label) in enumerate(subject.by_label().items()):
        labels[name] = studies.run(of_label, plan, command, cache, part(progress, ends[i], ends[i + 1]))
    tried = [setting for setting in plan.settings if setting in (UNDEFENDED, (VEIL, setting[1]))]
    results = tuple(result for setting in tried for result in _attacked(subject, setting, plan.seed))
    progress("whole answers", 1, 1)
    meta = about(subject, plan, command) | {"shape": subject.shape.settings()}
    meta["records"]["labels"] = meta["records"].pop("classes")
    evidence = tuple(subject.evidence(epsilon) for name, epsilon in tried if name == VEIL)
    notes = (*subject.doubts, *subject.notes, *plan.notes)
    return LabelsStudy(Study(meta, results, (), notes=notes, evidence=evidence), labels)


def _attacked(subject: Subject, setting: Setting, seed: int) -> list[AttackResult]:
    """All attacks on whole answers, (n, labels, 2) score vectors, through a veil or as they are."""
    answer = _defense(subject, setting, seed)

    def seen(given: Membership) -> Membership:
        served = given if answer is None else given.defended(answer)
        vectors = served.changed(lambda side: replace(side, scores=subject.shape.vectors(side.scores)))
        return vectors.balanced(np.random.default_rng(seed))

    shadow, target = seen(subject.shadow), seen(subject.target)
    results = []
    for attack in ON_WHOLE_ANSWERS:
        if (shadow.is_labelled and target.is_labelled) or not attack.knows_label:
            began = time.perf_counter()
            scorer = attack.fit(shadow, "scores", np.random.default_rng(seed))
            about_it = {"form": "adaptive", "features": "scores", "reads": attack.reads}
            said = scorer(target.records)
            results.append(judged(setting, attack.name, attack.knows_label, target.truth, said, began, about_it))
    return results


def _defense(subject: Subject, setting: Setting, seed: int) -> Defense | None:
    """The veil that was given, or one for each fold; None without a defense."""
    if setting == UNDEFENDED:
        return None
    if subject.veil is None:
        return cross_fitted(subject.everyone_served, setting[1], seed, subject.shape, subject.shape)
    return quietly(Veil(subject.veil.mechanism, shape=subject.shape, rng=np.random.default_rng(seed)))
