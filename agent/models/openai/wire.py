"""The request body of OpenAI's Chat Completions API, built from Parley's messages; pure.

A model behind an envelope (Claude over OpenRouter) takes breakpoints of its prompt cache on content
parts: there all contents go out as parts, marked or not, so a marker changes no byte of the prefix.

Fields that only the server understands are kept, and are sent back verbatim.
`message["opaque"]["openai"]` holds

- `origin`: the server and the family of the model that wrote them; nobody else gets them back;
- `reasoning_details` (OpenRouter): signed or encrypted reasoning, a list of parts;
- `reasoning_field`: the name of the text field in which the reasoning came (Moonshot and DeepSeek
  want it back beside tool calls); the text itself is `message["reasoning"]`;
- `extra_content`: by the id of a tool call what belongs to it (Gemini's thought signature).

`OpaqueParts` collects them from a stream, `with_opaque` sends them back.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import orjson

from agent.messages import ChatMessage, ToolCall, ToolSchema, is_image, text_of
from agent.models.arguments import parse_object
from agent.models.base import ModelRequest
from agent.models.catalog import output_limit
from agent.models.draft import mend_surrogates
from agent.models.openai.mode import Quirks
from agent.models.openai.roles import shaped
from agent.models.wire import (
    Part,
    canonical_schema,
    content_parts,
    laid_out,
    object_of,
    spoken,
    spoken_text,
    wire_name,
    wired_parts,
)
from agent.prompt_caching import KEY
from agent.usage import CacheLayout

Fields = dict[str, Any]

PROVIDER = "openai"
REPLAYED_TEXT_FIELD = "reasoning_content"
_GROWING = ("text", "summary")
_FAMILY = re.compile(r"[a-z]+")


def request_body(
    request: ModelRequest,
    model: str,
    *,
    layout: CacheLayout | None = None,
    origin: str = "",
    quirks: Quirks = frozenset(),
    join: bool = False,
) -> dict[str, Any]:
    """Return the arguments of `chat.completions.create` for one call, without `stream`.

    Args:
        model: The provider's name of it.
        layout: "envelope" where the model takes breakpoints; without it markers are left out.
        origin: Who it goes to, see `origin_of`; "" for no opaque fields.
        quirks: What the server does not take.
        join: Whether neighbours of one role become one message.
    """
    limit = "max_completion_tokens" if "max_completion_tokens" in quirks else "max_tokens"
    body: dict[str, Any] = {
        "model": model,
        "messages": shaped(_wired(request.messages, layout, origin), quirks, join=join),
        limit: output_limit(model, request.max_output_tokens),
    }
    if "no_stream_options" not in quirks:
        # Without it a stream ends with no report of what was used.
        body["stream_options"] = {"include_usage": True}
    return body | offered(request, quirks, [_tool(tool, quirks) for tool in request.tools])


def offered(request: ModelRequest, quirks: Quirks, wired: list[Fields]) -> Fields:
    """Return the fields of a body that offer tools, `wired` as the API has them."""
    if not wired or "no_tools" in quirks:
        return {}
    fields: Fields = {"tools": wired}
    if not request.allow_tools and "no_tool_choice" not in quirks:
        # The tools stay: without them the prefix would be another one.
        fields["tool_choice"] = "none"
    return fields


def _wired(
    messages: list[ChatMessage], layout: CacheLayout | None, origin: str
) -> list[dict[str, Any]]:
    contents: Iterable[str | list[Part]]
    if layout:
        contents = laid_out(messages, _parts)
    else:
        contents = [
            text_or_images(each, (_part(part, each) for part in content_parts(each)))
            for each in messages
        ]
    wired = map(_wire, messages, contents)
    pairs = zip(wired, messages, strict=True)
    return [with_opaque(wire, message, origin) for wire, message in pairs if wire]


def _wire(message: ChatMessage, content: str | list[Part]) -> dict[str, Any] | None:
    """Return a message with a content; None if nothing of it would go out (it only thought)."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content or ""}
    if calls := message.get("tool_calls"):
        wire_calls = [_tool_call(call) for call in calls]
        return {"role": "assistant", "content": content or None, "tool_calls": wire_calls}
    return {"role": message["role"], "content": content} if content else None


def text_or_images(message: ChatMessage, wired: Iterable[Part]) -> str | list[Part]:
    """Return the text; its parts, `wired` as the API has them, only if there are images among it.

    Empty parts are those that cannot go out.
    """
    if isinstance(message.get("content"), list):
        parts = spoken(part for part in wired if part)
        if any(map(is_image, parts)):
            return parts
    return spoken_text(text_of(message))


def _parts(message: ChatMessage) -> list[Part]:
    """Return new parts; markers that are on none of them stand as parts of their own."""
    parts = wired_parts(message, lambda part: _part(part, message))
    if KEY in message:
        parts.append({KEY: message["cache_control"]})
    return spoken(parts)


def _part(part: Part, message: ChatMessage) -> Part:
    """Return a part without its marker; an empty one for what cannot go out."""
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["type"] == "image_url" and message["role"] == "user":
        return {"type": "image_url", "image_url": part["image_url"]}
    return {}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": wire_name(call["function"]["name"]), "arguments": sound_arguments(call)}
    return {"id": call["id"], "type": "function", "function": function}


