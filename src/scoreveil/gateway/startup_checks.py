"""What a configuration names, looked at before anything listens: what cannot be served is said here, once.

`serve` looks at what is on this machine, in a process of its own that ends when all is said. `scoreveil config check`
also asks the upstreams and the ledger.
"""

import asyncio
import math
import os
import ssl
import sys
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.extras import needs
from scoreveil.gateway import embedded_model, secrets
from scoreveil.gateway.auth import authenticator
from scoreveil.gateway.config import SQLITE, ConfigError, Limits, Server
from scoreveil.gateway.embedded_model import EmbeddedModel
from scoreveil.gateway.ledger_link import NO_SECRET, OTHER_SECRET
from scoreveil.gateway.opened import OpenedConfig, OpenedModel, check_files, errors_at, load_model
from scoreveil.gateway.probabilities import probabilities
from scoreveil.gateway.served import open_source
from scoreveil.inference_protocol.errors import ApiError
from scoreveil.inference_protocol.tensors import Array, TensorSpec
from scoreveil.ledger import open_books, open_ledger
from scoreveil.mechanisms.scores import check_rows
from scoreveil.same_record.typical import few_numbers
from scoreveil.shapes import Shape
from scoreveil.veil import NOTHING, Veil

# this process has no threads yet, so that it can be copied, which is fastest; macOS cannot bear that
CHILD = "fork" if sys.platform == "linux" else "spawn"
MAX_SECONDS = 600.0  # a model may hold a loop without an end
MAX_NAMED = 12  # classes that are named
FEW_NUMBERS = "Its records have so few numbers that strangers are taken for each other; give memory.typical."
NEGATIVES = (
    "has two columns that are each other's negatives, [-z, z]: one logit written twice, of which softmax would make "
    "the probability of 2z. Serve probabilities: convert the model without raw scores (skl2onnx: raw_scores=False), or "
    "let it end in [0, z], or in z alone."
)


def before_serving(opened: OpenedConfig) -> list[str]:
    """Look at all that is on this machine; what was found, in lines to show.

    Raises:
        ConfigError: Something cannot be served.
    """
    if all(model.upstream is not None for model in opened.config.models.values()):
        return here(opened)
    # a model may take memory, start threads, crash or never end: none of that shall happen to the process that stays
    context: Any = get_context(CHILD)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_here, args=(opened, sending))
    child.start()
    sending.close()
    try:
        if not receiving.poll(MAX_SECONDS):
            raise ConfigError(f"The models were not opened and tried within {MAX_SECONDS:g} seconds.")
        lines: list[str] | ConfigError = receiving.recv()
    except EOFError:
        raise ConfigError("A model ended the process that opened it; its file may be damaged.") from None
    finally:
        child.kill()
        child.join()
    if isinstance(lines, ConfigError):
        raise lines
    return lines


def _here(opened: OpenedConfig, sending: Connection) -> None:
    try:
        sending.send(here(opened))
    except ConfigError as error:
        sending.send(error)


def here(opened: OpenedConfig) -> list[str]:
    """Open models, keys and certificates in this process; what was found."""
    server = opened.config.server
    with errors_at("auth.jwt"):
        authenticator(opened.config.auth)
    with errors_at("server"):
        check_files(server.tls_cert, server.tls_key, server.tls_client_ca)
        _open_certificates(server)
        if server.grpc_port is not None:
            with needs("grpc"):
                import_module("scoreveil.gateway.grpc_service")
    lines = []
    for name, model in opened.models.items():
        with errors_at(f"models.{name}"):
            check_files(model.settings.onnx, model.settings.skops)
            lines += _describe(load_model(model))
    return lines


def check(opened: OpenedConfig) -> list[str]:
    """As `before_serving`, and the secret, the ledger and every upstream too."""
    return [*before_serving(opened), *asyncio.run(_elsewhere(opened))]


