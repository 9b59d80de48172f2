"""What a fitted veil costs, and what it buys: measured on records that its table was not fitted on.

    from scoreveil.fitting.cost import cost

    measured = cost(nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in)
    measured.nll["veiled"], measured.nll["label"]

Four ways to answer stand beside each other: raw scores; raw scores after temperature scaling, since calibration is not
the veil's own merit; the veil; and the label with a constant confidence. Each is fitted on all folds but one, and
measured on that one; intervals are bootstrap percentiles over records.

Of a yes or no the confidence is the probability that it is right, and the label alone has one for its yes and one for
its no. Many labels are measured together, with intervals that know which of them stand in one record, and each alone.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.extras import needs
from scoreveil.files.records import Scored, Source
from scoreveil.fitting import fit
from scoreveil.fitting.metrics import (
    SMALLEST,
    Group,
    Measure,
    aurc,
    auroc,
    brier,
    calibration_error,
    log_loss,
    reliability,
)
from scoreveil.fitting.records import read_both
from scoreveil.shapes import VECTORS
from scoreveil.veil import Veil

with needs("fit"):
    from scipy.optimize import minimize_scalar

Answer = Callable[[Floats], Floats]
Way = Callable[[Scored], Floats]  # from records to what is said of each release

# the ways to answer, and what is measured of each, in words
WAYS = {"raw": "raw scores", "tempered": "raw, temperature scaled", "veiled": "veiled", "label": "label, constant"}
MEASURES = {
    "useful": "tells right from wrong (AUROC)",
    "aurc": "errors while acting on the surest",
    "nll": "log-loss",
    "brier": "Brier score",
    "ece": "calibration error",
    "leak": "tells members from others (AUC)",
}
FOLDS, RESAMPLES, LEVEL = 5, 200, 0.95
FLOORS = (SMALLEST, 1e-6, 1e-4, 1e-3, 1e-2)  # that temperature scaling may add to scores


OF_LABEL = ("useful", "nll", "ece", "leak")  # what is measured of each of many labels


@dataclass(frozen=True)
class LabelCost:
    """What each way of answering is worth for one of many labels; figures by way, as in `Cost`."""

    label: str  # its name, or its number
    share: float  # how often it is yes
    useful: dict[str, float]
    nll: dict[str, float]
    ece: dict[str, float]
    leak: dict[str, float]


@dataclass(frozen=True)
class Cost:
    """What each way of answering is worth.

    Attributes:
        useful: AUROC of the confidence for being right.
        aurc: The mean error rate while acting on the surest records first.
        nll: The log-loss of the whole vector.
        brier: The Brier score of the whole vector.
        ece: The expected calibration error of the confidence.
        leak: AUC of the confidence as a test for membership, above or below; empty without members.
        reliability: Groups of records by their confidence, least first.
        labels: The same of each of many labels.
    """

    useful: dict[str, Measure]
    aurc: dict[str, Measure]
    nll: dict[str, Measure]
    brier: dict[str, Measure]
    ece: dict[str, Measure]
    leak: dict[str, Measure]
    reliability: dict[str, tuple[Group, ...]]
    labels: tuple[LabelCost, ...] = ()


def cost(
    nonmembers: Source,
    nonmember_labels: Source,
    members: Source = None,
    member_labels: Source = None,
    *,
    rng: np.random.Generator | None = None,
    **options: Any,
) -> Cost:
    """Measure what a veil fitted on such records costs, by cross-fitting; takes what `fit` takes.

    Args:
        nonmembers: At least two records for each fold.
        nonmember_labels: They are needed to say what an answer is worth.
        members: Without them, what tells members from others is not measured.
        member_labels: Likewise of those who know the true class.
        rng: A numpy Generator for folds, draws and resamples.
        options: The other arguments of `fit`.

    Raises:
        ValueError: As `fit`; or there are no labels, or too few records.
    """
    if nonmember_labels is None:
        raise ValueError("What an answer is worth cannot be measured without nonmember_labels.")
    others, inside, _ = read_both(
        nonmembers, nonmember_labels, members, member_labels, shape=options.get("shape", VECTORS)
    )
    rng = rng or np.random.default_rng(0)  # measured twice, the same comes out: nothing here is released
    return cost_of(cross_fitted(others, inside, rng, **options), rng)


@dataclass(frozen=True, eq=False)
class ScoredAnswers:
    """What each way of answering said about every record, made without that record; of members the confidence too."""

    others: Scored
    members: Scored | None
    to_others: dict[str, Floats]
    to_members: dict[str, Floats]
    folds: Integers  # of each record
    member_folds: Integers


def cross_fitted(
    others: Scored, members: Scored | None, rng: np.random.Generator, veil: Veil | None = None, **options: Any
) -> ScoredAnswers:
    """ScoredAnswers about each fold of the records, by ways that are fitted on the other folds.

    Where a fitted veil is given, it answers about all of them in place of veils that are fitted here.
    """
    fewest = min(others.records, others.records if members is None else members.records)
    if fewest < 2 * FOLDS:
        raise ValueError(f"Expected at least {2 * FOLDS} records of each side to measure on, got {fewest}.")
    folds, member_folds = (rng.permutation(0 if side is None else side.records) % FOLDS for side in (others, members))
    to_others, to_members = dict[str, Floats](), dict[str, Floats]()
    for number in range(FOLDS):
        sides = [(others, folds == number, to_others)]
        known = None
        if members is not None:
            sides.append((members, member_folds == number, to_members))
            known = members.take(member_folds != number)
        for way, answer in _ways(others.take(folds != number), known, rng, veil, options):
            for records, fold, answers in sides:
                there = answers.setdefault(way, np.empty_like(records.scores))
                there[np.repeat(fold, records.releases)] = answer(records.take(fold))
    return ScoredAnswers(others, members, to_others, to_members, folds, member_folds)


def cost_of(answers: ScoredAnswers, rng: np.random.Generator) -> Cost:
    """What each way of answering is worth."""
    return _Measured(answers).cost(rng)


def confidence(records: Scored, answers: Floats) -> Floats:
    """What is said of the label that is kept."""
    return np.asarray(np.take_along_axis(answers, records.predicted[:, None], axis=1)[:, 0])


def _ways(
    others: Scored, members: Scored | None, rng: np.random.Generator, veil: Veil | None, options: dict[str, Any]
) -> Iterator[tuple[str, Way]]:
    """Each way to answer, fitted on these records; without labels the first two."""
    if veil is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # who fits the veil itself is told
            veil = fit(others, members=members, rng=rng, **{**options, "force": True})
    drawing = Veil(veil.mechanism, shape=veil.shape, rng=rng)
    yield "raw", lambda asked: asked.said
    yield "veiled", lambda asked: asked.shape.said(asked_quietly(drawing, asked.given[0]))
    if others.labels is not None:
        yield "tempered", _tempered(others)
        yield "label", label_alone(others)


def asked_quietly(veil: Veil, scores: Floats) -> Floats:
    """What a veil answers, without the warning that a large ε adds up: it comes when such a veil is used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return veil(scores)