def sound_arguments(call: ToolCall) -> str:
    """Return the arguments of a call as JSON of an object."""
    arguments = call["function"]["arguments"]
    # Servers that parse the arguments (vLLM, Ollama) refuse what is not an object.
    is_sound = parse_object(arguments) is not None
    return arguments if is_sound else orjson.dumps(object_of(call)).decode()


def _tool(tool: ToolSchema, quirks: Quirks) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema_of(tool, quirks),
    }
    return {"type": "function", "function": function}


_PLAIN_WORDS = frozenset({
    *("type", "description", "properties", "required", "items", "enum", "anyOf", "format"),
    *("nullable", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"),
    *("pattern", "title", "default"),
})
"""Words of JSON schemas that every server knows. Source: Gemini's `Schema`, the smallest set:
https://ai.google.dev/api/caching#Schema"""


def schema_of(tool: ToolSchema, quirks: Quirks) -> dict[str, Any]:
    """Return the schema of a tool's arguments, as far as the server understands it."""
    schema = canonical_schema(tool)
    plain: dict[str, Any] = _plain_schema(schema) if "plain_schemas" in quirks else schema
    return plain


def _plain_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {word: value for word, value in schema.items() if word in _PLAIN_WORDS}
    for word in ("items", "anyOf"):
        if word in kept:
            kept[word] = _plain_schema(kept[word])
    if isinstance(properties := kept.get("properties"), dict):
        # Their names are no words of the schema.
        kept["properties"] = {name: _plain_schema(each) for name, each in properties.items()}
    return kept


def origin_of(base_url: str, model: str) -> str:
    """Return who writes opaque fields: the server's name and the family of the model."""
    family = _FAMILY.search(model.lower().rpartition("/")[2])
    return f"{urlsplit(base_url).hostname or ''}/{family[0] if family else ''}"


def with_opaque(wired: Fields, message: ChatMessage, origin: str) -> Fields:
    """Return an assistant message of the wire with the opaque fields that its origin wants back.

    Args:
        wired: The message as it goes out without them; not changed.
        message: The message as stored.
        origin: Who it goes to, see `origin_of`; "" for somebody who wants none.
    """
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    # Signed reasoning is refused by any other server, and by another family of models.
    if not origin or kept.get("origin") != origin:
        return wired
    calls = wired.get("tool_calls")
    replayed = dict(wired)
    if details := kept.get("reasoning_details"):
        replayed["reasoning_details"] = details
    # Moonshot and DeepSeek want it back, but only beside tool calls.
    if calls and kept.get("reasoning_field") == REPLAYED_TEXT_FIELD:
        replayed[REPLAYED_TEXT_FIELD] = message.get("reasoning", "")
    if calls and (extras := kept.get("extra_content")):
        replayed["tool_calls"] = [
            {**call, "extra_content": extras[call["id"]]} if call["id"] in extras else call
            for call in calls
        ]
    return replayed


class OpaqueParts:
    """Collects the opaque fields of one stream."""

    def __init__(self, origin: str) -> None:
        """`origin` is who writes them, see `origin_of`."""
        self._origin = origin
        self._details: list[Fields] = []
        self._field = ""

    def take_details(self, parts: object) -> None:
        """Take the `reasoning_details` of a delta.

        Pieces of one part have its index and type: their texts are joined, of other fields the
        newest value stays.
        """
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict):
                self._take_part(part)

    def take_field(self, name: str) -> None:
        """Take note of the field in which the reasoning comes."""
        self._field = name

    def add_to(self, message: ChatMessage, extra_content: Fields) -> None:
        """Store in a finished message what there is to keep; `extra_content` is by call id."""
        kept: Fields = {}
        if self._details:
            kept["reasoning_details"] = [
                {
                    name: mend_surrogates(value) if isinstance(value, str) else value
                    for name, value in part.items()
                }
                for part in self._details
            ]
        if self._field == REPLAYED_TEXT_FIELD and message.get("tool_calls"):
            kept["reasoning_field"] = self._field
        if extra_content:
            kept["extra_content"] = extra_content
        if kept:
            message["opaque"] = {PROVIDER: {"origin": self._origin, **kept}}

    def _take_part(self, part: Fields) -> None:
        # Without an index a piece can only belong to the newest part.
        begun = self._details if part.get("index") is not None else self._details[-1:]
        grown = next((old for old in reversed(begun) if _continues(part, old)), None)
        if grown is None:
            self._details.append(dict(part))
            return
        for name, value in part.items():
            before = grown.get(name) or ""
            if name in _GROWING and isinstance(value, str) and isinstance(before, str):
                grown[name] = before + value
            elif value is not None:
                grown[name] = value


def _continues(part: Fields, old: Fields) -> bool:
    """Return whether a piece belongs to a part that has begun; encrypted data comes whole."""
    if part.get("data") is not None or part.get("type") != old.get("type"):
        return False
    ids = {part.get("id"), old.get("id")} - {None}
    return len(ids) <= 1 and part.get("index") == old.get("index")
