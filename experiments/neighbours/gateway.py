"""What an attacker learns through the gateway who also asks about noisy copies of a record: a table of docs/serve.md.

    python -m experiments.neighbours.gateway --data DIR
        about 25 minutes on one core; DIR holds FashionMNIST/raw
    python -m experiments.neighbours.gateway --equality
        only what equal answers to equal scores tell
    python -m experiments.neighbours.gateway --quick --output DIR
        about a minute: whether it works
    python -m experiments.neighbours.gateway --render
        the tables again, from experiments/neighbours/results.json

`scoreveil serve` is asked over HTTP, as a model of each setting; raw scores are asked of the model directly.
The attacker knows the true label. It asks about each record first and then about copies, at four scales of noise, those
of pictures moved by a pixel as well. From the records of one half, whose membership it knows, boosted trees learn how
members look; the AUC is that on the other half, and in turn. The attacker who sees labels alone asks the same.

*Equality*: without memory, draws are keyed by the scores, so records with equal scores share one draw. Who knows half
of the records and their scores counts members and others behind each answer, and uses that for the other half.

A study that was stopped goes on from --cache, which does not know of changes to the gateway: empty it after one.
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import orjson
import skops.io
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.neural_network import MLPClassifier

from benchmarks.speed.gateway import BIN, ONE_THREAD, ROOT, Process, free_ports
from experiments.data import benchmarks
from experiments.neighbours.smoothing import as_labels, models, table
from scoreveil import Smoothing, Veil, fit
from scoreveil.arrays import Floats, Integers
from scoreveil.audit.study.metrics import auc
from scoreveil.fitting.metrics import auroc

Bools = NDArray[np.bool_]
Ask = Callable[[Any], Any]
Interval = tuple[float, float, float]  # an AUC, and from where to where it may well lie

RESULTS, PAGE = Path(__file__).with_name("results.json"), ROOT / "docs" / "serve.md"
START, END = (
    "<!-- neighbours: made by `python -m experiments.neighbours.gateway --render` -->",
    "<!-- end of neighbours -->",
)
CACHE = Path.home() / ".cache" / "scoreveil" / "neighbours"
SCALES = (0.3, 0.1, 0.6, 0.03)  # of the noise, in spreads of a feature; copies take them in turn
TYPICAL = 1000  # public records from which the attacker knows the spreads
TOGETHER = 100  # records whose questions are asked at a time, all first questions first
ROWS = 512  # of a request
SEEDS = range(3)  # of the attacker's trees
DRAWN_TOWARDS = 4  # records that what is known of a label counts for, where an answer to it is rare
TABLE, FEW_WRONG, PICTURES = "20 % wrong labels", "2 % wrong labels", "fashion-mnist"
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "boosting, table": (TABLE, models(0)["boosting"]),
    "forest, table": (TABLE, models(0)["forest"]),
    "forest, pictures": (PICTURES, lambda: RandomForestClassifier(100, random_state=0)),
    "network, pictures": (PICTURES, lambda: MLPClassifier((128,), max_iter=150, n_iter_no_change=150, random_state=0)),
}
ATOMS: dict[str, Callable[[], Any]] = {
    "10 trees": lambda: RandomForestClassifier(10, random_state=0),
    "20 trees, each of all records": lambda: RandomForestClassifier(20, bootstrap=False, random_state=0),
}
EQUALITY_EPSILONS = (4.0, 1.0)


@dataclass(frozen=True)
class Setting:
    """How the gateway answers: by a veil fitted with this ε, with one answer for each record and its near-duplicates
    where it has memory."""

    epsilon: float | None = None
    memory: bool = False

    def tables(self, name: str) -> list[str]:
        """Of the configuration."""
        lines = [f"[models.{name}]", 'skops = "model.skops"', f'veil = "{self.epsilon}.json"']
        return lines + ([f"[models.{name}.memory]", "answers = 1", 'repeat = "same"'] if self.memory else [])


SETTINGS = {
    "fitted": Setting(),
    "fitted, ε = 4": Setting(4.0),
    "memory, ε = 4": Setting(4.0, memory=True),
    "memory, ε = 2": Setting(2.0, memory=True),
    "memory, ε = 1": Setting(1.0, memory=True),
}
COLUMNS = ("labels", "raw", *SETTINGS)


@dataclass(frozen=True)
class Effort:
    models: tuple[str, ...]
    part: int  # most records of a third: trained on, other ones, and public ones
    records: int  # asked about on each side
    questions: tuple[int, ...]
    atoms: tuple[str, ...]
    names: int  # under which the same model is served, to draw anew


FULL = Effort(tuple(MODELS), 5000, 800, (1, 2, 8, 32, 128), tuple(ATOMS), 20)
QUICK = Effort(("forest, table",), 600, 60, (1, 8), ("10 trees",), 2)


@dataclass(frozen=True)
class Subject:
    """A model, the records it was trained on, as many others, and public ones."""

    model: Any
    members: tuple[Any, Integers]
    others: tuple[Any, Integers]
    public: tuple[Any, Integers]

    def ask(self, x: Any) -> Floats:
        return np.asarray(self.model.predict_proba(flat(x)))

    def fitted(self, epsilon: float | None) -> Veil:
        (inside, inside_labels), (public, public_labels) = self.members, self.public
        rng = np.random.default_rng(0)
        return fit(self.ask(public), public_labels, self.ask(inside), inside_labels, epsilon=epsilon, rng=rng)

    def asked(self, count: int) -> tuple[Any, Integers, Bools]:
        """So many members and as many others: records, true labels, and which are members."""
        x, y = (np.concatenate([a[:count], b[:count]]) for a, b in zip(self.members, self.others, strict=True))
        return x, y, np.arange(len(y)) < count


def flat(x: Any) -> Any:
    return x.reshape(len(x), -1)


def trained(data: str, make: Callable[[], Any], part: int, data_dir: Path | None) -> Subject:
    if data == PICTURES:
        images = benchmarks.load(data, data_dir)
        order = np.random.default_rng(0).permutation(len(images))[: 3 * part]
        x, y = images.pixels[order], images.labels[order]
    else:
        records, y = table(data, 0, None)
        x = records.astype(np.float32)
    part = min(part, len(y) // 3)
    parts = [(x[at : at + part], y[at : at + part]) for at in (0, part, 2 * part)]
    return Subject(make().fit(flat(parts[0][0]), parts[0][1]), *parts)


# The gateway


class Client:
    """Asks a gateway over one connection, in the binary form of the protocol."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)

    def __call__(self, model: str, x: Any) -> Floats:
        rows = flat(x).astype("<f4")
        return np.concatenate([self._request(model, rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)])

    def _request(self, model: str, rows: Any) -> Floats:
        tensor = {"name": "x", "shape": rows.shape, "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
        outputs = [{"name": "scores", "parameters": {"binary_data": True}}]
        head = orjson.dumps({"inputs": [tensor], "outputs": outputs})
        size = "Inference-Header-Content-Length"
        self.connection.request("POST", f"/v2/models/{model}/infer", head + rows.tobytes(), {size: str(len(head))})
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"The gateway answered {answer.status}: {body.decode(errors='replace')}")
        end = int(answer.headers[size])
        [scores] = orjson.loads(body[:end])["outputs"]
        dtype = {"FP32": "<f4", "FP64": "<f8"}[scores["datatype"]]
        return np.frombuffer(body[end:], dtype).reshape(scores["shape"]).astype(np.float64)


