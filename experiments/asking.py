"""The attacks that ask a model, beside ART's on the same model and records, and what canaries prove.

    python -m experiments.asking [--records N]

Prints the tables of docs/audit.md. A network and a forest of handwritten digits, three of ten training labels wrong.
"""

import argparse
import warnings
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.boundary import distances
from scoreveil.audit.study.canaries import release_canaries
from scoreveil.audit.study.models import Data
from scoreveil.audit.study.run import grid

CLASSES = 10
SIZES = (600, 600, 300)  # members, non-members, public records


def digits() -> list[Data]:
    """Members, non-members and public records."""
    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(x))
    x, y = x[order] / 16, y[order]
    wrong = rng.random(len(y)) < 0.3
    y = np.where(wrong, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)
    edges = np.cumsum((0, *SIZES))
    return [(x[a:b], y[a:b]) for a, b in pairwise(edges)]


def boundary(count: int) -> None:
    """Distance and AUC, ours and ART's, with the questions that each asked."""
    warnings.simplefilter("ignore")  # of what ART imports, and of a network that is meant to overfit
    from art.attacks.evasion import HopSkipJump
    from art.estimators.classification import BlackBoxClassifier

    members, others, (pool, _) = digits()
    model = MLPClassifier((64,), max_iter=2_000, random_state=0).fit(*members)
    asked = [0]

    def label_of(points: Floats) -> Integers:
        asked[0] += len(points)
        return np.asarray(model.predict_proba(points).argmax(axis=1))

    x, y = (np.concatenate([one[:count], other[:count]]) for one, other in zip(members, others, strict=True))
    own = label_of(x)
    apart = np.linalg.norm(x[:, None] - pool, axis=2)
    starts = pool[np.where(label_of(pool) == own[:, None], np.inf, apart).argmin(axis=1)]

    def art() -> Floats:
        np.random.seed(0)  # noqa: NPY002 - what ART draws from
        classifier = BlackBoxClassifier(lambda z: np.eye(CLASSES)[label_of(z)], (64,), CLASSES, clip_values=(0, 1))
        attack = HopSkipJump(classifier, norm=2, max_iter=10, max_eval=1000, init_eval=100, verbose=False)
        return np.asarray(np.linalg.norm(attack.generate(x.astype(np.float32)) - x, axis=1))

    def ours() -> Floats:
        return distances(label_of, x, starts, 0.0, 1.0, np.random.default_rng(0))

    print("| | median distance | AUC | AUC, told the label | questions a record |\n|---|---:|---:|---:|---:|")
    for name, attack in (("ours", ours), ("ART", art)):
        asked[0] = 0
        far = attack()
        told = np.where(own == y, far, -far)
        auc = [roc_auc_score(np.arange(2 * count) < count, said) for said in (far, told)]
        print(f"| {name} | {np.median(far):.2f} | {auc[0]:.2f} | {auc[1]:.2f} | {asked[0] / len(x):,.0f} |")


def canaries() -> None:
    """The ε that 500 canaries prove."""
    print("| | promised ε | proved beyond the label | proved in all |\n|---|---:|---:|---:|")
    settings = grid(("isotonic", "regions", "label_only"), (0.5, 2.0, 8.0))
    members, others, public = digits()

    def forest() -> RandomForestClassifier:
        return RandomForestClassifier(100, random_state=0)

    for r in release_canaries(forest, members, others, public, settings, 500):
        name = r.defense if r.epsilon is None else f"{r.defense}, ε = {r.epsilon:g}"
        beyond = "–" if r.beyond_label is None else f"{r.beyond_label.epsilon:.2f}"
        promised = "–" if r.promised is None else f"{r.promised:g}"
        print(f"| {name} | {promised} | {beyond} | {r.in_all.epsilon:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=60, help="members, and non-members, for the boundary")
    boundary(parser.parse_args().records)
    print()
    canaries()


if __name__ == "__main__":
    main()
