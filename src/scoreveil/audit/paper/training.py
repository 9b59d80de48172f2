"""Defenses in training, each alone and behind the optimal veil, on the same records and against the same attacks.

    rows = study_recipe("relaxloss", PROFILES["defenses"], "fashion-mnist", data_dir, cache_dir)

Target and shadows are trained by the same recipe. Canaries, records with a wrong label, are put into some of their
training sets: they are judged by themselves, and count neither for accuracy nor for the other attacks.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil import atomic
from scoreveil.audit import cache
from scoreveil.audit.data import benchmarks
from scoreveil.audit.data.images import Images, Parts, split
from scoreveil.audit.data.records import Membership
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.paper.experiments import POPULATION, SHADOW_SEED, ClassifierCache, Profile, joined
from scoreveil.audit.paper.tables import NAMES
from scoreveil.audit.recipes import RECIPES
from scoreveil.audit.report.wording import setting_in_words
from scoreveil.audit.study import run as study
from scoreveil.audit.study.exposed import Crowd, leave_one_out, most_exposed
from scoreveil.audit.study.results import UNDEFENDED, MembershipMetrics, Setting, Study, floor
from scoreveil.audit.study.shadows import Progress, many_shadows, silent
from scoreveil.audit.study.subjects import Subject

SETTINGS: tuple[Setting, ...] = (UNDEFENDED, ("optimal", 4.0))
EXPOSED = 0.05  # the share of the records that count as most exposed
PLAIN = "plain"
FEWEST_SHADOWS = 6  # each is the target in turn, and two or more of the others have, or have not, seen a record


@dataclass(frozen=True)
class Leak:
    """What the best attack gets: the name of the one with the highest AUC; the share found, by whichever finds most."""

    attack: str
    auc: float
    tpr_at_1pct: float

    @classmethod
    def of(cls, found: Iterable[tuple[str, MembershipMetrics]]) -> "Leak":
        every = list(found)
        name, highest = max(every, key=lambda one: one[1].auc)
        return cls(name, round(highest.auc, 4), round(max(one.tpr_at_1pct for _, one in every), 4))


@dataclass(frozen=True)
class Row:
    """One recipe, alone or behind a veil, on one dataset.

    label     what the label alone gives
    everyone  the best of all attacks, on all records
    exposed   the same on the most exposed records, and
    canaries  on records with a wrong label, by attacks from many shadows
    """

    dataset: str
    recipe: str
    defense: str
    epsilon: float | None
    promised_epsilon: float | None
    promised_delta: float | None
    train_accuracy: float
    test_accuracy: float
    auroc_of_confidence: float
    nll: float
    label: float
    everyone: Leak
    exposed: Leak
    canaries: Leak
    training_seconds: float  # of one process, for one model


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
    if not profile.shadows[dataset] >= FEWEST_SHADOWS:
        got = profile.shadows[dataset]
        raise ValueError(f"Expected {FEWEST_SHADOWS} shadows or more to judge single records by, got {got}.")
    images = benchmarks.load(dataset, data_dir)
    sizes = [profile.size] * 4 + [profile.reference] * 2 + [profile.canaries]
    *parts, public, canaries = split(images, sizes, profile.seed)
    classifiers = ClassifierCache(profile, dataset, cache_dir, RECIPES[name], public)
    lied = mislabelled(canaries, profile.seed)
    seconds = _timed(classifiers, parts[0], lied, cache_dir)
    everyone = {each: replace(classifiers, recipe=RECIPES[each]) for each in {PLAIN, name}}
    trained = {each: _train(of, Parts(*parts), lied, jobs, progress) for each, of in everyone.items()}
    own, plain = trained[name], trained[PLAIN]
    plan = study.StudyPlan(
        settings=SETTINGS, attacks=profile.attacks, likelihood=SETTINGS, seed=profile.seed, jobs=jobs
    )
    found = study.run(own.subject, plan, "", cache_dir, progress)
    promise = RECIPES[name].promise(profile.size + profile.canaries // 2, classifiers.settings(profile.seed))
    return tuple(
        Row(
            dataset=dataset,
            recipe=name,
            defense=setting[0],
            epsilon=setting[1],
            promised_epsilon=None if promise is None else round(promise.epsilon, 4),
            promised_delta=None if promise is None else promise.delta,
            training_seconds=float(f"{seconds:.3g}"),
            **_judged(found, setting, own, plain, profile.seed),
        )
        for setting in SETTINGS
    )


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
    many = many_shadows(
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


def _judged(found: Study, setting: Setting, own: _Trained, plain: _Trained, seed: int) -> dict[str, Any]:
    """What a setting is worth, and what it leaks."""
    cost, label = found.costs[setting], floor(found, told=True)
    attacked = [(r.attack, r) for r in found.results if r.setting == setting and r.reads == "scores"]
    defense = DEFENSES[setting[0]].make(own.subject.for_fitting().given(seed, setting[1]))
    clean, wanted = plain.crowd.take(slice(plain.records)), max(1, int(EXPOSED * own.records))
    canaries = np.arange(own.records, len(own.crowd.labels))
    exposed = leave_one_out(own.crowd, defense, lambda model: most_exposed(clean, model, wanted))
    wrong = leave_one_out(own.crowd, defense, lambda model: canaries)
    measured = ("train_accuracy", "test_accuracy", "auroc_of_confidence", "nll")
    return {
        **{name: round(float(getattr(cost, name)), 4) for name in measured},
        "label": 0.5 if label is None else round(label.auc, 4),
        "everyone": Leak.of(attacked),
        "exposed": Leak.of(exposed.items()),
        "canaries": Leak.of(wrong.items()),
    }


# As files


def write(rows: Iterable[Row], folder: Path, command: str) -> Path:
    """rows.json and tables.md; the path of the latter, which is written last."""
    every = list(rows)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in every)
    atomic.write(folder / "rows.json", f"[\n{lines}\n]\n")
    made = folder / "tables.md"
    atomic.write(made, markdown(every, command))
    return made


def markdown(rows: Iterable[Row], command: str) -> str:
    """A table for each dataset."""
    every, parts = list(rows), [f"# Defenses in training\n\nMade by `{command}`. {ABOUT}\n"]
    for dataset in dict.fromkeys(row.dataset for row in every):
        here = [_cells(row) for row in every if row.dataset == dataset]
        lines = [f"| {' | '.join(cells)} |" for cells in (HEADER, ["---"] * len(HEADER), *here)]
        parts.append("\n".join([f"## {NAMES.get(dataset, dataset)}", "", *lines, ""]))
    return "\n".join(parts)


ABOUT = (
    "Leaks are AUC and, after the stroke, the share of members found at 1 % false alarms, each by the attack that is "
    "best at it. *Most exposed* are the 5 % of the records whose score rises most when the plain classifier is trained "
    "on them; *canaries* have a wrong label. *Label* is what the label alone gives. Seconds are of one process, for "
    "one model."
)
HEADER = [
    *("training", "scores", "(ε, δ)", "accuracy", "AUROC of confidence", "log-loss"),
    *("label", "everyone", "most exposed", "canaries", "seconds"),
]


def _cells(row: Row) -> list[str]:
    def number(value: float) -> str:
        return f"{value:.3f}".removeprefix("0")

    def leak(found: Leak) -> str:
        return f"{number(found.auc)} / {100 * found.tpr_at_1pct:.1f} %"

    promised = row.promised_epsilon
    return [
        row.recipe,
        setting_in_words((row.defense, row.epsilon)),
        "" if promised is None else f"{promised:.3g}, {row.promised_delta:g}",
        f"{100 * row.test_accuracy:.1f} %",
        number(row.auroc_of_confidence),
        number(row.nll),
        number(row.label),
        *(leak(found) for found in (row.everyone, row.exposed, row.canaries)),
        f"{row.training_seconds:,.1f}",
    ]
