"""One model as it is served: where its scores come from, and what becomes of them before they leave.

    scores -> checked -> (charged) -> veiled -> released

Nothing but `release` lets scores out.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from scoreveil.gateway.config import Limits, Model
from scoreveil.gateway.embedded import Embedded
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.rows import MlflowUpstream, TfServingUpstream
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.sources import Arrays, Query, Source
from scoreveil.gateway.upstream import TensorUpstream
from scoreveil.inference_protocol.refusals import Refusal, upstream_failed
from scoreveil.inference_protocol.tensors import Array
from scoreveil.ledger import Grant, IdempotencyConflict, LedgerUnavailable, record_key
from scoreveil.mechanisms.scores import check_layout, check_rows
from scoreveil.veil import Veil


class ServedModel:
    """A model, its veils and its budget."""

    def __init__(
        self, name: str, model: Model, source: Source[Any], keys: Keys, limits: Limits, metrics: ModelMetrics
    ) -> None:
        self.name, self.model, self.source, self.limits, self.metrics = name, model, source, limits, metrics
        secret = keys.records if model.budgeted else keys.answers
        self._veils = {score: model.make_veil(secret, f"{name}/{model.version}/{score}") for score in model.scores}
        self._secret = keys.records
        self._allowed = model.allowed_releases if model.budgeted else 0

    async def release(
        self, scores: Arrays, query: Query, link: LedgerLink | None, client: str, request: bytes | None
    ) -> dict[str, Array]:
        """Veiled scores: sticky, or charged first. What is no score vector is neither charged nor released.

        `link` is needed with a budget; `request` is the hash of an idempotency key.
        """
        try:
            if any(rows.ndim != 2 for rows in scores.values()):  # one vector might be many rows of something else
                raise ValueError("Rows of scores have two dimensions.")
            if not self.model.budgeted:
                veiled = {name: self._sticky(self._veils[name], rows, query) for name, rows in scores.items()}
            else:
                for rows in scores.values():
                    check_layout(rows)
                    check_rows(rows)
        except ValueError:
            raise upstream_failed("not_scores") from None
        if self.model.budgeted:
            assert link is not None  # a gateway with a budgeted model has one
            tags = await self._charge(query.records(), link, client, request)
            veiled = {name: self._veils[name](rows, tags) for name, rows in scores.items()}
        return veiled

    def _sticky(self, veil: Veil, rows: Array, query: Query) -> Array:
        """The same answer for a record and its near-duplicates; by scores alone where records are not known."""
        return veil(rows, veil.fingerprints(query.rows, query.inputs()) if self.model.knows_records else None)

    async def _charge(
        self, records: Sequence[bytes], link: LedgerLink, client: str, request: bytes | None
    ) -> list[bytes]:
        """Charge every record once, durably; the tags of the releases. A record twice in a request is one release."""
        keys = [record_key(self._secret, self.name, self.model.version, record) for record in records]
        distinct = list(dict.fromkeys(keys))
        refuses = self.model.exhausted == "refuse"
        try:
            ledger = await link.opened()
            if refuses and len(distinct) > 1 and request is None:
                # a limit of 0 charges nothing, and tells what is spent: one spent record shall not cost the others
                for grant in await ledger.charge(self.name, distinct, 0, client=client):
                    if grant.spent >= self._allowed:
                        raise self._spent(grant)
            grants = await ledger.charge(self.name, distinct, self._allowed, client=client, request=request)
        except LedgerUnavailable:
            message = "The ledger does not answer, so nothing is released; try again later."
            raise Refusal(503, message, "ledger") from None
        except IdempotencyConflict:
            message = "This Idempotency-Key came with another request before; use a new one."
            raise Refusal(409, message, "idempotency") from None
        granted = sum(grant.granted for grant in grants)
        self.metrics.charged.inc(granted)
        for grant in grants:
            if not grant.granted and (refuses or grant.number < 1):
                raise self._spent(grant)
        self.metrics.replayed.inc(len(grants) - granted)
        numbers = {grant.key: grant.number for grant in grants}
        # a release is named by its record and how many came before it: a retry is drawn again, and nothing is stored
        return [key + numbers[key].to_bytes(8, "little") for key in keys]

    def _spent(self, grant: Grant) -> Refusal:
        left = max(0, self._allowed - grant.spent)
        message = (
            f"A record of this request has no release left: {self._allowed} are allowed, "
            f"{grant.spent} are spent, {left} are left."
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
    if upstream.protocol == "mlflow":
        return MlflowUpstream(model, upstream, limits)
    if upstream.protocol == "tfserving":
        return TfServingUpstream(name, model, upstream, limits)
    return TensorUpstream(name, model, upstream, limits)


def request_digest(client: str, key: bytes) -> bytes:
    """An idempotency key as the ledger knows it: each client has its own."""
    return hashlib.sha256(client.encode() + b"\0" + key).digest()
