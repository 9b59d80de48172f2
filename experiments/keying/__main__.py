"""Of what should a keyed answer be a function? Two attacks on every candidate: docs/decisions/sticky-answers.md.

    nice python -m experiments.keying            # goes on where it was stopped; results in results.json
    python -m experiments.keying --render        # makes the tables from the results, and measures nothing

Half of a dataset trains a model that knows it by heart, with 15 % of its labels redrawn so that there is something to
know. *Known members*: of half of the records the attacker knows who is a member, and all answers; it counts how often
an answer, or that answer nearby, was a member's. *Near-duplicates*: 300 copies of a record are asked, each moved by
normal noise of so much of every feature's spread, and the announced confidence is averaged; whether members have the
higher one is learnt on half of the records. AUC of members against others; .5 is nothing. Means over splits, secrets,
models and datasets.
"""

import argparse
import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoreveil import Veil, atomic, fit
from scoreveil.fitting.metrics import auroc
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.messages import messages
from scoreveil.randomness import KeyedDraws
from scoreveil.same_record.fingerprints import WIDENING, Fingerprints
from scoreveil.same_record.marks import DIRECTIONS, WIDE, WIDTH

Array = NDArray[Any]

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = Path(__file__).with_name("results.json"), ROOT / "docs" / "decisions" / "sticky-answers.md"
START, END = "<!-- attacks: made by `python -m experiments.keying --render` -->", "<!-- end of attacks -->"
SEEDS, SECRETS, TARGETS, COPIES, NEIGHBOURS = range(2), 2, 40, 300, 5
REDRAWN = 0.15  # of the labels
JITTERS = ("1e-9", "1e-3", "1e-2", "1e-1")
IGNORED = "ignored"  # in place of a jitter: one feature that the model ignores takes any value
KEYINGS = {
    "fresh": "nothing: fresh draws",
    "bin": "label, bin",
    "magnitudes": "label, bin, magnitudes",
    "exact": "label, bin, exact record",
    "fingerprint": "**label, bin, fingerprint**",
    "both": "label, bin, fingerprint, magnitudes",
    "no bin": "label, fingerprint",
}
VEILS = {"isotonic": "Isotonic, ε = 2", "fitted": "Fitted, ε = 4, advantage .02"}
MODELS: dict[str, Callable[[int], Any]] = {
    "forest": lambda seed: ExtraTreesClassifier(20, random_state=seed),
    "network": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(alpha=0, max_iter=200, random_state=seed)),
}


def dataset(name: str) -> tuple[Array, Array]:
    """Records and labels; digits are also told apart by their remainder, so that only the number of classes changes."""
    if name in ("breast cancer", "wine"):
        x, y = (load_wine if name == "wine" else load_breast_cancer)(return_X_y=True)
        return x, y
    x, y = load_digits(return_X_y=True)
    return x, y % {"digits mod 2": 2, "digits mod 3": 3, "digits": 10}[name]


DATASETS = {"breast cancer": 2, "digits mod 2": 2, "wine": 3, "digits mod 3": 3, "digits": 10}


# Keyings


class Keying:
    """Answers of a mechanism whose draws are functions of some of what is asked."""

    def __init__(self, kind: str, mechanism: Mechanism, secret: bytes) -> None:
        self.kind, self.mechanism = kind, mechanism.keyed()
        self._draws, self._fresh = KeyedDraws(secret, kind.encode()), np.random.default_rng(list(secret))

    def __call__(self, scores: Array, x: Array, fingerprints: Array) -> tuple[Array, Array]:
        """The announced confidence of each row, and the message that it was drawn for."""
        kept, cell = self.mechanism.cells(scores)
        parts = [kept.astype("<u4"), cell if self.kind != "no bin" else cell[:, :0]]
        if self.kind in ("magnitudes", "both"):
            parts.append(messages(scores, kept, cell)[:, -1 - scores.shape[1] : -1])
        if self.kind == "exact":
            parts.append(x)
        if self.kind in ("fingerprint", "both", "no bin"):
            parts.append(fingerprints)
        told = np.hstack([np.ascontiguousarray(part).view(np.uint8).reshape(len(x), -1) for part in parts])
        draws = self.mechanism.draws(scores.shape[1])
        uniforms = self._fresh.random((len(x), draws)) if self.kind == "fresh" else self._draws.uniforms(told, draws)
        return self.mechanism.perturb(scores, uniforms).max(axis=1), told


# Attacks


