"""What a fitted veil gives away on given records, beside what it states.

    from scoreveil.fitting.recount import recount

    for each in recount(veil, nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in):
        print(each.attacker, each.found, each.low, each.high, each.stated, each.verdict)

The regions are counted as they are, without noise: these figures are about the given records, and they are not private.
Each is measured as it is stated (`mechanisms/promises.py`), by the attack that is best on them: by chance it is above
what their population has, and the more so the fewer they are. Its interval is a bootstrap over records of attacks that
stay as they were chosen: for the lower end on one half of the records, to be tried on the other, so that no chance
favours them; for the upper end on all records.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.files.records import Scored, Source
from scoreveil.fitting.records import read_both
from scoreveil.mechanisms.promises import Attacker, as_seen
from scoreveil.mechanisms.regions import Regions
from scoreveil.veil import Veil

RESAMPLES, LEVEL = 1000, 0.95


class Verdict(Enum):
    """What given records say about a stated advantage."""

    HELD = "held"  # what was found is at most what is stated
    EXCEEDED = "exceeded"  # even the lower end of the interval is above it
    OPEN = "cannot be told"
    UNSTATED = "nothing is stated"


@dataclass(frozen=True)
class Recount:
    """The advantage of one attacker on given records."""

    attacker: Attacker  # what it sees beside the confidence
    found: float  # on these records; by chance it is larger than that of their population
    low: float  # from here to `high` is the 95 % bootstrap interval
    high: float
    stated: float | None  # for new records; None where the veil states nothing
    label: int | None = None  # of many labels

    @property
    def verdict(self) -> Verdict:
        if self.stated is None:
            return Verdict.UNSTATED
        if self.found <= self.stated:
            return Verdict.HELD
        return Verdict.EXCEEDED if self.low > self.stated else Verdict.OPEN


def recount(
    veil: Veil,
    nonmembers: Source,
    nonmember_labels: Source = None,
    members: Source = None,
    member_labels: Source = None,
    *,
    columns: str | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Recount, ...]:
    """Count the regions of a fitted veil on these records, which are given as for `fit`.

    Args:
        veil: A fitted one; its shape says how scores are served.
        nonmembers: Scores of records that the model was not trained on.
        nonmember_labels: With them and member_labels, also attackers who know whether a label is right.
        members: Scores of records that it was trained on.
        member_labels: Their true classes.
        columns: As for `fit`.
        rng: For the bootstrap; by default the same records always give the same interval.

    Returns:
        One for each attacker about whom the veil states something; of many labels, for each of them.

    Raises:
        ValueError: The veil is not a fitted one, or these are not records of its model.
    """
    maps = veil.mechanism.maps
    if not maps:
        raise ValueError(f"Expected a fitted veil, got one of the {veil.mechanism.name} mechanism.")
    if members is None:
        raise ValueError("Expected scores of members too: what tells them from nonmembers is counted on both.")
    others, inside, _ = read_both(nonmembers, nonmember_labels, members, member_labels, columns, veil.shape)
    assert inside is not None, "it was given"
    has_labels, rng = veil.shape.has_labels, rng or np.random.default_rng(0)
    if has_labels and others.releases != len(maps):
        raise ValueError(f"This veil was fitted for {len(maps)} labels; these scores have {others.releases}.")
    sides = zip(maps, others.by_label(), inside.by_label(), strict=True)
    return tuple(
        one for i, side in enumerate(sides) for one in _counted(*side, label=i if has_labels else None, rng=rng)
    )


def _counted(
    mechanism: Regions, others: Scored, members: Scored, label: int | None, rng: np.random.Generator
) -> Iterator[Recount]:
    if others.classes != mechanism.classes:
        raise ValueError(f"This veil was fitted for {mechanism.classes} classes; these scores have {others.classes}.")
    evidence = mechanism.evidence
    is_labelled = others.labels is not None and members.labels is not None
    tells_label = mechanism.classes == 2
    labels = 2 if tells_label else 1 if evidence is None else evidence.counts.shape[1]
    shape = (labels, 2 if is_labelled else 1, mechanism.size)
    known = (Attacker.ALONE, Attacker.CORRECTNESS) if evidence is None else evidence.attackers
    is_certified = evidence is not None and evidence.certified
    cells = [_cells(mechanism, side, shape).reshape(side.records, side.releases) for side in (others, members)]
    halves = [np.array_split(side[rng.permutation(len(side))], 2) for side in cells]
    whole, first, second = (_Counts.of(part, shape, rng) for part in (cells, *zip(*halves, strict=True)))
    for attacker in known:
        if attacker in (Attacker.CORRECTNESS, Attacker.LABEL_AND_CORRECTNESS) and not is_labelled:
            continue
        gained = partial(advantage, attacker=attacker, is_certified=is_certified, tells_label=tells_label)
        on_these = float(gained(whole.once))
        tried = (gained(second.often, chosen_on=first.once) + gained(first.often, chosen_on=second.once)) / 2
        best = gained(whole.often, chosen_on=whole.once)
        low, high = float(np.quantile(tried, (1 - LEVEL) / 2)), float(np.quantile(best, (1 + LEVEL) / 2))
        stated = None if evidence is None else evidence.stated(attacker)
        yield Recount(attacker, on_these, min(max(low, 0.0), on_these), max(high, on_these), stated, label)


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counts of some records, (side, label, wrong or right, region), and of resampled ones."""

    once: Floats
    often: Floats  # (RESAMPLES, …)

    @classmethod
    def of(cls, sides: Sequence[Integers], shape: tuple[int, int, int], rng: np.random.Generator) -> "_Counts":
        size = math.prod(shape)
        counts = [np.bincount(cells.ravel(), minlength=size) / cells.shape[1] for cells in sides]
        often = [_resampled(cells, once, rng) for cells, once in zip(sides, counts, strict=True)]
        return cls(np.stack(counts).reshape(2, *shape), np.stack(often, axis=1).reshape(RESAMPLES, 2, *shape))