async def _elsewhere(opened: OpenedConfig) -> list[str]:
    lines = []
    secret, url = opened.config.secrets.file, opened.config.ledger.url
    if opened.needs_secret:
        with errors_at("secrets"):
            lines.append(_secret(secret))
    if opened.has_memory:
        with errors_at("ledger"):
            lines.append(await _ledger(url, secret))
    for name, model in opened.models.items():
        if model.settings.upstream is not None:
            with errors_at(f"models.{name}"):
                lines += await _upstream(model, opened.config.limits)
    return lines


# Models


def _describe(model: OpenedModel) -> list[str]:
    """What was found in a model, after it was tried."""
    settings, embedded, shape = model.settings, model.embedded, model.shape
    if embedded is None or model.veil is None:
        return []
    file = Path(str(settings.onnx or settings.skops or settings.python)).name
    _try(model.veil, embedded, settings.outputs == "logits", file)
    lines = [f"Model {model.name}: {file}, run by {embedded.platform}."]
    lines += [f"  input   {_tensor(spec)}" for spec in embedded.inputs]
    logits = ", made from logits" if settings.outputs == "logits" else ""
    title = model.veil.shape.title
    veiled = f"veiled{logits}{f', {title}' if title else ''}{_classes(embedded, model.veil.shape)}"
    passed = "passed, in the order of the veiled scores" if shape.is_list else "passed as it is"
    for spec in embedded.outputs.values():
        words = passed if spec.name in settings.passes else f"not served (passes = [{spec.name!r}] would)"
        lines.append(f"  output  {_tensor(spec)}: {veiled if spec.name in model.scores else words}")
    if model.memory is not None and model.typical is None and few_numbers(spec.shape for spec in embedded.inputs):
        lines.append(f"  {FEW_NUMBERS}")
    return [*lines, *_spends(model)]


def _spends(model: OpenedModel) -> list[str]:
    """What a whole answer spends, where it is more than one release."""
    held = model.answer_releases or 1
    if held == 1 or model.veil is None:
        return []
    epsilon = model.veil.guarantee.epsilon
    spent = epsilon * held
    most = "up to " if model.shape.has_places else ""
    what = "a place" if model.shape.has_places else "a label" if len(model.scores) == 1 else "a label or output"
    if not math.isfinite(spent):
        return [f"  what is promised is about {what}; an answer holds {most}{held} of them."]
    price = f"  ε = {epsilon:g} is that of {what}; an answer holds {most}{held} of them and spends {most}ε = {spent:g}."
    return [
        f"{price} Something is promised about each, and nothing about a whole answer." if spent > NOTHING else price
    ]


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}"


def _classes(embedded: EmbeddedModel, shape: Shape) -> str:
    names = embedded.classes
    more = ", …" if len(names) > MAX_NAMED else ""
    return f"; {shape.noun} {', '.join(names[:MAX_NAMED])}{more}" if names else ""


def _try(veil: Veil, embedded: EmbeddedModel, in_logits: bool, file: str) -> None:
    """Refuse a model whose outputs are not what the configuration says they are, where a trial can tell."""
    answer = embedded_model.tried(lambda arrays: embedded.run(arrays, list(embedded.scores)), embedded.inputs)
    for name, rows in (answer or {}).items():
        own = f"Output {name} of {file}"
        if rows.ndim < 2:
            raise ValueError(f"{own} has {rows.ndim} dimensions; scores are a row of numbers for each record.")
        known = rows[np.isfinite(rows).reshape(len(rows), -1).all(axis=1)]  # far from all data a model may know none
        if in_logits and not veil.shape.takes_logits and _are_scores(veil, known):
            raise ValueError(f'{own} holds probabilities already; remove outputs = "logits".')
        if not _are_scores(veil, probabilities(known, "logits" if in_logits else "scores", veil.shape)):
            raise ValueError(f"{own} {_not_scores(veil.shape)}")
        # the last axis has two columns that are each other's negatives in every row, and not all zero
        negatives = known.shape[-1] == 2 and known.any() and np.array_equal(known[..., 0], -known[..., 1])
        if in_logits and negatives and not veil.shape.is_binary:
            raise ValueError(f"{own} {NEGATIVES}")


