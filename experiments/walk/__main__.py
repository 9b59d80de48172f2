"""What do many questions around a record tell of its raw score? Attacks on memory: docs/decisions/neighbourhoods.md.

    nice python -m experiments.walk           # results in experiments/walk/results.json, and the tables on the page
    python -m experiments.walk --render       # makes the tables from the results, and measures nothing
    python -m experiments.walk --data FOLDER  # where FashionMNIST/raw is, for the rates of honest questions

A veil that was not fitted, with `answers = 1`: near-duplicates share an answer. The attacker knows the mechanism, the
labels, where they change, and which answers were drawn anew (the gateway does not tell: it is given more than it could
have). Error: the mean distance of its estimate to the raw top score, over records.

*Walk*: 1,500 questions on the line from a training record to one with another label, through the border where the
label changes and as far again behind it, in random order. It takes the odds of the label to grow evenly along the
line. *Near-duplicates*: 1,000 copies, half of them moved by 1e-6, half by the smallest number there is in a feature
that is 0. *Ignored*: 1,000 questions that differ far, in features alone that the model ignores. *Nudged*: in those
that it uses as well, by so little that the scores stay the same within .01. *Labels alone*: no answer is looked at.
How far away the border is tells the score, as it does of the other records, whose raw scores this attacker is given;
then the same attacker with one answer, and with the whole walk.
"""

import argparse
import gzip
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil, atomic
from scoreveil.keyed import KeyedVeil
from scoreveil.ledger.index import Index, hashed
from scoreveil.ledger.log import Body
from scoreveil.ledger.releases import SETTINGS, ReleaseRequest
from scoreveil.mechanisms.isotonic import Isotonic, log_probability
from scoreveil.same_record.marks import Neighbourhoods

Array = NDArray[Any]

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = Path(__file__).with_name("results.json"), ROOT / "docs" / "decisions" / "neighbourhoods.md"
START, END = "<!-- walk: made by `python -m experiments.walk --render` -->", "<!-- end of walk -->"
SECRET = b"the secret of this measurement"
RECORDS, QUESTIONS, COPIES, TYPICAL = 30, 1500, 1000, 300
EPSILONS = (0.5, 2.0)
STEPS = (10, 100, QUESTIONS)
GRID = 160  # raw scores that the attacker tells apart
SAME, NUDGED = 1e-9, 1e-2  # the most that scores differ where a question has the same ones, and where it is nudged
CASES = {
    "breast cancer, k = 2, logistic regression": ("cancer", 2, "linear"),
    "breast cancer, k = 2, network": ("cancer", 2, "network"),
    "digits, k = 2, logistic regression": ("digits", 2, "linear"),
    "digits, k = 2, network": ("digits", 2, "network"),
    "digits, k = 3, network": ("digits", 3, "network"),
    "digits, k = 10, network": ("digits", 10, "network"),
    "digits, k = 10, forest": ("digits", 10, "forest"),
}


def trained(data: str, k: int, kind: str) -> tuple[Any, Array, Array, Array]:
    """A model; its training records with their labels; and other records."""
    x, y = (load_breast_cancer if data == "cancer" else load_digits)(return_X_y=True)
    y = y if data == "cancer" else y % k
    inside, outside, labels, _ = train_test_split(x, y, test_size=0.5, random_state=0)
    last = {
        "linear": LogisticRegression(C=0.05, max_iter=500),
        "network": MLPClassifier((32,), alpha=1.0, random_state=0),
        "forest": RandomForestClassifier(100, random_state=0),
    }[kind]
    return make_pipeline(StandardScaler(), last).fit(inside, labels), inside, labels, outside


class Memory:
    """What a gateway with `memory.answers = 1` does with questions: answers, and which of them were drawn anew."""

    def __init__(self, veil: Veil, typical: Array | None = None) -> None:
        self.keyed, self.near, self.index = (
            KeyedVeil(veil),
            Neighbourhoods(SECRET, b"m/1", typical),
            Index(10 * QUESTIONS),
        )

    def __call__(self, x: Array, scores: Array) -> tuple[Array, Array]:
        drawn = self.keyed.outcomes(scores, self.keyed.score_tags(scores))[:, 0].astype("<u2")
        marks = self.near(len(x), [x])
        body = self.index.answer(ReleaseRequest("m", bytes(SETTINGS), marks, drawn.tobytes(), 1), hashed("m", marks))
        assert isinstance(body, Body)
        return np.frombuffer(body.outcomes, "<u2"), np.flatnonzero(body.kinds)


