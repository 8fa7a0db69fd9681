"""Convert Markdown to styled text, following a platform's conventions; pure functions.

A styled text is an answer's plain text in pieces, each with its styles. The text includes list
bullets, indentation, tables, and link targets that cannot be clicked.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markdown_it.token import Token

from adapters.messages import storable
from adapters.rendering.markdown import MAX_LEVEL, is_parsable, parse

_RULE = "──────────"
_LANGUAGE = re.compile(r"[\w+#.-]+")
# A longer target is written after its link's text, which allows cutting it.
_MAX_TARGET_CHARS = 1500
_WEB = re.compile(r"https?://", re.IGNORECASE)
_MAX_COLUMN = 40


class Style(NamedTuple):
    """One kind of formatting; `detail` is a language, a link's target or a heading's level."""

    type: str
    detail: str = ""


Styles = frozenset[Style]

NO_STYLES: Styles = frozenset()
BOLD = Style("bold")
ITALIC = Style("italic")
STRIKETHROUGH = Style("strikethrough")
CODE = Style("code")
QUOTE = Style("blockquote")
BARE_LINK = Style("bare_link")
BULLET = Style("bullet")
INDENT = Style("indent")

_EMPHASIS = {"strong_open": BOLD, "em_open": ITALIC, "s_open": STRIKETHROUGH}


class TooDeep(Exception):
    """The text is nested so deeply that the parser may have dropped part of it."""


@dataclass(frozen=True, slots=True)
class Conventions:
    """A platform's formatting conventions.

    Attributes:
        bullet: Prefix of items in an unnumbered list.
        linkable: Matches a whole target that a link may have.
        unlinkable: Matches in texts that must not become a link.
        number_sign: Follows an item's number; None to keep the original sign.
        table_columns: Wider tables become lists of records; None for no limit.
    """

    bullet: str
    linkable: re.Pattern[str]
    unlinkable: re.Pattern[str] | None = None
    number_sign: str | None = None
    table_columns: int | None = None


@dataclass(slots=True)
class StyledText:
    """A whole answer: pieces of text with their marks.

    Attributes:
        block_starts: The best positions to start a message: top-level blocks that do not follow a
            heading, as ascending indices into the text.
    """

    pieces: list[tuple[str, Styles]] = field(default_factory=list)
    block_starts: list[int] = field(default_factory=list)
    length: int = 0

    def write(self, text: str, marks: Styles) -> None:
        """Append text."""
        if text:
            self.pieces.append((text, marks))
            self.length += len(text)

    @property
    def text(self) -> str:
        """The text without its marks."""
        return "".join(text for text, _ in self.pieces)


def styled(markdown: str, conventions: Conventions) -> StyledText:
    """Return an answer as formatted text, or as plain text if formatting fails."""
    markdown = storable(markdown)
    if not is_parsable(markdown):
        return _plain(markdown)
    try:
        written = _TokenWriter(conventions).written(parse(markdown))
    except (TooDeep, RecursionError):
        return _plain(markdown)
    # A lone link definition becomes an empty text, which no platform accepts.
    return _plain(markdown) if not written.text.strip() else written


def _plain(markdown: str) -> StyledText:
    out = StyledText()
    out.write(markdown, NO_STYLES)
    return out


@dataclass(slots=True)
class _Frame:
    """A block that contains other blocks.

    Attributes:
        item: The number of the list's next item; None for bullets.
    """

    marks: Styles = NO_STYLES
    indent: str = ""
    item: int | None = None
    item_break: str = ""
    before: Token | None = None


class _TokenWriter:
    """Walks the tokens and writes their text."""

    def __init__(self, conventions: Conventions) -> None:
        self._conventions = conventions
        self._out = StyledText()
        self._frames = [_Frame()]
        self._leaf_marks = NO_STYLES
        self._rows: list[list[str]] | None = None
        self._handlers: dict[str, Callable[[Token], None]] = {
            "inline": self._inline,
            "paragraph_open": self._paragraph,
            "heading_open": self._heading,
            "blockquote_open": self._quote,
            "blockquote_close": self._close,
            "list_item_open": self._item,
            "list_item_close": self._close,
            "bullet_list_close": self._close,
            "ordered_list_close": self._close,
            "fence": self._code,
            "code_block": self._code,
            "hr": self._rule,
            "table_open": self._table,
            "tr_open": self._row,
            "table_close": self._table_end,
        }

    def written(self, tokens: Sequence[Token]) -> StyledText:
        handlers = self._handlers
        for index, token in enumerate(tokens):
            if token.type in {"bullet_list_open", "ordered_list_open"}:
                self._list(token, is_loose=_is_loose(tokens, index))
            elif token.type in handlers:
                handlers[token.type](token)
        return self._out

    def _begin(self, token: Token) -> _Frame:
        """Write the break between a block and the previous one."""
        if token.level >= MAX_LEVEL:
            raise TooDeep
        frame, out = self._frames[-1], self._out
        before, frame.before = frame.before, token
        if before is None:
            # Code and tables are not indented: at the start of an item they begin a new line.
            if frame.indent and token.type in {"fence", "code_block", "table_open"}:
                out.write("\n", frame.marks)
            return frame
        # The parser hides the paragraphs of a list without empty lines.
        out.write("\n" if before.hidden else "\n\n", frame.marks)
        if len(self._frames) == 1 and before.type != "heading_open":
            out.block_starts.append(out.length)
        if frame.indent and token.type not in {"fence", "code_block", "table_open"}:
            write_indent(out, frame.indent, frame.marks)
        return frame

    def _paragraph(self, token: Token) -> None:
        self._leaf_marks = self._begin(token).marks

    def _heading(self, token: Token) -> None:
        self._leaf_marks = self._begin(token).marks | {Style("heading", token.tag[1:])}

    def _rule(self, token: Token) -> None:
        self._out.write(_RULE, self._begin(token).marks)

    def _quote(self, token: Token) -> None:
        """Write a quote; an inner quote keeps its ">", since quotes cannot be nested."""
        frame = self._begin(token)
        if QUOTE not in frame.marks:
            self._frames.append(_Frame(frame.marks | {QUOTE}, frame.indent))
            return
        self._out.write("> ", frame.marks)
        self._frames.append(_Frame(frame.marks, f"{frame.indent}> "))

    def _list(self, token: Token, *, is_loose: bool) -> None:
        frame = self._begin(token)
        number = int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None
        item_break = "\n\n" if is_loose else "\n"
        self._frames.append(_Frame(frame.marks, frame.indent, number, item_break))

    def _item(self, token: Token) -> None:
        frame = self._frames[-1]
        if frame.before is not None:
            self._out.write(frame.item_break, frame.marks)
            write_indent(self._out, frame.indent, frame.marks)
        frame.before = token
        bullet = self._conventions.bullet
        if frame.item is not None:
            sign = self._conventions.number_sign or token.markup
            bullet, frame.item = f"{frame.item}{sign} ", frame.item + 1
        self._out.write(bullet, frame.marks | {BULLET})
        self._frames.append(_Frame(frame.marks, frame.indent + " " * len(bullet)))

    def _close(self, _token: Token) -> None:
        self._frames.pop()

    def _code(self, token: Token) -> None:
        # Anything may follow the language, such as a file name.
        info = _LANGUAGE.match(token.info.strip())
        self._pre(
            self._begin(token), token.content.removesuffix("\n"), info.group() if info else ""
        )

    def _table(self, token: Token) -> None:
        self._begin(token)
        self._rows = []

    def _row(self, _token: Token) -> None:
        if self._rows is not None:
            self._rows.append([])

    def _table_end(self, _token: Token) -> None:
        rows, self._rows = self._rows, None
        if not rows:
            return
        text, limit = align_table(rows), self._conventions.table_columns
        if limit is None or len(rows) == 1 or max(map(_width, text.splitlines())) <= limit:
            self._pre(self._frames[-1], text, "")
        else:
            self._records(rows, self._frames[-1])

    def _records(self, rows: list[list[str]], frame: _Frame) -> None:
        """Write each row as a list item, with one line per cell that includes its heading."""
        out, bullet = self._out, self._conventions.bullet
        for number, row in enumerate(rows[1:]):
            if number:
                out.write("\n", frame.marks)
                if len(self._frames) == 1:
                    out.block_starts.append(out.length)
            begin, marks = bullet, frame.marks | {BOLD}
            for heading, value in zip(rows[0], row, strict=False):
                if value:
                    out.write(begin, frame.marks)
                    out.write(f"{heading}: {value}" if heading else value, marks)
                    begin, marks = f"\n{' ' * len(bullet)}", frame.marks

    def _pre(self, frame: _Frame, text: str, language: str) -> None:
        self._out.write(text, frame.marks | {Style("pre", language)})

    def _inline(self, token: Token) -> None:
        children = token.children or []
        if self._rows is not None:
            self._rows[-1].append(cell(children))
            return
        inlines = Inlines(self._out, self._frames[-1].indent, self._conventions)
        inlines.write(children, self._leaf_marks)


class Inlines:
    """Writes the text of one block; without conventions it contains no links."""

    def __init__(self, out: StyledText, indent: str, conventions: Conventions | None) -> None:
        self._out = out
        self._indent = indent
        self._conventions = conventions

    def write(self, tokens: Sequence[Token], marks: Styles) -> None:
        """Write inline tokens with these marks around them; raise TooDeep for deep nesting."""
        outer: list[Styles] = []
        position = 0
        while position < len(tokens):
            token = tokens[position]
            position += 1
            if token.type == "text":
                self._out.write(token.content, marks)
            elif token.type in _EMPHASIS:
                if len(outer) == MAX_LEVEL:
                    raise TooDeep
                outer.append(marks)
                marks |= {_EMPHASIS[token.type]}
            elif token.type == "link_open":
                end = _link_end(tokens, position)
                self._link(token, tokens[position:end], marks)
                position = end + 1
            elif token.nesting < 0:
                marks = outer.pop()
            else:
                self._atom(token, marks)

    def _atom(self, token: Token, marks: Styles) -> None:
        if token.type == "code_inline":
            self._out.write(token.content, marks | {CODE})
        elif token.type == "image":
            # Platforms do not show images inside text: an image becomes a link.
            self._link(token, token.children or [], marks)
        else:
            self._out.write("\n", marks)
            write_indent(self._out, self._indent, marks)

    def _link(self, token: Token, inside: Sequence[Token], marks: Styles) -> None:
        """Write a link; if the platform rejects the target, write it after the text."""
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        label = _label(inside)
        # `https://…` or `<https://…>`: the parser marks links that are their own text.
        if token.info == "auto":
            self._target(label, marks)
        # Platforms do not allow a link inside another link's text.
        elif _has_link(marks) or not target or label in {target, target.removeprefix("mailto:")}:
            self.write(inside, marks)
        elif not label.strip():
            self._target(target, marks)
        elif self._is_linkable(label, target):
            self.write(inside, marks | {Style("link", target)})
        else:
            self.write(inside, marks)
            self._out.write(" (", marks)
            self._target(target, marks)
            self._out.write(")", marks)

    def _target(self, target: str, marks: Styles) -> None:
        """Write a link target that is its own text."""
        is_link = self._conventions is not None and not _has_link(marks) and _WEB.match(target)
        self._out.write(target, marks | {BARE_LINK} if is_link else marks)

    def _is_linkable(self, label: str, target: str) -> bool:
        ways = self._conventions
        if ways is None or len(target) > _MAX_TARGET_CHARS or not ways.linkable.fullmatch(target):
            return False
        return ways.unlinkable is None or not ways.unlinkable.search(label)


def cell(tokens: Sequence[Token]) -> str:
    """Return a table cell as one plain line, with link targets: code cannot contain links."""
    out = StyledText()
    Inlines(out, "", None).write(tokens, NO_STYLES)
    return out.text.replace("\n", " ")


def align_table(rows: list[list[str]]) -> str:
    """Format a table, heading first, in aligned columns; very wide cells stick out."""
    columns = max(len(row) for row in rows)
    widths = [
        max(min(_width(row[column]), _MAX_COLUMN) for row in rows if column < len(row))
        for column in range(columns)
    ]
    lines = [" │ ".join(map(_padded, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "─┼─".join("─" * width for width in widths), *lines[1:]])


def write_indent(out: StyledText, indent: str, marks: Styles) -> None:
    """Write the beginning of a line inside a list or an inner quote."""
    out.write(indent, marks if ">" in indent else marks | {INDENT})


def _is_loose(tokens: Sequence[Token], index: int) -> bool:
    """Return whether blank lines separate the items of the list that starts at `index`."""
    level = tokens[index].level
    for place in range(index + 1, len(tokens)):
        token = tokens[place]
        if token.type == "paragraph_open" and token.level == level + 2:
            # The parser hides paragraphs only if a list has no blank lines.
            return not token.hidden
        if token.level == level:
            break
    return False


def _link_end(tokens: Sequence[Token], position: int) -> int:
    """Return the index of a link's closing token; its text may contain another link."""
    depth = 1
    while True:
        kind = tokens[position].type
        depth += (kind == "link_open") - (kind == "link_close")
        if not depth:
            return position
        position += 1


def _has_link(marks: Styles) -> bool:
    return any(mark.type == "link" for mark in marks)


def _label(tokens: Sequence[Token]) -> str:
    return "".join(_label(token.children) if token.children else token.content for token in tokens)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def _width(text: str) -> int:
    """Return the number of columns that a text occupies in a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(
        # Han, kana and emoji occupy two columns of a fixed-width font, a combining accent none.
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in {"W", "F"})
        for char in text
    )