@contextmanager
def gateway(subject: Subject, served: dict[str, Setting]) -> Iterator[Client]:
    """A gateway that serves the model under several names, behind fitted veils."""
    # memory brings a rate where clients have no keys
    lines = ["limits = { rows_per_second = 0 }", *(line for each in served for line in served[each].tables(each)), ""]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        skops.io.dump(subject.model, folder / "model.skops")
        for epsilon in {setting.epsilon for setting in served.values()}:
            subject.fitted(epsilon).save(folder / f"{epsilon}.json")
        (folder / "gateway.toml").write_text("\n".join(lines), encoding="utf-8")
        port, admin = free_ports(2)
        command = [str(BIN / "scoreveil"), "serve", "--config", "gateway.toml", "--port", str(port), "--admin-port"]
        secret = {"SCOREVEIL_SECRET": hashlib.sha256(b"the secret of this measurement").hexdigest()}
        server = Process("gateway", [*command, str(admin)], port, folder, **ONE_THREAD, **secret)
        try:
            yield Client(port)
        finally:
            server.stop()


# Asking around records


def answers(name: str, effort: Effort, data_dir: Path | None) -> dict[str, Floats]:
    """What all questions are answered in each setting, (questions, records, classes), the records' own first."""
    subject = trained(*MODELS[name], effort.part, data_dir)
    served = {f"m{number}": setting for number, setting in enumerate(SETTINGS.values())}
    found: dict[str, list[Floats]] = {column: [] for column in COLUMNS[1:]}
    with gateway(subject, served) as ask:
        for questions in in_turn(subject, effort):
            rows = questions.reshape(-1, *questions.shape[2:])
            given = [subject.ask(rows), *(ask(model, rows) for model in served)]
            for scores, column in zip(given, found.values(), strict=True):
                column.append(scores.reshape(*questions.shape[:2], -1).astype(np.float32))
    return {column: np.concatenate(parts, axis=1) for column, parts in found.items()}


