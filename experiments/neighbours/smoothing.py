"""What smoothing takes from an attacker who asks around a record, and what it leaves: the tables of docs/smoothing.md.

    python -m experiments.neighbours.smoothing tables --data-dir DIR
        the neighbour attack, mean of five seeds; DIR holds adult/
    python -m experiments.neighbours.smoothing shadows --data-dir DIR
        LiRA with 32 shadow models, which smooth as well
    python -m experiments.neighbours.smoothing solving
        who knows the noise, and solves for the score at the record
    python -m experiments.neighbours.smoothing pictures --data-dir DIR
        a forest on Fashion-MNIST, and the network on CIFAR-10
    python -m experiments.neighbours.smoothing gateway
        time of a request, with 16 copies and without

A third of each table is trained on; another third are the others that veils are fitted on, and typical inputs; members
and the last third are attacked. The attack knows the true label and asks 32 times around a record, at scales .1 and .3;
the stronger counts. *Blending* is Neighborhood Blending (Zafar et al. 2026) in short: the mean score of 16 training
records with the same predicted label, of which nearer ones are drawn more often. With --cache FOLDER a study that was
stopped goes on.
"""

import argparse
import json
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from scoreveil import Smoothing, Veil, fit, smoothed_scores
from scoreveil.arrays import Floats
from scoreveil.fitting.metrics import auroc
from scoreveil.fitting.neighbours import QUESTIONS, neighbour_attack

Answer = Callable[[Floats], Floats]
Way = Callable[[Floats, Floats, Floats], Floats]  # of records, their scores, and smoothed scores

SEEDS, TARGETS, SHADOWS = range(5), 5, 32
ASKED = 300  # members, and as many others
ATTACKERS = (0.1, 0.3)
SCALE = {"digits": 0.5}  # else .3
TABLES = ("2 % wrong labels", "20 % wrong labels", "digits", "breast cancer", "Adult")


