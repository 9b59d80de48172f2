"""What is audited: scores of members and non-members, given as they are or taken from a model.

Checks come first, so that nothing is fitted on records that are not what they should be.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.audit.data.images import Images, variants
from scoreveil.audit.data.records import Floats, Integers, Membership, Records
from scoreveil.audit.defenses.interface import Given
from scoreveil.audit.study.pictures import Pictures
from scoreveil.audit.study.shadows import ManyShadows, many_shadows
from scoreveil.mechanisms.scores import SUM_TOLERANCE, check_layout, check_rows

FEWEST = 100  # members and non-members each, before any split: fewer cannot tell an attack from luck
REFERENCE_SHARE = 0.2  # of the non-members, held out as the public reference

Predict = Callable[[Any], Any]  # inputs -> (n, k) scores
Setting = tuple[str, float | None]  # a defense and its ε


def name_of(setting: Setting) -> str:
    """`published ε=0.5`."""
    name, epsilon = setting
    return name if epsilon is None else f"{name} ε={epsilon:g}"


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited.

    target, shadow  members and non-members of the model, and of a shadow to fit attacks on
    reference       held-out records that are neither attacked nor protected
    many            the target's records under many shadow models, for LiRA and RMIA
    pictures        what the inversion attack draws, where the records are pictures
    notes           what the reader should know about them
    """

    target: Membership
    shadow: Membership
    reference: Records
    notes: tuple[str, ...] = ()
    many: ManyShadows | None = None
    pictures: Pictures | None = None
    title: str = ""

    def given(self, seed: int, epsilon: float | None = None) -> Given:
        """What a defender has. It knows its own training set; its non-members are the reference, not the records under
        attack."""
        return Given(Membership(self.target.members, self.reference), self.reference, seed, epsilon)

    @cached_property
    def digest(self) -> str:
        """The hash of all records."""
        sides = (self.target.members, self.target.nonmembers, self.shadow.members, self.shadow.nonmembers)
        return "".join(digest(records) for records in (*sides, self.reference))

    @cached_property
    def digest_with_many(self) -> str:
        return self.digest if self.many is None else self.digest + self.many.digest


