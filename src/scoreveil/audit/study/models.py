"""A model that is audited: asked for scores, and trained again as shadows.

model = Model("package.module:predict_proba", architecture="package.module:factory", auxiliary=(x, y))
subject = from_model(model, members, nonmembers)
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scoreveil import onnx_session
from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.images import Images, variants
from scoreveil.audit.data.records import Membership, Records, joined
from scoreveil.audit.study.pictures import Pictures
from scoreveil.audit.study.shadows import Progress, shadow_models, silent
from scoreveil.audit.study.subjects import FOLDING, REFERENCE_SHARE, SIDES, Subject, checked, from_scores
from scoreveil.files.records import Scored
from scoreveil.fitting.records import doubts

BLOCK = 1024  # inputs that an .onnx model is asked about at a time

Predict = Callable[[Any], Any]  # inputs -> (n, k) scores
Data = tuple[Any, Integers]  # inputs, and their true classes


class Classifier(Protocol):
    """What a factory makes."""

    def fit(self, x: Any, y: Integers) -> object: ...
    def predict_proba(self, x: Any) -> Any: ...


Factory = Callable[[], Classifier]


@dataclass(frozen=True, eq=False)
class Model:
    """A model, and what an audit does with it beyond asking for scores.

    predict       a model with predict_proba, a function from inputs to scores, an .onnx file, or "package.module:name"
    architecture  makes a model like it, not trained, with fit and predict_proba; or "package.module:name"
    auxiliary     the attacker's own inputs and classes: with an architecture, to train a shadow on half of them
    shadows       how many shadows to train on halves of the records, for LiRA and its kin; 16 or more serve best
    inversion     whether to redraw pictures from their scores, learnt from auxiliary ones
    boundary      how many members, and how many others, the label's boundary is looked for around, 2,500 questions each
    sensitive     a column of the table that is inferred, by its name or number
    canaries      how many records are put into a training set by the toss of a coin, to prove an ε
    neighbours    how many members, and how many others, are asked around, with smoothing and without; of a table 300
    columns       the names of a table's columns
    """

    predict: Any
    architecture: Factory | str | None = None
    auxiliary: Data | None = None
    shadows: int = 0
    inversion: bool = False
    boundary: int = 0
    sensitive: str | int | None = None
    canaries: int = 0
    neighbours: int | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        around, known = self.neighbours or 0, self.auxiliary is not None
        refusals = (
            (self.shadows and self.architecture is None, "shadows need an architecture to be trained with: give one."),
            (0 < self.shadows < 4, "Expected at least 4 shadows, two with and two without each record."),
            (self.shadows and not known, "Many shadows need auxiliary data for a shadow beside them: give some."),
            (self.inversion and not known, "The inversion attack learns from auxiliary pictures: give some."),
            (
                known and not (self.architecture or self.inversion or self.sensitive is not None),
                "Auxiliary data alone trains no shadow: give an architecture too.",
            ),
            (self.boundary and self.boundary < 10, "The boundary attack takes 10 or more records, or 0 for none."),
            (around and around < 50, "Asking around records takes 50 or more records, or 0 for none."),
            (self.canaries < 0, "Expected 0 or more canaries."),
            (self.canaries and self.architecture is None, "canaries train a model with them: give an architecture."),
        )
        for is_wrong, message in refusals:
            if is_wrong:
                raise ValueError(message)

    @cached_property
    def ask(self) -> Predict:
        """Inputs to scores."""
        return load_predict(self.predict)

    @cached_property
    def factory(self) -> Factory:
        """What makes a model like it."""
        if isinstance(self.architecture, str):
            made: Factory = load_object(self.architecture)
            return made
        assert self.architecture is not None, "refused above where it is needed"
        return self.architecture


def from_model(model: Model, members: Data, nonmembers: Data, seed: int = 0) -> Subject:
    """A subject from a model and its data.

    Args:
        model: The model, asked once about each record.
        members: Inputs that it was trained on, with their labels.
        nonmembers: Inputs that it was not trained on. A part of them is held out as the public reference.
        seed: Of the parts.
    """
    rng = np.random.default_rng(seed)
    reference, others, order = held_out(nonmembers, rng)
    shadow = None
    if model.auxiliary is not None and model.architecture is not None:
        size = len(model.auxiliary[1])
        inside, outside = (part(model.auxiliary, half) for half in np.array_split(rng.permutation(size), 2))
        ask = trained(model.factory, *inside).predict_proba
        shadow = _records("shadow members", ask, inside), _records("shadow nonmembers", ask, outside)
    folding = np.random.default_rng(FOLDING)
    own, unseen, public = (
        _records(name, model.ask, data).in_folds(folding)
        for name, data in (("members", members), ("nonmembers", others), ("reference", reference))
    )
    subject = from_scores(own, unseen, shadow, public, seed)
    everyone = Membership(own, joined([public, unseen]).take(np.argsort(order)))
    scored = {name: Scored(side.scores, side.labels) for name, side in zip(SIDES, everyone, strict=True)}
    return replace(subject, given_records=everyone, doubts=tuple(doubts(scored)))


def with_extras(
    subject: Subject,
    model: Model,
    members: Data,
    nonmembers: Data,
    seed: int = 0,
    jobs: int = 2,
    progress: Progress = silent,
) -> Subject:
    """The subject that `from_model` made with the same seed, with many shadows and pictures where they are wanted."""
    reference, others, _ = held_out(nonmembers, np.random.default_rng(seed))
    if model.shadows:
        pool = np.concatenate([members[0], others[0]]), np.concatenate([members[1], others[1]])
        train = partial(_train_shadow, model.factory, pool, reference[0])
        many = shadow_models(train, len(pool[1]), subject.reference, model.shadows, seed, jobs, progress)
        subject = replace(subject, many=many)
    if model.inversion and model.auxiliary is not None:
        asked, drawn = (_images(data, subject.target.classes) for data in (model.auxiliary, others))
        known, unknown = (
            _records(name, model.ask, data).scores for name, data in (("auxiliary", model.auxiliary), ("drawn", others))
        )
        subject = replace(subject, pictures=Pictures(asked, known, drawn, unknown))
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
    model = trained(architecture, *part(pool, index))
    return np.asarray(model.predict_proba(pool[0])), np.asarray(model.predict_proba(population))


def trained(architecture: Factory, x: Any, y: Integers) -> Classifier:
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


def load_predict(model: Any) -> Predict:
    """A model's scores: of an .onnx file, of `package.module:name`, or of what was given."""
    given = model
    if isinstance(model, str | Path):
        if str(model).endswith(".onnx"):
            return _onnx_predict(str(model))
        given = load_object(str(model))
    predict: Predict = getattr(given, "predict_proba", given)
    if not callable(predict):
        raise ValueError(f"Expected a model with predict_proba, or something to call, got {type(given).__name__}.")
    return predict


def _onnx_predict(path: str) -> Predict:
    """The last floating output of an .onnx file, asked some inputs at a time."""
    if not Path(path).exists():
        raise ValueError(f"There is no .onnx file at {path}.")
    floats = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
    session = onnx_session.open_session(path)
    source, scored = session.get_inputs()[0], onnx_session.score_outputs(session)
    if source.type not in floats:
        raise ValueError(f"Expected an .onnx model with a floating input, got {source.type}.")
    if not scored:
        types = ", ".join(output.type for output in session.get_outputs())
        raise ValueError(f"Expected a tensor of scores among the .onnx outputs, got {types}: export without zipmap.")

    def predict(x: Any) -> Floats:
        blocks = (np.asarray(x[i : i + BLOCK], dtype=floats[source.type]) for i in range(0, len(x), BLOCK))
        return np.concatenate([session.run(scored[-1:], {source.name: block})[0] for block in blocks])

    return predict
