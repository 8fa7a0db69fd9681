"""Styled text → messages whose formatting is part of the text (step 8): Discord and Slack; pure.

Every line is written on its own: formats that go over several lines end and begin again with
each, so that quotes, lists and cuts cannot break them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from adapters.chunks import NOTHING, Splitter
from adapters.marks import (
    BARE_LINK,
    BOLD,
    BULLET,
    CODE,
    INDENT,
    ITALIC,
    NO_MARKS,
    QUOTE,
    STRIKETHROUGH,
    Conventions,
    Mark,
    Marks,
    StyledText,
)
from adapters.previews import PREVIEW_END, beginning
from adapters.spans import joined
from adapters.styled import styled

_EMPHASIS = frozenset({BOLD, ITALIC, STRIKETHROUGH})
_KINDS = frozenset({"pre", CODE.type, BARE_LINK.type, BULLET.type, INDENT.type})
# Characters that could end a link's target, or a format around it.
_TARGET_CODES = {ord(char): f"%{ord(char):02X}" for char in "()*~|`\\<> "}
_ADDRESS = re.compile("https?://", re.IGNORECASE)
_BACKTICKS = re.compile("`+")
_INVISIBLE = "\u200b"
_MARGIN = 0.98


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a platform writes formatting.

    Attributes:
        limit: Longest message, in what `size` counts.
        escape: Makes plain text stand for itself.
        escape_line: The same for what has a meaning only where a line begins; gets the finished
            line without the signs of its block.
        defuse: Makes mentions harmless, everywhere in a finished message.
        bare_link: Writes a link that is its own text, given what follows it.
        heading_levels: Deeper headings are bold text.
        fence_backticks: Longest fence; longer runs of backticks inside of code are broken up.
    """

    conventions: Conventions
    limit: int
    size: Callable[[str], int]
    escape: Callable[[str], str]
    escape_line: Callable[[str], str]
    defuse: Callable[[str], str]
    bare_link: Callable[[str, str], str]
    heading_levels: int
    fence_backticks: int


def messages(markdown: str, dialect: Dialect) -> list[str]:
    """Return an answer as messages, at least one; never raises."""
    return list(_Splitter(styled(markdown, dialect.conventions), dialect).payloads()) or [NOTHING]


def preview(markdown: str, dialect: Dialect) -> str | None:
    """Return what of an unfinished answer fits into one message, marked as such; None if blank."""
    part = beginning(markdown, dialect.limit)
    if part is None:
        return None
    text = messages(part, dialect)[0]
    # What stands behind a closing fence would keep it from closing.
    return f"{text}\n{PREVIEW_END}" if text.endswith("```") else text + PREVIEW_END


class _Splitter(Splitter):
    def __init__(self, text: StyledText, dialect: Dialect) -> None:
        super().__init__(text)
        self._dialect = dialect
        self._styles: dict[Marks, _Style] = {}

    @override
    def window(self, start: int) -> int:
        return min(start + self._dialect.limit, len(self._text))

    @override
    def payload(self, start: int, end: int) -> str:
        message = _Message(self._dialect)
        for text, marks in self.pieces_between(start, end):
            style = self._styles.get(marks)
            if style is None:
                style = self._styles[marks] = _style(marks, self._dialect)
            message.write(text, style)
        return self._dialect.defuse(message.finished())

    @override
    def shortened(self, payload: str, start: int, end: int) -> int | None:
        size = self._dialect.size(payload)
        if size <= self._dialect.limit or end - start == 1:
            return None
        return start + max(1, int((end - start) * _MARGIN * self._dialect.limit / size))


@dataclass(frozen=True, slots=True)
class _Style:
    """A set of marks, sorted out; `kind` is "text" or the type of the mark that replaces it."""

    kind: str
    detail: str
    is_quote: bool
    heading: str
    inline: Marks

    @property
    def is_plain(self) -> bool:
        """Whether the text only has to be escaped."""
        return self.kind == "text" and not self.inline


def _style(marks: Marks, dialect: Dialect) -> _Style:
    kind, detail, heading = "text", "", ""
    inline = {mark for mark in marks if mark in _EMPHASIS}
    for mark in marks:
        if mark.type == "link":
            inline.add(Mark("link", mark.detail.translate(_TARGET_CODES)))
        elif mark.type in _KINDS:
            kind, detail = mark
        elif mark.type == "heading" and int(mark.detail) > dialect.heading_levels:
            inline.add(BOLD)
        elif mark.type == "heading":
            heading = "#" * int(mark.detail) + " "
    if kind == BARE_LINK.type:
        inline.clear()
    return _Style(kind, detail, QUOTE in marks, heading, frozenset(inline))


