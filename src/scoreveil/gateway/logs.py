"""Structured logs: one JSON object a line, on stderr. Only the fields named here exist, and none can hold a payload."""

import datetime
import logging
import os
import traceback

import orjson

FIELDS = frozenset(
    {"model", "client", "request", "status", "reason", "milliseconds", "rows", "error", "where", "rotations", "message"}
)


def event(name: str, **fields: object) -> None:
    """Write one line. A field that is not named above is a programming error."""
    if not FIELDS.issuperset(fields):
        raise ValueError(
            f"{', '.join(sorted(fields.keys() - FIELDS))} cannot be logged; {', '.join(sorted(FIELDS))} can."
        )
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    os.write(2, orjson.dumps({"time": time, "event": name, **fields}, default=str) + b"\n")


def failure(name: str, error: BaseException, **fields: object) -> None:
    """An error by its type and place. Its message is left out: it may quote what it met."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    event(name, error=type(error).__name__, where=where, **fields)


class NotYetListening(logging.Filter):
    """Leaves out that granian listens: it says so before any worker accepts a connection."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Listening at")


class Formatter(logging.Formatter):
    """What granian logs, in the same shape: its message, without tracebacks, which may quote what they met."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        message = record.getMessage().partition("\n")[0]
        return orjson.dumps({"time": time, "event": "server", "message": message}).decode()
