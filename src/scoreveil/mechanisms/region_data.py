"""A fitted map as data: checked when it is made, written as plain values that a person can read, and read from them."""

import math
from typing import TYPE_CHECKING

import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.guarantee import Malformed, Relation
from scoreveil.mechanisms.mechanism import Settings
from scoreveil.mechanisms.promises import MAX_RECORDS, RegionCounts

if TYPE_CHECKING:
    from scoreveil.mechanisms.regions import Regions

MAX_REGIONS = 8
MAX_CUTS = 255
MAX_STRIPS = 7
NEAREST = 2.0**-20  # to 0 and 1 that a label is announced with
RELATION = Relation.ZERO_OUT.name.lower()

KINDS = {
    "strips": np.float64,
    "cuts": np.float64,
    "regions": np.int64,
    "announced": np.float64,
    "table": np.int64,
    "counts": np.int64,
}


def frozen(name: str, array: object, kind: type) -> Rows:
    """A read-only copy, so that what was verified stays as it was."""
    if not isinstance(array, np.ndarray) or array.dtype != kind:
        got = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"Expected {name} to be an array of {np.dtype(kind)}, got {got}.")
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


# What goes together


def check(region_map: "Regions") -> None:
    """Refuse arrays that do not go together, or that say something else than a map does."""
    _check_layout(region_map)
    _check_values(region_map)
    if region_map.evidence is not None:
        _check_evidence(region_map.evidence, region_map.number_of_classes, region_map.size)


def _expect(holds: bool | np.bool_, otherwise: str) -> None:
    if not holds:
        raise Malformed(otherwise)


def _check_layout(region_map: "Regions") -> None:
    k, counts = region_map.number_of_classes, region_map.counts
    _expect(
        isinstance(k, int) and not isinstance(k, bool) and k >= 2,
        "Expected a whole number of classes, at least 2 classes.",
    )
    size = counts.shape[1] if counts.ndim == 2 else 0
    _expect(
        1 <= size <= MAX_REGIONS and len(counts) in (1, 2),
        f"Expected counts of 1 to {MAX_REGIONS} regions, got shape {counts.shape}.",
    )
    _expect(region_map.strips.ndim == 1, f"Expected strips of one dimension, got {region_map.strips.ndim}.")
    strips = len(region_map.strips) + 1
    _expect(strips == 1 or k > 2, "Two classes have no rest that could be spread: expected one strip.")
    cuts = region_map.cuts.shape[1] if region_map.cuts.ndim == 2 else -1
    answers = region_map.announced.shape[1] if region_map.announced.ndim == 2 else 0
    shapes = {
        "cuts": (strips, cuts),
        "regions": (strips, cuts + 1),
        "announced": (2 if k == 2 else 1, size if region_map.table is None else answers),
    }
    if region_map.table is not None:
        shapes["table"] = (size, answers)
    for name, shape in shapes.items():
        got = getattr(region_map, name).shape
        _expect(got == shape and 0 <= cuts <= MAX_CUTS, f"Expected {name} of shape {shape}, got {got}.")
    _expect(1 <= answers <= MAX_REGIONS, f"Expected 1 to {MAX_REGIONS} answers, got {answers}.")


def _check_values(region_map: "Regions") -> None:
    cuts, announced, counts = region_map.cuts, region_map.announced, region_map.counts
    _expect(
        np.all((counts > -MAX_RECORDS) & (counts < MAX_RECORDS)), "The counts are of more records than there can be."
    )
    _expect(
        len(region_map.spent) == 2 and all(0 <= cost < math.inf for cost in (*region_map.spent, region_map.atoms)),
        "What the fit spent, or what atoms cost, is out of range.",
    )
    ascending = np.where(cuts == math.inf, 2.0 + np.arange(cuts.shape[1]), cuts)  # padding ascends too
    for name, array in (("strips", region_map.strips), ("cuts", ascending)):
        _expect(np.all(np.diff(array, axis=-1) > 0) and np.all(array > 0), f"Expected {name} that ascend, above 0.")
    _expect(not np.any(region_map.strips > 1), "Expected strips up to 1.")
    _expect(not np.any((cuts > 1) & np.isfinite(cuts)), "Expected cuts up to 1.")
    size = region_map.size
    _expect(
        np.array_equal(np.unique(region_map.regions), np.arange(size)),
        f"Expected a map to each of the regions 0 to {size - 1}.",
    )
    _expect(
        np.all(announced > 1 / region_map.number_of_classes) and np.all(announced <= 1 - NEAREST),
        "An announced confidence is below that of another class, or 1.",
    )


