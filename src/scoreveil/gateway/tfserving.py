"""TF Serving's REST API: POST /v1/models/{m}[/versions/{v}]:predict, in row format.

A request is {"instances": [...]}; the answer {"predictions": [...]}, with a score vector for each instance, or an
object of outputs, of which the configured one alone is read. `:classify` and `:regress`, labels, metadata and the
columnar format are not served: what they would tell is not veiled.
"""

from typing import Any

import orjson

from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.errors import Refusal, bad_request, not_allowed, upstream_failed
from scoreveil.gateway.mlflow import JSON, as_json
from scoreveil.gateway.upstream import Connection, matrix


class TfServingUpstream:
    platform = "tensorflow_serving"

    def __init__(self, name: str, score: str, upstream: Upstream, limits: Limits) -> None:
        path = f"/v1/models/{upstream.model or name}"
        self._path = f"{path}/versions/{upstream.version}" if upstream.version is not None else path
        self._signature = upstream.signature
        self._score = score
        self._most = limits.rows
        self._connection = Connection(upstream, limits)

    def read(self, body: bytes) -> tuple[list[Any], bytes]:
        """The records of a request, and the request as it goes on."""
        try:
            tree = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise bad_request("Expected JSON, got something else.") from None
        if not isinstance(tree, dict) or not set(tree) <= {"instances", "signature_name"}:
            raise not_allowed("Expected instances, and signature_name where one is configured, got another.")
        if "signature_name" in tree and tree["signature_name"] != self._signature:
            raise not_allowed("Expected the signature_name that is configured, got another.")
        records = tree.get("instances")
        if not isinstance(records, list) or not records:
            raise bad_request("Expected instances to be a list of rows, got none.")
        if len(records) > self._most:
            raise Refusal(413, f"Expected at most {self._most} rows, got {len(records)}.", "rows")
        asked: dict[str, Any] = {"instances": records}
        if self._signature is not None:
            asked["signature_name"] = self._signature
        return records, as_json(asked)

    async def infer(self, body: bytes, seconds: float) -> Any:
        """(n, k) scores."""
        answer, _ = await self._connection.post(f"{self._path}:predict", body, JSON, seconds)
        try:
            rows = orjson.loads(answer)["predictions"]
            return matrix([row[self._score] if isinstance(row, dict) else row for row in rows])
        except (ValueError, LookupError, TypeError):
            raise upstream_failed("malformed") from None

    @staticmethod
    def write(rows: Any) -> bytes:
        return orjson.dumps({"predictions": rows}, option=orjson.OPT_SERIALIZE_NUMPY)

    async def ready(self) -> bool:
        status, body = await self._connection.get(self._path)
        try:
            states = orjson.loads(body)["model_version_status"]
            return status == 200 and any(state["state"] == "AVAILABLE" for state in states)
        except (ValueError, LookupError, TypeError):
            return False

    async def close(self) -> None:
        await self._connection.close()
