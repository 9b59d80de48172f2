"""The fit of a veil: a map of score vectors to a few regions that members and others fall into alike.

    from scoreveil import fit

    veil = fit(nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in, advantage=0.02)
    z = veil(scores)              # the label kept; the top score is how often such answers are right
    print(veil.guarantee)

Records are read through noisy histograms alone (`releases.py`) on fixed bins (`grid.py`). These are smoothed
(`estimates.py`), the best map is found by a linear program (`program.py`), its regions are counted once more, and what
is stated for new records is computed from those counts (`mechanisms/promises.py`). With ε, a table stands on top of the
map. What a veil costs is measured apart (`cost.py`), and what to do with the scores decided from that (`decision.py`,
`evidence.py`). Needs `pip install 'scoreveil[fit]'`; the veil needs numpy alone.
"""

import math
import warnings
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from scoreveil.files.records import Scored
from scoreveil.fitting.estimates import Estimates, beyond_chance, estimate, label_tilts
from scoreveil.fitting.grid import PAIRS, PARTS, STEPS, Grid
from scoreveil.fitting.program import Attacker, best_map, best_table
from scoreveil.fitting.records import check_doubts, read_both
from scoreveil.fitting.recount import shortage
from scoreveil.fitting.releases import BUDGET, UNIT, Draws, Floats, Integers, Releases, Side, clipped
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import MAX_LABELS, SIXTEENTHS, WHOLE, Evidence
from scoreveil.mechanisms.regions import MAX_REGIONS, NEAREST, Regions
from scoreveil.mechanisms.scores import check_epsilon
from scoreveil.shapes import VECTORS, Shape, given
from scoreveil.smoothing import Smoothing
from scoreveil.veil import Veil

__all__ = ["fit"]

Beyond = Literal["label", "correctness"]

MIN_ADVANTAGE = 1e-4
MIN_CERTIFIED, MAX_CERTIFIED = 0.05, 0.95
RECORDS_OF_LABEL = 300  # with so many on average, labels are told apart
FEW_REGIONS = 6  # where few records support no more, and fewer are stated more tightly about
TIED = 0.15  # of a bin's records: if more share one top score, the bin cannot be cut
HIDDEN = 0.35  # over √n: how much of the advantage on new records chance hides on the records of the fit
SMALLEST = 0.004  # share of the others: a smaller region joins its neighbour
ANSWER_WEIGHT = 5.0  # records' worth of the overall accuracy in what a region announces
SIDE_WEIGHT = 40.0  # of what both labels of two show, in what a region announces for one of them


