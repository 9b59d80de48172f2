"""Why are the undefended attacks far below the paper's figures? Its own allocation of the data, and classifiers that
overfit more than ours.

    nice python -m experiments.paper.undefended --data-dir data     # goes on where it was stopped
    python -m experiments.paper.undefended --render                 # makes the table from the results

Each case trains the paper's classifier and one shadow, without any defense, and says how often the paper's two attacks
are right. An attack is right at most (1 + d)/2 of the time on as many members as others, where d is the total variation
distance between what it sees of the two; from the label alone d is the gap between training and test accuracy.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from experiments.classifier import ImageClassifier, classifier_network
from experiments.data import benchmarks
from experiments.paper.printed import MEMGUARD, TABLE_2
from scoreveil import atomic
from scoreveil.audit import cache
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.features import log_odds
from scoreveil.audit.attacks.interface import Features
from scoreveil.audit.data.images import Images
from scoreveil.audit.data.records import Bools, Floats, Integers, Membership, Records
from scoreveil.audit.defenses import memguard
from scoreveil.audit.networks.training import TrainingRun, TrainSettings, device, tensor
from scoreveil.audit.report.wording import number
from scoreveil.audit.study.results import UNDEFENDED

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "results" / "undefended.json", ROOT / "docs" / "reproduction.md"
START = "<!-- undefended: made from results/undefended.json by `python -m experiments.paper.undefended --render` -->"
START_GUARDED = "<!-- memguard: made from results/undefended.json by the same -->"
END = "<!-- end of undefended -->"

NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
MOST_TESTED = 10_000
GUARDED_RECORDS = 1_000  # members, and as many others
VERSION = 1  # of what a case computes

Allocation = Literal["apart", "table 1", "same"]


@dataclass(frozen=True)
class Case:
    """One thing to try.

    allocation  "apart": target and shadow share no image, and as many images are non-members, 10,000 at most.
                "table 1": as in the paper, all images in a training and a test set, twice at random.
                "same": the shadow is trained on the target's images
    size        training images
    dropout     before the last layer; the paper's classifier has .5
    noise       the share of all labels that are redrawn at random before anything is trained
    """

    dataset: str
    allocation: Allocation
    size: int
    epochs: int
    dropout: float = 0.5
    noise: float = 0.0
    width: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """What came of a case. Attacks by how often they are right, on as many members as others unless it says otherwise.

    judged            members, and as many others, that the attacks are judged on; for "table 1" those of the target's
                      training set that are not in the attacker's, and those of its test set that are not in the
                      attacker's, as the paper has it
    gap               says "member" where the label is right
    ml_leaks, nsh     as the paper runs them
    adaptive          the better of the two on log-ratios
    hindsight         the best threshold on the confidence in the top label or in the true one, chosen on the very
                      records that it is judged on: a bound on what any threshold finds
    every_record      ML-Leaks on all members and all others, however many there are of each
    always_member     the same of one who always says "member"
    own_records       NSH judged on the records that it was fitted on
    """

    case: Case
    train_accuracy: float
    test_accuracy: float
    judged: int
    gap: float
    ml_leaks: float
    nsh: float
    adaptive: float
    hindsight: float
    every_record: float
    always_member: float
    own_records: float


def _overfitted(dataset: str, size: int, epochs: int, noise: float = 0.0) -> Case:
    """Few images, many epochs, no dropout."""
    return Case(dataset, "apart", size, epochs, dropout=0.0, noise=noise)


def _as_printed(dataset: str, dropout: float, allocation: Allocation = "table 1", width: int = 8) -> Case:
    """As many images as in the paper, 60,000."""
    return Case(dataset, allocation, 60_000, 12, dropout=dropout, width=width)


OWN_MNIST, OWN_FASHION = _as_printed("mnist", 0.5), _as_printed("fashion-mnist", 0.0, width=32)
OWN_CIFAR10 = Case("cifar10", "table 1", 50_000, 12, dropout=0.0)
NOISY = _overfitted("mnist", 2_000, 50, noise=0.4)
CASES: tuple[Case, ...] = (
    OWN_MNIST,
    _as_printed("mnist", 0.0),
    _as_printed("mnist", 0.5, "same"),
    _overfitted("mnist", 5_000, 40),
    _overfitted("mnist", 1_000, 60),
    _overfitted("mnist", 500, 60),
    _overfitted("mnist", 200, 60),
    NOISY,
    OWN_FASHION,
    _overfitted("fashion-mnist", 1_000, 60),
    OWN_CIFAR10,
)
GUARDED: tuple[Case, ...] = (OWN_MNIST, NOISY, OWN_FASHION)


# Measuring


@dataclass(frozen=True, eq=False)
class Sets:
    """The images of each set, by number."""

    target_train: Integers
    target_test: Integers
    shadow_train: Integers
    shadow_test: Integers

    @property
    def judged(self) -> tuple[Bools, Bools]:
        """Which members and others are not in the attacker's sets of the same name; all, where nobody would be left."""
        left = ~np.isin(self.target_train, self.shadow_train), ~np.isin(self.target_test, self.shadow_test)
        return left if left[0].any() and left[1].any() else (np.ones_like(left[0]), np.ones_like(left[1]))


