"""Inline markdown → pieces of a styled text (step 8): emphasis, code, links and line breaks."""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from adapters.marks import (
    BARE_LINK,
    BOLD,
    CODE,
    INDENT,
    ITALIC,
    NO_MARKS,
    STRIKETHROUGH,
    Conventions,
    Mark,
    Marks,
    StyledText,
)

# The parser drops what is nested more deeply than 20 levels; so deep a text is shown as it is.
MAX_LEVEL = 16
# A longer target stands behind its link's text, where it can be cut.
_MAX_TARGET_CHARS = 1500
_WEB = re.compile(r"https?://", re.IGNORECASE)
_EMPHASIS = {"strong_open": BOLD, "em_open": ITALIC, "s_open": STRIKETHROUGH}


class TooDeep(Exception):
    """The text is nested so deeply that the parser may have dropped a part of it."""


def write_indent(out: StyledText, indent: str, marks: Marks) -> None:
    """Write what stands before a line inside of a list or an inner quote."""
    out.write(indent, marks if ">" in indent else marks | {INDENT})


def cell(tokens: Sequence[Token]) -> str:
    """Return a table cell as one plain line; code cannot hold links, so targets are spelt out."""
    out = StyledText()
    Inlines(out, "", None).write(tokens, NO_MARKS)
    return out.text.replace("\n", " ")


class Inlines:
    """Writes the text of one block; without conventions no link is marked as one."""

    def __init__(self, out: StyledText, indent: str, conventions: Conventions | None) -> None:
        self._out = out
        self._indent = indent
        self._conventions = conventions

    def write(self, tokens: Sequence[Token], marks: Marks) -> None:
        """Write inline tokens, inside of what `marks` says.

        Raises:
            TooDeep: Emphasis is nested as no person writes it.
        """
        outer: list[Marks] = []
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

    def _atom(self, token: Token, marks: Marks) -> None:
        if token.type == "code_inline":
            self._out.write(token.content, marks | {CODE})
        elif token.type == "image":
            self._link(token, token.children or [], marks)
        else:
            self._out.write("\n", marks)
            write_indent(self._out, self._indent, marks)

    def _link(self, token: Token, inside: Sequence[Token], marks: Marks) -> None:
        """Write a link; a target that the platform would not take stands behind its text."""
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        label = _label(inside)
        if token.info == "auto":
            self._target(label, marks)
        elif _has_link(marks) or not target or label in {target, target.removeprefix("mailto:")}:
            self.write(inside, marks)
        elif not label.strip():
            self._target(target, marks)
        elif self._is_linkable(label, target):
            self.write(inside, marks | {Mark("link", target)})
        else:
            self.write(inside, marks)
            self._out.write(" (", marks)
            self._target(target, marks)
            self._out.write(")", marks)

    def _target(self, target: str, marks: Marks) -> None:
        """Write a target that is its own text."""
        is_link = self._conventions is not None and not _has_link(marks) and _WEB.match(target)
        self._out.write(target, marks | {BARE_LINK} if is_link else marks)

    def _is_linkable(self, label: str, target: str) -> bool:
        ways = self._conventions
        if ways is None or len(target) > _MAX_TARGET_CHARS or not ways.linkable.fullmatch(target):
            return False
        return ways.unlinkable is None or not ways.unlinkable.search(label)


def _link_end(tokens: Sequence[Token], position: int) -> int:
    """Return where a link ends; there may be another one inside of its text."""
    depth = 1
    while True:
        kind = tokens[position].type
        depth += (kind == "link_open") - (kind == "link_close")
        if not depth:
            return position
        position += 1


def _has_link(marks: Marks) -> bool:
    return any(mark.type == "link" for mark in marks)


def _label(tokens: Sequence[Token]) -> str:
    return "".join(_label(token.children) if token.children else token.content for token in tokens)
