"""Markdown → styled text (step 8): the same for all platforms but for their conventions; pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from adapters.inlines import MAX_LEVEL, Inlines, TooDeep, cell, write_indent
from adapters.markdown import is_parsable, parse
from adapters.marks import BULLET, NO_MARKS, QUOTE, Conventions, Mark, Marks, StyledText
from adapters.tables import aligned

_RULE = "──────────"
_NOT_SENDABLE = re.compile("[\x00\ud800-\udfff]")
_LANGUAGE = re.compile(r"[\w+#.-]+")


def styled(markdown: str, conventions: Conventions) -> StyledText:
    """Return the formatted text of an answer; where formatting fails, its plain text, whole."""
    markdown = _NOT_SENDABLE.sub("\ufffd", markdown)
    if not is_parsable(markdown):
        return _plain(markdown)
    try:
        written = _Writer(conventions).written(parse(markdown))
    except (TooDeep, RecursionError):
        return _plain(markdown)
    return _plain(markdown) if not written.text.strip() else written


def _plain(markdown: str) -> StyledText:
    out = StyledText()
    out.write(markdown, NO_MARKS)
    return out


@dataclass(slots=True)
class _Frame:
    """A block that holds blocks.

    Attributes:
        indent: Stands before each line inside of it.
        item: The number of the list's next item, None where bullets are used.
        item_break: Stands between the items of a list.
        before: The block that was begun last inside of it.
    """

    marks: Marks = NO_MARKS
    indent: str = ""
    item: int | None = None
    item_break: str = ""
    before: Token | None = None


class _Writer:
    """Walks the tokens and writes their text."""

    def __init__(self, conventions: Conventions) -> None:
        self._conventions = conventions
        self._out = StyledText()
        self._frames = [_Frame()]
        self._leaf_marks = NO_MARKS
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
        """Write what stands between a block and the one before it."""
        if token.level >= MAX_LEVEL:
            raise TooDeep
        frame, out = self._frames[-1], self._out
        before, frame.before = frame.before, token
        if before is None:
            if frame.indent and token.type in {"fence", "code_block", "table_open"}:
                out.write("\n", frame.marks)
            return frame
        out.write("\n" if before.hidden else "\n\n", frame.marks)
        if len(self._frames) == 1 and before.type != "heading_open":
            out.block_starts.append(out.length)
        if frame.indent and token.type not in {"fence", "code_block", "table_open"}:
            write_indent(out, frame.indent, frame.marks)
        return frame

    def _paragraph(self, token: Token) -> None:
        self._leaf_marks = self._begin(token).marks

    def _heading(self, token: Token) -> None:
        self._leaf_marks = self._begin(token).marks | {Mark("heading", token.tag[1:])}

    def _rule(self, token: Token) -> None:
        self._out.write(_RULE, self._begin(token).marks)

    def _quote(self, token: Token) -> None:
        """Quotes cannot be nested: an inner one keeps its ">"."""
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
        if self._rows:
            self._pre(self._frames[-1], aligned(self._rows), "")
        self._rows = None

    def _pre(self, frame: _Frame, text: str, language: str) -> None:
        self._out.write(text, frame.marks | {Mark("pre", language)})

    def _inline(self, token: Token) -> None:
        children = token.children or []
        if self._rows is not None:
            self._rows[-1].append(cell(children))
            return
        inlines = Inlines(self._out, self._frames[-1].indent, self._conventions)
        inlines.write(children, self._leaf_marks)


def _is_loose(tokens: Sequence[Token], index: int) -> bool:
    """Whether blank lines stand between the items of the list that begins at `index`."""
    level = tokens[index].level
    for place in range(index + 1, len(tokens)):
        token = tokens[place]
        if token.type == "paragraph_open" and token.level == level + 2:
            return not token.hidden
        if token.level == level:
            break
    return False