def sets_of(case: Case, images: int) -> Sets:
    if case.allocation == "apart":
        test = min(case.size, MOST_TESTED)
        parts = np.cumsum([case.size, test, case.size, test])
        order = np.random.default_rng(case.seed).permutation(images)
        if parts[-1] > images:
            raise ValueError(f"Expected at least {parts[-1]} images for {case}, got {images}.")
        return Sets(*np.split(order[: parts[-1]], parts[:-1]))
    shadow_seed = case.seed + (case.allocation == "table 1")
    target, shadow = (np.random.default_rng(seed).permutation(images) for seed in (case.seed, shadow_seed))
    return Sets(target[: case.size], target[case.size :], shadow[: case.size], shadow[case.size :])


def relabelled(images: Images, share: float, seed: int) -> Images:
    """This share of the labels is drawn anew, from all classes."""
    draws = np.random.default_rng(seed)
    redrawn = draws.random(len(images)) < share
    labels = np.where(redrawn, draws.integers(images.classes, size=len(images)), images.labels)
    return Images(images.pixels, labels, images.name, images.classes, images.class_names)


def scores_of(trained_on: Images, images: Images, case: Case, seed: int, cache_dir: cache.Directory) -> Floats:
    """What a classifier trained on some images says of others."""
    settings = TrainSettings(width=case.width, epochs=case.epochs, seed=seed)
    key = cache.key("undefended", trained_on, settings, case.dropout)
    pixels, labels = tensor(trained_on.pixels), tensor(trained_on.labels)

    def network() -> nn.Module:
        made = classifier_network(images.shape, images.classes, case.width)
        for layer in made.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = case.dropout
        return made

    def loss(trained: nn.Module, index: torch.Tensor, _: int) -> torch.Tensor:
        batch = pixels[index].contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(trained(batch.to(device())).float(), labels[index].to(device()))

    def make() -> Floats:
        run = TrainingRun(network, loss, len(trained_on), settings, key)
        return ImageClassifier(run.cached("classifiers", key, cache_dir, lambda done: None), images.shape).scores(
            images
        )

    return cache.load_or_make(
        "answers",
        cache.key("undefended", trained_on, settings, case.dropout, images),
        make=make,
        save=lambda made: {"made": made},
        load=lambda arrays: arrays["made"],
        directory=cache_dir,
    )


def measure(case: Case, images: Images, cache_dir: cache.Directory) -> Row:
    """Train a target and a shadow, and attack."""
    images, sets = _prepared(case, images)
    everyone = _answers(images, case, sets.target_train, sets.target_test, case.seed, cache_dir)
    # an attacker does not know the target's initial weights
    known = _answers(images, case, sets.shadow_train, sets.shadow_test, case.seed + 1, cache_dir)
    known, judged = known.balanced(np.random.default_rng(case.seed)), _judged(everyone, sets, case.seed)
    fitted_on, held_out = judged.halves(np.random.default_rng(case.seed))

    def fitted(name: str, features: Features, fit_on: Membership) -> Callable[[Membership], tuple[float, float]]:
        """From records to how often a member and how often another one is recognised."""
        scorer = ATTACKS[name].fit(fit_on, features, np.random.default_rng(case.seed))
        return lambda of: (float(np.mean(scorer(of.members) > 0.5)), float(np.mean(scorer(of.nonmembers) <= 0.5)))

    ml_leaks, nsh = fitted("ml_leaks", "scores", known), fitted("nsh", "scores", fitted_on)
    found, rejected = ml_leaks(everyone)
    members, others = len(everyone.members), len(everyone.nonmembers)
    return Row(
        case=case,
        train_accuracy=float(everyone.members.is_right.mean()),
        test_accuracy=float(everyone.nonmembers.is_right.mean()),
        judged=len(judged.members),
        gap=0.5 + (float(judged.members.is_right.mean()) - float(judged.nonmembers.is_right.mean())) / 2,
        ml_leaks=_mean(ml_leaks(judged)),
        nsh=_mean(nsh(held_out)),
        adaptive=max(
            _mean(fitted("ml_leaks", "log_ratios", known)(judged)),
            _mean(fitted("nsh", "log_ratios", fitted_on)(held_out)),
        ),
        hindsight=max(hindsight(judged, of(judged.records)) for of in (attrgetter("predicted"), attrgetter("labels"))),
        every_record=(members * found + others * rejected) / (members + others),
        always_member=members / (members + others),
        own_records=_mean(nsh(fitted_on)),
    )


