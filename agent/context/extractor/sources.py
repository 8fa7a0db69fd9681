"""What the extractor reads of the messages that leave the view: bounded pieces of their texts."""

from collections.abc import Sequence
from typing import NamedTuple

from agent.messages import ChatMessage, text_of
from agent.safety.redaction import Redactor, masked_assignments
from agent.view import Entry

ROOM_CHARS = {
    "user": 700_000,
    "assistant": 700_000,
    "tool": 100_000,
    "call": 40_000,
    "system": 10_000,
}
"""How much is read of all texts of a kind together."""

MOST_CHARS = {"tool": 1_000, "call": 200}
"""How much is read of one text: a longer result is a listing, a longer argument a file."""

LEAST_CHARS = 40
MANY_TEXTS = 5_000
"""From here on less is read of what people write, so that the time for all stays the same."""

_BORDER = "\x1f"


class Piece(NamedTuple):
    """A text of one message, free of secrets; `role` is "call" for a tool call."""

    seq: int
    role: str
    text: str


def read(entries: Sequence[Entry], share: float = 1.0) -> list[Piece]:
    """Return what is read of each message, in order; long texts by their head and tail.

    Args:
        entries: The messages.
        share: How much of the usual amount.
    """
    seqs: list[int] = []
    roles: list[str] = []
    texts: list[str] = []
    for seq, message in entries:
        if text := text_of(message):
            seqs.append(seq)
            roles.append(_role(message))
            texts.append(text)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            seqs.append(seq)
            roles.append("call")
            texts.append(f"{function['name']} {clip(function['arguments'], MOST_CHARS['call'])}")
    limits = _limits(roles, texts, share)
    clipped = [clip(text, limits[role]) for role, text in zip(roles, texts, strict=True)]
    return list(map(Piece, seqs, roles, _redacted(roles, clipped)))


def _role(message: ChatMessage) -> str:
    """Return the message's role; what other programs invent (developer) counts as system."""
    role = message["role"]
    return role if role in ROOM_CHARS else "system"


def _limits(roles: Sequence[str], texts: Sequence[str], share: float) -> dict[str, int]:
    """Return for each role the length at which its texts are clipped."""
    sizes: dict[str, list[int]] = {role: [] for role in ROOM_CHARS}
    for role, text in zip(roles, texts, strict=True):
        sizes[role].append(len(text))
    people = share * min(1.0, MANY_TEXTS / max(1, len(texts)))
    limits = {}
    for role, room in ROOM_CHARS.items():
        most = MOST_CHARS.get(role)
        level = _level(sizes[role], int(room * (share if most else people)))
        limits[role] = max(LEAST_CHARS, min(level, most or level))
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


def _redacted(roles: Sequence[str], texts: list[str]) -> list[str]:
    """Return the texts with secrets masked: here the words around them still tell what they are."""
    redactor = Redactor()
    joined = _BORDER.join(texts)
    if redactor.text(joined) != joined:
        texts = list(map(redactor.text, texts))
    return [
        masked_assignments(text) if role == "user" and _tells(text) else text
        for role, text in zip(roles, texts, strict=True)
    ]


def _tells(text: str) -> bool:
    """Tell quickly whether a person may have written a password or a key."""
    lower = text.lower()
    return any(name in lower for name in ("pass", "secret", "key", "token"))
