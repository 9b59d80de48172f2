"""What is audited: scores of members and non-members, given as they are or taken from a model.

Checks come first, so that nothing is fitted on records that are not what they should be.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil import onnx_session, storage
from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.images import Images, variants
from scoreveil.audit.data.records import Membership, Records, joined
from scoreveil.audit.defenses.interface import Given
from scoreveil.audit.defenses.ours import fitted_veil, studied_veil
from scoreveil.audit.study.pictures import Pictures
from scoreveil.audit.study.shadows import ManyShadows, Progress, many_shadows, silent
from scoreveil.files.records import Scored, read, read_sides
from scoreveil.fitting.decision import Evidence
from scoreveil.fitting.evidence import evidence, may_be_fitted_on, options_of
from scoreveil.fitting.records import doubts
from scoreveil.shapes import VECTORS, Shape
from scoreveil.veil import Veil

FOLDING = 2  # the seed of folds
FEWEST = 100  # members and non-members each, before any split: fewer cannot tell an attack from luck
REFERENCE_SHARE = 0.2  # of the non-members, held out as the public reference

Predict = Callable[[Any], Any]  # inputs -> (n, k) scores
Data = tuple[Any, Integers]  # inputs, and their true classes
Factory = Callable[[], Any]  # makes something with `fit` and `predict_proba`


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited.

    target, shadow  members and non-members of the model, and of a shadow to fit attacks on
    reference       held-out records that are neither attacked nor protected
    notes           what the reader should know about them
    many            the target's records under many shadow models, for LiRA and its kin
    pictures        what the inversion attack draws, where the records are pictures
    fitted_on       members that a defense is fitted on, where they are not those under attack
    given_records   all members and non-members that the audit was given, in that order, to fit a veil for use on
    served          these as they are served, where that is not as vectors
    doubts          what looks mixed up
    veil            a fitted one that was given, to be attacked in place of veils that are fitted here
    """

    target: Membership
    shadow: Membership
    reference: Records
    notes: tuple[str, ...] = ()
    many: ManyShadows | None = None
    pictures: Pictures | None = None
    title: str = ""
    fitted_on: Records | None = None
    given_records: Membership | None = None
    served: tuple[Scored, Scored] | None = None
    doubts: tuple[str, ...] = ()
    veil: Veil | None = None
    fitted: dict[float | None, Veil] = field(default_factory=dict, repr=False)  # veils for use, by ε

    def __post_init__(self) -> None:
        """Every record has a fold, given by whoever made the subject or here."""
        rng = np.random.default_rng(FOLDING)
        object.__setattr__(self, "target", Membership(*(each.in_folds(rng) for each in self.sides[:2])))

    @property
    def everyone(self) -> Membership:
        """All members and non-members there are, in the order in which they were given."""
        return self.target if self.given_records is None else self.given_records

    def given(self, seed: int, epsilon: float | None = None) -> Given:
        """What a defender has. It knows its own training set; its non-members are the reference, not the records under
        attack."""
        members = self.target.members if self.fitted_on is None else self.fitted_on
        everyone = self.everyone if self.fitted_on is None else None
        return Given(Membership(members, self.reference), self.reference, seed, epsilon, everyone, self.veil)

    def for_use(self, epsilon: float | None) -> Veil:
        """The veil that was given; else one that is fitted on all records, as they are served, for whoever takes it."""
        if self.veil is not None:
            return self.veil
        if epsilon not in self.fitted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a fit would warn of is part of the evidence
                self.fitted[epsilon] = fitted_veil(*self._as_served(), epsilon=epsilon)
        return self.fitted[epsilon]

    @property
    def shape(self) -> Shape:
        """How scores are served."""
        return VECTORS if self.served is None else self.served[1].shape

    def _as_served(self) -> tuple[Membership, Shape]:
        """All records as they are served, and their shape."""
        if self.served is None:
            return self.everyone, self.shape
        return Membership(*(Records(*side.given) for side in self.served)), self.shape

    def evidence(self, epsilon: float | None) -> Evidence:
        """What there is to go by about the fitted veil: measured as `scoreveil fit` measures it."""
        known, shape = self._as_served()
        veil = self.veil or studied_veil(known, epsilon, shape)  # the same seed gives the same numbers
        others, inside = known.nonmembers, known.members
        labelled = others.labels is not None and inside.labels is not None
        options: dict[str, Any] = {"epsilon": epsilon, "shape": shape}
        may_know = self.veil is not None and may_be_fitted_on(veil, len(inside), len(others))
        found = evidence(
            veil, others.scores, others.labels, inside.scores, inside.labels if labelled else None,
            held_out=self.veil is not None and not may_know,
            **(options if self.veil is None else {**options_of(veil), **options}),
        )  # fmt: skip
        return replace(found, in_sample=may_know)

    def for_fitting(self) -> "Subject":
        """The subject for a defense that answers about others than these records, and is fitted on half of them: what
        redraws pictures, or infers a column."""
        members = self.target.members
        known, attacked = np.array_split(np.random.default_rng(0).permutation(len(members)), 2)
        kept = np.concatenate([np.sort(attacked), len(members) + np.arange(len(self.target.nonmembers))])
        return replace(
            self,
            target=Membership(members.take(np.sort(attacked)), self.target.nonmembers),
            many=None if self.many is None else self.many.take(kept),
            fitted_on=members.take(np.sort(known)),
        )

    @property
    def sides(self) -> tuple[Records, ...]:
        """Members and non-members of the target, then of the shadow."""
        return self.target.members, self.target.nonmembers, self.shadow.members, self.shadow.nonmembers

    @cached_property
    def digest(self) -> str:
        """The hash of all records."""
        known = [] if self.fitted_on is None else [self.fitted_on]
        veil = "" if self.veil is None else storage.digest(self.veil.mechanism).hex()
        return "".join(r.digest for r in (*self.sides, self.reference, *known)) + veil

    @cached_property
    def digest_with_many(self) -> str:
        return self.digest if self.many is None else self.digest + self.many.digest


