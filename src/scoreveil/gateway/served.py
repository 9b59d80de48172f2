"""One model as it is served: where its scores come from, and what becomes of them before they leave.

    scores -> checked -> (charged) -> veiled -> released

Nothing but `release` lets scores out.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.gateway.answers import Sticky, check_matrix, release_tags
from scoreveil.gateway.config import Limits, Model
from scoreveil.gateway.embedded import Embedded
from scoreveil.gateway.errors import Refusal, upstream_failed
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.mlflow import MlflowUpstream
from scoreveil.gateway.protocol import DTYPES, Tensor
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.tfserving import TfServingUpstream
from scoreveil.gateway.upstream import V2Upstream
from scoreveil.ledger import Grant, IdempotencyConflict, LedgerUnavailable, record_key
from scoreveil.mechanisms.scores import check_rows
from scoreveil.veil import Veil

Array = NDArray[Any]
Source = Embedded | V2Upstream | MlflowUpstream | TfServingUpstream


class Served:
    """A model, its veils and its budget."""

    def __init__(
        self, name: str, model: Model, source: Source, keys: Keys, limits: Limits, metrics: ModelMetrics
    ) -> None:
        self.name, self.model, self.source, self.limits, self.metrics = name, model, source, limits, metrics
        self.offered = (*model.scores, *model.passes)
        self.passed = frozenset(model.parameters)
        self.about = {"model_name": name, "model_version": model.version}
        self.budgeted = model.repeats == "budget"
        secret = keys.records if self.budgeted else keys.answers
        contexts = {score: f"{name}/{model.version}/{score}" for score in model.scores}
        self._veils: dict[str, Veil] = {score: model.veil(secret, contexts[score]) for score in model.scores}
        self._sticky = {score: Sticky(veil) for score, veil in self._veils.items()}
        self._secret = keys.records
        # the gateway itself needs the inputs to run a model, to count a record, and to write tensors in binary
        upstream = model.upstream
        self.reads_numbers = self.budgeted or upstream is None or upstream.binary
        self.allowed = model.allowed_releases if self.budgeted else 0

    async def release(
        self,
        scores: Mapping[str, Array],
        records: Sequence[bytes] | None,
        ledger: LedgerLink | None,
        client: str,
        request: bytes | None,
    ) -> dict[str, Array]:
        """Veiled scores. What is no score vector is neither charged nor released."""
        if not self.budgeted:
            try:
                veiled = {name: self._sticky[name](rows) for name, rows in scores.items()}
            except ValueError:
                raise upstream_failed("not_scores") from None
        else:
            for rows in scores.values():
                self._check(rows)
            assert records is not None  # whoever calls a budgeted model gives its records
            assert ledger is not None
            tags = await self._charge(records, ledger, client, request)
            veiled = {name: self._veils[name](rows, tags) for name, rows in scores.items()}
        for name, rows in scores.items():
            self.metrics.distorted(rows, veiled[name])
        return veiled

    @staticmethod
    def _check(rows: Array) -> None:
        try:
            check_matrix(rows)
            check_rows(rows)
        except ValueError:
            raise upstream_failed("not_scores") from None

    async def _charge(
        self, records: Sequence[bytes], ledger: LedgerLink, client: str, request: bytes | None
    ) -> list[bytes]:
        """Charge every record once, durably; the tags of the releases. A record twice in a request is one release."""
        keys = [record_key(self._secret, self.name, self.model.version, record) for record in records]
        distinct = list(dict.fromkeys(keys))
        refuses = self.model.exhausted == "refuse"
        try:
            if refuses and len(distinct) > 1 and request is None:
                # a limit of 0 charges nothing, and tells what is spent: one spent record shall not cost the others
                for grant in await ledger.charge(self.name, distinct, 0, client=client, request=None):
                    if grant.spent >= self.allowed:
                        raise self._spent(grant)
            grants = await ledger.charge(self.name, distinct, self.allowed, client=client, request=request)
        except LedgerUnavailable:
            raise Refusal(503, "Expected a ledger that answers, got none: nothing is released.", "ledger") from None
        except IdempotencyConflict:
            message = "Expected the same request for an Idempotency-Key, got another."
            raise Refusal(409, message, "idempotency") from None
        granted = sum(grant.granted for grant in grants)
        self.metrics.charged.inc(granted)
        for grant in grants:
            if not grant.granted and (refuses or grant.number < 1):
                raise self._spent(grant)
        self.metrics.replayed.inc(len(grants) - granted)
        numbers = {grant.key: grant.number for grant in grants}
        return release_tags(keys, [numbers[key] for key in keys])

    def _spent(self, grant: Grant) -> Refusal:
        left = max(0, self.allowed - grant.spent)
        message = (
            f"Expected at most {self.allowed} releases of a record, got a request for another: "
            f"{grant.spent} are spent, {left} are left."
        )
        return Refusal(429, message, "budget")

    async def ready(self) -> bool:
        return await self.source.ready()

    async def metadata(self) -> dict[str, Any]:
        """What the protocol says of a model: its inputs, and of its outputs those that are served."""
        assert isinstance(self.source, (Embedded, V2Upstream))  # the other protocols have no such route
        inputs, outputs = await self.source.declared()
        said = {spec.name: spec for spec in outputs}
        return {
            "name": self.name,
            "versions": [self.model.version],
            "platform": self.source.platform,
            "inputs": [spec.as_json() for spec in inputs],
            "outputs": [said[name].as_json() for name in self.offered if name in said],
        }


def source_of(name: str, model: Model, limits: Limits) -> Source:
    """Where a model's scores come from."""
    upstream = model.upstream
    if upstream is None:
        return Embedded(name, model)
    if upstream.protocol == "mlflow":
        return MlflowUpstream(upstream, limits, tuple(spec.name for spec in model.inputs))
    if upstream.protocol == "tfserving":
        return TfServingUpstream(name, model.scores[0], upstream, limits)
    return V2Upstream(name, model.version, upstream, limits, model.inputs)


def tensor_records(inputs: Sequence[Tensor]) -> list[bytes]:
    """Each row's inputs as bytes, the same however they were sent: sorted by name, 0.0 for -0.0, one NaN."""
    rows = inputs[0].array.shape[0]
    parts: list[list[bytes]] = []
    for tensor in sorted(inputs, key=lambda tensor: tensor.name):
        array = tensor.array.reshape(rows, -1)
        head = f"{tensor.name}\0{tensor.datatype}\0{tensor.array.shape[1:]}\0".encode()
        if tensor.datatype == "BYTES":
            values = [b"".join(len(v).to_bytes(8, "little") + v for v in row) for row in array]
        else:
            if DTYPES[tensor.datatype].kind == "f":
                array = np.where(np.isnan(array), array.dtype.type("nan"), array + array.dtype.type(0))
            values = [row.tobytes() for row in np.ascontiguousarray(array)]
        parts.append([head + value for value in values])
    return [b"".join(len(part).to_bytes(8, "little") + part for part in row) for row in zip(*parts, strict=True)]


def request_digest(client: str, key: bytes) -> bytes:
    """An idempotency key as the ledger knows it: each client has its own."""
    return hashlib.sha256(client.encode() + b"\0" + key).digest()
