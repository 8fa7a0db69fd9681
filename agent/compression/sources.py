"""What the extractor reads of the messages that leave the view: bounded pieces of their texts."""

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from agent.messages import ChatMessage, text_of
from agent.redaction import Redactor, masked_assignments

if TYPE_CHECKING:
    from agent.view import Entry

ROOM_CHARS = {"user": 700_000, "assistant": 700_000, "tool": 120_000, "system": 10_000}
"""How much is read of all texts of a role together; what people write is shared by more."""

MANY_MESSAGES = 2_500
"""From here on less is read of each message, so that the time for all stays the same."""

BULK_CHARS = 1_000
"""How much is read of one tool result: what is longer is a listing."""

CALL_CHARS = 300
_BORDER = "\x1f"


class Piece(NamedTuple):
    """A text of one message, free of secrets; `role` is "call" for a tool call."""

    seq: int
    role: str
    text: str


def read(entries: "Sequence[Entry]") -> list[Piece]:
    """Return what is read of each message, in order; long texts by their head and tail."""
    texts = [text_of(message) for _, message in entries]
    roles = [_role(message) for _, message in entries]
    limits = _limits(roles, texts)
    found: list[tuple[int, str, str]] = []
    for text, role, (seq, message) in zip(texts, roles, entries, strict=True):
        if text:
            found.append((seq, role, clip(text, limits[role])))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            shown = f"{function['name']} {clip(function['arguments'], CALL_CHARS)}"
            found.append((seq, "call", shown))
    return list(starmap(Piece, _redacted(found)))


def _role(message: ChatMessage) -> str:
    """Return the message's role; what other programs invent (developer) counts as system."""
    role = message["role"]
    return role if role in ROOM_CHARS else "system"


def _limits(roles: Sequence[str], texts: Sequence[str]) -> dict[str, int]:
    """Return for each role the length at which its texts are clipped."""
    share = min(1.0, MANY_MESSAGES / max(1, len(texts)))
    limits = {}
    for role, room in ROOM_CHARS.items():
        sizes = [len(text) for owner, text in zip(roles, texts, strict=True) if owner == role]
        limits[role] = _level(sizes, int(room * share))
    limits["tool"] = min(limits["tool"], BULK_CHARS)
    return limits


def _level(sizes: list[int], room: int) -> int:
    """Return the length at which texts are clipped so that all together take at most `room`."""
    sizes.sort()
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return sizes[-1] if sizes else 0


def clip(text: str, limit: int) -> str:
    """Return a text, or its head and tail where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} … {text[len(text) - limit + head :]}"


def _redacted(found: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Return the texts with secrets masked: here the words around them still tell what they are."""
    redactor = Redactor()
    before = _BORDER.join([text for _, _, text in found])
    if redactor.text(before) != before:
        found = [(seq, role, redactor.text(text)) for seq, role, text in found]
    return [
        (seq, role, masked_assignments(text))
        if role == "user" and _tells(text)
        else (seq, role, text)
        for seq, role, text in found
    ]


def _tells(text: str) -> bool:
    """Tell quickly whether a person may have written a password or a key."""
    lower = text.lower()
    return any(name in lower for name in ("pass", "secret", "key", "token"))