def checked(name: str, scores: Any, labels: Any = None) -> Records:
    """Records of score vectors and labels, or a ValueError that names what is wrong with which."""
    found = read(scores, labels, name)
    return Records(found.scores, found.labels)


def from_given(
    given: Mapping[str, tuple[Any, Any]], columns: str | None = None, seed: int = 0, shape: Shape = VECTORS
) -> Subject:
    """A subject from scores and labels of any kind, as `files.records` reads them.

    One column is attacked as the vectors that it stands for. Of many labels the records are what is served,
    (n, labels), with as many true labels.

    Args:
        given: Scores and labels by name, None for what is not there: "members" and "nonmembers"; "shadow members" and
            "shadow nonmembers", which may be absent; "reference", likewise.
        columns: Of tables: the columns of the scores.
        seed: Of the split.
        shape: How scores are served, where not as vectors.

    Raises:
        ValueError: Records are missing on one side, or are not scores or labels.
    """
    if shape.why_not_audited:
        raise ValueError(shape.why_not_audited)
    there = {name: each for name, each in given.items() if each[0] is not None}
    for name, (scores, labels) in given.items():
        if scores is None and (labels is not None or name in ("members", "nonmembers")):
            raise ValueError(
                f"Expected scores of {name}, got {'their labels alone' if labels is not None else 'none'}."
            )
    sides = [name for name in there if name != "reference"]
    if len(sides) == 3:
        raise ValueError(f"Expected both sides of a shadow, members and nonmembers, got {sides[-1]} alone.")
    labelled = [name for name in sides if there[name][1] is not None]
    if labelled and labelled != sides:
        without = ", ".join(name for name in sides if name not in labelled)
        raise ValueError(f"Expected labels for all records, or for none; got none for {without}.")
    scored, note = read_sides(there, columns, shape)
    records = {
        name: Records(*each.given) if shape.has_labels else Records(each.scores, each.labels)
        for name, each in scored.items()
    }
    shadow = (records[sides[2]], records[sides[3]]) if len(sides) == 4 else None
    subject = from_scores(records["members"], records["nonmembers"], shadow, records.get("reference"), seed)
    if not shape.has_labels and (threshold := scored["members"].threshold) != 0.5:
        note += f" The threshold {threshold:g} is moved to one half, and what scores are worth is measured there."
    served = None if shape.is_plain else (scored["members"], scored["nonmembers"])
    notes = (*subject.notes, *([note.strip()] if note else []))
    return replace(subject, notes=notes, served=served, doubts=tuple(doubts(scored)))


