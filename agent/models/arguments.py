"""The JSON text of a tool call's arguments: read, fixed where nothing is guessed, made canonical.

Done once, when a call is finished (agent/models/draft.py): the store and every wire format then
have the same bytes.
"""

import ast
import json
import re
from typing import Any

import orjson

LONGEST_REPAIR_CHARS = 65_536
"""Longer texts are not fixed: that takes time on the event loop."""

_FENCE = "```"
_LONG_INTEGER = re.compile(r"\d{19}")
_ESCAPES = re.compile(r"\\(.)", re.DOTALL)
# What means the same in JSON and in Python.
_SHARED_ESCAPES = frozenset("\\\"'nrtbfu")
_STRING_OR_TRAILING_COMMA = re.compile(
    r'("(?:[^"\\]|\\.)*")|(?<![\s,\[{:])(\s*),(?=\s*[}\]])', re.DOTALL
)


def canonical_arguments(text: str) -> str:
    """Return the arguments with sorted keys and no spaces; what is no object stays as written.

    So does a text with an integer of more than 64 bits, since reading it would change that.
    """
    values = read_arguments(text)
    if values is None or (_LONG_INTEGER.search(text) and _changed(_unquoted(text), values)):
        return text
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()


def read_arguments(text: str) -> dict[str, Any] | None:
    """Return the object that a text means, None if it means none; an empty text is an empty object.

    A code fence around it, JSON in a JSON text, trailing commas, raw control characters inside
    strings and Python's literals are understood. What is cut off is never completed. What is nested
    deeper than can be written again is none: whoever walks through it would fail.
    """
    plain = _without_fence(_unquoted(text).strip()) or "{}"
    values = parse_object(plain)
    if values is not None:
        return values if _written(values) else None
    # Both repairs are pure Python, and the event loop waits for them.
    if len(plain) > LONGEST_REPAIR_CHARS:
        return None
    return _lenient_json(plain) or _python_literal(plain)


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in the text, its keys in the order written; None if it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _changed(text: str, values: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(text) != values)
    except (ValueError, RecursionError):
        return False  # fixed texts are read exactly, and too deep ones are not written


def _unquoted(text: str) -> str:
    """Return the text in a JSON text, which some servers make of arguments; else itself."""
    if not text.lstrip().startswith('"'):
        return text
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return inner if isinstance(inner, str) else text


def _without_fence(text: str) -> str:
    if len(text) <= 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    return text.removeprefix(_FENCE).removesuffix(_FENCE).removeprefix("json").strip()


def _lenient_json(text: str) -> dict[str, Any] | None:
    plain = _STRING_OR_TRAILING_COMMA.sub(lambda found: found[1] or found[2] or "", text)
    try:
        return _exact(json.loads(plain, strict=False))
    except (ValueError, RecursionError):
        return None


def _python_literal(text: str) -> dict[str, Any] | None:
    if not text.startswith("{") or not set(_ESCAPES.findall(text)) <= _SHARED_ESCAPES:
        return None
    try:
        return _exact(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _exact(value: Any) -> dict[str, Any] | None:
    """Return the value if it is an object that JSON holds as it is: no NaN, tuple or number key."""
    written = _written(value) if isinstance(value, dict) else b""
    return value if written and orjson.loads(written) == value else None


def _written(value: dict[str, Any]) -> bytes:
    """Return the value as JSON, or b"" for what JSON cannot hold or what is nested too deep."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""
