"""Styled text → messages whose formatting is part of the text: Discord and Slack; pure.

Every line is written on its own: formats that go over several lines end and begin again with each,
so that quotes, lists and cuts cannot break them. A sign works only where the characters around it
let it (CommonMark, "left-flanking delimiter run"). Where they do not, the format is left out, so
that no sign is ever shown as text.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from typing_extensions import override

from adapters.rendering.chunks import NOTHING, PREVIEW_END, Splitter, beginning
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
_SIGNS = {BOLD: "**", ITALIC: "*", STRIKETHROUGH: "~~"}

Run = tuple[str, Styles]
"""Text as it is written, and what it is to be inside of: emphasis and at most one link."""


class Dialect(ABC):
    """How a platform writes formatting.

    Args:
        limit: Longest message, in what `size` counts.

    Attributes:
        heading_levels: Deeper headings are bold text.
        fence_backticks: Longest fence; longer runs of backticks inside of code are broken up.
    """

    conventions: Conventions
    heading_levels: int
    fence_backticks: int

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def size(self, text: str) -> int:
        """Return the length of a message as the platform counts it."""
        return len(text)

    @abstractmethod
    def escape(self, text: str) -> str:
        """Make plain text stand for itself."""

    @abstractmethod
    def escape_line(self, line: str) -> str:
        """Do the same for what has a meaning only where a line begins.

        Args:
            line: A finished line without the signs of its block.
        """

    @abstractmethod
    def defuse(self, message: str) -> str:
        """Make mentions harmless, everywhere in a finished message."""

    @abstractmethod
    def bare_link(self, url: str, following: str) -> str:
        """Write a link that is its own text, given what follows it."""


def messages(markdown: str, dialect: Dialect) -> list[str]:
    """Return an answer as messages, at least one; never raises."""
    return list(_DialectSplitter(styled(markdown, dialect.conventions), dialect).payloads()) or [
        NOTHING
    ]


def preview(markdown: str, dialect: Dialect) -> str | None:
    """Return what of an unfinished answer fits into one message, marked as such; None if blank."""
    part = beginning(markdown, dialect.limit)
    if part is None:
        return None
    text = messages(part, dialect)[0]
    # What stands behind a closing fence would keep it from closing.
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
    """A set of marks, sorted out; `kind` is "text" or the type of the mark that replaces it."""

    kind: str
    detail: str
    is_quote: bool
    heading: str
    inline: Styles

    @property
    def is_plain(self) -> bool:
        """Whether the text only has to be escaped."""
        return self.kind == "text" and not self.inline


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
        # How far the list goes in that the message began in, or a code block broke off.
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

    def _add(self, text: str, style: _RunStyle) -> None:
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
            outer = {BOLD} if is_heading_in_list else NO_STYLES
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

    def _fence(self, text: str, style: _RunStyle) -> None:
        """Write a code block; it stands outside of lists, which could not hold it everywhere."""
        if self._runs or self._lead:
            self._end_line()
        longest = self._dialect.fence_backticks
        text = _unbroken(text, longest - 1)
        # Longer than any run inside: an equal one would end the block.
        fence = "`" * max(3, _longest_backticks(text) + 1)
        language = style.detail if style.detail.isascii() else ""
        prefix = "> " if style.is_quote else ""
        lines = (f"{fence}{language}", *text.split("\n"), fence)
        self._lines += [prefix + line for line in lines]
        self._is_after_fence = True
        self._dedent = None
        self._begin_line()


def _formats(text: str, style: _RunStyle) -> Styles:
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


class _Span(NamedTuple):
    """One format from run `first` to run `last`."""

    mark: Style
    first: int
    last: int


def joined(runs: Sequence[Run]) -> str:
    """Return a line with all formats that can be written."""
    runs = _without_edges(runs)
    # What is left out may make other formats unwritable; in the end all but links are left out.
    for _ in range(3):
        spans = _spans(runs)
        unwritable = _unwritable(runs, spans)
        if not unwritable:
            return _written(runs, spans)
        runs = _without(runs, unwritable)
    runs = _merged([(shown, marks - _SIGNS.keys()) for shown, marks in runs])
    return _written(runs, _spans(runs))


def _without_edges(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with white space inside of a format only between its words."""
    parts = [(part, marks) for shown, marks in runs for part in _parts(shown)]
    kept: list[Run] = []
    following = NO_STYLES
    for shown, marks in reversed(parts):
        following = following & marks if shown.isspace() else marks
        kept.append((shown, following))
    kept.reverse()
    before = NO_STYLES
    for place, (shown, marks) in enumerate(kept):
        before = before & marks if shown.isspace() else marks
        kept[place] = (shown, before)
    return _merged(kept)


def _parts(shown: str) -> Iterator[str]:
    """Yield white space, text and white space, without empty ones."""
    text = shown.strip()
    begin = len(shown) - len(shown.lstrip()) if text else len(shown)
    yield from filter(None, (shown[:begin], text, shown[begin + len(text) :]))


def _merged(runs: Sequence[Run]) -> list[Run]:
    merged: list[tuple[list[str], Styles]] = []
    for shown, marks in runs:
        if merged and merged[-1][1] == marks:
            merged[-1][0].append(shown)
        else:
            merged.append(([shown], marks))
    return [("".join(shown), marks) for shown, marks in merged]


