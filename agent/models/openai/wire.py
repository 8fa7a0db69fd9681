"""The request body of OpenAI's Chat Completions API, built from Parley's messages; pure functions.

A model behind an envelope (Claude over OpenRouter) takes cache breakpoints on content parts. For it
every content is sent as parts, marked or not, so a marker changes no byte of the prefix. The
transformations at the end of this file are for servers that refuse the usual form. A message keeps
its form whatever follows; only the last one may grow at its end, so a prompt cache still matches
the earlier request.

Fields that only the server understands are sent back verbatim. `message["opaque"]["openai"]` holds

- `origin`: the server and model family that wrote them; they are not sent to any other server;
- `reasoning_details` (OpenRouter): signed or encrypted reasoning, a list of parts;
- `reasoning_field`: the name of the field in which the reasoning arrived (Moonshot and DeepSeek
  want it back with tool calls); the text itself is `message["reasoning"]`;
- `extra_content`: extra fields of tool calls, by call id (Gemini's thought signature).

`OpaqueParts` collects them from a stream, `with_opaque` sends them back.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2s
from typing import Any
from urllib.parse import urlsplit

import orjson

from agent.messages import ChatMessage, ToolCall, is_image, text_of
from agent.models.base import ModelRequest
from agent.models.catalog import output_limit
from agent.models.draft import join_surrogates
from agent.models.openai.mode import Quirk, Quirks
from agent.models.wire import (
    Part,
    arguments_object,
    blank_to_empty,
    canonical_schema,
    content_parts,
    drop_blank_texts,
    lay_out,
    parse_object,
    wire_name,
    wired_parts,
)
from agent.prompt_caching import KEY, CacheLayout

Fields = dict[str, Any]

PROVIDER = "openai"
REPLAYED_TEXT_FIELD = "reasoning_content"
_GROWING = ("text", "summary")
_FAMILY = re.compile(r"[a-z]+")
_PLAIN_WORDS = frozenset({
    *("type", "description", "properties", "required", "items", "enum", "anyOf", "format"),
    *("nullable", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"),
    *("pattern", "title", "default"),
})
"""JSON Schema keywords that every server knows. Source: Gemini's `Schema`, the smallest set:
https://ai.google.dev/api/caching#Schema"""

NOT_ANSWERED = "[No answer was given to this.]"
"""Sent between tool results and a question that follows them, as after `/stop`."""
BEFORE = "[The conversation begins with an answer.]"
"""Sent before a conversation that starts with an assistant message."""
SIGNED_BY_NOBODY = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""The signature that Gemini accepts on another model's calls.

Source: https://ai.google.dev/gemini-api/docs/thought-signatures
"""
_GAP = "\n\n"
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def request_body(
    request: ModelRequest,
    model: str,
    *,
    layout: CacheLayout | None = None,
    origin: str = "",
    quirks: Quirks = frozenset(),
    join: bool = False,
) -> dict[str, Any]:
    """Build the arguments of `chat.completions.create` for one call, without `stream`.

    Args:
        layout: "envelope" if the model takes breakpoints; otherwise markers are omitted.
        origin: The receiving server, see `origin_of`; "" omits opaque fields.
        join: Whether to merge consecutive messages of one role: many models' templates reject
            consecutive questions or silently drop one.
    """
    limit = "max_completion_tokens" if "max_completion_tokens" in quirks else "max_tokens"
    body: dict[str, Any] = {
        "model": model,
        "messages": apply_quirks(_wired(request.messages, layout, origin), quirks, join=join),
        limit: output_limit(model, request.max_output_tokens),
    }
    if "no_stream_options" not in quirks:
        # Required for the stream to end with a usage report.
        body["stream_options"] = {"include_usage": True}
    tools = [{"type": "function", "function": each} for each in tools_of(request, quirks)]
    return body | tool_fields(request, quirks, tools)


def tool_fields(request: ModelRequest, quirks: Quirks, wired: list[Fields]) -> Fields:
    """Return the body fields that offer tools; `wired` has the tools in the API's form."""
    if not wired or "no_tools" in quirks:
        return {}
    fields: Fields = {"tools": wired}
    if not request.allow_tools and "no_tool_choice" not in quirks:
        # Keep the tools: without them the prefix would change.
        fields["tool_choice"] = "none"
    return fields


