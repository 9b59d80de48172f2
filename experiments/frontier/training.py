"""Every defense on the same records, against the same attacks: in training, alone and behind the veil, and after it.

    rows = study_recipe("relaxloss", PROFILES["defenses"], "fashion-mnist", data_dir, cache_dir)

Target and shadows are trained by the same recipe. Canaries, records with a wrong label, are put into some of their
training sets: they are judged by themselves, and count neither for accuracy nor for the other attacks. Defenses of the
scores alone are rows of plain training. What is found is rendered by `frontier`.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import benchmarks
from experiments.data.parts import Parts, split
from experiments.frontier.exposed import Crowd, leave_one_out, most_exposed
from experiments.paper.reproduction import (
    POPULATION,
    RIVALS,
    SHADOW_SEED,
    SIMPLE,
    ClassifierCache,
    Profile,
    joined,
)
from experiments.recipes import RECIPES
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images
from scoreveil.audit.data.records import Membership
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.study import run as study
from scoreveil.audit.study.results import LABEL, UNDEFENDED, VEIL, MembershipMetrics, Setting, Study
from scoreveil.audit.study.shadows import Progress, part, shadow_models, silent
from scoreveil.audit.study.subjects import Subject

VEILED: Setting = (VEIL, None)
SETTINGS: tuple[Setting, ...] = (UNDEFENDED, VEILED, LABEL)  # of every recipe: its scores, a veil, the label alone
# what is done to the scores of the plain classifier, beside that
AFTERWARDS: tuple[Setting, ...] = (
    (VEIL, 4.0),
    *(("isotonic", epsilon) for epsilon in (2.0, 8.0)),
    ("isotonic_all_reference", 2.0),
    *(("published", epsilon) for epsilon in (0.1, 2.0)),
    *RIVALS,
    *SIMPLE,
    ("temperature_scaled", None),
)
EXPOSED = 0.05  # the share of the records that count as most exposed
PLAIN = "plain"
MIN_SHADOWS = 6  # each is the target in turn, and two or more of the others have, or have not, seen a record


@dataclass(frozen=True)
class Leak:
    """What the best attack gets, with 95 % intervals: the one with the highest AUC, and the one that finds most."""

    attack: str
    auc: float
    auc_low: float
    auc_high: float
    tpr_at_1pct: float
    tpr_at_1pct_low: float
    tpr_at_1pct_high: float

    @classmethod
    def of(cls, found: Iterable[tuple[str, MembershipMetrics]]) -> "Leak":
        every = list(found)
        name, highest = max(every, key=lambda one: one[1].auc)
        _, most = max(every, key=lambda one: one[1].tpr_at_1pct)
        figures = (highest.auc, highest.auc_low, highest.auc_high)
        shares = (most.tpr_at_1pct, most.tpr_at_1pct_low, most.tpr_at_1pct_high)
        return cls(name, *(round(value, 4) for value in (*figures, *shares)))

    def at_least(self, other: "Leak") -> "Leak":
        """What an attacker gets who may also choose the other attack."""
        auc, found = (max((self, other), key=attrgetter(name)) for name in ("auc", "tpr_at_1pct"))
        return replace(
            auc,
            tpr_at_1pct=found.tpr_at_1pct,
            tpr_at_1pct_low=found.tpr_at_1pct_low,
            tpr_at_1pct_high=found.tpr_at_1pct_high,
        )


@dataclass(frozen=True)
class Row:
    """One recipe and one defense of its scores, on one dataset.

    everyone      the best of all attacks, on all records; some are told the true label, some ignore the scores
    scores_alone  the best of those that are not told the true label
    exposed       the best attack from many shadows on the most exposed records, and
    canaries      on records with a wrong label
    """

    dataset: str
    recipe: str
    defense: str
    epsilon: float | None
    promised_epsilon: float | None
    promised_delta: float | None
    records: int  # that accuracy and confidence are measured on
    train_accuracy: float
    test_accuracy: float
    auroc_of_confidence: float
    nll: float
    ece: float
    everyone: Leak
    scores_alone: Leak
    exposed: Leak
    canaries: Leak
    training_seconds: float  # of one process, for one model

    @property
    def setting(self) -> Setting:
        return self.defense, self.epsilon

    def at_least(self, label: "Row") -> "Row":
        """The row against attackers who may also ignore the scores, and go by the label alone."""
        leaks = ("everyone", "scores_alone", "exposed", "canaries")
        return replace(self, **{name: getattr(self, name).at_least(getattr(label, name)) for name in leaks})


@dataclass(frozen=True, eq=False)
class _Trained:
    """All models of one recipe."""

    subject: Subject
    crowd: Crowd  # the subject's records, then the canaries
    records: int  # how many are the subject's


def study_recipe(
    name: str,
    profile: Profile,
    dataset: str,
    data_dir: Path | None,
    cache_dir: Path,
    jobs: int = 2,
    progress: Progress = silent,
) -> tuple[Row, ...]:
    """A row for each setting: trained, attacked and timed, or read from the cache as far as it is there."""
    if name not in RECIPES:
        raise ValueError(f"Expected a recipe among {', '.join(RECIPES)}, got {name!r}.")
    if not profile.shadows[dataset] >= MIN_SHADOWS:
        got = profile.shadows[dataset]
        raise ValueError(f"Expected {MIN_SHADOWS} shadows or more to judge single records by, got {got}.")
    images = benchmarks.load(dataset, data_dir)
    sizes = [profile.size] * 4 + [profile.reference] * 2 + [profile.canaries]
    *parts, public, canaries = split(images, sizes, profile.seed)
    classifiers = ClassifierCache(profile, dataset, cache_dir, RECIPES[name], public)
    lied = mislabelled(canaries, profile.seed)
    seconds = _timed(classifiers, parts[0], lied, cache_dir)
    everyone = {each: replace(classifiers, recipe=RECIPES[each]) for each in {PLAIN, name}}
    trained = {each: _train(of, Parts(*parts), lied, jobs, part(progress, 0.0, 0.6)) for each, of in everyone.items()}
    own, plain = trained[name], trained[PLAIN]
    settings = SETTINGS + AFTERWARDS if name == PLAIN else SETTINGS
    plan = study.StudyPlan(
        settings=settings,
        attacks=profile.attacks,
        likelihood=settings,
        forms=("adaptive",),
        seed=profile.seed,
        jobs=jobs,
    )
    found = study.run(own.subject, plan, "", cache_dir, part(progress, 0.6, 1.0))
    promise = RECIPES[name].promise(profile.size + profile.canaries // 2, classifiers.settings(profile.seed))
    rows = {
        setting: Row(
            dataset=dataset,
            recipe=name,
            defense=setting[0],
            epsilon=setting[1],
            promised_epsilon=None if promise is None else round(promise.epsilon, 4),
            promised_delta=None if promise is None else promise.delta,
            training_seconds=float(f"{seconds:.3g}"),
            **_judged(found, setting, own, plain, profile.seed, cache_dir),
        )
        for setting in settings
    }
    return tuple(row.at_least(rows[LABEL]) if DEFENSES[row.defense].keeps_label else row for row in rows.values())


def mislabelled(images: Images, seed: int) -> Images:
    """The images, each with a label that is not its own."""
    rng = np.random.default_rng([seed, 1])
    labels = (images.labels + rng.integers(1, images.classes, len(images))) % images.classes
    return replace(images, labels=labels)


def _inside(canaries: Images) -> Images:
    """Those that the target is trained on."""
    return canaries.take(slice(len(canaries) // 2))


def _timed(classifiers: ClassifierCache, train: Images, canaries: Images, cache_dir: Path) -> float:
    """Train the target first, by itself; the seconds that took are kept. One that was killed is counted in part."""
    target, seed = joined(train, _inside(canaries)), classifiers.profile.seed

    def make() -> dict[str, Any]:
        began = time.process_time()
        classifiers.train(target, seed)
        return {"seconds": time.process_time() - began}

    shown = classifiers.public if classifiers.recipe is not None and classifiers.recipe.needs_public else None
    key = cache.key("training", classifiers.recipe, target, classifiers.settings(seed), shown)
    return float(cache.kept_json("times", key, make, cache_dir)["seconds"])


def _train(classifiers: ClassifierCache, parts: Parts, canaries: Images, jobs: int, progress: Progress) -> _Trained:
    """The target, a shadow of the same size on other records, and many shadows on halves of the target's."""
    seed = classifiers.profile.seed
    target = joined(parts.target_train, _inside(canaries)), seed
    shadow = parts.shadow_train, seed + SHADOW_SEED
    records = joined(parts.target_train, parts.target_test)
    pool, population = joined(records, canaries), parts.shadow_test.take(slice(POPULATION))
    many = shadow_models(
        partial(classifiers.shadow, pool, population),
        len(pool),
        classifiers.records(*target, population),
        classifiers.profile.shadows[classifiers.dataset],
        seed,
        jobs,
        progress,
    )
    subject = Subject(
        target=Membership(*(classifiers.records(*target, each) for each in (parts.target_train, parts.target_test))),
        shadow=Membership(*(classifiers.records(*shadow, each) for each in (parts.shadow_train, parts.shadow_test))),
        reference=classifiers.records(*target, parts.reference),
        many=many.take(np.arange(len(records))),
        title=pool.name,
    )
    own = np.zeros(len(pool), dtype=bool)
    own[: len(parts.target_train)] = True
    own[len(records) : len(records) + len(_inside(canaries))] = True
    answers = np.concatenate([classifiers.scores(*target, pool)[None], many.of_records])
    return _Trained(subject, Crowd(answers, np.concatenate([own[None], many.inside]), pool.labels), len(records))