def _check_evidence(evidence: RegionCounts, classes: int, size: int) -> None:
    shape = evidence.counts.shape
    _expect(len(shape) == 4 and shape[3] == size, f"Expected evidence about {size} regions, got shape {shape}.")
    _expect(
        shape[1] in ((2,) if classes == 2 else (1, classes)),
        f"Expected evidence about {classes} labels or about all together, got {shape[1]}.",
    )
    _expect(
        evidence.tells_label == (classes == 2),
        "Expected evidence in which what is announced tells the label of two classes, and of no more.",
    )


# Plain values


def settings(region_map: "Regions") -> Settings:
    """All of it, as plain values that a person can read."""
    evidence, table = region_map.evidence, region_map.table
    rows = zip(region_map.cuts.tolist(), region_map.regions.tolist(), strict=True)
    finite = [([cut for cut in cuts if cut < math.inf], regions) for cuts, regions in rows]
    return {
        "epsilon": None if table is None else region_map.epsilon,
        "classes": region_map.number_of_classes,
        "strips": region_map.strips.tolist(),
        "map": [{"cuts": cuts, "regions": regions[: len(cuts) + 1]} for cuts, regions in finite],
        "announced": region_map.announced.tolist(),
        "table": None if table is None else table.tolist(),
        "counts": region_map.counts.tolist(),
        "evidence": None if evidence is None else {
            "relation": RELATION,
            "sixteenths_of_records": evidence.counts.tolist(),
            "records": list(evidence.sizes),
            "noise": list(evidence.noise),
            "asked": evidence.asked,
            "beyond": evidence.beyond,
            "certified": evidence.certified,
        },
        "spent": list(region_map.spent),
        "atoms": region_map.atoms,
    }  # fmt: skip


def fields(settings: Settings) -> Settings:
    """The fields of the map that such values are of; not checked yet, as `check` does.

    Raises:
        Malformed, or another error of wrong types: These are not such values.
    """
    table, evidence = settings["table"], settings["evidence"]
    cuts, regions = _map(settings["map"], len(settings["strips"]) + 1)
    return {
        "epsilon": math.inf if settings["epsilon"] is None else settings["epsilon"],
        "number_of_classes": int(settings["classes"]),
        "strips": np.array(settings["strips"], dtype=np.float64),
        "cuts": cuts,
        "regions": regions,
        "announced": np.array(settings["announced"], dtype=np.float64),
        "table": None if table is None else _whole(table),
        "counts": _whole(settings["counts"]),
        "evidence": None if evidence is None else _evidence(evidence, settings["classes"]),
        "spent": tuple(map(float, settings["spent"])),
        "atoms": float(settings["atoms"]),
    }


def _map(parts: list[Settings], strips: int) -> tuple[Floats, Integers]:
    """Cuts and regions of each strip, padded to one width."""
    width = max(len(part["cuts"]) for part in parts)
    if width > MAX_CUTS or max(len(parts), strips) > MAX_STRIPS:  # before there is room made
        raise Malformed("It has more strips, or more cuts of a strip, than there can be.")
    cuts, regions = np.full((len(parts), width), math.inf), np.zeros((len(parts), width + 1), dtype=np.int64)
    for strip, part in enumerate(parts):
        count = len(part["cuts"])
        if len(part["regions"]) != count + 1:
            raise Malformed("A strip has cuts and regions that do not go together.")
        cuts[strip, :count] = part["cuts"]
        regions[strip, : count + 1] = _whole(part["regions"])
        regions[strip, count + 1 :] = part["regions"][-1]
    return cuts, regions


def _evidence(given: Settings, classes: int) -> RegionCounts:
    if given["relation"] != RELATION:
        raise Malformed("The counts are of another relation.")
    if given["beyond"] not in ("label", "correctness"):
        raise Malformed("The advantage is beyond neither the label nor correctness.")
    sizes, noise = tuple(map(int, given["records"])), tuple(map(float, given["noise"]))
    if len(sizes) != 2 or len(noise) != 2:
        raise Malformed("The counts are not of two sides.")
    counts, asked = _whole(given["sixteenths_of_records"]), float(given["asked"])
    return RegionCounts(counts, sizes, noise, asked, given["beyond"], bool(given["certified"]), classes == 2)


def _whole(values: object) -> Integers:
    """Nested lists of whole numbers, as they are in a file."""
    array = np.array(values)
    if array.dtype.kind != "i":
        raise Malformed("It has numbers that are not whole, or lists of unequal length.")
    return array.astype(np.int64)