def known_members(known: tuple[Array, Array, Array], targets: tuple[Array, Array]) -> tuple[Array, Array]:
    """How often an answer was a member's, of all known records and of the nearest ones; (answers, x[, is member])."""
    (answers, x, member), (asked, where) = known, targets
    seen, of_members = Counter(answers.tolist()), Counter(answers[member].tolist())
    counted = np.array([(of_members[a] + 1) / (seen[a] + 2) for a in asked.tolist()])
    near = np.full(len(asked), 0.5)
    for i, (answer, at) in enumerate(zip(asked.tolist(), where, strict=True)):
        same = np.flatnonzero(answers == answer)
        if len(same):
            distance = np.square(x[same] - at).sum(axis=1)
            near[i] = member[same[np.argsort(distance)[:NEIGHBOURS]]].mean()
    return counted, near


def two_sided(members: Array, others: Array) -> float:
    """The AUC of whoever learns on one half of the records which side is the members', and attacks the other half."""
    found = []
    for half in (0, 1):
        learnt = auroc(members[half::2], others[half::2])
        sign = 1.0 if learnt >= 0.5 else -1.0
        found.append(auroc(sign * members[1 - half :: 2], sign * others[1 - half :: 2]))
    return float(np.mean(found))


def moved(x: Array, spread: Array, how: str, rng: np.random.Generator) -> Array:
    """COPIES of each record, (n, COPIES, d), the first as it is."""
    copies = np.repeat(x[:, None], COPIES, axis=1)
    if how == IGNORED:
        copies[:, 1:, 0] = rng.uniform(0, 16, size=(len(x), COPIES - 1))
    else:
        copies[:, 1:] += float(how) * spread * rng.normal(size=(len(x), COPIES - 1, x.shape[1]))
    return copies


