"""MLflow and TF Serving: rows as JSON in, a score vector for each of them out, {"predictions": [[…], …]}; where
scores are one column, a number for each or a row of one, as the model has it.

These servers read much into JSON: "5.10", 5.1 and 5.1000001 may be one value to them. A record is one however it is
written, so the configuration declares the inputs; each value is cast to its datatype, and only what was cast goes on.

MLflow's POST /invocations takes one of dataframe_split, dataframe_records, instances and inputs; the configuration
allows one of these ways.

TF Serving's POST /v1/models/{m}[/versions/{v}]:predict takes {"instances": [...]}. `:classify` and `:regress`, labels,
metadata and the columnar format are not served: what they would tell is not veiled.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson

from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.opened import OpenedModel
from scoreveil.gateway.sources import Source
from scoreveil.gateway.upstream import UpstreamPool, versioned_path
from scoreveil.inference_protocol.errors import bad_request, not_allowed, too_many_rows
from scoreveil.inference_protocol.messages import NUMPY, fitted, parsed
from scoreveil.inference_protocol.tensors import DTYPES, NAMES, Array, Arrays, TensorSpec, flattened, from_json, texts
from scoreveil.same_record import exact

JSON = {"Content-Type": "application/json"}
FORMATS = {
    "dataframe": ("dataframe_split", "dataframe_records"),
    "instances": ("instances",),
    "inputs": ("inputs",),
}
Columns = dict[str, list[object]]  # of each input, a value for every row


@dataclass(slots=True)
class RowQuery:
    """The inputs of a request, cast to what they are declared as; `named` where the client named each in every row."""

    tensors: dict[str, Array]
    named: bool

    @property
    def rows(self) -> int:
        return len(next(iter(self.tensors.values())))

    def records(self) -> list[bytes]:
        return exact.of_tensors((name, NAMES[array.dtype], array) for name, array in self.tensors.items())

    def inputs(self) -> list[Array]:
        return [self.tensors[name] for name in sorted(self.tensors)]

    def arrays(self) -> dict[str, Array]:
        return self.tensors

    def of(self, arrays: Arrays) -> "RowQuery":
        return RowQuery(dict(arrays), self.named)


class RowSource(Source[RowQuery]):
    """A model server that takes rows of JSON at one path."""

    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits, path: str) -> None:
        (self._score,) = model.scores
        self._inputs = model.inputs
        self._max_rows = limits.rows
        self._path = path
        self._pool = UpstreamPool(upstream, limits)

    @abstractmethod
    def read_columns(self, tree: Any) -> tuple[Columns, bool]:
        """The inputs of a request that was parsed; and whether it names them."""

    @abstractmethod
    def written(self, query: RowQuery) -> dict[str, object]:
        """The request as it goes on."""

    def read(self, body: bytes, header: bytes | None) -> RowQuery:
        columns, named = self.read_columns(parsed(body))
        return RowQuery({spec.name: _cast(columns[spec.name], spec) for spec in self._inputs}, named)

    def columns_of(self, rows: list[Any]) -> tuple[Columns, bool]:
        """Rows as columns. A row is an object of the declared inputs; or the value itself, where there is one input."""
        self.check_rows(len(rows))
        names = [spec.name for spec in self._inputs]
        if not isinstance(rows[0], dict) and len(names) == 1:
            return {names[0]: rows}, False
        for i, row in enumerate(rows):
            if not isinstance(row, dict) or row.keys() != set(names):
                raise bad_request(f"Row {i} does not have exactly the inputs {', '.join(sorted(names))}.")
        return {name: [row[name] for row in rows] for name in names}, True

    def check_rows(self, rows: int) -> None:
        if not rows:
            raise bad_request("The request has no rows; send at least one.")
        if rows > self._max_rows:
            raise too_many_rows(rows, self._max_rows)

    async def infer(self, query: RowQuery, seconds: float) -> Arrays:
        asked = orjson.dumps(self.written(query))
        answer, _ = await self._pool.post(self._path, asked, JSON, seconds)
        try:
            rows = orjson.loads(answer)["predictions"]
            # of an object of outputs the configured one alone is read
            return {self._score: _array([row[self._score] if isinstance(row, dict) else row for row in rows])}
        except (ValueError, LookupError, TypeError):
            raise self._pool.malformed() from None

    def write(self, query: RowQuery, outputs: Arrays) -> tuple[bytes, int]:
        return orjson.dumps({"predictions": outputs[self._score]}, option=NUMPY), 0

    def close(self) -> None:
        self._pool.close()


def _array(rows: list[object]) -> Array:
    """A list of scores as an array, or ValueError; whether they are of the right shape, `release` finds out."""
    array = np.array(rows)
    if array.dtype.kind not in "fiu":
        raise ValueError("The predictions are not numbers, or differ in length.")
    return array.astype(np.float64)


def _cast(values: list[Any], spec: TensorSpec) -> Array:
    """The values of one input as the datatype that is declared; null is a missing number. Others are refused."""
    sizes = [len(values)]
    inner: Any = values
    for size in spec.shape[1:]:
        inner = inner[0] if isinstance(inner, list) and inner else None
        sizes.append(size if size >= 0 else len(inner) if isinstance(inner, list) else 0)
    shape = tuple(sizes)
    flat = flattened(values, shape, spec.name)
    kinds = set(map(type, flat))
    if bool in kinds and spec.datatype != "BOOL":  # a bool is a number to Python
        raise bad_request(f"Input {spec.name!r} is declared as {spec.datatype}, and holds true or false.")
    if type(None) in kinds and DTYPES[spec.datatype].kind == "f":
        flat = [math.nan if value is None else value for value in flat]
    array = from_json(flat, spec.datatype, shape, spec.name)
    return array + array.dtype.type(0) if array.dtype.kind == "f" else array  # -0.0 goes on as 0.0, as it is counted


def _columns(query: RowQuery) -> Columns:
    """The inputs as they are written in JSON: BYTES are texts again, and a missing number is null."""
    return {name: (texts(array) if array.dtype == object else array).tolist() for name, array in query.tensors.items()}


def _rows(query: RowQuery) -> list[object]:
    """The rows, named or not as the client wrote them."""
    columns = _columns(query)
    if not query.named:
        (values,) = columns.values()
        return values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# MLflow


class SplitFrame(msgspec.Struct, forbid_unknown_fields=True):
    """A table as its column names and rows. The index names rows, which are told by what they hold: it is dropped."""

    data: list[Any]
    columns: list[str]
    index: Any = None

    def as_columns(self) -> Columns:
        if len(set(self.columns)) != len(self.columns):
            raise bad_request("Two columns have the same name; give each its own.")
        for i, row in enumerate(self.data):
            if not isinstance(row, list) or len(row) != len(self.columns):
                raise bad_request(f"Row {i} is not a list of {len(self.columns)} values, one for each column.")
        values = zip(*self.data, strict=True) if self.data else ([] for _ in self.columns)
        return dict(zip(self.columns, map(list, values), strict=True))


class InvocationMessage(msgspec.Struct, forbid_unknown_fields=True):
    dataframe_split: SplitFrame | None = None
    dataframe_records: list[Any] | None = None
    instances: list[Any] | None = None
    inputs: list[Any] | dict[str, list[Any]] | None = None


class MlflowUpstream(RowSource):
    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits) -> None:
        super().__init__(model, upstream, limits, "/invocations")
        self._allowed = FORMATS[upstream.mlflow_format]

    def read_columns(self, tree: Any) -> tuple[Columns, bool]:
        message = fitted(tree, InvocationMessage)
        formats = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not None}
        if len(formats) != 1 or not formats.keys() <= set(self._allowed):
            raise not_allowed(
                f"Send one of {', '.join(self._allowed)} and nothing else; {len(formats)} formats were sent."
            )
        ((kind, value),) = formats.items()
        if isinstance(value, SplitFrame):
            return self.named_columns(value.as_columns()), True
        if isinstance(value, dict):
            return self.named_columns(value), True
        columns, named = self.columns_of(value)
        if not named and kind == "dataframe_records":
            raise bad_request("A row of dataframe_records is an object of columns.")
        return columns, named

    def named_columns(self, columns: Columns) -> Columns:
        """Columns that a client gave by name, checked."""
        declared = {spec.name for spec in self._inputs}
        if columns.keys() != declared:
            raise bad_request(f"The model takes exactly the inputs {', '.join(sorted(declared))}.")
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise bad_request(f"The inputs have {min(lengths)} to {max(lengths)} values; give each one for every row.")
        self.check_rows(lengths.pop())
        return columns

    def written(self, query: RowQuery) -> dict[str, object]:
        if "dataframe_split" in self._allowed:
            columns = _columns(query)
            return {"dataframe_split": {"columns": list(columns), "data": list(zip(*columns.values(), strict=True))}}
        (kind,) = self._allowed
        return {kind: _columns(query) if kind == "inputs" and query.named else _rows(query)}

    async def ready(self) -> bool:
        return await self._pool.get("/ping") is not None


# TF Serving


class PredictMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A request in row format; the signature may be named where it is the configured one."""

    instances: list[Any]
    signature_name: str | None = None


class TfServingUpstream(RowSource):
    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits) -> None:
        self._status = versioned_path("/v1", model.name, upstream)
        super().__init__(model, upstream, limits, f"{self._status}:predict")
        self._signature = upstream.signature

    def read_columns(self, tree: Any) -> tuple[Columns, bool]:
        message = fitted(tree, PredictMessage)
        if message.signature_name not in (None, self._signature):
            raise not_allowed("This signature_name is not served; leave it out.")
        return self.columns_of(message.instances)

    def written(self, query: RowQuery) -> dict[str, object]:
        asked: dict[str, object] = {"instances": _rows(query)}
        if self._signature is not None:
            asked["signature_name"] = self._signature
        return asked

    async def ready(self) -> bool:
        body = await self._pool.get(self._status)
        try:
            return any(s["state"] == "AVAILABLE" for s in orjson.loads(body or b"{}")["model_version_status"])
        except (ValueError, LookupError, TypeError):
            return False
