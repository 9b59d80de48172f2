"""Every defense by name: ours and its rivals, all of one shape. Adding one is a function and a line here.

from scoreveil.audit.defenses import DEFENSES, Given

defense = DEFENSES["memguard"].make(Given(known, reference, seed=0))
released = defense(scores)
"""

from functools import partial

from scoreveil.audit.data.records import Defense
from scoreveil.audit.defenses import labels, ours, simple
from scoreveil.audit.defenses.interface import Given, Method, Timing, timed

__all__ = ["DEFENSES", "Given", "Method", "Timing", "timed"]


def _memguard(given: Given) -> Defense:
    from scoreveil.audit.defenses import memguard  # torch is loaded only by those who need it

    return memguard.memguard(memguard.MemGuardSettings())(given)


def _purification(given: Given) -> Defense:
    from scoreveil.audit.defenses import purification

    return purification.purification(given)


_ours = partial(Method, takes_epsilon=True, is_random=True)

_METHODS = (
    Method("none", simple.none, keeps_ranking=True),
    _ours("published", ours.published, keeps_ranking=True),
    Method("phase_2_alone", ours.phase_2_alone, takes_epsilon=True, keeps_ranking=True),
    _ours("isotonic", ours.isotonic(), bounded_given="label"),
    _ours("regions", ours.regions, needs_epsilon=False, fits=True, bounded_given="label"),
    _ours("isotonic_all", ours.isotonic("all"), keeps_ranking=True, bounded_given="ranking"),
    _ours(
        "isotonic_all_reference",
        ours.isotonic("all", reference=True),
        keeps_ranking=True,
        bounded_given="ranking",
    ),
    Method("memguard", _memguard, is_slow=True),
    Method("purification", _purification, keeps_label=False),
    Method("top_3", simple.top_k(3)),
    Method("rounding_1", simple.rounding(1)),
    Method("rounding_2", simple.rounding(2)),
    Method("temperature_5", simple.temperature(5.0), keeps_ranking=True),
    Method("gaussian", simple.gaussian(0.05), keeps_ranking=True, is_random=True),
    Method("temperature_scaled", simple.temperature_scaled, keeps_ranking=True, needs_labels=True),
    Method("label_only", simple.label_only),
    Method("label_constant", simple.label_constant, needs_labels=True),
    Method("label_noise", labels.label_noise(0.1), keeps_label=False),
)
DEFENSES = {method.name: method for method in _METHODS}
