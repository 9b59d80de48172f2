"""What a study finds, as values: a row for each attack, defense and inversion, and which of them may be compared.

`to_json` and `from_json` are the format of results.json; the room `report` renders it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scoreveil.fitting.decision import Evidence
from scoreveil.fitting.metrics import Group
from scoreveil.fitting.neighbours import Trial

Kind = TypeVar("Kind")
Setting = tuple[str, float | None]  # a defense and its ε
Form = Literal["paper", "adaptive", "averaging"]
InversionForm = Literal["paper", "adaptive", "floor"]
Side = Literal["members", "nonmembers"]
Measure = Literal["accuracy", "auc", "tpr_at_1pct", "tpr_at_01pct"]

UNDEFENDED: Setting = ("none", None)
VEIL = "regions"  # the fitted veil, with an ε or without
TEMPERED: Setting = ("temperature_scaled", None)  # calibration alone
LABEL: Setting = ("label_constant", None)  # the label alone, with a constant confidence
FORMS: tuple[Form, ...] = ("paper", "adaptive", "averaging")
CHANCE = 0.5  # the AUC of guessing


@dataclass(frozen=True, kw_only=True)
class OfSetting:
    """What was found out about one defense at one ε."""

    defense: str
    epsilon: float | None

    @property
    def setting(self) -> Setting:
        return self.defense, self.epsilon


@dataclass(frozen=True)
class MembershipMetrics:
    """How well an attack tells members from others, with 95 % intervals.

    accuracy      on balanced sets, with the threshold 0.5 that the attack was fitted to
    auc           with DeLong's interval
    tpr_at_1pct   share of the members found at 1 % false alarms; Clopper-Pearson, for a given threshold
    tpr_at_01pct  the same at 0.1 %
    members, nonmembers    how many it was judged on
    roc           points (false positive rate, true positive rate), evenly spread on a logarithmic axis
    """

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
    members: int
    nonmembers: int
    roc: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class InversionMetrics:
    """How near reconstructions come to the originals.

    mse               mean squared error per pixel
    ssim              mean structural similarity; it favours blurry class means, so do not rely on it alone
    nearest_original  how often the original nearest to a reconstruction is its own; 1/n by chance
    """

    mse: float
    ssim: float
    nearest_original: float


@dataclass(frozen=True, kw_only=True)
class AttackResult(MembershipMetrics, OfSetting):
    """One membership attack on one defense."""

    attack: str
    form: Form  # "paper": fitted on undefended scores; "adaptive": on defended ones; "averaging": over repeated queries
    features: str
    reads: str  # "scores", "ranking" or "label"
    knows_label: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DefenseResult(OfSetting):
    """What one defense costs, measured on records that were not trained on unless named otherwise."""

    keeps_label: bool
    keeps_ranking: bool
    train_accuracy: float | None
    test_accuracy: float | None
    distortion_l1: float
    distortion_l2: float
    ece: float | None
    brier: float | None
    nll: float | None = None
    aurc: float | None = None
    auroc_of_confidence: float | None
    reliability: tuple[Group, ...] = ()  # records of like confidence, the least confident first
    risk_coverage: tuple[tuple[float, float], ...] = ()  # the surest share of records, and the error rate among them
    fit_seconds: float
    seconds_per_vector: float
    ratio_to_numpy: float | None = None  # of our mechanisms: the time beside that of plain array operations
    promised_epsilon: float | None = None  # what one answer tells beyond the label at most; None where none is promised
    proved_epsilon: float | None = None  # what attacks prove of that, a lower bound; None where records are too few

    @property
    def breaks_promise(self) -> bool:
        if self.promised_epsilon is None or self.proved_epsilon is None:
            return False
        return self.proved_epsilon > self.promised_epsilon


@dataclass(frozen=True, kw_only=True)
class InversionResult(InversionMetrics, OfSetting):
    """Reconstructions from the scores, by one attacker on one defense."""

    form: InversionForm
    features: str
    pictures: tuple[str, ...] = ()  # data URIs of the first few reconstructions


@dataclass(frozen=True, kw_only=True)
class AttributeResult(OfSetting):
    """How often one column of a table is inferred, from one defense's answers, with 95 % intervals.

    marginal    how often the most common value is right, and
    imputation  a guess from the other columns: both without the model
    gain        success - imputation, on the same records
    """

    column: str
    values: int  # that the column can take
    sees_answer: bool  # whether the attacker has seen the answer about the true record
    side: Side
    records: int
    success: float
    success_low: float
    success_high: float
    marginal: float
    imputation: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, kw_only=True)
class Proved:
    """How many coins of how many canaries were guessed, how many rightly, and the ε that this proves."""

    canaries: int
    guesses: int
    right: int
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class CanaryResult(OfSetting):
    """What guessed coins prove of one defense, with 95 % confidence, and what it promises.

    in_all        of training, label and scores together
    beyond_label  of the scores, given the label: what a veil's promise covers; None where the label is not kept
    """

    canaries: int
    in_all: Proved
    beyond_label: Proved | None
    promised: float | None


@dataclass(frozen=True)
class Study:
    """Everything a study found. `meta` says how it was made: command, versions, seeds, data hashes, machine, date."""

    meta: dict[str, Any]
    results: tuple[AttackResult, ...]
    defenses: tuple[DefenseResult, ...]
    inversions: tuple[InversionResult, ...] = ()
    originals: tuple[str, ...] = ()  # data URIs of what the reconstructions are of
    notes: tuple[str, ...] = ()  # warnings about the data
    beside: tuple[DefenseResult, ...] = ()  # what other ways to answer are worth, which were not attacked
    boundary: tuple[AttackResult, ...] = ()  # on a sample, by asking for labels alone: holds behind every kept label
    attributes: tuple[AttributeResult, ...] = ()
    canaries: tuple[CanaryResult, ...] = ()
    smoothing: tuple[Trial, ...] = ()  # who asks around a record, without smoothing and with it
    evidence: tuple[Evidence, ...] = ()  # what the advice rests on, of each fitted veil that was tried

    @property
    def costs(self) -> dict[Setting, DefenseResult]:
        """What each setting costs, attacked or not."""
        return {cost.setting: cost for cost in (*self.defenses, *self.beside)}


Findings = tuple[tuple[DefenseResult, ...], tuple[AttackResult, ...], tuple[InversionResult, ...]]


def setting_name(setting: Setting) -> str:
    """`published ε=0.5`."""
    name, epsilon = setting
    return name if epsilon is None else f"{name} ε={epsilon:g}"


def floor(study: Study, told: bool) -> AttackResult | None:
    """The highest of the floors."""
    return max(floors(study, told), key=lambda r: r.auc, default=None)


def floors(study: Study, told: bool) -> tuple[AttackResult, ...]:
    """What the label alone gives to an attacker, who may also guess: never below 0.5.

    An attack of its own on the undefended scores, so that it is the same for every defense that keeps the label; where
    that was not run, the best of the attacks that read the label. Then the boundary attack, where it was run and lies
    surely above: its sample is small.
    """
    name = "label_floor_known" if told else "label_floor"
    one = best(study, UNDEFENDED, attack=name) or best(study, UNDEFENDED, told=told, reads="label")
    found = [] if one is None else [or_guessing(one)]
    asked = [r for r in study.boundary if told or not r.knows_label]
    raised = max(asked, key=lambda r: r.auc, default=None)
    if raised is not None and raised.auc_low > max((r.auc for r in found), default=CHANCE):
        found.append(raised)
    return tuple(found)


def or_guessing(result: AttackResult) -> AttackResult:
    """The result of an attacker who guesses where the attack does worse than that."""
    auc, low, high = (max(CHANCE, value) for value in (result.auc, result.auc_low, result.auc_high))
    return replace(result, auc=auc, auc_low=low, auc_high=high)


def best(
    study: Study, setting: Setting, measure: Measure = "auc", told: bool = True, **wanted: Any
) -> AttackResult | None:
    """The strongest attack on a setting.

    Args:
        study: Where to look. To compare settings, give what `shared` returns.
        setting: The defense and its ε.
        measure: What is compared.
        told: Whether the attacker is told the true labels. One who is may also ignore them; one who is not cannot
            run the attacks that need them.
        wanted: Fields that the attack must have, such as `reads="label"`.
    """
    there = (
        r
        for r in study.results
        if r.setting == setting
        and (told or not r.knows_label)
        and all(getattr(r, name) == value for name, value in wanted.items())
    )
    return max(there, key=lambda r: float(getattr(r, measure)), default=None)


def shared(study: Study, settings: Iterable[Setting] | None = None) -> Study:
    """The study with those attacks alone that were run on all the settings, by default on every setting there is.

    Settings may be compared by these only: where a strong attack was run on one setting and not on another, the other
    would look better than it is. All forms count as one attack: asking again is only tried where a defense draws anew.
    """
    run: dict[Setting, set[tuple[str, str]]] = {}
    for r in study.results:
        run.setdefault(r.setting, set()).add((r.attack, r.reads))
    compared = run if settings is None else settings
    common = set.intersection(*(run.get(one, set()) for one in compared)) if run else set()
    return replace(study, results=tuple(r for r in study.results if (r.attack, r.reads) in common))


def left_out(study: Study, compared: Study) -> list[AttackResult]:
    """The attacks on scores that `shared` left out."""
    common = {(r.attack, r.reads) for r in compared.results}
    return [r for r in study.results if (r.attack, r.reads) not in common and r.reads == "scores"]


def to_json(study: Study) -> str:
    """One line for each result. A curve is the number of its false positive rates in `rates`, then its true ones."""
    content, rates = asdict(study), dict[tuple[float, ...], int]()
    for row in content["results"]:
        curve = row.pop("roc")  # it comes last
        across, up = zip(*curve, strict=True) if curve else ((), ())
        row["roc"] = rates.setdefault(across, len(rates)), up
    content["rates"] = list(rates)

    def written(value: Any) -> str:
        if not isinstance(value, (list, tuple)):
            return json.dumps(value, indent=1, allow_nan=False)
        return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"

    return "{\n" + ",\n".join(f'"{name}": {written(value)}' for name, value in content.items()) + "\n}\n"


def from_json(text: str) -> Study:
    """The study that `to_json` wrote."""
    content = json.loads(text)
    rates = content.pop("rates")
    for row in content["results"]:
        which, up = row["roc"]
        row["roc"] = zip(rates[which], up, strict=True)
    return restored(Study, content)


def restored(kind: type[Kind], row: Mapping[str, Any]) -> Kind:
    """A value of this dataclass from what `asdict` made of it and JSON kept. Fields that are no more are left out."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in row.items() if name in hints})


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _value(next(one for one in arguments if one is not NoneType), value)
    if origin is tuple:
        kinds = repeat(arguments[0]) if arguments[-1] is Ellipsis else iter(arguments)
        return tuple(_value(next(kinds), item) for item in value)
    return restored(hint, value) if isinstance(hint, type) and is_dataclass(hint) else value
