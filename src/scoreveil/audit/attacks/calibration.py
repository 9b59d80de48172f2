"""A record's loss beside the loss that shadows have on it: a hard record is none the less a member.

The difference is in what is averaged. Difficulty calibration (Watson et al. 2022) takes the mean loss of shadows that
never saw the record. BASE (Lassila et al. 2025) takes the loss of the mean confidence, which approximates the Bayes
rule; online, with shadows that saw the record too, it sorts records as RMIA does, but without a population and ties.
"""

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import SMALLEST_FLOAT, at
from scoreveil.audit.attacks.likelihood import Ensemble, mean_of_either, mean_over
from scoreveil.audit.data.records import Records

SCALE = 1 / 3  # of BASE offline: how much of the shadows' loss is left for members (its authors' default)


def base_online(target: Records, ensemble: Ensemble) -> Floats:
    """ln p(x|θ) − ln p(x), p(x) the mean over shadows with and without x; from 0.5 on the target is surer than they."""
    return _above(target, np.log(mean_of_either(ensemble, target.true_labels) + SMALLEST_FLOAT))


def base_offline(target: Records, ensemble: Ensemble) -> Floats:
    """The same with shadows that never saw x: ln p(x|θ) − ⅓ ln p_out(x)."""
    outside = mean_over(ensemble.confidence(target.true_labels), ~ensemble.inside, "outside")
    return _above(target, SCALE * np.log(outside + SMALLEST_FLOAT))


def calibrated_loss(target: Records, ensemble: Ensemble) -> Floats:
    """ln p(x|θ) − mean of ln p(x|θ') over shadows θ' that never saw x."""
    losses = np.log(ensemble.confidence(target.true_labels) + SMALLEST_FLOAT)
    return _above(target, mean_over(losses, ~ensemble.inside, "outside"))


def _above(target: Records, expected: Floats) -> Floats:
    own: Integers = target.true_labels
    return np.asarray(0.5 + np.log(at(target.scores, own) + SMALLEST_FLOAT) - expected)
