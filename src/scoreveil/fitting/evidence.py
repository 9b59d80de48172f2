"""The evidence of a decision (`decision.py`): what leaks beyond the label, raw and veiled, and what the veil is worth.

    found = evidence(veil, nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in)
    decide(found)

Both are measured on all records, each fifth of them behind a veil that was fitted on the others, so they are about the
procedure. The attack is a likelihood ratio, learned on the other fifths: how much more often members have such a label
(and are right), times how much more often they then have such a confidence. Without the second factor it is what the
label alone tells. How far the first AUC lies above the other one has a bound by DeLong's method, of the same records.

An attacker who knows the true label sees what is announced for that. The one who gains more decides. A veil fitted
with `beyond="correctness"` lets the confidence tell whether the label is right: there, only this attacker counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.extras import needs
from scoreveil.files.records import Scored, Source
from scoreveil.fitting.cost import ScoredAnswers, confidence, cross_fitted
from scoreveil.fitting.decision import Bounded, Evidence, Excess
from scoreveil.fitting.metrics import log_loss
from scoreveil.fitting.records import read_both
from scoreveil.mechanisms.promises import RegionCounts
from scoreveil.shapes import VECTORS
from scoreveil.veil import Veil

with needs("fit"):
    pass

from scoreveil.fitting.metrics import placements

Bools = NDArray[np.bool_]

ERROR = 0.05  # how often a bound may be wrong
BINS = 20  # of the confidence, with about as many records in each
PRIOR = 5.0  # records' worth of "as often among members as among others"


def evidence(
    veil: Veil,
    nonmembers: Source,
    nonmember_labels: Source = None,
    members: Source = None,
    member_labels: Source = None,
    *,
    held_out: bool = False,
    **options: Any,
) -> Evidence:
    """What there is to go by about a veil on these records, which are given as for `fit`.

    The options are the other arguments that it was fitted with. One that was not fitted on these records (`held_out`)
    is measured itself, and not by veils that are fitted on four fifths of them each.
    """
    others, inside, _ = read_both(
        nonmembers, nonmember_labels, members, member_labels, shape=options.get("shape", VECTORS)
    )
    # measured twice, the same comes out: nothing here is released
    answers = cross_fitted(others, inside, np.random.default_rng(0), veil if held_out else None, **options)
    return evidence_of(answers, veil, options.get("beyond", "label"))


def evidence_of(answers: ScoredAnswers, veil: Veil, beyond: str = "label") -> Evidence:
    """The same of answers that were made already."""
    others, inside = answers.others, answers.members
    return Evidence(
        leak=None if inside is None else leak(answers, "raw", beyond),
        veiled=None if inside is None else leak(answers, "veiled", beyond),
        worth=None if others.labels is None else _worth(answers),
        confidences=confidences(veil),
        epsilon=None if np.isinf(veil.epsilon) else float(veil.epsilon),
        records=(0 if inside is None else inside.records, others.records),
        smoothed=veil.smoothing is not None,
    )


def may_be_fitted_on(veil: Veil, members: int, nonmembers: int) -> bool:
    """Whether a veil was fitted on as many records as these."""
    counted = (part.evidence for part in veil.mechanism.maps)
    return any(counts is not None and counts.sizes == (nonmembers, members) for counts in counted)


def options_of(veil: Veil) -> dict[str, Any]:
    """What a veil was fitted with, as far as its file says: arguments of `fit`."""
    counts: RegionCounts | None = next((part.evidence for part in veil.mechanism.maps if part.evidence), None)
    asked = {} if counts is None else {"advantage": float(counts.asked), "beyond": counts.beyond}
    return {**asked, "epsilon": None if np.isinf(veil.epsilon) else float(veil.epsilon), "shape": veil.shape}


def confidences(veil: Veil) -> int:
    """How many different ones a fitted veil announces for one label, at most."""
    rows = (row for part in veil.mechanism.maps for row in (part.announced if not part.is_constant else [[0.0]]))
    return max(len(np.unique(row)) for row in rows)


def _worth(answers: ScoredAnswers) -> Bounded:
    """How far the veil's log-loss is below that of the label alone, over records."""
    others = answers.others
    alone, veiled = (log_loss(answers.to_others[way], others.true_labels) for way in ("label", "veiled"))
    gain = (alone - veiled).reshape(-1, others.releases).mean(axis=1)
    reach = NormalDist().inv_cdf(1 - ERROR / 2) * float(gain.std(ddof=1)) / len(gain) ** 0.5
    return Bounded(float(gain.mean()), float(gain.mean()) - reach, float(gain.mean()) + reach)


# What leaks


@dataclass(frozen=True, eq=False)
class _Side:
    """What an attacker sees of the members, or of the others."""

    group: Integers  # the label, and whether it is right where that is known
    right: Integers
    announced: Floats  # for the label; for the true one where that is known
    fold: Integers
    record: Integers  # of several answers about one


