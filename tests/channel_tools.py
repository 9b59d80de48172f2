"""Tables to test with, an oracle of their promises in fractions, and populations whose truth is known."""

import itertools
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np

from privacy_checks import ALPHA, chi_square
from scoreveil.mechanisms.channel import Channel

WHOLE = 2**32


def make_channel(
    classes: int = 5,
    keep: int = 1,
    epsilon: float = 2.0,
    bins: int = 6,
    answers: int = 4,
    seed: int = 0,
    tables: int = 3,
) -> Channel:
    """A random table that keeps ε, with random confidences and profiles."""
    rng = np.random.default_rng(seed)
    middle = rng.dirichlet(np.full(answers, 2.0)) + 0.01
    chances = middle * np.exp(rng.uniform(-0.2, 0.2, (bins, answers)) * min(epsilon, 8.0))
    chances /= chances.sum(axis=1, keepdims=True)
    table = np.floor(chances * WHOLE).astype(np.int64)
    table[np.arange(bins), table.argmax(axis=1)] += WHOLE - table.sum(axis=1)
    if keep == 1:
        announced = np.sort(rng.uniform(1.02 / classes, 1 - 2.0**-20, answers))[:, None]
    else:
        announced = np.sort(rng.dirichlet(np.ones(classes), answers), axis=1)[:, ::-1][:, :keep].copy()
    profile = 0.99 * rng.dirichlet(np.full(classes, 0.3), tables) + 0.01 / classes
    edges = np.sort(rng.uniform(1 / classes, 1, bins - 1))
    return Channel(epsilon, keep, edges, table, announced, rng.integers(0, tables, classes), profile)


def bin_by_definition(row: np.ndarray, edges: np.ndarray) -> int:
    """How many edges are at or below the top score."""
    top = row.astype(np.float64).max() / np.cumsum(row.astype(np.float64))[-1]
    return sum(float(edge) <= top for edge in edges)


def check_epsilon(table: np.ndarray, epsilon: float) -> None:
    """By enumeration in fractions, written apart from the code: every answer, every pair of bins."""
    most = Fraction(Context(prec=50, rounding=ROUND_FLOOR).exp(Decimal(min(epsilon, 30.0)))) * (1 - Fraction(1, 10**40))
    for row in table:
        assert sum(map(int, row)) == WHOLE
    for column in table.T:
        for a, b in itertools.permutations(map(int, column), 2):
            assert 0 < a <= most * b, "an answer is e^ε times likelier in one bin than in another"


def shown_advantage(others: np.ndarray, members: np.ndarray, table: np.ndarray) -> Fraction:
    """½ Σ_c |…| in fractions, for histograms (bins,)."""
    n, m = Fraction(int(others.sum())), Fraction(int(members.sum()))
    total = Fraction(0)
    for column in table.T:
        difference = sum(
            (Fraction(int(y)) / m - Fraction(int(x)) / n) * Fraction(int(t), WHOLE)
            for x, y, t in zip(others, members, column, strict=True)
        )
        total += abs(difference)
    return total / 2


def check_answers(channel: Channel, row: np.ndarray, answers: np.ndarray) -> None:
    """χ² of many answers to one row against its integers, at α = 1e-6."""
    released = channel.perturb(np.repeat(row[None], len(channel.announced), 0), _middle_draws(channel, row))
    chances = channel.table[bin_by_definition(row, channel.edges)] / WHOLE
    counts = np.array([np.all(answers == each, axis=1).sum() for each in released])
    assert counts.sum() == len(answers), "every answer is one of the table's"
    assert chi_square(counts, chances) > ALPHA


def _middle_draws(channel: Channel, row: np.ndarray) -> np.ndarray:
    """A uniform that draws each answer in turn."""
    upper = np.cumsum(channel.table[bin_by_definition(row, channel.edges)])
    return ((upper - 1) / WHOLE)[:, None]


class Population:
    """Records of a model that knows its members better, in ten thousand kinds whose shares are known exactly."""

    def __init__(self, classes: int = 3, seed: int = 0, kinds: int = 10_000, lead: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        self.classes = classes
        self.sides = []
        for more in (0.0, lead):  # others, members
            labels = rng.integers(0, classes, kinds)
            logits = 1.5 * rng.normal(size=(kinds, classes))
            logits[np.arange(kinds), labels] += 2 + more + rng.normal(size=kinds)
            scores = np.exp(logits)
            self.sides.append((scores / scores.sum(axis=1, keepdims=True), labels))

    def draw(self, side: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        scores, labels = self.sides[side]
        chosen = rng.integers(0, len(labels), count)
        return scores[chosen], labels[chosen]

    def advantages(self, channel: Channel) -> tuple[float, float, float]:
        """The exact advantages on all kinds: the answer alone, what it adds to the label, and to being right."""
        joint = []
        for scores, labels in self.sides:
            _, bins = channel.read(scores)
            chances = channel.table[bins] / WHOLE
            predicted = scores.argmax(axis=1)
            cells = predicted * 2 + (predicted == labels)
            joint.append(np.array([chances[cells == c].sum(axis=0) for c in range(2 * self.classes)]) / len(labels))
        difference = (joint[1] - joint[0]).reshape(self.classes, 2, -1)
        by_label, by_right = difference.sum(axis=1), difference.sum(axis=0)

        def half(values: np.ndarray) -> float:
            return float(np.abs(values).sum() / 2)

        return (
            half(difference.sum(axis=(0, 1))),
            half(by_label) - half(by_label.sum(axis=1)),
            half(by_right) - half(by_right.sum(axis=1)),
        )
