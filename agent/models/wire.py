"""What all wires share: parts of a message and their markers, tool schemas, arguments of calls.

While a request is built, a marker without a part is a part of its own, with nothing but the marker.
Arguments are made canonical once, when a call is finished (agent/models/draft.py), so the store and
every wire have the same bytes. What servers send is read with distrust: proxies omit fields, null
them or change their type; unusable fields are left out.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from agent.messages import ChatMessage, ToolCall, ToolSchema
from agent.prompt_caching import KEY
from agent.view.view import NOTE

Part = dict[str, Any]

MAX_NAME_CHARS = 64
FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
MOST_TOKENS = 1_000_000_000
"""A report of more is ignored: no window comes near, and the database could not store it."""

LONGEST_REPAIR_CHARS = 65_536
"""Longer arguments are not fixed: both repairs are pure Python, and the event loop waits."""
_FENCE = "```"
_LONG_INTEGER = re.compile(r"\d{19}")
_ESCAPES = re.compile(r"\\(.)", re.DOTALL)
# Escapes that mean the same in JSON and in Python.
_SHARED_ESCAPES = frozenset("\\\"'nrtbfu")
_STRING_OR_TRAILING_COMMA = re.compile(
    r'("(?:[^"\\]|\\.)*")|(?<![\s,\[{:])(\s*),(?=\s*[}\]])', re.DOTALL
)


def wire_name(name: str) -> str:
    """Return the name of a call in a form that providers accept.

    Models also call tools that do not exist ("multi_tool_use.parallel", or ""): such a name would
    have every later request of the conversation refused.

    Source: https://github.com/microsoft/semantic-kernel/issues/4447
    """
    # OpenAI and Anthropic accept only names of ^[a-zA-Z0-9_-]{1,64}$.
    return FOREIGN.sub("_", name)[:MAX_NAME_CHARS] or "_"


def content_parts(message: ChatMessage) -> list[Part]:
    """Return the content as a list of parts; a text is one part.

    The note that ends the system prompt of a compacted view is a part of its own: the text before
    it keeps its bytes, and its place in the provider's cache.
    """
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if message["role"] == "system":
        return [half for part in parts for half in _without_note(part)]
    return parts


def _without_note(part: Part) -> list[Part]:
    text = str(part.get("text", ""))
    # An empty block is refused: a text of the note alone stays whole.
    if text == NOTE or not text.endswith(NOTE):
        return [part]
    return [{"type": "text", "text": text.removesuffix(NOTE)}, {**part, "text": NOTE.lstrip()}]


def wired_parts(message: ChatMessage, wired: Callable[[Part], Part]) -> list[Part]:
    """Return the parts of the content in an API's form, each with its marker.

    `wired` converts one part, to an empty one if it cannot be sent.
    """
    marked = (
        wired(part) | ({KEY: part[KEY]} if KEY in part else {}) for part in content_parts(message)
    )
    return [part for part in marked if part]


def laid_out(
    messages: Iterable[ChatMessage], parts_of: Callable[[ChatMessage], Iterable[Part]]
) -> list[list[Part]]:
    """Return the parts of each message; a marker left over moves to the newest part before it."""
    found: list[list[Part]] = []
    newest: list[Part] = []
    for message in messages:
        parts, homeless = settled(parts_of(message))
        if homeless and newest:
            newest[-1] = {**newest[-1], KEY: homeless}
        newest = parts or newest
        found.append(parts)
    return found


def spoken(parts: Iterable[Part]) -> list[Part]:
    """Drop blank texts, which providers refuse; a marker on one becomes a part of its own.

    The last step of every request, after all that splits a text.
    """
    found: list[Part] = []
    for part in parts:
        if spoken_text(part.get("text", "x")):
            found.append(part)
        elif KEY in part:
            found.append({KEY: part[KEY]})
    return found


def spoken_text(text: str) -> str:
    """Return a text, "" if it is blank."""
    return "" if text.isspace() else text


def settled(parts: Iterable[Part]) -> tuple[list[Part], dict[str, str] | None]:
    """Return the parts with their markers on those that can carry one, and a marker left over.

    A part that is only a marker hands it to the part before it, else to the next one.
    """
    placed: list[Part] = []
    homeless: dict[str, str] | None = None
    for part in parts:
        if "type" not in part and placed and _carries(placed[-1]):
            placed[-1] = {**placed[-1], KEY: part[KEY]}
        elif "type" not in part:
            homeless = part[KEY]
        elif homeless and _carries(part):
            placed.append({KEY: homeless, **part})
            homeless = None
        else:
            placed.append(part)
    return placed, homeless


def _carries(part: Part) -> bool:
    # The API refuses a breakpoint on a block of thinking.
    return part["type"] not in {"thinking", "redacted_thinking"}


def canonical_schema(tool: ToolSchema) -> dict[str, Any]:
    """Return the parameters of a tool with sorted keys."""
    # Tools are at the beginning of the prefix: another order of keys would lose all of the cache.
    dumped = orjson.dumps(tool.parameters, option=orjson.OPT_SORT_KEYS)
    schema: dict[str, Any] = orjson.loads(dumped)
    return schema


def object_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call; text that is not an object stays readable for the model."""
    arguments = call["function"]["arguments"]
    found = parse_object(arguments)
    return {"_invalid": arguments} if found is None else found


