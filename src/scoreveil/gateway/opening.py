"""What a configuration names, opened before anything listens: what cannot be served is said here, once.

`serve` opens what is on this machine, in a process of its own that ends when all is said. `scoreveil config check`
also asks the upstreams and the ledger.
"""

import asyncio
import math
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.extras import needs
from scoreveil.gateway import embedded, loaded, secrets
from scoreveil.gateway.auth import authenticator
from scoreveil.gateway.config import SQLITE, Config, ConfigError, Model, Server
from scoreveil.gateway.ledger_link import NO_SECRET, OTHER_SECRET
from scoreveil.gateway.loaded import LoadedModel
from scoreveil.gateway.probabilities import probabilities
from scoreveil.gateway.served import open_source
from scoreveil.inference_protocol.refusals import Refusal
from scoreveil.inference_protocol.tensors import Array, TensorSpec
from scoreveil.ledger import LedgerUnavailable, open_books, open_ledger
from scoreveil.mechanisms.scores import check_rows
from scoreveil.same_record.typical import few_numbers, typical_inputs
from scoreveil.shapes import Shape
from scoreveil.veil import NOTHING, Veil

# this process has no threads yet, so that it can be copied, which is fastest; macOS cannot bear that
CHILD = "fork" if sys.platform == "linux" else "spawn"
LONGEST_OPENING = 600.0  # seconds; a model may hold a loop without an end
MOST_NAMED = 12  # classes that are named
FEW_NUMBERS = "Its records have so few numbers that strangers are taken for each other; give memory.typical."
NEGATIVES = (
    "has two columns that are each other's negatives, [-z, z]: one logit written twice, of which softmax would make "
    "the probability of 2z. Serve probabilities: convert the model without raw scores (skl2onnx: raw_scores=False), or "
    "let it end in [0, z], or in z alone."
)


def before_serving(config: Config) -> list[str]:
    """Open all that is on this machine; what was found, in lines to show.

    Raises:
        ConfigError: Something cannot be served.
    """
    if all(model.upstream is not None for model in config.models.values()):
        return here(config)
    # a model may take memory, start threads, crash or never end: none of that shall happen to the process that stays
    context: Any = get_context(CHILD)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_open_here, args=(config, sending))
    child.start()
    sending.close()
    try:
        if not receiving.poll(LONGEST_OPENING):
            raise ConfigError(f"The models were not opened and tried within {LONGEST_OPENING:g} seconds.")
        found = receiving.recv()
    except EOFError:
        raise ConfigError("A model ended the process that opened it; its file may be damaged.") from None
    finally:
        child.kill()
        child.join()
    if isinstance(found, ConfigError):
        raise found
    return list(found)


def _open_here(config: Config, sending: Any) -> None:
    try:
        sending.send(here(config))
    except ConfigError as error:
        sending.send(error)


def here(config: Config) -> list[str]:
    """Open models, veils, keys and certificates in this process; what was found."""
    with said_of("auth.jwt"):
        authenticator(config.auth)
    with said_of("server"):
        _check_files(config.server.tls_cert, config.server.tls_key, config.server.tls_client_ca)
        _open_certificates(config.server)
        if config.server.grpc_port is not None:
            with needs("grpc"):
                import_module("scoreveil.gateway.grpc_service")
    lines = []
    for name, model in config.models.items():
        with said_of(f"models.{name}"):
            _check_files(model.onnx, model.skops, *model.veil.values())
            if model.is_veiled:
                model.make_veil()
                if model.memory is not None and model.memory.typical is not None:
                    typical_inputs(model.memory.typical)
            if model.upstream is None:
                opened = embedded.load(name, model)
                counted = embedded.counted(model, opened)
                counted.check_memory(counted.answer_releases or 1)
                lines += _describe(name, counted, opened)
    return lines


async def _elsewhere(config: Config) -> list[str]:
    """The secret, the ledger and every upstream."""
    lines = []
    if config.needs_secret:
        with said_of("secrets"):
            lines.append(_secret(config.secrets.file))
    if config.has_memory:
        with said_of("ledger"):
            lines.append(await _ledger(config.ledger.url))
            await _check_fingerprint(config.ledger.url, config.secrets.file)
    for name, model in config.models.items():
        if model.upstream is not None:
            with said_of(f"models.{name}"):
                lines += await _upstream(name, model, config)
    return lines


