"""What both wires share: the parts of a message, where their markers go, and tool schemas.

On the way a marker that is on no part yet stands as a part that is nothing but its marker.
"""

from typing import TYPE_CHECKING, Any

import orjson

from agent.prompt_caching import KEY, MAX_BREAKPOINTS
from agent.view import NOTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.messages import ChatMessage
    from agent.models.base import ToolSchema

Part = dict[str, Any]

KNOWN_SCHEMAS = 512
"""Tool schemas whose canonical form is remembered; they live as long as Parley runs."""

_schemas: dict[int, tuple["ToolSchema", dict[str, Any]]] = {}


def content_parts(message: "ChatMessage") -> list[Part]:
    """Return the content as a list of parts; text is one part, no content is none.

    The note that a system prompt ends with once its view is compacted is a part of its own: what
    comes before it then keeps the bytes, and the place in the provider's cache, that it had.
    """
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if message["role"] == "system":
        return [half for part in parts for half in _without_note(part)]
    return parts


def settled(parts: "Iterable[Part]") -> tuple[list[Part], dict[str, str] | None]:
    """Return the parts with their markers on those that can carry one, and a marker left over.

    A part that is nothing but a marker hands it to the one before it, else to the next.
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


def drop_surplus(parts: "Iterable[Part]") -> None:
    """Take the markers off that a provider would refuse: the first and the last three stay."""
    marked = [part for part in parts if KEY in part]
    for part in marked[1 : 1 - MAX_BREAKPOINTS]:
        del part[KEY]


def canonical_schema(tool: "ToolSchema") -> dict[str, Any]:
    """Return the parameters of a tool with sorted keys; to be read only."""
    known = _schemas.get(id(tool))
    if known is not None:
        return known[1]
    dumped = orjson.dumps(tool.parameters, option=orjson.OPT_SORT_KEYS)
    schema: dict[str, Any] = orjson.loads(dumped)
    if len(_schemas) >= KNOWN_SCHEMAS:
        _schemas.clear()
    # The tool is kept with it: its id is its own only as long as it lives.
    _schemas[id(tool)] = tool, schema
    return schema


def _without_note(part: Part) -> list[Part]:
    text = str(part.get("text", ""))
    if text == NOTE or not text.endswith(NOTE):
        return [part]
    return [
        {"type": "text", "text": text.removesuffix(NOTE)},
        {**part, "text": NOTE.lstrip()},
    ]


def _carries(part: Part) -> bool:
    return part["type"] not in {"thinking", "redacted_thinking"}
