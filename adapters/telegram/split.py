"""Styled text → payloads within Telegram's limits (step 8); pure.

A payload is the JSON text `{"text": …, "entities": […]}`. Entities are made for each payload from
the marks of its characters, so a cut can neither lose formatting nor split an entity.
"""

import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

# Source: https://core.telegram.org/bots/api#sendmessage (4096 UTF-16 units) and
# https://limits.tginfo.me (100 entities, the rest is ignored). The mark of a message that is
# sent again has its place within the limit.
RESENT_MARK = "(re-sent)\n"
MAX_TEXT_UNITS = 4096
MAX_ENTITIES = 100
_MAX_UNITS = MAX_TEXT_UNITS - len(RESENT_MARK)
_NOTHING = "…"
# Telegram takes a text of these for empty.
_BLANK_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_BLANK_CHARACTERS = frozenset("\u2800\ufffc\u3164\u115f\u1160")


class Mark(NamedTuple):
    """One kind of formatting; `detail` is the language of a `pre` or the target of a link."""

    type: str
    detail: str = ""


Marks = frozenset[Mark]


@dataclass(slots=True)
class StyledText:
    """A whole answer: pieces of text with their marks.

    Attributes:
        block_starts: Where top-level blocks begin, as ascending indices into the text.
    """

    pieces: list[tuple[str, Marks]] = field(default_factory=list)
    block_starts: list[int] = field(default_factory=list)
    length: int = 0

    def write(self, text: str, marks: Marks) -> None:
        """Append text."""
        if text:
            self.pieces.append((text, marks))
            self.length += len(text)

    @property
    def text(self) -> str:
        """The text without its marks."""
        return "".join(text for text, _ in self.pieces)


def split(styled: StyledText) -> list[str]:
    """Return the payloads, at least one; a text with nothing visible becomes "…".

    Cuts lie between blocks; inside a block that is too large for one message between lines, then
    words, then characters. Line breaks at a cut are dropped, nothing else is.
    """
    payloads = _Splitter(styled).payloads()
    return payloads or [orjson.dumps({"text": _NOTHING, "entities": []}).decode()]


def is_blank(text: str) -> bool:
    """Whether Telegram would refuse the text as empty."""
    return all(
        unicodedata.category(char) in _BLANK_CATEGORIES or char in _BLANK_CHARACTERS
        for char in text
    )


def units(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


class _Splitter:
    def __init__(self, styled: StyledText) -> None:
        self._text = styled.text
        self._marks = [marks for _, marks in styled.pieces]
        self._starts = list(accumulate((len(text) for text, _ in styled.pieces), initial=0))
        self._blocks = styled.block_starts
        self._units: range | list[int] = range(len(self._text) + 1)
        if self._text and max(self._text) > "\uffff":
            widths = (2 if char > "\uffff" else 1 for char in self._text)
            self._units = list(accumulate(widths, initial=0))

    def payloads(self) -> list[str]:
        payloads = []
        start = self._skip_breaks(0)
        while start < len(self._text):
            end = self._cut(start)
            payload = self._payload(start, end)
            if payload is not None:
                payloads.append(payload)
            start = self._skip_breaks(end)
        return payloads

    def _skip_breaks(self, start: int) -> int:
        while start < len(self._text) and self._text[start] == "\n":
            start += 1
        return start

    def _cut(self, start: int) -> int:
        """Return where the payload that begins at `start` ends."""
        window = self._window(start)
        if window == len(self._text):
            return window
        index = bisect_right(self._blocks, window) - 1
        block = self._blocks[index] if index >= 0 else start
        if block > start and self._window(block) >= self._block_end(index):
            return block
        line = self._text.rfind("\n", start + 1, window + 1)
        if max(block, line) > start:
            return max(block, line)
        word = self._text.rfind(" ", start + 1, window)
        return word + 1 if word > start else window

    def _block_end(self, index: int) -> int:
        return self._blocks[index + 1] if index + 1 < len(self._blocks) else len(self._text)

    def _window(self, start: int) -> int:
        """Return the furthest end that keeps both limits; beyond `start` where text is left."""
        end = bisect_right(self._units, self._units[start] + _MAX_UNITS) - 1
        entities, before = 0, frozenset[Mark]()
        for piece in range(self._piece_at(start), self._piece_before(end) + 1):
            entities += len(self._marks[piece] - before)
            if entities > MAX_ENTITIES:
                return self._starts[piece]
            before = self._marks[piece]
        return end

    def _piece_at(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _piece_before(self, end: int) -> int:
        return min(bisect_left(self._starts, end), len(self._marks)) - 1

    def _payload(self, start: int, end: int) -> str | None:
        text = self._text[start:end].rstrip()
        if is_blank(text):
            return None
        entities = self._entities(start, start + len(text))
        return orjson.dumps({"text": text, "entities": entities}).decode()

    def _entities(self, start: int, end: int) -> list[dict[str, Any]]:
        """Return the entities of a range, longer ones first where several begin together."""
        closed: list[tuple[int, int, Mark]] = []
        opened: dict[Mark, int] = {}
        for piece in range(self._piece_at(start), self._piece_before(end) + 1):
            at = max(self._starts[piece], start)
            ended = opened.keys() - self._marks[piece]
            closed.extend((opened.pop(mark), at, mark) for mark in ended)
            opened.update(dict.fromkeys(self._marks[piece] - opened.keys(), at))
        closed += [(begin, end, mark) for mark, begin in opened.items()]
        closed.sort(key=lambda item: (item[0], -item[1], item[2]))
        return [self._entity(start, *item) for item in closed]

    def _entity(self, start: int, begin: int, end: int, mark: Mark) -> dict[str, Any]:
        offset = self._units[begin] - self._units[start]
        length = self._units[end] - self._units[begin]
        entity: dict[str, Any] = {"type": mark.type, "offset": offset, "length": length}
        if mark.detail:
            entity["url" if mark.type == "text_link" else "language"] = mark.detail
        return entity
