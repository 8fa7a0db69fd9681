"""Markdown → payloads within Telegram's limits; pure.

A payload is the JSON text `{"text": …, "entities": […]}`. Entities replace MarkdownV2 because they
never cause "can't parse entities". Code and `pre` may only be nested in a quote (Bot API,
"MessageEntity").
"""

import re
from typing import Any

import orjson
from typing_extensions import override

from adapters.rendering.chunks import NOTHING, PREVIEW_END, Splitter, beginning
from adapters.rendering.styled import (
    BOLD,
    CODE,
    QUOTE,
    Conventions,
    Style,
    StyledText,
    Styles,
    styled,
)

# A phone shows about 40 columns of code; wider blocks scroll or wrap.
CONVENTIONS = Conventions("• ", re.compile(r"(https?|ftp)://\S+", re.IGNORECASE), table_columns=40)
# Source: https://core.telegram.org/bots/api#sendmessage (4096 UTF-16 units) and
# https://limits.tginfo.me (100 entities, the rest is ignored). Leaves room for the mark.
RESENT_MARK = "(re-sent)\n"
MAX_TEXT_UNITS = 4096
MAX_ENTITIES = 100
_MAX_UNITS = MAX_TEXT_UNITS - len(RESENT_MARK)
_SHOWN = {"bold", "italic", "strikethrough", "code", "pre", "blockquote", "link"}


def render(markdown: str) -> list[str]:
    """Render an answer into payloads, at least one; never raises."""
    payloads = list(_EntitySplitter(styled(markdown, CONVENTIONS)).payloads())
    # Telegram refuses an empty text.
    return payloads or [_payload(NOTHING, [])]


def preview_text(markdown: str) -> str | None:
    """Return the start of an unfinished answer that fits into one message; None if blank."""
    part = beginning(markdown, MAX_TEXT_UNITS)
    if part is None:
        return None
    text: str = orjson.loads(render(part)[0])["text"]
    return text + PREVIEW_END


def units(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _payload(text: str, entities: list[dict[str, Any]]) -> str:
    return orjson.dumps({"text": text, "entities": entities}).decode()


class _EntitySplitter(Splitter):
    def __init__(self, styled: StyledText) -> None:
        super().__init__(styled)
        self._marks = [_entity_marks(marks) for _, marks in styled.pieces]

    @override
    def window(self, start: int) -> int:
        most = self._text[start : start + _MAX_UNITS].encode("utf-16-le")[: 2 * _MAX_UNITS]
        # Drop half of a surrogate pair.
        end = start + len(most.decode("utf-16-le", "ignore"))
        entities = 0
        for piece in range(self.piece_at(start), self.piece_before(end) + 1):
            # An upper bound: an entity over several pieces counts once.
            entities += len(self._marks[piece])
            if entities > MAX_ENTITIES:
                return self._starts[piece]
        return end

    @override
    def payload(self, start: int, end: int) -> str:
        return _payload(self._text[start:end], self._entities(start, end))

    def _entities(self, start: int, end: int) -> list[dict[str, Any]]:
        """Return the entities of a range; of those that start together, longer ones first."""
        closed: list[tuple[int, int, Style]] = []
        opened: dict[Style, int] = {}
        for piece in range(self.piece_at(start), self.piece_before(end) + 1):
            at = max(self._starts[piece], start)
            ended = _advance(opened, self._marks[piece], at)
            closed += [(begin, at, mark) for begin, mark in ended]
        closed += [(begin, end, mark) for mark, begin in opened.items()]
        closed.sort(key=lambda item: (item[0], -item[1], item[2]))
        return [self._entity(start, *item) for item in closed]

    def _entity(self, start: int, begin: int, end: int, mark: Style) -> dict[str, Any]:
        offset, length = units(self._text[start:begin]), units(self._text[begin:end])
        if mark.type == "link":
            return {"type": "text_link", "offset": offset, "length": length, "url": mark.detail}
        entity = {"type": mark.type, "offset": offset, "length": length}
        return {**entity, "language": mark.detail} if mark.detail else entity


def _entity_marks(marks: Styles) -> Styles:
    """Return the marks that become entities; code may be nested only in a quote."""
    types = {mark.type for mark in marks}
    if "heading" in types:
        marks |= {BOLD}
    if "link" in types:
        marks -= {CODE}
    elif types & {"code", "pre"}:
        marks = frozenset(mark for mark in marks if mark.type in {"code", "pre"} or mark == QUOTE)
    return frozenset(mark for mark in marks if mark.type in _SHOWN)


def _advance(opened: dict[Style, int], marks: Styles, at: int) -> list[tuple[int, Style]]:
    """Open and close marks; return the closed ones with their starts.

    Of two overlapping entities one must contain the other (Bot API, "MessageEntity"), so a mark
    inside an ending one is closed with it and reopened.
    """
    ends = [begin for mark, begin in opened.items() if mark not in marks]
    closed: list[tuple[int, Style]] = []
    if ends:
        earliest = min(ends)
        inside = [mark for mark, begin in opened.items() if mark not in marks or begin > earliest]
        closed = [(opened.pop(mark), mark) for mark in inside]
    for mark in marks:
        opened.setdefault(mark, at)
    return closed