class Attacker:
    """Knows the mechanism: how likely each level is for each raw top score, all of which are equally likely at first.
    It names the middle of what is likely given all fresh answers."""

    def __init__(self, mechanism: Isotonic, k: int) -> None:
        self.k, self.grid = k, np.linspace(1 / k, 0.999, GRID)
        plan = mechanism.plan(k)
        rows = np.column_stack([self.grid, np.repeat((1 - self.grid)[:, None] / (k - 1), k - 1, axis=1)])
        self.log = np.stack([log_probability(rows, np.full((GRID, 1), c), plan) for c in range(plan.levels)], axis=1)

    def at_one_place(self, levels: Array) -> float:
        """ReleaseResult to questions that have one raw score; as many as differ, since equal ones may be one draw."""
        some = levels if len(np.unique(levels)) > 1 else levels[:1]
        return self._middle(self.log[:, some].sum(axis=1))

    def on_a_line(self, away: Array, levels: Array, prior: Array | float = 0.0) -> float:
        """`away`: the distance of each question from the border, that of the record being 1."""
        odds = np.log(self.grid * (self.k - 1) / (1 - self.grid))
        grown = np.exp(np.clip(odds[:, None] * away[None], -700, 700))
        return self._middle(self.log[self._nearest(grown / (grown + self.k - 1)), levels[None]].sum(axis=1) + prior)

    def by_labels(self, odds: float, error: float) -> Array:
        """How likely each raw score is, where the labels tell the log-odds with such an error."""
        away = (_log_odds(self.grid) - odds) / error
        return np.asarray(-(away**2) / 2 - np.log(self.grid * (1 - self.grid)))

    def alone(self, prior: Array) -> float:
        return self._middle(prior)

    def _nearest(self, tops: Array) -> Array:
        low, high = self.grid[0], self.grid[-1]
        return np.asarray(np.clip(np.rint((tops - low) / (high - low) * (GRID - 1)), 0, GRID - 1).astype(int))

    def _middle(self, log: Array) -> float:
        chance = np.exp(log - log.max()).cumsum()
        return float(self.grid[np.searchsorted(chance, chance[-1] / 2)])


def by_labels(raw: Array, borders: Array) -> tuple[Array, Array]:
    """The log-odds of each record, by a line through those of the others over the logarithm of how far the border is;
    and how far the others are from that line."""
    odds, far, records = _log_odds(raw), np.log(borders), np.arange(len(raw))
    found = []
    for record in records:
        others = records != record
        line = np.polyfit(far[others], odds[others], 1)
        found.append((np.polyval(line, far[record]), np.std(odds[others] - np.polyval(line, far[others]), ddof=2)))
    return np.array([odds for odds, _ in found]), np.array([error for _, error in found])


def _log_odds(scores: Array) -> Array:
    held = np.clip(scores, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(held / (1 - held)))


def lines(
    model: Any, inside: Array, labels: Array, count: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, float]]:
    """1,500 places from a record through the border, the record first and the others in random order; how far each is
    from the border, in parts of the record's own distance; and that distance, in spreads."""
    spread = inside.std(axis=0).clip(1e-9)
    made = 0
    while made < count:
        record = rng.integers(len(inside))
        way = inside[rng.choice(np.flatnonzero(labels != labels[record]))] - inside[record]
        steps = np.linspace(0, 1, 400)
        found = model.predict(inside[record] + steps[:, None] * way)
        if (found == found[0]).all():
            continue
        border = steps[np.argmax(found != found[0])]
        along = np.concatenate([[0.0], rng.permutation(np.linspace(0, 2 * border, QUESTIONS)[1:])])
        far = float(border * np.linalg.norm(way / spread))
        yield inside[record] + along[:, None] * way, np.abs(border - along) / border, far
        made += 1


