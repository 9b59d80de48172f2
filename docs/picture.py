"""Draws docs/veil.svg, the README's picture: what leaks from answers, and what their confidence is still worth.

    python docs/picture.py          # draws what is measured in results/picture.json
    python docs/picture.py --measure    # measures that anew first: some minutes

The classifier is the demo's, trained anew for each refit on other digits, and each refit fits its own veils: on half of
the training records and on others that nobody attacks. The other half of the training records and new ones are
attacked, by every membership attack of the audit that needs nothing but answers and true labels; each learns from
answers of the same kind, on one half of these records, and is tested on the other.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil import Veil, atomic, demo, fit
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.report.charts.bars import Bar, Column, Row, bars
from scoreveil.audit.report.charts.marks import Sheet
from scoreveil.audit.report.charts.svg import svg
from scoreveil.files.records import Scored
from scoreveil.fitting.cost import asked_quietly, label_with_constant_confidence
from scoreveil.fitting.metrics import auroc

Answer = Callable[[NDArray[np.float64]], NDArray[np.float64]]

PICTURE = Path(__file__).with_name("veil.svg")
RESULTS = Path(__file__).resolve().parent.parent / "results" / "picture.json"
COMMAND = "python docs/picture.py --measure"
REFITS, EPSILON = 11, 4.0
TONES = {"raw scores": "c1", "label alone": "muted"}
COLUMNS = (
    ("What leaks", "How often the strongest attack ranks a training record above another one"),
    ("What is left", "How often a right answer is surer than a wrong one. No label changes."),
)


@dataclass(frozen=True)
class Way:
    """One way to answer, over all refits: medians, and the lowest and the highest."""

    name: str
    attack: str  # the strongest: that of the highest median
    leak: Bar
    useful: Bar


def refit(seed: int, attacks: Iterable[str] = tuple(ATTACKS)) -> dict[str, Any]:
    """What each way to answer leaks to every attack, and what its confidence is worth, with a new classifier."""
    scores, rng = demo.forest(seed), np.random.default_rng(seed)
    half = rng.permutation(len(scores.members)) < len(scores.members) // 2
    attacked = Membership(
        Records(scores.members[~half], scores.member_labels[~half]), Records(scores.others, scores.labels)
    )
    return {
        name: {"useful": _useful(answer, attacked.nonmembers), "attacks": _leaks(answer, attacked, seed, attacks)}
        for name, answer in _ways(scores, half, rng).items()
    }


def _ways(scores: demo.Classified, half: NDArray[np.bool_], rng: np.random.Generator) -> dict[str, Answer]:
    known = scores.reference, scores.reference_labels
    given = (*known, scores.members[half], scores.member_labels[half])

    def veil(epsilon: float | None) -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a large ε adds up
            fitted = Veil(fit(*given, epsilon=epsilon, rng=rng).mechanism, rng=rng)
        return lambda rows: asked_quietly(fitted, rows)

    return {
        "raw scores": lambda rows: rows,
        "fitted veil": veil(None),
        f"fitted, ε = {EPSILON:g}": veil(EPSILON),
        "label alone": label_with_constant_confidence(Scored(*known)),
    }


def _useful(answer: Answer, new: Records) -> float:
    answers = answer(new.scores)
    sure, right = answers.max(axis=1), new.is_right
    return auroc(sure[right], sure[~right])


def _leaks(answer: Answer, attacked: Membership, seed: int, attacks: Iterable[str]) -> dict[str, float]:
    """The AUC of every attack, the mean of both halves."""
    halves = attacked.defended(answer).balanced(np.random.default_rng(seed)).halves(np.random.default_rng(seed))
    found = {}
    for attack in map(ATTACKS.__getitem__, attacks):
        for features in attack.features if not attack.needs else ():
            both = []
            for learned, tested in (halves, halves[::-1]):
                scorer = attack.fit(learned, features, np.random.default_rng(seed))
                both.append(auroc(scorer(tested.members), scorer(tested.nonmembers)))
            found[f"{attack.name} on {features}"] = float(np.mean(both))
    return found


def measured() -> list[dict[str, Any]]:
    """What each refit found."""
    refits: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["refits"]
    return refits


def ways(refits: list[dict[str, Any]]) -> list[Way]:
    """The rows of the picture."""

    def over(values: list[float]) -> Bar:
        return Bar(median(values), (min(values), max(values)))

    found = []
    for name in refits[0]:
        rows = [each[name] for each in refits]
        strongest = max(rows[0]["attacks"], key=lambda attack: median(row["attacks"][attack] for row in rows))
        leak = over([row["attacks"][strongest] for row in rows])
        found.append(Way(name, strongest, leak, over([row["useful"] for row in rows])))
    return found


def picture(found: list[Way]) -> Sheet:
    rows = [Row(way.name, TONES.get(way.name, "c0"), (way.leak, way.useful)) for way in found]
    columns = [Column(*texts, ("a coin", "always"), lambda value: f"{100 * value:.0f} %") for texts in COLUMNS]
    return bars("What leaks from answers, and what is left of their confidence", columns, rows)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--measure", action="store_true")
    if arguments.parse_args().measure:
        found = {"command": COMMAND, "date": str(date.today()), "refits": [refit(seed) for seed in range(REFITS)]}
        atomic.write(RESULTS, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    PICTURE.write_text(svg(picture(ways(measured())), alone=True), encoding="utf-8")


if __name__ == "__main__":
    main()
