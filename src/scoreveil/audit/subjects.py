"""What is audited: scores of members and non-members, given as they are or taken from a model.

Checks come first, so that nothing is fitted on records that are not what they should be.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.audit.records import Floats, Integers, Membership, Records
from scoreveil.mechanisms.scores import SUM_TOLERANCE, check_layout, check_rows

FEWEST = 100  # members and non-members each, before any split: fewer cannot tell an attack from luck
REFERENCE_SHARE = 0.2  # of the non-members, held out as the public reference

Predict = Callable[[Any], Any]  # inputs -> (n, k) scores


@dataclass(frozen=True, eq=False)
class Subject:
    """A target, a shadow to fit attacks on, and a reference; `notes` are what the reader should know about them."""

    target: Membership
    shadow: Membership
    reference: Records
    notes: tuple[str, ...] = ()


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


def from_model(
    predict: Predict,
    members: tuple[Any, Integers],
    nonmembers: tuple[Any, Integers],
    auxiliary: tuple[Any, Integers] | None = None,
    architecture: Callable[[], Any] | None = None,
    seed: int = 0,
) -> Subject:
    """A subject from a model and its data. With auxiliary data and an architecture (a factory of something with `fit`
    and `predict_proba`), a shadow is trained on half of that data, and the other half is its non-members."""
    target = [checked(n, predict(x), y) for n, (x, y) in (("members", members), ("nonmembers", nonmembers))]
    shadow = None
    if auxiliary is not None:
        x, y = auxiliary
        order = np.random.default_rng(seed).permutation(len(y))
        inside, outside = order[: len(y) // 2], order[len(y) // 2 :]
        if architecture is None:
            raise ValueError("Expected an architecture to train the shadow with, got auxiliary data alone.")
        model = architecture()
        if not (hasattr(model, "fit") and hasattr(model, "predict_proba")):
            raise ValueError("Expected the architecture to make a model with fit and predict_proba, got another.")
        model.fit(x[inside], y[inside])
        shadow = (
            checked("shadow members", model.predict_proba(x[inside]), y[inside]),
            checked("shadow nonmembers", model.predict_proba(x[outside]), y[outside]),
        )
    return from_scores(target[0], target[1], shadow, seed=seed)


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
        predict = load_object(path)
        if not callable(predict):
            raise ValueError(f"Expected something to call, got {type(predict).__name__}: {path!r}.")
        return predict  # type: ignore[no-any-return]
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
