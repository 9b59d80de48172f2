"""Answers to records that are named, as the gateway and the integrations give them.

    keyed = KeyedVeil(Veil(epsilon=2.0, secret="veil.key"))
    keyed(scores, tags)                                  # the same tag always gets the same answer
    keyed.answers(scores, keyed.outcomes(scores, tags))  # the same, by way of what a ledger keeps

A veil with a secret draws by the scores alone, which different records may share. Whoever knows the records names them
by tags: a draw is then a function of the secret, the cell and the tag, and independent for another tag.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.mechanisms.scores import check_rows
from scoreveil.outcomes import Outcomes
from scoreveil.randomness import KeyedDraws
from scoreveil.same_record.fingerprints import Fingerprints
from scoreveil.tags import digests, of_places
from scoreveil.veil import Veil

Tags = Sequence[bytes] | Rows  # one for each record; or their hashes, (records, 32)

LONG = 64  # numbers from which on SHA-256 is faster than block after block of AES
SCORE_STEPS = 2**20  # to which scores are rounded where equal ones share a draw


class KeyedVeil:
    """A veil with a secret, over records that are named.

    Args:
        veil: The veil.

    Raises:
        ValueError: It has no secret.
    """

    def __init__(self, veil: Veil) -> None:
        if veil.secret is None:
            raise ValueError("Tags need a secret; this veil has none.")
        self.veil, self._secret = veil, veil.secret

    def __call__(self, scores: Rows, tags: Tags) -> Rows:
        """Veiled scores of a numpy array, with a tag for each record.

        Raises:
            ValueError: These are not scores of the veil's shape, or there is another number of tags.
        """
        records = self.veil.shape.of(scores.ndim).records(scores)
        return self.veil.of_numpy(scores, _hashed(tags, len(records)))

    def outcomes(self, scores: Rows, tags: Tags) -> Rows:
        """What is drawn for a numpy batch with these tags, before it becomes scores: (n, j) whole numbers below 2^16.

        `answers(scores, outcomes)` are then what a call gives. Outcomes hold nothing that the answer does not show, so
        they may be kept, and given again to another question.

        Raises:
            ValueError: These are not score vectors, or the mechanism has no such outcomes.
        """
        vectors = self.veil.vectors(scores)
        records, releases, classes = vectors.shape
        rows = np.ascontiguousarray(vectors.reshape(-1, classes))
        with self.veil.shape.of(scores.ndim).placing(scores.shape):
            check_rows(rows)
        hashed, draws = _hashed(tags, records), self.veil.draws
        assert draws is not None  # it has a secret
        if releases > 1:
            hashed = of_places(hashed, releases)
        return self._outcomes.drawn(rows, draws, hashed).reshape(records, -1)

    def answers(self, scores: Rows, outcomes: Rows) -> Rows:
        """The answers to a numpy batch that these outcomes stand for; the label is the row's own."""
        shape = self.veil.shape.of(scores.ndim)
        vectors = shape.vectors(scores)
        rows = np.ascontiguousarray(vectors.reshape(-1, vectors.shape[2]))
        veiled = self._outcomes.answers(rows, outcomes.reshape(len(rows), -1))
        return shape.restored(veiled.reshape(vectors.shape), scores)

    def score_tags(self, vectors: Rows, records: Sequence[bytes] | None = None) -> Rows:
        """Hashed tags of `vectors` of scores: equal for equal scores (of equal records).

        Scores are rounded to multiples of 2^-20, so that they are the same on machines whose arithmetic is not.
        """
        with np.errstate(invalid="ignore", over="ignore"):  # what is no score is refused by whoever draws
            rounded = np.rint(vectors.reshape(len(vectors), -1) * np.float64(SCORE_STEPS)).astype("<i4", order="C")
        if records is not None:
            rounded = digests([row.tobytes() + record for row, record in zip(rounded, records, strict=True)])
        elif rounded.shape[1] > LONG:
            rounded = digests(rounded)
        return self._score_hash.words(rounded.view(np.uint8), 2).view(np.uint8)

    def fingerprints(self, rows: int, inputs: Iterable[object]) -> list[bytes]:
        """Tags for records: near-duplicates share one, other records hardly ever do.

        Args:
            rows: How many records there are.
            inputs: What the model was asked: arrays, frames, sparse matrices or lists, with a row for each record.
        """
        return self._fingerprints(rows, inputs)

    @cached_property
    def _outcomes(self) -> Outcomes:
        return Outcomes(self.veil.drawn_by)

    @cached_property
    def _score_hash(self) -> KeyedDraws:
        return KeyedDraws(self._secret.value, b"scores\0" + self.veil.stored.fingerprint())

    @cached_property
    def _fingerprints(self) -> Fingerprints:
        return Fingerprints(self._secret.value, self.veil.stored.fingerprint())

    def __reduce__(self) -> tuple[type["KeyedVeil"], tuple[Veil]]:
        return KeyedVeil, (self.veil,)


def _hashed(tags: Tags, rows: int) -> Rows:
    """SHA-256 of each tag, (rows, 32); hashed ones as they are."""
    if isinstance(tags, np.ndarray):
        return tags
    if len(tags) != rows or not all(isinstance(tag, bytes) for tag in tags):
        raise ValueError(f"Expected a tag of type bytes for each of the {rows} rows; got {len(tags)} tags.")
    return digests(tags)
