"""The demo's study: classifiers of handwritten digits that know their few training records by heart.

One such classifier has too few records to measure a leak by, so several are trained, each on records of its own, and
their scores are put together; as many again are the attacker's shadows.
"""

import numpy as np

from scoreveil.audit.data.records import Membership, Records, joined
from scoreveil.audit.study import run as study
from scoreveil.audit.study.results import Study
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject

MODELS, RECORDS = 8, 100  # targets and shadows each; training, test and reference records of each
EPSILONS = (None, 2.0, 0.5)
PLAN = study.StudyPlan(
    settings=study.grid(("published", "isotonic", "regions"), EPSILONS),
    attacks=(
        *("ml_leaks", "nsh", "max_confidence", "modified_entropy"),
        *("random_forest", "random_forest_known", "label_floor", "label_floor_known"),
    ),
)


def run(command: str, progress: Progress = silent) -> Study:
    """Train, attack, and return what was found."""
    target, reference = trained(range(MODELS))
    shadow, _ = trained(range(MODELS, 2 * MODELS))
    title = f"{MODELS} classifiers of handwritten digits, {RECORDS} training records each"
    return study.run(Subject(target, shadow, reference, title=title), PLAN, command, progress=progress)


def trained(seeds: range) -> tuple[Membership, Records]:
    """Members and non-members of one classifier per seed, and a reference, put together."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    parts: list[list[Records]] = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(x))
        training, test, reference = (order[i * RECORDS : (i + 1) * RECORDS] for i in range(3))
        model = MLPClassifier((128,), alpha=0.0, learning_rate_init=0.005, tol=1e-5, max_iter=2000, random_state=seed)
        model.fit(x[training] / 16, y[training])
        parts.append([Records(model.predict_proba(x[i] / 16), y[i]) for i in (training, test, reference)])
    members, others, reference_records = (joined(column) for column in zip(*parts, strict=True))
    return Membership(members, others), reference_records
