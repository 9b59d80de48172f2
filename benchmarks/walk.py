"""What does asking around a record tell of its raw score? Two attacks on the gateway: docs/decisions/neighbourhoods.md.

    nice python benchmarks/walk.py               # results in benchmarks/walk.json, and the tables on the page
    python benchmarks/walk.py --render           # makes the tables from the results, and measures nothing
    python benchmarks/walk.py --data FOLDER      # where FashionMNIST/raw is, for the rates of honest questions

*Border walk*: 1,500 questions on the line from a training record to one with another label, through the border where
the label changes and as far again behind it, in random order. *Near-duplicates*: 1,000 copies, half of them moved by
1e-6, half by the smallest number there is in a feature that is 0. The attacker knows the mechanism, where the label
changes, and which answers were drawn anew (the gateway does not tell: it is given more than it could have). It takes
the odds of the label to grow evenly along the line and all raw scores to be equally likely, and names the middle of
what is then likely given all fresh answers. Against the gateway as it was it also looks for the slope at which answers
change where bins do. Error: the mean distance to the raw top score, over records.
"""

import argparse
import gzip
import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil, atomic, record_bytes
from scoreveil.ledger import Answered, Questions, record_key, wire
from scoreveil.ledger.sqlite_file import LedgerFile
from scoreveil.mechanisms.isotonic import Isotonic, log_probability
from scoreveil.neighbourhood import Neighbourhoods

