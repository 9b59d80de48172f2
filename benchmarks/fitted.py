"""What fitted veils leave of the confidence of scikit-learn's classifiers: the table of docs/integrations/sklearn.md.

    python benchmarks/fitted.py

Half of each dataset goes to `VeiledClassifier.fit`; the other half is what is measured on. Means over several splits.
"""

import math
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

from scoreveil import Veil
from scoreveil.fitting.cost import auroc, label_with_constant_confidence, log_loss, tempered
from scoreveil.fitting.records import Scored
from scoreveil.integrations.sklearn import VeiledClassifier

SEEDS = range(6)
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
    fitted = VeiledClassifier(make(seed), random_state=seed).fit(x[training], y[training])
    veil = Veil(fitted.veil_.mechanism, rng=rng)
    # the same scores without a veil, which the classifier does not give
    model = make(seed).fit(x[training], y[training])
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    others = cross_val_predict(make(seed), x[training], y[training], cv=folds, method="predict_proba")
    members, asked = model.predict_proba(x[training]), model.predict_proba(x[held_out])
    known, labels = Scored(others, y[training]), np.repeat(y[held_out], REPEATS)
    veiled, veiled_members = (veil(np.repeat(scores, REPEATS, axis=0)) for scores in (asked, members))
    assert veiled.min() > 0, "a log-loss would be infinite"
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
    losses = "log-loss raw | tempered | veiled | label, constant | veiled − label"
    print(f"| | {losses} | useful raw → veiled | leak raw → veiled |")
    print("|---|---|---|---|---|---|---|---|")
    for dataset, load in DATASETS.items():
        x, y = load(return_X_y=True)
        for name, make in MODELS.items():
            found = np.array([measure(x, y, make, seed) for seed in SEEDS])
            mean, more = found.mean(axis=0), found[:, 2] - found[:, 3]
            shown = " | ".join(f"{value:.3f}" for value in mean[:4])
            error = float(more.std(ddof=1)) / math.sqrt(len(more))
            useful, leak = (f"{before:.2f} → {after:.2f}" for before, after in mean[4:].reshape(2, 2))
            cells = [f"{dataset}, {name}", shown, f"{more.mean():+.3f} ± {error:.3f}", useful, leak]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of boosting on few records
    main()
