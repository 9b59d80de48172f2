"""One model as it is served: where its scores come from, and what becomes of them before they leave.

    scores -> checked -> drawn -> released                            a fitted veil: nothing is kept
    scores -> checked -> drawn -> answered by the ledger -> released  with memory

Nothing but `release` lets scores out.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from scoreveil.gateway import lists
from scoreveil.gateway.config import Limits
from scoreveil.gateway.embedded_source import EmbeddedSource
from scoreveil.gateway.language import LabelledUpstream, TextUpstream
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.memory import Asker, RecordMemory
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.opened import OpenedModel
from scoreveil.gateway.probabilities import probabilities
from scoreveil.gateway.rows import MlflowUpstream, TfServingUpstream
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.sources import Query, Source
from scoreveil.gateway.upstream import TensorUpstream
from scoreveil.inference_protocol.errors import bad_request, upstream_failed
from scoreveil.inference_protocol.tensors import Array, Arrays
from scoreveil.keyed import KeyedVeil
from scoreveil.smoothing import Smoothing, averaged

ScoresAndPassed = tuple[Arrays, Arrays]  # scores, which `release` takes; and what passes beside them


class ServedModel:
    """A model, its veils, and its memory where it has one."""

    def __init__(
        self, model: OpenedModel, source: Source[Any], keys: Keys | None, limits: Limits, metrics: ModelMetrics
    ) -> None:
        """`keys` may be None where the model needs no secret."""
        self.name, self.settings, self.source = model.name, model.settings, source
        self.limits, self.metrics = limits, metrics
        self.scores, self._shape = model.scores, model.shape
        self._veils = model.keyed_veils(keys.answers if keys is not None and model.needs_secret else None)
        self._keyed = {score: KeyedVeil(veil) for score, veil in self._veils.items() if veil.is_keyed}
        self._smoothing = None if model.veil is None else model.veil.smoothing
        assert model.releases is not None  # what the file does not tell, the loaded model has told
        self._releases = model.releases
        self.memory: RecordMemory | None = None
        if model.memory is not None:
            assert keys is not None
            self.memory = RecordMemory(model, self._keyed, self._releases * len(model.scores), keys, metrics)

    def warm(self) -> None:
        """Load what the first answer would wait for, or be slower without."""
        for veil in self._veils.values():
            veil.warm()

    async def ask(self, query: Any) -> ScoresAndPassed:
        """What the model answers; scores of a veil for smoothed ones are read around each record."""
        if self._smoothing is None:
            return self._read(await self._answer(query))
        parts = [await self._smoothed(part, self._smoothing) for part in _parts(query, self._smoothing.rows_at_a_time)]
        return _joined([scores for scores, _ in parts]), _joined([passed for _, passed in parts])

    async def _smoothed(self, query: Any, smoothing: Smoothing) -> ScoresAndPassed:
        """Smoothed scores of few records: the model is asked about them and their copies at once."""
        own = query.arrays()
        try:
            # numbers that would keep the others waiting are drawn in a thread
            around = await asyncio.to_thread(smoothing.around, own)
        except (ValueError, TypeError):
            raise bad_request("These inputs are not such as the veil of this model was fitted for.") from None
        answer = await self._answer(query.of({name: np.concatenate([own[name], around[name]]) for name in own}))
        scores, passed = self._read(answer)
        veils, n = self._veils, query.rows
        smoothed = {name: averaged(rows[:n], rows[n:], veils[name].shape) for name, rows in scores.items()}
        return smoothed, {name: array[:n] for name, array in passed.items()}

    async def _answer(self, query: Any) -> Arrays:
        """The model's answer, in parts where it takes no more rows at a time."""
        upstream = self.settings.upstream
        most = query.rows if upstream is None or upstream.largest_batch is None else upstream.largest_batch
        queries = _parts(query, most)
        if len(queries) == 1:  # without tasks, which cost as much as the veil
            answers = [await self.source.infer(query, self.limits.seconds)]
        else:
            answers = await asyncio.gather(*(self.source.infer(part, self.limits.seconds) for part in queries))
        for part, answer in zip(queries, answers, strict=True):
            if any(len(array) != part.rows for array in answer.values()):
                raise upstream_failed("rows")
        return _joined(answers)

    def _read(self, answer: Arrays) -> ScoresAndPassed:
        scores = {
            name: probabilities(answer[name], self.settings.outputs, veil.shape)
            for name, veil in self._veils.items()
            if name in answer
        }
        passed = {name: array for name, array in answer.items() if name in self.settings.passes}
        if not self._shape.is_list:
            return scores, passed
        ((name, rows),) = scores.items()
        try:
            ordered, passed = lists.by_label(rows, passed)
        except (ValueError, TypeError):
            raise upstream_failed("not_scores") from None
        return {name: ordered}, passed

    def shown(self, veiled: Arrays, passed: Arrays) -> Arrays:
        """Veiled scores and what passes beside them, as the client sees them."""
        if not self._shape.is_list:
            return {**passed, **veiled}
        ((name, rows),) = veiled.items()
        ordered, passed = lists.largest_first(rows, passed)
        return {**passed, name: ordered}

    async def release(self, scores: Arrays, query: Query, link: LedgerLink | None, asker: Asker) -> dict[str, Array]:
        """Veiled scores. What is drawn is a function of the secret and the question, so that the same question has the
        same answer on every machine; with memory, near-duplicates of earlier questions may get the earlier answer.
        What is no score vector is neither charged nor released."""
        try:
            vectors = {name: self._vectors(name, rows, query.rows) for name, rows in scores.items()}
            if self.memory is None:
                return {name: self._veiled(name, rows, vectors[name], query) for name, rows in scores.items()}
            outcomes = self.memory.drawn(scores, vectors)
        except ValueError:
            raise upstream_failed("not_scores") from None
        assert link is not None  # a gateway with such a model has one
        held = sum(array.shape[1] for array in vectors.values())
        released = await self.memory.answered(outcomes, query, held, link, asker)
        veiled, at = {}, 0
        for name, rows in scores.items():
            width = outcomes[name].shape[1]
            veiled[name] = self._keyed[name].answers(rows, released[:, at : at + width])
            at += width
        return veiled

    def _veiled(self, name: str, rows: Array, vectors: Array, query: Query) -> Array:
        """Without memory. A fitted veil's draws are those of the question: were they those of the scores alone, many
        records of the same scores would share one draw, and that could tell more than the region does. One that was
        not fitted, of records that are not known, draws by cell and magnitudes."""
        veil, keyed = self._veils[name], self._keyed.get(name)
        if keyed is None or not veil.mechanism.is_fitted:
            return veil(rows)
        return keyed(rows, keyed.score_tags(vectors, query.records()))

    def _vectors(self, name: str, rows: Array, records: int) -> Array:
        """The vectors that an output stands for, (records, releases of a record, classes), or ValueError.

        An answer with more releases than are known would not be paid for; in place of one vector it might hold many
        rows of something else.
        """
        veil, has_places = self._veils[name], self._shape.has_places
        vectors = veil.vectors(rows)
        flat = veil.shape.records(rows).ndim > rows.ndim
        if flat or len(vectors) != records or (rows.ndim > 2) != has_places:
            raise ValueError("The output has other dimensions than are served.")
        held = vectors.shape[1]
        if not (1 <= held <= self._releases if has_places else held == self._releases):
            raise ValueError("An answer holds another number of releases than is known.")
        return vectors

    async def metadata(self) -> dict[str, Any]:
        """What the protocol says of a model: its inputs, and of its outputs those that are served."""
        inputs, outputs = await self.source.declared()
        declared = {spec.name: spec for spec in outputs}
        offered = (*self.scores, *self.settings.passes)
        return {
            "name": self.name,
            "versions": [self.settings.version],
            "platform": self.source.platform,
            "inputs": msgspec.to_builtins(inputs),
            "outputs": msgspec.to_builtins([declared[name] for name in offered if name in declared]),
        }


def open_source(model: OpenedModel, limits: Limits) -> Source[Any]:
    """Where a model's scores come from."""
    upstream = model.settings.upstream
    if upstream is None:
        return EmbeddedSource(model, limits)
    kinds: dict[str, type[MlflowUpstream | TfServingUpstream | TensorUpstream | LabelledUpstream | TextUpstream]] = {
        "v2": TensorUpstream,
        "mlflow": MlflowUpstream,
        "tfserving": TfServingUpstream,
        "openai": LabelledUpstream if model.settings.labels else TextUpstream,
    }
    return kinds[upstream.protocol](model, upstream, limits)


def _parts(query: Any, most: int) -> list[Any]:
    """The question, in parts of so many records."""
    if query.rows <= most:
        return [query]
    arrays, starts = query.arrays(), range(0, query.rows, most)
    return [query.of({name: array[at : at + most] for name, array in arrays.items()}) for at in starts]


def _joined(parts: Sequence[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def request_digest(client: str, key: bytes) -> bytes:
    """An idempotency key as the ledger knows it: each client has its own."""
    return hashlib.sha256(client.encode() + b"\0" + key).digest()