def from_scores(
    members: Records,
    nonmembers: Records,
    shadow: tuple[Records, Records] | None = None,
    reference: Records | None = None,
    seed: int = 0,
) -> Subject:
    """A subject from scores. Without a shadow, attacks are fitted on one half of the records and tested on the other:
    an attacker who knows the membership of half of them. Without a reference, a part of the non-members is held out."""
    every = {"members": members, "nonmembers": nonmembers}
    if shadow is not None:
        every |= {"shadow members": shadow[0], "shadow nonmembers": shadow[1]}
    classes = {r.scores.shape[1] for r in every.values()}
    if len(classes) > 1:
        raise ValueError(f"Expected the same number of classes everywhere, got {sorted(classes)}.")
    for name, records in every.items():
        if len(records) < FEWEST:
            raise ValueError(f"Expected at least {FEWEST} {name}, got {len(records)}.")
    notes, folding = overlap_notes(members, nonmembers), np.random.default_rng(FOLDING)
    members, nonmembers = members.in_folds(folding), nonmembers.in_folds(folding)
    whole, rng = Membership(members, nonmembers), np.random.default_rng(seed)
    if reference is None:
        shuffled = nonmembers.take(rng.permutation(len(nonmembers)))
        cut = int(len(nonmembers) * REFERENCE_SHARE)
        reference, nonmembers = shuffled.take(slice(cut)), shuffled.take(slice(cut, None))
    target = Membership(members, nonmembers)
    if shadow is not None:
        return Subject(target, Membership(*shadow), reference, notes, given_records=whole)
    known, attacked = target.halves(rng)
    notes += ("No shadow was given: attacks are fitted on one half of the records and tested on the other half.",)
    return Subject(attacked, known, reference, notes, given_records=whole)


def overlap_notes(members: Records, nonmembers: Records) -> tuple[str, ...]:
    """A warning where records stand on both sides."""
    both = {row.tobytes() for row in members.scores} & {row.tobytes() for row in nonmembers.scores}
    rows = (np.frombuffer(row) for row in both)
    # saturated rows coincide by themselves
    distinct = [row for row in rows if row.max() < 1 and (row > 0).sum() > 1]
    shared = len(distinct) / min(len(members), len(nonmembers))
    if shared > 0.01:
        return (f"{shared:.0%} of the score vectors stand among members and non-members alike: do the sets overlap?",)
    return ()


# From a model


@dataclass(frozen=True)
class ModelOptions:
    """What an audit from a model does beyond asking it for scores.

    architecture  a factory of models to train as shadows
    shadows       how many of them to train on halves of the records, for LiRA and its kin; 0 for none
    inversion     whether to redraw pictures from their scores
    """

    architecture: Factory | None = None
    shadows: int = 0
    inversion: bool = False
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        if self.shadows and self.architecture is None:
            raise ValueError(f"{self.shadows} shadows need an architecture to be trained with: give one.")
        if self.shadows and not self.shadows >= 4:
            raise ValueError(f"Expected at least 4 shadows, two with and two without each record, got {self.shadows}.")


def from_model(
    predict: Predict,
    members: Data,
    nonmembers: Data,
    auxiliary: Data | None = None,
    options: ModelOptions | None = None,
    progress: Progress = silent,
) -> Subject:
    """A subject from a model and its data.

    Args:
        predict: The model: inputs to scores.
        members: Inputs that it was trained on, with their labels.
        nonmembers: Inputs that it was not trained on. A part of them is held out as the public reference.
        auxiliary: The attacker's own data. With an architecture, a shadow is trained on half of it, and the other half
            is its non-members; pictures among it serve the inversion attack.
        options: What else to do.
        progress: Told about each shadow model.
    """
    options = options or ModelOptions()
    rng = np.random.default_rng(options.seed)
    reference, others, order = held_out(nonmembers, rng)
    shadow = None
    if auxiliary is not None and options.architecture is not None:
        halves = [part(auxiliary, half) for half in np.array_split(rng.permutation(len(auxiliary[1])), 2)]
        ask = fitted(options.architecture, *halves[0]).predict_proba
        shadow = _records("shadow members", ask, halves[0]), _records("shadow nonmembers", ask, halves[1])
    elif auxiliary is not None and not options.inversion:
        raise ValueError("Auxiliary data alone trains no shadow: give an architecture too.")
    folding = np.random.default_rng(FOLDING)
    inside, outside, public = (
        _records(name, predict, data).in_folds(folding)
        for name, data in (("members", members), ("nonmembers", others), ("reference", reference))
    )
    subject = from_scores(inside, outside, shadow, public, options.seed)
    as_given = joined([public, outside]).take(np.argsort(order))
    mixed_up = doubts({"nonmembers": _scored(as_given), "members": _scored(inside)})
    subject = replace(subject, given_records=Membership(inside, as_given), doubts=tuple(mixed_up))
    if options.shadows and options.architecture is not None:
        if shadow is None:
            raise ValueError(f"{options.shadows} shadows need auxiliary data for a shadow beside them: give some.")
        pool = np.concatenate([members[0], others[0]]), np.concatenate([members[1], others[1]])
        train = partial(_train_shadow, options.architecture, pool, reference[0])
        count, seed, jobs = options.shadows, options.seed, options.jobs
        subject = replace(
            subject, many=many_shadows(train, len(pool[1]), subject.reference, count, seed, jobs, progress)
        )
    if options.inversion:
        if auxiliary is None:
            raise ValueError("The inversion attack learns from auxiliary pictures: give some.")
        asked, drawn = (_images(data, subject.target.classes) for data in (auxiliary, others))
        scores = [_records(name, predict, data).scores for name, data in (("auxiliary", auxiliary), ("drawn", others))]
        subject = replace(subject, pictures=Pictures(asked, scores[0], drawn, scores[1]))
    return subject