def fit(
    nonmembers: Any,
    nonmember_labels: Any = None,
    members: Any = None,
    member_labels: Any = None,
    *,
    advantage: float = 0.02,
    epsilon: float | None = None,
    beyond: Beyond = "label",
    regions: int = MAX_REGIONS,
    certify: float | None = None,
    shape: Shape = VECTORS,
    force: bool = False,
    rng: Draws | None = None,
    model: str = "",
    columns: str | None = None,
    smoothing: Smoothing | None = None,
    overlap: bool = False,
) -> Veil:
    """Fit the veil of the least Brier score, on its bins, under which members and others are alike.

    Scores and labels are arrays, torch tensors, DataFrames, or paths of files.

    Args:
        nonmembers: Scores (n, k) of records that the model was not trained on.
        nonmember_labels: Their true classes, as numbers or names: then a region announces how often its answers are
            right; without, its mean top score.
        members: Scores of records that it was trained on: then the advantage is bounded.
        member_labels: Their true classes: then also for attackers who know them.
        advantage: By how much an attack on the fitted records may exceed guessing (true less false positive rate),
            beyond what it sees in any case. `veil.guarantee.advantage` is what holds for new records; it is larger, and
            falls with their number.
        epsilon: None announces the region as it is. With ε each answer also promises, about any single record, that no
            attacker's odds change by more than e^ε; fresh answers add up.
        beyond: "label": the answer adds at most the advantage to what the label tells. "correctness": to what someone
            knows who has the label and knows whether it is right; someone who does not know learns as much more as
            being right tells.
        regions: How many there may be, 1 to 8.
        certify: The part of the records to hold back from choosing the map, such as 0.3: what is stated is then a
            theorem instead of an estimate. It tells something from some 2,000 records on.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.OneColumn()`, `ManyLabels()` or
            `MoreAxes()`. Labels of one column are 0 and 1, of many a matrix of them; of places, classes (n, t).
        force: Fit even if the two sides seem to be swapped, to be the same, or to have labels of other records.
        rng: A numpy Generator for the noise on the histograms, for tests; without one it is cryptographic.
        model: A name for the veil.
        columns: Of DataFrames and files: the columns of the scores, as names or patterns with commas between.
        smoothing: Where all scores given are `smoothed_scores`: their smoothing, which is saved with the veil.
        overlap: Whether the same records are on both sides, as with out-of-fold scores: then the fit costs each of them
            what it costs a member and another record together, and that is stated.

    Returns:
        A `Veil` whose mechanism is `Regions`; of many labels, one for each.

    Raises:
        ValueError: The records are not scores or labels, seem to be mixed up, or an argument is out of range.
    """
    settings = check_settings(advantage, epsilon, beyond, regions, certify)
    given(shape)
    if rng is not None and not callable(getattr(rng, "random", None)):
        raise ValueError(f"Expected rng to be a numpy Generator, such as np.random.default_rng(0), got {rng!r}.")
    others, inside, _ = read_both(nonmembers, nonmember_labels, members, member_labels, columns, shape)
    if inside is not None and inside.labels is None and beyond == "correctness":
        raise ValueError("beyond='correctness' needs labels of members and nonmembers: they say what is right.")
    if not force:
        check_doubts(others, inside)
    if inside is None:
        promise = "by ε alone" if epsilon is not None else "by nothing"
        warnings.warn(
            f"No members were given: what answers tell about membership is bounded {promise}. Give members=….",
            stacklevel=2,
        )
    draw = Releases.drawn(rng).draw
    labels = others.by_label()
    pairs = zip(labels, [None] * len(labels) if inside is None else inside.by_label(), strict=True)
    maps = tuple(_fitted(*pair, settings, Releases(draw)) for pair in pairs)
    mechanism: Regions | PerLabel = PerLabel.of(maps) if shape.has_labels else maps[0]
    if overlap:
        mechanism = mechanism.with_overlap()
    veil = Veil(mechanism, shape=shape, model=model, smoothing=smoothing)
    if veil.is_constant:
        warnings.warn(constant_words(veil.epsilon, others, regions), stacklevel=2)
    said = (shortage(each.evidence) for each in mechanism.maps if each.evidence is not None)
    for warning in {text for text in said if text is not None}:
        warnings.warn(warning, stacklevel=2)
    return veil


@dataclass(frozen=True)
class Settings:
    """The arguments of `fit` that are not records, checked."""

    advantage: float
    epsilon: float | None
    beyond: Beyond
    regions: int
    certify: float | None


def check_settings(
    advantage: float = 0.02,
    epsilon: float | None = None,
    beyond: Beyond = "label",
    regions: int = MAX_REGIONS,
    certify: float | None = None,
) -> Settings:
    """Refuse what `fit` would refuse, for those who have to train first."""
    if epsilon is not None:
        check_epsilon(epsilon)
    if not _is_within(advantage, MIN_ADVANTAGE, 1):
        raise ValueError(f"Expected an advantage from {MIN_ADVANTAGE:g} to 1, got {advantage!r}.")
    if beyond not in get_args(Beyond):
        raise ValueError(f"Expected beyond to be 'label' or 'correctness', got {beyond!r}.")
    if isinstance(regions, bool) or not isinstance(regions, (int, np.integer)) or not 1 <= regions <= MAX_REGIONS:
        raise ValueError(f"Expected regions to be a whole number from 1 to {MAX_REGIONS}, got {regions!r}.")
    if certify is not None and not _is_within(certify, MIN_CERTIFIED, MAX_CERTIFIED):
        raise ValueError(f"Expected certify to be a part from {MIN_CERTIFIED:g} to {MAX_CERTIFIED:g}, got {certify!r}.")
    return Settings(float(advantage), None if epsilon is None else float(epsilon), beyond, int(regions), certify)


