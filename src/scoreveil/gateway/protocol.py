"""The Open Inference Protocol v2 (KServe), as bytes: JSON, and tensors in binary after it.

Requests are read into `Request`, whole and strictly: what the protocol or the configuration does not name is
refused, never passed on. Answers are written from named arrays alone.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from scoreveil.gateway import unread
from scoreveil.gateway.config import DATATYPES, TensorSpec
from scoreveil.gateway.errors import Refusal, bad_request, not_allowed

Array = NDArray[Any]

HEADER_LENGTH = b"inference-header-content-length"
MOST_DIMENSIONS = 8
LONGEST_ID = 256
DTYPES = {name: np.dtype(dtype) for name, dtype in DATATYPES.items()}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PACKED = dict(zip(("UINT8", "UINT16", "UINT32", "UINT64"), "BHIQ", strict=True))
PACKED |= dict(zip(("INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"), "bhiqefd", strict=True))
NOTHING: Array = np.empty(0)
NUMPY = orjson.OPT_SERIALIZE_NUMPY


@dataclass(slots=True)
class Tensor:
    """An input: its values, or the list of numbers that they are, unread."""

    name: str
    datatype: str
    array: Array
    parameters: dict[str, Any]
    unread: bytes | None = None
    declared: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape if self.unread is None else self.declared


@dataclass(slots=True)
class Request:
    """What a client asks: inputs, and which outputs it wants, each in binary or not. None: all, as `binary` says."""

    id: str | None
    inputs: list[Tensor]
    outputs: dict[str, bool] | None
    binary: bool
    parameters: dict[str, Any]

    def wanted(self, offered: Sequence[str]) -> dict[str, bool]:
        """The outputs to give, by name: whether in binary."""
        if self.outputs is None:
            return dict.fromkeys(offered, self.binary)
        for name in self.outputs:
            if name not in offered:
                raise not_allowed(f"Expected outputs of {', '.join(offered)}, got another.")
        return self.outputs


# Reading


def split(body: bytes, header: bytes | None) -> tuple[Any, memoryview]:
    """The JSON part and the binary part of a body."""
    length = len(body)
    if header is not None:
        if not header.isdigit() or len(header) > 12 or int(header) > len(body):
            raise bad_request("Expected Inference-Header-Content-Length to be a length within the body, got another.")
        length = int(header)
    try:
        tree = orjson.loads(memoryview(body)[:length])
    except orjson.JSONDecodeError:
        raise bad_request("Expected JSON, got something else.") from None
    return tree, memoryview(body)[length:]


def read_request(
    body: bytes, header: bytes | None, passed: frozenset[str], most_rows: int, read_numbers: bool = True
) -> Request:
    """A request, checked. `passed` are the parameters that may go to the model.

    Without `read_numbers`, long lists of them stay as they came.
    """
    lists: list[bytes] = []
    if not read_numbers and header is None and len(body) > unread.SHORT:
        body, lists = unread.cut(body)
    tree, rest = split(body, header)
    # the kserve client names the model here too; the path says which one is meant
    table = _table(tree, ("id", "parameters", "inputs", "outputs", "model_name", "model_version"), "a request")
    identity = table.get("id")
    if identity is not None and (not isinstance(identity, str) or len(identity) > LONGEST_ID):
        raise bad_request(f"Expected id to be a text of at most {LONGEST_ID} characters, got another.")
    parameters = _parameters(table, ("binary_data_output",), passed)
    binary = _flag(parameters, "binary_data_output")
    given = table.get("inputs")
    if not isinstance(given, list) or not given:
        raise bad_request("Expected inputs to be a list of tensors, got none.")
    inputs: list[Tensor] = []
    for i, each in enumerate(given):
        tensor, rest = _read_input(each, rest, passed, most_rows, lists[i] if i < len(lists) else None, i)
        inputs.append(tensor)
    if len(lists) > len(inputs):
        raise not_allowed("Expected data in inputs alone, got some elsewhere.")
    if len(rest):
        raise bad_request("Expected binary data as long as binary_data_size says, got more.")
    if len({tensor.name for tensor in inputs}) != len(inputs):
        raise bad_request("Expected inputs of different names, got one twice.")
    return Request(identity, inputs, _read_outputs(table.get("outputs"), binary), binary, parameters)


def _read_outputs(given: Any, default: bool) -> dict[str, bool] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise bad_request("Expected outputs to be a list, got another.")
    wanted: dict[str, bool] = {}
    for each in given:
        table = _table(each, ("name", "parameters"), "an output")
        parameters = _parameters(table, ("binary_data",), frozenset())
        name = table.get("name")
        if not isinstance(name, str) or name in wanted:
            raise bad_request("Expected outputs with different names, got others.")
        wanted[name] = _flag(parameters, "binary_data") if "binary_data" in parameters else default
    return wanted


def _read_input(
    each: Any, rest: memoryview, passed: frozenset[str], most_rows: int, numbers: bytes | None, place: int
) -> tuple[Tensor, memoryview]:
    table = _table(each, ("name", "shape", "datatype", "parameters", "data"), "an input")
    parameters = _parameters(table, ("binary_data_size",), passed)
    name, datatype = table.get("name"), table.get("datatype")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise bad_request("Expected an input with a name, got none.")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise bad_request(f"Expected a datatype of {', '.join(DTYPES)}, got another.")
    shape = _shape(table.get("shape"))
    if shape[0] > most_rows:
        raise Refusal(413, f"Expected at most {most_rows} rows, got {shape[0]}.", "rows")
    size = parameters.pop("binary_data_size", None)
    if size is None:
        if "data" not in table:
            raise bad_request("Expected data in an input, got none.")
        if numbers is not None:
            if type(table["data"]) is not int or table["data"] != place or datatype not in PACKED:
                raise bad_request("Expected data to be a list of the datatype's values in each input, got another.")
            if unread.count(numbers) != math.prod(shape):
                raise bad_request("Expected as many values as the shape says, got another number.")
            return Tensor(name, datatype, NOTHING, parameters, numbers, shape), rest
        return Tensor(name, datatype, from_json(table["data"], datatype, shape), parameters), rest
    if type(size) is not int or "data" in table or not 0 <= size <= len(rest):
        raise bad_request("Expected binary_data_size to be what is there, and no data beside it, got another.")
    return Tensor(name, datatype, from_binary(rest[:size], datatype, shape), parameters), rest[size:]


def _shape(given: Any) -> tuple[int, ...]:
    fits = isinstance(given, list) and 0 < len(given) <= MOST_DIMENSIONS
    if not fits or not all(type(size) is int and 0 <= size < 2**31 for size in given):
        raise bad_request(f"Expected a shape of 1 to {MOST_DIMENSIONS} sizes, got another.")
    if given[0] == 0:
        raise bad_request("Expected at least one row, got none.")
    return tuple(given)


def from_json(data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    """A flat or nested list as an array of the datatype; no text becomes a number, and none leaves its range."""
    if not isinstance(data, list):
        raise bad_request("Expected data to be a list, got another.")
    flat = _flat(data, shape) if data and isinstance(data[0], list) else data
    if datatype == "BYTES":
        if not all(isinstance(each, str) for each in flat):
            raise bad_request("Expected texts as BYTES in data, got others.")
        return _objects([each.encode() for each in flat], shape)
    if len(flat) != math.prod(shape):
        raise bad_request("Expected as many values as the shape says, got another number.")
    if datatype == "BOOL":
        if not all(isinstance(each, bool) for each in flat):
            raise bad_request("Expected true and false as BOOL in data, got others.")
        return np.array(flat, dtype=bool).reshape(shape)
    try:
        # takes numbers alone, within the range of the datatype; several times as fast as numpy's own reading of lists
        packed = struct.pack(f"={len(flat)}{PACKED[datatype]}", *flat)
    except (struct.error, OverflowError):
        raise bad_request(f"Expected {datatype} values in data, got others.") from None
    return np.frombuffer(packed, dtype=DTYPES[datatype]).reshape(shape)


def _flat(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """The values of nested lists that have this very shape."""
    flat, sizes = data, [len(data)]
    while flat and isinstance(flat[0], list) and len(sizes) < len(shape):
        lengths = {len(part) if isinstance(part, list) else -1 for part in flat}
        if len(lengths) != 1:
            raise bad_request("Expected data of one shape, got ragged lists.")
        sizes.append(lengths.pop())
        flat = [each for part in flat for each in part]
    if tuple(sizes) != shape:
        raise bad_request("Expected nested data of the shape that is declared, got another.")
    return flat


def _objects(values: list[bytes], shape: tuple[int, ...]) -> Array:
    if len(values) != math.prod(shape):
        raise bad_request("Expected as many values as the shape says, got another number.")
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def from_binary(data: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """Little-endian values in row order; BYTES: each with its length, four bytes, before it."""
    if datatype == "BYTES":
        values, at = [], 0
        while at + 4 <= len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            values.append(bytes(data[at + 4 : at + 4 + size]))
            at += 4 + size
        if at != len(data):
            raise bad_request("Expected BYTES with their lengths before them, got others.")
        return _objects(values, shape)
    dtype = DTYPES[datatype]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise bad_request("Expected as many bytes as shape and datatype say, got another number.")
    if dtype.kind == "b":
        flags = np.frombuffer(data, dtype=np.uint8)
        if flags.size and flags.max() > 1:
            raise bad_request("Expected 0 or 1 as BOOL, got others.")
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)


def _table(given: Any, allowed: Sequence[str], what: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise bad_request(f"Expected {what} to be an object, got another.")
    for name in given:
        if name not in allowed:
            raise not_allowed(f"Expected of {what} only {', '.join(allowed)}, got more.")
    return given


def _parameters(table: dict[str, Any], own: tuple[str, ...], passed: frozenset[str]) -> dict[str, Any]:
    """Parameters that the protocol needs, or that the configuration passes; any other is refused."""
    given = table.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request("Expected parameters to be an object, got another.")
    for name, value in given.items():
        if name not in own and name not in passed:
            allowed = sorted({*own, *passed})
            raise not_allowed(f"Expected parameters of {', '.join(allowed) or 'none'}, got another.")
        if not isinstance(value, (str, int, float, bool)):
            raise bad_request("Expected parameters to be texts, numbers or true and false, got others.")
    return given


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.pop(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"Expected {name} to be true or false, got another.")
    return value


# Checking against what the model declares


def check_inputs(inputs: list[Tensor], declared: Sequence[TensorSpec]) -> None:
    """Refuse what the model does not declare: another name, datatype or shape, or one missing."""
    specs = {spec.name: spec for spec in declared}
    if len(inputs) != len(specs) or any(tensor.name not in specs for tensor in inputs):
        raise bad_request(f"Expected inputs {', '.join(specs)}, got others.")
    for tensor in inputs:
        spec = specs[tensor.name]
        if tensor.datatype != spec.datatype:
            raise bad_request(f"Expected {spec.datatype} for input {spec.name}, got {tensor.datatype}.")
        shape = tensor.shape
        if len(shape) != len(spec.shape) or any(e not in (-1, s) for e, s in zip(spec.shape, shape, strict=True)):
            raise bad_request(f"Expected shape {list(spec.shape)} for input {spec.name}, got {list(shape)}.")


# Writing


def write_response(
    about: Mapping[str, Any], arrays: Mapping[str, Array], wanted: Mapping[str, bool]
) -> tuple[bytes, int]:
    """A body, and the length of its JSON part; 0 where it has no other."""
    outputs, blobs = [], []
    for name, binary in wanted.items():
        array = arrays[name]
        shown: dict[str, Any] = {"name": name, "datatype": NAMES[array.dtype], "shape": array.shape}
        if binary:
            blob = to_binary(array)
            blobs.append(blob)
            shown["parameters"] = {"binary_data_size": len(blob)}
        else:
            shown["data"] = to_json(array)
        outputs.append(shown)
    head = orjson.dumps({**about, "outputs": outputs}, option=NUMPY)
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, 0)


def to_binary(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(len(value).to_bytes(4, "little") + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def to_json(array: Array) -> Any:
    if array.dtype == object:
        return [value.decode("utf-8", "replace") for value in array.ravel()]
    return array.ravel().tolist() if array.dtype == np.float16 else array.ravel()


# Talking to an upstream


def write_request(request: Request, outputs: Sequence[str], binary: bool) -> tuple[bytes, int]:
    """A request of our own, built from what was checked: nothing else of the client's goes on."""
    inputs, blobs = [], []
    for tensor in request.inputs:
        shown: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        parameters = dict(tensor.parameters)
        if binary:
            blob = to_binary(tensor.array)
            blobs.append(blob)
            parameters["binary_data_size"] = len(blob)
        elif tensor.unread is not None:
            shown["data"] = unread.fragment(tensor.unread)
        else:
            shown["data"] = to_json(tensor.array)
        if parameters:
            shown["parameters"] = parameters
        inputs.append(shown)
    asked = [{"name": name, "parameters": {"binary_data": True}} if binary else {"name": name} for name in outputs]
    tree: dict[str, Any] = {"inputs": inputs, "outputs": asked}
    if request.parameters:
        tree["parameters"] = request.parameters
    head = orjson.dumps(tree, option=NUMPY)
    return (b"".join([head, *blobs]), len(head)) if binary else (head, 0)


def read_response(body: bytes, header: bytes | None, outputs: Sequence[str]) -> dict[str, Array]:
    """The named outputs of an upstream's answer; all else in it is left behind."""
    tree, rest = split(body, header)
    found: dict[str, Array] = {}
    for each in tree["outputs"]:
        size = (each.get("parameters") or {}).get("binary_data_size")
        data, rest = (rest[:size], rest[size:]) if size is not None else (None, rest)
        name = each["name"]
        if name not in outputs:
            continue
        shape = _shape(each["shape"])
        if data is not None:
            found[name] = from_binary(data, each["datatype"], shape)
        else:
            found[name] = from_json(each["data"], each["datatype"], shape)
    if set(found) != set(outputs):
        raise bad_request("Expected every output that was asked for, got fewer.")
    return found