def _not_scores(shape: Shape) -> str:
    words = [f"does not hold {shape.expected}."]
    if shape.is_binary or shape.sums_to_one:
        logits = 'say outputs = "logits" in the model\'s table, or --outputs logits on the command line.'
        words.append(f"If they are logits, {logits}")
    if shape.is_plain:
        words.append('If each is a yes or no of its own, say shape = "multi_label", or --shape multi_label.')
    return " ".join(words)


def _are_scores(veil: Veil, rows: Array) -> bool:
    try:
        vectors = veil.vectors(rows)
        check_rows(vectors.reshape(-1, vectors.shape[2]))
    except ValueError:
        return False
    return True


async def _upstream(model: OpenedModel, limits: Limits) -> list[str]:
    """Ask a model server whether it is ready, and whether it has the outputs that are named."""
    source, settings = open_source(model, limits), model.settings
    try:
        if not await source.ready():
            raise ValueError("the upstream does not answer that it is ready; --offline does not ask it.")
        _, outputs = await source.declared()
    except ApiError as refusal:
        raise ValueError(refusal.detail or refusal.message) from None
    finally:
        source.close()
    ready = f"Model {model.name}: the upstream is ready;"
    if settings.is_language:
        labels = f"labels {', '.join(settings.labels)}"
        return [f"{ready} {labels if settings.labels else 'its texts pass, and no logprobs'}."]
    names = [spec.name for spec in outputs]
    if not names:
        return [f"{ready} it does not say which outputs it has.", *_spends(model)]
    missing = sorted({*model.scores, *settings.passes} - set(names))
    if missing:
        raise ValueError(
            f"the upstream has the outputs {', '.join(names)}; scores and passes name {', '.join(missing)}."
        )
    return [f"{ready} it has the outputs {', '.join(names)}.", *_spends(model)]


# Secrets, ledger, certificates


def places(opened: OpenedConfig) -> list[str]:
    """Where secret and ledger are, if they are used, and whether each was there already; of what they hold, nothing."""
    lines, url = [], opened.config.ledger.url
    if opened.needs_secret:
        variable = secrets.VARIABLE
        place = (
            f"that of {variable} in the environment" if variable in os.environ else _place(opened.config.secrets.file)
        )
        lines.append(f"Secret   {place}")
    if opened.has_memory:
        # the address of a database may hold a password
        place = _place(Path(url.removeprefix(SQLITE))) if url.startswith(SQLITE) else "PostgreSQL, as ledger.url says"
        lines.append(f"Ledger   {place}")
    return lines


def _place(path: Path) -> str:
    return f"{path}, {'which was there already' if path.exists() else 'which is new'}"


def _secret(path: Path) -> str:
    if not secrets.is_there(path):
        return _new("Secret", path)
    keys = secrets.load(path)
    return f"Secret: read, with {keys.rotations} rotation{'' if keys.rotations == 1 else 's'}."


async def _ledger(url: str, secret: Path) -> str:
    """What a ledger holds; one that was begun with another secret is refused, as `serve` does."""
    if url.startswith(SQLITE):
        path = Path(url.removeprefix(SQLITE))
        if not path.exists():
            return _new("Ledger", path)
        totals = await (await open_books(url)).totals()
        line = f"Ledger {path}: {sum(total.records for total in totals):,} records."
    else:
        await (await open_ledger(url)).close()
        line = "Ledger: PostgreSQL answers."
    begun = (await (await open_books(url)).facts()).get("secret")
    if begun and not secrets.is_there(secret):
        raise ValueError(NO_SECRET.format(path=secret))
    if begun and begun != secrets.load(secret, create=False).fingerprint:
        raise ValueError(OTHER_SECRET)
    return line


def _new(what: str, path: Path) -> str:
    folder = next(parent for parent in path.parents if parent.exists())
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path} is not there, and cannot be made: {folder} is not writable.")
    return f"{what} {path} is not there; it is made at the first start."


def _open_certificates(server: Server) -> None:
    if server.tls_cert is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.tls_cert, server.tls_key)
    if server.tls_client_ca is not None:
        context.load_verify_locations(server.tls_client_ca)