def _cells(mechanism: Regions, side: Scored, shape: tuple[int, int, int]) -> Integers:
    """The cell of each vector: label, wrong or right, region."""
    labels, truths, size = shape
    predicted, region = mechanism.read(side.scores)
    cell = predicted if labels > 1 else np.zeros_like(predicted)
    if truths > 1:
        cell = 2 * cell + side.is_right
    return np.asarray(cell * size + region, dtype=np.int64)


def _resampled(cells: Integers, counts: Floats, rng: np.random.Generator) -> Floats:
    """Counts of as many records, drawn with replacement, again and again: (RESAMPLES, cells)."""
    records, releases = cells.shape
    if releases == 1:
        return np.asarray(rng.multinomial(records, counts / counts.sum(), RESAMPLES), dtype=np.float64)
    drawn = (cells[rng.integers(0, records, records)].ravel() for _ in range(RESAMPLES))
    return np.asarray([np.bincount(sample, minlength=len(counts)) / releases for sample in drawn])


def advantage(
    counts: Floats, attacker: Attacker, is_certified: bool, tells_label: bool, chosen_on: Floats | None = None
) -> Floats:
    """What `RegionCounts.shown` computes exactly, of many counts (…, side, label, wrong or right, region) at once.

    A certified veil states what the confidence adds to the best attack without it; another one states a bound of that.

    Args:
        counts: Of the records that are attacked.
        attacker: What it sees beside the confidence.
        is_certified: Whether the veil is.
        tells_label: Whether what is announced tells the label.
        chosen_on: Counts of the records that the attack was chosen on; by default the same.
    """
    gaps, within, own = _gaps(as_seen(counts, attacker, tells_label))
    is_joint = attacker is Attacker.ALONE or is_certified
    chosen = counts if chosen_on is None else chosen_on
    signs = np.sign(_gaps(as_seen(chosen, attacker, tells_label))[0 if is_joint else 1])
    gained = ((gaps if is_joint else within) * signs).sum(axis=(-2, -1)) / 2
    return np.asarray(gained - own if is_joint and attacker is not Attacker.ALONE else gained)


def _gaps(seen: Floats) -> tuple[Floats, Floats, Floats]:
    """Members less others, (…, group, region): in shares of all, and in those of each group times what both sides have
    of it; and what the group alone tells, (…).
    """
    shares = seen / seen.sum(axis=(-2, -1), keepdims=True)
    others, members = shares[..., 0, :, :], shares[..., 1, :, :]
    groups = shares.sum(axis=-1, keepdims=True)
    of_others, of_members = (np.maximum(groups[..., side, :, :], 1e-300) for side in (0, 1))
    within = np.minimum(of_others, of_members) * (members / of_members - others / of_others)
    own = np.abs(of_members - of_others).sum(axis=(-2, -1)) / 2
    return np.asarray(members - others), np.asarray(within), np.asarray(own)
