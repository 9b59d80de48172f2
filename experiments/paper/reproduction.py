"""The paper's experiments: one study for each dataset, on the paper's classifier, at the size of a profile.

    found = reproduce(PROFILES["standard"], "cifar10", data_dir, cache_dir, "python -m experiments …")

The paper trains on 60,000 of 70,000 images and attacks with 60,000 more, so its attacker's sets overlap the target's.
Here the sets are disjoint, except in the profile "paper", which is as large as the paper's and says so.
"""

import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from experiments import classifier, recipes
from experiments.classifier import ImageClassifier
from experiments.data import benchmarks
from experiments.data.parts import Parts, five_way_split, split
from experiments.recipes import Recipe
from scoreveil.arrays import Floats, Integers
from scoreveil.audit import attacks, cache
from scoreveil.audit.data.images import Images
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import DEFENSES, timed
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.networks.training import TrainSettings
from scoreveil.audit.study import run as study
from scoreveil.audit.study.pictures import Pictures
from scoreveil.audit.study.results import UNDEFENDED, VEIL, Setting, Study, setting_name
from scoreveil.audit.study.shadows import Progress, ShadowModels, part, shadow_models, silent
from scoreveil.audit.study.subjects import Subject
from scoreveil.mechanisms import loading
from scoreveil.veil import Veil

DATASETS = ("mnist", "fashion-mnist", "cifar10")
PAPER_EPSILONS = (0.1, 0.7, 1.4, 2.0)
POPULATION = 2_500  # of RMIA
TIMED = 2_000  # images and vectors that times are taken on
OVERLAP = (
    "As in the paper, the shadow's images are drawn from the same images as the target's: most of them are the "
    "target's own training images, and the attacker is told them."
)
SHADOW_SEED = 1  # an attacker does not know the target's initial weights

FITTED: tuple[Setting, ...] = ((VEIL, None), (VEIL, 4.0))
OURS: tuple[Setting, ...] = (*(("isotonic", e) for e in (2.0, 8.0)), ("isotonic_all_reference", 2.0), *FITTED)
RIVALS: tuple[Setting, ...] = (("memguard", None), ("purification", None))
SIMPLE: tuple[Setting, ...] = tuple((name, None) for name in ("top_3", "rounding_1", "temperature_5", "gaussian"))
ROWS: tuple[Setting, ...] = (
    UNDEFENDED,
    *(("published", e) for e in PAPER_EPSILONS),
    *RIVALS,
    *SIMPLE,
    ("phase_2_alone", 0.1),
    *study.BESIDE,
    *OURS,
)
ENDS: tuple[Setting, ...] = (UNDEFENDED, ("published", 0.1), ("published", 2.0))  # of the paper's ε
INVERTED: tuple[Setting, ...] = (*ENDS, *RIVALS, ("isotonic_all_reference", 2.0), *FITTED)
LIKELIHOOD: tuple[Setting, ...] = (*ENDS, *OURS)


@dataclass(frozen=True)
class Profile:
    """How large a reproduction is.

    size, reference  images in each of the four parts, and in the reference
    epochs           of the classifiers, by dataset
    shadows          how many are trained for LiRA and RMIA, by dataset
    overlapping      as in the paper: the shadow's images are drawn from the same images as the target's
    recipes          defenses in training to compare instead of defenses of the scores
    canaries         records with a wrong label that are put into some training sets, to compare them by
    """

    size: int
    reference: int
    width: int
    epochs: Mapping[str, int]
    inversion: Mapping[str, InversionSettings]
    datasets: tuple[str, ...] = DATASETS
    shadows: Mapping[str, int] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ROWS
    inverted: tuple[Setting, ...] = INVERTED
    attacks: tuple[str, ...] = tuple(attacks.ATTACKS)
    overlapping: bool = False
    recipes: tuple[str, ...] = ()
    canaries: int = 0
    seed: int = 0


def _each(value: int, **others: int) -> dict[str, int]:
    return {name: others.get(name, value) for name in DATASETS}


PROFILES: dict[str, Profile] = {
    "quick": Profile(
        size=2_000,
        reference=1_000,
        width=classifier.QUICK,
        epochs=_each(20),
        inversion={name: InversionSettings(width=32, epochs=10, batch=32, lr=1e-3) for name in DATASETS},
        datasets=("fashion-mnist",),
        settings=(
            *(*ENDS, *RIVALS, ("phase_2_alone", 0.1), *study.BESIDE),
            *(("isotonic", 2.0), ("isotonic_all_reference", 2.0), *FITTED),
        ),
        inverted=(UNDEFENDED, ("published", 0.1), ("isotonic_all_reference", 2.0), (VEIL, None)),
    ),
    "standard": Profile(
        size=10_000,
        reference=5_000,
        width=classifier.STANDARD,
        epochs=_each(25, mnist=10),
        # smaller batches and a larger rate than the authors': more progress in few epochs
        inversion={name: InversionSettings(epochs=6, batch=32, lr=1e-3) for name in DATASETS},
        shadows={"cifar10": 16},
    ),
    "paper": Profile(
        size=60_000,
        reference=2_500,
        width=classifier.PAPER,
        epochs=_each(50),
        inversion={name: InversionSettings(width=128, epochs=100) for name in DATASETS},
        shadows={"cifar10": 16},
        overlapping=True,
    ),
}