def tools_of(request: ModelRequest, quirks: Quirks) -> Iterator[Fields]:
    """Yield the name, description and parameters of each tool."""
    for tool in request.tools:
        schema = canonical_schema(tool)
        yield {
            "name": tool.name,
            "description": tool.description,
            "parameters": _plain_schema(schema) if "plain_schemas" in quirks else schema,
        }


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
        # Property names are not schema keywords.
        kept["properties"] = {name: _plain_schema(each) for name, each in properties.items()}
    return kept


def _wired(messages: list[ChatMessage], layout: CacheLayout | None, origin: str) -> list[Fields]:
    contents: Iterable[str | list[Part]]
    if layout:
        contents = lay_out(messages, _parts)
    else:
        contents = [
            text_or_images(each, (_part(part, each) for part in content_parts(each)))
            for each in messages
        ]
    wired = map(_wire, messages, contents)
    pairs = zip(wired, messages, strict=True)
    return [with_opaque(wire, message, origin) for wire, message in pairs if wire]


def _wire(message: ChatMessage, content: str | list[Part]) -> Fields | None:
    """Return a message with this content; None if nothing is left to send (only thoughts)."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content or ""}
    if calls := message.get("tool_calls"):
        functions = [
            {"name": wire_name(call["function"]["name"]), "arguments": sound_arguments(call)}
            for call in calls
        ]
        pairs = zip(calls, functions, strict=True)
        wired = [{"id": call["id"], "type": "function", "function": it} for call, it in pairs]
        return {"role": "assistant", "content": content or None, "tool_calls": wired}
    return {"role": message["role"], "content": content} if content else None


def text_or_images(message: ChatMessage, wired: Iterable[Part]) -> str | list[Part]:
    """Return the text of a message, or its parts in the API's form if they include images.

    Empty parts in `wired` are omitted.
    """
    if isinstance(message.get("content"), list):
        parts = drop_blank_texts(part for part in wired if part)
        if any(map(is_image, parts)):
            return parts
    return blank_to_empty(text_of(message))


def _parts(message: ChatMessage) -> list[Part]:
    """Return new parts; markers not attached to any of them become parts of their own."""
    parts = wired_parts(message, lambda part: _part(part, message))
    if KEY in message:
        parts.append({KEY: message["cache_control"]})
    return drop_blank_texts(parts)


def _part(part: Part, message: ChatMessage) -> Part:
    """Return a part without its marker, or an empty dict if it cannot be sent."""
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["type"] == "image_url" and message["role"] == "user":
        return {"type": "image_url", "image_url": part["image_url"]}
    return {}


def sound_arguments(call: ToolCall) -> str:
    """Return a call's arguments as a JSON object."""
    arguments = call["function"]["arguments"]
    # Servers that parse the arguments (vLLM, Ollama) refuse anything else.
    is_sound = parse_object(arguments) is not None
    return arguments if is_sound else orjson.dumps(arguments_object(call)).decode()


def origin_of(base_url: str, model: str) -> str:
    """Return the origin of opaque fields: server name and model family."""
    family = _FAMILY.search(model.lower().rpartition("/")[2])
    return f"{urlsplit(base_url).hostname or ''}/{family[0] if family else ''}"


