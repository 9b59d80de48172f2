"""One model as it is served: where its scores come from, and what becomes of them before they leave.

    scores -> checked -> drawn -> charged, or replaced by the answer to an earlier question nearby -> released

Nothing but `release` lets scores out.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scoreveil import record_bytes, storage
from scoreveil.gateway import lists
from scoreveil.gateway.config import BILLION, Limits, Model
from scoreveil.gateway.embedded import Embedded
from scoreveil.gateway.language import LabelledUpstream, TextUpstream
from scoreveil.gateway.ledger_link import LedgerLink, LedgerMismatch
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.probabilities import probabilities
from scoreveil.gateway.rows import MlflowUpstream, TfServingUpstream
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.sources import Arrays, Query, Source, check_smoothing
from scoreveil.gateway.upstream import TensorUpstream
from scoreveil.inference_protocol.refusals import Refusal, bad_request, upstream_failed
from scoreveil.inference_protocol.tensors import Array
from scoreveil.ledger import Answered, IdempotencyConflict, LedgerUnavailable, Questions, Repeats
from scoreveil.ledger.charges import KEY, MOST_UNITS, RecordKeys, joined_keys
from scoreveil.ledger.releases import MOST_OUTCOME, SETTINGS
from scoreveil.mechanisms.scores import check_rows
from scoreveil.neighbourhood import Neighbourhoods
from scoreveil.shapes import OneColumn
from scoreveil.smoothing import Smoothing, averaged
from scoreveil.veil import Veil

MOST_ANSWERED = 1 << 16  # outcomes that a worker knows without asking the ledger


class Asker(NamedTuple):
    """Who asks, within which limit of ε, and the hash of the request's idempotency key, if it has one."""

    client: str
    epsilon: float
    request: bytes | None


