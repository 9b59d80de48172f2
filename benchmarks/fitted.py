"""What fitted veils leave of the confidence of scikit-learn's classifiers: the table of docs/fit.md.

    python benchmarks/fitted.py

Half of each dataset trains the model. Its out-of-fold scores are the others, its in-sample scores the members, and the
other half is what is measured on: no veil was fitted on it. Means over four splits.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil, fit
from scoreveil.fitting.cost import auroc, label_with_constant_confidence, log_loss, tempered
from scoreveil.fitting.records import Scored

EPSILON, ADVANTAGE = 4.0, 0.02
SEEDS = range(100, 104)
REPEATS = 10  # draws for each record
DATASETS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
MODELS: dict[str, Callable[[int], Any]] = {
    "forest": lambda seed: RandomForestClassifier(100, random_state=seed),
    "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=50, random_state=seed),
    "logistic regression": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
}


def measure(x: Any, y: Any, make: Callable[[int], Any], seed: int) -> list[float]:
    """Log-loss raw, tempered, veiled and of the label; what is useful, and what leaks, raw and veiled."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    training, held_out = order[: len(y) // 2], order[len(y) // 2 :]
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    others = cross_val_predict(make(seed), x[training], y[training], cv=folds, method="predict_proba")
    model = make(seed).fit(x[training], y[training])
    members, asked = model.predict_proba(x[training]), model.predict_proba(x[held_out])
    fitted = fit(EPSILON, others, y[training], members, y[training], advantage=ADVANTAGE, rng=rng)
    veil = Veil(fitted.mechanism, rng=rng)
    known, labels = Scored(others, y[training]), np.repeat(y[held_out], REPEATS)
    veiled, veiled_members = (veil(np.repeat(scores, REPEATS, axis=0)) for scores in (asked, members))
    losses = [
        log_loss(asked, y[held_out]),
        log_loss(tempered(known)(asked), y[held_out]),
        log_loss(veiled, labels),
        log_loss(label_with_constant_confidence(known)(asked), y[held_out]),
    ]
    right, right_veiled = asked.argmax(axis=1) == y[held_out], veiled.argmax(axis=1) == labels
    sure, sure_veiled = asked.max(axis=1), veiled.max(axis=1)
    return [
        *(float(each.mean()) for each in losses),
        auroc(sure[right], sure[~right]),
        auroc(sure_veiled[right_veiled], sure_veiled[~right_veiled]),
        auroc(members.max(axis=1), sure),
        auroc(veiled_members.max(axis=1), sure_veiled),
    ]


def main() -> None:
    print("| | log-loss raw | tempered | veiled | label, constant | useful raw → veiled | leak raw → veiled |")
    print("|---|---|---|---|---|---|---|")
    for dataset, load in DATASETS.items():
        x, y = load(return_X_y=True)
        for name, make in MODELS.items():
            figures = np.mean([measure(x, y, make, seed) for seed in SEEDS], axis=0)
            losses = " | ".join(f"{value:.3f}" for value in figures[:4])
            useful, leak = (f"{before:.2f} → {after:.2f}" for before, after in figures[4:].reshape(2, 2))
            print(f"| {dataset}, {name} | {losses} | {useful} | {leak} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of boosting on few records
    main()
