"""The fit of a veil: a map of score vectors to a few regions that members and others fall into alike.

    from scoreveil import fit

    veil = fit(nonmembers=out, nonmember_labels=y_out, members=inn, member_labels=y_in, advantage=0.02)
    z = veil(scores)              # the label kept; the top score is how often such answers are right
    print(veil.guarantee)

Records are read through noisy histograms alone (`releases.py`, `counting.py`) on fixed bins (`grid.py`). These are
smoothed (`estimates.py`), the best map is found by a linear program (`program.py`, `mapping.py`), its regions are
counted once more (`announcing.py`), and what is stated for new records is computed from those counts
(`mechanisms/promises.py`). With ε, a table stands on top of the map. What a veil costs is measured apart (`cost.py`),
and what to do with the scores decided from that (`decision.py`, `evidence.py`). Needs `pip install 'scoreveil[fit]'`;
the veil needs numpy alone.
"""

import math
import warnings

import numpy as np

from scoreveil.files.records import Scored, Source
from scoreveil.fitting.announcing import announced_regions
from scoreveil.fitting.counting import Counting
from scoreveil.fitting.mapping import choose_map
from scoreveil.fitting.records import check_doubts, read_both
from scoreveil.fitting.releases import Draws, Releases
from scoreveil.fitting.settings import Beyond, Settings
from scoreveil.fitting.statement import shortage
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.region_data import MAX_REGIONS
from scoreveil.mechanisms.regions import Regions
from scoreveil.shapes import VECTORS, Shape, given
from scoreveil.smoothing import Smoothing
from scoreveil.veil import Veil

__all__ = ["Beyond", "Settings", "constant_words", "fit"]


def fit(
    nonmembers: Source,
    nonmember_labels: Source = None,
    members: Source = None,
    member_labels: Source = None,
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
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.Binary()`, `MultiLabel()` or
            `PerPosition()`. Labels of one column are 0 and 1, of many a matrix of them; of places, classes (n, t).
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
    settings = Settings(advantage, epsilon, beyond, regions, certify)
    given(shape)
    if rng is not None and not callable(getattr(rng, "random", None)):
        raise ValueError(f"Expected rng to be a numpy Generator, such as np.random.default_rng(0), got {rng!r}.")
    others, inside, _ = read_both(nonmembers, nonmember_labels, members, member_labels, columns, shape)
    shape = others.shape
    if inside is not None and inside.labels is None and beyond == "correctness":
        raise ValueError("beyond='correctness' needs labels of members and nonmembers: they say what is right.")
    if not force:
        check_doubts(others, inside)
    draw, parts = Releases.drawn(rng).draw, others.by_label()
    sides = zip(parts, [None] * len(parts) if inside is None else inside.by_label(), strict=True)
    maps = tuple(_fitted(*side, settings, Releases(draw)) for side in sides)
    mechanism: Regions | PerLabel = PerLabel.of(maps) if shape.has_labels else maps[0]
    if overlap:
        mechanism = mechanism.with_overlap()
    veil = Veil(mechanism, shape=shape, model=model, smoothing=smoothing)
    for warning in _warnings(veil, others, inside, regions):
        warnings.warn(warning, stacklevel=2)
    return veil


def _fitted(others: Scored, members: Scored | None, settings: Settings, releases: Releases) -> Regions:
    counting = Counting.of(others, members, settings, releases)
    others, others_counted = counting.parts(others)
    members_counted = None
    if members is not None:
        members, members_counted = counting.parts(members)
    return announced_regions(choose_map(others, members, counting), others_counted, members_counted, counting)


def _warnings(veil: Veil, others: Scored, members: Scored | None, regions: int) -> list[str]:
    """What whoever fits a veil should know of it."""
    warned = []
    if members is None:
        bound = "nothing" if math.isinf(veil.epsilon) else "ε alone"
        warned.append(
            f"No members were given: what answers tell about membership is bounded by {bound}. Give members=…."
        )
    if veil.is_constant:
        warned.append(constant_words(veil.epsilon, others, regions))
    shortages = (shortage(part.evidence) for part in veil.mechanism.maps if part.evidence is not None)
    return [*warned, *dict.fromkeys(text for text in shortages if text is not None)]


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
