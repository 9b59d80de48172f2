"""Mutants: one small change of the source each, of the kind that a slip of the hand makes."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
COMPARISONS |= {"in": "not in", "not in": "in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "@": "*"}
ARITHMETIC |= {"&": "|", "|": "&", "<<": ">>", ">>": "<<"}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
CALLS |= {"floor": "ceil", "ceil": "floor", "cumsum": "cumprod", "sum": "max"}


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of a module's source become `text`."""

    line: int
    function: str
    start: int
    end: int
    text: str
    before: str  # the source line, and what it becomes: these name the mutant, line numbers move
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(source: bytes) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    listed = []
    for function, node in _nodes(ast.parse(source), ""):
        if not function and isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            continue  # the union of two types
        for first, last, text in _changes(node, source, starts):
            begin, end = source.rfind(b"\n", 0, first) + 1, source.find(b"\n", last)
            before = source[begin:end].decode().strip()
            after = (source[begin:first] + text.encode() + source[last:end]).decode().strip()
            line = source.count(b"\n", 0, first) + 1
            if source[first:last].decode() != text:
                listed.append(Mutant(line, function, first, last, text, before, after))
    return sorted(listed, key=lambda mutant: (mutant.start, mutant.text))


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Nodes that do something: no annotations, docstrings or messages of exceptions."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".lstrip(".")
            yield inside, child
            if not isinstance(child, (ast.Raise, ast.JoinedStr)):
                yield from _nodes(child, inside)


def _changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[tuple[int, int, str]]:
    """What a node can become: (first byte, last byte, text)."""

    def span(part: ast.expr | ast.stmt) -> tuple[int, int]:
        assert part.end_lineno is not None
        assert part.end_col_offset is not None
        return starts[part.lineno - 1] + part.col_offset, starts[part.end_lineno - 1] + part.end_col_offset

    def between(left: ast.expr, right: ast.expr, swaps: dict[str, str]) -> Iterator[tuple[int, int, str]]:
        first, last = span(left)[1], span(right)[0]
        gap = source[first:last].decode()
        for symbol in sorted(swaps, key=len, reverse=True):
            if symbol in gap.replace("(", " ").replace(")", " ").split() or gap.strip("() ") == symbol:
                at = first + len(gap[: gap.index(symbol)].encode())
                yield at, at + len(symbol.encode()), swaps[symbol]
                return

    if isinstance(node, ast.Compare):
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            yield from between(left, right, COMPARISONS)
    elif isinstance(node, ast.BinOp):
        yield from between(node.left, node.right, ARITHMETIC)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from between(left, right, {"and": "or", "or": "and"})
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        first = span(node)[0]
        yield first, first + len("not" if isinstance(node.op, ast.Not) else "-"), ""
    elif isinstance(node, ast.Constant):
        first, last = span(node)
        for text in _numbers(node.value):
            yield first, last, text
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CALLS:
            last = span(node.func)[1]
            yield last - len(name), last, CALLS[name]
    elif isinstance(node, ast.Raise):
        yield *span(node), "pass"
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield *span(node.value), "None"
    elif isinstance(node, ast.IfExp):
        first, last = span(node.test)
        yield first, last, "True"
        yield first, last, "False"


def _numbers(value: object) -> list[str]:
    if isinstance(value, bool):
        return [repr(not value)]
    if isinstance(value, int):
        return [repr(value + 1), repr(value // 2)] if value > 1 else [repr(value + 1)]
    if isinstance(value, float):
        return [repr(value * 2), repr(value / 2)] if value else ["1.0"]
    return []
