"""ONNX Runtime: a session that answers with veiled scores.

    from scoreveil.integrations.onnx import VeiledSession

    session = VeiledSession("model.onnx", epsilon=2.0, labels="label")
    label, z = session.run(None, {"x": records})

Of the model's outputs only the scores, veiled, and the labels, where named, can be asked for.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.integrations.records import LogitsCheck, RecordVeil, check_axes, check_no_logits
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.onnx_session import FLOATS, open_session
from scoreveil.veil import Veil, VeilOptions

with needs("onnx"):
    import onnxruntime

LABELS = ("tensor(int64)", "tensor(int32)", "tensor(string)")


class VeiledSession:
    """An inference session behind a veil.

    Args:
        session: An `onnxruntime.InferenceSession`, or the path or bytes of a model.
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        scores: The name of the output that holds the scores; not needed where only one can.
        labels: The name of an output of labels to let through as it is.
        outputs: What the scores are: "probabilities", or "logits". Of logits the softmax is taken here, and the
            sigmoid where the shape is one of yes and no (`Binary`, `MultiLabel`); an answer that holds
            probabilities already is then refused.
        options: As in `Veil`.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession | str | PathLike[str] | bytes,
        epsilon: float | Mechanism | Veil,
        *,
        scores: str | None = None,
        labels: str | None = None,
        outputs: Literal["probabilities", "logits"] = "probabilities",
        **options: Unpack[VeilOptions],
    ) -> None:
        if outputs not in ("logits", "probabilities"):
            raise ValueError(f"Expected outputs 'logits' or 'probabilities', got {outputs!r}.")
        if not isinstance(session, onnxruntime.InferenceSession):
            session = open_session(session, providers=None)
        self._session = session
        kinds = {output.name: output.type for output in session.get_outputs()}
        self._scores = _scores_output(kinds) if scores is None else _named(scores, kinds, FLOATS, "scores")
        self._labels = None if labels is None else _named(labels, kinds, LABELS, "labels")
        self._outputs = outputs
        self._veil = RecordVeil(epsilon, **options)
        check_no_logits(self._veil.veil.shape)
        way_out = 'Leave outputs="logits" out, or say outputs="probabilities".'
        self._check = LogitsCheck(self._veil.veil.shape, f"The output {self._scores}", way_out)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[NDArray[Any]]:
        """As `InferenceSession.run`: the wanted outputs, or with None all that there are here."""
        known = [output.name for output in self.get_outputs()]
        wanted = known if output_names is None else list(output_names)
        for name in wanted:
            if name not in known:
                raise ValueError(f"Expected outputs among {', '.join(known)}, got {name!r}.")
        answers = self._session.run(wanted, dict(input_feed))
        return [self._veiled(a, input_feed) if n == self._scores else a for n, a in zip(wanted, answers, strict=True)]

    def get_inputs(self) -> list[Any]:
        return list(self._session.get_inputs())

    def get_outputs(self) -> list[Any]:
        """Those that `run` knows."""
        return [output for output in self._session.get_outputs() if output.name in (self._scores, self._labels)]

    def get_providers(self) -> list[str]:
        return list(self._session.get_providers())

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee

    def _veiled(self, answer: NDArray[Any], input_feed: Mapping[str, Any]) -> NDArray[Any]:
        def ask(copies: dict[str, Any]) -> NDArray[Any]:
            return self._probabilities(self._session.run([self._scores], copies)[0])

        scores = self._veil.smoothed(self._probabilities(answer), ask, dict(input_feed))
        return self._veil(scores, [input_feed[name] for name in sorted(input_feed)])

    def _probabilities(self, answer: NDArray[Any]) -> NDArray[Any]:
        if self._outputs == "probabilities":
            return answer
        # in half precision the sum of many small probabilities drifts from 1
        wide = answer.astype(np.float32) if answer.dtype == np.float16 else answer
        check_axes(wide, self._veil.veil.shape)
        self._check(wide)
        return self._veil.veil.shape.of_logits(wide)


def _scores_output(kinds: Mapping[str, str]) -> str:
    floating = [name for name, kind in kinds.items() if kind in FLOATS]
    if len(floating) != 1:
        shown = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ValueError(
            f"Expected one output of floating-point scores, or scores= to name it, got {shown}. "
            "(A sequence of maps, as skl2onnx makes, becomes a tensor with its option zipmap=False.)"
        )
    return floating[0]


def _named(name: str, kinds: Mapping[str, str], wanted: Sequence[str], what: str) -> str:
    if kinds.get(name) not in wanted:
        raise ValueError(f"Expected an output of {what}, {' or '.join(wanted)}, got {name!r}: {kinds.get(name)}.")
    return name
