"""Numbers that pass unread: long lists of them are cut out of a JSON request before it is parsed.

The model behind needs its inputs, and the gateway only where it draws or remembers by them. A flat list that holds
nothing but the characters of numbers can hold no key and no text, so nothing can hide in it; it is counted, and put
into the request that goes on, as it came. Anything else is left to the parser. Whether each is a number, the model's
server finds out, unless the list is read here as well.
msgspec.Raw would do the same and check the numbers too, in twice the time for 256 rows.
"""

import numpy as np

COMMA = ord(",")
KEY, SPACE, NUMBERS = b'"data"', b" \t\r\n", b"0123456789+-.eE, \t\r\n"
SHORT = 1024  # bytes: less is parsed as fast


def cut(body: bytes) -> tuple[bytes, list[bytes]]:
    """The body with each flat list of numbers under "data" replaced by its place among them; and these lists."""
    parts: list[bytes] = []
    lists: list[bytes] = []
    done = at = 0
    while (at := body.find(KEY, at) + len(KEY)) >= len(KEY):
        value = _after_colon(body, at)
        if value < 0:
            continue  # a text that says data, no key
        end = body.find(b"]", value) + 1
        if body[value : value + 1] != b"[" or not end or body[value + 1 : end - 1].translate(None, NUMBERS):
            return body, []
        parts += [body[done:value], b"%d" % len(lists)]
        lists.append(body[value:end])
        done = at = end
    parts.append(body[done:])
    return b"".join(parts), lists


def _after_colon(body: bytes, after_key: int) -> int:
    """Where the value of a key begins; -1 where no colon follows."""
    head = body[after_key : after_key + 16]
    rest = head.lstrip(SPACE)
    if not rest.startswith(b":"):
        return -1
    return after_key + len(head) - len(rest[1:].lstrip(SPACE))


def count(numbers: bytes) -> int:
    """How many numbers such a list has."""
    if not numbers[1:-1].strip(SPACE):
        return 0
    # where every third character is one, numpy counts them much faster than bytes do
    return int(np.count_nonzero(np.frombuffer(numbers, dtype=np.uint8) == COMMA)) + 1
