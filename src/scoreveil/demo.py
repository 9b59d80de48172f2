"""The veil on a classifier that anyone can train in a second: handwritten digits, bundled with scikit-learn.

    from scoreveil import demo

    shown = demo.run()
    shown.test_accuracy, [outcome.accuracy for outcome in shown.outcomes]   # the same, for every veil

The classifier sees few records and learns them by heart, so that its scores tell which ones it was trained on. Every
number is measured here and now. Needs scikit-learn: pip install 'scoreveil[demo]'.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.mechanisms import loading
from scoreveil.tuning import distances
from scoreveil.veil import Veil

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = NDArray[Any]

EPSILONS = (0.5, 2.0, 8.0)
PICTURED = 2.0  # the ε of the picture
TRAINING, REFERENCE = 60, 500  # records; the rest, more than a thousand, are asked about
REPEATS = 20  # draws for each training record in the attack: there are few, and one draw each would be noisy


@dataclass(frozen=True)
class Outcome:
    """What one veil did to the scores of records that the classifier was not trained on."""

    defense: str  # "" for none
    epsilon: float  # inf for none
    accuracy: float
    same_label: float  # the fraction of records whose label stayed
    l1: float  # mean ‖z - y‖₁
    l2: float
    attack_auc: float  # of telling training records from others, by the better of `GUESSES`


@dataclass(frozen=True)
class Picture:
    """One score vector and what became of it, by defense."""

    truth: int
    before: Floats
    after: dict[str, Floats]


@dataclass(frozen=True)
class Demo:
    training_records: int
    test_records: int
    training_accuracy: float
    test_accuracy: float
    outcomes: tuple[Outcome, ...]  # the first is no defense
    picture: Picture


@dataclass(frozen=True)
class Classified:
    """Scores of a trained classifier on three disjoint sets of records."""

    members: Floats  # it was trained on these
    member_labels: Integers
    reference: Floats
    others: Floats
    labels: Integers


def run(progress: Callable[[float], None] = lambda done: None) -> Demo:
    """Train, veil in several ways, measure. `progress` is told the fraction that is done."""
    scores = classify()
    loading.wait()
    defenses = _defenses(scores.reference)
    steps = 1 + len(defenses) * len(EPSILONS)
    progress(1 / steps)
    outcomes, after = [_measured("", float("inf"), scores, lambda rows: rows)], {}
    shown = _telling(scores)
    for name, make in defenses.items():
        for epsilon in EPSILONS:
            veil = make(epsilon)
            outcomes.append(_measured(name, epsilon, scores, veil))
            if epsilon == PICTURED:
                after[name] = veil(scores.others[shown])
            progress(len(outcomes) / steps)
    return Demo(
        training_records=len(scores.members),
        test_records=len(scores.others),
        training_accuracy=_accuracy(scores.members, scores.member_labels),
        test_accuracy=outcomes[0].accuracy,
        outcomes=tuple(outcomes),
        picture=Picture(int(scores.labels[shown]), scores.others[shown], after),
    )


def classify() -> Classified:
    """Scores of a small network that knows its few training digits by heart."""
    return train()[1]


def train() -> tuple[Any, Classified]:
    """Train it, and score all digits."""
    with needs("demo"):
        from sklearn.datasets import load_digits
        from sklearn.neural_network import MLPClassifier
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    training, reference, others = np.split(order, [TRAINING, TRAINING + REFERENCE])
    # without a penalty it learns the training records by heart, as large networks do
    model = MLPClassifier((128,), alpha=0.0, learning_rate_init=0.005, tol=1e-5, max_iter=2000, random_state=0)
    model.fit(images[training] / 16, labels[training])
    scored = model.predict_proba(images / 16)
    scores = Classified(scored[training], labels[training], scored[reference], scored[others], labels[others])
    return model, scores


def digits_model() -> tuple[Callable[[Array], Array], int]:
    """The same classifier for `scoreveil serve --demo`: a function of (n, 64) pixels from 0 to 16, and that 64."""
    model, _ = train()
    layers = [
        (w.astype(np.float32), b.astype(np.float32)) for w, b in zip(model.coefs_, model.intercepts_, strict=True)
    ]

    def scores(pixels: Array) -> Array:
        (hidden, bias), (last, last_bias) = layers
        logits = np.maximum(pixels / np.float32(16) @ hidden + bias, 0) @ last + last_bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    return scores, int(model.n_features_in_)


def _defenses(reference: Floats) -> dict[str, Callable[[float], Veil]]:
    return {
        "isotonic": lambda epsilon: Veil(epsilon),
        "isotonic + reference": lambda epsilon: Veil(epsilon, reference=reference),
        "isotonic + reference, keep all": lambda epsilon: Veil(epsilon, keep="all", reference=reference),
        "published": lambda epsilon: Veil(epsilon, "published"),
    }


def _measured(name: str, epsilon: float, scores: Classified, defense: Callable[[Floats], Floats]) -> Outcome:
    members, others = defense(np.repeat(scores.members, REPEATS, axis=0)), defense(scores.others)
    return Outcome(
        defense=name,
        epsilon=epsilon,
        accuracy=_accuracy(others, scores.labels),
        same_label=float(np.mean(others.argmax(axis=1) == scores.others.argmax(axis=1))),
        l1=float(distances(others, scores.others, "l1").mean()),
        l2=float(distances(others, scores.others, "l2").mean()),
        attack_auc=max(_auc(guess(members), guess(others)) for guess in GUESSES),
    )


def _top(scores: Floats) -> Floats:
    return np.asarray(scores.max(axis=1))


def _others_agree(scores: Floats) -> Floats:
    """How little the classes below the top differ. Published veils hide the top score better than this."""
    ascending = np.sort(scores, axis=1)
    return np.asarray(ascending[:, 0] - ascending[:, -2])


GUESSES = (_top, _others_agree)  # large for a record that was in training, as an attacker would have it


def _accuracy(scores: Floats, labels: Integers) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))


def _auc(positive: Floats, negative: Floats) -> float:
    """How often a positive lies above a negative; ties count half."""
    ascending = np.sort(negative)
    below, not_above = np.searchsorted(ascending, positive, "left"), np.searchsorted(ascending, positive, "right")
    return float((below + not_above).mean() / 2 / len(negative))


def _telling(scores: Classified) -> int:
    """A record that the classifier gets right and is in some doubt about: one that makes a picture worth seeing."""
    right = scores.others.argmax(axis=1) == scores.labels
    doubt = np.abs(scores.others.max(axis=1) - 0.7)
    return int(np.argmin(np.where(right, doubt, np.inf)))
