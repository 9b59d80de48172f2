"""For researchers: why an attacker who retrains is the one to measure.

Two forests learn quarters of scikit-learn's digits: one is the target, the other the attacker's shadow. The attack is
logistic regression on log-scores. It is fitted once as in the paper, on the shadow's undefended scores, and once
adapted, on the shadow's scores under the same defense. The published mechanism holds off the first and not the second
at all; a promise in ε holds off both.

    pip install 'scoreveil[sklearn]'
    python examples/researcher.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil


def scores_of(forest, x):
    """Probabilities without exact zeros, so that they have logarithms."""
    return (forest.predict_proba(x) + 1e-3) / (1 + 1e-3 * forest.n_classes_)


def sorted_logs(scores):
    """What the attack looks at: log-scores, the largest first. Their differences undo the published second phase."""
    return -np.sort(-np.log(np.maximum(scores, 1e-300)), axis=1)


def attack_auc(fitted_on, tested_on):
    """How well an attack fitted on (members, others) of the shadow tells members of the target from others."""
    attack = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    labels = np.repeat([1, 0], [len(part) for part in fitted_on])
    attack.fit(sorted_logs(np.concatenate(fitted_on)), labels)
    truth = np.repeat([1, 0], [len(part) for part in tested_on])
    return roc_auc_score(truth, attack.decision_function(sorted_logs(np.concatenate(tested_on))))


x, y = load_digits(return_X_y=True)
quarters = np.array_split(np.random.default_rng(0).permutation(len(x)), 4)
target, shadow = (
    tuple(scores_of(forest, x[part]) for part in (inside, outside))
    for inside, outside in (quarters[:2], quarters[2:])
    for forest in [RandomForestClassifier(n_estimators=50, random_state=0).fit(x[inside], y[inside])]
)

veils = {
    "no defense": None,
    "published, ε = 0.1": Veil(0.1, mechanism="published"),
    "isotonic, ε = 2": Veil(2.0),
}
print(f"{'AUC of the attack':<22}{'as in the paper':>16}{'adapted':>10}   promised ε")
for name, veil in veils.items():
    hidden_target, hidden_shadow = (
        tuple(part if veil is None else veil(part) for part in parts) for parts in (target, shadow)
    )
    paper, adapted = attack_auc(shadow, hidden_target), attack_auc(hidden_shadow, hidden_target)
    promised = "none" if veil is None else f"{veil.guarantee.epsilon:g}"
    print(f"{name:<22}{paper:>16.2f}{adapted:>10.2f}   {promised}")
