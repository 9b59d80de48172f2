"""TF Serving's REST API: POST /v1/models/{m}[/versions/{v}]:predict, in row format.

A request is {"instances": [...]}; the answer {"predictions": [...]}, with a score vector for each instance, or an
object of outputs, of which the configured one alone is read. `:classify` and `:regress`, labels, metadata and the
columnar format are not served: what they would tell is not veiled.
"""

from typing import Any

import msgspec
import orjson

from scoreveil.gateway.config import Limits, Model, Upstream
from scoreveil.gateway.rows import RowSource
from scoreveil.gateway.upstream import versioned_path
from scoreveil.inference_protocol.messages import fitted
from scoreveil.inference_protocol.refusals import not_allowed


class PredictMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A request in row format; the signature may be named where it is the configured one."""

    instances: list[Any]
    signature_name: str | None = None


class TfServingUpstream(RowSource):
    """A model behind TF Serving."""

    def __init__(self, name: str, model: Model, upstream: Upstream, limits: Limits) -> None:
        self._status = versioned_path("/v1", name, upstream)
        super().__init__(model, upstream, limits, f"{self._status}:predict")
        self._signature = upstream.signature

    def read_rows(self, tree: Any) -> tuple[list[Any], dict[str, Any]]:
        message = fitted(tree, PredictMessage)
        if message.signature_name not in (None, self._signature):
            raise not_allowed("This signature_name is not served; leave it out.")
        asked: dict[str, Any] = {"instances": message.instances}
        if self._signature is not None:
            asked["signature_name"] = self._signature
        return message.instances, asked

    async def ready(self) -> bool:
        status, body = await self._pool.get(self._status)
        try:
            states = orjson.loads(body)["model_version_status"]
            return status == 200 and any(state["state"] == "AVAILABLE" for state in states)
        except (ValueError, LookupError, TypeError):
            return False