def _tempered(others: Scored) -> Way:
    """Temperature scaling, of many labels each by itself."""
    labels = others.labels_each
    ways = [tempered(Scored(others.said[i::labels], others.true_labels[i::labels])) for i in range(labels)]

    def answer(asked: Scored) -> Floats:
        answers = np.empty_like(asked.said)
        for i, way in enumerate(ways):
            answers[i::labels] = way(asked.said[i::labels])
        return answers

    return answer


def tempered(others: Scored) -> Answer:
    """Raw scores after temperature scaling: softmax(ln y / T), with the T of the least log-loss.

    A forest's scores may be 0, of which no T makes anything: something is added to all, the best of a few.
    """
    labels = others.true_labels[:, None]

    def scaled(scores: Floats, floor: float, log_temperature: float) -> Floats:
        logits = np.log(scores + floor) / np.exp(log_temperature)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def loss(log_temperature: float, floor: float) -> float:
        right = np.take_along_axis(scaled(others.scores, floor, log_temperature), labels, axis=1)
        return float(-np.log(np.maximum(right, SMALLEST)).mean())

    solved = {floor: minimize_scalar(loss, bounds=(-3.0, 4.0), args=(floor,), method="bounded") for floor in FLOORS}
    floor = min(FLOORS, key=lambda tried: float(solved[tried].fun))
    return lambda scores: scaled(scores, floor, float(solved[floor].x))


def label_with_constant_confidence(others: Scored) -> Answer:
    """The label, announced with how often labels are right; the other classes share the rest evenly."""
    k, n = others.classes, len(others)
    rate = (float(others.is_right.sum()) + 0.5) / (n + 1)
    rate = max(rate, (1 + 1e-6) / k)  # a little above the others, so that the label stays

    def answer(scores: Floats) -> Floats:
        answers = np.full(scores.shape, (1 - rate) / (k - 1))
        np.put_along_axis(answers, scores.argmax(axis=1)[:, None], rate, axis=1)
        return answers

    return answer


def label_alone(others: Scored) -> Way:
    """The label with a constant confidence; of a yes or no, with one for each label and side, where its label is."""
    if not others.shape.is_binary:
        constant = label_with_constant_confidence(others)
        return lambda asked: constant(asked.scores)
    at = np.array(others.shape.thresholds(others.releases))
    least = np.stack([1 - at, at], axis=1).ravel()
    right, every = (np.bincount(alike(others), weights, len(least)) for weights in (others.is_right, None))
    rates = np.maximum((right + 0.5) / (every + 1), least)

    def answer(asked: Scored) -> Floats:
        rate = rates[alike(asked)]
        return np.asarray(np.where(np.arange(2) == asked.predicted[:, None], rate[:, None], 1 - rate[:, None]))

    return answer


