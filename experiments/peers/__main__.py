"""Others' membership attacks beside ours, on the same scores of the same models: ART, LeakPro, Privacy Meter.

    python -m experiments.peers --python ENVIRONMENT/bin/python --leakpro CHECKOUT --privacy-meter CHECKOUT

Trains classifiers and 16 shadows of each, runs our attacks here and theirs in another environment (`worker.py`; its
packages are in requirements.txt), and writes results.json and the table of docs/audit.md. LeakPro is not on PyPI (its
0.0.1 there is empty), and Privacy Meter's package has no RMIA: both are run from checkouts of their repositories.
Pictures are looked for where `python -m experiments` puts them.
"""

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import benchmarks
from scoreveil.audit.attacks import ATTACKS, COMPARISONS
from scoreveil.audit.report.wording import number, words
from scoreveil.audit.study import run as study
from scoreveil.audit.study.models import Model as Audited
from scoreveil.audit.study.models import from_model, with_extras
from scoreveil.audit.study.results import UNDEFENDED, AttackResult
from scoreveil.audit.study.subjects import Subject

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE.parents[1] / "docs" / "audit.md"
START = "<!-- peers: made by `python -m experiments.peers` -->"
END = "<!-- end of peers -->"
SHADOWS = 16
MARGIN = 0.01
# told half of the target's members, NSH knows more than the others are told
OURS = tuple(name for name, attack in ATTACKS.items() if attack.reads == "scores" and not attack.knows_half)
GIVEN = {"ART": "one shadow", "LeakPro": "many shadows", "Privacy Meter": "many shadows"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """What is trained, on how many records; as many again are its non-members."""

    title: str
    source: str
    records: int
    architecture: Callable[[], Any]


def network() -> Any:
    """Knows its training records by heart after some epochs."""
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((128,), alpha=0.0, batch_size=100, max_iter=40, tol=0.0, n_iter_no_change=40)


def forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(50, min_samples_leaf=3)


MODELS = (
    Model("Fashion-MNIST, neural network", "fashion-mnist", 1_000, network),
    Model("Fashion-MNIST, random forest", "fashion-mnist", 1_000, forest),
    Model("CIFAR-10, neural network", "cifar10", 1_000, network),
    Model("handwritten digits, neural network", "digits", 350, network),
)


def subject_of(model: Model) -> Subject:
    """Target, shadow and 16 more, all on pictures of their own."""
    np.random.seed(0)  # noqa: NPY002 - where scikit-learn's models draw from
    images = benchmarks.load(model.source)
    order = np.random.default_rng(0).permutation(len(images.labels))
    step = 2 if images.pixels.shape[-1] > 8 else 1  # every second pixel is enough
    n = model.records
    # a fifth of the non-members becomes the population
    cuts = np.cumsum([n, n * 5 // 4, min(2 * n, len(order) - n - n * 5 // 4)])

    def part(index: Any) -> tuple[Any, Any]:
        return images.pixels[index][..., ::step, ::step].reshape(len(index), -1), images.labels[index]

    members, others, auxiliary = (part(index) for index in np.split(order, cuts)[:3])
    target = model.architecture()
    target.fit(*members)
    asked = Audited(target, model.architecture, auxiliary, shadows=SHADOWS)
    return with_extras(from_model(asked, members, others), asked, members, others)


def by_ours(subject: Subject) -> list[Row]:
    plan = study.StudyPlan(settings=(UNDEFENDED,), attacks=OURS, likelihood=(UNDEFENDED,), repeats=1)
    found = [r for r in study.run(subject, plan).results if r.reads == "scores" and r.form == "adaptive"]

    def row(result: AttackResult) -> Row:
        given = "many shadows" if result.attack in COMPARISONS else "one shadow"
        told = {"features": result.features, "given": given}
        return {
            "attack": result.attack,
            **told,
            "auc": round(result.auc, 4),
            "low": result.auc_low,
            "high": result.auc_high,
        }

    return [row(result) for result in found]


def by_theirs(subject: Subject, python: str, checkouts: list[str]) -> list[Row]:
    many, target, shadow = subject.many, subject.target, subject.shadow
    assert many is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.npz"
        np.savez(
            path,
            target=target.records.scores, labels=target.records.true_labels, member=target.truth,
            shadow=shadow.records.scores, shadow_labels=shadow.records.true_labels, shadow_member=shadow.truth,
            of_records=many.of_records, inside=many.inside,
            population=many.population.scores, population_labels=many.population.true_labels,
            of_population=many.of_population,
        )  # fmt: skip
        command = [python, str(HERE / "worker.py"), str(path), folder, *checkouts]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Expected results from {python}, got exit code {done.returncode}:\n{done.stderr[-2000:]}")
    rows: list[Row] = json.loads(done.stdout)
    return rows


def best(rows: list[Row]) -> Row:
    return max(rows, key=lambda row: float(row["auc"]))


def compared(found: Row) -> list[Row]:
    """For each tool its best attack, and the best of ours that is given no more."""
    rows = []
    for tool, given in GIVEN.items():
        theirs = [row for row in found["theirs"] if row["tool"] == tool and "auc" in row]
        if theirs:
            mine = [row for row in found["ours"] if row["given"] in ("one shadow", given)]
            rows.append({"tool": tool, "given": given, "theirs": best(theirs), "ours": best(mine)})
    return rows


def table(results: Row) -> str:
    lines = [
        "| model | tool | given | its best attack | AUC | our best | AUC | difference |",
        "|---|---|---|---|---:|---|---:|---:|",
    ]
    for found in results["models"]:
        for row in compared(found):
            theirs, ours = row["theirs"], row["ours"]
            what = f"{found['title']} | {row['tool']} | {row['given']}"
            name = words(ours["attack"].removesuffix("_known"))
            lines.append(
                f"| {what} | {theirs['attack']} | {number(theirs['auc'], 3)} "
                f"| {name} | {number(ours['auc'], 3)} | {number(ours['auc'] - theirs['auc'], 3)} |"
            )
    return "\n".join(lines)


def write(found: Row) -> None:
    """Put one model's rows in place of those that were there."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["models"] if RESULTS.exists() else []
    rows = {row["title"]: row for row in (*kept, found)}
    results = {"models": [rows[model.title] for model in MODELS if model.title in rows]}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    before, there, after = PAGE.read_text(encoding="utf-8").partition(START)
    if there:
        PAGE.write_text(f"{before}{START}\n\n{table(results)}\n\n{END}{after.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of the environment with the packages of requirements.txt")
    parser.add_argument("--leakpro", help="a checkout of aidotse/LeakPro")
    parser.add_argument("--privacy-meter", help="a checkout of privacytrustlab/ml_privacy_meter")
    parser.add_argument("--models", default="", help="only those whose titles contain this")
    given = parser.parse_args()
    checkouts = []
    for option, path in (("--leakpro", given.leakpro), ("--privacy-meter", given.privacy_meter)):
        checkouts += [option, path] if path else []
    for model in MODELS:
        if given.models not in model.title:
            continue
        subject = subject_of(model)
        found: Row = {
            "title": model.title,
            "about": f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}",
            "members": len(subject.target.members),
            "nonmembers": len(subject.target.nonmembers),
            "shadows": SHADOWS,
            "ours": by_ours(subject),
            "theirs": by_theirs(subject, given.python, checkouts),
        }
        write(found)
        print(table({"models": [found]}), *(row for row in found["theirs"] if "reason" in row), sep="\n", flush=True)


if __name__ == "__main__":
    main()
