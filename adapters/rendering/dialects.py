"""Convert styled text to messages in a Markdown dialect (Discord, Slack); pure functions.

Every line is written separately: formats that span lines are closed and reopened on each, so that
quotes, lists and cuts cannot break them. A marker works only next to certain characters
(CommonMark, "left-flanking delimiter run"). So each line is parsed again by a CommonMark parser,
and formats are dropped until no marker is shown as text.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from adapters.rendering.chunks import NOTHING, PREVIEW_END, Splitter, beginning
from adapters.rendering.markdown import inline_text
from adapters.rendering.styled import (
    BARE_LINK,
    BOLD,
    BULLET,
    CODE,
    INDENT,
    ITALIC,
    NO_STYLES,
    QUOTE,
    STRIKETHROUGH,
    Conventions,
    Style,
    StyledText,
    Styles,
    styled,
)

_EMPHASIS = frozenset({BOLD, ITALIC, STRIKETHROUGH})
_KINDS = frozenset({"pre", CODE.type, BARE_LINK.type, BULLET.type, INDENT.type})
# Characters that could end a link's target, or a format around it.
_TARGET_CODES = {ord(char): f"%{ord(char):02X}" for char in "()*~|`\\<> "}
_ADDRESS = re.compile("https?://", re.IGNORECASE)
_BACKTICKS = re.compile("`+")
_INVISIBLE = "\u200b"
_MARGIN = 0.98
# A line with more is hostile: parsing it again takes long.
_MOST_RUNS = 200
_SIGNS = {BOLD: "**", ITALIC: "*", STRIKETHROUGH: "~~"}

Run = tuple[str, Styles]
"""Text as written, and its formats: emphasis and at most one link."""


class Dialect(ABC):
    """A platform's Markdown dialect.

    Args:
        limit: Longest message, in units of `size`.

    Attributes:
        heading_levels: Deeper headings are shown as bold text.
        fence_backticks: Longest fence; longer runs of backticks in code are broken up.
    """

    conventions: Conventions
    heading_levels: int
    fence_backticks: int

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def size(self, text: str) -> int:
        """Return the length of a message in the platform's unit."""
        return len(text)

    @abstractmethod
    def escape(self, text: str) -> str:
        """Escape markers in plain text."""

    @abstractmethod
    def escape_line(self, line: str) -> str:
        """Escape a marker at the beginning of a line that lacks its block's markers."""

    @abstractmethod
    def defuse(self, message: str) -> str:
        """Make all mentions in a finished message harmless."""

    @abstractmethod
    def bare_link(self, url: str, following: str) -> str:
        """Write a link that is its own text, considering the text that follows."""


def messages(markdown: str, dialect: Dialect) -> list[str]:
    """Return an answer as messages, at least one; never raises."""
    return list(_DialectSplitter(styled(markdown, dialect.conventions), dialect).payloads()) or [
        NOTHING
    ]


def preview(markdown: str, dialect: Dialect) -> str | None:
    """Return the beginning of an unfinished answer that fits one message, or None if blank."""
    part = beginning(markdown, dialect.limit)
    if part is None:
        return None
    text = messages(part, dialect)[0]
    # Text after a closing fence would keep it from closing.
    return f"{text}\n{PREVIEW_END}" if text.endswith("```") else text + PREVIEW_END


class _DialectSplitter(Splitter):
    def __init__(self, text: StyledText, dialect: Dialect) -> None:
        super().__init__(text)
        self._dialect = dialect

    @override
    def window(self, start: int) -> int:
        return min(start + self._dialect.limit, len(self._text))

    @override
    def payload(self, start: int, end: int) -> str:
        message = _MessageWriter(self._dialect)
        for text, marks in self.pieces_between(start, end):
            message.write(text, _run_style(marks, self._dialect))
        return self._dialect.defuse(message.finished())

    @override
    def shortened(self, payload: str, start: int, end: int) -> int | None:
        size = self._dialect.size(payload)
        if size <= self._dialect.limit or end - start == 1:
            return None
        return start + max(1, int((end - start) * _MARGIN * self._dialect.limit / size))


