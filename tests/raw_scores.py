"""A search for raw scores: every public name of an object, and of what it leads to, asked in every given way."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

Ask = tuple[tuple[Any, ...], dict[str, Any]]
# what changes an object, and answers with nothing
CHANGES = (
    *("fit", "set_", "load", "train", "eval", "share", "requires_grad", "zero_grad", "register", "compile"),
    *("half", "bfloat16", "float", "double", "to", "cpu", "cuda", "ipu", "xpu", "mtia", "type"),
)


def names_that_answer_with(raw: np.ndarray, thing: Any, asks: Iterable[Ask], depth: int = 2) -> list[str]:
    """The paths under which raw scores, their logarithms, or the top ones come out."""
    forms = [raw, np.log(np.maximum(raw, 1e-30)), raw[:, 0], raw.max(axis=1), np.sort(raw, axis=1)]
    found: list[str] = []
    asks = list(asks)

    def look(thing: Any, path: str, depth: int) -> None:
        for name in ["__call__", *(name for name in dir(thing) if not name.startswith("_"))]:
            try:
                value = getattr(thing, name)
            except Exception:  # a property that refuses
                continue
            here = path if name == "__call__" else f"{path}.{name}"
            answers = [value]
            if callable(value) and not inspect.isclass(value) and not name.startswith(CHANGES):
                answers += _asked(value, asks)
            if any(_gives(form, part) for answer in answers for part in _parts(answer) for form in forms):
                found.append(here)
            for part in (part for answer in answers for part in _parts(answer)):
                if depth and _leads_on(part):
                    look(part, here, depth - 1)

    look(thing, "", depth)
    return sorted(set(found))


def _leads_on(part: Any) -> bool:
    ends = inspect.isroutine(part) or inspect.isclass(part) or inspect.ismodule(part) or hasattr(part, "dtype")
    return hasattr(part, "__dict__") and not ends


def _asked(method: Any, asks: list[Ask]) -> list[Any]:
    answers = []
    for arguments, named in [((), {}), *asks]:
        try:
            answers.append(method(*arguments, **named))
        except (Exception, SystemExit):  # whatever it refuses with, it does not answer
            continue
    return answers


def _parts(answer: Any) -> Iterator[Any]:
    """An answer, and what is in it where it is a collection."""
    yield answer
    if isinstance(answer, dict):
        yield from answer.values()
    elif isinstance(answer, (list, tuple)):
        yield from answer[:20]
    elif inspect.isgenerator(answer):
        with suppress(Exception):
            yield from islice(answer, 20)


def _gives(form: np.ndarray, value: Any) -> bool:
    try:
        value = np.asarray(value.detach() if hasattr(value, "detach") else value)
        return value.shape == form.shape and np.allclose(value.astype(float), form, atol=1e-6)
    except (TypeError, ValueError, RuntimeError):
        return False
