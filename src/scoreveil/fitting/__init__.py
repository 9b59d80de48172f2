"""The best veil for a model: the most useful table that keeps both promises, found by a linear program.

    from scoreveil import fit

    veil = fit(epsilon=4.0, nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in, advantage=0.02)
    z = veil(scores)              # the label kept; the top score is how often such answers are right
    print(veil.guarantee)

Records are read through private histograms alone (`histograms.py`), the program is solved (`program.py`), its table is
rounded to integers (`rounding.py`), verified apart from the solver (`Channel.verify`), and its advantage is stated
for new records (`slack.py`). One table serves all labels of a record that has many; what each says is read off the
answer (`readout.py`). What a veil costs is measured apart, for one ε (`cost.py`) or several (`frontier.py`).
Needs `pip install 'scoreveil[fit]'`; the veil that comes out needs numpy alone.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from scoreveil.fitting import histograms, rounding
from scoreveil.fitting.histograms import Floats, Integers, Places
from scoreveil.fitting.program import Attacker, Solution, candidates, solve
from scoreveil.fitting.readout import read_out
from scoreveil.fitting.records import Scored, read_both
from scoreveil.fitting.slack import CONFIDENCE, slack
from scoreveil.mechanisms import promises
from scoreveil.mechanisms.channel import NEAREST, Channel, shown
from scoreveil.mechanisms.promises import Evidence
from scoreveil.mechanisms.scores import check_epsilon
from scoreveil.shapes import ManyLabels, OneColumn, Shape
from scoreveil.veil import Veil

__all__ = ["fit"]

Objective = Literal["calibration", "fidelity"]

LEAST_ADVANTAGE = 1e-4
HAIR = 1e-6  # by which the program is held tighter, so that rounding has room


def fit(
    epsilon: float,
    nonmembers: Any,
    nonmember_labels: Any = None,
    members: Any = None,
    member_labels: Any = None,
    *,
    advantage: float = 0.02,
    keep: int = 1,
    objective: Objective | None = None,
    shape: Shape | None = None,
    rng: histograms.Draws | None = None,
    model: str = "",
    columns: str | None = None,
) -> Veil:
    """Fit the most useful veil that keeps ε, and against the crowd the advantage.

    Scores and labels are arrays, torch tensors, DataFrames, or paths of files.

    Args:
        epsilon: How much an answer shows beyond the kept classes, whatever an attacker knows.
        nonmembers: Scores (n, k) of records that the model was not trained on.
        nonmember_labels: Their true classes, as numbers or names: then answers announce how often such answers are
            right.
        members: Scores of records that it was trained on: then the advantage is bounded too.
        member_labels: Their true classes: then also for attackers who are told the true label.
        advantage: By how much an attack on the fitted records may exceed guessing (TPR - FPR), beyond what the label
            gives. For new records `veil.guarantee.advantage` holds, which is larger, and falls with their number.
        keep: How many top classes keep their place.
        objective: "calibration", the default with labels; or "fidelity": announced near the raw score.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.OneColumn()`, `ManyLabels()` or
            `MoreAxes()`. Labels of one column are 0 and 1, of many a matrix of them; of places, classes (n, t).
        rng: A numpy Generator for the noise on the histograms, for tests; without one it is cryptographic.
        model: A name for the veil.
        columns: Of DataFrames and files: the columns of the scores, as names or patterns with commas between.

    Returns:
        A `Veil` whose mechanism is a `Channel`.

    Raises:
        ValueError: The records are not scores or labels, or an argument is out of range.
    """
    check_settings(epsilon, advantage)
    others, inside, _ = read_both(nonmembers, nonmember_labels, members, member_labels, columns, shape)
    if isinstance(shape, (OneColumn, ManyLabels)) and keep != 1:
        raise ValueError(f"Of a yes or no there is one to keep: expected keep to be 1, got {keep!r}.")
    if isinstance(keep, bool) or not isinstance(keep, (int, np.integer)) or not 1 <= keep <= others.classes:
        raise ValueError(f"Expected keep to be a whole number from 1 to {others.classes}, got {keep!r}.")
    if objective is None:
        objective = "calibration" if others.labels is not None else "fidelity"
    if objective not in get_args(Objective):
        raise ValueError(f"Expected objective 'calibration' or 'fidelity', got {objective!r}.")
    if objective == "calibration" and others.labels is None:
        raise ValueError("The objective 'calibration' needs nonmember_labels.")
    by_label, draw = objective == "calibration", histograms.uniforms(rng)
    found = _fitted(float(epsilon), others, inside, float(advantage), int(keep), by_label, draw)
    if isinstance(shape, (OneColumn, ManyLabels)):
        shape = replace(shape, readout=read_out(found, others, shape, by_label, draw))
    return Veil(found, shape=shape, model=model)


def check_settings(epsilon: float, advantage: float) -> None:
    """Refuse what `fit` would refuse, for those who have to train first."""
    check_epsilon(epsilon)
    if not LEAST_ADVANTAGE <= advantage <= 1:
        raise ValueError(f"Expected an advantage from {LEAST_ADVANTAGE:g} to 1, got {advantage}.")


def _fitted(
    epsilon: float,
    others: Scored,
    members: Scored | None,
    advantage: float,
    keep: int,
    by_label: bool,
    draw: histograms.Uniforms,
) -> Channel:
    every_edge = histograms.fixed_edges(others.classes)
    fine = _bins(others, every_edge)
    weights = histograms.outcome_weights(others, keep, by_label)
    # what the profile does not spend; where labels have read-outs, these need the rest
    spare = 0.0 if histograms.has_profile(others) else histograms.NOISE
    reads_out = isinstance(others.shape, (OneColumn, ManyLabels))
    of_totals = spare if reads_out else histograms.NOISE_OF_TOTALS + spare
    outcome = histograms.outcomes(fine, weights, len(every_edge) + 1, draw, of_totals)
    group = histograms.joined(outcome)
    edges = every_edge[np.diff(group) > 0]
    count = len(edges) + 1
    outcome = np.stack([np.bincount(group, weights=column, minlength=count) for column in outcome.T], axis=1)
    table_of_class, profile = histograms.profile(others, by_label, draw)
    places = None
    if members is not None:
        places = histograms.places(others, members, (group[fine], group[_bins(members, every_edge)]), count, draw)

    evidence = None if places is None else _evidence(places, advantage)
    solution = best_table(outcome, epsilon, evidence)
    joined = rounding.join_answers(solution.table, outcome)
    shares = outcome.sum(axis=1) / outcome.sum()
    for blend in (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
        # towards the same row for all, which keeps every promise: what rounding broke is mended
        blended = (1 - blend) * joined + blend * (shares @ joined)
        whole = rounding.to_integers(blended, epsilon) if blend < 1 else rounding.constant(blended, shares)
        if whole is None:
            continue
        stated = None if evidence is None else _stated(whole, evidence)
        announced = announced_rates(whole / promises.WHOLE, outcome, others.classes)
        made = Channel(epsilon, keep, edges, whole, announced, table_of_class, profile, stated)
        try:
            made.verify()
        except ValueError:
            continue
        return made
    raise RuntimeError("No table was found that keeps the promises; this is a defect of Scoreveil.")


def best_table(outcome: Floats, epsilon: float, evidence: Evidence | None) -> Solution:
    """The program for histograms (bins, ranks) of outcomes, in records, and what the evidence holds it to."""
    records = outcome.sum(axis=1)
    shares = records / records.sum()
    rates = histograms.monotone((outcome[:, 0] + 0.5) / (records + 1), records + 1)
    held = [] if evidence is None else attackers(evidence)
    return solve(shares, rates, candidates(rates), epsilon * (1 - HAIR), held)


def attackers(evidence: Evidence) -> list[Attacker]:
    """The attackers that the program bounds, as `promises` measures them."""
    others, members = evidence.counts / evidence.counts.sum(axis=(1, 2, 3), keepdims=True)
    allowance = evidence.advantage * (1 - HAIR) - HAIR * LEAST_ADVANTAGE
    found = [Attacker((members - others).sum(axis=(0, 1))[None], allowance)]
    if evidence.counts.shape[1] > 1:
        labels = evidence.smoothed / evidence.smoothed.sum(axis=(1, 2), keepdims=True)
        total = labels.sum(axis=2, keepdims=True)
        within = np.divide(labels, total, out=np.zeros_like(labels), where=total > 0)
        found.append(Attacker(total.min(axis=0) * (within[1] - within[0]), allowance))
    if evidence.is_labelled:
        weights = (members - others).sum(axis=0)
        own = float(np.abs(weights.sum(axis=1)).sum() / 2)
        found.append(Attacker(weights, own + allowance))
    return found


def _bins(records: Scored, edges: Floats) -> Integers:
    return np.asarray(np.searchsorted(edges, records.scores.max(axis=1), side="right"))


def _evidence(places: Places, advantage: float) -> Evidence:
    counts = histograms.in_sixteenths(places.histogram)
    smooth = histograms.in_sixteenths(histograms.smoothed(places.histogram))
    return Evidence(places.group_of_class, counts, smooth, slack(places), np.ones(3), advantage, CONFIDENCE)


def _stated(table: Integers, evidence: Evidence) -> Evidence:
    """The evidence with the upper bounds that follow for this table."""
    stated = np.ones(3)
    for attacker in evidence.attackers:
        stated[attacker] = promises.rounded_up(promises.stated_advantage(table, evidence, attacker))
    return Evidence(
        evidence.group_of_class, evidence.counts, evidence.smoothed, evidence.slack, stated, evidence.advantage,
        evidence.confidence,
    )  # fmt: skip


def announced_rates(table: Floats, outcome: Floats, classes: int) -> Floats:
    """How often each rank is right, given each answer; never 0 or 1.

    Each answer has a record's worth of all answers added, and one of each outcome: half for what few records leave open
    (Jeffreys), half for the noise.
    """
    keep = outcome.shape[1] - 1
    counts = table.T @ outcome
    counts = counts + outcome.sum(axis=0) / outcome.sum() + 1
    rates = counts / counts.sum(axis=1, keepdims=True)
    factor = 1 + min(2.0**-8, 1 / (8 * keep))
    made = []
    for rate in rates:
        falling = np.minimum.accumulate(rate[:keep])
        if classes == keep:
            falling = falling / falling.sum()
        made.append(shown(falling.tolist(), classes, factor, 2 * NEAREST))
    return np.array(made)
