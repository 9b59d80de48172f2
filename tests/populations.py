"""Populations of score vectors whose truth is known, to fit veils on and to count what these really tell."""

from dataclasses import dataclass

import numpy as np

from scoreveil.mechanisms.promises import Attacker


@dataclass(frozen=True)
class Population:
    """Members and others of a model of k classes.

    kind    "smooth": members are surer; "xor": members are surer where (label = 0) ≠ right, others the reverse;
            "pooled": members of even labels are surer, of odd ones less sure
            "rates": two classes; the answer is 1 for 85 % of the members and 35 % of the others, as sure on both sides
    """

    kind: str = "smooth"
    classes: int = 10
    accuracy: float = 0.8

    def draw(self, side: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Scores and true labels of others (side 0) or members (1)."""
        k, label = self.classes, rng.integers(0, self.classes, count)
        if self.kind == "rates":
            label = (rng.random(count) < (0.35, 0.85)[side]).astype(int)
        right = rng.random(count) < (
            0.5 if self.kind == "xor" else self.accuracy + 0.15 * side * (self.kind == "smooth")
        )
        if self.kind == "smooth":
            logit = rng.normal(1 + 1.2 * right + 0.6 * side, 1.2)
        elif self.kind == "rates":
            logit = rng.normal(1 + 1.2 * right + 0.3 * label, 1.0)
        elif self.kind == "xor":
            logit = rng.normal(np.where(((label == 0) != right) == bool(side), 3.0, 0.0), 1.0)
        else:
            logit = rng.normal(np.where((label % 2 == 0) == bool(side), 3.0, 0.5) + 0.8 * right, 1.0)
        top = 1 / (1 + np.exp(-np.maximum(logit, 0.3 - np.log(k - 1))))
        rest = rng.dirichlet(np.full(k - 1, 0.5), count) * (1 - top)[:, None]
        low = np.minimum(rest, 0.999 * top[:, None])  # none above the top
        rest = low + ((1 - top - low.sum(axis=1)) / (k - 1))[:, None]
        scores = np.empty((count, k))
        scores[np.arange(k) != label[:, None]] = rest.ravel()
        scores[np.arange(count), label] = top
        scores /= scores.sum(axis=1, keepdims=True)
        label = scores.argmax(axis=1)
        return scores, np.where(right, label, (label + rng.integers(1, k, count)) % k)

    def records(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """So many of each side, as `fit` takes them."""
        (others, other_labels), (members, member_labels) = (self.draw(side, count, rng) for side in (0, 1))
        return {
            "nonmembers": others,
            "nonmember_labels": other_labels,
            "members": members,
            "member_labels": member_labels,
        }

    def exact(self, mechanism, rng: np.random.Generator, count: int = 60_000) -> dict[Attacker, float]:
        """What the announced number tells each attacker beyond what it knows, on many new records without noise."""
        known, numbers = [], []
        for side in (0, 1):
            scores, truth = self.draw(side, count, rng)
            label, region = mechanism.read(scores)
            numbers.append(mechanism.announced[label if self.classes == 2 else 0, region])
            known.append(
                {
                    Attacker.ALONE: 0 * label,
                    Attacker.CORRECTNESS: 1 * (label == truth),
                    Attacker.LABEL: label,
                    Attacker.LABEL_AND_CORRECTNESS: 2 * label + (label == truth),
                }
            )
        return {attacker: _told([each[attacker] for each in known], numbers) for attacker in Attacker}


def _told(groups: list[np.ndarray], numbers: list[np.ndarray]) -> float:
    """Σ min(P, Q) of each group times the total variation between its numbers, on both sides."""
    told = 0.0
    for group in np.unique(groups[0]):
        within = [each[of == group] for of, each in zip(groups, numbers, strict=True)]
        if not all(map(len, within)):
            continue
        weight = min(len(each) / len(every) for each, every in zip(within, numbers, strict=True))
        shares = ([(each == number).mean() for each in within] for number in np.unique(np.concatenate(within)))
        told += weight * sum(abs(p - q) for p, q in shares) / 2
    return told