def with_opaque(wired: Fields, message: ChatMessage, origin: str) -> Fields:
    """Add the opaque fields that the receiver wants back to a message in the API's form.

    `origin` is the receiver, see `origin_of`; "" adds none. `wired` is not modified.
    """
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    # Other servers and other model families refuse signed reasoning.
    if not origin or kept.get("origin") != origin:
        return wired
    calls = wired.get("tool_calls")
    replayed = dict(wired)
    if details := kept.get("reasoning_details"):
        replayed["reasoning_details"] = details
    # Moonshot and DeepSeek want the reasoning back, but only with tool calls.
    if calls and kept.get("reasoning_field") == REPLAYED_TEXT_FIELD:
        replayed[REPLAYED_TEXT_FIELD] = message.get("reasoning", "")
    if calls and (extras := kept.get("extra_content")):
        replayed["tool_calls"] = [
            {**call, "extra_content": extras[call["id"]]} if call["id"] in extras else call
            for call in calls
        ]
    return replayed


class OpaqueParts:
    """Collects the opaque fields of one stream; `origin` is the sender, see `origin_of`.

    Attributes:
        field: The name of the field in which the reasoning arrives.
    """

    def __init__(self, origin: str) -> None:
        self.field = ""
        self._origin = origin
        self._details: list[Fields] = []

    def take_details(self, parts: object) -> None:
        """Process the `reasoning_details` of a delta.

        Texts of pieces with the same index and type are concatenated; for other fields the newest
        value wins.
        """
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict):
                self._take_part(part)

    def _take_part(self, part: Fields) -> None:
        # A piece without an index can only belong to the newest part.
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

    def add_to(self, message: ChatMessage, extra_content: Fields) -> None:
        """Store the fields in a finished message; `extra_content` is keyed by call id."""
        kept: Fields = {}
        if self._details:
            for part in self._details:
                texts = {name: text for name, text in part.items() if isinstance(text, str)}
                part |= {name: join_surrogates(text) for name, text in texts.items()}
            kept["reasoning_details"] = self._details
        if self.field == REPLAYED_TEXT_FIELD and message.get("tool_calls"):
            kept["reasoning_field"] = self.field
        if extra_content:
            kept["extra_content"] = extra_content
        if kept:
            message["opaque"] = {PROVIDER: {"origin": self._origin, **kept}}


def _continues(part: Fields, old: Fields) -> bool:
    """Return whether a piece continues an existing part; encrypted data always arrives whole."""
    if part.get("data") is not None or part.get("type") != old.get("type"):
        return False
    ids = {part.get("id"), old.get("id")} - {None}
    return len(ids) <= 1 and part.get("index") == old.get("index")


def apply_quirks(messages: list[Fields], quirks: Quirks, *, join: bool) -> list[Fields]:
    """Return the messages in the form a server accepts; for `join`, see `request_body`."""
    for quirk, form in _FORMS:
        if quirk in quirks:
            messages = form(messages)
    return merge_neighbours(messages) if join or "strict_roles" in quirks else messages


def merge_neighbours(messages: list[Fields]) -> list[Fields]:
    """Merge consecutive messages of one role; return the same list if there are none."""
    found: list[Fields] = []
    for message in messages:
        last = found[-1] if found else {}
        # Tool results stay separate, each with its id.
        alike = last.get("role") == message["role"] != "tool"
        if alike and "tool_calls" not in last:
            found[-1] = _together(last, message)
        else:
            found.append(message)
    return found if len(found) < len(messages) else messages


def _together(one: Fields, other: Fields) -> Fields:
    return {**one, **other, "content": _both(one.get("content"), other.get("content"))}


def _both(one: Any, other: Any) -> Any:
    """Merge two contents: into a text if both are texts, otherwise into parts.

    Adjacent text parts are concatenated.
    """
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{_GAP}{other}"
    before, (first, *more) = (
        [{"type": "text", "text": each}] if isinstance(each, str) else each for each in (one, other)
    )
    if first["type"] == "text":
        first = {**first, "text": f"{_GAP}{first['text']}"}
    return [*before, first, *more]


