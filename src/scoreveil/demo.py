"""What leaks from a classifier that anyone can train in a second, and what a veil leaves: handwritten digits.

    from scoreveil import demo

    shown = demo.run()
    [(outcome.name, outcome.leak, outcome.useful) for outcome in shown.outcomes]

A forest knows its training digits by heart, as large networks do, so that its scores tell which ones they were. Every
number is measured here and now; new digits are ones that neither the forest nor any veil was fitted on. They come with
scikit-learn: pip install 'scoreveil[demo]'.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.extras import needs
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin
    from sklearn.neural_network import MLPClassifier

EPSILON = 4.0
# digits that train the forest, and that the veil is fitted on; the rest is asked about. With fewer to fit on, and few
# of them wrong, the noise makes some fits announce one confidence for all
LEARNED, HELD_OUT = 400, 1000
REPEATS = 20  # draws for each record: one would be noisy
TRAINING, REFERENCE = 60, 500  # of the small network


@dataclass(frozen=True)
class Outcome:
    """What one way of answering leaks, and what its confidence is worth on new records."""

    name: str
    leak: float  # AUC of the confidence for telling training records from new ones; .5 is nothing
    useful: float  # AUC of the confidence for telling right answers from wrong ones; .5 is worthless
    log_loss: float
    calibration_error: float  # by how much the confidence is off, on average
    same_label: float  # the fraction of answers whose label stayed


@dataclass(frozen=True)
class Demo:
    """What the demo found, and the files that go on from it."""

    training_accuracy: float
    test_accuracy: float
    test_records: int
    outcomes: tuple[Outcome, ...]  # the first is raw scores
    veil: Veil  # the fitted one, without ε
    scores: "Classified"


@dataclass(frozen=True)
class Classified:
    """Scores of a trained classifier on three disjoint sets of records."""

    members: Floats  # it was trained on these
    member_labels: Integers
    reference: Floats  # veils may be fitted on these
    reference_labels: Integers
    others: Floats
    labels: Integers


def run(step: Callable[[str], None] = lambda name: None) -> Demo:
    """Train, veil in several ways, measure. `step` is given the name of each step as it begins."""
    step(f"Training a forest on {LEARNED} handwritten digits")
    scores = forest()
    step(f"Fitting veils to these and {HELD_OUT:,} other digits")
    from scoreveil.files.records import Scored
    from scoreveil.fitting import cost, fit

    known = Scored(scores.reference, scores.reference_labels)
    records = (known.scores, known.labels, scores.members, scores.member_labels)
    veil, with_epsilon = fit(*records), fit(*records, epsilon=EPSILON)
    step("Measuring what leaks, and what the confidence is worth")
    answers: dict[str, Callable[[Floats], Floats]] = {
        "raw scores": lambda rows: rows,
        "raw, temperature scaled": cost.tempered(known),
        f"isotonic veil, ε = {EPSILON:g}": _drawn(EPSILON),
        "fitted veil": _drawn(veil.mechanism),
        f"fitted veil, ε = {EPSILON:g}": _drawn(with_epsilon.mechanism),
        "the label alone": cost.label_with_constant_confidence(known),
    }
    return Demo(
        training_accuracy=_accuracy(scores.members, scores.member_labels),
        test_accuracy=_accuracy(scores.others, scores.labels),
        test_records=len(scores.others),
        outcomes=tuple(_measured(name, scores, answer) for name, answer in answers.items()),
        veil=veil,
        scores=scores,
    )


def _drawn(epsilon: float | Mechanism) -> Veil:
    """A veil that draws from a generator, for which no kernels are compiled: the demo is over before they are."""
    return Veil(epsilon, rng=np.random.default_rng())


def forest(seed: int = 0) -> Classified:
    """Scores of a forest that knows its training digits by heart; which digits these are is drawn by the seed."""
    with needs("demo"):
        from sklearn.datasets import load_digits
        from sklearn.ensemble import RandomForestClassifier
    images, labels = load_digits(return_X_y=True)
    model = RandomForestClassifier(100, random_state=seed)
    return _scored(model, images, labels, LEARNED, HELD_OUT, seed)


def train() -> tuple["MLPClassifier", Classified]:
    """A small network that knows its few training digits by heart, and its scores of all digits."""
    with needs("demo"):
        from sklearn.datasets import load_digits
        from sklearn.neural_network import MLPClassifier
    images, labels = load_digits(return_X_y=True)
    # without a penalty it learns the training records by heart, as large networks do
    model = MLPClassifier((128,), alpha=0.0, learning_rate_init=0.005, tol=1e-5, max_iter=2000, random_state=0)
    return model, _scored(model, images / 16, labels, TRAINING, REFERENCE)


def digits_model() -> tuple[Callable[[Rows], Rows], int]:
    """The same network for `scoreveil serve --demo`: a function of (n, 64) pixels from 0 to 16, and that 64."""
    model, _ = train()
    weights, last = (layer.astype(np.float32) for layer in model.coefs_)
    bias, last_bias = (layer.astype(np.float32) for layer in model.intercepts_)

    def scores(pixels: Rows) -> Rows:
        logits = np.maximum(pixels / np.float32(16) @ weights + bias, 0) @ last + last_bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    return scores, len(weights)


def _scored(
    model: "ClassifierMixin", images: Floats, labels: Integers, training: int, reference: int, seed: int = 0
) -> Classified:
    """Train on so many digits, and score all."""
    order = np.random.default_rng(seed).permutation(len(images))
    model.fit(images[order[:training]], labels[order[:training]])
    scores = model.predict_proba(images)
    inside, held_out, others = np.split(order, [training, training + reference])
    return Classified(
        scores[inside], labels[inside], scores[held_out], labels[held_out], scores[others], labels[others]
    )


def _measured(name: str, scores: Classified, answer: Callable[[Floats], Floats]) -> Outcome:
    from scoreveil.fitting.metrics import auroc, calibration_error, log_loss

    raw, labels = np.repeat(scores.others, REPEATS, axis=0), np.repeat(scores.labels, REPEATS)
    members, others = answer(np.repeat(scores.members, REPEATS, axis=0)).max(axis=1), answer(raw)
    sure, right = others.max(axis=1), others.argmax(axis=1) == labels
    return Outcome(
        name=name,
        leak=auroc(members, sure),
        useful=auroc(sure[right], sure[~right]),
        log_loss=float(log_loss(others, labels).mean()),
        calibration_error=calibration_error(sure, right),
        same_label=float(np.mean(others.argmax(axis=1) == raw.argmax(axis=1))),
    )


def _accuracy(scores: Floats, labels: Integers) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))
