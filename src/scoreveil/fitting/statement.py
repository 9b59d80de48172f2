"""What a fitted veil states for new records, in words."""

import math
from dataclasses import replace

from scoreveil.mechanisms.promises import Attacker, RegionCounts
from scoreveil.veil import Veil

ROOM = 0.1  # what a certified statement may add to what was asked for, and still say something
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
    stated, too_few = _short(round(evidence.stated(attacker), 3)), shortage(evidence)
    sentence = f"You asked for {_short(evidence.asked)}; for new records it is {stated}{about} (95 %, {kind})."
    return [sentence] if too_few is None else [too_few, sentence]


def _short(value: float) -> str:
    """.02, .111"""
    return f"{round(value, 4):g}".removeprefix("0")


def is_held_to(evidence: RegionCounts, attacker: Attacker) -> bool:
    """Whether the map was chosen so that this attacker gains no more than was asked for."""
    if evidence.beyond == "correctness":
        known = Attacker.LABEL_AND_CORRECTNESS
        return attacker is known or (attacker is Attacker.CORRECTNESS and not evidence.tells_label)
    if evidence.tells_label:
        return attacker is Attacker.LABEL
    return attacker is not Attacker.LABEL_AND_CORRECTNESS


def leading(evidence: RegionCounts) -> Attacker:
    """The attacker whom the asked advantage is about, as far as the counts can say something about it."""
    wanted = {
        "label": (Attacker.LABEL, Attacker.ALONE),
        "correctness": (Attacker.LABEL_AND_CORRECTNESS, Attacker.CORRECTNESS, Attacker.ALONE),
    }
    return next(attacker for attacker in wanted[evidence.beyond] if attacker in evidence.attackers)


def shortage(evidence: RegionCounts) -> str | None:
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
