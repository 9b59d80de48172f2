"""What do a language model's logprobs tell, and what does a veil leave of that? The tables of docs/language-models.md.

    nice python -m experiments.language
        # results in experiments/language/results.json, and the tables on the page
    python -m experiments.language --render
        # makes the tables from the results, and measures nothing
    python -m experiments.language --work FOLDER
        # where data, model and audit are kept; a run that was stopped goes on

The task: is a snippet of a film review positive or negative? vaderSentiment's source distribution holds 10,605 of them,
rated by 20 people each (Hutto and Gilbert, ICWSM 2014); those near neutral are left out. A model of GPT-2's
architecture learns 3,000 of the others, longer than is good for it.

*Membership*: the audit's attacks on the labels' scores of what was learned and of 3,000 others.

*Inversion*: somebody sees an answer, and wants to know the prompt, which is one of 1,000. *Trained*: a linear map from
what is seen to the words of the prompt, learned from 3,000 other prompts and their answers; the candidates are ranked
by how near their words are. *Asking*: the attacker may ask the same model about each candidate, and ranks first those
whose answers are nearest to the one that was seen. The rank of the true prompt, with ties counted half. Sticky answers
are the same for whoever asks, or drawn anew.
"""

import argparse
import hashlib
import io
import json
import pickle
import tarfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler, normalize

from experiments.language.small_language_model import PROMPT, SmallLanguageModel, train
from scoreveil import Veil, atomic, audit
from scoreveil.arrays import Floats
from scoreveil.gateway.labels import label_scores

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = Path(__file__).with_name("results.json"), ROOT / "docs" / "language-models.md"
START, END = "<!-- language: made by `python -m experiments.language --render` -->", "<!-- end of language -->"
SOURCE = (
    "https://files.pythonhosted.org/packages/77/8c/4a48c10a50f750ae565e341e697d74a38075a3e43ff0df6f1ab72e186902/"
    "vaderSentiment-3.3.2.tar.gz"
)
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SNIPPETS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
LABELS = ("positive", "negative")
NEUTRAL = 0.5  # a mean rating from -4 to 4 within this is left out
MEMBERS = OTHERS = LEARNED_FROM = 3000
CANDIDATES, TOP = 1000, 20
SETTINGS: dict[str, Any] = {"vocabulary": 4000, "width": 128, "layers": 2, "epochs": 6, "dropout": 0.2, "rate": 1e-3}
SMALLEST = 1e-12  # of the scores that are told apart
EPSILONS = (0.5, 2.0, 4.0)


def reviews(work: Path) -> tuple[list[str], NDArray[np.int64]]:
    """Snippets and their labels, shuffled."""
    path = work / "vaderSentiment-3.3.2.tar.gz"
    if not path.exists():
        with urlopen(SOURCE, timeout=120) as answer:
            atomic.write(path, answer.read())
    packed = path.read_bytes()
    if hashlib.sha256(packed).hexdigest() != SHA256:
        raise SystemExit(f"{path} is not the file that was published; remove it.")
    inner = _member(packed, INNER)
    rows = [line.split("\t") for line in _member(inner, SNIPPETS).decode("utf-8", "replace").splitlines()]
    found = {text.strip(): float(rating) for _, rating, text in rows if abs(float(rating)) >= NEUTRAL}
    texts = sorted(found)
    np.random.default_rng(0).shuffle(texts)
    return texts, np.array([int(found[text] < 0) for text in texts])


