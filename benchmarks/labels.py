"""What fitted veils of one column and of many labels are worth: the tables of docs/fit.md.

    python benchmarks/labels.py [--data-dir DIR]

Scikit-learn's breast cancer, one column, by out-of-fold scores; Fashion-MNIST as six attributes of each picture, by one
random forest for each (MultiOutputClassifier) that knows its training records by heart, and one of them as one column.
ε = 2 for each label. The noise of a fit is drawn from a seed, so that the same run gives the same figures.
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil.audit.data import benchmarks
from scoreveil.fitting.cost import WAYS, Cost, cost
from scoreveil.shapes import ManyLabels, OneColumn

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


def attributes(data_dir: str | None) -> tuple[Cost, Cost]:
    """Six labels of each picture, and one of them alone."""
    import pandas as pd

    pictures = benchmarks.load("fashion-mnist", data_dir)
    order = np.random.default_rng(0).permutation(len(pictures.labels))[: 2 * RECORDS]
    x = pictures.pixels[order].reshape(len(order), -1)[:, ::4]
    y = np.stack([np.isin(pictures.labels[order], classes) for classes in ATTRIBUTES.values()], axis=1).astype(int)
    model = MultiOutputClassifier(RandomForestClassifier(50, random_state=0)).fit(x[:RECORDS], y[:RECORDS])
    scores = pd.DataFrame({name: p[:, 1] for name, p in zip(ATTRIBUTES, model.predict_proba(x), strict=True)})
    inside, outside = scores.iloc[:RECORDS], scores.iloc[RECORDS:]
    known, truth = y[:RECORDS], y[RECORDS:]
    many = cost(EPSILON, outside, truth, inside, known, shape=ManyLabels(), rng=np.random.default_rng(0))
    one = list(ATTRIBUTES).index(ALONE)
    column = (outside[ALONE].to_numpy(), truth[:, one], inside[ALONE].to_numpy(), known[:, one])
    return many, cost(EPSILON, *column, shape=OneColumn(), rng=np.random.default_rng(0))


def breast_cancer() -> Cost:
    """One column."""
    x, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    scores = cross_val_predict(model, x, y, cv=5, method="predict_proba")[:, 1]
    return cost(EPSILON, scores, y, shape=OneColumn(), rng=np.random.default_rng(0))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--data-dir")
    given = options.parse_args()
    many, one = attributes(given.data_dir)
    measured = {"breast cancer": breast_cancer(), "Fashion-MNIST": many, f"Fashion-MNIST, {ALONE}": one}
    for name, found in measured.items():
        print(f"\n{name}, ε = {EPSILON:g}\n{found}")
        for each in found.labels:
            figures = (f"{getattr(each, name)[way]:.3f}" for name in ("useful", "nll", "ece", "leak") for way in WAYS)
            print(f"| {each.label} | {each.share:.0%} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
