"""What a study finds, as values: rows for attacks, defenses and inversions, and the verdict that follows from them.

`to_json` and `from_json` are the format of results.json; `report` renders it.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Form = Literal["paper", "adaptive", "averaging"]
InversionForm = Literal["paper", "adaptive", "floor"]
SLACK = 0.02  # how far above its floor the best attack may come for a setting to count as holding


@dataclass(frozen=True)
class AttackResult:
    """One membership attack on one defense. AUC and TPR with 95 % intervals."""

    defense: str
    epsilon: float | None
    attack: str
    form: Form  # "paper": fitted on undefended scores; "adaptive": on defended ones; "averaging": over repeated queries
    features: str
    reads: str  # "scores", "ranking" or "label"
    knows_label: bool
    accuracy: float
    auc: float
    auc_low: float
    auc_high: float
    tpr_at_1pct: float
    tpr_at_1pct_low: float
    tpr_at_1pct_high: float
    tpr_at_01pct: float
    tpr_at_01pct_low: float
    tpr_at_01pct_high: float
    seconds: float
    roc: tuple[tuple[float, float], ...] = ()  # (false positive rate, true positive rate), thinned


@dataclass(frozen=True)
class DefenseResult:
    """What one defense costs, measured on records that were not trained on unless named otherwise."""

    defense: str
    epsilon: float | None
    keeps_label: bool
    keeps_ranking: bool
    train_accuracy: float | None
    test_accuracy: float | None
    distortion_l1: float
    distortion_l2: float
    ece: float | None
    brier: float | None
    auroc_of_confidence: float | None
    fit_seconds: float
    seconds_per_vector: float
    ratio_to_numpy: float | None = None  # of our mechanisms: the time beside that of plain array operations


@dataclass(frozen=True)
class InversionResult:
    """Reconstructions from the scores: error, similarity, and how often the nearest original is the right one."""

    defense: str
    epsilon: float | None
    form: InversionForm
    features: str
    mse: float
    ssim: float
    nearest_original: float
    pictures: tuple[str, ...] = ()  # PNG data URIs of the first few reconstructions


@dataclass(frozen=True)
class Study:
    """Everything a study found. `meta` says how it was made: command, versions, seeds, data hashes, machine, date."""

    meta: dict[str, Any]
    results: tuple[AttackResult, ...]
    defenses: tuple[DefenseResult, ...]
    inversions: tuple[InversionResult, ...] = ()
    originals: tuple[str, ...] = ()  # PNG data URIs of what the reconstructions are of
    notes: tuple[str, ...] = field(default=())  # warnings about the data


@dataclass(frozen=True)
class Verdict:
    """The study in a few sentences, with the setting it recommends."""

    undefended: AttackResult
    floors: tuple[AttackResult, ...]  # what the label alone gives, without and with the true label
    recommended: tuple[str, float | None] | None  # defense and ε, or None where nothing holds
    remaining: AttackResult | None  # the best adaptive attack on the recommended setting
    sentences: tuple[str, ...]


def best(results: tuple[AttackResult, ...], defense: str, epsilon: float | None, **wanted: Any) -> AttackResult | None:
    """The strongest attack, by AUC, on one setting, among those with the wanted fields."""
    there = [
        r
        for r in results
        if (r.defense, r.epsilon) == (defense, epsilon) and all(getattr(r, k) == v for k, v in wanted.items())
    ]
    return max(there, key=lambda r: r.auc, default=None)


def to_json(study: Study) -> str:
    """One line for each result: curves of hundreds of points would take one for each number."""

    def written(value: Any) -> str:
        if not isinstance(value, (list, tuple)):
            return json.dumps(value, indent=1, allow_nan=False)
        return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"

    return "{\n" + ",\n".join(f'"{name}": {written(value)}' for name, value in asdict(study).items()) + "\n}\n"


def from_json(text: str) -> Study:
    loaded = json.loads(text)
    return Study(
        meta=loaded["meta"],
        results=tuple(AttackResult(**{**r, "roc": tuple(map(tuple, r["roc"]))}) for r in loaded["results"]),
        defenses=tuple(DefenseResult(**r) for r in loaded["defenses"]),
        inversions=tuple(InversionResult(**{**r, "pictures": tuple(r["pictures"])}) for r in loaded["inversions"]),
        originals=tuple(loaded["originals"]),
        notes=tuple(loaded["notes"]),
    )
