"""What both wires share: the parts of a message, where their markers go, and tool schemas.

On the way a marker that is on no part yet stands as a part that is nothing but its marker.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from agent.messages import ChatMessage, ToolCall, ToolSchema
from agent.models.arguments import parse_object
from agent.prompt_caching import KEY
from agent.view.view import NOTE

Part = dict[str, Any]

MAX_NAME_CHARS = 64
FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def wire_name(name: str) -> str:
    """Return the name of a call as providers take it back.

    Models call what is no tool ("multi_tool_use.parallel", or nothing at all): sent as it was
    written, such a name would have every later request of the conversation refused.

    Source: https://github.com/microsoft/semantic-kernel/issues/4447
    """
    # OpenAI and Anthropic take names of ^[a-zA-Z0-9_-]{1,64}$ alone.
    return FOREIGN.sub("_", name)[:MAX_NAME_CHARS] or "_"


def content_parts(message: ChatMessage) -> list[Part]:
    """Return the content as a list of parts; text is one part, no content is none.

    The note that a system prompt ends with once its view is compacted is a part of its own: what
    comes before it then keeps the bytes, and the place in the provider's cache, that it had.
    """
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if message["role"] == "system":
        return [half for part in parts for half in _without_note(part)]
    return parts


def wired_parts(message: ChatMessage, wired: Callable[[Part], Part]) -> list[Part]:
    """Return the parts of the content as an API has them, each with its marker.

    `wired` makes one of a part, an empty one where it cannot go out.
    """
    marked = (
        wired(part) | ({KEY: part[KEY]} if KEY in part else {}) for part in content_parts(message)
    )
    return [part for part in marked if part]


def laid_out(
    messages: Iterable[ChatMessage], parts_of: Callable[[ChatMessage], Iterable[Part]]
) -> list[list[Part]]:
    """Return the parts of each message; a marker that none can carry is on the newest before it."""
    found: list[list[Part]] = []
    newest: list[Part] = []
    for message in messages:
        parts, homeless = settled(parts_of(message))
        if homeless and newest:
            newest[-1] = {**newest[-1], KEY: homeless}
        newest = parts or newest
        found.append(parts)
    return found


def object_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call; what is no object stays readable for the model."""
    arguments = call["function"]["arguments"]
    found = parse_object(arguments)
    return {"_invalid": arguments} if found is None else found


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
    """Return a text; "" for one of white space alone."""
    return "" if text.isspace() else text


def settled(parts: Iterable[Part]) -> tuple[list[Part], dict[str, str] | None]:
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


def canonical_schema(tool: ToolSchema) -> dict[str, Any]:
    """Return the parameters of a tool with sorted keys."""
    # Tools stand at the beginning of the prefix: another order of keys would lose all of the cache.
    dumped = orjson.dumps(tool.parameters, option=orjson.OPT_SORT_KEYS)
    schema: dict[str, Any] = orjson.loads(dumped)
    return schema


def _without_note(part: Part) -> list[Part]:
    text = str(part.get("text", ""))
    # An empty block is refused; what is nothing but the note stays whole.
    if text == NOTE or not text.endswith(NOTE):
        return [part]
    return [{"type": "text", "text": text.removesuffix(NOTE)}, {**part, "text": NOTE.lstrip()}]


def _carries(part: Part) -> bool:
    # The API refuses a breakpoint on a block of thinking.
    return part["type"] not in {"thinking", "redacted_thinking"}