def canonical_arguments(text: str) -> str:
    """Return arguments with sorted keys and no spaces; other text unchanged.

    An integer of more than 64 bits, which reading would change, also leaves the text unchanged.
    """
    values = read_arguments(text)
    if values is None:
        return text
    if _LONG_INTEGER.search(text):
        try:
            if json.loads(_unquoted(text)) != values:
                return text
        except (ValueError, RecursionError):
            pass  # fixed texts are read exactly, and too deep ones are not written
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()


def read_arguments(text: str) -> dict[str, Any] | None:
    """Return the object that a text means, or None; an empty text is an empty object.

    Reads a code fence around it, JSON in a JSON text, trailing commas, raw control characters in
    strings, and Python's literals. A cut text is never completed. An object nested too deep to be
    written again is None.
    """
    plain = _unquoted(text).strip()
    if len(plain) > 2 * len(_FENCE) and plain.startswith(_FENCE) and plain.endswith(_FENCE):
        plain = plain.removeprefix(_FENCE).removesuffix(_FENCE).removeprefix("json").strip()
    values = parse_object(plain or "{}")
    if values is not None:
        return values if _written(values) else None
    if len(plain) > LONGEST_REPAIR_CHARS:
        return None
    try:
        unspoilt = _STRING_OR_TRAILING_COMMA.sub(lambda found: found[1] or found[2] or "", plain)
        values = _exact(json.loads(unspoilt, strict=False))
    except (ValueError, RecursionError):
        values = None
    return values or _python_literal(plain)


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in the text, its keys in the order written, or None."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _unquoted(text: str) -> str:
    """Return the text in a JSON text, which some servers send as arguments; else itself."""
    if not text.lstrip().startswith('"'):
        return text
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return inner if isinstance(inner, str) else text


def _python_literal(text: str) -> dict[str, Any] | None:
    if not text.startswith("{") or not set(_ESCAPES.findall(text)) <= _SHARED_ESCAPES:
        return None
    try:
        return _exact(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _exact(value: Any) -> dict[str, Any] | None:
    """Return an object that JSON represents exactly: no NaN, tuple or number key; else None."""
    written = _written(value) if isinstance(value, dict) else b""
    return value if written and orjson.loads(written) == value else None


def _written(value: dict[str, Any]) -> bytes:
    """Return the value as JSON; b"" for a value without a form in JSON, or nested too deep."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""


def text_in(value: object) -> str:
    """Return a text, or the text parts of a list as one; else ""."""
    if isinstance(value, list):
        parts = (part for part in value if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text_in(part.get("text")) for part in parts)
    return value if isinstance(value, str) else ""


def arguments_in(value: object) -> str:
    """Return arguments of a call, or a piece of them, as JSON text; some servers send an object."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text_in(value)


def field_in(report: object, name: str) -> Any:
    """Return a field of an object that may be anything, or None."""
    return report.get(name) if isinstance(report, dict) else None


def tokens_in(report: object, name: str, default: int = 0) -> int:
    """Return a number of tokens from a report, or `default`."""
    value = field_in(report, name)
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return value if 0 <= value <= MOST_TOKENS else default


def usd_in(value: object) -> float | None:
    """Return an amount of money; None if it is below 0, infinite or not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None
