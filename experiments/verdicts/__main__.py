"""How often the audit's verdict and its gate are right: many small audits of models whose answer is known.

    python -m experiments.verdicts [--data-dir DIR]      # writes results.json, and goes on where it stopped

Three kinds of study, each with undefended scores alone and with attacks that are cheap:

    logistic regression   on half of scikit-learn's digits: its scores tell hardly more than its labels. Never "leaks"
    forest                1,000 pictures of Fashion-MNIST known by heart, 1,000 others. Always "leaks"
    nothing               members and others are drawn alike, so that no attack has an AUC above .5 but by luck.
                          The gate --fail-over auc=0.5 shuts in 5 % of the studies at most, and "leaks" is as rare
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.data.benchmarks import load
from scoreveil import __version__, atomic
from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Records
from scoreveil.audit.report.gate import gate
from scoreveil.audit.study import run as study
from scoreveil.audit.study.results import UNDEFENDED
from scoreveil.audit.study.subjects import from_scores
from scoreveil.audit.verdict import verdict
from scoreveil.fitting.decision import LEAKS

RESULTS = Path(__file__).resolve().parent / "results.json"
THRESHOLDS = (
    *("max_confidence", "entropy", "true_confidence", "modified_entropy", "gap"),
    *("label_floor", "label_floor_known"),
)
ATTACKS = {  # of each kind of study; an attack by a forest takes five times as long as all the others
    "logistic regression": (*THRESHOLDS, "random_forest"),
    "forest": (*THRESHOLDS, "random_forest"),
    "nothing": THRESHOLDS,
}
LIMIT = "auc=0.5"  # of the gate
PICTURES = 1_000  # members of a forest, and as many others
DRAWN, CLASSES = 400, 10  # members where there is nothing to find, and as many others
FALSE_ALARMS = 0.05

Sides = tuple[Records, Records]  # members and non-members


@dataclass(frozen=True)
class Found:
    """What one audit said."""

    kind: str
    seed: int
    outcome: str
    excess: float
    low: float
    high: float
    shut: bool  # the gate


def logistic_regression(seed: int) -> Sides:
    from sklearn.linear_model import LogisticRegression

    pixels, labels = _flat("digits", None)
    # digits are sorted by who wrote them: a split must not depend on the draws of the audit, which start from the seed
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    inside, outside = np.array_split(order, 2)
    model = LogisticRegression(max_iter=2000).fit(pixels[inside], labels[inside])
    return _asked(model.predict_proba, pixels, labels, inside, outside)


def forest(seed: int, data: tuple[Floats, Integers], count: int = PICTURES) -> Sides:
    from sklearn.ensemble import RandomForestClassifier

    pixels, labels = data
    order = np.random.default_rng(seed).permutation(len(labels))
    inside, outside = order[:count], order[count : 2 * count]
    model = RandomForestClassifier(random_state=seed).fit(pixels[inside], labels[inside])
    return _asked(model.predict_proba, pixels, labels, inside, outside)


def nothing(seed: int) -> Sides:
    """Scores and labels as a calibrated model has them, the same for both sides."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(CLASSES, 0.1), 2 * DRAWN)
    labels = (np.cumsum(scores, axis=1) < rng.random((2 * DRAWN, 1))).sum(axis=1).clip(max=CLASSES - 1)
    return Records(scores[:DRAWN], labels[:DRAWN]), Records(scores[DRAWN:], labels[DRAWN:])


def _flat(name: str, data_dir: Path | None) -> tuple[Floats, Integers]:
    images = load(name, data_dir)
    return images.pixels.reshape(len(images.labels), -1).astype(np.float64), images.labels


def _asked(predict: Callable[[Floats], Floats], x: Floats, y: Integers, inside: Integers, outside: Integers) -> Sides:
    members, others = (Records(predict(x[index]), y[index]) for index in (inside, outside))
    return members, others


