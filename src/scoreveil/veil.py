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

import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import numpy as np

from scoreveil import blocks, shapes, storage
from scoreveil.mechanisms import isotonic, loading, messages, per_label, published, regions  # noqa: F401  (imported, they can be loaded by name)
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism, Rows, make
from scoreveil.mechanisms.reference import Reference
from scoreveil.mechanisms.scores import Array, BadRow, check_rows, namespace, to_numpy
from scoreveil.outcomes import Outcomes
from scoreveil.randomness import KeyedDraws
from scoreveil.same_record.fingerprints import Fingerprints
from scoreveil.secret_file import Secret
from scoreveil.shapes import VECTORS, Shape
from scoreveil.smoothing import Smoothing

Scores = TypeVar("Scores", bound=Array)
GivenSecret = bytes | str | os.PathLike[str] | Secret

TABLES = ("pandas", "polars", "pyarrow")  # libraries that have them
NUMPY_DTYPES = ("float16", "float32", "float64")
LONG = 64  # numbers from which on SHA-256 is faster than block after block of AES
SCORE_STEPS = 2**20  # to which scores are rounded where equal ones share a draw
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
            "published" is the paper's Algorithm 1 and Equation 2.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.OneColumn()`, `ManyLabels()`,
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
        self._secret = None if secret is None else Secret.from_given(secret)
        self._used = self.mechanism if secret is None else self.mechanism.keyed()
        self._draws: KeyedDraws | None = None
        self._fingerprints: Fingerprints | None = None
        self._score_hash: KeyedDraws | None = None
        self._outcomes = Outcomes(self._used)
        self._keyed_draws()

    def __call__(
        self, scores: Scores, tags: Sequence[bytes] | Rows | None = None, columns: Sequence[Any] | str | None = None
    ) -> Scores:
        """Veil scores.

        Args:
            scores: One score vector (k,) or a batch (n, k), of numpy, torch or another array library; a vector for each
                place of each record, (n, t, k); or what the veil's shape says. Or a table of pandas, polars or Arrow.
            tags: One for each row, with a secret and numpy scores. The draw is then a function of the secret, the
                cell and the tag: the same tag always gets the same answer, another tag an independent one. Whoever
                counts releases names them by tags, and can repeat one without storing it.
            columns: Of a table: the names of the columns that hold scores; by default all of floating-point numbers.

        Returns:
            Veiled scores of the same kind, dtype, device and shape; a table with all else as it was.

        Raises:
            ValueError: These are not score vectors; the message names the first such row, and quotes no score.
        """
        if isinstance(scores, (list, tuple)):
            scores = cast(Scores, np.asarray(scores))
        elif not isinstance(scores, np.ndarray) and _is_table(scores):
            from scoreveil import frames

            veiled = frames.veiled(
                lambda rows: self._columns(rows, tags), scores, columns, is_vector=self.shape.is_plain
            )
            return cast(Scores, veiled)
        if columns is not None:
            raise ValueError(f"Columns are named in a table; a {type(scores).__name__} has none.")
        shape = self.shape.of(getattr(scores, "ndim", 0))
        shape.check_array(scores)
        if isinstance(scores, np.ndarray):
            if not shape.is_plain:
                return cast(Scores, self._shaped(scores, shape, tags))
            rows = np.ascontiguousarray(scores).reshape(-1, scores.shape[-1])
            return cast(Scores, self._rows(rows, _hashed(tags, len(rows))).reshape(scores.shape))
        if tags is not None:
            raise ValueError(f"Tags need numpy scores; these are of type {type(scores).__name__}.")
        xp, draws = namespace(scores), self._keyed_draws()
        fits = _fits_numpy(scores)
        if shape.has_places and draws is None:
            self._warn_of_sum(shape.releases(scores.shape))
            with _placed(shape, scores.shape):
                return cast(Scores, xp.reshape(self(xp.reshape(scores, (-1, scores.shape[-1]))), scores.shape))
        if not shape.is_plain and not (fits or scores.dtype in (xp.float32, xp.float64)):
            raise ValueError(f"Expected scores of a dtype that numpy has, got {scores.dtype}; cast them to float32.")
        if not shape.is_plain or (fits and (draws is not None or scores.device.type == "cpu")):
            # numpy shares host memory; keyed answers are the same bytes wherever the scores live
            return cast(Scores, xp.asarray(self(to_numpy(scores)), device=scores.device))
        rows = scores[None, :] if scores.ndim == 1 else scores
        return cast(Scores, xp.reshape(blocks.on_device(self._used, rows, draws, self._rng), scores.shape))

    def _columns(self, scores: Rows, tags: Sequence[bytes] | Rows | None) -> Rows:
        """Answers to the columns of a table."""
        if scores.ndim == 2:
            self.shape.check_columns(scores)
        return self(scores, tags)

    def _rows(self, rows: Rows, tags: Rows | None) -> Rows:
        """Answers to a contiguous numpy batch (n, k); `tags` are hashed ones."""
        draws = self._keyed_draws()
        if draws is not None:
            return blocks.keyed(self._used, rows, draws, tags, self.threads)
        if tags is not None:
            raise ValueError("Tagged answers need a secret; this veil has none.")
        return blocks.fresh(self._used, rows, self._rng, self.threads)

    def _shaped(self, scores: Rows, shape: Shape, tags: Sequence[bytes] | Rows | None) -> Rows:
        """Scores as vectors and back, in pieces that stay in the processor's cache."""
        if not scores.size:
            return scores.copy()
        records, releases = shape.records(scores), shape.releases(scores.shape)
        self._check_labels(releases)
        self._warn_of_sum(releases)
        hashed = _hashed(tags, len(records))

        def answered(first: int, last: int) -> Rows:
            part = records[first:last]
            vectors = shape.read(part, first)
            marks = None if hashed is None else hashed[first:last]
            if self.is_keyed and releases > 1:
                marks = _of_places(_magnitudes(vectors) if marks is None else marks, releases)
            with _placed(shape, records.shape, first):
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

    def pairs(self, rows: Sequence[Any], tags: Sequence[bytes] | Rows | None = None) -> list[Any]:
        """Veil lists of labels with their scores, as Hugging Face pipelines and Triton answer with them.

        The answer lists the same labels with veiled scores, the largest first and equals by name: the order that they
        came in tells nothing.

        Args:
            rows: A list for each record, of (label, score) or of {"label": …, "score": …}; they may differ in length.
            tags: As in a call.

        Raises:
            ValueError: These are no such lists, or their scores are not of the veil's shape.
        """
        read, is_object = shapes.read_pairs(rows)
        self.shape.check_pairs()
        if self.mechanism.together > 1:
            raise ValueError("This veil was fitted for labels in columns; give an array with a column for each.")
        if tags is not None:
            _hashed(tags, len(rows))  # refuses what is not one tag for each row
        made: list[Any] = [[] for _ in rows]
        for length in sorted({len(row) for row in read} - {0}):
            where = [i for i, row in enumerate(read) if len(row) == length]
            try:
                labels, scores = shapes.as_columns([read[i] for i in where])
                answers = self(scores, None if tags is None else [tags[i] for i in where])
            except BadRow as bad:
                raise BadRow(where[bad.row], bad.fault, advice=bad.advice) from None
            for i, row in zip(where, shapes.as_pairs(labels, answers), strict=True):
                made[i] = [{"label": label, "score": score} for label, score in row] if is_object else row
        return made

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

    def outcomes(self, scores: Rows, tags: Sequence[bytes] | Rows) -> Rows:
        """What is drawn for a numpy batch with these tags, before it becomes scores: (n, j) whole numbers below 2^16.

        `answers(scores, outcomes)` are then what `veil(scores, tags)` gives. Outcomes hold nothing that the answer does
        not show, so they may be kept, and given again to another question.

        Raises:
            ValueError: These are not score vectors, there is no secret, or the mechanism has no such outcomes.
        """
        draws = self._keyed_draws()
        if draws is None:
            raise ValueError("Tagged answers need a secret; this veil has none.")
        vectors = self.vectors(scores)
        records, releases, classes = vectors.shape
        rows = np.ascontiguousarray(vectors.reshape(-1, classes))
        with _placed(self.shape.of(scores.ndim), scores.shape):
            check_rows(rows)
        hashed = _hashed(tags, records)
        if hashed is not None and releases > 1:
            hashed = _of_places(hashed, releases)
        return self._outcomes.drawn(rows, draws, hashed).reshape(records, -1)

    def answers(self, scores: Rows, outcomes: Rows) -> Rows:
        """The answers to a numpy batch that these outcomes stand for; the label is the row's own."""
        shape = self.shape.of(scores.ndim)
        vectors = shape.vectors(scores)
        rows = np.ascontiguousarray(vectors.reshape(-1, vectors.shape[2]))
        veiled = self._outcomes.answers(rows, outcomes.reshape(len(rows), -1))
        return shape.restored(veiled.reshape(vectors.shape), scores)

    def score_tags(self, vectors: Rows, records: Sequence[bytes] | None = None) -> Rows:
        """Hashed tags, (records, 32), of `vectors` of scores: equal for equal scores (of equal records).

        Scores are rounded to multiples of 2^-20, so that they are the same on machines whose arithmetic is not.

        Raises:
            ValueError: This veil has no secret.
        """
        if self._secret is None:
            raise ValueError("Tags of scores need a secret; this veil has none.")
        if self._score_hash is None:
            self._score_hash = KeyedDraws(self._secret.value, b"scores\0" + self._told_apart())
        with np.errstate(invalid="ignore", over="ignore"):  # what is no score is refused by whoever draws
            rounded = np.rint(vectors.reshape(len(vectors), -1) * np.float64(SCORE_STEPS)).astype("<i4", order="C")
        if records is not None:
            rounded = _digests([row.tobytes() + record for row, record in zip(rounded, records, strict=True)])
        elif rounded.shape[1] > LONG:
            rounded = _digests(rounded)
        return self._score_hash.words(rounded.view(np.uint8), 2).view(np.uint8)

    def fingerprints(self, rows: int, inputs: Iterable[Any]) -> list[bytes]:
        """Tags for records: near-duplicates share one, other records hardly ever do.

        Args:
            rows: How many records there are.
            inputs: What the model was asked: arrays, frames, sparse matrices or lists, with a row for each record.

        Raises:
            ValueError: This veil has no secret.
        """
        if self._secret is None:
            raise ValueError("Fingerprints of records need a secret; this veil has none.")
        if self._fingerprints is None:
            self._fingerprints = Fingerprints(self._secret.value, self._told_apart())
        return self._fingerprints(rows, inputs)

    @classmethod
    def from_given(cls, epsilon: "float | Mechanism | Veil", **options: Unpack[VeilOptions]) -> "Veil":
        """The veil itself where one is given, else one made of these arguments: for whoever passes them on."""
        if not isinstance(epsilon, Veil):
            return cls(epsilon, **options)
        if options:
            raise ValueError(f"A veil has its options already; {', '.join(options)} cannot be given beside it.")
        return epsilon

    @property
    def guarantee(self) -> Guarantee:
        """What one release promises, the relation it holds for, and its limits in words."""
        promise, shape = self._used.guarantee(), self.shape
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
        return self._secret is not None

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

    def with_secret(self, secret: GivenSecret) -> "Veil":
        """The same veil with keyed answers."""
        return self._with(secret=Secret.from_given(secret), rng=None)

    def with_shape(self, shape: Shape) -> "Veil":
        """The same veil for scores that are served in another way."""
        return self if shape == self.shape else self._with(shape=shape)

    def _with(self, **changed: Any) -> "Veil":
        same = {"shape": self.shape, "secret": self._secret, "model": self.model, "rng": self._rng}
        return Veil(self.mechanism, **same | {"threads": self.threads, "smoothing": self.smoothing} | changed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mechanism to .json, or to .npz where it has tables of a reference. Never the secret."""
        storage.save(self.mechanism, self.model, Path(path), self.shape, self.smoothing)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, secret: GivenSecret | None = None, threads: int = 1) -> "Veil":
        """Read what `save` wrote.

        Raises:
            ValueError: The file is damaged, or was not written by `save`.
        """
        mechanism, model, shape, smoothing = storage.load(Path(path))
        return cls(mechanism, shape=shape, secret=secret, model=model, threads=threads, smoothing=smoothing)

    def about(self) -> dict[str, Any]:
        """What tells this veil from others, as plain values: for manifests. Of a secret only a fingerprint."""
        tables, secret = storage.digest(self.mechanism), self._secret
        return {
            "mechanism": self.mechanism.name,
            "model": self.model,
            "tables": hashlib.sha256(tables).hexdigest() if tables else None,
            "key": None if secret is None else secret.fingerprint,
            **self.shape.settings(),
            **({"copies": self.smoothing.copies, "scale": self.smoothing.scale} if self.smoothing else {}),
            **self.mechanism.summary(),
        }

    def __repr__(self) -> str:
        shape = "" if self.shape.is_plain else f", {self.shape}"
        shape += "" if self.smoothing is None else ", of smoothed scores"
        return f"<Veil {self.mechanism.name}: {self.mechanism}{shape}{', keyed' if self.is_keyed else ''}>"

    def __getstate__(self) -> dict[str, Any]:
        """A veil travels without its secret (`Secret`), and makes its keyed draws where it arrives."""
        return {**vars(self), "_draws": None, "_fingerprints": None, "_score_hash": None}

    def _told_apart(self) -> bytes:
        return storage.fingerprint(self.mechanism, self.model, self.shape, self.smoothing)

    def _keyed_draws(self) -> KeyedDraws | None:
        if self._draws is None and self._secret is not None:
            self._draws = KeyedDraws(self._secret.value, self._told_apart())
        return self._draws


@contextmanager
def _placed(shape: Shape, layout: Sequence[int], first: int = 0) -> Iterator[None]:
    """Bad vectors are spoken of as the records, from the first on, that they stand in."""
    try:
        yield
    except BadRow as bad:
        raise shape.placed(bad, layout, first) from None


def _hashed(tags: Sequence[bytes] | Rows | None, rows: int) -> Rows | None:
    """SHA-256 of each tag, (rows, 32); hashed ones as they are."""
    if tags is None or isinstance(tags, np.ndarray):
        return tags
    if len(tags) != rows or not all(isinstance(tag, bytes) for tag in tags):
        raise ValueError(f"Expected a tag of type bytes for each of the {rows} rows; got {len(tags)} tags.")
    digests = b"".join(hashlib.sha256(tag).digest() for tag in tags)
    return np.frombuffer(digests, dtype=np.uint8).reshape(rows, hashlib.sha256().digest_size)


def _magnitudes(vectors: Rows) -> Rows:
    """What tells records apart where scores are all that is known: (records, 32)."""
    return _digests(messages.magnitudes(vectors.reshape(len(vectors), -1)))


def _digests(rows: Rows | Sequence[bytes]) -> Rows:
    """SHA-256 of each row, (rows, 32)."""
    digests = b"".join(hashlib.sha256(row).digest() for row in rows)
    return np.frombuffer(digests, dtype=np.uint8).reshape(len(rows), hashlib.sha256().digest_size)


def _of_places(hashed: Rows, places: int) -> Rows:
    """A tag for every place of every record, none like another: two places that look alike are drawn for apart."""
    tags = np.repeat(hashed, places, axis=0)
    tags.view("<u8")[:, 0] ^= np.tile(np.arange(places, dtype="<u8"), len(hashed))
    return tags


def _is_table(given: Any) -> bool:
    """Whether it is a table, or a column, of a library that `frames` knows."""
    return any(kind.__module__.partition(".")[0] in TABLES for kind in type(given).__mro__)


def _fits_numpy(scores: Array) -> bool:
    """Whether these are torch scores of a dtype that numpy has."""
    is_torch = type(scores).__module__.partition(".")[0] == "torch"
    return is_torch and str(scores.dtype).removeprefix("torch.") in NUMPY_DTYPES
