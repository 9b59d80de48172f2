""".jsonl: an object on each line, with scores in some of its members, or in one that is a list or an object of them.

    {"id": 7, "cat": 0.9, "dog": 0.1}
    {"id": 7, "scores": [0.9, 0.1]}
    {"id": 7, "scores": {"cat": 0.9, "dog": 0.1}}
    {"id": 7, "scores": [{"label": "cat", "score": 0.9}, {"label": "dog", "score": 0.1}]}

The members that hold scores are written anew, every other byte stays as it was.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.files import compression
from scoreveil.files.score_file import Batch, ScoreFile, Write, selected
from scoreveil.mechanisms.scores import BadRow
from scoreveil.shapes import as_columns, read_pairs
from scoreveil.tables import listed

READ_BYTES = 1 << 22
SPACE = " \t\n\r"

_decoder = json.JSONDecoder()


@dataclass(frozen=True)
class Member:
    """A member of an object: its value, and the text of the line before and after that, up to the comma."""

    value: Any
    before: str
    text: str
    after: str


class JsonLinesFile(ScoreFile):
    """Lines of objects that have the same members."""

    _keys: list[str] | None  # of an object of scores

    def __init__(self, path: Path, columns: str | None) -> None:
        self._path, self._codec = path, compression.suffixes(path)[1]
        first = next((line for lines in self._lines() for line in lines[0]), None)
        self._keys, self._is_list, self.classes = None, False, None
        if first is None:
            return
        try:
            members = _members(first)
        except ValueError as fault:
            hint = ' A list goes into an object: {"answer": […]}.' if first.lstrip().startswith("[") else ""
            raise ValueError(f"Expected an object on the first line of {path.name}: {fault}.{hint}") from None
        names = list(members)
        self.columns = self._guess(members) if columns is None else [names[i] for i in selected(names, columns)]
        self.untouched = [name for name in names if name not in self.columns]
        inner = members[self.columns[0]].value if len(self.columns) == 1 else None
        self.is_pairs = _holds_pairs(inner)
        self._is_list = isinstance(inner, list)
        if isinstance(inner, dict):
            self._keys = list(inner)
        self.classes = len(inner) if isinstance(inner, dict | list) else len(self.columns)

    def _guess(self, members: dict[str, Member]) -> list[str]:
        """The only list or object of numbers, or all members that are fractions."""
        nested = [name for name, member in members.items() if _holds_numbers(member.value)]
        numbers = [name for name, member in members.items() if isinstance(member.value, float)]
        if bool(nested) == bool(numbers) or len(nested) > 1:
            candidates = listed([*nested, *numbers]) if nested or numbers else "none"
            wish = "Expected members with fractions or one list of them, or --columns to name those that hold scores"
            raise ValueError(f"{wish}, got {candidates} in {self._path.name}.")
        return nested or numbers

    def _lines(self) -> Iterator[tuple[list[str], float]]:
        """Lists of lines that are not blank, and the fraction of the file that was read."""
        with compression.opened(self._path) as text:
            while lines := text.readlines(READ_BYTES):
                try:
                    yield [line.decode() for line in lines if line.strip()], text.done
                except UnicodeDecodeError:
                    raise ValueError(f"{self._path.name} is not text in UTF-8; convert it first.") from None

    def batches(self) -> Iterator[Batch]:
        for lines, done in self._lines():
            scores = np.full((len(lines), self.classes or 1), math.nan)
            rest: list[tuple[dict[str, Member], str]] = []
            unread: dict[int, str] = {}
            for row, line in enumerate(lines):
                members: dict[str, Member] = {}
                try:
                    members = _members(line)
                    scores[row] = self._scores(members)
                except ValueError as fault:
                    unread[row] = str(fault)
                rest.append((members, line[len(line.rstrip()) :]))
            # a line with other members might carry raw scores in them
            broken = {row for row in unread if rest[row][0].keys() != {*self.columns, *self.untouched}}
            if lines:
                yield Batch(scores, rest, done, unread, broken)

    def _scores(self, members: dict[str, Member]) -> list[float]:
        """The scores of a line; ValueError says why there are none."""
        more = members.keys() - {*self.columns, *self.untouched}
        missing = [name for name in self.columns if name not in members]
        if more or missing:
            got = f"others: {listed(sorted(more))}" if more else f"fewer: {listed(missing)} is missing"
            raise ValueError(f"expected the members of the first line, got {got}")
        values = [members[name].value for name in self.columns]
        if self._keys is not None:
            same = isinstance(values[0], dict) and values[0].keys() == set(self._keys)
            values = [values[0][key] for key in self._keys] if same else [None]
        elif self.is_pairs:
            values = [score for _, score in _pairs(values[0])]
        elif self._is_list:
            values = values[0] if isinstance(values[0], list) else [None]
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
            raise ValueError("expected a number for each score, got something else")
        if len(values) != self.classes:
            raise ValueError(f"expected {self.classes} scores, like the first line, got {len(values)}")
        return [float(value) for value in values]

    def values(self, batch: Batch, name: str) -> Sequence[object]:
        return [members[name].value if name in members else None for members, _ in batch.rest]

    @contextmanager
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> Iterator[Write]:
        with compression.compressed(file, self._codec) as out:

            def append(rest: list[tuple[dict[str, Member], str]], scores: Rows) -> None:
                lines = []
                for (members, end), values in zip(rest, scores.tolist(), strict=True):
                    new = self._written(values, members)
                    parts = [
                        member.before + new.get(name, member.text) + member.after
                        for name, member in members.items()
                        if name not in dropped
                    ]
                    lines.append("{" + ",".join(parts) + "}" + end)
                out.write("".join(lines).encode())

            yield append

    def _written(self, scores: list[float], members: dict[str, Member]) -> dict[str, str]:
        """The members that hold these scores, as text."""
        known = [None if math.isnan(score) else score for score in scores]
        if self.is_pairs:
            return {self.columns[0]: _ordered(_labels(members[self.columns[0]].value), known)}
        if self._keys is not None:
            return {self.columns[0]: json.dumps(dict(zip(self._keys, known, strict=True)), ensure_ascii=False)}
        if self._is_list:
            return {self.columns[0]: json.dumps(known)}
        return {name: json.dumps(value) for name, value in zip(self.columns, known, strict=True)}


def _members(line: str) -> dict[str, Member]:
    """The members of the object on a line; ValueError says why it is none."""
    members: dict[str, Member] = {}
    try:
        at = _after_space(line, 0)
        if line[at] != "{":
            raise ValueError("expected an object")
        while line[at] != "}":
            start = at + 1
            at = _after_space(line, start)
            if line[at] == "}" and not members:
                break
            if line[at] != '"':
                raise ValueError("expected the name of a member")
            name, at = _decoder.raw_decode(line, at)
            at = _after_space(line, at)
            if line[at] != ":":
                raise ValueError("expected a colon after the name of a member")
            value_at = _after_space(line, at + 1)
            value, end = _decoder.raw_decode(line, value_at)
            at = _after_space(line, end)
            if line[at] not in ",}":
                raise ValueError("expected a comma or the end after a member")
            if name in members:
                raise ValueError(f"expected each member once, got {name!r} twice")
            members[name] = Member(value, line[start:value_at], line[value_at:end], line[end:at])
        if line[at + 1 :].strip():
            raise ValueError("expected one object on a line")
    except (IndexError, json.JSONDecodeError, RecursionError):
        raise ValueError("this is not JSON") from None
    return members


def _after_space(line: str, at: int) -> int:
    while line[at] in SPACE:
        at += 1
    return at


def _holds_pairs(value: object) -> bool:
    """Whether it is a list of labels with their scores, as Hugging Face pipelines give them."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "score" in one for one in value)


def _pairs(value: object) -> list[tuple[Any, float]]:
    """Labels and scores in the order of the labels' names; ValueError says why there are none."""
    try:
        labels, scores = as_columns(read_pairs([value])[0])
    except BadRow as bad:
        raise ValueError(bad.fault) from None
    return list(zip(labels[0], scores[0].tolist(), strict=True))


def _labels(value: object) -> list[Any]:
    """The labels of a list, in the order of their names, whatever their scores are."""
    listed = value if isinstance(value, list) else []
    return sorted((one["label"] for one in listed if isinstance(one, dict) and "label" in one), key=str)


def _ordered(labels: list[Any], scores: list[float | None]) -> str:
    """Labels and their scores as text: the largest first, equals by name, so that the raw order does not show."""
    pairs = sorted(zip(labels, scores, strict=False), key=lambda pair: (-(pair[1] or 0), str(pair[0])))
    return json.dumps([{"label": label, "score": score} for label, score in pairs], ensure_ascii=False)


def _holds_numbers(value: object) -> bool:
    if _holds_pairs(value):
        return True
    inner = _inner(value)
    return bool(inner) and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in inner)


def _inner(value: object) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
