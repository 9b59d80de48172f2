"""CMIA (Du et al., NDSS 2026): memberships depend on each other, and those that are clear tell about the rest.

That a near-duplicate of a record was trained on raises the record's score nearly as much as if itself had been. The
authors fix the memberships that an attack is sure of, train new shadows that share them, attack again, and so on. Here
no shadow is trained anew. The shadows show which other record, if any, moves the score of each (its *companion*), and
by how much; then what is believed about companions is passed on from record to record.

    φ_x = α_x + β_x·[x inside] + γ_x·[companion inside] + noise

A record is given a companion only where that is clear: chance would give one to one record in a hundred, and no other
record was inside the same shadows. S shadows in complementary pairs tell 2^(S/2 − 1) records apart: 16 of them are too
few for thousands of records, and 32 are enough. Where nobody has a companion, this is LiRA online.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import log_odds
from scoreveil.audit.attacks.likelihood import Ensemble, gaussians, log_density
from scoreveil.audit.data.records import Bools, Records

CHANCE = 0.01  # that a record without a companion is given one
ROUNDS = 3
BLOCK = 64  # records whose companions are looked for at a time
PARAMETERS = 3  # α, β, γ


@dataclass(frozen=True, eq=False)
class Companions:
    """For each record the other one whose membership moves its score the most."""

    who: Integers  # (n,)
    clear: Bools  # (n,): whether it does so clearly; else the rest says nothing
    effect: Floats  # (n,): γ
    share: Floats  # (2, n): how often it is inside where the record is outside, and inside


def cmia(target: Records, ensemble: Ensemble) -> Floats:
    """The log-likelihood ratio, given what is believed about the companion; 0.5 is even odds."""
    labels, inside = target.true_labels, ensemble.inside
    own, shadows = log_odds(target.scores, labels), ensemble.log_odds(labels)
    sides = gaussians(shadows, ~inside, "outside"), gaussians(shadows, inside, "inside")
    means, deviations = (np.stack(each) for each in zip(*sides, strict=True))  # (2, n): outside, inside
    companions = find(shadows - np.where(inside, means[1], means[0]), inside)
    alone = log_density(own, means, deviations)  # (2, n)
    # (2, 2, n): by the membership of the record, then of its companion
    moved = means[:, None] + companions.effect * (np.arange(2)[:, None] - companions.share[:, None])
    rest = np.sqrt(_unexplained(shadows, inside, means, companions))
    given = np.where(companions.clear, log_density(own, moved, rest), alone[:, None])
    return np.asarray(0.5 + np.subtract(*_summed(given + _believed(alone, given, companions))[::-1]))


def find(residuals: Floats, inside: Bools) -> Companions:
    """The companions, from what is left of the shadows' log-odds once the record's own membership is taken out."""
    shadows, n = inside.shape
    who, effect, strength = np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n)
    squares = (residuals**2).sum(axis=0)
    candidates = _alone_in_their_shadows(inside)
    flags, others = inside.astype(np.float32), inside[:, candidates].astype(np.float32)
    left, count, counts = residuals.astype(np.float32), flags.sum(axis=0), others.sum(axis=0)
    for start in range(0, n if len(candidates) else 0, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        within, both = count[rows, None], flags[:, rows].T @ others
        without = counts - both
        # of the other's flag, once the record's own membership is taken out
        variance = both * (1 - both / np.maximum(within, 1))
        variance += without * (1 - without / np.maximum(shadows - within, 1))
        variance[rows[:, None] == candidates] = 0.0
        covariance = left[:, rows].T @ others
        explained = np.where(variance > 1, covariance**2 / np.maximum(variance, 1), 0.0)
        best = np.arange(len(rows)), explained.argmax(axis=1)
        who[rows], strength[rows] = candidates[best[1]], explained[best]
        effect[rows] = covariance[best] / np.maximum(variance[best], 1)
    degrees = shadows - PARAMETERS
    statistic = np.sqrt(degrees * strength / np.maximum(squares - strength, 1e-30)) if degrees > 0 else np.zeros(n)
    # the best of n candidates: each is tested at a chance that is n times smaller
    clear = (2 * student.sf(statistic, max(degrees, 1)) < CHANCE / n) & (squares > 0)
    companion = inside[:, who]
    share = np.stack([(companion & side).sum(axis=0) / np.maximum(side.sum(axis=0), 1) for side in (~inside, inside)])
    return Companions(who, clear, effect, share)


def _alone_in_their_shadows(inside: Bools) -> Integers:
    """The records that no other goes along with, neither inside the same shadows nor inside the rest of them."""
    patterns = np.packbits(inside ^ inside[0], axis=0).T
    _, first, count = np.unique(patterns, axis=0, return_index=True, return_counts=True)
    return np.asarray(np.sort(first[count == 1]))


def _unexplained(shadows: Floats, inside: Bools, means: Floats, companions: Companions) -> Floats:
    """The variance that the companion leaves, one for all records that have a clear one."""
    side = inside.astype(np.int64)
    expected = np.take_along_axis(means, side, axis=0) + companions.effect * (
        inside[:, companions.who] - np.take_along_axis(companions.share, side, axis=0)
    )
    squares = ((shadows - expected) ** 2)[:, companions.clear]
    degrees = max(1, squares.shape[1] * (len(shadows) - PARAMETERS))
    return np.asarray(max(squares.sum() / degrees, 1e-30))


def _believed(alone: Floats, given: Floats, companions: Companions) -> Floats:
    """What is known of each record's companion: ln-likelihoods by the record's membership, then the companion's.

    A companion whose own companion is the record speaks by its own score alone, given both memberships; else by its
    score and by what is believed of its companion in turn.
    """
    who = companions.who
    mutual = companions.clear & companions.clear[who] & (who[who] == np.arange(len(who)))
    direct = np.swapaxes(given, 0, 1)[..., who]  # the companion's score, by the record's membership, then its own
    heard = np.broadcast_to(alone[:, who], direct.shape)
    for _ in range(ROUNDS):
        passed_on = _summed(given + heard)  # (2, n): by the membership of a record
        heard = np.where(mutual, direct, passed_on[:, who][None])
    return np.asarray(heard)


def _summed(logs: Floats) -> Floats:
    """Over both memberships of the companion, each as likely as the other beforehand."""
    return np.asarray(np.logaddexp(logs[:, 0], logs[:, 1]) - np.log(2))
