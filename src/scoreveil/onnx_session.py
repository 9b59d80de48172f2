"""Sessions of ONNX Runtime, opened in one way."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

CPU = ("CPUExecutionProvider",)
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")


def open_session(
    model: str | PathLike[str] | bytes, *, threads: int | None = None, providers: Sequence[str] | None = CPU
) -> Any:
    """An `onnxruntime.InferenceSession`, which logs nothing: its messages may quote values.

    Args:
        model: The path or the bytes of a model.
        threads: For one call; by default as many as there are cores.
        providers: Where it may run, in order of preference; None for all that this machine offers.

    Raises:
        ValueError: onnxruntime is not installed, or the model cannot be opened.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError("An ONNX model needs onnxruntime: pip install 'scoreveil[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    source = model if isinstance(model, bytes) else str(model)
    chosen = onnxruntime.get_available_providers() if providers is None else list(providers)
    try:
        return onnxruntime.InferenceSession(source, options, providers=chosen)
    except Exception as error:  # of classes that onnxruntime does not export
        shown = "these bytes" if isinstance(model, bytes) else str(model)
        raise ValueError(f"ONNX Runtime cannot open {shown} ({type(error).__name__}).") from error


def score_outputs(session: Any) -> list[str]:
    """The outputs that can hold scores: tensors of floating-point numbers."""
    return [output.name for output in session.get_outputs() if output.type in FLOATS]
