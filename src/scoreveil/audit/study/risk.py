"""The risk of each record: how sure a good attacker would be, after one answer, that the record was trained on.

    found = record_risks(given, study, recommended)
    found.undefended.value          # one probability for each record, members first

*Risk* is the probability of membership that an attacker states who sees the answer, knows of every other record
whether it is a member, and holds both equally likely beforehand. It is cross-fitted: records are dealt into three
parts, and for each part in turn

    the veil, where there is one,  is fitted on a second part,
    the attack                     is fitted on the third part, behind that veil,
    what the attack says           is turned into a probability on the first part, by other records than the one asked.

So no record has a say in its own risk, and of the records with a risk of .8 about 80 % are members. The last step is an
isotonic regression: records are sorted by what the attack says, neighbours are pooled until the share of members rises,
and the risk is that share. Its interval is Jeffreys' for the pool. A risk behind a veil is the mean over several
answers, since it depends on the draw, and its interval spans all of them.

The attack is the best of those that the study ran, networks left out: they take minutes, and trees find as much.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta, rankdata
from sklearn.isotonic import isotonic_regression

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.interface import Attack
from scoreveil.audit.data.records import Bools, Membership
from scoreveil.audit.defenses import DEFENSES, Given
from scoreveil.audit.study.results import LABEL, UNDEFENDED, Setting, Study

PARTS = 3  # one for the veil, one for the attack, one that is asked about
CALIBRATING = 5  # that one again: each fifth is calibrated by the other four
ANSWERS = 10  # of a veil whose answers are drawn
POOL = 40  # records, at least, that a risk rests on
POOLS = 50  # at most: the first and the last are partly luck, the more so the smaller they are
CONFIDENCE = 0.95
MAX_EXPOSED = 20  # members that reports name


@dataclass(frozen=True, eq=False)
class Risk:
    """For each record the probability that it is a member, and from where to where it may well lie."""

    value: Floats
    low: Floats
    high: Floats
    after_one: Floats  # what the attacker states after the first answer
    place: Floats  # where the attack places the record among those of its part, from 0 to 1


@dataclass(frozen=True, eq=False)
class RecordRisks:
    """The risk of every record that the audit was given, members first, each side in the order of its file."""

    given: Membership
    attack: str  # that the risk without a defense is by
    undefended: Risk
    label: Risk  # by the label alone
    setting: Setting | None = None  # what is recommended
    veiled_attack: str = ""
    veiled: Risk | None = None  # behind that setting

    @property
    def rows(self) -> Integers:
        """Where each record stands in the file of its side, from 0."""
        return np.concatenate([np.arange(len(r)) for r in (self.given.members, self.given.nonmembers)])

    def most_exposed(self, count: int = MAX_EXPOSED) -> Integers:
        """The rows of the members with the highest risk without a defense; among equals, as the attack ranks them."""
        inside = slice(len(self.given.members))
        return np.lexsort((-self.undefended.place[inside], -self.undefended.value[inside]))[:count]


def record_risks(given: Membership, study: Study, recommended: Setting | None, seed: int = 0) -> RecordRisks:
    """The risk of each record, without a defense, by the label alone, and behind what is recommended.

    Args:
        given: All records that the audit was given.
        study: Which attack is best is read off here.
        recommended: The setting that the verdict names, if any.
        seed: Of parts, attacks and draws.
    """
    told = given.is_labelled
    bare, label = best_quick(study, UNDEFENDED, told), "label_floor_known" if told else "label_floor"
    undefended, by_label = (risk(given, UNDEFENDED, ATTACKS[name], seed) for name in (bare, label))
    found = RecordRisks(given, bare, undefended, by_label)
    if recommended is None:
        return found
    if recommended == LABEL:
        return replace(found, setting=recommended, veiled_attack=label, veiled=by_label)
    name = best_quick(study, recommended, told)
    return replace(found, setting=recommended, veiled_attack=name, veiled=risk(given, recommended, ATTACKS[name], seed))


def best_quick(study: Study, setting: Setting, told: bool) -> str:
    """The best attack on one answer, networks (which try several forms of the scores) and many shadows left out.

    Gradient boosting where no such attack on the scores was run.
    """
    quick = {name for name, attack in ATTACKS.items() if len(attack.features) == 1}
    there = [r for r in study.results if r.setting == setting and r.form == "adaptive" and r.attack in quick]
    if not any(r.reads == "scores" for r in there):
        return "gradient_boosting_known" if told else "gradient_boosting"
    return max(there, key=lambda r: r.auc).attack


def risk(given: Membership, setting: Setting, attack: Attack, seed: int = 0) -> Risk:
    """The risk of each record behind one setting, by one attack."""
    method, rng = DEFENSES[setting[0]], np.random.default_rng(seed)
    records, truth = given.records, given.truth
    part, fifth = _dealt(truth, PARTS, rng), _dealt(truth, CALIBRATING, rng)
    answers = ANSWERS if method.draws_at(setting[1]) else 1
    said, place = np.empty((3, answers, len(records))), np.empty(len(records))
    for one in range(PARTS):
        second, third = (part == (one + 1) % PARTS), (part == (one + 2) % PARTS)
        known = _sides(given, second)
        defense = method.make(Given(known, known.nonmembers, seed + one, setting[1]))
        practice = _sides(given, third if method.fits else second | third).defended(defense)
        scorer = attack.fit(practice.balanced(rng), attack.features[0], rng)
        here = np.flatnonzero(part == one)
        scores = np.stack([scorer(records.take(here).defended(defense)) for _ in range(answers)])
        place[here] = rankdata(scores, axis=1).mean(axis=0) / len(here)
        for own in range(CALIBRATING):
            mine = fifth[here] == own
            state = calibrated(scores[:, ~mine], truth[here[~mine]])
            said[:, :, here[mine]] = state(scores[:, mine])
    value, low, high = said
    return Risk(value.mean(axis=0), low.min(axis=0), high.max(axis=0), value[0], place)


def _dealt(truth: Bools, parts: int, rng: np.random.Generator) -> Integers:
    """A part for each record, each with its share of members and of non-members."""
    dealt = np.empty(len(truth), dtype=np.int64)
    for side in (truth, ~truth):
        dealt[side] = rng.permutation(int(side.sum())) % parts
    return dealt


def _sides(given: Membership, chosen: Bools) -> Membership:
    inside = len(given.members)
    return Membership(given.members.take(chosen[:inside]), given.nonmembers.take(chosen[inside:]))


def calibrated(scores: Floats, truth: Bools) -> Callable[[Floats], Floats]:
    """How to read an attack's scores as probabilities of membership, at even odds beforehand.

    Args:
        scores: (answers, records), the higher, the more likely a member.
        truth: Who is one.

    Returns:
        A function from scores to (value, low, high), stacked.
    """
    answers, everyone = len(scores), np.broadcast_to(truth, scores.shape).ravel()
    flat, step = scores.ravel(), max(POOL, len(truth) // POOLS) * len(scores)
    # the last edge is dropped, so that the last pool is no smaller than the others; equal scores stay together
    edges = np.unique(np.sort(flat)[step - 1 :: step])[:-1]
    pools = np.searchsorted(edges, flat)
    # in records, not answers: those about one record are no new evidence
    members, others = (np.bincount(pools[side], minlength=len(edges) + 1) / answers for side in (everyone, ~everyone))
    balance = (~truth).sum() / truth.sum()
    weight = members * balance + others
    filled = weight > 0  # a pool of equal scores may hold many edges' worth, and leave the next one empty
    level = np.zeros(len(weight))
    level[filled] = isotonic_regression((members * balance)[filled] / weight[filled], sample_weight=weight[filled])
    level = np.maximum.accumulate(level)
    _, block = np.unique(level, return_inverse=True)
    inside, outside = (np.bincount(block, side)[block] + 0.5 for side in (members, others))
    ends = [beta.ppf(p, inside, outside) for p in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)]
    shares = np.stack([inside / (inside + outside), *ends])
    at_even_odds = shares * balance / (shares * balance + 1 - shares)
    return lambda asked: at_even_odds[:, np.searchsorted(edges, asked)]