def _spans(runs: Sequence[Run]) -> list[_Span]:
    """Return the formats in the order of their ends; each pair is nested or apart."""
    ends = _ends(runs)
    spans: list[_Span] = []
    opened: list[tuple[Style, int]] = []
    for place, (_, marks) in enumerate(runs):
        lasting = max(
            (ends[place][mark] for mark in marks - {mark for mark, _ in opened}), default=0
        )
        for depth, (mark, _) in enumerate(opened):
            if mark not in marks or ends[place][mark] < lasting:
                spans += [_Span(*span, place - 1) for span in reversed(opened[depth:])]
                del opened[depth:]
                break
        new = marks - {mark for mark, _ in opened}
        order = sorted(new, key=lambda mark: (-ends[place][mark], mark))
        opened += [(mark, place) for mark in order]
    return spans + [_Span(*span, len(runs) - 1) for span in reversed(opened)]


def _ends(runs: Sequence[Run]) -> list[dict[Style, int]]:
    """Return for each run and each of its formats the last run that it goes on to."""
    ends: list[dict[Style, int]] = []
    after: dict[Style, int] = {}
    for place in range(len(runs) - 1, -1, -1):
        after = {mark: after.get(mark, place) for mark in runs[place][1]}
        ends.append(after)
    ends.reverse()
    return ends


def _unwritable(runs: Sequence[Run], spans: Sequence[_Span]) -> set[_Span]:
    """Return the formats that cannot be written here: their signs would be text, or other signs."""
    begins, ends = _edges(runs, spans)
    signs = [span for span in spans if span.mark in _SIGNS]
    broken = {
        span
        for span in signs
        if not (begins[span.first].works and ends[span.last].works)
        or begins[span.first].touches(span.mark)
    }
    edges = [edge for span in signs for edge in (begins[span.first], ends[span.last])]
    if broken or all(edge.is_clear for edge in edges):
        return broken
    return {
        span
        for span in signs
        if span.mark == ITALIC
        and any(BOLD in marks for _, marks in runs[span.first : span.last + 1])
    }


def _edges(
    runs: Sequence[Run], spans: Sequence[_Span]
) -> tuple[dict[int, "_Edge"], dict[int, "_Edge"]]:
    """Return where formats begin and where they end, by their first and last run."""
    begins: dict[int, _Edge] = {}
    ends: dict[int, _Edge] = {}
    for mark, first, last in spans:
        if first not in begins:
            begins[first] = _Edge(runs[first - 1][0][-1] if first else "", runs[first][0][0])
        if last not in ends:
            after = runs[last + 1][0][0] if last + 1 < len(runs) else ""
            ends[last] = _Edge(after, runs[last][0][-1])
        begins[first].signs.append(mark)
        ends[last].signs.append(mark)
    for place in begins.keys() & {last + 1 for last in ends}:
        begins[place].others = ends[place - 1].signs
        ends[place - 1].others = begins[place].signs
    return begins, ends


@dataclass(slots=True)
class _Edge:
    """Where formats begin or end.

    Attributes:
        outside: The character on the outer side, "" where the line ends.
        inside: The one on the inner side.
        signs: The formats that begin (or end) here.
        others: The formats that end (or begin) here.
    """

    outside: str
    inside: str
    signs: list[Style] = field(default_factory=list)
    others: list[Style] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether signs are taken for signs."""
        if self.inside.isspace():
            return False
        if self.others or _is_free(self.outside) or _is_punctuation(self.outside):
            return True
        return not _is_punctuation(self.inside) and len(set(map(_sign_of, self.signs))) == 1

    @property
    def is_clear(self) -> bool:
        """Whether signs can only begin here, or only end here, so that they may be nested."""
        if _is_free(self.outside):
            return True
        # Beside another kind of sign, each one has punctuation on its inner side.
        if len(set(map(_sign_of, self.signs))) > 1 or _is_punctuation(self.inside):
            return False
        return _is_punctuation(self.outside)

    def touches(self, mark: Style) -> bool:
        """Whether a sign would run together with one on its outer side."""
        return _sign_of(mark) in map(_sign_of, self.others)


def _sign_of(mark: Style) -> str:
    return _SIGNS.get(mark, "[")[0]


def _is_free(char: str) -> bool:
    """Whether there is white space, or the end of the line."""
    return not char or char == "\t" or unicodedata.category(char) == "Zs"


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _without(runs: Sequence[Run], spans: set[_Span]) -> list[Run]:
    removed: list[set[Style]] = [set() for _ in runs]
    for mark, first, last in spans:
        for place in range(first, last + 1):
            removed[place].add(mark)
    return _merged([
        (shown, marks - gone) for (shown, marks), gone in zip(runs, removed, strict=True)
    ])


def _written(runs: Sequence[Run], spans: Sequence[_Span]) -> str:
    openers: dict[int, list[Style]] = {}
    closers: dict[int, list[Style]] = {}
    for mark, first, last in spans:
        openers.setdefault(first, []).append(mark)
        closers.setdefault(last, []).append(mark)
    out: list[str] = []
    for place, (shown, _) in enumerate(runs):
        for mark in reversed(openers.get(place, ())):
            if mark not in _SIGNS and out and out[-1].endswith("!"):
                out[-1] = out[-1][:-1] + "\\!"
            out.append(_SIGNS.get(mark, "["))
        out.append(shown)
        out += [_SIGNS.get(mark, f"]({mark.detail})") for mark in closers.get(place, ())]
    return "".join(out)