def copies(record: Array, rng: np.random.Generator) -> Array:
    """1,000 near-duplicates, the record first."""
    made = np.tile(record, (COPIES, 1))
    half = COPIES // 2
    made[1:half] *= 1 + 1e-6 * rng.normal(size=(half - 1, len(record)))
    blank = np.flatnonzero(record == 0)
    place = int(blank[0]) if len(blank) else 0
    made[half:, place] += np.arange(1, COPIES - half + 1) * (5e-324 if len(blank) else 1e-12)
    return made


def ignored(model: Any, record: Array, rng: np.random.Generator, nudged: bool) -> Array | None:
    """1,000 questions with the scores of the record, the record first, that differ in features that the model ignores;
    None where there are none. Nudged: in those that it uses as well, by a hundredth."""
    x, scores = np.tile(record, (COPIES, 1)), model.predict_proba(record[None])
    blank = np.flatnonzero(record == 0)
    unused = blank[[_differ(model, _moved(record, int(place)), scores).max() <= SAME for place in blank]]
    if not len(unused):
        return None
    x[1:, unused] = -rng.uniform(0, 16, (COPIES - 1, len(unused)))
    if nudged:
        used = np.setdiff1d(np.arange(len(record)), unused)
        x[1:, used] *= 1 + 1e-2 * rng.normal(size=(COPIES - 1, len(used)))
    differ = _differ(model, x, scores)
    held = differ <= (NUDGED if nudged else SAME)
    held[1:] &= not nudged or differ[1:] > SAME
    return x[held] if held.sum() > COPIES // 2 else None


def _moved(record: Array, place: int) -> Array:
    rows = np.tile(record, (3, 1))
    rows[:, place] = -1.0, -8.0, -16.0
    return rows


def _differ(model: Any, x: Array, scores: Array) -> Array:
    return np.asarray(np.abs(model.predict_proba(x) - scores).max(axis=1))


