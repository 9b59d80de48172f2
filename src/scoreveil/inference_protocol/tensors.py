"""Arrays as the protocol writes them: values in JSON, or little-endian bytes in row order."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoreveil.inference_protocol.errors import bad_request

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]  # fmt: skip
DTYPES: dict[Datatype, np.dtype[Any]] = {
    name: np.dtype(object if name == "BYTES" else name.lower().replace("fp", "float")) for name in get_args(Datatype)
}
FLOATS: tuple[Datatype, ...] = ("FP16", "FP32", "FP64")  # each holds all values of those before it
NAMES = {dtype: name for name, dtype in DTYPES.items()}
CODES = dict(zip(get_args(Datatype)[1:-1], "BHIQbhiqefd", strict=True))  # what `struct` calls the numbers


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as a model declares it; -1 stands for any size."""

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]


def from_json(data: object, datatype: Datatype, shape: tuple[int, ...], name: str) -> Array:
    """A flat or nested list as an array of the datatype; no text becomes a number, and none leaves its range."""
    if not isinstance(data, list):
        raise bad_request(f"The data of tensor {name!r} is not a list.")
    flat = flattened(data, shape, name)
    if datatype == "BYTES":
        if not all(isinstance(each, str) for each in flat):
            raise bad_request(f"Tensor {name!r} is declared as BYTES, but its data are not all texts.")
        return objects([each.encode() for each in flat], shape)
    if datatype == "BOOL":
        if not all(isinstance(each, bool) for each in flat):
            raise bad_request(f"Tensor {name!r} is declared as BOOL, but its data are not all true or false.")
        return np.array(flat, dtype=bool).reshape(shape)
    try:
        # takes numbers alone, within the range of the datatype; several times as fast as numpy's own reading of lists
        packed = struct.pack(f"={len(flat)}{CODES[datatype]}", *flat)
    except (struct.error, OverflowError):
        raise bad_request(f"Tensor {name!r} holds something that is not a number in the range of {datatype}.") from None
    return np.frombuffer(packed, dtype=DTYPES[datatype]).reshape(shape)


def check_count(count: int, shape: tuple[int, ...], name: str) -> None:
    if count != math.prod(shape):
        raise bad_request(f"Tensor {name!r} has {count} values; its shape {list(shape)} says {math.prod(shape)}.")


def flattened(data: list[Any], shape: tuple[int, ...], name: str) -> list[Any]:
    """The values of a flat list, or of nested lists that have this very shape."""
    flat = _flat(data, shape, name) if data and isinstance(data[0], list) else data
    check_count(len(flat), shape, name)
    return flat


def _flat(data: list[Any], shape: tuple[int, ...], name: str) -> list[Any]:
    """The values of nested lists that have this very shape."""
    flat, sizes = data, [len(data)]
    while flat and isinstance(flat[0], list) and len(sizes) < len(shape):
        lengths = {len(part) if isinstance(part, list) else -1 for part in flat}
        if len(lengths) != 1:
            raise bad_request(f"The nested lists of tensor {name!r} differ in length at depth {len(sizes)}.")
        sizes.append(lengths.pop())
        flat = [each for part in flat for each in part]
    if tuple(sizes) != shape:
        raise bad_request(f"The nested lists of tensor {name!r} have shape {sizes}; {list(shape)} is declared.")
    return flat


def objects(values: Sequence[object], shape: tuple[int, ...]) -> Array:
    """An array of Python's objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def texts(array: Array) -> Array:
    """BYTES as Python's texts."""
    return objects([value.decode("utf-8", "replace") for value in array.ravel()], array.shape)


def from_binary(data: memoryview, datatype: Datatype, shape: tuple[int, ...], name: str) -> Array:
    """Little-endian values in row order; BYTES: each with its length, four bytes, before it."""
    if datatype == "BYTES":
        values, at = [], 0
        while at + 4 <= len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            values.append(bytes(data[at + 4 : at + 4 + size]))
            at += 4 + size
        if at != len(data):
            raise bad_request(f"The binary data of tensor {name!r} end within a text, or within its length.")
        check_count(len(values), shape, name)
        return objects(values, shape)
    dtype = DTYPES[datatype]
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(data):
        raise bad_request(
            f"Tensor {name!r} has {len(data)} bytes; {datatype} of shape {list(shape)} takes {needed} bytes."
        )
    if dtype.kind == "b":
        flags = np.frombuffer(data, dtype=np.uint8)
        if flags.size and flags.max() > 1:
            raise bad_request(f"Tensor {name!r} is declared as BOOL, but its bytes are not all 0 or 1.")
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)


def to_json(array: Array) -> object:
    """The values in row order, as orjson writes them."""
    if array.dtype == object:
        return [value.decode("utf-8", "replace") for value in array.ravel()]
    return array.ravel().tolist() if array.dtype == np.float16 else array.ravel()


def to_binary(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(len(value).to_bytes(4, "little") + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