def held_out(nonmembers: Data, rng: np.random.Generator) -> tuple[Data, Data, Integers]:
    """The part of the non-members that is the public reference, the others, and their rows in this order."""
    order = rng.permutation(len(nonmembers[1]))
    cut = int(len(order) * REFERENCE_SHARE)
    return part(nonmembers, order[:cut]), part(nonmembers, order[cut:]), order


def _train_shadow(
    architecture: Factory, pool: Data, population: Any, index: Integers, seed: int
) -> tuple[Floats, Floats]:
    """Train one shadow on some of the pool; its scores of all the pool and of a population."""
    np.random.seed(seed)  # noqa: NPY002 - what a model of others draws from, if it takes no seed of ours
    model = fitted(architecture, *part(pool, index))
    return np.asarray(model.predict_proba(pool[0])), np.asarray(model.predict_proba(population))


def fitted(architecture: Factory, x: Any, y: Integers) -> Any:
    """A model of this architecture, trained."""
    model = architecture()
    if not (hasattr(model, "fit") and hasattr(model, "predict_proba")):
        kind = type(model).__name__
        raise ValueError(f"Expected the architecture to make a model with fit and predict_proba, got {kind}.")
    model.fit(x, y)
    return model


def part(data: Data, index: Integers) -> Data:
    """Some of the inputs, with their labels."""
    return data[0][index], data[1][index]


def _records(name: str, predict: Predict, data: Data) -> Records:
    """Scores and labels, and of pictures the labels of moved and mirrored copies."""
    x, y = data
    records = checked(name, predict(x), y)
    if np.ndim(x) != 4:
        return records
    copies = [np.asarray(predict(copy)).argmax(axis=1) for copy in variants(x)]
    return replace(records, variants=np.stack(copies, axis=1))


def _scored(records: Records) -> Scored:
    return Scored(records.scores, records.labels)


def _images(data: Data, classes: int) -> Images:
    x, y = data
    if np.ndim(x) != 4:
        raise ValueError(f"Expected pictures (n, channels, height, width) for the inversion attack, got {np.shape(x)}.")
    return Images(np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64), "pictures", classes)


def load_object(path: str) -> Any:
    """`package.module:name`, also from the folder that the command is run in."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"Expected package.module:name, got {path!r}.")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"Expected a module that can be imported, got {module!r} ({error}).") from None
    except AttributeError:
        raise ValueError(f"Module {module!r} has no {name!r}: check the spelling.") from None


def load_predict(path: str) -> Predict:
    """A model's scores: an .onnx file, or `package.module:predict_proba`."""
    if path.endswith(".onnx"):
        return _onnx_predict(path)
    predict: Predict = load_object(path)
    if not callable(predict):
        raise ValueError(f"Expected something to call, got {type(predict).__name__}: {path!r}.")
    return predict


def _onnx_predict(path: str) -> Predict:
    """The last floating output of an .onnx file, asked some inputs at a time."""
    if not Path(path).exists():
        raise ValueError(f"There is no .onnx file at {path}.")
    floats = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
    session = onnx_session.open_session(path)
    given, scored = session.get_inputs()[0], onnx_session.score_outputs(session)
    if given.type not in floats:
        raise ValueError(f"Expected an .onnx model with a floating input, got {given.type}.")
    if not scored:
        found = ", ".join(output.type for output in session.get_outputs())
        raise ValueError(f"Expected a tensor of scores among the .onnx outputs, got {found}: export without zipmap.")

    def predict(x: Any) -> Floats:
        blocks = (np.asarray(x[i : i + 1024], dtype=floats[given.type]) for i in range(0, len(x), 1024))
        return np.concatenate([session.run(scored[-1:], {given.name: block})[0] for block in blocks])

    return predict