def alike(records: Scored) -> Integers:
    """Which releases the label alone is announced with the same confidence for: all, or those of a label and side."""
    if not records.shape.is_binary:
        return np.zeros(len(records), dtype=np.int64)
    return np.asarray(np.arange(len(records)) % records.releases * 2 + records.predicted)


# Measures


def auroc_by_fold(values: Floats, positive: NDArray[np.bool_], fold: Integers) -> float:
    """The same among records of one fold, averaged over pairs: answers of two fits are not to be compared."""
    total, pairs = 0.0, 0
    for number in range(FOLDS):
        above, below = values[positive & (fold == number)], values[~positive & (fold == number)]
        total += auroc(above, below) * len(above) * len(below)
        pairs += len(above) * len(below)
    return total / pairs if pairs else 0.5


class _Measured:
    """ScoredAnswers of every way, and what they are worth."""

    def __init__(self, answers: ScoredAnswers) -> None:
        others, members, said = answers.others, answers.members, answers.to_others
        self.others, self.right, self.truth = others, others.is_right, others.true_labels
        self.confidence = {way: confidence(others, scores) for way, scores in said.items()}
        self.of_members = {}
        if members is not None:
            self.of_members = {way: confidence(members, scores) for way, scores in answers.to_members.items()}
        self.folds = np.repeat(answers.folds, others.releases)
        self.member_folds = np.repeat(answers.member_folds, others.releases)
        # it differs by fold, lower where the fold does better: a ranking must not see that
        alone, groups = self.confidence["label"], alike(others)
        constant = np.bincount(groups, alone) / np.maximum(np.bincount(groups), 1)
        self.confidence["label"] = constant[groups]
        if members is not None:
            self.of_members["label"] = constant[alike(members)]
        self.losses = {way: log_loss(scores, self.truth) for way, scores in said.items()}
        self.briers = {way: brier(scores, self.truth) for way, scores in said.items()}

    def figures(self, these: Integers, members: Integers | None) -> dict[tuple[str, str], float]:
        """Every measure of every way, over these releases."""
        figures = {}
        for way in WAYS:
            sure, correct = self.confidence[way][these], self.right[these]
            figures["useful", way] = auroc_by_fold(sure, correct, self.folds[these])
            figures["aurc", way] = aurc(sure, correct)
            figures["nll", way] = float(self.losses[way][these].mean())
            figures["brier", way] = float(self.briers[way][these].mean())
            figures["ece", way] = calibration_error(sure, correct)
            if members is not None:
                both = np.concatenate([self.of_members[way][members], sure])
                numbers = np.concatenate([self.member_folds[members], self.folds[these]])
                figures["leak", way] = auroc_by_fold(both, np.arange(len(both)) < len(members), numbers)
        return figures

    def cost(self, rng: np.random.Generator) -> Cost:
        releases, n, m = self.others.releases, len(self.folds), len(self.member_folds)
        whole = self.figures(np.arange(n), np.arange(m) if m else None)

        def resampled(count: int) -> Integers:
            """Releases of as many records, drawn with replacement."""
            drawn = rng.integers(0, count // releases, count // releases)
            return np.asarray((drawn[:, None] * releases + np.arange(releases)).ravel())

        redrawn = [self.figures(resampled(n), resampled(m) if m else None) for _ in range(RESAMPLES)]
        tail = (1 - LEVEL) / 2

        def measure(name: str) -> dict[str, Measure]:
            measures = {}
            for way in WAYS if (name, "raw") in whole else ():
                low, high = np.quantile([figures[name, way] for figures in redrawn], (tail, 1 - tail))
                value = whole[name, way]  # an ECE grows with resampling, which repeats records
                measures[way] = Measure(value, min(float(low), value), max(float(high), value))
            return measures

        groups = {way: reliability(self.confidence[way], self.right) for way in WAYS}
        labels = tuple(map(self._of_label, range(releases))) if self.others.shape.has_labels else ()
        return Cost(**{name: measure(name) for name in MEASURES}, reliability=groups, labels=labels)

    def _of_label(self, label: int) -> LabelCost:
        these, members = (np.arange(label, len(side), self.others.releases) for side in (self.folds, self.member_folds))
        every = self.figures(these, members if len(members) else None)
        figures = {name: {way: every[name, way] for way in WAYS if (name, way) in every} for name in OF_LABEL}
        name = self.others.names[label] if self.others.names else str(label)
        return LabelCost(name, float(self.truth[these].mean()), **figures)