def _is_within(value: Any, least: float, most: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and least <= float(value) <= most


def constant_words(epsilon: float, others: Scored, regions: int = MAX_REGIONS) -> str:
    """What to say of a veil that announces one confidence for all, and why it does."""
    records = others.records
    if regions == 1:
        why = "One region, as you asked for, has one confidence."
    elif np.ptp(others.scores.max(axis=1)) == 0:
        why = "The top scores of the nonmembers are all the same, so there is nothing to tell them apart by."
    elif not math.isinf(epsilon):
        why = f"ε = {epsilon:g} may leave too little to be worth telling: take a larger one, or none."
    else:
        why = f"{records:,} records were too few, or the model's confidence says little; about {4 * records:,} may do."
    return f"This veil announces the same confidence for every answer: it tells no more than the label. {why}"


# The fit


@dataclass(frozen=True, eq=False)
class _Map:
    """A map as it is found: what `Regions` takes, before anything is announced."""

    strips: Floats
    cuts: Floats
    regions: Integers
    share: Floats  # of the others, by region
    rate: Floats  # how often they are right
    atoms: float

    @property
    def size(self) -> int:
        return len(self.share)

    def of(self, scores: Floats) -> Integers:
        """The region of each row."""
        return np.asarray(_placeholder(self, scores.shape[1]).read(scores)[1])


def _fitted(others: Scored, members: Scored | None, settings: Settings, releases: Releases) -> Regions:
    chosen_on, counted_on = _parts(others, settings.certify, releases)
    inside = inside_counted = None
    if members is not None:
        inside, inside_counted = _parts(members, settings.certify, releases)
    is_apart = settings.certify is not None
    by_label = _tells_labels_apart(others, members, settings.certify)
    found = _best_map(chosen_on, inside, settings, releases, by_label, "chosen" if is_apart else "")
    return _counted(found, counted_on, inside_counted, settings, releases, by_label)


def _parts(records: Scored, certify: float | None, releases: Releases) -> tuple[Scored, Scored]:
    """The records that the map is chosen on, and those that its regions are counted on."""
    if certify is None:
        return records, records
    order = np.argsort(releases.draw(records.records), kind="stable")
    held = round(certify * records.records)
    if not 1 <= held < records.records:
        raise ValueError(f"Expected records enough to hold a part of {certify:g} back, got {records.records}.")
    return records.take(np.sort(order[held:])), records.take(np.sort(order[:held]))


def _tells_labels_apart(others: Scored, members: Scored | None, certify: float | None) -> bool:
    """Whether each label has records enough to be counted by itself; by public numbers alone."""
    if members is None:
        return False
    k, fewest = others.classes, min(others.records, members.records)
    if certify is not None:
        fewest = round(fewest * min(certify, 1 - certify))
    return k <= MAX_LABELS and fewest >= RECORDS_OF_LABEL * k


def _budget(side: Side, name: str, by_label: bool, is_apart: bool) -> float:
    """ε₀ of a release: what has no use goes to the bins, and of two parts each has all of it."""
    parts = dict(BUDGET[side])
    if not by_label:
        parts["bins"] += parts.pop("labels")
    if is_apart:
        spent = sum(parts.values())
        if name == "regions":
            return spent
        parts["bins"] += parts.pop("regions")
    return parts[name]


def _best_map(
    others: Scored, members: Scored | None, settings: Settings, releases: Releases, by_label: bool, part: str
) -> _Map:
    size = min(others.records, others.records if members is None else members.records)
    grid = Grid(others.classes, pairs=others.classes > 2 and size >= PAIRS)
    bins, is_apart = grid.bins, bool(part)

    def budget(side: Side, name: str) -> float:
        return _budget(side, name, by_label, is_apart)

    def counted(records: Scored, side: Side, places: Integers, count: int) -> Floats:
        """(truths, bins), in records."""
        weights = _truths(records, side)
        truths = weights.shape[1]
        cells = places[:, None] + count * np.arange(truths)
        return releases.histogram("bins", side, cells, (truths, count), budget(side, "bins"), weights, part)

    fine = grid.fine(others.scores)
    fine_counts = clipped(counted(others, "other", fine, bins * PARTS))
    other_counts = fine_counts.reshape(2, bins, PARTS).sum(axis=2)
    whole = _atoms(others, fine // PARTS, other_counts.sum(axis=0), releases, budget("other", "ties"), part)
    member_bins = member_counts = None
    if members is not None:
        member_bins = grid.fine(members.scores) // PARTS
        member_counts = clipped(counted(members, "member", member_bins, bins))
    estimates = estimate(other_counts, member_counts, grid, budget("member", "bins"))
    attackers = []
    if members is not None:
        assert member_bins is not None
        apart = None
        if by_label:
            apart = _by_label(
                (others, members), (fine // PARTS, member_bins), grid, releases,
                (budget("other", "labels"), budget("member", "labels")), part,
            )  # fmt: skip
        sizes = others.records, members.records
        estimates = beyond_chance(estimates, whole, sizes, budget("member", "bins"))
        attackers = _attackers(estimates, apart, settings, size, is_labelled=members.labels is not None)
    answers = min(settings.regions, MAX_REGIONS if size >= PAIRS else FEW_REGIONS)
    solution, atoms = best_map(estimates.share, estimates.rate, answers, attackers, whole)
    table = _joined(solution.table, estimates, answers)
    return _cut(table, estimates, fine_counts.sum(axis=0), grid, atoms)


def _truths(records: Scored, side: Side) -> Floats:
    """How much each record counts as wrong and as right, (n, 2): without labels as its top score has it.

    Members without labels count once, (n, 1): what they are right about says nothing.
    """
    part = _part_of_record(records)
    if records.labels is None and side == "member":
        return part[:, None]
    right = part * (records.scores.max(axis=1) if records.labels is None else records.is_right)
    right = np.rint(right * UNIT) / UNIT
    return np.stack([part - right, right], axis=1)


def _part_of_record(records: Scored) -> Floats:
    """What part of its record each vector is, in whole units: those of a record sum to 1 exactly, however many."""
    units = np.diff(np.arange(records.releases + 1) * UNIT // records.releases)
    return np.tile(units / UNIT, records.records)


def _atoms(others: Scored, places: Integers, counts: Floats, releases: Releases, epsilon: float, part: str) -> Any:
    """Which bins cannot be cut, since many of their records share one top score.

    How many share the commonest score of a bin changes by at most 1 with a record, and in its own bin alone.
    """
    pairs = np.stack([places.astype(np.float64), others.scores.max(axis=1)], axis=1)
    values, shared = np.unique(pairs, axis=0, return_counts=True)
    most = np.zeros(len(counts))
    np.maximum.at(most, values[:, 0].astype(np.int64), shared)
    every = np.arange(len(counts))
    noisy = releases.histogram("ties", "other", every, every.shape, epsilon, most / others.releases, part)
    by_noise = 2 * math.sqrt(2) / epsilon  # two standard deviations: few records must not look tied
    return noisy > TIED * counts + by_noise


def _by_label(
    sides: tuple[Scored, Scored], places: tuple[Integers, Integers], grid: Grid, releases: Releases,
    noise: tuple[float, float], part: str,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The share of each label on both sides (2, k), and how its records lie in the steps, as `label_tilts` has it."""
    names: tuple[Side, Side] = ("other", "member")
    counts = []
    for side, where, name, epsilon in zip(sides, places, names, noise, strict=True):
        cells = side.predicted * STEPS + where % STEPS
        weights = _part_of_record(side)
        noisy = releases.histogram("labels", name, cells, (grid.classes, STEPS), epsilon, weights, part)
        counts.append(clipped(noisy))
    both = np.stack(counts)
    return both.sum(axis=2) / both.sum(axis=(1, 2))[:, None], label_tilts(both, noise)


def _attackers(
    estimates: Estimates, by_label: tuple[Floats, Floats] | None, settings: Settings, size: int, is_labelled: bool
) -> list[Attacker]:
    """Those whom the program bounds: a little tighter than was asked for, for what chance hides in so few records."""
    allowance = settings.advantage - min(settings.advantage / 2, HIDDEN / math.sqrt(size))
    gap = estimates.members - estimates.share
    right, wrong = (each[1] - each[0] for each in (estimates.right, estimates.wrong))
    attackers = []
    if settings.beyond == "correctness" and is_labelled:
        weights = []
        for others, members in (estimates.right, estimates.wrong):
            weight = min(float(others.sum()), float(members.sum()))
            weights.append(weight * (members / max(members.sum(), 1e-12) - others / max(others.sum(), 1e-12)))
        return [Attacker(np.stack(weights), allowance)]
    attackers.append(Attacker(gap[None], allowance))
    if is_labelled:
        own = (abs(float(right.sum())) + abs(float(wrong.sum()))) / 2
        attackers.append(Attacker(np.stack([right, wrong]), own + allowance))
    if by_label is not None:
        shares, tilts = by_label
        step = np.arange(len(gap)) % STEPS
        others, members = (
            base * np.exp(np.clip(tilt[:, step], -20, 20))
            for base, tilt in zip((estimates.share, estimates.members), tilts, strict=True)
        )
        within = members / members.sum(axis=1, keepdims=True) - others / others.sum(axis=1, keepdims=True)
        attackers.append(Attacker(shares.min(axis=0)[:, None] * within, allowance))
    return attackers


def _cut(table: Floats, estimates: Estimates, fine: Floats, grid: Grid, atoms: float) -> _Map:
    """The map of a table: a bin that is shared by several answers is cut where its others have come so far."""
    edges = np.concatenate([[1 / grid.classes], grid.fine_edges, [1.0]])
    strips = len(grid.strips) + 1
    pieces: list[list[tuple[float, int]]] = []  # of each strip: where a region begins
    for strip in range(strips):
        begins: list[tuple[float, int]] = []
        for step in range(STEPS):
            b = strip * STEPS + step
            counts = fine[b * PARTS : (b + 1) * PARTS] + 0.25
            reached = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
            ends = edges[step * PARTS : (step + 1) * PARTS + 1]
            done = 0.0
            for region in np.flatnonzero(table[b]).tolist():
                at = _between(ends, float(np.interp(done, reached, np.arange(PARTS + 1))))
                if not begins or begins[-1][1] != region:
                    begins.append((at, region))
                done += float(table[b, region])
        pieces.append(begins)
    width = max(map(len, pieces)) - 1
    cuts, regions = np.full((strips, width), np.inf), np.zeros((strips, width + 1), dtype=np.int64)
    for strip, begins in enumerate(pieces):
        cuts[strip, : len(begins) - 1] = [at for at, _ in begins[1:]]
        regions[strip] = [*(region for _, region in begins), *[begins[-1][1]] * (width + 1 - len(begins))]
    share = table.T @ estimates.share
    return _Map(grid.strips, cuts, regions, share, table.T @ (estimates.share * estimates.rate) / share, atoms)


def _between(ends: Floats, place: float) -> float:
    """The score at a place between edges, by logits: 1.5 is half way from the second to the third."""
    part = min(int(place), len(ends) - 2)
    low, high = (math.log(e / (1 - e)) for e in np.clip(ends[part : part + 2], 1e-9, 1 - 1e-9).tolist())
    logit = low + (place - part) * (high - low)
    return float(ends[part]) if place == part else 1 / (1 + math.exp(-logit))


def _joined(table: Floats, estimates: Estimates, regions: int) -> Floats:
    """Neighbouring answers that say least more apart are joined, until there are few enough and none is of few records.

    To join two regions never breaks a promise.
    """
    table = table[:, table.sum(axis=0) > 0].copy()
    while table.shape[1] > 1:
        share = table.T @ estimates.share
        right = table.T @ (estimates.share * estimates.rate)
        pair_share, pair_right = share[1:] + share[:-1], right[1:] + right[:-1]
        loss = _information(share[1:], right[1:]) + _information(share[:-1], right[:-1])
        loss = loss - _information(pair_share, pair_right)
        loss = np.where(np.minimum(share[1:], share[:-1]) < SMALLEST, -1.0, loss)
        least = int(np.argmin(loss))
        if table.shape[1] <= regions and loss[least] >= 0:
            break
        table[:, least] += table[:, least + 1]
        table = np.delete(table, least + 1, axis=1)
    return table


def _information(share: Floats, right: Floats) -> Floats:
    """Records' log-likelihood of being right or wrong, by their own rate."""
    rate = np.clip(right / np.maximum(share, 1e-12), 1e-9, 1 - 1e-9)
    return np.asarray(right * np.log(rate) + (share - right) * np.log1p(-rate))


# Counting the regions


def _counted(
    found: _Map, others: Scored, members: Scored | None, settings: Settings, releases: Releases, by_label: bool
) -> Regions:
    """The regions counted once more, with what they announce and what follows for new records."""
    layer = None
    if settings.epsilon is not None:
        layer = best_table(found.share / found.share.sum(), found.rate, settings.epsilon)
        found, layer = _joined_by(layer, found)
    is_apart, part = settings.certify is not None, "counted" if settings.certify is not None else ""
    k, size = others.classes, found.size

    def counted(records: Scored, side: Side, labels: bool) -> Floats:
        """(labels, truths, regions), in records."""
        weights, label = _truths(records, side), records.predicted if labels else np.zeros(len(records), dtype=np.int64)
        shape = k if labels else 1, weights.shape[1], size
        cells = (shape[1] * label[:, None] + np.arange(shape[1])) * size + found.of(records.scores)[:, None]
        epsilon = _budget(side, "regions", by_label, is_apart)
        return releases.histogram("regions", side, cells, shape, epsilon, weights, part)

    # what is announced of two classes tells the label; a record is in one cell however many there are
    is_by_label = by_label or k == 2
    of_others = counted(others, "other", is_by_label)
    evidence = None
    if members is not None:
        of_members = counted(members, "member", is_by_label)
        outside = of_others.sum(axis=1, keepdims=True) if of_members.shape[1] == 1 else of_others
        # a cell that sums up several has the variance of noise with so much less ε, and no heavier a tail
        other, member = (_budget(side, "regions", by_label, is_apart) for side in ("other", "member"))
        noise = other / math.sqrt(of_others.size / outside.size), member
        sizes = others.records, members.records
        evidence = Evidence(
            _sixteenths(np.stack([outside, of_members])), sizes, noise,
            settings.advantage, settings.beyond, is_apart, k == 2,
        )  # fmt: skip
    trust = _trust(found, len(of_others), by_label, is_apart)
    announced = _announced(found, of_others, others.records, trust, layer, k)
    if others.shape.is_binary:
        announced = _stretched(announced, others.threshold)
    announced, layer, order = _sorted(announced, layer)
    if evidence is not None:
        evidence = replace(evidence, counts=evidence.counts[..., order])
    return Regions(
        epsilon=math.inf if settings.epsilon is None else settings.epsilon,
        number_of_classes=k,
        strips=found.strips,
        cuts=found.cuts,
        regions=np.argsort(order)[found.regions],
        announced=announced,
        table=layer,
        counts=_sixteenths(of_others.sum(axis=0))[:, order],
        evidence=evidence,
        spent=(releases.spent("member"), releases.spent("other")),
        atoms=max(found.atoms, 0.0),
    )


def _sorted(announced: Floats, layer: Integers | None) -> tuple[Floats, Integers | None, Integers]:
    """Answers and regions by what they announce, the least first; and where each region stood before.

    Of two labels it is their mean. Counts may contradict the bins, by which the regions stand in order so far.
    """
    answers = np.argsort(announced.mean(axis=0), kind="stable")
    announced = announced[:, answers]
    if layer is None:
        return announced, None, answers
    order = np.argsort(layer[:, answers] @ announced.mean(axis=0), kind="stable")
    return announced, layer[order][:, answers], order


def _joined_by(layer: Integers, found: _Map) -> tuple[_Map, Integers]:
    """Regions that give every answer with the same chance are one region: nobody can tell them apart."""
    _, first, same = np.unique(layer, axis=0, return_index=True, return_inverse=True)
    kept = np.sort(first)
    place = np.searchsorted(kept, first)[same.ravel()]  # of each region, among those that are kept
    share = np.bincount(place, weights=found.share).astype(np.float64)
    rate = np.bincount(place, weights=found.share * found.rate) / share
    return replace(found, regions=place[found.regions], share=share, rate=rate), layer[kept]


def _sixteenths(counts: Floats) -> Integers:
    return np.rint(counts * SIXTEENTHS).astype(np.int64)


def _trust(found: _Map, labels: int, by_label: bool, is_apart: bool) -> float:
    """How much the counts of the regions are to be trusted beside those of the bins, 0 to 1: by their noise."""
    cells = STEPS * PARTS * (len(found.strips) + 1) / found.size  # fine bins of a region
    of_bins = cells / _budget("other", "bins", by_label, is_apart) ** 2
    of_regions = labels / _budget("other", "regions", by_label, is_apart) ** 2
    return of_bins / (of_bins + of_regions)


def _announced(found: _Map, counts: Floats, records: int, trust: float, layer: Integers | None, k: int) -> Floats:
    """How often each answer is right, (1, answers); of two classes for each label, (2, answers).

    There are two estimates, that of the bins and that of the regions; a few records' worth of the overall accuracy is
    added. An answer of the table of ε stands for the regions that give it.
    """
    table = np.eye(found.size) if layer is None else layer / WHOLE
    pooled = np.maximum(counts.sum(axis=0), 0.0)  # (2, regions): wrong, right
    right = (1 - trust) * found.share * found.rate * records + trust * pooled[1]
    every = (1 - trust) * found.share * records + trust * pooled.sum(axis=0)
    accuracy = float(right.sum() / max(every.sum(), 1e-9))
    rate = (table.T @ right + ANSWER_WEIGHT * accuracy) / (table.T @ every + ANSWER_WEIGHT)
    if k > 2:
        return _inside(rate[None], k)
    made = []
    for wrong, correct in np.maximum(counts, 0.0):  # of each label
        own, total = table.T @ correct, table.T @ (wrong + correct)
        expected = _moved(rate, total, (float(own.sum()) + 2) / (float(total.sum()) + 4))
        made.append((own + SIDE_WEIGHT * expected) / (total + SIDE_WEIGHT))
    return _inside(np.stack(made), k)


def _inside(rates: Floats, k: int) -> Floats:
    """Above what the other classes get, and below 1."""
    return np.clip(rates, (1 + 1e-6) / k, 1 - NEAREST)


def _moved(rates: Floats, weights: Floats, mean: float) -> Floats:
    """Rates moved by the same number of logits, so that their weighted mean is `mean`."""
    logits = np.log(rates) - np.log1p(-rates)
    shares = (weights + 1e-9) / (weights + 1e-9).sum()
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        is_below = float(shares @ (1 / (1 + np.exp(-(logits + middle))))) < mean
        low, high = (middle, high) if is_below else (low, middle)
    return np.asarray(1 / (1 + np.exp(-(logits + low))))


def _stretched(announced: Floats, threshold: float) -> Floats:
    """Probabilities of no and of yes as shapes with a threshold take them: the threshold stands for one half."""
    no, yes = np.maximum(announced[0], 1 - threshold), np.maximum(announced[1], threshold)
    return _inside(np.stack([1 - (1 - no) / (2 * threshold), 1 - (1 - yes) / (2 * (1 - threshold))]), 2)


def _placeholder(found: _Map, k: int) -> Regions:
    """A mechanism with this map, which announces nothing yet: to find regions with."""
    return Regions(
        number_of_classes=k, strips=found.strips, cuts=found.cuts, regions=found.regions,
        announced=np.full((2 if k == 2 else 1, found.size), 0.9), counts=np.zeros((1, found.size), dtype=np.int64),
    )  # fmt: skip