class _Message:
    """Writes one message, piece by piece."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._lines: list[str] = []
        self._is_after_fence = False
        # How far the list goes in that the message began in, or a code block broke off.
        self._dedent: int | None = None
        self._begin_line()

    def _begin_line(self) -> None:
        self._runs: list[tuple[str, _Style]] = []
        self._lead = ""
        self._indent = 0
        self._is_quote = False

    def write(self, text: str, style: _Style) -> None:
        if style.kind == "pre" and text.strip():
            self._fence(text, style)
        elif "\n" not in text:
            self._add(text, style)
        else:
            first, *others = text.split("\n")
            self._add(first, style)
            for part in others:
                self._end_line()
                self._add(part, style)

    def finished(self) -> str:
        self._end_line()
        return "\n".join(self._lines)

    def _add(self, text: str, style: _Style) -> None:
        self._is_quote = self._is_quote or style.is_quote
        is_first = not self._runs
        if style.kind == "indent" and is_first and not self._lead:
            self._indent += len(text)
        elif style.kind == "bullet" and is_first:
            self._lead += text
        elif style.kind == "bullet":
            # Behind the ">" of an inner quote there are no lists.
            self._runs.append((text.replace("-", "•"), style))
        elif text:
            self._runs.append((text, style))

    def _end_line(self) -> None:
        is_empty = not (self._runs or self._lead)
        if self._is_after_fence and is_empty:
            self._is_after_fence = False
            self._begin_line()
            return
        self._is_after_fence = False
        line = "" if is_empty else self._indentation() + self._lead + self._content()
        self._lines.append(f"> {line}" if self._is_quote else line)
        if self._is_quote:
            self._dedent = None
        self._begin_line()

    def _indentation(self) -> str:
        self._dedent = self._indent if self._dedent is None else min(self._dedent, self._indent)
        return " " * (self._indent - self._dedent)

    def _content(self) -> str:
        """Return the text of the line with its formats."""
        runs = self._runs
        if not runs:
            return ""
        text, style = runs[0]
        is_heading_in_list = self._lead != "" and style.heading != ""
        if len(runs) == 1 and style.is_plain and not is_heading_in_list:
            content = self._dialect.escape(text)
        else:
            outer = {BOLD} if is_heading_in_list else NO_MARKS
            content = joined([
                (self._shown(place), _formats(*run) | outer) for place, run in enumerate(runs)
            ])
        content = self._dialect.escape_line(content)
        if is_heading_in_list or not style.heading:
            return content
        # Platforms leave out the signs that a heading ends with.
        content = content.rstrip()
        end = _INVISIBLE if content.endswith("#") else ""
        return f"{style.heading}{content}{end}"

    def _shown(self, place: int) -> str:
        text, style = self._runs[place]
        if style.kind == "code":
            is_next_to_code = place and self._runs[place - 1][1].kind == "code"
            return (_INVISIBLE if is_next_to_code else "") + _inline_code(text)
        # A link that was cut goes on as text.
        if style.kind == BARE_LINK.type and _ADDRESS.match(text):
            return self._dialect.bare_link(text, self._following(place))
        return self._dialect.escape(text)

    def _following(self, place: int) -> str:
        """Return what stands behind a run; at least its beginning, where it counts."""
        following = self._runs[place + 1 : place + 3]
        return "".join("`" if style.kind == "code" else text for text, style in following)

    def _fence(self, text: str, style: _Style) -> None:
        """Write a code block; it stands outside of lists, which could not hold it everywhere."""
        if self._runs or self._lead:
            self._end_line()
        longest = self._dialect.fence_backticks
        text = _unbroken(text, longest - 1)
        fence = "`" * max(3, _longest_backticks(text) + 1)
        language = style.detail if style.detail.isascii() else ""
        prefix = "> " if style.is_quote else ""
        lines = (f"{fence}{language}", *text.split("\n"), fence)
        self._lines += [prefix + line for line in lines]
        self._is_after_fence = True
        self._dedent = None
        self._begin_line()


def _formats(text: str, style: _Style) -> Marks:
    """Return the formats around a text; Discord takes signs inside for their end.

    Source: its client's rules for `**` and `*` look into code, that for `~~` ignores escapes.
    """
    marks = style.inline
    if "~" in text:
        marks -= {STRIKETHROUGH}
    if style.kind == CODE.type and "*" in text:
        marks -= {BOLD, ITALIC}
    return marks


def _inline_code(text: str) -> str:
    """Return code between one or two backticks; three begin a block on some platforms."""
    lengths = set(map(len, _BACKTICKS.findall(text)))
    sign = "`" if 1 not in lengths else "``"
    if lengths >= {1, 2}:
        text = _unbroken(text, 1)
    ends = text[0] + text[-1]
    pad = " " if "`" in ends or (ends == "  " and not text.isspace()) else ""
    return f"{sign}{pad}{text}{pad}{sign}"


def _unbroken(text: str, longest: int) -> str:
    """Break up runs of backticks that would end the code they are in."""
    if "`" * (longest + 1) not in text:
        return text
    return re.sub(f"`{{{longest}}}(?=`)", rf"\g<0>{_INVISIBLE}", text)


def _longest_backticks(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0) if "`" in text else 0
