"""Plain data, as JSON and TOML give it, made into typed values. What does not fit is named by its place, never quoted.

typed.convert({"rows": "many"}, Limits, place="limits")    # InvalidField: limits.rows: Expected `int`, got `str`.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
PLACE = re.compile(r" - at `\$(\S*)`$")  # msgspec says at the end where it was
STEP = re.compile(r"\.(\w+)|\[[\d.]+\]")
MAX_NAME = 40


class InvalidField(ValueError):
    """Data does not fit its type; `unknown_field`: it has a field that the type does not have."""

    def __init__(self, message: str, unknown_field: bool = False) -> None:
        super().__init__(message)
        self.unknown_field = unknown_field


def convert(data: Any, kind: type[T], place: str = "", hook: Callable[[type, Any], Any] | None = None) -> T:
    """Plain data as a value of a type, or InvalidField; no text becomes a number.

    `place` is where the data stands in a larger whole. `hook` makes values of types that msgspec does not know.
    """
    try:
        return msgspec.convert(data, kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), kind, place) from None


def _misfit(said: str, kind: Any, place: str) -> InvalidField:
    match = PLACE.search(said)
    words, path = (said[: match.start()], match[1]) if match else (said, "")
    unknown = words.startswith("Object contains unknown field")
    if unknown:
        name = words.split("`")[1][:MAX_NAME]
        words = (
            f"Unknown field `{name}`; the fields are {', '.join(field.name for field in _type_at(kind, path).fields)}"
        )
    elif words.startswith("Invalid enum value"):  # which msgspec quotes
        words = f"Expected one of {', '.join(map(str, _type_at(kind, path).values))}"
    elif words.startswith("Object missing"):
        words = words.removeprefix("Object ").capitalize()
    where = f"{place}{path}".removeprefix(".")
    return InvalidField(f"{where}: {words.rstrip('.')}." if where else f"{words.rstrip('.')}.", unknown)


@lru_cache(maxsize=256)  # a path has indices in it, which clients choose
def _type_at(kind: Any, path: str) -> Any:
    """What msgspec knows of the type at a path such as `.inputs[0].datatype`."""
    known: Any = inspect.type_info(kind)
    for name in STEP.findall(path):
        parts = getattr(known, "types", (known,))  # a union has several
        if name:
            fields = next(part.fields for part in parts if isinstance(part, inspect.StructType))
            known = next(field.type for field in fields if field.name == name)
        else:
            inner = (getattr(part, "item_type", getattr(part, "value_type", None)) for part in parts)
            known = next(part for part in inner if part is not None)
    named = (inspect.StructType, inspect.LiteralType)
    return next((part for part in getattr(known, "types", ()) if isinstance(part, named)), known)
