"""Split styled text into payloads within a platform's limits; pure functions.

Each payload is written from its characters' marks, so a cut can neither lose formatting nor leave a
code block open.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate

from adapters.rendering.styled import StyledText, Styles

NOTHING = "…"
# Chat platforms treat a text of only these characters as empty.
_BLANK_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_BLANK_CHARACTERS = frozenset("\u2800\ufffc\u3164\u115f\u1160")
_JOINER = "\u200d"
_EXTENDING_CATEGORIES = frozenset({"Mn", "Me", "Mc"})
# Longer sequences than any emoji are not worth searching for.
_MAX_GRAPHEME_CHARS = 32
PREVIEW_END = " …"
# Markdown characters read per preview character: formatting and link targets take up space, and
# repeatedly parsing all of a long answer would be slow.
_MARKDOWN_RATIO = 2
_FENCE_LINE = re.compile(r"[ \t>]*(?:`{1,2}|(?:`{3,}|~{3,})[^`]*)")


def is_blank(text: str) -> bool:
    """Return whether a platform would refuse the text as empty."""
    return all(
        unicodedata.category(char) in _BLANK_CATEGORIES or char in _BLANK_CHARACTERS
        for char in text
    )


class Splitter(ABC):
    """Cuts one styled text; a subclass defines its platform's limits and writes payloads.

    Cuts are placed between blocks; within a block too large for one message, between lines, then
    words, then characters. Only the line breaks at a cut are dropped.
    """

    def __init__(self, styled: StyledText) -> None:
        self._text = styled.text
        self._pieces = styled.pieces
        self._starts = list(accumulate((len(text) for text, _ in styled.pieces), initial=0))
        self._blocks = styled.block_starts

    @abstractmethod
    def window(self, start: int) -> int:
        """Return the furthest possible end of a payload from `start`, greater than `start`."""

    @abstractmethod
    def payload(self, start: int, end: int) -> str:
        """Write a range of the text that neither ends in white space nor is blank."""

    def shortened(self, payload: str, start: int, end: int) -> int | None:  # noqa: ARG002
        """Return an earlier end to try if the payload is still too long, or None if it fits."""
        return None

    def payloads(self) -> Iterator[str]:
        """Yield the payloads in order; yield nothing if no text is visible."""
        start = self._skip_breaks(0)
        while start < len(self._text):
            end, payload = self._next(start)
            if payload is not None:
                yield payload
            start = self._skip_breaks(end)

    def _skip_breaks(self, start: int) -> int:
        while start < len(self._text) and self._text[start] == "\n":
            start += 1
        return start

    def _next(self, start: int) -> tuple[int, str | None]:
        """Return the end of the payload from `start` and the payload, which is None if blank."""
        end = self._cut(start, self.window(start))
        while True:
            text = self._text[start:end].rstrip()
            if is_blank(text):
                return end, None
            payload = self.payload(start, start + len(text))
            window = self.shortened(payload, start, end)
            if window is None:
                return end, payload
            end = self._cut(start, window)

    def _cut(self, start: int, window: int) -> int:
        """Return the best end of the payload from `start`, up to the end of the window."""
        if window >= len(self._text):
            return len(self._text)
        index = bisect_right(self._blocks, window) - 1
        block = self._blocks[index] if index >= 0 else start
        is_last = index + 1 == len(self._blocks)
        block_end = len(self._text) if is_last else self._blocks[index + 1]
        if block > start and self.window(block) >= block_end:
            return block
        line = self._text.rfind("\n", start + 1, window + 1)
        if max(block, line) > start:
            return max(block, line)
        word = self._text.rfind(" ", start + 1, window)
        return word + 1 if word > start else self._grapheme_end(start, window)

    def _grapheme_end(self, start: int, end: int) -> int:
        """Return the last position up to `end` that splits no accent or emoji sequence."""
        for place in range(end, max(start, end - _MAX_GRAPHEME_CHARS), -1):
            if not _extends(self._text[place]) and self._text[place - 1] != _JOINER:
                return place
        return end

    def pieces_between(self, start: int, end: int) -> Iterator[tuple[str, Styles]]:
        """Yield the pieces of a range, with the first and last cut to fit it."""
        for index in range(self.piece_at(start), self.piece_before(end) + 1):
            text, marks = self._pieces[index]
            at = self._starts[index]
            if at < start or at + len(text) > end:
                text = text[max(0, start - at) : end - at]
            yield text, marks

    def piece_at(self, index: int) -> int:
        """Return the index of the piece that contains the character at `index`."""
        return bisect_right(self._starts, index) - 1

    def piece_before(self, end: int) -> int:
        """Return the index of the piece that contains the character before `end`."""
        return min(bisect_left(self._starts, end), len(self._pieces)) - 1


def _extends(char: str) -> bool:
    return (
        char == _JOINER
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or unicodedata.category(char) in _EXTENDING_CATEGORIES
    )


def beginning(markdown: str, message_chars: int) -> str | None:
    """Return the beginning of an unfinished answer for one message, or None if blank.

    A last line that opens or closes a code block is omitted, since its backticks would be visible.
    """
    part = markdown[: _MARKDOWN_RATIO * message_chars]
    if len(part) == len(markdown):
        last = part.rfind("\n") + 1
        if _FENCE_LINE.fullmatch(part, last):
            part = part[:last]
    return None if is_blank(part) else part
