"""Every membership attack by name: the paper's, the ones an auditor needs today, and the floors.

from scoreveil.audit.attacks import ATTACKS

score = ATTACKS["random_forest"].fit(shadow, "scores", rng)     # shadow: a Membership, defended as the target is
score(records)                                                  # ≥ 0.5 where it says "member"

Adding one is a function and a line here. `COMPARISONS` are the attacks from many shadow models (LiRA and its kin).
"""

import importlib.util
from functools import partial
from operator import attrgetter

import numpy as np

from scoreveil.audit.attacks import (
    calibration,
    cascade,
    labels,
    likelihood,
    ml_leaks,
    nonmembers,
    proxies,
    thresholds,
    trees,
)
from scoreveil.audit.attacks.interface import EVERY_FEATURE, Attack, Comparison, Features, Scorer
from scoreveil.audit.data.records import Membership
from scoreveil.extras import needs

_predicted, _true = attrgetter("predicted"), attrgetter("true_labels")


def _nsh(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    with needs("audit"):  # torch is loaded only by those who need it
        from scoreveil.audit.attacks import nsh

    return nsh.fit(shadow, features, rng)


_max_confidence = thresholds.max_confidence, _predicted
_true_confidence = thresholds.true_confidence, _true
_known = partial(Attack, knows_label=True)  # told the true label of each record

_ALL = (
    Attack("ml_leaks", ml_leaks.fit, features=EVERY_FEATURE, cost=20),
    _known("nsh", _nsh, features=EVERY_FEATURE, knows_half=True, package="torch", cost=300),
    Attack("max_confidence", thresholds.fit_by(*_max_confidence)),
    Attack("entropy", thresholds.fit_by(thresholds.entropy, _predicted)),
    _known("true_confidence", thresholds.fit_by(*_true_confidence)),
    _known("modified_entropy", thresholds.fit_by(thresholds.modified_entropy, _true)),
    Attack("population", nonmembers.fit_by(*_max_confidence, nonmembers.population)),
    _known("population_known", nonmembers.fit_by(*_true_confidence, nonmembers.population)),
    Attack("quantile", nonmembers.fit_by(*_max_confidence, nonmembers.quantile), cost=20),
    _known("quantile_known", nonmembers.fit_by(*_true_confidence, nonmembers.quantile), cost=20),
    Attack("random_forest", trees.fit_by(trees.random_forest, trees.all_columns), cost=100),
    _known("random_forest_known", trees.fit_by(trees.random_forest, trees.all_columns_known), cost=100),
    Attack("gradient_boosting", trees.fit_by(trees.gradient_boosting, trees.all_columns), cost=200),
    _known("gradient_boosting_known", trees.fit_by(trees.gradient_boosting, trees.all_columns_known), cost=200),
    _known("gap", labels.gap, "label"),
    _known("augmentation", labels.augmentation, "label", needs="variants"),
    Attack("label_floor", labels.floor, "label"),
    _known("label_floor_known", labels.floor_known, "label"),
    Attack("ranking_floor", trees.fit_by(trees.random_forest, trees.rank_columns), "ranking", cost=15),
    _known("ranking_floor_known", trees.fit_by(trees.random_forest, trees.rank_columns_known), "ranking", cost=15),
)

_FROM_MANY = (
    Comparison("lira_online", likelihood.lira_online, "log_odds"),
    Comparison("lira_offline", likelihood.lira_offline, "log_odds"),
    Comparison("rmia_online", likelihood.rmia_online, "scores", population=True),
    Comparison("rmia_offline", likelihood.rmia_offline, "scores", population=True),
    Comparison("base_online", calibration.base_online, "scores"),
    Comparison("base_offline", calibration.base_offline, "scores"),
    Comparison("calibrated_loss", calibration.calibrated_loss, "scores"),
    Comparison("pmia", proxies.pmia, "log_odds"),
    Comparison("cmia", cascade.cmia, "log_odds"),
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
COMPARISONS: dict[str, Comparison] = {attack.name: attack for attack in _FROM_MANY}


def missing_packages() -> dict[str, str]:
    """The attacks that cannot run here, and the package that each of them lacks."""
    wanted = {attack.name: attack.package for attack in _ALL if attack.package}
    return {name: package for name, package in wanted.items() if importlib.util.find_spec(package) is None}
