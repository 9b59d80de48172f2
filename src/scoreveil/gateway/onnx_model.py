"""A model in the ONNX format, run by ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.gateway.embedded_model import EmbeddedModel, as_bytes, as_column, tried
from scoreveil.inference_protocol.tensors import DTYPES, Array, Arrays, Datatype, TensorSpec, texts
from scoreveil.onnx_session import FLOATS, open_session

TYPES: dict[str, Datatype] = {
    **{f"tensor({dtype.name})": name for name, dtype in DTYPES.items() if dtype.kind in "biuf"},
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
MAPS = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")  # what skl2onnx's ZipMap gives


def load(path: Path, scores: tuple[str, ...]) -> EmbeddedModel:
    """The model in a file. The default name of `scores` stands for its one output of floating-point numbers."""
    session = open_session(path, threads=1)  # workers are processes: threads of theirs would only contend
    for given in session.get_inputs():
        if given.type not in TYPES:
            raise ValueError(f"Input {given.name} of {path.name} is a {given.type}; the gateway sends plain tensors.")
    inputs = tuple(_spec(given) for given in session.get_inputs())
    outputs = {given.name: _spec(given) for given in session.get_outputs() if given.type in TYPES}
    keys: dict[str, list[Any]] = {}
    for given in session.get_outputs():
        if given.type in MAPS:
            keys[given.name] = _keys(session, given.name, inputs, path)
            outputs[given.name] = TensorSpec(given.name, "FP32", (-1, len(keys[given.name])))
    if scores == ("scores",) and "scores" not in outputs:
        floating = [given.name for given in session.get_outputs() if given.type in (*FLOATS, *MAPS)]
        if len(floating) != 1:
            raise ValueError(f"{path.name} has the outputs {', '.join(outputs)}; name those that are scores in scores.")
        scores = (floating[0],)

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        found = session.run(wanted, _fed(arrays))
        return {name: _array(given, keys.get(name)) for name, given in zip(wanted, found, strict=True)}

    named = next(iter(keys.values()), [])
    return EmbeddedModel("onnxruntime", inputs, outputs, run, scores, tuple(str(key) for key in named))


def _spec(given: Any) -> TensorSpec:
    sizes = tuple(size if isinstance(size, int) else -1 for size in given.shape)
    if given.type in FLOATS and len(sizes) == 1:
        sizes = (*sizes, 1)  # a number for each row is a column
    return TensorSpec(given.name, TYPES[given.type], sizes)


def _fed(arrays: Arrays) -> dict[str, Array]:
    return {name: texts(array) if array.dtype == object else array for name, array in arrays.items()}


def _array(given: Any, keys: list[Any] | None) -> Array:
    if keys is not None:
        return np.array([[row[key] for key in keys] for row in given], dtype=np.float32)
    if given.dtype == object:
        return as_bytes(given)
    return as_column(given)


def _keys(session: Any, name: str, inputs: tuple[TensorSpec, ...], path: Path) -> list[Any]:
    """The classes of an output that names them in every row: known when the model has been asked."""
    found = tried(lambda arrays: {name: session.run([name], _fed(arrays))[0]}, inputs)
    if not found or not len(found[name]):
        raise ValueError(
            f"Output {name} of {path.name} is a list of dictionaries, whose classes cannot be told; "
            "convert the model with skl2onnx's option zipmap=False."
        )
    return list(found[name][0])
