"""Every membership attack by name: the paper's, the ones an auditor needs today, and the floors.

from scoreveil.audit.attacks import ATTACKS

score = ATTACKS["random_forest"].fit(shadow, "scores", rng)     # shadow: a Membership, defended as the target is
score(records)                                                  # ≥ 0.5 where it says "member"

Adding one is a function and a line here. With many shadow models, see `likelihood` (LiRA, RMIA).
"""

from operator import attrgetter

from scoreveil.audit.attacks import labels, ml_leaks, nsh, thresholds, trees
from scoreveil.audit.attacks.interface import EVERY_FEATURE, Attack

_predicted, _true = attrgetter("predicted"), attrgetter("true_labels")

_ALL = (
    Attack("ml_leaks", ml_leaks.fit, features=EVERY_FEATURE, cost=20),
    Attack("nsh", nsh.fit, knows_label=True, features=EVERY_FEATURE, knows_half=True, cost=300),
    Attack("max_confidence", thresholds.fit_by(thresholds.max_confidence, _predicted)),
    Attack("entropy", thresholds.fit_by(thresholds.entropy, _predicted)),
    Attack("true_confidence", thresholds.fit_by(thresholds.true_confidence, _true), knows_label=True),
    Attack("modified_entropy", thresholds.fit_by(thresholds.modified_entropy, _true), knows_label=True),
    Attack("random_forest", trees.fit_by(trees.random_forest, trees.all_columns), cost=100),
    Attack(
        "random_forest_known", trees.fit_by(trees.random_forest, trees.all_columns_known), knows_label=True, cost=100
    ),
    Attack("gradient_boosting", trees.fit_by(trees.gradient_boosting, trees.all_columns), cost=200),
    Attack(
        "gradient_boosting_known",
        trees.fit_by(trees.gradient_boosting, trees.all_columns_known),
        knows_label=True,
        cost=200,
    ),
    Attack("gap", labels.gap, "label", knows_label=True),
    Attack("augmentation", labels.augmentation, "label", knows_label=True, needs="variants"),
    Attack("label_floor", labels.floor, "label"),
    Attack("label_floor_known", labels.floor_known, "label", knows_label=True),
    Attack("ranking_floor", trees.fit_by(trees.random_forest, trees.rank_columns), "ranking", cost=15),
    Attack(
        "ranking_floor_known",
        trees.fit_by(trees.random_forest, trees.rank_columns_known),
        "ranking",
        knows_label=True,
        cost=15,
    ),
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
