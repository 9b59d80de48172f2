"""A language model behind, over any OpenAI-compatible server: vLLM, llama.cpp, Ollama, TGI.

With labels, it is a classifier: a prompt goes in, one of the labels comes out, and its confidence is made from the
first token's probabilities, which the gateway itself asks for. What else the client set for sampling changes nothing.
Without labels, texts pass, whole or as a stream, and no logprob does.
"""

import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from scoreveil.gateway import completions
from scoreveil.gateway.completions import CHAT, UNLIKELY, ChatMessage, ChatRequest, CompletionForm, Request
from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.labels import NoLabel, label_scores
from scoreveil.gateway.opened import OpenedModel
from scoreveil.gateway.sources import Source
from scoreveil.gateway.upstream import UpstreamPool
from scoreveil.inference_protocol.errors import not_allowed
from scoreveil.inference_protocol.tensors import Array, Arrays, TensorSpec

JSON = {"Content-Type": "application/json"}
DATA, DONE = b"data:", b"[DONE]"
TRIAL, TRIAL_SECONDS = "Answer with one word.", 30.0


@dataclass(slots=True)
class LanguageQuery:
    """A prompt, in one of two forms; and what the model answered, once it was asked."""

    form: CompletionForm
    request: Request
    text: str | None = None
    finish: str = "stop"
    usage: dict[str, int] = field(default_factory=dict)
    rows: int = 1

    def records(self) -> list[bytes]:
        return [completions.record_of(self.form, self.request.question)]

    def inputs(self) -> list[Array]:
        return [np.array([completions.likeness(self.request.question)], dtype=object)]


class LanguageUpstream(Source[LanguageQuery]):
    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits) -> None:
        self._name = model.name
        self._model = upstream.model or model.name
        self._prefix = "" if upstream.url.rstrip("/").endswith("/v1") else "/v1"
        self._pool = UpstreamPool(upstream, limits)

    def read(self, body: bytes, header: bytes | None) -> LanguageQuery:
        return LanguageQuery(*completions.read(body))

    async def _ask(self, query: LanguageQuery, more: dict[str, object], seconds: float) -> dict[str, object]:
        """The one choice of the server's answer."""
        path, body = self._asked(query, more)
        answer, _ = await self._pool.post(path, body, JSON, seconds)
        try:
            tree = orjson.loads(answer)
            (choice,) = tree["choices"]
            query.usage = completions.usage(tree)
            query.finish = completions.finish_reason(choice)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise self._pool.malformed() from None
        return dict(choice)

    def _asked(self, query: LanguageQuery, more: dict[str, object]) -> tuple[str, bytes]:
        tree = {"model": self._model, query.form.holds: query.request.question, **more}
        return f"{self._prefix}{query.form.path}", orjson.dumps(tree)

    async def ready(self) -> bool:
        return await self._pool.get(f"{self._prefix}/models") is not None

    def close(self) -> None:
        self._pool.close()


class LabelledUpstream(LanguageUpstream):
    """A language model that answers with one of a few labels, and a confidence where the client asks for logprobs."""

    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits) -> None:
        super().__init__(model, upstream, limits)
        (self._score,) = model.scores
        self._labels, self._top = model.settings.labels, upstream.top_logprobs

    def read(self, body: bytes, header: bytes | None) -> LanguageQuery:
        query = super().read(body, header)
        if query.request.stream:
            raise not_allowed("A label is one piece; leave stream out.")
        return query

    async def infer(self, query: LanguageQuery, seconds: float) -> Arrays:
        """The labels' scores, where the client wants logprobs; of them, the label alone is kept beside."""
        more = {**query.form.with_logprobs(self._top), "max_tokens": 1, "temperature": 0}
        choice = await self._ask(query, more, seconds)
        try:
            scores = label_scores(completions.first_token(query.form, choice), self._labels)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise self._pool.malformed() from None
        query.text, query.finish = self._labels[int(scores.argmax())], "stop"
        return {} if query.request.top is None else {self._score: scores}

    def write(self, query: LanguageQuery, outputs: Arrays) -> tuple[bytes, int]:
        logprobs, count = None, query.request.top
        if count is not None:
            (veiled,) = outputs[self._score]
            ranked = [(self._labels[i], _logarithm(veiled[i])) for i in np.argsort(-veiled, kind="stable")]
            logprobs = query.form.logprobs(ranked, count)
        return query.form.answer(self._name, query.text, query.finish, query.usage, logprobs), 0

    async def declared(self) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The labels' scores, once a trial has shown that the server gives logprobs."""
        request = ChatRequest(model=self._name, messages=[ChatMessage("user", TRIAL)])
        with contextlib.suppress(NoLabel):  # whether the model follows its prompts is not for a trial to tell
            await self.infer(LanguageQuery(CHAT, request), TRIAL_SECONDS)
        return (), (TensorSpec(self._score, "FP64", (-1, len(self._labels))),)


class TextUpstream(LanguageUpstream):
    """A language model whose texts pass."""

    def read(self, body: bytes, header: bytes | None) -> LanguageQuery:
        query = super().read(body, header)
        if query.request.top is not None:
            raise not_allowed("This model has no labels, so it gives no logprobs; leave logprobs out.")
        return query

    async def infer(self, query: LanguageQuery, seconds: float) -> Arrays:
        """No scores; the text is kept beside."""
        choice = await self._ask(query, _sampling(query.request), seconds)
        try:
            query.text = _text(query.form.text(choice))
        except (LookupError, TypeError):
            raise self._pool.malformed() from None
        return {}

    def write(self, query: LanguageQuery, outputs: Arrays) -> tuple[bytes, int]:
        return query.form.answer(self._name, query.text, query.finish, query.usage), 0

    async def stream(self, query: LanguageQuery, seconds: float) -> AsyncGenerator[bytes, None]:
        """The answer in parts, as server-sent events."""
        form, options = query.form, query.request.stream_options
        counts = options is not None and options.include_usage
        more = {**_sampling(query.request), "stream": True}
        if counts:
            more["stream_options"] = {"include_usage": True}
        path, body = self._asked(query, more)
        head, first = form.head(form.piece, self._name), True
        async for line in self._pool.lines(path, body, JSON, seconds):
            if not line.startswith(DATA) or not (data := line.removeprefix(DATA).strip()):
                continue
            if data == DONE:
                yield _event(DONE)
                return
            try:
                tree = orjson.loads(data)
                choices = [] if tree is None else tree["choices"]
                for choice in choices:
                    text = _text(form.next_text(choice)) or ""
                    finish = None if choice.get("finish_reason") is None else completions.finish_reason(choice)
                    part = {"index": 0, **form.delta(text, first), "logprobs": None, "finish_reason": finish}
                    first = False
                    yield _event(orjson.dumps({**head, "choices": [part]}))
                if counts and tree and tree.get("usage"):
                    yield _event(orjson.dumps({**head, "choices": [], "usage": completions.usage(tree)}))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise self._pool.malformed() from None
        raise self._pool.malformed()  # it ended before it was complete


def _sampling(request: Request) -> dict[str, object]:
    settings = {name: getattr(request, name, None) for name in completions.PASSED}
    return {name: value for name, value in settings.items() if value is not None}


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("A text is expected.")
    return value


def _logarithm(probability: float) -> float:
    return math.log(probability) if probability > 0 else UNLIKELY


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
