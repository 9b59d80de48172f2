"""A model with memory: a record and its near-duplicates get at most so many fresh answers, on every machine.

    [models.x.memory]
    answers = 1

Near-duplicates are told by marks of the inputs (`same_record/marks.py`); the ledger keeps the marks, and of answers the
outcomes that were drawn, never a score or an input. Equal scores have equal draws, so changing a feature that the model
ignores gives a new record, and the answer of the old one.
"""

import asyncio
import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from scoreveil.gateway.ledger_link import LedgerLink, LedgerMismatch
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.opened import BILLION, OpenedModel, check_memory
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.sources import Query
from scoreveil.inference_protocol.errors import ApiError, bad_request, upstream_failed
from scoreveil.inference_protocol.messages import LARGE
from scoreveil.inference_protocol.tensors import Array, Arrays
from scoreveil.keyed import KeyedVeil
from scoreveil.ledger import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.releases import MAX_OUTCOME, MAX_UNITS, SETTINGS, Marks, ReleaseRequest
from scoreveil.same_record import exact
from scoreveil.same_record.marks import Neighbourhoods


class Asker(NamedTuple):
    """Who asks, within which limit of ε, and the hash of the request's idempotency key, if it has one."""

    client: str
    epsilon: float
    request: bytes | None


class RecordMemory:
    """What one model remembers, and what it allows."""

    def __init__(
        self, model: OpenedModel, veils: Mapping[str, KeyedVeil], releases: int, keys: Keys, metrics: ModelMetrics
    ) -> None:
        """`releases`: how many an answer holds, at most."""
        memory = model.memory
        assert memory is not None
        check_memory(model, releases)
        self._name, self._model, self._veils, self._metrics = model.name, model, veils, metrics
        own = f"{model.name}/{model.settings.version}".encode()
        self._near = Neighbourhoods(keys.records, own, model.typical)
        self._settings = _settings(veils, keys.answers)
        self._prices: dict[int, tuple[int, int]] = {}  # of an answer, to its record and its client, by its releases
        self._answers, self._limit, self._repeat = model.allowed_answers(releases), 0, memory.repeat
        if memory.epsilon is not None:
            self._limit = min(self._answers * self._price(releases)[0], MAX_UNITS)

    def drawn(self, scores: Arrays, vectors: Arrays) -> dict[str, Array]:
        """The outcomes that these scores would have, were all answers fresh: (records, numbers) for each output.

        A record's fresh answers are drawn with one of as many numbers as it has answers, so that equal scores have no
        more different answers than one record has.

        Raises:
            ValueError: These are not score vectors.
        """
        outcomes = {}
        for name, rows in scores.items():
            veil = self._veils[name]
            tags = veil.score_tags(vectors[name])
            if self._answers > 1:
                numbers = np.frombuffer(os.urandom(4 * len(tags)), dtype="<u4") % self._answers
                tags.view("<u8")[:, 1] ^= numbers
            outcomes[name] = veil.outcomes(rows, tags)
        return outcomes

    async def answered(self, outcomes: Arrays, query: Query, releases: int, link: LedgerLink, asker: Asker) -> Array:
        """The outcomes to release, (records, numbers): those drawn now, charged durably, or earlier ones."""
        drawn = np.hstack(list(outcomes.values())).astype("<u2")
        if drawn.shape[1] * 2 > MAX_OUTCOME:
            raise upstream_failed("releases")
        price, client_price = self._price(releases)
        limit = round(asker.epsilon * BILLION)
        questions = ReleaseRequest(
            self._name, self._settings, await self._marks(query, drawn.shape[1]), drawn.tobytes(), price,
            0 if self._limit else self._answers, self._limit, self._repeat,
            asker.client, client_price * query.rows if limit else 0, limit, asker.request,
        )  # fmt: skip
        try:
            answers = await (await link.opened()).answer(questions)
        except (LedgerUnavailable, LedgerMismatch):
            message = "The ledger does not answer, so nothing is released; try again later."
            raise ApiError(503, message, "ledger") from None
        except IdempotencyConflict:
            message = "This Idempotency-Key came with another request, or before the settings changed; use a new one."
            raise ApiError(409, message, "idempotency") from None
        if answers.refused == "client":
            message = f"All answers to one client may add up to ε = {asker.epsilon:g}, and this request goes beyond."
            raise ApiError(429, message, "odometer")
        if answers.refused == "record":
            message = "A record of this request, or a near-duplicate of it, has had all the answers that it may have."
            raise ApiError(429, message, "budget")
        if len(answers.outcomes) != drawn.nbytes:  # a neighbour's answer had more places, or fewer
            raise upstream_failed("releases")
        self._metrics.charged.inc(answers.fresh)
        self._metrics.repeated.inc(query.rows - answers.fresh)
        return np.frombuffer(answers.outcomes, dtype="<u2").reshape(drawn.shape)

    async def _marks(self, query: Query, width: int) -> Marks:
        inputs = query.inputs()
        try:
            if _size(inputs) <= LARGE:
                marks = self._near(query.rows, inputs)
            else:  # beside the loop, so that the others are not kept waiting
                marks = await asyncio.to_thread(self._near, query.rows, inputs)
        except ValueError as error:  # a record of another size than the typical inputs
            raise bad_request(str(error)) from None
        if self._limit:  # which counts what was spent under all settings
            return marks
        # the ledger counts anew under other settings, or for another number of places: were it the same record, asking
        # under two of them in turns would never end
        own = hashlib.sha256(self._settings + width.to_bytes(4)).digest()
        return marks ^ np.frombuffer(own, np.int64, 1)

    def _price(self, releases: int) -> tuple[int, int]:
        """What an answer with so many releases costs its record and the client."""
        if releases not in self._prices:
            self._prices[releases] = self._model.price(releases), self._model.client_price(releases)
        return self._prices[releases]


def _size(inputs: Iterable[Array]) -> int:
    """Numbers and characters of them all."""
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.size for array in inputs)


def _settings(veils: Mapping[str, KeyedVeil], secret: bytes) -> bytes:
    """A hash of all that answers depend on: an outcome is given again under the same alone."""
    state = hashlib.sha256(hmac.digest(secret, b"scoreveil settings 1", "sha256"))
    for keyed in veils.values():
        state.update(exact.with_lengths(keyed.veil.stored.fingerprint()))
    return state.digest()[:SETTINGS]
