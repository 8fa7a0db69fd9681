"""Chat messages as stored and as sent to models: the OpenAI chat format, in canonical bytes.

Once encoded, a message has the same bytes in every request, as prompt caches require. `sanitise` is
the last step before a request: it repairs lists that providers would refuse. `Usage` is the
provider's report with the answer.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NotRequired, Required, Self, TypedDict, cast

import orjson

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(TypedDict):
    """Name and arguments of a call: canonical JSON, or the model's text if it is not an object."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One tool call; its result refers to its `id`."""

    id: str
    type: Literal["function"]
    function: FunctionCall


Content = str | list[dict[str, Any]]
"""The content of a message: text, or content parts."""


class ChatMessage(TypedDict, total=False):
    """One message of a conversation.

    Attributes:
        reasoning: The model's thoughts; never part of the visible answer.
        opaque: Provider-specific fields to replay verbatim (signed thinking), by provider name.
        synthetic: Written by Parley, not by a person (a request to continue); never shown.
        ephemeral: Synthetic, and useful only while in view (recalled notes, few-shot examples):
            excluded from summaries and search.
        cache_control: A prompt-cache breakpoint after this message; only in requests.
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
    """Serialize a message to canonical JSON: sorted keys, no spaces."""
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS).decode()


def decode(body: str) -> ChatMessage:
    """Parse a message written by `encode`."""
    return cast("ChatMessage", orjson.loads(body))


def text_of(message: ChatMessage) -> str:
    """Return a message's visible text: its string, or its text parts joined by newlines."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")


def full_text(message: ChatMessage) -> str:
    """Return a message's text, followed by its tool calls."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines = [text_of(message), *(f"{call['name']}({call['arguments']})" for call in calls)]
    return "\n".join(lines).strip("\n")


IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
"""Types of content parts that are images."""


def is_image(part: Mapping[str, Any]) -> bool:
    """Return whether a content part is an image."""
    return part.get("type") in IMAGE_PARTS


def images_in(message: ChatMessage) -> int:
    """Count the images of a message."""
    content = message.get("content")
    return sum(map(is_image, content)) if isinstance(content, list) else 0


_HANDLE = re.compile(r"attachment:(\d{1,18})")


def handle_of(attachment_id: int) -> str:
    """Return the text that replaces an image's bytes in a stored message."""
    return f"attachment:{attachment_id}"


def image_part(attachment_id: int) -> dict[str, Any]:
    """Return the content part of a stored image."""
    return {"type": "image_url", "image_url": {"url": handle_of(attachment_id)}}


def handle_in(part: object) -> int | None:
    """Return the id of the stored image in a content part, or None for other parts."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            found = _HANDLE.fullmatch(url)
            return int(found[1]) if found else None
    return None


def pictures_in(messages: Iterable[ChatMessage]) -> list[int]:
    """Return the ids of the stored images in messages, in order."""
    in_parts = [content for it in messages if isinstance(content := it.get("content"), list)]
    found = (handle_in(part) for content in in_parts for part in content)
    return [handle for handle in found if handle is not None]


def chars_of(message: ChatMessage) -> int:
    """Return the total length of a message's texts and call arguments."""
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
    """Replace lone surrogates and NULs, which some databases and JSON parsers reject."""
    return _SURROGATES.sub("\ufffd", text).replace("\x00", "\ufffd")


def clean_text(text: str) -> str:
    """Make inbound text storable and remove leaked `<memory-context>` tags."""
    text = storable(text)
    # Removing one tag can join the halves of another. Nothing is joined across the last mark.
    for mark in ("", "", "<>"):
        text = _MEMORY_TAGS.sub(mark, text)
    return text


def user_message(content: Content, *, synthetic: bool = False) -> ChatMessage:
    """Return a user message; a `synthetic` one was written by Parley."""
    message = ChatMessage(role="user", content=content)
    if synthetic:
        message["synthetic"] = True
    return message


def context_message(text: str) -> ChatMessage:
    """Return an ephemeral message that accompanies a question."""
    return ChatMessage(role="user", content=text, synthetic=True, ephemeral=True)


def is_ephemeral(message: ChatMessage) -> bool:
    """Return whether a message is useful only while in view."""
    return message.get("ephemeral", False)


def assistant_message(text: str) -> ChatMessage:
    """Return a plain assistant message."""
    return ChatMessage(role="assistant", content=text)


def tool_message(call_id: str, name: str, text: str) -> ChatMessage:
    """Return the result of the tool call `call_id`."""
    return ChatMessage(role="tool", tool_call_id=call_id, name=name, content=text)


