"""Requests and answers of the OpenAI-compatible routes, in their two forms: chat completions and completions.

Both are allow-lists. What a request may hold is named here; what is not is refused. Answers are written anew from a
text, a reason to stop and counts of tokens: nothing else of a model server's answer is read.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta

from scoreveil.gateway.labels import NoLabel
from scoreveil.inference_protocol.errors import ApiError, bad_request, not_allowed
from scoreveil.inference_protocol.messages import Name, check_parts, fitted, parsed
from scoreveil.same_record.texts import normal_form

MAX_TOP = 20  # of top_logprobs
FINISHED = ("stop", "length", "content_filter")
COUNTS = ("prompt_tokens", "completion_tokens")  # not cached_tokens, which tell what others have asked
MAX_NAME = 40
UNREADABLE = "\ufffd"
UNLIKELY = -9999.0  # the logprob of what has no probability, as OpenAI writes it

Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
Tokens = Annotated[int, Meta(ge=1, lt=2**31)]
JsonObject = dict[str, object]
Ranked = Sequence[tuple[str, float]]  # labels and their logprobs, the top one first


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message; pictures, sound and calls of tools are not served."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1)]
    name: Name | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class CompletionSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What requests of both forms may hold. Of some fields only the value that changes nothing is allowed: `IDLE`."""

    model: Name
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None


class ChatRequest(CompletionSettings, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    @property
    def question(self) -> list[dict[str, str]]:
        """What the model is asked, as it goes on: the one way of writing it."""
        names = [{} if message.name is None else {"name": message.name} for message in self.messages]
        return [
            {"role": message.role, "content": message.text, **name}
            for message, name in zip(self.messages, names, strict=True)
        ]

    @property
    def top(self) -> int | None:
        """How many top logprobs the client wants beside the label's own; None: no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(CompletionSettings, kw_only=True):
    """POST /v1/completions, the older form."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]
    logprobs: Top | None = None
    echo: bool | None = None
    best_of: int | None = None

    @property
    def question(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]

    @property
    def top(self) -> int | None:
        return self.logprobs


Request = ChatRequest | CompletionRequest
# what clients may send as long as it does nothing: one answer at a time, and who moves logits can measure them
IDLE = {"n": 1, "best_of": 1, "echo": False, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}
# what goes on to a model whose texts pass; of all else, either it is nothing or the gateway sees to it
PASSED = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop")


class Addressed(msgspec.Struct):
    """Of a request that is yet to be read: the model it is for, and which form it has."""

    model: str
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class CompletionForm:
    """How requests are read, asked for and written: here those of chats, in `TextForm` the older ones."""

    path = "/chat/completions"
    kind, piece = "chat.completion", "chat.completion.chunk"  # `object` of an answer, and of a part of a stream
    prefix = "chatcmpl"  # of ids
    holds = "messages"  # the field that holds the prompt
    request: type[Request] = ChatRequest

    def read(self, tree: dict[str, Any]) -> Request:
        """A request, or a ApiError that says what to leave out. null is as good as nothing."""
        given = {name: value for name, value in tree.items() if value is not None}
        for name in given:
            if name not in self.request.__struct_fields__:
                shown = repr(name) if name.isidentifier() and len(name) <= MAX_NAME else "a field"
                raise not_allowed(f"The request has {shown}, which is not served; leave it out.")
        request = fitted(given, self.request)
        for name, idle in IDLE.items():
            if getattr(request, name, None) not in (None, idle):
                raise not_allowed(f"Only {name} = {orjson.dumps(idle).decode()} is served; leave it out.")
        if getattr(request, "top_logprobs", None) is not None and request.top is None:
            raise bad_request("top_logprobs needs logprobs = true; add that, or leave top_logprobs out.")
        return request

    def with_logprobs(self, count: int) -> JsonObject:
        """The fields that ask a model server for the first token's likeliest values."""
        return {"logprobs": True, "top_logprobs": count}

    def choice(self, text: str | None) -> JsonObject:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, first: bool) -> JsonObject:
        """A choice that holds the next part of the text."""
        return {"delta": {**({"role": "assistant"} if first else {}), "content": text}}

    def text(self, choice: Mapping[str, Any]) -> Any:
        """The text of a model server's choice."""
        return choice["message"]["content"]

    def next_text(self, choice: Mapping[str, Any]) -> Any:
        return choice["delta"].get("content")

    def logprobs(self, ranked: Ranked, count: int) -> JsonObject:
        """Labels and their logprobs, where clients look for them."""
        shown = [{"token": label, "logprob": logprob, "bytes": list(label.encode())} for label, logprob in ranked]
        return {"content": [{**shown[0], "top_logprobs": shown[:count]}], "refusal": None}

    def answer(
        self, model: str, text: str | None, finish: str, usage: dict[str, int], logprobs: JsonObject | None = None
    ) -> bytes:
        choice = {"index": 0, **self.choice(text), "logprobs": logprobs, "finish_reason": finish}
        return orjson.dumps({**self.head(self.kind, model), "choices": [choice], "usage": usage})

    def head(self, kind: str, model: str) -> JsonObject:
        number = f"{self.prefix}-{secrets.token_hex(12)}"
        return {"id": number, "object": kind, "created": int(time.time()), "model": model}


