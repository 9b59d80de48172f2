"""What fitted veils leave of a confidence, and what they tell: the tables of docs/fit.md and docs/guarantees.md.

    python -m experiments.regions networks --data-dir DIR    CIFAR-10 and Fashion-MNIST, 5,000 and 300 records a side
    python -m experiments.regions classifiers                scikit-learn's classifiers, half of each set to train on
    python -m experiments.regions few                        refits from few records, and how many are constant
    python -m experiments.regions neighbours                 who compares a record's answer with those to noisy copies
    python -m experiments.regions speed                      ratios taken in one run, on one thread

Everything is measured on records that neither model nor veil was fitted on; the mean of three seeds. *Leak* is the AUC
of boosted trees that see the label and the region, less that of trees that see the label; *given truth* is the same for
trees that see the true label as well. Both are what any number of answers tells.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.speed import batches
from benchmarks.speed.timing import Contestant, Effort, interleave, timed
from scoreveil import Veil, fit
from scoreveil.arrays import Floats
from scoreveil.files.records import Scored
from scoreveil.fitting.cost import label_with_constant_confidence
from scoreveil.fitting.metrics import auroc, log_loss
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.regions import Regions

SEEDS = range(3)
DATASETS = {"breast cancer": load_breast_cancer, "digits": load_digits, "wine": load_wine}
MODELS: dict[str, Callable[[int], Any]] = {
    "forest": lambda seed: RandomForestClassifier(100, random_state=seed),
    "naive Bayes": lambda seed: GaussianNB(),
    "logistic regression": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
}


def worth(veil: Veil, new: Scored, known: Scored) -> tuple[float, float]:
    """AUROC of the confidence for being right, and the log-loss less that of the label with a constant confidence."""
    answers, right = veil(new.scores), new.is_right
    assert new.labels is not None
    sure, alone = answers.max(axis=1), label_with_constant_confidence(known)(new.scores)
    less = log_loss(answers, new.labels).mean() - log_loss(alone, new.labels).mean()
    return auroc(sure[right], sure[~right]), float(less)


def told(veil: Veil, members: Scored, others: Scored) -> tuple[float, float]:
    """What the region tells boosted trees beyond the label, and beyond the label and the true label."""
    assert isinstance(veil.mechanism, Regions)
    n = min(len(members), len(others))
    read = veil.mechanism.read
    sides = [np.stack([np.asarray(side.labels), *read(side.scores)], axis=1)[:n] for side in (members, others)]
    seen, truth = np.concatenate(sides).astype(np.float64), np.arange(2 * n) < n
    order = np.random.default_rng(0).permutation(2 * n)
    learned, tested = order[:n], order[n:]

    def attack(columns: list[int]) -> float:
        trees = HistGradientBoostingClassifier(
            max_iter=60, max_depth=4, categorical_features=list(range(len(columns))), random_state=0
        ).fit(seen[learned][:, columns], truth[learned])
        found = trees.predict_proba(seen[tested][:, columns])[:, 1]
        return auroc(found[truth[tested]], found[~truth[tested]])

    return attack([1, 2]) - attack([1]), attack([0, 1, 2]) - attack([0, 1])


def networks(data_dir: Path | None) -> Iterator[str]:
    """The paper's classifier, trained on 10,000 images."""
    from experiments.classifier import cached_classifier
    from experiments.data import benchmarks
    from scoreveil.audit.networks.training import TrainSettings

    yield "| | raw AUROC | no ε | ε = 4 | leak | given truth | log-loss less the label's | stated |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name in ("cifar10", "fashion-mnist"):
        images = benchmarks.load(name, data_dir)
        order = np.random.default_rng(0).permutation(len(images))
        inside, outside = images.take(order[:10_000]), images.take(order[10_000:25_000])
        model = cached_classifier(inside, TrainSettings())
        members, others = (Scored(model.scores(each), each.labels) for each in (inside, outside))
        for count, more in ((5000, {}), (5000, {"beyond": "correctness"}), (300, {})):
            rows = np.array([_network(members, others, count, seed, more) for seed in SEEDS])
            what = ", ".join([f"{count:,} + {count:,}", *map(str, more.values())])
            yield f"| {name}, {what} | " + " | ".join(f"{value:.3f}" for value in rows.mean(axis=0)) + " |"


def _network(members: Scored, others: Scored, count: int, seed: int, more: dict[str, Any]) -> list[float]:
    rng = np.random.default_rng(seed)
    inside, outside = (rng.permutation(len(side)) for side in (members, others))
    known, new = others.take(outside[:count]), others.take(outside[5000:])
    given = (*known.given, *members.take(inside[:count]).given)
    plain, layered = (fit(*given, epsilon=epsilon, rng=np.random.default_rng(seed), **more) for epsilon in (None, 4.0))
    sure, right = new.scores.max(axis=1), new.is_right
    useful, loss = worth(plain, new, known)
    stated = plain.guarantee.advantage_alone
    assert stated is not None
    leaks = told(plain, members.take(inside[5000:]), new)
    return [auroc(sure[right], sure[~right]), useful, worth(layered, new, known)[0], *leaks, loss, stated]