def in_turn(subject: Subject, effort: Effort) -> Iterator[Any]:
    """Questions about some records at a time, (questions, records, …): the records, then copies at each scale."""
    count = max(effort.questions)
    x, _, _ = subject.asked(effort.records)
    copies, public = -(-(count - 1) // len(SCALES)), subject.public[0][:TYPICAL]
    noises = [Smoothing(copies, scale, typical=public, seed=seed) for seed, scale in enumerate(SCALES)]
    for at in range(0, len(x), TOGETHER):
        records = x[at : at + TOGETHER]
        around = [noise.around(records).reshape(copies, *records.shape) for noise in noises]
        yield np.concatenate([records[None], np.stack(around, axis=1).reshape(-1, *records.shape)[: count - 1]])


def judge(given: Floats, truth: Integers, is_member: Bools) -> Interval:
    """AUC of trees that learned from the other half, the mean of both halves, with its 95 % interval."""
    seen, order, halves = features(given, truth), np.random.default_rng(0).permutation(len(truth)), []
    for learned, tested in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        sure = np.zeros(len(tested))
        for seed in SEEDS:
            trees = HistGradientBoostingClassifier(
                learning_rate=0.06, max_iter=80, max_depth=4, max_features=0.3, l2_regularization=1.0, random_state=seed
            )
            sure += trees.fit(seen[learned], is_member[learned]).decision_function(seen[tested])
        halves.append(auc(is_member[tested], sure))
    return mean_of(halves)


def mean_of(halves: Sequence[Interval]) -> Interval:
    """The mean AUC of separate records, with the interval that follows from theirs."""
    value = float(np.mean([half[0] for half in halves]))
    reach = math.hypot(*((high - low) / 2 for _, low, high in halves)) / len(halves)
    return value, max(0.0, value - reach), min(1.0, value + reach)


def features(given: Floats, truth: Integers) -> Floats:
    """A record's answer beside those to its copies: labels that agree, confidence announced, differences.

    Args:
        given: Scores (questions, records, classes), the records' own first.
        truth: The true labels.
    """
    labels, top = given.argmax(axis=2), given.max(axis=2)
    of_truth, of_own = (
        np.take_along_axis(given, classes[None, :, None], axis=2)[..., 0] for classes in (truth, labels[0])
    )
    columns = [*given[0].T, truth, labels[0], labels[0] == truth, top[0], of_truth[0]]
    copies = np.arange(1, len(given))
    every = [copies, *(copies[at :: len(SCALES)] for at in range(len(SCALES)) if len(copies) > len(SCALES))]
    for group in every if len(copies) else []:
        for scores in (of_truth, of_own):
            mean = scores[group].mean(axis=0)
            columns += [mean, scores[0] - mean, scores[group].std(axis=0)]
        columns += [(labels[group] == label).mean(axis=0) for label in (truth, labels[0])]
        columns.append(top[group].mean(axis=0))
    if len(copies):
        columns += [*np.quantile(of_truth[1:], (0, 0.25, 0.5, 0.75, 1), axis=0)]
        columns += [(of_truth[1:] < of_truth[0]).mean(axis=0), (of_truth[1:] == of_truth[0]).mean(axis=0)]
    return np.column_stack(columns).astype(np.float64)


def around(effort: Effort, data_dir: Path | None, cache: joblib.Memory) -> dict[str, Any]:
    """The attack on every model and setting, and what is left of the confidence about records that are no members."""
    asked, attacked = cache.cache(answers, ignore=["data_dir"]), cache.cache(judge)
    found: dict[str, Any] = {}
    for name in effort.models:
        progress(f"{name}: the attacker asks")
        given = asked(name, effort, data_dir)
        given["labels"] = as_labels_of(given["fitted"])
        if (given["labels"] != as_labels_of(given["raw"])).any():
            raise SystemExit(f"{name}: the gateway changed a label.")
        progress(f"{name}: the attacker learns")
        subject = trained(*MODELS[name], effort.part, data_dir)
        _, truth, is_member = subject.asked(effort.records)
        found[name] = {
            "accuracy": [subject.model.score(flat(x), y) for x, y in (subject.members, subject.others)],
            "stated": {
                column: subject.fitted(setting.epsilon).guarantee.advantage for column, setting in SETTINGS.items()
            },
            "useful": {column: useful(given[column][0], truth, is_member) for column in COLUMNS},
            "attack": {
                column: {str(k): attacked(given[column][:k], truth, is_member) for k in effort.questions}
                for column in COLUMNS
            },
        }
    return found


def as_labels_of(given: Floats) -> Floats:
    return as_labels(given.reshape(-1, given.shape[-1])).reshape(given.shape)


def useful(shown: Floats, truth: Integers, is_member: Bools) -> float:
    """AUROC of the confidence for being right, on records that are no members."""
    sure, right = shown.max(axis=1)[~is_member], (shown.argmax(axis=1) == truth)[~is_member]
    return auroc(sure[right], sure[~right])


# What equality tells


def equality(effort: Effort, cache: joblib.Memory) -> dict[str, Any]:
    asked, found = cache.cache(shared_draws), dict[str, Any]()
    for name in effort.atoms:
        progress(f"equality: {name}")
        subject = trained(FEW_WRONG, ATOMS[name], effort.part, None)
        x, truth, is_member = subject.asked(len(subject.members[1]))
        raw, rng = subject.ask(x), np.random.default_rng(1)
        plain = subject.fitted(None)
        read = partial(read_off, raw, truth, is_member)
        found[name] = {
            "at_one": [float((raw.max(axis=1) == 1)[side].mean()) for side in (is_member, ~is_member)],
            "stated": plain.guarantee.advantage,
            "labels": read(None),
            "fitted": read(plain(raw)),
        }
        for epsilon, drawn in zip(EQUALITY_EPSILONS, asked(name, effort), strict=True):
            fresh = Veil(subject.fitted(epsilon).mechanism, rng=rng)
            found[name][f"{epsilon:g}"] = {
                "fresh": [read(fresh(raw))[0] for _ in drawn],
                "shared": [read(shown)[0] for shown in drawn],
            }
    return found


def shared_draws(name: str, effort: Effort) -> list[list[Floats]]:
    """What a gateway answers about all members and others, one question each: for each ε, under several names of the
    model. A name keys draws as another secret would."""
    subject = trained(FEW_WRONG, ATOMS[name], effort.part, None)
    served = {
        f"m{n}-{at}": Setting(each, memory=True)
        for at, each in enumerate(EQUALITY_EPSILONS)
        for n in range(effort.names)
    }
    x, _, _ = subject.asked(len(subject.members[1]))
    with gateway(subject, served) as ask:
        return [[ask(f"m{n}-{at}", x) for n in range(effort.names)] for at in range(len(EQUALITY_EPSILONS))]


def read_off(raw: Floats, truth: Integers, is_member: Bools, shown: Floats | None) -> Interval:
    """AUC of counts: how many known members and others have this label, right or wrong, and this answer.

    Whoever knows which score vectors have which answer can do no more with an answer than count the records behind it.
    """
    labels = raw.argmax(axis=1)
    label = 2 * labels + (labels == truth)
    level = np.zeros(len(raw)) if shown is None else np.round(shown.max(axis=1), 6)
    cell = np.unique(np.column_stack([label, level]), axis=0, return_inverse=True)[1].ravel()
    half, halves = np.random.default_rng(0).permutation(len(raw)) % 2 == 0, []
    for known in (half, ~half):

        def counts(groups: Integers, known: Bools = known) -> Floats:
            """Known members and others of each record's group."""
            sides = [np.bincount(groups[known & side], minlength=len(raw)) for side in (is_member, ~is_member)]
            return np.stack(sides).astype(np.float64)[:, groups]

        members, others = counts(label)
        share = (members + 1) / (members + others + 2)
        members, others = counts(cell)
        sure = (members + DRAWN_TOWARDS * share) / (members + others + DRAWN_TOWARDS)
        halves.append(auc(is_member[~known], sure[~known]))
    return mean_of(halves)


# Results


def tables(results: dict[str, Any]) -> str:
    """The section of docs/serve.md."""
    lines = []
    if "neighbours" in results:
        part = results["neighbours"]
        lines += [words(part["about"]), "", *head("AUC", "questions", *COLUMNS)]
        for model, measured in part["models"].items():
            for k in measured["attack"]["raw"]:
                lines.append(row(model, k, *(shown(measured["attack"][column][k]) for column in COLUMNS)))
        lines += ["", *head("AUROC of the confidence", *COLUMNS)]
        for model, measured in part["models"].items():
            lines.append(row(model, *(f"{measured['useful'][column]:.2f}" for column in COLUMNS)))
        lines.append("")
    if "equality" in results:
        part = results["equality"]
        ways = "independent draws", "equal scores, equal draws", "the worst of them"
        lines += [words(part["about"]), "", *head("AUC", "ε", "labels", "fitted, no ε", *ways)]
        for forest, measured in part["forests"].items():
            for epsilon in (f"{each:g}" for each in EQUALITY_EPSILONS):
                fresh, shared = (measured[epsilon][way] for way in ("fresh", "shared"))
                figures = measured["labels"][0], measured["fitted"][0], np.mean(fresh), np.mean(shared), max(shared)
                lines.append(row(forest, epsilon, *(f"{value:.2f}" for value in figures)))
    return "\n".join(lines).rstrip()


def words(said: dict[str, Any]) -> str:
    return f"Measured by `{said['command']}`, {said['date']}."


def head(first: str, *others: str) -> list[str]:
    return [row(first, *others), "|---|" + "---:|" * len(others)]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def shown(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.2f} ± {(high - low) / 2:.2f}"


def about(arguments: Sequence[str]) -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "command": " ".join(["python -m experiments.neighbours.gateway", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores",
    }


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the pictures are; else $SCOREVEIL_DATA")
    parser.add_argument("--cache", type=Path, default=CACHE, help="a folder that keeps what is done")
    parser.add_argument("--equality", action="store_true", help="measure that part alone, and keep the other")
    parser.add_argument("--quick", action="store_true", help="a short form, whose figures mean little")
    parser.add_argument("--output", type=Path, help="a folder for results.json, in place of ours")
    parser.add_argument("--render", action="store_true", help="make the tables from results.json, measuring nothing")
    given = parser.parse_args()
    if given.quick and given.output is None:
        parser.error("--quick needs --output: short figures do not belong in the docs")
    warnings.filterwarnings("ignore")  # of a network that is meant to overfit, and of veils from few records
    file = given.output / "results.json" if given.output else RESULTS
    file.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not given.render:
        effort = QUICK if given.quick else FULL
        cache = joblib.Memory(given.cache, verbose=0)
        said = about([f"--{name}" for name in ("equality", "quick") if getattr(given, name)])
        if not given.equality:
            results["neighbours"] = {"about": said, "models": around(effort, given.data, cache)}
        results["equality"] = {"about": said, "forests": equality(effort, cache)}
        file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.output is not None:
        (given.output / "neighbours.md").write_text(tables(results) + "\n", encoding="utf-8")
    elif START in (page := PAGE.read_text(encoding="utf-8")):
        before, _, rest = page.partition(START)
        PAGE.write_text(f"{before}{START}\n{tables(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(tables(results))


if __name__ == "__main__":
    main()