def move_system_text(messages: list[Fields]) -> list[Fields]:
    """Move the text of the system prompt before the first question."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *others = messages
    told = {**system, "role": "user"}
    if others and others[0]["role"] == "user":
        return [_together(told, others[0]), *others[1:]]
    return [told, *others]


def alternate_roles(messages: list[Fields]) -> list[Fields]:
    """Make the roles alternate, starting with the user.

    A placeholder replaces the missing answer before a question.
    """
    found: list[Fields] = []
    for message in merge_neighbours(messages):
        before = found[-1]["role"] if found else "system"
        if before == "tool" and message["role"] == "user":
            found.append({"role": "assistant", "content": NOT_ANSWERED})
        elif before == "system" and message["role"] in {"assistant", "tool"}:
            found.append({"role": "user", "content": BEFORE})
        found.append(message)
    return found


def with_single_calls(messages: list[Fields]) -> list[Fields]:
    """Split parallel calls into one message each, followed by its result."""
    found: list[Fields] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: dict[str, Fields] = {}
        while place < len(messages) and messages[place]["role"] == "tool":
            results[messages[place]["tool_call_id"]] = messages[place]
            place += 1
        for number, call in enumerate(calls):
            # The text belongs to all calls: send it once.
            said = {} if number == 0 else {"content": None}
            found.append({**message, **said, "tool_calls": [call]})
            if (result := results.get(call["id"])) is not None:
                found.append(result)
    return found


def without_tools(messages: list[Fields]) -> list[Fields]:
    """Replace calls and their results by texts."""
    found: list[Fields] = []
    names: dict[str, str] = {}
    for message in messages:
        if calls := message.get("tool_calls"):
            names = {call["id"]: call["function"]["name"] for call in calls}
            written = (call["function"] for call in calls)
            lines = [f"[called {each['name']}({each['arguments']})]" for each in written]
            said = _both(message.get("content"), "\n".join(lines))
            found.append({"role": "assistant", "content": said})
        elif message["role"] == "tool":
            name = names.get(message["tool_call_id"], "a tool")
            told = _both(f"[result of {name}]", message["content"])
            found.append({"role": "user", "content": told})
        else:
            found.append(message)
    # Multiple results are consecutive user messages.
    return merge_neighbours(found)


def short_id(call_id: str) -> str:
    """Return a call id of nine letters and digits; different ids stay different."""
    return call_id if _SHORT_ID.fullmatch(call_id) else blake2s(call_id.encode()).hexdigest()[:9]


def with_short_ids(message: Fields) -> Fields:
    """Return a message with short call ids."""
    if message["role"] == "tool":
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": short_id(call["id"])} for call in calls]}
    return message


def with_signature(message: Fields) -> Fields:
    """Add a signature to a message's first call if none of its calls has one."""
    calls = message.get("tool_calls")
    if not calls or any("extra_content" in call for call in calls):
        return message
    # Gemini signs only the first of parallel calls.
    first, *others = calls
    signed = {**first, "extra_content": SIGNED_BY_NOBODY}
    return {**message, "tool_calls": [signed, *others]}


def _with_reasoning(message: Fields, text: str) -> Fields:
    if message["role"] != "assistant" or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": text}


_Form = Callable[[list[Fields]], list[Fields]]
# In order: transformations that create consecutive messages of one role come before those that make
# roles alternate.
_FORMS: Iterable[tuple[Quirk, _Form]] = (
    ("no_tools", without_tools),
    ("one_call", with_single_calls),
    ("signed_calls", lambda messages: [*map(with_signature, messages)]),
    ("short_ids", lambda messages: [*map(with_short_ids, messages)]),
    ("no_system", move_system_text),
    ("strict_roles", alternate_roles),
    ("no_null", lambda all_: [it | {"content": it.get("content") or ""} for it in all_]),
    ("reasoned", lambda messages: [_with_reasoning(each, "") for each in messages]),
    ("blank_reasoning", lambda messages: [_with_reasoning(each, "…") for each in messages]),
)
