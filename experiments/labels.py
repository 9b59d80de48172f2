"""What fitted veils of one column and of many labels are worth, and what many labels leak: docs/fit.md, docs/audit.md.

    python -m experiments.labels [--data-dir DIR] [--audit]

Scikit-learn's breast cancer, one column, by out-of-fold scores; Fashion-MNIST as six attributes of each picture, by one
random forest for each (MultiOutputClassifier) that knows its training records by heart, and one of them as one column.
ε = 2 for each label. The noise of a fit is drawn from a seed, so that the same run gives the same figures.
"""

import argparse
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.data import benchmarks
from scoreveil import audit
from scoreveil.audit.report.multi_label import by_label
from scoreveil.fitting.cost import MEASURES, WAYS, Cost, cost
from scoreveil.shapes import Binary, MultiLabel

EPSILON, RECORDS = 2.0, 3000
ATTRIBUTES = {  # of Fashion-MNIST's ten classes
    "top": (0, 2, 4, 6),
    "shoe": (5, 7, 9),
    "long sleeves": (2, 4, 6),
    "below the waist": (1, 3),
    "opens in front": (4, 6),
    "sporty": (0, 7),
}

ALONE = "opens in front"


def attributes(data_dir: str | None) -> tuple[Any, Any, Any, Any]:
    """Scores of six labels of each picture, and the labels: of others first, then of records that were trained on."""
    pictures = benchmarks.load("fashion-mnist", data_dir)
    order = np.random.default_rng(0).permutation(len(pictures.labels))[: 2 * RECORDS]
    x = pictures.pixels[order].reshape(len(order), -1)[:, ::4]
    y = np.stack([np.isin(pictures.labels[order], classes) for classes in ATTRIBUTES.values()], axis=1).astype(int)
    model = MultiOutputClassifier(RandomForestClassifier(50, random_state=0)).fit(x[:RECORDS], y[:RECORDS])
    scores = pd.DataFrame({name: p[:, 1] for name, p in zip(ATTRIBUTES, model.predict_proba(x), strict=True)})
    return scores.iloc[RECORDS:], y[RECORDS:], scores.iloc[:RECORDS], y[:RECORDS]


def measure(data_dir: str | None) -> dict[str, Cost]:
    outside, truth, inside, known = attributes(data_dir)
    one = list(ATTRIBUTES).index(ALONE)
    column = (outside[ALONE].to_numpy(), truth[:, one], inside[ALONE].to_numpy(), known[:, one])
    return {
        "breast cancer": breast_cancer(),
        "Fashion-MNIST": cost(
            outside, truth, inside, known, epsilon=EPSILON, shape=MultiLabel(), rng=np.random.default_rng(0)
        ),
        f"Fashion-MNIST, {ALONE}": cost(*column, epsilon=EPSILON, shape=Binary(), rng=np.random.default_rng(0)),
    }


def breast_cancer() -> Cost:
    """One column."""
    x, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    scores = cross_val_predict(model, x, y, cv=5, method="predict_proba")[:, 1]
    return cost(scores, y, epsilon=EPSILON, shape=Binary(), rng=np.random.default_rng(0))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--data-dir")
    options.add_argument("--audit", action="store_true", help="what the labels of Fashion-MNIST leak, instead")
    given = options.parse_args()
    if given.audit:
        outside, truth, inside, known = attributes(given.data_dir)
        found = audit.run(inside, outside, known, truth, shape=MultiLabel(), epsilon=(0.5, 1.0, EPSILON), jobs=1)
        assert isinstance(found, audit.LabelsAudit)
        print(found)
        for row in by_label(found.studies):
            print(row.name, row.best.auc, row.worst.floor_auc, row.excess)
        return
    for name, measured in measure(given.data_dir).items():
        print(f"\n{name}, ε = {EPSILON:g}")
        for way in WAYS:
            known = ((name, getattr(measured, name).get(way)) for name in MEASURES)
            figures = (f"{name} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for name, one in known if one)
            print(f"{way}:", ", ".join(figures))
        for label in measured.labels:
            figures = (f"{getattr(label, name)[way]:.3f}" for name in ("useful", "nll", "ece", "leak") for way in WAYS)
            print(f"| {label.label} | {label.share:.0%} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
