"""The request body of OpenAI's Responses API, built from Parley's messages; pure functions.

The provider keeps nothing (`store: false`): each request brings the whole conversation, and what
the model thought comes back to it encrypted. `message["opaque"]["openai"]` holds

- `origin`: the server and the family of the model; nobody else gets any of it back;
- `output`: the items of the answer in their order. What the model thought stands in it verbatim;
  of a text only how many characters it has, and its phase; of a call only that there is one: texts
  and arguments are the message's own.
- `reasoning_tokens`: how many tokens the thoughts have, as reported; they cannot be read.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agent.messages import ChatMessage, ToolCall, ToolSchema, text_of
from agent.models.base import ModelRequest
from agent.models.catalog import output_limit
from agent.models.openai.mode import Quirks
from agent.models.openai.wire import (
    PROVIDER,
    Fields,
    schema_of,
    sound_arguments,
)
from agent.models.wire import Remembered, content_parts, text_bytes, wire_name

ENCRYPTED = "reasoning.encrypted_content"
OUTPUT = "output"


def responses_body(
    request: ModelRequest, model: str, origin: str, quirks: Quirks = frozenset()
) -> dict[str, Any]:
    """Return the arguments of `responses.create` for one call, without `stream`.

    Args:
        model: The provider's name of it.
        origin: Who it goes to, see `agent.models.openai.wire.origin_of`.
        quirks: What the server does not take.
    """
    system, others = _apart(request.messages)
    body: dict[str, Any] = {
        "model": model,
        "input": [item for each in others for item in _items(each, origin)],
        "max_output_tokens": output_limit(model, request.max_output_tokens),
        "store": False,
    }
    if system:
        body["instructions"] = system
    if "no_encrypted_reasoning" not in quirks:
        body["include"] = [ENCRYPTED]
    if request.tools and "no_tools" not in quirks:
        body["tools"] = [_tool(tool, quirks) for tool in request.tools]
        if not request.allow_tools and "no_tool_choice" not in quirks:
            # The tools stay: without them the prefix would be another one.
            body["tool_choice"] = "none"
    return body


def _apart(messages: list[ChatMessage]) -> tuple[str, list[ChatMessage]]:
    """Return the text of the system prompt, "" without one, and the other messages."""
    if messages and messages[0]["role"] == "system":
        return text_of(messages[0]), messages[1:]
    return "", messages


def _items(message: ChatMessage, origin: str) -> list[Fields]:
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    # Nobody else can read it; to another model OpenAI refuses it.
    if OUTPUT in kept and kept.get("origin") == origin:
        return _known_replay(message)
    return _known_items(message)


def _plain_items(message: ChatMessage) -> list[Fields]:
    """Return a message as items, without anything that only its server understands."""
    if message["role"] == "tool":
        text = text_of(message)
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    if message["role"] != "assistant":
        content = _content(message)
        return [{"type": "message", "role": message["role"], "content": content}]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return [*_said(text_of(message)), *calls]


def _replayed_items(message: ChatMessage) -> list[Fields]:
    """Return an answer as the items that it came as; plain ones where it was changed since."""
    text, calls = text_of(message), list(message.get("tool_calls") or ())
    output = message["opaque"][PROVIDER][OUTPUT]
    if not _fits(output, text, len(calls)):
        return _plain_items(message)
    return list(_as_it_came(output, text, calls))


def _as_it_came(output: Iterable[Fields], text: str, calls: list[ToolCall]) -> Iterator[Fields]:
    begun, called = 0, 0
    for item in output:
        if item["type"] == "message":
            end = begun + item["chars"]
            yield from _said(text[begun:end], item.get("phase"))
            begun = end
        elif item["type"] == "function_call":
            yield _call(calls[called])
            called += 1
        else:
            yield item


def _fits(output: Iterable[Fields], text: str, calls: int) -> bool:
    """Whether the items of an answer still add up to its text and calls."""
    kinds = [item["type"] for item in output]
    chars = sum(item.get("chars", 0) for item in output if item["type"] == "message")
    # Thoughts that nothing follows are refused.
    ends_well = bool(kinds) and kinds[-1] != "reasoning"
    return ends_well and chars == len(text) and kinds.count("function_call") == calls


_known_items = Remembered(_plain_items, text_bytes)
_known_replay = Remembered(_replayed_items, text_bytes)


def _said(text: str, phase: str | None = None) -> list[Fields]:
    if not text.strip():
        return []
    said: Fields = {"type": "message", "role": "assistant", "content": text}
    return [said | {"phase": phase} if phase else said]


def _content(message: ChatMessage) -> str | list[Fields]:
    """Return the text; a list of parts only where there are images among it."""
    if isinstance(message.get("content"), list):
        parts = [part for each in content_parts(message) if (part := _part(each))]
        if any(part["type"] == "input_image" for part in parts):
            return parts
    return text_of(message)


def _part(part: Fields) -> Fields:
    """Return a part of a question; an empty one for what cannot go out."""
    if part["type"] == "text" and part["text"].strip():
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
    return {}


def _call(call: ToolCall) -> Fields:
    return {
        "type": "function_call",
        "call_id": call["id"],
        "name": wire_name(call["function"]["name"]),
        "arguments": sound_arguments(call),
    }


def _tool(tool: ToolSchema, quirks: Quirks) -> Fields:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": schema_of(tool, quirks),
        # Strict ones would have to name every property as required.
        "strict": False,
    }


class OutputItems:
    """Collects the items of an answer as its stream brings them, for `opaque`."""

    def __init__(self, origin: str) -> None:
        """`origin` is who writes them, see `agent.models.openai.wire.origin_of`."""
        self._origin = origin
        self._items: list[Fields] = []
        self.reasoning_tokens = 0

    def say(self, chars: int, phase: object) -> None:
        """Take note of a text."""
        named = {"phase": phase} if isinstance(phase, str) else {}
        self._items.append({"type": "message", "chars": chars, **named})

    def call(self) -> None:
        """Take note of a call."""
        self._items.append({"type": "function_call"})

    def think(self, item: Fields) -> None:
        """Take what the model thought; without the encrypted part nobody can read it again."""
        if item.get("encrypted_content"):
            self._items.append({key: item[key] for key in _KEPT if key in item})

    def add_to(self, message: ChatMessage) -> None:
        """Store in a finished message what there is to keep."""
        if any(item["type"] == "reasoning" or "phase" in item for item in self._items):
            kept: Fields = {"origin": self._origin, OUTPUT: self._items}
            if self.reasoning_tokens:
                kept["reasoning_tokens"] = self.reasoning_tokens
            message["opaque"] = {PROVIDER: kept}


_KEPT = ("id", "type", "summary", "content", "encrypted_content")
"""What goes back of a thought; its `status` belongs to the answer."""