def leak(answers: ScoredAnswers, way: str, beyond: str = "label") -> Excess:
    """How much a way of answering tells beyond the label, by the attacker who gains most."""
    others, members = answers.others, answers.members
    assert members is not None, "without them nothing is told apart"
    is_labelled = others.labels is not None and members.labels is not None
    parts = others.labels_each
    knowledge = [True] if is_labelled and beyond == "correctness" else [False, True] if is_labelled else [False]
    tests = parts * len(knowledge)
    gains = []
    for knows_truth in knowledge:
        inside = _sides(members, answers.to_members[way], answers.member_folds, parts, knows_truth)
        outside = _sides(others, answers.to_others[way], answers.folds, parts, knows_truth)
        gains += [_excess(*pair, tests) for pair in zip(inside, outside, strict=True)]
    return Excess(*(max(getattr(gain, name) for gain in gains) for name in ("value", "low", "high")))


def _sides(records: Scored, said: Floats, folds: Integers, parts: int, knows_truth: bool) -> Iterator[_Side]:
    """All answers; of many labels those about each."""
    announced, right = confidence(records, said), np.zeros(len(records), dtype=np.int64)
    if knows_truth:
        right = records.is_right.astype(np.int64)
        announced = np.take_along_axis(said, records.true_labels[:, None], axis=1)[:, 0]
    announced = np.round(announced, 9)  # what differs by rounding alone is the same
    record = np.repeat(np.arange(records.records), records.releases)
    for part in range(parts):
        these = slice(part, None, parts)
        group = 2 * records.predicted[these] + right[these]
        yield _Side(group, right[these], announced[these], folds[record[these]], record[these])


def _excess(members: _Side, others: _Side, tests: int) -> Excess:
    """The AUC of an attack on the confidence, above that of the label and above guessing."""
    with_it, alone = _attacked(members, others)
    attack, floor = placements(*with_it), placements(*alone)
    chance = tuple(np.full_like(values, 0.5) for values in attack)
    reach = NormalDist().inv_cdf(1 - ERROR / 2 / tests)  # half of the error is left for the attacks of an audit
    above = []
    for level in (floor, chance):
        gained = [
            _by_record(mine - its, side.record)
            for mine, its, side in zip(attack, level, (members, others), strict=True)
        ]
        value = float(attack[0].mean() - level[0].mean())
        error = sum(float(values.var(ddof=1)) / len(values) for values in gained) ** 0.5
        above.append((value, value - reach * error, value + reach * error))
    return Excess(*(min(ends) for ends in zip(*above, strict=True)))


def _attacked(members: _Side, others: _Side) -> tuple[list[Floats], list[Floats]]:
    """What the attack says of members and of others, with the confidence and without it."""
    groups = int(max(members.group.max(), others.group.max())) + 1
    edges = np.unique(
        np.concatenate([_quantiles(side.announced[side.right == r]) for side in (members, others) for r in (0, 1)])
    )
    bins = [np.searchsorted(edges, side.announced, side="right") for side in (members, others)]
    size = len(edges) + 1
    cells = [side.right * size + each for side, each in zip((members, others), bins, strict=True)]
    with_it, alone = ([np.empty(len(side.group)) for side in (members, others)] for _ in range(2))
    for number in np.unique(others.fold):
        known = [side.fold != number for side in (members, others)]
        inside, outside = (
            np.bincount(side.group[those], minlength=groups)
            for side, those in zip((members, others), known, strict=True)
        )
        of_group = _ratio(inside, outside * (inside.sum() / outside.sum()))
        weights = of_group[others.group[known[1]]] * (inside.sum() / outside.sum())
        of_cell = _ratio(
            np.bincount(cells[0][known[0]], minlength=2 * size),
            np.bincount(cells[1][known[1]], weights, minlength=2 * size),
        )
        for which, side in enumerate((members, others)):
            these = ~known[which]
            alone[which][these] = np.log(of_group[side.group[these]])
            with_it[which][these] = alone[which][these] + np.log(of_cell[cells[which][these]])
    return with_it, alone


def _quantiles(announced: Floats) -> Floats:
    """Edges of bins: none of a few records."""
    if not len(announced):
        return np.empty(0)
    bins = min(BINS, 1 + len(announced) // BINS)
    return np.asarray(np.quantile(announced, np.arange(1, bins) / bins))


def _ratio(members: Floats | Integers, others: Floats | Integers) -> Floats:
    return np.asarray((members + PRIOR) / (others + PRIOR), dtype=np.float64)


def _by_record(values: Floats, record: Integers) -> Floats:
    counts = np.bincount(record)
    return np.asarray(np.bincount(record, values) / np.maximum(counts, 1))