class TextForm(CompletionForm):
    path = "/completions"
    kind, piece, prefix, holds = "text_completion", "text_completion", "cmpl", "prompt"
    request = CompletionRequest

    def with_logprobs(self, count: int) -> JsonObject:
        return {"logprobs": count}

    def choice(self, text: str | None) -> JsonObject:
        return {"text": text}

    def delta(self, text: str, first: bool) -> JsonObject:
        return {"text": text}

    def text(self, choice: Mapping[str, Any]) -> Any:
        return choice["text"]

    next_text = text

    def logprobs(self, ranked: Ranked, count: int) -> JsonObject:
        label, logprob = ranked[0]
        top = [dict(ranked[:count])] if count else None
        return {"tokens": [label], "token_logprobs": [logprob], "top_logprobs": top, "text_offset": [0]}


CHAT, TEXT = CompletionForm(), TextForm()


def addressed(body: bytes, form: CompletionForm) -> str:
    """The name of the model that a request is for, which must have this form."""
    check_parts(body)
    try:
        request = msgspec.json.decode(body, type=Addressed)
    except msgspec.ValidationError:
        raise bad_request("The request does not name its model; GET /v1/models lists them.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise bad_request("The request is not JSON.") from None
    if getattr(request, form.holds) is msgspec.UNSET:
        raise bad_request(f"The request has no {form.holds}, which this path takes.")
    return request.model


def read(body: bytes) -> tuple[CompletionForm, Request]:
    """A request, and which form it has."""
    tree = parsed(body)
    form = CHAT if CHAT.holds in tree else TEXT
    return form, form.read(tree)


# What a model server answers


def first_token(form: CompletionForm, choice: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The likeliest values of the first token and their logprobs; in either form, since servers mix them up.

    Raises:
        ApiError: The server gives none; llama.cpp's does not where the text is empty, or a part of a letter.
    """
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content"):
        listed = [(token["token"], token["logprob"]) for token in logprobs["content"][0].get("top_logprobs") or ()]
    else:
        listed = list(((logprobs.get("top_logprobs") or [None])[0] or {}).items())
    likeliest = [(token, float(logprob)) for token, logprob in listed if logprob is not None]
    if not likeliest and not form.text(choice).strip(UNREADABLE):
        raise NoLabel
    if not likeliest:
        words = "The model server gives no logprobs, so there is no confidence"
        raise ApiError(502, f"{words}; the gateway's operator has to take a server that does.", "no_logprobs")
    if any(not isinstance(token, str) or logprob != logprob for token, logprob in likeliest):
        raise ValueError("A token is a text, and its logprob a number.")
    return likeliest


def finish_reason(choice: Mapping[str, Any]) -> str:
    reason = choice.get("finish_reason")
    return reason if reason in FINISHED else "stop"


def usage(answer: Mapping[str, Any]) -> dict[str, int]:
    """How many tokens there were, where the server says it."""
    stated = answer.get("usage") or {}
    counts = {name: stated.get(name) for name in COUNTS}
    known = {name: count if type(count) is int and count >= 0 else 0 for name, count in counts.items()}
    return {**known, "total_tokens": sum(known.values())}


# What a record is


def record_of(form: CompletionForm, prompt: object) -> bytes:
    """The bytes that tell a prompt, system prompts and all."""
    return orjson.dumps([form.kind, prompt], option=orjson.OPT_SORT_KEYS)


def likeness(prompt: Any) -> str:
    """What prompts share that differ in blanks, punctuation, case, roles or invisible signs alone.

    It is no number, whatever the prompt is: numbers would be compared as such.
    """
    text = prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)
    return f"words {normal_form(text)}"