def _prepared(case: Case, images: Images) -> tuple[Images, Sets]:
    return relabelled(images, case.noise, case.seed) if case.noise else images, sets_of(case, len(images))


def _answers(
    images: Images, case: Case, train: Integers, test: Integers, seed: int, cache_dir: cache.Directory
) -> Membership:
    """What a classifier trained on the first says of these, and of the others."""
    every = images.take(np.concatenate([train, test]))
    records = Records(scores_of(images.take(train), every, case, seed, cache_dir), every.labels)
    return Membership(records.take(slice(len(train))), records.take(slice(len(train), None)))


def _judged(everyone: Membership, sets: Sets, seed: int) -> Membership:
    sides = zip((everyone.members, everyone.nonmembers), sets.judged, strict=True)
    return Membership(*(each.take(index) for each, index in sides)).balanced(np.random.default_rng(seed))


def hindsight(judged: Membership, classes: Integers) -> float:
    """How often the best threshold on the log-odds of these classes is right: (1 + Kolmogorov–Smirnov distance)/2."""
    sure = log_odds(judged.records.scores, classes)
    thresholds = np.unique(sure)
    members, others = (np.sort(each) for each in (sure[judged.truth], sure[~judged.truth]))
    below = (np.searchsorted(each, thresholds, side="right") / len(each) for each in (others, members))
    return float(0.5 + max(0.0, np.max(np.subtract(*below))) / 2)


def _mean(rates: tuple[float, float]) -> float:
    return sum(rates) / 2


# MemGuard


@dataclass(frozen=True)
class Guarded:
    """Whether MemGuard has anything to do: its classifier g, and what it changes, on records that it was not fitted on.

    g_members, g_others   the median of g; .5 is a coin toss
    unsure                the share of records with g within .01 of .5
    changed, distortion   the share of records that are changed, and the mean ℓ2 distance that this makes
    free                  the mean ℓ2 distance if the size of the noise cost nothing
    """

    case: Case
    g_members: float
    g_others: float
    unsure: float
    changed: float
    distortion: float
    free: float


def guard(case: Case, images: Images, cache_dir: cache.Directory) -> Guarded:
    """MemGuard with its published settings on the target of a case."""
    images, sets = _prepared(case, images)
    judged = _judged(_answers(images, case, sets.target_train, sets.target_test, case.seed, cache_dir), sets, case.seed)
    known, others = judged.halves(np.random.default_rng(case.seed))
    settings = memguard.MemGuardSettings()
    h = memguard.train(known, case.seed, settings)
    members, strangers = (each.scores[:GUARDED_RECORDS] for each in (others.members, others.nonmembers))
    scores = np.concatenate([members, strangers])
    g, released = memguard.decision(h, scores), memguard.protect(h, case.seed, settings)(scores)
    free = memguard.search(h, scores, replace(settings, c3=(1e-9,)))
    return Guarded(
        case=case,
        g_members=float(np.median(g[: len(members)])),
        g_others=float(np.median(g[len(members) :])),
        unsure=float(np.mean(np.abs(g - 0.5) < 0.01)),
        changed=float(np.mean(np.any(released != scores, axis=1))),
        distortion=_distortion(released, scores),
        free=_distortion(free, scores),
    )


def _distortion(released: Floats, scores: Floats) -> float:
    """How far a released vector lies from the model's, on average; in the Euclidean norm, as the paper's Table 2."""
    return float(np.linalg.norm(released - scores, axis=1).mean())


# Keeping


def kept(case: Case, data_dir: Path | None, cache_dir: cache.Directory) -> Row:
    """A case from the cache, or measured now."""

    def make() -> dict[str, Any]:
        return asdict(measure(case, benchmarks.load(case.dataset, data_dir), cache_dir))

    return _row(cache.kept_json("undefended", cache.key("undefended", VERSION, case), make, cache_dir))


