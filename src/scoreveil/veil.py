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
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, cast

import numpy as np

from scoreveil import blocks, storage
from scoreveil.fingerprint import Fingerprints
from scoreveil.mechanisms import channel, isotonic, published  # noqa: F401  (imported, they can be loaded by name)
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism, Rows, make
from scoreveil.mechanisms.reference import Reference
from scoreveil.mechanisms.scores import Array, check_layout, check_rows, namespace, to_numpy
from scoreveil.outcomes import Outcomes
from scoreveil.randomness import KeyedDraws
from scoreveil.secret_file import Secret

Scores = TypeVar("Scores", bound=Array)
GivenSecret = bytes | str | os.PathLike[str] | Secret

NUMPY_DTYPES = ("float16", "float32", "float64")


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
    secret: GivenSecret | None
    model: str
    threads: int


class Veil:
    """A veil over confidence scores, with one parameter.

    Args:
        epsilon: How much shows through; or a mechanism, whole.
        mechanism: The mechanism's name: "isotonic" keeps the top class (or more) and comes with a guarantee;
            "published" is the paper's Algorithm 1 and Equation 2.
        secret: At least 16 random bytes, or the path of a file that holds them: the same scores then always get the
            same answer.
        model: A name. With a secret, other models get independent answers.
        rng: A numpy Generator, for tests and studies; without one draws are cryptographic.
        threads: For large batches.
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
        secret: GivenSecret | None = None,
        model: str = "",
        rng: np.random.Generator | None = None,
        threads: int = 1,
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
        self.model = model
        self.threads = threads
        self._rng = rng
        self._secret = None if secret is None else Secret.from_given(secret)
        self._used = self.mechanism if secret is None else self.mechanism.keyed()
        self._draws: KeyedDraws | None = None
        self._fingerprints: Fingerprints | None = None
        self._outcomes = Outcomes(self._used)
        self._keyed_draws()

    def __call__(self, scores: Scores, tags: Sequence[bytes] | None = None) -> Scores:
        """Veil scores.

        Args:
            scores: One score vector (k,) or a batch (n, k), of numpy, torch or another array library.
            tags: One for each row, with a secret and numpy scores. The draw is then a function of the secret, the
                cell and the tag: the same tag always gets the same answer, another tag an independent one. Whoever
                counts releases names them by tags, and can repeat one without storing it.

        Returns:
            Veiled scores of the same kind, dtype, device and shape.

        Raises:
            ValueError: These are not score vectors; the message names the first such row, and quotes no score.
        """
        if isinstance(scores, (list, tuple)):
            return cast(Scores, self(np.asarray(scores), tags))
        check_layout(scores)
        mechanism, draws = self._used, self._keyed_draws()
        if isinstance(scores, np.ndarray):
            rows = np.ascontiguousarray(scores).reshape(-1, scores.shape[-1])
            if draws is None:
                if tags is not None:
                    raise ValueError("Tagged answers need a secret; this veil has none.")
                veiled = blocks.fresh(mechanism, rows, self._rng, self.threads)
            else:
                veiled = blocks.keyed(mechanism, rows, draws, _hashed(tags, len(rows)), self.threads)
            return cast(Scores, veiled.reshape(scores.shape))
        if tags is not None:
            raise ValueError(f"Tags need numpy scores; these are of type {type(scores).__name__}.")
        xp = namespace(scores)
        if _fits_numpy(scores) and (draws is not None or scores.device.type == "cpu"):
            # numpy shares host memory; keyed answers are the same bytes wherever the scores live
            return cast(Scores, xp.asarray(self(to_numpy(scores)), device=scores.device))
        rows = scores[None, :] if scores.ndim == 1 else scores
        return cast(Scores, xp.reshape(blocks.on_device(mechanism, rows, draws, self._rng), scores.shape))

    def outcomes(self, scores: Rows, tags: Sequence[bytes]) -> Rows:
        """What is drawn for a numpy batch with these tags, before it becomes scores: (n, j) whole numbers below 2^16.

        `answers(scores, outcomes)` are then what `veil(scores, tags)` gives. Outcomes hold nothing that the answer does
        not show, so they may be kept, and given again to another question.

        Raises:
            ValueError: These are not score vectors, there is no secret, or the mechanism has no such outcomes.
        """
        draws = self._keyed_draws()
        if draws is None:
            raise ValueError("Tagged answers need a secret; this veil has none.")
        check_layout(scores)
        check_rows(scores)
        return self._outcomes.drawn(np.ascontiguousarray(scores), draws, _hashed(tags, len(scores)))

    def answers(self, scores: Rows, outcomes: Rows) -> Rows:
        """The answers to a numpy batch that these outcomes stand for; the label is the row's own."""
        return self._outcomes.answers(scores, outcomes)

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
            self._fingerprints = Fingerprints(self._secret.value, storage.fingerprint(self.mechanism, self.model))
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
        return self._used.guarantee()

    @property
    def epsilon(self) -> float:
        return self.mechanism.epsilon

    @property
    def is_keyed(self) -> bool:
        """Whether answers are functions of a secret."""
        return self._secret is not None

    def with_secret(self, secret: GivenSecret) -> "Veil":
        """The same veil with keyed answers."""
        return Veil(self.mechanism, secret=secret, model=self.model, threads=self.threads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mechanism to .npz, or to .json where it has no tables. Never the secret."""
        storage.save(self.mechanism, self.model, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, secret: GivenSecret | None = None, threads: int = 1) -> "Veil":
        """Read what `save` wrote.

        Raises:
            ValueError: The file is damaged, or was not written by `save`.
        """
        mechanism, model = storage.load(Path(path))
        return cls(mechanism, secret=secret, model=model, threads=threads)

    def about(self) -> dict[str, Any]:
        """What tells this veil from others, as plain values: for manifests. Of a secret only a fingerprint."""
        tables, secret = storage.digest(self.mechanism), self._secret
        return {
            "mechanism": self.mechanism.name,
            "model": self.model,
            "tables": hashlib.sha256(tables).hexdigest() if tables else None,
            "key": None if secret is None else secret.fingerprint,
            **self.mechanism.settings(),
        }

    def __repr__(self) -> str:
        return f"<Veil {self.mechanism.name}: {self.mechanism}{', keyed' if self.is_keyed else ''}>"

    def __getstate__(self) -> dict[str, Any]:
        """A veil travels without its secret (`Secret`), and makes its keyed draws where it arrives."""
        return {**vars(self), "_draws": None, "_fingerprints": None}

    def _keyed_draws(self) -> KeyedDraws | None:
        if self._draws is None and self._secret is not None:
            self._draws = KeyedDraws(self._secret.value, storage.fingerprint(self.mechanism, self.model))
        return self._draws


def _hashed(tags: Sequence[bytes] | None, rows: int) -> Rows | None:
    """SHA-256 of each tag, (rows, 32)."""
    if tags is None:
        return None
    if len(tags) != rows or not all(isinstance(tag, bytes) for tag in tags):
        raise ValueError(f"Expected a tag of type bytes for each of the {rows} rows; got {len(tags)} tags.")
    digests = b"".join(hashlib.sha256(tag).digest() for tag in tags)
    return np.frombuffer(digests, dtype=np.uint8).reshape(rows, hashlib.sha256().digest_size)


def _fits_numpy(scores: Array) -> bool:
    """Whether these are torch scores of a dtype that numpy has."""
    is_torch = type(scores).__module__.partition(".")[0] == "torch"
    return is_torch and str(scores.dtype).removeprefix("torch.") in NUMPY_DTYPES