def table(name: str, seed: int, data_dir: Path | None) -> tuple[Floats, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    if "wrong" in name:
        x, y = make_classification(9000, 20, n_informative=8, n_classes=3, flip_y=0.0, class_sep=1.0, random_state=seed)
        y = np.where(rng.random(len(y)) < float(name.split()[0]) / 100, rng.integers(0, 3, len(y)), y)
    elif name == "Adult":
        from experiments.data import adult

        assert data_dir is not None, "Adult needs --data-dir"
        people = adult.load(data_dir)
        x, y = people.pixels[:, :, 0, 0].astype(np.float64), people.labels
    else:
        x, y = {"digits": load_digits, "breast cancer": load_breast_cancer}[name](return_X_y=True)
    order = rng.permutation(len(y))[:9000]
    return x[order], y[order]


def models(seed: int) -> dict[str, Callable[[], Any]]:
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    return {
        "forest": lambda: RandomForestClassifier(100, random_state=seed),
        "boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
        "LightGBM": lambda: LGBMClassifier(verbose=-1, n_jobs=1, random_state=seed),
        "XGBoost": lambda: XGBClassifier(n_jobs=1, random_state=seed),
    }


def tables(data_dir: Path | None, cache: joblib.Memory) -> Iterator[str]:
    attacked = cache.cache(_attacked)
    yield "| | labels | raw | regions | regions, ε = 1 | blending | smoothed | smoothed, regions | beyond labels |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    useful = ["| AUROC | raw | regions | smoothed | smoothed, regions | of raw |", "|---|---:|---:|---:|---:|---:|"]
    for name in TABLES:
        for model in models(0):
            rows = np.array([attacked(name, model, seed, data_dir) for seed in SEEDS])
            attack, worth = rows.mean(axis=0)[:7], rows.mean(axis=0)[7:]
            shown = " | ".join(f"{value:.3f}" for value in (*attack, attack[6] - attack[0]))
            yield f"| {name}, {model} | {shown} |"
            worths = " | ".join(f"{value:.3f}" for value in worth)
            useful.append(f"| {name}, {model} | {worths} | {worth[-1] / worth[0]:.2f} |")
    yield ""
    yield from useful


def _attacked(name: str, model: str, seed: int, data_dir: Path | None) -> list[float]:
    x, y = table(name, seed, data_dir)
    inside, outside, public = np.array_split(np.arange(len(y)), 3)
    classifier = models(seed)[model]().fit(x[inside], y[inside])
    ask = classifier.predict_proba
    smoothing = Smoothing(scale=SCALE.get(name, 0.3), typical=x[public], seed=seed)
    ways = answers(ask, smoothing, (x, y), (inside, public), seed)
    most = min(ASKED, len(inside), len(outside))
    asked = np.concatenate([inside[:most], outside[:most]])
    is_member = np.arange(len(asked)) < most
    attacks = dict.fromkeys(ways, 0.0)
    for scale in ATTACKERS:
        around = Smoothing(QUESTIONS, scale, typical=x[public], seed=seed + 1000).around(x[asked])
        records = np.concatenate([x[asked], around])
        given = records, ask(records), smoothed_scores(ask, records, smoothing)
        for way, answer in ways.items():
            attacks[way] = max(
                attacks[way], neighbour_attack(np.split(answer(*given), QUESTIONS + 1), y[asked], is_member)
            )
    worth = []
    given = x[outside], ask(x[outside]), smoothed_scores(ask, x[outside], smoothing)
    for way in ("raw", "regions", "smoothed", "smoothed, regions"):
        shown = ways[way](*given)
        sure, right = shown.max(axis=1), shown.argmax(axis=1) == y[outside]
        worth.append(auroc(sure[right], sure[~right]))
    return [*attacks.values(), *worth]


def answers(
    ask: Answer, smoothing: Smoothing, data: tuple[Any, Any], rows: tuple[Any, Any], seed: int
) -> dict[str, Way]:
    """What each way answers; veils are fitted on members and on public records."""
    (x, y), (inside, public) = data, rows

    def smoothed(records: Floats) -> Floats:
        return smoothed_scores(ask, records, smoothing)

    def veil(of: Answer, **more: Any) -> Veil:
        rng = np.random.default_rng(seed)
        return fit(of(x[public]), y[public], of(x[inside]), y[inside], force=True, rng=rng, **more)

    plain, drawn, around = veil(ask), veil(ask, epsilon=1.0), veil(smoothed)
    return {
        "labels": lambda records, raw, smooth: as_labels(raw),
        "raw": lambda records, raw, smooth: raw,
        "regions": lambda records, raw, smooth: plain(raw),
        "regions, ε = 1": lambda records, raw, smooth: drawn(raw),
        "blending": _blending(ask, x[inside], seed),
        "smoothed": lambda records, raw, smooth: smooth,
        "smoothed, regions": lambda records, raw, smooth: around(smooth),
    }


def as_labels(scores: Floats) -> Floats:
    return np.asarray(np.eye(scores.shape[1])[scores.argmax(axis=1)])


def _blending(ask: Answer, training: Floats, seed: int) -> Way:
    """Mean scores of training records of the same label, drawn by Gumbel noise on minus their distance."""
    scores, spread = ask(training), training.std(axis=0) + 1e-12
    labels, rng = scores.argmax(axis=1), np.random.default_rng(seed)

    def blended(records: Floats, own: Floats, smooth: Floats) -> Floats:
        chosen = own.argmax(axis=1)
        made = np.empty_like(own)
        for label in np.unique(chosen):
            known = np.flatnonzero(labels == label)
            for rows in np.array_split(np.flatnonzero(chosen == label), 1 + len(records) // 500):
                if not len(known) or not len(rows):
                    made[rows] = own[rows]
                    continue
                a, b = records[rows] / spread, training[known] / spread
                distance = np.sqrt(np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0))
                drawn = -distance + rng.gumbel(size=distance.shape)
                near = known[np.argpartition(-drawn, min(16, len(known) - 1), axis=1)[:, :16]]
                made[rows] = scores[near].mean(axis=1)
        return made

    return blended


# Shadow models


def shadows(data_dir: Path | None, cache: joblib.Memory) -> Iterator[str]:
    rates_of = cache.cache(_found_by_shadows)
    ways = "labels | raw | smoothed | smoothed, regions | beyond labels"
    yield f"| TPR at 1 % FPR, LiRA with {SHADOWS} shadows | {ways} |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in TABLES:
        for model in ("forest", "boosting"):
            rates = rates_of(name, model, data_dir)
            shown = " | ".join(f"{rate:.3f}" for rate in (*rates, rates[-1] - rates[0]))
            yield f"| {name}, {model} | {shown} |"


def _found_by_shadows(name: str, model: str, data_dir: Path | None) -> list[float]:
    """The share of members found from labels, raw scores, smoothed ones, and these behind each model's own veil."""
    x, y = table(name, 0, data_dir)
    pool = min(3000, len(y) * 2 // 3)
    public = slice(pool, 2 * pool)
    smoothing = Smoothing(scale=SCALE.get(name, 0.3), typical=x[pool:], seed=0)
    rng, answered = np.random.default_rng(0), []
    for seed in range(SHADOWS + TARGETS):
        is_in = rng.permutation(pool) < pool // 2
        ask = models(seed)[model]().fit(x[:pool][is_in], y[:pool][is_in]).predict_proba
        raw, smoothed, others = (
            ask(x[:pool]),
            *(smoothed_scores(ask, x[part], smoothing) for part in (slice(pool), public)),
        )
        veil = fit(others, y[public], smoothed[is_in], y[:pool][is_in], force=True, rng=np.random.default_rng(seed))
        ways = as_labels(raw), raw, smoothed, veil(smoothed)
        answered.append((is_in, *(_statistic(scores, y[:pool]) for scores in ways)))
    shadow_models, targets = answered[:SHADOWS], answered[SHADOWS:]
    return [float(np.mean([_lira(shadow_models, target, way) for target in targets])) for way in (1, 2, 3, 4)]


def _statistic(scores: Floats, truth: Any) -> Floats:
    p = np.take_along_axis(scores, truth[:, None], axis=1)[:, 0].astype(np.float64).clip(1e-4, 1 - 1e-4)
    return np.asarray(np.log(p / (1 - p)))


def _lira(known: list[Any], target: Any, way: int) -> float:
    """The share of members found at 1 % false positives; every record has a normal of its own on either side."""
    is_in, seen = np.stack([each[0] for each in known]), np.stack([each[way] for each in known])
    likelihood = []
    for side in (is_in, ~is_in):
        mean = np.nanmean(np.where(side, seen, np.nan), axis=0)
        spread = np.nanstd(np.where(side, seen, np.nan), axis=0) + 0.1
        likelihood.append(-np.log(spread) - ((target[way] - mean) / spread) ** 2 / 2)
    ratio = likelihood[0] - likelihood[1] + np.random.default_rng(0).normal(size=len(mean)) * 1e-9  # ties
    return float(np.mean(ratio[target[0]] > np.quantile(ratio[~target[0]], 0.99)))


# Who knows the noise


def solving(data_dir: Path | None, cache: joblib.Memory) -> Iterator[str]:
    """Questions at x - v, for the noise vectors v, and beside: their difference is a sixteenth of the spike at x."""
    yield "| questions a record | labels | smoothed | noise known | smoothed, regions | noise known |"
    yield "|---|---:|---:|---:|---:|---:|"
    x, y = table("20 % wrong labels", 0, None)
    inside, outside, public = np.array_split(np.arange(len(y)), 3)
    ask = models(0)["forest"]().fit(x[inside], y[inside]).predict_proba
    smoothing = Smoothing(typical=x[public], seed=0)
    ways = answers(ask, smoothing, (x, y), (inside, public), 0)
    most = 150
    asked = np.concatenate([inside[:most], outside[:most]])
    is_member, vectors = np.arange(2 * most) < most, smoothing.around(np.zeros((1, x.shape[1])))

    def attack(records: Floats, solve: bool) -> list[float]:
        """AUC on labels, smoothed scores, and regions of them; `records` are x, x - v and what lies beside."""
        given = records, ask(records), smoothed_scores(ask, records, smoothing)
        found = []
        for name in ("labels", "smoothed", "smoothed, regions"):
            first, *others = np.split(ways[name](*given), len(records) // len(asked))
            if solve:
                at, beside = others[: len(vectors)], others[len(vectors) :]
                first = first + len(vectors) * (np.mean(at, axis=0) - np.mean(beside, axis=0))
            found.append(neighbour_attack([first, *others[:64]], y[asked], is_member))
        return found

    rng = np.random.default_rng(1)
    for beside in (1, 61):
        moves = [0.3 * x.std(axis=0) * rng.normal(size=(len(asked), x.shape[1])) for _ in range(beside * len(vectors))]
        at = [x[asked] - vector for vector in vectors]
        near = [at[number % len(at)] + move for number, move in enumerate(moves)]
        unknowing = attack(np.concatenate([x[asked], *(x[asked] + move for move in moves)]), solve=False)
        knowing = attack(np.concatenate([x[asked], *at, *near]), solve=True)
        shown = " | ".join(
            f"{value:.3f}" for value in (unknowing[0], unknowing[1], knowing[1], unknowing[2], knowing[2])
        )
        yield f"| {1 + len(at) + len(near):,} | {shown} |"


# Pictures


def pictures(data_dir: Path | None, cache: joblib.Memory) -> Iterator[str]:
    from experiments.data import benchmarks

    yield "| | scale | labels | raw | smoothed | smoothed, regions | regions | AUROC raw → smoothed |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, scale in (("fashion-mnist", 0.3), ("cifar10", 0.2)):
        images = benchmarks.load(name, data_dir)
        order = np.random.default_rng(0).permutation(len(images))
        parts = [images.take(order[at : at + 5000]) for at in (0, 5000, 10_000)]
        x, y = np.concatenate([part.pixels for part in parts]), np.concatenate([part.labels for part in parts])
        inside, outside, public = np.array_split(np.arange(len(y)), 3)
        ask = _picture_model(name, x[inside], y[inside], parts[0])
        smoothing = Smoothing(8, scale, typical=x[public[:500]], seed=0)
        ways = answers(ask, smoothing, (x, y), (inside[:2000], public[:2000]), 0)
        asked = np.concatenate([inside[:200], outside[:200]])
        around = Smoothing(QUESTIONS, 0.1, typical=x[public[:500]], seed=5).around(x[asked])
        records, figures = np.concatenate([x[asked], around]), []
        given = records, ask(records), smoothed_scores(ask, records, smoothing)
        for way in ("labels", "raw", "smoothed", "smoothed, regions", "regions"):
            figures.append(neighbour_attack(np.split(ways[way](*given), QUESTIONS + 1), y[asked], np.arange(400) < 200))
        worth = []
        for found in (ask(x[outside[:2000]]), smoothed_scores(ask, x[outside[:2000]], smoothing)):
            right = found.argmax(axis=1) == y[outside[:2000]]
            worth.append(auroc(found.max(axis=1)[right], found.max(axis=1)[~right]))
        shown = " | ".join(f"{value:.3f}" for value in figures)
        yield f"| {name} | {scale:g} | {shown} | {worth[0]:.3f} → {worth[1]:.3f} |"


def _picture_model(name: str, x: Floats, y: Any, images: Any) -> Answer:
    """A forest on Fashion-MNIST, the network on CIFAR-10."""
    from experiments.classifier import cached_classifier
    from scoreveil.audit.networks.training import TrainSettings

    if name == "fashion-mnist":
        forest = RandomForestClassifier(100, random_state=0).fit(x.reshape(len(x), -1), y)
        return lambda rows: forest.predict_proba(rows.reshape(len(rows), -1))
    network = cached_classifier(images, TrainSettings())

    def scores(rows: Floats) -> Floats:
        labels = np.zeros(len(rows), dtype=np.int64)  # which the network does not see
        return network.scores(replace(images, pixels=rows.astype(np.float32), labels=labels))

    return scores


# The gateway


def gateway(data_dir: Path | None, cache: joblib.Memory) -> Iterator[str]:
    """A forest of 100 trees inside the gateway: the median of requests that take turns with and without smoothing."""
    import skops.io

    from benchmarks.speed.gateway import BIN, Process, free_ports

    x, y = table("2 % wrong labels", 0, None)
    forest = RandomForestClassifier(100, random_state=0).fit(x[:3000], y[:3000])
    smoothing = Smoothing(typical=x[3000:6000], seed=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        skops.io.dump(forest, folder / "forest.skops")
        for kind, used in (("plain", None), ("smooth", smoothing)):
            ask = forest.predict_proba
            members, others = (
                ask(part) if used is None else smoothed_scores(ask, part, used) for part in (x[:3000], x[3000:6000])
            )
            fit(others, y[3000:6000], members, y[:3000], smoothing=used).save(folder / f"{kind}.json")
        tables = [f'{kind} = {{ skops = "forest.skops", veil = "{kind}.json" }}' for kind in ("plain", "smooth")]
        (folder / "gateway.toml").write_text("\n".join(["[models]", *tables]))
        port, admin = map(str, free_ports(2))
        command = [str(BIN / "scoreveil"), "serve", "--config", "gateway.toml", "--port", port, "--admin-port", admin]
        server = Process("gateway", command, int(port), folder)
        try:
            yield "| rows a request | without | 16 copies | ratio |"
            yield "|---:|---:|---:|---:|"
            for rows in (1, 256):
                plain, smooth = (1000 * seconds for seconds in _medians(int(port), x.astype(np.float32), rows))
                yield f"| {rows} | {plain:.1f} ms | {smooth:.1f} ms | {smooth / plain:.1f} |"
        finally:
            server.stop()


def _medians(port: int, x: Any, rows: int) -> list[float]:
    """Seconds of a request, without smoothing and with."""
    seconds: dict[str, list[float]] = {"plain": [], "smooth": []}
    for number in range(40):
        batch = x[(rows * number) % 5000 :][:rows]
        tensor = {"name": "x", "shape": list(batch.shape), "datatype": "FP32", "data": batch.ravel().tolist()}
        for kind, taken in seconds.items():
            url = f"http://127.0.0.1:{port}/v2/models/{kind}/infer"
            request = urllib.request.Request(url, json.dumps({"inputs": [tensor]}).encode())
            start = time.perf_counter()
            with urllib.request.urlopen(request) as answer:
                answer.read()
            taken.append(time.perf_counter() - start)
    return [float(np.median(taken[5:])) for taken in seconds.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parts = {"tables": tables, "shadows": shadows, "solving": solving, "pictures": pictures, "gateway": gateway}
    parser.add_argument("what", choices=tuple(parts))
    parser.add_argument("--data-dir", type=Path, help="where adult/ and the images are")
    parser.add_argument("--cache", type=Path, help="a folder that keeps what is done")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    cache = joblib.Memory(options.cache, verbose=0)
    for line in parts[options.what](options.data_dir, cache):
        print(line, flush=True)


if __name__ == "__main__":
    main()
