"""Chat messages as stored and as handed to models: the OpenAI chat format, in canonical bytes.

A message is a plain dict with a fixed key order and compact separators once encoded, so that the
same message has the same bytes on every request (prompt caches live from that).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Required, TypedDict, cast

import orjson

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(TypedDict):
    """Name and arguments of a call.

    `arguments` is canonical JSON text (agent/models/arguments.py); what is no JSON object stands as
    the model wrote it.
    """

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One call of a tool; `id` ties its result to it."""

    id: str
    type: Literal["function"]
    function: FunctionCall


Content = str | list[dict[str, Any]]
"""Of a message: text, or content parts."""


class ChatMessage(TypedDict, total=False):
    """One message of a conversation.

    Attributes:
        content: Text, a list of content parts, or None beside tool calls.
        reasoning: What the model thought; never part of the visible answer.
        opaque: Provider fields that must be replayed verbatim (signed thinking), by provider name.
        synthetic: Written by Parley and not by a person (a request to continue); never shown.
        ephemeral: Synthetic, and of use only while it is in view (recalled notes, few-shot
            examples): left out of summaries and of the search.
        cache_control: A breakpoint of the prompt cache behind this message; only in requests, put
            there by agent/prompt_caching.py, and never stored.
    """

    role: Required[Role]
    content: Content | None
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    reasoning: str
    opaque: dict[str, Any]
    synthetic: NotRequired[bool]
    ephemeral: NotRequired[bool]
    cache_control: dict[str, str]


def encode(message: ChatMessage) -> str:
    """Return the canonical JSON text of a message: sorted keys, no spaces."""
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS).decode()


def decode(body: str) -> ChatMessage:
    """Return the message that `encode` wrote."""
    return cast("ChatMessage", orjson.loads(body))


def text_of(message: ChatMessage) -> str:
    """Return the visible text of a message: its string, or its text parts joined by newlines."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")


def full_text(message: ChatMessage) -> str:
    """Return the text of a message, and below it the tool calls that it makes."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return "\n".join([text_of(message), *(f"{c['name']}({c['arguments']})" for c in calls)]).strip(
        "\n"
    )


IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
"""Types of the content parts that are images."""


def is_image(part: Mapping[str, Any]) -> bool:
    """Return whether a part of a content is an image."""
    return part.get("type") in IMAGE_PARTS


def images_in(message: ChatMessage) -> int:
    """Return how many images a message holds."""
    content = message.get("content")
    return sum(map(is_image, content)) if isinstance(content, list) else 0


_HANDLE = re.compile(r"attachment:(\d{1,18})")


def handle_of(attachment_id: int) -> str:
    """Return the text in a stored message in place of a picture's bytes."""
    return f"attachment:{attachment_id}"


def image_part(attachment_id: int) -> dict[str, Any]:
    """Return the content part of a stored picture."""
    return {"type": "image_url", "image_url": {"url": handle_of(attachment_id)}}


def handle_in(part: object) -> int | None:
    """Return the id of the picture that a content part has a handle of; None for other parts."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            found = _HANDLE.fullmatch(url)
            return int(found[1]) if found else None
    return None


def pictures_in(messages: Iterable[ChatMessage]) -> list[int]:
    """Return the stored pictures of messages in order, whether a model can see them or not."""
    in_parts = [content for it in messages if isinstance(content := it.get("content"), list)]
    found = (handle_in(part) for content in in_parts for part in content)
    return [handle for handle in found if handle is not None]


def chars_of(message: ChatMessage) -> int:
    """Return the characters of a message's texts and call arguments."""
    content = message.get("content")
    texts = [content] if isinstance(content, str) else map(_shown_text, content or ())
    calls = message.get("tool_calls") or ()
    return sum(map(len, texts)) + sum(len(call["function"]["arguments"]) for call in calls)


def _shown_text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


_SURROGATES = re.compile("[\ud800-\udfff]")
_MEMORY_TAGS = re.compile(r"</?memory-context[^<>]*>", re.IGNORECASE)


def storable(text: str) -> str:
    """Return text that every database and JSON parser takes: no lone surrogates, no NULs.

    Both become U+FFFD.
    """
    return _SURROGATES.sub("\ufffd", text).replace("\x00", "\ufffd")


def clean_text(text: str) -> str:
    """Return inbound text, storable and without leaked `<memory-context>` tags."""
    text = storable(text)
    # Taking one tag out can join the halves of another, as often as a stranger likes: each time is
    # a pass over all of it. Nothing is joined across the last mark.
    for mark in ("", "", "<>"):
        text = _MEMORY_TAGS.sub(mark, text)
    return text


def user_message(content: Content, *, synthetic: bool = False) -> ChatMessage:
    """Return a user message; `synthetic` marks what Parley wrote itself."""
    message = ChatMessage(role="user", content=content)
    if synthetic:
        message["synthetic"] = True
    return message


def context_message(text: str) -> ChatMessage:
    """Return what stands before a question and is no part of it."""
    return ChatMessage(role="user", content=text, synthetic=True, ephemeral=True)


def is_ephemeral(message: ChatMessage) -> bool:
    """Whether a message is of use only while it is in view."""
    return message.get("ephemeral", False)


def assistant_message(text: str) -> ChatMessage:
    """Return a plain assistant message."""
    return ChatMessage(role="assistant", content=text)


def tool_message(call_id: str, name: str, text: str) -> ChatMessage:
    """Return the result of the tool call `call_id`."""
    return ChatMessage(role="tool", tool_call_id=call_id, name=name, content=text)


def open_calls(messages: list[ChatMessage]) -> list[ToolCall]:
    """Return the tool calls of the newest assistant message that have no result yet, in order."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message["role"] == "tool":
            answered.add(message["tool_call_id"])
        elif message["role"] == "assistant":
            return [call for call in message.get("tool_calls", []) if call["id"] not in answered]
        else:
            return []
    return []


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as shown to the model; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


def listed(lines: dict[str, str]) -> str:
    """Return lines with names as a list in Markdown."""
    return "\n".join(f"- **{name}**: {value}" for name, value in lines.items())


def count(number: int, noun: str) -> str:
    """Return a number with its noun; one is not in the plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def quoted(text: str) -> str:
    """Return text of a person as code: none of its characters are taken for markup."""
    return "`" + text.replace("`", "'") + "`"
