"""Markdown → styled text → payloads (step 8): Telegram's part of the one markdown tree; pure.

Entities are used instead of MarkdownV2 because "can't parse entities" cannot happen with them.
Code and `pre` hold no other entity but a quote around them (Bot API, "MessageEntity").
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

import orjson
from markdown_it.tree import SyntaxTreeNode

from adapters.markdown import parse
from adapters.telegram.split import Mark, Marks, StyledText, is_blank, split

# Markdown beyond this is shown as plain text: parsing is not linear for hostile input.
MAX_MARKDOWN_CHARS = 100_000
# The parser drops what is nested more deeply than 20 levels; so deep a text is shown as it is.
_MAX_LEVEL = 16
_MAX_COLUMN = 40
_PREVIEW_CHARS = 8192
_PREVIEW_END = " …"
_RULE = "──────────"

_NOT_SENDABLE = re.compile("[\x00\ud800-\udfff]")
_LINKABLE = re.compile(r"(https?|ftp|tg|ton)://\S+", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w+#.-]+")
_INLINE_MARKS = {"strong": Mark("bold"), "em": Mark("italic"), "s": Mark("strikethrough")}
_QUOTE = Mark("blockquote")
_CODE = Mark("code")
_NO_MARKS: Marks = frozenset()


def render(markdown: str) -> list[str]:
    """Return the payloads of an answer, at least one; never raises."""
    return split(styled(markdown))


def preview_text(markdown: str) -> str | None:
    """Return what of an unfinished answer fits into one message, marked as such; None if blank."""
    text: str = orjson.loads(render(markdown[:_PREVIEW_CHARS])[0])["text"]
    return None if is_blank(markdown) else text + _PREVIEW_END


def styled(markdown: str) -> StyledText:
    """Return the formatted text of an answer; where formatting fails, its plain text, whole."""
    markdown = _NOT_SENDABLE.sub("\ufffd", markdown)
    if len(markdown) > MAX_MARKDOWN_CHARS:
        return _plain(markdown)
    try:
        writer = _Writer()
        writer.document(parse(markdown))
    except (_TooDeep, RecursionError):
        return _plain(markdown)
    return _plain(markdown) if is_blank(writer.out.text) else writer.out


class _TooDeep(Exception):
    """The text is nested so deeply that the parser may have dropped a part of it."""


def _plain(markdown: str) -> StyledText:
    out = StyledText()
    out.write(markdown, _NO_MARKS)
    return out


class _Writer:
    """Walks the tree and writes its text; `_indent` stands before each line inside of a list."""

    def __init__(self, *, link_marks: bool = True) -> None:
        self.out = StyledText()
        self._link_marks = link_marks
        self._indent = ""
        self._blocks: dict[str, Callable[[SyntaxTreeNode, Marks], None]] = {
            "bullet_list": self._list,
            "ordered_list": self._list,
            "blockquote": self._quote,
            "heading": self._heading,
            "fence": self._code,
            "code_block": self._code,
            "table": self._table,
            "hr": self._rule,
        }

    def document(self, root: SyntaxTreeNode) -> None:
        for index, node in enumerate(root.children):
            if index:
                self.out.write("\n\n", _NO_MARKS)
                self.out.block_starts.append(self.out.length)
            self._block(node, _NO_MARKS)

    def _block(self, node: SyntaxTreeNode, marks: Marks) -> None:
        if node.level >= _MAX_LEVEL:
            raise _TooDeep
        self._blocks.get(node.type, self._paragraph)(node, marks)

    def _children(self, node: SyntaxTreeNode, marks: Marks) -> None:
        """Write the blocks inside of a list item or quote; the first follows on its line."""
        for index, child in enumerate(node.children):
            if index:
                before = node.children[index - 1]
                self.out.write("\n" if before.hidden else "\n\n", marks)
            if index and child.type not in {"fence", "code_block", "table"}:
                self.out.write(self._indent, marks)
            self._block(child, marks)

    def _paragraph(self, node: SyntaxTreeNode, marks: Marks) -> None:
        self.inlines(node.children, marks)

    def _heading(self, node: SyntaxTreeNode, marks: Marks) -> None:
        self.inlines(node.children, marks | {Mark("bold")})

    def _rule(self, _node: SyntaxTreeNode, marks: Marks) -> None:
        self.out.write(_RULE, marks)

    def _quote(self, node: SyntaxTreeNode, marks: Marks) -> None:
        """Quotes cannot be nested: an inner one keeps its ">"."""
        if _QUOTE not in marks:
            self._children(node, marks | {_QUOTE})
            return
        outer, self._indent = self._indent, f"{self._indent}> "
        self.out.write("> ", marks)
        self._children(node, marks)
        self._indent = outer

    def _list(self, node: SyntaxTreeNode, marks: Marks) -> None:
        outer = self._indent
        number = int(node.attrs.get("start", 1))
        for index, item in enumerate(node.children):
            if index:
                self.out.write(f"{_item_break(node)}{outer}", marks)
            bullet = "• " if node.type == "bullet_list" else f"{number + index}. "
            self.out.write(bullet, marks)
            self._indent = outer + " " * len(bullet)
            if item.children and item.children[0].type in {"fence", "code_block", "table"}:
                self.out.write("\n", marks)
            self._children(item, marks)
        self._indent = outer

    def _code(self, node: SyntaxTreeNode, marks: Marks) -> None:
        info = _LANGUAGE.match(node.info.strip())
        self._pre(node.content.removesuffix("\n"), info.group() if info else "", marks)

    def _table(self, node: SyntaxTreeNode, marks: Marks) -> None:
        rows = [
            [_cell(cell.children) for cell in row.children]
            for part in node.children
            for row in part.children
        ]
        self._pre(_aligned(rows), "", marks)

    def _pre(self, text: str, language: str, marks: Marks) -> None:
        self.out.write(text, (marks & {_QUOTE}) | {Mark("pre", language)})

    def inlines(self, nodes: Sequence[SyntaxTreeNode], marks: Marks) -> None:
        for node in nodes:
            self._inline(node, marks)

    def _inline(self, node: SyntaxTreeNode, marks: Marks) -> None:
        if node.type in {"link", "image"}:
            self._link(node, marks)
        elif node.type == "code_inline":
            self.out.write(node.content, _code_marks(marks))
        elif node.type in {"softbreak", "hardbreak"}:
            self.out.write(f"\n{self._indent}", marks)
        elif node.children:
            mark = _INLINE_MARKS.get(node.type)
            self.inlines(node.children, marks | {mark} if mark else marks)
        else:
            self.out.write(node.content, marks)

    def _link(self, node: SyntaxTreeNode, marks: Marks) -> None:
        """Write a link; a target that Telegram would not take stands behind its text."""
        target = str(node.attrs.get("href") or node.attrs.get("src") or "")
        label = _label(node)
        if _has_link(marks) or not target or label in {target, target.removeprefix("mailto:")}:
            self.inlines(node.children, marks)
        elif not label.strip():
            self.out.write(target, marks)
        elif self._link_marks and _LINKABLE.fullmatch(target):
            self.inlines(node.children, marks | {Mark("text_link", target)})
        else:
            self.inlines(node.children, marks)
            self.out.write(f" ({target})", marks)


def _item_break(node: SyntaxTreeNode) -> str:
    """Return what stands between the items of a list: a blank line only in a loose one."""
    firsts = (item.children[0] for item in node.children if item.children)
    loose = any(first.type == "paragraph" and not first.hidden for first in firsts)
    return "\n\n" if loose else "\n"


def _code_marks(marks: Marks) -> Marks:
    """Return the marks of inline code: it can stand in a quote, but in nothing else."""
    return marks if _has_link(marks) else (marks & {_QUOTE}) | {_CODE}


def _has_link(marks: Marks) -> bool:
    return any(mark.type == "text_link" for mark in marks)


def _label(node: SyntaxTreeNode) -> str:
    return "".join(part.content for part in node.walk() if not part.children)


def _cell(nodes: Sequence[SyntaxTreeNode]) -> str:
    """Return a table cell as one plain line; `pre` cannot hold links, so targets are spelt out."""
    writer = _Writer(link_marks=False)
    writer.inlines(nodes, _NO_MARKS)
    return writer.out.text.replace("\n", " ")


def _aligned(rows: list[list[str]]) -> str:
    """Return a table as lines with aligned columns; very wide cells stick out."""
    columns = max(len(row) for row in rows)
    widths = [
        max(min(_width(row[column]), _MAX_COLUMN) for row in rows if column < len(row))
        for column in range(columns)
    ]
    lines = [" │ ".join(map(_padded, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "─┼─".join("─" * width for width in widths), *lines[1:]])


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def _width(text: str) -> int:
    """Return the number of columns a text fills in a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in {"W", "F"})
        for char in text
    )
