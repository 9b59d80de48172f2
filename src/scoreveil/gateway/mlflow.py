"""MLflow's scoring server: POST /invocations, as `mlflow models serve` speaks it.

A request has one of dataframe_split, dataframe_records, instances and inputs; the answer is {"predictions": [[…], …]}
with a score vector for each row. The configuration allows one way of writing records, so that a record written
another way is not another record.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.errors import Refusal, bad_request, not_allowed, upstream_failed
from scoreveil.gateway.upstream import Connection, canonical, matrix

JSON = {"Content-Type": "application/json"}
FORMATS = {
    "dataframe": ("dataframe_split", "dataframe_records"),
    "instances": ("instances",),
    "inputs": ("inputs",),
}


class MlflowUpstream:
    platform = "mlflow"

    def __init__(self, upstream: Upstream, limits: Limits, columns: tuple[str, ...]) -> None:
        self._columns = frozenset(columns)
        self._allowed = FORMATS[upstream.mlflow_format]
        self._most = limits.rows
        self._connection = Connection(upstream, limits)

    def read(self, body: bytes) -> tuple[list[Any], bytes]:
        """The records of a request, and the request as it goes on."""
        try:
            tree = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise bad_request("Expected JSON, got something else.") from None
        if not isinstance(tree, dict) or len(tree) != 1 or next(iter(tree)) not in self._allowed:
            raise not_allowed(f"Expected one of {', '.join(self._allowed)} and nothing else, got another.")
        ((kind, given),) = tree.items()
        records = _records(kind, given)
        if self._columns and not all(isinstance(r, dict) and r.keys() == self._columns for r in records):
            raise bad_request(f"Expected columns {', '.join(sorted(self._columns))} in each row, got others.")
        if not records:
            raise bad_request("Expected at least one row, got none.")
        if len(records) > self._most:
            raise Refusal(413, f"Expected at most {self._most} rows, got {len(records)}.", "rows")
        return records, as_json(tree)

    async def infer(self, body: bytes, seconds: float) -> Any:
        """(n, k) scores."""
        answer, _ = await self._connection.post("/invocations", body, JSON, seconds)
        try:
            return matrix(orjson.loads(answer)["predictions"])
        except (ValueError, LookupError, TypeError):
            raise upstream_failed("malformed") from None

    @staticmethod
    def write(rows: Any) -> bytes:
        return orjson.dumps({"predictions": rows}, option=orjson.OPT_SERIALIZE_NUMPY)

    async def ready(self) -> bool:
        status, _ = await self._connection.get("/ping")
        return status == 200

    async def close(self) -> None:
        await self._connection.close()


def _records(kind: str, given: Any) -> list[Any]:
    if kind != "dataframe_split":
        return columnar(given) if kind == "inputs" and isinstance(given, dict) else _listed(given)
    if not isinstance(given, dict) or not set(given) <= {"columns", "index", "data"}:
        raise bad_request("Expected dataframe_split of columns, index and data, got another.")
    columns, rows = given.get("columns"), _listed(given.get("data"))
    given.pop("index", None)  # it names rows, which are told by what they hold
    if columns is None:
        return rows
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise bad_request("Expected columns to be names, got others.")
    if len(set(columns)) != len(columns) or not all(isinstance(r, list) and len(r) == len(columns) for r in rows):
        raise bad_request("Expected a value for each column in each row, got others.")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def columnar(given: dict[str, Any]) -> list[Any]:
    """Columns, each a list with a value for each row, as rows."""
    lengths = {len(column) if isinstance(column, list) else -1 for column in given.values()}
    if len(lengths) != 1 or -1 in lengths:
        raise bad_request("Expected columns of one length, got others.")
    names: Sequence[str] = list(given)
    return [dict(zip(names, row, strict=True)) for row in zip(*given.values(), strict=True)]


def _listed(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise bad_request("Expected a list of rows, got another.")
    return given


def record_bytes(records: Sequence[Any]) -> list[bytes]:
    return [canonical(record) for record in records]


def as_json(tree: Any) -> bytes:
    """The request as it goes on. What is nested too deep to be written is too deep for `canonical` as well."""
    try:
        return orjson.dumps(tree)
    except orjson.JSONEncodeError:
        raise bad_request("Expected values that are nested less deep, got others.") from None