def audited(kind: str, seed: int, sides: Sides, attacks: tuple[str, ...] = ()) -> Found:
    """One audit, as the command line runs it from scores, undefended; by other attacks than those of its kind."""
    plan = study.StudyPlan(settings=(UNDEFENDED,), attacks=attacks or ATTACKS[kind], seed=seed, jobs=1)
    found = study.run(from_scores(*sides, seed=seed), plan)
    said = verdict(found)
    (answer,) = gate(found, UNDEFENDED, fail_over=LIMIT)
    value, low, high = (round(v, 4) for v in (said.excess.value, said.excess.low, said.excess.high))
    return Found(kind, seed, said.excess.outcome, value, low, high, not answer.passes)


def planned(data_dir: Path | None) -> Iterator[tuple[str, int, Callable[[], Sides]]]:
    """Every study: its kind, its seed, and how it is made."""
    fashion: list[tuple[Floats, Integers]] = []

    def of_fashion(seed: int) -> Sides:
        if not fashion:
            fashion.append(_flat("fashion-mnist", data_dir))
        return forest(seed, fashion[0])

    makers: dict[str, tuple[int, Callable[[int], Sides]]] = {
        "logistic regression": (100, logistic_regression),
        "forest": (100, of_fashion),
        "nothing": (200, nothing),
    }
    for kind, (count, make) in makers.items():
        for seed in range(count):
            yield kind, seed, lambda make=make, seed=seed: make(seed)  # type: ignore[misc]


def summary(rows: list[Found]) -> dict[str, dict[str, int]]:
    """For each kind how many studies there were, how often each outcome was found, and how often the gate shut."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        of_kind = counts.setdefault(row.kind, {"studies": 0})
        of_kind["studies"] += 1
        of_kind[row.outcome] = of_kind.get(row.outcome, 0) + 1
        of_kind["gate shut"] = of_kind.get("gate shut", 0) + row.shut
    return counts


def missed(rows: list[Found]) -> list[str]:
    """The goals that were not met, in words."""
    counts = summary(rows)

    def of(kind: str, what: str) -> int:
        return counts.get(kind, {}).get(what, 0)

    most = FALSE_ALARMS * of("nothing", "studies")
    met = {
        "logistic regression is never said to leak": of("logistic regression", LEAKS) == 0,
        "a forest is always said to leak": of("forest", LEAKS) == of("forest", "studies"),
        "the gate shuts on nothing in 5 % of the studies at most": of("nothing", "gate shut") <= most,
        "nothing is said to leak in 5 % of the studies at most": of("nothing", LEAKS) <= most,
    }
    return [goal for goal, reached in met.items() if not reached]


def read(path: Path) -> list[Found]:
    return [Found(**row) for row in json.loads(path.read_text("utf-8"))["found"]] if path.exists() else []


def write(path: Path, rows: list[Found]) -> None:
    """One line for each study, so that a run that is killed goes on."""
    about = {
        "command": "python -m experiments.verdicts",
        "scoreveil": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "attacks": ATTACKS,
        "gate": f"--fail-over {LIMIT}",
    }
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    heads = (f'"{name}": {json.dumps(value)}' for name, value in (("about", about), ("summary", summary(rows))))
    atomic.write(path, "{\n" + ",\n".join(heads) + f',\n"found": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where Fashion-MNIST is; else $SCOREVEIL_DATA, or the cache")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = read(given.output)
    done = {(row.kind, row.seed) for row in rows}
    for kind, seed, make in planned(given.data_dir):
        if (kind, seed) not in done:
            rows.append(audited(kind, seed, make()))
            write(given.output, rows)
    for kind, counts in summary(rows).items():
        print(f"{kind:24}" + ", ".join(f"{what}: {count}" for what, count in counts.items()))
    failed = missed(rows)
    print("\n".join(f"Missed: {goal}." for goal in failed) or "All goals are met.")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
