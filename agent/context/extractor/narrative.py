"""The readable part of an extract: what was asked and decided, files, errors, the last state.

Each section is a list of lines that name the message they come from. Lines of the previous extract
are read back and compete with the new ones; the newest win, and the very first request stays.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from agent.context.extractor.sources import Piece
from agent.safety.redaction import masked_assignments
from agent.tokens.estimate import estimate_tokens

Sections = dict[str, list[str]]

SHARES = {"Asked": 0.45, "Decided": 0.2, "Files": 0.1, "Errors": 0.1, "Last state": 0.15}
"""Sections in their order, with their shares of the narrative's tokens."""

MOST_LINES = 30
MOST_PIECES = 150
LINE_CHARS = 240

_LINE = re.compile(r"^(?:## (.+)|- (#\d+ .+))$", re.MULTILINE)
_DECISIONS = (
    "decided", "agreed", "instead of", "from now on", "et's ", "confirmed", "prefer", "must not",
    "never", "always", "ake sure", "approved", "deadline",
)  # fmt: skip
_ERRORS = ("rror", "xception", "ailed", "FAILED", "ERROR")
_BREAK = re.compile(r"(?<=[.!?])\s|\n")
_PATH = re.compile(r"(?<![\w/.])(?:[~.]{0,2}/)?(?:[\w.@-]+/)+[\w@-]+(?:\.\w{1,6})+")


def narrate(pieces: Sequence[Piece], previous: str, budget_tokens: int) -> str:
    """Return the sections as text of at most about `budget_tokens`; empty ones are left out."""
    earlier, found = parse(previous), _found(pieces)
    blocks = []
    for title, share in SHARES.items():
        lines = [*earlier.get(title, ()), *found[title]]
        kept = _newest(lines, int(budget_tokens * share), keep_first=title == "Asked")
        if kept:
            blocks.append("\n".join([f"## {title}", *kept]))
    return masked_assignments("\n".join(blocks))


def parse(text: str) -> Sections:
    """Return the lines of each section of an extract."""
    sections: Sections = {}
    lines: list[str] = []
    for title, line in _LINE.findall(text):
        if title:
            lines = sections.setdefault(title, [])
        else:
            lines.append(f"- {line}")
    return sections


def _found(pieces: Sequence[Piece]) -> Sections:
    """Return the lines of each section that these pieces give, oldest first."""
    asked = [piece for piece in pieces if piece.role == "user"]
    said = [piece for piece in pieces if piece.role in {"user", "assistant"}]
    results = [piece for piece in pieces if piece.role == "tool"]
    calls = [piece for piece in pieces if piece.role == "call"]
    last = [piece for piece in said[-2:] if piece.role == "assistant"]
    return {
        "Asked": [*map(_quoted, asked[:1]), *map(_quoted, asked[1:][-MOST_LINES:])],
        "Decided": _with(said, _DECISIONS),
        "Files": _paths(calls),
        "Errors": _with(results, _ERRORS),
        "Last state": [_quoted(piece) for piece in last[-1:]],
    }


def _quoted(piece: Piece) -> str:
    return _line(piece.seq, piece.text)


def _line(seq: int, text: str) -> str:
    shown = " ".join(text[: LINE_CHARS + 60].split())
    return f"- #{seq} {shown if len(shown) <= LINE_CHARS else shown[:LINE_CHARS] + '…'}"


def _with(pieces: Sequence[Piece], signs: Sequence[str]) -> list[str]:
    """Return the sentences of the newest pieces in which a sign stands, one of each piece."""
    found: dict[str, int] = {}
    for piece in islice(reversed(pieces), MOST_PIECES):
        place = next((at for sign in signs if (at := piece.text.find(sign)) >= 0), None)
        if place is not None:
            found.setdefault(_around(piece.text, place), piece.seq)
        if len(found) >= MOST_LINES:
            break
    return [_line(seq, text) for text, seq in reversed(found.items())]


def _paths(pieces: Sequence[Piece]) -> list[str]:
    """Return the files that the newest calls name."""
    found: dict[str, int] = {}
    for piece in islice(reversed(pieces), MOST_PIECES):
        if "/" in piece.text:
            for path in _PATH.findall(piece.text):
                found.setdefault(path, piece.seq)
    return [_line(seq, path) for path, seq in reversed([*found.items()][:MOST_LINES])]


def _around(text: str, place: int) -> str:
    """Return the sentence, or the line, of a text in which a place lies."""
    low, high = max(0, place - LINE_CHARS // 2), place + LINE_CHARS // 2
    before, after = text[low:place], text[place:high]
    return (_BREAK.split(before)[-1] + _BREAK.split(after)[0]).strip()


def _newest(lines: Iterable[str], room_tokens: int, *, keep_first: bool) -> list[str]:
    """Return the newest lines that fit, in order; the first of all stays where asked for.

    Of lines with the same text the newest is meant.
    """
    ordered = sorted({_text(line): line for line in lines}.values(), key=_seq)
    kept: list[str] = []
    if keep_first and ordered and _tokens(ordered[0]) <= room_tokens // 2:
        kept.append(ordered.pop(0))
        room_tokens -= _tokens(kept[0])
    place = len(ordered)
    while place and (room_tokens := room_tokens - _tokens(ordered[place - 1])) >= 0:
        place -= 1
    return kept + ordered[place:]


def _seq(line: str) -> int:
    return int(line.split(" ", 2)[1][1:])


def _text(line: str) -> str:
    return line.split(" ", 2)[2]


def _tokens(line: str) -> int:
    return estimate_tokens(line) + 1
