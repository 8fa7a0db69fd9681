"""Split the originals that leave the view into parts that fit the summary model's prompt.

Nothing is omitted: a group of calls and results that exceeds a part is split between its messages,
    a
larger message into slices.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.safety.redaction import Redactor
from agent.tokens import estimate_tokens
from agent.view.view import Entry

MARK_TOKENS = 16
"""Tokens of the line above each piece, without its label."""
MAX_MESSAGE_CHARS = 2_000_000
"""Half a million tokens; of a longer message only head and tail are used."""
LEAST_BASE64_CHARS = 64
"""Shorter data URIs may be meaningful text."""
MAX_NAME_CHARS = 40
"""Longest tool name in a label."""

_redactor = Redactor()
_BASE64 = re.compile(rf";base64,[A-Za-z0-9+/=_-]{{{LEAST_BASE64_CHARS},}}")
_NOT_NAME = re.compile(r"[^\w.:/-]+")


class Piece(NamedTuple):
    """A message of the material, a slice of one, or a summary.

    Attributes:
        label: Position and author, in one line.
        tokens: Estimate including the label.
    """

    label: str
    body: str
    tokens: int


def split(entries: Iterable[Entry], room_tokens: int) -> Iterator[list[Piece]]:
    """Yield the messages in parts of at most `room_tokens` (at least 256), in order.

    Only groups of calls and results that exceed a part are split.
    """
    return pack(_units(entries, room_tokens), room_tokens)


def pack(units: Iterable[Sequence[Piece]], room_tokens: int) -> Iterator[list[Piece]]:
    """Yield units in order, as many per part as fit; a larger unit gets a part of its own."""
    part: list[Piece] = []
    taken = 0
    for unit in units:
        tokens = tokens_of(unit)
        if part and taken + tokens > room_tokens:
            yield part
            part, taken = [], 0
        part += unit
        taken += tokens
    if part:
        yield part


def slices(piece: Piece, room_tokens: int) -> Iterator[Piece]:
    """Cut a piece into slices of at most `room_tokens`; their bodies joined equal its body.

    Secrets are masked first, since a cut could split one and so hide it.
    """
    if piece.tokens <= room_tokens:
        yield piece
        return
    body = _redactor.text(piece.body)
    usual_chars = len(body) * room_tokens // piece.tokens
    start = number = 0
    while start < len(body):
        number += 1
        label = f"{piece.label}, slice {number}"
        text = body[start : start + usual_chars]
        while (part := new_piece(label, text)).tokens > room_tokens:
            text = text[: len(text) * 3 // 4]
        if start + len(text) < len(body):
            # After the last line or word, if that is not far back.
            least = len(text) // 2
            gap = max(text.rfind("\n", least), text.rfind(" ", least)) + 1
            part = new_piece(label, text[: gap or len(text)])
        start += len(part.body)
        yield part


def new_piece(label: str, body: str) -> Piece:
    """Return a piece with its token estimate."""
    return Piece(label, body, MARK_TOKENS + len(label) // 2 + estimate_tokens(body))


def tokens_of(unit: Sequence[Piece]) -> int:
    """Return the total tokens of the pieces."""
    return sum(piece.tokens for piece in unit)


def _units(entries: Iterable[Entry], room_tokens: int) -> Iterator[Sequence[Piece]]:
    for group in _groups(entries):
        pieces = _pieces(group)
        if tokens_of(pieces) <= room_tokens:
            yield pieces
            continue
        for piece in pieces:
            for part in slices(piece, room_tokens):
                yield (part,)


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and entry.message["role"] != "tool":
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _pieces(group: Sequence[Entry]) -> list[Piece]:
    made = group[0].message.get("tool_calls") or ()
    if not made and len(group) == 1:
        return [_piece(group[0], {})]
    names: dict[str, str] = {}
    for number, call in enumerate(made, start=1):
        name = _NOT_NAME.sub("_", call["function"]["name"])[:MAX_NAME_CHARS]
        names[call["id"]] = f"#{number} {name}"
    pieces = [_piece(entry, names) for entry in group]
    answered = {entry.message.get("tool_call_id") for entry in group[1:]}
    if missing := [name for call_id, name in names.items() if call_id not in answered]:
        note = f"no result is known of {', '.join(missing)}"
        pieces.append(new_piece(f"{group[-1].seq} note", note))
    return pieces


def _piece(entry: Entry, names: Mapping[str, str]) -> Piece:
    seq, message = entry
    content = message.get("content")
    if isinstance(content, list):
        texts = [(part.get("text"), part.get("type")) for part in content]
        content = "\n".join(text if isinstance(text, str) else f"[{kind}]" for text, kind in texts)
    body = content or ""
    if made := message.get("tool_calls"):
        calls = (f"call {names[call['id']]} {call['function']['arguments']}" for call in made)
        body = "\n".join((body, *calls) if body else calls)
    if ";base64," in body:
        body = _BASE64.sub(lambda found: f";base64,[{len(found[0]):,} characters]", body)
    if len(body) > MAX_MESSAGE_CHARS:
        body, half = _redactor.text(body), MAX_MESSAGE_CHARS // 2
        left_out = len(body) - 2 * half
        body = f"{body[:half]}\n[... {left_out:,} characters left out ...]\n{body[-half:]}"
    # Parley's own messages never count as the user's.
    author: str = "note" if message.get("synthetic") else message["role"]
    if message["role"] == "tool":
        author = f"result of {names.get(message.get('tool_call_id', ''), '?')}"
    return new_piece(f"{seq} {author}", body)
