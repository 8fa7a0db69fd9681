"""Styled text: what all platforms show, before any of them writes it its way (step 8).

It is the plain text of an answer in pieces, each with its marks. List bullets, indentation and
link targets that cannot be clicked are part of the text.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple


class Mark(NamedTuple):
    """One kind of formatting; `detail` is a language, a link's target or a heading's level."""

    type: str
    detail: str = ""


Marks = frozenset[Mark]

NO_MARKS: Marks = frozenset()
BOLD = Mark("bold")
ITALIC = Mark("italic")
STRIKETHROUGH = Mark("strikethrough")
CODE = Mark("code")
QUOTE = Mark("blockquote")
BARE_LINK = Mark("bare_link")
BULLET = Mark("bullet")
INDENT = Mark("indent")


@dataclass(frozen=True, slots=True)
class Conventions:
    """How a platform wants its text.

    Attributes:
        bullet: What stands before the items of a list that is not numbered.
        linkable: The targets that a link may have, matched as a whole.
        unlinkable: A text with this in it may not become a link.
        number_sign: What stands behind the number of an item; None for what was written.
    """

    bullet: str
    linkable: re.Pattern[str]
    unlinkable: re.Pattern[str] | None = None
    number_sign: str | None = None


@dataclass(slots=True)
class StyledText:
    """A whole answer: pieces of text with their marks.

    Attributes:
        block_starts: Where a message may best begin: at top-level blocks that do not follow a
            heading, as ascending indices into the text.
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
