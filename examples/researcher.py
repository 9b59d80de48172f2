"""For researchers: why an attacker who retrains is the one to measure.

Two forests learn quarters of scikit-learn's digits: one is the target, the other the attacker's shadow. The attack is
logistic regression on log-scores. It is fitted once as in the paper, on the shadow's undefended scores, and once
adapted, on the shadow's scores under the same defense. The published mechanism holds off the first and not the second
at all; a promise in ε holds off both, and so does a fitted veil, which promises that members look like others.

    pip install 'scoreveil[fit,sklearn]'
    python examples/researcher.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil, fit


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


def promised(veil):
    """What one answer promises, in a word or two."""
    if veil is not None and np.isfinite(veil.guarantee.epsilon):
        return f"ε = {veil.guarantee.epsilon:g} an answer"
    if veil is not None and veil.guarantee.advantage_alone is not None:
        return f"advantage <= {veil.guarantee.advantage_alone:.2f}, however often asked"
    return "nothing"


x, y = load_digits(return_X_y=True)
quarters = np.array_split(np.random.default_rng(0).permutation(len(x)), 4)
target, shadow = (
    tuple(scores_of(forest, x[part]) for part in (inside, outside))
    for inside, outside in (quarters[:2], quarters[2:])
    for forest in [RandomForestClassifier(n_estimators=50, random_state=0).fit(x[inside], y[inside])]
)

truth = [y[part] for part in quarters[:2]]
veils = {
    "no defense": None,
    "published, ε = 0.1": Veil(0.1, mechanism="published"),
    "isotonic, ε = 2": Veil(2.0),
    "fitted, no ε": fit(nonmembers=target[1], nonmember_labels=truth[1], members=target[0], member_labels=truth[0]),
}
print(f"{'AUC of the attack':<22}{'as in the paper':>16}{'adapted':>10}   promised")
for name, veil in veils.items():
    hidden_target, hidden_shadow = (
        tuple(part if veil is None else veil(part) for part in parts) for parts in (target, shadow)
    )
    paper, adapted = attack_auc(shadow, hidden_target), attack_auc(hidden_shadow, hidden_target)
    print(f"{name:<22}{paper:>16.2f}{adapted:>10.2f}   {promised(veil)}")
