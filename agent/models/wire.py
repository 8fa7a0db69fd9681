"""The common part of all wire formats: message parts and markers, tool schemas, call arguments.

While a request is built, a marker without a part forms a part of its own that holds only the
marker. Arguments are made canonical once, when a call is finished (agent/models/draft.py), so the
store and every wire format have the same bytes. Server data is untrusted: proxies omit fields, set
them to null or change their type; unusable fields are dropped.
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
"""Larger reports are ignored: no window is near this size, and the database could not store it."""

LONGEST_REPAIR_CHARS = 65_536
"""Longer arguments are not repaired: both repairs are pure Python and block the event loop."""
_FENCE = "```"
_LONG_INTEGER = re.compile(r"\d{19}")
_ESCAPES = re.compile(r"\\(.)", re.DOTALL)
# Escapes with the same meaning in JSON and in Python.
_SHARED_ESCAPES = frozenset("\\\"'nrtbfu")
_STRING_OR_TRAILING_COMMA = re.compile(
    r'("(?:[^"\\]|\\.)*")|(?<![\s,\[{:])(\s*),(?=\s*[}\]])', re.DOTALL
)


def wire_name(name: str) -> str:
    """Return a call's name in a form that providers accept.

    Models also call tools that do not exist ("multi_tool_use.parallel", or ""). Unchanged, such a
    name would cause every later request of the conversation to be refused.

    Source: https://github.com/microsoft/semantic-kernel/issues/4447
    """
    # OpenAI and Anthropic accept only names that match ^[a-zA-Z0-9_-]{1,64}$.
    return FOREIGN.sub("_", name)[:MAX_NAME_CHARS] or "_"


def content_parts(message: ChatMessage) -> list[Part]:
    """Return the content as a list of parts; a text is one part.

    The note at the end of a compacted view's system prompt is a separate part: the text before it
    keeps its bytes and its place in the provider's cache.
    """
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if message["role"] == "system":
        return [half for part in parts for half in _without_note(part)]
    return parts


def _without_note(part: Part) -> list[Part]:
    text = str(part.get("text", ""))
    # Providers refuse an empty block: a text that is only the note stays whole.
    if text == NOTE or not text.endswith(NOTE):
        return [part]
    return [{"type": "text", "text": text.removesuffix(NOTE)}, {**part, "text": NOTE.lstrip()}]


def wired_parts(message: ChatMessage, wired: Callable[[Part], Part]) -> list[Part]:
    """Return the content's parts in an API's form, each with its marker.

    `wired` converts one part, or returns an empty one if it cannot be sent.
    """
    marked = (
        wired(part) | ({KEY: part[KEY]} if KEY in part else {}) for part in content_parts(message)
    )
    return [part for part in marked if part]


def lay_out(
    messages: Iterable[ChatMessage], parts_of: Callable[[ChatMessage], Iterable[Part]]
) -> list[list[Part]]:
    """Return each message's parts; an unplaced marker moves to the nearest part before it."""
    found: list[list[Part]] = []
    newest: list[Part] = []
    for message in messages:
        parts, homeless = place_markers(parts_of(message))
        if homeless and newest:
            newest[-1] = {**newest[-1], KEY: homeless}
        newest = parts or newest
        found.append(parts)
    return found


def drop_blank_texts(parts: Iterable[Part]) -> list[Part]:
    """Drop blank texts, which providers refuse; a marker on one becomes a part of its own.

    This is the last step of every request, after every step that splits a text.
    """
    found: list[Part] = []
    for part in parts:
        if blank_to_empty(part.get("text", "x")):
            found.append(part)
        elif KEY in part:
            found.append({KEY: part[KEY]})
    return found


def blank_to_empty(text: str) -> str:
    """Return the text, or "" if it is blank."""
    return "" if text.isspace() else text


def place_markers(parts: Iterable[Part]) -> tuple[list[Part], dict[str, str] | None]:
    """Move markers to parts that can carry them; return the parts and an unplaced marker.

    A part that is only a marker passes it to the part before it, else to the next one.
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
    # The API refuses a breakpoint on a thinking block.
    return part["type"] not in {"thinking", "redacted_thinking"}


def canonical_schema(tool: ToolSchema) -> dict[str, Any]:
    """Return a tool's parameters with sorted keys."""
    # Tools are at the start of the prefix: reordered keys would lose the whole cache.
    dumped = orjson.dumps(tool.parameters, option=orjson.OPT_SORT_KEYS)
    schema: dict[str, Any] = orjson.loads(dumped)
    return schema


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Parse a call's arguments; keep text that is not an object readable for the model."""
    arguments = call["function"]["arguments"]
    found = parse_object(arguments)
    return {"_invalid": arguments} if found is None else found


def canonical_arguments(text: str) -> str:
    """Return arguments with sorted keys and no spaces; keep any other text unchanged.

    Text with an integer of more than 64 bits stays unchanged too, since parsing would alter it.
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
    """Parse a text as a JSON object, or return None; an empty text is an empty object.

    Accepts a surrounding code fence, JSON inside a JSON string, trailing commas, raw control
    characters in strings, and Python literals. A truncated text is never completed. An object
    nested too deeply to be serialized again yields None.
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
    """Parse a JSON object, with keys in the order written; return None for anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _unquoted(text: str) -> str:
    """Unwrap text from a JSON string, which some servers send as arguments."""
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
    """Return an object that JSON represents exactly (no NaN, tuple or numeric key), or None."""
    written = _written(value) if isinstance(value, dict) else b""
    return value if written and orjson.loads(written) == value else None


def _written(value: dict[str, Any]) -> bytes:
    """Serialize a value to JSON; b"" if it has no JSON form or is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""


def text_in(value: object) -> str:
    """Return a text, or a list's text parts joined, else ""."""
    if isinstance(value, list):
        parts = (part for part in value if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text_in(part.get("text")) for part in parts)
    return value if isinstance(value, str) else ""


def arguments_in(value: object) -> str:
    """Return call arguments, or a piece of them, as JSON text; some servers send an object."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text_in(value)


def field_in(report: object, name: str) -> Any:
    """Return a field of an object of any type, or None."""
    return report.get(name) if isinstance(report, dict) else None


def tokens_in(report: object, name: str, default: int = 0) -> int:
    """Return a token count from a report, or `default`."""
    value = field_in(report, name)
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return value if 0 <= value <= MOST_TOKENS else default


def usd_in(value: object) -> float | None:
    """Return an amount in US dollars, or None if it is negative, infinite or not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None