# defenses in training, which are many and must be trained many times: smaller, on images and on a table
PROFILES["defenses"] = Profile(
    size=2_500,
    reference=1_500,
    width=classifier.QUICK,
    epochs={**_each(25), "adult": 40},
    inversion={},
    datasets=("fashion-mnist", "cifar10", "adult"),
    shadows={**_each(8), "adult": 8},
    recipes=tuple(recipes.RECIPES),
    canaries=200,
)


def parts_of(images: Images, profile: Profile) -> Parts:
    """The parts of a profile. With overlapping ones a class of its own: all images twice, split two ways."""
    if not profile.overlapping:
        return five_way_split(images, profile.size, profile.reference, profile.seed)
    test = len(images) - min(profile.size, len(images) * 5 // 6)  # CIFAR-10 has 50,000 for training
    sizes = len(images) - test, test - profile.reference, profile.reference
    train, held_out, reference = split(images, sizes, profile.seed)
    shadow_train, shadow_test = split(images, (len(images) - test, test), profile.seed + 1)
    return Parts(train, held_out, shadow_train, shadow_test, reference)


@dataclass(frozen=True, eq=False)
class ClassifierCache:
    """Classifiers of a dataset and what they answer, trained and asked where they are not on disk."""

    profile: Profile
    dataset: str
    cache_dir: Path
    recipe: Recipe | None = None  # how they are trained, where not as in the paper
    public: Images | None = None  # for the recipes that need some

    def train(self, images: Images, seed: int) -> None:
        """For another process, which has nothing to send back."""
        self.classifier(images, seed)

    def classifier(self, images: Images, seed: int) -> ImageClassifier:
        if self.recipe is None:
            return classifier.cached_classifier(images, self.settings(seed), self.cache_dir)
        return recipes.cached(self.recipe, images, self.settings(seed), self.public, self.cache_dir)

    def scores(self, trained_on: Images, seed: int, images: Images) -> Floats:
        """What the classifier says of the images."""
        return self._asked("scores", trained_on, seed, images, lambda model: model.scores(images))

    def records(self, trained_on: Images, seed: int, images: Images) -> Records:
        """Scores, labels, and of pictures the labels of moved and mirrored copies."""
        if images.shape[1:] == (1, 1):  # a table
            return Records(self.scores(trained_on, seed, images), images.labels)
        copies = self._asked("variants", trained_on, seed, images, lambda model: model.labels_of_variants(images))
        return Records(self.scores(trained_on, seed, images), images.labels, copies)

    def shadow(self, pool: Images, population: Images, index: Integers, seed: int) -> tuple[Floats, Floats]:
        """Scores of the pool and of the population by a classifier that is trained on some of the pool."""
        trained_on = pool.take(index)
        return self.scores(trained_on, seed, pool), self.scores(trained_on, seed, population)

    def _asked(
        self, what: str, trained_on: Images, seed: int, images: Images, ask: Callable[[ImageClassifier], Any]
    ) -> NDArray[Any]:
        return cache.load_or_make(
            "answers",
            cache.key(what, trained_on, self.settings(seed), images, *self._how),
            make=lambda: ask(self.classifier(trained_on, seed)),
            save=lambda made: {"made": made},
            load=lambda arrays: arrays["made"],
            directory=self.cache_dir,
        )

    @property
    def _how(self) -> tuple[object, ...]:
        """What answers depend on beside images and settings."""
        if self.recipe is None:
            return ()
        return self.recipe, self.public if self.recipe.needs_public else None

    def settings(self, seed: int) -> TrainSettings:
        return TrainSettings(width=self.profile.width, epochs=self.profile.epochs[self.dataset], seed=seed)


def many(classifiers: ClassifierCache, parts: Parts, jobs: int, progress: Progress) -> ShadowModels:
    """The target's records under many shadows, each trained on half of them."""
    pool, seed = joined(parts.target_train, parts.target_test), classifiers.profile.seed
    population = parts.shadow_test.take(slice(POPULATION))
    under_target = classifiers.records(parts.target_train, seed, population)
    count = classifiers.profile.shadows[classifiers.dataset]
    train = partial(classifiers.shadow, pool, population)
    return shadow_models(train, len(pool), under_target, count, seed, jobs, progress)


def subject_of(classifiers: ClassifierCache, parts: Parts, jobs: int, progress: Progress) -> Subject:
    """The paper's subject: a target, a shadow like it, and pictures to redraw."""
    profile = classifiers.profile
    target, shadow = (parts.target_train, profile.seed), (parts.shadow_train, profile.seed + SHADOW_SEED)
    # other processes train; the answers are asked for here
    both = joblib.Parallel(n_jobs=min(jobs, 2), return_as="generator")(
        joblib.delayed(classifiers.train)(*each) for each in (target, shadow)
    )
    has_many = bool(profile.shadows.get(classifiers.dataset))
    two = part(progress, 0.0, 0.2 if has_many else 1.0)
    for done, _ in enumerate(both, 1):
        two("a classifier", done, 2)
    asked, drawn = parts.shadow_train, parts.target_test
    return Subject(
        target=Membership(*(classifiers.records(*target, each) for each in (parts.target_train, parts.target_test))),
        shadow=Membership(*(classifiers.records(*shadow, each) for each in (parts.shadow_train, parts.shadow_test))),
        reference=classifiers.records(*target, parts.reference),
        notes=(OVERLAP,) if profile.overlapping else (),
        many=many(classifiers, parts, jobs, part(progress, 0.2, 1.0)) if has_many else None,
        pictures=Pictures(asked, classifiers.scores(*target, asked), drawn, classifiers.scores(*target, drawn)),
        title=f"{asked.name}: the paper's classifier, {len(parts.target_train):,} training images",
    )


def reproduce(
    profile: Profile,
    dataset: str,
    data_dir: Path | None,
    cache_dir: Path,
    command: str = "",
    jobs: int = 2,
    progress: Progress = silent,
) -> Study:
    """One dataset's study: trained, attacked and timed, or read from the cache as far as it is there."""
    parts = parts_of(benchmarks.load(dataset, data_dir), profile)
    classifiers = ClassifierCache(profile, dataset, cache_dir)
    training = 0.4 if profile.shadows.get(dataset) else 0.1  # of the time, about
    subject = subject_of(classifiers, parts, jobs, part(progress, 0.0, training))
    plan = study.StudyPlan(
        settings=profile.settings,
        attacks=profile.attacks,
        likelihood=LIKELIHOOD,
        inverted=profile.inverted,
        inversion=profile.inversion[dataset],
        seed=profile.seed,
        jobs=jobs,
    )
    found = study.run(subject, plan, command, cache_dir, part(progress, training, 1.0))
    times = cache.kept_json(
        "times",
        cache.key("times", subject.digest, profile.settings),
        lambda: overheads(classifiers.classifier(parts.target_train, profile.seed), parts.target_test, subject, plan),
        cache_dir,
    )
    images = {name: getattr(parts, name).digest for name in ("target_train", "target_test", "shadow_train")}
    meta = {**found.meta, "images, sha256": images, "model, seconds per image": times["model_seconds_per_image"]}
    # the study ran several processes at once; these times were taken by one that was alone
    defenses = tuple(replace(d, **times["defenses"][setting_name(d.setting)]) for d in found.defenses)
    return replace(found, meta=meta, defenses=defenses)


def overheads(model: ImageClassifier, images: Images, subject: Subject, plan: study.StudyPlan) -> dict[str, Any]:
    """What each defense adds to the model's own time: all in one process, one after the other, in this run."""
    loading.wait()  # the kernels are compiled once per machine: not what a vector costs
    images = images.take(slice(TIMED))
    scores = model.scores(images)
    of_model = _seconds(lambda: model.scores(images)) / len(images)
    rows: dict[str, Any] = {}
    for name, epsilon in plan.settings:
        given = replace(subject.given(plan.seed, epsilon), everyone=None)  # one fitted veil, not one for each fold
        defense, timing = timed(DEFENSES[name], given, scores)
        slow = timing.seconds_per_vector * len(scores) > 1
        each = timing.seconds_per_vector if slow else _seconds(partial(defense, scores)) / len(scores)
        plain = None
        if isinstance(defense, Veil):
            # with a study's seed a veil runs in plain array operations; what users run is the veil without
            plain, each = each, _seconds(partial(Veil(defense.mechanism), scores)) / len(scores)
        rows[setting_name((name, epsilon))] = {
            "fit_seconds": timing.fit_seconds,
            "seconds_per_vector": each,
            "ratio_to_numpy": None if plain is None else each / plain,
        }
    return {"model_seconds_per_image": of_model, "defenses": rows}


def _seconds(call: Callable[[], Any], times: int = 5) -> float:
    """The shortest of several."""
    return min(timeit.repeat(call, number=1, repeat=times))


def joined(first: Images, second: Images) -> Images:
    pixels, labels = (np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("pixels", "labels"))
    return Images(pixels, labels, first.name, first.classes, first.class_names)
