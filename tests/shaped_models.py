"""Small models whose scores are not vectors, written to files; and records to fit veils on."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
X = RNG.normal(scale=2, size=(40, 4)).astype(np.float32)
WEIGHTS = RNG.normal(size=(4, 6)).astype(np.float32)
LABELS = (X[:, :3] > 0).astype(int)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def two_sides(classes: int, records: int = 3000, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Scores and labels of records that a model was not trained on, then of ones that it was, and knows better."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for known in (0.0, 1.5):
        labels = rng.integers(0, classes, records)
        logits = 1.5 * rng.normal(size=(records, classes))
        logits[np.arange(records), labels] += 2 + known + rng.normal(size=records)
        found += [softmax(logits), labels]
    return tuple(found)


def onnx_file(path: Path, columns: int, *nodes: Any, outputs: dict[str, tuple[Any, list[Any]]]) -> Path:
    """A linear model x -> z of so many columns, with further nodes."""
    made = [numpy_helper.from_array(WEIGHTS[:, :columns], "w"), numpy_helper.from_array(np.array([5]), "five")]
    made.append(numpy_helper.from_array(np.array([0, 2, 3]), "places"))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        made,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def made_models(folder: Path) -> None:
    number, whole = TensorProto.FLOAT, TensorProto.INT64
    node = helper.make_node
    onnx_file(folder / "one.onnx", 1, node("Sigmoid", ["z"], ["p"]), outputs={"p": (number, ["n", 1])})
    onnx_file(folder / "tags.onnx", 3, node("Sigmoid", ["z"], ["p"]), outputs={"p": (number, ["n", 3])})
    onnx_file(
        folder / "list.onnx",
        6,
        node("Softmax", ["z"], ["p"], axis=1),
        node("TopK", ["p", "five"], ["values", "indices"]),
        outputs={"values": (number, ["n", 5]), "indices": (whole, ["n", 5])},
    )
    onnx_file(
        folder / "places.onnx",
        6,
        node("Reshape", ["z", "places"], ["zz"]),
        node("Softmax", ["zz"], ["p"], axis=2),
        outputs={"p": (number, ["n", 2, 3])},
    )