def _member(packed: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def model(work: Path, prompts: list[str], labels: NDArray[np.int64]) -> SmallLanguageModel:
    """The model, trained where that was not done before."""
    path = work / "model.pt"
    if not path.exists():
        trained = train(prompts, [LABELS[label] for label in labels], **SETTINGS, say=True)
        atomic.write(path, pickle.dumps(trained))
    found: SmallLanguageModel = pickle.loads(path.read_bytes())  # which this script wrote
    return found


def scores_of(found: SmallLanguageModel, logprobs: NDArray[np.float32]) -> Floats:
    """The labels' scores, as the gateway makes them from a server's top logprobs."""
    decode, rows = found.tokenizer.decode, []
    for row in logprobs:
        top = np.argsort(-row)[:TOP]
        rows.append(label_scores([(decode([i]), float(row[i])) for i in top], LABELS))
    return np.concatenate(rows)


# Membership


def membership(work: Path, scores: Floats, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The best attack on each defense, and what the confidence is worth there."""
    members, others = slice(0, MEMBERS), slice(MEMBERS, MEMBERS + OTHERS)
    found = audit.run(
        scores[members], scores[others], labels[members], labels[others],
        defenses=["none", "isotonic", "regions", "label_constant"], epsilon=EPSILONS, cache=work / "audit", jobs=1,
    )  # fmt: skip
    assert isinstance(found, audit.Audit)  # of vectors
    rows = []
    for defense in found.study.defenses:
        attacks = [each for each in found.study.results if each.setting == defense.setting and each.form != "averaging"]
        best = {
            knows: max((a for a in attacks if a.knows_label == knows), key=lambda a: a.auc) for knows in (False, True)
        }
        rows.append(
            {
                "defense": defense.defense,
                "epsilon": defense.epsilon,
                "leak": best[False].auc,
                "attack": best[False].attack,
                "leak_knowing": best[True].auc,
                "useful": defense.auroc_of_confidence,
                "nll": defense.nll,
            }
        )
    right = scores.argmax(axis=1) == labels[: len(scores)]
    return {
        "rows": rows,
        "verdict": list(found.sentences),
        "accuracy": [float(right[members].mean()), float(right[others].mean())],
    }


# Inversion


def inversion(prompts: list[str], logprobs: NDArray[np.float32], scores: Floats) -> dict[str, Any]:
    """The median rank of the true prompt among the candidates, and how often it is among the first ten."""
    learned, asked = slice(0, LEARNED_FROM), slice(LEARNED_FROM, LEARNED_FROM + CANDIDATES)
    words = TfidfVectorizer(stop_words="english", min_df=3, sublinear_tf=True).fit(prompts[learned])
    space = TruncatedSVD(200, random_state=0).fit(words.transform(prompts[learned]))
    meanings = normalize(space.transform(words.transform(prompts)))
    seen: dict[str, Floats] = {
        "all logprobs of the next token": logprobs.astype(np.float64),
        f"its top {TOP} logprobs": _top(logprobs),
        "the labels' raw scores": _logarithms(scores),
    }
    rng = np.random.default_rng(1)
    seen["the label alone"] = np.eye(2)[scores.argmax(axis=1)]
    told = dict(seen)  # to whom asks: the same, but where each answer is drawn anew
    for epsilon in EPSILONS:
        veil = Veil(epsilon, rng=rng)
        same, fresh = f"veiled, ε = {epsilon:g}, one answer for all", f"veiled, ε = {epsilon:g}, fresh answers"
        seen[same] = told[same] = seen[fresh] = _logarithms(veil(scores))
        told[fresh] = _logarithms(veil(scores))
    found = {}
    for name, features in seen.items():
        scaled = StandardScaler().fit(features[learned]).transform(features)
        reader = RidgeCV(alphas=np.logspace(0, 6, 13)).fit(scaled[learned], meanings[learned])
        near = normalize(reader.predict(scaled[asked])) @ meanings[asked].T
        found[name] = {"trained": _ranks(-near), "asking": _ranks(_distances(features[asked], told[name][asked]))}
    return found


def _logarithms(scores: Floats) -> Floats:
    return np.log(np.maximum(scores, SMALLEST))


def _top(logprobs: NDArray[np.float32]) -> Floats:
    """What a server lists: all else is as unlikely as the last one listed."""
    least = np.sort(logprobs, axis=1)[:, -TOP][:, None]
    return np.maximum(logprobs, least).astype(np.float64)


def _distances(seen: Floats, told: Floats) -> Floats:
    """Between what was seen of each prompt and what asking about each candidate tells, exactly 0 where it is equal."""
    return np.array([np.abs(told - row).max(axis=1) for row in seen])


def _ranks(costs: Floats) -> dict[str, float]:
    own = np.diag(costs)[:, None]
    ranks = 1 + (costs < own).sum(axis=1) + ((costs == own).sum(axis=1) - 1) / 2
    return {"median": float(np.median(ranks)), "first": float((ranks <= 1).mean()), "ten": float((ranks <= 10).mean())}


# The page


def tables(found: dict[str, Any]) -> str:
    inside, outside = found["membership"]["accuracy"]
    lines = [
        f"Measured by `python -m experiments.language`, {found['date']}: {found['parameters']:,} parameters, accuracy "
        f"{inside:.1%} on the {MEMBERS:,} prompts it learned and {outside:.1%} on {OTHERS:,} others.",
        "",
        "| answers | leak, AUC | leak where the true label is known | useful, AUROC | log-loss |",
        "|---|---|---|---|---|",
    ]
    for row in found["membership"]["rows"]:
        name = NAMES[row["defense"]] + (f", ε = {row['epsilon']:g}" if row["epsilon"] is not None else "")
        numbers = [row["leak"], row["leak_knowing"], row["useful"], row["nll"]]
        lines.append(f"| {name} | {' | '.join(f'{number:.3f}' for number in numbers)} |")
    lines += [
        "",
        f"| what is seen | trained: median rank of {CANDIDATES:,} | in the first ten | asking: median rank | first |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["inversion"].items():
        trained, asking = row["trained"], row["asking"]
        cells = [
            f"{trained['median']:.0f}",
            f"{trained['ten']:.1%}",
            f"{asking['median']:.0f}",
            f"{asking['first']:.1%}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


NAMES = {
    "none": "the labels' raw scores",
    "isotonic": "isotonic",
    "regions": "regions (fitted)",
    "optimal": "optimal (fitted)",  # of results that were measured before regions
    "label_constant": "the label alone",
}


def measured(work: Path) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    texts, labels = reviews(work)
    prompts = [PROMPT.format(text=text) for text in texts]
    found = model(work, prompts[:MEMBERS], labels[:MEMBERS])
    logprobs = found.next_logprobs(prompts)
    scores = scores_of(found, logprobs)
    beyond = slice(MEMBERS + OTHERS, MEMBERS + OTHERS + LEARNED_FROM + CANDIDATES)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "parameters": sum(weights.numel() for weights in found.network.parameters()),
        "membership": membership(work, scores[: MEMBERS + OTHERS], labels),
        "inversion": inversion(prompts[beyond], logprobs[beyond], scores[beyond]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="make the tables from the results, measuring nothing")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "language", help="the folder that keeps what is done"
    )
    given = parser.parse_args()
    if not given.render:
        torch.set_num_threads(1)
        atomic.write(RESULTS, json.dumps(measured(given.work), indent=1) + "\n")
    made = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    if PAGE.exists():
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        atomic.write(PAGE, f"{head}{START}\n{made}\n{END}{rest.partition(END)[2]}")
    print(made)


if __name__ == "__main__":
    main()
