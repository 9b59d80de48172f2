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
    for tensor in session.get_inputs():
        if tensor.type not in TYPES:
            raise ValueError(f"Input {tensor.name} of {path.name} is a {tensor.type}; the gateway sends plain tensors.")
    inputs, declared = tuple(_spec(tensor) for tensor in session.get_inputs()), session.get_outputs()
    outputs = {tensor.name: _spec(tensor) for tensor in declared if tensor.type in TYPES}
    keys = {tensor.name: _keys(session, tensor.name, inputs, path) for tensor in declared if tensor.type in MAPS}
    outputs |= {name: TensorSpec(name, "FP32", (-1, len(classes))) for name, classes in keys.items()}
    if scores == ("scores",) and "scores" not in outputs:
        scores = tuple(tensor.name for tensor in declared if tensor.type in (*FLOATS, *MAPS))
        if len(scores) != 1:
            raise ValueError(f"{path.name} has the outputs {', '.join(outputs)}; name those that are scores in scores.")

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        outputs = session.run(wanted, _fed(arrays))
        return {name: _array(output, keys.get(name)) for name, output in zip(wanted, outputs, strict=True)}

    named = next(iter(keys.values()), [])
    return EmbeddedModel("onnxruntime", inputs, outputs, run, scores, tuple(str(key) for key in named))


def _spec(declared: Any) -> TensorSpec:
    sizes = tuple(size if isinstance(size, int) else -1 for size in declared.shape)
    if declared.type in FLOATS and len(sizes) == 1:
        sizes = (*sizes, 1)  # a number for each row is a column
    return TensorSpec(declared.name, TYPES[declared.type], sizes)


def _fed(arrays: Arrays) -> dict[str, Array]:
    return {name: texts(array) if array.dtype == object else array for name, array in arrays.items()}


def _array(output: Any, keys: list[Any] | None) -> Array:
    if keys is not None:
        return np.array([[row[key] for key in keys] for row in output], dtype=np.float32)
    return as_bytes(output) if output.dtype == object else as_column(output)


def _keys(session: Any, name: str, inputs: tuple[TensorSpec, ...], path: Path) -> list[Any]:
    """The classes of an output that names them in every row: known when the model has been asked."""
    answer = tried(lambda arrays: {name: session.run([name], _fed(arrays))[0]}, inputs)
    if not answer or not len(answer[name]):
        raise ValueError(
            f"Output {name} of {path.name} is a list of dictionaries, whose classes cannot be told; "
            "convert the model with skl2onnx's option zipmap=False."
        )
    return list(answer[name][0])
