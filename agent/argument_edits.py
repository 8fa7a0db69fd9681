"""Call arguments shown shortened: JSON text in, shorter JSON text out. Used by the edits.

Works on the text and not on its values, so that keys and numbers keep their spelling. Pure: the
same text gives the same bytes for ever.
"""

import re
from collections.abc import Sequence
from operator import itemgetter

import orjson

from agent.messages import storable

TRUNCATED = "...[truncated]"
"""Source: Hermes."""

LONG_CHARS = 500
"""Arguments up to this length stay as they are. Source: Hermes."""

_MOST_LEAVES = 20
"""Shortened arguments end after about as many full leaves."""

_LEAST_LEAF_CHARS = 8


def shortened(arguments: str, leaf_chars: int) -> str:
    """Return long arguments with each string cut to `leaf_chars`, and a mark; never longer.

    What is no JSON becomes an object that holds its beginning.
    """
    if len(arguments) <= LONG_CHARS:
        return arguments
    if not _is_json(arguments):
        return _truncated_object(arguments, leaf_chars)
    most_chars = max(_MOST_LEAVES * leaf_chars, LONG_CHARS)
    short = _cut_leaves(arguments, leaf_chars, most_chars)
    if len(short) > 2 * most_chars:
        return _truncated_object(arguments, leaf_chars)
    return min(arguments, short, key=len)


def fitted(arguments: str, chars: int) -> str:
    """Return call arguments in at most so many characters, never fewer than `{}` takes."""
    if len(arguments) <= chars:
        return arguments
    if _is_json(arguments):
        leaf_chars = chars // 2
        while leaf_chars >= _LEAST_LEAF_CHARS:
            # What ends early is longer than `chars`, and not taken.
            short = _cut_leaves(arguments, leaf_chars, chars)
            if len(short) <= chars:
                return short
            leaf_chars //= 2
    head_chars = chars
    while head_chars:
        head_chars //= 2
        short = _truncated_object(arguments, head_chars)
        if len(short) <= chars:
            return short
    return "{}"


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


_PIECE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_CLOSING = {"{": "}", "[": "]"}
_REST = {"{": f'"...":"{TRUNCATED}"', "[": f'"{TRUNCATED}"'}


def _cut_leaves(text: str, leaf_chars: int, most_chars: int) -> str:
    """Return valid JSON text with its long strings cut, and without white space between values.

    Works on the text and not on its values, so that keys and numbers keep their spelling. Behind
    `most_chars` it ends at the next comma with a mark.
    """
    cut: list[str] = []
    opened: list[str] = []
    size, before = 0, ""
    for piece in map(itemgetter(0), _PIECE.finditer(text)):
        shown = piece
        if piece in _CLOSING:
            opened.append(piece)
        elif piece in "]}":
            opened.pop()
        elif piece == "," and size > most_chars:
            break
        elif piece[0] == '"' and not _is_key(opened, before):
            shown = _cut_leaf(piece, leaf_chars)
        cut.append(shown)
        size += len(shown)
        before = piece
    else:
        return "".join(cut)
    return "".join([*cut, ",", _REST[opened[-1]], *(_CLOSING[each] for each in reversed(opened))])


def _is_key(opened: Sequence[str], before: str) -> bool:
    """Tell whether the string behind the piece `before` is a key."""
    return before in {"{", ","} and opened[-1] == "{"


def _cut_leaf(piece: str, leaf_chars: int) -> str:
    if len(piece) <= leaf_chars + len(TRUNCATED):
        return piece
    value: str = orjson.loads(piece)
    if len(value) <= leaf_chars + len(TRUNCATED):
        return piece
    return orjson.dumps(value[:leaf_chars] + TRUNCATED).decode()


def _truncated_object(text: str, chars: int) -> str:
    """Return an object that holds the beginning of a text, shorter than the text.

    Args:
        text: Longer than the object is without any of it.
        chars: Most characters of the beginning.
    """
    head = storable(text[:chars])
    while True:
        short = orjson.dumps({"truncated": head + TRUNCATED}).decode()
        if len(short) < len(text) or not head:
            return short
        # Escapes take up to six characters.
        head = head[: len(head) // 2]