@dataclass(frozen=True, slots=True)
class _RunStyle:
    """A set of marks by role; `kind` is "text" or the type of the mark that replaces it."""

    kind: str
    detail: str
    is_quote: bool
    heading: str
    inline: Styles


def _run_style(marks: Styles, dialect: Dialect) -> _RunStyle:
    kind, detail, heading = "text", "", ""
    inline = {mark for mark in marks if mark in _EMPHASIS}
    for mark in marks:
        if mark.type == "link":
            inline.add(Style("link", mark.detail.translate(_TARGET_CODES)))
        elif mark.type in _KINDS:
            kind, detail = mark
        elif mark.type == "heading" and int(mark.detail) > dialect.heading_levels:
            inline.add(BOLD)
        elif mark.type == "heading":
            heading = "#" * int(mark.detail) + " "
    if kind == BARE_LINK.type:
        inline.clear()
    return _RunStyle(kind, detail, QUOTE in marks, heading, frozenset(inline))


class _MessageWriter:
    """Writes one message, piece by piece."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._lines: list[str] = []
        self._is_after_fence = False
        # Indentation of the list that contains the message's start, or the text after a code block.
        self._dedent: int | None = None
        self._begin_line()

    def _begin_line(self) -> None:
        self._runs: list[tuple[str, _RunStyle]] = []
        self._lead = ""
        self._indent = 0
        self._is_quote = False

    def write(self, text: str, style: _RunStyle) -> None:
        if style.kind == "pre" and text.strip():
            self._fence(text, style)
        else:
            first, *others = text.split("\n")
            self._add(first, style)
            for part in others:
                self._end_line()
                self._add(part, style)

    def finished(self) -> str:
        self._end_line()
        return "\n".join(self._lines)

    def _add(self, text: str, style: _RunStyle) -> None:
        self._is_quote = self._is_quote or style.is_quote
        is_first = not self._runs
        if style.kind == "indent" and is_first and not self._lead:
            self._indent += len(text)
        elif style.kind == "bullet" and is_first:
            self._lead += text
        elif style.kind == "bullet":
            # After the ">" of an inner quote, lists are not supported.
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
        line = ""
        if not is_empty:
            self._dedent = self._indent if self._dedent is None else min(self._dedent, self._indent)
            line = " " * (self._indent - self._dedent) + self._lead + self._content()
        self._lines.append(f"> {line}" if self._is_quote else line)
        if self._is_quote:
            self._dedent = None
        self._begin_line()

    def _content(self) -> str:
        """Return the line's text with its formats."""
        heading = self._runs[0][1].heading if self._runs else ""
        outer = {BOLD} if self._lead and heading else NO_STYLES
        content = _joined([
            (self._shown(place), _formats(*run) | outer) for place, run in enumerate(self._runs)
        ])
        content = self._dialect.escape_line(content)
        if self._lead or not heading:
            return content
        # Platforms drop `#` at the end of a heading.
        content = content.rstrip()
        end = _INVISIBLE if content.endswith("#") else ""
        return f"{heading}{content}{end}"

    def _shown(self, place: int) -> str:
        text, style = self._runs[place]
        if style.kind == "code":
            is_next_to_code = place and self._runs[place - 1][1].kind == "code"
            return (_INVISIBLE if is_next_to_code else "") + _inline_code(text)
        # A link that was cut continues as plain text.
        if style.kind == BARE_LINK.type and _ADDRESS.match(text):
            next_two = self._runs[place + 1 : place + 3]
            behind = "".join("`" if style.kind == "code" else text for text, style in next_two)
            return self._dialect.bare_link(text, behind)
        return self._dialect.escape(text)

    def _fence(self, text: str, style: _RunStyle) -> None:
        """Write a code block, outside lists: some platforms do not allow it inside."""
        if self._runs or self._lead:
            self._end_line()
        longest = self._dialect.fence_backticks
        text = _unbroken(text, longest - 1)
        # Longer than any run of backticks inside, which would otherwise end the block.
        fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
        language = style.detail if style.detail.isascii() else ""
        prefix = "> " if style.is_quote else ""
        lines = (f"{fence}{language}", *text.split("\n"), fence)
        self._lines += [prefix + line for line in lines]
        self._is_after_fence = True
        self._dedent = None
        self._begin_line()