Array = NDArray[Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "walk.json", ROOT / "docs" / "decisions" / "neighbourhoods.md"
START, END = "<!-- walk: made by `python benchmarks/walk.py --render` -->", "<!-- end of walk -->"
SECRET = b"the secret of this measurement"
RECORDS, QUESTIONS, COPIES, TYPICAL, TOGETHER = 30, 1500, 1000, 300, 250
EPSILONS = (0.5, 2.0)
STEPS = (10, 100, QUESTIONS)
GRID = 160  # raw scores that the attacker tells apart
CASES = {
    "breast cancer, k = 2, logistic regression": ("cancer", 2, "linear"),
    "breast cancer, k = 2, network": ("cancer", 2, "network"),
    "digits, k = 2, logistic regression": ("digits", 2, "linear"),
    "digits, k = 2, network": ("digits", 2, "network"),
    "digits, k = 3, network": ("digits", 3, "network"),
    "digits, k = 10, network": ("digits", 10, "network"),
}


def trained(data: str, k: int, kind: str) -> tuple[Any, Array, Array, Array]:
    """A model; its training records with their labels; and other records."""
    x, y = (load_breast_cancer if data == "cancer" else load_digits)(return_X_y=True)
    y = y if data == "cancer" else y % k
    inside, outside, labels, _ = train_test_split(x, y, test_size=0.5, random_state=0)
    last = (
        LogisticRegression(C=0.05, max_iter=500)
        if kind == "linear"
        else MLPClassifier((32,), alpha=1.0, random_state=0)
    )
    return make_pipeline(StandardScaler(), last).fit(inside, labels), inside, labels, outside


class Gateway:
    """What the gateway does with questions, without its protocols: answers, and which of them were drawn anew."""

    rng = np.random.default_rng(2)

    def __init__(self, folder: Path, epsilon: float, typical: Array | None = None, budget: int = 0) -> None:
        self.veil = Veil(epsilon, secret=SECRET, model="m")
        self.near = Neighbourhoods(SECRET, b"m/1", typical)
        self.budget = budget
        self.file = LedgerFile(folder / f"{time.monotonic_ns()}.db", 10.0, create=True)

    def before(self, x: Array, scores: Array) -> tuple[Array, Array]:
        """As it was: keyed by bin and fingerprint; or a budget for each exact input."""
        if self.budget:
            return self._fresh(scores), np.arange(len(x))
        tags = self.veil.fingerprints(len(x), [x])
        levels = self.veil.outcomes(scores, tags)[:, 0]
        kept, cells = self.veil._used.cells(scores)
        drawn = list(zip(tags, kept[:, 0].tolist(), cells[:, 0].tolist(), strict=True))
        return levels, np.unique([drawn.index(each) for each in drawn])

    def now(self, x: Array, scores: Array) -> tuple[Array, Array]:
        levels, fresh = [], []
        for start in range(0, len(x), TOGETHER):
            some = slice(start, start + TOGETHER)
            for answer in self._answers(x[some], scores[some]):
                levels.append(int.from_bytes(answer.outcome, "little"))
                fresh.append(answer.granted)
        return np.array(levels), np.flatnonzero(fresh)

    def _answers(self, x: Array, scores: Array) -> list[Answered]:
        keys = [record_key(SECRET, "m", "1", record) for record in record_bytes.of_rows(x)]
        drawn = self._fresh(scores) if self.budget else self.veil.outcomes(scores, keys)[:, 0]
        marks, outcomes = self.near(len(x), [x]).astype("<i8").tobytes(), drawn.astype("<u2").tobytes()
        limit, repeats = max(1, self.budget), "replay" if self.budget else "sticky"
        asked = Questions("m", b"s" * 16, b"".join(keys), marks, outcomes, limit, 1, 1, repeats)  # type: ignore[arg-type]
        with self.file:
            [body] = self.file.answer([asked])
        return wire.read_answers(body or b"")

    def _fresh(self, scores: Array) -> Array:
        return np.asarray(self.veil._used.outcomes(scores, self.rng.random((len(scores), 1)))[:, 0])


class Attacker:
    """Knows the mechanism: how likely each level is for each raw top score."""

    def __init__(self, mechanism: Isotonic, k: int) -> None:
        self.k, self.grid = k, np.linspace(1 / k, 0.999, GRID)
        plan = mechanism.plan(k)
        rows = np.column_stack([self.grid, np.repeat((1 - self.grid)[:, None] / (k - 1), k - 1, axis=1)])
        self.step = plan.step
        self.log = np.stack([log_probability(rows, np.full((GRID, 1), c), plan) for c in range(plan.levels)], axis=1)

    def at_one_place(self, levels: Array) -> float:
        return self._middle(self.log[:, levels].sum(axis=1))

    def on_a_line(self, away: Array, levels: Array) -> float:
        """`away`: the distance of each question from the border, that of the record being 1."""
        return self._middle(self.log[self._nearest(self._curve(away)), levels[None]].sum(axis=1))

    def by_changes(self, away: Array, levels: Array) -> float:
        """The slope at which most answers change where bins do; `away` in the order of the line."""
        bins = np.rint(self._curve(away) / self.step)
        same_bin, same = np.diff(bins, axis=1) == 0, np.diff(levels.astype(int)) == 0
        chance = np.where(same_bin, 0.98, 0.12)
        return self._middle(np.log(np.where(same[None], chance, 1 - chance)).sum(axis=1))

    def _curve(self, away: Array) -> Array:
        """The top score at each place, for each raw score that the record may have: (GRID, n)."""
        odds = np.log(self.grid * (self.k - 1) / (1 - self.grid))
        grown = np.exp(np.clip(odds[:, None] * away[None], -700, 700))
        return np.asarray(grown / (grown + self.k - 1))

    def _nearest(self, tops: Array) -> Array:
        low, high = self.grid[0], self.grid[-1]
        return np.asarray(np.clip(np.rint((tops - low) / (high - low) * (GRID - 1)), 0, GRID - 1).astype(int))

    def _middle(self, log: Array) -> float:
        chance = np.exp(log - log.max()).cumsum()
        return float(self.grid[np.searchsorted(chance, chance[-1] / 2)])


def lines(
    model: Any, inside: Array, labels: Array, count: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """1,500 places from a record through the border, the record first and the others in random order; how far each is
    from the border."""
    made = 0
    while made < count:
        record = rng.integers(len(inside))
        other = inside[rng.choice(np.flatnonzero(labels != labels[record]))]
        steps = np.linspace(0, 1, 400)
        found = model.predict(inside[record] + steps[:, None] * (other - inside[record]))
        if (found == found[0]).all():
            continue
        border = steps[np.argmax(found != found[0])]
        along = np.concatenate([[0.0], rng.permutation(np.linspace(0, 2 * border, QUESTIONS)[1:])])
        yield inside[record] + along[:, None] * (other - inside[record]), np.abs(border - along) / border
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


def measured(name: str, epsilon: float, records: int = RECORDS) -> dict[str, Any]:
    """Errors by attack, and how many answers were fresh."""
    model, inside, labels, outside = trained(*CASES[name])
    k = CASES[name][1]
    attacker = Attacker(Veil(epsilon, secret=SECRET)._used, k)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for line, away in lines(model, inside, labels, records, rng):
            scores = model.predict_proba(line)
            raw, order = float(scores[0].max()), np.argsort(away)

            def note(what: str, estimate: float, raw: float = raw) -> None:
                errors.setdefault(what, []).append(abs(estimate - raw))

            plain = Gateway(Path(folder), epsilon)
            levels, fresh = plain.before(line, scores)
            note("walk before", attacker.on_a_line(away[fresh], levels[fresh]))
            note("walk before, by changes", attacker.by_changes(away[order], levels[order]))
            for what, typical in (("walk", None), ("walk, typical", outside[:TYPICAL])):
                levels, fresh = Gateway(Path(folder), epsilon, typical).now(line, scores)
                for n in STEPS:
                    some = fresh[fresh < n]
                    note(f"{what}, {n}", attacker.on_a_line(away[some], levels[some]))
                errors.setdefault(f"{what}, fresh", []).append(len(fresh))
            note("one", attacker.at_one_place(levels[:1]))
            near = copies(line[0], rng)
            scores = model.predict_proba(near)
            for what, gateway in (("sticky", plain), ("budget", Gateway(Path(folder), epsilon, budget=2))):
                for when in (gateway.before, gateway.now):
                    levels, fresh = when(near, scores)
                    note(f"{what} {when.__name__}", attacker.at_one_place(levels[fresh]))
                errors.setdefault(f"{what}, fresh", []).append(len(fresh))
    return {what: round(float(np.mean(found)), 4) for what, found in errors.items()}


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
    made = [f"Measured by `python benchmarks/walk.py`, {results['date']}: {RECORDS} records in each row."]
    for epsilon in map(str, EPSILONS):
        made.append(f"**Isotonic, ε = {epsilon}**: the error of the raw top score")
        head: tuple[str, ...] = (
            "model",
            "one answer",
            "walk, before",
            "walk, 10 questions",
            "100",
            "1,500",
            "gain",
            "fresh answers",
        )
        head += ("1,500, typical inputs", "gain", "fresh answers", "1,000 near-duplicates, before", "now")
        rows = [f"| {' | '.join((*head, 'b = 2, before', 'now'))} |", "|---|" + "---|" * (len(head) + 1)]
        for name in CASES:
            e = results["errors"][f"{name}, {epsilon}"]
            shown = [f"{e['one']:.3f}", f"{min(e['walk before'], e['walk before, by changes']):.3f}"]
            shown += [f"{e[f'walk, {n}']:.3f}" for n in STEPS[:-1]]
            for what in ("walk", "walk, typical"):
                last = e[f"{what}, {QUESTIONS}"]
                shown += [f"{last:.3f}", f"{1 - last / e['one']:.0%}", f"{e[f'{what}, fresh']:.0f}"]
            shown += [f"{e[f'{what} {when}']:.3f}" for what in ("sticky", "budget") for when in ("before", "now")]
            rows.append(f"| {name} | {' | '.join(shown)} |")
        made.append("\n".join(rows))
    rows = ["| honest questions | taken for near-duplicates | with typical inputs |", "|---|---|---|"]
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
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(START)
        atomic.write(PAGE, f"{head}{START}\n{made}\n{END}{rest.partition(END)[2]}")
    print(made)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of networks that have not converged
    main()