def _check_files(*named: Any) -> None:
    """Refuse what is there and no file: a pipe would be waited for, and some devices never end."""
    for path in named:
        if isinstance(path, Path) and path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a file.")


@contextmanager
def said_of(place: str) -> Iterator[None]:
    """Whatever cannot be opened is an error of the configuration, which names the place."""
    try:
        yield
    except OSError as error:
        shown = f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
        raise ConfigError(f"{place}: {shown}.") from None
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(f"{place}: {error}") from None
    except LedgerUnavailable:
        raise ConfigError(f"{place}: it does not answer, or is not a ledger.") from None
    except Exception as error:  # of libraries that read files; what they say may quote them
        raise ConfigError(f"{place}: what it names cannot be opened ({type(error).__name__}).") from None


# Models


def _describe(name: str, model: Model, opened: LoadedModel) -> list[str]:
    """What was found in a model, after it was tried."""
    file = next(str(each) for each in (model.onnx, model.skops, model.python) if each is not None)
    _try(model, opened, Path(file).name)
    lines = [f"Model {name}: {Path(file).name}, run by {opened.platform}."]
    lines += [f"  input   {_shape(spec)}" for spec in opened.inputs]
    for spec in opened.outputs.values():
        if spec.name in model.scores:
            words = f"veiled{_reading(model)}{_classes(model, opened)}"
        else:
            words = _passed(model) if spec.name in model.passes else f"not served (passes = [{spec.name!r}] would)"
        lines.append(f"  output  {_shape(spec)}: {words}")
    memory = model.kept_memory
    if memory is not None and memory.typical is None and few_numbers(spec.shape for spec in opened.inputs):
        lines.append(f"  {FEW_NUMBERS}")
    return [*lines, *_spends(model)]


def _spends(model: Model) -> list[str]:
    """What a whole answer spends, where it is more than one release."""
    held = model.answer_releases or 1
    if held == 1:
        return []
    epsilon = model.bare_veil.guarantee.epsilon
    spent = epsilon * held
    most = "up to " if model.has_places else ""
    what = "a place" if model.has_places else "a label" if len(model.scores) == 1 else "a label or output"
    if not math.isfinite(spent):
        return [f"  what is promised is about {what}; an answer holds {most}{held} of them."]
    said = f"  ε = {epsilon:g} is that of {what}; an answer holds {most}{held} of them"
    more = " Something is promised about each, and nothing about a whole answer." if spent > NOTHING else ""
    return [f"{said} and spends {most}ε = {spent:g}.{more}"]


def _passed(model: Model) -> str:
    return "passed, in the order of the veiled scores" if model.lists else "passed as it is"


def _shape(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}"


def _reading(model: Model) -> str:
    made = ", made from logits" if model.outputs == "logits" else ""
    shape = model.bare_veil.shape
    return f"{made}, {shape.title}" if shape.title else made


def _classes(model: Model, opened: LoadedModel) -> str:
    if not opened.classes:
        return ""
    more = ", …" if len(opened.classes) > MOST_NAMED else ""
    return f"; {model.bare_veil.shape.noun} {', '.join(opened.classes[:MOST_NAMED])}{more}"


def _try(model: Model, opened: LoadedModel, file: str) -> None:
    """Refuse a model whose outputs are not what the configuration says they are, where a trial can tell."""
    found = loaded.tried(lambda arrays: opened.run(arrays, list(model.scores)), opened.inputs)
    veil = model.make_veil()
    for name, rows in (found or {}).items():
        own = f"Output {name} of {file}"
        if rows.ndim < 2:
            raise ValueError(f"{own} has {rows.ndim} dimensions; scores are a row of numbers for each record.")
        told = rows[np.isfinite(rows).reshape(len(rows), -1).all(axis=1)]  # far from all data a model may know none
        if model.outputs == "logits" and not veil.shape.takes_logits and _are_scores(veil, told):
            raise ValueError(f'{own} holds probabilities already; remove outputs = "logits".')
        if not _are_scores(veil, probabilities(told, model.outputs, veil.shape)):
            raise ValueError(f"{own} {_not_scores(veil.shape)}")
        if model.outputs == "logits" and _are_negatives(told) and not veil.shape.is_binary:
            raise ValueError(f"{own} {NEGATIVES}")