def attack(name: str, model_name: str, seed: int) -> dict[str, Any]:
    """Figures of one split: for each veil and keying the AUC of every attack, and how many draws 300 copies got."""
    rng, (x, y), k = np.random.default_rng(seed), dataset(name), DATASETS[name]
    order, redrawn = rng.permutation(len(y)), rng.random(len(y)) < REDRAWN
    y = np.where(redrawn, rng.integers(0, k, size=len(y)), y)
    training, others = order[: len(y) // 2], order[len(y) // 2 :]
    model = MODELS[model_name](seed)
    out_of_fold = cross_val_predict(model, x[training], y[training], cv=5, method="predict_proba")
    model.fit(x[training], y[training])
    known = [half[: len(half) // 2] for half in (training, others)]
    asked = [half[len(half) // 2 :] for half in (training, others)]
    scores, spread = model.predict_proba(x), x.std(axis=0)
    fitted = fit(out_of_fold, y[training], scores[training], y[training], epsilon=4.0, rng=rng)
    veils = {"isotonic": Veil(2.0).mechanism, "fitted": fitted.mechanism}
    secrets = [rng.bytes(32) for _ in range(SECRETS)]
    keyings = [
        (veil, kind, secret, Keying(kind, mechanism, secret))
        for veil, mechanism in veils.items()
        for kind in KEYINGS
        for secret in secrets
    ]
    found: dict[tuple[str, str, str], list[float]] = {}

    def note(veil: str, kind: str, what: str, value: float) -> None:
        found.setdefault((veil, kind, what), []).append(value)

    def fingerprints(rows: Array) -> dict[bytes, Array]:
        made = {secret: Fingerprints(secret, b"")(len(rows), [rows]) for secret in secrets}
        return {secret: np.frombuffer(b"".join(tags), np.uint8).reshape(len(rows), -1) for secret, tags in made.items()}

    prints, scaled, label = fingerprints(x), x / np.where(spread > 0, spread, 1), scores.argmax(axis=1)
    learnt_on, attacked = np.concatenate(known), np.concatenate(asked)
    member = np.arange(len(learnt_on)) < len(known[0])
    for veil, kind, secret, keying in keyings:
        # what is seen, the label and its confidence, as one number
        answers = np.round(keying(scores, x, prints[secret])[0], 9) + k * label.astype(float)
        told = (answers[learnt_on], scaled[learnt_on], member)
        guesses = known_members(told, (answers[attacked], scaled[attacked]))
        for what, guess in zip(("counted", "near"), guesses, strict=True):
            note(veil, kind, what, auroc(guess[: len(asked[0])], guess[len(asked[0]) :]))

    chosen = np.concatenate([half[:TARGETS] for half in asked])
    size = min(TARGETS, len(asked[0]))
    ignores = model_name == "forest" and not spread[0]
    for how in (*JITTERS, *([IGNORED] if ignores else [])):
        copies = moved(x[chosen], spread, how, rng).reshape(-1, x.shape[1])
        prints, of_copies = fingerprints(copies), model.predict_proba(copies)
        for veil, kind, secret, keying in keyings:
            sure, drawn_for = keying(of_copies, copies, prints[secret])
            sure = sure.reshape(-1, COPIES)
            note(veil, kind, how, two_sided(sure[:size].mean(axis=1), sure[size:].mean(axis=1)))
            if how == JITTERS[0]:
                note(veil, kind, "one", two_sided(sure[:size, 0], sure[size:, 0]))
            if kind == "fresh":
                continue
            draws = [len(np.unique(each, axis=0)) for each in drawn_for.reshape(len(sure), COPIES, -1)[::8]]
            note(veil, kind, f"draws {how}", float(np.mean(draws)))
    bare = auroc(scores[asked[0]].max(axis=1), scores[asked[1]].max(axis=1))
    return {
        "bare": bare,
        "answers": len(np.unique(np.round(Keying("fresh", fitted.mechanism, secrets[0])(scores, x, x)[0], 9))),
        "attacks": [[*which, round(float(np.mean(values)), 4)] for which, values in found.items()],
    }


# Speed


def microseconds() -> dict[str, float]:
    """Processor time of one fingerprint within a batch of 64, by the number of features; the best of ten."""
    made, found = Fingerprints(bytes(32), b""), {}
    for features in (64, 3072):
        rows = np.random.default_rng(0).random((64, features), dtype=np.float32)
        made(64, [rows])
        times = []
        for _ in range(10):
            start = time.process_time()
            for _ in range(20):
                made(64, [rows])
            times.append((time.process_time() - start) / 20 / 64 * 1e6)
        found[str(features)] = round(min(times), 1)
    return found


# The tables


def mean_of(results: dict[str, Any], classes: int, veil: str, kind: str, what: str) -> float:
    """The mean over all models and datasets with so many classes; NaN of none."""
    values = [
        value
        for run, figures in results["runs"].items()
        if DATASETS[run.split(", ")[0]] == classes
        for *which, value in figures["attacks"]
        if (veil != "fitted" or figures["answers"] > 1)  # a constant confidence tells nothing
        and which == [veil, kind, what]
    ]
    return float(np.mean(values)) if values else math.nan


def tables(results: dict[str, Any]) -> str:
    """The page's part: what raw scores give away, and a table for each veil."""
    classes = sorted(set(DATASETS.values()))
    bare = [
        np.mean([figures["bare"] for run, figures in results["runs"].items() if DATASETS[run.split(", ")[0]] == k])
        for k in classes
    ]
    raw = ", ".join(f"{short(value)} (k = {k})" for k, value in zip(classes, bare, strict=True))
    speed = " and ".join(f"{value:g} µs for {features}" for features, value in results["microseconds"].items())
    intro = f"One raw answer: {raw}. A fingerprint takes {speed} features, of one core, in a batch of 64."
    return "\n\n".join([intro, *("\n".join(lines(results, veil)) for veil in VEILS)])


def lines(results: dict[str, Any], veil: str) -> Iterator[str]:
    jitters = " | ".join(f"300 at {how}" for how in JITTERS)
    yield f"**{VEILS[veil]}**"
    yield ""
    yield f"| k | the draw depends on | known members | one answer | {jitters} | an ignored feature | draws at 1e-3 |"
    yield "|---|---|---|---|" + "---|" * (len(JITTERS) + 2)
    for classes in sorted(set(DATASETS.values())):
        for kind, words in KEYINGS.items():
            known = max(mean_of(results, classes, veil, kind, what) for what in ("counted", "near"))
            auc = [mean_of(results, classes, veil, kind, what) for what in ("one", *JITTERS, IGNORED)]
            draws = COPIES if kind == "fresh" else mean_of(results, classes, veil, kind, "draws 1e-3")
            yield f"| {classes} | {words} | {' | '.join(map(short, (known, *auc)))} | {draws:.1f} |"


def short(value: float) -> str:
    """– where no run has it."""
    return "–" if math.isnan(value) else f"{value:.3f}".lstrip("0")


def render() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    made = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{START}\n{made}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="make the tables from the results, measuring nothing")
    if not parser.parse_args().render:
        widths = [WIDENING * WIDTH, WIDENING * WIDE]
        settings = {"directions": DIRECTIONS, "widths": widths, "targets": TARGETS, "secrets": SECRETS}
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        if results.get("settings") != settings:
            results = {"settings": settings, "runs": {}}
        for seed in SEEDS:
            for name in DATASETS:
                for model in MODELS:
                    run = f"{name}, {model}, {seed}"
                    if run not in results["runs"]:
                        results["runs"][run] = attack(name, model, seed)
                        atomic.write(RESULTS, json.dumps(results) + "\n")
                        print(run, flush=True)
        results["microseconds"] = microseconds()
        atomic.write(RESULTS, json.dumps(results) + "\n")
    if START in PAGE.read_text(encoding="utf-8"):
        render()
    else:
        print(tables(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of networks that have not converged
    main()
