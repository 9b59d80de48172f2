"""The object users hold.

    from scoreveil import Veil

    veil = Veil(epsilon=2.0)
    z = veil(scores)        # (k,) or (n, k); numpy in, numpy out; torch in, torch out; same dtype, device and shape
    veil.guarantee          # what is promised

Always true, for every ε, mechanism and dtype: rows are finite, non-negative and sum to 1; the class that
`numpy.argmax` picks stays; no two kept classes are inverted, and no other class passes them. Anything that is not a
batch of score vectors raises ValueError; raw scores are never returned.

A veil is a mechanism (`mechanisms/`) plus where draws come from (`randomness.py`) plus how it runs (`blocks.py`).
"""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import numpy as np

from scoreveil import blocks, shapes, storage
from scoreveil.arrays import Rows
from scoreveil.mechanisms import isotonic, loading, messages, per_label, published, regions  # noqa: F401  (imported, they can be loaded by name)
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism, make
from scoreveil.mechanisms.reference import Reference
from scoreveil.mechanisms.scores import Array, namespace, to_numpy
from scoreveil.randomness import KeyedDraws
from scoreveil.secret_file import Secret
from scoreveil.shapes import VECTORS, Shape
from scoreveil.smoothing import Smoothing
from scoreveil.storage import Stored
from scoreveil.tags import magnitude_tags, of_places

Scores = TypeVar("Scores", bound=Array)
GivenSecret = bytes | str | os.PathLike[str] | Secret

TABLES = ("pandas", "polars", "pyarrow")  # libraries that have them
NUMPY_DTYPES = ("float16", "float32", "float64")
NOTHING = 20.0  # an ε of a whole answer from which on it promises nothing that anyone could tell


class MechanismOptions(TypedDict, total=False):
    """The options of the mechanisms that come with Scoreveil; each is described in its mechanism's class."""

    keep: isotonic.Keep | None
    reference: Array | Reference | None
    levels: int | None
    reading: published.Reading | None
    m: int | None


class VeilOptions(MechanismOptions, total=False):
    """The keyword arguments of `Veil`, for those who pass them on."""

    mechanism: str
    shape: Shape
    secret: GivenSecret | None
    model: str
    threads: int
    smoothing: Smoothing | None