def open_calls(messages: list[ChatMessage]) -> list[ToolCall]:
    """Return the newest assistant message's tool calls without a result, in order."""
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
class Summed:
    """A dataclass that is added field by field."""

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class Usage(Summed):
    """Tokens of one model call as reported by the provider; the output includes thoughts.

    `prompt_tokens` fill the window: with caching, `input_tokens` (at the base price) are near 0.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens that the model read: input + cache read + cache creation."""
        created = self.cache_write_5m_tokens + self.cache_write_1h_tokens
        return self.input_tokens + self.cache_read_tokens + created

    @property
    def total_tokens(self) -> int:
        """All tokens that the model read and wrote."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as shown to the model; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


def listed(lines: dict[str, str]) -> str:
    """Format named lines as a Markdown list."""
    return "\n".join(f"- **{name}**: {value}" for name, value in lines.items())


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def quoted(text: str) -> str:
    """Format a person's text as code, so that no character counts as markup."""
    return "`" + text.replace("`", "'") + "`"


def code_block(text: str, language: str = "") -> str:
    """Format a text as a code block that it cannot close (CommonMark 4.5)."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


NO_RESULT = "[No result: none is on record for this call]"
SYSTEM_NOTE = "[System note] "
OPENING = "[The conversation goes on.]"

_INSTRUCTING = frozenset({"system", "developer"})


def sanitise(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Repair messages for a provider; return the same list if nothing is wrong.

    - ORPHANED results are removed: those without a call in the preceding group, and a second result
      for the same call. A result separated from its group only by user or system messages moves
      back to it.
    - DANGLING calls get a stub result after the others of their group. Calls without an id get one,
      calls that repeat an id of their group are removed. Later groups may reuse ids.
    - A system message that is not first becomes a user message with the same text.
    - Messages of unknown roles are removed.
    - If the first message is not the user's, a synthetic one is added before it.

    Call arguments are not parsed: the models' wire code repairs them. The input is not modified.
    """
    # Most requests need no repair, and no message is copied.
    if not _is_in_order(messages):
        return _opened_by_user(_grouped(_known(messages)))
    return messages if isinstance(messages, list) else list(messages)


def _is_in_order(messages: Sequence[ChatMessage]) -> bool:
    asked, waiting = False, set[str]()
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id", "")
            if call_id not in waiting:
                return False
            # A second result for the same call is removed.
            waiting.remove(call_id)
        elif waiting:
            return False
        elif role == "assistant" and asked:
            calls = message.get("tool_calls") or ()
            waiting = {call_id for call in calls if (call_id := call.get("id"))}
            if len(waiting) < len(calls):
                return False
        elif role == "user":
            asked = True
        elif role != "system" or place:
            return False
    return not waiting


def _known(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    known: list[ChatMessage] = []
    for message in messages:
        role = message.get("role")
        if role in _INSTRUCTING:
            first = cast("ChatMessage", {**message, "role": "system"})
            note = user_message(SYSTEM_NOTE + text_of(message), synthetic=True)
            known.append(note if known else first)
        elif role in {"user", "assistant", "tool"}:
            known.append(message)
    return known


def _grouped(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Move each call's single result into the group of its message."""
    grouped: list[ChatMessage] = []
    waiting: dict[str, ToolCall] = {}
    behind: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "tool":
            if waiting.pop(message.get("tool_call_id", ""), None):
                grouped.append(message)
        elif message["role"] == "assistant":
            # Providers want results directly after their calls: anything between them moves after.
            grouped += [*_stubs(waiting), *behind]
            behind = []
            asking, waiting = _with_own_ids(message)
            grouped.append(asking)
        else:
            behind.append(message)
    return [*grouped, *_stubs(waiting), *behind]


def _with_own_ids(message: ChatMessage) -> tuple[ChatMessage, dict[str, ToolCall]]:
    """Give each call of a message a unique id; also return the calls by id."""
    calls = message.get("tool_calls") or []
    own: dict[str, ToolCall] = {}
    for place, call in enumerate(calls):
        call_id = call.get("id") or f"call_without_id_{place}"
        # The results of two calls with the same id would be indistinguishable.
        own.setdefault(call_id, cast("ToolCall", {**call, "id": call_id}))
    if list(own.values()) == calls:
        return message, own
    return cast("ChatMessage", {**message, "tool_calls": list(own.values())}), own


def _stubs(waiting: dict[str, ToolCall]) -> list[ChatMessage]:
    return [
        tool_message(call_id, call["function"]["name"], NO_RESULT)
        for call_id, call in waiting.items()
    ]


def _opened_by_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    first = 1 if messages and messages[0]["role"] == "system" else 0
    if len(messages) == first or messages[first]["role"] == "user":
        return messages
    opening = user_message(OPENING, synthetic=True)
    return [*messages[:first], opening, *messages[first:]]
