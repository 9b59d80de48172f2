"""What one fit counts of its records, each histogram at its part of the budget."""

from dataclasses import dataclass

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.files.records import Scored
from scoreveil.fitting.releases import BUDGET, UNIT, Releases, Side
from scoreveil.fitting.settings import Settings
from scoreveil.mechanisms.promises import MAX_LABELS

RECORDS_OF_LABEL = 300  # with so many on average, labels are told apart


@dataclass(frozen=True)
class Counting:
    """The noisy histograms of the fit of one map."""

    settings: Settings
    releases: Releases
    by_label: bool  # whether each label is counted by itself

    @classmethod
    def of(cls, others: Scored, members: Scored | None, settings: Settings, releases: Releases) -> "Counting":
        """Each label is counted by itself where it has records enough; by public numbers alone."""
        if members is None:
            return cls(settings, releases, False)
        fewest = min(others.records, members.records)
        if settings.certify is not None:
            fewest = round(fewest * min(settings.certify, 1 - settings.certify))
        k = others.classes
        return cls(settings, releases, k <= MAX_LABELS and fewest >= RECORDS_OF_LABEL * k)

    @property
    def is_apart(self) -> bool:
        """Whether the map is chosen on other records than its regions are counted on."""
        return self.settings.certify is not None

    def parts(self, records: Scored) -> tuple[Scored, Scored]:
        """The records that the map is chosen on, and those that its regions are counted on."""
        part = self.settings.certify
        if part is None:
            return records, records
        order = np.argsort(self.releases.draw(records.records), kind="stable")
        held = round(part * records.records)
        if not 1 <= held < records.records:
            raise ValueError(f"Expected records enough to hold a part of {part:g} back, got {records.records}.")
        return records.take(np.sort(order[held:])), records.take(np.sort(order[:held]))

    def epsilon(self, side: Side, name: str) -> float:
        """ε₀ of a release: what has no use goes to the bins, and of two parts each has all of it."""
        parts = dict(BUDGET[side])
        if not self.by_label:
            parts["bins"] += parts.pop("labels")
        if self.is_apart:
            spent = sum(parts.values())
            if name == "regions":
                return spent
            parts["bins"] += parts.pop("regions")
        return parts[name]

    def histogram(self, name: str, side: Side, cells: Integers, shape: tuple[int, ...], weights: Floats) -> Floats:
        """As `Releases.histogram` makes it."""
        part = "" if not self.is_apart else "counted" if name == "regions" else "chosen"
        return self.releases.histogram(name, side, cells, shape, self.epsilon(side, name), weights, part)

    def truths(self, name: str, side: Side, records: Scored, places: Integers, size: int, labels: int = 1) -> Floats:
        """How many records are wrong and right in each place: (labels, truths, size).

        Without labels a record counts as right as its top score has it; members without labels count once, (…, 1, …):
        what they are right about says nothing.
        """
        part = part_of_record(records)
        weights = part[:, None]
        if records.labels is not None or side == "other":
            right = part * (records.scores.max(axis=1) if records.labels is None else records.is_right)
            right = np.rint(right * UNIT) / UNIT
            weights = np.stack([part - right, right], axis=1)
        shape = labels, weights.shape[1], size
        label = records.predicted if labels > 1 else np.zeros(len(records), dtype=np.int64)
        cells = (shape[1] * label[:, None] + np.arange(shape[1])) * size + places[:, None]
        return self.histogram(name, side, cells, shape, weights)


def part_of_record(records: Scored) -> Floats:
    """What part of its record each vector is, in whole units: those of a record sum to 1 exactly, however many."""
    units = np.diff(np.arange(records.releases + 1) * UNIT // records.releases)
    return np.tile(units / UNIT, records.records)