def _judged(
    found: Study, setting: Setting, own: _Trained, plain: _Trained, seed: int, cache_dir: Path
) -> dict[str, Any]:
    """What a setting is worth, and what it leaks to attacks that were fitted under it."""
    cost = found.costs[setting]
    # copies of a record take more than one question
    attacked = [r for r in found.results if r.setting == setting and r.attack != "augmentation"]
    key = cache.key("exposed", own.crowd.answers, own.crowd.inside, plain.crowd.answers, setting, seed)
    hardest = cache.kept_json("exposed", key, lambda: _hardest(setting, own, plain, seed), cache_dir)
    measured = ("train_accuracy", "test_accuracy", "auroc_of_confidence", "nll", "ece")
    return {
        "records": len(own.subject.target.nonmembers),
        **{name: round(float(getattr(cost, name)), 4) for name in measured},
        "everyone": Leak.of((r.attack, r) for r in attacked),
        "scores_alone": Leak.of((r.attack, r) for r in attacked if not r.knows_label),
        **{name: Leak(**found) for name, found in hardest.items()},
    }


def _hardest(setting: Setting, own: _Trained, plain: _Trained, seed: int) -> dict[str, Any]:
    """What a setting leaks about the most exposed records, and about canaries."""
    given = own.subject.for_fitting() if DEFENSES[setting[0]].fits else own.subject
    crowd = own.crowd.defended(DEFENSES[setting[0]].make(given.given(seed, setting[1])))
    clean, wanted = plain.crowd.take(slice(plain.records)), max(1, int(EXPOSED * own.records))
    canaries = np.arange(own.records, len(own.crowd.labels))
    exposed = leave_one_out(crowd, lambda model: most_exposed(clean, model, wanted))
    wrong = leave_one_out(crowd, lambda model: canaries)
    return {"exposed": asdict(Leak.of(exposed.items())), "canaries": asdict(Leak.of(wrong.items()))}