def _formats(text: str, style: _RunStyle) -> Styles:
    """Return the formats around a text, without those that Discord would end inside it.

    Source: its client, whose rules for `**` and `*` parse code, and whose rule for `~~` ignores
        escapes.
    """
    marks = style.inline
    if "~" in text:
        marks -= {STRIKETHROUGH}
    if style.kind == CODE.type and "*" in text:
        marks -= {BOLD, ITALIC}
    return marks


def _inline_code(text: str) -> str:
    """Wrap code in one or two backticks; three start a block on some platforms."""
    lengths = set(map(len, _BACKTICKS.findall(text)))
    sign = "`" if 1 not in lengths else "``"
    if lengths >= {1, 2}:
        text = _unbroken(text, 1)
    ends = text[0] + text[-1]
    pad = " " if "`" in ends or (ends == "  " and not text.isspace()) else ""
    return f"{sign}{pad}{text}{pad}{sign}"


def _unbroken(text: str, longest: int) -> str:
    """Break up runs of backticks that would end the code around them."""
    if "`" * (longest + 1) not in text:
        return text
    return re.sub(f"`{{{longest}}}(?=`)", rf"\g<0>{_INVISIBLE}", text)


def _joined(runs: Sequence[Run]) -> str:
    """Return a line with as many of its formats as possible without visible markers."""
    is_emphasized = any(marks & _EMPHASIS for _, marks in runs)
    if not is_emphasized or len(runs) > _MOST_RUNS:
        return _written(_without(runs, _EMPHASIS))
    text = inline_text("".join(shown for shown, _ in runs))
    for left_out in (NO_STYLES, frozenset({ITALIC})):
        line = _written(_without(runs, left_out))
        if inline_text(line) == text:
            return line
    return _written(_without(runs, _EMPHASIS))


def _without(runs: Sequence[Run], left_out: Styles) -> list[Run]:
    return [(shown, marks - left_out) for shown, marks in runs]


def _written(runs: Sequence[Run], outer: Styles = NO_STYLES) -> str:
    """Write runs inside `outer`; of formats that start together the longest is outermost."""
    out, closed, place = "", "", 0
    while place < len(runs):
        shown, marks = runs[place]
        ends = {mark: _end(runs, place, mark) for mark in marks - outer}
        if not ends:
            out, closed, place = out + shown, "", place + 1
            continue
        mark = min(ends, key=lambda each: (-ends[each], each))
        inside, place = runs[place : ends[mark]], ends[mark]
        before, text, after = _parts(_written(inside, outer | {mark}))
        sign = _SIGNS.get(mark)
        if not text:
            out, closed = out + before, ""
        elif sign is None:
            # After a "!" a link would be an image.
            out = re.sub("!$", r"\\!", out + before)
            out, closed = f"{out}[{text}]({mark.detail}){after}", ""
        elif closed == sign[0] and not before:
            # The markers would run together.
            out, closed = out + _written(_without(inside, _EMPHASIS), outer), ""
        else:
            out = f"{out}{before}{sign}{text}{sign}{after}"
            closed = "" if after else sign[0]
    return out


def _end(runs: Sequence[Run], place: int, mark: Style) -> int:
    """Return the index of the first run from `place` on without this format."""
    while place < len(runs) and mark in runs[place][1]:
        place += 1
    return place


def _parts(shown: str) -> tuple[str, str, str]:
    """Split a text into leading white space, content and trailing white space."""
    text = shown.strip()
    begin = len(shown) - len(shown.lstrip()) if text else len(shown)
    return shown[:begin], text, shown[begin + len(text) :]
