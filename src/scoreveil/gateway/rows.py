"""MLflow and TF Serving: rows as JSON in, a score vector for each of them out, {"predictions": [[…], …]}.

MLflow's POST /invocations takes one of dataframe_split, dataframe_records, instances and inputs. The configuration
allows one way of writing records, so that a record written another way is not another record.

TF Serving's POST /v1/models/{m}[/versions/{v}]:predict takes {"instances": [...]}. `:classify` and `:regress`, labels,
metadata and the columnar format are not served: what they would tell is not veiled.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson

from scoreveil import record_bytes
from scoreveil.gateway.config import Limits, Model, Upstream
from scoreveil.gateway.sources import Arrays, Source
from scoreveil.gateway.upstream import UpstreamPool, versioned_path
from scoreveil.inference_protocol.messages import NUMPY, fitted, parsed
from scoreveil.inference_protocol.refusals import bad_request, not_allowed, too_many_rows, upstream_failed
from scoreveil.inference_protocol.tensors import Array

JSON = {"Content-Type": "application/json"}
FORMATS = {
    "dataframe": ("dataframe_split", "dataframe_records"),
    "instances": ("instances",),
    "inputs": ("inputs",),
}


@dataclass(slots=True)
class RowQuery:
    """The rows of a request, and the request as it goes on."""

    values: list[Any]
    body: bytes

    @property
    def rows(self) -> int:
        return len(self.values)

    def records(self) -> list[bytes]:
        return [record_bytes.of_json(row) for row in self.values]

    def inputs(self) -> list[Any]:
        return [self.values]


class RowSource(Source[RowQuery]):
    """A model server that takes rows of JSON at one path."""

    def __init__(self, model: Model, upstream: Upstream, limits: Limits, path: str) -> None:
        (self._score,) = model.scores
        self._most = limits.rows
        self._path = path
        self._pool = UpstreamPool(upstream, limits)

    @abstractmethod
    def read_rows(self, tree: Any) -> tuple[list[Any], dict[str, Any]]:
        """The rows of a request that was parsed, and the request as it goes on."""

    def read(self, body: bytes, header: bytes | None) -> RowQuery:
        rows, asked = self.read_rows(parsed(body))
        if not rows:
            raise bad_request("The request has no rows; send at least one.")
        if len(rows) > self._most:
            raise too_many_rows(len(rows), self._most)
        try:
            return RowQuery(rows, orjson.dumps(asked))
        except orjson.JSONEncodeError:  # what is too deep to be written is too deep for `record_bytes` as well
            raise bad_request("The rows are nested too deep; a row is a list or an object of plain values.") from None

    async def infer(self, query: RowQuery, seconds: float) -> Arrays:
        answer, _ = await self._pool.post(self._path, query.body, JSON, seconds)
        try:
            rows = orjson.loads(answer)["predictions"]
            # of an object of outputs the configured one alone is read
            return {self._score: _matrix([row[self._score] if isinstance(row, dict) else row for row in rows])}
        except (ValueError, LookupError, TypeError):
            raise upstream_failed("malformed") from None

    def write(self, query: RowQuery, outputs: Arrays) -> tuple[bytes, int]:
        return orjson.dumps({"predictions": outputs[self._score]}, option=NUMPY), 0

    async def close(self) -> None:
        await self._pool.close()


def _matrix(rows: list[Any]) -> Array:
    """A list of score vectors as an array, or ValueError."""
    array = np.array(rows)
    if array.dtype.kind not in "fiu" or array.ndim != 2:
        raise ValueError("The predictions are not rows of numbers.")
    return array.astype(np.float64)


# MLflow


class SplitFrame(msgspec.Struct, forbid_unknown_fields=True):
    """A table as its column names and rows. The index names rows, which are told by what they hold: it is dropped."""

    data: list[Any]
    columns: list[str] | None = None
    index: Any = None


class InvocationMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A request in one of MLflow's formats."""

    dataframe_split: SplitFrame | None = None
    dataframe_records: list[Any] | None = None
    instances: list[Any] | None = None
    inputs: list[Any] | dict[str, list[Any]] | None = None


class MlflowUpstream(RowSource):
    """A model behind MLflow's scoring server."""

    def __init__(self, model: Model, upstream: Upstream, limits: Limits) -> None:
        super().__init__(model, upstream, limits, "/invocations")
        self._columns = frozenset(spec.name for spec in model.inputs)
        self._allowed = FORMATS[upstream.mlflow_format]

    def read_rows(self, tree: Any) -> tuple[list[Any], dict[str, Any]]:
        message = fitted(tree, InvocationMessage)
        given = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not None}
        if len(given) != 1 or not given.keys() <= set(self._allowed):
            raise not_allowed(
                f"Send one of {', '.join(self._allowed)} and nothing else; {len(given)} formats were sent."
            )
        ((kind, value),) = given.items()
        if isinstance(value, SplitFrame):
            rows = _split_rows(value)
            value = {"data": value.data} if value.columns is None else {"columns": value.columns, "data": value.data}
        else:
            rows = _column_rows(value) if isinstance(value, dict) else value
        for i, row in enumerate(rows if self._columns else ()):
            if not isinstance(row, dict) or row.keys() != self._columns:
                raise bad_request(f"Row {i} does not have exactly the columns {', '.join(sorted(self._columns))}.")
        return rows, {kind: value}

    async def ready(self) -> bool:
        status, _ = await self._pool.get("/ping")
        return status == 200


def _split_rows(frame: SplitFrame) -> list[Any]:
    if frame.columns is None:
        return frame.data
    if len(set(frame.columns)) != len(frame.columns):
        raise bad_request("Two columns have the same name; give each its own.")
    for i, row in enumerate(frame.data):
        if not isinstance(row, list) or len(row) != len(frame.columns):
            raise bad_request(f"Row {i} is not a list of {len(frame.columns)} values, one for each column.")
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.data]


def _column_rows(columns: dict[str, list[Any]]) -> list[Any]:
    """Columns, each a list with a value for each row, as rows."""
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise bad_request(f"The columns have {min(lengths)} to {max(lengths)} values; give each one for every row.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# TF Serving


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