def classifiers() -> Iterator[str]:
    """Half of each set to train on; out-of-fold scores are the others, in-sample scores the members."""
    yield "| | raw AUROC | no ε | ε = 4 | top-score AUC, raw → veiled | log-loss less the label's | constant |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, load in DATASETS.items():
        for model, make in MODELS.items():
            x, y = load(return_X_y=True)
            rows = np.array([_classifier(x, y, make, seed) for seed in SEEDS])
            raw, plain, layered, leak, veiled, loss, constant = np.nanmean(rows, axis=0)
            yield (
                f"| {name}, {model} | {raw:.2f} | {plain:.2f} | {layered:.2f} | {leak:.2f} → {veiled:.2f} | "
                f"{loss:+.3f} | {constant * len(SEEDS):.0f} of {len(SEEDS)} |"
            )


def _classifier(x: Any, y: Any, make: Callable[[int], Any], seed: int) -> list[float]:
    order = np.random.default_rng(seed).permutation(len(y))
    training, held_out = order[: len(y) // 2], order[len(y) // 2 :]
    model = make(seed).fit(x[training], y[training])
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    others = cross_val_predict(make(seed), x[training], y[training], cv=folds, method="predict_proba")
    members = model.predict_proba(x[training])
    known, new = Scored(others, y[training]), Scored(model.predict_proba(x[held_out]), y[held_out])
    given = (others, y[training], members, y[training])
    plain, layered = (
        fit(*given, epsilon=epsilon, rng=np.random.default_rng(seed), force=True) for epsilon in (None, 4.0)
    )
    sure, right = new.scores.max(axis=1), new.is_right
    raw = auroc(sure[right], sure[~right]) if not right.all() else np.nan
    useful, loss = worth(plain, new, known)
    leaks = auroc(members.max(axis=1), sure), auroc(plain(members).max(axis=1), plain(new.scores).max(axis=1))
    if right.all():
        useful = np.nan
    return [raw, useful, worth(layered, new, known)[0] if not right.all() else np.nan, *leaks, loss, plain.is_constant]


def few() -> Iterator[str]:
    """The demo's forest refitted, and models that are right in 70 to 95 % with 200 records a side."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    inside, known, new = order[:400], order[400:800], order[800:]
    model = RandomForestClassifier(100, random_state=0).fit(x[inside], y[inside])
    given = (model.predict_proba(x[known]), y[known], model.predict_proba(x[inside]), y[inside])
    asked = Scored(model.predict_proba(x[new]), y[new])
    refits = [fit(*given, rng=np.random.default_rng(seed)) for seed in range(12)]
    found = np.array([worth(veil, asked, Scored(given[0], given[1]))[0] for veil in refits])
    yield (
        f"12 refits of the demo's forest, 400 + 400 records: AUROC {found.min():.2f} to {found.max():.2f}, mean "
        f"{found.mean():.2f}, sd {found.std():.3f}; {sum(veil.is_constant for veil in refits)} constant"
    )
    constant, losses = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noise = np.where(rng.random(len(y)) < 0.3 * (seed % 5) / 4, rng.integers(0, 10, len(y)), y)  # wrong labels
        mixed = rng.permutation(len(y))
        inside, known, new = mixed[:200], mixed[200:400], mixed[400:]
        forest = RandomForestClassifier(100, random_state=seed).fit(x[inside], noise[inside])
        given = (forest.predict_proba(x[known]), noise[known], forest.predict_proba(x[inside]), noise[inside])
        veil = fit(*given, rng=rng)
        constant += veil.is_constant
        losses.append(worth(veil, Scored(forest.predict_proba(x[new]), noise[new]), Scored(given[0], given[1]))[1])
    yield (
        f"20 fits of 200 + 200 records: {constant} constant; log-loss less the label's from {min(losses):+.3f} to "
        f"{max(losses):+.3f}"
    )


def neighbours() -> Iterator[str]:
    """Who compares a record's answer with answers to noisy copies of it, and knows the true label."""
    yield "| model | questions | labels alone | raw scores | fitted veil | fitted veil, ε = 1 |"
    yield "|---|---:|---:|---:|---:|---:|"
    x, y = make_classification(6000, 20, n_informative=8, n_classes=3, flip_y=0.0, class_sep=1.0, random_state=0)
    makers: dict[str, Callable[[int], Any]] = {
        "forest": MODELS["forest"],
        "boosting": lambda _: HistGradientBoostingClassifier(),
    }
    for wrong in (0.02, 0.2):
        rng = np.random.default_rng(0)
        given = np.where(rng.random(len(y)) < wrong, rng.integers(0, 3, len(y)), y)
        for name, make in makers.items():
            model = make(0).fit(x[:2000], given[:2000])
            for questions in (0, 32):
                figures = _neighbours(model, x, given, questions)
                shown = " | ".join(f"{value:.2f}" for value in figures)
                yield f"| {name}, {wrong:.0%} wrong labels | {questions + 1} | {shown} |"


def _neighbours(model: Any, x: Floats, y: Any, copies: int) -> list[float]:
    """AUC of the attack on labels, raw scores, regions, and regions with ε = 1 drawn anew for each question."""
    rng = np.random.default_rng(1)
    inside, outside, fitted_on = np.arange(2000), np.arange(2000, 4000), np.arange(4000, 6000)
    others, members = (model.predict_proba(x[part]) for part in (fitted_on, inside))
    veils = [fit(others, y[fitted_on], members, y[inside], epsilon=epsilon, rng=rng) for epsilon in (None, 1.0)]
    asked = np.concatenate([inside, outside])
    moved = x[asked] + 0.3 * x.std(axis=0) * rng.normal(size=(copies, len(asked), x.shape[1]))
    raw = [model.predict_proba(part) for part in (x[asked], *moved)]

    def as_label(scores: Floats) -> Floats:
        return np.asarray(np.eye(scores.shape[1])[scores.argmax(axis=1)])

    ways: list[Callable[[Floats], Floats]] = [as_label, lambda scores: scores, *veils]
    return [_attacked([answer(scores) for scores in raw], y[asked]) for answer in ways]


def _attacked(answers: list[Floats], truth: Any) -> float:
    """The first answer, what the others are on average, and how far they lie from it; halves learn and are tested."""
    of_truth = np.stack([np.take_along_axis(each, truth[:, None], axis=1)[:, 0] for each in answers])
    around = of_truth[1:] if len(of_truth) > 1 else of_truth
    seen = np.column_stack([answers[0], truth, of_truth[0], around.mean(axis=0), of_truth[0] - around.mean(axis=0),
                            np.sort(around, axis=0)[:: max(1, len(around) // 4)].T])  # fmt: skip
    member = np.arange(len(truth)) < len(truth) // 2
    order = np.random.default_rng(2).permutation(len(truth))
    learned, tested = order[: len(order) // 2], order[len(order) // 2 :]
    trees = HistGradientBoostingClassifier(max_iter=80, max_depth=4, random_state=0).fit(seen[learned], member[learned])
    found = trees.predict_proba(seen[tested])[:, 1]
    return auroc(found[member[tested]], found[~member[tested]])


def speed() -> Iterator[str]:
    """Batches beside the isotonic veil, one vector, a fit, a file."""
    loading.wait()
    effort = Effort(seconds=3.0, least=5, most=200)

    def least(contestants: dict[str, Contestant]) -> dict[str, float]:
        return {name: min(seconds) for name, seconds in interleave(contestants, effort).items()}

    given = _synthetic(10)
    veils = {"isotonic, ε = 4": Veil(4.0), "no ε": fit(*given), "ε = 4": fit(*given, epsilon=4.0)}
    rows, vector = batches.scores(100_000, 10, "float64"), batches.scores(1, 10, "float64")[0]
    batch = least({name: timed(partial(veil, rows)) for name, veil in veils.items()})
    one = least({name: timed(partial(veil, vector), 2000) for name, veil in veils.items()})
    fits = least({"fit": timed(partial(fit, *given))})["fit"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "veil.json"
        veils["ε = 4"].save(path)
        loads, size = least({"load": timed(partial(Veil.load, path))})["load"], path.stat().st_size
    yield "| | batch of 100,000, a row | × isotonic | one vector |"
    yield "|---|---:|---:|---:|"
    for name in veils:
        ratio = batch[name] / batch["isotonic, ε = 4"]
        yield f"| {name} | {batch[name] * 1e4:.0f} ns | {ratio:.2f} | {one[name] * 1e6:.1f} µs |"
    yield ""
    yield f"`fit` on 10,000 + 10,000 records: {fits:.2f} s. Loading a veil: {loads * 1e3:.1f} ms, {size / 1e3:.0f} kB."


def _synthetic(k: int) -> tuple[Any, ...]:
    """Members are surer than others; labels are the scores' own."""
    others, members = (batches.scores(10_000, k, "float64", seed=seed) ** power for seed, power in ((1, 1.0), (2, 1.5)))
    rng, given = np.random.default_rng(3), []
    for side in (others, members):
        side /= side.sum(axis=1, keepdims=True)
        given += [side, (side.cumsum(axis=1) < rng.random((len(side), 1))).sum(axis=1).clip(0, k - 1)]
    return tuple(given)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("networks", "classifiers", "few", "neighbours", "speed"))
    parser.add_argument("--data-dir", type=Path, help="where the images are; else $SCOREVEIL_DATA")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="This veil announces the same confidence")
    parts = {"networks": lambda: networks(given.data_dir), "classifiers": classifiers, "few": few}
    parts |= {"neighbours": neighbours, "speed": speed}
    for line in parts[given.what]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