def measured(name: str, epsilon: float, records: int = RECORDS) -> dict[str, Any]:
    """Errors by attack, and how many answers were fresh."""
    data, k, kind = CASES[name]
    model, inside, labels, outside = trained(data, k, kind)
    veil = Veil(epsilon, secret=SECRET, model="m")
    attacker, rng = Attacker(veil.drawn_by, k), np.random.default_rng(1)  # type: ignore[arg-type]
    seen: dict[str, list[float]] = {}
    raws, borders, walks = [], [], []
    for line, away, far in lines(model, inside, labels, records, rng):
        scores = model.predict_proba(line)
        raw = float(scores[0].max())
        raws.append(raw)
        borders.append(far)

        def note(what: str, estimate: float, raw: float = raw) -> None:
            seen.setdefault(what, []).append(abs(estimate - raw))

        for what, typical in (("walk", None), ("walk, typical", outside[:TYPICAL])):
            levels, fresh = Memory(veil, typical)(line, scores)
            for n in STEPS:
                some = fresh[fresh < n]
                note(f"{what}, {n}", attacker.on_a_line(away[some], levels[some]))
            seen.setdefault(f"{what}, fresh", []).append(len(fresh))
            if typical is None:
                walks.append((away[fresh], levels[fresh]))
        note("one", attacker.at_one_place(levels[:1]))
        around: dict[str, Array | None] = {"copies": copies(line[0], rng)}
        around |= {what: ignored(model, line[0], rng, what == "nudged") for what in ("ignored", "nudged")}
        for what, asked in around.items():
            if asked is not None:
                levels, fresh = Memory(veil)(asked, model.predict_proba(asked))
                note(what, attacker.at_one_place(levels[fresh]))
    for raw, walked, *known in zip(raws, walks, *by_labels(np.array(raws), np.array(borders)), strict=True):
        prior = attacker.by_labels(*known)
        seen.setdefault("labels", []).append(abs(attacker.alone(prior) - raw))
        seen.setdefault("labels, one", []).append(abs(attacker.on_a_line(walked[0][:1], walked[1][:1], prior) - raw))
        seen.setdefault("labels, walk", []).append(abs(attacker.on_a_line(*walked, prior) - raw))
    return {what: round(float(np.mean(errors)), 4) for what, errors in seen.items() if len(errors) > records // 2}


def honest(folder: Path | None) -> dict[str, float]:
    """How many of the questions of honest test sets are taken for near-duplicates of earlier ones."""
    digits, cancer = load_digits().data, load_breast_cancer().data
    sets = {"digits": digits, "breast cancer": cancer}
    if folder is not None:
        packed = (folder / "FashionMNIST" / "raw" / "t10k-images-idx3-ubyte.gz").read_bytes()
        sets["Fashion-MNIST"] = (
            np.frombuffer(gzip.decompress(packed), np.uint8, offset=16).reshape(-1, 784).astype(float)
        )
    rates = {}
    for name, x in sets.items():
        for form, data in (("raw", x), ("standardised", StandardScaler().fit_transform(x))):
            order = np.random.default_rng(0).permutation(len(x))
            sample = data[order[: min(1000, len(x) // 3)]]
            rest = data[order[len(sample) :]]
            for how, asked, typical in (("", data, None), (", typical", rest, sample)):
                rates[f"{name}, {form}{how}"] = float(np.mean([_taken(asked, typical, s) for s in range(3)]))
    return rates


def _taken(x: Array, typical: Array | None, seed: int) -> float:
    seen: set[int] = set()
    taken = 0
    for row in Neighbourhoods(bytes([seed]) * 32, b"", typical)(len(x), [x]).tolist():
        if seen.isdisjoint(row):
            seen.update(row)
        else:
            taken += 1
    return taken / len(x)


def tables(results: dict[str, Any]) -> str:
    """The results as the page shows them."""
    made = [f"Measured by `python -m experiments.walk`, {results['date']}: {RECORDS} records in each row."]
    head = (
        *("model", "one answer", "walk, 10 questions", "100", "1,500", "gain", "fresh answers"),
        *("1,500, typical inputs", "gain", "fresh answers", "1,000 near-duplicates", "ignored", "nudged"),
        *("labels alone", "labels, one answer", "labels, walk"),
    )
    for epsilon in map(str, EPSILONS):
        made.append(f"**Isotonic, ε = {epsilon}**: the error of the raw top score")
        rows = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
        for name in CASES:
            e = results["errors"][f"{name}, {epsilon}"]
            shown = [f"{e[what]:.3f}" for what in ("one", *(f"walk, {n}" for n in STEPS[:-1]))]
            for what in ("walk", "walk, typical"):
                last = e[f"{what}, {QUESTIONS}"]
                shown += [f"{last:.3f}", f"{1 - last / e['one']:.0%}", f"{e[f'{what}, fresh']:.0f}"]
            rest = "copies", "ignored", "nudged", "labels", "labels, one", "labels, walk"
            shown += [f"{e[what]:.3f}" if what in e else "–" for what in rest]
            rows.append(f"| {name} | {' | '.join(shown)} |")
        made.append("\n".join(rows))
    rows = ["| honest questions | taken for near-duplicates | with typical inputs |", "|---|---:|---:|"]
    for name, rate in results["honest"].items():
        if not name.endswith(", typical"):
            rows.append(f"| {name} | {rate:.2%} | {results['honest'][f'{name}, typical']:.2%} |")
    made.append("\n".join(rows))
    return "\n\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="make the tables from the results, measuring nothing")
    parser.add_argument("--data", type=Path, help="the folder that FashionMNIST/raw is in")
    given = parser.parse_args()
    if not given.render:
        errors = {}
        for name in CASES:
            for epsilon in EPSILONS:
                errors[f"{name}, {epsilon}"] = measured(name, epsilon)
                print(name, epsilon, errors[f"{name}, {epsilon}"], flush=True)
        results = {"date": time.strftime("%Y-%m-%d"), "errors": errors, "honest": honest(given.data)}
        atomic.write(RESULTS, json.dumps(results, indent=1) + "\n")
    made = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    atomic.write(PAGE, f"{before}{START}\n{made}\n{END}{rest.partition(END)[2]}")
    print(made)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of networks that have not converged
    main()