def kept_guarded(case: Case, data_dir: Path | None, cache_dir: cache.Directory) -> Guarded:
    """The same for MemGuard."""

    def make() -> dict[str, Any]:
        return asdict(guard(case, benchmarks.load(case.dataset, data_dir), cache_dir))

    return _guarded(cache.kept_json("undefended", cache.key("guarded", VERSION, case), make, cache_dir))


def _row(stored: dict[str, Any]) -> Row:
    return Row(**{**stored, "case": Case(**stored["case"])})


def _guarded(stored: dict[str, Any]) -> Guarded:
    return Guarded(**{**stored, "case": Case(**stored["case"])})


def read() -> tuple[list[Row], list[Guarded]]:
    """What was measured, as it is committed."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    return [_row(each) for each in stored["rows"]], [_guarded(each) for each in stored["guarded"]]


# The page


def words(case: Case) -> str:
    """What was tried."""
    said = {
        "apart": "disjoint sets",
        "table 1": "the paper's sets",
        "same": "the paper's target; its images for the shadow too",
    }
    about = [said[case.allocation]]
    about += ["no dropout"] if case.dropout == 0 else []
    about += [f"{100 * case.noise:.0f} % of the labels redrawn"] if case.noise else []
    return "; ".join(about)


def table(rows: list[Row]) -> str:
    """What each case gives, below what the paper prints; all in percent."""
    columns = (
        *("", "training images", "train acc.", "test acc.", "gap", "ML-Leaks", "NSH", "on log-ratios"),
        *("best threshold", "ML-Leaks, every record", "always “member”"),
    )
    lines = [_line(*columns), "| --- |" + " ---: |" * (len(columns) - 1)]
    for dataset in dict.fromkeys(row.case.dataset for row in rows):
        printed = TABLE_2[dataset][UNDEFENDED]
        theirs = [printed.train, printed.test, 50 + (printed.train - printed.test) / 2, printed.ml_leaks, printed.nsh]
        lines.append(_line(f"**{NAMES[dataset]}**, as printed", "", *(f"{rate:.1f}" for rate in theirs), *[""] * 4))
        for row in (each for each in rows if each.case.dataset == dataset):
            ours = [row.train_accuracy, row.test_accuracy, row.gap, row.ml_leaks, row.nsh, row.adaptive]
            ours += [row.hindsight, row.every_record, row.always_member]
            lines.append(_line(words(row.case), f"{row.case.size:,}", *(f"{100 * rate:.1f}" for rate in ours)))
    return "\n".join(lines)


def guarded_table(rows: list[Guarded]) -> str:
    """What MemGuard does on some of these."""
    columns = (
        *("", "training images", "median g, members", "others", "g within .01 of .5", "changed"),
        *("distortion ℓ2", "if noise cost nothing", "printed"),
    )
    lines = [_line(*columns), "| --- |" + " ---: |" * (len(columns) - 1)]
    for row in rows:
        what = f"{NAMES[row.case.dataset]}, {words(row.case)}"
        medians = (number(value, 4) for value in (row.g_members, row.g_others))
        shares = (f"{100 * share:.1f} %" for share in (row.unsure, row.changed))
        printed = TABLE_2[row.case.dataset][MEMGUARD].distortion
        distances = (number(value, 3) for value in (row.distortion, row.free, printed))
        lines.append(_line(what, f"{row.case.size:,}", *medians, *shares, *distances))
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def render() -> None:
    """Put both tables into the page."""
    rows, guarded = read()
    text = PAGE.read_text(encoding="utf-8")
    for start, made in ((START, table(rows)), (START_GUARDED, guarded_table(guarded))):
        before, _, after = text.partition(start)
        text = f"{before}{start}\n{made}\n{END}{after.partition(END)[2]}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="the folder of the datasets (default: $SCOREVEIL_DATA)")
    parser.add_argument("--cache", type=Path, help="a folder that keeps finished work (default: $SCOREVEIL_CACHE)")
    parser.add_argument("--render", action="store_true", help="make the tables from the results, and measure nothing")
    given = parser.parse_args()
    if not given.render:
        rows = [asdict(kept(case, given.data_dir, given.cache)) for case in CASES]
        guarded = [asdict(kept_guarded(case, given.data_dir, given.cache)) for case in GUARDED]
        about = {
            "command": "python -m experiments.paper.undefended --data-dir data",
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        atomic.write(RESULTS, json.dumps({**about, "rows": rows, "guarded": guarded}, indent=1) + "\n")
    render()


if __name__ == "__main__":
    main()
