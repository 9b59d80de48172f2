"""PMIA (Du et al., NDSS 2026): what a member's score would be is read off proxies, other records that were members.

The attacker needs no shadow that was trained on the record itself, as LiRA online does; and unlike LiRA offline it
tests against members, not only against non-members. The authors take all records, those of the class, or the picture
most like it as proxies. Here, without pictures: records of the class that shadows without them find about as hard.
"""

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import log_odds
from scoreveil.audit.attacks.likelihood import Ensemble, gaussians, log_density
from scoreveil.audit.data.records import Bools, Records

PROXIES = 20
MIN_VARIANCE = 1e-9  # constant scores differ by rounding


def pmia(target: Records, ensemble: Ensemble) -> Floats:
    """ln N(φ; proxies inside) − ln N(φ; μ_out, σ_out²), φ = ln p_y/(1 − p_y); 0.5 is even odds."""
    labels = target.true_labels
    own, shadows = log_odds(target.scores, labels), ensemble.log_odds(labels)
    outside = gaussians(shadows, ~ensemble.inside, "outside")
    known, within = of_proxies(shadows, ensemble.inside, labels, outside[0])
    evidence = log_density(own, *within) - log_density(own, *outside)
    return np.asarray(0.5 + np.where(known, evidence, 0.0))


def of_proxies(
    values: Floats, inside: Bools, labels: Integers, difficulty: Floats
) -> tuple[Bools, tuple[Floats, Floats]]:
    """Mean and deviation of the nearest proxies' values inside, and for whom there are any."""
    moments = np.stack([np.where(inside, values**power, 0.0).sum(axis=0) for power in range(3)])  # count, sum, squares
    nearest = np.zeros_like(moments)
    # equally hard ones in random order: in the order given, members' proxies would be members
    lots = np.random.default_rng(0).random(len(labels))
    for label in np.unique(labels):
        here = np.flatnonzero(labels == label)
        here = here[np.lexsort((lots[here], difficulty[here]))]
        running = np.cumsum(np.pad(moments[:, here], ((0, 0), (1, 0))), axis=1)
        size = min(PROXIES + 1, len(here))
        start = np.clip(np.arange(len(here)) - size // 2, 0, len(here) - size)
        nearest[:, here] = running[:, start + size] - running[:, start] - moments[:, here]  # it is no proxy of itself
    count, total, squares = nearest
    known = count > 0
    mean = total / np.maximum(count, 1)
    variance = np.where(known, squares / np.maximum(count, 1) - mean**2, 1.0)
    return known, (mean, np.sqrt(np.maximum(variance, MIN_VARIANCE)))
