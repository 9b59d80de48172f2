"""PyTorch: a module that answers with veiled probabilities.

    from scoreveil.integrations.torch import VeiledModule

    veiled = VeiledModule(module.eval(), epsilon=2.0)
    z = veiled(images)        # probabilities (n, k), on the device of the module's answer, without gradients

The wrapped module is no registered child, so that neither `children()` nor a hook on it leads to raw scores;
`state_dict`, `load_state_dict`, `parameters`, `to` and `eval` are the wrapped module's, key by key.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, Self, Unpack

from scoreveil.extras import needs
from scoreveil.integrations.records import LogitsCheck, RecordVeil, check_axes, check_no_logits
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil, VeilOptions

with needs("torch"):
    import torch
    from torch import Tensor, nn

Outputs = Literal["logits", "probabilities"]
HALVES = (torch.float16, torch.bfloat16)
PROBABILITIES = (nn.Softmax, nn.Softmax2d, nn.Sigmoid)  # layers that give them
WAY_OUT = 'Say outputs="probabilities".'


class VeiledModule(nn.Module):
    """A module behind a veil.

    Half-precision answers come out as float32, in which a veil can keep them apart.

    Args:
        module: Gives one row of k numbers a record, (n, k) or (k,); or what `shape` says, with the classes on the last
            axis.
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        outputs: What the module gives: "logits" or "probabilities". Of logits the softmax is taken here, and the
            sigmoid where the shape is one of yes and no (`Binary`, `MultiLabel`). A module that gives probabilities
            already is then refused: here where its last layer shows it, else at its first answer.
        options: As in `Veil`.
    """

    def __init__(
        self,
        module: nn.Module,
        epsilon: float | Mechanism | Veil,
        *,
        outputs: Outputs = "logits",
        **options: Unpack[VeilOptions],
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ValueError(f"Expected a torch.nn.Module, got {type(module).__name__}.")
        if outputs not in ("logits", "probabilities"):
            raise ValueError(f"Expected outputs 'logits' or 'probabilities', got {outputs!r}.")
        self._outputs = outputs
        self._veil = RecordVeil(epsilon, **options)
        check_no_logits(self._veil.veil.shape)
        self._yes_or_no = self._veil.veil.shape.is_binary
        self._check = LogitsCheck(self._veil.veil.shape, "The module", WAY_OUT)
        if outputs == "logits":
            _check_last_layer(module, self._yes_or_no)
        self._behind = (module,)  # in a tuple, where nn.Module does not find it, it is no public child
        self.training = module.training

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee

    @torch.compiler.disable
    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Veiled probabilities of the wrapped module's answer."""
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            _refuse_export()
        with torch.no_grad():
            scores = self._scores(*inputs, **named)
            if self._veil.veil.smoothing is not None:
                if named or len(inputs) != 1 or not isinstance(inputs[0], Tensor):
                    raise ValueError("A veil for smoothed scores takes one tensor of records.")
                x = inputs[0]
                smoothed = self._veil.smoothed(
                    scores.cpu().numpy(),
                    lambda copies: self._scores(torch.from_numpy(copies).to(x.device)).cpu().numpy(),
                    x.cpu().numpy(),
                )
                scores = torch.from_numpy(smoothed).to(scores.device)
            if not self._veil.veil.is_keyed:
                return self._veil.veil(scores)
            asked = [part.cpu().numpy() for part in (*inputs, *named.values()) if isinstance(part, Tensor)]
            return torch.from_numpy(self._veil(scores.cpu().numpy(), asked)).to(scores.device)

    def _scores(self, *inputs: Any, **named: Any) -> Tensor:
        """Probabilities of the wrapped module."""
        answer = self._behind[0](*inputs, **named)
        if not isinstance(answer, Tensor):
            raise ValueError(f"Expected a tensor from the module, got {type(answer).__name__}.")
        wide = answer.float() if answer.dtype in HALVES else answer
        check_axes(wide, self._veil.veil.shape)
        if self._outputs == "probabilities":
            return wide
        if not self._check.is_settled:
            self._check(wide.cpu().numpy())
        return torch.sigmoid(wide) if self._yes_or_no else torch.softmax(wide, dim=-1)

    # What nn.Module does with children, done with the wrapped module

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's, under its own names."""
        return self._behind[0].state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self._behind[0].load_state_dict(state_dict, strict=strict, assign=assign)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        if not remove_duplicate:  # torch.export asks so, to put others in their place, before it calls anything
            _refuse_export()
        return self._behind[0].named_parameters(prefix, recurse)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self._behind[0].named_buffers(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        self._behind[0].train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._behind[0]._apply(fn, recurse)  # to, cuda, half, …
        return self

    def extra_repr(self) -> str:
        return f"{type(self._behind[0]).__name__} behind {self._veil.veil!r}"

    # Forms in which the veil would be lost

    def __prepare_scriptable__(self) -> NoReturn:
        _refuse_export()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("A VeiledModule cannot be pickled or copied whole; save and load its state_dict.")


def _check_last_layer(module: nn.Module, yes_or_no: bool) -> None:
    """Raise ValueError where a module that is said to give logits ends in a softmax or sigmoid."""
    last = module
    while children := list(last.children()):
        last = children[-1]
        if not isinstance(last, nn.Sequential):  # in a module of one's own, deep down, the last need not be the end
            break
    if not isinstance(last, PROBABILITIES):
        return
    shape = "" if yes_or_no or not isinstance(last, nn.Sigmoid) else " and shape=MultiLabel() or Binary()"
    raise ValueError(
        f"The last layer of the module is a {type(last).__name__}: it gives probabilities, and not logits. "
        f'Say outputs="probabilities"{shape}. If its answers do not go through that layer, wrap it: '
        "nn.Sequential(module, nn.Identity())."
    )


def _refuse_export() -> NoReturn:
    raise RuntimeError(
        "A VeiledModule cannot be scripted, traced or exported: a recorded graph would repeat one draw for ever or "
        "drop the veil. Export the module itself, and veil its answers where it is served."
    )