def _not_scores(shape: Shape) -> str:
    said = [f"does not hold {shape.expected}."]
    if shape.is_binary or shape.sums_to_one:
        logits = 'say outputs = "logits" in the model\'s table, or --outputs logits on the command line.'
        said.append(f"If they are logits, {logits}")
    if shape.is_plain:
        said.append('If each is a yes or no of its own, say shape = "many_labels", or --shape many_labels.')
    return " ".join(said)


def _are_negatives(rows: Array) -> bool:
    """Whether the last axis has two columns that are each other's negatives in every row, and not all zero."""
    return rows.shape[-1] == 2 and bool(rows.any()) and np.array_equal(rows[..., 0], -rows[..., 1])


def _are_scores(veil: Veil, rows: Array) -> bool:
    try:
        vectors = veil.vectors(rows)
        check_rows(vectors.reshape(-1, vectors.shape[2]))
    except ValueError:
        return False
    return True


async def _upstream(name: str, model: Model, config: Config) -> list[str]:
    """Ask a model server whether it is ready, and whether it has the outputs that are named."""
    source = open_source(name, model, config.limits)
    try:
        if not await source.ready():
            raise ValueError("the upstream does not answer that it is ready; --offline does not ask it.")
        _, outputs = await source.declared()
    except Refusal as refusal:
        raise ValueError(refusal.detail or refusal.message) from None
    finally:
        await source.close()
    if model.is_language:
        words = f"labels {', '.join(model.labels)}" if model.labels else "its texts pass, and no logprobs"
        return [f"Model {name}: the upstream is ready; {words}."]
    said = [spec.name for spec in outputs]
    missing = sorted({*model.scores, *model.passes} - set(said))
    if said and missing:
        raise ValueError(
            f"the upstream has the outputs {', '.join(said)}; scores and passes name {', '.join(missing)}."
        )
    told = f"it has the outputs {', '.join(said)}" if said else "it does not say which outputs it has"
    return [f"Model {name}: the upstream is ready; {told}.", *_spends(model)]


# Secrets, ledger, certificates


def kept(config: Config) -> list[str]:
    """Where secret and ledger are, if they are used, and whether each was there already; of what they hold, nothing."""
    path, url = config.secrets.file, config.ledger.url
    lines = [f"Secret   {_found(path)}"] if config.needs_secret else []
    if lines and secrets.VARIABLE in os.environ:
        lines = [f"Secret   that of {secrets.VARIABLE} in the environment"]
    if config.has_memory:
        # the address of a database may hold a password
        place = _found(Path(url.removeprefix(SQLITE))) if url.startswith(SQLITE) else "PostgreSQL, as ledger.url says"
        lines.append(f"Ledger   {place}")
    return lines


def _found(path: Path) -> str:
    return f"{path}, {'which was there already' if path.exists() else 'which is new'}"


def _secret(path: Path) -> str:
    if secrets.VARIABLE not in os.environ and not path.exists():
        _check_writable(path)
        return f"Secret {path} is not there; it is made at the first start."
    keys = secrets.load(path)
    return f"Secret: read, with {keys.rotations} rotation{'' if keys.rotations == 1 else 's'}."


async def _ledger(url: str) -> str:
    if not url.startswith(SQLITE):
        await (await open_ledger(url)).close()
        return "Ledger: PostgreSQL answers."
    path = Path(url.removeprefix(SQLITE))
    if not path.exists():
        _check_writable(path)
        return f"Ledger {path} is not there; it is made at the first start."
    totals = await (await open_books(url)).totals()
    return f"Ledger {path}: {sum(total.records for total in totals):,} records."


async def _check_fingerprint(url: str, secret: Path) -> None:
    """Refuse a ledger that was begun with another secret, as `serve` does."""
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        return
    books = await open_books(url)
    begun = (await books.facts()).get("secret")
    if not secrets.is_there(secret):
        if begun:
            raise ValueError(NO_SECRET.format(path=secret))
    elif begun and begun != secrets.load(secret, create=False).fingerprint:
        raise ValueError(OTHER_SECRET)


def _check_writable(path: Path) -> None:
    folder = next(parent for parent in path.parents if parent.exists())
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path} is not there, and cannot be made: {folder} is not writable.")


def _open_certificates(server: Server) -> None:
    if server.tls_cert is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.tls_cert, server.tls_key)
    if server.tls_client_ca is not None:
        context.load_verify_locations(server.tls_client_ca)


def check(config: Config) -> list[str]:
    """As `before_serving`, and the secret, the ledger and every upstream too."""
    return [*before_serving(config), *asyncio.run(_elsewhere(config))]
