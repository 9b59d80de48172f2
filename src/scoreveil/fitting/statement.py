"""What a fitted veil states for new records, in words; and how many records would state less."""

import math
from dataclasses import replace

import numpy as np

from scoreveil.mechanisms.promises import Attacker, Evidence
from scoreveil.veil import Veil

ROUND = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)  # advantages that a person may want stated
ROOM = 0.1  # what a certified statement may add to what was asked for, and still say something
FACTORS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
# what an attack looks at, and what its advantage is beyond
ATTACKS = {
    Attacker.ALONE: "confidence alone",
    Attacker.LABEL: "beyond the label",
    Attacker.CORRECTNESS: "beyond being right",
    Attacker.LABEL_AND_CORRECTNESS: "beyond label and truth",
}


def statements(veil: Veil) -> list[str]:
    """What was asked for and what holds for new records; of many labels, for the one with the largest advantage."""
    known = [part.evidence for part in veil.mechanism.maps if part.evidence is not None]
    if not known:
        return []
    evidence = max(known, key=lambda one: one.stated(leading(one)))
    attacker = leading(evidence)
    about = {Attacker.ALONE: " by the confidence alone", Attacker.LABEL: ""}.get(attacker, f" {ATTACKS[attacker]}")
    kind = "theorem" if evidence.certified else "estimate"
    sentence = f"You asked for {_short(evidence.asked)}; "
    sentence += f"for new records it is {_short(round(evidence.stated(attacker), 3))}{about} (95 %, {kind})"
    more = outlook(evidence, attacker)
    if more is not None:
        sentence += f"; about {more[0]} times the records would state {_short(more[1])}"
    too_few = shortage(evidence)
    return [*([] if too_few is None else [too_few]), f"{sentence}."]


def _short(value: float) -> str:
    """.02, .111"""
    return f"{round(value, 4):g}".removeprefix("0")


def is_held_to(evidence: Evidence, attacker: Attacker) -> bool:
    """Whether the map was chosen so that this attacker gains no more than was asked for."""
    if evidence.beyond == "correctness":
        known = Attacker.LABEL_AND_CORRECTNESS
        return attacker is known or (attacker is Attacker.CORRECTNESS and not evidence.tells_label)
    if evidence.tells_label:
        return attacker is Attacker.LABEL
    return attacker is not Attacker.LABEL_AND_CORRECTNESS


def leading(evidence: Evidence) -> Attacker:
    """The attacker whom the asked advantage is about, as far as the counts can say something about it."""
    wanted = {
        "label": (Attacker.LABEL, Attacker.ALONE),
        "correctness": (Attacker.LABEL_AND_CORRECTNESS, Attacker.CORRECTNESS, Attacker.ALONE),
    }
    return next(attacker for attacker in wanted[evidence.beyond] if attacker in evidence.attackers)


def shortage(evidence: Evidence) -> str | None:
    """What to say first where so few records were held back that what is stated of them says next to nothing."""
    if not evidence.certified:
        return None
    attacker, wanted, more = leading(evidence), evidence.asked + ROOM, evidence
    (others, members), least = evidence.sizes, min(evidence.sizes)
    while more.shortfall(attacker) > wanted:
        least = math.ceil(1.05 * least)
        more = replace(more, sizes=(max(others, least), max(members, least)))
    if more is evidence:
        return None
    return (
        f"{members:,} members and {others:,} others were held back, too few to certify anything: about "
        f"{float(f'{least:.1e}'):,.0f} of each would do."
    )


def outlook(evidence: Evidence, attacker: Attacker) -> tuple[int, float] | None:
    """About how many times the records would state how little: a factor, and an advantage that is nearer to what was
    asked for. None where no factor up to 100 would.

    With more records, less is added for what counts may hide, and what chance and noise show of itself falls; what is
    beyond that stays.
    """
    stated, asked = evidence.stated(attacker), evidence.asked
    if stated <= asked:
        return None
    wanted = [value for value in ROUND if asked < value <= 0.6 * stated][-1:]
    for target in (*wanted, round((asked + stated) / 2, 3)):
        for factor in FACTORS:
            if _stated_with(evidence, attacker, factor) <= target < stated:
                return factor, target
    return None


def _stated_with(evidence: Evidence, attacker: Attacker, factor: int) -> float:
    """What as many times the records would state."""
    sizes = evidence.sizes[0] * factor, evidence.sizes[1] * factor
    more = replace(evidence, counts=evidence.counts * factor, sizes=sizes)
    excess = max(float(more.shown(attacker)) - evidence.asked, 0.0)
    return more.stated(attacker) - min(excess, _by_chance(evidence, attacker)) * (1 - 1 / math.sqrt(factor))


def _by_chance(evidence: Evidence, attacker: Attacker) -> float:
    """About what counts of two sides that are alike would show: half the mean size of each cell's error."""
    groups = evidence.groups(attacker)
    summed = evidence.counts[0].size / groups[0].size  # cells whose noise adds up
    variance = np.zeros(groups.shape[1:])
    for counts, n, noise in zip(np.maximum(groups, 0), evidence.sizes, evidence.noise, strict=True):
        variance += counts / max(int(counts.sum()), 1) / n + summed * 2 / (noise * n) ** 2
    return float(np.sqrt(2 / math.pi * variance).sum() / 2)
