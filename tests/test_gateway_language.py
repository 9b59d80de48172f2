"""Language models behind the gateway: llama.cpp's own server with a small model trained here, and OpenAI's client.

And servers that answer wrongly, or more than they were asked.
"""

import hashlib
import json
import math
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from doc_pages import ROOT, blocks
from experiments.language.small_language_model import PROMPT, SmallLanguageModel, llama_server, train
from gateway_servers import SCOREVEIL, Behind, Gateway, gateway

pytestmark = [pytest.mark.slow, pytest.mark.linux]

PAGE = ROOT / "docs" / "language-models.md"
LABELS = ("gateway", "paper")
MARK = "739173"  # digits that a hostile server alone knows
KEYS = {name: f"key-of-{name}-{'5' * 20}" for name in ("alice", "frugal")}


def lines_of(page: str) -> list[str]:
    """The longer lines of a page of the documentation."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [line[:120] for line in lines if len(line) > 60 and line[0].isalpha()]


LEARNED = [
    (line, label) for label, page in zip(LABELS, ("serve.md", "paper.md"), strict=True) for line in lines_of(page)[:40]
]


@pytest.fixture(scope="module")
def model() -> SmallLanguageModel:
    """It tells from which page a line is."""
    prompts, answers = zip(*((PROMPT.format(text=text), label) for text, label in LEARNED), strict=True)
    return train(prompts, answers, vocabulary=500, width=32, layers=1, epochs=6, rate=5e-3)


@pytest.fixture(scope="module")
def llama(model: SmallLanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("llama") / "pages.gguf"
    model.write(path)
    with llama_server(path) as url:
        yield url


@pytest.fixture(scope="module")
def hostile() -> Iterator[Behind]:
    server = Behind(answered)
    yield server
    server.close()


class Endless(BaseHTTPRequestHandler):
    """It goes on as long as somebody listens."""

    left = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(event(PIECE))
                time.sleep(0.05)
        except OSError:
            self.left.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endless() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def front(llama: str, hostile: Behind, endless: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    hashes = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    toml = f"""
    logs = {{ requests = true }}
    limits = {{ seconds = 20.0, upstream_bytes = 100_000 }}
    [auth]
    mode = "keys"
    clients = [
        {{ name = "alice", sha256 = "{hashes["alice"]}" }},
        {{ name = "frugal", sha256 = "{hashes["frugal"]}", epsilon = 4.0 }},
    ]
    [models.pages]
    epsilon = 2.0
    labels = ["gateway", "paper"]
    upstream = {{ url = "{llama}/v1", protocol = "openai" }}
    [models.counted]
    epsilon = 1.0
    memory.epsilon = 2.0
    memory.repeat = "refuse"
    labels = ["gateway", "paper"]
    upstream = {{ url = "{llama}", protocol = "openai" }}
    [models.writer]
    upstream = {{ url = "{llama}", protocol = "openai" }}
    [models.broken]
    epsilon = 2.0
    labels = ["gateway", "paper"]
    upstream = {{ url = "{hostile.url}", protocol = "openai", model = "theirs" }}
    [models.chatty]
    upstream = {{ url = "{hostile.url}", protocol = "openai" }}
    [models.endless]
    upstream = {{ url = "{endless}", protocol = "openai" }}
    """
    with gateway(tmp_path_factory.mktemp("front"), toml) as made:
        yield made


def client_of(front: Gateway, name: str = "alice") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key=KEYS.get(name, name), max_retries=0)


@pytest.fixture
def client(front: Gateway) -> Iterator[openai.OpenAI]:
    with client_of(front) as made:
        yield made


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def count(front: Gateway, what: str, model: str) -> float:
    return front.metrics().get(f'scoreveil_{what}_total{{model="{model}"}}', 0.0)


def raw_scores(model: SmallLanguageModel, texts: list[str]) -> np.ndarray:
    logprobs = model.next_logprobs([PROMPT.format(text=text) for text in texts])
    numbers = [model.tokenizer.token_to_id(f"Ġ{label}") for label in LABELS]
    masses = np.exp(logprobs[:, numbers])
    return masses / masses.sum(axis=1, keepdims=True)


def test_the_server_says_what_the_study_computes(llama: str, model: SmallLanguageModel) -> None:
    """experiments/language/__main__.py takes logprobs from the network itself."""
    text = LEARNED[3][0]
    with openai.OpenAI(base_url=f"{llama}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="any", messages=said(text), logprobs=True, top_logprobs=5, max_tokens=1, temperature=0
        )
    assert answer.choices[0].logprobs is not None
    (token,) = answer.choices[0].logprobs.content or ()
    expected = np.sort(model.next_logprobs([PROMPT.format(text=text)])[0])[::-1][:5]
    np.testing.assert_allclose([each.logprob for each in token.top_logprobs], expected, atol=0.01)


# A model with labels


def test_the_label_is_the_models_and_its_confidence_is_veiled(
    client: openai.OpenAI, front: Gateway, model: SmallLanguageModel
) -> None:
    texts = [text for text, _ in LEARNED[::8]]
    raw = raw_scores(model, texts)
    before = count(front, "charged", "pages")
    veiled = []
    for text, scores in zip(texts, raw, strict=True):
        answer = client.chat.completions.create(model="pages", messages=said(text), logprobs=True, top_logprobs=2)
        (choice,) = answer.choices
        assert answer.model == "pages"
        assert choice.message.content == LABELS[scores.argmax()]
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None
        (token,) = choice.logprobs.content or ()
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, token.top_logprobs[0].logprob)
        assert token.token == choice.message.content
        found = {each.token: math.exp(each.logprob) for each in token.top_logprobs}
        assert sum(found.values()) == pytest.approx(1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(model.tokens(PROMPT.format(text=text)))
        veiled.append([found[label] for label in LABELS])
    assert np.abs(np.array(veiled) - raw).max() > 0.01, "at ε = 2 ten answers do not all stay where they were"
    assert count(front, "charged", "pages") - before == len(texts), "ε is spent once an answer"


def test_the_same_words_are_one_record_on_both_routes_and_in_any_dress(client: openai.OpenAI, front: Gateway) -> None:
    text = "A record that nobody else asks about, told in a few words."
    before = count(front, "charged", "pages")
    found, labels = set(), set()
    for dress in (text, text, f"  {text.upper()}!", text.replace(" ", "\n\u200b "), text.replace("few", "ｆｅｗ")):
        answer = client.chat.completions.create(model="pages", messages=said(dress), logprobs=True)
        assert answer.choices[0].logprobs is not None
        labels.add(answer.choices[0].message.content)
        found.add((answer.choices[0].message.content, answer.choices[0].logprobs.content[0].logprob))
    parts: Any = [{"role": "system", "content": [{"type": "text", "text": text}]}]
    client.chat.completions.create(model="pages", messages=parts, logprobs=True)
    older = client.completions.create(model="pages", prompt=text, logprobs=2)
    assert older.choices[0].logprobs is not None
    assert count(front, "charged", "pages") - before == 1
    assert len(found) == len(labels), "one confidence, given with the label that is true there"


def test_numbers_as_prompts_are_records_of_their_own(client: openai.OpenAI, front: Gateway) -> None:
    before = count(front, "charged", "pages")
    for text in ("5", "7", "nan"):
        client.chat.completions.create(model="pages", messages=said(text), logprobs=True)
    assert count(front, "charged", "pages") - before == 3


def test_a_label_alone_costs_nothing(client: openai.OpenAI, front: Gateway) -> None:
    before = count(front, "charged", "pages"), count(front, "rows", "pages"), count(front, "rows", "counted")
    for model in ("pages", "counted", "counted", "counted"):
        answer = client.chat.completions.create(model=model, messages=said("No confidence, please"), temperature=0)
        assert answer.choices[0].message.content in LABELS
        assert answer.choices[0].logprobs is None
    assert before == (count(front, "charged", "pages"), count(front, "rows", "pages"), count(front, "rows", "counted"))


def test_the_older_form_has_its_logprobs_where_its_clients_look(client: openai.OpenAI) -> None:
    prompt = PROMPT.format(text="The gateway stands before the model.")
    (choice,) = client.completions.create(model="pages", prompt=[prompt], logprobs=2, max_tokens=1).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [choice.text]
    assert choice.logprobs.text_offset == [0]
    (top,) = choice.logprobs.top_logprobs or ()
    assert set(top) == set(LABELS)
    assert choice.logprobs.token_logprobs == [top[choice.text]] == [max(top.values())]
    (choice,) = client.completions.create(model="pages", prompt=prompt, logprobs=0).choices
    assert choice.logprobs is not None
    assert choice.logprobs.top_logprobs is None


def test_budgets_and_odometers_hold(front: Gateway) -> None:
    with client_of(front) as client:
        for _ in range(2):
            client.chat.completions.create(model="counted", messages=said("A record with a budget"), logprobs=True)
        with pytest.raises(openai.RateLimitError, match="has had all the answers that it may have"):
            client.chat.completions.create(model="counted", messages=said("a record with a BUDGET"), logprobs=True)
    with client_of(front, "frugal") as frugal:
        for text in ("One question", "Another question"):
            frugal.chat.completions.create(model="pages", messages=said(text), logprobs=True)
        with pytest.raises(openai.RateLimitError, match="All answers to one client may add up to ε = 4"):
            frugal.chat.completions.create(model="pages", messages=said("A third question"), logprobs=True)
        with pytest.raises(openai.RateLimitError):  # whether somebody has asked before must not show
            frugal.chat.completions.create(model="pages", messages=said("One question"), logprobs=True)


def test_a_retry_with_its_key_is_charged_once(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "counted", "messages": said("Retried"), "logprobs": True}
    key = {"Idempotency-Key": "once"}
    answers = [client.chat.completions.create(**asked, extra_headers=key) for _ in range(4)]
    assert len({answer.choices[0].model_dump_json() for answer in answers}) == 1
    client.chat.completions.create(**asked)
    with pytest.raises(openai.RateLimitError, match="has had all the answers that it may have"):
        client.chat.completions.create(**asked)


REFUSED: dict[str, dict[str, Any]] = {
    "logit_bias": {"logit_bias": {"5": 100}},
    "n": {"n": 2},
    "stream": {"stream": True},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": -1.0},
    "prompt_logprobs": {"extra_body": {"prompt_logprobs": 1}},
    "guided_choice": {"extra_body": {"guided_choice": ["gateway"]}},
    "response_format": {"response_format": {"type": "json_object"}},
    "top_logprobs": {"top_logprobs": 5},
    "prompt": {"extra_body": {"prompt": "and this too"}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_served_is_named(client: openai.OpenAI, field: str) -> None:
    with pytest.raises(openai.BadRequestError, match=field) as caught:
        client.chat.completions.create(**{"model": "pages", "messages": said("Hello"), **REFUSED[field]})
    assert "leave" in str(caught.value)


@pytest.mark.parametrize("more", [{"echo": True}, {"best_of": 3}, {"suffix": "!"}, {"n": 2}, {"logit_bias": {"5": 1}}])
def test_the_older_form_refuses_likewise(client: openai.OpenAI, more: dict[str, Any]) -> None:
    (field,) = more
    with pytest.raises(openai.BadRequestError, match=field):
        client.completions.create(**{"model": "pages", "prompt": "Hello", **more})


def test_what_changes_nothing_may_be_sent(client: openai.OpenAI) -> None:
    """As libraries send it that fill in every field."""
    idle: dict[str, Any] = {"n": 1, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0, "stream": False}
    some: dict[str, Any] = {"temperature": 0.7, "max_tokens": 5, "top_p": 0.9, "seed": 3, "stop": ["\n"], "user": "me"}
    answer = client.chat.completions.create(model="pages", messages=said("Hello"), **idle, **some)
    assert answer.choices[0].message.content in LABELS
    client.chat.completions.create(model="pages", messages=said("Hello"), extra_body={"tools": None})


def test_a_prompt_without_an_answer_is_told_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="none of the labels"):
        client.completions.create(model="pages", prompt="", logprobs=1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"not json", "not JSON"),
        (b"[]", "does not name its model"),
        (b'{"model": 5}', "does not name its model"),
        (b'{"model": "pages"}', "no messages"),
        (b'{"model": "pages", "prompt": "x"}', "no messages"),
        (b'{"model": "pages", "messages": []}', "messages"),
        (b'{"model": "pages", "messages": "x"}', "messages"),
        (b'{"model": "pages", "messages": [{"role": "tool", "content": "x"}]}', "role"),
        (b'{"model": "pages", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content"),
        (b'{"model": "pages", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "max_tokens"),
        (b'{"model": "pages", "messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
        (b"\xff\xfe", "JSON"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_told_why(front: Gateway, body: bytes, words: str) -> None:
    status, _, answer = front.request("POST", "/v1/chat/completions", body, authorization=f"Bearer {KEYS['alice']}")
    assert status == 400
    assert words in json.loads(answer)["error"]["message"]


def test_a_path_that_is_not_served_is_told_as_openais_clients_read_it(front: Gateway) -> None:
    for path in ("/v1/embeddings", "/v1/models/none"):
        status, _, answer = front.request("POST", path, b"{}", authorization=f"Bearer {KEYS['alice']}")
        assert (status, json.loads(answer)["error"]["code"]) == (404, "not_found")
        assert json.loads(front.request("POST", path, b"{}")[2])["error"]["code"] == "auth"


def test_models_are_listed_and_others_are_not_there(client: openai.OpenAI, front: Gateway) -> None:
    served = ["pages", "counted", "writer", "broken", "chatty", "endless"]
    assert [each.id for each in client.models.list()] == served
    assert client.models.retrieve("pages").id == "pages"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=said("Hello"))
    with client_of(front, "nobody") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    paths = json.loads(front.request("GET", "/openapi.json", admin=True)[2])["paths"]
    assert {"/v1/models", "/v1/models/pages", "/v1/chat/completions", "/v1/completions"} <= set(paths)
    states = json.loads(front.request("GET", "/api/state", admin=True)[2])["models"]
    assert {state["model"]: state["epsilon"] for state in states} == {
        "pages": 2.0, "counted": 1.0, "writer": None, "broken": 2.0, "chatty": None, "endless": None,
    }  # fmt: skip


# A model without labels


def test_texts_pass_whole_or_as_a_stream(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "writer", "messages": said("The gateway"), "temperature": 0, "max_tokens": 6}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == whole.choices[0].message.content
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1
    older: dict[str, Any] = {"model": "writer", "prompt": "The gateway", "temperature": 0, "max_tokens": 6}
    texts = [part.choices[0].text for part in client.completions.create(**older, stream=True)]
    assert "".join(texts) == client.completions.create(**older).choices[0].text


def test_no_logprobs_without_labels(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "writer", "messages": said("The gateway")}
    for more in ({"logprobs": True}, {"logprobs": True, "stream": True}, {"logprobs": True, "top_logprobs": 1}):
        with pytest.raises(openai.BadRequestError, match="leave logprobs out"):
            client.chat.completions.create(**asked, **more)
    with pytest.raises(openai.BadRequestError, match="leave logprobs out"):
        client.completions.create(model="writer", prompt="The gateway", logprobs=0)


# The page


def test_the_example_of_the_page_runs(front: Gateway) -> None:
    (block,) = blocks(PAGE, "python")
    for shown, real in (("8080", str(front.port)), ('"none"', repr(KEYS["alice"])), ('"reviews"', '"pages"')):
        assert shown in block
        block = block.replace(shown, real)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, PAGE.name, "exec"), names)
    assert set(names["confidence"]) == set(LABELS)
    assert sum(names["confidence"].values()) == pytest.approx(1)
    names["client"].close()


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    from experiments.language import __main__ as language

    found = json.loads(language.RESULTS.read_text(encoding="utf-8"))
    assert f"{language.START}\n{language.tables(found)}\n{language.END}" in PAGE.read_text(encoding="utf-8")


def checked(toml: Path, *options: str) -> tuple[int, str]:
    ran = subprocess.run([SCOREVEIL, "config", "check", *options, toml], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def test_the_configuration_of_the_page_is_one(llama: str, tmp_path: Path) -> None:
    toml = tmp_path / "gateway.toml"
    text = "\n".join(blocks(PAGE, "toml"))
    toml.write_text(text, encoding="utf-8")
    status, said_of_it = checked(toml, "--offline")
    assert status == 0, said_of_it
    toml.write_text(text.replace("http://127.0.0.1:8000", llama), encoding="utf-8")
    status, said_of_it = checked(toml)
    assert status == 0, said_of_it
    assert "the upstream is ready; labels positive, negative." in said_of_it


def test_a_server_without_logprobs_is_found_out_by_the_check(hostile: Behind, tmp_path: Path) -> None:
    toml = tmp_path / "gateway.toml"
    table = f'labels = ["yes", "no"]\nupstream = {{ url = "{hostile.url}", protocol = "openai" }}'
    toml.write_text(f"[models.m]\nepsilon = 2.0\n{table}\n", encoding="utf-8")
    status, said_of_it = checked(toml)
    assert status != 0
    assert "gives no logprobs" in said_of_it.replace("\n", " ")


# Servers that answer wrongly, or more than they were asked


def listed(*tokens: tuple[Any, Any]) -> dict[str, Any]:
    top = [{"token": token, "logprob": logprob, "bytes": [], "id": MARK} for token, logprob in tokens]
    return {"content": [{"token": MARK, "logprob": -0.5, "top_logprobs": top}]}


GOOD = listed((" gateway", -0.1739173), ("Paper", -2.739173))
# what stands in `choices` of an answer, by the text of the prompt
CHOICES: dict[str, Any] = {
    "good": [{"message": {"content": MARK, "reasoning_content": MARK}, "logprobs": GOOD, "finish_reason": MARK}],
    "older": [{"logprobs": {"tokens": [MARK], "top_logprobs": [{" gateway": -0.1739173, " paper": -2.739173}]}}],
    "two": [{"logprobs": GOOD}, {"logprobs": GOOD}],
    "none": [],
    "missing": None,
    "bare": [{"message": {"content": "gateway"}}],
    "null": [{"logprobs": None}],
    "empty": [{"logprobs": {"content": [], "top_logprobs": []}}],
    "unlisted": [{"logprobs": listed()}],
    "strange": [{"logprobs": listed((f"x{MARK}", -0.1), ("\n", -3.0))}],
    "words": [{"logprobs": listed(("gateway", f"-0.{MARK}x"))}],
    "numbers": [{"logprobs": listed((739173, -0.5))}],
    "nothing": [{"logprobs": listed(("gateway", None), ("paper", None))}],
    "shape": [{"logprobs": [MARK]}],
    "flat": MARK,
}
FAILED = set(CHOICES) - {"good", "older"}


def answered(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    headers = {"Content-Type": "application/json", "X-Logprobs": MARK}
    if method == "GET":
        return 200, headers, b"{}"
    asked = json.loads(body)
    text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
    if text == "error":
        return 500, headers, f'{{"error": {{"message": "{MARK}"}}}}'.encode()
    if text == "refused":
        return 400, headers, f'{{"error": {{"message": "{MARK}"}}}}'.encode()
    if asked.get("stream"):
        return 200, {"Content-Type": "text/event-stream"}, STREAMS[text]
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": int(MARK)}}
    tree = {
        "id": MARK,
        "model": MARK,
        "choices": CHOICES.get(text, CHOICES["bare"]),
        "usage": usage,
        "timings": MARK,
        "prompt_logprobs": MARK,
    }
    return 200, headers, json.dumps(tree).encode()


def event(tree: Any) -> bytes:
    return b"data: " + json.dumps(tree).encode() + b"\n\n"


PIECE = {"choices": [{"delta": {"content": "Hi", "tool_calls": MARK}, "logprobs": GOOD}], "id": MARK, "timings": MARK}
STREAMS = {
    "good": b": a comment\n\n" + event(PIECE) + event({"choices": [], "usage": {"x": MARK}}) + b"data: [DONE]\n\n",
    "cut": event(PIECE),
    "junk": event(PIECE) + b"data: {" + MARK.encode() + b"\n\n",
    "flat": event(MARK),
    "long": b"data: " + b" " * 200_000 + b"\n\n",
}


def ask(front: Gateway, model: str, text: str, **more: Any) -> tuple[int, str, bytes]:
    body = {"model": model, "messages": said(text), **more}
    status, headers, answer = front.request(
        "POST", "/v1/chat/completions", body, authorization=f"Bearer {KEYS['alice']}"
    )
    return status, str(headers), answer


@pytest.mark.parametrize("text", ["good", "older"])
def test_of_an_answer_with_labels_only_what_is_veiled_passes(front: Gateway, hostile: Behind, text: str) -> None:
    status, headers, body = ask(front, "broken", text, logprobs=True, top_logprobs=20, temperature=1.5, stop="x")
    assert status == 200, body
    assert MARK not in headers + body.decode()
    tree = json.loads(body)
    assert set(tree) == {"id", "object", "created", "model", "choices", "usage"}
    assert tree["choices"][0]["message"] == {"role": "assistant", "content": "gateway", "refusal": None}
    assert tree["usage"] == {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    sent = json.loads(hostile.asked[-1][3])
    assert sent == {
        "model": "theirs", "messages": said(text),
        "logprobs": True, "top_logprobs": 20, "max_tokens": 1, "temperature": 0,
    }  # fmt: skip


@pytest.mark.parametrize("text", [*sorted(FAILED), "error", "refused"])
def test_a_broken_server_gives_no_confidence_and_no_reason(front: Gateway, text: str) -> None:
    before = count(front, "charged", "broken")
    status, headers, body = ask(front, "broken", text, logprobs=True)
    assert status == (400 if text == "refused" else 502)
    assert MARK not in headers + body.decode()
    assert json.loads(body)["error"]["message"]
    assert count(front, "charged", "broken") == before


@pytest.mark.parametrize("text", ["good", "two", "none", "missing", "null", "shape", "flat", "error", "refused"])
def test_of_a_text_only_the_text_passes(front: Gateway, text: str) -> None:
    status, headers, body = ask(front, "chatty", text)
    if text != "good":
        assert status == (400 if text == "refused" else 502)
        assert MARK not in headers + body.decode()
        return
    tree = json.loads(body)
    assert tree["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": MARK, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    del tree["choices"]
    assert MARK not in headers + json.dumps(tree)


@pytest.mark.parametrize("text", sorted(STREAMS))
def test_of_a_stream_only_the_text_passes_and_it_ends_as_it_should(front: Gateway, text: str) -> None:
    status, headers, body = ask(front, "chatty", text, stream=True)
    assert MARK not in headers + body.decode()
    if text in ("flat", "long"):
        assert status == 502
        return
    assert status == 200
    events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    first = json.loads(events[0])["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": "Hi"}
    assert first["logprobs"] is None
    if text == "good":
        assert events[1:] == ["[DONE]"]
    else:
        assert set(json.loads(events[-1])) == {"error"}
        with client_of(front) as client, pytest.raises(openai.APIError, match="no answer that can be passed on"):
            list(client.chat.completions.create(model="chatty", messages=said(text), stream=True))


def test_a_stream_ends_when_its_client_leaves(client: openai.OpenAI, front: Gateway) -> None:
    with client.chat.completions.create(model="endless", messages=said("Go on"), stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.content == "Hi"
    assert Endless.left.wait(120)
    refused = [each for each in front.events() if each["event"] == "refusal" and each["model"] == "endless"]
    assert not refused, "it was not the limit of time that ended it"


def test_no_prompt_and_no_key_is_logged(front: Gateway) -> None:
    secret = "a prompt that nobody may read"
    ask(front, "pages", secret, logprobs=True)
    ask(front, "pages", secret, logit_bias={"1": 1})
    log = front.log.read_text(encoding="utf-8")
    assert '"event":"request"' in log
    assert not any(text in log for text in (secret, MARK, *KEYS.values()))