class Veil:
    """A veil over confidence scores, with one parameter.

    Args:
        epsilon: How much shows through; or a mechanism, whole.
        mechanism: The mechanism's name: "isotonic" keeps the top class (or more) and comes with a guarantee;
            "published" is the paper's Algorithm 1 and Equation 4.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.Binary()`, `MultiLabel()`,
            `TopK()` (docs/shapes.md).
        secret: At least 16 random bytes, or the path of a file that holds them: the same scores then always get the
            same answer.
        model: A name. With a secret, other models get independent answers.
        rng: A numpy Generator, for tests and studies; without one draws are cryptographic.
        threads: For large batches.
        smoothing: That of the scores which this veil is for (`smoothing.py`). A veil sees no records, so it is given
            smoothed scores; integrations and the gateway smooth by themselves.
        options: The mechanism's own: for "isotonic" `keep`, how many top classes keep their place (1, or "all"),
            and, for two or more, `reference`, public scores (n, k) that lessen the distortion; for "published" its
            `reading`.

    Raises:
        ValueError: An argument is out of range, or the mechanism has no such option.
    """

    def __init__(
        self,
        epsilon: float | Mechanism,
        mechanism: str = DEFAULT_MECHANISM,
        *,
        shape: Shape = VECTORS,
        secret: GivenSecret | None = None,
        model: str = "",
        rng: np.random.Generator | None = None,
        threads: int = 1,
        smoothing: Smoothing | None = None,
        **options: Unpack[MechanismOptions],
    ) -> None:
        if secret is not None and rng is not None:
            raise ValueError("Give a secret or an rng, not both: keyed draws leave nothing to a generator.")
        if not isinstance(threads, int) or threads < 1:
            raise ValueError(f"Expected threads to be a whole number >= 1, got {threads!r}.")
        if not isinstance(model, str):
            raise ValueError(f"Expected model to be a name, got {type(model).__name__}.")
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ValueError(f"Expected rng to be a numpy Generator, got {type(rng).__name__}.")
        if not isinstance(epsilon, Mechanism):
            self.mechanism = make(epsilon, mechanism, **options)
        elif any(value is not None for value in options.values()):
            raise ValueError("A whole mechanism has its options already; give them there.")
        else:
            self.mechanism = epsilon
        if smoothing is not None and not isinstance(smoothing, Smoothing):
            raise ValueError(f"Expected a Smoothing, got {type(smoothing).__name__}.")
        self.shape = shapes.given(shape)
        self.smoothing = smoothing
        self.model = model
        self.threads = threads
        self._rng = rng
        self.secret = None if secret is None else Secret.from_given(secret)
        self.drawn_by = self.mechanism if secret is None else self.mechanism.keyed()
        self._draws: KeyedDraws | None = None
        _ = self.draws  # which refuses a secret that is too short

    def __call__(self, scores: Scores, columns: Sequence[object] | str | None = None) -> Scores:
        """Veil scores.

        Args:
            scores: One score vector (k,) or a batch (n, k), of numpy, torch or another array library; a vector for each
                place of each record, (n, t, k); or what the veil's shape says. Or a table of pandas, polars or Arrow.
            columns: Of a table: the names of the columns that hold scores; by default all of floating-point numbers.

        Returns:
            Veiled scores of the same kind, dtype, device and shape; a table with all else as it was.

        Raises:
            ValueError: These are not score vectors; the message names the first such row, and quotes no score.
        """
        if isinstance(scores, (list, tuple)):
            scores = cast(Scores, np.asarray(scores))
        elif not isinstance(scores, np.ndarray) and _is_table(scores):
            from scoreveil.tables import frames

            return cast(Scores, frames.veiled(self._columns, scores, columns, is_vector=self.shape.is_plain))
        if columns is not None:
            raise ValueError(f"Columns are named in a table; a {type(scores).__name__} has none.")
        if isinstance(scores, np.ndarray):
            return cast(Scores, self.of_numpy(scores))
        return self._of_other_library(scores)

    def of_numpy(self, scores: Rows, tags: Rows | None = None) -> Rows:
        """Answers to a numpy array; `tags`, (records, 32), are what `KeyedVeil` names the records by."""
        shape = self.shape.of(scores.ndim)
        shape.check_array(scores)
        if shape.is_plain:
            rows = np.ascontiguousarray(scores).reshape(-1, scores.shape[-1])
            return self._rows(rows, tags).reshape(scores.shape)
        if not scores.size:
            return scores.copy()
        self._check_labels(shape.releases(scores.shape))
        self._warn_of_sum(shape.releases(scores.shape))
        return self._shaped(scores, shape, tags)

    def _of_other_library(self, scores: Scores) -> Scores:
        """Answers to an array of another library: by way of numpy, unless it has no such dtype or is on a device."""
        shape = self.shape.of(getattr(scores, "ndim", 0))
        shape.check_array(scores)
        xp, fits = namespace(scores), _fits_numpy(scores)
        if shape.has_places and not self.is_keyed:
            self._warn_of_sum(shape.releases(scores.shape))
            with shape.placing(scores.shape):
                return cast(Scores, xp.reshape(self(xp.reshape(scores, (-1, scores.shape[-1]))), scores.shape))
        # numpy shares host memory; keyed answers are the same bytes wherever the scores live
        if shape.is_plain and not (fits and (self.is_keyed or scores.device.type == "cpu")):
            rows = scores[None, :] if scores.ndim == 1 else scores
            return cast(Scores, xp.reshape(blocks.on_device(self.drawn_by, rows, self.draws, self._rng), scores.shape))
        if not (fits or scores.dtype in (xp.float32, xp.float64)):
            raise ValueError(f"Expected scores of a dtype that numpy has, got {scores.dtype}; cast them to float32.")
        return cast(Scores, xp.asarray(self(to_numpy(scores)), device=scores.device))

    def _columns(self, scores: Rows) -> Rows:
        """Answers to the columns of a table."""
        if scores.ndim == 2:
            self.shape.check_columns(scores)
        return self(scores)

    def _rows(self, rows: Rows, tags: Rows | None) -> Rows:
        """Answers to a contiguous numpy batch (n, k)."""
        draws = self.draws
        if draws is not None:
            return blocks.keyed(self.drawn_by, rows, draws, tags, self.threads)
        return blocks.fresh(self.drawn_by, rows, self._rng, self.threads)

    def _shaped(self, scores: Rows, shape: Shape, tags: Rows | None) -> Rows:
        """Scores as vectors and back, in pieces that stay in the processor's cache."""
        records, releases = shape.records(scores), shape.releases(scores.shape)

        def answered(first: int, last: int) -> Rows:
            part = records[first:last]
            vectors = shape.read(part, first)
            marks = None if tags is None else tags[first:last]
            if self.is_keyed and releases > 1:
                marks = of_places(magnitude_tags(vectors) if marks is None else marks, releases)
            with shape.placing(records.shape, first):
                veiled = self._rows(np.ascontiguousarray(vectors.reshape(-1, vectors.shape[2])), marks)
            return shape.restored(veiled.reshape(vectors.shape), part)

        # a generator's draws are taken in order
        threads = 1 if self._rng else self.threads
        return blocks.in_pieces(answered, records, shape.piece(records.shape), threads).reshape(scores.shape)

    def _check_labels(self, releases: int) -> None:
        """Refuse records with another number of labels than the veil has maps for."""
        if self.mechanism.together > 1 and releases != self.mechanism.together:
            raise ValueError(f"This veil was fitted for {self.mechanism.together} labels, got {releases}.")

    def _warn_of_sum(self, releases: int) -> None:
        """Say so where the releases of an answer add up to nothing."""
        if releases > 1 and NOTHING < releases * self.epsilon < math.inf:
            warnings.warn(
                f"An answer holds {releases} releases of ε = {self.epsilon:g}, which add up to "
                f"{releases * self.epsilon:g}: something is promised about each of them, nothing about a whole answer.",
                stacklevel=4,
            )

    def pairs(self, rows: Sequence[object]) -> list[Any]:
        """Veil lists of labels with their scores, as Hugging Face pipelines and Triton answer with them.

        The answer lists the same labels with veiled scores, the largest first and equals by name: the order that they
        came in tells nothing.

        Args:
            rows: A list for each record, of (label, score) or of {"label": …, "score": …}; they may differ in length.

        Raises:
            ValueError: These are no such lists, or their scores are not of the veil's shape.
        """
        if self.mechanism.together > 1:
            raise ValueError("This veil was fitted for labels in columns; give an array with a column for each.")
        self.shape.check_pairs()
        return shapes.veiled_pairs(self, rows)

    def releases(self, scores: Array) -> int:
        """How many vectors an answer to such scores holds: each is a release, and they add up.

        `accounting.epsilon_after(veil.guarantee, veil.releases(scores))` is the ε of a whole answer.
        """
        layout = np.shape(scores)
        return self.shape.of(len(layout)).releases(layout)

    def warm(self) -> Self:
        """Load the compiled kernels now, so that the first answers are as fast as later ones; return the veil.

        Without this they load beside the first answers, which plain numpy gives. Kernels need the extra `fast`: without
        it nothing is loaded. The first time on a machine they are compiled, which takes half a minute.
        """
        loading.wait()
        return self

    def vectors(self, scores: Rows) -> Rows:
        """The score vectors that a numpy batch stands for: (records, releases of a record, classes).

        Raises:
            ValueError: These are not scores of the veil's shape.
        """
        shape = self.shape.of(scores.ndim)
        shape.check_array(scores)
        self._check_labels(shape.releases(scores.shape))
        return shape.read(scores)

    @classmethod
    def from_given(
        cls, epsilon: "float | Mechanism | Veil", default: Shape = VECTORS, **options: Unpack[VeilOptions]
    ) -> "Veil":
        """The veil itself where one is given, else one made of these arguments: for whoever passes them on.

        Args:
            epsilon: As in `Veil`; or a veil.
            default: The shape of a veil that is made here, where `options` say no other.
            options: As in `Veil`.
        """
        if not isinstance(epsilon, Veil):
            shaped: VeilOptions = {"shape": default, **options}
            return cls(epsilon, **shaped)
        if options:
            raise ValueError(f"A veil has its options already; {', '.join(options)} cannot be given beside it.")
        return epsilon

    @property
    def guarantee(self) -> Guarantee:
        """What one release promises, the relation it holds for, and its limits in words."""
        promise, shape = self.drawn_by.guarantee(), self.shape
        crowd = [shape.crowd] if shape.crowd and promise.advantage is not None else []
        return replace(promise, limits=(*promise.limits, *filter(None, [shape.words]), *crowd))

    @property
    def epsilon(self) -> float:
        return self.mechanism.epsilon

    @property
    def is_constant(self) -> bool:
        """Whether a fitted veil announces the same confidence for every answer, so that it tells the label alone."""
        return bool(getattr(self.mechanism, "is_constant", False))

    @property
    def is_keyed(self) -> bool:
        """Whether answers are functions of a secret."""
        return self.secret is not None

    @property
    def draws(self) -> KeyedDraws | None:
        """Where the draws of a veil with a secret come from."""
        if self._draws is None and self.secret is not None:
            self._draws = KeyedDraws(self.secret.value, self.stored.fingerprint())
        return self._draws

    @property
    def stored(self) -> Stored:
        """What a file has of this veil."""
        return Stored(self.mechanism, self.model, self.shape, self.smoothing)

    def for_scores(self) -> "Veil":
        """This veil, for whoever has scores and no model to ask.

        Raises:
            ValueError: It is for smoothed scores.
        """
        if self.smoothing is not None:
            raise ValueError(
                "This veil was fitted on smoothed scores, which are read from a model around each record: use it where "
                "the model can be asked (scoreveil serve, VeiledClassifier), or fit one without smoothing."
            )
        return self

    def with_secret(self, secret: GivenSecret | None) -> "Veil":
        """The same veil with keyed answers; with None without its secret."""
        return Veil(
            self.mechanism, shape=self.shape, secret=secret, model=self.model, threads=self.threads,
            smoothing=self.smoothing,
        )  # fmt: skip

    def with_shape(self, shape: Shape) -> "Veil":
        """The same veil for scores that are served in another way."""
        if shape == self.shape:
            return self
        return Veil(
            self.mechanism, shape=shape, secret=self.secret, model=self.model, rng=self._rng, threads=self.threads,
            smoothing=self.smoothing,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mechanism to .json, or to .npz where it has tables of a reference. Never the secret."""
        storage.save(self.stored, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, secret: GivenSecret | None = None, threads: int = 1) -> "Veil":
        """Read what `save` wrote.

        Raises:
            ValueError: The file is damaged, or was not written by `save`.
        """
        mechanism, model, shape, smoothing = storage.load(Path(path))
        return cls(mechanism, shape=shape, secret=secret, model=model, threads=threads, smoothing=smoothing)

    def __repr__(self) -> str:
        shape = "" if self.shape.is_plain else f", {self.shape}"
        shape += "" if self.smoothing is None else ", of smoothed scores"
        return f"<Veil {self.mechanism.name}: {self.mechanism}{shape}{', keyed' if self.is_keyed else ''}>"

    def __getstate__(self) -> dict[str, Any]:
        """A veil travels without its secret (`Secret`), and makes its keyed draws where it arrives."""
        return {**vars(self), "_draws": None}


def _is_table(given: object) -> bool:
    """Whether it is a table, or a column, of a library that `frames` knows."""
    return any(kind.__module__.partition(".")[0] in TABLES for kind in type(given).__mro__)


def _fits_numpy(scores: Array) -> bool:
    """Whether these are torch scores of a dtype that numpy has."""
    is_torch = type(scores).__module__.partition(".")[0] == "torch"
    return is_torch and str(scores.dtype).removeprefix("torch.") in NUMPY_DTYPES
