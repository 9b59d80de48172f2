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
from scoreveil.gateway.config import Limits, Model
from scoreveil.gateway.embedded import Embedded
from scoreveil.gateway.language import LabelledUpstream, TextUpstream
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.memory import Asker, RecordMemory
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.probabilities import probabilities
from scoreveil.gateway.rows import MlflowUpstream, TfServingUpstream
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.sources import Arrays, Query, Source, check_smoothing
from scoreveil.gateway.upstream import TensorUpstream
from scoreveil.inference_protocol.refusals import bad_request, upstream_failed
from scoreveil.inference_protocol.tensors import Array
from scoreveil.keyed import KeyedVeil
from scoreveil.smoothing import Smoothing, averaged


class ServedModel:
    """A model, its veils, and its memory where it has one."""

    def __init__(
        self, name: str, model: Model, source: Source[Any], keys: Keys | None, limits: Limits, metrics: ModelMetrics
    ) -> None:
        """`keys` may be None where the model needs no secret."""
        self.name, self.model, self.source, self.limits, self.metrics = name, model, source, limits, metrics
        secret = None
        if model.needs_secret:
            assert keys is not None
            secret = keys.answers
        scores = model.scores if model.is_veiled else ()
        self._veils = {score: model.make_veil(secret, f"{name}/{model.version}/{score}") for score in scores}
        self._keyed = {score: KeyedVeil(veil) for score, veil in self._veils.items() if veil.is_keyed}
        self._smoothing = next((veil.smoothing for veil in self._veils.values()), None)
        releases = model.each_releases if model.is_veiled else 0
        assert releases is not None  # what the file does not tell, the opened model has told
        self._releases = releases
        self._places, self._lists = (model.has_places, model.lists) if model.is_veiled else (False, False)
        self.memory: RecordMemory | None = None
        if model.kept_memory is not None:
            assert keys is not None
            self.memory = RecordMemory(name, model, self._keyed, releases * len(model.scores), keys, metrics)

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
        if len(queries) == 1:  # without tasks, which cost as much as the veil
            parts = [await self.source.infer(query, self.limits.seconds)]
        else:
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
        held = sum(each.shape[1] for each in vectors.values())
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
        veil = self._veils[name]
        vectors = veil.vectors(rows)
        flat = veil.shape.records(rows).ndim > rows.ndim
        if flat or len(vectors) != records or (rows.ndim > 2) != self._places:
            raise ValueError("The output has other dimensions than are served.")
        held = vectors.shape[1]
        if not (1 <= held <= self._releases if self._places else held == self._releases):
            raise ValueError("An answer holds another number of releases than is known.")
        return vectors

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


def request_digest(client: str, key: bytes) -> bytes:
    """An idempotency key as the ledger knows it: each client has its own."""
    return hashlib.sha256(client.encode() + b"\0" + key).digest()