class ServedModel:
    """A model, its veils and its budget."""

    def __init__(
        self, name: str, model: Model, source: Source[Any], keys: Keys | None, limits: Limits, metrics: ModelMetrics
    ) -> None:
        """`keys` may be None where the model needs no secret."""
        self.name, self.model, self.source, self.limits, self.metrics = name, model, source, limits, metrics
        secret = None
        if model.needs_secret:
            assert keys is not None
            secret = keys.records if model.budgeted else keys.answers
        scores = model.scores if model.is_veiled else ()
        self._veils = {score: model.make_veil(secret, f"{name}/{model.version}/{score}") for score in scores}
        self._smoothing = next((veil.smoothing for veil in self._veils.values()), None)
        each = model.each_releases if model.is_veiled else 0
        assert each is not None  # what the file does not tell, the opened model has told
        self._each = each
        self._places, self._lists = (model.has_places, model.lists) if model.is_veiled else (False, False)
        self.remembers = model.remembers
        self._answered: dict[bytes, bytes] = {}  # sticky outcomes as they were released: they never change
        if self.remembers:
            assert keys is not None
            assert secret is not None
            self._keys = RecordKeys(keys.records, name, model.version)
            typical = None if model.typical is None else np.load(model.typical, allow_pickle=False)
            self._near = Neighbourhoods(keys.records, f"{name}/{model.version}".encode(), typical)
            self._settings = _settings(self._veils.values(), secret)
            held = each * len(model.scores)
            model.check_price(held)
            self._promise = model.bare_veil.guarantee
            self._prices: dict[int, tuple[int, int]] = {}  # by releases of an answer
            price, _ = self._price(held)
            self._limit = min(model.allowed_answers(held) * price, MOST_UNITS) if model.budgeted else 0
            self._repeats: Repeats = model.exhausted if model.budgeted else "sticky"

    def warm(self) -> None:
        """Load what the first answer would wait for, or be slower without."""
        for veil in self._veils.values():
            veil.warm()

    async def ask(self, query: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        """The model's scores, which `release` takes, and what passes beside them; scores of a veil for smoothed ones
        are read around each record."""
        if self._smoothing is None:
            return self.read(await self._found(query))
        parts = [await self._smoothed(part, self._smoothing) for part in _parts(query, self._smoothing.rows_at_a_time)]
        scores, passed = (_joined([part[side] for part in parts]) for side in (0, 1))
        return scores, passed

    async def _smoothed(self, query: Any, smoothing: Smoothing) -> tuple[dict[str, Array], dict[str, Array]]:
        """Smoothed scores of few records: the model is asked about them and their copies at once."""
        own = query.arrays()
        try:
            # numbers that would keep the others waiting are drawn in a thread
            around = await asyncio.to_thread(smoothing.around, own)
        except (ValueError, TypeError):
            raise bad_request("These inputs are not such as the veil of this model was fitted for.") from None
        found = await self._found(query.of({name: np.concatenate([own[name], around[name]]) for name in own}))
        scores, passed = self.read(found)
        veils, rows = self._veils, query.rows
        smoothed = {name: averaged(each[:rows], each[rows:], veils[name].shape) for name, each in scores.items()}
        return smoothed, {name: array[:rows] for name, array in passed.items()}

    async def _found(self, query: Any) -> Arrays:
        """The model's answer, in parts where it takes no more rows at a time."""
        upstream = self.model.upstream
        most = query.rows if upstream is None or upstream.largest_batch is None else upstream.largest_batch
        queries = _parts(query, most)
        parts = await asyncio.gather(*(self.source.infer(each, self.limits.seconds) for each in queries))
        for each, part in zip(queries, parts, strict=True):
            if any(len(array) != each.rows for array in part.values()):
                raise upstream_failed("rows")
        return _joined(parts)

    def read(self, found: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        """What the model answered: scores, which `release` takes, and what passes beside them."""
        scores = {
            name: probabilities(found[name], self.model.outputs, veil.shape)
            for name, veil in self._veils.items()
            if name in found
        }
        passed = {name: array for name, array in found.items() if name in self.model.passes}
        if not self._lists:
            return scores, passed
        ((name, rows),) = scores.items()
        try:
            ordered, passed = lists.by_label(rows, passed)
        except (ValueError, TypeError):
            raise upstream_failed("not_scores") from None
        return {name: ordered}, passed

    def shown(self, veiled: Arrays, passed: Arrays) -> Arrays:
        """Veiled scores and what passes beside them, as the client sees them."""
        if not self._lists:
            return {**passed, **veiled}
        ((name, rows),) = veiled.items()
        ordered, passed = lists.largest_first(rows, passed)
        return {**passed, name: ordered}

    async def release(self, scores: Arrays, query: Query, link: LedgerLink | None, asker: Asker) -> dict[str, Array]:
        """Veiled scores. Where records are known, near-duplicates of an earlier question share its record, and what is
        fresh is charged first. What is no score vector is neither charged nor released."""
        try:
            vectors = {name: self._vectors(name, rows, query.rows) for name, rows in scores.items()}
            if not self.remembers:
                return {name: self._by_scores(self._veils[name], rows, query) for name, rows in scores.items()}
            for each in vectors.values():
                check_rows(np.ascontiguousarray(each.reshape(-1, each.shape[2])))
        except ValueError:
            raise upstream_failed("not_scores") from None
        assert link is not None  # a gateway with such a model has one
        held = sum(each.shape[1] for each in vectors.values())
        widths = [each.shape[1] * self._veils[name].mechanism.draws(each.shape[2]) for name, each in vectors.items()]
        size = 2 * sum(widths)
        if size > MOST_OUTCOME:
            raise upstream_failed("releases")
        keys = self._keys(query.records())
        if all(key in self._answered for key in keys):
            outcomes = [self._answered[key] for key in keys]
            self.metrics.replayed.inc(len(keys))
        else:
            outcomes = await self._remembered(keys, scores, held, self._marks(query), link, asker)
        if any(len(outcome) != size for outcome in outcomes):  # a neighbour's answer had more places, or fewer
            raise upstream_failed("releases")
        found = np.frombuffer(b"".join(outcomes), dtype="<u2").reshape(len(keys), -1)
        veiled, at = {}, 0
        for (name, rows), width in zip(scores.items(), widths, strict=True):
            veiled[name] = self._veils[name].answers(rows, found[:, at : at + width])
            at += width
        return veiled

    def _vectors(self, name: str, rows: Array, records: int) -> Array:
        """The vectors that an output stands for, (records, releases of a record, classes), or ValueError.

        An answer with more releases than are known would not be paid for; in place of one vector it might hold many
        rows of something else.
        """
        veil = self._veils[name]
        vectors = veil.vectors(rows)
        flat = rows.ndim == 1 and not isinstance(veil.shape, OneColumn)
        if flat or len(vectors) != records or (rows.ndim > 2) != self._places:
            raise ValueError("The output has other dimensions than are served.")
        held = vectors.shape[1]
        if not (1 <= held <= self._each if self._places else held == self._each):
            raise ValueError("An answer holds another number of releases than is known.")
        return vectors

    def _by_scores(self, veil: Veil, rows: Array, query: Query) -> Array:
        """The same answer for the same scores, and the same fingerprint where answers are drawn and have no price."""
        is_told = veil.is_keyed and self.model.knows_records
        return veil(rows, veil.fingerprints(query.rows, query.inputs()) if is_told else None)

    def _marks(self, query: Query) -> bytes:
        try:
            return self._near(query.rows, query.inputs()).astype("<i8").tobytes()
        except ValueError as error:  # a record of another size than the typical inputs
            raise bad_request(str(error)) from None

    async def _remembered(
        self, keys: list[bytes], scores: Arrays, releases: int, marks: bytes, link: LedgerLink, asker: Asker
    ) -> list[bytes]:
        """The outcomes to release: those drawn now, charged durably, or those of earlier questions nearby."""
        # a budget's releases are drawn anew each time; a sticky one again, should the ledger be lost
        tags = [secrets.token_bytes(KEY) for _ in keys] if self.model.budgeted else keys
        try:
            drawn = np.hstack([self._veils[name].outcomes(rows, tags) for name, rows in scores.items()])
        except ValueError:  # as many classes as the veil was not fitted for
            raise upstream_failed("not_scores") from None
        price, client_price = self._price(releases)
        asked = Questions(
            self.name, self._settings, joined_keys(keys), marks, drawn.astype("<u2").tobytes(),
            self._limit, price, client_price, self._repeats,
            asker.client, round(asker.epsilon * BILLION), asker.request,
        )  # fmt: skip
        try:
            answers = await (await link.opened()).answer(asked)
        except (LedgerUnavailable, LedgerMismatch):
            message = "The ledger does not answer, so nothing is released; try again later."
            raise Refusal(503, message, "ledger") from None
        except IdempotencyConflict:
            message = "This Idempotency-Key came with another request, or before the settings changed; use a new one."
            raise Refusal(409, message, "idempotency") from None
        for answer in answers:
            if answer.refused:
                raise self._refusal(answer, asker, releases)
        granted = sum(answer.granted for answer in answers)
        self.metrics.charged.inc(granted)
        self.metrics.replayed.inc(len(answers) - granted)
        if not self.model.budgeted:
            if len(self._answered) + len(keys) > MOST_ANSWERED:
                self._answered.clear()
            self._answered.update((key, answer.outcome) for key, answer in zip(keys, answers, strict=True))
        return [answer.outcome for answer in answers]

    def _price(self, releases: int) -> tuple[int, int]:
        """What an answer with so many releases costs its record and the client."""
        if releases not in self._prices:
            promise = self._promise
            self._prices[releases] = self.model.price(releases, promise), self.model.client_price(releases, promise)
        return self._prices[releases]

    def _refusal(self, answer: Answered, asker: Asker, releases: int) -> Refusal:
        if answer.refused == "client":
            message = (
                f"This request would take you beyond ε = {asker.epsilon:g} of fresh answers, the limit of one client. "
                "What was asked before, or nearly, is still answered; whoever runs the gateway can raise the limit."
            )
            return Refusal(429, message, "odometer")
        price, _ = self._price(releases)
        left = max(0, self._limit - answer.spent) // price
        message = (
            f"A record of this request has no release left: {self._limit // price} are allowed, "
            f"{answer.number} were made of it and its near-duplicates, {left} are left."
        )
        return Refusal(429, message, "budget")

    async def metadata(self) -> dict[str, Any]:
        """What the protocol says of a model: its inputs, and of its outputs those that are served."""
        inputs, outputs = await self.source.declared()
        said = {spec.name: spec for spec in outputs}
        offered = (*self.model.scores, *self.model.passes)
        return {
            "name": self.name,
            "versions": [self.model.version],
            "platform": self.source.platform,
            "inputs": msgspec.to_builtins(inputs),
            "outputs": msgspec.to_builtins([said[name] for name in offered if name in said]),
        }


def open_source(name: str, model: Model, limits: Limits) -> Source[Any]:
    """Where a model's scores come from."""
    upstream = model.upstream
    if upstream is None:
        return Embedded(name, model, limits)
    if model.is_veiled:
        check_smoothing(model.bare_veil, model.inputs)
    if upstream.protocol == "mlflow":
        return MlflowUpstream(model, upstream, limits)
    if upstream.protocol == "tfserving":
        return TfServingUpstream(name, model, upstream, limits)
    if upstream.protocol == "openai":
        return LabelledUpstream(name, model, upstream, limits) if model.labels else TextUpstream(name, upstream, limits)
    return TensorUpstream(name, model, upstream, limits)


def _parts(query: Any, most: int) -> list[Any]:
    """The question, in parts of so many records."""
    if query.rows <= most:
        return [query]
    arrays, starts = query.arrays(), range(0, query.rows, most)
    return [query.of({name: array[at : at + most] for name, array in arrays.items()}) for at in starts]


def _joined(parts: Sequence[Arrays]) -> dict[str, Array]:
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _settings(veils: Iterable[Veil], secret: bytes) -> bytes:
    """A hash of all that answers depend on: an outcome is given again under the same alone."""
    parts = (storage.fingerprint(veil.mechanism, veil.model, veil.shape, veil.smoothing) for veil in veils)
    state = hashlib.sha256(hmac.digest(secret, b"scoreveil settings 1", "sha256"))
    for part in parts:
        state.update(record_bytes.with_length(part))
    return state.digest()[:SETTINGS]


def request_digest(client: str, key: bytes) -> bytes:
    """An idempotency key as the ledger knows it: each client has its own."""
    return hashlib.sha256(client.encode() + b"\0" + key).digest()