def digest(records: Records) -> str:
    """The hash of records: of their scores, labels and variants."""
    state = hashlib.sha256()
    for array in (records.scores, records.labels, records.variants):
        state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def checked(name: str, scores: Any, labels: Any = None) -> Records:
    """Records of score vectors and labels, or a ValueError that names what is wrong with which."""
    scores = np.asarray(scores)
    try:
        check_layout(scores)
        rows = np.atleast_2d(scores).astype(np.float64)
        if np.any(rows < 0) or np.median(np.abs(rows.sum(axis=1) - 1)) > SUM_TOLERANCE:
            raise ValueError("expected scores that sum to 1, got what looks like logits (apply softmax first)")
        check_rows(rows)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if labels is None:
        return Records(rows)
    labels = np.asarray(labels)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(f"{name}: expected {len(rows)} labels, one for each row of scores, got shape {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer):
        if not np.all(labels == np.rint(labels)):
            raise ValueError(f"{name}: expected whole-number labels, got dtype {labels.dtype}.")
        labels = labels.astype(np.int64)
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= rows.shape[1]:
        raise ValueError(
            f"{name}: expected labels from 0 to {rows.shape[1] - 1}, got {labels.min()} to {labels.max()}."
        )
    return Records(rows, labels.astype(np.int64))


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
    notes = overlap_notes(members, nonmembers)
    rng = np.random.default_rng(seed)
    if reference is None:
        shuffled = nonmembers.take(rng.permutation(len(nonmembers)))
        cut = int(len(nonmembers) * REFERENCE_SHARE)
        reference, nonmembers = shuffled.take(slice(cut)), shuffled.take(slice(cut, None))
    target = Membership(members, nonmembers)
    if shadow is not None:
        return Subject(target, Membership(*shadow), reference, notes)
    known, attacked = target.halves(rng)
    notes += ("No shadow was given: attacks are fitted on one half of the records and tested on the other half.",)
    return Subject(attacked, known, reference, notes)


def overlap_notes(members: Records, nonmembers: Records) -> tuple[str, ...]:
    """A warning where records stand on both sides."""
    both = {row.tobytes() for row in members.scores} & {row.tobytes() for row in nonmembers.scores}
    distinct = [row for row in both if np.frombuffer(row).max() < 1]  # saturated rows coincide by themselves
    shared = len(distinct) / min(len(members), len(nonmembers))
    if len(members) == len(nonmembers) and np.array_equal(members.scores, nonmembers.scores):
        return ("Members and non-members are the same records: every attack will look harmless.",)
    if shared > 0.01:
        return (f"{shared:.0%} of the score vectors stand among members and non-members alike: do the sets overlap?",)
    return ()


# From a model

Data = tuple[Any, Integers]  # inputs, and their true classes
Factory = Callable[[], Any]  # makes something with `fit` and `predict_proba`


@dataclass(frozen=True)
class Asked:
    """What an audit from a model does beyond asking it for scores.

    architecture  a factory of models to train as shadows
    shadows       how many of them to train on halves of the records, for LiRA and RMIA; 0 for none
    inversion     whether to redraw pictures from their scores
    """

    architecture: Factory | None = None
    shadows: int = 0
    inversion: bool = False
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        if self.shadows and self.architecture is None:
            raise ValueError("Expected an architecture to train the shadows with, got none.")
        if self.shadows and not self.shadows >= 4:
            raise ValueError(f"Expected at least 4 shadows, two with and two without each record, got {self.shadows}.")


NOTHING_MORE = Asked()


def from_model(
    predict: Predict,
    members: Data,
    nonmembers: Data,
    auxiliary: Data | None = None,
    asked: Asked = NOTHING_MORE,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Subject:
    """A subject from a model and its data. With auxiliary data and an architecture, a shadow is trained on half of
    that data, and the other half is its non-members; pictures among it serve the inversion attack."""
    rng = np.random.default_rng(asked.seed)
    order = rng.permutation(len(nonmembers[1]))
    cut = int(len(order) * REFERENCE_SHARE)
    reference, others = (_part(nonmembers, index) for index in (order[:cut], order[cut:]))
    shadow = None
    if auxiliary is not None and asked.architecture is not None:
        inside, outside = (_part(auxiliary, half) for half in np.array_split(rng.permutation(len(auxiliary[1])), 2))
        model = fitted(asked.architecture, *inside)
        ask = model.predict_proba
        shadow = _records("shadow members", ask, inside), _records("shadow nonmembers", ask, outside)
    elif auxiliary is not None and not asked.inversion:
        raise ValueError("Expected an architecture to train the shadow with, got auxiliary data alone.")
    subject = from_scores(
        _records("members", predict, members),
        _records("nonmembers", predict, others),
        shadow,
        _records("reference", predict, reference),
        asked.seed,
    )
    if asked.shadows and asked.architecture is not None:
        if shadow is None:
            raise ValueError("Expected auxiliary data for a shadow beside the many, got none.")
        pool = tuple(np.concatenate([a, b]) for a, b in zip(members, others, strict=True))
        train = _ShadowOf(asked.architecture, pool, reference[0])
        many = many_shadows(train, len(pool[1]), subject.reference, asked.shadows, asked.seed, asked.jobs, progress)
        subject = replace(subject, many=many)
    if asked.inversion:
        if auxiliary is None:
            raise ValueError("Expected auxiliary pictures for the inversion attack, got none.")
        classes = subject.target.classes
        asked_of, drawn = (_images(data, classes) for data in (auxiliary, others))
        scores = (_records(name, predict, data).scores for name, data in (("auxiliary", auxiliary), ("drawn", others)))
        subject = replace(subject, pictures=Pictures(asked_of, next(scores), drawn, next(scores)))
    return subject


@dataclass(frozen=True, eq=False)
class _ShadowOf:
    """Train one shadow on some of the pool; its scores of all the pool and of a population."""

    architecture: Factory
    pool: Any
    population: Any

    def __call__(self, index: Integers, seed: int) -> tuple[Floats, Floats]:
        x, y = self.pool
        np.random.seed(seed)  # noqa: NPY002 - what a model of others draws from, if it takes no seed of ours
        model = fitted(self.architecture, x[index], y[index])
        return np.asarray(model.predict_proba(x)), np.asarray(model.predict_proba(self.population))


def fitted(architecture: Factory, x: Any, y: Integers) -> Any:
    """A model of this architecture, trained."""
    model = architecture()
    if not (hasattr(model, "fit") and hasattr(model, "predict_proba")):
        raise ValueError("Expected the architecture to make a model with fit and predict_proba, got another.")
    model.fit(x, y)
    return model


def _part(data: Data, index: Integers) -> Data:
    return data[0][index], data[1][index]


def _records(name: str, predict: Predict, data: Data) -> Records:
    """Scores and labels, and of pictures the labels of moved and mirrored copies."""
    x, y = data
    records = checked(name, predict(x), y)
    if np.ndim(x) != 4:
        return records
    copies = [np.asarray(predict(copy)).argmax(axis=1) for copy in variants(x)]
    return replace(records, variants=np.stack(copies, axis=1))


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
        raise ValueError(f"Expected {module!r} to have {name!r}, got none.") from None


def load_predict(path: str) -> Predict:
    """A model's scores: an .onnx file, or `package.module:predict_proba`."""
    if not path.endswith(".onnx"):
        predict: Predict = load_object(path)
        if not callable(predict):
            raise ValueError(f"Expected something to call, got {type(predict).__name__}: {path!r}.")
        return predict
    if not Path(path).exists():
        raise ValueError(f"Expected an .onnx file, got none: {path}.")
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError("Expected onnxruntime for an .onnx model, got none: pip install 'scoreveil[onnx]'.") from None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}.get(given.type)
    if kind is None:
        raise ValueError(f"Expected an .onnx model with a floating input, got {given.type}.")
    scored = [o for o in session.get_outputs() if o.type in ("tensor(float)", "tensor(double)")]
    if not scored:
        raise ValueError("Expected an .onnx model with a tensor of scores among its outputs, got none (zipmap?).")

    def predict_onnx(x: Any) -> Floats:
        parts = [
            session.run([scored[-1].name], {given.name: np.asarray(x[i : i + 1024], dtype=kind)})[0]
            for i in range(0, len(x), 1024)
        ]
        return np.concatenate(parts)

    return predict_onnx
